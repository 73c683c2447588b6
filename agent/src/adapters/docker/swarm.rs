//! The engine as a swarm manager: services, tasks, and updates that change only the image of a specification.
//!
//! Specifications are edited as raw JSON, so that unknown fields are kept. The client library's models would drop the
//! fields of newer engines.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use bytes::Bytes;
use http::{HeaderValue, Method};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::answer::{amount, list, map, number, text};
use super::client::Query;
use super::names::checked;
use super::{DockerEngine, convert};
use crate::model::output::{Tail, says, stable};
use crate::model::swarm::{Restarts, SwarmMode, SwarmService, Task, TaskState, UpdateState, UpdateStatus};
use crate::model::{EngineError, Platform, Reference, SwarmError};
use crate::ports::Swarm;

/// Timeout of a read that the managers answer. An engine that can't reach their leader says so after 20 s.
const MANAGERS: Duration = Duration::from_secs(25);
/// Timeout of a change by the managers.
const CHANGE: Duration = Duration::from_secs(30);
/// Fields added in API 1.52. The engine drops them from a specification sent in the agent's API version (1.51).
/// `tests/docker/swarm_spec.rs` checks that all other fields are kept.
const NEWER_FIELDS: [&str; 2] =
    ["/TaskTemplate/Resources/SwapBytes", "/TaskTemplate/Resources/MemorySwappiness"];
/// A restart delay of at least this long is the interval of work that is done again and again.
const INTERVAL: Duration = Duration::from_mins(1);
/// Timeout of a registry request by the engine, which may have to log in first.
const REGISTRY: Duration = Duration::from_secs(30);

#[async_trait]
impl Swarm for DockerEngine {
    async fn service(&self, name: &str) -> Result<SwarmService, SwarmError> {
        let found = self.swarm_service(name).await?;
        let id = text(&found, "/ID").unwrap_or_default().to_owned();
        let doing = format!("list the tasks of service {name}");
        let filters = json!({ "service": [id] }).to_string();
        let query = [("filters", filters.as_str())];
        let tasks = self.swarm_read(&doing, "/tasks", &query);
        let (tasks, nodes, own) =
            tokio::join!(tasks, self.swarm_read("list nodes", "/nodes", &[]), self.own_node());
        let (tasks, nodes) = (tasks?, nodes?);
        let gone: BTreeSet<&str> = list(&nodes, "")
            .iter()
            .filter(|node| matches!(text(node, "/Status/State"), Some("down" | "disconnected")))
            .filter_map(|node| text(node, "/ID"))
            .collect();
        let hosts = node_names(&nodes, &gone);
        let own = own.unwrap_or_default();
        let seen = |seen: &Value| task(seen, name, &hosts, &gone, &own);
        // A machine that has left the swarm and joined again is listed twice, once as down (moby#30059).
        let present: BTreeSet<&str> =
            hosts.iter().filter(|(id, _)| !gone.contains(*id)).map(|(_, host)| *host).collect();
        let absent = gone.iter().filter_map(|id| hosts.get(id)).filter(|host| !present.contains(*host));
        let is_paused = |node: &&Value| {
            text(node, "/Status/State") == Some("ready") && text(node, "/Spec/Availability") == Some("pause")
        };
        let paused = list(&nodes, "").iter().filter(is_paused);
        let paused = paused.filter_map(|node| hosts.get(text(node, "/ID")?));
        Ok(SwarmService {
            tasks: list(&tasks, "").iter().filter_map(seen).collect(),
            nodes_down: absent.map(|host| (*host).to_owned()).collect(),
            nodes_paused: paused.map(|host| (*host).to_owned()).collect(),
            ..service(&found)
        })
    }

    async fn admits(&self, service: &SwarmService, image: &Reference) -> Result<(), SwarmError> {
        let doing = format!("ask the registry for {image}");
        let name = image.to_string();
        let path = format!("/distribution/{}/json", checked(&name).map_err(fault)?);
        let (path, login) = (path.as_str(), self.registry_login(image).await?);
        let login = login.as_ref();
        let asked = self
            .connection
            .call(&doing, REGISTRY, |client| async move { client.get(path, &[], login).await });
        let (manifest, nodes) = tokio::join!(asked, self.swarm_read("list nodes", "/nodes", &[]));
        // If the engine can list its nodes, the other error is the registry's or about reaching the registry.
        let nodes = nodes?;
        let built_for = platforms(&manifest.map_err(|error| registry_fault(error, &doing))?);
        match misfit(service, &built_for, &nodes) {
            Some(why) => Err(SwarmError::Refused(format!("{image} can't be run: {why}"))),
            None => Ok(()),
        }
    }

    async fn set_image(&self, service: &SwarmService, image: &str, force: bool) -> Result<(), SwarmError> {
        let mut spec = self.specification(service).await?;
        if let Some(field) = newer_field(&spec) {
            return Err(SwarmError::Refused(format!(
                "service {} sets {field}, which an update would remove: the agent does not support API 1.52 yet",
                service.name
            )));
        }
        if let Some(place) = spec.pointer_mut("/TaskTemplate/ContainerSpec/Image") {
            *place = json!(image);
        }
        // Replace the previous image's platforms, by which the managers place tasks.
        let reference = Reference::parse(image).map_err(|error| SwarmError::Refused(error.to_string()))?;
        if let Some(platforms) = self.image_platforms(&reference).await {
            spec["TaskTemplate"]["Placement"]["Platforms"] = platforms;
        }
        if force {
            spec["TaskTemplate"]["ForceUpdate"] = json!(service.force_update + 1);
        }
        let login = self.registry_login(&reference).await?;
        self.update(service, &spec, &[], login).await
    }

    async fn roll_back(&self, service: &SwarmService) -> Result<(), SwarmError> {
        let spec = self.specification(service).await?;
        // Keep the credentials of the previous specification.
        self.update(service, &spec, &[("rollback", "previous"), ("registryAuthFrom", "previous-spec")], None)
            .await
    }

    async fn task_log(&self, task: &str, lines: u32) -> Result<String, SwarmError> {
        let task = checked(task).map_err(fault)?;
        let (path, lines) = (format!("/tasks/{task}/logs"), lines.to_string());
        let (path, lines) = (path.as_str(), lines.as_str());
        // The library does not support task logs.
        let doing = format!("read the log of task {task}");
        let read = self.connection.read(&doing, |client| async move {
            let query = [("stdout", "true"), ("stderr", "true"), ("tail", lines)];
            let mut pieces = client.stream(path, &query).await?.into_body();
            let mut frames = LogFrames::default();
            while let Some(frame) = pieces.frame().await {
                if let Some(data) = frame?.data_ref() {
                    frames.push(data);
                }
            }
            Ok(frames.tail.text())
        });
        read.await.map_err(fault)
    }

    async fn health_check(&self, container: &str) -> Result<String, SwarmError> {
        let path = format!("/containers/{}/json", checked(container).map_err(fault)?);
        let doing = format!("inspect container {container}");
        let seen = self.connection.get(&doing, &path, &[]).await.map_err(fault)?;
        Ok(convert::health_output(&seen))
    }
}

impl DockerEngine {
    async fn swarm_read(&self, doing: &str, path: &str, query: Query<'_>) -> Result<Value, SwarmError> {
        self.connection.get_within(MANAGERS, doing, path, query).await.map_err(fault)
    }

    /// Returns the service with exactly this name, as raw JSON.
    async fn swarm_service(&self, name: &str) -> Result<Value, SwarmError> {
        let filters = json!({ "name": [name] }).to_string();
        let doing = format!("read service {name}");
        let listed = self.swarm_read(&doing, "/services", &[("filters", &filters)]).await?;
        // The filter matches name prefixes.
        let found = list(&listed, "").iter().find(|one| text(one, "/Spec/Name") == Some(name));
        found.cloned().ok_or_else(|| SwarmError::NoService(name.to_owned()))
    }

    /// Returns the ID of the engine's own node.
    async fn own_node(&self) -> Option<String> {
        let info = self.connection.get("read the engine's node", "/info", &[]).await.ok()?;
        text(&info, "/Swarm/NodeID").map(str::to_owned)
    }

    /// Returns the service's specification, or a conflict if the service has changed since it was read.
    async fn specification(&self, service: &SwarmService) -> Result<Value, SwarmError> {
        let now = self.swarm_service(&service.name).await?;
        let is_same =
            text(&now, "/ID") == Some(&service.id) && amount(&now, "/Version/Index") == Some(service.version);
        if is_same { Ok(now["Spec"].clone()) } else { Err(SwarmError::Conflict) }
    }

    async fn update(
        &self,
        service: &SwarmService,
        spec: &Value,
        more: Query<'_>,
        login: Option<HeaderValue>,
    ) -> Result<(), SwarmError> {
        let doing = format!("update service {}", service.name);
        let path = format!("/services/{}/update", checked(&service.id).map_err(fault)?);
        let version = service.version.to_string();
        let query = [&[("version", version.as_str())], more].concat();
        let body = Bytes::from(spec.to_string());
        let (path, query, login) = (path.as_str(), query.as_slice(), login.as_ref());
        let done = self.connection.call(&doing, CHANGE, |client| {
            let body = body.clone();
            async move { client.send(Method::POST, path, query, body, login).await }
        });
        done.await.map_err(fault)
    }

    /// Returns an image's platforms in the form of a specification, or `None` if the registry does not report them.
    async fn image_platforms(&self, image: &Reference) -> Option<Value> {
        let name = image.to_string();
        let path = format!("/distribution/{}/json", checked(&name).ok()?);
        let (path, login) = (path.as_str(), self.registry_login(image).await.ok()?);
        let login = login.as_ref();
        let asked = self.connection.call("ask the registry for platforms", REGISTRY, |client| async move {
            client.get(path, &[], login).await
        });
        let manifest = asked.await.ok()?;
        let known = |one: &&Value| text(one, "/architecture").is_some_and(|name| name != "unknown");
        let platforms = list(&manifest, "/Platforms").iter().filter(known);
        let platforms: Vec<Value> = platforms
            .map(|one| json!({ "Architecture": placement_arch(text(one, "/architecture")), "OS": text(one, "/os") }))
            .collect();
        (!platforms.is_empty()).then_some(Value::Array(platforms))
    }

    /// Returns the `X-Registry-Auth` header for an image's registry, if credentials are configured.
    async fn registry_login(&self, image: &Reference) -> Result<Option<HeaderValue>, SwarmError> {
        let host = &image.repository.host;
        let login = self.auth.login(&image.repository).await.map_err(|reason| {
            SwarmError::Refused(format!("no credentials for {host}: {}", stable(&reason)))
        })?;
        let Some(login) = login else { return Ok(None) };
        let wrong = || SwarmError::Refused(format!("the credentials for {host} cannot be encoded"));
        let encoded = URL_SAFE.encode(serde_json::to_vec(&login).map_err(|_| wrong())?);
        let mut header = HeaderValue::from_str(&encoded).map_err(|_| wrong())?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

/// Removes the framing that separates stdout and stderr in a log stream.
#[derive(Default)]
struct LogFrames {
    rest: Vec<u8>,
    tail: Tail,
}

impl LogFrames {
    fn push(&mut self, data: &[u8]) {
        self.rest.extend_from_slice(data);
        loop {
            let framed = matches!(self.rest.first(), Some(0..=2)) || self.rest.is_empty();
            if !framed {
                // With a TTY, the log has no frames.
                self.tail.push(&std::mem::take(&mut self.rest));
                return;
            }
            let Some(head) = self.rest.first_chunk::<8>() else { return };
            let length = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize;
            let Some(payload) = self.rest.get(8..8 + length) else { return };
            self.tail.push(payload);
            self.rest.drain(..8 + length);
        }
    }
}

/// Returns the first field of a specification that an update would drop.
fn newer_field(spec: &Value) -> Option<&'static str> {
    let is_set = |pointer: &&&str| spec.pointer(pointer).is_some_and(|value| !value.is_null());
    NEWER_FIELDS.iter().find(is_set)?.rsplit('/').next()
}

/// Converts an error from the registry. Unlike in [`fault`], its text is not matched against the managers' messages.
fn registry_fault(error: EngineError, doing: &str) -> SwarmError {
    let doing = if error.is_unavailable() { format!("{doing}: ") } else { String::new() };
    SwarmError::Refused(format!("{doing}{}", message(error)))
}

fn message(error: EngineError) -> String {
    match error {
        EngineError::Unavailable(text) | EngineError::NotFound(text) | EngineError::Refused(text) => text,
    }
}

/// Converts an engine error, recognizing the managers' messages.
fn fault(error: EngineError) -> SwarmError {
    let text = error.to_string();
    let says = |words: &[&str]| words.iter().any(|words| says(&text, words));
    if says(&["encrypted and needs to be unlocked", "certificates have expired"]) {
        return SwarmError::Unusable(message(error));
    }
    if says(&["manager is being prepared"]) {
        return SwarmError::NoLeader("this manager is starting, or cannot reach the others".to_owned());
    }
    if says(&["not a swarm manager", "not part of a swarm"]) {
        let why = if says(&["worker nodes"]) { "it is a worker" } else { "it is in no swarm" };
        return SwarmError::NotManager(why.to_owned());
    }
    if says(&["update out of sequence"]) {
        return SwarmError::Conflict;
    }
    if says(&["does not have a leader", "no elected", "lost quorum", "has no leader"]) {
        return SwarmError::NoLeader("too few managers are online to elect a leader".to_owned());
    }
    if says(&["deadline exceeded"]) {
        return SwarmError::NoLeader(
            "no answer from a leader: too few managers are online, or this one can't reach it".to_owned(),
        );
    }
    // A change may have been applied nevertheless.
    if says(&["node lost leader status", "node is stopped"]) {
        return SwarmError::NoLeader("the leader has changed or is stopping".to_owned());
    }
    match error {
        // The engine itself has answered.
        EngineError::Unavailable(words) if says(&["rpc error"]) => SwarmError::NoLeader(words),
        EngineError::Unavailable(words) => SwarmError::Unavailable(words),
        EngineError::NotFound(words) | EngineError::Refused(words) => SwarmError::Refused(words),
    }
}

pub(super) fn service(seen: &Value) -> SwarmService {
    let said = |pointer: &str| text(seen, pointer).unwrap_or_default().to_owned();
    let mode = if seen.pointer("/Spec/Mode/Global").is_some_and(Value::is_object) {
        SwarmMode::Global
    } else if seen.pointer("/Spec/Mode/Replicated").is_some_and(Value::is_object) {
        SwarmMode::Replicated(amount(seen, "/Spec/Mode/Replicated/Replicas").unwrap_or(1))
    } else {
        SwarmMode::Job
    };
    SwarmService {
        id: said("/ID"),
        name: said("/Spec/Name"),
        version: amount(seen, "/Version/Index").unwrap_or(0),
        image: said("/Spec/TaskTemplate/ContainerSpec/Image"),
        previous_image: text(seen, "/PreviousSpec/TaskTemplate/ContainerSpec/Image").map(str::to_owned),
        force_update: amount(seen, "/Spec/TaskTemplate/ForceUpdate").unwrap_or(0),
        mode,
        update: text(seen, "/UpdateStatus/State").map(|state| UpdateStatus {
            state: update_state(state),
            message: stable(text(seen, "/UpdateStatus/Message").unwrap_or_default()),
        }),
        tasks: Vec::new(),
        nodes_down: BTreeSet::new(),
        nodes_paused: BTreeSet::new(),
        restarts: restarts(seen),
        is_constrained: !list(seen, "/Spec/TaskTemplate/Placement/Constraints").is_empty(),
    }
}

fn restarts(seen: &Value) -> Restarts {
    let nanos = amount(seen, "/Spec/TaskTemplate/RestartPolicy/Delay").unwrap_or(0);
    match text(seen, "/Spec/TaskTemplate/RestartPolicy/Condition") {
        Some("none") => Restarts::Never,
        Some("on-failure") => Restarts::NotDone,
        _ if Duration::from_nanos(nanos) >= INTERVAL => Restarts::NotDone,
        _ => Restarts::All,
    }
}

fn update_state(word: &str) -> UpdateState {
    match word {
        "updating" => UpdateState::Updating,
        "paused" => UpdateState::Paused,
        "completed" => UpdateState::Completed,
        "rollback_started" => UpdateState::RollbackStarted,
        "rollback_paused" => UpdateState::RollbackPaused,
        "rollback_completed" => UpdateState::RollbackCompleted,
        _ => UpdateState::Unknown,
    }
}

/// Returns the name of each node by its ID: the host name, or the ID if several nodes that are present have that host name.
fn node_names<'a>(nodes: &'a Value, gone: &BTreeSet<&str>) -> HashMap<&'a str, &'a str> {
    let all = list(nodes, "").iter();
    let all = all.filter_map(|node| Some((text(node, "/ID")?, text(node, "/Description/Hostname")?)));
    let all: Vec<(&'a str, &'a str)> = all.collect();
    let (mut present, mut shared) = (BTreeSet::new(), BTreeSet::new());
    for (id, host) in &all {
        if !gone.contains(id) && !present.insert(*host) {
            shared.insert(*host);
        }
    }
    all.into_iter().map(|(id, host)| (id, if shared.contains(host) { id } else { host })).collect()
}

/// Parses a task, or returns `None` without an ID.
fn task(
    seen: &Value,
    service: &str,
    hosts: &HashMap<&str, &str>,
    gone: &BTreeSet<&str>,
    own: &str,
) -> Option<Task> {
    let id = text(seen, "/ID")?.to_owned();
    let node = text(seen, "/NodeID").unwrap_or_default();
    let name = match number(seen, "/Slot").filter(|slot| *slot > 0) {
        Some(slot) => format!("{service}.{slot}"),
        None => format!("{service}.{}", hosts.get(node).copied().unwrap_or(node)),
    };
    let state = match text(seen, "/Status/State").unwrap_or_default() {
        // The actual state of a task on an unreachable node is unknown.
        "running" if gone.contains(node) => TaskState::Shutdown,
        "running" => TaskState::Running,
        "new" | "pending" => TaskState::Pending,
        "complete" => TaskState::Complete,
        "failed" => TaskState::Failed,
        "rejected" => TaskState::Rejected,
        "shutdown" | "orphaned" | "remove" => TaskState::Shutdown,
        _ => TaskState::Preparing,
    };
    let container = text(seen, "/Status/ContainerStatus/ContainerID").filter(|_| node == own);
    Some(Task {
        name,
        node: hosts.get(node).copied().unwrap_or(node).to_owned(),
        image: text(seen, "/Spec/ContainerSpec/Image").unwrap_or_default().to_owned(),
        should_run: matches!(text(seen, "/DesiredState"), Some("running" | "ready")),
        state,
        since: text(seen, "/Status/Timestamp").and_then(convert::moment),
        error: stable(text(seen, "/Status/Err").unwrap_or_default()),
        exit_code: number(seen, "/Status/ContainerStatus/ExitCode"),
        local_container: container.map(str::to_owned),
        id,
    })
}

/// Returns an image's platforms from the registry, in canonical form.
fn platforms(manifest: &Value) -> BTreeSet<String> {
    let all = list(manifest, "/Platforms").iter();
    all.filter_map(|one| canonical(text(one, "/os")?, text(one, "/architecture")?)).collect()
}

/// Returns why an image for these platforms can't take the place of the service's; `None` if it can. If the service is bound to
/// some nodes, or has a task for each, the swarm would end its tasks there, and place no others: the image must suit one of the
/// nodes that it runs on, or each of them. If it is not bound, or runs nowhere, any node that accepts tasks will do.
fn misfit(service: &SwarmService, built_for: &BTreeSet<String>, nodes: &Value) -> Option<String> {
    let is_active = |node: &Value| text(node, "/Spec/Availability") == Some("active");
    let runs_it = |node: &Value| {
        let names = [text(node, "/Description/Hostname"), text(node, "/ID")];
        service.running().any(|task| names.contains(&Some(task.node.as_str())))
    };
    let is_global = service.mode == SwarmMode::Global;
    let own = node_platforms(nodes, |node| (is_global || service.is_constrained) && runs_it(node));
    let needs_each = is_global && !own.is_empty();
    let (which, available) = if own.is_empty() {
        ("the nodes of the swarm", node_platforms(nodes, is_active))
    } else {
        ("the nodes that the service runs on", own)
    };
    let is_suitable = |one: &String| built_for.contains(one);
    let suits =
        if needs_each { available.iter().all(is_suitable) } else { available.iter().any(is_suitable) };
    if suits || built_for.is_empty() || available.is_empty() {
        return None;
    }
    let join = |all: &BTreeSet<String>| all.iter().cloned().collect::<Vec<_>>().join(", ");
    Some(format!("it is built for {}, but {which} are {}", join(built_for), join(&available)))
}

/// Returns the platforms of those nodes that are ready.
fn node_platforms(nodes: &Value, is_one: impl Fn(&Value) -> bool) -> BTreeSet<String> {
    let is_ready = |node: &&Value| text(node, "/Status/State") == Some("ready") && is_one(node);
    let all = list(nodes, "").iter().filter(is_ready).filter_map(|node| map(node, "/Description/Platform"));
    all.filter_map(|one| canonical(one.get("OS")?, one.get("Architecture")?)).collect()
}

/// Formats a platform in canonical form. Variants are omitted, as managers ignore them.
fn canonical(os: &str, architecture: &str) -> Option<String> {
    Some(Platform::new(os, architecture, "")?.to_string())
}

/// Returns the architecture for the managers' comparison with their nodes. They see 32-bit ARM nodes as `armv7l` or similar,
/// which does not match `arm`, so no task would be placed there. Like Docker's own client, this omits `arm`
/// (swarmkit#2294).
fn placement_arch(architecture: Option<&str>) -> &str {
    architecture.filter(|name| !name.eq_ignore_ascii_case("arm")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_managers_messages_are_distinguished() {
        let unavailable = |text: &str| fault(EngineError::Unavailable(text.to_owned()));
        let worker = "it answered 503: This node is not a swarm manager. Worker nodes can't be used to view or modify cluster state.";
        assert!(matches!(unavailable(worker), SwarmError::NotManager(why) if why == "it is a worker"));
        let outside = "it answered 503: This node is not a swarm manager. Use \"docker swarm init\" or \"docker swarm join\"";
        assert!(matches!(unavailable(outside), SwarmError::NotManager(why) if why == "it is in no swarm"));
        let alone = "it answered 503: rpc error: code = Unknown desc = The swarm does not have a leader.";
        assert!(matches!(unavailable(alone), SwarmError::NoLeader(_)));
        let late = EngineError::Refused("update service web: update out of sequence".to_owned());
        assert_eq!(fault(late), SwarmError::Conflict);
        assert!(matches!(unavailable("connection refused"), SwarmError::Unavailable(_)));
    }

    #[test]
    fn a_field_that_an_update_would_drop_is_detected() {
        let spec = |resources: Value| json!({ "TaskTemplate": { "Resources": resources } });
        assert_eq!(newer_field(&spec(json!({ "SwapBytes": 0 }))), Some("SwapBytes"));
        assert_eq!(newer_field(&spec(json!({ "MemorySwappiness": 10 }))), Some("MemorySwappiness"));
        assert_eq!(newer_field(&spec(json!({ "SwapBytes": null, "Limits": {} }))), None);
    }

    #[test]
    fn an_image_must_suit_the_nodes_that_run_the_service() {
        let node = |host: &str, architecture: &str, availability: &str| {
            json!({
                "Status": {"State": "ready"}, "Spec": {"Availability": availability},
                "Description": {"Hostname": host, "Platform": {"OS": "linux", "Architecture": architecture}},
            })
        };
        let nodes = json!([
            node("a", "x86_64", "active"),
            node("b", "aarch64", "active"),
            node("c", "s390x", "drain"),
        ]);
        let hosts = HashMap::from([("a", "a"), ("b", "b")]);
        let of = |mode: &str, on: &[&str]| {
            let tasks = on.iter().filter_map(|host| {
                let status = json!({"State": "running"});
                let seen = json!({"ID": host, "NodeID": host, "DesiredState": "running", "Status": status});
                task(&seen, "web", &hosts, &BTreeSet::new(), "")
            });
            let (mode, constraints) = match mode {
                "Bound" => ("Replicated", json!(["node.labels.gpu == true"])),
                mode => (mode, json!(null)),
            };
            let placement = json!({"Placement": {"Constraints": constraints}});
            let spec = json!({"Spec": {"Mode": {mode: {}}, "TaskTemplate": placement}});
            SwarmService { tasks: tasks.collect(), ..service(&spec) }
        };
        let table: [(&str, &[&str], &[&str], bool); 10] = [
            ("Bound", &["b"], &["linux/amd64"], false),
            ("Bound", &["b"], &["linux/amd64", "linux/arm64"], true),
            ("Bound", &["a", "b"], &["linux/amd64"], true),
            // The swarm finds another node for it.
            ("Replicated", &["b"], &["linux/amd64"], true),
            ("Global", &["a", "b"], &["linux/amd64"], false),
            ("Global", &["a"], &["linux/amd64"], true),
            ("Global", &[], &["linux/amd64"], true),
            ("Replicated", &[], &["linux/arm64"], true),
            // No node of the platform accepts tasks.
            ("Replicated", &[], &["linux/s390x"], false),
            // The registry does not say it.
            ("Replicated", &["b"], &[], true),
        ];
        for (mode, on, built_for, suits) in table {
            let built_for: BTreeSet<String> = built_for.iter().map(|one| (*one).to_owned()).collect();
            let why = misfit(&of(mode, on), &built_for, &nodes);
            assert_eq!(why.is_none(), suits, "{mode} {on:?} {built_for:?}: {why:?}");
        }
    }

    #[test]
    fn platforms_are_in_canonical_form() {
        let manifest = json!({"Platforms": [
            {"architecture": "amd64", "os": "linux"}, {"architecture": "unknown", "os": "unknown"},
        ]});
        let node = |state: &str, architecture: &str| {
            json!({
                "Status": {"State": state},
                "Description": {"Platform": {"OS": "linux", "Architecture": architecture}},
            })
        };
        assert_eq!(platforms(&manifest), BTreeSet::from(["linux/amd64".to_owned()]));
        let nodes = json!([node("ready", "x86_64"), node("down", "aarch64")]);
        assert_eq!(node_platforms(&nodes, |_| true), BTreeSet::from(["linux/amd64".to_owned()]));
    }

    #[test]
    fn log_frames_are_decoded_at_any_chunk_size() {
        let mut framed = Vec::new();
        for (stream, line) in [(1_u8, "one\n"), (2, "two\n")] {
            framed.extend([stream, 0, 0, 0, 0, 0, 0, 4]);
            framed.extend(line.as_bytes());
        }
        for size in [1, 3, 24] {
            let mut frames = LogFrames::default();
            framed.chunks(size).for_each(|piece| frames.push(piece));
            assert_eq!(frames.tail.text().trim(), "one\ntwo");
        }
    }
}
