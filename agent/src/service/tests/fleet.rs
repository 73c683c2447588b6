//! Scenarios of the fleet: held digests, questions to the wardens, and wardens that do not answer (DECISIONS 8).

use evenkeel_common::wire::{
    FailedDigest, FleetAnswer, FleetAsk, FleetDecisions, Freeze, FreezeScope, Permission, SeenDigest,
};

use super::*;
use crate::config::UpdateConfig;
use crate::model::swarm::{Restarts, SwarmMode, SwarmService};
use crate::ports::fleet::FleetError;
use crate::service::ROLLBACK_ATTEMPTS;
use crate::service::fleet::{FleetView, Link};
use crate::service::input::SwarmResult;
use crate::service::rollout::probation::{Failed, Failure, Reason};
use crate::service::rollout::step::Phase;

#[path = "fleet_permits.rs"]
mod permits;

fn found(remote: char) -> Observation {
    let web = running("web");
    observed(remote, &[local("sha256:one", &['1'])], &[&web])
}

pub(super) fn present() -> FleetView {
    let warden = "https://warden.example/base".to_owned();
    FleetView { link: Link::Present, warden, patience: Duration::from_hours(24), ..FleetView::default() }
}

fn scenario(view: FleetView) -> Scenario {
    let mut scenario = Scenario::of(config());
    scenario.service.fleet = Arc::new(view);
    scenario.at(0).check(found('2'));
    scenario
}

impl Scenario {
    pub(super) fn asks_fleet(&mut self) -> bool {
        match self.act() {
            Some(Action::AskFleet { image, ask, .. }) => {
                assert_eq!((image.as_str(), ask.image.as_str()), (IMAGE, IMAGE));
                assert_eq!(ask.digest, digest('2').to_string());
                true
            }
            None => false,
            Some(other) => panic!("expected a question or nothing, got {other:?}"),
        }
    }

    pub(super) fn fleet_answers(&mut self, answer: Result<FleetAnswer, FleetError>) -> &mut Self {
        self.input(Input::FleetAnswered { image: IMAGE.into(), ask: question(), answer })
    }

    /// Returns whether the lease is released now.
    fn releases(&mut self) -> bool {
        match self.act() {
            Some(Action::ReleaseFleet(ask)) => ask == question(),
            other => panic!("expected a release, got {other:?}"),
        }
    }

    fn begins(&mut self) -> bool {
        matches!(self.act(), Some(Action::Step(Step::PinImages { .. })))
    }

    fn gate(&self) -> Option<String> {
        self.record().waiting.map(|waiting| waiting.gate)
    }
}

fn question() -> FleetAsk {
    FleetAsk {
        image: IMAGE.into(),
        digest: digest('2').to_string(),
        service: "web".into(),
        ring: 0,
        progress: None,
    }
}

pub(super) fn answer(answer: Permission, again: u64) -> FleetAnswer {
    FleetAnswer { answer, why: "a tries it".into(), gate: None, again, agent: Some("a".into()), store: None }
}

fn freeze_for(scenario: &Scenario, seconds: i64) -> Freeze {
    freeze_from(scenario.start, seconds)
}

pub(super) fn freeze_from(since: Timestamp, seconds: i64) -> Freeze {
    Freeze {
        id: "f1".into(),
        reason: "launch".into(),
        by: "operator".into(),
        since,
        until: since + SignedDuration::from_secs(seconds),
        seconds_left: 0,
        scope: FreezeScope::default(),
        agents: Vec::new(),
    }
}

pub(super) fn failed() -> FailedDigest {
    FailedDigest {
        repository: "localhost:5000/web".into(),
        digest: digest('2').to_string(),
        agents: vec!["a".into()],
        more_agents: 0,
        since: Timestamp::UNIX_EPOCH,
        reason: Some("exit code 1".into()),
        output: Some("panic at start".into()),
    }
}

#[test]
fn an_update_begins_when_the_fleet_permits_it_and_keeps_its_lease() {
    let mut scenario = scenario(present());
    assert!(scenario.asks_fleet());
    assert!(!scenario.asks_fleet(), "it is asked once");
    assert!(scenario.fleet_answers(Ok(answer(Permission::Go, 30))).begins());
    assert_eq!(scenario.service.leases().len(), 1);
}

#[test]
fn a_lease_is_released_at_once_if_its_update_does_not_begin() {
    // Frozen between the answer and the start; a trigger for the same digest waits until the lease is released.
    let mut scenario = scenario(present());
    assert!(scenario.asks_fleet());
    let frozen = FleetView { revision: 2, freezes: vec![freeze_for(&scenario, 600)], ..present() };
    scenario.input(Input::Fleet(Arc::new(frozen)));
    scenario.fleet_answers(Ok(answer(Permission::Go, 30)));
    assert_eq!(scenario.service.leases(), [question()]);
    assert!(scenario.releases());
    scenario.check(found('2'));
    assert!(!scenario.asks_fleet());
    assert_eq!(scenario.service.leases(), []);
    scenario.at(1).input(Input::Fleet(Arc::new(FleetView { revision: 3, ..present() }))).check(found('2'));
    assert!(!scenario.asks_fleet(), "it is still being released");
    scenario.input(Input::FleetReleased(question()));
    assert!(scenario.asks_fleet());

    // The digest has left the tag when the answer arrives.
    scenario.check(found('1')).fleet_answers(Ok(answer(Permission::Go, 30)));
    assert!(scenario.releases());
}

#[test]
fn a_lease_is_kept_when_a_check_comes_between_its_answer_and_the_update() {
    let mut scenario = scenario(present());
    assert!(scenario.asks_fleet());
    scenario.fleet_answers(Ok(answer(Permission::Go, 30))).check(found('2'));
    assert!(scenario.asks_fleet(), "a permission covers only the update that was about to begin");
    assert_eq!(scenario.service.leases(), [question()]);
    assert!(scenario.fleet_answers(Ok(answer(Permission::Go, 30))).begins());
}

#[test]
fn a_reconfigured_service_releases_the_leases_it_does_not_need() {
    let mut before = scenario(present());
    assert!(before.asks_fleet());
    for (auto_update, returned) in [(true, false), (false, true)] {
        let mut scenario = Scenario::of(ServiceConfig { auto_update, ..config() });
        scenario.service.fleet = Arc::new(present());
        scenario.service = scenario.service.continuing(&before.service);
        scenario.at(0).check(found('2'));
        if returned {
            assert!(scenario.releases(), "the old service can't use the answer");
            assert_eq!(scenario.service.leases(), []);
        } else {
            assert!(matches!(scenario.act(), Some(Action::ReleaseFleet(_) | Action::AskFleet { .. })));
        }
    }
}

#[test]
fn a_service_that_is_no_longer_configured_releases_its_unused_leases() {
    // It is retired between the answer and the start, or before the answer.
    for is_answered in [true, false] {
        let mut scenario = scenario(present());
        assert!(scenario.asks_fleet());
        let go = || Ok(answer(Permission::Go, 30));
        if is_answered {
            scenario.fleet_answers(go());
        }
        scenario.service.permits.is_retired = true;
        if !is_answered {
            assert_eq!(
                (scenario.service.lease_to_return(scenario.now), scenario.service.has_leases()),
                (None, true)
            );
            scenario.fleet_answers(go());
        }
        assert_eq!(scenario.service.lease_to_return(scenario.now), Some(Action::ReleaseFleet(question())));
        assert!(scenario.service.has_leases(), "it is being released");
        scenario.input(Input::FleetReleased(question()));
        assert!(!scenario.service.has_leases());
    }
    // A deployment in progress keeps it.
    let mut scenario = scenario(present());
    assert!(scenario.asks_fleet());
    assert!(scenario.fleet_answers(Ok(answer(Permission::Go, 30))).begins());
    scenario.service.permits.is_retired = true;
    assert_eq!(
        (scenario.service.lease_to_return(scenario.now), scenario.service.leases()),
        (None, vec![question()])
    );
}

#[test]
fn a_waiting_service_asks_again_after_a_new_verdict() {
    let mut scenario = scenario(present());
    assert!(scenario.asks_fleet());
    scenario.fleet_answers(Ok(answer(Permission::Wait, 60)));
    assert_eq!(scenario.gate().as_deref(), Some("ring"));
    scenario.at(5).input(Input::Fleet(Arc::new(FleetView { verdicts: 7, ..present() })));
    assert!(scenario.asks_fleet(), "again at once");
    scenario.fleet_answers(Ok(answer(Permission::Wait, 60)));
    scenario.at(6).input(Input::Fleet(Arc::new(FleetView { verdicts: 7, ..present() })));
    assert!(!scenario.asks_fleet(), "nothing is new");
}

#[test]
fn a_deployment_without_a_verdict_releases_its_lease() {
    let mut scenario = scenario(present());
    assert!(scenario.asks_fleet());
    assert!(scenario.fleet_answers(Ok(answer(Permission::Go, 30))).begins());
    scenario.input(Input::Stepped(StepResult::ImagesPinned { missing: Vec::new() }));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Pull { .. }))));
    assert_eq!(scenario.service.leases(), [question()]);
    scenario.input(Input::Stepped(StepResult::Failed("manifest unknown".into())));
    assert!(scenario.releases());
    assert_eq!((scenario.service.leases(), &scenario.service.permits.decided), (Vec::new(), &Vec::new()));
}

#[test]
fn a_swarm_service_keeps_its_lease_exactly_until_its_verdict() {
    let service = ServiceConfig { swarm_service: Some("web".into()), ..config() };
    let mut scenario = Scenario::of(service);
    scenario.service.fleet = Arc::new(present());
    let swarm = SwarmService {
        id: "s".into(),
        name: "web".into(),
        version: 1,
        image: format!("{IMAGE}@{}", digest('1')),
        previous_image: None,
        force_update: 0,
        mode: SwarmMode::Replicated(1),
        update: None,
        tasks: Vec::new(),
        nodes_down: std::collections::BTreeSet::new(),
        nodes_paused: std::collections::BTreeSet::new(),
        restarts: Restarts::All,
        is_constrained: false,
    };
    scenario.at(0).check(Observation { swarm: Some(Box::new(swarm)), ..found('2') });
    assert!(scenario.asks_fleet());
    scenario.fleet_answers(Ok(answer(Permission::Go, 30)));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::Swarm(_)))));
    let leases = scenario.service.leases();
    assert_eq!((leases[0].image.as_str(), leases[0].digest.as_str()), (IMAGE, digest('2').as_str()));

    let failure = Failure::general(Reason::Words("it ended".into()));
    let failed = Failed::new(failure, String::new());
    scenario.service.durable.deployment.as_mut().unwrap().phase = Phase::Rollback(failed);
    for second in 0..ROLLBACK_ATTEMPTS {
        assert_eq!(scenario.service.leases(), leases, "{second}");
        scenario.input(Input::Stepped(StepResult::Swarm(SwarmResult::Busy)));
    }
    assert_eq!(scenario.kinds().last(), Some(&Kind::ROLLBACK_FAILED));
    assert_eq!(scenario.service.leases(), []);
    assert_eq!(scenario.service.permits.decided, leases, "it is kept until the verdict has arrived");
}

#[test]
fn an_update_that_the_fleet_defers_is_shown_and_asked_about_again() {
    for permission in [Permission::Wait, Permission::No] {
        let mut scenario = scenario(present());
        assert!(scenario.asks_fleet());
        scenario.fleet_answers(Ok(answer(permission, 30)));
        assert!(!scenario.asks_fleet());
        assert_eq!(
            (scenario.gate().as_deref(), scenario.record().blocked_by.as_deref()),
            (Some("ring"), Some("a"))
        );
        assert!(scenario.service.leases().is_empty());
        scenario.at(29).check(found('2'));
        assert!(!scenario.asks_fleet());
        scenario.at(30).check(found('2'));
        assert!(scenario.asks_fleet());
        assert!(scenario.fleet_answers(Ok(answer(Permission::Go, 30))).begins());
    }
}

#[test]
fn a_freeze_holds_until_its_end_or_a_thaw_and_a_trigger_does_not_pass_it() {
    let mut scenario = Scenario::of(config());
    let frozen = FleetView { freezes: vec![freeze_for(&scenario, 600)], ..present() };
    scenario.service.fleet = Arc::new(frozen);
    scenario.at(0);
    scenario.service.handle_request(ServiceRequest::Check, scenario.now);
    let generation = scenario.service.generation;
    scenario.input(Input::Checked { generation, is_manual: true, result: Ok(found('2')) });
    assert!(!scenario.asks_fleet());
    assert_eq!(scenario.gate().as_deref(), Some("freeze"));
    assert_eq!(scenario.service.checks.again_at, Some(scenario.start + SignedDuration::from_secs(600)));
    // Thawed: it is checked at once.
    scenario.at(5).input(Input::Fleet(Arc::new(FleetView { revision: 2, ..present() })));
    assert!(scenario.service.checks.is_due());
    scenario.check(found('2'));
    assert!(scenario.asks_fleet());
}

#[test]
fn a_freeze_is_reported_even_if_no_update_waits() {
    let mut scenario = Scenario::of(config());
    let frozen = FleetView { freezes: vec![freeze_for(&scenario, 600)], ..present() };
    scenario.service.fleet = Arc::new(frozen);
    scenario.at(0).check(found('1'));
    let why = |scenario: &Scenario| {
        let report = scenario.why();
        let freeze = report.gates.iter().find(|gate| gate.gate == "freeze").cloned().unwrap();
        (report.answer, freeze)
    };
    let text = "the fleet is frozen until 2026-01-01 00:10:00 UTC (operator): launch";
    let (answer, freeze) = why(&scenario);
    assert!(answer.starts_with("up to date") && answer.ends_with(text), "{answer}");
    assert_eq!((freeze.holds, freeze.why.as_str()), (false, text));
    assert_eq!(
        (freeze.lifts_at, freeze.clear.as_deref()),
        (scenario.seconds(600), Some(r#"POST https://warden.example/base/thaw {"id":"f1"}"#))
    );
    scenario.at(60).check(found('2'));
    let (answer, freeze) = why(&scenario);
    assert!(freeze.holds && answer == text, "{answer}");
    // After its end it is no longer reported.
    scenario.at(600).check(found('1'));
    let (answer, freeze) = why(&scenario);
    assert!(!answer.contains("frozen") && !freeze.holds && freeze.lifts_at.is_none(), "{answer}");
}

#[test]
fn a_digest_that_failed_elsewhere_is_held_with_its_output_and_a_redeploy_passes() {
    let mut scenario = scenario(FleetView { failed: vec![failed()], ..present() });
    assert!(!scenario.asks_fleet());
    let record = scenario.record();
    let waiting = record.waiting.unwrap();
    assert_eq!((waiting.gate.as_str(), record.blocked_by.as_deref()), ("immunity", Some("a")));
    assert_eq!(waiting.output.as_deref(), Some("panic at start"));
    assert!(waiting.why.contains("exit code 1"), "{}", waiting.why);
    let unblock = format!(
        r#"POST https://warden.example/base/unblock {{"image":"localhost:5000/web","digest":"{}"}}"#,
        digest('2')
    );
    assert_eq!(waiting.clear, unblock);
    scenario.service.handle_request(ServiceRequest::Redeploy, scenario.now);
    assert!(scenario.check(found('2')).begins(), "the fleet is not asked either");
}

pub(super) fn unanswered() -> Result<FleetAnswer, FleetError> {
    Err(FleetError::Unavailable("no answer within 2 s".into()))
}

#[test]
fn one_missing_answer_holds_every_ring_while_a_warden_may_be_there() {
    for (ring, link) in [(0, Link::Present), (0, Link::Unknown), (1, Link::Present)] {
        let mut held = scenario(FleetView { link, ring, ..present() });
        assert!(held.asks_fleet());
        assert!(held.fleet_answers(unanswered()).releases(), "the answer may have been lost");
        assert!(!held.asks_fleet(), "ring {ring}, {link:?}");
        assert_eq!(held.gate().as_deref(), Some("ring"));
    }
    // Ring 0 goes ahead as soon as no warden answers anything, this question included.
    let mut gone = scenario(present());
    assert!(gone.asks_fleet());
    assert!(gone.fleet_answers(unanswered()).releases());
    gone.input(Input::FleetReleased(question()));
    let away = present().without_warden(gone.now);
    gone.at(5).input(Input::Fleet(Arc::new(away))).check(found('2'));
    assert!(gone.asks_fleet());
    assert!(gone.fleet_answers(unanswered()).begins());
    let mut none = scenario(present());
    assert!(none.asks_fleet());
    assert!(none.fleet_answers(Err(FleetError::NoFleet)).begins());
}

#[test]
fn a_question_that_stays_unanswered_holds_ring_0_for_a_minute_and_others_for_their_patience() {
    let patience = Duration::from_mins(3);
    for (ring, last) in [(0, 60), (1, 180)] {
        let mut scenario = scenario(FleetView { ring, patience, ..present() });
        for second in (0..last).step_by(30) {
            scenario.at(second).check(found('2'));
            assert!(scenario.asks_fleet(), "ring {ring}, {second} s");
            assert!(scenario.fleet_answers(unanswered()).releases(), "ring {ring}, {second} s");
            scenario.input(Input::FleetReleased(question()));
        }
        scenario.at(last).check(found('2'));
        assert!(scenario.asks_fleet());
        assert!(scenario.fleet_answers(unanswered()).begins(), "ring {ring}");
    }
    // An answer in between, and a time in which nothing was asked, end the silence.
    for (answered_at, next_at) in [(Some(30), 70), (None, 400)] {
        let mut scenario = scenario(present());
        assert!(scenario.asks_fleet());
        assert!(scenario.fleet_answers(unanswered()).releases());
        scenario.input(Input::FleetReleased(question()));
        if let Some(second) = answered_at {
            scenario.at(second).check(found('2'));
            assert!(scenario.asks_fleet());
            scenario.fleet_answers(Ok(answer(Permission::Wait, 10)));
        }
        scenario.at(next_at).check(found('2'));
        assert!(scenario.asks_fleet());
        assert!(scenario.fleet_answers(unanswered()).releases(), "{next_at} s");
    }
}

#[test]
fn while_no_warden_answers_a_ring_waits_and_known_blocks_hold() {
    let gone = |ring| present().without_warden("2026-01-01T00:00:00Z".parse().unwrap()).clone_with_ring(ring);
    let mut lowest = scenario(gone(0));
    assert!(lowest.asks_fleet());
    assert!(lowest.fleet_answers(unanswered()).begins(), "ring 0 does not hold");
    let mut ring = scenario(gone(1));
    assert!(!ring.asks_fleet());
    assert_eq!(ring.gate().as_deref(), Some("ring"));
    ring.at(86_400).check(found('2'));
    assert!(ring.asks_fleet());
    assert!(ring.fleet_answers(unanswered()).begins());
    let refused = gone(1).without_answer("the warden refuses this agent's token", ring.start);
    let waiting = scenario(refused).record().waiting.expect("it waits");
    assert!(waiting.why.contains("(the warden refuses this agent's token)"), "{}", waiting.why);
    let mut known = scenario(FleetView { failed: vec![failed()], ..gone(0) });
    assert!(!known.begins());
    assert_eq!(known.gate().as_deref(), Some("immunity"));
}

#[test]
fn a_warden_that_is_back_before_the_next_poll_is_asked_and_obeyed() {
    let (day, start) = (86_400, "2026-01-01T00:00:00Z".parse().unwrap());
    for (ring, contact, store_away) in [(0, 1, None), (0, 0, None), (0, 1, Some(start)), (1, 1, None)] {
        // Ring 1 has waited for its patience.
        let away = FleetView { ring, store_away, contact, ..present().without_warden(start) };
        let mut back = scenario(away.clone());
        back.at(day).check(found('2'));
        assert!(back.asks_fleet(), "ring {ring}");
        back.fleet_answers(Ok(answer(Permission::Wait, 60)));
        assert!(!back.asks_fleet(), "another machine is trying it");
        assert_eq!((back.gate().as_deref(), back.service.leases()), (Some("ring"), Vec::new()));
        // A warden that stays busy counts as away.
        let mut busy = scenario(away);
        busy.at(day).check(found('2'));
        assert!(busy.asks_fleet());
        assert!(busy.fleet_answers(Err(FleetError::Busy)).begins(), "ring {ring}");
    }
}

impl FleetView {
    fn clone_with_ring(self, ring: u8) -> Self {
        Self { ring, ..self }
    }
}

#[test]
fn without_a_fleet_nothing_is_asked() {
    assert!(scenario(FleetView::default()).begins());
}

#[test]
fn a_skewed_clock_falls_back_to_seconds_left_and_freezes_are_capped() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let scenario = Scenario::of(config());
    let received = |freeze: Freeze, date| {
        let decisions = FleetDecisions { revision: 3, freezes: vec![freeze], ..FleetDecisions::default() };
        present().with_decisions(decisions, date, now)
    };
    let freeze = Freeze { seconds_left: 60, ..freeze_for(&scenario, 7200) };
    let right = received(freeze.clone(), Some(now));
    assert_eq!(right.freezes[0].until, now + SignedDuration::from_secs(7200));
    assert_eq!(right.warning(), None);
    let wrong = received(freeze, Some(now - SignedDuration::from_mins(11)));
    assert_eq!(wrong.freezes[0].until, now + SignedDuration::from_secs(60));
    assert!(wrong.warning().unwrap().contains("660 s ahead"), "{:?}", wrong.warning());
    let endless = Freeze { until: Timestamp::MAX, ..freeze_for(&scenario, 0) };
    assert_eq!(received(endless, None).freezes[0].until, now + SignedDuration::from_hours(31 * 24));
}

#[test]
fn a_warden_without_its_store_revokes_nothing() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let scenario = Scenario::of(config());
    let frozen = FleetView { revision: 5, freezes: vec![freeze_for(&scenario, 600)], ..present() };
    let old = |store: Option<&str>, revision| {
        let store = store.map(str::to_owned);
        let decisions = FleetDecisions { revision, store, ..FleetDecisions::default() };
        let received = frozen.clone().without_warden(now).with_decisions(decisions, None, now);
        (received.link, received.revision, received.freezes.len())
    };
    assert_eq!(old(Some("away"), 4), (Link::Present, 5, 1));
    assert_eq!(old(Some("away"), 6), (Link::Present, 6, 0));
    assert_eq!(old(None, 4), (Link::Present, 4, 0), "its store is another one now");
}

/// Decisions of a warden that saw the digest behind the tag so many seconds ago.
fn seen(seconds_ago: u64) -> FleetDecisions {
    let seen = SeenDigest { image: IMAGE.into(), digest: digest('2').to_string(), seconds_ago };
    FleetDecisions { seen: vec![seen], ..FleetDecisions::default() }
}

fn aged() -> Scenario {
    let update = UpdateConfig { min_age: Some(Duration::from_hours(1)), ..UpdateConfig::default() };
    Scenario::of(ServiceConfig { update: Some(Arc::new(update)), ..config() })
}

#[test]
fn first_seen_is_when_the_fleet_saw_it_if_earlier() {
    for (ago, lifts) in [(0, Some(3600)), (600, Some(3000)), (3600, None), (u64::MAX, None)] {
        let mut scenario = aged();
        scenario.service.fleet = Arc::new(present());
        scenario.at(0).check(found('2'));
        assert_eq!(scenario.record().waiting.and_then(|waiting| waiting.lifts_at), scenario.seconds(3600));
        let received = present().with_decisions(seen(ago), None, scenario.start);
        scenario.input(Input::Fleet(Arc::new(received)));
        assert_eq!(
            scenario.record().waiting.and_then(|waiting| waiting.lifts_at),
            lifts.and_then(|l| scenario.seconds(l))
        );
        if let Some(at) = lifts {
            assert_eq!(scenario.service.checks.again_at, scenario.seconds(at), "it checks again then");
        } else {
            assert!(scenario.service.checks.is_due(), "it is checked at once");
            assert!(scenario.check(found('2')).asks_fleet());
        }
        // It is kept while no warden answers.
        let away = scenario.service.fleet.without_warden(scenario.start);
        scenario.input(Input::Fleet(Arc::new(away)));
        assert_eq!(
            scenario.record().waiting.and_then(|waiting| waiting.lifts_at),
            lifts.and_then(|l| scenario.seconds(l))
        );
    }
}

#[test]
fn a_digest_is_no_older_than_this_agents_last_look_at_another() {
    let mut scenario = aged();
    let received = present().with_decisions(seen(1_000_000), None, scenario.start);
    scenario.service.fleet = Arc::new(received);
    // The tag names the running digest at 100 s and the new one at 400 s: 300 s of it rely on the fleet.
    scenario.at(100).check(found('1'));
    scenario.at(400).check(found('2'));
    let waiting = scenario.record().waiting.unwrap();
    assert_eq!((waiting.gate.as_str(), waiting.lifts_at), ("min_age", scenario.seconds(3700)));
    // This still holds after a restart of the agent.
    let kept = serde_json::to_string(scenario.service.durable()).unwrap();
    let again: Durable = serde_json::from_str(&kept).unwrap();
    assert_eq!(again.images.get(IMAGE).found[0].not_before, scenario.seconds(100));
}

#[test]
fn answers_about_the_same_moment_are_equal() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let first = present().with_decisions(seen(1000), None, now);
    let later = first.with_decisions(seen(1049), None, now + SignedDuration::from_secs(50));
    assert_eq!(first.seen, later.seen, "one second of difference causes no report and no write");
    let other = first.with_decisions(seen(5000), None, now);
    assert_eq!(other.seen[0].since, now - SignedDuration::from_secs(5000));
}
