//! `--preflight`: whether a proxy in front of the engine lets through every call that the configuration needs.
//!
//! Each call is made with a target that does not exist, so that an engine refuses it without doing anything. What a proxy does
//! not let through is answered by the proxy, with a status that an engine has no use for here.

use std::collections::BTreeMap;

use futures_util::stream::{self, StreamExt as _};

use super::finding::{Finding, Words};
use crate::config::{Config, ServiceConfig};
use crate::model::{EngineError, Order};
use crate::ports::survey::Survey;

pub(super) const AREA: &str = "engine API";

/// Number of calls that are tried concurrently.
const AT_ONCE: usize = 8;
/// The target of all calls.
const NOBODY: &str = "evenkeel-preflight";

/// A call of the engine's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    method: &'static str,
    /// Its path; `{id}` is the target.
    path: &'static str,
    /// What has to follow the path so that nothing is done, whatever the target.
    query: &'static str,
    /// The body, for the same reason.
    body: &'static str,
}

const fn get(path: &'static str) -> Call {
    Call { method: "GET", path, query: "", body: "" }
}

const fn post(path: &'static str) -> Call {
    Call { method: "POST", path, query: "", body: "{}" }
}

const fn delete(path: &'static str) -> Call {
    Call { method: "DELETE", path, query: "", body: "" }
}

/// What needs calls.
struct Feature {
    name: &'static str,
    is_used: fn(&ServiceConfig) -> bool,
    calls: &'static [Call],
}

/// Every call, by what needs it. `security.md` has the same list.
const FEATURES: &[Feature] = &[
    Feature {
        name: "watching",
        is_used: |_| true,
        calls: &[
            get("/_ping"),
            get("/version"),
            get("/info"),
            // Events of a second that is long over.
            Call { query: "?since=1&until=2", ..get("/events") },
            get("/containers/json"),
            get("/containers/{id}/json"),
            Call { query: "?stdout=1&tail=1", ..get("/containers/{id}/logs") },
            Call { query: "?stream=0", ..get("/containers/{id}/stats") },
            get("/images/json"),
            get("/images/{id}/json"),
            get("/networks"),
        ],
    },
    Feature {
        name: "deploying",
        is_used: |service| service.project().is_some(),
        calls: &[
            Call {
                query: "?fromImage=evenkeel-preflight.invalid/none&tag=none",
                body: "",
                ..post("/images/create")
            },
            Call { query: "?repo=evenkeel-preflight", body: "", ..post("/images/{id}/tag") },
            delete("/images/{id}"),
            Call {
                query: "?name=evenkeel-preflight",
                body: "{\"Image\":\"evenkeel-preflight\"}",
                ..post("/containers/create")
            },
            post("/containers/{id}/start"),
            post("/containers/{id}/stop"),
            Call { query: "?name=evenkeel-preflight-2", ..post("/containers/{id}/rename") },
            delete("/containers/{id}"),
        ],
    },
    Feature {
        name: "compose",
        is_used: |service| service.project().is_some(),
        calls: &[
            get("/networks/{id}"),
            Call {
                // No engine knows this subnet.
                body: "{\"Name\":\"evenkeel-preflight\",\"IPAM\":{\"Config\":[{\"Subnet\":\"none\"}]}}",
                ..post("/networks/create")
            },
            Call { body: "{\"Container\":\"evenkeel-preflight\"}", ..post("/networks/{id}/connect") },
            Call { body: "{\"Container\":\"evenkeel-preflight\"}", ..post("/networks/{id}/disconnect") },
            get("/volumes"),
            get("/volumes/{id}"),
            Call { body: NO_VOLUME, ..post("/volumes/create") },
        ],
    },
    Feature {
        name: "auto_heal",
        is_used: |service| service.auto_heal,
        calls: &[post("/containers/{id}/restart")],
    },
    Feature {
        name: "update.order and update.drain",
        is_used: |service| {
            service.update.as_ref().is_some_and(|update| {
                update.order == Some(Order::StartFirst) || !update.drain.exec.is_empty()
            })
        },
        calls: &[post("/containers/{id}/exec"), post("/exec/{id}/start"), get("/exec/{id}/json")],
    },
    Feature {
        name: "update.snapshot",
        is_used: |service| service.update.as_ref().is_some_and(|update| update.snapshot.is_some()),
        calls: &[
            get("/volumes"),
            get("/volumes/{id}"),
            Call { body: NO_VOLUME, ..post("/volumes/create") },
            delete("/volumes/{id}"),
        ],
    },
    Feature {
        name: "swarm_service",
        is_used: |service| service.swarm_service.is_some(),
        calls: &[
            get("/services"),
            get("/tasks"),
            Call { query: "?stdout=1&tail=1", ..get("/tasks/{id}/logs") },
            get("/nodes"),
            get("/distribution/{id}/json"),
            Call { query: "?version=1", ..post("/services/{id}/update") },
        ],
    },
];

/// No volume can have this name.
const NO_VOLUME: &str = "{\"Name\":\"evenkeel preflight\"}";

/// Tries every call that the configuration needs; `None` if none is answered, which is the engine's own finding.
pub(super) async fn look(config: &Config, engine: &dyn Survey) -> Option<Vec<Finding>> {
    let is_needed = |feature: &&Feature| config.services.iter().any(|service| (feature.is_used)(service));
    let mut needed: BTreeMap<Call, Vec<&str>> = BTreeMap::new();
    for feature in FEATURES.iter().filter(is_needed) {
        for call in feature.calls {
            needed.entry(*call).or_default().push(feature.name);
        }
    }
    let tried = stream::iter(needed).map(|(call, features)| async move {
        let path = format!("{}{}", call.path.replace("{id}", NOBODY), call.query);
        (call, features.join(", "), engine.try_call(call.method, &path, call.body).await)
    });
    let tried: Vec<_> = tried.buffered(AT_ONCE).collect().await;
    let is_there = tried.iter().any(|(.., answer)| answer.is_ok());
    let findings = tried.into_iter().filter_map(|(call, features, answer)| finding(call, &features, answer));
    is_there.then(|| findings.collect())
}

/// What an answer says of what is between here and the engine.
fn finding(call: Call, features: &str, answer: Result<u16, EngineError>) -> Option<Finding> {
    let what = match answer {
        Ok(status @ (401 | 403 | 405)) => format!("it is refused (status {status})"),
        Ok(_) => return None,
        Err(error) => format!("it is not answered: {error}"),
    };
    let words = Words {
        what,
        why: format!("needed by: {features}"),
        remedy: "let it through in the proxy in front of the engine; the page on security lists all calls",
    };
    Some(words.error(AREA, format!("{} {}", call.method, call.path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_from_what_an_engine_answers() {
        let of = |answer| finding(post("/containers/{id}/restart"), "auto_heal", answer);
        for status in [200, 204, 304, 400, 404, 409, 500, 503] {
            assert_eq!(of(Ok(status)), None, "{status}");
        }
        let refused = of(Ok(403)).unwrap();
        assert_eq!(
            (refused.subject.as_str(), refused.why.as_str()),
            ("POST /containers/{id}/restart", "needed by: auto_heal")
        );
        assert!(of(Err(EngineError::Unavailable("cut off".into()))).unwrap().what.contains("cut off"));
    }

    #[test]
    fn a_container_that_is_only_healed_needs_no_calls_that_create_or_remove_containers() {
        let config = crate::service::tests::config();
        let by_name = ServiceConfig {
            compose_files: Vec::new(),
            compose_project: None,
            container_name: Some("pihole".into()),
            auto_update: false,
            ..config.clone()
        };
        let in_swarm = ServiceConfig {
            compose_files: Vec::new(),
            compose_project: None,
            swarm_service: Some("shop_web".into()),
            auto_heal: false,
            ..config.clone()
        };
        for (service, expected) in [
            (by_name, &["watching", "auto_heal"][..]),
            (in_swarm, &["watching", "swarm_service"]),
            (config, &["watching", "deploying", "compose", "auto_heal"]),
        ] {
            let used: Vec<&str> =
                FEATURES.iter().filter(|one| (one.is_used)(&service)).map(|one| one.name).collect();
            assert_eq!(used, expected);
        }
    }

    /// Reports whether docker-socket-proxy lets a call through, by the rules in its `haproxy.cfg` that apply to these calls.
    /// Those of its latest versions are the strictest.
    fn passes_socket_proxy(call: &Call, allowed: &[&str]) -> bool {
        let has = |name: &str| allowed.contains(&name);
        let is_of = |what: &str| call.path.starts_with("/containers/") && call.path.ends_with(what);
        let by_method = match call.method {
            "GET" | "HEAD" => true,
            "DELETE" => has("POST") && has("DELETE"),
            method => has(method),
        };
        let group = call.path.trim_matches(['/', '_']).split('/').next().unwrap_or_default().to_uppercase();
        by_method
            && (has(&group) || ["PING", "VERSION", "EVENTS"].contains(&&*group))
            && (!is_of("/logs") || has("ALLOW_LOGS"))
            && (!is_of("/exec") || has("ALLOW_EXEC"))
    }

    #[test]
    fn the_sample_of_a_socket_proxy_lets_every_call_through_that_it_names() {
        let page = include_str!("../../../../dist/docs/security.md");
        let sample = page.split("image: tecnativa/docker-socket-proxy").nth(1).unwrap();
        let sample = sample.split("volumes:").next().unwrap();
        let lines = || sample.lines().filter_map(|line| line.trim().strip_suffix(": 1"));
        let always: Vec<&str> = lines().filter(|line| !line.starts_with('#')).collect();
        let all: Vec<&str> = lines().map(|line| line.trim_start_matches("# ")).collect();
        for feature in FEATURES {
            let is_optional = ["update.order and update.drain", "swarm_service"].contains(&feature.name);
            let passes =
                |allowed: &[&str]| feature.calls.iter().all(|call| passes_socket_proxy(call, allowed));
            assert!(passes(&all), "{}", feature.name);
            assert_eq!(passes(&always), !is_optional, "{}", feature.name);
        }
        // Each line is needed by some call.
        let calls = || FEATURES.iter().flat_map(|feature| feature.calls);
        for line in &all {
            let others: Vec<&str> = all.iter().filter(|other| *other != line).copied().collect();
            assert!(calls().any(|call| !passes_socket_proxy(call, &others)), "{line} is not needed");
        }
    }

    #[test]
    fn the_manual_lists_every_call() {
        let page = include_str!("../../../../dist/docs/security.md");
        let row =
            |feature: &Feature| page.lines().find(|line| line.starts_with(&format!("| {} ", feature.name)));
        for feature in FEATURES {
            let row = row(feature).unwrap_or_else(|| panic!("{} is not listed", feature.name));
            let mut listed: Vec<&str> = row.split('`').filter(|text| text.contains(" /")).collect();
            let mut calls: Vec<String> =
                feature.calls.iter().map(|call| format!("{} {}", call.method, call.path)).collect();
            listed.sort_unstable();
            calls.sort_unstable();
            assert_eq!(listed, calls, "{}", feature.name);
        }
    }
}
