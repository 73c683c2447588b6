//! `push`: the wardens, and this machine's role in the fleet.

use std::time::Duration;

use evenkeel_common::config::expand::Env;
use evenkeel_common::config::{Findings, KeyPath};
use evenkeel_common::secret::Secret;
use http::HeaderValue;

use super::channels::{expanded, unless_faulty, web_url};
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

/// `push`: enabled if a warden is configured. It then needs a token, because wardens reject an empty one.
pub(super) fn push(file: PushFile, env: Env<'_>, findings: &mut Findings) -> Push {
    let at = KeyPath::of("push");
    let ring = unless_faulty(file.ring, &at.key("ring"), "the last ring, 9, is used", findings);
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
    use serde_json::{Value, json};

    use super::super::testing::parse;
    use super::*;
    use crate::config::Config;

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
    fn a_push_without_a_warden_needs_nothing() {
        let config = config(&json!({"push": {"warden_url": "", "token": "$NOPE", "machine_id": "m"}}));
        assert_eq!((config.push, config.fleet_terms_without_push, config.warnings), (None, None, vec![]));
        assert_eq!(config.machine_id, "m", "notifications name the machine, too");
    }
}
