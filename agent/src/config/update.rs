//! `services[].update`: the gates of a service (DECISIONS 7), one function per gate. An invalid gate holds all updates of its
//! service: it was meant to hold something back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_common::config::expand::Env;
use evenkeel_common::config::{Findings, KeyPath, quote};
use evenkeel_common::hanging::{UNRESPONSIVE, hangs};
use evenkeel_common::permissions::weaknesses;
use jiff::tz::TimeZone;

use super::UpdateConfig;
use super::file::{DrainFile, HooksFile, SnapshotFile, UpdateFile};
use super::items::Items;
use super::misplaced::HELD;
use super::probe;
use crate::model::image::{Reference, Repository};
use crate::model::snapshot::{SnapshotRules, is_directory_name, overlap};
use crate::model::tags::TagPattern;
use crate::model::window::{WINDOW_FORM, Window};
use crate::model::{Drain, Hooks, Order};

/// Validates the `update` object of a service.
pub(super) fn update(
    file: &UpdateFile,
    in_swarm: bool,
    at: &KeyPath,
    findings: &mut Findings,
) -> UpdateConfig {
    let of_compose = [
        ("hooks", file.hooks.is_some()),
        ("probe", file.probe.is_some()),
        ("watch", file.watch > 0),
        // A swarm service has it in its own update_config.
        ("order", file.order.is_some()),
        ("drain", file.drain.is_some()),
        ("snapshot", file.snapshot.is_some()),
    ];
    for (key, is_set) in of_compose {
        if in_swarm && is_set {
            findings.fault(&at.key(key), "is not available for swarm services");
        }
    }
    let saves = file.hooks.as_ref().is_some_and(|hooks| hooks.before.is_some());
    UpdateConfig {
        fault: None,
        min_age: (file.min_age > 0).then(|| Duration::from_secs(file.min_age)),
        window: window(file, at, findings),
        approve: file.approve,
        gate: command(file.gate.as_ref(), &at.key("gate"), findings),
        signed_by: keys(file.signed_by.as_ref(), &at.key("signed_by"), findings),
        signed_for: repositories(file.signed_for.as_ref(), &at.key("signed_for"), findings),
        tags: tags(&file.tags, &at.key("tags"), findings),
        tag_variable: variable(&file.tag_variable, &at.key("tag_variable"), findings),
        hooks: file.hooks.as_ref().map(|file| hooks(file, &at.key("hooks"), findings)),
        watch: Duration::from_secs(file.watch),
        ask_on: file.ask_on.iter().flatten().flatten().copied().collect(),
        probe: file.probe.as_ref().and_then(|file| probe::probe(file, &at.key("probe"), findings)),
        order: file.order,
        drain: file.drain.as_ref().map(|file| drain(file, &at.key("drain"), findings)).unwrap_or_default(),
        snapshot: file.snapshot.as_ref().map(|file| snapshot(file, saves, &at.key("snapshot"), findings)),
    }
}

/// `snapshot`: volumes and directories, none of them inside another one. `saves`: a hook saves the data, beside the copies or in
/// place of them.
fn snapshot(file: &SnapshotFile, saves: bool, at: &KeyPath, findings: &mut Findings) -> SnapshotRules {
    let of: Vec<String> = file.of.iter().flatten().cloned().collect();
    if of.is_empty() && !saves {
        findings.fault(
            at,
            "names nothing; allowed: volumes of the compose files, and absolute directories; or nothing with hooks.before, \
             which then saves the data in EK_SNAPSHOT",
        );
    }
    for (n, text) in of.iter().enumerate() {
        let at = at.key("of").index(n);
        if !is_directory_name(text) && !is_volume_name(text) {
            let allowed = "allowed: the name of a volume in the compose files, or an absolute directory without .., not /";
            findings.fault(&at, format!("{}; {allowed}", quote(text)));
        }
        if let Some(other) = of[..n].iter().find(|other| overlap(Path::new(other), Path::new(text))) {
            findings.fault(&at, format!("{} overlaps {}", quote(text), quote(other)));
        }
    }
    SnapshotRules {
        of,
        keep: usize::try_from(file.keep).unwrap_or(usize::MAX),
        max_bytes: file.max_mib.saturating_mul(1024 * 1024),
    }
}

/// Reports whether a text can be the key of a volume in compose files.
fn is_volume_name(text: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
        && text.bytes().all(is_allowed)
}

/// `drain`: programs on this machine and in the containers. In a container, a program may be found by its PATH.
fn drain(file: &DrainFile, at: &KeyPath, findings: &mut Findings) -> Drain {
    let mut inside = |argv: Option<&Items<String>>, key: &str| -> Vec<String> {
        let argv: Vec<String> = argv.into_iter().flatten().flatten().cloned().collect();
        let has_nul = argv.iter().position(|argument| argument.contains('\0'));
        let is_nameless = argv.first().is_some_and(String::is_empty).then_some(0);
        if let Some(n) = has_nul.or(is_nameless) {
            let what = format!("{}; allowed: a program and its arguments, without NUL", quote(&argv[n]));
            findings.fault(&at.key(key).index(n), what);
        }
        argv
    };
    let (exec, undo) = (inside(file.exec.as_ref(), "exec"), inside(file.undo.as_ref(), "undo"));
    Drain {
        exec,
        command: command(file.command.as_ref(), &at.key("command"), findings),
        undo,
        wait: Duration::from_secs(file.wait),
        timeout: Duration::from_secs(file.timeout),
    }
}

/// `hooks`: a command for each event.
fn hooks(file: &HooksFile, at: &KeyPath, findings: &mut Findings) -> Hooks {
    Hooks {
        before: command(file.before.as_ref(), &at.key("before"), findings),
        after: command(file.after.as_ref(), &at.key("after"), findings),
        rolled_back: command(file.rolled_back.as_ref(), &at.key("rolled_back"), findings),
        timeout: Duration::from_secs(file.timeout),
    }
}

/// Stands for keys in `signed_by` that can't be used: no signature counts as valid.
const NO_KEY: &str = "/dev/null";

/// Lets the faults of the gates hold all updates of the service. `misplaced`: faults that were already reported.
pub(super) fn hold<'a>(
    gates: Option<UpdateConfig>,
    misplaced: impl Iterator<Item = &'a String>,
    service: &KeyPath,
    findings: &mut Findings,
) -> Option<UpdateConfig> {
    let mut faults: Vec<String> = misplaced.cloned().collect();
    // A redeploy by an operator passes this hold, but never a signature that is required.
    let mut requires_key = faults.iter().any(|fault| fault.contains("signed_"));
    for fault in findings.take_faults(&service.key("update")) {
        let is_of = |key: &str| fault.at.is_under(&service.key("update").key(key));
        requires_key |= is_of("signed_by") || is_of("signed_for");
        let inside = fault.at.inside(service);
        faults.push(format!("{inside}: {}", fault.message));
        findings.warn(&fault.at, format!("{} ({HELD})", fault.message));
    }
    if faults.is_empty() {
        return gates;
    }
    let mut gates = gates.unwrap_or_default();
    if requires_key {
        gates.signed_by = vec![PathBuf::from(NO_KEY)];
    }
    gates.fault = Some(faults.join("; "));
    Some(gates)
}

/// Warns of valid settings that have no effect or are not safe. `env_file` is `None` if the key does not apply to the
/// service.
pub(super) fn warn(
    file: &UpdateFile,
    auto_update: bool,
    env_file: Option<&str>,
    at: &KeyPath,
    findings: &mut Findings,
) {
    if !auto_update {
        findings.warn(at, "has no effect without auto_update");
    }
    if !file.tag_variable.is_empty() {
        let place = at.key("tag_variable");
        match (file.tags.is_empty(), env_file.is_some_and(str::is_empty)) {
            (true, _) => findings.warn(&place, "has no effect without tags"),
            (false, true) => {
                findings.warn(
                    &place,
                    "has no effect without env_file: newer tags are reported, but not deployed",
                );
            }
            (false, false) => {}
        }
    }
    if !file.timezone.is_empty() && file.window.is_none() {
        findings.warn(&at.key("timezone"), "has no effect without window");
    }
    if file.signed_for.is_some() && file.signed_by.is_none() {
        findings.warn(&at.key("signed_for"), "has no effect without signed_by");
    }
    let keys = file.signed_by.iter().flatten().flatten().enumerate();
    for (n, key) in keys.filter(|(_, key)| key.starts_with('/')) {
        let place = at.key("signed_by").index(n);
        if hangs(Path::new(key)) {
            findings.warn(&place, format!("{} {UNRESPONSIVE}", quote(key)));
        } else if !Path::new(key).exists() {
            findings
                .warn(&place, format!("{} does not exist; no new image is deployed without it", quote(key)));
        }
        for weakness in weaknesses(Path::new(key)) {
            findings
                .warn(&place, format!("{weakness}; whoever can change it controls what is deployed here"));
        }
    }
    warn_of_program(file.gate.as_ref(), &at.key("gate"), findings);
    if let Some(drain) = &file.drain {
        warn_of_drain(drain, file.order, &at.key("drain"), findings);
    }
    if file.snapshot.is_some() && file.order == Some(Order::StartFirst) {
        findings
            .warn(&at.key("order"), "has no effect with snapshot: what writes to the data is stopped first");
    }
    if let Some(file) = &file.hooks {
        let at = at.key("hooks");
        for (argv, key) in
            [(&file.before, "before"), (&file.after, "after"), (&file.rolled_back, "rolled_back")]
        {
            warn_of_program(argv.as_ref(), &at.key(key), findings);
        }
    }
}

/// Returns the paths that [`warn`] looks at.
pub(super) fn paths(file: &UpdateFile) -> Vec<&str> {
    let hooks = file.hooks.iter().flat_map(|hooks| [&hooks.before, &hooks.after, &hooks.rolled_back]);
    let drain = file.drain.iter().map(|drain| &drain.command);
    let programs = hooks.chain(drain).chain([&file.gate]).flatten();
    let programs = programs.filter_map(|argv| argv.iter().flatten().next());
    file.signed_by.iter().flatten().flatten().chain(programs).map(String::as_str).collect()
}

fn warn_of_drain(drain: &DrainFile, order: Option<Order>, at: &KeyPath, findings: &mut Findings) {
    warn_of_program(drain.command.as_ref(), &at.key("command"), findings);
    if order == Some(Order::StopFirst) {
        findings.warn(at, "has no effect with order stop_first");
    }
    if drain.undo.is_some() && drain.exec.is_none() && drain.command.is_none() {
        findings.warn(&at.key("undo"), "has no effect without exec and command");
    }
    if drain.undo.is_none() && drain.exec.is_some() && order != Some(Order::StopFirst) {
        let what = "is not set: if a new image fails after the drain, the old containers can't be told to serve again, and are \
                    removed and made anew; set a program that takes back what exec has done";
        findings.warn(&at.key("undo"), what);
    }
}

/// Warns of a window in the machine's time zone if the agent can't see that, or can't read what `TZ` says.
pub(super) fn warn_of_zone(file: &UpdateFile, at: &KeyPath, env: Env<'_>, findings: &mut Findings) {
    if !file.timezone.is_empty() {
        return;
    }
    let system = TimeZone::try_system().ok();
    let why = match env("TZ").filter(|zone| !zone.is_empty()) {
        Some(zone) if system.is_none() => format!("TZ is {}, which is not a known time zone", quote(&zone)),
        None if is_hidden(system.as_ref(), super::in_container()) => {
            "the machine's time zone is not visible here".to_owned()
        }
        _ => return,
    };
    let what =
        format!("is not set, and {why}, so the window is in UTC; set it, for example to \"Europe/Vienna\"");
    findings.warn(&at.key("timezone"), what);
}

/// Reports whether the machine may be in another time zone than that which was found here: containers are in UTC by default.
pub(super) fn is_hidden(zone: Option<&TimeZone>, in_container: bool) -> bool {
    let is_utc = |zone: &TimeZone| matches!(zone.iana_name(), Some("UTC" | "Etc/UTC"));
    zone.is_none_or(|zone| in_container && is_utc(zone))
}

/// Warns of a program that others can change: it runs as root.
fn warn_of_program(argv: Option<&Items<String>>, at: &KeyPath, findings: &mut Findings) {
    let program = argv.into_iter().flatten().flatten().next();
    if let Some(program) = program.filter(|path| path.starts_with('/')) {
        for weakness in weaknesses(Path::new(program)) {
            findings.warn(&at.index(0), format!("{weakness}; whoever can change it controls this machine"));
        }
    }
}

/// `window` and `timezone`.
fn window(file: &UpdateFile, at: &KeyPath, findings: &mut Findings) -> Option<Window> {
    let zone = zone(&file.timezone, &at.key("timezone"), findings);
    let texts: Vec<&str> = file.window.as_ref()?.iter().flatten().map(String::as_str).collect();
    match Window::parse(texts.iter().copied(), zone?) {
        Ok(window) => Some(window),
        Err(n) => {
            let what = format!("{}; allowed: {WINDOW_FORM}", quote(texts[n]));
            findings.fault(&at.key("window").index(n), what);
            None
        }
    }
}

/// Returns the named time zone, or the machine's if the name is empty. The fallback is UTC.
fn zone(name: &str, at: &KeyPath, findings: &mut Findings) -> Option<TimeZone> {
    if name.is_empty() {
        return Some(TimeZone::try_system().unwrap_or(TimeZone::UTC));
    }
    let found = TimeZone::get(name).ok();
    if found.is_none() {
        let what =
            format!("{}; allowed: a name from the time zone database, such as Europe/Vienna", quote(name));
        findings.fault(at, what);
    }
    found
}

/// `signed_by`: the paths of the public keys. The files are read when an image is verified, so a missing file does not
/// disable the service.
fn keys(files: Option<&Items<String>>, at: &KeyPath, findings: &mut Findings) -> Vec<PathBuf> {
    let files: Vec<&String> = files.into_iter().flatten().flatten().collect();
    for (n, file) in files.iter().enumerate().filter(|(_, file)| !file.starts_with('/')) {
        let what = format!(
            "{} is not absolute; allowed: the absolute path of a public key in PEM format",
            quote(file)
        );
        findings.fault(&at.index(n), what);
    }
    files.into_iter().map(PathBuf::from).collect()
}

/// `signed_for`: repositories that signatures may name.
fn repositories(texts: Option<&Items<String>>, at: &KeyPath, findings: &mut Findings) -> Vec<Repository> {
    let mut found = Vec::new();
    for (n, text) in texts.into_iter().flatten().flatten().enumerate() {
        let is_repository =
            !text.contains('@') && !text.rsplit('/').next().is_some_and(|name| name.contains(':'));
        if let (Ok(reference), true) = (Reference::parse(text), is_repository) {
            found.push(reference.repository);
        } else {
            let allowed = "allowed: a repository without tag and digest, such as ghcr.io/acme/web";
            findings.fault(&at.index(n), format!("{}; {allowed}", quote(text)));
        }
    }
    found
}

/// `tags`: a version range or a pattern.
fn tags(text: &str, at: &KeyPath, findings: &mut Findings) -> Option<TagPattern> {
    if text.is_empty() {
        return None;
    }
    match TagPattern::parse(text) {
        Ok(pattern) => Some(pattern),
        Err(why) => {
            let allowed = "allowed: a version range such as ~1.27, or a pattern such as 1.27.*-alpine";
            findings.fault(at, format!("{} ({why}); {allowed}", quote(text)));
            None
        }
    }
}

/// `gate`: the path of the program and its arguments.
fn command(argv: Option<&Items<String>>, at: &KeyPath, findings: &mut Findings) -> Vec<String> {
    let argv: Vec<String> = argv.into_iter().flatten().flatten().cloned().collect();
    if let Some(program) = argv.first().filter(|program| !program.starts_with('/')) {
        let what = format!("{} is not absolute; allowed: the absolute path of a program", quote(program));
        findings.fault(&at.index(0), what);
    }
    if let Some(n) = argv.iter().position(|argument| argument.contains('\0')) {
        findings.fault(&at.index(n), format!("{}; allowed: a string without NUL", quote(&argv[n])));
    }
    argv
}

/// `tag_variable`: the name of a variable.
fn variable(name: &str, at: &KeyPath, findings: &mut Findings) -> Option<String> {
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !name.starts_with(|c: char| c.is_ascii_digit());
    if !is_name {
        let what = format!("{}; allowed: the name of a variable: letters, digits and \"_\"", quote(name));
        findings.fault(at, what);
    }
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::super::ServiceConfig;
    use super::super::testing::good;
    use super::*;
    use crate::model::HookEvent;
    use crate::model::image_config::Aspect;

    /// Parses a complete service with this `update`; returns the warnings, and the service unless it was skipped.
    fn with(update: &Value) -> (Vec<String>, Option<ServiceConfig>) {
        let folder = tempfile::tempdir().unwrap();
        let compose = folder.path().join("compose.yml");
        fs::write(&compose, "").unwrap();
        fs::set_permissions(&compose, fs::Permissions::from_mode(0o644)).unwrap();
        let config = good(&json!({"services": [{
            "name": "web", "images": ["web"], "compose_files": [compose], "compose_project": "web",
            "auto_update": true, "update": update,
        }]}));
        (config.warnings, config.services.first().map(|service| (**service).clone()))
    }

    #[test]
    fn a_snapshot_is_an_object_or_its_list() {
        let of = |update: Value| with(&json!({ "snapshot": update })).1.unwrap().update.unwrap();
        let both = of(json!(["db_data", "/srv/uploads"])).snapshot.clone().unwrap();
        assert_eq!(both.of, ["db_data", "/srv/uploads"]);
        assert_eq!((both.keep, both.max_bytes), (2, 20_480 * 1024 * 1024));
        let one = of(json!({"of": "db_data", "keep": 7, "max_mib": 1})).snapshot.clone().unwrap();
        assert_eq!((one.of, one.keep, one.max_bytes), (vec!["db_data".to_owned()], 7, 1024 * 1024));
        for (wrong, what) in [
            (json!([]), "update.snapshot"),
            (json!({"keep": 1}), "update.snapshot"),
            (json!(["a", "../b"]), "update.snapshot.of[1]: \"../b\"; allowed: the name of a volume"),
            (json!(["/"]), "update.snapshot.of[0]"),
            (json!(["/srv/a/../b"]), "update.snapshot.of[0]"),
            (json!(["/srv/up", "/srv/up/load"]), "\"/srv/up/load\" overlaps \"/srv/up\""),
            (json!({"of": ["a"], "keep": 0}), "update.snapshot.keep"),
        ] {
            let fault = of(wrong.clone()).fault.clone().unwrap_or_default();
            assert!(fault.contains(what), "{wrong}: {fault}");
        }
    }

    const SECONDS: &str = "allowed: a whole number of seconds from 0 to 31536000, or a duration such as \"90s\", \"15m\", \"12h\", \"3d\"";

    #[test]
    fn all_gates_are_parsed() {
        let (warnings, service) = with(&json!({
            "min_age": 259_200, "window": ["Mon-Fri 02:00-05:00", "Sun 00:00-24:00"], "timezone": "Europe/Vienna",
            "approve": true, "gate": ["/bin/true", "--now"],
        }));
        assert_eq!(warnings, Vec::<String>::new());
        let update = service.unwrap().update.unwrap();
        assert_eq!(update.min_age, Some(Duration::from_hours(72)));
        assert_eq!(update.window.as_ref().map(Window::zone), Some("Europe/Vienna"));
        assert!(update.approve);
        assert_eq!(update.gate, ["/bin/true", "--now"]);
    }

    #[test]
    fn a_single_range_needs_no_brackets_and_no_object_means_no_gates() {
        let (warnings, service) = with(&json!({"window": "02:00-05:00", "timezone": "UTC"}));
        assert_eq!(warnings, Vec::<String>::new());
        assert!(service.unwrap().update.unwrap().window.is_some());
        assert_eq!(with(&json!(null)).1.unwrap().update, None);
        assert_eq!(with(&json!({})).1.unwrap().update, Some(Arc::default()));
    }

    #[test]
    fn ask_on_takes_all_some_or_one() {
        let of = |value: Value| {
            let (warnings, service) = with(&json!({ "ask_on": value }));
            assert_eq!(warnings, Vec::<String>::new());
            service.unwrap().update.unwrap().ask_on.iter().map(|aspect| aspect.name()).collect::<Vec<_>>()
        };
        assert_eq!(of(json!(true)), Aspect::ALL.map(Aspect::name));
        assert_eq!(of(json!(false)), [""; 0]);
        assert_eq!(of(json!(null)), [""; 0]);
        assert_eq!(of(json!(["ports", "major"])), ["major", "ports"]);
        assert_eq!(of(json!("user")), ["user"]);
        for (value, what) in [
            (
                json!(["majors"]),
                "update.ask_on[0]: \"majors\" is not a valid value; allowed: major, volumes, user, entrypoint, ports",
            ),
            (json!("all"), "update.ask_on[0]: \"all\" is not a valid value"),
            (
                json!(5),
                "update.ask_on: 5; allowed: true, or an array of: major, volumes, user, entrypoint, ports",
            ),
            (json!([]), "update.ask_on: is an empty array; allowed: true, or an array of: major"),
        ] {
            let (warnings, service) = with(&json!({ "ask_on": value }));
            let [warning] = &warnings[..] else { panic!("{value}: {warnings:?}") };
            assert!(warning.contains(what) && warning.contains(HELD), "{value}: {warning}");
            assert!(
                service.unwrap().update.unwrap().fault.is_some(),
                "{value}: it was meant to hold something back"
            );
        }
    }

    #[test]
    fn an_invalid_gate_holds_the_updates_of_its_service() {
        for (update, reason) in [
            (json!(true), "update: a boolean; allowed: an object".to_owned()),
            (
                json!({"min_age": -1}),
                format!("update.min_age: -1 is out of range; {SECONDS}"),
            ),
            (
                json!({"min_age": "3 days"}),
                format!("update.min_age: \"3 days\"; {SECONDS}"),
            ),
            (json!({"window": 5}), "update.window: 5; allowed: a string or an array of strings".into()),
            (
                json!({"window": []}),
                "update.window: is an empty array; allowed: a string or an array of strings".into(),
            ),
            (
                json!({"window": "at night"}),
                format!("update.window[0]: \"at night\"; allowed: {WINDOW_FORM}"),
            ),
            (
                json!({"window": ["1:00-2:00", "25:00-26:00"]}),
                format!("update.window[1]: \"25:00-26:00\"; allowed: {WINDOW_FORM}"),
            ),
            (
                json!({"window": "1:00-2:00", "timezone": "Mars"}),
                "update.timezone: \"Mars\"; allowed: a name from the time zone database, such as Europe/Vienna"
                    .into(),
            ),
            (
                json!({"signed_by": "cosign.pub"}),
                "update.signed_by[0]: \"cosign.pub\" is not absolute; allowed: the absolute path of a public key in \
                 PEM format"
                    .into(),
            ),
            (
                json!({"tags": "latest"}),
                "update.tags: \"latest\" (unexpected character 'l' while parsing major version number); allowed: a version \
                 range such as ~1.27, or a pattern such as 1.27.*-alpine"
                    .into(),
            ),
            (
                json!({"tags": "^1", "tag_variable": "WEB-TAG"}),
                "update.tag_variable: \"WEB-TAG\"; allowed: the name of a variable: letters, digits and \"_\"".into(),
            ),
            (
                json!({"signed_by": "/dev/null", "signed_for": ["ghcr.io/acme/web:1"]}),
                "update.signed_for[0]: \"ghcr.io/acme/web:1\"; allowed: a repository without tag and digest, such as \
                 ghcr.io/acme/web"
                    .into(),
            ),
            (json!({"signed_by": 5}), "update.signed_by: 5; allowed: a string or an array of strings".into()),
            (json!({"approve": "yes"}), "update.approve: \"yes\"; allowed: true or false".into()),
            (json!({"gate": "/bin/true"}), "update.gate: \"/bin/true\"; allowed: an array of strings".into()),
            (json!({"gate": []}), "update.gate: is an empty array; allowed: an array of strings".into()),
            (
                json!({"gate": ["may-update"]}),
                "update.gate[0]: \"may-update\" is not absolute; allowed: the absolute path of a program"
                    .into(),
            ),
            (
                json!({"hooks": {"before": ["backup"]}}),
                "update.hooks.before[0]: \"backup\" is not absolute; allowed: the absolute path of a program".into(),
            ),
            (
                json!({"gate": ["/bin/true", "a\0"]}),
                "update.gate[1]: \"a\\0\"; allowed: a string without NUL".into(),
            ),
        ] {
            let (warnings, service) = with(&update);
            assert_eq!(warnings[0], format!("web: {reason} ({HELD})"), "{update}");
            let gates = service.unwrap().update.unwrap();
            assert_eq!(gates.fault.as_ref(), Some(&reason), "{update}");
            let is_of_key = update.get("signed_by").is_some();
            assert_eq!(gates.signed_by, if is_of_key { vec![PathBuf::from(NO_KEY)] } else { vec![] });
        }
    }

    #[test]
    fn hooks_are_parsed_and_hold_updates_where_they_would_not_run() {
        let (warnings, service) = with(&json!({"hooks": {"before": ["/bin/true", "a"], "timeout": "5m"}}));
        assert_eq!(warnings, Vec::<String>::new());
        let hooks = service.unwrap().update.as_ref().unwrap().hooks.clone().unwrap();
        assert_eq!(hooks.of(HookEvent::Before), Some(&["/bin/true".to_owned(), "a".to_owned()][..]));
        assert_eq!((hooks.of(HookEvent::Updated), hooks.timeout), (None, Duration::from_mins(5)));
        let (warnings, _) = with(&json!({"hooks": {"timeout": 0}}));
        assert!(warnings[0].starts_with("web: update.hooks.timeout: 0 is out of range"), "{warnings:?}");
        let (_, service) = with(&json!({"hooks": {"after": ["/bin/true"]}}));
        let hooks = service.unwrap().update.as_ref().unwrap().hooks.clone().unwrap();
        assert_eq!(hooks.timeout, Duration::from_mins(10));
        let swarm = good(&json!({"services": [{
            "name": "web", "images": ["web"], "swarm_service": "web", "auto_update": true,
            "update": {"hooks": {"before": ["/bin/true"]}},
        }]}));
        let update = swarm.services[0].update.as_ref().unwrap();
        assert_eq!(update.fault.as_deref(), Some("update.hooks: is not available for swarm services"));
    }

    #[test]
    fn settings_without_effect_or_unsafe_ones_cause_a_warning() {
        let (warnings, service) = with(&json!({"timezone": "Europe/Vienna"}));
        assert_eq!(warnings, ["web: update.timezone: has no effect without window"]);
        assert_eq!(service.unwrap().update.unwrap().fault, None);
        let (_, service) = with(&json!({"min_age": "3d"}));
        assert_eq!(service.unwrap().update.unwrap().min_age, Some(Duration::from_hours(72)));
        let (exec, undo) = (json!(["touch", "/tmp/drain"]), json!(["rm", "/tmp/drain"]));
        let (warnings, _) = with(&json!({"order": "stop_first", "drain": {"exec": exec.clone()}}));
        assert_eq!(warnings.len(), 1, "it never drains: {warnings:?}");
        let (warnings, _) = with(&json!({"drain": {"exec": exec, "undo": undo}}));
        assert_eq!(warnings, Vec::<String>::new());
        let (warnings, _) = with(&json!({"drain": {"exec": exec}}));
        assert!(warnings[0].starts_with("web: update.drain.undo: is not set"), "{warnings:?}");
        let (warnings, _) = with(&json!({"drain": {"command": ["/bin/true"]}}));
        assert_eq!(warnings, Vec::<String>::new(), "it is told of both directions");
        for (update, why) in [
            (json!({"tag_variable": "WEB_TAG"}), "has no effect without tags"),
            (
                json!({"tags": "^1", "tag_variable": "WEB_TAG"}),
                "has no effect without env_file: newer tags are reported, but not deployed",
            ),
        ] {
            assert_eq!(with(&update).0, [format!("web: update.tag_variable: {why}")]);
        }
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("may-update");
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o777)).unwrap();
        let (warnings, service) = with(&json!({"gate": [program]}));
        assert_eq!(
            warnings,
            [format!(
                "web: update.gate[0]: {program:?} is writable by users other than its owner (mode 0777); whoever can change it controls this machine"
            )]
        );
        assert!(service.is_some());
        let config =
            good(&json!({"services": [{"name": "a", "container_name": "a", "update": {"approve": true}}]}));
        assert_eq!(config.warnings, ["a: update: has no effect without auto_update"]);
    }
}
