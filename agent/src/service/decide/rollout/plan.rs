//! How the plan of a rollout is made.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::image::{Digest, Reference};
use crate::model::{Container, State, UpMode};
use crate::service::compare::Comparison;
use crate::service::decide::heal;
use crate::service::decide::image::ImageDecision;
use crate::service::event::Event;
use crate::service::health::assess::{Condition, Inactive, Symptom, signed};
use crate::service::images::OldImage;
use crate::service::observation::{ImageView, Observation, TagInForce};
use crate::service::rollout::baseline::Baseline;
use crate::service::rollout::deployment::Deployment;
use crate::service::rollout::plan::{Cause, GoBack, ImageChange, Plan, Planned, PlannedHooks};
use crate::service::rollout::probation::{Failure, Reason};
use crate::service::rollout::tag::{LineChange, TagChange};
use crate::service::state::WhyLeft;
use crate::service::{Service, compare, wording};

/// How long a worker that ends after each piece of work may wait for the next one.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);

impl Service {
    /// Plans a deployment from the last observation. Returns whether there is anything to do.
    pub(in crate::service) fn begin(&mut self, cause: Cause, now: Timestamp) -> bool {
        if self.config.swarm_service.is_some() {
            return self.begin_in_swarm(cause, now);
        }
        let Some(observation) = self.known.observation.clone() else { return false };
        let observation = observation.as_ref();
        let decisions = self.decide_images(observation, &cause, now);
        let (mut image_changes, mut kept_tags) = (Vec::new(), Vec::new());
        for decision in &decisions {
            match self.plan_image(decision, &decisions, observation, &cause) {
                Some(Planned::Change(change)) => image_changes.push(change),
                Some(Planned::Keep(tag, image)) => kept_tags.push((tag, image)),
                None => {}
            }
        }
        if let Some(why) = self.lacks_its_data(&cause, &image_changes, &kept_tags) {
            return self.not_begun_without_data(&cause, why, now);
        }
        kept_tags.extend(tags_blocked_elsewhere(observation, &image_changes));
        match cause {
            Cause::Update if image_changes.is_empty() => return false,
            Cause::GoBack(back) if image_changes.is_empty() => {
                self.not_gone_back(back, wording::go_back::NOT_CONFIGURED.to_owned(), String::new(), now);
                return false;
            }
            _ => {}
        }
        let is_compared = matches!(cause, Cause::Update | Cause::GoBack(_));
        let compared = observation.definition.as_ref().filter(|_| is_compared);
        let definition = compared.and_then(|d| Some(d.as_ref().ok()?.model.clone()));
        let before = self.before(&cause, observation, now);
        let is_live = before.iter().any(|was| was.live);
        let up_mode = self.up_mode(&cause, observation, is_live);
        let tag = self.plan_tag(observation, &image_changes);
        let pull_missing = self.may_pull_missing(&decisions, observation, &cause, is_live, &kept_tags);
        let hooks = self.plan_hooks(&cause, &image_changes, &before);
        let probe = self.config.update.as_ref().and_then(|update| update.probe.clone());
        let probe = probe.filter(|_| matches!(cause, Cause::Update | Cause::Redeploy));
        let snapshot = match self.plan_snapshot(&cause, &image_changes, now) {
            Ok(snapshot) => snapshot,
            Err(why) => return self.not_begun(cause, &why, now),
        };
        let plan = Plan {
            kept: self.kept_by(&cause),
            project: self.compose_project(),
            image_changes,
            kept_tags,
            before,
            jobs: self.jobs(&observation.containers, now),
            tag,
            starts_project: self.starts_project(&observation.containers),
            pull_missing,
            ran_before: self.has_run_here(&cause),
            definition,
            hooks,
            probe,
            snapshot,
            ..Plan::bare(cause, &self.config.name, self.config.health_grace)
        };
        if self.retries_nothing(&plan, now) {
            return false;
        }
        let handover = self.plan_handover(&plan, &up_mode);
        let plan = Plan { handover, ..plan };
        let containers = self.staying(&plan.cause, &observation.containers);
        let deployment = Deployment::new(plan, up_mode, &containers, now);
        // Compose applies the files as they are now, so these count as deployed. An edit that an update does not apply
        // stays pending.
        if let Some(hash) = self.known.files_hash.clone().filter(|_| deployment.applies_whole_project()) {
            // Pending until compose succeeds, so that a failure does not lose the edit.
            let known = self.durable.files_hash.replace(hash.clone());
            self.durable.files_pending |= known.is_some_and(|known| known != hash);
        }
        if let Cause::GoBack(back) = &deployment.plan().cause {
            self.end_watch_that_asked(back);
        }
        self.durable.deployment = Some(Box::new(deployment));
        self.note_begun();
        true
    }

    /// Whether the project ran here before, and no person asks for a deployment with this cause.
    fn has_run_here(&self, cause: &Cause) -> bool {
        let by_person = matches!(cause, Cause::Redeploy | Cause::RetryRollback | Cause::GoBack(_));
        let is_named = |(name, _): &(String, PathBuf)| self.config.compose_project.as_ref() == Some(name);
        let is_same = || self.durable.origin_of.as_ref().is_none_or(is_named);
        !by_person && self.durable.origin.is_some() && is_same()
    }

    /// The commands that run before and after a deployment of other images. There is nothing that could be saved before the
    /// first start of a project.
    fn plan_hooks(
        &self,
        cause: &Cause,
        changes: &[ImageChange],
        before: &[Baseline],
    ) -> Option<PlannedHooks> {
        let mut hooks = self.config.update.as_ref()?.hooks.clone()?;
        if before.is_empty() && changes.iter().all(|change| change.old.is_none()) {
            hooks.before.clear();
        }
        let are_run = cause.is_about_images() && changes.iter().any(ImageChange::brings_other);
        are_run.then(|| PlannedHooks { service: self.config.name.clone(), hooks })
    }

    /// Without the copy of the data that was asked for nothing is deployed. Updates have a gate that says so.
    fn not_begun(&mut self, cause: Cause, why: &str, now: Timestamp) -> bool {
        let text = wording::snapshot::not_copied(why);
        match cause {
            Cause::Redeploy => self.redeploy_failed(text, String::new(), now),
            Cause::GoBack(back) => self.not_gone_back(back, text, String::new(), now),
            _ => {}
        }
        false
    }

    /// Decides what the deployment does with an image.
    pub(in crate::service) fn plan_image(
        &self,
        decision: &ImageDecision<'_>,
        all: &[ImageDecision<'_>],
        observation: &Observation,
        cause: &Cause,
    ) -> Option<Planned> {
        let view = decision.view;
        let old = view.replaced_by(cause.digest_of(view));
        let memory = self.durable.images.get(&view.configured);
        // The rollback target: the running image, unless it is known to be unproven.
        let target = memory.target_instead_of(old.map(|old| &old.id));
        let is_unproven = target.is_some();
        let old_image = target.cloned().or_else(|| old.map(|old| compare::old_image(view, old)));
        if let Cause::GoBack(back) = cause {
            return plan_back(view, back, old_image);
        }
        let comparison = match &decision.comparison {
            // A digest that is held or postponed is neither pulled nor started, just like a blocked one.
            Comparison::Stale { .. } if !decision.is_free_update() => &Comparison::Blocked,
            comparison => comparison,
        };
        let mut reference = view.reference.clone();
        let digest = match comparison {
            Comparison::Stale { remote } => {
                reference = view.target().clone();
                remote.clone()
            }
            Comparison::Pulled { remote } if *cause == Cause::Redeploy => remote.clone(),
            // The same content under the newer tag that other images move to.
            Comparison::UpToDate if view.newer.is_some() && cause.is_about_images() && moves_tag(all) => {
                reference = view.target().clone();
                view.remote.clone()?
            }
            Comparison::UpToDate | Comparison::NotFound { .. } | Comparison::FirstStart { .. }
                if *cause == Cause::Redeploy && !observation.unsigned.contains_key(&view.configured) =>
            {
                view.remote.clone()?
            }
            Comparison::Blocked | Comparison::Unsigned => {
                // The running image stays. If nothing runs, the tag may name the blocked image itself. What is only postponed
                // stays, proven or not.
                let kept = if view.running.is_empty() {
                    memory.proven.clone()
                } else if decision.is_postponed {
                    old.map(|old| compare::old_image(view, old))
                } else {
                    old_image
                };
                return Some(Planned::Keep(view.from.clone(), kept?));
            }
            _ => return None,
        };
        if !cause.is_about_images() {
            return None;
        }
        let old_digest = if is_unproven {
            old_image.as_ref().and_then(|old| old.source.as_ref()?.digest.clone())
        } else {
            old.and_then(|old| compare::shown_digest(old, view.remote.as_ref()))
        };
        // An unproven image is no rollback target, and neither is its tag: the failed rollback has restored the line of the
        // previous tag.
        let from = if is_unproven && view.newer.is_some() { &view.reference } else { &view.from };
        Some(Planned::Change(ImageChange {
            configured: view.configured.clone(),
            from: Some(from.clone()).filter(|from| *from != reference),
            reference,
            old_digest,
            old: old_image,
            digest,
        }))
    }
}

impl Service {
    /// How compose brings up the project.
    fn up_mode(&self, cause: &Cause, observation: &Observation, is_live: bool) -> UpMode {
        let containers = &observation.containers;
        match cause {
            Cause::Redeploy => UpMode::All,
            Cause::Start if !observation.unlisted_files.is_empty() => UpMode::StartOnly,
            Cause::ForceUp { .. } => self.forcing_up(observation),
            // An operator has stopped or paused the project: its images are pulled, nothing is started.
            Cause::Update if !is_live && !self.starts_project(containers) => UpMode::Services(Vec::new()),
            _ => UpMode::Changed,
        }
    }

    /// How compose brings up containers that are stuck: their neighbours are left alone, running or stopped.
    fn forcing_up(&self, observation: &Observation) -> UpMode {
        let stuck = observation.containers.iter().filter(|c| self.starter.stuck.contains_key(&c.id));
        let services: BTreeSet<String> = stuck.map(|c| c.compose_service.clone()).collect();
        let services: Vec<String> = services.into_iter().collect();
        if observation.unlisted_files.is_empty() {
            UpMode::Services(services)
        } else {
            UpMode::StartServices(services)
        }
    }

    /// Reports whether a container runs, or would run if neither it nor its rollback had failed.
    pub(in crate::service) fn is_wanted(&self, container: &Container) -> bool {
        container.is_live()
            || self.durable.left_stopped.contains_key(&container.id)
            || !matches!(
                self.condition(container),
                Condition::Inactive(_) | Condition::Failing(Symptom::NotStarted { .. })
            )
    }

    /// The containers before a deployment. An update leaves alone what is paused, and also brings up a compose service that has
    /// crashed, once its definition is compared with what ran: it may be the fix. A way back replaces what is down on the image
    /// that is left.
    pub(in crate::service) fn before(
        &self,
        cause: &Cause,
        observation: &Observation,
        now: Timestamp,
    ) -> Vec<Baseline> {
        let containers = &observation.containers;
        match cause {
            Cause::Update => {
                let is_compared = matches!(observation.definition, Some(Ok(_)));
                let crashed = if is_compared { self.crashed(containers, now) } else { BTreeSet::new() };
                Baseline::all_with(containers, &crashed)
            }
            Cause::GoBack(back) => Baseline::all_and(containers, &self.down_before(back, observation)),
            Cause::RetryRollback => Baseline::all_and(containers, &self.down_on_unproven(containers)),
            _ => Baseline::all(containers),
        }
    }

    /// The compose services of which a container has done its work before, as far as the agent has seen it. One that goes on by
    /// now for far longer than on probation is a server.
    fn jobs(&self, containers: &[Container], now: Timestamp) -> BTreeSet<String> {
        let longest = signed(self.usual_probation().max(LONGEST_PAUSE));
        let goes_on = |c: &Container| {
            c.is_live() && c.started_at.is_some_and(|start| now.duration_since(start) > longest)
        };
        let jobs = containers.iter().filter(|c| self.durable.finished.contains(&c.id) && !goes_on(c));
        jobs.map(|c| c.compose_service.clone()).collect()
    }

    /// How long a deployment of the containers of this service is on probation, if their health checks stay as they are.
    pub(in crate::service) fn usual_probation(&self) -> Duration {
        let timings = self.containers().iter().filter_map(|c| c.health_timing);
        timings.map(|timing| timing.budget()).fold(self.config.health_grace, Duration::max)
    }

    /// The containers, by ID, that a way back to earlier images replaces although they are down: those that have crashed, if
    /// nothing of their compose service runs, but none that was stopped, or has finished.
    fn down_before(&self, back: &GoBack, observation: &Observation) -> BTreeSet<String> {
        let is_left = |c: &Container, view: &ImageView| {
            let mut to = back.to.iter().filter(|to| to.configured == view.configured);
            to.any(|to| c.is_made_from(&view.from) || c.is_made_from(&to.reference))
        };
        heal::down(&observation.containers, |c| {
            self.is_wanted(c) && observation.images.iter().any(|view| is_left(c, view))
        })
    }

    /// The same of the containers on images that could not be rolled back, but none that somebody has stopped, or that is left
    /// stopped on data of two times. If the whole project is down, all of it is brought up.
    fn down_on_unproven(&self, containers: &[Container]) -> BTreeSet<String> {
        if !containers.iter().any(Container::is_live) {
            return BTreeSet::new();
        }
        let is_off = |c: &Container| {
            self.is_left_on_mixed_data(c)
                || match self.condition(c) {
                    Condition::Inactive(Inactive::Stopped) => true,
                    Condition::Inactive(Inactive::Finished) => c.is_one_shot(),
                    _ => false,
                }
        };
        heal::down(containers, |c| self.durable.images.is_unproven(&c.image) && !is_off(c))
    }

    /// Reports whether a failed rollback can't be tried again because compose would not be called for any service, and tells
    /// of it.
    fn retries_nothing(&mut self, plan: &Plan, now: Timestamp) -> bool {
        let is_retry = plan.cause == Cause::RetryRollback;
        let is_for_none = is_retry && plan.scope().is_some_and(|scope| scope.services(None).is_for_none());
        if is_for_none {
            let failure = Failure::general(Reason::Words(wording::NOTHING_TO_RETRY.to_owned()));
            self.emit(Event::RollbackRetryFailed { failure, output: String::new() }, now);
        }
        is_for_none
    }

    /// Reports whether an update starts the whole project, because none of its containers runs.
    pub(in crate::service) fn starts_project(&self, containers: &[Container]) -> bool {
        let bars = |c: &Container| c.is_live() || self.is_left_on_mixed_data(c);
        self.config.auto_start && !containers.iter().any(bars)
    }

    /// Reports whether a container is left stopped on data of two times, so that only a person may start it.
    pub(in crate::service) fn is_left_on_mixed_data(&self, container: &Container) -> bool {
        self.durable.left_stopped.get(&container.id).is_some_and(|left| left.why == WhyLeft::MixedData)
    }

    /// Reports whether compose may pull images that are not present locally: only if it brings up the whole project, and would
    /// pull no image that is withheld. It leaves alone a tag that names an image here, as `kept_tags` do for sure: they are
    /// pointed to theirs directly before compose runs, while another one may be pruned until then.
    fn may_pull_missing(
        &self,
        decisions: &[ImageDecision<'_>],
        observation: &Observation,
        cause: &Cause,
        is_live: bool,
        kept_tags: &[(Reference, OldImage)],
    ) -> bool {
        let whole = match cause {
            Cause::Update => !is_live,
            Cause::Redeploy | Cause::ComposeChanged | Cause::Start | Cause::ForceUp { .. } => true,
            Cause::RetryRollback | Cause::GoBack(_) | Cause::RecreateContainer { .. } => false,
        };
        let is_kept = |tag: &Reference| kept_tags.iter().any(|(kept, _)| kept == tag);
        let is_allowed = |decision: &ImageDecision<'_>| match &decision.comparison {
            Comparison::UpToDate | Comparison::Pinned | Comparison::Pulled { .. } => true,
            _ if is_kept(&decision.view.reference) => true,
            // Compose would pull it by its tag.
            Comparison::Stale { .. } if !cause.is_about_images() && decision.view.current().is_empty() => {
                false
            }
            Comparison::Stale { .. } => decision.is_free_update(),
            Comparison::FirstStart { .. } if *cause == Cause::Start => !decision.is_held,
            Comparison::NotFound { .. } | Comparison::FirstStart { .. } if *cause == Cause::Redeploy => true,
            // It is here, built or loaded, or a person has edited the files to name it.
            Comparison::NotFound { remote, .. } => {
                let is_wanted = *cause == Cause::ComposeChanged || !decision.view.current().is_empty();
                let memory = self.durable.images.get(&decision.view.configured);
                is_wanted && !self.has_gates() && !memory.failed_before(remote)
            }
            Comparison::FirstStart { .. }
            | Comparison::Blocked
            | Comparison::Unsigned
            | Comparison::Managed
            | Comparison::Unanswered => false,
        };
        // By its tag, another digest may be pulled than the one that was compared.
        let stays = |(image, _): (&str, &Digest)| {
            decisions
                .iter()
                .any(|decision| decision.view.configured == image && is_kept(&decision.view.reference))
        };
        whole
            && self.durable.images.blocked().all(stays)
            && observation.blocked_elsewhere.iter().all(|blocked| is_kept(&blocked.reference))
            && decisions.iter().all(is_allowed)
    }

    /// Returns the change of the tag variable that these image changes require, if any.
    fn plan_tag(&self, observation: &Observation, changes: &[ImageChange]) -> Option<TagChange> {
        let (variable, in_force) = (self.config.tag_variable()?, observation.tag.as_ref()?);
        let change = changes
            .iter()
            .find(|change| change.from.is_some() && self.config.is_of_variable(&change.configured))?;
        let (old, new) = (change.from.as_ref()?.tag.clone()?, change.reference.tag.clone()?);
        let TagInForce { setting, file_hash } = in_force;
        let line = (setting.tag != new).then(|| LineChange {
            path: variable.file.to_owned(),
            old: setting.line.clone(),
            new: setting.line_with(&new),
            file_hash: file_hash.clone(),
        });
        Some(TagChange { variable: variable.name.to_owned(), old, new, line })
    }
}

/// Reports whether an image of the tag variable moves to its newer tag, so that the others have to follow.
fn moves_tag(decisions: &[ImageDecision<'_>]) -> bool {
    decisions.iter().any(|decision| decision.view.newer.is_some() && decision.is_free_update())
}

/// The tags that other services have blocked, with the images that run.
fn tags_blocked_elsewhere<'a>(
    observation: &'a Observation,
    changes: &'a [ImageChange],
) -> impl Iterator<Item = (Reference, OldImage)> + 'a {
    let others = observation.blocked_elsewhere.iter().map(|blocked| &blocked.reference);
    let others = others.filter(|reference| !changes.iter().any(|change| change.is_of(reference)));
    others.filter_map(|reference| {
        let runs = |c: &&Container| c.state == State::Running && c.is_made_from(reference);
        let container = observation.containers.iter().find(runs)?;
        Some((reference.clone(), OldImage { id: container.image.clone(), source: None }))
    })
}

impl Cause {
    /// The digest that is to replace what runs of an image.
    fn digest_of<'a>(&'a self, view: &'a ImageView) -> Option<&'a Digest> {
        match self {
            Cause::GoBack(back) => {
                back.to.iter().find(|to| to.configured == view.configured).map(|to| &to.digest)
            }
            _ => view.remote.as_ref(),
        }
    }
}

/// Deploys an earlier image. The others stay as they are, whatever the registry has.
fn plan_back(view: &ImageView, back: &GoBack, old: Option<OldImage>) -> Option<Planned> {
    let Some(to) = back.to.iter().find(|to| to.configured == view.configured) else {
        return Some(Planned::Keep(view.from.clone(), old.filter(|_| !view.running.is_empty())?));
    };
    let running = view.replaced_by(Some(&to.digest));
    // If the earlier image fails, what ran goes back together with its data, proven or not.
    let of_data = running.filter(|_| back.data.is_some()).map(|one| compare::old_image(view, one));
    let old = of_data.or(old);
    let from = Some(view.from.clone()).filter(|from| *from != to.reference);
    Some(Planned::Change(ImageChange {
        configured: view.configured.clone(),
        reference: to.reference.clone(),
        from,
        old_digest: running.and_then(|old| compare::shown_digest(old, view.remote.as_ref())),
        old,
        digest: to.digest.clone(),
    }))
}
