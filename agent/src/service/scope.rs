//! The compose services that an update passes to `compose up`: those whose image changes, and those that are restarted
//! with them. Compose leaves all others alone, even if it considers them out of date (DECISIONS 4 and 9).
//!
//! Without a list of services, compose brings the whole project to the state of the files. That would apply unrelated
//! edits and start containers that an operator has stopped, and some versions recreate unchanged containers
//! (docker/compose#14036, compose 2.24 on its first `up`).

use std::collections::{BTreeMap, BTreeSet};

use crate::model::image::Reference;
use crate::model::{Container, Model, ModelService, UpMode};
use crate::service::rollout::baseline::Baseline;

/// The scope of an update, as of its planning: a step that is repeated after a crash must not mistake the partial result
/// of compose for the previous state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// The images that change.
    pub images: Vec<Reference>,
    /// The containers before the update.
    pub before: Vec<Baseline>,
    /// The part of them that is brought up.
    pub part: Part,
}

/// A part of the compose services of an update.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Part {
    /// All of them.
    #[default]
    All,
    /// All but those that hand over.
    StopFirst(BTreeSet<String>),
    /// Those that hand over, each with the number of its containers, those beside the old ones included.
    Beside(BTreeMap<String, usize>),
}

/// Limits compose to these services, each with as many containers as before; `model`: the definition that is brought up.
pub fn alone(names: Vec<String>, before: &[Baseline], model: Option<&Model>) -> UpMode {
    let scope = Scope { images: Vec::new(), before: before.to_vec(), part: Part::All };
    let kept = |name: &String| Some((name.clone(), scope.kept_count(name, model?)?));
    let replicas: BTreeMap<String, usize> = names.iter().filter_map(kept).collect();
    if replicas.is_empty() {
        return UpMode::Services(names);
    }
    UpMode::ScaledServices { names, replicas, with_dependencies: false, keeps_containers: false }
}

impl Scope {
    /// Returns the compose services to be brought up; none if the files no longer contain any of them. `model` is the
    /// resolved model of the current files; without it, the labels of the containers are used.
    pub fn services(&self, model: Option<&Model>) -> UpMode {
        let mut names = self.changed(model);
        let ties = self.ties(model);
        loop {
            let tied = ties.iter().filter(|(_, to)| !names.is_disjoint(to)).map(|(name, _)| name.clone());
            let more: Vec<String> = tied.filter(|name| !names.contains(name)).collect();
            if more.is_empty() {
                break;
            }
            names.extend(more);
        }
        let replicas = match &self.part {
            Part::Beside(counts) => {
                names.retain(|name| counts.contains_key(name));
                counts.clone()
            }
            part => {
                if let Part::StopFirst(others) = part {
                    names.retain(|name| !others.contains(name));
                }
                let kept = |name: &String| Some((name.clone(), self.kept_count(name, model?)?));
                names.iter().filter_map(kept).collect()
            }
        };
        UpMode::ScaledServices {
            replicas,
            names: names.into_iter().collect(),
            with_dependencies: false,
            keeps_containers: matches!(self.part, Part::Beside(_)),
        }
    }

    /// Returns the containers that ran before, of all compose services that the update brings up, be it in parts.
    pub fn ran(&self, model: Option<&Model>) -> impl Iterator<Item = &Baseline> {
        let up = Self { part: Part::All, ..self.clone() }.services(model);
        self.before.iter().filter(move |was| was.running && up.services().contains(&was.compose_service))
    }

    /// Reports whether all of them still run, or are about to be started again by the engine.
    pub fn is_as_before(&self, containers: &[Container], model: Option<&Model>) -> bool {
        let runs = |c: &Container| c.is_active() && !c.is_stopping;
        self.ran(model).all(|was| containers.iter().any(|c| c.id == was.id && runs(c)))
    }

    /// Reports whether a service on an image for which `is_of` holds is brought up because its image changes, be it a job that
    /// another one of these services waits for.
    pub fn brings_up(&self, model: &Model, is_of: impl Fn(&Reference) -> bool) -> bool {
        let names = self.changed(Some(model));
        let mut images = names.iter().filter_map(|name| model.service(name)?.image());
        images.any(|image| is_of(&image))
    }

    /// Services whose image changes: those whose containers run on it. Another one, whose file says so by now, was edited and
    /// not applied. A service that does not run keeps its state: one that an operator has stopped, a job that has finished, an
    /// inactive profile. The exception is a job that one of these services waits for, such as a migration: it is part of their
    /// start, and its container may have been pruned. One that is optional and of a profile that is off was never run.
    fn changed(&self, model: Option<&Model>) -> BTreeSet<String> {
        let changes = |reference: &Reference| self.images.contains(reference);
        let was_on = |was: &Baseline| was.made_from().is_some_and(|r| changes(&r));
        let users = self.before.iter().filter(|was| was.live && was_on(was));
        let users = users.map(|was| was.compose_service.clone());
        let Some(model) = model else { return users.collect() };
        let is_on = |name: &str| {
            let mut of_service = self.before.iter().filter(|was| was.compose_service == name).peekable();
            model.service(name).and_then(ModelService::image).is_some_and(|r| changes(&r))
                && (of_service.peek().is_none() || of_service.any(was_on))
        };
        let mut names: BTreeSet<String> = users.filter(|name| model.service(name).is_some()).collect();
        let mut unseen: Vec<String> = names.iter().cloned().collect();
        while let Some(name) = unseen.pop() {
            let Some(service) = model.service(&name) else { continue };
            let has_containers = |name: &str| self.before.iter().any(|was| was.compose_service == name);
            let is_run = |job: &&str| is_on(job) && !model.lacks(service, job, has_containers);
            for needed in service.waits_for().filter(is_run) {
                if names.insert(needed.to_owned()) {
                    unseen.push(needed.to_owned());
                }
            }
        }
        names
    }

    /// The services that each service is restarted with. A service that did not run needs no restart.
    fn ties(&self, model: Option<&Model>) -> BTreeMap<String, BTreeSet<String>> {
        let mut ties: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for was in self.before.iter().filter(|was| was.live) {
            let service = model.map(|model| model.service(&was.compose_service));
            // It is no longer in the files, or in an inactive profile.
            if matches!(service, Some(None)) {
                continue;
            }
            let named = service.flatten().into_iter().flat_map(ModelService::restarts_with);
            let all = named.map(str::to_owned).chain(was.restarts_with.iter().cloned());
            ties.entry(was.compose_service.clone()).or_default().extend(all);
        }
        ties
    }

    /// The number of containers that a service keeps, if the files specify a different one: an operator has scaled it, or
    /// has edited the number without applying it.
    pub fn kept_count(&self, name: &str, model: &Model) -> Option<usize> {
        let wanted = model.service(name)?.replicas();
        let of_service = || self.before.iter().filter(|was| was.compose_service == name);
        let (all, live) = (of_service().count(), of_service().filter(|was| was.live).count());
        number_to_keep(all, live, wanted)
    }
}

/// Returns how many of `all` containers of a service stay, if that is not the number in the files. A stopped one beside
/// running ones may be a leftover, so it never raises the number above the one in the files.
pub fn number_to_keep(all: usize, live: usize, wanted: usize) -> Option<usize> {
    match live {
        _ if live > wanted => Some(live),
        0 if all > wanted => Some(all),
        _ => Some(all).filter(|all| (1..wanted).contains(all)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::State;
    use crate::model::image::ImageId;

    const FILES: &str = r#"{"services": {
        "db": {"image": "db:1"},
        "migrate": {"image": "web:1", "depends_on": {"db": {"condition": "service_started"}}},
        "web": {"image": "web:1", "depends_on": {
            "db": {"condition": "service_started", "restart": true},
            "migrate": {"condition": "service_completed_successfully"}}},
        "side": {"image": "proxy:1", "network_mode": "service:web", "depends_on": {"web": {"condition": "service_started"}}},
        "debugger": {"image": "proxy:1", "pid": "service:web"},
        "follower": {"image": "proxy:1", "depends_on": {"web": {"condition": "service_healthy", "restart": true}}},
        "second": {"image": "proxy:1", "depends_on": {"follower": {"condition": "service_started", "restart": true}}},
        "plain": {"image": "proxy:1", "depends_on": {"web": {"condition": "service_started"}}},
        "absent": {"image": "web:1"},
        "seed": {"image": "seed:1"},
        "app": {"image": "app:1", "depends_on": {"seed": {"condition": "service_completed_successfully"}}},
        "many": {"image": "many:1", "scale": 2},
        "deployed": {"image": "many:1", "deploy": {"replicas": 3}}
    }}"#;

    fn model() -> Model {
        serde_json::from_str(FILES).unwrap()
    }

    fn was(service: &str, image: &str, running: bool) -> Baseline {
        Baseline {
            id: service.to_owned(),
            compose_service: service.to_owned(),
            config_image: image.to_owned(),
            image: ImageId("sha256:1".into()),
            running,
            well: running,
            restart_count: 0,
            live: running,
            restarts_with: Vec::new(),
        }
    }

    fn scope(image: &str, before: &[Baseline]) -> Scope {
        Scope { images: vec![Reference::parse(image).unwrap()], before: before.to_vec(), part: Part::All }
    }

    fn names(scope: &Scope, model: Option<&Model>) -> Vec<String> {
        scope.services(model).services().to_vec()
    }

    fn all() -> Vec<Baseline> {
        vec![
            was("db", "db:1", true),
            was("migrate", "web:1", false),
            was("web", "web:1", true),
            was("side", "proxy:1", true),
            was("debugger", "proxy:1", true),
            was("follower", "proxy:1", true),
            was("second", "proxy:1", true),
            was("plain", "proxy:1", true),
        ]
    }

    #[test]
    fn the_services_of_a_changed_image_are_brought_up_with_those_that_are_restarted_with_them() {
        let model = model();
        let expected = ["debugger", "follower", "migrate", "second", "side", "web"];
        assert_eq!(names(&scope("web:1", &all()), Some(&model)), expected);
        assert_eq!(
            names(&scope("db:1", &all()), Some(&model)),
            ["db", "debugger", "follower", "second", "side", "web"],
            "web is restarted with the database; the migration is not run again for it"
        );
        assert_eq!(
            names(&scope("proxy:1", &all()), Some(&model)),
            ["debugger", "follower", "plain", "second", "side"]
        );
    }

    #[test]
    fn a_stopped_service_is_not_started_because_it_is_restarted_with_another() {
        let mut before = all();
        before.iter_mut().filter(|was| was.compose_service == "follower").for_each(|was| was.live = false);
        assert_eq!(names(&scope("web:1", &before), Some(&model())), ["debugger", "migrate", "side", "web"]);
    }

    #[test]
    fn containers_are_as_before_while_those_that_ran_still_run() {
        let scope = scope("web:1", &[was("web", "web:1", true), was("job", "web:1", false)]);
        let web = |id: &str, state: State| {
            let web = Container { id: id.to_owned(), state, ..Container::running("web", "web:1") };
            scope.is_as_before(&[web], None)
        };
        assert!(web("web", State::Running) && web("web", State::Restarting));
        assert!(!web("web", State::Exited) && !web("web", State::Paused) && !web("other", State::Running));
        assert!(!scope.is_as_before(&[], None));
    }

    #[test]
    fn only_containers_that_are_brought_up_must_be_as_before() {
        let all = all();
        let containers: Vec<Container> = all
            .iter()
            .map(|was| Container {
                id: was.id.clone(),
                ..Container::running(&was.compose_service, &was.config_image)
            })
            .collect();
        let without = |service: &str, scope: &Scope| {
            let rest: Vec<Container> =
                containers.iter().filter(|c| c.compose_service != service).cloned().collect();
            scope.is_as_before(&rest, Some(&model()))
        };
        let scope = scope("web:1", &all);
        assert!(without("db", &scope) && without("plain", &scope), "they are left alone");
        assert!(!without("web", &scope) && !without("side", &scope), "they are replaced");
        let handover = Scope { part: Part::StopFirst(["web".to_owned()].into()), ..scope };
        assert!(!without("web", &handover), "it is replaced later");
    }

    #[test]
    fn of_services_without_a_container_only_a_migration_is_run() {
        let before: Vec<Baseline> =
            all().into_iter().filter(|was| was.compose_service != "migrate").collect();
        let names = names(&scope("web:1", &before), Some(&model()));
        assert!(names.contains(&"migrate".to_owned()) && !names.contains(&"absent".to_owned()), "{names:?}");
    }

    #[test]
    fn an_optional_migration_of_a_profile_that_is_off_is_not_run() {
        let model = |required: bool| -> Model {
            let on =
                serde_json::json!({ "condition": "service_completed_successfully", "required": required });
            serde_json::from_value(serde_json::json!({"services": {
                "web": {"image": "web:1", "depends_on": {"migrate": on}},
                "migrate": {"image": "web:1", "profiles": ["migrate"]},
                "seed": {"image": "seed:1", "profiles": ["migrate"]},
            }}))
            .unwrap()
        };
        let (web, seed) = (was("web", "web:1", true), was("seed", "seed:1", false));
        let of = |before: &[&Baseline], required: bool| {
            let before: Vec<Baseline> = before.iter().map(|was| (*was).clone()).collect();
            names(&scope("web:1", &before), Some(&model(required)))
        };
        assert_eq!(of(&[&web], false), ["web"]);
        assert_eq!(of(&[&web], true), ["migrate", "web"], "its container was pruned");
        assert_eq!(of(&[&web, &seed], false), ["migrate", "web"], "the profile is on");
        let ran = was("migrate", "web:1", false);
        assert_eq!(of(&[&web, &ran], false), ["migrate", "web"]);
    }

    #[test]
    fn a_job_with_an_image_of_its_own_is_brought_up_with_the_service_that_waits_for_it_and_never_alone() {
        let job = Reference::parse("seed:1").unwrap();
        let is_job = |reference: &Reference| *reference == job;
        let before = [was("app", "app:1", true), was("seed", "seed:1", false)];
        let mut both = scope("app:1", &before);
        both.images.push(job.clone());
        assert_eq!(names(&both, Some(&model())), ["app", "seed"]);
        assert!(both.brings_up(&model(), is_job));
        assert!(!scope("seed:1", &before).brings_up(&model(), is_job), "nothing that runs waits for it");
        both.before[0].live = false;
        assert!(!both.brings_up(&model(), is_job), "what waits for it was stopped");
    }

    #[test]
    fn a_service_that_is_not_in_the_files_is_never_named() {
        let before = [was("web", "web:1", true), was("tool", "web:1", true)];
        assert_eq!(names(&scope("web:1", &before), Some(&model())), ["migrate", "web"]);
        let gone = [was("tool", "web:1", true)];
        assert_eq!(names(&scope("web:1", &gone), Some(&model())), [""; 0]);
    }

    #[test]
    fn a_service_whose_edited_image_is_not_applied_yet_is_selected_by_its_running_image() {
        let before = [was("plain", "web:1", true)];
        assert_eq!(names(&scope("web:1", &before), Some(&model())), ["plain"]);
    }

    #[test]
    fn a_service_whose_file_names_the_changed_image_only_since_an_edit_is_left_alone() {
        let before = [was("web", "web:1", true), was("absent", "proxy:1", true)];
        assert_eq!(names(&scope("web:1", &before), Some(&model())), ["migrate", "web"]);
        let before = [was("web", "web:1", true), was("migrate", "other:1", false)];
        assert_eq!(names(&scope("web:1", &before), Some(&model())), ["web"], "a job, too");
    }

    #[test]
    fn without_the_files_dependencies_come_from_the_containers() {
        let mut before = all();
        before.iter_mut().filter(|was| was.compose_service == "side").for_each(|was| {
            was.restarts_with = vec!["web".to_owned()];
        });
        assert_eq!(names(&scope("web:1", &before), None), ["side", "web"]);
    }

    #[test]
    fn services_that_are_brought_up_by_themselves_keep_their_number_of_containers() {
        let alone = |before: &[Baseline]| alone(vec!["web".to_owned()], before, Some(&model()));
        assert_eq!(alone(&[was("web", "web:1", true)]), UpMode::Services(vec!["web".to_owned()]));
        for is_live in [true, false] {
            let before = vec![was("web", "web:1", is_live); 5];
            let UpMode::ScaledServices { names, replicas, .. } = alone(&before) else { panic!("not scaled") };
            assert_eq!((names, replicas), (vec!["web".to_owned()], [("web".to_owned(), 5)].into()));
        }
    }

    #[test]
    fn a_number_of_containers_that_differs_from_the_files_is_kept() {
        let many = |service: &str, running: usize, stopped: usize| {
            let one = |running| was(service, "many:1", running);
            [vec![one(true); running], vec![one(false); stopped]].concat()
        };
        let table = [
            ("many", 2, 0, None),
            ("many", 5, 0, Some(5)),
            ("many", 1, 0, Some(1)),
            ("many", 1, 1, None),
            ("many", 2, 1, None), // half of a container that was being replaced
            ("deployed", 3, 0, None),
            ("deployed", 2, 0, Some(2)),
            ("deployed", 0, 1, None), // it does not run, so it is not brought up
        ];
        for (service, running, stopped, kept) in table {
            let scope = scope("many:1", &many(service, running, stopped));
            let UpMode::ScaledServices { replicas, .. } = scope.services(Some(&model())) else {
                panic!("{scope:?}")
            };
            assert_eq!(
                replicas.get(service).copied(),
                kept,
                "{service}: {running} running, {stopped} stopped"
            );
        }
    }
}
