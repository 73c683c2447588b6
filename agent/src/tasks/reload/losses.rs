//! What a fault in the file takes out of operation: at the start, and with a reload.

use evenkeel_common::hanging::{UNRESPONSIVE, hangs};
use evenkeel_common::wire::LeftOutService;

use crate::config::{Config, ServiceConfig};

/// Returns the services and channels that are off under this configuration, each with the reason.
pub(crate) fn faults(config: &Config) -> Vec<String> {
    beyond(None, config)
}

/// Returns the services and channels that worked under `old` and are off under `new`, each with the reason.
pub(super) fn losses(old: &Config, new: &Config) -> Vec<String> {
    beyond(Some(old), new)
}

fn beyond(old: Option<&Config>, new: &Config) -> Vec<String> {
    let is_new = |was: &dyn Fn(&Config) -> bool| !old.is_some_and(was);
    let left_out = new.left_out.iter().filter(|one| is_new(&|old| old.left_out.contains(one)));
    let services = left_out.map(|LeftOutService { name, reason }| format!("{name} is not watched: {reason}"));
    let off = new.faulty_channels.iter().filter(|name| is_new(&|old| old.faulty_channels.contains(name)));
    let off: Vec<&str> = off.map(String::as_str).collect();
    let is_of_channels = |text: &&String| text.starts_with("notifications") || text.starts_with("push");
    let reasons = new.warnings.iter().filter(|text| is_new(&|old| old.warnings.contains(text)));
    let reasons: Vec<&str> = reasons.filter(is_of_channels).map(String::as_str).collect();
    let channels = (!off.is_empty()).then(|| format!("{} is off: {}", off.join(", "), reasons.join("; ")));
    services.chain(channels).collect()
}

/// Lets services keep their settings whose files were there before, and are on a file system that hangs now: their containers
/// still run, and have to be healed. Returns what is to be said of that.
pub(super) fn keep_unresponsive(old: &Config, new: &mut Config) -> Vec<String> {
    let is_unresponsive = |service: &ServiceConfig| {
        let mut files = service.compose_files.iter().chain(&service.env_file);
        files.any(|path| hangs(path))
    };
    let mut kept = Vec::new();
    new.left_out.retain(|one| {
        let named = old.services.iter().find(|service| service.name == one.name);
        let before = named.filter(|service| is_unresponsive(service));
        kept.extend(before.cloned());
        before.is_none()
    });
    let mut notes = Vec::new();
    for service in kept {
        let of = format!("{}: ", service.name);
        new.warnings.retain(|text| !(text.starts_with(&of) && text.ends_with("(service skipped)")));
        notes.push(format!(
            "{of}one of its files {UNRESPONSIVE}; it keeps its settings until the next reload"
        ));
        new.services.push(service);
    }
    new.warnings.extend(notes.iter().cloned());
    notes
}

/// Reports whether the same file, read again, leaves out fewer services than before, and none that was watched.
pub(super) fn watches_more(old: &Config, new: &Config) -> bool {
    let was_left_out = |one: &LeftOutService| old.left_out.iter().any(|before| before.name == one.name);
    old.text_hash == new.text_hash
        && new.left_out.len() < old.left_out.len()
        && new.left_out.iter().all(was_left_out)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use evenkeel_common::config::Configuration as _;
    use evenkeel_common::hanging::{self, Look};
    use serde_json::{Value, json};

    use super::*;

    fn parse(tree: &Value) -> Config {
        Config::parse(&tree.to_string(), Path::new("c.json"), &|_| None).unwrap()
    }

    #[test]
    fn a_reload_names_each_service_and_channel_that_a_fault_takes_out_of_operation() {
        let file = |path: &str, hook: &str| {
            json!({
                "services": [{"name": "web", "container_name": "web"}, {"name": "blog", "compose_files": [path]}],
                "notifications": {"discord": {"webhook_url": hook}},
            })
        };
        let folder = tempfile::tempdir().unwrap();
        let compose = folder.path().join("compose.yml");
        std::fs::write(&compose, "").unwrap();
        let good = file(compose.to_str().unwrap(), "https://chat.example/x");
        let bad = file("/nonexistent/compose.yml", "$HOOK");
        let lost = losses(&parse(&good), &parse(&bad));
        assert_eq!(lost.len(), 2, "{lost:#?}");
        assert!(lost[0].starts_with(
            "blog is not watched: compose_files[0]: \"/nonexistent/compose.yml\" does not exist"
        ));
        assert!(lost[1].starts_with("discord is off: notifications.discord.webhook_url: "), "{lost:#?}");
        assert!(lost[1].contains("HOOK"), "{lost:#?}");
        assert_eq!(faults(&parse(&bad)), lost, "a start tells the same");
        assert_eq!(faults(&parse(&good)), Vec::<String>::new());
        // What was so before is not repeated, and what is mended is no loss.
        assert_eq!(losses(&parse(&bad), &parse(&bad)), Vec::<String>::new());
        assert_eq!(losses(&parse(&bad), &parse(&good)), Vec::<String>::new());
    }

    fn park(_: &Path) {
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn a_reload_does_not_stop_watching_a_service_whose_file_system_hangs() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let service =
            |name: &str| json!({"name": name, "compose_project": name, "compose_files": [path(name)]});
        let file = json!({"services": [service("nas"), service("gone")]});
        std::fs::write(path("nas"), "").unwrap();
        std::fs::write(path("gone"), "").unwrap();
        let before = parse(&file);
        hanging::ask([path("nas")], Look { call: park, limit: std::time::Duration::from_millis(1) });
        std::fs::remove_file(path("gone")).unwrap();
        let mut after = parse(&file);
        assert_eq!((after.services.len(), after.left_out.len()), (0, 2));
        let told = keep_unresponsive(&before, &mut after);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("nas: ") && after.warnings.contains(&told[0]), "{told:?}");
        assert_eq!(after.services, before.services[..1]);
        assert_eq!(after.left_out.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["gone"]);
        let skipped = |of: &str| {
            let is_of = |text: &&String| text.starts_with(of) && text.ends_with("(service skipped)");
            after.warnings.iter().filter(is_of).count()
        };
        assert_eq!((skipped("nas: "), skipped("gone: ")), (0, 1), "{:#?}", after.warnings);
        assert_eq!(losses(&before, &after).len(), 1, "nas is not lost");
    }

    #[test]
    fn only_a_file_with_the_same_text_that_leaves_out_fewer_services_is_applied_unasked() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let service = |name: &str| json!({"name": name, "compose_files": [path(name)]});
        let file = json!({"services": [service("a"), service("b"), service("c")]});
        std::fs::write(path("a"), "").unwrap();
        let before = parse(&file);
        assert!(!watches_more(&before, &parse(&file)), "nothing has changed");
        std::fs::write(path("b"), "").unwrap();
        assert!(watches_more(&before, &parse(&file)), "c may follow later");
        let edited = json!({"services": [service("a"), service("b")]});
        assert!(!watches_more(&before, &parse(&edited)), "nobody asked for the edit");
        std::fs::remove_file(path("a")).unwrap();
        assert!(!watches_more(&before, &parse(&file)), "a would be lost");
        std::fs::write(path("c"), "").unwrap();
        assert!(!watches_more(&before, &parse(&file)), "a would be lost");
    }
}
