//! From the engine's answers to our values: defaults filled in, what means nothing left out.

use std::path::PathBuf;
use std::time::Duration;

use bollard::models::{
    ContainerInspectResponse, ContainerState, ContainerStateStatusEnum, EventMessage, HealthConfig,
    HealthStatusEnum, ImageInspect, MountPoint, RestartPolicyNameEnum,
};
use evenkeel_common::wire::MountRecord;
use jiff::Timestamp;

use crate::image::ImageId;
use crate::ports::text::{clean, clip_end, stable};
use crate::ports::{Container, ContainerEvent, Happening, HealthState, HealthTiming, Image, Lender, State};

/// Label with the compose project's name.
pub(super) const PROJECT_LABEL: &str = "com.docker.compose.project";
/// Label with the compose service's name.
pub(super) const SERVICE_LABEL: &str = "com.docker.compose.service";
/// Label with the files that compose was given, separated by commas.
const FILES_LABEL: &str = "com.docker.compose.project.config_files";
/// Label of what `compose run` made. Podman's compose does not set it, which means no.
pub(super) const ONE_OFF_LABEL: &str = "com.docker.compose.oneoff";

/// The health check's last words are shown to people; more than this nobody reads.
const HEALTH_OUTPUT_LIMIT: usize = 500;

/// What the engine uses where a health check sets nothing.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(30);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_RETRIES: u32 = 3;

/// What the engine uses where a container sets nothing.
const SIGTERM: i32 = 15;
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A container from its inspection; `status` is the listing's text. The error names what is missing, since a
/// container about which nothing is known must not look like a stopped one.
pub(super) fn container(seen: ContainerInspectResponse, status: String) -> Result<Container, &'static str> {
    let id = seen.id.ok_or("Id")?;
    let name = seen.name.ok_or("Name")?.trim_start_matches('/').to_owned();
    let image = ImageId(seen.image.ok_or("Image")?);
    let state = seen.state.ok_or("State")?;
    let config = seen.config.ok_or("Config")?;
    let what = self::state(&state);
    let health_timing = config.healthcheck.as_ref().and_then(timing);
    let health = match &state.health {
        // A stopped or paused container keeps its last verdict, or is called unhealthy: neither says anything.
        Some(health) if what == State::Running && health_timing.is_some() => health.status.and_then(verdict),
        _ => None,
    };
    let health_output = state
        .health
        .as_ref()
        .and_then(|health| health.log.as_ref()?.last()?.output.as_deref())
        .map(|output| clip_end(clean(output).trim(), HEALTH_OUTPUT_LIMIT))
        .unwrap_or_default();
    let host = seen.host_config.unwrap_or_default();
    let policy = host.restart_policy.and_then(|policy| policy.name);
    let network_of = host.network_mode.and_then(|mode| {
        let given = mode.strip_prefix("container:")?.to_owned();
        Some(Lender { given, found: None })
    });
    let mut labels = config.labels.unwrap_or_default();
    let mut label = |name: &str| labels.remove(name).unwrap_or_default();
    let mut mounts: Vec<_> = seen.mounts.unwrap_or_default().into_iter().map(mount).collect();
    mounts.sort_by(|a, b| a.destination.cmp(&b.destination));
    Ok(Container {
        id,
        name,
        compose_service: label(SERVICE_LABEL),
        compose_files: label(FILES_LABEL)
            .split(',')
            .filter(|file| !file.is_empty())
            .map(PathBuf::from)
            .collect(),
        config_image: config.image.unwrap_or_default(),
        image,
        state: what,
        status,
        health,
        health_output,
        health_timing,
        restart_count: seen.restart_count.and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
        started_at: state.started_at.as_deref().and_then(moment),
        finished_at: state.finished_at.as_deref().and_then(moment),
        stop_signal: config.stop_signal.as_deref().and_then(signal).unwrap_or(SIGTERM),
        // In podman 0 is what compose leaves where nothing is set.
        stop_timeout: config
            .stop_timeout
            .and_then(|seconds| u64::try_from(seconds).ok())
            .filter(|seconds| *seconds > 0)
            .map_or(STOP_TIMEOUT, Duration::from_secs),
        exit_code: state.exit_code.unwrap_or(0),
        oom_killed: state.oom_killed.unwrap_or(false),
        error: stable(state.error.as_deref().unwrap_or_default()),
        restarts_itself: matches!(
            policy,
            Some(
                RestartPolicyNameEnum::ALWAYS
                    | RestartPolicyNameEnum::UNLESS_STOPPED
                    | RestartPolicyNameEnum::ON_FAILURE
            )
        ),
        network_of,
        mounts,
    })
}

/// Number of a signal as a configuration names it: `SIGTERM`, `TERM`, `15`, `SIGRTMIN+3`.
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

fn state(state: &ContainerState) -> State {
    match state.status {
        Some(ContainerStateStatusEnum::CREATED) => State::Created,
        // A container that is being stopped still runs.
        Some(ContainerStateStatusEnum::RUNNING | ContainerStateStatusEnum::STOPPING) => State::Running,
        Some(ContainerStateStatusEnum::PAUSED) => State::Paused,
        Some(ContainerStateStatusEnum::RESTARTING) => State::Restarting,
        Some(ContainerStateStatusEnum::REMOVING) => State::Removing,
        Some(ContainerStateStatusEnum::EXITED) => State::Exited,
        Some(ContainerStateStatusEnum::DEAD) => State::Dead,
        Some(ContainerStateStatusEnum::EMPTY) | None => match state {
            ContainerState { paused: Some(true), .. } => State::Paused,
            ContainerState { restarting: Some(true), .. } => State::Restarting,
            ContainerState { running: Some(true), .. } => State::Running,
            ContainerState { dead: Some(true), .. } => State::Dead,
            _ => State::Exited,
        },
    }
}

fn verdict(status: HealthStatusEnum) -> Option<HealthState> {
    match status {
        HealthStatusEnum::STARTING => Some(HealthState::Starting),
        HealthStatusEnum::HEALTHY => Some(HealthState::Healthy),
        HealthStatusEnum::UNHEALTHY => Some(HealthState::Unhealthy),
        HealthStatusEnum::EMPTY | HealthStatusEnum::NONE => None,
    }
}

/// `None` where the image has no check, or the container switched it off (`["NONE"]`).
fn timing(config: &HealthConfig) -> Option<HealthTiming> {
    let test = config.test.as_deref().unwrap_or_default();
    if test.is_empty() || test[0] == "NONE" {
        return None;
    }
    let nanos = |value: Option<i64>| value.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
    let or = |value: Option<i64>, default: Duration| match nanos(value) {
        0 => default,
        n => Duration::from_nanos(n),
    };
    Some(HealthTiming {
        start_period: Duration::from_nanos(nanos(config.start_period)),
        interval: or(config.interval, DEFAULT_INTERVAL),
        timeout: or(config.timeout, DEFAULT_TIMEOUT),
        retries: config
            .retries
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| *n > 0)
            .unwrap_or(DEFAULT_RETRIES),
    })
}

/// The engine writes the year 1 for "never".
fn moment(text: &str) -> Option<Timestamp> {
    text.parse::<Timestamp>().ok().filter(|at| *at > Timestamp::UNIX_EPOCH)
}

fn mount(seen: MountPoint) -> MountRecord {
    let kind = seen.typ.unwrap_or_default();
    MountRecord {
        name: if kind == "bind" { String::new() } else { seen.name.unwrap_or_default() },
        source: seen.source.unwrap_or_default(),
        destination: seen.destination.unwrap_or_default(),
        read_only: !seen.rw.unwrap_or(true),
        kind,
    }
}

/// An image from its inspection; `None` where it has no ID.
pub(super) fn image(seen: ImageInspect) -> Option<Image> {
    Some(Image {
        id: ImageId(seen.id?),
        repo_digests: seen.repo_digests.unwrap_or_default(),
        size: seen.size.and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
    })
}

/// Events that the engine is asked for: without this list, health checks' `exec_*` events drown the rest. Podman
/// calls some otherwise (`died`, `remove`), and before 4.4 filters by those words even where it then tells of a
/// `die`. An engine that does not know a word has no such events.
pub(super) const EVENTS: [&str; 14] = [
    "create",
    "start",
    "restart",
    "die",
    "died",
    "kill",
    "stop",
    "oom",
    "pause",
    "unpause",
    "destroy",
    "remove",
    "rename",
    "health_status",
];

/// An event; `None` for one that is about no container.
pub(super) fn event(seen: EventMessage) -> Option<ContainerEvent> {
    let action = seen.action?;
    let actor = seen.actor?;
    let attributes = actor.attributes.unwrap_or_default();
    let number = |name: &str| attributes.get(name).and_then(|text| text.parse().ok());
    let (word, detail) = action.split_once(':').unwrap_or((&action, ""));
    let what = match word {
        "start" => Happening::Start,
        "kill" => Happening::Kill { signal: number("signal").and_then(|n: i64| i32::try_from(n).ok()) },
        // A death without a code did not go well as far as we know.
        "die" | "died" => Happening::Die {
            exit_code: number("exitCode").or_else(|| number("containerExitCode")).unwrap_or(-1),
        },
        "stop" => Happening::Stop,
        "oom" => Happening::Oom,
        // Podman puts the verdict into an attribute.
        "health_status" => {
            let detail = match detail.trim() {
                "" => attributes.get("health_status").map_or("", String::as_str),
                detail => detail,
            };
            match detail {
                "healthy" => Happening::Health(HealthState::Healthy),
                "unhealthy" => Happening::Health(HealthState::Unhealthy),
                "starting" => Happening::Health(HealthState::Starting),
                _ => Happening::Other(action.clone()),
            }
        }
        "destroy" | "remove" => Happening::Destroy,
        _ => Happening::Other(action.clone()),
    };
    Some(ContainerEvent {
        time_nano: seen.time_nano.or_else(|| seen.time?.checked_mul(1_000_000_000)).unwrap_or(0),
        id: actor.id?,
        name: attributes.get("name").cloned().unwrap_or_default(),
        project: attributes.get(PROJECT_LABEL).cloned().unwrap_or_default(),
        what,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn inspected(changes: &Value) -> ContainerInspectResponse {
        let mut base = json!({
            "Id": "c1", "Name": "/p-web-1", "Image": "sha256:aa", "RestartCount": 2,
            "State": {"Status": "running", "Running": true, "ExitCode": 0,
                      "StartedAt": "2024-05-01T10:00:00.123456789Z", "Error": "", "OOMKilled": false},
            "HostConfig": {"RestartPolicy": {"Name": "unless-stopped", "MaximumRetryCount": 0}},
            "Config": {"Image": "localhost:5000/web:1", "Labels": {"com.docker.compose.service": "web"}},
            "Mounts": [],
        });
        merge(&mut base, changes);
        serde_json::from_value(base).unwrap()
    }

    fn merge(base: &mut Value, changes: &Value) {
        match (base, changes) {
            (Value::Object(base), Value::Object(changes)) => {
                for (key, value) in changes {
                    merge(base.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
            (base, changes) => *base = changes.clone(),
        }
    }

    fn made(changes: &Value) -> Container {
        container(inspected(changes), "Up 3 minutes".into()).unwrap()
    }

    #[test]
    fn a_plain_container_is_taken_over() {
        let c = made(&json!({}));
        assert_eq!((c.name.as_str(), c.compose_service.as_str()), ("p-web-1", "web"));
        assert_eq!(c.config_image, "localhost:5000/web:1");
        assert_eq!(c.image, ImageId("sha256:aa".into()));
        assert_eq!((c.state, c.restart_count, c.restarts_itself), (State::Running, 2, true));
        assert_eq!(c.started_at.unwrap().as_nanosecond() % 1_000_000_000, 123_456_789);
        assert_eq!((c.health, c.health_timing), (None, None));
        assert_eq!(c.status, "Up 3 minutes");
    }

    #[test]
    fn health_timing_gets_the_engines_defaults() {
        let c = made(&json!({"Config": {"Healthcheck": {"Test": ["CMD", "x"], "Interval": 0}}}));
        assert_eq!(c.health_timing.unwrap().budget(), Duration::from_secs(30 * 4 + 30));
        let c = made(&json!({"Config": {"Healthcheck": {"Test": ["CMD", "x"], "Interval": 2_000_000_000_u64,
            "Timeout": 1_000_000_000, "Retries": 5, "StartPeriod": 10_000_000_000_u64}}}));
        assert_eq!(c.health_timing.unwrap().budget(), Duration::from_secs(10 + 2 * 6 + 1));
    }

    #[test]
    fn a_check_that_is_switched_off_is_no_check() {
        let c = made(&json!({"Config": {"Healthcheck": {"Test": ["NONE"]}},
            "State": {"Health": {"Status": "unhealthy"}}}));
        assert_eq!((c.health, c.health_timing), (None, None));
        let c = made(&json!({"Config": {"Healthcheck": {}}}));
        assert_eq!(c.health_timing, None);
    }

    #[test]
    fn health_counts_only_while_running() {
        let check = json!({"Healthcheck": {"Test": ["CMD", "x"]}});
        let health = |state: &str, verdict: &str| {
            made(&json!({"Config": check, "State": {"Status": state, "Health": {"Status": verdict}}})).health
        };
        assert_eq!(health("running", "unhealthy"), Some(HealthState::Unhealthy));
        assert_eq!(health("running", "starting"), Some(HealthState::Starting));
        assert_eq!(health("running", "healthy"), Some(HealthState::Healthy));
        assert_eq!(health("running", "none"), None);
        for state in ["paused", "exited", "created", "restarting"] {
            assert_eq!(health(state, "unhealthy"), None, "{state}");
        }
    }

    #[test]
    fn the_last_probes_words_are_cleaned_and_clipped() {
        let c = made(&json!({"State": {"Health": {"Status": "unhealthy", "Log": [
            {"Start": "2024-05-01T10:00:00+02:00", "End": "2024-05-01T10:00:00+02:00", "ExitCode": 1, "Output": "old"},
            {"Start": "2024-05-01T10:00:00Z", "End": "2024-05-01T10:00:00Z", "ExitCode": 1,
             "Output": format!("\u{1b}[31m no \n{}", "x".repeat(4000))}]}}}));
        assert!(c.health_output.starts_with("no \nxxx"), "{:?}", c.health_output);
        assert_eq!(c.health_output.chars().count(), 501);
    }

    #[test]
    fn a_container_that_never_ran_has_no_start_and_says_why() {
        let c = made(
            &json!({"State": {"Status": "created", "StartedAt": "0001-01-01T00:00:00Z", "ExitCode": 127,
            "Error": "exec: \"/nope\": not found"}}),
        );
        assert_eq!((c.state, c.started_at, c.exit_code), (State::Created, None, 127));
        assert_eq!(c.error, "exec: \"/nope\": not found");
    }

    #[test]
    fn nulls_and_absent_fields_are_tolerated_but_not_a_missing_state() {
        let c = made(&json!({"Mounts": null, "HostConfig": null, "RestartCount": null,
            "Config": {"Labels": null, "Image": null}, "State": {"Health": null, "StartedAt": ""}}));
        assert_eq!((c.restarts_itself, c.started_at), (false, None));
        assert_eq!(container(inspected(&json!({"State": null})), String::new()), Err("State"));
    }

    #[test]
    fn restart_policies_tell_whether_the_engine_starts_it_again() {
        for (name, want) in [("always", true), ("on-failure", true), ("no", false), ("", false)] {
            let c = made(&json!({"HostConfig": {"RestartPolicy": {"Name": name}}}));
            assert_eq!(c.restarts_itself, want, "{name}");
        }
    }

    #[test]
    fn mounts_have_the_form_of_the_specification_in_a_fixed_order() {
        let c = made(&json!({"Mounts": [
            {"Type": "volume", "Name": "data", "Source": "/var/lib/docker/volumes/data/_data", "Destination": "/z", "RW": true},
            {"Type": "bind", "Name": "x", "Source": "/srv", "Destination": "/b", "RW": false},
            {"Type": "tmpfs", "Source": "", "Destination": "/t", "RW": true}]}));
        let seen: Vec<_> = c
            .mounts
            .iter()
            .map(|m| (m.kind.as_str(), m.name.as_str(), m.destination.as_str(), m.read_only))
            .collect();
        assert_eq!(
            seen,
            [("bind", "", "/b", true), ("tmpfs", "", "/t", false), ("volume", "data", "/z", false)]
        );
    }

    fn happened(action: &str, attributes: &Value) -> Happening {
        let message = json!({"Type": "container", "Action": action, "scope": "local", "time": 5,
            "timeNano": 5_000_000_001_i64, "Actor": {"ID": "c1", "Attributes": attributes}});
        event(serde_json::from_value(message).unwrap()).unwrap().what
    }

    #[test]
    fn events_are_known_by_the_start_of_their_action() {
        let none = json!({"name": "a"});
        assert_eq!(happened("start", &none), Happening::Start);
        assert_eq!(happened("kill", &json!({"signal": "15"})), Happening::Kill { signal: Some(15) });
        assert_eq!(happened("kill", &none), Happening::Kill { signal: None });
        assert_eq!(happened("die", &json!({"exitCode": "137"})), Happening::Die { exit_code: 137 });
        assert_eq!(happened("die", &json!({"containerExitCode": "3"})), Happening::Die { exit_code: 3 });
        assert_eq!(happened("die", &none), Happening::Die { exit_code: -1 });
        assert_eq!(happened("health_status: healthy", &none), Happening::Health(HealthState::Healthy));
        assert_eq!(happened("health_status:unhealthy", &none), Happening::Health(HealthState::Unhealthy));
        let podman = json!({"health_status": "unhealthy"});
        assert_eq!(happened("health_status", &podman), Happening::Health(HealthState::Unhealthy));
        assert_eq!(happened("destroy", &none), Happening::Destroy);
        assert_eq!(happened("remove", &none), Happening::Destroy);
        assert_eq!(happened("died", &json!({"containerExitCode": "7"})), Happening::Die { exit_code: 7 });
        assert_eq!(happened("exec_create: sh -c x", &none), Happening::Other("exec_create: sh -c x".into()));
    }

    #[test]
    fn an_event_keeps_its_nanoseconds_name_and_project() {
        let message = json!({"Action": "oom", "timeNano": 1_714_557_600_123_456_789_i64,
            "Actor": {"ID": "c1", "Attributes": {"name": "p-web-1", "com.docker.compose.project": "p"}}});
        let seen = event(serde_json::from_value(message).unwrap()).unwrap();
        assert_eq!(seen.time_nano, 1_714_557_600_123_456_789);
        assert_eq!((seen.name.as_str(), seen.project.as_str()), ("p-web-1", "p"));
        assert!(event(EventMessage::default()).is_none());
    }

    #[test]
    fn a_stop_time_that_is_not_set_is_the_engines() {
        for (given, seconds) in [(json!(30), 30), (json!(null), 10), (json!(0), 10), (json!(-1), 10)] {
            let c = made(&json!({"Config": {"StopTimeout": given}}));
            assert_eq!(c.stop_timeout, Duration::from_secs(seconds), "{given}");
        }
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in
            [("SIGTERM", 15), ("term", 15), ("15", 15), ("SIGWINCH", 28), ("HUP", 1), ("SIGRTMIN+3", 37)]
        {
            assert_eq!(signal(text), Some(number), "{text}");
        }
        assert_eq!((signal("nonsense"), signal("")), (None, None));
    }
}
