//! The container that the agent itself runs in, if it runs in one, and the one through which it reaches the engine. The
//! first mounts what the manual tells people to mount, and the agent would stop itself if it counted as a user of the data.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;

use serde_json::Value;

use super::endpoint::Endpoint;
use super::{answer, convert};
use crate::model::{EngineError, Need};

/// The files that an engine mounts into each container from a folder of its own that is named by the container's ID. With
/// the network of another container they are that one's. Other lines of the table say nothing: who mounts `/var/lib/docker`
/// with everything in it sees the files of all containers.
const OF_NETWORK: [&str; 3] = ["/etc/hostname", "/etc/hosts", "/etc/resolv.conf"];
/// A file that podman mounts for the container itself, whatever network it has.
const OF_CONTAINER: &str = "/run/.containerenv";

/// Label with the name of the swarm service that a container is a task of.
const SWARM_SERVICE_LABEL: &str = "com.docker.swarm.service.name";
/// Label with the name of that service's stack.
const STACK_LABEL: &str = "com.docker.stack.namespace";

/// What the kernel tells of this process.
#[derive(Debug, Default)]
pub(super) struct Traces {
    /// `/proc/self/mountinfo`.
    pub(super) mountinfo: String,
    /// `/proc/self/cgroup`.
    pub(super) cgroup: String,
}

impl Traces {
    /// Reads them. On a system that has none, the agent runs in no container.
    pub(super) fn read() -> Self {
        let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        Self { mountinfo: read("mountinfo"), cgroup: read("cgroup") }
    }

    /// Returns the listed containers that the agent may run in: none if it runs in none of this engine, several if it can't
    /// be told which of those with the same network it is.
    fn candidates<'a>(&self, listed: &'a [Value]) -> Vec<&'a Value> {
        let of = |ids: &BTreeSet<&str>| -> Vec<&'a Value> {
            listed.iter().filter(|one| ids.contains(id(one))).collect()
        };
        let mut certain: BTreeSet<&str> = self.cgroup.lines().flat_map(ids).collect();
        certain.extend(self.mounted_at(&[OF_CONTAINER]));
        let own = of(&certain);
        if !own.is_empty() {
            return own;
        }
        // The owner of the network may be gone, and the others have it still.
        let owners = self.mounted_at(&OF_NETWORK);
        let named = of(&owners);
        let shares = |one: &&Value| {
            let network = answer::text(one, "/HostConfig/NetworkMode").unwrap_or_default();
            let other = network.strip_prefix("container:");
            other
                .is_some_and(|other| owners.contains(other) || named.iter().any(|owner| name(owner) == other))
        };
        let sharing = listed.iter().filter(shares);
        named.iter().copied().chain(sharing).filter(|one| is_running(one)).collect()
    }

    /// The IDs in the folders that the files at these places are mounted from.
    fn mounted_at(&self, places: &[&str]) -> BTreeSet<&str> {
        let mounts = self.mountinfo.lines().filter_map(mount);
        mounts.filter(|(_, place)| places.contains(place)).filter_map(|(root, _)| id_in(root)).collect()
    }

    /// Returns the listed containers, by ID, that the agent needs. Those of which it can't be told which one it runs in all
    /// count.
    pub(super) fn needed(&self, endpoint: &Endpoint, listed: &[Value]) -> BTreeMap<String, Need> {
        let own = self.candidates(listed);
        let between = between(endpoint, &own, listed).into_iter().map(|one| (one, Need::ForEngine));
        let need = if own.len() > 1 { Need::MayRun } else { Need::ToRun };
        let all = between.chain(own.iter().map(|one| (*one, need)));
        all.map(|(one, need)| (id(one).to_owned(), need)).collect()
    }

    /// Removes the agent's own container from those that use data. Fails if it may be one of them, and it is not known which.
    pub(super) fn without_own<'a>(
        &self,
        users: Vec<&'a Value>,
        listed: &[Value],
    ) -> Result<Vec<&'a Value>, EngineError> {
        let own = self.candidates(listed);
        let is_own = |one: &&'a Value| own.iter().any(|own| id(own) == id(one));
        if own.len() > 1 && users.iter().any(is_own) {
            let mut names: Vec<&str> = own.into_iter().map(name).collect();
            names.sort_unstable();
            return Err(EngineError::Refused(format!(
                "the agent runs in one of the containers {}, which share a network, and can't tell in which, so it may not \
                 stop those that mount the data; run the agent with a network of its own",
                names.join(", ")
            )));
        }
        Ok(users.into_iter().filter(|one| !is_own(one)).collect())
    }
}

/// Returns the running containers through which the engine is reached, if it is reached over TCP: the one with that name or
/// address as seen from the agent's own container, or else the one that publishes that port.
fn between<'a>(endpoint: &Endpoint, own: &[&Value], listed: &'a [Value]) -> Vec<&'a Value> {
    let Endpoint::Tcp(address) = endpoint else { return Vec::new() };
    let Some((host, port)) = address.rsplit_once(':') else { return Vec::new() };
    let (host, port) = (host.trim_matches(['[', ']']), port.parse::<u64>().ok());
    let near: BTreeSet<&str> = own.iter().flat_map(|one| networks(one)).map(|(network, _)| network).collect();
    let has_name = |one: &'a Value| {
        let is_near = networks(one).any(|(network, _)| near.contains(network));
        is_near
            && (name(one) == host
                || label(one, convert::SERVICE_LABEL) == Some(host)
                || is_task_of(one, host))
    };
    let has_address = |one: &'a Value| {
        let fields = ["/IPAddress", "/GlobalIPv6Address"];
        networks(one).any(|(_, about)| fields.iter().any(|field| answer::text(about, field) == Some(host)))
    };
    let mut running: Vec<&'a Value> = listed.iter().filter(|one| is_running(one)).collect();
    let named: Vec<&'a Value> =
        running.iter().copied().filter(|one| has_name(one) || has_address(one)).collect();
    if !named.is_empty() {
        return named;
    }
    running.retain(|one| {
        let mut ports = answer::list(one, "/Ports").iter();
        port.is_some_and(|port| ports.any(|published| leads_to(published, host, port)))
    });
    running
}

/// Whether a listed container is a task of the swarm service of this name, which may lack that of its stack.
fn is_task_of(listed: &Value, host: &str) -> bool {
    let Some(service) = label(listed, SWARM_SERVICE_LABEL) else { return false };
    let stack = label(listed, STACK_LABEL);
    service == host || stack.and_then(|stack| service.strip_prefix(stack)?.strip_prefix('_')) == Some(host)
}

/// Whether this published port is what a connection to that host and port reaches.
fn leads_to(published: &Value, host: &str, port: u64) -> bool {
    let is_tcp = answer::text(published, "/Type").is_none_or(|kind| kind == "tcp");
    let ip = answer::text(published, "/IP").unwrap_or("0.0.0.0");
    // A name may be that of any address.
    let is_at = ["0.0.0.0", "::", host].contains(&ip) || host.parse::<IpAddr>().is_err();
    is_tcp && is_at && answer::amount(published, "/PublicPort") == Some(port)
}

/// The networks of a listed container, by name.
fn networks(listed: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let networks = listed.pointer("/NetworkSettings/Networks").and_then(Value::as_object);
    networks.into_iter().flatten().map(|(network, about)| (network.as_str(), about))
}

const ID_LENGTH: usize = 64;

/// What is mounted from its file system, and where.
fn mount(line: &str) -> Option<(&str, &str)> {
    let mut fields = line.split(' ');
    Some((fields.nth(3)?, fields.next()?))
}

/// The ID in `.../containers/ID/hostname` or `.../overlay-containers/ID/userdata/hostname`.
fn id_in(root: &str) -> Option<&str> {
    let parts: Vec<&str> = root.split('/').collect();
    let mut pairs = parts.windows(2).rev();
    pairs.find(|pair| pair[0].ends_with("containers") && is_id(pair[1])).map(|pair| pair[1])
}

fn is_id(text: &str) -> bool {
    text.len() == ID_LENGTH && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// The IDs in a line: `/docker/ID`, `/system.slice/docker-ID.scope`, `/machine.slice/libpod-ID.scope/container`.
fn ids(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| is_id(part))
}

fn label<'a>(listed: &'a Value, name: &str) -> Option<&'a str> {
    listed.get("Labels")?.get(name)?.as_str()
}

fn id(listed: &Value) -> &str {
    answer::text(listed, "/Id").unwrap_or_default()
}

fn name(listed: &Value) -> &str {
    answer::container_name(listed).unwrap_or_else(|| id(listed))
}

fn is_running(listed: &Value) -> bool {
    answer::text(listed, "/State").is_none_or(|state| state == "running")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hex(digit: char) -> String {
        digit.to_string().repeat(ID_LENGTH)
    }

    fn container(digit: char, network: &str) -> Value {
        json!({"Id": hex(digit), "Names": [format!("/{digit}")], "State": "running",
            "HostConfig": {"NetworkMode": network}})
    }

    fn mounted(root: &str, at: &str) -> String {
        format!("812 790 8:1 {root} {at} rw,relatime - ext4 /dev/sda1 rw\n")
    }

    #[test]
    fn the_own_container_is_found_by_what_the_engine_mounts_into_it() {
        let docker = |digit: char| format!("/var/lib/docker/containers/{}/hostname", hex(digit));
        let podman = |digit: char, file: &str| {
            format!("/containers/storage/overlay-containers/{}/userdata/{file}", hex(digit))
        };
        let listed = [container('a', "bridge"), container('b', "host"), container('c', "bridge")];
        let unified = "0::/\n".to_owned();
        // All of /var/lib/docker is mounted with what is mounted in it.
        let bound = mounted(&docker('c'), "/var/lib/docker/containers/x/hostname");
        for (what, mountinfo, cgroup, expected) in [
            ("docker", bound.clone() + &mounted(&docker('a'), "/etc/hostname"), unified.clone(), vec!['a']),
            ("docker on its own disk", mounted(&docker('b')[8..], "/etc/hosts"), unified.clone(), vec!['b']),
            ("podman", mounted(&podman('b', "hosts"), "/etc/hosts"), unified.clone(), vec!['b']),
            ("on the machine", bound.clone(), "0::/system.slice/evenkeel-agent.service\n".into(), vec![]),
            ("of another engine", mounted(&docker('d'), "/etc/hosts"), unified.clone(), vec![]),
            ("cgroup v1", String::new(), format!("12:pids:/docker/{}\n", hex('c')), vec!['c']),
            (
                "cgroup of the machine",
                mounted(&docker('a'), "/etc/hosts"),
                format!("0::/system.slice/docker-{}.scope\n", hex('c')),
                vec!['c'],
            ),
            (
                "podman, in a pod",
                mounted(&podman('a', "hosts"), "/etc/hosts")
                    + &mounted(&podman('b', ".containerenv"), "/run/.containerenv"),
                unified.clone(),
                vec!['b'],
            ),
            ("nothing to read", String::new(), String::new(), vec![]),
            ("no table", "x\n\n1 2 3\n".into(), "\n".into(), vec![]),
        ] {
            let found = Traces { mountinfo, cgroup };
            let found: Vec<&str> = found.candidates(&listed).into_iter().map(name).collect();
            let expected: Vec<String> = expected.into_iter().map(String::from).collect();
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn a_proxy_in_front_of_the_engine_is_found_by_its_name_its_address_or_its_port() {
        let on = |digit: char, service: &str, network: &str, address: &str, port: u16| {
            json!({"Id": hex(digit), "Names": [format!("/{digit}")], "State": "running",
                "Labels": {"com.docker.compose.service": service},
                "Ports": [{"PrivatePort": 2375, "PublicPort": port, "Type": "tcp"}, {"PrivatePort": 80}],
                "NetworkSettings": {"Networks": {network: {"IPAddress": address}}}})
        };
        let listed = [
            on('a', "agent", "near", "172.18.0.2", 9090),
            on('b', "engine", "near", "172.18.0.3", 2375),
            on('c', "engine", "far", "172.19.0.2", 2376),
            on('d', "web", "near", "172.18.0.4", 80),
        ];
        let mountinfo =
            mounted(&format!("/var/lib/docker/containers/{}/hostname", hex('a')), "/etc/hostname");
        let inside = Traces { mountinfo, cgroup: "0::/\n".into() };
        let outside = Traces::default();
        let tcp = |address: &str| Endpoint::Tcp(address.to_owned());
        let socket = Endpoint::Unix("/var/run/docker.sock".into());
        let (to_run, for_engine) = (Need::ToRun, Need::ForEngine);
        for (traces, endpoint, expected) in [
            (&inside, socket.clone(), vec![('a', to_run)]),
            (&outside, socket, vec![]),
            (&outside, tcp("127.0.0.1:2375"), vec![('b', for_engine)]),
            (&outside, tcp("127.0.0.1:2376"), vec![('c', for_engine)]),
            (&outside, tcp("engine:2377"), vec![]),
            (&inside, tcp("engine:2377"), vec![('a', to_run), ('b', for_engine)]),
            (&inside, tcp("d:2375"), vec![('a', to_run), ('d', for_engine)]),
            (&inside, tcp("172.18.0.4:2375"), vec![('a', to_run), ('d', for_engine)]),
            (&inside, tcp("elsewhere:2374"), vec![('a', to_run)]),
        ] {
            let expected: BTreeMap<String, Need> =
                expected.into_iter().map(|(digit, need)| (hex(digit), need)).collect();
            assert_eq!(traces.needed(&endpoint, &listed), expected, "{endpoint}");
        }
    }

    #[test]
    fn a_proxy_that_is_a_swarm_service_is_found_by_the_name_of_the_service() {
        let on = |digit: char, service: &str| {
            json!({"Id": hex(digit), "Names": [format!("/{service}.1.{digit}")], "State": "running",
                "Labels": {"com.docker.swarm.service.name": service, "com.docker.stack.namespace": "ops"},
                "NetworkSettings": {"Networks": {"ops_default": {}}}})
        };
        let listed = [on('a', "ops_agent"), on('b', "ops_engine"), on('c', "other_engine")];
        let mountinfo =
            mounted(&format!("/var/lib/docker/containers/{}/hostname", hex('a')), "/etc/hostname");
        let traces = Traces { mountinfo, cgroup: "0::/\n".into() };
        for (host, proxy) in
            [("engine", Some('b')), ("ops_engine", Some('b')), ("other_engine", Some('c')), ("ops", None)]
        {
            let proxy = proxy.map(|digit| (hex(digit), Need::ForEngine));
            let expected: BTreeMap<String, Need> =
                proxy.into_iter().chain([(hex('a'), Need::ToRun)]).collect();
            assert_eq!(traces.needed(&Endpoint::Tcp(format!("{host}:2375")), &listed), expected, "{host}");
        }
    }

    #[test]
    fn a_port_leads_to_the_engine_only_if_it_is_published_over_tcp_and_at_that_address() {
        for (host, ip, kind, expected) in [
            ("127.0.0.1", "0.0.0.0", "tcp", true),
            ("127.0.0.1", "127.0.0.1", "tcp", true),
            ("127.0.0.1", "", "tcp", true),
            ("[::1]", "::", "tcp", true),
            ("localhost", "127.0.0.1", "tcp", true),
            ("127.0.0.1", "192.168.0.5", "tcp", false),
            ("127.0.0.1", "0.0.0.0", "udp", false),
        ] {
            let port = json!({"IP": ip, "PrivatePort": 2375, "PublicPort": 2375, "Type": kind});
            let mut listed = container('a', "bridge");
            listed["Ports"] = json!([port]);
            let needed = Traces::default().needed(&Endpoint::Tcp(format!("{host}:2375")), &[listed]);
            assert_eq!(needed.len(), usize::from(expected), "{host} {ip} {kind}");
        }
    }

    #[test]
    fn an_agent_with_the_network_of_another_container_stops_neither() {
        let network = format!("container:{}", hex('a'));
        let listed = [container('a', "bridge"), container('b', &network), container('c', "bridge")];
        let mountinfo = mounted(&format!("/var/lib/docker/containers/{}/hosts", hex('a')), "/etc/hosts");
        let users = |digits: &[usize]| digits.iter().map(|nr| &listed[*nr]).collect::<Vec<_>>();
        let traces = Traces { mountinfo: mountinfo.clone(), cgroup: "0::/\n".into() };
        for ambiguous in [[0, 2], [1, 2]] {
            let error = traces.without_own(users(&ambiguous), &listed).unwrap_err().to_string();
            assert!(error.contains("containers a, b,") && error.contains("network of its own"), "{error}");
        }
        assert_eq!(traces.without_own(users(&[2]), &listed).unwrap(), users(&[2]), "it does not matter");
        let socket = Endpoint::Unix("/var/run/docker.sock".into());
        let all = |need: Need| -> BTreeMap<String, Need> { [(hex('a'), need), (hex('b'), need)].into() };
        assert_eq!(traces.needed(&socket, &listed), all(Need::MayRun));
        assert!(Need::MayRun.to_string().contains("run the agent with a network of its own"));
        // The cgroup knows.
        let cgroup = format!("0::/system.slice/docker-{}.scope\n", hex('b'));
        let traces = Traces { mountinfo: mountinfo.clone(), cgroup };
        assert_eq!(traces.without_own(users(&[0, 1, 2]), &listed).unwrap(), users(&[0, 2]));
        assert_eq!(traces.needed(&socket, &listed), BTreeMap::from([(hex('b'), Need::ToRun)]));
        // The container is gone whose network it has.
        let traces = Traces { mountinfo: mountinfo.clone(), cgroup: "0::/\n".into() };
        let left = &listed[1..];
        assert_eq!(traces.without_own(users(&[1, 2]), left).unwrap(), users(&[2]));
        // Nobody shares the network while its other container does not run.
        let mut stopped = container('b', &network);
        stopped["State"] = json!("exited");
        let listed = [container('a', "bridge"), stopped];
        let traces = Traces { mountinfo, cgroup: String::new() };
        let users: Vec<&Value> = listed.iter().take(1).collect();
        assert_eq!(traces.without_own(users, &listed).unwrap(), Vec::<&Value>::new());
    }
}
