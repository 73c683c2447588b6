//! Parses and checks a configuration file: the result is a [`Config`], or all its faults at once (DECISIONS 2).

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use evenkeel_common::config::expand::expand;
use evenkeel_common::config::shape::Shape;
use evenkeel_common::config::{
    ConfigErrors, Configuration, Extent, Finding, Findings, KeyPath, address, load, quote, unread_list,
};
use evenkeel_common::http::BasePath;
use evenkeel_common::secret::Secret;
use serde_json::{Value, json};

use super::file::{AgentFile, ApiFile, Items, StoreFile, WardenFile};
use super::{AgentConfig, Config, DEFAULT_PORT, Env, FuseRule, Rules, StoreConfig, StoreUrl};

/// Keys whose faults keep the warden from starting: without them nobody can log in, there is no address to listen on, or
/// the place to store entries is unknown (DECISIONS 6).
const FATAL: [&str; 4] = ["api.token", "api.port", "api.address", "store.url"];
/// A shorter token can be guessed.
pub const SHORT_TOKEN: usize = 16;
/// A longer name would fill the dashboard.
const LONG_ID: usize = 128;

/// The JSON Schema of the configuration file.
pub fn schema() -> Value {
    let mut schema = Shape::of::<WardenFile>().schema().clone();
    // A port may also be a number (DECISIONS 2); it is converted to a string before the check.
    schema["properties"]["api"]["properties"]["port"]["type"] = json!(["string", "integer", "null"]);
    schema
}

impl Configuration for Config {
    fn parse(text: &str, path: &Path, env: Env<'_>) -> Result<Self, ConfigErrors> {
        let mut findings = Findings::default();
        let mut unread_agents = None;
        let normalize = |tree: Value, findings: &mut Findings| {
            unread_agents = unread_list(&tree, "agents", findings);
            with_port_as_text(tree)
        };
        let file: WardenFile = load::typed(text, path, normalize, &mut findings)?;
        let token = token(&file.api.token, &KeyPath::of("api.token"), env, &mut findings);
        let mut config = Self {
            addresses: addresses(&file.api, &mut findings),
            base_path: base_path(&file.api, &mut findings),
            state_path: state_path(&file.api, &mut findings),
            store: store(&file.store, env, &mut findings),
            rules: Rules { soak: file.rings.soak, need: file.rings.need, max_at_once: file.max_at_once },
            fuse: FuseRule {
                rollbacks: file.fuse.rollbacks,
                within: file.fuse.within,
                freeze: file.fuse.freeze,
            },
            agents: agents(&file.agents, &token, env, &mut findings),
            left_out: 0,
            token,
            warnings: Vec::new(),
        };
        // How many are in a list that is not read is not counted.
        config.left_out =
            file.agents.len().saturating_sub(config.agents.len()) + usize::from(unread_agents.is_some());
        if config.store.url.is_some() && config.state_path.is_some() {
            findings.warn(
                &KeyPath::of("api.state_path"),
                "is ignored: everything is stored in the database of store.url; remove one of the two",
            );
        }
        if file.agents.is_empty() && !findings.is_faulty(&KeyPath::of("agents")) {
            findings.warn(&KeyPath::of("agents"), "is empty, so no agent can send entries");
        }
        keep_only_fatal(&mut findings);
        let (faults, warnings) = findings.finish();
        config.warnings = warnings.iter().map(ToString::to_string).collect();
        if faults.is_empty() { Ok(config) } else { Err(ConfigErrors::new(path, faults, config.warnings)) }
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn extent(&self) -> Extent {
        let (agents, left_out) = (self.agents.len(), self.left_out);
        let summary = match left_out {
            0 => format!("agents: {agents}"),
            _ => format!("agents: {agents} of {}; the warnings say which are left out", agents + left_out),
        };
        Extent { summary, is_complete: left_out == 0 }
    }
}

/// Downgrades faults that are not fatal to warnings: the key counts as absent.
fn keep_only_fatal(findings: &mut Findings) {
    let (agents, state) = (KeyPath::of("agents"), KeyPath::of("api.state_path"));
    let whole = [KeyPath::root(), KeyPath::of("api"), KeyPath::of("store")];
    for Finding { at, message } in findings.take_faults(&KeyPath::root()) {
        let is_fatal = whole.contains(&at) || FATAL.iter().any(|key| at.is_under(&KeyPath::of(key)));
        // The remaining faults of agents are missing environment variables.
        if is_fatal || (at.is_under(&agents) && at != agents) {
            findings.fault(&at, message);
        } else if at == agents {
            findings.warn(&at, format!("{message} (no agents are configured)"));
        } else if at == state {
            findings.warn(&at, format!("{message} (entries are kept in memory only)"));
        } else {
            findings.warn(&at, format!("{message} (the default is used)"));
        }
    }
}

/// Converts a numeric port to a string.
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
    // Configurations of the predecessor use an empty string for the default.
    let port = api.port.as_deref().filter(|text| !text.is_empty());
    let number = port.map(|text| {
        address::port(text).unwrap_or_else(|| {
            findings.fault(&at, format!("{}; allowed: a port from 1 to 65535", quote(text)));
            DEFAULT_PORT
        })
    });
    let Some(addresses) = &api.address else { return vec![format!(":{}", number.unwrap_or(DEFAULT_PORT))] };
    if port.is_some() {
        findings.warn(&at, "is ignored because api.address is set; remove one of the two");
    }
    let good = address::check(addresses, &KeyPath::of("api.address"), findings);
    good.into_iter().filter_map(|(n, _)| addresses[n].clone()).collect()
}

/// `api.base_path`
fn base_path(api: &ApiFile, findings: &mut Findings) -> BasePath {
    BasePath::parse(&api.base_path).unwrap_or_else(|allowed| {
        let at = KeyPath::of("api.base_path");
        findings.fault(&at, format!("{}; allowed: {allowed}", quote(&api.base_path)));
        BasePath::default()
    })
}

/// `api.state_path`: an absolute path, or empty.
fn state_path(api: &ApiFile, findings: &mut Findings) -> Option<PathBuf> {
    let (at, text) = (KeyPath::of("api.state_path"), &api.state_path);
    if text.is_empty() {
        return None;
    }
    if text.contains('\0') {
        findings.fault(&at, format!("{}; allowed: an absolute path, or empty to keep nothing", quote(text)));
        return None;
    }
    let path = PathBuf::from(text);
    if path.is_absolute() {
        return Some(path);
    }
    // Files of the predecessor may have a relative path (DECISIONS 3).
    let path = std::path::absolute(&path).unwrap_or(path);
    let shown = quote(&path.to_string_lossy());
    findings.warn(
        &at,
        format!(
            "{} is relative to the working directory and currently means {shown}; use an absolute path",
            quote(text)
        ),
    );
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
    for (n, file) in files.iter().enumerate() {
        let at = KeyPath::of("agents").index(n);
        let Some(file) = file else {
            is_left_out(&at, findings);
            continue;
        };
        if file.id.chars().any(char::is_control) || file.id.len() > LONG_ID || file.id.trim() != file.id {
            findings.fault(&at.key("id"), format!("{}; allowed: up to {LONG_ID} bytes without control characters, and no space at either end", quote(&file.id)));
        }
        if let Some(earlier) = ids.get(&file.id) {
            findings.fault(
                &at.key("id"),
                format!("{} is also the id of agents[{earlier}]; allowed: a unique id", quote(&file.id)),
            );
        }
        let url = file.url.as_ref().map(|url| base_url(url, &at.key("url"), env, findings));
        let place = at.key("token");
        let token = token(&file.token, &place, env, findings);
        // A missing variable is a fault of the warden's environment, not of this agent (DECISIONS 2).
        let texts = [Some(&file.token), file.url.as_ref()];
        let is_expanded = texts.into_iter().flatten().all(|text| expand(text.expose(), env).is_ok());
        let url = if is_expanded && is_not_probed(&at.key("url"), findings) { None } else { url };
        if is_expanded && is_left_out(&at, findings) {
            continue;
        }
        ids.insert(file.id.clone(), n);
        if !token.is_empty() {
            // Both occur in files of the predecessor (DECISIONS 3).
            if token == *api_token {
                findings.warn(&place, "is the same as api.token: this agent's machine can read the dashboard, and every user can send entries in its name; give it its own token");
            }
            if let Some(earlier) = tokens.insert(token.expose().to_owned(), n) {
                findings.warn(
                    &place,
                    format!("is the same as agents[{earlier}].token: the warden can't distinguish these agents and counts all their entries for one of them; give each its own token"),
                );
            }
        }
        agents.push(AgentConfig { id: file.id.clone(), url, token });
    }
    agents
}

/// Downgrades an agent's faults to warnings. Returns whether there were any, in which case the agent is ignored.
fn is_left_out(at: &KeyPath, findings: &mut Findings) -> bool {
    soften(at, "the agent is left out", findings)
}

/// Downgrades faults of an agent's URL to warnings. Returns whether there were any, in which case the agent has no URL.
fn is_not_probed(at: &KeyPath, findings: &mut Findings) -> bool {
    soften(at, "the agent is not probed", findings)
}

/// Downgrades the faults under a key to warnings, each with its consequence. Returns whether there were any.
fn soften(at: &KeyPath, consequence: &str, findings: &mut Findings) -> bool {
    let faults = findings.take_faults(at);
    for fault in &faults {
        findings.warn(&fault.at, format!("{} ({consequence})", fault.message));
    }
    !faults.is_empty()
}

/// Parses a URL for the heartbeat, and removes trailing slashes.
fn base_url(text: &Secret, at: &KeyPath, env: Env<'_>, findings: &mut Findings) -> Secret {
    let url = required(text, at, env, findings);
    if web_url(url.expose()).is_none() {
        findings.fault(
            at,
            "is not a base URL; allowed: http://host:port or https://host:port, optionally with a path, without a query",
        );
    }
    Secret::new(url.expose().trim_end_matches('/'))
}

fn token(text: &Secret, at: &KeyPath, env: Env<'_>, findings: &mut Findings) -> Secret {
    let token = required(text, at, env, findings);
    if !token.is_empty() && token.expose().len() < SHORT_TOKEN {
        findings.warn(
            at,
            format!(
                "has fewer than {SHORT_TOKEN} characters and can be guessed from any machine that reaches the warden; \
                 generate one with `openssl rand -hex 32`"
            ),
        );
    }
    token
}

/// Expands a required text. The result must not be empty and must be valid in a header.
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
            "has leading or trailing whitespace or a control character (a line break?), which would never match",
        );
    }
    Secret::new(value)
}

/// Parses a base URL for the heartbeat.
pub fn web_url(text: &str) -> Option<reqwest::Url> {
    let url = reqwest::Url::parse(text).ok()?;
    let is_base = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.query().is_none()
        && url.fragment().is_none();
    is_base.then_some(url)
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
