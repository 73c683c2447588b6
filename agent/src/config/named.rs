//! Collects the variables that channels and push reference, including those of invalid ones.

use std::collections::BTreeSet;

use evenkeel_common::config::expand::names;
use serde_json::Value;

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
