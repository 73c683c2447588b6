//! What a decision says happened: facts as typed values. `wording.rs` makes the sentences; totals and metrics are folds
//! over these (`outcome.rs`).

use std::path::PathBuf;
use std::time::Duration;

use evenkeel_common::wire::{AuditEntry, Gate, KeptImage};
use jiff::Timestamp;

use crate::model::image::{Digest, LabelChange, Reference};
use crate::model::{Container, Manager, State};

use super::boot::StartReason;
use super::outcome::{DeployOutcome, Ended};
use super::rollout::plan::{Cause, ImageChange};
use super::rollout::probation::{Failure, Interference};
use super::rollout::tag::TagChange;
use super::{Service, wording};

/// Something that happened to a service, or that was decided about it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Event {
    /// A deployment that was under way when the agent stopped goes on.
    Resumed { image_changes: Vec<ImageChange>, step: &'static str, reason: StartReason },
    /// A person asked for a check.
    ManualTrigger,
    /// The check that a person asked for is done, and nothing follows from it.
    Checked { has_blocked: bool, has_not_found: bool, waits: Option<String> },
    /// The check that a person asked for failed.
    TriggerFailed { why: String },
    /// The registry has a digest that a gate holds back.
    UpdateAvailable { image: String, digest: Digest, old_digest: Option<Digest>, gate: Gate },
    /// A person approved a digest.
    Approved { image: String, digest: Digest },
    /// There is no local digest to compare the registry's with.
    NotFound { image: String, remote: Digest, is_here: bool },
    /// Blocked digests may be deployed again.
    Unblocked(Unblock),
    /// There is a persistent fault, or another one than before.
    Faulted { fault: Fault, output: String },
    /// The persistent fault is over.
    Recovered { fault: Option<Fault> },
    /// An image of a deployment has another digest now, and is proven.
    Updated(Updated),
    /// A redeployment is proven.
    Redeployed { kept: Vec<KeptImage> },
    /// A redeployment failed.
    RedeployFailed { why: String, container: String, output: String },
    /// New images failed, and what ran before runs again.
    RolledBack { failed: FailedDeployment, remaining: Option<String>, also_recreated: Vec<String> },
    /// New images failed, and what ran before does not run again.
    RollbackFailed { failed: FailedDeployment, why: RollbackProblem, containers: Vec<ContainerSummary> },
    /// A rollback that had failed was tried again, and is proven.
    RollbackRetried,
    /// A rollback that had failed was tried again, and failed again.
    RollbackRetryFailed { failure: Failure, output: String },
    /// Compose brought the project up, without any image to prove.
    BroughtUp { cause: Cause },
    /// A deployment is decided, one way or the other.
    DeployEnded { outcome: DeployOutcome, cause: Cause, begun: Timestamp, updated: bool },
    /// A container is down or unhealthy.
    Unwell { container: String, ended: bool, problem: String },
    /// An unwell container is healthy again without a restart by the agent.
    Healthy { container: String },
    /// A container is being restarted, or recreated.
    Restarting { container: String, recreates: bool, problem: Option<String> },
    /// The engine went away before it restarted a container.
    RestartUnanswered,
    /// The restart of a container helped.
    Restarted { container: String },
    /// The restart of a container did not help.
    RestartFailed { container: String, failures: u32, limit: u32, relapsed: bool, problem: Option<String> },
    /// The healer gives up on a container.
    Exhausted { container: String, failures: u32, problem: Option<String> },
    /// The registry has a newer tag than the configured one.
    NewerTag { image: String, tag: String },
    /// The line with the tag was not put back: somebody has changed it, or it could not be written.
    TagLineLeft { tag: TagChange, why: Option<String> },
    /// A rollback would fail now, or for another reason than before.
    WayBackAtRisk { risk: String },
    /// A rollback would succeed again; what stood in its way.
    WayBackOk { risk: String },
    /// The containers use too much.
    ResourceAlert(ResourceAlert),
}

/// What a decision tells the agent's own log: nothing happened that needs an audit entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Note {
    /// A step could not be done because the engine was away.
    StepRetried { step: &'static str, failure: String },
    /// The deployment under way has lost its compose project.
    DeploymentDropped,
    /// Somebody else keeps a container.
    Managed { container: String, manager: Manager },
    /// A container ended by a signal, and nothing tells why.
    UnknownCause { container: String, exit_code: i64 },
}

/// A persistent fault (spec 2.6, errored map). Two are the same when their texts are (`wording.rs` makes these).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) text: String,
    /// A check that succeeds proves that a fault of an earlier check is over, but not that a deploy works.
    pub(super) from_check: bool,
}

/// What [`Fault`] texts are made of, apart from those of other programs.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum FaultCause<'a> {
    /// Old images are gone, so that no rollback would be possible.
    OldImagesGone { images: &'a [String] },
    /// `compose up` failed.
    ComposeUp { cause: &'a str },
    /// Somebody stopped, removed or replaced containers on probation.
    ProbationInterrupted { images: &'a str, how: &'a Interference },
    /// No container is made from a configured image.
    ImagesUnused { configured: &'a [Reference], used: &'a [&'a str] },
    /// Containers were made with compose files that are not configured.
    FilesUnlisted { files: &'a [PathBuf] },
}

/// Why a block is gone.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Unblock {
    /// A person asked for it. Images as configured, with their blocked digests.
    Manual { blocked: Vec<(String, Digest)> },
    /// What runs is what the registry has again.
    UpToDate { image: String, blocked: Digest, remote: Option<Digest> },
    /// The registry has another digest than the blocked one.
    NewDigest { image: String, blocked: Digest, remote: Digest },
}

/// One image whose deployment is proven.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Updated {
    pub(super) change: ImageChange,
    /// Whether the new digest is of the image that ran before.
    pub(super) is_same: bool,
    /// What the images say of themselves.
    pub(super) labels: LabelChange,
    /// Whether any container of the project runs on it.
    pub(super) used: bool,
    /// Time since the new digest was found.
    pub(super) took: Duration,
    /// Containers that compose recreated without need.
    pub(super) also_recreated: Vec<String>,
    /// Containers that compose leaves on the old image.
    pub(super) left_behind: Vec<String>,
}

/// What is known of new images that were not kept.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FailedDeployment {
    /// The images that changed, as configured, in words.
    pub(super) images: String,
    /// The one that is to blame.
    pub(super) image: Option<Reference>,
    /// Its digests before and after.
    pub(super) digests: Option<(Option<Digest>, Digest)>,
    pub(super) failure: Failure,
    /// Compose's output and the last log lines.
    pub(super) output: String,
}

/// Why there is no rollback.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RollbackProblem {
    /// There is no earlier image.
    NoOldImage,
    /// The old images failed their probation, too.
    NotProven(Failure),
    /// A step failed as often as it is tried.
    Step(String),
}

/// A container in one line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ContainerSummary {
    pub(super) name: String,
    pub(super) state: State,
    pub(super) image: String,
}

impl ContainerSummary {
    pub(super) fn of(container: &Container) -> Self {
        let Container { name, state, config_image, .. } = container;
        Self { name: name.clone(), state: *state, image: config_image.clone() }
    }
}

/// A resource, and how much of it is used.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ResourceAlert {
    /// Its name.
    pub(super) resource: &'static str,
    /// The container it is about; `None` for the service as a whole.
    pub(super) container: Option<String>,
    pub(super) percent: f64,
    pub(super) threshold: f64,
    /// For the service as a whole: the container with the largest share, and that.
    pub(super) largest: Option<(String, f64)>,
}

impl Event {
    /// The image that it is about, in normal form; `of` knows that of an image as configured.
    pub(super) fn image(&self, of: impl FnOnce(&str) -> Option<Reference>) -> Option<Reference> {
        match self {
            Event::Updated(updated) => Some(updated.change.reference.clone()),
            Event::RolledBack { failed, .. } | Event::RollbackFailed { failed, .. } => failed.image.clone(),
            Event::UpdateAvailable { image, .. }
            | Event::Approved { image, .. }
            | Event::NotFound { image, .. }
            | Event::NewerTag { image, .. }
            | Event::Unblocked(Unblock::UpToDate { image, .. } | Unblock::NewDigest { image, .. }) => {
                of(image)
            }
            _ => None,
        }
    }
}

impl Service {
    /// Something happened: it is counted now, and told once the decision is durable.
    pub(super) fn emit(&mut self, event: Event, now: Timestamp) {
        self.durable.totals.fold(&event);
        self.ended = Ended::of(&event).or(self.ended);
        self.note_verdict(&event);
        self.events.push((now, event));
    }

    /// Shows, changes or clears the persistent fault; the same text again is no news (spec 2.6).
    pub(super) fn set_fault(&mut self, fault: Option<Fault>, now: Timestamp) {
        self.raise_fault(fault, String::new(), now);
    }

    /// The same, with what a program printed about it. A service that is not polled only tells of it: no check would ever
    /// find that it is over.
    pub(super) fn raise_fault(&mut self, fault: Option<Fault>, output: String, now: Timestamp) {
        if let (Some(fault), false) = (&fault, self.can_check()) {
            self.emit(Event::Faulted { fault: fault.clone(), output }, now);
            return;
        }
        let before = std::mem::replace(&mut self.fault, fault);
        let text = |fault: &Option<Fault>| fault.as_ref().map(|fault| fault.text.clone());
        if text(&before) == text(&self.fault) {
            return;
        }
        let event = match self.fault.clone() {
            Some(fault) => Event::Faulted { fault, output },
            None => Event::Recovered { fault: before },
        };
        self.emit(event, now);
    }

    /// A deployment is decided. What is left to tidy up then does not count.
    pub(super) fn end(&mut self, outcome: DeployOutcome, updated: bool, now: Timestamp) {
        let Some(deployment) = &self.durable.deployment else { return };
        let (cause, begun) = (deployment.plan().cause.clone(), deployment.begun);
        self.emit(Event::DeployEnded { outcome, cause, begun, updated }, now);
    }

    /// Entries of what was decided since this was asked last, to be recorded once that is durable.
    pub fn take_unsaid(&mut self) -> Vec<AuditEntry> {
        let events = std::mem::take(&mut self.events);
        let Self { config, .. } = self;
        let reference = |name: &str| {
            let image = config.images.iter().find(|image| image.configured == name)?;
            Some(image.reference.clone())
        };
        let entry = |(at, event): (Timestamp, Event)| {
            let image = event.image(reference).map(|image| image.to_string());
            Some(AuditEntry { image, ..wording::entry(config, at, event)? })
        };
        events.into_iter().filter_map(entry).collect()
    }

    /// Lines for the log about what was decided since this was asked last.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes).iter().map(wording::note).collect()
    }

    /// The deployment that was decided since this was asked last, to be counted once that is durable.
    pub fn take_ended(&mut self) -> Option<Ended> {
        self.ended.take()
    }
}
