//! Rules 1-7 of a service (spec 2.9), one function a rule. A service that breaks one is left out, with the reason
//! as a warning; the others go on.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::config::{Findings, KeyPath, quote};
use evenkeel_common::permissions::weaknesses;

use super::file::{Items, ServiceFile};
use super::{ConfiguredImage, ServiceConfig, UpdateConfig, update};
use crate::model::image::Reference;

/// All services that pass, in the file's order.
pub(super) fn services(
    files: Items<ServiceFile>,
    registry_host: &str,
    findings: &mut Findings,
) -> Vec<ServiceConfig> {
    let mut names = HashMap::new();
    let mut passed = Vec::new();
    for (n, file) in files.into_iter().enumerate() {
        let at = KeyPath::of("services").index(n);
        let file = file.unwrap_or_default();
        check_name(n, &file, &at, &mut names, findings);
        // Rule 7: silent skips all these rules. The name is not among them: it stands in paths and labels.
        if !file.silent {
            check_images(&file, registry_host, &at, findings);
            for rule in [rule_1, rule_2, rule_3, rule_4, rule_5, rule_6] {
                rule(&file, &at, findings);
            }
        }
        let gates = file.update.as_ref().filter(|_| !file.silent);
        let gates = gates.map(|gates| Arc::new(update::update(gates, &at.key("update"), findings)));
        let faults = findings.take_faults(&at);
        if faults.is_empty() {
            if !file.silent {
                warn(&file, &at, findings);
            }
            passed.push(checked(file, gates, registry_host, &at, findings));
        }
        for fault in faults {
            findings.warn(&fault.at, format!("{} (service skipped)", fault.what));
        }
    }
    passed
}

/// `^[a-zA-Z0-9_.-]{1,64}$` (DECISIONS 2).
pub(super) fn name_is_valid(name: &str) -> bool {
    // The pattern admits "." and "..", but clients take those out of a path before they send it.
    is_word(name, b"_.-") && !matches!(name, "." | "..")
}

fn is_word(text: &str, besides: &[u8]) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || besides.contains(&b))
}

/// The name is usable in paths, and nobody before has it (DECISIONS 2).
fn check_name(
    n: usize,
    file: &ServiceFile,
    at: &KeyPath,
    names: &mut HashMap<String, usize>,
    findings: &mut Findings,
) {
    if !name_is_valid(&file.name) {
        let what = format!("{}; allowed: 1 to 64 letters, digits, \"_\", \".\" and \"-\"", quote(&file.name));
        findings.fault(&at.key("name"), what);
    } else if let Some(first) = names.get(&file.name) {
        findings.fault(&at.key("name"), format!("services[{n}] has the name of services[{first}]"));
    } else {
        names.insert(file.name.clone(), n);
    }
}

/// Every image is a reference.
fn check_images(file: &ServiceFile, registry_host: &str, at: &KeyPath, findings: &mut Findings) {
    for (place, text) in given(&file.images, &at.key("images")) {
        if let Err(error) = Reference::parse_in(text, registry_host) {
            findings.fault(&place, error.to_string());
        }
    }
}

/// Rule 1: `auto_update` requires at least one image, at least one compose file, and `compose_project`.
fn rule_1(file: &ServiceFile, at: &KeyPath, findings: &mut Findings) {
    if !file.auto_update {
        return;
    }
    if file.images.is_empty() {
        findings.fault(&at.key("images"), "auto_update needs at least one image");
    }
    if file.compose_files.is_empty() {
        findings.fault(&at.key("compose_files"), "auto_update needs at least one compose file");
    }
    if file.compose_project.is_empty() {
        findings.fault(&at.key("compose_project"), "auto_update needs a compose project");
    }
}

/// Rule 2: `auto_heal` requires `compose_project` or `container_name`.
fn rule_2(file: &ServiceFile, at: &KeyPath, findings: &mut Findings) {
    let named = !file.compose_project.is_empty() || !file.container_name.is_empty();
    let faulty =
        findings.is_faulty(&at.key("compose_project")) || findings.is_faulty(&at.key("container_name"));
    if file.auto_heal && !named && !faulty {
        findings.fault(&at.key("auto_heal"), "needs compose_project or container_name");
    }
}

/// Rule 3: compose files are absolute, exist, and are regular files. Only looked at, never opened: opening a FIFO
/// waits. Only the file itself must not be a symlink; a folder above it may well be one.
fn rule_3(file: &ServiceFile, at: &KeyPath, findings: &mut Findings) {
    for (place, text) in given(&file.compose_files, &at.key("compose_files")) {
        let wrong = not_a_file(text, fs::symlink_metadata(text));
        if let Some(wrong) = wrong {
            findings.fault(
                &place,
                format!(
                    "{} {wrong}; allowed: the absolute path of a regular file, not of a link to one",
                    quote(text)
                ),
            );
        }
    }
}

/// Rule 4: `compose_project` matches `^[a-zA-Z0-9_-]{1,64}$`.
fn rule_4(file: &ServiceFile, at: &KeyPath, findings: &mut Findings) {
    if !file.compose_project.is_empty() && !is_word(&file.compose_project, b"_-") {
        let what =
            format!("{}; allowed: 1 to 64 letters, digits, \"_\" and \"-\"", quote(&file.compose_project));
        findings.fault(&at.key("compose_project"), what);
    }
}

/// Rule 5: `env_file` is absolute and exists (and is a file: what cannot be read as one would fail every deploy).
fn rule_5(file: &ServiceFile, at: &KeyPath, findings: &mut Findings) {
    let text = &file.env_file;
    if text.is_empty() {
        return;
    }
    let wrong = not_a_file(text, fs::metadata(text));
    if let Some(wrong) = wrong {
        let what = format!("{} {wrong}; allowed: the absolute path of a file that exists", quote(text));
        findings.fault(&at.key("env_file"), what);
    }
}

/// Rule 6: any path that contains `..` is rejected.
fn rule_6(file: &ServiceFile, at: &KeyPath, findings: &mut Findings) {
    let files = given(&file.compose_files, &at.key("compose_files"));
    let env_file = (at.key("env_file"), file.env_file.as_str());
    for (place, text) in files.into_iter().chain([env_file]) {
        if text.contains("..") {
            findings.fault(&place, format!("{} contains \"..\"; allowed: a path without it", quote(text)));
        }
    }
}

/// What is allowed and yet will not work, or is not safe.
fn warn(file: &ServiceFile, at: &KeyPath, findings: &mut Findings) {
    let project = &file.compose_project;
    let compose_takes_it =
        !project.starts_with(['-', '_']) && !project.bytes().any(|b| b.is_ascii_uppercase());
    if !compose_takes_it {
        findings.warn(&at.key("compose_project"), format!("{} will be refused by compose, which wants small letters, digits, \"_\" and \"-\", and a letter or digit first", quote(project)));
    }
    if let Some(gates) = &file.update {
        update::warn(gates, file.auto_update, &at.key("update"), findings);
    }
    let can_deploy = !project.is_empty() && !file.compose_files.is_empty();
    for (key, on) in [("auto_start", file.auto_start), ("compose_watch", file.compose_watch)] {
        if on && !can_deploy {
            findings.warn(&at.key(key), "has no effect without compose_project and compose_files");
        }
    }
    let env_file = Some((at.key("env_file"), file.env_file.as_str())).filter(|(_, text)| !text.is_empty());
    for (place, text) in given(&file.compose_files, &at.key("compose_files")).into_iter().chain(env_file) {
        for weakness in weaknesses(Path::new(text)) {
            findings.warn(&place, format!("{weakness}; who can change it controls this machine"));
        }
    }
}

/// The checked values. A silent service may have anything in it: what cannot be used is left away.
fn checked(
    file: ServiceFile,
    update: Option<Arc<UpdateConfig>>,
    registry_host: &str,
    at: &KeyPath,
    findings: &mut Findings,
) -> ServiceConfig {
    let mut images: Vec<ConfiguredImage> = Vec::new();
    for (place, text) in given(&file.images, &at.key("images")) {
        let Ok(reference) = Reference::parse_in(text, registry_host) else { continue };
        match images.iter().find(|image| image.reference == reference) {
            Some(twin) => findings.warn(
                &place,
                format!("{} is the same image as {} and counts once", quote(text), quote(&twin.configured)),
            ),
            None => images.push(ConfiguredImage { configured: text.to_owned(), reference }),
        }
    }
    // It lives as long as the program, and most have one.
    images.shrink_to_fit();
    let some = |text: String| (!text.is_empty()).then_some(text);
    ServiceConfig {
        name: file.name,
        images,
        silent: file.silent,
        compose_files: file.compose_files.into_iter().flatten().map(PathBuf::from).collect(),
        compose_project: some(file.compose_project),
        container_name: some(file.container_name),
        env_file: some(file.env_file).map(PathBuf::from),
        auto_update: file.auto_update,
        auto_start: file.auto_start,
        auto_heal: file.auto_heal,
        compose_watch: file.compose_watch,
        cpu_threshold: file.cpu_threshold,
        memory_threshold: file.memory_threshold,
        health_grace: Duration::from_secs(file.health_grace),
        heal_cooldown: Duration::from_secs(file.heal_cooldown),
        heal_max_restarts: file.heal_max_restarts,
        keep_images: usize::try_from(file.keep_images).unwrap_or(usize::MAX),
        update,
    }
}

/// The texts of an array with their places.
fn given<'a>(items: &'a Items<String>, at: &KeyPath) -> Vec<(KeyPath, &'a str)> {
    items.iter().enumerate().filter_map(|(n, text)| Some((at.index(n), text.as_deref()?))).collect()
}

/// Why the path `text`, which was looked at with the result `found`, is not the absolute path of a regular file.
fn not_a_file(text: &str, found: io::Result<fs::Metadata>) -> Option<String> {
    if !text.starts_with('/') {
        return Some("is not absolute".to_owned());
    }
    let kind = match found {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some("does not exist".to_owned()),
        Err(error) => return Some(format!("cannot be looked at ({error})")),
    };
    let name = match () {
        () if kind.is_file() => return None,
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Some(format!("is {name}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use serde_json::{Value, json};

    use super::super::testing::good;
    use super::*;

    /// A folder with `compose.yml` and `.env`, not writable by others whatever the umask is.
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

    /// The warnings about a complete service in which `key` is `value`; whether it was kept.
    fn with(folder: &Path, key: &str, value: Value) -> (Vec<String>, bool) {
        let mut service = complete(folder);
        service[key] = value;
        let config = good(&json!({"services": [service, {"name": "other"}]}));
        assert!(config.services.iter().any(|service| service.name == "other"), "the others go on");
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
    fn each_broken_rule_skips_the_service_and_says_why() {
        let folder = folder();
        let dir = folder.path();
        symlink(dir.join("compose.yml"), dir.join("link.yml")).unwrap();
        let fifo_mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, dir.join("fifo"), rustix::fs::FileType::Fifo, fifo_mode, 0)
            .unwrap();
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
            // Images, types, ranges
            ("images", json!(["web", "x y"]), "images[1]: \"x y\" is not a repository name (lower-case letters and digits, separated by single . _ __ - or /, at most 255 characters)".into()),
            ("images", json!("web"), "images: \"web\"; allowed: an array of strings".into()),
            ("auto_heal", json!("yes"), "auto_heal: \"yes\"; allowed: true or false".into()),
            ("health_grace", json!(-1), "health_grace: -1 is out of range; allowed: a whole number from 0 to 31536000".into()),
            ("heal_max_restarts", json!(3.0), "heal_max_restarts: 3.0 is not a whole number; allowed: a whole number from 0 to 1000000".into()),
            ("cpu_threshold", json!(-0.1), "cpu_threshold: -0.1 is out of range; allowed: a number from 0 up".into()),
        ] {
            assert_eq!(with(dir, key, value), (vec![format!("web: {reason} (service skipped)")], false));
        }
    }

    #[test]
    fn rules_1_and_2_ask_for_what_the_flags_need() {
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
        let config = good(
            &json!({"services": [{"name": "a"}, {"name": "b"}, {"name": "a", "auto_start": true}, {}, 7]}),
        );
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
    fn what_is_allowed_but_doubtful_is_a_warning_and_the_service_stays() {
        let folder = folder();
        let dir = folder.path();
        let refused = "will be refused by compose, which wants small letters, digits, \"_\" and \"-\", and a letter or digit first";
        for project in ["Web", "-x", "_x"] {
            let expected = vec![format!("web: compose_project: {project:?} {refused}")];
            assert_eq!(with(dir, "compose_project", json!(project)), (expected, true));
        }
        let shared = dir.join("shared.yml");
        fs::write(&shared, "").unwrap();
        for (mode, warned) in [(0o644, false), (0o664, true), (0o646, true), (0o600, false)] {
            fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
            let text = format!(
                "web: compose_files[0]: {shared:?} can be changed by others than its owner (mode {mode:04o}); who can change it controls this machine"
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
            let end = "who can change it controls this machine";
            let expected = vec![
                format!("web: {place}: the folder {open:?} can be changed by anybody (mode 0777); {end}"),
                format!(
                    "web: {place}: {:?} can be changed by others than its owner (mode 0666); {end}",
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
            ["web: images[1]: \"localhost:5000/web:latest\" is the same image as \"web\" and counts once"]
        );
        let (warnings, kept) = with(dir, "auto_hael", json!(true));
        assert_eq!(
            warnings,
            ["web: auto_hael: is not a known key and is ignored; did you mean \"auto_heal\"?"]
        );
        assert!(kept);
    }

    #[test]
    fn a_link_above_the_compose_file_is_legal() {
        let folder = folder();
        let link = folder.path().join("opt");
        symlink(folder.path(), &link).unwrap();
        assert_eq!(with(folder.path(), "compose_files", json!([link.join("compose.yml")])), (vec![], true));
    }
}
