//! Networks that compose would make anew: newer versions take their containers down for that, and fail half-way where
//! containers of other services are connected.

use serde_json::Value;

use super::{Difference, HASH_LABEL, label};
use crate::model::compose::Model;

/// Returns the networks of these compose services whose definition differs from what exists, as differences of the first
/// service that uses each.
pub(super) fn differences(model: &Model, services: &[String], existing: &[Value]) -> Vec<Difference> {
    let mut seen: Vec<&str> = Vec::new();
    let mut all = Vec::new();
    for service in services {
        let used = model.service(service).and_then(|s| s.element().get("networks"));
        for key in used.and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key.as_str()) {
            if seen.contains(&key) {
                continue;
            }
            seen.push(key);
            let Some(defined) = model.network(key) else { continue };
            if defined.get("external").and_then(Value::as_bool) == Some(true) {
                continue;
            }
            let name = defined.get("name").and_then(Value::as_str).unwrap_or_default();
            let Some(network) = existing.iter().find(|n| n.get("Name").and_then(Value::as_str) == Some(name))
            else {
                continue;
            };
            // A version of compose that does not label a network with its hash never makes it anew.
            if label(network, HASH_LABEL).is_empty() {
                continue;
            }
            let what = fields(defined, network);
            if !what.is_empty() {
                let what = what.into_iter().map(|field| format!("network {key} ({field})")).collect();
                all.push(Difference { service: service.clone(), what, unset: Vec::new() });
            }
        }
    }
    all
}

fn fields(defined: &Value, network: &Value) -> Vec<&'static str> {
    let mut what = Vec::new();
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let flag = |value: &Value, key: &str| value.get(key).and_then(Value::as_bool).unwrap_or(false);
    if text(defined, "driver").is_some_and(|driver| Some(driver) != text(network, "Driver")) {
        what.push("driver");
    }
    if flag(defined, "internal") != flag(network, "Internal") {
        what.push("internal");
    }
    if flag(defined, "attachable") != flag(network, "Attachable") {
        what.push("attachable");
    }
    if flag(defined, "enable_ipv6") != flag(network, "EnableIPv6") {
        what.push("enable_ipv6");
    }
    let options = |value: &Value, key: &str| {
        let mut all: Vec<(String, String)> = Vec::new();
        for (name, value) in value.get(key).and_then(Value::as_object).into_iter().flatten() {
            all.push((name.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
        }
        all.retain(|(name, _)| !name.starts_with("com.docker.compose."));
        all.sort();
        all
    };
    if options(defined, "driver_opts") != options(network, "Options") {
        what.push("driver_opts");
    }
    if options(defined, "labels") != options(network, "Labels") {
        what.push("labels");
    }
    // The engine chooses what the files leave out.
    let pools = |value: Option<&Value>, key: &str, lower: bool| {
        let mut all: Vec<String> = Vec::new();
        for pool in value.and_then(Value::as_array).into_iter().flatten() {
            let key = if lower { key.to_lowercase() } else { key.to_owned() };
            all.extend(pool.get(key).and_then(Value::as_str).map(str::to_owned));
        }
        all
    };
    let (wanted, existing) = (defined.pointer("/ipam/config"), network.pointer("/IPAM/Config"));
    for key in ["Subnet", "Gateway"] {
        let wanted = pools(wanted, key, true);
        if !wanted.is_empty() && wanted != pools(existing, key, false) {
            what.push("ipam");
            break;
        }
    }
    what
}
