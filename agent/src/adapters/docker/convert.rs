//! Converts engine responses to model types: fills in defaults, drops meaningless values, leaves missing ones unknown.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_common::wire::MountRecord;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::answer::{amount, container_name, flag, list, map, number, text, texts};
use crate::model::container::is_full_id;
use crate::model::definition::RECORDED_SUFFIX;
use crate::model::image::ImageId;
use crate::model::image_config::ImageConfig;
use crate::model::output::{clean, clip_end, stable};
use crate::model::{
    Awaited, Container, ContainerEvent, EventKind, HealthState, HealthTiming, Manager, NetworkOwner, Origin,
    Platform, RestartPolicy, State,
};
use crate::ports::{HOLD_LABEL, HOLD_PREFIX, Image};

/// Label with the name of the compose project.
pub(super) const PROJECT_LABEL: &str = "com.docker.compose.project";
/// Label with the name of the compose service.
pub(super) const SERVICE_LABEL: &str = "com.docker.compose.service";
/// Label with compose's files, separated by commas.
const FILES_LABEL: &str = "com.docker.compose.project.config_files";
/// Label with the project directory.
pub(super) const FOLDER_LABEL: &str = "com.docker.compose.project.working_dir";
/// Label with the env files that compose interpolated the files with, separated by commas.
const ENV_FILES_LABEL: &str = "com.docker.compose.project.environment_file";
/// Label with the dependencies of a compose service as `service:condition:restart`, separated by commas.
pub(super) const DEPENDS_ON_LABEL: &str = "com.docker.compose.depends_on";
/// Label with the number of a container among those of its compose service. All containers of all composes have it.
const NUMBER_LABEL: &str = "com.docker.compose.container-number";
/// Label with the version of compose.
const VERSION_LABEL: &str = "com.docker.compose.version";
/// Label of containers created by `compose run`. Podman's compose does not set it, which counts as no.
pub(super) const ONE_OFF_LABEL: &str = "com.docker.compose.oneoff";
/// Podman's label with the name of the systemd unit that runs the container.
const UNIT_LABEL: &str = "PODMAN_SYSTEMD_UNIT";
/// Label of a container that `podman auto-update` updates.
const AUTO_UPDATE_LABEL: &str = "io.containers.autoupdate";

/// Maximum length of the health check output that is shown to users.
const HEALTH_OUTPUT_LIMIT: usize = 500;

/// Exit code of a process that SIGKILL ended, the OOM killer's signal.
const KILLED: i64 = 137;
/// How long after its end a killed container's `OOMKilled` flag may still be missing: the engine hears of the end and of the
/// OOM kill separately, in either order.
const OOM_REPORT: Duration = Duration::from_secs(1);
/// How long after a start podman notes it at most, so that a short run may seem to end before it began. A restart takes longer
/// than this from the end of one run to the start of the next.
const START_NOTED: SignedDuration = SignedDuration::from_millis(200);

/// The networks that docker has by itself, each with another ID after every start of the engine.
const OWN_NETWORKS: [&str; 5] = ["bridge", "default", "host", "nat", "none"];

/// The kernel's period of a CPU quota in microseconds.
const DEFAULT_CPU_PERIOD: f64 = 100_000.0;

/// The engine's defaults for stopping containers.
const SIGTERM: i32 = 15;
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Upper bound of a container's stop timeout, which can be set to centuries.
const LONGEST_STOP: Duration = Duration::from_hours(24);

/// Returns a container's address on its first network, by name.
pub(super) fn address(seen: &Value) -> Option<IpAddr> {
    let networks = seen.pointer("/NetworkSettings/Networks").and_then(Value::as_object)?;
    let mut names: Vec<&String> = networks.keys().collect();
    names.sort();
    let of = |name: &&String| {
        let keys = ["IPAddress", "GlobalIPv6Address"];
        keys.iter().find_map(|key| networks.get(*name)?.get(*key)?.as_str()?.parse().ok())
    };
    names.iter().find_map(of)
}

/// Returns the output of the last probe of a container's health check in its last run; empty if there was none.
pub(super) fn health_output(seen: &Value) -> String {
    let output = last_probe(seen).and_then(|probe| text(probe, "/Output"));
    output.map(|output| clip_end(clean(output).trim(), HEALTH_OUTPUT_LIMIT)).unwrap_or_default()
}

/// Returns the last probe of a container's health check. The engine keeps those of earlier runs, which say nothing about
/// the last one.
fn last_probe(seen: &Value) -> Option<&Value> {
    list(seen, "/State/Health/Log").last().filter(|probe| is_of_last_run(seen, probe))
}

fn is_of_last_run(seen: &Value, probe: &Value) -> bool {
    let (started_at, probed_at) = (text(seen, "/State/StartedAt"), text(probe, "/Start"));
    let times = started_at.and_then(moment).zip(probed_at.and_then(moment));
    times.is_none_or(|(started, probed)| probed >= started)
}

/// Reports whether a container's health check has passed in its last run. The engine remembers a few probes: the last one may
/// have failed because the process was ending.
fn has_served(seen: &Value) -> bool {
    let has_passed = |probe: &Value| number(probe, "/ExitCode") == Some(0);
    list(seen, "/State/Health/Log").iter().any(|probe| has_passed(probe) && is_of_last_run(seen, probe))
}

/// Returns the state of a running container's health check.
fn health(seen: &Value, timing: &HealthTiming) -> Option<HealthState> {
    let state = verdict(text(seen, "/State/Health/Status")?)?;
    let streak = amount(seen, "/State/Health/FailingStreak");
    // Only this many failed probes in a row make a container unhealthy. The engine says so with fewer, too, if it stopped
    // probing because the container was paused.
    let is_measured = streak.is_none_or(|streak| streak >= u64::from(timing.retries));
    Some(if state == HealthState::Unhealthy && !is_measured { HealthState::Unmeasured } else { state })
}

/// Reports whether a container has its compose labels from its image. Compose labels an image that it builds with project,
/// service and its own version (`getImageBuildLabels`), and each container that it creates also with a number. A
/// `docker run` of such an image belongs to no project.
pub(super) fn are_of_image(labels: &HashMap<String, String>) -> bool {
    labels.contains_key(VERSION_LABEL) && !labels.contains_key(NUMBER_LABEL)
}

/// Reports whether a container of this name only keeps an image. The label alone does not say so: an image can have it.
pub(super) fn is_anchor(name: Option<&str>, labels: &HashMap<String, String>) -> bool {
    labels.contains_key(HOLD_LABEL) && name.is_some_and(|name| name.starts_with(HOLD_PREFIX))
}

/// Returns the paths of a label, which compose separates by commas. A path can contain commas as well: what does not begin with
/// `/` is the rest of the absolute path before it, unless it is `-`, the standard input.
fn paths(label: &str) -> Vec<String> {
    let mut paths: Vec<String> = Vec::new();
    for piece in label.split(',') {
        match paths.last_mut() {
            Some(path) if path.starts_with('/') && !piece.starts_with('/') && piece != "-" => {
                path.push(',');
                path.push_str(piece);
            }
            _ => paths.push(piece.to_owned()),
        }
    }
    paths.retain(|path| !path.is_empty());
    paths
}

/// Returns the env files that a label of a container, or of its image, names. Compose's paths are absolute.
pub(super) fn env_files(labels: &HashMap<String, String>) -> Vec<PathBuf> {
    let label = labels.get(ENV_FILES_LABEL).map(String::as_str).unwrap_or_default();
    paths(label).into_iter().map(PathBuf::from).filter(|file| file.is_absolute()).collect()
}

/// Builds a container from its list entry and its inspection; either may be null. Fields missing in the inspection are
/// taken from the list entry. Returns `None` without an ID.
pub(super) fn container(listed: &Value, seen: &Value, podman: bool) -> Option<Container> {
    let id = text(seen, "/Id").or_else(|| text(listed, "/Id"))?.to_owned();
    let name = text(seen, "/Name").or_else(|| container_name(listed)).unwrap_or_else(|| short(&id));
    let name = name.trim_start_matches('/').to_owned();
    let state = state(listed, seen);
    let health_timing = seen.pointer("/Config/Healthcheck").and_then(timing);
    // The status of a stopped or paused container is meaningless: the last one, or unhealthy.
    let health = health_timing.filter(|_| state == State::Running).and_then(|timing| health(seen, &timing));
    let mut labels = map(seen, "/Config/Labels").or_else(|| map(listed, "/Labels")).unwrap_or_default();
    if are_of_image(&labels) {
        labels.retain(|name, _| !name.starts_with("com.docker.compose."));
    }
    let mounts = if seen["Mounts"].is_array() { seen } else { listed };
    let mut mounts: Vec<_> = list(mounts, "/Mounts").iter().map(mount).collect();
    // Compose's `tmpfs:` and `docker run --tmpfs` are listed here only, those with `type: tmpfs` among the mounts.
    let short = map(seen, "/HostConfig/Tmpfs").unwrap_or_default().into_iter().map(tmpfs);
    let short: Vec<_> = short.filter(|one| mounts.iter().all(|m| m.destination != one.destination)).collect();
    mounts.extend(short);
    mounts.sort_by(|a, b| a.destination.cmp(&b.destination));
    let (exit_code, finished_at) = end(state, text(listed, "/Status").unwrap_or_default(), seen, podman);
    let depends_on = labels.remove(DEPENDS_ON_LABEL).unwrap_or_default();
    Some(Container {
        name,
        manager: manager(&labels).filter(|_| podman),
        project: labels.remove(PROJECT_LABEL).unwrap_or_default(),
        compose_service: labels.remove(SERVICE_LABEL).unwrap_or_default(),
        compose_files: paths(&labels.remove(FILES_LABEL).unwrap_or_default())
            .into_iter()
            // A rollback reads what was recorded; it says nothing of the project's own files.
            .filter(|file| !file.ends_with(RECORDED_SUFFIX))
            .map(PathBuf::from)
            .collect(),
        origin: Origin {
            folder: labels.remove(FOLDER_LABEL).map(PathBuf::from).filter(|folder| folder.is_absolute()),
            env_files: env_files(&labels),
        },
        env_files_of_image: Vec::new(),
        restarts_with: depends_on.split(',').filter_map(restarted_with).collect(),
        waits_for: depends_on.split(',').filter_map(awaited).collect(),
        config_image: created_from(listed, seen),
        image: ImageId(text(seen, "/Image").or_else(|| text(listed, "/ImageID")).unwrap_or_default().into()),
        state,
        health,
        health_output: health_output(seen),
        probed_at: last_probe(seen).and_then(|probe| text(probe, "/Start")).and_then(moment),
        served: has_served(seen),
        health_timing,
        restart_count: amount(seen, "/RestartCount").unwrap_or(0),
        started_at: text(seen, "/State/StartedAt").and_then(moment),
        finished_at,
        stop_signal: text(seen, "/Config/StopSignal").and_then(signal).unwrap_or(SIGTERM),
        // With podman, compose leaves 0 if nothing is set.
        stop_timeout: amount(seen, "/Config/StopTimeout")
            .filter(|seconds| *seconds > 0)
            .map_or(STOP_TIMEOUT, Duration::from_secs)
            .min(LONGEST_STOP),
        exit_code,
        oom_killed: flag(seen, "/State/OOMKilled").unwrap_or(false),
        // Only podman has a state for this.
        is_stopping: text(seen, "/State/Status").or_else(|| text(listed, "/State")) == Some("stopping"),
        error: stable(text(seen, "/State/Error").unwrap_or_default()),
        restart_policy: match text(seen, "/HostConfig/RestartPolicy/Name") {
            Some("always") => RestartPolicy::Always,
            Some("unless-stopped") => RestartPolicy::UnlessStopped,
            Some("on-failure") => RestartPolicy::OnFailure,
            _ if flag(seen, "/HostConfig/AutoRemove") == Some(true) => RestartPolicy::Removed,
            _ => RestartPolicy::No,
        },
        cpu_limit: cpu_limit(seen),
        network_of: text(seen, "/HostConfig/NetworkMode")
            .and_then(|mode| mode.strip_prefix("container:"))
            .map(|owner| NetworkOwner { id_or_name: owner.to_owned(), resolved: None }),
        lost_networks: Vec::new(),
        mounts,
        id,
    })
}

/// Returns the networks, by ID, that docker looks for when it starts a container. It looks its own ones up by name, and creates
/// those of a swarm where they are missing.
pub(super) fn networks_at_start(seen: &Value) -> Vec<String> {
    let networks = seen.pointer("/NetworkSettings/Networks").and_then(Value::as_object);
    let made = networks.into_iter().flatten().filter(|(name, _)| !OWN_NETWORKS.contains(&name.as_str()));
    let ids = made.filter_map(|(_, about)| text(about, "/NetworkID"));
    ids.filter(|id| is_full_id(id)).map(str::to_owned).collect()
}

/// Returns the compose service of a dependency, if a container is restarted with it.
fn restarted_with(dependency: &str) -> Option<String> {
    dependency.strip_suffix(":true")?.split(':').next().map(str::to_owned)
}

/// Returns the compose service of a dependency and what it must have reached, if compose waits for more than its start.
fn awaited(dependency: &str) -> Option<(String, Awaited)> {
    let mut parts = dependency.split(':');
    let service = parts.next()?.to_owned();
    match parts.next()? {
        "service_healthy" => Some((service, Awaited::Healthy)),
        "service_completed_successfully" => Some((service, Awaited::Completed)),
        _ => None,
    }
}

/// Returns how many cores a container may use at most: by its quota, and by the cores that it is pinned to.
fn cpu_limit(seen: &Value) -> Option<f64> {
    let of = |pointer: &str| amount(seen, pointer).filter(|n| *n > 0).map(|n| n as f64);
    let quota =
        || Some(of("/HostConfig/CpuQuota")? / of("/HostConfig/CpuPeriod").unwrap_or(DEFAULT_CPU_PERIOD));
    let limit = of("/HostConfig/NanoCpus").map(|nanos| nanos / 1e9).or_else(quota);
    let pinned = text(seen, "/HostConfig/CpusetCpus").and_then(cores_in_set);
    limit.into_iter().chain(pinned).reduce(f64::min)
}

/// Returns the number of cores in a list such as `0-3,6`.
fn cores_in_set(set: &str) -> Option<f64> {
    let cores = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some(f64::from(last.checked_sub(first)?) + 1.0)
    };
    set.split(',').map(cores).sum()
}

/// Reports whether a container was killed so recently that the engine may yet learn that it was the OOM killer. With the
/// engine's clock off by more than a second, never.
pub(super) fn may_be_oom_killed(seen: &Value, now: Timestamp) -> bool {
    let has_ended = matches!(state(&Value::Null, seen), State::Exited | State::Restarting);
    let is_killed =
        number(seen, "/State/ExitCode") == Some(KILLED) && flag(seen, "/State/OOMKilled") == Some(false);
    let is_recent = |ended: Timestamp| now.duration_since(ended).unsigned_abs() < OOM_REPORT;
    has_ended && is_killed && text(seen, "/State/FinishedAt").and_then(moment).is_some_and(is_recent)
}

fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

/// Returns the image reference that the container was created from. Once the tag has moved, the list entry only has an
/// ID, which is of no use here.
fn created_from(listed: &Value, seen: &Value) -> String {
    let listed = || text(listed, "/Image").filter(|image| !image.starts_with("sha256:"));
    text(seen, "/Config/Image").or_else(listed).unwrap_or_default().to_owned()
}

/// Returns the exit code, or -1 if an exited container has none: success cannot be assumed.
fn exit_code(state: State, status: &str, seen: &Value) -> i64 {
    let ended = matches!(state, State::Exited | State::Dead);
    let in_words = || {
        let (_, rest) = status.split_once('(').filter(|_| status.starts_with("Exited"))?;
        rest.split_once(')')?.0.parse().ok()
    };
    number(seen, "/State/ExitCode").or_else(in_words).unwrap_or(if ended { -1 } else { 0 })
}

/// Returns the exit code of the last run, and when it ended. After a power cut podman says that everything that ran has exited
/// with 0, and has no end, or that of an earlier run: nobody knows how it ended.
fn end(state: State, status: &str, seen: &Value, podman: bool) -> (i64, Option<Timestamp>) {
    let time = |pointer: &str| text(seen, pointer).and_then(moment);
    let (code, finished) = (exit_code(state, status, seen), time("/State/FinishedAt"));
    let is_of_earlier_run =
        |started: Timestamp| finished.is_none_or(|end| started.duration_since(end) > START_NOTED);
    let is_success = podman && state == State::Exited && code == 0;
    if is_success && time("/State/StartedAt").is_some_and(is_of_earlier_run) {
        return (-1, None);
    }
    (code, finished)
}

/// Returns who manages the container, if the agent must not touch it (DECISIONS 9).
fn manager(labels: &HashMap<String, String>) -> Option<Manager> {
    let set = |name: &str| labels.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
    if let Some(unit) = set(UNIT_LABEL) {
        return Some(Manager::Unit(clean(unit)));
    }
    set(AUTO_UPDATE_LABEL).filter(|policy| *policy != "disabled").map(|_| Manager::AutoUpdate)
}

/// Parses a signal from a container's configuration: `SIGTERM`, `TERM`, `15`, `SIGRTMIN+3`.
fn signal(text: &str) -> Option<i32> {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
        "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
        "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    const FIRST_REALTIME: i32 = 34;
    let name = text.trim().to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    if let Some(more) = name.strip_prefix("RTMIN") {
        let more = if more.is_empty() { 0 } else { more.parse().ok()? };
        return Some(FIRST_REALTIME + more);
    }
    let number = (1..).zip(NAMES).find(|(_, known)| *known == name).map(|(number, _)| number);
    number.or_else(|| name.parse().ok())
}

/// Returns the state from its name, its flags, or the list entry. An unknown name counts as absent.
pub(super) fn state(listed: &Value, seen: &Value) -> State {
    let by_flags = || {
        let is = |name: &str| flag(seen, &format!("/State/{name}"));
        match (is("Paused"), is("Restarting"), is("Running"), is("Dead")) {
            (Some(true), ..) => Some(State::Paused),
            (_, Some(true), ..) => Some(State::Restarting),
            (.., Some(true), _) => Some(State::Running),
            (.., Some(true)) => Some(State::Dead),
            // If the name is unknown, "not running" does not mean that the container has exited.
            (.., Some(false), _) if text(seen, "/State/Status").is_none() => Some(State::Exited),
            _ => None,
        }
    };
    let by_word = |answer, pointer| text(answer, pointer).and_then(state_named);
    by_word(seen, "/State/Status")
        .or_else(by_flags)
        .or_else(|| by_word(listed, "/State"))
        .or_else(|| state_described(text(listed, "/Status")?))
        .unwrap_or(State::Unknown)
}

fn state_named(word: &str) -> Option<State> {
    Some(match word {
        // Docker's name first, then podman's.
        "created" | "configured" | "initialized" => State::Created,
        // A container that is being stopped is still running.
        "running" | "stopping" => State::Running,
        "paused" => State::Paused,
        "restarting" => State::Restarting,
        "removing" => State::Removing,
        // In podman, `stopped` is the state between the container's exit and its cleanup.
        "exited" | "stopped" => State::Exited,
        "dead" => State::Dead,
        _ => return None,
    })
}

/// Parses the state from a status text such as `Up 3 minutes (healthy)`.
fn state_described(status: &str) -> Option<State> {
    Some(match status.split_whitespace().next()? {
        "Up" if status.ends_with("(Paused)") => State::Paused,
        "Up" => State::Running,
        "Exited" => State::Exited,
        "Restarting" => State::Restarting,
        "Created" => State::Created,
        "Removal" => State::Removing,
        "Dead" => State::Dead,
        _ => return None,
    })
}

/// Parses a health status. An unknown word counts as none.
fn verdict(word: &str) -> Option<HealthState> {
    match word {
        "starting" => Some(HealthState::Starting),
        "healthy" => Some(HealthState::Healthy),
        "unhealthy" => Some(HealthState::Unhealthy),
        _ => None,
    }
}

/// Returns the health check's timing, or `None` if the image has no check or the container disables it (`["NONE"]`).
fn timing(config: &Value) -> Option<HealthTiming> {
    let test = texts(config, "/Test");
    if test.first().is_none_or(|first| first == "NONE") {
        return None;
    }
    let nanos = |pointer: &str| amount(config, pointer).unwrap_or(0);
    let or = |pointer: &str, default: Duration| match nanos(pointer) {
        0 => default,
        n => Duration::from_nanos(n),
    };
    Some(HealthTiming {
        start_period: Duration::from_nanos(nanos("/StartPeriod")),
        interval: or("/Interval", HealthTiming::DEFAULT.interval),
        timeout: or("/Timeout", HealthTiming::DEFAULT.timeout),
        retries: amount(config, "/Retries")
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| *n > 0)
            .unwrap_or(HealthTiming::DEFAULT.retries),
    })
}

/// The first second of the year 9000, before which all times are that are taken from an engine.
const FAR_FUTURE: i64 = 221_845_392_000;

/// Parses a time. The engine writes the year 1 for "never". A time so late that adding to it could overflow is unknown.
pub(super) fn moment(text: &str) -> Option<Timestamp> {
    let is_plausible = |at: &Timestamp| *at > Timestamp::UNIX_EPOCH && at.as_second() < FAR_FUTURE;
    text.parse::<Timestamp>().ok().filter(is_plausible)
}

fn mount(seen: &Value) -> MountRecord {
    let said = |pointer: &str| text(seen, pointer).unwrap_or_default().to_owned();
    let kind = said("/Type");
    MountRecord {
        name: if kind == "bind" { String::new() } else { said("/Name") },
        source: said("/Source"),
        destination: said("/Destination"),
        read_only: !flag(seen, "/RW").unwrap_or(true),
        kind,
    }
}

fn tmpfs((destination, options): (String, String)) -> MountRecord {
    MountRecord {
        kind: "tmpfs".to_owned(),
        name: String::new(),
        source: String::new(),
        destination,
        read_only: options.split(',').any(|option| option == "ro"),
    }
}

/// Builds an image from its inspection, or `None` without an ID. With the containerd store, the inspection of an image with
/// missing content has neither architecture nor layers.
pub(super) fn image(seen: &Value) -> Option<Image> {
    Some(Image {
        id: ImageId(text(seen, "/Id")?.into()),
        repo_digests: texts(seen, "/RepoDigests"),
        size: amount(seen, "/Size").unwrap_or(0),
        config: seen.get("Config").map(ImageConfig::read).unwrap_or_default(),
        platform: Platform::new(
            text(seen, "/Os").unwrap_or_default(),
            text(seen, "/Architecture").unwrap_or_default(),
            text(seen, "/Variant").unwrap_or_default(),
        ),
        is_complete: text(seen, "/Architecture").is_some() || !list(seen, "/RootFS/Layers").is_empty(),
    })
}

/// The requested events. Without this filter, the `exec_*` events of health checks would drown out the rest. Podman has
/// other names for some (`died`, `remove`), and before 4.4 it filters by those names even when it then reports `die`.
/// Engines ignore names that they do not support.
pub(super) const EVENTS: [&str; 14] = [
    "create", "start", "restart", "die", "died", "kill", "stop", "oom", "pause", "unpause", "destroy",
    "remove", "rename", HEALTH,
];

/// The event of a health check: Docker's of a change, podman's of each probe.
pub(super) const HEALTH: &str = "health_status";

/// Returns the time of an event in nanoseconds since the epoch.
pub(super) fn event_time(seen: &Value) -> Option<i64> {
    number(seen, "/timeNano").or_else(|| number(seen, "/time")?.checked_mul(1_000_000_000))
}

/// Parses an event. Returns `None` if it is not about a container.
pub(super) fn event(seen: &Value) -> Option<ContainerEvent> {
    if text(seen, "/Type").is_some_and(|kind| kind != "container") {
        return None;
    }
    // API 1.52 removed the older names of these fields.
    let action = text(seen, "/Action").or_else(|| text(seen, "/status"))?;
    let id = text(seen, "/Actor/ID").or_else(|| text(seen, "/id"))?.to_owned();
    let attributes = map(seen, "/Actor/Attributes").unwrap_or_default();
    let number_of = |name: &str| attributes.get(name).and_then(|text| text.parse().ok());
    let (word, detail) = action.split_once(':').unwrap_or((action, ""));
    let what = match word {
        "start" => EventKind::Start,
        "kill" => EventKind::Kill { signal: number_of("signal").and_then(|n: i64| i32::try_from(n).ok()) },
        // Without an exit code, success cannot be assumed.
        "die" | "died" => EventKind::Die {
            exit_code: number_of("exitCode").or_else(|| number_of("containerExitCode")).unwrap_or(-1),
        },
        "stop" => EventKind::Stop,
        "unpause" => EventKind::Unpause,
        "oom" => EventKind::Oom,
        // Podman reports the health status in an attribute.
        HEALTH => {
            let detail = match detail.trim() {
                "" => attributes.get(HEALTH).map_or("", String::as_str),
                detail => detail,
            };
            verdict(detail).map_or_else(|| EventKind::Other(action.to_owned()), EventKind::Health)
        }
        "destroy" | "remove" => EventKind::Destroy,
        _ => EventKind::Other(action.to_owned()),
    };
    Some(ContainerEvent {
        time_nano: event_time(seen).unwrap_or(0),
        id,
        name: attributes.get("name").cloned().unwrap_or_default(),
        project: attributes
            .get(PROJECT_LABEL)
            .filter(|_| !are_of_image(&attributes))
            .cloned()
            .unwrap_or_default(),
        what,
    })
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
