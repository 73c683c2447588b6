//! From a path or a text to a [`Config`], or to everything that is wrong with it at once (DECISIONS 2).

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use evenkeel_common::config::expand::expand;
use evenkeel_common::config::shape::Shape;
use evenkeel_common::config::{ConfigFaults, Configuration, Findings, KeyPath, address, load, quote};
use evenkeel_common::secret::Secret;
use serde_json::{Value, json};

use super::file::{AgentFile, ApiFile, Items, StoreFile, WardenFile};
use super::{AgentConfig, Config, DEFAULT_PORT, Env, FuseRule, Rules, StoreConfig, StoreUrl};

/// A token that is shorter can be guessed.
const SHORT_TOKEN: usize = 16;
/// A name that is longer would fill the dashboard.
const LONG_ID: usize = 128;

/// The JSON Schema of the configuration file.
pub fn schema() -> Value {
    let mut schema = Shape::of::<WardenFile>().schema().clone();
    // A number is taken for a port too (DECISIONS 2); the check makes a text of it first.
    schema["properties"]["api"]["properties"]["port"]["type"] = json!(["string", "integer", "null"]);
    schema
}

impl Configuration for Config {
    fn parse(text: &str, path: &Path, env: Env<'_>) -> Result<Self, ConfigFaults> {
        let mut findings = Findings::default();
        let file: WardenFile = load::typed(text, path, |tree, _| with_port_as_text(tree), &mut findings)?;
        let token = token(&file.api.token, &KeyPath::of("api.token"), env, &mut findings);
        let mut config = Self {
            addresses: addresses(&file.api, &mut findings),
            state_path: state_path(&file.api, &mut findings),
            store: store(&file.store, env, &mut findings),
            rules: Rules { soak: file.rings.soak, need: file.rings.need, max_at_once: file.max_at_once },
            fuse: FuseRule {
                rollbacks: file.fuse.rollbacks,
                within: file.fuse.within,
                freeze: file.fuse.freeze,
            },
            agents: agents(&file.agents, &token, env, &mut findings),
            token,
            warnings: Vec::new(),
        };
        if config.store.url.is_some() && config.state_path.is_some() {
            findings.warn(
                &KeyPath::of("api.state_path"),
                "is not used: everything is in the database of store.url; leave one of the two out",
            );
        }
        if config.agents.is_empty() && !findings.is_faulty(&KeyPath::of("agents")) {
            findings.warn(&KeyPath::of("agents"), "names no agent, so nobody can send anything");
        }
        let (faults, warnings) = findings.finish();
        config.warnings = warnings.iter().map(ToString::to_string).collect();
        if faults.is_empty() { Ok(config) } else { Err(ConfigFaults::new(path, faults, config.warnings)) }
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn extent(&self) -> String {
        format!("agents: {}", self.agents.len())
    }
}

/// Makes a text of a port that is a number.
fn with_port_as_text(mut tree: Value) -> Value {
    if let Some(port) = tree.pointer_mut("/api/port")
        && port.is_number()
    {
        *port = Value::String(port.to_string());
    }
    tree
}

/// `api.port` and `api.address`: one of them, or neither.
fn addresses(api: &ApiFile, findings: &mut Findings) -> Vec<String> {
    let at = KeyPath::of("api.port");
    // An empty text is what a configuration of the predecessor has for "the default".
    let port = api.port.as_deref().filter(|text| !text.is_empty());
    let number = port.map(|text| {
        address::port(text).unwrap_or_else(|| {
            findings.fault(&at, format!("{}; allowed: a port from 1 to 65535", quote(text)));
            DEFAULT_PORT
        })
    });
    let Some(addresses) = &api.address else { return vec![format!(":{}", number.unwrap_or(DEFAULT_PORT))] };
    if port.is_some() {
        findings.fault(&at, "stands beside api.address, which says it all; allowed: one of the two");
    }
    let good = address::check(addresses, &KeyPath::of("api.address"), findings);
    good.into_iter().filter_map(|(n, _)| addresses[n].clone()).collect()
}

/// `api.state_path`: absolute, or empty.
fn state_path(api: &ApiFile, findings: &mut Findings) -> Option<PathBuf> {
    let (at, text) = (KeyPath::of("api.state_path"), &api.state_path);
    if text.is_empty() {
        return None;
    }
    let path = PathBuf::from(text);
    if !path.is_absolute() || text.contains('\0') {
        findings.fault(&at, format!("{}; allowed: an absolute path, or empty to keep nothing", quote(text)));
    }
    Some(path)
}

/// `store`
fn store(file: &StoreFile, env: Env<'_>, findings: &mut Findings) -> StoreConfig {
    let at = KeyPath::of("store.url");
    let url = file.url.as_ref().and_then(|text| {
        let text = required(text, &at, env, findings);
        match StoreUrl::parse(text.expose()) {
            Ok(url) => Some(url),
            Err(_) if text.is_empty() => None,
            Err(error) => {
                findings.fault(&at, error);
                None
            }
        }
    });
    StoreConfig { url, keep_days: file.keep_days, keep_mib: file.keep_mib }
}

fn agents(
    files: &Items<AgentFile>,
    api_token: &Secret,
    env: Env<'_>,
    findings: &mut Findings,
) -> Vec<AgentConfig> {
    let mut ids: HashMap<String, usize> = HashMap::new();
    let mut tokens: HashMap<String, usize> = HashMap::new();
    let mut agents = Vec::new();
    for (n, file) in files.iter().enumerate().filter_map(|(n, file)| Some((n, file.as_ref()?))) {
        let at = KeyPath::of("agents").index(n);
        if file.id.chars().any(char::is_control) || file.id.len() > LONG_ID || file.id.trim() != file.id {
            findings.fault(&at.key("id"), format!("{}; allowed: up to {LONG_ID} bytes without control characters, and no space at either end", quote(&file.id)));
        }
        if let Some(earlier) = ids.insert(file.id.clone(), n).filter(|_| !file.id.is_empty()) {
            findings.fault(
                &at.key("id"),
                format!("{} is the id of agents[{earlier}] too; allowed: each id once", quote(&file.id)),
            );
        }
        let url = file.url.as_ref().map(|url| base_url(url, &at.key("url"), env, findings));
        let place = at.key("token");
        let token = token(&file.token, &place, env, findings);
        if !token.is_empty() {
            // Files of the predecessor may have both (DECISIONS 3).
            if token == *api_token {
                findings.warn(&place, "is the same as api.token: this agent's machine can read the dashboard, and whoever logs in can send entries in its name; give it a token of its own");
            }
            if let Some(earlier) = tokens.insert(token.expose().to_owned(), n) {
                findings.warn(
                    &place,
                    format!("is the same as agents[{earlier}].token: nothing tells whose entries are whose, and all of them count for one of the agents; give each a token of its own"),
                );
            }
        }
        agents.push(AgentConfig { id: file.id.clone(), url, token });
    }
    agents
}

/// A URL for the heartbeat, without a slash at its end.
fn base_url(text: &Secret, at: &KeyPath, env: Env<'_>, findings: &mut Findings) -> Secret {
    let url = required(text, at, env, findings);
    if web_url(url.expose()).is_none() {
        findings.fault(
            at,
            "is not a base URL; allowed: http://host:port or https://host:port, a path after it, and no query",
        );
    }
    Secret::new(url.expose().trim_end_matches('/'))
}

fn token(text: &Secret, at: &KeyPath, env: Env<'_>, findings: &mut Findings) -> Secret {
    let token = required(text, at, env, findings);
    if !token.is_empty() && token.expose().len() < SHORT_TOKEN {
        findings
            .warn(at, format!("is short and can be guessed; use at least {SHORT_TOKEN} random characters"));
    }
    token
}

/// A text that must hold something once its variables are replaced, and that a header can carry.
fn required(text: &Secret, at: &KeyPath, env: Env<'_>, findings: &mut Findings) -> Secret {
    let value = match expand(text.expose(), env) {
        Ok(value) => value,
        Err(error) => {
            findings.fault(at, error.to_string());
            return Secret::default();
        }
    };
    if value.is_empty() {
        findings.fault(at, "is empty; allowed: a string that is not empty");
    } else if value.trim() != value || value.chars().any(char::is_control) {
        findings.fault(
            at,
            "has a space at an end or a control character (a line break?), which would never match",
        );
    }
    Secret::new(value)
}

/// A URL that heartbeats can be sent to.
pub fn web_url(text: &str) -> Option<reqwest::Url> {
    let url = reqwest::Url::parse(text).ok()?;
    let is_base = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.query().is_none()
        && url.fragment().is_none();
    is_base.then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef-people";

    fn env(name: &str) -> Option<String> {
        match name {
            "TOKEN" => Some("secret-0123456789abcdef".to_owned()),
            "EMPTY" => Some(String::new()),
            "LINES" => Some("secret-1\nsecret-2".to_owned()),
            "SPACE" => Some("secret-0123456789abcdef ".to_owned()),
            _ => None,
        }
    }

    fn parse(tree: &Value) -> Result<Config, ConfigFaults> {
        Config::parse(&tree.to_string(), Path::new("w.json"), &env)
    }

    fn faults(tree: &Value) -> Vec<String> {
        let text = parse(tree).unwrap_err().to_string();
        assert!(!text.contains("secret"), "{text}");
        text.lines().map(|line| line.strip_prefix("w.json: ").unwrap_or(line).to_owned()).collect()
    }

    fn agent(id: &str) -> Value {
        json!({"id": id, "url": format!("http://{id}:9090/"), "token": format!("token-of-{id}-0123456789")})
    }

    #[test]
    fn the_check_honours_every_keyword_of_the_schema() {
        assert_eq!(Shape::of::<WardenFile>().unknown_keywords(), Vec::<String>::new());
    }

    #[test]
    fn a_complete_file_is_taken_with_its_variables_replaced() {
        let config = parse(&json!({
            "$schema": "x", "api": {"port": "9000", "token": "$TOKEN", "state_path": "/var/lib/w.json"},
            "agents": [agent("a"), {"id": "b", "url": "https://b/base", "token": "${TOKEN}-b"}],
        }))
        .unwrap();
        assert_eq!(config.addresses, [":9000"]);
        assert_eq!(config.token.expose(), "secret-0123456789abcdef");
        assert_eq!(config.state_path.as_deref(), Some(Path::new("/var/lib/w.json")));
        assert_eq!(config.agents[0].url.as_ref().unwrap().expose(), "http://a:9090");
        assert_eq!(config.agents[1].token.expose(), "secret-0123456789abcdef-b");
        assert_eq!(config.warnings, Vec::<String>::new());
        assert!(!format!("{config:?}").contains("secret"));
    }

    #[test]
    fn an_agent_needs_no_url_and_the_fleets_rules_have_defaults() {
        let tree =
            json!({"api": {"token": TOKEN}, "agents": [{"id": "a", "token": "token-of-a-0123456789"}]});
        let config = parse(&tree).unwrap();
        assert_eq!((config.agents[0].url.as_ref(), config.warnings.as_slice()), (None, &[][..]));
        assert_eq!((config.rules, config.fuse), (Rules::default(), FuseRule::default()));
        let mut tree = tree;
        tree["rings"] = json!({"soak": 60});
        tree["max_at_once"] = json!(2);
        tree["fuse"] = json!({"rollbacks": 0});
        let config = parse(&tree).unwrap();
        assert_eq!(config.rules, Rules { soak: 60, need: 1, max_at_once: Some(2) });
        assert_eq!(config.fuse.rollbacks, 0);
        tree["rings"] = json!({"soak": -1});
        tree["max_at_once"] = json!(0);
        tree["fuse"] = json!({"freeze": 2_592_001});
        let places: Vec<_> =
            faults(&tree).iter().map(|text| text.split(": ").next().unwrap().to_owned()).collect();
        assert_eq!(places, ["fuse.freeze", "max_at_once", "rings.soak"]);
    }

    #[test]
    fn the_port_is_a_text_or_a_number_or_the_default() {
        for (api, expected) in [
            (json!({"token": TOKEN}), ":8080"),
            (json!({"token": TOKEN, "port": ""}), ":8080"),
            (json!({"token": TOKEN, "port": null}), ":8080"),
            (json!({"token": TOKEN, "port": "1"}), ":1"),
            (json!({"token": TOKEN, "port": 65535}), ":65535"),
            (json!({"token": TOKEN, "address": ["127.0.0.1:80"]}), "127.0.0.1:80"),
        ] {
            assert_eq!(parse(&json!({"api": api, "agents": [agent("a")]})).unwrap().addresses, [expected]);
        }
        for port in [
            json!(0),
            json!(65536),
            json!("0"),
            json!("x"),
            json!("+1"),
            json!(-1),
            json!(80.5),
            json!(" 80"),
        ] {
            let found = faults(&json!({"api": {"token": TOKEN, "port": port}, "agents": []}));
            assert!(
                found[0].starts_with("api.port: ") && found[0].ends_with("allowed: a port from 1 to 65535"),
                "{found:?}"
            );
        }
        assert_eq!(
            faults(&json!({"api": {"token": TOKEN, "port": true}})),
            ["api.port: true; allowed: a string"]
        );
        assert_eq!(
            faults(&json!({"api": {"token": TOKEN, "port": 80, "address": [":80"]}})),
            ["api.port: stands beside api.address, which says it all; allowed: one of the two"]
        );
    }

    #[test]
    fn a_token_that_is_not_there_is_fatal() {
        for (token, why) in [
            (json!(null), "is missing; allowed: a string that is not empty"),
            (json!(""), "is empty; allowed: a string that is not empty"),
            (json!("$NOPE"), "the environment variable NOPE is not set"),
            (json!("${EMPTY}"), "the environment variable EMPTY is empty"),
            (
                json!("$LINES"),
                "has a space at an end or a control character (a line break?), which would never match",
            ),
            (
                json!("$SPACE"),
                "has a space at an end or a control character (a line break?), which would never match",
            ),
            (json!(12345), "a number; allowed: a string that is not empty"),
        ] {
            assert_eq!(faults(&json!({"api": {"token": token}})), [format!("api.token: {why}")]);
            let mut one = agent("a");
            one["token"] = token;
            assert_eq!(
                faults(&json!({"api": {"token": TOKEN}, "agents": [one]})),
                [format!("agents[0].token: {why}")]
            );
        }
        assert_eq!(faults(&json!({})), ["api: is missing; allowed: an object"]);
    }

    #[test]
    fn an_id_stands_once_and_a_token_that_does_not_is_a_warning_with_its_cost() {
        let mut same = agent("b");
        same["token"] = agent("a")["token"].clone();
        let mut people = agent("c");
        people["token"] = json!(TOKEN);
        let tree = json!({"api": {"token": TOKEN}, "agents": [agent("a"), agent("a"), same, people]});
        assert_eq!(faults(&tree), ["agents[1].id: \"a\" is the id of agents[0] too; allowed: each id once",]);
        let mut same = agent("b");
        same["token"] = agent("a")["token"].clone();
        let mut people = agent("c");
        people["token"] = json!(TOKEN);
        let config = parse(&json!({"api": {"token": TOKEN}, "agents": [agent("a"), same, people]})).unwrap();
        assert_eq!(config.agents.len(), 3);
        assert!(
            config.warnings.len() == 2
                && config.warnings[0]
                    .starts_with("agents[1].token: is the same as agents[0].token: nothing tells")
                && config.warnings[1]
                    .starts_with("agents[2].token: is the same as api.token: this agent's machine"),
            "{:?}",
            config.warnings
        );
    }

    #[test]
    fn the_url_of_the_store_is_checked_and_never_shown() {
        let with =
            |url: Value| json!({"api": {"token": TOKEN}, "agents": [agent("a")], "store": {"url": url}});
        for (url, why) in [
            (json!("$NOPE"), "the environment variable NOPE is not set"),
            (
                json!("postgres://u:$TOKEN@/d"),
                "names no host; allowed: postgres://user:password@host:5432/database, where special characters of the password are percent-encoded",
            ),
            (
                json!("postgres://u:$TOKEN@h/d?sslmode=x"),
                "has a sslmode that is not known; allowed: disable, prefer, require, verify-ca, verify-full",
            ),
            (json!(5), "a number; allowed: a string that is not empty"),
            (json!(""), "is empty; allowed: a string that is not empty"),
        ] {
            assert_eq!(faults(&with(url)), [format!("store.url: {why}")]);
        }
        let mut tree = with(json!("postgres://u:$TOKEN@h/d"));
        let config = parse(&tree).unwrap();
        assert!(config.store.url.is_some() && config.warnings.is_empty(), "{:?}", config.warnings);
        assert!(!format!("{config:?}").contains("secret"));
        tree["api"]["state_path"] = json!("/var/lib/w");
        assert!(parse(&tree).unwrap().warnings[0].starts_with("api.state_path: is not used"));
        assert_eq!(parse(&with(json!(null))).unwrap().store.url, None);
    }

    #[test]
    fn all_faults_come_at_once() {
        let tree = json!({
            "api": {"token": "$NOPE", "port": 0, "state_path": "x"}, "agnts": [],
            "agents": [{"id": "", "url": "ftp://x"}, 5, {"id": " a", "url": "http://u?x=1", "token": "$NOPE"}],
        });
        let places: Vec<_> =
            faults(&tree).iter().map(|text| text.split(": ").next().unwrap().to_owned()).collect();
        assert_eq!(
            places,
            [
                "agents[0].id",
                "agents[0].token",
                "agents[0].url",
                "agents[1]",
                "agents[2].id",
                "agents[2].token",
                "agents[2].url",
                "api.port",
                "api.state_path",
                "api.token",
            ]
        );
        let refused = parse(&tree).unwrap_err();
        assert_eq!(
            refused.warnings(),
            ["agnts: is not a known key and is ignored; did you mean \"agents\"?"]
        );
    }

    #[test]
    fn doubtful_things_are_warnings() {
        let config = parse(&json!({"api": {"token": "short"}})).unwrap();
        assert_eq!(
            config.warnings,
            [
                "agents: names no agent, so nobody can send anything",
                "api.token: is short and can be guessed; use at least 16 random characters",
            ]
        );
    }
}
