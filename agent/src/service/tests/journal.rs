//! Deployments that an earlier version began: its journal is read, and the deployment is finished.

use serde_json::json;

use super::*;
use crate::model::swarm::TaskState;
use crate::service::action::HandoverStep;
use crate::service::event::FaultCause;
use crate::service::health::assess::{Symptom, Trouble};
use crate::service::rollout::plan::LateFailure;
use crate::service::rollout::probation::{Flaw, Interference, Reason, TaskFault};
use crate::service::rollout::step::Phase;
use crate::service::wording;

/// A state as version 1.1 (commit eec5584) wrote it, with a deployment of digest 2 over digest 1.
fn row(cause: &str, recreate: &str, phase: &str) -> String {
    let (one, two) = ("1".repeat(64), "2".repeat(64));
    let about_images = ["\"update\"", "\"redeploy\"", "\"way_back\""].contains(&cause);
    let moves = if about_images {
        format!(
            r#"{{"text": "localhost:5000/web:1", "reference": "localhost:5000/web:1",
                "old_digest": "sha256:{one}",
                "old": {{"id": "sha256:v1", "source": "localhost:5000/web@sha256:{one}"}},
                "digest": "sha256:{two}", "new_id": "sha256:v2"}}"#
        )
    } else {
        String::new()
    };
    format!(
        r#"{{"blocked": {{}}, "not_found": {{}},
            "totals": {{"updates": 3, "rollbacks": 2, "restarts": 1, "failures": 4}},
            "given_up": true,
            "deployment": {{
                "cause": {cause},
                "project": {{"name": "web", "files": ["/srv/web.yml"], "env_file": null}},
                "grace": {{"secs": 10, "nanos": 0}},
                "begun": "2026-01-01T00:00:00Z",
                "moves": [{moves}],
                "pins": [["localhost:5000/cache:1", {{"id": "sha256:cache", "source": null}}]],
                "others": [["localhost:5000/db:1", "sha256:db1"]],
                "before": [{{"id": "web-1", "compose_service": "web", "config_image": "localhost:5000/web:1",
                    "image": "sha256:v1", "running": true, "well": true, "restart_count": 0}}],
                "recreate": {recreate},
                "phase": {phase},
                "since": "2026-01-01T00:00:00Z",
                "attempt": 1
            }},
            "proven": {{}}, "unproven": {{}}, "left_behind": [],
            "patients": {{"db": {{"failures": 2, "last_restart": "2025-12-31T23:59:00Z", "exhausted": false,
                "illness": {{"what": "unhealthy: no", "ended": false, "since": "2025-12-31T23:58:00Z", "said": true}},
                "watched_since": null, "counted": true, "well_since": null}}}},
            "stops": {{"web-0": "2025-12-31T23:58:00Z"}}, "engine_stops": {{}},
            "left": {{"boot": "one", "running": ["web-1"]}},
            "files_hash": "abc", "files_owed": true,
            "said": [{{"timestamp": "2026-01-01T00:00:00Z", "service": "web", "event": "started",
                "message": "the project was started", "level": "info"}}]}}"#
    )
}

/// A state as the versions after that wrote it, until a deployment was split into its plan and its progress.
fn in_later_format(row: &str) -> String {
    let words = [
        ("\"text\":", "\"configured\":"),
        ("\"moves\":", "\"image_changes\":"),
        ("\"pins\":", "\"displaced\": null, \"also_recreated\": [\"web-side\"], \"kept_tags\":"),
        ("\"others\":", "\"sibling_tags\":"),
        ("\"restart_count\": 0", "\"restart_count\": 0, \"live\": true, \"restarts_with\": [\"db\"]"),
        ("\"recreate\":", "\"up_mode\":"),
        ("\"trial\":", "\"probation\":"),
        ("\"hold\"", "\"pin_images\""),
        ("\"tags_back\"", "\"restore_tags\""),
        ("\"evidence\"", "\"diagnose\""),
        ("\"undo\"", "\"rollback\""),
        ("\"proof\"", "\"verify_rollback\""),
        ("\"release\"", "\"unpin\""),
        ("\"way_back\"", "\"retry_rollback\""),
        ("\"drift\"", "\"compose_changed\""),
        ("\"unstick\"", "\"force_up\""),
        ("\"renew\"", "\"recreate_container\""),
        ("\"nothing\"", "\"start_only\""),
        ("\"only\":", "\"force_service\":"),
        ("\"alone\":", "\"services\":"),
        ("\"given_up\":", "\"rollback_failed\":"),
        ("\"left\":", "\"at_shutdown\":"),
        ("\"files_owed\":", "\"files_pending\":"),
        ("\"patients\":", "\"restart_states\":"),
        ("\"illness\":", "\"problem\":"),
    ];
    words.iter().fold(row.to_owned(), |row, (old, new)| row.replace(old, new))
}

const FAILURE: &str = r#""failure": {"reason": "container web exited with code 1", "container_id": "web-2",
    "container": "web", "image": "localhost:5000/web:1", "facts": "state: exited\n", "bystander": false,
    "by_compose": false}, "output": "what compose printed""#;
const TRIAL: &str = r#""trial": {"since": "2026-01-01T00:00:00Z",
    "expected": [{"compose_service": "web", "image": "sha256:v2"}],
    "seen": {"web-2": {"started_at": "2026-01-01T00:00:00Z", "was_healthy": true, "ended": false}}}"#;

/// The agent starts with this state, ten seconds later.
fn resumed(row: &str) -> Scenario {
    let durable: Durable = serde_json::from_str(row).expect(row);
    let mut scenario = Scenario::of(config());
    scenario.at(10);
    let boot = boot_of("one", "one");
    let (service, entries) =
        Service::new(Arc::new(config()), durable, boot, StartReason::Start, scenario.now);
    (scenario.service, scenario.entries) = (service, entries);
    // The engine may have been restarted. An interrupted probation waits a moment.
    scenario.engine_back().at(12);
    scenario
}

/// Lets every step succeed until the deployment ends. Returns the names of the steps, and the image that the tag pointed
/// to at each compose run.
fn finish(scenario: &mut Scenario) -> (Vec<&'static str>, Vec<String>) {
    let (mut steps, mut tags_seen) = (Vec::new(), Vec::new());
    let mut there = Container { id: "web-2".into(), image: ImageId("sha256:v2".into()), ..running("web") };
    for second in (12..200).step_by(3) {
        scenario.at(second);
        while let Some(action) = scenario.act() {
            let Action::Step(step) = action else { panic!("{action:?}") };
            let (name, result) = match step {
                Step::PinImages { .. } => ("pin", StepResult::ImagesPinned { missing: Vec::new() }),
                Step::Pull { images, .. } => {
                    let ids = images.into_iter().map(|(image, _)| (image, ImageId("sha256:v2".into())));
                    ("pull", StepResult::Pulled { ids: ids.collect(), labels: BTreeMap::new() })
                }
                Step::Start(BringUp { tags, down, .. }) => {
                    let web = Reference::parse(IMAGE).unwrap();
                    if let Some((_, image)) = tags.iter().find(|(tag, _)| *tag == web) {
                        there.id = format!("web-{second}");
                        there.image = image.id.clone();
                        tags_seen.push(image.id.to_string());
                    }
                    let containers = vec![there.clone()];
                    let up = StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers };
                    (if down { "down and up" } else { "up" }, up)
                }
                Step::RestoreTags { .. } => ("restore", StepResult::TagsRestored),
                Step::Diagnose { container } => {
                    assert_eq!(container, "web-2");
                    ("diagnose", StepResult::Diagnosed { log: "last log lines".into() })
                }
                Step::Unpin { .. } => ("unpin", StepResult::Unpinned),
                Step::WriteTag { .. } => unreachable!("no tag changes"),
                Step::RunHook { .. } | Step::Handover { .. } | Step::Snapshot(_) | Step::Swarm(_) => {
                    unreachable!("none is configured")
                }
                Step::ReadTags { .. } => unreachable!("answered by the scenario"),
            };
            steps.push(name);
            scenario.input(Input::Stepped(result));
        }
        if scenario.service.durable().deployment.is_none() {
            return (steps, tags_seen);
        }
        scenario.look(&[&there.clone()]);
    }
    panic!("it does not end: {:?}", scenario.service.durable().deployment)
}

/// A phase; the steps from there, the images that the tag pointed to at each compose run, and the reported kinds.
type PhaseCase<'a> = (String, &'a [&'a str], &'a [&'a str], &'a [Kind]);

/// Two containers were handed over to two new ones, of which one was paused while the old ones drained.
#[test]
fn new_containers_that_serve_stay_if_one_of_them_was_paused_and_the_old_ones_were_drained_for_good() {
    for is_final in [true, false] {
        let row = in_later_format(&row("\"update\"", "\"changed\"", r#"{"step": "drain"}"#));
        let mut row: serde_json::Value = serde_json::from_str(&row).unwrap();
        let deployment = &mut row["deployment"];
        let mut second = deployment["before"][0].clone();
        second["id"] = json!("web-2");
        deployment["before"].as_array_mut().unwrap().push(second);
        let undo: &[&str] = if is_final { &[] } else { &["undrain"] };
        let seconds = |secs: u64| json!({"secs": secs, "nanos": 0});
        let drain = json!({"exec": ["drain"], "undo": undo, "wait": seconds(1), "timeout": seconds(30)});
        deployment["handover_plan"] = json!({"services": {"web": 2}, "drain": drain});
        deployment["handover"] = json!({"old": "drained", "new": ["web-3", "web-4"], "is_drained": true});
        let mut scenario = resumed(&row.to_string());
        let containers = vec![
            of_web("web-1", "sha256:v1", State::Running),
            of_web("web-2", "sha256:v1", State::Running),
            of_web("web-3", "sha256:v2", State::Running),
            of_web("web-4", "sha256:v2", State::Paused),
        ];
        let step = scenario.act();
        assert!(
            matches!(&step, Some(Action::Step(Step::Handover { step: HandoverStep::Drain(_), .. }))),
            "{step:?}"
        );
        let problems = Vec::new();
        scenario.input(Input::Stepped(StepResult::HandoverStepped { problems, containers }));
        match scenario.act() {
            Some(Action::Step(Step::Handover { step: HandoverStep::Settle { remove }, .. })) => {
                assert!(is_final, "the old ones can serve again");
                assert_eq!(remove, ["web-1", "web-2"]);
            }
            Some(Action::Step(Step::Handover { step: HandoverStep::Revive { start, .. }, .. })) => {
                assert!(!is_final, "{start:?} were drained for good, and web-3 serves");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A container of the compose service `web`; one that has exited has failed.
fn of_web(id: &str, image: &str, state: State) -> Container {
    Container {
        id: id.into(),
        compose_service: "web".into(),
        image: ImageId(image.into()),
        state,
        exit_code: i64::from(state == State::Exited),
        ..running(id)
    }
}

/// The new container has failed while it served alone, and the entrypoint of the old one works only once.
#[test]
fn an_old_container_that_does_not_run_a_second_time_is_made_anew() {
    for (state, expected) in [(State::Running, Kind::ROLLED_BACK), (State::Exited, Kind::ROLLBACK_FAILED)] {
        let phase = format!(r#"{{"step": "revive", {FAILURE}}}"#);
        let row = in_later_format(&row("\"update\"", "\"changed\"", &phase));
        let mut row: serde_json::Value = serde_json::from_str(&row).unwrap();
        row["deployment"]["handover_plan"] = json!({"services": {"web": 1}});
        row["deployment"]["handover"] = json!({"old": "retired", "new": ["web-2"]});
        let mut scenario = resumed(&row.to_string());
        let new = of_web("web-2", "sha256:v2", State::Exited);
        let (revived, ended) =
            (of_web("web-1", "sha256:v1", State::Running), of_web("web-1", "sha256:v1", State::Exited));
        let stepped = |containers: &[&Container]| {
            let containers = containers.iter().map(|c| (*c).clone()).collect();
            Input::Stepped(StepResult::HandoverStepped { problems: Vec::new(), containers })
        };
        let up = |containers: &[&Container]| {
            let containers = containers.iter().map(|c| (*c).clone()).collect();
            Input::Stepped(StepResult::Started { up: Ok(String::new()), named: Vec::new(), containers })
        };

        let Some(Action::Step(Step::Handover { step: HandoverStep::Revive { start, .. }, .. })) =
            scenario.act()
        else {
            panic!("the old one is not started")
        };
        assert_eq!(start, ["web-1"]);
        scenario.input(stepped(&[&revived, &new]));
        assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))));
        scenario.input(up(&[&revived, &new])).at(13).look(&[&ended, &new]).at(14).look(&[&ended, &new]);

        let Some(Action::Step(Step::Handover { step: HandoverStep::Settle { remove }, .. })) = scenario.act()
        else {
            panic!("the old one is not removed")
        };
        assert_eq!(remove, ["web-1"]);
        let durable = scenario.service.durable();
        let again: Durable = serde_json::from_slice(&serde_json::to_vec(durable).unwrap()).unwrap();
        assert_eq!(again, *durable, "it is removed also if the agent is restarted");
        scenario.input(stepped(&[&new]));
        assert!(matches!(scenario.act(), Some(Action::Step(Step::Start(_)))));
        let anew = of_web("web-3", "sha256:v1", state);
        scenario.input(up(&[&anew])).at(15).look(&[&anew]).at(16).look(&[&anew]).at(40).look(&[&anew]);
        let last = scenario.entries.last().map(|entry| entry.event.clone());
        assert_eq!(last, Some(expected), "{:?}", scenario.entries);
    }
}

#[test]
fn each_step_of_earlier_versions_is_read_and_finished() {
    let failure = format!("{{\"step\": \"STEP\", {FAILURE}}}");
    let table: [PhaseCase<'_>; 9] = [
        (r#"{"step": "hold"}"#.into(), &["pin", "pull", "up", "unpin"], &["sha256:v2"], &[Kind::UPDATED]),
        (r#"{"step": "pull"}"#.into(), &["pull", "up", "unpin"], &["sha256:v2"], &[Kind::UPDATED]),
        (r#"{"step": "start"}"#.into(), &["up", "unpin"], &["sha256:v2"], &[Kind::UPDATED]),
        (format!(r#"{{"step": "probation", {TRIAL}}}"#), &["up", "unpin"], &["sha256:v2"], &[Kind::UPDATED]),
        (r#"{"step": "tags_back"}"#.into(), &["restore", "unpin"], &[], &[]),
        (
            failure.replace("STEP", "evidence"),
            &["diagnose", "up", "unpin"],
            &["sha256:v1"],
            &[Kind::ROLLED_BACK],
        ),
        (failure.replace("STEP", "undo"), &["up", "unpin"], &["sha256:v1"], &[Kind::ROLLED_BACK]),
        (
            format!("{{\"step\": \"proof\", {FAILURE}, {TRIAL}}}"),
            &["up", "unpin"],
            &["sha256:v1"],
            &[Kind::ROLLED_BACK],
        ),
        (r#"{"step": "release"}"#.into(), &["unpin"], &[], &[]),
    ];
    for (phase, steps, tags, kinds) in table {
        let row = row("\"update\"", "\"changed\"", &phase);
        for row in [in_later_format(&row), row] {
            let mut scenario = resumed(&row);
            let durable = scenario.service.durable().clone();
            let again: Durable = serde_json::from_slice(&serde_json::to_vec(&durable).unwrap()).unwrap();
            assert_eq!(again, durable, "this version reads what it writes");
            assert_eq!(durable.deployment.unwrap().new_ids[IMAGE].to_string(), "sha256:v2", "{row}");
            let (steps_taken, tags_seen) = finish(&mut scenario);
            let tags_seen: Vec<&str> = tags_seen.iter().map(String::as_str).collect();
            assert_eq!((&steps_taken[..], &tags_seen[..]), (steps, tags), "{row}");
            let told: Vec<Kind> = scenario.kinds();
            assert_eq!((&told[0], &told[1..]), (&Kind::RESUMED, kinds), "{row}");
        }
    }
}

/// Cause and up mode as written, as read now, and the reported kinds.
type CauseCase<'a> = (&'a str, &'a str, UpMode, Cause, &'a [Kind]);

#[test]
fn each_cause_and_up_mode_of_earlier_versions_is_read_and_finished() {
    let table: [CauseCase<'_>; 7] = [
        ("\"redeploy\"", "\"all\"", UpMode::All, Cause::Redeploy, &[Kind::UPDATED, Kind::FORCE_REDEPLOY]),
        (
            "\"way_back\"",
            r#"{"alone": ["web"]}"#,
            UpMode::Services(vec!["web".into()]),
            Cause::RetryRollback,
            &[Kind::UPDATED, Kind::ROLLED_BACK],
        ),
        ("\"drift\"", "\"changed\"", UpMode::Changed, Cause::ComposeChanged, &[Kind::COMPOSE_DRIFT]),
        ("\"start\"", "\"nothing\"", UpMode::StartOnly, Cause::Start, &[Kind::STARTED]),
        (
            r#"{"unstick": {"down": true}}"#,
            "\"changed\"",
            UpMode::Changed,
            Cause::ForceUp { down: true },
            &[Kind::STARTED],
        ),
        (
            r#"{"unstick": {"down": false}}"#,
            "\"changed\"",
            UpMode::Changed,
            Cause::ForceUp { down: false },
            &[Kind::STARTED],
        ),
        (
            r#"{"renew": {"container": "web"}}"#,
            r#"{"only": "web"}"#,
            UpMode::ForceService("web".into()),
            Cause::RecreateContainer { container: "web".into() },
            &[],
        ),
    ];
    for (cause, recreate, up_mode, expected, kinds) in table {
        let row = row(cause, recreate, r#"{"step": "start"}"#);
        for row in [in_later_format(&row), row] {
            let mut scenario = resumed(&row);
            let deployment = scenario.service.durable().deployment.clone().unwrap();
            assert_eq!((&deployment.plan().cause, &deployment.up_mode), (&expected, &up_mode), "{row}");
            let (steps, _) = finish(&mut scenario);
            let up = if cause.contains("true") { "down and up" } else { "up" };
            assert_eq!(steps, [up, "unpin"], "{row}");
            let told = scenario.kinds();
            assert_eq!((&told[0], &told[1..]), (&Kind::RESUMED, kinds), "{row}");
        }
    }
}

#[test]
fn the_rest_of_the_state_of_earlier_versions_is_kept() {
    let row = row("\"update\"", "\"changed\"", r#"{"step": "release"}"#);
    for row in [in_later_format(&row), row] {
        let scenario = resumed(&row);
        let durable = scenario.service.durable();
        assert!(durable.rollback_failed && durable.files_pending);
        assert_eq!(durable.files_hash.as_deref(), Some("abc"));
        let restart = &durable.restart_states["db"];
        assert_eq!((restart.failures, restart.counted), (2, true));
        assert!(
            restart.problem.as_ref().is_some_and(|problem| problem.said && problem.what == Trouble::Words("unhealthy: no".into()))
        );
        assert_eq!(durable.at_shutdown.as_ref().unwrap().boot, "one");
        assert_eq!(durable.stops.len(), 1);
        let totals = (durable.totals.updates, durable.totals.rollbacks, durable.totals.failures);
        assert_eq!(totals, (3, 2, 4));
        let deployment = durable.deployment.as_ref().unwrap();
        assert_eq!((deployment.plan().kept_tags.len(), deployment.sibling_tags.len()), (1, 1));
    }
}

#[test]
fn what_is_wrong_is_read_back_as_it_was_found_and_words_of_earlier_versions_stay_words() {
    let text = || "no answer".to_owned();
    let symptoms = [
        Symptom::CrashLoop { restarts: 4, exit_code: 1 },
        Symptom::Exited { exit_code: 2 },
        Symptom::OutOfMemory,
        Symptom::NotStarted { error: text() },
        Symptom::Dead,
        Symptom::EngineStopped,
        Symptom::Unhealthy { output: text() },
        Symptom::NetworkGone,
        Symptom::NetworkMissing { owner: text() },
    ];
    let flaws = [
        Flaw::OutOfMemory,
        Flaw::CrashLoop { restarts: 2, exit_code: 1 },
        Flaw::BecameUnhealthy,
        Flaw::EndState(State::Paused),
        Flaw::NotUpdated,
        Flaw::ProbeLost { probe: text(), answer: text() },
    ];
    let found = symptoms.map(Trouble::Symptom).into_iter();
    for trouble in found.chain([Trouble::Words("OOM-killed (out of memory)".into())]) {
        let row = serde_json::to_string(&trouble).unwrap();
        assert_eq!(serde_json::from_str::<Trouble>(&row).unwrap(), trouble, "{row}");
    }
    let found = flaws.map(|flaw| Reason::Flaw { container: "web-1".into(), flaw }).into_iter();
    let removed = || Interference::Removed { compose_service: "web".into() };
    let others = [
        Reason::ProbedServiceGone { probed_service: "web".into() },
        Reason::Swarm { swarm_message: text() },
        Reason::Interfered { interference: removed() },
        Reason::Words("container web-1 exited with code 1".into()),
    ];
    let faults = [TaskFault::Error(text()), TaskFault::Complete, TaskFault::State(TaskState::Rejected)];
    let of_task = |fault| Reason::Task { task: "web.1".into(), node: "n1".into(), fault };
    for reason in found.chain(others).chain(faults.map(of_task)) {
        let row = serde_json::to_string(&reason).unwrap();
        assert_eq!(serde_json::from_str::<Reason>(&row).unwrap(), reason, "{row}");
    }
    let unknown = |unprobed| Interference::Unknown { container: "web-1".into(), unprobed };
    let earlier = serde_json::from_str::<Interference>(r#"{"unknown":{"container":"web-1"}}"#).unwrap();
    assert_eq!(earlier, unknown(false));
    let words = Interference::Words("the probation of web was interrupted".into());
    for how in [removed(), unknown(false), unknown(true), words] {
        let row = serde_json::to_string(&how).unwrap();
        assert_eq!(serde_json::from_str::<Interference>(&row).unwrap(), how, "{row}");
    }
    for how in
        [LateFailure::Crashes { crashes: 3, minutes: 10 }, LateFailure::Words("it did not help".into())]
    {
        let row = serde_json::to_string(&how).unwrap();
        assert_eq!(serde_json::from_str::<LateFailure>(&row).unwrap(), how, "{row}");
    }
}

#[test]
fn interference_that_an_earlier_version_recorded_in_words_is_told_in_them() {
    let said = "the probation of web:1 was interrupted: container web-1 was paused by someone";
    let phase = |step: serde_json::Value| serde_json::from_value::<Phase>(step).unwrap();
    let abort = phase(json!({"step": "abort", "why": said}));
    let settle = phase(json!({"step": "settle", "interference": said}));
    let (Phase::Abort { why }, Phase::Settle { interference: Some(how) }) = (&abort, &settle) else {
        panic!("{abort:?}, {settle:?}");
    };
    for how in [why, how] {
        assert_eq!(wording::fault(&FaultCause::ProbationInterrupted { images: "web:1", how }), said);
    }
    let failed = json!({"reason": "container web-1 exited with code 1", "container_id": "", "container": "", "image": "",
        "facts": ""});
    let withdraw = phase(json!({"step": "withdraw", "failure": failed, "output": "", "is_verified": true,
        "remaining": "container db-1 is unhealthy"}));
    let Phase::Withdraw { remaining: Some(remaining), .. } = withdraw else { panic!("{withdraw:?}") };
    assert_eq!(wording::rejection(&remaining), "container db-1 is unhealthy");
}
