//! Handover: an update in which the new containers start beside the old ones, which serve until the new ones are proven
//! (DECISIONS 12). Which compose services take part, and why others can't.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::probe::Probe;
use super::{Container, Model, ModelService, State};

/// Whether new containers start before the old ones are stopped (`update.order`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The new ones start beside the old ones, for compose services without data of their own that do not say otherwise.
    #[serde(alias = "start-first")]
    StartFirst,
    /// The old ones are stopped first, whatever the compose files say.
    #[serde(alias = "stop-first")]
    StopFirst,
}

/// How containers are relieved of their requests before they are stopped (`update.drain`). A command without words is not
/// configured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drain {
    /// Runs in each of these containers; one with a health check is then awaited until it is unhealthy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exec: Vec<String>,
    /// Runs on this machine, afterwards.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Runs in an old container that is to serve again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub undo: Vec<String>,
    /// How long requests in progress get to finish, at the end.
    pub wait: Duration,
    /// How long each command, and becoming unhealthy, may take.
    pub timeout: Duration,
}

impl Drain {
    /// Reports whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.exec.is_empty() && self.command.is_empty() && self.wait.is_zero()
    }

    /// Reports whether a container that was told that no more requests will follow can't be told otherwise.
    pub fn is_final(&self) -> bool {
        !self.exec.is_empty() && self.undo.is_empty()
    }
}

/// Why a compose service can't have twice its containers for a while, or must not without its author's word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Obstacle {
    /// Only one container can have the name.
    ContainerName(String),
    /// Only one container can publish the port; a range has too few.
    HostPort {
        /// As in the compose file, for example `8080` or `8080-8081`.
        published: String,
        /// Port in the container.
        target: u64,
    },
    /// Only one container can have the address.
    Address {
        /// The network; empty for a key of the service itself.
        network: String,
        /// `ipv4_address`, `ipv6_address` or `mac_address`.
        key: String,
    },
    /// The network of the machine, of another container or service.
    NetworkMode(String),
    /// Compose runs commands before the service starts, but only if none of its containers runs.
    PreStart,
    /// Another compose service lives in its network or another of its namespaces, or mounts its volumes (`volumes_from`).
    SharedBy(String),
    /// Another compose service is restarted with it (`depends_on` with `restart: true`).
    Restarts(String),
    /// Two versions would share its data, which only the compose file may allow. The path in the container.
    Data(String),
    /// One of its containers does not run: compose would start it again. Its name.
    NotRunning(String),
    /// Its data is copied first.
    Snapshot,
    /// The probe asks an address at which the old containers would answer for the new ones.
    Probe,
}

impl Obstacle {
    /// The line of the compose file that is the reason.
    pub fn line(&self) -> String {
        match self {
            Obstacle::ContainerName(name) => format!("container_name: {name}"),
            Obstacle::HostPort { published, target } => format!("ports: {published}:{target}"),
            Obstacle::Address { network, key } if network.is_empty() => key.clone(),
            Obstacle::Address { network, key } => format!("networks.{network}.{key}"),
            Obstacle::NetworkMode(mode) => format!("network_mode: {mode}"),
            Obstacle::PreStart => "pre_start".to_owned(),
            Obstacle::SharedBy(by) => format!("a namespace or volumes that {by} shares"),
            Obstacle::Restarts(by) => format!("a dependent, {by}, with restart: true"),
            Obstacle::Data(path) => format!("a writable volume at {path}"),
            Obstacle::NotRunning(container) => format!("a container that does not run, {container}"),
            Obstacle::Snapshot => "update.snapshot".to_owned(),
            Obstacle::Probe => "update.probe.from".to_owned(),
        }
    }

    /// What to change.
    pub fn remedy(&self) -> &'static str {
        match self {
            Obstacle::ContainerName(_) | Obstacle::Address { .. } => "remove it from the compose file",
            Obstacle::HostPort { .. } => {
                "publish the port of a proxy instead, or a range with room for twice the containers"
            }
            Obstacle::NetworkMode(_) => "connect the service to a network of the project",
            Obstacle::PreStart => {
                "compose skips it while a container of the service runs; make it a service of its own, and depend on it with \
                 service_completed_successfully"
            }
            Obstacle::SharedBy(_) => {
                "connect the other service to a network of the project, and replace its volumes_from by named volumes"
            }
            Obstacle::Restarts(_) => "remove restart: true if it copes with a new container",
            Obstacle::Data(_) => {
                "set deploy.update_config.order: start-first in the compose file if two versions may share the data"
            }
            Obstacle::NotRunning(_) => "start or remove the container",
            Obstacle::Snapshot => "what writes to the data is stopped while it is copied",
            Obstacle::Probe => {
                "remove it, so that the probe asks each new container: the old ones would answer at this address"
            }
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line())
    }
}

/// Returns the compose services that are to hand over, by the compose files or `key`, each with what keeps it from doing so.
/// `files`: host paths of bind mounts that are no directories.
pub fn asked(
    model: &Model,
    containers: &[Container],
    key: Option<Order>,
    files: &BTreeSet<String>,
) -> BTreeMap<String, Option<Obstacle>> {
    if key == Some(Order::StopFirst) {
        return BTreeMap::new();
    }
    let asked = |service: ModelService<'_>| {
        let own: Vec<&Container> = containers.iter().filter(|c| c.compose_service == service.name).collect();
        let order = service.element().pointer("/deploy/update_config/order").and_then(Value::as_str);
        let by_file = match order {
            Some("start-first") => true,
            // Its author knows better than whoever has configured the agent.
            Some("stop-first") => return None,
            _ => false,
        };
        if own.is_empty() || !(by_file || key.is_some()) {
            return None;
        }
        let obstacle = obstacle(model, service, &own);
        let data = || {
            own.iter().flat_map(|c| &c.mounts).find(|mount| {
                let is_data =
                    mount.kind == "volume" || mount.kind == "bind" && !files.contains(&mount.source);
                is_data && !mount.read_only
            })
        };
        let data = || data().filter(|_| !by_file).map(|mount| Obstacle::Data(mount.destination.clone()));
        Some((service.name.to_owned(), obstacle.or_else(data)))
    };
    model.services().filter_map(asked).collect()
}

/// Adds what a probe says to the result of [`asked`]. At a fixed address the old containers answer for the new ones: they
/// would prove a bad image, or fail a good one that they keep from the port.
pub fn hinder_by_probe(asked: &mut BTreeMap<String, Option<Obstacle>>, probe: Option<&Probe>) {
    if probe.is_some_and(|probe| probe.from.is_some()) {
        for obstacle in asked.values_mut() {
            obstacle.get_or_insert(Obstacle::Probe);
        }
    }
}

/// Returns why there can't be a second container of the service beside each of these.
fn obstacle(model: &Model, service: ModelService<'_>, own: &[&Container]) -> Option<Obstacle> {
    let element = service.element();
    let text = |key: &str| element.get(key).and_then(Value::as_str);
    if let Some(name) = text("container_name") {
        return Some(Obstacle::ContainerName(name.to_owned()));
    }
    let ports = element.get("ports").and_then(Value::as_array).into_iter().flatten();
    let is_enough = |published: &str| room(published) >= 2 * own.len() as u64;
    let fixed = ports.filter_map(|port| {
        let published = match port.get("published")? {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let is_free = matches!(published.as_str(), "" | "0") || is_enough(&published);
        let target = port.get("target").and_then(Value::as_u64).unwrap_or_default();
        (!is_free).then_some(Obstacle::HostPort { published, target })
    });
    if let Some(port) = fixed.into_iter().next() {
        return Some(port);
    }
    let address = |network: &str, element: &Value| {
        let keys = ["ipv4_address", "ipv6_address", "mac_address"];
        let key = keys.into_iter().find(|key| element.get(key).is_some_and(|value| !value.is_null()))?;
        Some(Obstacle::Address { network: network.to_owned(), key: key.to_owned() })
    };
    let networks = element.get("networks").and_then(Value::as_object).into_iter().flatten();
    let mut fixed = networks.filter_map(|(name, network)| address(name, network));
    if let Some(fixed) = fixed.next().or_else(|| address("", element)) {
        return Some(fixed);
    }
    let is_shared = |mode: &&str| {
        *mode == "host" || ["container:", "service:"].iter().any(|start| mode.starts_with(start))
    };
    if let Some(mode) = text("network_mode").filter(is_shared) {
        return Some(Obstacle::NetworkMode(mode.to_owned()));
    }
    if service.has_hook("pre_start") {
        return Some(Obstacle::PreStart);
    }
    for other in model.services().filter(|other| other.name != service.name) {
        let joins = |name: &str| own.iter().any(|container| container.name == name);
        if other.shares_namespace_of(service.name)
            || other.joined_containers().any(joins)
            || other.mounts_volumes_of(service.name, joins)
        {
            return Some(Obstacle::SharedBy(other.name.to_owned()));
        }
        if other.restarts_with().any(|name| name == service.name) {
            return Some(Obstacle::Restarts(other.name.to_owned()));
        }
    }
    own.iter().find(|c| c.state != State::Running).map(|c| Obstacle::NotRunning(c.name.clone()))
}

/// The number of ports in `8080` or `8080-8089`; 0 if it can't be read.
fn room(published: &str) -> u64 {
    let port = |text: &str| text.trim().parse::<u64>().ok();
    match published.split_once('-') {
        Some((first, last)) => match (port(first), port(last)) {
            (Some(first), Some(last)) if last >= first => last - first + 1,
            _ => 0,
        },
        None => u64::from(port(published).is_some()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::probe::Ask;

    fn model(web: &Value) -> Model {
        let services = json!({
            "web": web,
            "plain": {"image": "proxy:1", "depends_on": {"web": {"condition": "service_started"}}},
        });
        serde_json::from_value(json!({ "services": services })).unwrap()
    }

    fn running(service: &str) -> Container {
        Container {
            compose_service: service.to_owned(),
            name: format!("shop-{service}-1"),
            ..Container::running(service, "web:1")
        }
    }

    #[test]
    fn a_probe_with_a_fixed_address_would_ask_the_old_containers() {
        let start_first = json!({"image": "web:1", "deploy": {"update_config": {"order": "start-first"}}});
        let probed = |web: &Value, from: Option<&str>| {
            let probe = Probe {
                ask: Ask::Tcp(80),
                service: None,
                from: from.map(str::to_owned),
                interval: Duration::from_secs(2),
                timeout: Duration::from_secs(5),
            };
            let mut asked = asked(&model(web), &[running("web")], None, &BTreeSet::new());
            hinder_by_probe(&mut asked, Some(&probe));
            asked.remove("web")
        };
        assert_eq!(probed(&start_first, None), Some(None));
        assert_eq!(probed(&start_first, Some("127.0.0.1")), Some(Some(Obstacle::Probe)));
        assert_eq!(probed(&json!({"image": "web:1"}), Some("127.0.0.1")), None, "it is not asked to");
        let mut named = start_first;
        named["container_name"] = json!("web");
        let obstacle = Obstacle::ContainerName("web".to_owned());
        assert_eq!(probed(&named, Some("127.0.0.1")), Some(Some(obstacle)), "the compose file comes first");
    }

    fn of(web: &Value, key: Option<Order>, containers: &[Container]) -> String {
        let files = BTreeSet::from(["/var/run/docker.sock".to_owned()]);
        let asked = asked(&model(web), containers, key, &files);
        assert!(asked.keys().all(|name| name == "web" || key.is_some()), "{asked:?}");
        match asked.get("web") {
            None => "not asked".to_owned(),
            Some(None) => "can".to_owned(),
            Some(Some(obstacle)) => obstacle.line(),
        }
    }

    #[test]
    fn a_service_is_asked_by_its_file_or_by_the_key_and_the_key_can_refuse() {
        let by_file = json!({"image": "web:1", "deploy": {"update_config": {"order": "start-first"}}});
        let silent = json!({"image": "web:1"});
        let other = json!({"image": "web:1", "deploy": {"update_config": {"order": "stop-first"}}});
        let here = [running("web"), running("plain")];
        assert_eq!(of(&by_file, None, &here), "can");
        assert_eq!(of(&by_file, Some(Order::StopFirst), &here), "not asked");
        assert_eq!(of(&silent, None, &here), "not asked");
        assert_eq!(of(&silent, Some(Order::StartFirst), &here), "can");
        assert_eq!(of(&other, None, &here), "not asked");
        assert_eq!(of(&other, Some(Order::StartFirst), &here), "not asked", "its author knows better");
        assert_eq!(of(&by_file, None, &[running("plain")]), "not asked", "nothing of it runs");
    }

    #[test]
    fn what_only_one_container_can_have_is_named_with_its_line() {
        let table = [
            (json!({"container_name": "web"}), "container_name: web"),
            (json!({"ports": [{"target": 80, "published": "8080"}]}), "ports: 8080:80"),
            (json!({"ports": [{"target": 80}, {"target": 81, "published": "81-81"}]}), "ports: 81-81:81"),
            (json!({"networks": {"front": {"ipv4_address": "10.0.0.2"}}}), "networks.front.ipv4_address"),
            (json!({"mac_address": "02:42:ac:11:65:43"}), "mac_address"),
            (json!({"network_mode": "host"}), "network_mode: host"),
            (json!({"network_mode": "service:plain"}), "network_mode: service:plain"),
            // The new image would start without it.
            (json!({"pre_start": [{"command": ["./migrate"]}]}), "pre_start"),
        ];
        for (mut web, line) in table {
            web["deploy"] = json!({"update_config": {"order": "start-first"}});
            assert_eq!(of(&web, None, &[running("web")]), line, "{web}");
        }
        let free = [
            json!({"ports": [{"target": 80, "published": "8080-8081"}]}),
            json!({"ports": [{"target": 80, "published": ""}, {"target": 81}]}),
            json!({"networks": {"front": null, "back": {"aliases": ["w"]}}}),
            json!({"network_mode": "bridge"}),
            json!({"pre_start": [], "post_start": [{"command": ["./warm-up"]}]}),
        ];
        for mut web in free {
            web["deploy"] = json!({"update_config": {"order": "start-first"}});
            assert_eq!(of(&web, None, &[running("web")]), "can", "{web}");
        }
        let two = [running("web"), running("web")];
        let web = json!({"ports": [{"target": 80, "published": "8080-8082"}], "deploy": {"update_config": {"order": "start-first"}}});
        assert_eq!(of(&web, None, &two), "ports: 8080-8082:80", "four are needed");
    }

    #[test]
    fn a_service_that_others_are_tied_to_is_stopped_first() {
        let start_first = json!({"image": "web:1", "deploy": {"update_config": {"order": "start-first"}}});
        let table = [
            (json!({"network_mode": "service:web"}), Obstacle::SharedBy("side".into())),
            (json!({"pid": "service:web"}), Obstacle::SharedBy("side".into())),
            (json!({"network_mode": "container:shop-web-1"}), Obstacle::SharedBy("side".into())),
            // It would go on with the volumes of the old containers.
            (json!({"volumes_from": ["web"]}), Obstacle::SharedBy("side".into())),
            (json!({"volumes_from": ["cache", "web:ro"]}), Obstacle::SharedBy("side".into())),
            (json!({"volumes_from": ["container:shop-web-1:ro"]}), Obstacle::SharedBy("side".into())),
            (
                json!({"depends_on": {"web": {"condition": "service_started", "restart": true}}}),
                Obstacle::Restarts("side".into()),
            ),
        ];
        for (side, expected) in table {
            let services = json!({"services": {"web": start_first, "side": side}});
            let model: Model = serde_json::from_value(services).unwrap();
            let asked = asked(&model, &[running("web")], None, &BTreeSet::new());
            assert_eq!(asked["web"], Some(expected));
        }
        for from in ["cache", "website:ro", "container:web", "container:other"] {
            let services = json!({"services": {"web": start_first, "side": {"volumes_from": [from]}}});
            let model: Model = serde_json::from_value(services).unwrap();
            let asked = asked(&model, &[running("web")], None, &BTreeSet::new());
            assert_eq!(asked["web"], None, "{from}");
        }
        let stopped = Container { state: State::Exited, name: "shop-web-2".into(), ..running("web") };
        assert_eq!(
            of(&start_first, None, &[running("web"), stopped]),
            "a container that does not run, shop-web-2"
        );
    }

    #[test]
    fn data_is_shared_only_if_the_compose_file_says_so() {
        let mount = |kind: &str, source: &str, read_only| evenkeel_common::wire::MountRecord {
            kind: kind.to_owned(),
            name: String::new(),
            source: source.to_owned(),
            destination: "/data".to_owned(),
            read_only,
        };
        let table = [
            (mount("volume", "/var/lib/docker/volumes/x/_data", false), Some("a writable volume at /data")),
            (mount("bind", "/srv/data", false), Some("a writable volume at /data")),
            (mount("bind", "/srv/data", true), None),
            (mount("volume", "", true), None),
            (mount("bind", "/var/run/docker.sock", false), None),
            (mount("tmpfs", "", false), None),
        ];
        for (mount, line) in table {
            let here = [Container { mounts: vec![mount.clone()], ..running("web") }];
            let silent = json!({"image": "web:1"});
            let by_key = of(&silent, Some(Order::StartFirst), &here);
            assert_eq!(by_key, line.unwrap_or("can"), "{mount:?}");
            let by_file = json!({"image": "web:1", "deploy": {"update_config": {"order": "start-first"}}});
            assert_eq!(of(&by_file, None, &here), "can", "{mount:?}");
        }
    }
}
