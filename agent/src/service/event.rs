//! Events: the results of a decision as typed values. `wording/` turns them into text; totals and metrics are folds over
//! them (`outcome.rs`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_common::wire::{DeployOutcome, Gate, KeptImage};
use jiff::Timestamp;

use crate::model::image::{Digest, Reference};
use crate::model::image_config::{ConfigChange, ConfigDifference};
use crate::model::{Container, HookEvent, Manager, Need, Obstacle, State};
use crate::service::boot::StartReason;
use crate::service::health::assess::Trouble;
use crate::service::input::NotStarted;
use crate::service::rollout::plan::{Cause, GoBack, GoBackReason, ImageChange};
use crate::service::rollout::probation::{Failure, Interference, Reason};
use crate::service::rollout::snapshot::DataBack;
use crate::service::rollout::tag::TagChange;
use crate::service::upkeep::maintenance::NotNewer;

/// What is on this machine of an image that can't be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum Local {
    /// An image without a registry digest.
    WithoutDigest,
    /// Nothing.
    Absent,
    /// Containers of the project run a digest that the compose files name.
    PinnedByCompose,
}

/// The end of a deployment of earlier images.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::service) struct GoBackEnd {
    pub(in crate::service) back: GoBack,
    pub(in crate::service) result: GoBackResult,
}

/// How a deployment of earlier images ended.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::service) enum GoBackResult {
    /// They are proven again, and what was left is blocked.
    Proven { changes: Vec<ImageChange>, data: Option<DataBack> },
    /// It did not begin, or changed nothing.
    NotBegun {
        why: String,
        output: String,
        /// The images that were to be left, with their digests.
        left: Vec<(Reference, Digest)>,
    },
    /// They failed their probation, and the images that ran before run again.
    Undone { failure: Box<Failure>, output: String, remaining: Option<Reason>, data: Option<DataBack> },
}

impl GoBackEnd {
    /// The images that failed after their update, with their digests. A person's way back says nothing about an image.
    pub(in crate::service) fn failed(&self) -> Vec<(&Reference, &Digest)> {
        match &self.result {
            _ if self.back.why == GoBackReason::ByHand => Vec::new(),
            GoBackResult::Proven { changes, .. } => {
                changes.iter().filter_map(|change| Some((&change.reference, change.left()?))).collect()
            }
            GoBackResult::NotBegun { left, .. } => {
                left.iter().map(|(image, digest)| (image, digest)).collect()
            }
            GoBackResult::Undone { .. } => Vec::new(),
        }
    }
}

/// Something that happened to a service, or that was decided about it.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::service) enum Event {
    /// A deployment that was in progress when the agent stopped is resumed.
    Resumed { image_changes: Vec<ImageChange>, step: &'static str, reason: StartReason },
    /// A user requested a check.
    ManualTrigger,
    /// A manual check is done, and there is nothing to do.
    Checked { has_blocked: bool, has_not_found: bool, waits: Option<String> },
    /// A manual check failed.
    TriggerFailed { why: String },
    /// The registry has a digest that a gate holds.
    UpdateAvailable {
        image: String,
        digest: Digest,
        old_digest: Option<Digest>,
        gate: Gate,
        /// How its configuration differs from that of the running image.
        differences: Vec<ConfigDifference>,
    },
    /// A user approved a digest.
    Approved { image: String, digest: Digest },
    /// There is no local digest to compare the registry's with.
    NotFound { image: String, remote: Digest, local: Local },
    /// Blocked digests may be deployed again.
    Unblocked(Unblock),
    /// There is a new persistent fault, or a different one than before.
    Faulted { fault: Fault, output: String },
    /// The persistent fault is resolved.
    Recovered { fault: Option<Fault> },
    /// An image was updated and passed its probation.
    Updated(Updated),
    /// A redeployment passed its probation.
    Redeployed {
        kept: Vec<KeptImage>,
        /// Tags of other services that name another image than these run.
        held_back: Vec<Reference>,
    },
    /// A redeployment failed.
    RedeployFailed { why: String, container: String, output: String },
    /// New images failed, and the previous images run again.
    RolledBack {
        failed: FailedDeployment,
        remaining: Option<Reason>,
        also_recreated: Vec<String>,
        /// Whether the old containers have served all the time.
        is_uninterrupted: bool,
        /// What went wrong on the way without stopping it, in words.
        problems: Vec<String>,
        /// The data that was put back with the images, if any.
        data: Option<DataBack>,
    },
    /// New images failed, and so did the rollback.
    RollbackFailed(RollbackFailed),
    /// A deployment of earlier images has ended, or did not begin.
    GoBack(GoBackEnd),
    /// A failed rollback was retried and passed its probation.
    RollbackRetried,
    /// A failed rollback was to be retried, and could not be completed.
    RollbackRetryFailed { failure: Failure, output: String },
    /// Compose brought the project up, with no image on probation.
    BroughtUp { cause: Cause },
    /// The outcome of a deployment is decided.
    DeployEnded { outcome: DeployOutcome, cause: Cause, begun: Timestamp, updated: bool },
    /// A container is down or unhealthy. `no_remedy`: why the healer can do nothing about it, if it can't.
    Unhealthy { container: String, ended: bool, problem: Trouble, no_remedy: Option<NoRemedy> },
    /// A container is healthy again without a restart by the agent.
    Healthy { container: String },
    /// A container is being restarted, or recreated.
    Restarting { container: String, recreates: bool, problem: Option<Trouble> },
    /// The engine became unavailable before it confirmed the restart of a container.
    RestartUnanswered,
    /// The restart of a container helped.
    Restarted { container: String },
    /// The restart of a container did not help.
    RestartFailed { container: String, failures: u32, limit: u32, relapsed: bool, problem: Option<Trouble> },
    /// The healer gives up on a container.
    Exhausted { container: String, failures: u32, problem: Option<Trouble> },
    /// The registry has a newer tag than the configured one.
    NewerTag { image: String, tag: String },
    /// The registry has a tag of another numbering scheme, which would be newer by its numbers.
    NotNewerTag { image: String, tag: String, why: NotNewer },
    /// The line with the tag was not restored: it was changed by someone else, or could not be written.
    TagLineNotRestored { tag: TagChange, why: Option<String> },
    /// A hook that ran after a deployment has failed.
    HookFailed { event: HookEvent, why: String, output: String },
    /// Containers that were stopped for a snapshot don't run again.
    NotStartedAgain { containers: Vec<NotStarted> },
    /// Copies of data that are no longer kept can't be removed.
    CopiesNotRemoved { why: String },
    /// A rollback would fail now, or for a different reason than before.
    WayBackAtRisk { risk: String },
    /// A rollback would succeed again; `risk` is the previous obstacle.
    WayBackOk { risk: String },
    /// Resource usage exceeds its threshold.
    ResourceAlert(ResourceAlert),
}

/// Why the healer can do nothing about a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum NoRemedy {
    /// The container whose network it uses is gone for good.
    CutOff,
    /// It was removed when it ended.
    Removed,
}

/// A message for the agent's own log only; not worth an audit entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::service) enum Note {
    /// A step could not be executed because the engine was unavailable.
    StepRetried { step: &'static str, failure: String },
    /// The deployment in progress no longer has a compose project.
    DeploymentDropped,
    /// A container is managed by another tool.
    Managed { container: String, manager: Manager },
    /// A container was ended by a signal of unknown origin.
    UnknownCause { container: String, exit_code: i64 },
}

/// A persistent fault (spec 2.6, errored map). Two faults are equal if their texts are (from `wording/`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::service) struct Fault {
    pub(in crate::service) text: String,
    /// A successful check resolves the fault of an earlier check, but does not prove that a deployment works.
    pub(in crate::service) from_check: bool,
}

/// The causes of [`Fault`]s whose text does not come from another program.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::service) enum FaultCause<'a> {
    /// Old images are gone, so that no rollback would be possible.
    OldImagesGone { images: &'a [String] },
    /// `compose up` failed.
    ComposeUp { cause: &'a str },
    /// Containers on probation were stopped, removed or replaced from outside.
    ProbationInterrupted { images: &'a str, how: &'a Interference },
    /// Somebody has acted on the containers before compose was to run.
    Outdated { how: &'a Interference },
    /// Another compose run changes the project, and does not end, or one follows another.
    Occupied,
    /// No container was created from a configured image.
    ImagesUnused { configured: &'a [Reference], used: &'a [&'a str] },
    /// Containers were created with compose files that are not configured.
    FilesUnlisted { files: &'a [PathBuf] },
    /// The container was found by its name, and is not of the configured compose project.
    OutsideProject { container: &'a str, is_of: &'a str, project: &'a str },
    /// An update would replace a container that compose must not stop.
    ContainerNeeded { container: &'a str, need: Need },
    /// A file that compose read before is missing, and compose would do without it.
    FileMissing { path: &'a Path },
}

/// Why a block was removed.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::service) enum Unblock {
    /// A user requested it. Images as configured, with their blocked digests.
    Manual { blocked: Vec<(String, Digest)> },
    /// The running image matches the registry again.
    UpToDate { image: String, blocked: Digest, remote: Option<Digest> },
    /// The registry has a different digest than the blocked one.
    NewDigest { image: String, blocked: Digest, remote: Digest },
    /// The images are no longer configured, with their blocked digests.
    NotConfigured { blocked: Vec<(String, Digest)> },
}

/// One image whose deployment passed its probation.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::service) struct Updated {
    pub(in crate::service) change: ImageChange,
    /// Whether the new digest belongs to the image that ran before.
    pub(in crate::service) is_same: bool,
    /// The labels of the old and the new image.
    pub(in crate::service) labels: ConfigChange,
    /// Whether any container of the project runs it.
    pub(in crate::service) used: bool,
    /// Time since the new digest was found.
    pub(in crate::service) took: Duration,
    /// Containers that compose recreated unnecessarily.
    pub(in crate::service) also_recreated: Vec<String>,
    /// Containers that compose leaves on the old image.
    pub(in crate::service) left_behind: Vec<String>,
    /// The compose services that were to hand over, and can't.
    pub(in crate::service) stopped_first: BTreeMap<String, Obstacle>,
    /// What went wrong on the way without stopping it, in words.
    pub(in crate::service) problems: Vec<String>,
}

/// A deployment whose new images failed.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::service) struct FailedDeployment {
    /// The changed images, as configured, for use in a sentence.
    pub(in crate::service) images: String,
    /// The image that caused the failure.
    pub(in crate::service) image: Option<Reference>,
    /// Its digests before and after.
    pub(in crate::service) digests: Option<(Option<Digest>, Digest)>,
    /// The other images that are to blame: all of the deployment, where it can't be told which of them failed.
    pub(in crate::service) others: Vec<(Reference, Digest)>,
    pub(in crate::service) failure: Failure,
    /// Compose's output and the last log lines.
    pub(in crate::service) output: String,
    /// Whether the nodes of a swarm are to blame, and not the image.
    pub(in crate::service) by_node: bool,
}

/// A deployment whose new images failed, and whose rollback did, too.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::service) struct RollbackFailed {
    pub(in crate::service) failed: FailedDeployment,
    /// The digests that it was going back to, if it was no update.
    pub(in crate::service) going_back_to: Option<String>,
    pub(in crate::service) why: RollbackProblem,
    pub(in crate::service) containers: Vec<ContainerSummary>,
    /// The data that was put back before the rollback failed, if any.
    pub(in crate::service) data: Option<DataBack>,
    /// Containers of the images that failed, which must not run on that data, and whether the engine may start each at its own
    /// next start.
    pub(in crate::service) left_stopped: Vec<(String, bool)>,
}

/// Why a rollback was not possible or failed.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::service) enum RollbackProblem {
    /// There is no earlier image.
    NoOldImage,
    /// The old images also failed their probation.
    NotProven(Failure),
    /// A step failed on every attempt.
    Step(String),
}

/// A one-line summary of a container.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::service) struct ContainerSummary {
    pub(in crate::service) name: String,
    pub(in crate::service) state: State,
    pub(in crate::service) image: String,
}

impl ContainerSummary {
    pub(in crate::service) fn of(container: &Container) -> Self {
        let Container { name, state, config_image, .. } = container;
        Self { name: name.clone(), state: *state, image: config_image.clone() }
    }
}

/// A resource whose usage is above its threshold.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::service) struct ResourceAlert {
    /// Its name.
    pub(in crate::service) resource: &'static str,
    /// The container it is about; `None` for the service as a whole.
    pub(in crate::service) container: Option<String>,
    pub(in crate::service) percent: f64,
    pub(in crate::service) threshold: f64,
    /// For the service as a whole: the container with the largest share, and its share in percent.
    pub(in crate::service) largest: Option<(String, f64)>,
}

impl Event {
    /// The image that the event is about, normalized; `of` resolves an image as configured.
    pub(in crate::service) fn image(&self, of: impl FnOnce(&str) -> Option<Reference>) -> Option<Reference> {
        match self {
            Event::Updated(updated) => Some(updated.change.reference.clone()),
            // Entries with an image are verdicts for the fleet, and a person's way back is none.
            Event::GoBack(end) if end.back.why == GoBackReason::ByHand => None,
            Event::GoBack(end) => {
                let failed = end.failed().first().map(|(image, _)| (*image).clone());
                failed.or_else(|| end.back.to.first().map(|to| to.reference.clone()))
            }
            Event::RolledBack { failed, .. } | Event::RollbackFailed(RollbackFailed { failed, .. }) => {
                failed.image.clone()
            }
            Event::UpdateAvailable { image, .. }
            | Event::Approved { image, .. }
            | Event::NotFound { image, .. }
            | Event::NewerTag { image, .. }
            | Event::NotNewerTag { image, .. }
            | Event::Unblocked(Unblock::UpToDate { image, .. } | Unblock::NewDigest { image, .. }) => {
                of(image)
            }
            _ => None,
        }
    }
}
