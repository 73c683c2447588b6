//! Tests of adopting projects and single containers.

use evenkeel_common::wire::MountRecord;
use serde_json::{Value, json};

use super::*;
use crate::model::{ImageId, Manager, RestartPolicy};

fn container(service: &str, image: &str) -> Container {
    Container {
        id: service.into(),
        name: format!("shop-{service}-1"),
        image: ImageId("sha256:aa".into()),
        ..Container::running(service, image)
    }
}

fn runs(service: &str, image: &str, in_registry: InRegistry) -> Runs {
    Runs { container: container(service, image), in_registry, labels: Labels::new() }
}

fn shop(folder: &Path, runs: Vec<Runs>) -> Project {
    let file = folder.join("compose.yml");
    std::fs::write(&file, "services: {}").unwrap();
    Project {
        name: "shop".into(),
        origin: Origin { folder: Some(folder.to_owned()), env_files: Vec::new() },
        files: vec![FileSeen::look(&file, None)],
        lists_differ: false,
        runs,
        rendered: None,
        bound_files: BTreeSet::new(),
        opt_in: Vec::new(),
    }
}

#[test]
fn a_project_becomes_a_service_with_its_registries_images() {
    let folder = tempfile::tempdir().unwrap();
    let project = shop(
        folder.path(),
        vec![
            runs("web", "nginx", InRegistry::Yes),
            runs("web2", "nginx:latest", InRegistry::Yes),
            runs("api", "localhost:5000/api:2", InRegistry::Yes),
        ],
    );
    let described = super::project(&project);
    assert_eq!(described.remarks, Vec::<String>::new());
    let file = folder.path().join("compose.yml");
    assert_eq!(
        serde_json::to_value(described.service).unwrap(),
        json!({
            "name": "shop", "images": ["docker.io/library/nginx:latest", "localhost:5000/api:2"],
            "compose_files": [file], "compose_project": "shop", "auto_update": true, "auto_heal": false,
        })
    );
}

/// Returns the service and the remarks for a changed project.
fn remarks(change: impl FnOnce(&mut Project, &Path)) -> (Option<Service>, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut project = shop(folder.path(), vec![runs("web", "nginx", InRegistry::Yes)]);
    change(&mut project, folder.path());
    let described = super::project(&project);
    (described.service, described.remarks.join("\n"))
}

#[test]
fn parts_that_can_not_be_adopted_are_reported() {
    type Change = fn(&mut Project, &Path);
    let cases: [(Change, &str, bool); 7] = [
        (
            |project, _| project.runs.push(runs("built", "shop-built", InRegistry::No)),
            "built: docker.io/library/shop-built:latest is not in its registry",
            true,
        ),
        (
            |project, _| project.runs[0].in_registry = InRegistry::No,
            "restarted when unhealthy, but not updated",
            false,
        ),
        (
            |project, _| project.runs[0].in_registry = InRegistry::Unknown("registry x: 401".into()),
            "registry x: 401",
            true,
        ),
        (
            |project, _| project.files.push(FileSeen::look(Path::new("/nonexistent.yml"), None)),
            "/nonexistent.yml can't be used: it does not exist",
            false,
        ),
        (|project, _| project.files.clear(), "do not say which compose files", false),
        (
            |project, _| project.runs.push(runs("agent", "ghcr.io/x/evenkeel-agent:1", InRegistry::Yes)),
            "agent: left out: it is Evenkeel itself",
            true,
        ),
        (
            |project, _| project.rendered = Some(Ok(Model::default())),
            "left out because they are no longer in the files: web",
            false,
        ),
    ];
    for (change, expected, updates) in cases {
        let (service, said) = remarks(change);
        assert!(said.contains(expected), "{expected}: {said}");
        assert_eq!(service.unwrap().auto_update, updates, "{said}");
    }
    let (service, said) = remarks(|project, _| project.runs[0].container.manager = Some(Manager::AutoUpdate));
    assert!(service.is_none() && said.contains("left out: podman auto-update"), "{said}");
    let pinned = format!("nginx@sha256:{}", "a".repeat(64));
    let (_, said) = remarks(|project, _| project.runs[0].container.config_image = pinned);
    assert!(said.contains("pinned to a digest"), "{said}");
}

#[test]
fn an_image_that_is_built_here_is_not_listed_because_its_registry_does_not_answer() {
    let refused = |image: &str| {
        InRegistry::Unknown(format!(
            "registry docker.io: 401 unauthorized for library/{image} (no credentials)"
        ))
    };
    let model: Model = serde_json::from_value(json!({"services": {
        "web": {"image": "nginx"},
        "built": {"build": {"context": "/srv/shop"}},
        "named": {"build": {"context": "/srv/shop"}, "image": "shop-named"},
        "worker": {"image": "shop-named"},
        "pulled": {"image": "shop-pulled", "build": null},
        "podman": {"image": "localhost/shop-podman"},
        "pushed": {"build": {"context": "/srv/shop"}, "image": "ghcr.io/a/pushed"},
    }}))
    .unwrap();
    let (service, said) = remarks(|project, _| {
        for (service, image) in [
            ("built", "shop-built"),
            ("worker", "shop-named"),
            ("named", "shop-named:latest"),
            ("pulled", "shop-pulled"),
            ("podman", "localhost/shop-podman"),
        ] {
            project.runs.push(runs(service, image, refused(image)));
        }
        project.runs.push(runs("pushed", "ghcr.io/a/pushed", InRegistry::Yes));
        project.rendered = Some(Ok(model.clone()));
    });
    let images =
        ["docker.io/library/nginx:latest", "docker.io/library/shop-pulled:latest", "ghcr.io/a/pushed:latest"];
    assert_eq!(service.unwrap().images, images, "{said}");
    for service in ["built", "worker", "named", "podman"] {
        let left_out = said.lines().any(|line| {
            line.starts_with(&format!("shop: {service}: ")) && line.contains("is built on this machine")
        });
        assert!(left_out, "{service}: {said}");
    }
    // A project of nothing else is healed, as every other one that can't be updated.
    let (service, said) = remarks(|project, _| {
        project.runs = vec![runs("built", "shop-built", refused("shop-built"))];
        project.rendered = Some(Ok(model));
    });
    let service = service.unwrap();
    assert!(service.auto_heal && !service.auto_update && service.images.is_empty(), "{said}");
}

/// The same project with one label at the container of `web`.
fn labelled(name: &str, value: &str, others: Vec<Runs>) -> (Option<Service>, String) {
    remarks(|project, _| {
        project.runs[0].labels.insert(name.to_owned(), value.to_owned());
        project.runs.extend(others);
    })
}

#[test]
fn what_other_updaters_exclude_or_only_monitor_is_not_updated_by_itself() {
    let enable = "com.centurylinklabs.watchtower.enable";
    let api = || vec![runs("api", "ghcr.io/a/api:2", InRegistry::Yes)];
    let (service, said) = labelled(enable, "false", api());
    assert_eq!(service.unwrap().images, ["ghcr.io/a/api:2"]);
    assert!(said.contains("web: left out: its label com.centurylinklabs.watchtower.enable=false"), "{said}");
    let (service, said) = labelled(enable, "false", vec![]);
    assert!(service.is_none() && said.contains("shop: left out: its label"), "{said}");
    // The image of a container that is left out is not updated through another one either.
    for other in ["nginx", "nginx:latest", "docker.io/library/nginx"] {
        let others = vec![runs("web2", other, InRegistry::Yes), api().remove(0)];
        let (service, said) = labelled(enable, "false", others);
        assert_eq!(service.unwrap().images, ["ghcr.io/a/api:2"], "{said}");
        assert!(said.contains("web2: left out: another container with this image is left out"), "{said}");
    }
    let (service, said) = labelled("com.centurylinklabs.watchtower.monitor-only", "true", api());
    let service = serde_json::to_value(service).unwrap();
    assert_eq!((&service["update"], &service["auto_update"]), (&json!({"approve": true}), &json!(true)));
    assert!(said.contains("evenkeel approve shop"), "{said}");
    let (_, said) = labelled("dd.tag.include", "^1", vec![]);
    assert!(said.contains("not taken over: the labels dd.tag.include"), "{said}");
}

#[test]
fn where_containers_opt_in_only_those_with_the_label_are_updated() {
    let enable = "com.centurylinklabs.watchtower.enable";
    let (service, said) = remarks(|project, _| {
        project.opt_in = vec![enable];
        project.runs[0].labels.insert(enable.to_owned(), "true".to_owned());
        project.runs.push(runs("db", "postgres:16", InRegistry::Yes));
    });
    assert_eq!(service.unwrap().images, ["docker.io/library/nginx:latest"]);
    let why = format!("another container has {enable}=true, and this one does not");
    assert!(said.contains(&format!("db: left out: {why}")), "{said}");
    let (service, said) = remarks(|project, _| project.opt_in = vec![enable]);
    assert!(service.is_none() && said.contains(&format!("shop: left out: {why}")), "{said}");
}

#[test]
fn only_an_answer_of_the_registry_says_that_it_has_no_such_image() {
    let of = |text: &str| InRegistry::of(Err(RegistryError(text.to_owned())));
    for text in [
        "image r.lan/web:1: tag not found in the registry",
        "image r.lan/web:1: repository not found in the registry",
        "image r.lan/web:1: not found in the registry",
    ] {
        assert_eq!(of(text), InRegistry::No, "{text}");
    }
    for text in [
        "credential helper docker-credential-desktop.exe for r.lan: not found in PATH",
        "credential helper docker-credential-x for r.lan: exec: \"pass\": executable file not found in $PATH",
        "registry r.lan: 404 not found for web",
    ] {
        assert_eq!(of(text), InRegistry::Unknown(text.to_owned()), "{text}");
    }
}

#[test]
fn a_database_with_a_volume_gets_one_line() {
    let mount = MountRecord {
        kind: "volume".into(),
        name: "data".into(),
        source: String::new(),
        destination: "/var/lib/postgresql/data".into(),
        read_only: false,
    };
    let (service, said) = remarks(|project, _| {
        let mut db = runs("db", "postgres:16", InRegistry::Yes);
        db.container.mounts = vec![mount];
        project.runs.push(db);
    });
    assert_eq!(service.unwrap().images.len(), 2);
    assert_eq!(said.matches("looks like a database with a volume").count(), 1, "{said}");
}

#[test]
fn an_env_file_is_adopted_unless_compose_finds_it_by_default() {
    let named = |project: &mut Project, folder: &Path, name: &str| {
        std::fs::write(folder.join(name), "A=1").unwrap();
        project.origin.env_files = vec![folder.join(name)];
    };
    let (service, said) = remarks(|project, folder| named(project, folder, "prod.env"));
    assert!(service.unwrap().env_file.is_some_and(|path| path.ends_with("prod.env")), "{said}");
    let (service, _) = remarks(|project, folder| named(project, folder, ".env"));
    assert_eq!(service.unwrap().env_file, None);
    let (service, said) = remarks(|project, folder| {
        named(project, folder, "prod.env");
        project.origin.env_files.push(folder.join("more.env"));
        project.origin.folder = Some("/elsewhere".into());
    });
    assert_eq!(service.unwrap().env_file, None, "the labels name them all");
    assert!(!said.contains("env"), "{said}");
}

#[test]
fn a_link_is_adopted_as_its_target() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("real.yml"), folder.path().join("compose.yml"));
    std::fs::write(&file, "").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let real = file.canonicalize().unwrap();
    assert_eq!(FileSeen::look(&link, None).usable, Ok(real.clone()));
    assert_eq!(FileSeen::look(Path::new("real.yml"), Some(folder.path())).usable, Ok(file));
    assert_eq!(FileSeen::look(folder.path(), None).usable, Err("is not a file".to_owned()));
}

#[test]
fn a_container_outside_compose_is_healed_only() {
    let single = |change: fn(&mut Alone)| {
        let mut single = Alone {
            container: container("db", "postgres:16"),
            is_of_swarm: false,
            labels: Labels::new(),
            opt_in: Vec::new(),
        };
        change(&mut single);
        alone(&single, &[])
    };
    let described = single(|_| ());
    let service = described.service.unwrap();
    assert_eq!(service.container_name.as_deref(), Some("shop-db-1"));
    assert!(service.auto_heal && !service.auto_update && described.remarks[0].contains("not updated"));
    assert_eq!(single(|single| single.is_of_swarm = true).service, None);
    assert_eq!(
        single(|single| single.container.manager = Some(Manager::Unit("db.service".into()))).service,
        None
    );
    assert_eq!(single(|single| single.container.config_image = "x/evenkeel".into()).service, None);
    assert_eq!(single(|single| single.container.restart_policy = RestartPolicy::Removed).service, None);
    let of_kubernetes =
        single(|single| _ = single.labels.insert("io.kubernetes.pod.name".into(), "web-0".into()));
    assert_eq!(of_kubernetes.remarks, ["shop-db-1: left out: Kubernetes manages it"]);
    let of_kamal = |role: &str| {
        let labels = [("service", "shop"), ("role", role), ("destination", "")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let container = container("db", "postgres:16");
        alone(&Alone { container, is_of_swarm: false, labels, opt_in: Vec::new() }, &[])
    };
    assert_eq!(of_kamal("db").remarks, ["shop-db-1: left out: Kamal manages it"]);
    assert!(of_kamal("web").service.is_some(), "its name is not one that Kamal gives");
    assert_eq!(single(|single| single.opt_in = vec!["wud.watch"]).service, None);
}

#[test]
fn a_container_with_the_name_of_a_project_is_listed_under_another_one() {
    let mut listed = vec![Service { name: "redis".into(), ..Service::default() }];
    for name in ["redis", "redis-container", "web"] {
        let container = Container { name: name.into(), ..container("redis", "redis:7") };
        let single = Alone { container, is_of_swarm: false, labels: Labels::new(), opt_in: Vec::new() };
        let described = alone(&single, &listed);
        let service = described.service.unwrap();
        assert_eq!(service.container_name.as_deref(), Some(name));
        let is_said = described.remarks.join("\n").contains(&format!("listed as {}", service.name));
        assert_eq!(is_said, service.name != name, "{:?}", described.remarks);
        listed.push(service);
    }
    let names: Vec<&str> = listed.iter().map(|service| service.name.as_str()).collect();
    assert_eq!(names, ["redis", "redis-container", "redis-container-container", "web"]);
    let long = Service { name: "a".repeat(LONGEST_NAME), ..Service::default() };
    let container = Container { name: long.name.clone(), ..container("redis", "redis:7") };
    let single = Alone { container, is_of_swarm: false, labels: Labels::new(), opt_in: Vec::new() };
    assert_eq!(alone(&single, &[long]).service, None);
}

#[test]
fn services_whose_updates_could_be_without_an_interruption_are_named() {
    let with = |web: Value| {
        let (_, said) = remarks(|project, _| {
            project.runs[0].container.health_timing = Some(crate::model::HealthTiming {
                start_period: std::time::Duration::ZERO,
                interval: std::time::Duration::from_secs(5),
                timeout: std::time::Duration::from_secs(5),
                retries: 3,
            });
            project.rendered = Some(Ok(serde_json::from_value(json!({"services": {"web": web}})).unwrap()));
        });
        said
    };
    let could = "updates of web could be without an interruption";
    assert!(with(json!({"image": "nginx"})).contains(could));
    assert!(!with(json!({"image": "nginx", "container_name": "web"})).contains(could));
    let start_first = json!({"update_config": {"order": "start-first"}});
    assert!(!with(json!({"image": "nginx", "deploy": start_first})).contains(could), "it is set already");
    let fixed =
        json!({"image": "nginx", "deploy": start_first, "ports": [{"target": 80, "published": "80"}]});
    assert!(with(fixed).contains("web: it is to start first and can't: it has ports: 80:80"));
}
