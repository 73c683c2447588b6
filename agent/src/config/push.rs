//! `push`: the wardens, and this machine's role in the fleet.

use std::time::Duration;

use evenkeel_common::config::expand::Env;
use evenkeel_common::config::{Findings, KeyPath, is_spelling, quote};
use evenkeel_common::secret::Secret;
use http::HeaderValue;
use serde_json::Value;

use super::channels::{expanded, key_in, unless_faulty, web_url};
use super::file::PushFile;
use super::items::Items;
use super::{FleetTerms, PushConfig};

/// The last ring of a fleet.
const LAST_RING: u8 = 9;

/// The section `push`.
pub(super) struct Push {
    /// `None` if no warden is configured, or because of a fault.
    pub(super) config: Option<PushConfig>,
    /// The terms of the fleet that still apply while the push is disabled because of a fault.
    pub(super) terms_without: Option<FleetTerms>,
    /// The name of this machine, which counts without a warden, too.
    pub(super) machine_id: String,
}

/// Records a fault where the file may name a ring, or the push, that would not be read: under a misspelt key, beside `push`, or
/// in a value that is given once more. The default would let a machine go first that is to wait for others.
pub(super) fn note_unread(tree: &mut Value, findings: &mut Findings) {
    let (at, ring) = (KeyPath::of("push"), KeyPath::of("push.ring"));
    let is_ring = |key: &str| ["ring", "rings"].iter().any(|name| is_spelling(key, name));
    let Some(members) = tree.as_object_mut() else { return };
    if members.get("push").is_none_or(Value::is_null)
        && let Some(key) = key_in(members, |key| is_spelling(key, "push"))
        && let Some(section) = members.remove(&key)
    {
        findings.fault(&at, format!("is written {}; allowed: \"push\"", quote(&key)));
        members.insert("push".to_owned(), section);
    }
    let members = &*members;
    let Some(push) = members.get("push").and_then(Value::as_object) else { return };
    let repeated = [&at, &ring].into_iter().find(|at| findings.repeated().contains(at));
    if let Some(repeated) = repeated {
        let what = format!("is unclear, since {repeated} is given more than once");
        findings.fault(&ring, what);
    } else if push.get("ring").is_none_or(Value::is_null)
        && let Some(key) = [push, members].into_iter().find_map(|place| key_in(place, is_ring))
    {
        findings.fault(&ring, format!("is written {}; allowed: \"ring\" in \"push\"", quote(&key)));
    }
}

/// `push`: enabled if a warden is configured. It then needs a token, because wardens reject an empty one.
pub(super) fn push(file: PushFile, env: Env<'_>, findings: &mut Findings) -> Push {
    let at = KeyPath::of("push");
    let ring = unless_faulty(file.ring, &at.key("ring"), "the last ring, 9, is used", findings);
    // Nothing in a section that can't be read is known.
    let ring = ring.filter(|_| findings.fault_at(&at).is_none());
    let patience = unless_faulty(file.patience, &at.key("patience"), "the default is used", findings);
    let machine_id = unless_faulty(file.machine_id, &at.key("machine_id"), "the host name is used", findings);
    let patience = Duration::from_secs(patience.unwrap_or_else(|| PushFile::default().patience));
    let terms = FleetTerms { ring: ring.unwrap_or(LAST_RING), patience };
    let wanted = file.warden_url.iter().flatten().any(|text| !text.is_empty());
    let warden_urls = warden_urls(file.warden_url, &at.key("warden_url"), findings);
    let mut token = Secret::default();
    if wanted {
        let at = at.key("token");
        token = expanded(&file.token, &at, env, findings);
        if token.is_empty() {
            findings.fault(&at, "is empty; allowed: this agent's token at the warden");
        } else if HeaderValue::from_bytes(token.expose().as_bytes()).is_err() {
            findings.fault(&at, "has control characters (a line break?), which HTTP headers can't contain");
        }
    }
    let machine_id = machine_id.unwrap_or_default();
    let FleetTerms { ring, patience } = terms;
    let config = PushConfig { warden_urls, token, ring, patience };
    match unless_faulty(config, &at, "the push is off", findings) {
        Some(config) => Push { config: Some(config).filter(|_| wanted), terms_without: None, machine_id },
        None => Push { config: None, terms_without: Some(terms), machine_id },
    }
}

/// Returns the wardens' URLs in order. An invalid URL is ignored with a warning if another one is valid; otherwise it is a
/// fault.
fn warden_urls(texts: Items<String>, at: &KeyPath, findings: &mut Findings) -> Vec<String> {
    let (mut urls, mut wrong) = (Vec::<String>::new(), Vec::new());
    for (n, text) in texts.into_iter().flatten().enumerate().filter(|(_, text)| !text.is_empty()) {
        let url = text.trim_end_matches('/').to_owned();
        let place = if n == 0 { at.clone() } else { at.index(n) };
        if !is_base_url(&text) {
            wrong.push(place);
        } else if urls.contains(&url) {
            findings.warn(&place, "is listed more than once");
        } else {
            urls.push(url);
        }
    }
    for place in wrong {
        let what = "is not a base URL; allowed: http://host:port or https://host:port, optionally with a path, without login and query";
        if urls.is_empty() {
            findings.fault(&place, what);
        } else {
            findings.warn(&place, format!("{what} (this one is ignored)"));
        }
    }
    urls
}

fn is_base_url(text: &str) -> bool {
    web_url(text).is_some_and(|url| {
        url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none()
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::super::testing::parse;
    use super::*;
    use crate::config::{Config, Configuration as _};

    fn config(tree: &Value) -> Config {
        let env = |name: &str| (name == "LINES").then(|| "secret-1\nsecret-2".to_owned());
        parse(tree, &env).unwrap()
    }

    #[test]
    fn a_fault_in_an_optional_key_does_not_disable_the_push() {
        let urls = json!(["w1:1", "http://w2/", "http://w2"]);
        let config = config(
            &json!({"push": {"warden_url": urls, "token": "t", "machine_id": 7, "ring": 12, "patience": -1}}),
        );
        let push = config.push.expect("one warden is left");
        assert_eq!(
            (push.warden_urls, push.ring, config.machine_id),
            (vec!["http://w2".into()], 9, String::new())
        );
        assert_eq!(push.patience, Duration::from_secs(PushFile::default().patience));
        let said = config.warnings.join("\n");
        for part in [
            "(this one is ignored)",
            "more than once",
            "(the last ring, 9, is used)",
            "(the default is used)",
            "(the host name is used)",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn a_push_that_is_off_for_a_fault_leaves_the_terms_of_the_fleet() {
        for push in [
            json!({"warden_url": "http://w", "token": "$NOPE", "ring": 5, "patience": 60}),
            json!({"warden_url": "w:1", "token": "t", "ring": 5, "patience": 60}),
            json!({"warden_url": "http://w", "token": "$LINES", "ring": 5, "patience": 60}),
        ] {
            let config = config(&json!({ "push": push }));
            assert_eq!(config.push, None, "{push}");
            let terms = FleetTerms { ring: 5, patience: Duration::from_mins(1) };
            assert_eq!(config.fleet_terms_without_push, Some(terms), "{push}");
        }
    }

    #[test]
    fn a_ring_that_may_be_named_where_it_is_not_read_is_the_last_one() {
        let of = |members: &str| {
            let text =
                format!("{{{}}}", members.replace("WARDEN", r#""warden_url": "http://w", "token": "t""#));
            Config::parse(&text, Path::new("c.json"), &|_| None).unwrap()
        };
        for (members, ring) in [
            (r#""push": {WARDEN, "rings": 2}"#, 9),
            (r#""push": {WARDEN, "Ring": 2}"#, 9),
            (r#""push": {WARDEN}, "ring": 2"#, 9),
            (r#""push": {WARDEN, "ring": 2, "ring": 0}"#, 9),
            (r#""push": {"ring": 2}, "push": {WARDEN}"#, 9),
            (r#""push": {WARDEN, "ring": 2, "Ring": 3}, "ring": 4"#, 2),
            (r#""push": {WARDEN, "_ring": 2}"#, 0),
        ] {
            let config = of(members);
            assert_eq!(config.push.expect("the push is on").ring, ring, "{members}");
            assert_eq!(
                config.warnings.iter().any(|text| text.starts_with("push.ring: ")),
                ring == 9,
                "{members}"
            );
        }
        for members in [r#""Push": {WARDEN, "ring": 12}"#, r#""push": "http://w""#] {
            let config = of(members);
            assert_eq!((config.push, config.faulty_channels), (None, vec!["push".to_owned()]), "{members}");
            assert_eq!(config.fleet_terms_without_push.map(|terms| terms.ring), Some(9), "{members}");
        }
    }

    #[test]
    fn a_push_without_a_warden_needs_nothing() {
        let config = config(&json!({"push": {"warden_url": "", "token": "$NOPE", "machine_id": "m"}}));
        assert_eq!((config.push, config.fleet_terms_without_push, config.warnings), (None, None, vec![]));
        assert_eq!(config.machine_id, "m", "notifications name the machine, too");
    }
}
