//! Stories of updates that are held back: what is told, what a person passes, what time does (DECISIONS 7).

use jiff::tz::TimeZone;

use super::fleet::{failed, freeze_from};
use super::*;
use crate::config::UpdateConfig;
use crate::model::window::Window;
use crate::ports::GateAnswer;
use crate::service::fleet::{FleetView, Link};
use crate::service::input::Unsigned;

pub(super) const MIN_AGE: i64 = 3600;

pub(super) fn with(update: UpdateConfig) -> ServiceConfig {
    ServiceConfig { update: Some(Arc::new(update)), ..config() }
}

pub(super) fn old_enough() -> UpdateConfig {
    UpdateConfig { min_age: Some(Duration::from_hours(1)), ..UpdateConfig::default() }
}

pub(super) fn approved() -> UpdateConfig {
    UpdateConfig { approve: true, ..UpdateConfig::default() }
}

pub(super) fn asked() -> UpdateConfig {
    UpdateConfig { gate: vec!["/bin/may-update".into()], ..UpdateConfig::default() }
}

/// The registry has `remote`, and `1` runs.
pub(super) fn found(remote: char) -> Observation {
    let web = running("web");
    observed(remote, &[local("sha256:one", &['1'])], &[&web])
}

impl Story {
    /// A check that a cycle asked for.
    pub(super) fn poll(&mut self, observation: Observation) -> &mut Self {
        self.service.check(true);
        self.check(observation)
    }

    /// A check that a person asked for.
    pub(super) fn trigger(&mut self, observation: Observation) -> &mut Self {
        let (reply, said) = self.service.ask(ServiceRequest::Check, self.now);
        assert_eq!(reply, ServiceReply::Accepted);
        self.said.extend(said);
        let generation = self.service.generation;
        self.input(Input::Checked { generation, asked: true, result: Ok(observation) })
    }

    /// Whether an update begins now.
    pub(super) fn updates(&mut self) -> bool {
        match self.act() {
            None => false,
            Some(Action::Step(Step::PinImages { .. })) => true,
            Some(other) => panic!("expected an update or nothing, got {other:?}"),
        }
    }

    pub(super) fn asks_command(&mut self) -> bool {
        self.asks_command_about('2')
    }

    pub(super) fn asks_command_about(&mut self, remote: char) -> bool {
        match self.act() {
            None => false,
            Some(Action::AskCommand { argv, image, question }) => {
                assert_eq!((argv.as_slice(), image.as_str()), (&["/bin/may-update".to_owned()][..], IMAGE));
                assert_eq!((question.digest, question.old_digest), (digest(remote), Some(digest('1'))));
                true
            }
            Some(other) => panic!("expected a question or nothing, got {other:?}"),
        }
    }

    pub(super) fn answers(&mut self, answer: GateAnswer) -> &mut Self {
        self.answers_about('2', answer)
    }

    pub(super) fn answers_about(&mut self, remote: char, answer: GateAnswer) -> &mut Self {
        self.input(Input::CommandAnswered { image: IMAGE.into(), digest: digest(remote), answer })
    }

    pub(super) fn held_by(&self) -> Option<String> {
        self.record().waiting.map(|waiting| waiting.gate)
    }

    pub(super) fn approve(&mut self, named: Option<char>) -> ServiceReply {
        let (reply, said) = self.service.ask(ServiceRequest::Approve(named.map(digest)), self.now);
        self.said.extend(said);
        reply
    }
}

#[test]
fn a_digest_that_is_too_young_waits_is_told_once_and_goes_by_itself() {
    let mut story = Story::of(with(old_enough()));
    story.at(0).poll(found('2'));
    assert!(!story.updates());
    assert_eq!(story.kinds(), [Kind::UPDATE_AVAILABLE]);
    let waiting = story.record().waiting.unwrap();
    assert_eq!((waiting.gate.as_str(), waiting.digest), ("min_age", digest('2').to_string()));
    assert_eq!((waiting.lifts_at, waiting.clear.as_str()), (story.seconds(MIN_AGE), "POST /trigger/web"));
    story.at(1800).poll(found('2'));
    assert!(!story.updates());
    assert_eq!(story.kinds(), []);
    // It looks again when the time has come, without any cycle.
    assert_eq!(story.service.recheck_at, story.seconds(MIN_AGE));
    story.at(MIN_AGE);
    assert!(!story.updates(), "it is compared once more first");
    story.check(found('2'));
    assert!(story.updates());
    assert_eq!(story.held_by(), None);
}

#[test]
fn a_digest_that_leaves_the_tag_and_comes_back_begins_anew() {
    let mut story = Story::of(with(UpdateConfig { approve: true, ..old_enough() }));
    story.at(0).poll(found('2'));
    assert_eq!(story.approve(None), ServiceReply::Approved(digest('2')));
    story.at(100).poll(found('3'));
    assert_eq!(story.held_by().as_deref(), Some("approval"));
    story.at(200).poll(found('2'));
    assert_eq!(story.held_by().as_deref(), Some("approval"), "an approval ends with the digest");
    story.approve(None);
    story.at(MIN_AGE + 100).poll(found('2'));
    assert_eq!(story.record().waiting.unwrap().lifts_at, story.seconds(MIN_AGE + 200));
    assert!(!story.updates());
}

#[test]
fn a_restart_in_the_middle_keeps_since_when_it_waits_what_was_approved_and_told() {
    let update = UpdateConfig { approve: true, ..old_enough() };
    let mut before = Story::of(with(update.clone()));
    before.at(0).poll(found('2'));
    before.approve(None);
    let written = serde_json::to_value(before.service.durable()).unwrap();
    let durable: Durable = serde_json::from_value(written).unwrap();
    for reason in [StartReason::Start, StartReason::Reload] {
        let mut story = Story::of(with(update.clone()));
        let boot = boot_of("one", "one");
        let config = Arc::new(with(update.clone()));
        (story.service, _) = Service::new(config, durable.clone(), boot, reason, story.now);
        story.at(1000).poll(found('2'));
        assert_eq!(story.held_by().as_deref(), Some("min_age"));
        assert_eq!(story.kinds(), []);
        story.at(MIN_AGE).poll(found('2'));
        assert!(story.updates());
    }
}

#[test]
fn a_gate_that_is_configured_away_in_the_middle_holds_no_more() {
    let mut story = Story::of(with(old_enough()));
    story.at(0).poll(found('2'));
    let durable = story.service.durable().clone();
    let boot = boot_of("one", "one");
    (story.service, _) = Service::new(Arc::new(config()), durable, boot, StartReason::Reload, story.now);
    story.at(10).poll(found('2'));
    assert!(story.updates());
}

#[test]
fn a_command_is_asked_once_a_cycle_and_its_answer_counts_until_the_next() {
    let mut story = Story::of(with(asked()));
    story.at(0).poll(found('2'));
    assert_eq!(story.record().waiting.unwrap().why, "/bin/may-update has not answered yet");
    assert!(story.asks_command());
    assert!(!story.asks_command());
    assert_eq!(story.kinds(), [], "what it waits for is not known yet");
    // A registry tells of pushes in between.
    story.at(1).service.check(false);
    story.check(found('2'));
    // It hangs: the next cycle does not ask once more.
    story.at(300).poll(found('2'));
    assert!(!story.asks_command());
    story.answers(GateAnswer::Wait { reason: "a game is on".into() });
    assert_eq!(story.kinds(), [Kind::UPDATE_AVAILABLE]);
    let waiting = story.record().waiting.unwrap();
    assert_eq!(waiting.why, "/bin/may-update holds it back: a game is on");
    assert_eq!(waiting.clear, "POST /redeploy/web");
    story.service.check(false);
    story.check(found('2'));
    assert!(!story.asks_command(), "a push is no cycle");
    story.at(600).poll(found('2'));
    assert!(story.asks_command());
    story.answers(GateAnswer::Go { reason: String::new() });
    assert!(!story.updates(), "it is compared once more first");
    story.check(found('2'));
    assert!(story.updates());
}

#[test]
fn a_command_that_gives_no_answer_is_one_fault_until_it_gives_one() {
    let failed = GateAnswer::Failed {
        fault: "/bin/may-update exited with status 1".into(),
        reason: "at 12:00".into(),
    };
    let mut story = Story::of(with(asked()));
    story.at(0).poll(found('2'));
    assert!(story.asks_command());
    story.answers(failed.clone());
    assert_eq!(story.status(), StatusValue::Errored);
    assert_eq!(story.kinds(), [Kind::ERROR, Kind::UPDATE_AVAILABLE]);
    story.at(300).poll(found('2'));
    assert!(story.asks_command());
    story.answers(failed);
    assert_eq!(story.kinds(), []);
    story.at(600).poll(found('2'));
    assert!(story.asks_command());
    story.answers(GateAnswer::Wait { reason: String::new() });
    assert_eq!(story.kinds(), [Kind::RECOVERED]);
    assert_eq!(story.held_by().as_deref(), Some("command"));
}

#[test]
fn an_approval_is_for_the_digest_that_was_looked_at() {
    let mut story = Story::of(with(approved()));
    assert_eq!(story.approve(None), ServiceReply::NothingWaiting);
    story.at(0).poll(found('2'));
    assert_eq!(story.approve(Some('3')), ServiceReply::OtherWaiting(digest('2')));
    assert!(!story.updates());
    assert_eq!(story.kinds(), [Kind::UPDATE_AVAILABLE]);
    assert_eq!(story.approve(Some('2')), ServiceReply::Approved(digest('2')));
    assert_eq!(story.approve(Some('2')), ServiceReply::Approved(digest('2')), "twice is as once");
    assert_eq!(story.kinds(), [Kind::APPROVED]);
    // Another one was pushed before it began.
    story.at(10).poll(found('3'));
    assert!(!story.updates());
    assert_eq!(story.held_by().as_deref(), Some("approval"));
    story.approve(None);
    story.check(found('3'));
    assert!(story.updates());
    assert_eq!(Story::of(config()).approve(None), ServiceReply::NothingWaiting);
}

#[test]
fn a_window_that_opens_between_two_cycles_lets_the_update_begin() {
    let window = Window::parse(["02:00-03:00"], TimeZone::UTC).unwrap();
    let mut story = Story::of(with(UpdateConfig { window: Some(window), ..UpdateConfig::default() }));
    story.at(0).poll(found('2'));
    assert!(!story.updates());
    assert_eq!(story.record().waiting.unwrap().lifts_at, story.seconds(7200));
    assert_eq!(story.service.recheck_at, story.seconds(7200));
    // The project was busy until it had closed again.
    story.at(7200).check(found('2')).at(10_800);
    assert!(!story.updates());
    story.at(86_400 + 7200).poll(found('2'));
    assert!(story.updates());
}

#[test]
fn what_ran_before_is_started_while_its_update_waits() {
    let mut story = Story::of(ServiceConfig { auto_start: true, auto_heal: false, ..with(approved()) });
    let down = exited("web", 255);
    let view = |remote| {
        let mut seen = observed(remote, &[], &[&down]);
        seen.images[0].tagged = Some(local("sha256:one", &['1']));
        seen
    };
    story.at(0).poll(view('2'));
    match story.act() {
        Some(Action::Step(Step::Start { tags, .. })) => {
            assert!(tags.iter().all(|(_, image)| image.id == ImageId("sha256:one".into())), "{tags:?}");
        }
        other => panic!("expected a start, got {other:?}"),
    }
}

#[test]
fn a_redeploy_by_a_person_passes_every_gate_of_these() {
    let mut story = Story::of(with(UpdateConfig { approve: true, gate: asked().gate, ..old_enough() }));
    story.at(0).poll(found('2'));
    assert!(story.asks_command());
    story.answers(GateAnswer::Wait { reason: String::new() });
    story.service.ask(ServiceRequest::Redeploy, story.now);
    story.poll(found('2'));
    assert!(story.updates());
}

#[test]
fn of_two_images_the_one_that_is_held_keeps_what_it_runs() {
    let other = "localhost:5000/api:1";
    let reference = Reference::parse(other).unwrap();
    let mut images = config().images;
    images.push(ConfiguredImage { configured: other.into(), reference: reference.clone() });
    let mut story = Story::of(ServiceConfig { images, ..with(old_enough()) });
    let web = running("web");
    let api = Container { config_image: other.into(), image: ImageId("sha256:api".into()), ..running("api") };
    let seen = |remote_web, remote_api| {
        let mut seen = observed(remote_web, &[local("sha256:one", &['1'])], &[&web, &api]);
        let running = vec![local("sha256:api", &['5'])];
        seen.images.push(ImageView {
            remote: Some(digest(remote_api)),
            tagged: running.first().cloned(),
            running,
            ..ImageView::new(other.into(), reference.clone())
        });
        seen
    };
    story.at(0).poll(seen('2', '5'));
    story.at(MIN_AGE).poll(seen('2', '6'));
    assert!(story.updates());
    let deployment = serde_json::to_value(&story.service.durable().deployment).unwrap();
    let changes = deployment["image_changes"].as_array().unwrap();
    assert_eq!((changes.len(), changes[0]["configured"].as_str()), (1, Some(IMAGE)), "{deployment:#}");
    let kept: Vec<(Reference, serde_json::Value)> =
        serde_json::from_value(deployment["kept_tags"].clone()).unwrap();
    assert_eq!(kept[0].0, reference);
}

/// A gate, and what makes it hold.
type Hold = (&'static str, fn(&mut UpdateConfig, &mut FleetView, &mut Observation));

/// In the order of the table.
const HOLDS: [Hold; 8] = [
    ("freeze", |_, fleet, _| fleet.freezes.push(freeze_from("2026-01-01T00:00:00Z".parse().unwrap(), 600))),
    ("immunity", |_, fleet, _| fleet.failed.push(failed())),
    ("ring", |_, fleet, _| fleet.ring = 1),
    ("signature", |update, _, seen| {
        update.signed_by = vec!["/key".into()];
        seen.unsigned.insert(IMAGE.into(), Unsigned::Missing);
    }),
    ("command", |update, _, _| update.gate = asked().gate),
    ("approval", |update, _, _| update.approve = true),
    ("min_age", |update, _, _| update.min_age = old_enough().min_age),
    ("window", |update, _, _| update.window = Window::parse(["12:00-13:00"], TimeZone::UTC).ok()),
];

/// What a person's trigger passes.
const PASSED: [&str; 3] = ["approval", "min_age", "window"];

#[test]
fn of_every_two_gates_that_hold_the_first_of_the_table_is_shown_and_both_must_let_go() {
    for (first, (word, hold)) in HOLDS.iter().enumerate() {
        for (other, also) in &HOLDS[first..] {
            let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
            let link = Link::Away { since: start };
            let mut fleet = FleetView { link, patience: Duration::from_hours(1), ..FleetView::default() };
            let (mut update, mut seen) = (UpdateConfig::default(), found('2'));
            for hold in [hold, also] {
                hold(&mut update, &mut fleet, &mut seen);
            }
            let config = with(update);
            let mut story = Story::of(config.clone());
            story.service.set_fleet(Arc::new(fleet));
            story.at(0).poll(seen.clone());
            // It is asked only when the gates before it let go.
            let asks = *word == "command";
            assert_eq!(story.asks_command(), asks, "{word} with {other}");
            if asks {
                story.answers(GateAnswer::Wait { reason: String::new() });
            }
            assert!(!story.updates(), "{word} with {other}");
            let waiting = story.record().waiting.unwrap();
            assert_eq!(waiting.gate, *word, "{word} with {other}");
            let context =
                StatusContext { now: story.now, next_poll: None, engine_error: None, state_error: None };
            let snapshot = story.service.snapshot(PullProgress::default());
            let report = crate::service::gates::why(&snapshot, &config, &context);
            let holding: Vec<&str> =
                report.gates.iter().filter(|gate| gate.holds).map(|gate| gate.gate.as_str()).collect();
            let both = HOLDS.iter().map(|(gate, _)| *gate).filter(|gate| gate == word || gate == other);
            assert_eq!(holding, both.chain(["schedule"]).collect::<Vec<_>>());
            assert_eq!(waiting.why, report.answer, "{word} with {other}");
            let told: Vec<&AuditEntry> =
                story.said.iter().filter(|entry| entry.event == Kind::UPDATE_AVAILABLE).collect();
            let [told] = &told[..] else { panic!("{word} with {other}: {told:#?}") };
            assert_eq!(told.reason.as_deref(), Some(*word), "with {other}");
            assert!(told.message.contains(&waiting.why), "{word} with {other}: {}", told.message);

            // A person's trigger passes exactly what the table says.
            story.at(10).trigger(seen);
            if asks {
                assert!(story.asks_command());
                story.answers(GateAnswer::Wait { reason: String::new() });
            }
            let passes = PASSED.contains(word) && PASSED.contains(other);
            assert_eq!(story.updates(), passes, "{word} with {other}");
        }
    }
}

#[test]
fn a_rollback_that_is_tried_again_brings_no_image_that_is_held() {
    let other = "localhost:5000/api:1";
    let reference = Reference::parse(other).unwrap();
    let mut images = config().images;
    images.push(ConfiguredImage { configured: other.into(), reference: reference.clone() });
    let mut story = Story::of(ServiceConfig { images, ..with(asked()) });
    let old = super::super::action::OldImage { id: ImageId("sha256:one".into()), source: None };
    let durable = &mut story.service.durable;
    durable.rollback_failed = true;
    durable.blocked.insert(IMAGE.into(), digest('2'));
    durable.unproven.insert(IMAGE.into(), ImageId("sha256:two".into()));
    durable.proven.insert(IMAGE.into(), old);
    let mut seen = observed('2', &[local("sha256:two", &['2'])], &[&running("web")]);
    let mut view = ImageView::new(other.into(), reference);
    view.remote = Some(digest('4'));
    view.running = vec![local("sha256:three", &['3'])];
    view.tagged = Some(local("sha256:three", &['3']));
    seen.images.push(view);
    story.trigger(seen);
    assert!(story.updates(), "what ran before is brought back");
    story.input(Input::Stepped(StepResult::ImagesPinned { missing: Vec::new() }));
    let Some(Action::Step(Step::Pull { images, .. })) = story.act() else { panic!("no pull") };
    assert_eq!(images, []);
}

#[test]
fn a_key_file_that_is_passed_over_is_warned_of() {
    let fault = "key file /etc/old.pub can't be read: does not exist".to_owned();
    let mut story = Story::of(with(UpdateConfig {
        signed_by: vec!["/etc/old.pub".into(), "/etc/new.pub".into()],
        ..UpdateConfig::default()
    }));
    story.poll(Observation { key_faults: vec![fault], ..found('1') });
    assert_eq!(
        story.service.snapshot(PullProgress::default()).warnings,
        ["update.signed_by: key file /etc/old.pub can't be read: does not exist, and is passed over"]
    );
}
