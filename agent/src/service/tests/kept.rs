//! Scenarios of a redeployment that leaves some images unchanged, and names them.

use super::*;
use crate::config::UpdateConfig;
use crate::service::gates::candidate::Unsigned;

fn two(update: Option<UpdateConfig>) -> ServiceConfig {
    let mut images = config().images;
    images.push(ConfiguredImage { configured: API.into(), reference: Reference::parse(API).unwrap() });
    ServiceConfig { images, update: update.map(Arc::new), ..config() }
}

/// Both images run digest 1; the registry has these digests.
fn seen(web: char, api: char) -> Observation {
    let of_api =
        Container { config_image: API.into(), image: ImageId("sha256:api".into()), ..running("api") };
    let mut seen = observed(web, &[local("sha256:one", &['1'])], &[&running("web"), &of_api]);
    let running = vec![local("sha256:api", &['1'])];
    seen.images.push(ImageView {
        remote: Some(digest(api)),
        tagged: running.first().cloned(),
        running,
        ..ImageView::new(API.into(), Reference::parse(API).unwrap())
    });
    seen
}

/// The container that a redeployment makes of the second image.
fn new_api() -> Container {
    Container {
        id: "new".into(),
        config_image: API.into(),
        image: ImageId("sha256:new".into()),
        ..running("api")
    }
}

impl Scenario {
    /// Requests a redeploy. Returns the images that the answer names, each with its gate.
    fn redeploys(&mut self) -> Vec<(String, String)> {
        match self.service.handle_request(ServiceRequest::Redeploy, self.now).0 {
            ServiceReply::Redeploying(kept) => kept.into_iter().map(|one| (one.image, one.gate)).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// Lets the redeployment in progress succeed. Returns its entry.
    fn redeployed(&mut self, containers: &[&Container]) -> AuditEntry {
        let containers: Vec<Container> = containers.iter().map(|c| (*c).clone()).collect();
        loop {
            let result = match self.act() {
                Some(Action::Step(Step::PinImages { .. })) => {
                    StepResult::ImagesPinned { missing: Vec::new() }
                }
                Some(Action::Step(Step::Pull { images, .. })) => {
                    assert!(images.iter().all(|(image, _)| image != IMAGE), "{images:?}");
                    let ids = images.into_iter().map(|(image, _)| (image, ImageId("sha256:new".into())));
                    StepResult::Pulled { ids: ids.collect(), labels: BTreeMap::new() }
                }
                Some(Action::Step(Step::Start(_))) => {
                    let (up, named) = (Ok(String::new()), Vec::new());
                    StepResult::Started { up, named, containers: containers.clone() }
                }
                None => break,
                other => panic!("{other:?}"),
            };
            self.input(Input::Stepped(result));
        }
        let all: Vec<&Container> = containers.iter().collect();
        let later = self.now + SignedDuration::from_secs(60);
        self.look(&all);
        self.now = later;
        self.look(&all);
        let entry = self.entries.iter().find(|entry| entry.event == Kind::FORCE_REDEPLOY);
        entry.unwrap_or_else(|| panic!("{:#?}", self.entries)).clone()
    }
}

#[test]
fn an_image_that_is_blocked_or_not_signed_is_named_in_the_answer_and_in_the_entry() {
    let blocked: fn(&mut Scenario, &mut Observation) = |scenario, _| {
        scenario.service.durable.images.of(IMAGE).blocked = Some(digest('2'));
    };
    let elsewhere: fn(&mut Scenario, &mut Observation) = |_, seen| {
        seen.blocked_elsewhere = vec![blocked_by("api")];
    };
    let unsigned: fn(&mut Scenario, &mut Observation) = |_, seen| {
        seen.unsigned.insert(IMAGE.into(), Unsigned::Missing);
    };
    for (gate, part, set_up) in [
        ("blocked", "failed here", blocked),
        ("blocked", "failed for api, another service", elsewhere),
        ("signature", "is not signed", unsigned),
    ] {
        let signed = UpdateConfig { signed_by: vec!["/key".into()], ..UpdateConfig::default() };
        let mut scenario = Scenario::of(two((gate == "signature").then_some(signed)));
        let mut saw = seen('2', '3');
        set_up(&mut scenario, &mut saw);
        // Without auto_update no poll cycle updates the other image.
        scenario.service.config = Arc::new(ServiceConfig { auto_update: false, ..two(None) });
        scenario.check(saw.clone());
        assert_eq!(scenario.redeploys(), [(IMAGE.to_owned(), gate.to_owned())]);
        scenario.check(saw);
        let new = new_api();
        let entry = scenario.redeployed(&[&running("web"), &new]);
        assert!(entry.message.ends_with(&format!("; left on the current image: {IMAGE}")), "{entry:?}");
        let reason = entry.reason.unwrap();
        assert!(reason.contains(IMAGE) && reason.contains(part), "{reason}");
    }
}

#[test]
fn a_redeploy_says_which_other_services_it_makes_anew_without_the_image_that_their_tag_names_by_now() {
    const DB: &str = "localhost:5000/db:1";
    let mut scenario = Scenario::of(two(None));
    scenario.service.durable.images.of(IMAGE).blocked = Some(digest('2'));
    scenario.service.config = Arc::new(ServiceConfig { auto_update: false, ..two(None) });
    let db = Container { config_image: DB.into(), image: ImageId("sha256:db".into()), ..running("db") };
    let mut saw = seen('2', '3');
    saw.containers = saw.containers.iter().cloned().chain([db.clone()]).collect();
    scenario.check(saw.clone());
    scenario.redeploys();
    scenario.check(saw);
    let new = new_api();
    let db = Container { id: "new-db".into(), ..db };
    let entry = scenario.redeployed(&[&running("web"), &new, &db]);
    assert!(entry.message.ends_with(&format!("; left on the current image: {IMAGE}, {DB}")), "{entry:?}");
    let reason = entry.reason.unwrap();
    assert!(reason.contains(&format!("{DB} names another image by now")), "{reason}");
}

#[test]
fn a_redeploy_names_only_kept_images_and_a_block_even_before_the_first_check() {
    let mut scenario = Scenario::of(config());
    assert_eq!(scenario.redeploys(), []);
    let mut scenario = Scenario::of(config());
    scenario.service.durable.images.of(IMAGE).blocked = Some(digest('2'));
    assert_eq!(scenario.redeploys(), [(IMAGE.to_owned(), "blocked".to_owned())]);
}
