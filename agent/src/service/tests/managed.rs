//! Scenarios of containers that are managed by systemd or podman (DECISIONS 9).

use std::path::PathBuf;

use super::*;
use crate::model::Manager;

fn managed(container: Container) -> Container {
    Container { manager: Some(Manager::Unit("web.service".into())), ..container }
}

#[test]
fn a_container_of_a_systemd_unit_is_not_updated() {
    for manager in [Manager::Unit("web.service".into()), Manager::AutoUpdate] {
        let mut scenario = Scenario::of(config());
        let container = Container { manager: Some(manager), ..running("a") };
        scenario.check(observed('2', &[local("sha256:one", &['1'])], &[&container]));
        assert_eq!(scenario.act(), None);
        assert_eq!(scenario.kinds(), []);
        // Without a manager it is updated.
        scenario.check(observed('2', &[local("sha256:one", &['1'])], &[&running("a")]));
        assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))));
    }
}

#[test]
fn a_container_of_a_systemd_unit_is_neither_healed_nor_started() {
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, ..config() });
    let crashed = managed(exited("a", 1));
    for second in [0, 3, 10, 100] {
        scenario.at(second).look(&[&crashed]);
        scenario.check(observed('1', &[local("sha256:one", &['1'])], &[&crashed]));
        assert_eq!(scenario.act(), None);
    }
    assert_eq!(scenario.kinds(), []);
}

#[test]
fn a_container_taken_over_by_a_unit_is_no_longer_healed() {
    let mut scenario = Scenario::of(config());
    scenario.look(&[&exited("a", 1)]);
    assert_eq!(scenario.at(2).look(&[&managed(exited("a", 1))]).restarts(), [""; 0]);
    assert_eq!(scenario.at(100).look(&[&managed(exited("a", 1))]).restarts(), [""; 0]);
    assert_ne!(scenario.status(), StatusValue::Degraded);
}

#[test]
fn other_containers_of_a_project_with_a_unit_are_healed() {
    let mut scenario = Scenario::of(config());
    let both = [&managed(exited("a", 1)), &exited("b", 1)];
    scenario.look(&both);
    assert_eq!(scenario.at(2).look(&both).restarts(), ["b"]);
}

#[test]
fn the_manager_of_a_container_is_named_in_a_warning() {
    let mut scenario = Scenario::of(config());
    scenario.look(&[&managed(running("a")), &running("b")]);
    let warnings = scenario.warnings();
    assert_eq!(
        warnings,
        ["container a is managed by systemd (web.service): it is neither updated nor healed here"]
    );
    scenario.look(&[&running("a")]);
    assert_eq!(scenario.warnings(), [""; 0]);
}

#[test]
fn a_configured_image_whose_tag_is_another_one_in_the_compose_file_is_named_in_a_warning() {
    const DB: &str = "postgres:15";
    let reference = Reference::parse(DB).unwrap();
    let database = ConfiguredImage { configured: DB.into(), reference: reference.clone() };
    let images = [config().images, vec![database]].concat();
    let mut scenario = Scenario::of(ServiceConfig { images, ..config() });
    let mut warnings = |containers: &[&Container]| {
        let mut seen = observed('1', &[local("sha256:one", &['1'])], containers);
        seen.images.push(ImageView::new(DB.into(), reference.clone()));
        scenario.check(seen).warnings()
    };
    let (web, db) = (running("web"), |image: &str| Container { config_image: image.into(), ..running("db") });
    let pinned = format!("{DB}@{}", digest('1'));
    for made_from in ["postgres:16", pinned.as_str()] {
        let expected = format!(
            "no container is made from postgres:15; db is made from {made_from}, which is not in `images`, so that it is \
             not updated: correct `images`"
        );
        assert_eq!(warnings(&[&web, &db(made_from)]), [expected]);
    }
    let stopped = Container { state: State::Exited, ..db("postgres:16") };
    let other_of_web = Container { config_image: IMAGE.into(), ..running("worker") };
    for others in [vec![&db("mysql:9")], vec![&stopped], vec![&other_of_web], vec![], vec![&db(DB)]] {
        assert_eq!(warnings(&[vec![&web], others.clone()].concat()), [""; 0], "{others:?}");
    }
    // The compose service ran the configured image, and runs another one now.
    assert!(warnings(&[&web, &db("mysql:9")])[0].contains("db is made from mysql:9"));
    let unlisted = Container { config_image: "mysql:9".into(), ..running("cache") };
    assert_eq!(warnings(&[&web, &unlisted]), [""; 0], "the database was removed");
}

#[test]
fn a_container_in_unknown_state_is_neither_started_nor_healed_nor_reported_healthy() {
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, ..config() });
    let unknown = Container { state: State::Unknown, started_at: None, ..running("a") };
    for second in [0, 3, 10, 100] {
        scenario.at(second).look(&[&unknown]);
        scenario.check(observed('1', &[local("sha256:one", &['1'])], &[&unknown]));
        assert_eq!(scenario.act(), None);
    }
    assert_eq!((scenario.kinds(), scenario.status()), (vec![], StatusValue::Unknown));
}

#[test]
fn a_service_that_was_frozen_as_not_found_goes_on_once_its_image_is_known() {
    let mut scenario = Scenario::of(config());
    let built = local("sha256:one", &[]);
    scenario.check(observed('2', &[built], &[&running("a")]));
    assert_eq!((scenario.act(), scenario.kinds()), (None, vec![Kind::NOT_FOUND]));
    scenario.check(observed('2', &[local("sha256:one", &['1'])], &[&running("a")]));
    assert_eq!(scenario.service.durable().images.not_found().count(), 0);
    let action = scenario.act();
    let Some(Action::Step(Step::PinImages { images, .. })) = action else { panic!("{action:?}") };
    assert_eq!(images[0].source.as_ref().and_then(|source| source.digest.clone()), Some(digest('1')));
}

#[test]
fn a_digest_that_was_seen_here_and_in_the_registry_is_remembered() {
    let mut scenario = Scenario::of(config());
    scenario.check(observed('1', &[local("sha256:one", &['1'])], &[&running("a")]));
    assert_eq!(scenario.service.durable().images.get(IMAGE).published.as_ref(), Some(&digest('1')));
    scenario.check(observed('2', &[local("sha256:one", &['1'])], &[&running("a")]));
    assert_eq!(scenario.service.durable().images.get(IMAGE).published.as_ref(), Some(&digest('1')));
}

/// An agent in a container that sees the compose files at a path other than on the host.
#[test]
fn containers_of_other_compose_files_than_the_configured_ones_give_a_warning() {
    let made_from = |files: &[&str]| Container {
        compose_files: files.iter().map(PathBuf::from).collect(),
        ..running("a")
    };
    for (files, warns) in [
        (&["/home/ann/web.yml"][..], true),
        (&["/srv/web.yml"], false),
        (&["/home/ann/web.yml", "/srv/web.yml"], false),
        (&[], false),
    ] {
        let mut scenario = Scenario::of(config());
        scenario.look(&[&made_from(files)]);
        let warnings = scenario.warnings();
        assert_eq!(warnings.len(), usize::from(warns), "{files:?}: {warnings:?}");
        assert!(warnings.iter().all(|text| text.contains("made from /home/ann/web.yml, not")));
    }
}
