//! Networks that compose would make anew: newer versions take their containers down for that, and fail half-way where
//! containers of other services are connected.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Difference, HASH_LABEL, label};
use crate::model::compose::Model;

/// The drivers of networks for which none is named: podman's and docker's, the latter on Windows too.
const DRIVERS: [&str; 3] = ["", "bridge", "nat"];

/// How addresses are given out where the files do not say.
const ADDRESS_DRIVERS: [&str; 4] = ["", "default", "windows", PODMANS_ADDRESS_DRIVER];

const PODMANS_ADDRESS_DRIVER: &str = "host-local";

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
                all.push(Difference {
                    service: service.clone(),
                    what,
                    unset: Vec::new(),
                    connected: Vec::new(),
                });
            }
        }
    }
    all
}

fn fields(defined: &Value, network: &Value) -> Vec<&'static str> {
    let mut what = Vec::new();
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let flag = |value: &Value, key: &str| value.get(key).and_then(Value::as_bool).unwrap_or(false);
    let driver = text(network, "Driver").unwrap_or_default();
    if text(defined, "driver").map_or(!DRIVERS.contains(&&*driver), |wanted| wanted != driver) {
        what.push("driver");
    }
    if flag(defined, "internal") != flag(network, "Internal") {
        what.push("internal");
    }
    if flag(defined, "attachable") != flag(network, "Attachable") {
        what.push("attachable");
    }
    // An engine may have defaults of its own for IPv6 and `driver_opts` (`default-network-opts`).
    let enable_ipv6 = defined.get("enable_ipv6").and_then(Value::as_bool);
    if enable_ipv6.is_some_and(|wanted| wanted != flag(network, "EnableIPv6")) {
        what.push("enable_ipv6");
    }
    if ipv4_differs(defined, network) {
        what.push("enable_ipv4");
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
    let existing = options(network, "Options");
    if options(defined, "driver_opts").iter().any(|option| !existing.contains(option)) {
        what.push("driver_opts");
    }
    if options(defined, "labels") != options(network, "Labels") {
        what.push("labels");
    }
    if addresses_differ(defined, network) {
        what.push("ipam");
    }
    what
}

/// Compares whether a network has IPv4. Engines before 28 do not report it, those before 28.3 report that the networks of a
/// swarm have none (<https://github.com/moby/moby/pull/50147>), podman knows no such setting, and where the files leave it
/// out, the engine may have a default of its own (`default-network-opts`).
fn ipv4_differs(defined: &Value, network: &Value) -> bool {
    let is_told = network.get("Scope").and_then(Value::as_str) != Some("swarm") && !is_podmans(network);
    let Some(actual) = network.get("EnableIPv4").and_then(Value::as_bool).filter(|_| is_told) else {
        return false;
    };
    match defined.get("enable_ipv4").and_then(Value::as_bool) {
        Some(wanted) => wanted != actual,
        None => !actual && network.pointer("/Options/com.docker.network.enable_ipv4").is_none(),
    }
}

/// Reports whether podman has made this network. Newer versions report docker's driver of addresses, with their own as an
/// option.
fn is_podmans(network: &Value) -> bool {
    network.pointer("/IPAM/Driver").and_then(Value::as_str) == Some(PODMANS_ADDRESS_DRIVER)
        || network.pointer("/IPAM/Options/driver").is_some()
}

/// Compares how a network gets its addresses. The engine chooses what the files leave out, and does not tell a subnet that
/// it has chosen from one that was asked for: of a subnet or gateway that the files no longer name nothing is known.
fn addresses_differ(defined: &Value, network: &Value) -> bool {
    let (wanted, existing) = (defined.pointer("/ipam/config"), network.pointer("/IPAM/Config"));
    let texts = |pools: Option<&Value>, key: &str| -> BTreeSet<String> {
        let all = pools.and_then(Value::as_array).into_iter().flatten();
        all.filter_map(|pool| pool.get(key)?.as_str())
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let (subnets, existing_subnets) = (texts(wanted, "subnet"), texts(existing, "Subnet"));
    // For IPv6 the engine can choose one beside a named one for IPv4.
    for is_v6 in [false, true] {
        let of_family = |all: &BTreeSet<String>| -> Vec<String> {
            all.iter().filter(|subnet| subnet.contains(':') == is_v6).cloned().collect()
        };
        let named = of_family(&subnets);
        if !named.is_empty() && named != of_family(&existing_subnets) {
            return true;
        }
    }
    if !texts(wanted, "gateway").is_subset(&texts(existing, "Gateway")) {
        return true;
    }
    let driver = network.pointer("/IPAM/Driver").and_then(Value::as_str).unwrap_or_default();
    let wanted_driver = defined.pointer("/ipam/driver").and_then(Value::as_str).unwrap_or_default();
    let is_default = |driver: &str| ADDRESS_DRIVERS.contains(&driver);
    if wanted_driver != driver && !(is_default(wanted_driver) && is_default(driver)) {
        return true;
    }
    // Podman reports neither of the two below.
    if is_podmans(network) {
        return false;
    }
    let reserved = |pools: Option<&Value>, key: &str| -> BTreeMap<String, String> {
        let all = pools.and_then(Value::as_array).into_iter().flatten();
        let all = all.filter_map(|pool| pool.get(key)?.as_object()).flatten();
        all.filter_map(|(name, address)| Some((name.clone(), address.as_str()?.to_owned()))).collect()
    };
    texts(wanted, "ip_range") != texts(existing, "IPRange")
        || reserved(wanted, "aux_addresses") != reserved(existing, "AuxiliaryAddresses")
}
