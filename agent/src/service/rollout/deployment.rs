//! A plan that is being carried out: the step that it is at, and what was learned on the way.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::model::image::{ImageId, LabelChange, Reference};
use crate::model::{Container, Project, PullPolicy, UpMode};
use crate::service::MAX_INTERRUPTIONS;
use crate::service::action::{DisplacedTag, OldImage, Step};
use crate::service::input::StopTimes;
use crate::service::scope::Scope;

use super::plan::{Cause, ImageChange, Plan};
use super::probation::{self, Context, Expected, Failure, Outcome};
use super::step::Phase;
use super::tag::{LineChange, LineState, TagChange};

/// A deployment under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Deployment {
    #[serde(flatten)]
    plan: Plan,
    /// When it was begun.
    pub begun: Timestamp,
    /// IDs of the new images, by name as configured; known from the pull on.
    #[serde(default)]
    pub new_ids: BTreeMap<String, ImageId>,
    /// What the images say of themselves, by name as configured; known from the pull on.
    #[serde(default)]
    pub labels: BTreeMap<String, LabelChange>,
    /// Images that other containers of the project run on. Where their tag has moved, it names these while compose is
    /// at work, so that it leaves them alone.
    #[serde(default, alias = "others")]
    pub sibling_tags: Vec<(Reference, ImageId)>,
    /// Those of them that name another image, see [`DisplacedTag`]; `None` until they were read. In the journal before any
    /// tag is moved, so that all are put back whatever happens in between.
    #[serde(default)]
    pub displaced: Option<Vec<DisplacedTag>>,
    /// What compose does next with containers that need no change, and with other services.
    #[serde(alias = "recreate")]
    pub up_mode: UpMode,
    /// Whether the line with the tag was written.
    #[serde(default)]
    pub line: LineState,
    /// Where it stands.
    pub phase: Phase,
    /// When this phase began.
    pub since: Timestamp,
    /// How often this phase was begun again because it failed.
    pub attempt: u32,
    /// How often the deployment was set back because the engine or the agent was away.
    #[serde(default)]
    pub interruptions: u32,
    /// Names of containers that compose recreated although it was not told to.
    #[serde(default)]
    pub also_recreated: Vec<String>,
}

impl Deployment {
    /// Begins to carry out a plan, with the containers as they are.
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
            displaced: None,
            line: LineState::default(),
            up_mode,
            phase: if plan.cause.is_about_images() { Phase::PinImages } else { Phase::Start },
            since: now,
            attempt: 0,
            interruptions: 0,
            also_recreated: Vec::new(),
            plan,
        }
    }

    /// What it is about.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether compose applies all that the files say, so that no edit of them is left to be applied.
    pub(in crate::service) fn is_whole(&self) -> bool {
        matches!(self.up_mode, UpMode::All | UpMode::Changed) && self.plan.scope().is_none()
    }

    /// Counts an interruption; whether there were too many.
    pub(in crate::service) fn interrupt(&mut self) -> bool {
        self.interruptions = self.interruptions.saturating_add(1);
        self.interruptions > MAX_INTERRUPTIONS
    }

    /// Begins again with the project taken down first, where bringing it up was not enough.
    pub(in crate::service) fn take_down_first(&mut self, now: Timestamp) {
        self.plan = Plan { cause: Cause::ForceUp { down: true }, ..self.plan.clone() };
        self.enter(Phase::Start, now);
    }

    /// Goes on to another step.
    pub(in crate::service) fn enter(&mut self, phase: Phase, now: Timestamp) {
        self.enter_attempt(phase, 0, now);
    }

    /// The same, where earlier attempts count.
    pub(super) fn enter_attempt(&mut self, phase: Phase, attempt: u32, now: Timestamp) {
        (self.phase, self.attempt, self.since) = (phase, attempt, now);
    }

    /// The step that this phase consists of; `None` where it consists of waiting.
    pub(in crate::service) fn step(&self, project: &Project) -> Option<Step> {
        let plan = &self.plan;
        let displaced = self.displaced.clone().unwrap_or_default();
        let up = |tags, down| {
            if self.displaced.is_none() && !self.sibling_tags.is_empty() {
                return Step::ReadTags { sibling_tags: self.sibling_tags.clone() };
            }
            let displaced = self.displaced.clone().unwrap_or_default();
            let (up_mode, scope) = (self.up_mode.clone(), self.scope());
            let project = self.with_tag(project);
            let is_forward = matches!(self.phase, Phase::Start);
            let pull = if plan.pull_missing && is_forward { PullPolicy::Missing } else { PullPolicy::Never };
            Step::Start { tags, displaced, project, down, up_mode, scope, pull }
        };
        if let Some((tag, line)) = self.line_to_put_back() {
            return Some(self.write_tag(project, tag, line, true));
        }
        Some(match &self.phase {
            Phase::PinImages => Step::PinImages { project: project.name.clone(), images: plan.old_images() },
            Phase::Pull => {
                let source = |m: &ImageChange| (m.configured.clone(), m.source(&m.digest));
                let old = |m: &ImageChange| Some((m.configured.clone(), m.old.as_ref()?.id.clone()));
                Step::Pull {
                    images: plan.image_changes.iter().map(source).collect(),
                    old: plan.image_changes.iter().filter_map(old).collect(),
                }
            }
            Phase::WriteTag => {
                let tag = plan.tag.as_ref()?;
                self.write_tag(project, tag, tag.line.as_ref()?, false)
            }
            Phase::Start => up(self.new_tags(), plan.cause == Cause::ForceUp { down: true }),
            Phase::Rollback(_) => up(plan.old_tags(), false),
            Phase::RestoreTags => Step::RestoreTags { tags: plan.old_tags() },
            Phase::Diagnose(failed) => Step::Diagnose { container: failed.failure.container_id.clone() },
            Phase::Unpin => Step::Unpin {
                project: project.name.clone(),
                displaced,
                onto: plan.image_changes.iter().find_map(|m| self.new_ids.get(&m.configured)).cloned(),
            },
            Phase::Probation { .. } | Phase::VerifyRollback { .. } => return None,
        })
    }

    /// The tag that changes. It does not where the new images turn out to be the same as the old.
    pub(super) fn tag(&self) -> Option<&TagChange> {
        self.plan.tag.as_ref().filter(|_| self.changes().next().is_some())
    }

    /// The line that is to be put back before anything else is done.
    fn line_to_put_back(&self) -> Option<(&TagChange, &LineChange)> {
        let goes_back = matches!(self.phase, Phase::Rollback(_) | Phase::RestoreTags);
        let tag = self.plan.tag.as_ref().filter(|_| goes_back && self.line == LineState::Written)?;
        Some((tag, tag.line.as_ref()?))
    }

    /// Whether the step under way puts the line back.
    pub(super) fn puts_line_back(&self) -> bool {
        self.line_to_put_back().is_some()
    }

    fn write_tag(&self, project: &Project, tag: &TagChange, line: &LineChange, back: bool) -> Step {
        let users = self.plan.changed_containers().filter(|(_, m)| m.from.is_some());
        let mut images: Vec<Reference> = users.map(|(_, m)| m.reference.clone()).collect();
        images.dedup();
        Step::WriteTag {
            project: self.with_tag(project),
            variable: tag.variable.clone(),
            tag: if back { tag.old.clone() } else { tag.new.clone() },
            line: line.clone(),
            back,
            images,
        }
    }

    /// The project with the tag that compose is to bring up, whatever the file says by now.
    fn with_tag(&self, project: &Project) -> Project {
        let mut project = project.clone();
        if let Some(tag) = self.tag() {
            let is_new = matches!(self.phase, Phase::WriteTag | Phase::Start);
            let wanted = if is_new { &tag.new } else { &tag.old };
            project.set.insert(tag.variable.clone(), wanted.clone());
        }
        project
    }

    /// Where the tags point with the new images.
    fn new_tags(&self) -> Vec<(Reference, OldImage)> {
        let target = |m: &ImageChange| {
            let id = self.new_ids.get(&m.configured)?.clone();
            Some((m.reference.clone(), OldImage { id, source: Some(m.source(&m.digest)) }))
        };
        let new = self.plan.image_changes.iter().filter_map(target);
        new.chain(self.plan.kept_tags.iter().cloned()).collect()
    }

    /// What compose is to keep to; `None` where `up_mode` says it.
    pub(in crate::service) fn scope(&self) -> Option<Scope> {
        (self.up_mode == UpMode::Changed).then(|| self.plan.scope()).flatten()
    }

    /// The images whose content becomes another one.
    pub(in crate::service) fn changes(&self) -> impl Iterator<Item = &ImageChange> {
        self.plan.image_changes.iter().filter(|change| {
            match (self.new_ids.get(&change.configured), &change.old) {
                (Some(new), Some(old)) => *new != old.id,
                _ => change.old_digest.as_ref() != Some(&change.digest),
            }
        })
    }

    /// Whether there is an earlier image to roll back to.
    pub(super) fn can_roll_back(&self) -> bool {
        self.changes().any(|change| change.old.is_some())
    }

    /// IDs of containers on a changed image that a successful compose has left as they were: their service is no longer
    /// in the files, or in a profile that is off.
    pub(super) fn left_behind(&self, containers: &[Container]) -> Vec<String> {
        let changed = self.plan.changed_containers().filter(|(was, m)| {
            self.new_ids.get(&m.configured) != Some(&was.image)
                && containers.iter().any(|c| c.id == was.id && c.image == was.image)
        });
        changed.map(|(was, _)| was.id.clone()).collect()
    }

    /// What must run in the end of a good deployment, where compose left `left_behind` alone.
    pub(super) fn expected_new(&self, left_behind: &[String]) -> Vec<Expected> {
        let changed = self.plan.changed_containers().filter(|(was, _)| !left_behind.contains(&was.id));
        let expected = changed.filter_map(|(was, m)| {
            let image = self.new_ids.get(&m.configured)?.clone();
            Some(Expected { compose_service: was.compose_service.clone(), image })
        });
        expected.collect()
    }

    /// Notes what the other services run on by now.
    pub(super) fn refresh_sibling_tags(&mut self, containers: &[Container]) {
        self.sibling_tags = self.plan.sibling_tags(containers);
        self.displaced = None;
    }

    /// Notes what compose recreated besides `named`, the compose services that it was told to keep to.
    pub(super) fn note_recreated(&mut self, named: &[String], containers: &[Container]) {
        if named.is_empty() {
            return;
        }
        let before = &self.plan.before;
        let is_new = |c: &&Container| {
            before.iter().all(|was| was.id != c.id)
                && before.iter().any(|was| was.compose_service == c.compose_service)
                && !named.contains(&c.compose_service)
                && !self.also_recreated.contains(&c.name)
        };
        let names: Vec<String> = containers.iter().filter(is_new).map(|c| c.name.clone()).collect();
        self.also_recreated.extend(names);
    }

    /// Takes in how containers on probation look; `None` where none are.
    pub(in crate::service) fn look(
        &mut self,
        containers: &[Container],
        grace: Duration,
        stops: &StopTimes,
        now: Timestamp,
    ) -> Option<Outcome> {
        let mut probation = self.phase.probation()?.clone();
        let outcome = probation.look(containers, self.context(grace, stops), now);
        *self.phase.probation_mut()? = probation;
        Some(outcome)
    }

    /// When the probation under way ends at the latest.
    pub(in crate::service) fn deadline(
        &self,
        containers: &[Container],
        grace: Duration,
        stops: &StopTimes,
    ) -> Option<Timestamp> {
        Some(self.phase.probation()?.deadline(containers, self.context(grace, stops)))
    }

    /// The container that most likely keeps compose from bringing up the project.
    pub(super) fn likely_cause(
        &self,
        containers: &[Container],
        grace: Duration,
        stops: &StopTimes,
    ) -> Option<Failure> {
        probation::likely_cause(containers, self.context(grace, stops))
    }

    fn context<'a>(&'a self, grace: Duration, stops: &'a StopTimes) -> Context<'a> {
        let rolling_back = matches!(self.phase, Phase::VerifyRollback { .. });
        Context { grace, plan: &self.plan, new_ids: &self.new_ids, stops, rolling_back }
    }
}

/// Reads a deployment from the journal. Versions before this one noted the ID of a new image in its change.
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
