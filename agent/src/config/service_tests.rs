//! Tests of the service rules, each violated and obeyed.

use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::{Value, json};

use super::super::testing::{good, parse};
use super::*;

/// A folder with `compose.yml` and `.env`, not writable by others regardless of the umask.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["compose.yml", ".env"] {
        let path = folder.path().join(name);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    }
    folder
}

fn path_in(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_owned()
}

fn complete(folder: &Path) -> Value {
    json!({
        "name": "web", "auto_update": true, "auto_heal": true, "images": ["web"],
        "compose_files": [path_in(folder, "compose.yml")], "compose_project": "web", "env_file": path_in(folder, ".env"),
    })
}

/// Sets `key` to `value` in a complete service; returns the warnings, and whether the service was kept.
fn with(folder: &Path, key: &str, value: Value) -> (Vec<String>, bool) {
    let mut service = complete(folder);
    service[key] = value;
    let config = good(&json!({"services": [service, {"name": "other"}]}));
    assert!(config.services.iter().any(|service| service.name == "other"), "the others are unaffected");
    (config.warnings, config.services.len() == 2)
}

#[test]
fn a_complete_service_passes_with_its_values() {
    let folder = folder();
    let config = good(&json!({"services": [complete(folder.path())]}));
    assert_eq!(config.warnings, Vec::<String>::new());
    let service = &config.services[0];
    assert_eq!(service.images[0].configured, "web");
    assert_eq!(service.images[0].reference.to_string(), "localhost:5000/web:latest");
    assert_eq!(
        (service.health_grace.as_secs(), service.heal_cooldown.as_secs(), service.heal_max_restarts),
        (60, 300, 3)
    );
    assert!(
        service.auto_update
            && service.auto_heal
            && !service.auto_start
            && !service.compose_watch
            && !service.silent
    );
}

#[test]
fn each_violated_rule_skips_the_service_with_a_reason() {
    let folder = folder();
    let dir = folder.path();
    symlink(dir.join("compose.yml"), dir.join("link.yml")).unwrap();
    let fifo_mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, dir.join("fifo"), rustix::fs::FileType::Fifo, fifo_mode, 0).unwrap();
    let at = |name: &str| path_in(dir, name);
    let compose = "allowed: the absolute path of a regular file, not of a link to one";
    let env_file = "allowed: the absolute path of a file that exists";
    let project = "allowed: 1 to 64 letters, digits, \"_\" and \"-\"";
    for (key, value, reason) in [
        // Rule 1
        ("images", json!([]), "images: auto_update needs at least one image".to_owned()),
        ("compose_files", json!([]), "compose_files: auto_update needs at least one compose file".into()),
        // Rule 3
        ("compose_files", json!(["a.yml"]), format!("compose_files[0]: \"a.yml\" is not absolute; {compose}")),
        ("compose_files", json!([""]), format!("compose_files[0]: \"\" is not absolute; {compose}")),
        ("compose_files", json!([at("compose.yml"), at("none")]), format!("compose_files[1]: {:?} does not exist; {compose}", at("none"))),
        ("compose_files", json!([at("")]), format!("compose_files[0]: {:?} is a folder; {compose}", at(""))),
        ("compose_files", json!([at("link.yml")]), format!("compose_files[0]: {:?} is a symbolic link; {compose}", at("link.yml"))),
        ("compose_files", json!([at("fifo")]), format!("compose_files[0]: {:?} is a FIFO; {compose}", at("fifo"))),
        ("compose_files", json!(["/dev/null"]), format!("compose_files[0]: \"/dev/null\" is a device; {compose}")),
        // Rule 4
        ("compose_project", json!("a.b"), format!("compose_project: \"a.b\"; {project}")),
        ("compose_project", json!("a b"), format!("compose_project: \"a b\"; {project}")),
        ("compose_project", json!("a".repeat(65)), format!("compose_project: {:?}; {project}", "a".repeat(65))),
        // Rule 5
        ("env_file", json!(".env"), format!("env_file: \".env\" is not absolute; {env_file}")),
        ("env_file", json!(at("none")), format!("env_file: {:?} does not exist; {env_file}", at("none"))),
        ("env_file", json!(at("")), format!("env_file: {:?} is a folder; {env_file}", at(""))),
        // Rule 6
        ("compose_files", json!([at("../compose..yml")]), format!("compose_files[0]: {:?} does not exist; {compose}", at("../compose..yml"))),
        ("env_file", json!(at("x/../.env")), format!("env_file: {:?} does not exist; {env_file}", at("x/../.env"))),
        ("env_file", json!("/etc/../etc/passwd"), "env_file: \"/etc/../etc/passwd\" contains \"..\"; allowed: a path without it".into()),
        ("compose_files", json!(["/etc/../etc/passwd"]), "compose_files[0]: \"/etc/../etc/passwd\" contains \"..\"; allowed: a path without it".into()),
        // Images, types
        ("images", json!(["web", "x y"]), "images[1]: \"x y\" is not a repository name (lower-case letters and digits, separated by single . _ __ - or /, at most 255 characters)".into()),
        ("images", json!("web"), "images: \"web\"; allowed: an array of strings".into()),
        ("auto_heal", json!("yes"), "auto_heal: \"yes\"; allowed: true or false".into()),
    ] {
        assert_eq!(with(dir, key, value), (vec![format!("web: {reason} (service skipped)")], false));
    }
}

#[test]
fn an_invalid_number_is_the_default() {
    let folder = folder();
    let complete = complete(folder.path());
    let seconds = "a whole number of seconds from 0 to 31536000, or a duration such as \"90s\", \"15m\", \"12h\", \"3d\"";
    let percent = "a number of at least 0";
    for (key, value, seen, allowed) in [
        ("cpu_threshold", json!("80"), "\"80\" is a string, remove the quotes", percent),
        ("memory_threshold", json!(-0.1), "-0.1 is out of range", percent),
        ("health_grace", json!(-1), "-1 is out of range", seconds),
        ("heal_cooldown", json!("5 min"), "\"5 min\"", seconds),
        ("heal_max_restarts", json!(3.0), "3.0 is not a whole number", "a whole number from 0 to 1000000"),
    ] {
        let mut service = complete.clone();
        service[key] = value;
        let config = good(&json!({"services": [service]}));
        assert_eq!(
            config.warnings,
            [format!("web: {key}: {seen}; allowed: {allowed} (the default is used)")]
        );
        assert_eq!(config.services, good(&json!({"services": [complete]})).services, "{key}");
    }
    let mut service = complete.clone();
    service["keep_images"] = json!(100);
    let config = good(&json!({"services": [service]}));
    assert!(config.warnings[0].ends_with("from 0 to 50 (no image is removed)"), "{:?}", config.warnings);
    assert_eq!(config.services[0].keep_images, 0);
}

#[test]
fn rules_1_and_2_require_the_keys_that_the_flags_need() {
    let of = |service: Value| good(&json!({"services": [service]}));
    let texts = of(json!({"name": "a", "auto_update": true})).warnings;
    assert_eq!(
        texts,
        [
            "a: compose_files: auto_update needs at least one compose file (service skipped)",
            "a: compose_project: auto_update needs a compose project (service skipped)",
            "a: images: auto_update needs at least one image (service skipped)",
        ]
    );
    let texts = of(json!({"name": "a", "auto_heal": true, "compose_project": ""})).warnings;
    assert_eq!(texts, ["a: auto_heal: needs compose_project or container_name (service skipped)"]);
    for other in ["compose_project", "container_name"] {
        assert_eq!(of(json!({"name": "a", "auto_heal": true, other: "x"})).services.len(), 1);
    }
    // A project of a wrong type is one fault, not two.
    let texts = of(json!({"name": "a", "auto_heal": true, "compose_project": 5})).warnings;
    assert_eq!(texts, ["a: compose_project: 5; allowed: a string (service skipped)"]);
}

#[test]
fn rule_7_silent_skips_all_rules_but_not_the_name() {
    let of = |service: Value| good(&json!({"services": [service]}));
    let config = of(json!({
        "name": "s", "silent": true, "auto_update": true, "auto_heal": true, "images": ["x y", "web"],
        "compose_files": ["../a"], "compose_project": "a b", "env_file": "b",
    }));
    assert_eq!(config.warnings, Vec::<String>::new());
    assert_eq!(config.services[0].images.len(), 1);
    assert!(of(json!({"name": "s/", "silent": true})).services.is_empty());
}

#[test]
fn names_are_usable_in_paths_and_unique() {
    let long = "a".repeat(64);
    for name in ["web", "A_b.c-1", long.as_str()] {
        assert_eq!(good(&json!({"services": [{"name": name}]})).services.len(), 1);
    }
    let longer = "a".repeat(65);
    for name in ["a b", "a/b", "ü", "a\n", longer.as_str(), ""] {
        let config = good(&json!({"services": [{"name": name}, {"name": "next"}]}));
        let quoted = quote(name);
        assert_eq!(
            config.warnings,
            [format!(
                "services[0].name: {quoted}; allowed: 1 to 64 letters, digits, \"_\", \".\" and \"-\" (service skipped)"
            )]
        );
        assert_eq!(config.services.len(), 1);
    }
    let config =
        good(&json!({"services": [{"name": "a"}, {"name": "b"}, {"name": "a", "auto_start": true}, {}, 7]}));
    assert_eq!(
        config.warnings,
        [
            "a: name: services[2] has the name of services[0] (service skipped)",
            "services[3].name: is missing; allowed: a string (service skipped)",
            "services[4]: a number; allowed: an object (service skipped)",
        ]
    );
    assert_eq!(config.services.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(!config.services[0].auto_start);
}

#[test]
fn valid_but_doubtful_settings_cause_a_warning_and_keep_the_service() {
    let folder = folder();
    let dir = folder.path();
    let refused = "will be rejected by compose, which allows lower-case letters, digits, \"_\" and \"-\", with a letter or digit first";
    for project in ["Web", "-x", "_x"] {
        let expected = vec![format!("web: compose_project: {project:?} {refused}")];
        assert_eq!(with(dir, "compose_project", json!(project)), (expected, true));
    }
    let shared = dir.join("shared.yml");
    fs::write(&shared, "").unwrap();
    for (mode, warned) in [(0o644, false), (0o646, true), (0o600, false)] {
        fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
        let text = format!(
            "web: compose_files[0]: {shared:?} is writable by users other than its owner (mode {mode:04o}); whoever can change it controls this machine"
        );
        let expected = if warned { vec![text] } else { vec![] };
        assert_eq!(with(dir, "compose_files", json!([shared])), (expected, true));
    }
    let open = dir.join("open");
    fs::create_dir(&open).unwrap();
    fs::write(open.join("f"), "").unwrap();
    fs::set_permissions(open.join("f"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    for (key, value, place) in [
        ("env_file", json!(open.join("f")), "env_file"),
        ("compose_files", json!([open.join("f")]), "compose_files[0]"),
    ] {
        let end = "whoever can change it controls this machine";
        let expected = vec![
            format!("web: {place}: the folder {open:?} is world-writable (mode 0777); {end}"),
            format!(
                "web: {place}: {:?} is writable by users other than its owner (mode 0666); {end}",
                open.join("f")
            ),
        ];
        assert_eq!(with(dir, key, value), (expected, true));
    }
    let config = good(
        &json!({"services": [{"name": "a", "auto_start": true, "compose_watch": true, "container_name": "c"}]}),
    );
    assert_eq!(
        config.warnings,
        [
            "a: auto_start: has no effect without compose_project and compose_files",
            "a: compose_watch: has no effect without compose_project and compose_files",
        ]
    );
    assert_eq!(config.services.len(), 1);
    let (warnings, _) = with(dir, "images", json!(["web", "localhost:5000/web:latest"]));
    assert_eq!(
        warnings,
        ["web: images[1]: \"localhost:5000/web:latest\" is the same image as \"web\" and is ignored"]
    );
    let (warnings, kept) = with(dir, "auto_hael", json!(true));
    assert_eq!(warnings, ["web: auto_hael: is not a known key and is ignored; did you mean \"auto_heal\"?"]);
    assert!(kept);
}

#[test]
fn a_parent_folder_of_the_compose_file_may_be_a_link() {
    let folder = folder();
    let link = folder.path().join("opt");
    symlink(folder.path(), &link).unwrap();
    assert_eq!(with(folder.path(), "compose_files", json!([link.join("compose.yml")])), (vec![], true));
}

#[test]
fn a_window_in_a_time_zone_that_can_not_be_seen_gives_a_warning() {
    use jiff::tz::{TimeZone, offset};
    let vienna = TimeZone::get("Europe/Vienna").unwrap();
    let utc = TimeZone::get("Etc/UTC").unwrap();
    for (zone, in_container, expected) in [
        (None, false, true),
        (Some(&TimeZone::UTC), false, false),
        (Some(&TimeZone::UTC), true, true),
        (Some(&utc), true, true),
        (Some(&vienna), true, false),
        // The file of the machine is mounted, which has no name.
        (Some(&TimeZone::fixed(offset(1))), true, false),
    ] {
        assert_eq!(update::is_hidden(zone, in_container), expected, "{zone:?} {in_container}");
    }
    let folder = folder();
    let warned = |update: Value, tz: Option<&str>| {
        let mut service = complete(folder.path());
        service["update"] = update;
        let env = |name: &str| tz.filter(|_| name == "TZ").map(str::to_owned);
        let config = parse(&json!({"services": [service]}), &env).unwrap();
        config.warnings.iter().any(|text| text.starts_with("web: update.timezone: is not set"))
    };
    let here = update::is_hidden(TimeZone::try_system().ok().as_ref(), super::super::in_container());
    assert_eq!(warned(json!({"window": "02:00-05:00"}), None), here);
    assert!(!warned(json!({"window": "02:00-05:00"}), Some("Europe/Vienna")));
    assert!(!warned(json!({"window": "02:00-05:00", "timezone": "UTC"}), None));
    assert!(!warned(json!({"min_age": 5}), None));
}

#[test]
fn a_swarm_service_replaces_a_compose_project() {
    let of = |more: Value| {
        let mut service =
            json!({"name": "web", "swarm_service": "shop_web", "images": ["web"], "auto_update": true});
        service.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let config = good(&json!({"services": [service]}));
        (config.services, config.warnings)
    };
    let (services, warnings) = of(json!({}));
    assert_eq!((services[0].swarm_service.as_deref(), services[0].can_deploy()), (Some("shop_web"), true));
    assert_eq!(warnings, Vec::<String>::new());

    let (services, warnings) = of(json!({"auto_heal": true, "auto_start": true, "compose_watch": true}));
    assert!(!services[0].auto_heal && !services[0].auto_start && !services[0].compose_watch);
    let by_swarm = |key| format!("web: {key}: has no effect for a swarm service: the swarm does that itself");
    assert_eq!(warnings, ["auto_heal", "auto_start", "compose_watch"].map(by_swarm));

    let folder = folder();
    let env_file = folder.path().join("compose.yml");
    let more = json!({
        "env_file": env_file, "keep_images": 5, "update": {"tags": "~1.27", "tag_variable": "TAG"},
    });
    let (services, warnings) = of(more);
    assert_eq!(services.len(), 1);
    let keys = warnings.iter().filter_map(|text| text.split_once(": has no effect for a swarm service"));
    let keys: Vec<&str> = keys.map(|(key, _)| key).collect();
    assert_eq!(keys, ["web: env_file", "web: keep_images", "web: update.tag_variable"], "{warnings:?}");
    // No warning suggests to set a key that has no effect.
    let (_, warnings) = of(json!({"keep_images": 3, "update": {"tags": "~1.27", "tag_variable": "TAG"}}));
    assert_eq!(warnings.len(), 1, "{warnings:?}");

    for (more, what) in [
        (json!({"compose_project": "web"}), "web: compose_project: can't be combined with swarm_service"),
        (json!({"images": ["web", "api"]}), "web: images: a swarm service runs one image"),
        (json!({"swarm_service": "a b"}), "web: swarm_service: \"a b\"; allowed: letters"),
    ] {
        let (services, warnings) = of(more);
        assert!(services.is_empty() && warnings[0].starts_with(what), "{warnings:?}");
    }
}

#[test]
fn a_duplicate_swarm_service_is_skipped() {
    let service = |name: &str, swarm: &str| json!({"name": name, "swarm_service": swarm, "images": ["web"], "auto_update": true});
    let all = [service("web", "shop_web"), service("again", "shop_web"), service("api", "shop_api")];
    let config = good(&json!({ "services": all }));
    let names: Vec<&str> = config.services.iter().map(|service| service.name.as_str()).collect();
    assert_eq!(names, ["web", "api"]);
    assert_eq!(
        config.warnings,
        ["again: swarm_service: services[1] has the swarm_service of services[0] (service skipped)"]
    );
}

#[test]
fn two_dots_within_a_name_are_not_a_parent_folder() {
    let folder = folder();
    for name in ["compose..yml", "..compose.yml", "a...yml", "web.."] {
        let path = folder.path().join(name);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(with(folder.path(), "compose_files", json!([path])), (vec![], true), "{name}");
        assert_eq!(with(folder.path(), "env_file", json!(path)), (vec![], true), "{name}");
    }
    let up = format!("{}/x/../compose.yml", folder.path().display());
    fs::create_dir(folder.path().join("x")).unwrap();
    assert!(!with(folder.path(), "compose_files", json!([up])).1);
}

#[test]
fn every_key_that_takes_seconds_takes_a_duration() {
    let folder = folder();
    let mut service = complete(folder.path());
    service["health_grace"] = json!("90s");
    service["heal_cooldown"] = json!("12h");
    service["update"] = json!({"min_age": "3d"});
    let config = good(&json!({
        "registry": {"poll_interval": "15m"}, "monitor": {"stats_interval": "1m"},
        "docker_health": {"check_interval": "1h", "timeout": "10s"}, "services": [service],
        "push": {"warden_url": "http://w", "token": "0123456789abcdef", "patience": "1d12h"},
    }));
    assert_eq!(config.warnings, Vec::<String>::new());
    let service = &config.services[0];
    assert_eq!((service.health_grace.as_secs(), service.heal_cooldown.as_secs()), (90, 43_200));
    assert_eq!(service.update.as_ref().unwrap().min_age.unwrap().as_secs(), 259_200);
    assert_eq!((config.registry.poll_interval.as_secs(), config.monitor.stats_interval.as_secs()), (900, 60));
    assert_eq!(
        (config.docker_health.check_interval.as_secs(), config.docker_health.timeout.as_secs()),
        (3600, 10)
    );
    assert_eq!(config.push.unwrap().patience.as_secs(), 129_600);
}

#[test]
fn a_file_that_can_not_be_opened_is_named() {
    let denied = Err(io::Error::from(io::ErrorKind::PermissionDenied));
    let said = unreadable("/srv/web/compose.yml", &denied).unwrap();
    assert!(
        said.starts_with("\"/srv/web/compose.yml\" can't be read by this user (")
            && said.contains("ermission denied"),
        "{said}"
    );
    let folder = folder();
    assert_eq!(unreadable("x", &File::open(folder.path().join("compose.yml"))), None);
}

#[test]
fn a_container_that_two_services_name_gives_a_warning() {
    let service =
        |name: &str, container: &str| json!({"name": name, "container_name": container, "auto_heal": true});
    let all = [service("a", "pihole"), service("b", "pihole"), service("c", "unbound")];
    let config = good(&json!({ "services": all }));
    assert_eq!(config.services.len(), 3);
    let [warning] = &config.warnings[..] else { panic!("{:?}", config.warnings) };
    let expected = "b: container_name: services[1] has the container_name of services[0]: ";
    assert!(warning.starts_with(expected), "{warning}");
}
