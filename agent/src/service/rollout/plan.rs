//! The plan of a rollout, a value that is journaled before every step (DECISIONS 4).

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::wire::KeptImage;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::image::{Digest, ImageId, Reference};
use crate::model::{Container, Hooks, Model, Probe, Project, State, UpMode};
use crate::service::action::OldImage;
use crate::service::assess::{Condition, Symptom};
use crate::service::compare::{self, Comparison};
use crate::service::input::{ImageView, Observation, TagInForce};
use crate::service::scope::{Part, Scope};
use crate::service::{Service, wording};

use super::deployment::Deployment;
use super::handover::HandoverPlan;
use super::probation::{Baseline, Expected};
use super::snapshot::SnapshotPlan;
use super::tag::{LineChange, TagChange};
use crate::model::snapshot::EarlierData;

/// Why a deployment was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A new digest in the registry.
    Update,
    /// A manual redeploy.
    Redeploy,
    /// The compose files changed (`compose_watch`).
    #[serde(alias = "drift")]
    ComposeChanged,
    /// No container was running (`auto_start`).
    Start,
    /// Containers were stuck half-created (`auto_start`).
    #[serde(alias = "unstick")]
    ForceUp {
        /// Whether the project is taken down first.
        down: bool,
    },
    /// A manual check after a failed rollback.
    #[serde(alias = "way_back")]
    RetryRollback,
    /// Going back to earlier images, which were proven here.
    GoBack(GoBack),
    /// A container can't be healed by a restart (`auto_heal`).
    #[serde(alias = "renew")]
    RecreateContainer {
        /// Its name.
        container: String,
    },
}

impl Cause {
    /// Reports whether new images are pulled and proven. The other causes only have compose bring up the project.
    pub fn is_about_images(&self) -> bool {
        matches!(self, Cause::Update | Cause::Redeploy | Cause::RetryRollback | Cause::GoBack(_))
    }

    /// Reports whether only the compose services of the changed images are brought up.
    fn is_by_image(&self) -> bool {
        matches!(self, Cause::Update | Cause::RetryRollback | Cause::GoBack(_))
    }
}

/// A deployment of earlier images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoBack {
    /// The images to go back to.
    pub to: Vec<Earlier>,
    /// The data to put back; `None` if the data of now stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<EarlierData>,
    /// Why.
    pub why: GoBackReason,
}

/// An image that was proven here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Earlier {
    /// Image as configured.
    pub configured: String,
    /// Reference that it was deployed under.
    pub reference: Reference,
    /// Its digest.
    pub digest: Digest,
    /// Its ID on this machine.
    pub id: ImageId,
}

/// Why earlier images are deployed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GoBackReason {
    /// A person asked for it.
    ByHand,
    /// The image failed after its probation (`watch`).
    Late {
        /// How.
        reason: String,
    },
}

/// One image of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageChange {
    /// Image as configured.
    #[serde(alias = "text")]
    pub configured: String,
    /// Reference to deploy, normalized.
    pub reference: Reference,
    /// Reference that the previous containers were created from, if its tag differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Reference>,
    /// Digest that ran before, if known.
    pub old_digest: Option<Digest>,
    /// Rollback target: the image that ran before, or that the tag named if nothing ran.
    pub old: Option<OldImage>,
    /// Digest to deploy.
    pub digest: Digest,
}

impl ImageChange {
    /// Reports whether `reference` is the one before or after the change.
    pub(in crate::service) fn is_of(&self, reference: &Reference) -> bool {
        self.reference == *reference || self.from.as_ref() == Some(reference)
    }

    /// Reports whether the container was created from the reference before or after the change.
    pub(in crate::service) fn is_of_container(&self, container: &Container) -> bool {
        Reference::parse(&container.config_image).is_ok_and(|reference| self.is_of(&reference))
    }

    /// Returns the reference that the previous containers were created from.
    fn old_reference(&self) -> &Reference {
        self.from.as_ref().unwrap_or(&self.reference)
    }

    pub(in crate::service) fn source(&self, digest: &Digest) -> Reference {
        Reference { repository: self.reference.repository.clone(), tag: None, digest: Some(digest.clone()) }
    }
}

/// Returns the tags of all live containers with the images that they must name, so that compose leaves the containers
/// alone. A tag whose containers run on different images is left out.
fn sibling_tags(containers: &[Container]) -> Vec<(Reference, ImageId)> {
    let mut all: Vec<(Reference, ImageId)> = containers
        .iter()
        .filter(|c| c.is_live())
        .filter_map(|c| Some((Reference::parse(&c.config_image).ok()?, c.image.clone())))
        .filter(|(reference, _)| !reference.is_pinned())
        .collect();
    all.sort();
    all.dedup();
    let is_only =
        |(reference, _): &&(Reference, ImageId)| all.iter().filter(|(r, _)| r == reference).count() == 1;
    all.iter().filter(is_only).cloned().collect()
}

/// The plan of a deployment. Nothing in it changes once it is journaled: state collected on the way belongs to the
/// [`Deployment`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Why the deployment was started.
    pub cause: Cause,
    /// The deployed project, whatever the configuration says now. Journals of older versions do not name it: they mean
    /// the configured one.
    #[serde(default)]
    pub project: Option<Project>,
    /// `health_grace` when it began: a change of the configuration applies from the next deployment on.
    #[serde(default)]
    pub grace: Duration,
    /// The images that it changes.
    #[serde(alias = "moves")]
    pub image_changes: Vec<ImageChange>,
    /// Tags that must keep naming the running image, because the new one is blocked or held.
    #[serde(alias = "pins")]
    pub kept_tags: Vec<(Reference, OldImage)>,
    /// The containers before the deployment.
    pub before: Vec<Baseline>,
    /// Change of the tag variable, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<TagChange>,
    /// Images that a manual redeploy leaves unchanged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptImage>,
    /// Whether nothing ran and the whole project is started. Journals of older versions do not say: their updates moved all
    /// tags.
    #[serde(default = "starts")]
    pub starts_project: bool,
    /// Whether compose may pull images that are not present locally.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pull_missing: bool,
    /// What the compose files defined when it began, which is what runs (DECISIONS 4a): a rollback restores this, whatever
    /// was edited since. `None` if it was not compared.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "recorded")]
    pub definition: Option<Arc<Model>>,
    /// Commands that run before and after it, with the name of the service that configured them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks: Option<PlannedHooks>,
    /// What the new containers must answer on probation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probe>,
    /// The compose services whose new containers start beside the old ones, and those that were to and can't; `None` if none
    /// was asked to.
    // The journal has the plan and its state in one object.
    #[serde(default, rename = "handover_plan", skip_serializing_if = "Option::is_none")]
    pub handover: Option<HandoverPlan>,
    /// The data that is copied before the new images are brought up; `None` if none is.
    // The journal has the plan and its state in one object.
    #[serde(default, rename = "snapshot_plan", skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotPlan>,
    /// The service that it belongs to; empty in journals of older versions.
    #[serde(default)]
    pub service: String,
}

/// The hooks of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedHooks {
    /// The service that configured them.
    pub service: String,
    /// The commands.
    #[serde(flatten)]
    pub hooks: Hooks,
}

fn starts() -> bool {
    true
}

/// The recorded definition in the journal.
mod recorded {
    use super::{Arc, Model};
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    // The signature is serde's.
    #[allow(clippy::ref_option)]
    pub(super) fn serialize<S: Serializer>(model: &Option<Arc<Model>>, to: S) -> Result<S::Ok, S::Error> {
        model.as_deref().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Arc<Model>>, D::Error> {
        Ok(Option::<Model>::deserialize(from)?.map(Arc::new))
    }
}

impl Plan {
    /// Reports whether, according to `containers`, all containers that ran before still run and none was replaced. If none
    /// ran: whether they are the same as before and none was started.
    /// `is_stopped`: whether the deployment itself has stopped a container.
    pub(super) fn is_untouched(&self, containers: &[Container], is_stopped: impl Fn(&str) -> bool) -> bool {
        if self.before.iter().any(|was| was.running) {
            // A container that did not run counts too: it may be the one being deployed.
            let is_unchanged = |was: &Baseline| {
                let is_as_before =
                    |c: &Container| c.state == State::Running || !was.running || is_stopped(&c.id);
                containers.iter().any(|c| c.id == was.id && is_as_before(c))
            };
            return self.before.iter().all(is_unchanged);
        }
        let is_old =
            |c: &Container| self.before.iter().any(|was| was.id == c.id && (was.live || !c.is_live()));
        containers.len() == self.before.len() && containers.iter().all(is_old)
    }

    /// Returns the containers that ran on a changing image, with the change.
    pub(super) fn changed_containers(&self) -> impl Iterator<Item = (&Baseline, &ImageChange)> {
        self.before.iter().filter(|was| was.running).filter_map(|was| {
            let reference = Reference::parse(&was.config_image).ok()?;
            Some((was, self.image_changes.iter().find(|m| m.is_of(&reference))?))
        })
    }

    /// Returns the containers that must run after a rollback: exactly those that ran on the changed images.
    pub(super) fn expected_old(&self) -> Vec<Expected> {
        self.changed_containers()
            .map(|(was, m)| Expected {
                compose_service: was.compose_service.clone(),
                image: m.old.as_ref().map_or_else(|| was.image.clone(), |old| old.id.clone()),
            })
            .collect()
    }

    /// Reports whether a running container uses the image of this change, or the whole project is started with it. An image
    /// that none uses is only pulled.
    pub(super) fn is_used(&self, change: &ImageChange) -> bool {
        let is_live =
            |was: &Baseline| Reference::parse(&was.config_image).is_ok_and(|r| was.live && change.is_of(&r));
        self.cause != Cause::Update || self.starts_project || self.before.iter().any(is_live)
    }

    /// Returns the tags of other live services with the images that they run on.
    pub(super) fn sibling_tags(&self, containers: &[Container]) -> Vec<(Reference, ImageId)> {
        let is_own = |reference: &Reference| {
            self.image_changes.iter().any(|m| m.is_of(reference))
                || self.kept_tags.iter().any(|(pin, _)| pin == reference)
        };
        sibling_tags(containers).into_iter().filter(|(reference, _)| !is_own(reference)).collect()
    }

    /// Returns the scope that compose is limited to; `None` for the whole project: if none of it ran, or if a redeploy or
    /// a change of the files covers all of it.
    pub(super) fn scope(&self) -> Option<Scope> {
        if !self.cause.is_by_image() || !self.before.iter().any(|was| was.live) {
            return None;
        }
        // A kept tag brings another image only if the running one could not be rolled back.
        let is_displaced = |pin: &&(Reference, OldImage)| {
            let made_from = |was: &Baseline| Reference::parse(&was.config_image).is_ok_and(|r| r == pin.0);
            self.before.iter().any(|was| was.image != pin.1.id && made_from(was))
        };
        let kept_tags = self.kept_tags.iter().filter(is_displaced).map(|(pin, _)| pin);
        let images: Vec<Reference> = self
            .image_changes
            .iter()
            .flat_map(|m| m.from.iter().chain([&m.reference]))
            .chain(kept_tags)
            .cloned()
            .collect();
        (!images.is_empty()).then(|| Scope { images, before: self.before.clone(), part: Part::All })
    }

    /// Returns the compose services on the changed images. Compose brings up only these after a failed attempt, because
    /// whatever prevents it from bringing up the whole project may not affect them.
    pub(super) fn changed_services(&self) -> Vec<String> {
        let mut services: Vec<String> =
            self.changed_containers().map(|(was, _)| was.compose_service.clone()).collect();
        services.sort();
        services.dedup();
        services
    }

    /// Returns the images that must not be removed during the deployment.
    pub(super) fn old_images(&self) -> Vec<OldImage> {
        let mut images: Vec<OldImage> = self.old_tags().into_iter().map(|(_, old)| old).collect();
        images.sort();
        images.dedup_by(|a, b| a.id == b.id);
        images
    }

    /// Returns the tags with the images that run, for a deployment that has changed no container. An image that runs without
    /// having been proven is no rollback target, but what its tag names.
    pub(super) fn tags_of_running(&self) -> Vec<(Reference, OldImage)> {
        let running = |tag: &Reference| {
            let made_from = |was: &&Baseline| Reference::parse(&was.config_image).is_ok_and(|r| r == *tag);
            self.before.iter().filter(made_from).find(|was| was.live).map(|was| &was.image)
        };
        let with_running = |(tag, old): (Reference, OldImage)| match running(&tag) {
            Some(image) if *image != old.id => (tag, OldImage { id: image.clone(), source: None }),
            _ => (tag, old),
        };
        self.old_tags().into_iter().map(with_running).collect()
    }

    /// Returns the tags with the images that they pointed to before.
    pub(super) fn old_tags(&self) -> Vec<(Reference, OldImage)> {
        // Compose gets one tag for all images of the variable, although their tags may have differed.
        let with_tag = |m: &ImageChange| match (&self.tag, &m.from) {
            (Some(tag), Some(from)) => Reference { tag: Some(tag.old.clone()), ..from.clone() },
            _ => m.old_reference().clone(),
        };
        let moved = self.image_changes.iter().filter_map(|m| Some((with_tag(m), m.old.clone()?)));
        moved.chain(self.kept_tags.iter().cloned()).collect()
    }
}

impl Service {
    /// Plans a deployment from the last observation. Returns whether there is anything to do.
    pub(in crate::service) fn begin(&mut self, cause: Cause, now: Timestamp) -> bool {
        if self.config.swarm_service.is_some() {
            return self.begin_in_swarm(cause, now);
        }
        let Some(observation) = &self.known.observation else { return false };
        let (mut image_changes, mut kept_tags) = (Vec::new(), Vec::new());
        for view in &observation.images {
            match self.plan_image(view, observation, &cause, now) {
                Some(Planned::Change(change)) => image_changes.push(change),
                Some(Planned::Keep(tag, image)) => kept_tags.push((tag, image)),
                None => {}
            }
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
        let is_live = observation.containers.iter().any(Container::is_live);
        let up_mode = match &cause {
            Cause::Redeploy => UpMode::All,
            Cause::Start | Cause::ForceUp { .. } if !observation.unlisted_files.is_empty() => {
                UpMode::StartOnly
            }
            // An operator has stopped the project: its images are pulled, nothing is started.
            Cause::Update if !self.config.auto_start && !is_live => UpMode::Services(Vec::new()),
            Cause::GoBack(_) => self.going_back_to(&image_changes, &observation.containers),
            _ => UpMode::Changed,
        };
        let is_compared = matches!(cause, Cause::Update | Cause::GoBack(_));
        let compared = observation.definition.as_ref().filter(|_| is_compared);
        let definition = compared.and_then(|d| Some(d.as_ref().ok()?.model.clone()));
        let tag = self.plan_tag(observation, &image_changes);
        let pull_missing = self.may_pull_missing(observation, &cause, now);
        let hooks = self.config.update.as_ref().and_then(|update| update.hooks.clone());
        let hooks = hooks.filter(|_| cause.is_about_images() && !image_changes.is_empty());
        let hooks = hooks.map(|hooks| PlannedHooks { service: self.config.name.clone(), hooks });
        let probe = self.config.update.as_ref().and_then(|update| update.probe.clone());
        let probe = probe.filter(|_| matches!(cause, Cause::Update | Cause::Redeploy));
        let snapshot = match self.plan_snapshot(&cause, now) {
            Ok(snapshot) => snapshot,
            Err(why) => return self.not_begun(cause, &why, now),
        };
        let plan = Plan {
            kept: self.kept_by(&cause),
            cause,
            project: self.compose_project(),
            grace: self.config.health_grace,
            image_changes,
            kept_tags,
            before: Baseline::all(&observation.containers),
            tag,
            starts_project: self.starts_project(&observation.containers),
            pull_missing,
            definition,
            hooks,
            probe,
            handover: None,
            snapshot,
            service: self.config.name.clone(),
        };
        let handover = self.plan_handover(&plan, &up_mode);
        let plan = Plan { handover, ..plan };
        let deployment = Deployment::new(plan, up_mode, &observation.containers, now);
        // Compose applies the files as they are now, so these count as deployed. An edit that an update does not apply
        // stays pending.
        if let Some(hash) = self.known.files_hash.clone().filter(|_| deployment.applies_whole_project()) {
            // Pending until compose succeeds, so that a failure does not lose the edit.
            let known = self.durable.files_hash.replace(hash.clone());
            self.durable.files_pending |= known.is_some_and(|known| known != hash);
        }
        self.durable.deployment = Some(Box::new(deployment));
        self.durable.watch = None;
        self.note_begun();
        true
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
        view: &ImageView,
        observation: &Observation,
        cause: &Cause,
        now: Timestamp,
    ) -> Option<Planned> {
        let old = view.running.first().or(view.tagged.as_ref());
        let memory = self.durable.images.get(&view.configured);
        // The rollback target: the running image, unless it is known to be unproven.
        let target = memory.target_instead_of(old.map(|old| &old.id));
        let is_unproven = target.is_some();
        let old_image = target.cloned().or_else(|| old.map(|old| compare::old_image(view, old)));
        if let Cause::GoBack(back) = cause {
            return plan_back(view, back, old_image);
        }
        let comparison = match self.compared(view, observation) {
            // A held digest is neither pulled nor started, just like a blocked one.
            Comparison::Stale { .. } if self.is_held(view, observation, cause, now) => Comparison::Blocked,
            comparison => comparison,
        };
        let mut reference = view.reference.clone();
        let digest = match comparison {
            Comparison::Stale { remote } => {
                reference = view.target().clone();
                remote
            }
            Comparison::Pulled { remote } if *cause == Cause::Redeploy => remote,
            // The same content under the newer tag that other images move to.
            Comparison::UpToDate if view.newer.is_some() && self.moves_tag(observation, cause, now) => {
                reference = view.target().clone();
                view.remote.clone()?
            }
            Comparison::UpToDate | Comparison::NotFound { .. }
                if *cause == Cause::Redeploy && !observation.unsigned.contains_key(&view.configured) =>
            {
                view.remote.clone()?
            }
            Comparison::Blocked | Comparison::Unsigned => {
                // The running image stays. If nothing runs, the tag may name the blocked image itself.
                let kept = if view.running.is_empty() { memory.proven.clone() } else { old_image };
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
    /// How compose brings up earlier images: containers that have crashed are to be replaced as well, but none that was
    /// stopped, or has finished.
    fn going_back_to(&self, changes: &[ImageChange], containers: &[Container]) -> UpMode {
        let of_change = |c: &&Container| changes.iter().any(|change| change.is_of_container(c));
        let changed = containers.iter().filter(of_change).filter(|c| self.is_wanted(c));
        let changed: Vec<&Container> = changed.collect();
        if changed.iter().all(|c| c.is_live()) {
            return UpMode::Changed;
        }
        let mut services: Vec<String> = changed.iter().map(|c| c.compose_service.clone()).collect();
        services.sort();
        services.dedup();
        UpMode::Services(services)
    }

    /// Reports whether a container runs, or would run if it had not failed.
    pub(in crate::service) fn is_wanted(&self, container: &Container) -> bool {
        container.is_live()
            || !matches!(
                self.condition(container),
                Condition::Inactive(_) | Condition::Failing(Symptom::NotStarted { .. })
            )
    }

    /// Reports whether an update starts the whole project, because none of its containers runs.
    pub(in crate::service) fn starts_project(&self, containers: &[Container]) -> bool {
        self.config.auto_start && !containers.iter().any(Container::is_live)
    }

    /// Reports whether compose may pull images that are not present locally: only if it brings up the whole project and no
    /// image is withheld, because it would pull a withheld image as well.
    fn may_pull_missing(&self, observation: &Observation, cause: &Cause, now: Timestamp) -> bool {
        let whole = match cause {
            Cause::Update => !observation.containers.iter().any(Container::is_live),
            Cause::Redeploy | Cause::ComposeChanged | Cause::Start | Cause::ForceUp { .. } => true,
            Cause::RetryRollback | Cause::GoBack(_) | Cause::RecreateContainer { .. } => false,
        };
        let is_allowed = |view: &ImageView| match self.compared(view, observation) {
            Comparison::UpToDate | Comparison::Pinned | Comparison::Pulled { .. } => true,
            Comparison::Stale { .. } => !self.is_held(view, observation, cause, now),
            Comparison::NotFound { .. } if *cause == Cause::Start => {
                self.is_first_start(view, observation) && !self.is_held(view, observation, cause, now)
            }
            Comparison::NotFound { .. } => *cause == Cause::Redeploy,
            Comparison::Blocked | Comparison::Unsigned | Comparison::Managed | Comparison::Unanswered => {
                false
            }
        };
        let is_blocked =
            self.durable.images.blocked().next().is_some() || !observation.blocked_elsewhere.is_empty();
        whole && !is_blocked && observation.images.iter().all(is_allowed)
    }

    /// Reports whether another image of the variable moves to its newer tag, so that this one has to follow.
    fn moves_tag(&self, observation: &Observation, cause: &Cause, now: Timestamp) -> bool {
        cause.is_about_images()
            && observation.images.iter().filter(|view| view.newer.is_some()).any(|view| {
                matches!(self.compared(view, observation), Comparison::Stale { .. })
                    && !self.is_held(view, observation, cause, now)
            })
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

/// The tags that other services have blocked, with the images that run.
fn tags_blocked_elsewhere<'a>(
    observation: &'a Observation,
    changes: &'a [ImageChange],
) -> impl Iterator<Item = (Reference, OldImage)> + 'a {
    let others = observation.blocked_elsewhere.iter().map(|(reference, _)| reference);
    let others = others.filter(|reference| !changes.iter().any(|change| change.is_of(reference)));
    others.filter_map(|reference| {
        let runs = |c: &&Container| c.state == State::Running && c.is_made_from(reference);
        let container = observation.containers.iter().find(runs)?;
        Some((reference.clone(), OldImage { id: container.image.clone(), source: None }))
    })
}

/// Deploys an earlier image. The others stay as they are, whatever the registry has.
fn plan_back(view: &ImageView, back: &GoBack, old: Option<OldImage>) -> Option<Planned> {
    let Some(to) = back.to.iter().find(|to| to.configured == view.configured) else {
        return Some(Planned::Keep(view.from.clone(), old.filter(|_| !view.running.is_empty())?));
    };
    let running = view.running.first().or(view.tagged.as_ref());
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

/// What a deployment does with an image.
pub(in crate::service) enum Planned {
    /// Deploys another digest.
    Change(ImageChange),
    /// Keeps the tag on this image.
    Keep(Reference, OldImage),
}
