//! What compose does not know of a project that is there: how many containers a person has set (`--scale`), and which
//! profiles a person has named (`--profile`). Both are told by the containers alone.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Container, Model, ModelService, State, UpMode};
use crate::service::scope::number_to_keep;

use super::fetch::real_name;

/// The numbers of containers that differ from the files, by compose service. A service of which nothing runs keeps as many
/// as it has: the machine may just have been started.
pub(super) fn kept_counts(containers: &[Container], model: &Model) -> BTreeMap<String, usize> {
    // Half of a container that was being replaced.
    let is_double = |c: &Container| {
        real_name(&c.name).is_some_and(|name| containers.iter().any(|other| other.name == name))
    };
    let mut by_service: BTreeMap<&str, Vec<&Container>> = BTreeMap::new();
    for container in containers.iter().filter(|c| !is_double(c)) {
        by_service.entry(&container.compose_service).or_default().push(container);
    }
    let kept = |(name, all): (&str, Vec<&Container>)| {
        let wanted = model.service(name)?.replicas();
        let created = all.iter().filter(|c| c.state == State::Created).count();
        let live = created + all.iter().filter(|c| c.is_live()).count();
        // Compose was interrupted: there may be fewer than there were to be.
        let is_incomplete = created > 0 && live <= wanted;
        let count = number_to_keep(all.len(), live, wanted).filter(|_| !is_incomplete)?;
        Some((name.to_owned(), count))
    };
    by_service.into_iter().filter_map(kept).collect()
}

/// The compose services of profiles that are to run. If nothing of the project runs, that is all of them, except jobs that
/// have finished.
pub(super) fn of_profiles(containers: &[Container], model: &Model) -> BTreeSet<String> {
    let is_down = !containers.iter().any(Container::is_live);
    let is_done = |c: &Container| c.state == State::Exited && c.exit_code == 0 && c.is_one_shot();
    let is_to_run = |c: &&Container| if is_down { !is_done(c) } else { c.is_live() };
    let services = containers.iter().filter(is_to_run).map(|c| c.compose_service.clone());
    services.filter(|name| model.service(name).is_some_and(ModelService::has_profiles)).collect()
}

/// The profiles to call compose with: those of services that others require, without which it rejects the files. Of the
/// services only those count that have a container or that compose is called for (`named`).
pub(super) fn required_profiles(
    containers: &[Container],
    model: &Model,
    named: &[String],
) -> BTreeSet<String> {
    let names = containers.iter().map(|c| &c.compose_service).chain(named);
    let services: Vec<ModelService<'_>> = names.filter_map(|name| model.service(name)).collect();
    let required: BTreeSet<&str> = services.iter().flat_map(|service| service.requires()).collect();
    let required = services.iter().filter(|service| required.contains(service.name));
    required.flat_map(|service| service.profiles()).map(str::to_owned).collect()
}

/// The compose services that these depend on, directly or not, without themselves and those that are off.
pub(super) fn dependencies(model: &Model, names: &[String], containers: &[Container]) -> Vec<String> {
    // Compose turns on the profiles of those that are named.
    let is_on = |name: &str| {
        names.iter().any(|named| named == name) || containers.iter().any(|c| c.compose_service == name)
    };
    let mut needed: Vec<String> = Vec::new();
    let mut unseen: Vec<String> = names.to_vec();
    while let Some(name) = unseen.pop() {
        let Some(service) = model.service(&name) else { continue };
        for other in service.depends_on().filter(|other| !model.lacks(service, other, is_on)) {
            if !names.iter().chain(&needed).any(|known| known == other) {
                needed.push(other.to_owned());
                unseen.push(other.to_owned());
            }
        }
    }
    needed.sort();
    needed
}

/// The compose services that have a container and are in the files.
pub(super) fn with_containers(containers: &[Container], model: &Model) -> BTreeSet<String> {
    let services = containers.iter().map(|c| c.compose_service.clone());
    services.filter(|name| model.service(name).is_some()).collect()
}

/// The compose services with stuck containers: half created, or restarting again and again.
pub(super) fn stuck(containers: &[Container]) -> Vec<String> {
    let is_stuck = |c: &&Container| matches!(c.state, State::Created | State::Restarting);
    let services: BTreeSet<String> =
        containers.iter().filter(is_stuck).map(|c| c.compose_service.clone()).collect();
    services.into_iter().collect()
}

/// The compose services that this mode would start, and whose containers can't be started, because a network of theirs is gone.
/// To compose they are unchanged, so that it would not make them anew.
pub(super) fn cut_off(containers: &[Container], model: &Model, up_mode: &UpMode) -> Vec<String> {
    // The others start nothing but what there is, or make it anew anyway.
    let (UpMode::Changed | UpMode::Services(_)) = up_mode else { return Vec::new() };
    let of_profiles = of_profiles(containers, model);
    let is_to_run = |name: &String| {
        let is_plain = model.service(name).is_some_and(|service| !service.has_profiles());
        let is_covered = *up_mode == UpMode::Changed || up_mode.services().contains(name);
        is_covered && (is_plain || of_profiles.contains(name))
    };
    let lacking =
        containers.iter().filter(|c| !c.lost_networks.is_empty()).map(|c| c.compose_service.clone());
    let services: BTreeSet<String> = lacking.filter(is_to_run).collect();
    services.into_iter().collect()
}

/// Whether compose has separated the parts of the containers' names by `_`, as `docker compose --compatibility` and compose v1
/// do, or by `-`; `None` if some have one and some the other, or all have names of their own.
pub(super) fn compatibility(project: &str, containers: &[Container]) -> Option<bool> {
    let has = |separator: char| {
        containers.iter().any(|c| {
            let number =
                c.name.strip_prefix(&format!("{project}{separator}{}{separator}", c.compose_service));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        })
    };
    match (has('_'), has('-')) {
        (true, false) => Some(true),
        (false, true) => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_keep_the_separator_of_their_names() {
        for (names, expected) in [
            (vec!["shop_web_1", "shop_web_2"], Some(true)),
            (vec!["shop-web-1"], Some(false)),
            (vec!["shop_web_1", "shop-web-2"], None),
            (vec!["shop_web_one", "shop-web", "front"], None),
            (vec!["4f5e_shop_web_1", "shop_web_1"], Some(true)),
            (vec![], None),
        ] {
            let named =
                |name: &&str| Container { name: (*name).into(), ..Container::running("web", "web:1") };
            let containers: Vec<_> = names.iter().map(named).collect();
            assert_eq!(compatibility("shop", &containers), expected, "{names:?}");
        }
    }

    const FILES: &str = r#"{"services": {
        "web": {"image": "web:1"},
        "worker": {"image": "web:1", "profiles": ["prod"]},
        "tool": {"image": "tool:1", "profiles": ["tools"]},
        "many": {"image": "many:1", "deploy": {"replicas": 3}}
    }}"#;

    fn model() -> Model {
        serde_json::from_str(FILES).expect("a model")
    }

    fn container(service: &str, number: usize, state: State) -> Container {
        Container { name: format!("shop-{service}-{number}"), state, ..Container::running(service, "web:1") }
    }

    fn some(service: &str, states: &[State]) -> Vec<Container> {
        states.iter().enumerate().map(|(at, state)| container(service, at + 1, *state)).collect()
    }

    #[test]
    fn the_number_of_containers_that_a_person_has_set_is_kept_whether_they_run_or_not() {
        let (up, down, made) = (State::Running, State::Exited, State::Created);
        let table: [(&str, &[State], Option<usize>); 11] = [
            ("web", &[up], None),
            ("web", &[up; 5], Some(5)),
            ("web", &[down; 5], Some(5)), // after a restart of the machine
            ("web", &[up, down], None),   // a leftover
            ("web", &[up, up, up, made, made], Some(5)),
            ("many", &[up; 3], None),
            ("many", &[up], Some(1)),
            ("many", &[up, down], Some(2)),
            ("many", &[down], Some(1)),
            ("many", &[made], None), // compose was interrupted when it created them
            ("gone", &[up; 2], None),
        ];
        for (service, states, kept) in table {
            let counts = kept_counts(&some(service, states), &model());
            assert_eq!(counts.get(service).copied(), kept, "{service}: {states:?}");
        }
    }

    #[test]
    fn half_of_a_container_that_was_being_replaced_does_not_count() {
        let mut containers = some("web", &[State::Exited, State::Created]);
        containers[1].name = "0123456789ab_shop-web-1".to_owned();
        assert_eq!(kept_counts(&containers, &model()), BTreeMap::new());
    }

    #[test]
    fn services_of_profiles_that_run_belong_to_the_project() {
        let (up, down) = (State::Running, State::Exited);
        let all = [some("web", &[up]), some("worker", &[up]), some("tool", &[down])].concat();
        assert_eq!(of_profiles(&all, &model()), ["worker".to_owned()].into(), "the tool is off");
    }

    #[test]
    fn profiles_are_named_only_for_services_that_others_require() {
        let model: Model = serde_json::from_value(serde_json::json!({"services": {
            "web": {"image": "web:1", "depends_on": {
                "db": {"condition": "service_started", "required": true},
                "migrate": {"condition": "service_completed_successfully"},
                "debugger": {"condition": "service_started", "required": false}}},
            "db": {"image": "db:1", "profiles": ["local"]},
            "migrate": {"image": "web:1", "profiles": ["jobs"]},
            "debugger": {"image": "tool:1", "profiles": ["debug"]},
            "tool": {"image": "tool:1", "profiles": ["tools"]},
        }}))
        .expect("a model");
        let of = |services: &[&str], named: &[&str]| -> Vec<String> {
            let containers: Vec<Container> =
                services.iter().map(|name| Container::running(name, "web:1")).collect();
            let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
            required_profiles(&containers, &model, &named).into_iter().collect()
        };
        assert_eq!(of(&["web", "db", "debugger", "tool"], &[]), ["local"]);
        assert_eq!(of(&["web"], &["migrate", "web"]), ["jobs"], "its container was pruned");
        assert_eq!(of(&["db", "tool"], &[]), [""; 0], "nothing requires it");
        assert_eq!(of(&["web", "gone"], &[]), [""; 0], "it ran without them");
    }

    #[test]
    fn an_optional_dependency_whose_profile_is_off_is_no_dependency() {
        let model: Model = serde_json::from_value(serde_json::json!({"services": {
            "web": {"image": "web:1", "depends_on": {
                "db": {"condition": "service_started", "required": false},
                "debugger": {"condition": "service_started", "required": false}}},
            "db": {"image": "db:1"},
            "debugger": {"image": "tool:1", "profiles": ["debug"], "depends_on": {
                "collector": {"condition": "service_started", "required": true}}},
            "tracer": {"image": "tool:1", "profiles": ["debug"]},
            "collector": {"image": "tool:1"},
        }}))
        .expect("a model");
        let of = |names: &[&str], running: &str| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            dependencies(&model, &names, &[Container::running(running, "tool:1")])
        };
        assert_eq!(of(&["web"], "web"), ["db"], "compose creates what is of no profile");
        for (names, running) in
            [(vec!["web"], "debugger"), (vec!["web"], "tracer"), (vec!["tracer", "web"], "web")]
        {
            assert_eq!(of(&names, running), ["collector", "db", "debugger"], "{names:?} {running}");
        }
    }

    #[test]
    fn containers_that_lack_a_network_are_made_anew_where_they_would_be_started() {
        let down = |service: &str, lacks_network: bool| Container {
            exit_code: 143,
            lost_networks: lacks_network.then(|| "a".to_owned()).into_iter().collect(),
            ..container(service, 1, State::Exited)
        };
        let mut all = vec![down("web", true), down("worker", true), down("many", false), down("gone", true)];
        // A job of a profile that is off, and has ended well.
        all.push(Container { exit_code: 0, ..down("tool", true) });
        let of = |up_mode: &UpMode| cut_off(&all, &model(), up_mode);
        let named = |names: &[&str]| UpMode::Services(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(of(&UpMode::Changed), ["web", "worker"]);
        assert_eq!(of(&named(&["many", "worker"])), ["worker"]);
        for other in [UpMode::StartOnly, UpMode::All, UpMode::ForceService("web".to_owned()), named(&[])] {
            assert_eq!(of(&other), [""; 0], "{other:?}");
        }
    }

    #[test]
    fn after_a_restart_of_the_machine_services_of_profiles_are_to_run_again_but_no_finished_jobs() {
        let mut all = [some("web", &[State::Exited]), some("worker", &[State::Exited])].concat();
        for container in &mut all {
            container.exit_code = 143;
        }
        all.extend(some("tool", &[State::Exited]));
        assert_eq!(of_profiles(&all, &model()), ["worker".to_owned()].into());
    }
}
