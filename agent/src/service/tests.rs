//! Stories of the decision core: what it says and wants when containers look so and so. No I/O, no clock.

mod network;

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::wire::{AuditEntry, Kind, StatusValue};
use jiff::{SignedDuration, Timestamp};

use super::action::{Action, Step};
use super::deploy::Cause;
use super::fact::{Answer, Ask, Fact, Files, ImageView, LocalImage, Observation, StepResult};
use super::{Durable, Service};
use crate::config::{ConfiguredImage, ServiceConfig};
use crate::image::{Digest, ImageId, Reference};
use crate::ports::{Container, EngineError, Happening, HealthState, HealthTiming, Pulled, State};

const IMAGE: &str = "localhost:5000/web:1";

fn config() -> ServiceConfig {
    ServiceConfig {
        name: "web".into(),
        images: vec![ConfiguredImage { text: IMAGE.into(), reference: Reference::parse(IMAGE).unwrap() }],
        silent: false,
        compose_files: vec!["/srv/web.yml".into()],
        compose_project: Some("web".into()),
        container_name: None,
        env_file: None,
        auto_update: true,
        auto_start: false,
        auto_heal: true,
        compose_watch: false,
        cpu_threshold: 0.0,
        memory_threshold: 0.0,
        health_grace: Duration::from_secs(10),
        heal_cooldown: Duration::from_mins(1),
        heal_max_restarts: 3,
    }
}

/// A service in a story: time is a number of seconds, and what it says is collected.
struct Story {
    service: Service,
    start: Timestamp,
    now: Timestamp,
    said: Vec<AuditEntry>,
}

impl Story {
    fn of(config: ServiceConfig) -> Self {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let (service, said) = Service::new(Arc::new(config), Durable::default(), start);
        Self { service, start, now: start, said }
    }

    fn at(&mut self, seconds: i64) -> &mut Self {
        self.now = self.start + SignedDuration::from_secs(seconds);
        self
    }

    fn fact(&mut self, fact: Fact) -> &mut Self {
        let said = self.service.apply(fact, self.now);
        self.said.extend(said);
        self
    }

    fn look(&mut self, containers: &[&Container]) -> &mut Self {
        let generation = self.service.generation;
        let result = Ok(containers.iter().map(|c| (*c).clone()).collect());
        self.fact(Fact::Looked { generation, result })
    }

    fn event(&mut self, id: &str, what: Happening) -> &mut Self {
        let at = self.now;
        self.fact(Fact::Event { at, id: id.into(), what })
    }

    fn check(&mut self, observation: Observation) -> &mut Self {
        let generation = self.service.generation;
        self.fact(Fact::Checked { generation, asked: false, result: Ok(observation) })
    }

    /// The next action that is more than reading.
    fn act(&mut self) -> Option<Action> {
        loop {
            let action = self.service.next(self.now, true);
            let said = self.service.take_unsaid();
            self.said.extend(said);
            match action {
                Some(Action::Look { .. }) => self.service.looking = false,
                Some(Action::Check { .. }) => self.service.checking = false,
                other => return other,
            }
        }
    }

    fn restarts(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(action) = self.act() {
            match action {
                Action::Restart { name, .. } => {
                    names.push(name.clone());
                    self.fact(Fact::Restarted { name, result: Ok(()) });
                }
                other => panic!("expected restarts only, got {other:?}"),
            }
        }
        names
    }

    fn kinds(&mut self) -> Vec<Kind> {
        std::mem::take(&mut self.said).into_iter().map(|entry| entry.event).collect()
    }

    fn status(&self) -> StatusValue {
        self.service.snapshot(Pulled::default()).status.status
    }

    #[allow(clippy::unnecessary_wraps)] // as containers carry it
    fn seconds(&self, seconds: i64) -> Option<Timestamp> {
        Some(self.start + SignedDuration::from_secs(seconds))
    }
}

fn running(name: &str) -> Container {
    Container {
        id: format!("id-{name}"),
        name: name.into(),
        compose_service: name.into(),
        config_image: IMAGE.into(),
        image: ImageId("sha256:one".into()),
        state: State::Running,
        status: "Up".into(),
        health: None,
        health_output: String::new(),
        health_timing: None,
        restart_count: 0,
        started_at: Some("2025-12-31T23:00:00Z".parse().unwrap()),
        finished_at: None,
        stop_signal: 15,
        stop_timeout: Duration::from_secs(10),
        exit_code: 0,
        oom_killed: false,
        error: String::new(),
        restarts_itself: false,
        network_of: None,
        mounts: Vec::new(),
    }
}

fn with_health(name: &str, health: HealthState) -> Container {
    let second = Duration::from_secs(1);
    Container {
        health: Some(health),
        health_timing: Some(HealthTiming {
            start_period: Duration::ZERO,
            interval: second,
            timeout: second,
            retries: 2,
        }),
        ..running(name)
    }
}

fn exited(name: &str, code: i64) -> Container {
    Container { state: State::Exited, exit_code: code, ..running(name) }
}

fn digest(n: char) -> Digest {
    Digest::parse(&format!("sha256:{}", n.to_string().repeat(64))).unwrap()
}

fn local(id: &str, digests: &[char]) -> LocalImage {
    LocalImage { id: ImageId(id.into()), digests: digests.iter().map(|n| digest(*n)).collect(), size: 1 }
}

fn observed(remote: char, running: &[LocalImage], containers: &[&Container]) -> Observation {
    let view = ImageView {
        text: IMAGE.into(),
        reference: Reference::parse(IMAGE).unwrap(),
        remote: Some(digest(remote)),
        running: running.to_vec(),
        tagged: running.first().cloned(),
    };
    Observation {
        images: vec![view],
        containers: containers.iter().map(|c| (*c).clone()).collect(),
        blocked_elsewhere: Vec::new(),
        files: Files::Unread,
    }
}

#[test]
fn a_crash_is_healed_after_it_settled() {
    let mut story = Story::of(config());
    story.look(&[&exited("a", 1)]);
    assert_eq!(story.restarts(), [""; 0], "the engine may still restart it by itself");
    assert_eq!(story.at(2).look(&[&exited("a", 1)]).restarts(), ["a"]);
    assert_eq!(story.kinds(), [Kind::DIED, Kind::RESTARTING]);
    assert_eq!(story.status(), StatusValue::Degraded);
    let mut again = running("a");
    again.started_at = story.seconds(3);
    story.at(4).look(&[&again]);
    assert_eq!(story.kinds(), [], "without a health check only time tells");
    story.at(14).look(&[&again]);
    assert_eq!(story.kinds(), [Kind::RESTARTED]);
    assert_eq!(story.status(), StatusValue::Ok);
}

#[test]
fn stops_that_somebody_asked_for_are_not_healed() {
    let kill = |signal| Happening::Kill { signal: Some(signal) };
    let stories: &[(&str, &[Happening], i64)] = &[
        ("docker stop", &[kill(15), Happening::Die { exit_code: 143 }, Happening::Stop], 143),
        (
            "docker stop that needs KILL",
            &[kill(15), kill(9), Happening::Die { exit_code: 137 }, Happening::Stop],
            137,
        ),
        ("docker kill", &[kill(9), Happening::Die { exit_code: 137 }], 137),
        ("custom stop signal", &[kill(2), Happening::Die { exit_code: 1 }, Happening::Stop], 1),
        ("podman, which does not tell the signal", &[Happening::Kill { signal: None }], 1),
    ];
    for (what, events, code) in stories {
        let mut story = Story::of(config());
        story.look(&[&running("a")]);
        for event in *events {
            story.event("id-a", event.clone());
        }
        for second in [1, 3, 10, 100, 1000] {
            assert_eq!(story.at(second).look(&[&exited("a", *code)]).restarts(), [""; 0], "{what}");
        }
        assert_eq!(story.kinds(), [], "{what}");
    }
}

#[test]
fn a_signal_that_is_no_stop_does_not_excuse_a_crash() {
    for signal in [1, 10, 18, 21, 28] {
        let mut story = Story::of(config());
        story.look(&[&running("a")]).event("id-a", Happening::Kill { signal: Some(signal) });
        story.at(3).look(&[&exited("a", 3)]);
        assert_eq!(story.at(5).look(&[&exited("a", 3)]).restarts(), ["a"], "signal {signal}");
    }
}

#[test]
fn a_containers_own_stop_signal_is_a_stop() {
    let mut story = Story::of(config());
    let container = Container { stop_signal: 1, ..running("a") };
    story.look(&[&container]).event("id-a", Happening::Kill { signal: Some(1) });
    for second in [3, 5, 100] {
        assert_eq!(story.at(second).look(&[&exited("a", 3)]).restarts(), [""; 0]);
    }
}

#[test]
fn a_stop_that_a_container_lived_through_does_not_excuse_its_crash_an_hour_later() {
    let mut story = Story::of(config());
    story.look(&[&running("a")]).event("id-a", Happening::Kill { signal: Some(15) });
    let ended = |at: Option<Timestamp>| Container { finished_at: at, ..exited("a", 137) };
    let crashed = ended(story.seconds(3600));
    story.at(3601).look(&[&crashed]);
    assert_eq!(story.at(3604).look(&[&crashed]).restarts(), ["a"]);
    // A stop that takes as long is told of at its end, too.
    let mut story = Story::of(config());
    story.look(&[&running("a")]).event("id-a", Happening::Kill { signal: Some(15) });
    let stopped = ended(story.seconds(60));
    story.at(60).event("id-a", Happening::Stop);
    for second in [61, 64, 100] {
        assert_eq!(story.at(second).look(&[&stopped]).restarts(), [""; 0]);
    }
}

#[test]
fn a_one_shot_that_is_done_is_left_alone() {
    let mut story = Story::of(config());
    story.look(&[&exited("job", 0)]);
    assert_eq!(story.at(60).look(&[&exited("job", 0)]).restarts(), [""; 0]);
    assert_eq!(story.kinds(), []);
}

#[test]
fn what_the_engine_stopped_when_it_went_away_is_started_again() {
    let mut story = Story::of(config());
    story.look(&[&running("a")]);
    story.at(100).event("id-a", Happening::Kill { signal: Some(15) }).event("id-a", Happening::Stop);
    story.at(101).fact(Fact::EngineGap);
    story.at(103).look(&[&exited("a", 0)]);
    assert_eq!(story.restarts(), [""; 0], "the engine restarts what it can by itself first");
    assert_eq!(story.at(110).look(&[&exited("a", 0)]).restarts(), ["a"]);
}

#[test]
fn what_an_engine_stops_when_it_comes_back_from_its_own_death_is_started_again() {
    let mut story = Story::of(config());
    story.look(&[&running("a")]);
    story.at(100).fact(Fact::EngineGap);
    let at = story.start + SignedDuration::from_secs(103);
    let what = Happening::Kill { signal: Some(15) };
    story.at(105).fact(Fact::EngineBack).fact(Fact::Event { at, id: "id-a".into(), what });
    story.at(106).look(&[&exited("a", 0)]);
    assert_eq!(story.at(113).look(&[&exited("a", 0)]).restarts(), ["a"]);
    // A stop after that is somebody's again.
    let mut fresh = running("a");
    fresh.started_at = story.seconds(114);
    story.at(150).look(&[&fresh]).event("id-a", Happening::Kill { signal: Some(15) });
    assert_eq!(
        story.at(300).look(&[&Container { started_at: fresh.started_at, ..exited("a", 143) }]).restarts(),
        [""; 0]
    );
}

#[test]
fn a_stop_before_the_stream_broke_off_is_still_a_stop_when_it_is_told_again() {
    let mut story = Story::of(config());
    story.look(&[&running("a")]);
    story.at(100).event("id-a", Happening::Kill { signal: Some(15) });
    story.at(101).fact(Fact::EngineGap);
    // Told again with its own time, which is before the break.
    let at = story.start + SignedDuration::from_secs(100);
    let what = Happening::Kill { signal: Some(15) };
    story.at(102).fact(Fact::EngineBack).fact(Fact::Event { at, id: "id-a".into(), what });
    assert_eq!(story.at(120).look(&[&exited("a", 143)]).restarts(), [""; 0]);
}

#[test]
fn a_run_that_a_busy_engine_began_late_has_helped_only_when_it_lasts() {
    let mut story = Story::of(config());
    story.look(&[&exited("a", 7)]);
    assert_eq!(story.at(3).look(&[&exited("a", 7)]).restarts(), ["a"]);
    story.kinds();
    // Its time is long over when it begins at last, and it has not shown anything yet.
    let grace = i64::try_from(story.service.config.health_grace.as_secs()).unwrap();
    let begun = 3 + 2 * grace;
    let again = Container { started_at: story.seconds(begun), ..running("a") };
    story.at(begun).look(&[&again]);
    assert_eq!(story.kinds(), []);
    story.at(begun + 1).look(&[&Container { started_at: again.started_at, ..exited("a", 7) }]);
    assert_eq!(story.kinds(), [Kind::RESTART_FAILED]);
}

#[test]
fn what_a_container_looks_like_in_the_middle_of_its_restart_proves_nothing() {
    let mut story = Story::of(config());
    let unhealthy = with_health("a", HealthState::Unhealthy);
    story.look(&[&unhealthy]);
    assert!(matches!(story.act(), Some(Action::Restart { .. })));
    story.event("id-a", Happening::Kill { signal: Some(15) });
    for second in [1, 5, 60] {
        story.at(second).look(&[&exited("a", 137)]);
        assert_eq!(story.act(), None);
    }
    story.fact(Fact::Restarted { name: "a".into(), result: Ok(()) });
    let again = Container { started_at: story.seconds(60), ..unhealthy };
    story.at(61).look(&[&again]);
    assert_eq!(story.kinds(), [Kind::UNHEALTHY, Kind::RESTARTING, Kind::RESTART_FAILED]);
}

#[test]
fn a_clock_that_is_set_neither_shortens_nor_prolongs_a_cooldown() {
    for by in [3600, -3600] {
        let mut story = Story::of(config());
        story.look(&[&with_health("a", HealthState::Unhealthy)]);
        assert_eq!(story.restarts(), ["a"]);
        let fresh = Container { started_at: story.seconds(1), ..with_health("a", HealthState::Unhealthy) };
        story.at(8).look(&[&fresh]);
        story.service.shift(SignedDuration::from_secs(by));
        assert_eq!(story.at(by + 59).look(&[&fresh]).restarts(), [""; 0], "{by}");
        assert_eq!(story.at(by + 60).look(&[&fresh]).restarts(), ["a"], "{by}");
    }
}

#[test]
fn the_cooldown_is_kept_and_acted_on_when_it_ends() {
    let mut story = Story::of(config());
    story.look(&[&with_health("a", HealthState::Unhealthy)]);
    assert_eq!(story.restarts(), ["a"]);
    let mut fresh = with_health("a", HealthState::Unhealthy);
    fresh.started_at = story.seconds(1);
    story.at(8).look(&[&fresh]);
    assert_eq!(story.kinds(), [Kind::UNHEALTHY, Kind::RESTARTING, Kind::RESTART_FAILED]);
    assert_eq!(story.restarts(), [""; 0]);
    let wake = story.service.wake_at(story.now, true).unwrap();
    assert_eq!(Some(wake), story.seconds(60), "the end of the cooldown, not the next event");
    assert_eq!(story.at(60).restarts(), ["a"]);
}

#[test]
fn after_the_cap_it_gives_up_once_and_a_person_starts_it_over() {
    let mut story = Story::of(config());
    let mut time = 0;
    let mut sick = with_health("a", HealthState::Unhealthy);
    for _ in 0..3 {
        assert_eq!(story.at(time).look(&[&sick]).restarts(), ["a"]);
        sick.started_at = story.seconds(time + 1);
        story.at(time + 10).look(&[&sick]);
        time += 70;
    }
    for second in [time, time + 100, time + 1000] {
        assert_eq!(story.at(second).look(&[&sick]).restarts(), [""; 0]);
    }
    let kinds = story.kinds();
    assert_eq!(kinds.iter().filter(|kind| **kind == Kind::RESTARTING).count(), 3);
    assert_eq!(kinds.iter().filter(|kind| **kind == Kind::EXHAUSTED).count(), 1);
    assert_eq!(story.status(), StatusValue::Exhausted);
    assert_eq!(story.service.durable().totals.restarts, 3);

    let (_, said) = story.service.ask(Ask::Unblock, story.now);
    assert_eq!(said, []);
    assert_eq!(story.at(time + 1001).look(&[&sick]).restarts(), ["a"]);
}

#[test]
fn one_well_container_does_not_hide_an_unwell_one() {
    let mut story = Story::of(ServiceConfig { auto_heal: false, ..config() });
    let (well, sick) = (with_health("a", HealthState::Healthy), with_health("b", HealthState::Unhealthy));
    story.look(&[&well, &sick]);
    assert_eq!(story.kinds(), [Kind::UNHEALTHY]);
    assert_eq!(story.restarts(), [""; 0], "without auto_heal it is only said");
    assert_eq!(story.status(), StatusValue::Unhealthy);
    story.at(5).look(&[&well, &with_health("b", HealthState::Healthy)]);
    assert_eq!(story.kinds(), [Kind::HEALTHY]);
    assert_eq!(story.status(), StatusValue::Ok);
}

#[test]
fn many_containers_that_crash_at_once_are_each_restarted_once() {
    let mut story = Story::of(config());
    let crashed: Vec<Container> = (0..20).map(|n| exited(&format!("c{n:02}"), 1)).collect();
    let all: Vec<&Container> = crashed.iter().collect();
    story.look(&all);
    assert_eq!(story.at(3).look(&all).restarts().len(), 20);
    assert_eq!(story.at(4).look(&all).restarts().len(), 0);
    assert_eq!(story.service.durable().totals.restarts, 20);
}

#[test]
fn a_restart_that_the_engine_did_not_answer_is_no_restart() {
    let mut story = Story::of(config());
    story.look(&[&exited("a", 1)]).at(2).look(&[&exited("a", 1)]);
    let Some(Action::Restart { name, .. }) = story.act() else { panic!("a restart is due") };
    let away = EngineError::Unavailable("gone".into());
    story.fact(Fact::Restarted { name, result: Err(away) });
    assert_eq!(story.restarts(), [""; 0], "first it looks again");
    assert_eq!(story.at(4).look(&[&exited("a", 1)]).restarts(), ["a"]);
    assert_eq!(story.service.durable().totals.restarts, 1);
}

#[test]
fn a_container_that_never_started_is_seen_without_any_event() {
    let mut story = Story::of(config());
    let stuck = Container {
        state: State::Created,
        error: "exec: no such file".into(),
        started_at: None,
        ..running("a")
    };
    story.look(&[&stuck]);
    assert_eq!(story.at(3).look(&[&stuck]).restarts(), ["a"]);
}

#[test]
fn a_loop_under_its_own_restart_policy_is_joined_only_when_it_is_one() {
    let mut story = Story::of(config());
    let looping = |count| Container { restart_count: count, restarts_itself: true, ..running("a") };
    story.look(&[&looping(0)]).at(5).look(&[&looping(1)]);
    assert_eq!(story.restarts(), [""; 0], "one restart by the engine is the engine's business");
    story.at(8).look(&[&looping(3)]);
    assert_eq!(story.at(11).look(&[&looping(4)]).restarts(), ["a"]);
}

#[test]
fn a_project_that_does_not_run_is_started_when_the_digests_match() {
    let mut story = Story::of(ServiceConfig { auto_start: true, auto_heal: false, ..config() });
    story.check(observed('1', &[local("sha256:one", &['1'])], &[&exited("a", 137)]));
    assert!(matches!(story.act(), Some(Action::Step(Step::Start { down: false, .. }))));
    let up = StepResult::Started { up: Ok(String::new()), containers: vec![running("a")] };
    story.fact(Fact::Stepped(up));
    assert_eq!(story.kinds(), [Kind::STARTED]);
}

#[test]
fn a_finished_one_shot_is_not_started_again_at_every_check() {
    let mut story = Story::of(ServiceConfig { auto_start: true, ..config() });
    story.check(observed('1', &[local("sha256:one", &['1'])], &[&exited("job", 0)]));
    assert_eq!(story.act(), None);
}

#[test]
fn what_is_stuck_is_forced_gently_first_and_hard_only_once_in_a_cooldown() {
    let mut story = Story::of(ServiceConfig { auto_start: true, ..config() });
    let created = Container { state: State::Created, started_at: None, ..running("a") };
    let seen = || observed('1', &[local("sha256:one", &['1'])], &[&created]);
    let mut forced = Vec::new();
    for second in (0..70).step_by(10) {
        story.at(second).check(seen());
        if let Some(Action::Step(Step::Start { down, .. })) = story.act() {
            forced.push((second, down));
            story.fact(Fact::Stepped(StepResult::Started {
                up: Ok(String::new()),
                containers: vec![created.clone()],
            }));
            assert!(matches!(story.act(), Some(Action::Step(Step::Release { .. }))));
            story.fact(Fact::Stepped(StepResult::Released));
        }
    }
    assert_eq!(forced, [(10, false), (20, true)]);
}

#[test]
fn a_start_that_failed_is_a_fault_until_what_it_left_runs() {
    let mut story = Story::of(ServiceConfig { auto_start: true, ..config() });
    let created = Container { state: State::Created, started_at: None, ..running("a") };
    let seen = |container: &Container| observed('1', &[local("sha256:one", &['1'])], &[container]);
    for second in (0..60).step_by(10) {
        story.at(second).check(seen(&created));
        while let Some(Action::Step(step)) = story.act() {
            let error = crate::ports::ComposeError { cause: "port is taken".into(), output: String::new() };
            story.fact(Fact::Stepped(match step {
                Step::Start { .. } => StepResult::Started { up: Err(error), containers: Vec::new() },
                Step::TagsBack { .. } => StepResult::TagsBack,
                Step::Release { .. } => StepResult::Released,
                other => panic!("{other:?}"),
            }));
        }
    }
    assert_eq!((story.kinds(), story.status()), (vec![Kind::ERROR], StatusValue::Errored));
    story.at(70).check(seen(&running("a")));
    assert_eq!(story.kinds(), [Kind::RECOVERED]);
}

#[test]
fn changed_compose_files_are_deployed_once_and_again_when_that_failed() {
    let watching = ServiceConfig { compose_watch: true, auto_update: false, ..config() };
    let mut story = Story::of(watching);
    let seen = |hash: &str| Observation { files: Files::Hash(hash.into()), ..Observation::default() };
    story.check(seen("one"));
    assert_eq!(story.act(), None, "the first run only remembers");
    story.at(10).check(seen("two"));
    assert!(matches!(story.act(), Some(Action::Step(Step::Start { .. }))));
    assert_eq!(story.service.durable().deployment.as_ref().unwrap().cause, Cause::Drift);
    assert_eq!(story.service.durable().files_hash.as_deref(), Some("two"), "stored when it is journaled");
    let error = crate::ports::ComposeError { cause: "port is taken".into(), output: String::new() };
    story.fact(Fact::Stepped(StepResult::Started { up: Err(error), containers: Vec::new() }));
    assert_eq!(story.status(), StatusValue::Errored);
    story.act();
    story.fact(Fact::Stepped(StepResult::TagsBack));
    story.act();
    story.fact(Fact::Stepped(StepResult::Released));
    assert_eq!(story.act(), None);

    story.at(20).check(seen("two"));
    assert!(matches!(story.act(), Some(Action::Step(Step::Start { .. }))), "a failed deploy is owed");
    story.fact(Fact::Stepped(StepResult::Started { up: Ok(String::new()), containers: Vec::new() }));
    story.act();
    story.fact(Fact::Stepped(StepResult::Released));
    assert_eq!(story.kinds(), [Kind::ERROR, Kind::COMPOSE_DRIFT, Kind::RECOVERED]);
    story.at(30).check(seen("two"));
    assert_eq!(story.act(), None);
}

#[test]
fn files_that_cannot_be_used_wait_and_are_said_once() {
    let mut story = Story::of(ServiceConfig { compose_watch: true, auto_update: false, ..config() });
    let seen = |files: Files| Observation { files, ..Observation::default() };
    story.check(seen(Files::Hash("one".into())));
    for second in [10, 20, 30] {
        story.at(second).check(seen(Files::Unusable("compose file x: does not exist".into())));
        assert_eq!(story.act(), None);
    }
    story.at(40).check(seen(Files::Hash("one".into())));
    assert_eq!(story.act(), None);
    assert_eq!(story.kinds(), [Kind::ERROR, Kind::RECOVERED]);
}

#[test]
fn a_block_lasts_until_the_registry_has_another_digest() {
    let mut story = Story::of(config());
    story.service.durable.blocked.insert(IMAGE.into(), digest('2'));
    let old = [local("sha256:one", &['1'])];
    story.check(observed('2', &old, &[&running("a")]));
    assert_eq!(story.act(), None);
    assert_eq!(story.status(), StatusValue::Blocked);
    story.check(observed('3', &old, &[&running("a")]));
    assert!(matches!(story.act(), Some(Action::Step(Step::Hold { .. }))));
    assert_eq!(story.kinds(), [Kind::UNBLOCKED]);
}

#[test]
fn a_tag_moved_to_the_blocked_image_by_hand_is_not_started() {
    let mut story = Story::of(ServiceConfig { auto_start: true, ..config() });
    story.service.durable.blocked.insert(IMAGE.into(), digest('2'));
    let mut seen = observed('2', &[], &[&exited("a", 1)]);
    seen.images[0].tagged = Some(local("sha256:two", &['2']));
    let good = super::action::OldImage { id: ImageId("sha256:one".into()), source: None };
    story.service.durable.proven.insert(IMAGE.into(), good.clone());
    story.check(seen);
    match story.act() {
        Some(Action::Step(Step::Start { tags, .. })) => {
            assert_eq!(tags, [(Reference::parse(IMAGE).unwrap(), good)]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(story.service.durable().blocked.len(), 1);
}

#[test]
fn an_image_that_was_only_built_here_is_not_found_until_the_remote_changes() {
    let mut story = Story::of(config());
    let built = [local("sha256:built", &[])];
    story.check(observed('1', &built, &[&running("a")]));
    assert_eq!(story.act(), None);
    story.at(10).check(observed('1', &built, &[&running("a")]));
    assert_eq!(story.act(), None);
    assert_eq!(story.kinds(), [Kind::NOT_FOUND], "said once");
    assert_eq!(story.status(), StatusValue::NotFound);
    story.at(20).check(observed('2', &built, &[&running("a")]));
    assert!(matches!(story.act(), Some(Action::Step(Step::Hold { .. }))));
}

#[test]
fn a_trigger_during_a_deploy_is_skipped_with_the_specs_words() {
    let mut story = Story::of(config());
    story.check(observed('2', &[local("sha256:one", &['1'])], &[&running("a")]));
    assert!(story.act().is_some());
    assert_eq!(story.service.ask(Ask::Check, story.now).0, Answer::Skipped("deploy in progress"));
    assert_eq!(story.service.ask(Ask::Redeploy, story.now).0, Answer::Skipped("deploy in progress"));
    let mut other = Story::of(ServiceConfig { auto_update: false, ..config() });
    assert_eq!(other.service.ask(Ask::Check, other.now).0, Answer::Skipped("auto_update is false"));
}
