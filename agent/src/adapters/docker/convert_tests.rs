//! Tests of the conversion of engine responses.

use serde_json::json;

use super::*;

fn inspected(changes: &Value) -> Value {
    let mut base = json!({
        "Id": "c1", "Name": "/p-web-1", "Image": "sha256:aa", "RestartCount": 2,
        "State": {"Status": "running", "Running": true, "ExitCode": 0,
                  "StartedAt": "2024-05-01T10:00:00.123456789Z", "Error": "", "OOMKilled": false},
        "HostConfig": {"RestartPolicy": {"Name": "unless-stopped", "MaximumRetryCount": 0}},
        "Config": {"Image": "localhost:5000/web:1", "Labels": {"com.docker.compose.service": "web"}},
        "Mounts": [],
    });
    merge(&mut base, changes);
    base
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
    container(&json!({"Status": "Up 3 minutes"}), &inspected(changes), true).unwrap()
}

#[test]
fn a_plain_container_is_converted() {
    let c = made(&json!({}));
    assert_eq!((c.name.as_str(), c.compose_service.as_str()), ("p-web-1", "web"));
    assert_eq!(c.config_image, "localhost:5000/web:1");
    assert_eq!(c.image, ImageId("sha256:aa".into()));
    assert_eq!(
        (c.state, c.restart_count, c.restart_policy),
        (State::Running, 2, RestartPolicy::UnlessStopped)
    );
    assert_eq!(c.started_at.unwrap().as_nanosecond() % 1_000_000_000, 123_456_789);
    assert_eq!((c.health, c.health_timing), (None, None));
    let passing = made(&json!({"HostConfig": {"AutoRemove": true, "RestartPolicy": {"Name": "no"}}}));
    assert_eq!(passing.restart_policy, RestartPolicy::Removed);
}

#[test]
fn what_compose_waits_for_is_read_from_the_label() {
    let label = "db:service_healthy:true,migrate:service_completed_successfully:false,\
                 cache:service_started:false,odd";
    let c = made(&json!({"Config": {"Labels": {"com.docker.compose.depends_on": label}}}));
    let expected = [("db".to_owned(), Awaited::Healthy), ("migrate".to_owned(), Awaited::Completed)];
    assert_eq!(c.waits_for, expected);
    assert_eq!(c.restarts_with, ["db"]);
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
fn a_disabled_health_check_is_none() {
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
fn the_last_probes_output_is_cleaned_and_clipped() {
    let c = made(
        &json!({"State": {"StartedAt": "2024-05-01T09:59:00Z", "Health": {"Status": "unhealthy", "Log": [
        {"Start": "2024-05-01T10:00:00+02:00", "End": "2024-05-01T10:00:00+02:00", "ExitCode": 1, "Output": "old"},
        {"Start": "2024-05-01T10:00:00Z", "End": "2024-05-01T10:00:00Z", "ExitCode": 1,
         "Output": format!("\u{1b}[31m no \n{}", "x".repeat(4000))}]}}}),
    );
    assert!(c.health_output.starts_with("no \nxxx"), "{:?}", c.health_output);
    assert_eq!(c.health_output.chars().count(), 501);
}

#[test]
fn unhealthy_without_enough_failed_probes_is_not_measured() {
    let check = json!({"Healthcheck": {"Test": ["CMD", "x"], "Retries": 3}});
    let health = |word: &str, streak: Value| {
        let state = json!({"Status": "running", "Health": {"Status": word, "FailingStreak": streak}});
        made(&json!({"Config": check, "State": state})).health
    };
    for (word, streak, expected) in [
        // What pausing a container leaves behind, before and after a failed probe.
        ("unhealthy", json!(0), HealthState::Unmeasured),
        ("unhealthy", json!(2), HealthState::Unmeasured),
        ("unhealthy", json!(3), HealthState::Unhealthy),
        ("unhealthy", json!(null), HealthState::Unhealthy),
        ("healthy", json!(2), HealthState::Healthy),
        ("starting", json!(0), HealthState::Starting),
    ] {
        assert_eq!(health(word, streak.clone()), Some(expected), "{word} {streak}");
    }
}

#[test]
fn probes_of_an_earlier_run_do_not_count() {
    let probed = |at: &str| {
        let log = json!([{"Start": at, "ExitCode": 1, "Output": "no database"}]);
        let c = made(&json!({"State": {"Health": {"Status": "starting", "Log": log}}}));
        (c.health_output, c.probed_at.is_some())
    };
    assert_eq!(probed("2024-05-01T10:00:01Z"), ("no database".to_owned(), true));
    assert_eq!(probed("2024-05-01T09:59:59Z"), (String::new(), false));
}

#[test]
fn a_container_has_served_if_its_health_check_has_passed_in_its_last_run() {
    let served = |probes: &[(&str, i64)]| {
        let probe = |(at, code): &(&str, i64)| json!({"Start": at, "ExitCode": code, "Output": ""});
        let log: Vec<Value> = probes.iter().map(probe).collect();
        let state = json!({"Status": "exited", "ExitCode": 0, "StartedAt": "2024-05-01T10:00:00Z",
            "Health": {"Status": "unhealthy", "Log": log}});
        made(&json!({"State": state})).served
    };
    let (before, first, last) = ("2024-05-01T09:59:59Z", "2024-05-01T10:00:01Z", "2024-05-01T10:00:02Z");
    assert!(served(&[(first, 1), (last, 0)]));
    assert!(served(&[(first, 0), (last, 1)]), "it was ending already");
    assert!(!served(&[(first, 1), (last, 1)]), "the check may be that of an image which others serve with");
    assert!(!served(&[(before, 0), (last, 1)]), "an earlier run");
    assert!(!served(&[]));
    assert!(!made(&json!({"State": {"Status": "exited", "Health": null}})).served);
}

#[test]
fn a_container_that_never_started_has_no_start_time_and_an_error() {
    let c =
        made(&json!({"State": {"Status": "created", "StartedAt": "0001-01-01T00:00:00Z", "ExitCode": 127,
        "Error": "exec: \"/nope\": not found"}}));
    assert_eq!((c.state, c.started_at, c.exit_code), (State::Created, None, 127));
    assert_eq!(c.error, "exec: \"/nope\": not found");
}

#[test]
fn the_cpu_limit_is_the_quota_or_the_pinned_cores_whichever_is_less() {
    for (host, expected) in [
        (json!({}), None),
        (json!({"NanoCpus": 0, "CpuQuota": 0, "CpuPeriod": 0, "CpusetCpus": ""}), None),
        (json!({"NanoCpus": 1_500_000_000}), Some(1.5)),
        (json!({"CpuQuota": 50_000}), Some(0.5)),
        (json!({"CpuQuota": 50_000, "CpuPeriod": 25_000}), Some(2.0)),
        (json!({"CpuQuota": -1, "CpuPeriod": 100_000}), None),
        (json!({"CpusetCpus": "0-2,5"}), Some(4.0)),
        (json!({"CpusetCpus": "3-1"}), None),
        (json!({"NanoCpus": 500_000_000, "CpusetCpus": "1"}), Some(0.5)),
        (json!({"NanoCpus": 3_000_000_000_u64, "CpusetCpus": "0,1"}), Some(2.0)),
    ] {
        assert_eq!(made(&json!({"HostConfig": host})).cpu_limit, expected, "{host}");
    }
}

#[test]
fn a_run_whose_end_podman_did_not_see_is_no_success() {
    let ended = |finished: &str, code: i64, podman: bool| {
        let state = json!({"Status": "exited", "Running": false, "ExitCode": code, "FinishedAt": finished});
        let c = container(&Value::Null, &inspected(&json!({ "State": state })), podman).unwrap();
        (c.exit_code, c.finished_at.is_some())
    };
    // The start was noted at 10:00:00.12.
    let (none, earlier, later) = ("0001-01-01T00:00:00Z", "2024-05-01T09:00:00Z", "2024-05-01T10:00:01Z");
    assert_eq!(ended(none, 0, true), (-1, false));
    assert_eq!(ended(earlier, 0, true), (-1, false), "the end of an earlier run");
    assert_eq!(ended("2024-05-01T09:59:59.5Z", 0, true), (-1, false), "it was restarted");
    assert_eq!(ended("2024-05-01T10:00:00Z", 0, true), (0, true), "the start was noted after the end");
    assert_eq!(ended(later, 0, true), (0, true));
    assert_eq!(ended(earlier, 3, true), (3, true), "it is no success anyway");
    assert_eq!(ended(earlier, 0, false), (0, true), "the clock was set back");
}

#[test]
fn nulls_and_absent_fields_are_tolerated() {
    let c = made(&json!({"Mounts": null, "HostConfig": null, "RestartCount": null,
        "Config": {"Labels": null, "Image": null}, "State": {"Health": null, "StartedAt": ""}}));
    assert_eq!((c.restart_policy, c.started_at), (RestartPolicy::No, None));
}

#[test]
fn the_restart_policy_decides_whether_the_engine_restarts_a_container() {
    for (name, want) in [
        ("always", RestartPolicy::Always),
        ("unless-stopped", RestartPolicy::UnlessStopped),
        ("on-failure", RestartPolicy::OnFailure),
        ("no", RestartPolicy::No),
        ("", RestartPolicy::No),
    ] {
        let c = made(&json!({"HostConfig": {"RestartPolicy": {"Name": name}}}));
        assert_eq!(c.restart_policy, want, "{name}");
    }
}

#[test]
fn mounts_are_converted_in_a_fixed_order() {
    let c = made(&json!({"HostConfig": {"Tmpfs": {"/s": "size=64m,ro", "/t": ""}}, "Mounts": [
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
        [
            ("bind", "", "/b", true),
            ("tmpfs", "", "/s", true),
            ("tmpfs", "", "/t", false),
            ("volume", "data", "/z", false)
        ]
    );
}

fn happened(action: &str, attributes: &Value) -> EventKind {
    let message = json!({"Type": "container", "Action": action, "scope": "local", "time": 5,
        "timeNano": 5_000_000_001_i64, "Actor": {"ID": "c1", "Attributes": attributes}});
    event(&message).unwrap().what
}

#[test]
fn events_are_recognized_by_the_first_word_of_their_action() {
    let none = json!({"name": "a"});
    assert_eq!(happened("start", &none), EventKind::Start);
    assert_eq!(happened("kill", &json!({"signal": "15"})), EventKind::Kill { signal: Some(15) });
    assert_eq!(happened("kill", &none), EventKind::Kill { signal: None });
    assert_eq!(happened("die", &json!({"exitCode": "137"})), EventKind::Die { exit_code: 137 });
    assert_eq!(happened("die", &json!({"containerExitCode": "3"})), EventKind::Die { exit_code: 3 });
    assert_eq!(happened("die", &none), EventKind::Die { exit_code: -1 });
    assert_eq!(happened("health_status: healthy", &none), EventKind::Health(HealthState::Healthy));
    assert_eq!(happened("health_status:unhealthy", &none), EventKind::Health(HealthState::Unhealthy));
    let podman = json!({"health_status": "unhealthy"});
    assert_eq!(happened("health_status", &podman), EventKind::Health(HealthState::Unhealthy));
    assert_eq!(happened("destroy", &none), EventKind::Destroy);
    assert_eq!(happened("remove", &none), EventKind::Destroy);
    assert_eq!(happened("died", &json!({"containerExitCode": "7"})), EventKind::Die { exit_code: 7 });
    assert_eq!(happened("exec_create: sh -c x", &none), EventKind::Other("exec_create: sh -c x".into()));
}

#[test]
fn an_event_keeps_its_nanoseconds_name_and_project() {
    let message = json!({"Action": "oom", "timeNano": 1_714_557_600_123_456_789_i64,
        "Actor": {"ID": "c1", "Attributes": {"name": "p-web-1", "com.docker.compose.project": "p"}}});
    let seen = event(&message).unwrap();
    assert_eq!(seen.time_nano, 1_714_557_600_123_456_789);
    assert_eq!((seen.name.as_str(), seen.project.as_str()), ("p-web-1", "p"));
    let of_image = json!({"Action": "oom", "Actor": {"ID": "c1", "Attributes": {"name": "migration",
        "com.docker.compose.project": "p", "com.docker.compose.version": "2.40.0"}}});
    assert_eq!(event(&of_image).unwrap().project, "", "the labels are those of the image");
    assert!(event(&json!({})).is_none());
    assert!(event(&json!({"Type": "image", "Action": "oom", "Actor": {"ID": "c1"}})).is_none());
}

#[test]
fn labels_that_compose_gave_to_an_image_make_its_containers_no_part_of_the_project() {
    let labels = |more: &[&str]| {
        let mut labels = json!({"com.docker.compose.project": "p", "com.docker.compose.service": "web",
            "com.docker.compose.project.working_dir": "/srv/p"});
        for name in more {
            labels[format!("com.docker.compose.{name}")] = json!("1");
        }
        made(&json!({"Config": {"Labels": labels}}))
    };
    let of_image = labels(&["version"]);
    assert_eq!((of_image.compose_service.as_str(), of_image.origin), ("", Origin::default()));
    assert_eq!(of_image.project, "");
    for of_compose in [&["version", "container-number"][..], &["container-number"], &[]] {
        let one = labels(of_compose);
        assert_eq!(
            (one.project.as_str(), one.compose_service.as_str(), one.origin.folder),
            ("p", "web", Some("/srv/p".into())),
            "{of_compose:?}"
        );
    }
}

#[test]
fn paths_in_labels_may_contain_commas() {
    let table: [(&str, &[&str]); 9] = [
        ("", &[]),
        ("/srv/a/compose.yml", &["/srv/a/compose.yml"]),
        ("/srv/a/compose.yml,/srv/b/over.yml", &["/srv/a/compose.yml", "/srv/b/over.yml"]),
        ("/srv/a, b/compose.yml,/srv/a, b/over.yml", &["/srv/a, b/compose.yml", "/srv/a, b/over.yml"]),
        ("/srv/a,b,c/d,e.yml", &["/srv/a,b,c/d,e.yml"]),
        ("/srv/a, b/compose.yml,-", &["/srv/a, b/compose.yml", "-"]),
        ("-,/srv/over.yml", &["-", "/srv/over.yml"]),
        ("docker-compose.yml,over.yml", &["docker-compose.yml", "over.yml"]),
        ("C:\\a\\compose.yml,C:\\a\\over.yml", &["C:\\a\\compose.yml", "C:\\a\\over.yml"]),
    ];
    for (label, expected) in table {
        assert_eq!(paths(label), expected, "{label}");
    }
    let c = made(&json!({"Config": {"Labels": {
        "com.docker.compose.project.config_files": "/srv/a, b/compose.yml,/srv/a, b/over.yml",
        "com.docker.compose.project.environment_file": "/srv/a, b/.env",
    }}}));
    assert_eq!(c.compose_files, ["/srv/a, b/compose.yml", "/srv/a, b/over.yml"].map(PathBuf::from));
    assert_eq!(c.origin.env_files, [PathBuf::from("/srv/a, b/.env")]);
    let relative = json!({"com.docker.compose.project.environment_file": ".env,other.env"});
    let c = made(&json!({"Config": {"Labels": relative}}));
    assert_eq!(c.origin.env_files, Vec::<PathBuf>::new());
}

#[test]
fn an_unset_stop_timeout_is_the_engines_default() {
    for (given, seconds) in [(json!(30), 30), (json!(null), 10), (json!(0), 10), (json!(-1), 10)] {
        let c = made(&json!({"Config": {"StopTimeout": given}}));
        assert_eq!(c.stop_timeout, Duration::from_secs(seconds), "{given}");
    }
}

#[test]
fn signals_are_parsed_from_names_and_numbers() {
    for (text, number) in
        [("SIGTERM", 15), ("term", 15), ("15", 15), ("SIGWINCH", 28), ("HUP", 1), ("SIGRTMIN+3", 37)]
    {
        assert_eq!(signal(text), Some(number), "{text}");
    }
    assert_eq!((signal("nonsense"), signal("")), (None, None));
}

/// Variants of `base` with every value, including `base` itself, replaced by each odd value in turn, or removed.
fn oddities(base: &Value) -> Vec<(String, Value)> {
    fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
        all.push(at.to_owned());
        match value {
            Value::Object(map) => {
                map.iter().for_each(|(key, value)| pointers(value, &format!("{at}/{key}"), all));
            }
            Value::Array(list) => {
                list.iter().enumerate().for_each(|(i, value)| pointers(value, &format!("{at}/{i}"), all));
            }
            _ => {}
        }
    }
    let odd = [
        json!(null),
        json!([]),
        json!({}),
        json!(""),
        json!("frobnicated"),
        json!("0001-13-45T99:99:99Z"),
        json!(true),
        json!(-1),
        json!(0.5),
        json!(i64::MIN),
        json!(u64::MAX),
        json!([null, [], {"": 1}]),
        json!("container:"),
        json!(["CMD", null]),
        json!(1e300),
    ];
    let mut all = Vec::new();
    pointers(base, "", &mut all);
    let mut made = Vec::new();
    for at in &all {
        for value in &odd {
            let mut answer = base.clone();
            *answer.pointer_mut(at).unwrap() = value.clone();
            made.push((format!("{at} = {value}"), answer));
        }
        if let Some((parent, key)) = at.rsplit_once('/')
            && let mut answer = base.clone()
            && let Some(map) = answer.pointer_mut(parent).unwrap().as_object_mut()
        {
            map.remove(key);
            made.push((format!("no {at}"), answer));
        }
    }
    made
}

#[test]
fn no_inspection_however_odd_hides_the_container() {
    let full = inspected(&json!({
        "State": {"Paused": false, "Restarting": false, "Dead": false, "FinishedAt": "0001-01-01T00:00:00Z",
            "Health": {"Status": "healthy", "FailingStreak": 0, "Log": [{"ExitCode": 0, "Output": "ok"}]}},
        "HostConfig": {"NetworkMode": "container:c9"},
        "Config": {"StopSignal": "SIGTERM", "StopTimeout": 5, "Labels": {"PODMAN_SYSTEMD_UNIT": "a.service"},
            "Healthcheck": {"Test": ["CMD", "x"], "Interval": 1, "Timeout": 1, "Retries": 1, "StartPeriod": 1}},
        "Mounts": [{"Type": "bind", "Name": "", "Source": "/a", "Destination": "/b", "RW": true}],
    }));
    let listed = json!({"Id": "c1", "Names": ["/p-web-1"], "Image": "localhost:5000/web:1",
        "ImageID": "sha256:aa", "State": "running", "Status": "Up 2 hours (healthy)",
        "Labels": {"com.docker.compose.service": "web"}, "Mounts": []});
    let all = oddities(&full);
    assert!(all.len() > 500, "{}", all.len());
    for (what, seen) in all {
        let c = container(&listed, &seen, true).unwrap_or_else(|| panic!("{what}"));
        assert!(!c.name.is_empty() && !c.id.is_empty(), "{what}");
        // Values computed from it later must not overflow, either.
        if let Some(timing) = c.health_timing {
            assert!(timing.budget() <= Duration::from_hours(7 * 24), "{what}");
        }
        assert!(c.stop_timeout <= LONGEST_STOP, "{what}");
        let unknown = c.state == State::Unknown;
        assert!(!unknown || what.starts_with("/State/Status") || what.contains("State"), "{what}");
    }
    for (what, listed) in oddities(&listed) {
        assert!(container(&listed, &full, true).is_some(), "{what}");
        let _ = container(&listed, &json!([]), true);
    }
    assert_eq!(container(&json!({}), &json!({"State": {}}), true), None);
}

#[test]
fn odd_images_and_events_are_read_or_skipped() {
    let full = json!({"Id": "sha256:aa", "RepoTags": ["a:1"], "RepoDigests": ["a@sha256:bb"], "Size": 5,
        "Architecture": "amd64", "Config": {"Labels": {}}, "RootFS": {"Type": "layers", "Layers": ["sha256:cc"]}});
    for (what, seen) in oddities(&full) {
        let lost = seen["Id"].as_str().is_none_or(str::is_empty);
        assert_eq!(image(&seen).is_none(), lost, "{what}");
    }
    let full = json!({"Type": "container", "Action": "die", "Actor": {"ID": "c1", "Attributes": {"exitCode": "1"}},
        "time": 1, "timeNano": 2});
    for (what, seen) in oddities(&full) {
        let _ = event(&seen).is_some_and(|event| event.id.is_empty() && panic!("{what}"));
    }
}

#[test]
fn an_image_with_missing_content_exists_but_is_not_whole() {
    let partly =
        json!({"Id": "sha256:aa", "Architecture": "", "RootFS": {}, "RepoDigests": null, "Config": null});
    assert_eq!(
        image(&partly),
        Some(Image {
            id: ImageId("sha256:aa".into()),
            repo_digests: vec![],
            size: 0,
            config: ImageConfig::default(),
            platform: None,
            is_complete: false
        })
    );
    assert!(!image(&json!({"Id": "sha256:aa"})).unwrap().is_complete);
    assert!(image(&json!({"Id": "sha256:aa", "Architecture": "amd64", "RootFS": {}})).unwrap().is_complete);
}

#[test]
fn missing_fields_of_an_inspection_are_taken_from_the_listing() {
    let listed = json!({"Id": "c1", "Names": ["/p-web-1"], "Image": "localhost:5000/web:1", "ImageID": "sha256:aa",
        "State": "exited", "Status": "Exited (7) 2 hours ago", "Labels": {"com.docker.compose.service": "web"}});
    let c = container(&listed, &Value::Null, false).unwrap();
    assert_eq!((c.name.as_str(), c.compose_service.as_str()), ("p-web-1", "web"));
    assert_eq!((c.config_image.as_str(), &*c.image.0), ("localhost:5000/web:1", "sha256:aa"));
    assert_eq!((c.state, c.exit_code), (State::Exited, 7));
    // Once the tag has moved, the listing has an ID instead.
    let moved = json!({"Id": "0123456789abcdef", "Image": "sha256:aa", "Status": "Up 2 hours (Paused)"});
    let c = container(&moved, &Value::Null, false).unwrap();
    assert_eq!((c.config_image.as_str(), c.name.as_str()), ("", "0123456789ab"));
    assert_eq!(c.state, State::Paused);
    let ended = container(&json!({"Id": "c1", "State": "exited"}), &Value::Null, false).unwrap();
    assert_eq!(ended.exit_code, -1, "an unknown exit is not a success");
}

#[test]
fn podmans_state_names_are_recognized_and_other_names_are_unknown() {
    let state = |word: &str| {
        let state =
            json!({"Status": word, "Running": false, "Paused": false, "Restarting": false, "Dead": false});
        made(&json!({"State": state})).state
    };
    assert_eq!((state("stopped"), state("initialized")), (State::Exited, State::Created));
    assert_eq!((state("stopping"), state("configured")), (State::Running, State::Created));
    // A container in an unknown state must not look like a stopped one.
    let unknown = json!({"Id": "c1", "State": {"Status": "frobnicated", "Running": false}});
    assert_eq!(container(&json!({}), &unknown, true).unwrap().state, State::Unknown);
    assert_eq!(container(&json!({}), &json!({"Id": "c1"}), true).unwrap().state, State::Unknown);
}

#[test]
fn podmans_labels_tell_who_manages_a_container() {
    let manager = |labels: Value, podman: bool| {
        let seen = json!({"Id": "c1", "Config": {"Labels": labels}});
        container(&Value::Null, &seen, podman).unwrap().manager
    };
    let unit = json!({"PODMAN_SYSTEMD_UNIT": "web.service", "io.containers.autoupdate": "registry"});
    assert_eq!(manager(unit.clone(), true), Some(Manager::Unit("web.service".into())));
    assert_eq!(manager(json!({"io.containers.autoupdate": "registry"}), true), Some(Manager::AutoUpdate));
    assert_eq!(manager(json!({"io.containers.autoupdate": "disabled"}), true), None);
    assert_eq!(manager(json!({"PODMAN_SYSTEMD_UNIT": ""}), true), None);
    assert_eq!(manager(json!({}), true), None);
    // Docker ignores the labels, which a compose file used with both engines may have.
    assert_eq!(manager(unit, false), None);
}

#[test]
fn a_time_that_can_not_be_computed_with_is_unknown() {
    for (text, is_known) in [
        ("2026-11-27T10:00:00.5Z", true),
        ("2026-11-27T10:00:00+02:00", true),
        ("8999-12-31T23:59:59Z", true),
        ("0001-01-01T00:00:00Z", false),
        ("-009999-01-02T01:59:59Z", false),
        ("9000-01-01T00:00:00Z", false),
        ("9999-12-30T22:00:00.999999999Z", false),
        ("", false),
    ] {
        assert_eq!(moment(text).is_some(), is_known, "{text}");
    }
}
