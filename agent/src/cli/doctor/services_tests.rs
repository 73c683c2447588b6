//! Tests of the findings for services.

use std::time::Duration;

use evenkeel_common::config::Configuration as _;
use evenkeel_common::wire::MountRecord;
use serde_json::{Value, json};

use super::super::finding::Severity;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::super::facts::{Files, tag_in_force};
use super::*;
use crate::config::Config;
use crate::model::ComposeError;
use crate::model::image_config::ImageConfig;
use crate::model::{HealthTiming, ImageId, Manager, Origin};
use crate::ports::Image;

const DIGEST: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// A healthy service with one container.
struct Stage {
    folder: tempfile::TempDir,
    config: Config,
    container: Container,
    image: Option<Image>,
    served: Option<bool>,
    model: Value,
    differences: Vec<Difference>,
    probed: Vec<(String, Answer)>,
    labelled: BTreeSet<PathBuf>,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("compose.yml");
        std::fs::write(&file, "services: {}").unwrap();
        let tree = json!({"services": [{
            "name": "web", "images": ["web:1"], "compose_files": [file], "compose_project": "shop", "auto_update": true,
        }]});
        let config = Config::parse(&tree.to_string(), Path::new("c.json"), &|_| None).unwrap();
        let timing = HealthTiming {
            start_period: Duration::ZERO,
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(5),
            retries: 3,
        };
        Self {
            container: Container {
                name: "shop-web-1".into(),
                compose_files: vec![file.clone()],
                image: ImageId(DIGEST.into()),
                health_timing: Some(timing),
                mounts: vec![MountRecord {
                    kind: "bind".into(),
                    name: String::new(),
                    source: "/srv/shop/data".into(),
                    destination: "/data".into(),
                    read_only: false,
                }],
                ..Container::running("web", "localhost:5000/web:1")
            },
            image: Some(Image {
                id: ImageId(DIGEST.into()),
                repo_digests: vec![format!("localhost:5000/web@{DIGEST}")],
                size: 1,
                platform: None,
                is_complete: true,
                config: ImageConfig::default(),
            }),
            served: None,
            model: json!({"services": {"web": {
                "image": "localhost:5000/web:1",
                "volumes": [{"type": "bind", "source": "/srv/shop/data", "target": "/data"}],
            }}}),
            differences: Vec::new(),
            probed: Vec::new(),
            labelled: BTreeSet::from([file]),
            folder,
            config,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str) -> PathBuf {
        std::fs::write(self.path(name), "services: {}").unwrap();
        self.path(name)
    }

    /// Moves the tag to an env file, with another value than the configured one.
    fn with_tag_variable(mut self, line: &str) -> Self {
        std::fs::write(self.path(".env"), line).unwrap();
        let tree = json!({"services": [{
            "name": "web", "images": ["web:1.27.0"], "compose_files": [self.path("compose.yml")],
            "compose_project": "shop", "auto_update": true, "env_file": self.path(".env"),
            "update": {"tags": "~1.27", "tag_variable": "WEB_TAG"},
        }]});
        self.config = Config::parse(&tree.to_string(), Path::new("c.json"), &|_| None).unwrap();
        assert_eq!(self.config.warnings, Vec::<String>::new());
        self.model["services"]["web"]["image"] = "localhost:5000/web:1.27.4".into();
        self.container.config_image = "localhost:5000/web:1.27.4".into();
        self
    }

    fn findings(self) -> Vec<Finding> {
        let config = &self.config.services[0];
        let model = match self.model {
            Value::String(cause) => Err(ComposeError::new(cause)),
            model => Ok(serde_json::from_value(model).unwrap()),
        };
        let facts = Facts {
            config,
            files: Files::look(&config.compose_files, &self.labelled),
            containers: vec![Running { container: self.container, image: self.image, served: self.served }],
            model: Some(model),
            differences: self.differences,
            bound_files: BTreeSet::new(),
            data: None,
            probed: self.probed,
            tag: config.tag_variable().and_then(|variable| tag_in_force(variable.file, variable.name)),
        };
        [check(&facts), way_back(&facts)].concat()
    }
}

/// Changes the service and checks its only finding: its severity, and parts of its text and remedy.
#[track_caller]
fn assert_found(change: impl FnOnce(&mut Stage), severity: Severity, what: &str, remedy: &str) {
    let mut stage = Stage::new();
    change(&mut stage);
    let found = stage.findings();
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].severity, severity, "{found:#?}");
    assert!(found[0].what.contains(what) && found[0].remedy.contains(remedy), "{found:#?}");
}

use Severity::{Error, Warning};

#[test]
fn a_healthy_service_has_no_finding() {
    assert_eq!(Stage::new().findings(), []);
}

#[test]
fn health_checks_are_compared_with_the_grace() {
    let slow = |stage: &mut Stage| {
        stage.container.health_timing.as_mut().unwrap().interval = Duration::from_secs(30);
    };
    assert_found(slow, Warning, "may take 125 s, but health_grace is 60 s", "\"health_grace\": 125");
    assert_found(|stage| stage.container.health_timing = None, Warning, "no health check", "\"healthcheck\"");
}

/// The health check may be defined in the image, which a manager does not see.
#[test]
fn a_swarm_service_has_no_finding_for_its_health_check() {
    let mut stage = Stage::new();
    stage.container.health_timing = None;
    let tree = json!({"services": [{
        "name": "web", "images": ["web:1"], "swarm_service": "shop_web", "auto_update": true,
    }]});
    stage.config = Config::parse(&tree.to_string(), Path::new("c.json"), &|_| None).unwrap();
    stage.model = json!({"services": {}});
    (stage.container.compose_files, stage.labelled) = (Vec::new(), BTreeSet::new());
    assert_eq!(stage.findings(), []);
}

#[test]
fn stopped_containers_and_unused_images_are_reported() {
    let stopped = |stage: &mut Stage| {
        stage.container.state = State::Exited;
        stage.container.exit_code = 1;
    };
    assert_found(stopped, Warning, "none of its containers is running", "docker compose -p shop -f ");
    let other = |stage: &mut Stage| {
        stage.container.config_image = "localhost:5000/other:1".into();
        stage.model = json!({"services": {}});
    };
    assert_found(other, Warning, "no container uses localhost:5000/web:1", "\"images\" of web");
    let mounted = |stage: &mut Stage| {
        stage.container.config_image = "localhost:5000/other:1".into();
        let volume = json!({"type": "image", "source": "localhost:5000/web:1", "target": "/assets"});
        stage.model = json!({"services": {"web": {"image": "localhost:5000/other:1", "volumes": [volume]}}});
    };
    assert_found(mounted, Warning, "localhost:5000/web:1 is only mounted", "by hand");
}

#[test]
fn the_tag_in_the_env_file_takes_precedence() {
    assert_eq!(Stage::new().with_tag_variable("WEB_TAG=1.27.4\n").findings(), []);
    // Containers of the current tag are checked like any others.
    let mut stage = Stage::new().with_tag_variable("WEB_TAG=1.27.4\n");
    stage.container.health_timing = None;
    let found = stage.findings();
    assert!(found.len() == 1 && found[0].what.contains("no health check"), "{found:#?}");
    let mut stage = Stage::new().with_tag_variable("WEB_TAG=1.27.4\n");
    stage.container.config_image = "localhost:5000/other:1".into();
    stage.model = json!({"services": {}});
    let found = stage.findings();
    assert!(found.len() == 1 && found[0].what == "no container uses localhost:5000/web:1.27.4", "{found:#?}");
    // Without a readable tag there is nothing to check; that has its own finding.
    assert_eq!(Stage::new().with_tag_variable("OTHER=1\n").findings(), []);
}

#[test]
fn containers_managed_by_podman_or_systemd_are_reported() {
    let unit = |stage: &mut Stage| stage.container.manager = Some(Manager::Unit("web.service".into()));
    assert_found(unit, Warning, "managed by systemd (web.service)", "remove the service");
    let auto = |stage: &mut Stage| stage.container.manager = Some(Manager::AutoUpdate);
    assert_found(auto, Warning, "podman auto-update", "label");
}

#[test]
fn containers_from_other_files_are_reported_with_the_files() {
    let other = |stage: &mut Stage| stage.labelled = BTreeSet::from([stage.write("other.yml")]);
    assert_found(other, Error, "created from other compose files", "other.yml");
    let elsewhere =
        |stage: &mut Stage| stage.labelled = BTreeSet::from([PathBuf::from("/host/only/compose.yml")]);
    assert_found(elsewhere, Error, "/host/only/compose.yml", "");
    let more = |stage: &mut Stage| {
        let file = stage.write("more.yml");
        stage.labelled.insert(file);
    };
    assert_found(more, Warning, "also created from", "add ");
    let by_hand = |stage: &mut Stage| drop(stage.write("compose.override.yml"));
    assert_found(by_hand, Warning, "when run manually", "compose.override.yml to \"compose_files\"");
}

#[test]
fn files_under_another_path_are_the_same_files() {
    let mut stage = Stage::new();
    let link = stage.path("link");
    std::os::unix::fs::symlink(stage.folder.path(), &link).unwrap();
    stage.labelled = BTreeSet::from([link.join("compose.yml")]);
    assert_eq!(stage.findings(), []);
}

#[test]
fn what_an_update_would_change_beyond_the_image_is_reported() {
    let edited = |stage: &mut Stage| {
        let what = vec!["volume /data".to_owned()];
        let (unset, connected) = (Vec::new(), Vec::new());
        stage.differences = vec![Difference { service: "web".to_owned(), what, unset, connected }];
    };
    assert_found(
        edited,
        Error,
        "no longer define what runs: web: volume /data",
        "up -d --force-recreate web`",
    );
    let mut stage = Stage::new();
    stage.labelled = BTreeSet::from([stage.write("other.yml")]);
    edited(&mut stage);
    let found = stage.findings();
    let words = found.iter().find(|one| one.what.contains("no longer define")).expect("it differs");
    assert!(words.remedy.starts_with("set \"compose_files\" to "), "{words:#?}");
    assert!(words.remedy.contains("other.yml, or, ") && !words.remedy.contains("redeploy"), "{words:#?}");
    let of_another_user = |stage: &mut Stage| {
        let (what, unset) = (vec!["volume /data".to_owned()], vec!["HOME".to_owned()]);
        stage.differences =
            vec![Difference { service: "web".to_owned(), what, unset, connected: Vec::new() }];
    };
    assert_found(of_another_user, Error, "HOME may be another one here", "write the path out");
    let connected = |stage: &mut Stage| {
        let what = vec!["network shop (connected since)".to_owned()];
        let (unset, connected) = (Vec::new(), vec!["shop".to_owned()]);
        stage.differences = vec![Difference { service: "web".to_owned(), what, unset, connected }];
    };
    assert_found(connected, Error, "web: network shop (connected since)", "add shop to the networks of web");
}

#[test]
fn files_that_compose_rejects_are_reported() {
    let broken = |stage: &mut Stage| stage.model = "services.web.ports must be a list".into();
    assert_found(broken, Error, "ports must be a list", "compose.yml config`");
}

#[test]
fn the_commands_start_the_project_with_its_own_folder_and_variables() {
    let from = |stage: &mut Stage| {
        stage.container.origin =
            Origin { folder: Some("/srv/elsewhere".into()), env_files: vec!["/srv/prod.env".into()] };
    };
    let with = |task: &str| {
        format!("compose.yml --project-directory /srv/elsewhere --env-file /srv/prod.env {task}`")
    };
    let stopped = |stage: &mut Stage| {
        from(stage);
        stage.container.state = State::Exited;
        stage.container.exit_code = 1;
    };
    assert_found(stopped, Warning, "none of its containers is running", &with("up -d"));
    let broken = |stage: &mut Stage| {
        from(stage);
        stage.model = "services.web.ports must be a list".into();
    };
    assert_found(broken, Error, "ports must be a list", &with("config"));
    let edited = |stage: &mut Stage| {
        from(stage);
        let what = vec!["volume /data".to_owned()];
        let (unset, connected) = (Vec::new(), Vec::new());
        stage.differences = vec![Difference { service: "web".to_owned(), what, unset, connected }];
    };
    assert_found(edited, Error, "no longer define", &with("up -d --force-recreate web"));
}

#[test]
fn a_rollback_needs_the_image_on_disk_or_in_the_registry() {
    let gone = |stage: &mut Stage| (stage.image, stage.served) = (None, Some(false));
    assert_found(gone, Error, "no registry has it", "evenkeel redeploy web");
    let incomplete = |stage: &mut Stage| stage.image.as_mut().unwrap().is_complete = false;
    assert_found(incomplete, Error, "no longer on this machine", "evenkeel redeploy web");
    let built = |stage: &mut Stage| stage.image.as_mut().unwrap().repo_digests.clear();
    assert_found(built, Warning, "built or loaded on this machine", "docker pull localhost:5000/web:1");
    let mut stage = Stage::new();
    (stage.image, stage.served) = (None, Some(true));
    assert_eq!(stage.findings(), []);
}

impl Stage {
    /// With a probe, which its container has answered like this.
    fn with_probe(mut self, answer: Answer) -> Self {
        let tree = json!({"services": [{
            "name": "web", "images": ["localhost:5000/web:1"], "compose_files": [self.path("compose.yml")],
            "compose_project": "shop", "auto_update": true, "update": {"probe": {"http": ":8080/health"}},
        }]});
        self.config = Config::parse(&tree.to_string(), Path::new("c.json"), &|_| None).unwrap();
        assert_eq!(self.config.warnings, Vec::<String>::new());
        self.probed = vec![(self.container.name.clone(), answer)];
        self.container.health_timing = None;
        self
    }
}

#[test]
fn a_probe_is_told_what_it_is_answered_now() {
    let found = Stage::new().with_probe(Ok("status 302 Found, redirect to /login".into())).findings();
    let [note] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((note.severity, &*note.subject), (Severity::Note, "web: shop-web-1"));
    assert_eq!(note.what, "GET http://:8080/health: status 302 Found, redirect to /login");
    let found = Stage::new().with_probe(Err("connection refused".into())).findings();
    let [warning] = &found[..] else { panic!("{found:#?}") };
    assert_eq!(warning.severity, Severity::Warning);
    assert!(warning.what.ends_with("fails for what runs now: connection refused"), "{warning:#?}");
    assert!(warning.remedy.contains("\"from\""), "{warning:#?}");
}

#[test]
fn it_is_said_which_services_could_start_first_and_which_line_keeps_one_from_it() {
    let free = || {
        let mut stage = Stage::new();
        stage.container.mounts.clear();
        stage.model = json!({"services": {"web": {"image": "localhost:5000/web:1"}}});
        stage
    };
    let [note] = &free().findings()[..] else { panic!("one note") };
    assert_eq!((note.severity, note.subject.as_str()), (Severity::Note, "web"));
    assert!(note.what.starts_with("the updates of web could be without an interruption"), "{note:?}");
    let mut named = free();
    named.model["services"]["web"]["container_name"] = "web".into();
    assert_eq!(named.findings(), [], "not asked for, and not possible");
    let mut asked = free();
    asked.model["services"]["web"]["deploy"] = json!({"update_config": {"order": "start-first"}});
    assert_eq!(asked.findings(), [], "it is set already");
    let mut asked = free();
    asked.model["services"]["web"] = json!({
        "image": "localhost:5000/web:1", "deploy": {"update_config": {"order": "start-first"}},
        "ports": [{"target": 80, "published": "8080"}],
    });
    let [warning] = &asked.findings()[..] else { panic!("one warning") };
    assert_eq!((warning.severity, warning.subject.as_str()), (Severity::Warning, "web: web"));
    assert!(warning.what.ends_with("it has ports: 8080:80"), "{warning:?}");
}
