//! What a reload takes out of operation because of a fault in the file.

use crate::config::{Config, LeftOut};

/// Returns the services and channels that worked under `old` and are off under `new`, each with the reason.
pub(super) fn losses(old: &Config, new: &Config) -> Vec<String> {
    let left_out = new.left_out.iter().filter(|one| !old.left_out.contains(one));
    let services = left_out.map(|LeftOut { name, reason }| format!("{name} is not watched: {reason}"));
    let off: Vec<&str> = new
        .faulty_channels
        .iter()
        .filter(|name| !old.faulty_channels.contains(name))
        .map(String::as_str)
        .collect();
    let is_of_channels = |text: &&String| text.starts_with("notifications") || text.starts_with("push");
    let reasons = new.warnings.iter().filter(|text| !old.warnings.contains(text)).filter(is_of_channels);
    let reasons: Vec<&str> = reasons.map(String::as_str).collect();
    let channels = (!off.is_empty()).then(|| format!("{} is off: {}", off.join(", "), reasons.join("; ")));
    services.chain(channels).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use evenkeel_common::config::Configuration as _;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_reload_names_each_service_and_channel_that_a_fault_takes_out_of_operation() {
        let parse = |tree: &Value| Config::parse(&tree.to_string(), Path::new("c.json"), &|_| None).unwrap();
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
        // What was so before is not repeated, and what is mended is no loss.
        assert_eq!(losses(&parse(&bad), &parse(&bad)), Vec::<String>::new());
        assert_eq!(losses(&parse(&bad), &parse(&good)), Vec::<String>::new());
    }
}
