//! Stories of a service that shares its compose project with others.

use super::*;

const API: &str = "localhost:5000/api:1";

fn named(name: &str, image: &str, auto_heal: bool) -> Arc<ServiceConfig> {
    let reference = Reference::parse(image).unwrap();
    let images = vec![ConfiguredImage { configured: image.into(), reference }];
    Arc::new(ServiceConfig { name: name.into(), images, auto_heal, ..config() })
}

/// The names of the containers that each of these services heals or reports.
fn healed(services: &[Arc<ServiceConfig>], containers: &[&Container]) -> Vec<Vec<String>> {
    let of_one = |config: &Arc<ServiceConfig>| {
        let mut story = Story::of((**config).clone());
        story.service.set_siblings(services.into());
        story.look(containers);
        story.said.into_iter().filter_map(|entry| entry.container).collect()
    };
    services.iter().map(of_one).collect()
}

#[test]
fn a_container_is_healed_by_the_service_that_has_its_image_and_told_once() {
    let web = with_health("web", HealthState::Unhealthy);
    let api = Container { config_image: API.into(), ..with_health("api", HealthState::Unhealthy) };
    let other = Container { config_image: "db:1".into(), ..with_health("db", HealthState::Unhealthy) };
    let all = [&web, &api, &other];
    let of =
        |web_heals, api_heals| healed(&[named("api", API, api_heals), named("web", IMAGE, web_heals)], &all);
    assert_eq!(of(true, true), [vec!["api", "db"], vec!["web"]]);
    assert_eq!(of(true, false), [vec![], vec!["web", "api", "db"]], "only one of them heals");
    assert_eq!(of(false, false), [vec!["api", "db"], vec!["web"]], "nobody heals, and it is told once");
    let alike = [named("a", IMAGE, true), named("b", IMAGE, true)];
    assert_eq!(healed(&alike, &[&web]), [vec!["web"], vec![]]);
}

#[test]
fn while_another_service_is_at_work_nothing_is_restarted_or_deployed_and_afterwards_it_is_looked_at_anew() {
    let mut story = Story::of(config());
    let sick = with_health("web", HealthState::Unhealthy);
    story.look(&[&sick]);
    story.check(observed('2', &[local("sha256:one", &['1'])], &[&sick]));
    story.service.sibling_begins("api");
    assert_eq!(story.act(), None, "the project is not free");
    let shown = story.service.snapshot(PullProgress::default());
    assert_eq!((shown.update_wanted, shown.waits_for.as_deref()), (true, Some("api")));
    assert!(!story.service.is_at_work());
    let before = story.service.inspection_generation();
    story.at(20).sibling_ends();
    // Begun while the other one was at work: what it shows is not what is there now.
    let result = Ok(vec![sick.clone()]);
    story.input(Input::Inspected { generation: before, result });
    assert!(matches!(story.service.next(story.now), Some(Action::Check { .. })), "it plans anew");
    assert!(matches!(story.service.next(story.now), Some(Action::Inspect { .. })), "it looks anew");
    assert_eq!(story.service.next(story.now), None);
}

#[test]
fn an_inspection_that_was_begun_before_another_service_began_is_stale() {
    let mut story = Story::of(config());
    let generation = story.service.inspection_generation();
    story.service.sibling_begins("api");
    story.input(Input::Inspected { generation, result: Ok(vec![exited("web", 1)]) });
    assert_eq!(story.status(), StatusValue::Unknown, "it is not even shown");
}
