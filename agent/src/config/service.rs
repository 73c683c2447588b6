//! Rules 1-7 of a service (spec 2.9), one function per rule. A service that violates a rule is skipped, with the reason as
//! a warning; the others are unaffected. So is one with a value that can't be read, unless it is a mere number.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::config::expand::Env;
use evenkeel_common::config::{Finding, Findings, KeyPath, quote};
use evenkeel_common::hanging::{UNRESPONSIVE, hangs};
use evenkeel_common::permissions::weaknesses;
use evenkeel_common::wire::LeftOutService;

use super::channels::unless_faulty;
use super::file::ServiceFile;
use super::items::Items;
use super::misplaced::Misplaced;
use super::{ConfiguredImage, ServiceConfig, UpdateConfig, probe, update};
use crate::model::image::Reference;
use crate::model::text::describe_io_error;

/// Numbers whose defaults suit any service. No rule is about them.
const NUMBERS: [&str; 5] =
    ["cpu_threshold", "memory_threshold", "health_grace", "heal_cooldown", "heal_max_restarts"];

/// Returns the valid services and those that are left out, in the order of the file.
pub(super) fn services(
    files: Items<ServiceFile>,
    registry_host: &str,
    misplaced: &Misplaced,
    env: Env<'_>,
    findings: &mut Findings,
) -> (Vec<Arc<ServiceConfig>>, Vec<LeftOutService>) {
    let (mut names, mut in_swarm, mut containers) = (HashMap::new(), HashMap::new(), HashMap::new());
    let (mut passed, mut left_out) = (Vec::new(), Vec::new());
    for (n, file) in files.into_iter().enumerate() {
        let at = KeyPath::of("services").index(n);
        let mut file = file.unwrap_or_default();
        check_name(n, &file, &at, &mut names, findings);
        // Rule 7: `silent` skips all rules below, but not the check of the name, which is used in paths and labels.
        if !file.silent {
            check_images(&file, registry_host, &at, findings);
            for rule in [rule_1, rule_2, rule_3, rule_4, rule_5, rule_6, swarm_rule] {
                rule(&file, &at, findings);
            }
            check_swarm_service(n, &file, &at, &mut in_swarm, findings);
        }
        let gates = file.update.as_ref().filter(|_| !file.silent);
        let gates = gates
            .map(|gates| update::update(gates, !file.swarm_service.is_empty(), &at.key("update"), findings));
        let gates = update::hold(gates, misplaced.of(n), &at, findings).map(Arc::new);
        for key in NUMBERS {
            unless_faulty((), &at.key(key), "the default is used", findings);
        }
        // The default could remove what was to be kept.
        let kept = unless_faulty(file.keep_images, &at.key("keep_images"), "no image is removed", findings);
        file.keep_images = kept.unwrap_or(0);
        let faults = findings.take_faults(&at);
        if faults.is_empty() {
            if !file.silent {
                warn(&file, &at, findings);
                warn_of_same_container(n, &file, &at, &mut containers, findings);
            }
            let has_window = gates.as_ref().is_some_and(|gates| gates.window.is_some());
            if let Some(update) = file.update.as_ref().filter(|_| has_window) {
                update::warn_of_zone(update, &at.key("update"), env, findings);
            }
            passed.push(Arc::new(checked(file, gates, registry_host, &at, findings)));
        } else {
            // A name that an earlier service has would hide that one.
            let name = Some(&file.name).filter(|name| names.get(*name) == Some(&n));
            left_out.push(skipped(name, &at, &faults));
        }
        for fault in faults {
            findings.warn(&fault.at, format!("{} (service skipped)", fault.message));
        }
    }
    (passed, left_out)
}

fn skipped(name: Option<&String>, at: &KeyPath, faults: &[Finding]) -> LeftOutService {
    let name = name.cloned().unwrap_or_else(|| at.to_string());
    let inside = |fault: &Finding| Finding { at: fault.at.inside(at), ..fault.clone() }.to_string();
    let reasons: Vec<String> = faults.iter().map(inside).collect();
    LeftOutService { name, reason: reasons.join("; ") }
}

/// `^[a-zA-Z0-9_.-]{1,64}$` (DECISIONS 2).
pub(super) fn name_is_valid(name: &str) -> bool {
    // The pattern allows "." and "..", but clients remove those from a path before sending it.
    is_word(name, b"_.-") && !matches!(name, "." | "..")
}

fn is_word(text: &str, extra: &[u8]) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || extra.contains(&b))
}

/// The name is usable in paths, and no earlier service has it (DECISIONS 2).
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

/// Returns the first service with the same value, if that is an earlier one.
fn earlier(n: usize, value: &str, seen: &mut HashMap<String, usize>) -> Option<usize> {
    if value.is_empty() {
        return None;
    }
    let first = *seen.entry(value.to_owned()).or_insert(n);
    (first != n).then_some(first)
}

/// No earlier service has the same swarm service. Otherwise both would update it, and each would take the other's update
/// for an external change.
fn check_swarm_service(
    n: usize,
    file: &ServiceFile,
    at: &KeyPath,
    services: &mut HashMap<String, usize>,
    findings: &mut Findings,
) {
    if let Some(first) = earlier(n, &file.swarm_service, services) {
        let what = format!("services[{n}] has the swarm_service of services[{first}]");
        findings.fault(&at.key("swarm_service"), what);
    }
}

/// Warns if an earlier service has the same container.
fn warn_of_same_container(
    n: usize,
    file: &ServiceFile,
    at: &KeyPath,
    containers: &mut HashMap<String, usize>,
    findings: &mut Findings,
) {
    if let Some(first) = earlier(n, &file.container_name, containers) {
        let what = format!(
            "services[{n}] has the container_name of services[{first}]: each of them reports the container and, with \
             auto_heal, restarts it, so remove one"
        );
        findings.warn(&at.key("container_name"), what);
    }
}

/// Every image is a valid reference.
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
    if !file.swarm_service.is_empty() {
        return;
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
    if file.auto_heal && !named && !faulty && file.swarm_service.is_empty() {
        findings.fault(&at.key("auto_heal"), "needs compose_project or container_name");
    }
}

/// Rule 3: compose files are absolute, exist, and are regular files. They are not opened, because opening a FIFO blocks.
/// Only the file itself must not be a symbolic link; its parent folders may be.
fn rule_3(file: &ServiceFile, at: &KeyPath, findings: &mut Findings) {
    for (place, text) in given(&file.compose_files, &at.key("compose_files")) {
        let wrong = not_a_file(text, || fs::symlink_metadata(text));
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

/// Rule 5: `env_file` is absolute and exists (and is a regular file, as otherwise every deployment would fail).
fn rule_5(file: &ServiceFile, at: &KeyPath, findings: &mut Findings) {
    let text = &file.env_file;
    if text.is_empty() {
        return;
    }
    let wrong = not_a_file(text, || fs::metadata(text));
    if let Some(wrong) = wrong {
        let what = format!("{} {wrong}; allowed: the absolute path of a file that exists", quote(text));
        findings.fault(&at.key("env_file"), what);
    }
}

/// Rule 6: any path with the component `..` is rejected (DECISIONS 2).
fn rule_6(file: &ServiceFile, at: &KeyPath, findings: &mut Findings) {
    let files = given(&file.compose_files, &at.key("compose_files"));
    let env_file = (at.key("env_file"), file.env_file.as_str());
    for (place, text) in files.into_iter().chain([env_file]) {
        if Path::new(text).components().any(|part| part == Component::ParentDir) {
            findings.fault(&place, format!("{} contains \"..\"; allowed: a path without it", quote(text)));
        }
    }
}

/// A swarm service replaces a compose project, and has exactly one image and a valid name (DECISIONS 10).
fn swarm_rule(file: &ServiceFile, at: &KeyPath, findings: &mut Findings) {
    let name = &file.swarm_service;
    if name.is_empty() {
        return;
    }
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    if name.len() > 255 || !name.bytes().all(legal) {
        let what = format!("{}; allowed: letters, digits, \"_\", \".\" and \"-\"", quote(name));
        findings.fault(&at.key("swarm_service"), what);
    }
    let compose = [
        ("compose_files", !file.compose_files.is_empty()),
        ("compose_project", !file.compose_project.is_empty()),
        ("container_name", !file.container_name.is_empty()),
    ];
    for (key, _) in compose.into_iter().filter(|(_, given)| *given) {
        findings.fault(&at.key(key), "can't be combined with swarm_service; allowed: one of the two");
    }
    if file.images.len() > 1 {
        findings.fault(&at.key("images"), "a swarm service runs one image; allowed: one");
    }
}

/// Warns of valid settings that will not work or are not safe.
fn warn(file: &ServiceFile, at: &KeyPath, findings: &mut Findings) {
    let project = &file.compose_project;
    let compose_takes_it =
        !project.starts_with(['-', '_']) && !project.bytes().any(|b| b.is_ascii_uppercase());
    if !compose_takes_it {
        findings.warn(&at.key("compose_project"), format!("{} will be rejected by compose, which allows lower-case letters, digits, \"_\" and \"-\", with a letter or digit first", quote(project)));
    }
    let in_swarm = !file.swarm_service.is_empty();
    if let Some(gates) = &file.update {
        let env_file = Some(file.env_file.as_str()).filter(|_| !in_swarm);
        update::warn(gates, file.auto_update, env_file, &at.key("update"), findings);
        if let Some(probe) = &gates.probe {
            probe::warn(probe, file.health_grace, &at.key("update").key("probe"), findings);
        }
    }
    let by_swarm = "the swarm does that itself";
    let (images, variables) = ("its nodes manage their own images", "it has no compose files");
    let is_set = file.keep_images != ServiceFile::default().keep_images;
    let tag_variable = file.update.as_ref().is_some_and(|update| !update.tag_variable.is_empty());
    let without_effect = [
        (at.key("auto_start"), file.auto_start, by_swarm),
        (at.key("auto_heal"), file.auto_heal, by_swarm),
        (at.key("compose_watch"), file.compose_watch, by_swarm),
        (at.key("keep_images"), is_set, images),
        (at.key("env_file"), !file.env_file.is_empty(), variables),
        (at.key("update").key("tag_variable"), tag_variable, variables),
    ];
    for (key, _, why) in without_effect.into_iter().filter(|(_, is_set, _)| *is_set && in_swarm) {
        findings.warn(&key, format!("has no effect for a swarm service: {why}"));
    }
    let can_deploy = !project.is_empty() && !file.compose_files.is_empty();
    for (key, on) in [("auto_start", file.auto_start), ("compose_watch", file.compose_watch)] {
        if on && !can_deploy && !in_swarm {
            findings.warn(&at.key(key), "has no effect without compose_project and compose_files");
        }
    }
    let env_file = Some((at.key("env_file"), file.env_file.as_str())).filter(|(_, text)| !text.is_empty());
    for (place, text) in given(&file.compose_files, &at.key("compose_files")).into_iter().chain(env_file) {
        for weakness in weaknesses(Path::new(text)) {
            findings.warn(&place, format!("{weakness}; whoever can change it controls this machine"));
        }
        if let Some(what) = unreadable(text, &File::options().read(true).open(text)) {
            findings.warn(&place, what);
        }
    }
}

/// Describes a file that exists, but that this user can't open. Only regular files are opened, because opening a FIFO blocks.
fn unreadable(text: &str, opened: &io::Result<File>) -> Option<String> {
    let error = opened.as_ref().err()?;
    Some(format!(
        "{} can't be read by this user ({}): the service is not deployed until it can",
        quote(text),
        describe_io_error(error)
    ))
}

/// Builds the validated service. A silent service may contain anything; unusable values are dropped.
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
                format!("{} is the same image as {} and is ignored", quote(text), quote(&twin.configured)),
            ),
            None => images.push(ConfiguredImage { configured: text.to_owned(), reference }),
        }
    }
    // The configuration is kept for the lifetime of the process, and most services have one image.
    images.shrink_to_fit();
    let mut compose_files: Vec<_> = file.compose_files.into_iter().flatten().map(PathBuf::from).collect();
    compose_files.shrink_to_fit();
    let in_swarm = !file.swarm_service.is_empty();
    let some = |text: String| (!text.is_empty()).then_some(text);
    ServiceConfig {
        name: file.name,
        images,
        silent: file.silent,
        compose_files,
        compose_project: some(file.compose_project),
        container_name: some(file.container_name),
        swarm_service: some(file.swarm_service),
        env_file: some(file.env_file).map(PathBuf::from),
        auto_update: file.auto_update,
        auto_start: file.auto_start && !in_swarm,
        auto_heal: file.auto_heal && !in_swarm,
        compose_watch: file.compose_watch && !in_swarm,
        cpu_threshold: file.cpu_threshold,
        memory_threshold: file.memory_threshold,
        health_grace: Duration::from_secs(file.health_grace),
        heal_cooldown: Duration::from_secs(file.heal_cooldown),
        heal_max_restarts: file.heal_max_restarts,
        keep_images: usize::try_from(file.keep_images).unwrap_or(usize::MAX),
        update,
    }
}

/// Returns the strings of an array with their key paths.
fn given<'a>(items: &'a Items<String>, at: &KeyPath) -> Vec<(KeyPath, &'a str)> {
    items.iter().enumerate().filter_map(|(n, text)| Some((at.index(n), text.as_deref()?))).collect()
}

/// Returns why `text` is not the absolute path of a regular file.
fn not_a_file(text: &str, stat: impl FnOnce() -> io::Result<fs::Metadata>) -> Option<String> {
    if !text.starts_with('/') {
        return Some("is not absolute".to_owned());
    }
    if hangs(Path::new(text)) {
        return Some(UNRESPONSIVE.to_owned());
    }
    let kind = match stat() {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some("does not exist".to_owned()),
        Err(error) => {
            return Some(format!("can't be accessed by this user ({})", describe_io_error(&error)));
        }
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
#[path = "service_tests.rs"]
mod tests;
