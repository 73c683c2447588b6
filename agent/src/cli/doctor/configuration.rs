//! Checks the configuration file: its faults, its warnings, and its notification channels.

use evenkeel_common::config::ConfigErrors;

use super::finding::{Finding, Severity, Words};
use crate::audit::{Settings, UNDELIVERED};
use crate::config::{Config, HELD, says_it_is_off};

/// The file itself.
pub(super) const AREA: &str = "configuration";
/// Its notification channels.
pub(super) const CHANNELS: &str = "notifications";

/// Findings for a rejected file: its faults and its warnings.
pub(super) fn refused(faults: &ConfigErrors) -> Vec<Finding> {
    let path = faults.path().display().to_string();
    let fault = |line: &str| {
        let text = line.strip_prefix(&format!("{path}: ")).unwrap_or(line);
        let (subject, what) = text.split_once(": ").unwrap_or((&path, text));
        let remedy = if text.contains("no such file") {
            "create it; `evenkeel adopt` prints a configuration for this machine".to_owned()
        } else if text.contains("ermission denied") {
            "run doctor as the user that runs the agent: `sudo evenkeel doctor`".to_owned()
        } else {
            format!("correct {path}, then check it with `evenkeel --check`")
        };
        let why = "the agent does not start with it, and nothing else can be checked";
        Words { what, why, remedy }.error(AREA, subject)
    };
    let mut found: Vec<Finding> = faults.to_string().lines().map(fault).collect();
    found.extend(faults.warnings().iter().map(|warning| of_warning(warning)));
    found
}

/// Findings for the warnings of an accepted file.
pub(super) fn warnings(config: &Config) -> Vec<Finding> {
    let warned =
        config.warnings.iter().filter(|warning| !is_of_channels(warning)).map(|text| of_warning(text));
    warned.chain(config.notes.iter().map(|note| of_note(note))).collect()
}

/// An image without a host, where `registry.url` is not set.
fn of_note(note: &str) -> Finding {
    let (subject, what) = note.split_once(": ").unwrap_or(("the file", note));
    Words {
        what,
        why: "an image of Docker Hub is never found there",
        remedy: "write the image with its host in \"images\" (docker.io/…), or set registry.url",
    }
    .warning(AREA, subject)
}

/// Findings for notification channels that can't be used.
pub(super) fn channels(config: &Config) -> Vec<Finding> {
    let warned = config.warnings.iter().filter(|warning| is_of_channels(warning));
    let broken = Settings::of(config).into_iter().filter(|settings| !matches!(settings, Settings::Push(_)));
    let broken = broken.filter_map(|settings| {
        let what = settings.open().err()?;
        let why = "this channel is off and sends no notifications";
        let remedy = "correct the channel, then test it: `evenkeel test-notify`";
        Some(Words { what, why, remedy }.error(CHANNELS, settings.name()))
    });
    warned.map(|text| of_warning(text)).chain(broken).collect()
}

/// Turns the error of a variable that may be a credential of the unit into a warning: the agent may have it, and only this
/// program lacks it.
pub(super) fn excuse(finding: &mut Finding, may_be_credential: impl Fn(&str) -> bool) {
    let variable = finding.what.split_once("the environment variable ").map(|(_, rest)| rest);
    let variable = variable.and_then(|rest| rest.split_once(" is not set")).map(|(name, _)| name);
    let Some(name) = variable.filter(|name| may_be_credential(name)) else { return };
    let words = Words {
        what: format!("{name} may be a credential of the unit, which can't be read here"),
        why: "what needs it is not checked",
        remedy: "root can read it while the agent runs: `sudo evenkeel doctor`",
    };
    *finding = words.warning(finding.area, finding.subject.as_str());
}

/// Findings for channels through which the running agent has delivered nothing for a while, or which are off there and not in
/// the file (`known`), from its warnings.
pub(super) fn undelivered(warnings: &[String], known: &[Finding]) -> Vec<Finding> {
    let why = "entries wait in its queue, at most 10,000";
    let is_error = |finding: &&Finding| finding.severity == Severity::Error;
    let is_known = |subject: &str| known.iter().filter(is_error).any(|finding| finding.subject == subject);
    let finding = |warning: &String| {
        let (subject, what) = warning.split_once(": ")?;
        let remedy = match () {
            () if what.starts_with(UNDELIVERED) => {
                "correct the channel, or what refuses it, then test it: `evenkeel test-notify`"
            }
            () if says_it_is_off(what) && !is_known(subject) => {
                "the running agent lacks what is in the files now: `systemctl restart evenkeel-agent`; a reload \
                 does not read variables"
            }
            () => return None,
        };
        Some(Words { what, why, remedy }.error(CHANNELS, subject))
    };
    warnings.iter().filter_map(finding).collect()
}

fn is_of_channels(warning: &str) -> bool {
    warning.starts_with("notifications")
}

fn of_warning(warning: &str) -> Finding {
    let (subject, what) = warning.split_once(": ").unwrap_or(("the file", warning));
    let area = if is_of_channels(warning) { CHANNELS } else { AREA };
    let (severity, why) = match () {
        () if what.ends_with("(service skipped)") || what.ends_with("(no service is watched)") => {
            (Severity::Error, "it is not watched: neither updated nor healed")
        }
        () if what.contains(HELD) => {
            (Severity::Error, "no new image is deployed: it may have to be held back")
        }
        () if says_it_is_off(what) => (Severity::Error, "nothing is delivered through it"),
        () if is_writable_by_others(what) => (Severity::Warning, "the agent acts on its content as root"),
        () => (Severity::Warning, "the agent runs, but possibly not as intended"),
    };
    Words { what, why, remedy: remedy(subject, what) }.of(severity, area, subject)
}

/// Reports whether a warning comes from `evenkeel_common::permissions`.
fn is_writable_by_others(what: &str) -> bool {
    ["is world-writable", "is writable by users other than"].iter().any(|text| what.contains(text))
}

fn remedy(subject: &str, what: &str) -> String {
    let after = |words: &str| what.split_once(words)?.1.split_whitespace().next();
    let quoted = || what.split('"').nth(1);
    if let Some(variable) = after("the environment variable ") {
        return format!(
            "set {variable} for the agent: in /etc/evenkeel/agent.env, or with LoadCredential={variable}:PATH in its unit"
        );
    }
    if is_writable_by_others(what)
        && let Some(path) = quoted()
    {
        return format!("remove the write permission: `chmod go-w {path}`");
    }
    if what.contains("can be reached from other machines") {
        return "set \"address\" in \"api\" to [\"127.0.0.1:9090\"], and use an authenticating proxy for remote access"
            .to_owned();
    }
    if what.contains("is not a known key") {
        return format!("correct or remove {subject}; the manual lists all keys");
    }
    format!("correct {subject} accordingly, then check it with `evenkeel --check`")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use evenkeel_common::config::Configuration as _;
    use serde_json::{Value, json};

    use super::*;

    fn parse(tree: &Value) -> Result<Config, ConfigErrors> {
        Config::parse(&tree.to_string(), Path::new("/etc/evenkeel/config.json"), &|_| None)
    }

    /// Each case: a faulty file, and the expected finding.
    #[test]
    fn every_fault_of_the_file_is_reported_with_a_remedy() {
        use Severity::{Error, Warning};
        let folder = tempfile::tempdir().unwrap();
        let webhook = |body: &str| json!({"notifications": {"webhooks": [{"name": "chat", "url": "http://h/", "method": "POST", "body": body}]}});
        for (tree, severity, area, subject, what, remedy) in [
            (
                json!({"registry": {"poll_interval": 1}}),
                Error,
                AREA,
                "registry.poll_interval",
                "out of range",
                "correct /etc/evenkeel",
            ),
            (
                json!({"services": [{"name": "web", "auto_update": true, "images": ["web"]}]}),
                Error,
                AREA,
                "web",
                "(service skipped)",
                "correct web",
            ),
            (
                json!({"servces": []}),
                Warning,
                AREA,
                "servces",
                "did you mean \"services\"",
                "correct or remove servces",
            ),
            (
                json!({"api": {"address": [":9090"]}}),
                Warning,
                AREA,
                "api.address",
                "no authentication",
                "127.0.0.1:9090",
            ),
            (
                json!({"notifications": {"discord": {"webhook_url": "$HOOK"}}}),
                Error,
                CHANNELS,
                "notifications.discord.webhook_url",
                "variable HOOK is not set",
                "agent.env",
            ),
            (
                webhook("{{ oops"),
                Error,
                CHANNELS,
                "notifications.webhooks[0].body",
                "this webhook is off",
                "correct notifications",
            ),
            (
                json!({"push": {"warden_url": "http://w", "token": "$TOKEN"}}),
                Error,
                AREA,
                "push.token",
                "TOKEN is not set",
                "LoadCredential=TOKEN",
            ),
            (
                json!({"audit": {"path": folder.path()}}),
                Warning,
                AREA,
                "audit.path",
                "is a folder",
                "correct audit.path",
            ),
        ] {
            let found = match parse(&tree) {
                Err(faults) => refused(&faults),
                Ok(config) => [warnings(&config), channels(&config)].concat(),
            };
            let finding = found.iter().find(|finding| finding.subject == subject);
            let finding = finding.unwrap_or_else(|| panic!("{tree}: {found:#?}"));
            assert_eq!((finding.severity, finding.area), (severity, area), "{finding:#?}");
            assert!(finding.what.contains(what) && finding.remedy.contains(remedy), "{finding:#?}");
        }
    }

    #[test]
    fn a_misplaced_gate_is_an_error_and_an_image_without_a_host_a_warning() {
        for (key, value, severity, what, remedy) in [
            ("min_age", json!("3d"), Severity::Error, "belongs inside \"update\"", "correct web"),
            (
                "images",
                json!(["nginx:1.27"]),
                Severity::Warning,
                "means localhost:5000/nginx:1.27",
                "docker.io/…",
            ),
        ] {
            let mut service = json!({"name": "web", "container_name": "web"});
            service[key] = value;
            let found = warnings(&parse(&json!({"services": [service]})).unwrap());
            assert_eq!(found.len(), 1, "{found:#?}");
            let finding = &found[0];
            assert_eq!((finding.severity, finding.subject.as_str()), (severity, "web"));
            assert!(finding.what.contains(what) && finding.remedy.contains(remedy), "{finding:#?}");
        }
    }

    #[test]
    fn the_remedy_for_a_missing_file_is_adopt() {
        let faults = Config::load(Path::new("/nonexistent/config.json"), &|_| None).unwrap_err();
        let found = refused(&faults);
        assert_eq!(found.len(), 1);
        assert!(found[0].remedy.contains("evenkeel adopt"), "{found:#?}");
    }

    #[test]
    fn the_remedy_for_a_file_that_others_can_write_is_chmod() {
        let text = "audit.path: the folder \"/srv/x\" is world-writable (mode 0777); whoever can change it …";
        let finding = of_warning(text);
        assert_eq!(
            (finding.severity, finding.remedy.as_str()),
            (Severity::Warning, "remove the write permission: `chmod go-w /srv/x`")
        );
    }

    #[test]
    fn a_channel_through_which_nothing_is_delivered_is_an_error() {
        let of_channel = format!(
            "notifications.smtp (a@example.com): {UNDELIVERED} 2026-01-02T03:04:05Z: 535 5.7.8 bad login"
        );
        let found = undelivered(&["web: something else".to_owned(), of_channel], &[]);
        let [finding] = &found[..] else { panic!("{found:#?}") };
        assert_eq!(
            (finding.severity, finding.subject.as_str()),
            (Severity::Error, "notifications.smtp (a@example.com)")
        );
        assert!(finding.what.ends_with("535 5.7.8 bad login"), "{finding:#?}");
    }

    #[test]
    fn a_channel_that_is_off_only_in_the_running_agent_needs_a_restart() {
        let tree = json!({"notifications": {"discord": {"webhook_url": "$HOOK"}}});
        let running = parse(&tree).unwrap();
        let found = undelivered(&running.warnings, &[]);
        let [finding] = &found[..] else { panic!("{found:#?}") };
        assert!(finding.remedy.contains("systemctl restart evenkeel-agent"), "{finding:#?}");
        assert_eq!(undelivered(&running.warnings, &channels(&running)), [], "the file has the same fault");
    }

    #[test]
    fn a_credential_that_can_not_be_read_is_no_error_unless_the_running_agent_lacks_it() {
        let tree = json!({"push": {"warden_url": "http://w", "token": "$TOKEN"}});
        let config = parse(&tree).unwrap();
        let found = |may_be: &dyn Fn(&str) -> bool| {
            let mut found = warnings(&config);
            for finding in &mut found {
                excuse(finding, may_be);
            }
            found
        };
        let excused = found(&|name| name == "TOKEN");
        let finding = excused.iter().find(|finding| finding.subject == "push.token").unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.what.starts_with("TOKEN may be a credential"), "{finding:#?}");
        assert_eq!(undelivered(&config.warnings, &excused).len(), 1);
        let other = found(&|name| name == "OTHER");
        assert_eq!(other, warnings(&config));
        assert_eq!(undelivered(&config.warnings, &other), []);
    }

    #[test]
    fn a_good_file_has_no_finding() {
        let config = parse(&json!({"notifications": {"discord": {"webhook_url": "http://h/x"}}})).unwrap();
        assert_eq!([warnings(&config), channels(&config)].concat(), []);
    }
}
