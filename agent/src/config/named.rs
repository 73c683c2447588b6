//! Collects the channels that the file configures and the variables that they and the push reference, including invalid
//! ones.

use std::collections::BTreeSet;

use evenkeel_common::config::expand::names;
use serde_json::Value;

use super::Config;

/// Returns the variables that channels and push reference with `$` (DECISIONS 6), including those in invalid sections. A
/// webhook's body is a template, in which `$` has no meaning.
pub(super) fn variables(tree: &Value) -> BTreeSet<String> {
    fn collect(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::String(text) => found.extend(names(text)),
            Value::Array(items) => {
                for item in items {
                    collect(item, found);
                }
            }
            Value::Object(members) => {
                for (_, member) in members.iter().filter(|(key, _)| *key != "body") {
                    collect(member, found);
                }
            }
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    for part in ["notifications", "push"] {
        collect(&tree[part], &mut found);
    }
    found
}

/// Returns the names of the configured channels, including invalid ones if their name is readable.
pub(super) fn channels(tree: &Value) -> Vec<String> {
    let notifications = &tree["notifications"];
    let wardens = match &tree["push"] {
        Value::Object(push) => push.get("warden_url").unwrap_or(&Value::Null),
        other => other,
    };
    let is_wanted = match wardens {
        Value::Null => false,
        Value::String(url) => !url.is_empty(),
        Value::Array(urls) => urls.iter().any(|url| *url != ""),
        _ => true,
    };
    let mut found: Vec<String> = is_wanted.then(|| "push".to_owned()).into_iter().collect();
    let single = ["discord", "smtp"].into_iter().filter(|name| !notifications[*name].is_null());
    found.extend(single.map(str::to_owned));
    let webhooks = match &notifications["webhooks"] {
        Value::Array(webhooks) => &webhooks[..],
        // A single webhook that is not in an array.
        other => std::slice::from_ref(other),
    };
    let names = webhooks.iter().filter_map(|webhook| webhook["name"].as_str());
    for name in names.filter(|name| !name.is_empty()).map(|name| format!("webhook/{name}")) {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

/// Reports whether the channel with this name is valid and therefore enabled.
pub(super) fn is_on(config: &Config, name: &str) -> bool {
    let notifications = &config.notifications;
    match name {
        "push" => config.push.is_some(),
        "discord" => notifications.discord.is_some(),
        "smtp" => notifications.smtp.is_some(),
        _ => name
            .strip_prefix("webhook/")
            .is_some_and(|name| notifications.webhooks.iter().any(|webhook| webhook.name == name)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::good;
    use super::*;

    #[test]
    fn every_referenced_variable_counts_as_secret_even_in_an_invalid_section() {
        let config = good(&json!({
            "notifications": {
                "discord": "$HOOK/x", "smtp": {"username": "$A$B", "password": "${C"},
                "webhooks": [{"url": "http://x/$NOPE", "headers": {"X": "Bearer $TOKEN"}, "body": "$NO {{ message }}"}, "$LINES"],
            },
            "push": {"token": "$$D ${EMPTY}"},
            "audit": {"path": "$NOT_EXPANDED"},
        }));
        let expected = ["A", "B", "C", "EMPTY", "HOOK", "LINES", "NOPE", "TOKEN"];
        assert_eq!(config.named_variables.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn channels_disabled_by_a_fault_are_listed_by_name() {
        let faulty = |tree: Value| good(&tree).faulty_channels;
        let hook = |name: &str, url: &str| json!({"name": name, "url": url, "method": "POST"});
        assert_eq!(
            faulty(json!({
                "notifications": {"discord": {"webhook_url": "$NOPE"}, "smtp": 5, "webhooks": [
                    hook("on", "http://a"), hook("off", "ftp://a"), hook("on", "http://b"), {"url": "http://c"}, "d", {"name": 5},
                ]},
                "push": {"warden_url": "http://w", "token": "$NOPE"},
            })),
            ["push", "discord", "smtp", "webhook/off"]
        );
        assert_eq!(
            faulty(json!({"notifications": {"webhooks": hook("single", "http://a")}})),
            ["webhook/single"]
        );
        assert_eq!(faulty(json!({"push": "http://w"})), ["push"]);
        for unwanted in [
            json!({}),
            json!({"push": {"warden_url": "", "token": "$NOPE"}, "notifications": {"webhooks": []}}),
        ] {
            assert_eq!(faulty(unwanted), [""; 0]);
        }
    }
}
