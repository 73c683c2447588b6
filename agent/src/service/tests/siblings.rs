//! Scenarios of a service that shares its compose project with others.

use super::go_back::seen;
use super::tag_variable::with_variable;
use super::*;
use crate::config::UpdateConfig;

fn named(name: &str, image: &str, auto_heal: bool) -> Arc<ServiceConfig> {
    let reference = Reference::parse(image).unwrap();
    let images = vec![ConfiguredImage { configured: image.into(), reference }];
    Arc::new(ServiceConfig { name: name.into(), images, auto_heal, ..config() })
}

/// Returns the names of the containers that each of these services heals or reports.
fn healed(services: &[Arc<ServiceConfig>], containers: &[&Container]) -> Vec<Vec<String>> {
    let of_one = |config: &Arc<ServiceConfig>| {
        let mut scenario = Scenario::of((**config).clone());
        scenario.service.project.services = services.into();
        scenario.look(containers);
        scenario.entries.into_iter().filter_map(|entry| entry.container).collect()
    };
    services.iter().map(of_one).collect()
}

#[test]
fn a_container_is_healed_by_the_service_that_lists_its_image_and_reported_once() {
    let web = with_health("web", HealthState::Unhealthy);
    let api = Container { config_image: API.into(), ..with_health("api", HealthState::Unhealthy) };
    let other = Container { config_image: "db:1".into(), ..with_health("db", HealthState::Unhealthy) };
    let all = [&web, &api, &other];
    let of =
        |web_heals, api_heals| healed(&[named("api", API, api_heals), named("web", IMAGE, web_heals)], &all);
    assert_eq!(of(true, true), [vec!["api", "db"], vec!["web"]]);
    assert_eq!(of(true, false), [vec![], vec!["web", "api", "db"]], "only one of them heals");
    assert_eq!(of(false, false), [vec!["api", "db"], vec!["web"]], "neither heals, and it is reported once");
    let alike = [named("a", IMAGE, true), named("b", IMAGE, true)];
    assert_eq!(healed(&alike, &[&web]), [vec!["web"], vec![]]);
}

#[test]
fn a_container_that_is_not_of_the_project_is_healed_by_the_service_that_has_its_name() {
    let by_name = |name: &str, container: &str| {
        let container_name = Some(container.to_owned());
        Arc::new(ServiceConfig { container_name, ..(*named(name, IMAGE, true)).clone() })
    };
    let sick = with_health("pihole", HealthState::Unhealthy);
    let services = [named("api", API, true), by_name("db", "db"), by_name("web", "pihole")];
    assert_eq!(healed(&services, &[&sick]), [vec![], vec![], vec!["pihole"]]);
    let own = Container { project: "web".into(), ..sick };
    assert_eq!(healed(&services, &[&own]), [vec![], vec!["pihole"], vec![]], "the first with its image");
}

#[test]
fn a_container_with_another_tag_of_the_variable_is_healed_by_the_service_that_lists_its_image() {
    let web = Container {
        config_image: "localhost:5000/web:2".into(),
        ..with_health("web", HealthState::Unhealthy)
    };
    let services = [named("api", API, true), Arc::new(with_variable(UpdateConfig::default()))];
    assert_eq!(healed(&services, &[&web]), [vec![], vec!["web"]]);
}

#[test]
fn what_the_agent_writes_for_another_service_of_the_project_is_no_edit_of_the_files() {
    let jobs = Arc::new(ServiceConfig { compose_watch: true, ..(*named("jobs", API, false)).clone() });
    let web = Arc::new(with_variable(UpdateConfig::default()));
    let own_variables = |services: &[Arc<ServiceConfig>]| {
        let mut scenario = Scenario::of((*jobs).clone());
        scenario.service.project.services = services.into();
        scenario.service.check(true);
        loop {
            match scenario.service.next(scenario.now) {
                Some(Action::Check { asked, .. }) => return asked.files.expect("it watches").own_variables,
                Some(_) => {}
                None => panic!("no check is due"),
            }
        }
    };
    assert!(own_variables(&[]).is_empty());
    assert_eq!(own_variables(&[jobs.clone(), web]), ["WEB_TAG".to_owned()].into());
}

#[test]
fn while_another_service_changes_the_project_nothing_is_changed_and_it_is_checked_again_afterwards() {
    let mut scenario = Scenario::of(config());
    let sick = with_health("web", HealthState::Unhealthy);
    scenario.look(&[&sick]);
    scenario.check(observed('2', &[local("sha256:one", &['1'])], &[&sick]));
    scenario.service.sibling_begins("api");
    assert_eq!(scenario.act(), None, "the project is not free");
    assert_eq!(
        (scenario.service.wants_update(), scenario.service.waits_for().as_deref()),
        (true, Some("api"))
    );
    assert!(!scenario.service.is_changing_project());
    let before = scenario.service.inspection_generation();
    scenario.at(20).sibling_ends();
    // It began while the other service was changing the project, so it is stale.
    let result = Ok(vec![sick.clone()]);
    scenario.input(Input::Inspected { generation: before, result });
    assert!(matches!(scenario.service.next(scenario.now), Some(Action::Check { .. })), "it checks again");
    assert!(matches!(scenario.service.next(scenario.now), Some(Action::Inspect { .. })), "it inspects again");
    assert_eq!(scenario.service.next(scenario.now), None);
}

#[test]
fn an_inspection_from_before_another_service_began_is_stale() {
    let mut scenario = Scenario::of(config());
    let generation = scenario.service.inspection_generation();
    scenario.service.sibling_begins("api");
    scenario.input(Input::Inspected { generation, result: Ok(vec![exited("web", 1)]) });
    assert_eq!(scenario.status(), StatusValue::Unknown, "it is ignored");
}

/// Image 3 runs. A person goes back to image 2, which waits until another service has changed the project.
fn going_back_behind_another() -> Scenario {
    let mut scenario = Scenario::of(config());
    scenario.updated_to(&[('1', '2'), ('2', '3')]);
    scenario.service.sibling_begins("api");
    assert_eq!(scenario.asked_back(None), ServiceReply::RollingBack(digest('2')));
    scenario.check(seen('3', '3'));
    assert_eq!(scenario.act(), None, "the project is not free");
    scenario
}

#[test]
fn a_rollback_that_waits_for_another_service_is_told_and_a_later_request_takes_its_place() {
    // What begins when the project is free.
    let begins = |scenario: &mut Scenario| {
        scenario.sibling_ends();
        scenario.check(seen('3', '3'));
        match scenario.service.wanted.clone() {
            Some(Cause::GoBack(back)) => Some(back.to[0].digest.clone()),
            Some(Cause::Redeploy) => None,
            other => panic!("{other:?}"),
        }
    };
    let mut scenario = going_back_behind_another();
    let answer = scenario.why().answer;
    assert!(answer.contains("another service of the project, api, is being changed"), "{answer}");
    assert_eq!(begins(&mut scenario), Some(digest('2')));

    let mut scenario = going_back_behind_another();
    assert_eq!(scenario.asked_back(Some('1')), ServiceReply::RollingBack(digest('1')));
    assert_eq!(begins(&mut scenario), Some(digest('1')));

    let mut scenario = going_back_behind_another();
    let (reply, _) = scenario.service.handle_request(ServiceRequest::Redeploy, scenario.now);
    assert!(matches!(reply, ServiceReply::Redeploying(_)), "{reply:?}");
    assert_eq!(begins(&mut scenario), None);
}
