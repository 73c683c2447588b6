//! Scenarios for the decision core: which entries and actions follow from which observations. No I/O, no clock.

mod assess;
mod boot;
mod breaking;
mod clock;
mod endless;
mod facts;
mod fleet;
mod gates;
mod go_back;
mod heal;
mod hooks;
mod journal;
mod kept;
mod maintenance;
mod managed;
mod network;
mod newer_tags;
mod outage;
mod probe;
mod running;
mod scope;
mod shared;
mod siblings;
mod snapshot;
mod start;
mod stops;
mod swarm;
mod tag_variable;
mod trigger;
mod truth;
mod update;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::wire::{AuditEntry, Kind, ServiceStatus, StatusValue, WhyReport};
use jiff::{SignedDuration, Timestamp};

use crate::config::{ConfiguredImage, ServiceConfig};
use crate::model::image::{Digest, ImageId, Reference};
use crate::model::{
    Container, EngineError, EventKind, HealthState, HealthTiming, Members, PullPolicy, RestartPolicy, State,
    UpMode,
};
use crate::ports::PullProgress;
use crate::service::action::{Action, BringUp, DisplacedTag, Step};
use crate::service::boot::{Boot, StartReason};
use crate::service::input::{Input, ServiceReply, ServiceRequest, StepResult};
use crate::service::observation::{BlockedElsewhere, Files, ImageView, LocalImage, Observation};
use crate::service::rollout::plan::Cause;
use crate::service::view::status::StatusContext;
use crate::service::{Durable, FilesApplied, Service};

pub(crate) use snapshot::copying;

const IMAGE: &str = "localhost:5000/web:1";
const API: &str = "localhost:5000/api:1";

pub(crate) fn config() -> ServiceConfig {
    ServiceConfig {
        name: "web".into(),
        images: vec![ConfiguredImage {
            configured: IMAGE.into(),
            reference: Reference::parse(IMAGE).unwrap(),
        }],
        compose_files: vec!["/srv/web.yml".into()],
        compose_project: Some("web".into()),
        auto_update: true,
        auto_heal: true,
        health_grace: Duration::from_secs(10),
        heal_cooldown: Duration::from_mins(1),
        heal_max_restarts: 3,
        keep_images: 3,
        ..ServiceConfig::default()
    }
}

/// A service that does nothing.
pub(crate) fn idle() -> Service {
    Scenario::of(config()).service
}

fn boot_of(now: &str, before: &str) -> Boot {
    Boot { now: now.into(), before: before.into(), ..Boot::default() }
}

/// An answer at this time, while the engine answers and the state can be written.
pub(super) fn undisturbed(now: Timestamp) -> StatusContext {
    StatusContext { now, next_poll: None, engine_error: None, state_error: None }
}

/// A scripted scenario of one service: time is a number of seconds, and its audit entries are collected.
struct Scenario {
    service: Service,
    start: Timestamp,
    now: Timestamp,
    entries: Vec<AuditEntry>,
}

impl Scenario {
    fn of(config: ServiceConfig) -> Self {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let (service, entries) =
            Service::new(Arc::new(config), Durable::default(), boot_of("one", ""), StartReason::Start, start);
        let mut scenario = Self { service, start, now: start, entries };
        scenario.reconnected();
        scenario
    }

    fn at(&mut self, seconds: i64) -> &mut Self {
        self.now = self.start + SignedDuration::from_secs(seconds);
        self
    }

    fn engine_gap(&mut self) -> &mut Self {
        self.input(Input::EngineGap { at: self.now })
    }

    fn engine_back(&mut self) -> &mut Self {
        self.input(Input::EngineBack { at: self.now, engine_since: None })
    }

    /// The event stream is back, and the engine had kept running.
    fn reconnected(&mut self) -> &mut Self {
        self.input(Input::EngineBack { at: self.now, engine_since: Some(self.start) })
    }

    /// Gives the service this configuration while the agent runs.
    fn reconfigures(&mut self, config: ServiceConfig) -> &mut Self {
        let before = self.service.clone();
        let (durable, boot) = (before.durable().clone(), before.boot.clone());
        let (service, entries) = Service::new(Arc::new(config), durable, boot, StartReason::Reload, self.now);
        self.service = service.continuing(&before);
        self.entries.extend(entries);
        self
    }

    fn input(&mut self, input: Input) -> &mut Self {
        let entries = self.service.apply(input, self.now);
        self.entries.extend(entries);
        self
    }

    fn look(&mut self, containers: &[&Container]) -> &mut Self {
        let generation = self.service.inspection_generation();
        let result = Ok(containers.iter().map(|c| (*c).clone()).collect());
        self.input(Input::Inspected { generation, result })
    }

    fn sibling_ends(&mut self) {
        self.service.sibling_ends(self.now);
    }

    fn event(&mut self, id: &str, what: EventKind) -> &mut Self {
        let at = self.now;
        self.input(Input::Event { at, id: id.into(), what })
    }

    fn check(&mut self, observation: Observation) -> &mut Self {
        let generation = self.service.generation;
        self.input(Input::Checked { generation, is_manual: false, result: Ok(observation) })
    }

    /// Returns the next action that is not just a read.
    fn act(&mut self) -> Option<Action> {
        loop {
            let action = self.service.next(self.now);
            let entries = self.service.take_entries();
            self.entries.extend(entries);
            match action {
                Some(Action::Inspect { .. }) => self.service.inspections.end(),
                Some(Action::Check { .. }) => self.service.checks.drop_running(),
                Some(Action::Maintain(_)) => {}
                // Every sibling tag that is read names an image other than the running one.
                Some(Action::Step(Step::ReadTags { sibling_tags })) => {
                    let named = ImageId("sha256:elsewhere".into());
                    let displaced = sibling_tags.into_iter().map(|(tag, runs)| DisplacedTag {
                        tag,
                        runs,
                        named: Some(named.clone()),
                    });
                    let displaced = displaced.collect();
                    self.input(Input::Stepped(StepResult::TagsRead { displaced }));
                }
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
                    self.input(Input::Restarted { name, result: Ok(()) });
                }
                other => panic!("expected restarts only, got {other:?}"),
            }
        }
        names
    }

    fn kinds(&mut self) -> Vec<Kind> {
        std::mem::take(&mut self.entries).into_iter().map(|entry| entry.event).collect()
    }

    fn status(&self) -> StatusValue {
        self.record().status
    }

    fn record(&self) -> ServiceStatus {
        self.service.record(PullProgress::default(), &undisturbed(self.now))
    }

    fn why(&self) -> WhyReport {
        crate::service::view::why::why(&self.service, &undisturbed(self.now))
    }

    fn warnings(&self) -> Vec<String> {
        self.service.warnings().collect()
    }

    #[allow(clippy::unnecessary_wraps)] // the type of a container's times
    fn seconds(&self, seconds: i64) -> Option<Timestamp> {
        Some(self.start + SignedDuration::from_secs(seconds))
    }
}

pub(super) fn running(name: &str) -> Container {
    let started_at = Some("2025-12-31T23:00:00Z".parse().unwrap());
    Container { started_at, ..Container::running(name, IMAGE) }
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
        remote: Some(digest(remote)),
        running: running.to_vec(),
        tagged: running.first().cloned(),
        ..ImageView::new(IMAGE.into(), Reference::parse(IMAGE).unwrap())
    };
    Observation {
        images: vec![view],
        containers: containers.iter().map(|c| (*c).clone()).collect(),
        blocked_elsewhere: Vec::new(),
        files_applied_elsewhere: None,
        files: Files::Unread,
        unanswered: BTreeMap::new(),
        ..Observation::default()
    }
}

/// Digest 2, which another service of the project has blocked.
fn blocked_by(service: &str) -> BlockedElsewhere {
    let reference = Reference::parse(IMAGE).unwrap();
    BlockedElsewhere { service: service.into(), reference, digest: digest('2') }
}

/// A service of two images that both have a new digest, 2 and 6.
fn of_two_images() -> (Scenario, Observation) {
    let reference = Reference::parse(API).unwrap();
    let mut images = config().images;
    images.push(ConfiguredImage { configured: API.into(), reference: reference.clone() });
    let api = Container { config_image: API.into(), image: ImageId("sha256:api".into()), ..running("api") };
    let mut seen = observed('2', &[local("sha256:one", &['1'])], &[&running("web"), &api]);
    let running = vec![local("sha256:api", &['5'])];
    seen.images.push(ImageView {
        remote: Some(digest('6')),
        tagged: running.first().cloned(),
        running,
        ..ImageView::new(API.into(), reference)
    });
    (Scenario::of(ServiceConfig { images, ..config() }), seen)
}

#[test]
fn a_block_lasts_until_the_registry_has_a_different_digest() {
    let mut scenario = Scenario::of(config());
    scenario.service.durable.images.of(IMAGE).blocked = Some(digest('2'));
    let old = [local("sha256:one", &['1'])];
    scenario.check(observed('2', &old, &[&running("a")]));
    assert_eq!(scenario.act(), None);
    assert_eq!(scenario.status(), StatusValue::Blocked);
    scenario.check(observed('3', &old, &[&running("a")]));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))));
    assert_eq!(scenario.kinds(), [Kind::UNBLOCKED]);
}

#[test]
fn a_blocked_image_that_was_tagged_manually_is_not_started() {
    let mut scenario = Scenario::of(ServiceConfig { auto_start: true, ..config() });
    scenario.service.durable.images.of(IMAGE).blocked = Some(digest('2'));
    let mut seen = observed('2', &[], &[&exited("a", 1)]);
    seen.images[0].tagged = Some(local("sha256:two", &['2']));
    let good = crate::service::images::OldImage { id: ImageId("sha256:one".into()), source: None };
    scenario.service.durable.images.of(IMAGE).proven = Some(good.clone());
    scenario.check(seen);
    match scenario.act() {
        Some(Action::Step(Step::Start(BringUp { tags, .. }))) => {
            assert_eq!(tags, [(Reference::parse(IMAGE).unwrap(), good)]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(scenario.service.durable().images.blocked().count(), 1);
}

#[test]
fn a_locally_built_image_is_not_found_until_the_remote_changes() {
    let mut scenario = Scenario::of(config());
    let built = [local("sha256:built", &[])];
    scenario.check(observed('1', &built, &[&running("a")]));
    assert_eq!(scenario.act(), None);
    scenario.at(10).check(observed('1', &built, &[&running("a")]));
    assert_eq!(scenario.act(), None);
    assert_eq!(scenario.kinds(), [Kind::NOT_FOUND], "reported once");
    assert_eq!(scenario.status(), StatusValue::NotFound);
    scenario.at(20).check(observed('2', &built, &[&running("a")]));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))));
}

#[test]
fn a_trigger_during_a_deploy_is_skipped_with_the_reason_from_the_spec() {
    let mut scenario = Scenario::of(config());
    scenario.check(observed('2', &[local("sha256:one", &['1'])], &[&running("a")]));
    assert!(scenario.act().is_some());
    assert_eq!(
        scenario.service.handle_request(ServiceRequest::Check, scenario.now).0,
        ServiceReply::Skipped("deploy in progress")
    );
    assert_eq!(
        scenario.service.handle_request(ServiceRequest::Redeploy, scenario.now).0,
        ServiceReply::Skipped("deploy in progress")
    );
    let mut other = Scenario::of(ServiceConfig { auto_update: false, ..config() });
    assert_eq!(
        other.service.handle_request(ServiceRequest::Check, other.now).0,
        ServiceReply::Skipped("auto_update is false")
    );
}

#[test]
fn a_trigger_joins_a_pending_one_and_is_recorded_once() {
    let mut scenario = Scenario::of(config());
    for _ in 0..5 {
        let (answer, entries) = scenario.service.handle_request(ServiceRequest::Check, scenario.now);
        assert_eq!(answer, ServiceReply::Accepted);
        scenario.entries.extend(entries);
    }
    assert_eq!(scenario.kinds(), [Kind::MANUAL_TRIGGER]);
}

/// A deployment of digest 2 whose image has been pulled; the compose run is next.
fn pulled() -> Scenario {
    let mut scenario = Scenario::of(config());
    scenario.check(observed('2', &[local("sha256:one", &['1'])], &[&running("a")]));
    pull(&mut scenario);
    scenario
}

/// Pins and pulls the image of digest 2.
fn pull(scenario: &mut Scenario) {
    for result in [
        StepResult::ImagesPinned { missing: Vec::new() },
        StepResult::Pulled {
            ids: vec![(IMAGE.into(), ImageId("sha256:two".into()))],
            labels: BTreeMap::new(),
        },
    ] {
        assert!(matches!(scenario.act(), Some(Action::Step(_))));
        scenario.input(Input::Stepped(result));
    }
}

/// The same deployment on probation.
fn on_probation() -> Scenario {
    let mut scenario = pulled();
    assert!(matches!(scenario.act(), Some(Action::Step(_))));
    let containers = vec![running("b")];
    scenario.input(Input::Stepped(StepResult::Started {
        up: Ok(String::new()),
        named: Vec::new(),
        containers,
    }));
    scenario
}

#[test]
fn a_deployment_ends_in_the_project_it_began_in() {
    for (journaled, expected) in [(true, "web"), (false, "shop")] {
        let scenario = on_probation();
        let mut row = serde_json::to_value(scenario.service.durable()).unwrap();
        if !journaled {
            row["deployment"]["project"] = serde_json::Value::Null;
        }
        let durable = serde_json::from_value(row).unwrap();
        let files = vec!["/srv/shop.yml".into()];
        let moved = ServiceConfig { compose_project: Some("shop".into()), compose_files: files, ..config() };
        let (service, entries) =
            Service::new(Arc::new(moved), durable, boot_of("one", "one"), StartReason::Reload, scenario.now);
        let [resumed] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!(resumed.event, Kind::RESUMED);
        let reason = resumed.reason.as_deref().unwrap();
        assert!(reason.contains("configuration"), "the agent was not stopped: {reason}");
        let mut scenario = Scenario { service, ..scenario };
        scenario.at(2);
        assert_eq!(scenario.service.project_name(), Some(expected));
        let sick = Container { id: "id-new".into(), ..with_health("b", HealthState::Unhealthy) };
        let look = scenario.service.next(scenario.now);
        let Some(Action::Inspect { members, .. }) = look else { panic!("{look:?}") };
        assert_eq!(members, Members::Project(expected.into()));
        scenario.at(60).look(&[&sick]);
        assert!(matches!(scenario.act(), Some(Action::Step(Step::Diagnose { .. }))));
        scenario.input(Input::Stepped(StepResult::Diagnosed { log: String::new() }));
        match scenario.act() {
            Some(Action::Step(Step::Start(BringUp { project, .. }))) => {
                let file = format!("/srv/{expected}.yml");
                assert_eq!((&*project.name, project.files), (expected, vec![file.into()]));
            }
            other => panic!("{other:?}"),
        }
        let mut old = running("a");
        old.started_at = scenario.seconds(60);
        scenario.input(Input::Stepped(StepResult::Started {
            up: Ok(String::new()),
            named: Vec::new(),
            containers: vec![old.clone()],
        }));
        scenario.at(61).look(&[&old]).at(120).look(&[&old]);
        match scenario.act() {
            Some(Action::Step(Step::Unpin { project, .. })) => assert_eq!(project, expected),
            other => panic!("{other:?}"),
        }
        scenario.input(Input::Stepped(StepResult::Unpinned));
        assert_eq!(scenario.kinds(), [Kind::ROLLED_BACK]);
        assert_eq!(scenario.service.project_name(), Some("shop"), "from now on");
    }
}
