//! What a rollout is about, as a value that is journaled before every step (DECISIONS 4).

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::image::{Digest, ImageId, Reference};
use crate::model::{Container, Project, State, UpMode};
use crate::service::Service;
use crate::service::action::{DisplacedTag, OldImage};
use crate::service::compare::{self, Comparison};
use crate::service::input::{ImageView, Observation};
use crate::service::scope::Scope;

use super::probation::{Baseline, Expected};
use super::step::Phase;

/// Why a deployment was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A new digest in the registry.
    Update,
    /// A person asked.
    Redeploy,
    /// The compose files changed (`compose_watch`).
    #[serde(alias = "drift")]
    ComposeChanged,
    /// Nothing ran (`auto_start`).
    Start,
    /// Containers were stuck half-made (`auto_start`).
    #[serde(alias = "unstick")]
    ForceUp {
        /// Whether the project is taken down first.
        down: bool,
    },
    /// A person asked for a check after a rollback had failed.
    #[serde(alias = "way_back")]
    RetryRollback,
    /// A container can't be healed by a restart (`auto_heal`).
    #[serde(alias = "renew")]
    RecreateContainer {
        /// Its name.
        container: String,
    },
}

impl Cause {
    /// Whether new images are fetched and proven. The others only let compose bring the project up.
    pub fn is_about_images(&self) -> bool {
        matches!(self, Cause::Update | Cause::Redeploy | Cause::RetryRollback)
    }
}

/// One image of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageChange {
    /// As configured.
    #[serde(alias = "text")]
    pub configured: String,
    /// Normal form.
    pub reference: Reference,
    /// Digest that ran before, where it is known.
    pub old_digest: Option<Digest>,
    /// Image that ran before (or that the tag named, when nothing ran): what a rollback leads to.
    pub old: Option<OldImage>,
    /// Digest that is deployed.
    pub digest: Digest,
    /// ID of the new image, known from the pull on.
    pub new_id: Option<ImageId>,
}

impl ImageChange {
    /// Whether the content that runs becomes another one.
    pub fn changes(&self) -> bool {
        match (&self.new_id, &self.old) {
            (Some(new), Some(old)) => *new != old.id,
            _ => self.old_digest.as_ref() != Some(&self.digest),
        }
    }

    pub(in crate::service) fn source(&self, digest: &Digest) -> Reference {
        Reference { repository: self.reference.repository.clone(), tag: None, digest: Some(digest.clone()) }
    }

    pub(super) fn target(&self) -> Option<(Reference, OldImage)> {
        let id = self.new_id.clone()?;
        Some((self.reference.clone(), OldImage { id, source: Some(self.source(&self.digest)) }))
    }
}

/// The tags of what runs, and the images that they must name so that compose leaves it alone. A tag that is run on
/// different images says nothing.
pub(in crate::service) fn sibling_tags(containers: &[Container]) -> Vec<(Reference, ImageId)> {
    let mut all: Vec<(Reference, ImageId)> = containers
        .iter()
        .filter(|c| c.is_live())
        .filter_map(|c| Some((Reference::parse(&c.config_image).ok()?, c.image.clone())))
        .filter(|(reference, _)| !reference.is_pinned())
        .collect();
    all.sort();
    all.dedup();
    let alone =
        |(reference, _): &&(Reference, ImageId)| all.iter().filter(|(r, _)| r == reference).count() == 1;
    all.iter().filter(alone).cloned().collect()
}

/// A deployment under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Deployment {
    /// Why.
    pub cause: Cause,
    /// The project that it is about, whatever the configuration says by now. Journals of older versions do not name
    /// it: they mean the configured one.
    #[serde(default)]
    pub project: Option<Project>,
    /// `health_grace` when it was begun, in case that its service is configured no more.
    #[serde(default)]
    pub grace: Duration,
    /// When it was begun.
    pub begun: Timestamp,
    /// What it changes.
    #[serde(alias = "moves")]
    pub image_changes: Vec<ImageChange>,
    /// Tags that must keep naming what runs, since their images are blocked.
    #[serde(alias = "pins")]
    pub kept_tags: Vec<(Reference, OldImage)>,
    /// Images that other containers of the project run on. Where their tag has moved, it names these while compose is
    /// at work, so that it leaves them alone.
    #[serde(default, alias = "others")]
    pub sibling_tags: Vec<(Reference, ImageId)>,
    /// Those of them that name another image, see [`DisplacedTag`]; `None` until they were read. In the journal before any
    /// tag is moved, so that all are put back whatever happens in between.
    #[serde(default)]
    pub displaced: Option<Vec<DisplacedTag>>,
    /// The containers before.
    pub before: Vec<Baseline>,
    /// What compose does with containers that need no change, and with other services.
    #[serde(alias = "recreate")]
    pub up_mode: UpMode,
    /// Where it stands.
    pub phase: Phase,
    /// When this phase began.
    pub since: Timestamp,
    /// How often this phase was begun again because the engine was away.
    pub attempt: u32,
    /// Names of containers that compose recreated although it was not told to.
    #[serde(default)]
    pub also_recreated: Vec<String>,
}

impl Deployment {
    /// Whether any image changes, so that there is something to block and to roll back.
    pub fn changes(&self) -> bool {
        self.image_changes.iter().any(ImageChange::changes)
    }

    /// Whether there is an earlier image to roll back to.
    pub(super) fn can_roll_back(&self) -> bool {
        self.image_changes.iter().any(|m| m.changes() && m.old.is_some())
    }

    /// Whether the containers that ran before all still run, as `containers` shows them. Where none ran, whether they
    /// are the same as before, and none was started.
    pub(super) fn is_untouched(&self, containers: &[Container]) -> bool {
        if self.before.iter().any(|was| was.running) {
            let runs =
                |was: &Baseline| containers.iter().any(|c| c.id == was.id && c.state == State::Running);
            return self.before.iter().filter(|was| was.running).all(runs);
        }
        let is_old =
            |c: &Container| self.before.iter().any(|was| was.id == c.id && (was.live || !c.is_live()));
        containers.len() == self.before.len() && containers.iter().all(is_old)
    }

    /// The containers that ran on an image that changes, with that.
    fn changed_containers(&self) -> impl Iterator<Item = (&Baseline, &ImageChange)> {
        self.before.iter().filter(|was| was.running).filter_map(|was| {
            let reference = Reference::parse(&was.config_image).ok()?;
            Some((was, self.image_changes.iter().find(|m| m.reference == reference)?))
        })
    }

    /// IDs of containers on a changed image that a successful compose has left as they were: their service is no longer
    /// in the files, or in a profile that is off.
    pub(super) fn left_behind(&self, containers: &[Container]) -> Vec<String> {
        let is_left = |was: &Baseline, m: &ImageChange| {
            m.new_id.as_ref() != Some(&was.image)
                && containers.iter().any(|c| c.id == was.id && c.image == was.image)
        };
        self.changed_containers().filter(|(was, m)| is_left(was, m)).map(|(was, _)| was.id.clone()).collect()
    }

    /// What must run in the end of a good deployment, where compose left `left_behind` alone.
    pub(super) fn expected_new(&self, left_behind: &[String]) -> Vec<Expected> {
        self.changed_containers()
            .filter(|(was, _)| !left_behind.contains(&was.id))
            .filter_map(|(was, m)| {
                Some(Expected { compose_service: was.compose_service.clone(), image: m.new_id.clone()? })
            })
            .collect()
    }

    /// What must run in the end of a rollback: of the changed images, exactly what ran.
    pub(super) fn expected_old(&self) -> Vec<Expected> {
        self.changed_containers()
            .map(|(was, m)| Expected {
                compose_service: was.compose_service.clone(),
                image: m.old.as_ref().map_or_else(|| was.image.clone(), |old| old.id.clone()),
            })
            .collect()
    }

    /// Notes what the other services run on.
    pub(in crate::service) fn refresh_sibling_tags(&mut self, containers: &[Container]) {
        let is_own = |reference: &Reference| {
            self.image_changes.iter().any(|m| m.reference == *reference)
                || self.kept_tags.iter().any(|(pin, _)| pin == reference)
        };
        self.sibling_tags =
            sibling_tags(containers).into_iter().filter(|(reference, _)| !is_own(reference)).collect();
        self.displaced = None;
    }

    /// What compose is to keep to; `None` where it is given the whole project: nothing of it ran, or a person or a
    /// change of the files asked for all of it.
    pub(in crate::service) fn scope(&self) -> Option<Scope> {
        let by_image = matches!(self.cause, Cause::Update | Cause::RetryRollback);
        if !by_image || self.up_mode != UpMode::Changed || !self.before.iter().any(|was| was.live) {
            return None;
        }
        // A kept tag brings another image only where the one that runs could not be rolled back.
        let leaves = |pin: &&(Reference, OldImage)| {
            let made_from = |was: &Baseline| Reference::parse(&was.config_image).is_ok_and(|r| r == pin.0);
            self.before.iter().any(|was| was.image != pin.1.id && made_from(was))
        };
        let kept_tags = self.kept_tags.iter().filter(leaves).map(|(pin, _)| pin);
        let images: Vec<Reference> =
            self.image_changes.iter().map(|m| &m.reference).chain(kept_tags).cloned().collect();
        (!images.is_empty()).then(|| Scope { images, before: self.before.clone() })
    }

    /// Notes what compose recreated besides `named`, the compose services that it was told to keep to.
    pub(super) fn note_recreated(&mut self, named: &[String], containers: &[Container]) {
        if named.is_empty() {
            return;
        }
        let is_new = |c: &&Container| {
            self.before.iter().all(|was| was.id != c.id)
                && self.before.iter().any(|was| was.compose_service == c.compose_service)
                && !named.contains(&c.compose_service)
        };
        let names = containers.iter().filter(is_new).map(|c| c.name.clone());
        let names: Vec<String> = names.filter(|name| !self.also_recreated.contains(name)).collect();
        self.also_recreated.extend(names);
    }

    /// Has compose bring up only what was on the changed images: what keeps it from bringing up the whole project need
    /// not keep it from that.
    pub(super) fn bring_up_alone(&mut self) {
        let mut services: Vec<String> =
            self.changed_containers().map(|(was, _)| was.compose_service.clone()).collect();
        services.sort();
        services.dedup();
        if !services.is_empty() {
            self.up_mode = UpMode::Services(services);
        }
    }

    /// Images that must not be removed meanwhile.
    pub(super) fn old_images(&self) -> Vec<OldImage> {
        let mut images: Vec<OldImage> = self
            .image_changes
            .iter()
            .filter_map(|m| m.old.clone())
            .chain(self.kept_tags.iter().map(|(_, old)| old.clone()))
            .collect();
        images.sort();
        images.dedup_by(|a, b| a.id == b.id);
        images
    }

    /// Where the tags pointed before.
    pub(super) fn old_tags(&self) -> Vec<(Reference, OldImage)> {
        let moved = self.image_changes.iter().filter_map(|m| Some((m.reference.clone(), m.old.clone()?)));
        moved.chain(self.kept_tags.iter().cloned()).collect()
    }
}

impl Service {
    /// Plans a deployment from what was seen. Whether there is one to do.
    pub(in crate::service) fn begin(&mut self, cause: Cause, now: Timestamp) -> bool {
        let Some(observation) = &self.seen else { return false };
        let (mut image_changes, mut kept_tags) = (Vec::new(), Vec::new());
        for view in &observation.images {
            match self.plan_image(view, observation, &cause) {
                Some(Planned::Change(change)) => image_changes.push(change),
                Some(Planned::Keep(tag, image)) => kept_tags.push((tag, image)),
                None => {}
            }
        }
        for (reference, digest) in &observation.blocked_elsewhere {
            let running = observation
                .containers
                .iter()
                .find(|c| c.state == State::Running && c.is_made_from(reference));
            let own = image_changes.iter().any(|change| change.reference == *reference);
            if let (Some(container), false) = (running, own) {
                tracing::debug!(%reference, %digest, "the tag of a blocked image is kept where it is");
                kept_tags.push((reference.clone(), OldImage { id: container.image.clone(), source: None }));
            }
        }
        if image_changes.is_empty() && cause == Cause::Update {
            return false;
        }
        let up_mode = match &cause {
            Cause::Redeploy => UpMode::All,
            Cause::Start | Cause::ForceUp { .. } if !observation.left_out.is_empty() => UpMode::StartOnly,
            _ => UpMode::Changed,
        };
        self.durable.rollback_failed = false;
        let mut deployment = Deployment {
            project: self.config.project(),
            grace: self.config.health_grace,
            begun: now,
            image_changes,
            kept_tags,
            sibling_tags: Vec::new(),
            displaced: None,
            before: Baseline::all(&observation.containers),
            up_mode,
            phase: if cause.is_about_images() { Phase::PinImages } else { Phase::Start },
            cause,
            since: now,
            attempt: 0,
            also_recreated: Vec::new(),
        };
        deployment.refresh_sibling_tags(&observation.containers);
        // Compose applies whatever the files say now, so that is what counts as deployed; an edit that an update
        // leaves alone is still to be applied.
        let whole = deployment.up_mode != UpMode::StartOnly && deployment.scope().is_none();
        if let Some(hash) = self.files_seen.clone().filter(|_| whole) {
            self.durable.files_hash = Some(hash);
            self.durable.files_pending =
                deployment.cause == Cause::ComposeChanged || self.durable.files_pending;
        }
        self.durable.deployment = Some(deployment);
        true
    }

    /// What becomes of an image.
    fn plan_image(&self, view: &ImageView, observation: &Observation, cause: &Cause) -> Option<Planned> {
        let old = view.running.first().or(view.tagged.as_ref());
        let unproven = self.durable.unproven.get(&view.configured);
        let proven = self.durable.proven.get(&view.configured);
        // What a rollback leads to: what runs, unless that is known to be unproven.
        let is_unproven = proven.is_some() && old.is_some_and(|old| Some(&old.id) == unproven);
        let old_image =
            if is_unproven { proven.cloned() } else { old.map(|old| compare::old_image(view, old)) };
        let digest = match self.compared(view, observation) {
            Comparison::Stale { remote } => remote,
            Comparison::UpToDate | Comparison::NotFound { .. } if *cause == Cause::Redeploy => {
                view.remote.clone()?
            }
            Comparison::Blocked => {
                // What runs stays. When nothing runs, the tag may name the blocked image itself.
                let kept = if view.running.is_empty() { proven.cloned() } else { old_image };
                return Some(Planned::Keep(view.reference.clone(), kept?));
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
        Some(Planned::Change(ImageChange {
            configured: view.configured.clone(),
            reference: view.reference.clone(),
            old_digest,
            old: old_image,
            digest,
            new_id: None,
        }))
    }
}

/// What a deployment does with an image.
enum Planned {
    /// It brings another digest.
    Change(ImageChange),
    /// The tag must keep naming this image.
    Keep(Reference, OldImage),
}
