//! A deployment: a plan in progress, its phase, and the state collected so far.

use std::collections::BTreeMap;

use evenkeel_common::wire::ProbeProgress;
use jiff::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use crate::model::image::{ImageId, Reference};
use crate::model::image_config::ConfigChange;
use crate::model::probe::Target;
use crate::model::swarm::is_same_image;
use crate::model::{Container, HookEvent, State, UpMode};
use crate::ports::GateQuestion;
use crate::service::action::DisplacedTag;
use crate::service::health::assess::StopTimes;
use crate::service::rollout::baseline::{Baseline, Expected};
use crate::service::rollout::handover::Handover;
use crate::service::rollout::outage::Outage;
use crate::service::rollout::plan::{Cause, ImageChange, Plan};
use crate::service::rollout::probation;
use crate::service::rollout::probation::{Context, Failed, Failure, Outcome};
use crate::service::rollout::snapshot::SnapshotState;
use crate::service::rollout::step::Phase;
use crate::service::rollout::tag::{LineState, TagChange};
use crate::service::scope::{self, Scope};

/// How often a probation may restart because the engine was unavailable.
const MAX_INTERRUPTIONS: u32 = 10;

/// A deployment in progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Deployment {
    #[serde(flatten)]
    plan: Plan,
    /// When it began.
    pub begun: Timestamp,
    /// IDs of the new images by configured name; known after the pull.
    #[serde(default)]
    pub new_ids: BTreeMap<String, ImageId>,
    /// Labels of the old and new images by configured name; known after the pull.
    #[serde(default)]
    pub labels: BTreeMap<String, ConfigChange>,
    /// Tags and images of the project's other live containers. A tag that has moved points back to the running image
    /// while compose runs, so that compose leaves these containers alone.
    #[serde(default, alias = "others")]
    pub sibling_tags: Vec<(Reference, ImageId)>,
    /// Sibling tags that point to another image, see [`DisplacedTag`]; `None` until they have been read. Journaled before
    /// any tag is moved, so that all of them are restored whatever happens in between.
    #[serde(default)]
    pub displaced: Option<Vec<DisplacedTag>>,
    /// Those of them whose services a redeploy makes anew from the image that they run, not from the one that the tag names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_back: Vec<Reference>,
    /// Whether the containers must be as they were when the update was found: what somebody has done since stands. Not once
    /// tags may have been moved, or compose may have run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub must_look: bool,
    /// How compose treats unchanged containers and other services the next time it runs.
    #[serde(alias = "recreate")]
    pub up_mode: UpMode,
    /// State of the env file line that holds the tag.
    #[serde(default)]
    pub line: LineState,
    /// Current phase.
    pub phase: Phase,
    /// When this phase began.
    pub since: Timestamp,
    /// How often this phase was retried after a failure.
    pub attempt: u32,
    /// How often the deployment was set back because the engine or the agent was unavailable.
    #[serde(default)]
    pub interruptions: u32,
    /// Names of containers that compose recreated without being told to.
    #[serde(default)]
    pub also_recreated: Vec<String>,
    /// How long its services are interrupted.
    #[serde(default)]
    pub outage: Outage,
    /// The state of its handover, if it has one.
    #[serde(default)]
    pub handover: Handover,
    /// The state of its snapshot, if it has one.
    #[serde(default)]
    pub snapshot: SnapshotState,
    /// The hook that runs once the outcome is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_hook: Option<HookEvent>,
}

impl Deployment {
    /// Starts a deployment of the plan, given the current containers.
    pub(in crate::service) fn new(
        plan: Plan,
        up_mode: UpMode,
        containers: &[Container],
        now: Timestamp,
    ) -> Self {
        Self {
            begun: now,
            new_ids: BTreeMap::new(),
            labels: BTreeMap::new(),
            sibling_tags: plan.sibling_tags(containers),
            outage: Outage::of_containers(plan.changed_services(), containers, now),
            handover: Handover::default(),
            snapshot: SnapshotState::of(plan.snapshot.as_ref()),
            displaced: None,
            held_back: Vec::new(),
            must_look: plan.must_look(),
            line: LineState::default(),
            up_mode,
            phase: match &plan.hooks {
                // It comes before an update; a way back waits for nothing. What it saved before the first attempt stays.
                Some(planned)
                    if planned.hooks.of(HookEvent::Before).is_some()
                        && !matches!(plan.cause, Cause::GoBack(_))
                        && plan.snapshot.as_ref().is_none_or(|snapshot| snapshot.taken.is_none()) =>
                {
                    Phase::BeforeHook
                }
                _ if plan.cause.is_about_images() => Phase::PinImages,
                _ => Phase::Start,
            },
            since: now,
            attempt: 0,
            interruptions: 0,
            also_recreated: Vec::new(),
            last_hook: None,
            plan,
        }
    }

    /// Starts a deployment of the plan to a swarm service.
    pub(in crate::service) fn of_swarm(plan: Plan, outage: Outage, now: Timestamp) -> Self {
        let phase = if plan.image_changes.is_empty() { Phase::Update } else { Phase::Admit };
        Self { phase, outage, ..Self::new(plan, UpMode::Services(Vec::new()), &[], now) }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Reports whether compose applies the files as a whole, so that no edit of them remains to be applied.
    pub(in crate::service) fn applies_whole_project(&self) -> bool {
        matches!(self.up_mode, UpMode::All | UpMode::Changed) && self.plan.scope().is_none()
    }

    /// Counts an interruption. Returns whether there were too many.
    pub(in crate::service) fn interrupt(&mut self) -> bool {
        self.interruptions = self.interruptions.saturating_add(1);
        self.interruptions > MAX_INTERRUPTIONS
    }

    /// Starts over with `compose down` first, after `compose up` alone was not enough.
    pub(in crate::service) fn take_down_first(&mut self, now: Timestamp) {
        self.plan = Plan { cause: Cause::ForceUp { down: true }, ..self.plan.clone() };
        self.enter(Phase::Start, now);
    }

    /// Enters a phase.
    pub(in crate::service) fn enter(&mut self, phase: Phase, now: Timestamp) {
        self.enter_attempt(phase, 0, now);
    }

    /// Enters a phase with the number of attempts already made.
    pub(in crate::service) fn enter_attempt(&mut self, phase: Phase, attempt: u32, now: Timestamp) {
        (self.phase, self.attempt, self.since) = (phase, attempt, now);
    }

    /// What commands that are run for it are told: of several images, the first that changes.
    pub(in crate::service) fn question(&self, service: &str) -> Option<GateQuestion> {
        let all = &self.plan.image_changes;
        let change = all.iter().find(|change| change.brings_other()).or_else(|| all.first())?;
        // After a rollback, whether by itself or by hand, the new digest is the one that is no longer deployed.
        let (digest, old_digest) = match (&self.plan.cause, &change.old_digest) {
            (Cause::GoBack(_), Some(left)) => (left.clone(), Some(change.digest.clone())),
            _ => (change.digest.clone(), change.old_digest.clone()),
        };
        let (service, image) = (service.to_owned(), change.reference.clone());
        Some(GateQuestion { service, image, digest, old_digest })
    }

    /// Lets the hook of this event run once the outcome is recorded, if there is one.
    pub(in crate::service) fn run_last(&mut self, event: HookEvent) {
        self.last_hook = Some(event).filter(|event| self.hook_call(*event).is_some());
    }

    /// Returns the change of the tag; `None` if the new images turned out to be identical to the old ones.
    pub(in crate::service) fn tag(&self) -> Option<&TagChange> {
        self.plan.tag.as_ref().filter(|_| self.changes().next().is_some())
    }

    /// The line of the tag is written, or may be, if there is one to write.
    pub(in crate::service) fn note_line_written(&mut self) {
        if self.plan.tag.as_ref().is_some_and(|tag| tag.line.is_some()) {
            self.line = LineState::Written;
        }
    }

    /// Returns the scope that compose is limited to; `None` if `up_mode` alone decides.
    pub(in crate::service) fn scope(&self) -> Option<Scope> {
        let scope = (self.up_mode == UpMode::Changed).then(|| self.plan.scope()).flatten()?;
        Some(Scope { part: self.part(), ..scope })
    }

    /// Limits compose to the changed services: what keeps it from bringing up the others may not affect these.
    pub(in crate::service) fn narrow(&mut self) {
        let services = self.plan.changed_services();
        if !services.is_empty() {
            self.up_mode = self.alone(services);
        }
    }

    /// Limits the next run of a rollback to the services that are restarted with the changed ones and do not run any more, if
    /// the last run was limited to the changed ones. Returns whether there are any.
    pub(in crate::service) fn bring_up_tied(&mut self, containers: &[Container]) -> bool {
        if self.up_mode.services().is_empty() || self.is_for_tied() {
            return false;
        }
        let is_down = |name: &String| {
            let was_live = self.plan.before.iter().any(|was| was.compose_service == *name && was.live);
            was_live && !containers.iter().any(|c| c.compose_service == *name && c.is_live())
        };
        let changed = self.plan.changed_services();
        let mut down = self.services_of_scope();
        down.retain(|name| !changed.contains(name) && is_down(name));
        if down.is_empty() {
            return false;
        }
        self.up_mode = self.alone(down);
        true
    }

    /// Reports whether the next run of a rollback is limited to services that are restarted with the changed ones.
    pub(in crate::service) fn is_for_tied(&self) -> bool {
        let (named, changed) = (self.up_mode.services(), self.plan.changed_services());
        matches!(self.phase, Phase::Rollback(_))
            && !named.is_empty()
            && !named.iter().any(|name| changed.contains(name))
    }

    /// The changed services come first again, if the next run was limited to those that are restarted with them.
    pub(in crate::service) fn leave_tied(&mut self) {
        if self.is_for_tied() {
            self.narrow();
        }
    }

    fn alone(&self, services: Vec<String>) -> UpMode {
        scope::alone(services, &self.plan.before, self.plan.definition.as_deref())
    }

    /// The compose services that the deployment brings up; none if it covers the whole project.
    fn services_of_scope(&self) -> Vec<String> {
        let scope = self.plan.scope();
        let mode = scope.map(|scope| scope.services(self.plan.definition.as_deref()));
        mode.map(|mode| mode.services().to_vec()).unwrap_or_default()
    }

    /// ID of the new image of a change, once it is known. Under a swarm, whose nodes pull the images, the digest is the ID.
    pub(in crate::service) fn new_id(&self, change: &ImageChange) -> Option<ImageId> {
        match self.plan.swarm {
            Some(_) => Some(ImageId::from(&change.digest)),
            None => self.new_ids.get(&change.configured).cloned(),
        }
    }

    /// The image changes that bring different content.
    pub(in crate::service) fn changes(&self) -> impl Iterator<Item = &ImageChange> {
        let is_in_place = self.plan.swarm.as_ref().is_some_and(|swarm| is_same_image(&swarm.back, &swarm.to));
        self.plan.image_changes.iter().filter(move |change| {
            if is_in_place {
                return false;
            }
            match (self.new_ids.get(&change.configured), &change.old) {
                (Some(new), Some(old)) => *new != old.id,
                _ => change.brings_other(),
            }
        })
    }

    /// The image changes to blame for a failure: that of the failed container, or all if that can't be told. One failed image
    /// of a tag variable is enough to keep the others from the tag.
    pub(in crate::service) fn blamed<'a>(
        &'a self,
        failure: &Failure,
    ) -> impl Iterator<Item = &'a ImageChange> {
        let image = Reference::parse(&failure.image).ok().filter(|_| !failure.bystander);
        let is_of = move |change: &ImageChange| image.as_ref().is_none_or(|image| change.is_of(image));
        let is_known = self.changes().any(&is_of);
        self.changes().filter(move |change| !is_known || is_of(change))
    }

    /// Reports whether there is an earlier image to roll back to.
    pub(in crate::service) fn can_roll_back(&self, failed: &Failed) -> bool {
        self.changes().any(|change| match &self.plan.swarm {
            // On nodes that could not get the new image, a tag alone stands for the one that they have.
            Some(swarm) => failed.by_node || swarm.leads_back(),
            None => change.old.is_some(),
        })
    }

    /// Returns the IDs of containers on a changed image that a successful compose run has left as they were: their service
    /// is no longer in the files, or its profile is not active.
    pub(in crate::service) fn left_behind(&self, containers: &[Container]) -> Vec<String> {
        let is_left = |was: &Baseline| {
            let reference = was.made_from();
            let mut changes = self.plan.image_changes.iter();
            let change = changes.find(|m| reference.as_ref().is_some_and(|reference| m.is_of(reference)));
            change.is_some_and(|m| self.new_ids.get(&m.configured) != Some(&was.image))
                && !self.plan.hands_over(&was.compose_service)
                && containers.iter().any(|c| c.id == was.id && c.image == was.image)
        };
        let was_up = |was: &&Baseline| was.running || was.live;
        let left = self.plan.before.iter().filter(was_up).filter(|was| is_left(was));
        left.map(|was| was.id.clone()).collect()
    }

    /// Returns the containers that must run after a successful deployment, without those in `left_behind`.
    pub(in crate::service) fn expected_new(&self, left_behind: &[String]) -> Vec<Expected> {
        let changed = self.plan.changed_containers().filter(|(was, _)| !left_behind.contains(&was.id));
        let expected = changed.filter_map(|(was, m)| {
            let image = self.new_ids.get(&m.configured)?.clone();
            Some(Expected { compose_service: was.compose_service.clone(), image })
        });
        expected.collect()
    }

    /// Reports whether all that is brought up runs, on the new images where these change, as many as before, and none half-made.
    pub(in crate::service) fn is_up(&self, containers: &[Container]) -> bool {
        let is_live = |was: &Baseline| {
            containers.iter().any(|c| c.compose_service == was.compose_service && c.is_live())
        };
        let expected = self.expected_new(&[]);
        let is_met = |one: &Expected| {
            let is_of = |c: &&Container| c.compose_service == one.compose_service && c.image == one.image;
            let made: Vec<&Container> = containers.iter().filter(is_of).collect();
            let running = made.iter().filter(|c| c.state == State::Running).count();
            let wanted = expected.iter().filter(|other| *other == one).count();
            running >= wanted && made.iter().all(|c| c.state != State::Created)
        };
        let (scope, model) = (self.plan.scope(), self.plan.definition.as_deref());
        !expected.is_empty()
            && expected.iter().all(is_met)
            && scope.iter().flat_map(|scope| scope.ran(model)).all(is_live)
    }

    /// Returns a compose service on a changed image of which no container is left, or stays. Somebody has removed them: compose makes the
    /// new one before it removes the old one. What the hook `before` has removed can't be told from that.
    pub(in crate::service) fn removed(&self, containers: &[Container]) -> Option<String> {
        let is_of = |c: &Container, name: &str| c.compose_service == name && c.state != State::Removing;
        let is_gone = |name: &String| !containers.iter().any(|c| is_of(c, name));
        let services = if self.plan.has_hook_before() { Vec::new() } else { self.plan.changed_services() };
        services.into_iter().find(is_gone)
    }

    /// Reports whether it makes sense to repeat a run that somebody else has disturbed. A rollback has attempts of its own, which
    /// wait less, and soon leave alone what compose may stumble over for good.
    pub(in crate::service) fn is_unfinished(&self, containers: &[Container]) -> bool {
        self.plan.cause.is_about_images()
            && matches!(self.phase, Phase::Start | Phase::Spread)
            && !self.is_up(containers)
            && self.removed(containers).is_none()
    }

    /// Reports whether a compose service that is left alone was well before the deployment, and no longer is.
    pub(in crate::service) fn has_lost_another(&self, containers: &[Container]) -> bool {
        let Some(scope) = self.plan.scope() else { return false };
        let up = scope.services(self.plan.definition.as_deref());
        let now = Baseline::all(containers);
        let is_well = |service: &str| now.iter().any(|one| one.compose_service == service && one.well);
        let mut others = self.plan.before.iter().filter(|was| !up.services().contains(&was.compose_service));
        others.any(|was| was.well && !is_well(&was.compose_service))
    }

    /// The containers that were made since the deployment began, and that were started.
    fn new_run<'a>(&'a self, containers: &'a [Container]) -> impl Iterator<Item = &'a Container> {
        let is_new = |c: &&Container| self.plan.before.iter().all(|was| was.id != c.id);
        containers.iter().filter(is_new).filter(|c| c.started_at.is_some())
    }

    /// Reports whether one of the new containers was started.
    pub(in crate::service) fn has_new_run(&self, containers: &[Container]) -> bool {
        self.new_run(containers).next().is_some()
    }

    /// Reports whether one of the new containers was started and has failed since.
    pub(in crate::service) fn has_new_run_failed(&self, containers: &[Container]) -> bool {
        self.new_run(containers).any(|c| c.restart_count > 0 || c.exit_code != 0)
    }

    /// Records the sibling tags that point to another image, before the first run.
    pub(in crate::service) fn note_displaced(&mut self, displaced: Vec<DisplacedTag>) {
        if self.plan.cause == Cause::Redeploy {
            let moved = displaced.iter().filter(|one| one.named.is_some());
            self.held_back = moved.map(|one| one.tag.clone()).collect();
        }
        self.displaced = Some(displaced);
    }

    /// Records the images that the other services run on now.
    pub(in crate::service) fn refresh_sibling_tags(&mut self, containers: &[Container]) {
        self.sibling_tags = self.plan.sibling_tags(containers);
        self.displaced = None;
    }

    /// Takes over what the hook before the deployment has done to the containers: those that it has made anew are the old ones
    /// from now on. Nothing is brought up or proven by then.
    pub(in crate::service) fn note_prepared(&mut self, containers: &[Container], now: Timestamp) {
        self.outage.look(containers, now);
        let Some(before) = Baseline::renewed(&self.plan.before, containers) else { return };
        if let Some(handover) = &mut self.plan.handover {
            handover.recount(&before, containers);
        }
        self.plan.before = before;
        // Those of containers that the hook has left down still say which image they are started on.
        let is_seen =
            |reference: &Reference| containers.iter().any(|c| c.is_live() && c.is_made_from(reference));
        self.sibling_tags.retain(|(reference, _)| !is_seen(reference));
        self.sibling_tags.extend(self.plan.sibling_tags(containers));
        self.sibling_tags.sort();
        self.sibling_tags.dedup();
    }

    /// Records containers that compose recreated beyond `named`, the compose services it was limited to.
    pub(in crate::service) fn note_recreated(&mut self, named: &[String], containers: &[Container]) {
        if named.is_empty() {
            return;
        }
        let before = &self.plan.before;
        // Those of an earlier run were to be recreated, too.
        let of_scope = self.services_of_scope();
        let is_new = |c: &&Container| {
            before.iter().all(|was| was.id != c.id)
                && before.iter().any(|was| was.compose_service == c.compose_service)
                && !named.contains(&c.compose_service)
                && !of_scope.contains(&c.compose_service)
                && !self.also_recreated.contains(&c.name)
        };
        let names: Vec<String> = containers.iter().filter(is_new).map(|c| c.name.clone()).collect();
        self.also_recreated.extend(names);
    }

    /// Feeds an inspection into the probation; `None` if the phase has none.
    pub(in crate::service) fn look(
        &mut self,
        containers: &[Container],
        stops: &StopTimes,
        now: Timestamp,
    ) -> Option<Outcome> {
        let mut probation = self.phase.probation()?.clone();
        let outcome = probation.look(containers, self.context(stops), now);
        *self.phase.probation_mut()? = probation;
        Some(outcome)
    }

    /// What the probe has shown so far; `None` if there is none, or no image is on probation.
    pub(in crate::service) fn probe_progress(&self) -> Option<ProbeProgress> {
        let probation = self.phase.probation_of_new()?;
        let probe = self.plan.probe.as_ref()?.to_string();
        let worst = probation.worst_probed();
        let passed = worst.is_some_and(|seen| seen.passed);
        Some(ProbeProgress { probe, passed, answer: worst.map(|seen| seen.answer.clone()) })
    }

    /// Returns what a probe asks now, in a probation that began at `since`.
    pub(in crate::service) fn probe_targets(
        &self,
        containers: &[Container],
        stops: &StopTimes,
        since: Timestamp,
    ) -> Vec<Target> {
        self.context(stops).targets(containers, since)
    }

    /// Returns when the current probation, or the hook `before`, ends at the latest.
    pub(in crate::service) fn deadline(
        &self,
        containers: &[Container],
        stops: &StopTimes,
    ) -> Option<Timestamp> {
        if let Some(watch) = self.phase.watch() {
            return watch.deadline(self.plan.grace);
        }
        if self.phase == Phase::BeforeHook {
            return Some(self.since + self.plan.hooks.as_ref()?.hooks.timeout);
        }
        Some(self.phase.probation()?.deadline(containers, self.context(stops)))
    }

    /// Returns the container that most likely keeps compose from bringing up the project.
    pub(in crate::service) fn likely_cause(
        &self,
        containers: &[Container],
        stops: &StopTimes,
    ) -> Option<Failure> {
        probation::likely_cause(containers, self.context(stops))
    }

    fn context<'a>(&'a self, stops: &'a StopTimes) -> Context<'a> {
        let rolling_back = matches!(self.phase, Phase::VerifyRollback { .. });
        Context { plan: &self.plan, new_ids: &self.new_ids, stops, rolling_back }
    }
}

/// Reads a deployment from the journal. Earlier versions stored the ID of a new image in its change.
pub(in crate::service) fn read<'de, D: Deserializer<'de>>(
    journal: D,
) -> Result<Option<Box<Deployment>>, D::Error> {
    let Some(mut row) = Option::<Map<String, Value>>::deserialize(journal)? else { return Ok(None) };
    let changes = row.get("image_changes").or_else(|| row.get("moves")).and_then(Value::as_array);
    let id = |change: &Value| {
        let name = change.get("configured").or_else(|| change.get("text"))?.as_str()?;
        let id = change.get("new_id").filter(|id| !id.is_null())?;
        Some((name.to_owned(), id.clone()))
    };
    let ids: Map<String, Value> = changes.into_iter().flatten().filter_map(id).collect();
    row.entry("new_ids").or_insert(Value::Object(ids));
    serde_json::from_value(Value::Object(row)).map(Some).map_err(D::Error::custom)
}

/// Turns the update of a swarm service as earlier versions stored it, in a record of its own, into a deployment.
pub(in crate::service) fn from_swarm_rollout(mut rollout: Value) -> Option<Value> {
    let mut plan = rollout.get_mut("plan")?.as_object_mut()?.clone();
    let change = plan.remove("change").filter(|change| !change.is_null());
    let (cause, grace) = (plan.remove("cause")?, plan.remove("grace")?);
    let kept = plan.remove("kept").unwrap_or_else(|| json!([]));
    let mut phase = rollout.get("phase")?.as_object()?.clone();
    if phase.get("step")?.as_str()? == "verify_rollback" {
        phase.insert("step".to_owned(), json!("verify_tasks"));
        if let Some(Value::Object(failed)) = phase.remove("failed") {
            phase.extend(failed);
        }
    }
    let mut labels = Map::new();
    if let (Some(image), Some(change)) =
        (change.as_ref().and_then(|change| change["configured"].as_str()), rollout.get("labels"))
    {
        labels.insert(image.to_owned(), change.clone());
    }
    let mut deployment = json!({
        "cause": cause,
        "grace": grace,
        "kept": kept,
        "image_changes": change.into_iter().collect::<Vec<Value>>(),
        "kept_tags": [],
        "before": [],
        "starts_project": false,
        "swarm_plan": plan,
        "phase": phase,
        "labels": labels,
        "up_mode": UpMode::Services(Vec::new()),
    });
    for field in ["begun", "since", "attempt", "outage"] {
        if let Some(value) = rollout.get(field) {
            deployment[field] = value.clone();
        }
    }
    Some(deployment)
}
