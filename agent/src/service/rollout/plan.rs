//! The plan of a rollout, a value that is journaled before every step (DECISIONS 4).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::wire::KeptImage;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::image::{Digest, ImageId, Reference};
use crate::model::snapshot::EarlierData;
use crate::model::{Container, Drain, HookEvent, Hooks, Model, Probe, Project, State};
use crate::service::images::OldImage;
use crate::service::rollout::baseline::{Baseline, Expected};
use crate::service::rollout::handover::HandoverPlan;
use crate::service::rollout::snapshot::SnapshotPlan;
use crate::service::rollout::tag::TagChange;
use crate::service::scope::{Part, Scope};

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
        reason: LateFailure,
    },
}

/// How an image failed after its probation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LateFailure {
    /// The healer has restarted a container as often as it may.
    RestartsExhausted {
        /// Its name.
        container: String,
    },
    /// Its containers exited too often.
    Crashes {
        /// How often.
        crashes: usize,
        /// Within how many minutes.
        minutes: i64,
    },
    /// As an earlier version recorded it.
    #[serde(untagged)]
    Words(String),
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

    /// Reports whether another digest is deployed than the one that ran before. A redeployment also covers images that stay.
    pub(in crate::service) fn brings_other(&self) -> bool {
        self.old_digest.as_ref() != Some(&self.digest)
    }

    /// Returns the digest that ran before, if it is another one.
    pub(in crate::service) fn left(&self) -> Option<&Digest> {
        self.old_digest.as_ref().filter(|old| **old != self.digest)
    }

    /// Returns the reference that the previous containers were created from.
    fn old_reference(&self) -> &Reference {
        self.from.as_ref().unwrap_or(&self.reference)
    }

    pub(in crate::service) fn source(&self, digest: &Digest) -> Reference {
        self.reference.repository.pinned(digest)
    }
}

/// Returns the tags of all live containers with the images that they must name, so that compose leaves the containers
/// alone; `with_ended`: also those that only containers which do not run are made from, so that compose starts them as they
/// are. A tag whose containers run on different images is left out.
fn sibling_tags(containers: &[Container], with_ended: bool) -> Vec<(Reference, ImageId)> {
    let tags = |is_live: bool| -> Vec<(Reference, ImageId)> {
        containers
            .iter()
            .filter(|c| c.is_live() == is_live)
            .filter_map(|c| Some((Reference::parse(&c.config_image).ok()?, c.image.clone())))
            .filter(|(reference, _)| !reference.is_pinned())
            .collect()
    };
    let mut all = tags(true);
    if with_ended {
        let mut ended = tags(false);
        ended.retain(|(reference, _)| !all.iter().any(|(live, _)| live == reference));
        all.extend(ended);
    }
    all.sort();
    all.dedup();
    let is_only =
        |(reference, _): &&(Reference, ImageId)| all.iter().filter(|(r, _)| r == reference).count() == 1;
    all.iter().filter(is_only).cloned().collect()
}

/// The plan of a deployment. Nothing in it changes once it is journaled, but for containers that the hook before it has made
/// anew: state collected on the way belongs to the [`Deployment`](super::deployment::Deployment).
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
    /// Compose services of which a container has ended by itself with code 0 before, within the time of a probation: jobs, and
    /// workers that live by their restart policy. One that does so again has done its work.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub jobs: BTreeSet<String>,
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
    /// Whether the project ran here before, and nobody asks for the deployment.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ran_before: bool,
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
    /// What is set in the swarm; `None` for a compose project. Then there is neither a project nor containers before.
    #[serde(default, rename = "swarm_plan", skip_serializing_if = "Option::is_none")]
    pub swarm: Option<SwarmPlan>,
}

/// What a deployment changes in the specification of a swarm service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwarmPlan {
    /// Name of the service in the swarm.
    pub service: String,
    /// Image of the specification at the time of planning, as the managers reported it.
    pub from: String,
    /// Image to set.
    pub to: String,
    /// Rollback target.
    pub back: String,
    /// Value that `ForceUpdate` must reach if the tasks are recreated whatever the image.
    pub force: Option<u64>,
    /// IDs of the tasks that existed before and are replaced, or have ended: they say nothing about the update.
    pub known: BTreeSet<String>,
}

impl SwarmPlan {
    /// Reports whether the rollback target is another image than the one to set. A tag without a digest is whatever the
    /// registry has, which is the one to set.
    pub(in crate::service) fn leads_back(&self) -> bool {
        match (Reference::parse(&self.back), Reference::parse(&self.to)) {
            (Ok(back), Ok(to)) => back.digest.is_some() || back.tagged() != to.tagged(),
            _ => true,
        }
    }
}

/// An update that failed for reasons unrelated to its image. It is retried with increasing delays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Postponed {
    /// Digest to deploy.
    pub digest: Digest,
    /// The other digests that have failed and are tried again with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Digest>,
    /// When it may be retried.
    pub until: Timestamp,
    /// How often it was tried.
    pub tries: u32,
    /// Why it failed, if the service shows it until it is retried.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

impl Postponed {
    /// Reports whether it is about the update to these digests. One with a new digest is another update.
    pub(in crate::service) fn is_of(&self, digests: &[&Digest]) -> bool {
        let is_known = |digest: &&Digest| **digest == self.digest || self.others.contains(digest);
        !digests.is_empty() && digests.iter().all(is_known)
    }

    /// Reports whether it is about all that another one is about.
    pub(in crate::service) fn covers(&self, other: &Self) -> bool {
        let digests: Vec<&Digest> = std::iter::once(&other.digest).chain(&other.others).collect();
        self.is_of(&digests)
    }
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
    pub(in crate::service) fn serialize<S: Serializer>(
        model: &Option<Arc<Model>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        model.as_deref().serialize(to)
    }

    pub(in crate::service) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Arc<Model>>, D::Error> {
        Ok(Option::<Model>::deserialize(from)?.map(Arc::new))
    }
}

impl Plan {
    /// A plan that changes nothing yet.
    pub(in crate::service) fn bare(cause: Cause, service: &str, grace: Duration) -> Self {
        Self {
            cause,
            project: None,
            grace,
            image_changes: Vec::new(),
            kept_tags: Vec::new(),
            before: Vec::new(),
            jobs: BTreeSet::new(),
            tag: None,
            kept: Vec::new(),
            starts_project: false,
            pull_missing: false,
            ran_before: false,
            definition: None,
            hooks: None,
            probe: None,
            handover: None,
            snapshot: None,
            service: service.to_owned(),
            swarm: None,
        }
    }

    /// Reports whether what somebody does to the containers before compose runs ends the update. What the hook `before` and a
    /// snapshot do to them can't be told from that.
    pub(in crate::service) fn must_look(&self) -> bool {
        self.cause == Cause::Update
            && self.swarm.is_none()
            && self.snapshot.is_none()
            && !self.has_hook_before()
    }

    /// Reports whether a hook runs before it, which may do anything to the containers.
    pub(in crate::service) fn has_hook_before(&self) -> bool {
        self.hooks.as_ref().is_some_and(|planned| planned.hooks.of(HookEvent::Before).is_some())
    }

    /// Reports whether, according to `containers`, all containers that ran before still run and none was replaced. If none
    /// ran: whether they are the same as before and none was started.
    /// `is_stopped`: whether the deployment itself has stopped a container.
    pub(in crate::service) fn is_untouched(
        &self,
        containers: &[Container],
        is_stopped: impl Fn(&str) -> bool,
    ) -> bool {
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
            |c: &Container| self.before.iter().any(|was| was.id == c.id && (was.live || !c.is_active()));
        containers.len() == self.before.len() && containers.iter().all(is_old)
    }

    /// Returns the containers that ran on a changing image, with the change.
    pub(in crate::service) fn changed_containers(&self) -> impl Iterator<Item = (&Baseline, &ImageChange)> {
        self.before.iter().filter(|was| was.running).filter_map(|was| {
            let reference = was.made_from()?;
            Some((was, self.image_changes.iter().find(|m| m.is_of(&reference))?))
        })
    }

    /// Returns the containers that must run after a rollback: exactly those that ran on the changed images.
    pub(in crate::service) fn expected_old(&self) -> Vec<Expected> {
        self.changed_containers()
            .map(|(was, m)| Expected {
                compose_service: was.compose_service.clone(),
                image: m.old.as_ref().map_or_else(|| was.image.clone(), |old| old.id.clone()),
            })
            .collect()
    }

    /// Reports whether a running container uses the image of this change, a job on it is part of the start of another changed
    /// service, or the whole project is started with it. An image that none uses is only pulled.
    pub(in crate::service) fn is_used(&self, change: &ImageChange) -> bool {
        let is_live = |was: &Baseline| was.live && was.made_from().is_some_and(|r| change.is_of(&r));
        let is_of_project =
            self.cause != Cause::Update || self.starts_project || self.before.iter().any(is_live);
        is_of_project || self.swarm.is_some() || self.runs_job_on(change)
    }

    /// Reports whether a job on the image of this change runs before another changed service is started.
    fn runs_job_on(&self, change: &ImageChange) -> bool {
        let (Some(model), Some(scope)) = (&self.definition, self.scope()) else { return false };
        scope.brings_up(model, |reference| change.is_of(reference))
    }

    /// Returns the tags of other live services with the images that they run on. A deployment that is not about images brings
    /// no other image to those that do not run either: that is for an update to do, which gates may hold.
    pub(in crate::service) fn sibling_tags(&self, containers: &[Container]) -> Vec<(Reference, ImageId)> {
        let is_own = |reference: &Reference| {
            self.image_changes.iter().any(|m| m.is_of(reference))
                || self.kept_tags.iter().any(|(pin, _)| pin == reference)
        };
        let all = sibling_tags(containers, !self.cause.is_about_images());
        all.into_iter().filter(|(reference, _)| !is_own(reference)).collect()
    }

    /// Returns the scope that compose is limited to; `None` for the whole project: if none of it ran, or if a redeploy or
    /// a change of the files covers all of it.
    pub(in crate::service) fn scope(&self) -> Option<Scope> {
        if !self.cause.is_by_image() || !self.before.iter().any(|was| was.live) {
            return None;
        }
        // A kept tag brings another image only if the running one could not be rolled back.
        let is_displaced = |pin: &&(Reference, OldImage)| {
            let made_from = |was: &Baseline| was.made_from().as_ref() == Some(&pin.0);
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
    pub(in crate::service) fn changed_services(&self) -> Vec<String> {
        let mut services: Vec<String> =
            self.changed_containers().map(|(was, _)| was.compose_service.clone()).collect();
        services.sort();
        services.dedup();
        services
    }

    /// Returns all compose services on the changed images, also those of which nothing ran: what was started of them since is
    /// a new image.
    pub(in crate::service) fn services_on_changes(&self) -> Vec<String> {
        let is_changed =
            |reference: &Reference| self.image_changes.iter().any(|change| change.is_of(reference));
        let made = self.before.iter().filter(|was| was.made_from().is_some_and(|r| is_changed(&r)));
        let made = made.map(|was| was.compose_service.clone());
        let defined = self.definition.iter().flat_map(|model| model.services());
        let defined = defined.filter(|service| service.image().is_some_and(|image| is_changed(&image)));
        let all: BTreeSet<String> = made.chain(defined.map(|service| service.name.to_owned())).collect();
        all.into_iter().collect()
    }

    /// Returns the images that must not be removed during the deployment.
    pub(in crate::service) fn old_images(&self) -> Vec<OldImage> {
        let mut images: Vec<OldImage> = self.old_tags().into_iter().map(|(_, old)| old).collect();
        images.sort();
        images.dedup_by(|a, b| a.id == b.id);
        images
    }

    /// Returns the tags with the images that run, for a deployment that has changed no container. An image that runs without
    /// having been proven is no rollback target, but what its tag names.
    pub(in crate::service) fn tags_of_running(&self) -> Vec<(Reference, OldImage)> {
        let running = |tag: &Reference| {
            let made_from = |was: &&Baseline| was.made_from().as_ref() == Some(tag);
            self.before.iter().filter(made_from).find(|was| was.live).map(|was| &was.image)
        };
        let with_running = |(tag, old): (Reference, OldImage)| match running(&tag) {
            Some(image) if *image != old.id => (tag, OldImage { id: image.clone(), source: None }),
            _ => (tag, old),
        };
        self.old_tags().into_iter().map(with_running).collect()
    }

    /// Returns the tags with the images that they pointed to before.
    pub(in crate::service) fn old_tags(&self) -> Vec<(Reference, OldImage)> {
        // Compose gets one tag for all images of the variable, although their tags may have differed.
        let with_tag = |m: &ImageChange| match (&self.tag, &m.from) {
            (Some(tag), Some(from)) => Reference { tag: Some(tag.old.clone()), ..from.clone() },
            _ => m.old_reference().clone(),
        };
        let moved = self.image_changes.iter().filter_map(|m| Some((with_tag(m), m.old.clone()?)));
        moved.chain(self.kept_tags.iter().cloned()).collect()
    }
}

/// What a deployment does with an image.
pub(in crate::service) enum Planned {
    /// Deploys another digest.
    Change(ImageChange),
    /// Keeps the tag on this image.
    Keep(Reference, OldImage),
}

impl Plan {
    /// Reports whether the containers of this compose service are handed over.
    pub(in crate::service) fn hands_over(&self, compose_service: &str) -> bool {
        self.handover.as_ref().is_some_and(|handover| handover.services.contains_key(compose_service))
    }

    /// Reports whether any compose service hands over.
    pub(in crate::service) fn is_handover(&self) -> bool {
        self.handover.as_ref().is_some_and(|handover| !handover.services.is_empty())
    }

    /// Reports whether all changed compose services hand over.
    pub(in crate::service) fn is_whole_handover(&self) -> bool {
        self.is_handover() && self.changed_services().iter().all(|service| self.hands_over(service))
    }

    /// The containers that hand over.
    pub(in crate::service) fn old_containers(&self) -> impl Iterator<Item = &Baseline> {
        let left = self.handover.as_ref().map(|handover| handover.left.as_slice()).unwrap_or_default();
        let is_old = move |was: &&Baseline| {
            was.running && self.hands_over(&was.compose_service) && !left.contains(&was.id)
        };
        self.before.iter().filter(is_old)
    }

    pub(in crate::service) fn old_ids(&self) -> Vec<String> {
        self.old_containers().map(|was| was.id.clone()).collect()
    }

    pub(in crate::service) fn drain(&self) -> Drain {
        self.handover.as_ref().map(|handover| handover.drain.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_kept_on_the_image_of_its_containers_and_those_that_run_come_first() {
        let on = |image: &str, id: &str, state: State| Container {
            image: ImageId(id.into()),
            state,
            ..Container::running("one", image)
        };
        let (up, down) = (State::Running, State::Exited);
        let containers = [
            on("web:1", "new", up),
            on("web:1", "old", down),
            on("db:1", "old", down),
            on("job:1", "one", down),
            on("job:1", "two", down),
        ];
        let tag = |image: &str, id: &str| (Reference::parse(image).unwrap(), ImageId(id.into()));
        assert_eq!(sibling_tags(&containers, false), [tag("web:1", "new")]);
        assert_eq!(sibling_tags(&containers, true), [tag("db:1", "old"), tag("web:1", "new")]);
    }
}
