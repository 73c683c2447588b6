//! Stories of the fleet: what it withholds, what it is asked, and what happens while no warden answers (DECISIONS 8).

use evenkeel_common::wire::{
    FailedDigest, FleetAnswer, FleetAsk, FleetDecisions, Freeze, FreezeScope, Permission, SeenDigest,
};

use super::*;
use crate::config::UpdateConfig;
use crate::model::swarm::{SwarmMode, SwarmService};
use crate::ports::fleet::FleetError;
use crate::service::ROLLBACK_ATTEMPTS;
use crate::service::fleet::{FleetView, Link};
use crate::service::rollout::probation::Failure;
use crate::service::swarm::plan::{SwarmFailed, SwarmPhase, SwarmResult};

#[path = "fleet_permits.rs"]
mod permits;

fn found(remote: char) -> Observation {
    let web = running("web");
    observed(remote, &[local("sha256:one", &['1'])], &[&web])
}

fn present() -> FleetView {
    let warden = "https://warden.example/base".to_owned();
    FleetView { link: Link::Present, warden, patience: Duration::from_hours(24), ..FleetView::default() }
}

fn story(view: FleetView) -> Story {
    let mut story = Story::of(config());
    story.service.set_fleet(Arc::new(view));
    story.at(0).check(found('2'));
    story
}

impl Story {
    fn asks_fleet(&mut self) -> bool {
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

    fn fleet_answers(&mut self, answer: Result<FleetAnswer, FleetError>) -> &mut Self {
        self.input(Input::FleetAnswered { image: IMAGE.into(), ask: question(), answer })
    }

    /// Whether the lease is given back now.
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
    FleetAsk { image: IMAGE.into(), digest: digest('2').to_string(), service: "web".into(), ring: 0 }
}

fn answer(answer: Permission, again: u64) -> FleetAnswer {
    FleetAnswer { answer, why: "a tries it".into(), gate: None, again, agent: Some("a".into()), store: None }
}

fn freeze_for(story: &Story, seconds: i64) -> Freeze {
    freeze_from(story.start, seconds)
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
    }
}

pub(super) fn failed() -> FailedDigest {
    FailedDigest {
        repository: "localhost:5000/web".into(),
        digest: digest('2').to_string(),
        agents: vec!["a".into()],
        since: Timestamp::UNIX_EPOCH,
        reason: Some("exit code 1".into()),
        output: Some("panic at start".into()),
    }
}

#[test]
fn an_update_begins_when_the_fleet_lets_it_go_and_its_lease_is_kept_meanwhile() {
    let mut story = story(present());
    assert!(story.asks_fleet());
    assert!(!story.asks_fleet(), "it is asked once");
    assert!(story.fleet_answers(Ok(answer(Permission::Go, 30))).begins());
    assert_eq!(story.service.leases().len(), 1);
}

#[test]
fn a_lease_is_given_back_at_once_where_its_update_does_not_begin() {
    // Frozen between the answer and the begin; a trigger for the same digest waits until the lease is back.
    let mut story = story(present());
    assert!(story.asks_fleet());
    let frozen = FleetView { revision: 2, freezes: vec![freeze_for(&story, 600)], ..present() };
    story.input(Input::Fleet(Arc::new(frozen)));
    story.fleet_answers(Ok(answer(Permission::Go, 30)));
    assert_eq!(story.service.leases(), [question()]);
    assert!(story.releases());
    story.check(found('2'));
    assert!(!story.asks_fleet());
    assert_eq!(story.service.leases(), []);
    story.at(1).input(Input::Fleet(Arc::new(FleetView { revision: 3, ..present() }))).check(found('2'));
    assert!(!story.asks_fleet(), "it is still being given back");
    story.input(Input::FleetReleased(question()));
    assert!(story.asks_fleet());

    // The digest is gone from the tag when the answer comes.
    story.check(found('1')).fleet_answers(Ok(answer(Permission::Go, 30)));
    assert!(story.releases());
}

#[test]
fn a_lease_is_kept_when_a_check_comes_between_its_answer_and_the_update() {
    let mut story = story(present());
    assert!(story.asks_fleet());
    story.fleet_answers(Ok(answer(Permission::Go, 30))).check(found('2'));
    assert!(story.asks_fleet(), "a go is for what was about to begin; nothing is given back meanwhile");
    assert_eq!(story.service.leases(), [question()]);
    assert!(story.fleet_answers(Ok(answer(Permission::Go, 30))).begins());
}

#[test]
fn a_service_with_another_configuration_gives_back_what_it_does_not_want() {
    let mut before = story(present());
    assert!(before.asks_fleet());
    for (auto_update, returned) in [(true, false), (false, true)] {
        let mut story = Story::of(ServiceConfig { auto_update, ..config() });
        story.service.set_fleet(Arc::new(present()));
        story.service.inherit_leases(&before.service);
        story.at(0).check(found('2'));
        if returned {
            assert!(story.releases(), "the answer came to nobody");
            assert_eq!(story.service.leases(), []);
        } else {
            assert!(matches!(story.act(), Some(Action::ReleaseFleet(_) | Action::AskFleet { .. })));
        }
    }
}

#[test]
fn a_service_that_is_configured_no_more_gives_back_what_it_has_not_begun() {
    // It is told between the answer and the begin, or before the answer.
    for is_answered in [true, false] {
        let mut story = story(present());
        assert!(story.asks_fleet());
        let go = || Ok(answer(Permission::Go, 30));
        if is_answered {
            story.fleet_answers(go());
        }
        story.service.retire();
        if !is_answered {
            assert_eq!((story.service.lease_to_return(story.now), story.service.has_leases()), (None, true));
            story.fleet_answers(go());
        }
        assert_eq!(story.service.lease_to_return(story.now), Some(Action::ReleaseFleet(question())));
        assert!(story.service.has_leases(), "it is being given back");
        story.input(Input::FleetReleased(question()));
        assert!(!story.service.has_leases());
    }
    // What is under way keeps it.
    let mut story = story(present());
    assert!(story.asks_fleet());
    assert!(story.fleet_answers(Ok(answer(Permission::Go, 30))).begins());
    story.service.retire();
    assert_eq!((story.service.lease_to_return(story.now), story.service.leases()), (None, vec![question()]));
}

#[test]
fn who_waits_asks_again_when_there_is_another_verdict() {
    let mut story = story(present());
    assert!(story.asks_fleet());
    story.fleet_answers(Ok(answer(Permission::Wait, 60)));
    assert_eq!(story.gate().as_deref(), Some("ring"));
    story.at(5).input(Input::Fleet(Arc::new(FleetView { verdicts: 7, ..present() })));
    assert!(story.asks_fleet(), "again at once");
    story.fleet_answers(Ok(answer(Permission::Wait, 60)));
    story.at(6).input(Input::Fleet(Arc::new(FleetView { verdicts: 7, ..present() })));
    assert!(!story.asks_fleet(), "nothing is new");
}

#[test]
fn a_deployment_that_ends_without_a_verdict_gives_its_lease_back() {
    let mut story = story(present());
    assert!(story.asks_fleet());
    assert!(story.fleet_answers(Ok(answer(Permission::Go, 30))).begins());
    story.input(Input::Stepped(StepResult::ImagesPinned { missing: Vec::new() }));
    assert!(matches!(story.act(), Some(Action::Step(Step::Pull { .. }))));
    assert_eq!(story.service.leases(), [question()]);
    story.input(Input::Stepped(StepResult::Failed("manifest unknown".into())));
    assert!(story.releases());
    assert_eq!((story.service.leases(), &story.service.permits.decided), (Vec::new(), &Vec::new()));
}

#[test]
fn the_lease_of_a_swarm_service_is_kept_until_its_verdict_and_none_is_left_after_it() {
    let service = ServiceConfig { swarm_service: Some("web".into()), ..config() };
    let mut story = Story::of(service);
    story.service.set_fleet(Arc::new(present()));
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
    };
    story.at(0).check(Observation { swarm: Some(Box::new(swarm)), ..found('2') });
    assert!(story.asks_fleet());
    story.fleet_answers(Ok(answer(Permission::Go, 30)));
    assert!(matches!(story.act(), Some(Action::Swarm(_))));
    let leases = story.service.leases();
    assert_eq!((leases[0].image.as_str(), leases[0].digest.as_str()), (IMAGE, digest('2').as_str()));

    let failure = Failure::general("it ended");
    let failed = SwarmFailed { failure, output: String::new(), task: String::new(), by_node: false };
    story.service.durable.swarm.as_mut().unwrap().phase = SwarmPhase::Rollback(failed);
    for second in 0..ROLLBACK_ATTEMPTS {
        assert_eq!(story.service.leases(), leases, "{second}");
        story.input(Input::SwarmStepped(SwarmResult::Busy));
    }
    assert_eq!(story.kinds().last(), Some(&Kind::ROLLBACK_FAILED));
    assert_eq!(story.service.leases(), []);
    assert_eq!(story.service.permits.decided, leases, "it is kept until the verdict has arrived");
}

#[test]
fn what_the_fleet_lets_wait_is_asked_again_and_shown() {
    for said in [Permission::Wait, Permission::No] {
        let mut story = story(present());
        assert!(story.asks_fleet());
        story.fleet_answers(Ok(answer(said, 30)));
        assert!(!story.asks_fleet());
        assert_eq!(
            (story.gate().as_deref(), story.record().blocked_by.as_deref()),
            (Some("ring"), Some("a"))
        );
        assert!(story.service.leases().is_empty());
        story.at(29).check(found('2'));
        assert!(!story.asks_fleet());
        story.at(30).check(found('2'));
        assert!(story.asks_fleet());
        assert!(story.fleet_answers(Ok(answer(Permission::Go, 30))).begins());
    }
}

#[test]
fn a_freeze_holds_until_its_end_or_a_thaw_and_a_trigger_does_not_pass_it() {
    let mut story = Story::of(config());
    let frozen = FleetView { freezes: vec![freeze_for(&story, 600)], ..present() };
    story.service.set_fleet(Arc::new(frozen));
    story.at(0);
    story.service.ask(ServiceRequest::Check, story.now);
    let generation = story.service.generation;
    story.input(Input::Checked { generation, asked: true, result: Ok(found('2')) });
    assert!(!story.asks_fleet());
    assert_eq!(story.gate().as_deref(), Some("freeze"));
    assert_eq!(story.service.recheck_at, Some(story.start + SignedDuration::from_secs(600)));
    // Thawed: it is compared at once.
    story.at(5).input(Input::Fleet(Arc::new(FleetView { revision: 2, ..present() })));
    assert!(story.service.check_due);
    story.check(found('2'));
    assert!(story.asks_fleet());
}

#[test]
fn a_freeze_is_named_also_while_nothing_waits_and_then_holds_nothing() {
    let mut story = Story::of(config());
    let frozen = FleetView { freezes: vec![freeze_for(&story, 600)], ..present() };
    story.service.set_fleet(Arc::new(frozen));
    story.at(0).check(found('1'));
    let why = |story: &Story| {
        let context =
            StatusContext { now: story.now, next_poll: None, engine_error: None, state_error: None };
        let snapshot = story.service.snapshot(PullProgress::default());
        let report = crate::service::gates::why(&snapshot, story.service.config(), &context);
        let freeze = report.gates.iter().find(|gate| gate.gate == "freeze").cloned().unwrap();
        (report.answer, freeze)
    };
    let text = "the fleet is frozen until 2026-01-01 00:10:00 UTC (operator): launch";
    let (answer, freeze) = why(&story);
    assert!(answer.starts_with("up to date") && answer.ends_with(text), "{answer}");
    assert_eq!((freeze.holds, freeze.why.as_str()), (false, text));
    assert_eq!(
        (freeze.lifts_at, freeze.clear.as_deref()),
        (story.seconds(600), Some(r#"POST https://warden.example/base/thaw {"id":"f1"}"#))
    );
    story.at(60).check(found('2'));
    let (answer, freeze) = why(&story);
    assert!(freeze.holds && answer == text, "{answer}");
    // When it is over, nobody speaks of it any more.
    story.at(600).check(found('1'));
    let (answer, freeze) = why(&story);
    assert!(!answer.contains("frozen") && !freeze.holds && freeze.lifts_at.is_none(), "{answer}");
}

#[test]
fn a_digest_that_failed_elsewhere_is_withheld_and_its_black_box_shown_but_a_redeploy_passes() {
    let mut story = story(FleetView { failed: vec![failed()], ..present() });
    assert!(!story.asks_fleet());
    let record = story.record();
    let waiting = record.waiting.unwrap();
    assert_eq!((waiting.gate.as_str(), record.blocked_by.as_deref()), ("immunity", Some("a")));
    assert_eq!(waiting.output.as_deref(), Some("panic at start"));
    assert!(waiting.why.contains("exit code 1"), "{}", waiting.why);
    let unblock = format!(
        r#"POST https://warden.example/base/unblock {{"image":"localhost:5000/web","digest":"{}"}}"#,
        digest('2')
    );
    assert_eq!(waiting.clear, unblock);
    story.service.ask(ServiceRequest::Redeploy, story.now);
    assert!(story.check(found('2')).begins(), "nobody is asked, either");
}

#[test]
fn an_answer_that_does_not_come_holds_only_a_ring() {
    let away = || Err(FleetError::Away("no answer within 2 s".into()));
    let mut first = story(present());
    assert!(first.asks_fleet());
    assert!(first.fleet_answers(away()).begins());
    let mut later = story(FleetView { ring: 1, ..present() });
    assert!(later.asks_fleet());
    assert!(later.fleet_answers(away()).releases(), "the answer may have been lost");
    assert!(!later.asks_fleet());
    assert_eq!(later.gate().as_deref(), Some("ring"));
    let mut none = story(present());
    assert!(none.asks_fleet());
    assert!(none.fleet_answers(Err(FleetError::NoFleet)).begins());
}

#[test]
fn while_no_warden_answers_a_ring_waits_its_patience_and_known_blocks_hold() {
    let gone = |ring| present().away("2026-01-01T00:00:00Z".parse().unwrap()).clone_with_ring(ring);
    assert!(story(gone(0)).begins(), "first alone does not hold");
    let mut ring = story(gone(1));
    assert!(!ring.begins());
    assert_eq!(ring.gate().as_deref(), Some("ring"));
    ring.at(86_400).check(found('2'));
    assert!(ring.begins());
    let mut known = story(FleetView { failed: vec![failed()], ..gone(0) });
    assert!(!known.begins());
    assert_eq!(known.gate().as_deref(), Some("immunity"));
}

impl FleetView {
    fn clone_with_ring(self, ring: u8) -> Self {
        Self { ring, ..self }
    }
}

#[test]
fn without_a_fleet_nothing_is_asked() {
    assert!(story(FleetView::default()).begins());
}

#[test]
fn a_clock_that_is_off_counts_seconds_and_no_freeze_is_endless() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let story = Story::of(config());
    let heard = |freeze: Freeze, date| {
        let decisions = FleetDecisions { revision: 3, freezes: vec![freeze], ..FleetDecisions::default() };
        present().heard(decisions, date, now)
    };
    let freeze = Freeze { seconds_left: 60, ..freeze_for(&story, 7200) };
    let right = heard(freeze.clone(), Some(now));
    assert_eq!(right.freezes[0].until, now + SignedDuration::from_secs(7200));
    assert_eq!(right.warning(), None);
    let wrong = heard(freeze, Some(now - SignedDuration::from_mins(11)));
    assert_eq!(wrong.freezes[0].until, now + SignedDuration::from_secs(60));
    assert!(wrong.warning().unwrap().contains("660 s ahead"), "{:?}", wrong.warning());
    let endless = Freeze { until: Timestamp::MAX, ..freeze_for(&story, 0) };
    assert_eq!(heard(endless, None).freezes[0].until, now + SignedDuration::from_hours(31 * 24));
}

#[test]
fn a_warden_that_is_cut_off_from_its_store_takes_nothing_back() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let story = Story::of(config());
    let frozen = FleetView { revision: 5, freezes: vec![freeze_for(&story, 600)], ..present() };
    let old = |store: Option<&str>, revision| {
        let store = store.map(str::to_owned);
        let decisions = FleetDecisions { revision, store, ..FleetDecisions::default() };
        let heard = frozen.clone().away(now).heard(decisions, None, now);
        (heard.link, heard.revision, heard.freezes.len())
    };
    assert_eq!(old(Some("away"), 4), (Link::Present, 5, 1));
    assert_eq!(old(Some("away"), 6), (Link::Present, 6, 0));
    assert_eq!(old(None, 4), (Link::Present, 4, 0), "its store is another one now");
}

/// What a warden says of a digest behind the tag.
fn seen(seconds_ago: u64) -> FleetDecisions {
    let seen = SeenDigest { image: IMAGE.into(), digest: digest('2').to_string(), seconds_ago };
    FleetDecisions { seen: vec![seen], ..FleetDecisions::default() }
}

fn aged() -> Story {
    let update = UpdateConfig { min_age: Some(Duration::from_hours(1)), ..UpdateConfig::default() };
    Story::of(ServiceConfig { update: Some(Arc::new(update)), ..config() })
}

#[test]
fn first_seen_is_when_the_fleet_saw_it_where_that_was_earlier() {
    for (ago, lifts) in [(0, Some(3600)), (600, Some(3000)), (3600, None), (u64::MAX, None)] {
        let mut story = aged();
        story.service.set_fleet(Arc::new(present()));
        story.at(0).check(found('2'));
        assert_eq!(story.record().waiting.and_then(|waiting| waiting.lifts_at), story.seconds(3600));
        let heard = present().heard(seen(ago), None, story.start);
        story.input(Input::Fleet(Arc::new(heard)));
        assert_eq!(
            story.record().waiting.and_then(|waiting| waiting.lifts_at),
            lifts.and_then(|l| story.seconds(l))
        );
        if let Some(at) = lifts {
            assert_eq!(story.service.recheck_at, story.seconds(at), "it looks again then");
        } else {
            assert!(story.service.check_due, "it is compared at once");
            assert!(story.check(found('2')).asks_fleet());
        }
        // It is kept when the wardens are gone.
        let away = story.service.fleet.away(story.start);
        story.input(Input::Fleet(Arc::new(away)));
        assert_eq!(
            story.record().waiting.and_then(|waiting| waiting.lifts_at),
            lifts.and_then(|l| story.seconds(l))
        );
    }
}

#[test]
fn the_fleet_cannot_make_a_digest_older_than_this_agents_last_look_at_another() {
    let mut story = aged();
    let heard = present().heard(seen(1_000_000), None, story.start);
    story.service.set_fleet(Arc::new(heard));
    // The tag names what runs at 100 s, and the new digest at 400 s: 300 s of it are the fleet's word.
    story.at(100).check(found('1'));
    story.at(400).check(found('2'));
    let waiting = story.record().waiting.unwrap();
    assert_eq!((waiting.gate.as_str(), waiting.lifts_at), ("min_age", story.seconds(3700)));
    // After a restart of the agent it is still so.
    let kept = serde_json::to_string(story.service.durable()).unwrap();
    let again: Durable = serde_json::from_str(&kept).unwrap();
    assert_eq!(again.found[0].not_before, story.seconds(100));
}

#[test]
fn answers_about_the_same_moment_are_the_same() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let first = present().heard(seen(1000), None, now);
    let later = first.heard(seen(1049), None, now + SignedDuration::from_secs(50));
    assert_eq!(first.seen, later.seen, "nothing is told and nothing is written for a second");
    let other = first.heard(seen(5000), None, now);
    assert_eq!(other.seen[0].since, now - SignedDuration::from_secs(5000));
}
