//! The life of one deployment, as a value that is journaled before every step (DECISIONS 4).
//!
//! ```text
//! hold ─► pull ─► start ─► probation ──────────────────────────────► release      updated
//!   │       │       │          └──► evidence ─► undo ─► proof ─────► release      rolled_back / rollback_failed
//!   │       │       └─ every old container still runs ─► tags_back ► release      errored
//!   └───────┴──────────────────────────────────────────────────────► release      errored, nothing changed
//! ```
//!
//! Each step may be taken again, so a restart of the agent simply takes the step that the journal names.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::image::{Digest, ImageId, Reference};
use crate::model::{Container, Project, State, UpMode};

use super::action::{DisplacedTag, OldImage, Step};
use super::probation::{Baseline, Expected, Failure, Probation};
use super::scope::Scope;

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
    /// A person asked for a check of what a failed way back had left.
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
    /// Image that ran before (or that the tag named, when nothing ran): the way back.
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

    pub(super) fn source(&self, digest: &Digest) -> Reference {
        Reference { repository: self.reference.repository.clone(), tag: None, digest: Some(digest.clone()) }
    }

    fn target(&self) -> Option<(Reference, OldImage)> {
        let id = self.new_id.clone()?;
        Some((self.reference.clone(), OldImage { id, source: Some(self.source(&self.digest)) }))
    }
}

/// Where a deployment stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "step")]
pub enum Phase {
    /// Old images are being pinned, so that no prune removes them.
    #[serde(alias = "hold")]
    PinImages,
    /// New images are being fetched.
    Pull,
    /// The project is being brought to the new images.
    Start,
    /// The new containers must prove themselves.
    Probation {
        /// What was seen so far.
        #[serde(alias = "trial")]
        probation: Probation,
    },
    /// Compose failed before it touched anything: the tags go back, no container does.
    #[serde(alias = "tags_back")]
    RestoreTags,
    /// It failed. The digests are blocked; what the container wrote last is being read.
    #[serde(alias = "evidence")]
    Diagnose {
        /// Why.
        failure: Failure,
        /// What compose printed.
        output: String,
    },
    /// The old images are being put back.
    #[serde(alias = "undo")]
    Rollback {
        /// Why.
        failure: Failure,
        /// Black box: compose's output, facts, log lines.
        output: String,
    },
    /// The old containers must prove themselves.
    #[serde(alias = "proof")]
    VerifyRollback {
        /// Why.
        failure: Failure,
        /// Black box.
        output: String,
        /// What was seen so far.
        #[serde(alias = "trial")]
        probation: Probation,
    },
    /// The outcome is decided; the pins are removed.
    #[serde(alias = "release")]
    Unpin,
}

impl Phase {
    /// Name of the step in the journal and in the log.
    pub fn name(&self) -> &'static str {
        match self {
            Phase::PinImages => "pin_images",
            Phase::Pull => "pull",
            Phase::Start => "start",
            Phase::Probation { .. } => "probation",
            Phase::RestoreTags => "restore_tags",
            Phase::Diagnose { .. } => "diagnose",
            Phase::Rollback { .. } => "rollback",
            Phase::VerifyRollback { .. } => "verify_rollback",
            Phase::Unpin => "unpin",
        }
    }

    /// The trial under way, if this phase is one.
    pub(super) fn probation_mut(&mut self) -> Option<&mut Probation> {
        match self {
            Phase::Probation { probation } | Phase::VerifyRollback { probation, .. } => Some(probation),
            _ => None,
        }
    }
}

/// The tags of what runs, and the images that they must name so that compose leaves it alone. A tag that is run on
/// different images says nothing.
pub(super) fn sibling_tags(containers: &[Container]) -> Vec<(Reference, ImageId)> {
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
    /// Tags that must keep naming what runs: blocked images of the project.
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
    /// How often this phase was begun anew because the world broke off.
    pub attempt: u32,
    /// Names of containers that compose recreated although it was not told to.
    #[serde(default)]
    pub also_recreated: Vec<String>,
}

impl Deployment {
    /// Goes on to another phase.
    pub(super) fn enter(&mut self, phase: Phase, now: Timestamp) {
        self.phase = phase;
        self.since = now;
        self.attempt = 0;
    }

    /// Whether any image changes, so that there is something to block and to go back from.
    pub fn changes(&self) -> bool {
        self.image_changes.iter().any(ImageChange::changes)
    }

    /// Whether there is an earlier image to go back to.
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

    /// What ran and is moved, with the move.
    fn moved(&self) -> impl Iterator<Item = (&Baseline, &ImageChange)> {
        self.before.iter().filter(|was| was.running).filter_map(|was| {
            let reference = Reference::parse(&was.config_image).ok()?;
            Some((was, self.image_changes.iter().find(|m| m.reference == reference)?))
        })
    }

    /// IDs of containers on a moved image that compose has left as they were although it was content: they are of a
    /// service that the files no longer name, or of a profile that is off.
    pub(super) fn left_behind(&self, containers: &[Container]) -> Vec<String> {
        let is_left = |was: &Baseline, m: &ImageChange| {
            m.new_id.as_ref() != Some(&was.image)
                && containers.iter().any(|c| c.id == was.id && c.image == was.image)
        };
        self.moved().filter(|(was, m)| is_left(was, m)).map(|(was, _)| was.id.clone()).collect()
    }

    /// What must run in the end of a good deployment, where compose left `left_behind` alone.
    pub(super) fn expected_new(&self, left_behind: &[String]) -> Vec<Expected> {
        self.moved()
            .filter(|(was, _)| !left_behind.contains(&was.id))
            .filter_map(|(was, m)| {
                Some(Expected { compose_service: was.compose_service.clone(), image: m.new_id.clone()? })
            })
            .collect()
    }

    /// What must run in the end of the way back: of the moved images, exactly what ran.
    pub(super) fn expected_old(&self) -> Vec<Expected> {
        self.moved()
            .map(|(was, m)| Expected {
                compose_service: was.compose_service.clone(),
                image: m.old.as_ref().map_or_else(|| was.image.clone(), |old| old.id.clone()),
            })
            .collect()
    }

    /// Notes what the other services run on.
    pub(super) fn refresh_sibling_tags(&mut self, containers: &[Container]) {
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
    pub(super) fn scope(&self) -> Option<Scope> {
        let by_image = matches!(self.cause, Cause::Update | Cause::RetryRollback);
        if !by_image || self.up_mode != UpMode::Changed || !self.before.iter().any(|was| was.live) {
            return None;
        }
        // A pinned image changes only on the way back from one that could not be undone.
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

    /// The end of a sentence about what was deployed: what compose recreated beyond it, if anything.
    pub(super) fn and_recreated(&self) -> String {
        match &self.also_recreated[..] {
            [] => String::new(),
            names => format!("; compose also recreated {}, which this did not need", names.join(", ")),
        }
    }

    /// Has compose bring up only what was on the moved images: what keeps it from bringing up the whole project need
    /// not keep it from that.
    pub(super) fn bring_up_alone(&mut self) {
        let mut services: Vec<String> = self.moved().map(|(was, _)| was.compose_service.clone()).collect();
        services.sort();
        services.dedup();
        if !services.is_empty() {
            self.up_mode = UpMode::Services(services);
        }
    }

    fn old_images(&self) -> Vec<OldImage> {
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

    fn tags_back(&self) -> Vec<(Reference, OldImage)> {
        let moved = self.image_changes.iter().filter_map(|m| Some((m.reference.clone(), m.old.clone()?)));
        moved.chain(self.kept_tags.iter().cloned()).collect()
    }

    /// The step that this phase consists of; `None` where it consists of looking.
    pub(super) fn step(&self, project: &Project) -> Option<Step> {
        let displaced = self.displaced.clone().unwrap_or_default();
        Some(match &self.phase {
            Phase::Start | Phase::Rollback { .. }
                if self.displaced.is_none() && !self.sibling_tags.is_empty() =>
            {
                Step::ReadTags { sibling_tags: self.sibling_tags.clone() }
            }
            Phase::PinImages => Step::PinImages { project: project.name.clone(), images: self.old_images() },
            Phase::Pull => Step::Pull {
                images: self
                    .image_changes
                    .iter()
                    .map(|m| (m.configured.clone(), m.source(&m.digest)))
                    .collect(),
            },
            Phase::Start => Step::Start {
                tags: self
                    .image_changes
                    .iter()
                    .filter_map(ImageChange::target)
                    .chain(self.kept_tags.iter().cloned())
                    .collect(),
                displaced,
                project: project.clone(),
                down: self.cause == Cause::ForceUp { down: true },
                up_mode: self.up_mode.clone(),
                scope: self.scope(),
            },
            Phase::Rollback { .. } => Step::Start {
                tags: self.tags_back(),
                displaced,
                project: project.clone(),
                down: false,
                up_mode: self.up_mode.clone(),
                scope: self.scope(),
            },
            Phase::RestoreTags => Step::RestoreTags { tags: self.tags_back() },
            Phase::Diagnose { failure, .. } => Step::Diagnose { container: failure.container_id.clone() },
            Phase::Unpin => Step::Unpin {
                project: project.name.clone(),
                displaced,
                onto: self.image_changes.iter().find_map(|m| m.new_id.clone()),
            },
            Phase::Probation { .. } | Phase::VerifyRollback { .. } => return None,
        })
    }
}
