//! All user-visible text: audit entries, faults, reasons. Decisions emit typed events (`event.rs`).
//!
//! Fault texts are stable: they contain no port, time or ID. A repeated fault is recognised by its text (spec 2.6).

mod container;
mod definition;
pub(super) mod go_back;
pub(super) mod handover;
mod images;
pub(crate) mod snapshot;
pub(super) mod swarm;

use std::path::Path;

use evenkeel_common::wire::{
    AuditEntry, DeployPhase, DeployProgress, Gate, ImageDigest, KeptImage, Kind, Level,
};
use jiff::Timestamp;

use crate::config::ServiceConfig;
use crate::model::image::{Digest, Reference};
use crate::model::image_config::ConfigDifference;
pub(super) use crate::model::text::seconds;
use crate::model::{HookEvent, Need};
use crate::service::boot::StartReason;
use crate::service::event::{
    ContainerSummary, Event, FailedDeployment, Fault, FaultCause, Local, ResourceAlert, RollbackFailed,
    RollbackProblem, Unblock, Updated,
};
use crate::service::input::StepResult;
use crate::service::rollout::plan::{Cause, ImageChange, Plan};
use crate::service::rollout::probation::{Failure, Interference, Reason};
pub(super) use crate::service::wording::container::{
    STOPPED_BY_HAND, interference, managed, no_container, note, probe_names_no_service, probed, rejection,
    removed_while_down, trouble, unhealthy_reason, with_remedy,
};
pub(crate) use crate::service::wording::definition::{
    MOUNT_AGAIN, add_networks, compose_command, keep_or_drop, left_as_it_is, paths, write_down,
};
pub(super) use crate::service::wording::definition::{
    definition_cleared_by, definition_differs, unreadable_definition,
};
pub(super) use crate::service::wording::images::{
    blocked, blocked_elsewhere, declined, failed_because, held_elsewhere, left_by_hand, not_checked_yet,
    played_back, rollback_risks, tag_declined, tag_taken, unsigned, unsigned_elsewhere,
};
use crate::service::wording::images::{label_change, label_lines, tag_change};

/// A phase of a deployment.
pub(crate) fn phase(deploy: &DeployProgress) -> &'static str {
    if deploy.hook.as_deref() == Some(HookEvent::Before.key()) {
        return "running the hook before";
    }
    match deploy.phase {
        DeployPhase::Pulling => "pulling",
        DeployPhase::Starting => "starting",
        DeployPhase::Probation => "on probation",
        DeployPhase::RollingBack => "rolling back",
        DeployPhase::Spreading => "starting beside the old containers",
        DeployPhase::Draining => "draining the old containers",
        DeployPhase::Retiring => "stopping the old containers",
        DeployPhase::Soaking => "serving alone, on probation",
        DeployPhase::Settling => "removing the old containers",
        DeployPhase::Quiescing => "stopping what writes to the data",
        DeployPhase::Copying => "copying the data",
        DeployPhase::Restoring => "putting the data back",
    }
}

/// Warning about an unusable `signed_by` file.
pub(super) fn unusable_key(fault: &str) -> String {
    format!("update.signed_by: {fault}, and is skipped")
}

/// Why updates are held by a fault in the configuration of the gates.
pub(super) fn faulty_gates(fault: &str) -> String {
    format!("the configuration has a fault that may hide a gate: {fault}")
}

/// Warning about tags that can't be listed or compared.
pub(super) fn tags_unknown(image: &str, why: &str) -> String {
    format!(
        "update.tags: it is not known whether {image} has newer tags, because the registry does not tell: {why}"
    )
}

/// Why a deployment waits while another service is changing the compose project.
pub(super) fn waits_for_sibling(other: &str) -> String {
    format!("another service of the project, {other}, is being changed; this service's turn comes after that")
}

/// Why a manual check of a silent service is skipped.
pub(super) const SILENT: &str = "silent is true";
/// Why a manual check is skipped (spec 2.4).
pub(super) const AUTO_UPDATE_OFF: &str = "auto_update is false";
/// Why a check or a redeployment is skipped (spec 2.4).
pub(super) const DEPLOYING: &str = "deploy in progress";
/// Why a rollback by hand is skipped.
pub(crate) const NO_EARLIER_IMAGE: &str = "no earlier image";
/// Why a failed rollback is not tried again.
pub(super) const NOTHING_TO_RETRY: &str = "it was not tried, since all containers on the failed image were stopped or have \
                                           finished, so compose would start nothing; redeploy the service";
/// Why a rollback by hand of a swarm service is refused.
pub(super) const NOT_IN_SWARM: &str = "a swarm service is rolled back with `docker service rollback`";
/// Why a redeployment is skipped (spec 2.4).
pub(super) const NO_COMPOSE_FILES: &str = "no compose files configured";
/// Why a deployment that a user has requested did not begin.
pub(super) const ENDED_BEFORE: &str =
    "the agent was stopped, or the service removed, before it began; nothing was done, so ask again";
/// Why a project without running containers is not healthy.
pub(super) const NOTHING_RUNS: &str = "none of its containers is running";

/// Maximum size of an entry's output in bytes; the end is kept.
const MAX_OUTPUT: usize = 8 * 1024;

/// Makes an entry with the time and the service of an event.
type New<'a> = &'a dyn Fn(Kind, Level, String) -> AuditEntry;

/// The audit entry for an event; `None` if the event is only counted.
pub(super) fn entry(config: &ServiceConfig, at: Timestamp, event: Event) -> Option<AuditEntry> {
    let (service, in_swarm) = (&config.name, config.swarm_service.as_deref());
    let new: New<'_> = &|kind, level, message| AuditEntry::new(at, service, kind, level, message);
    Some(match event {
        Event::Resumed { image_changes, step, reason } => {
            resumed(&image_changes, in_swarm, step, reason, new)
        }
        Event::ManualTrigger => new(Kind::MANUAL_TRIGGER, Level::Info, "manual check".to_owned()),
        Event::Checked { has_blocked, has_not_found, waits } => {
            checked(has_blocked, has_not_found, waits, new)
        }
        Event::TriggerFailed { why } => {
            because(why, new(Kind::TRIGGER_FAILED, Level::Error, "the manual check failed".to_owned()))
        }
        Event::UpdateAvailable { image, digest, old_digest, gate, differences } => {
            let entry = new(Kind::UPDATE_AVAILABLE, Level::Info, waits_for(&image, &gate, &differences));
            let output = gate.output.unwrap_or_default();
            let entry = AuditEntry { reason: Some(gate.gate), output, ..entry };
            with_digests(entry, old_digest.as_ref(), Some(&digest))
        }
        Event::Approved { image, digest } => approved(&image, &digest, new),
        Event::NotFound { image, remote, local } => not_found(&image, &remote, local, in_swarm, new),
        Event::Unblocked(unblock) => unblocked(unblock, new),
        Event::Faulted { fault: Fault { text, from_check }, output } => {
            let reason = if from_check { "the check failed" } else { "the deploy failed" };
            let reason = Some(reason.to_owned());
            AuditEntry { reason, output, ..new(Kind::ERROR, Level::Error, text) }
        }
        Event::Recovered { fault } => {
            let entry = new(Kind::RECOVERED, Level::Info, "the error no longer occurs".to_owned());
            AuditEntry { reason: fault.map(|fault| fault.text), ..entry }
        }
        Event::Updated(updated) => self::updated(updated, new),
        Event::Redeployed { kept, held_back } => redeployed(in_swarm, &kept, &held_back, new),
        Event::RedeployFailed { why, container, output } => AuditEntry {
            reason: Some(why),
            container: some(container),
            output,
            ..new(Kind::FORCE_REDEPLOY_FAILED, Level::Error, "the manual redeploy failed".to_owned())
        },
        Event::RolledBack { failed, remaining, also_recreated, is_uninterrupted, problems, data } => {
            let entry = rolled_back(failed, remaining.as_ref(), &also_recreated, is_uninterrupted, new);
            let reason = handover::with_problems(entry.reason.clone(), &problems);
            AuditEntry { reason: handover::joined(reason, data.as_ref().map(snapshot::put_back)), ..entry }
        }
        Event::RollbackFailed(end) => rollback_failed(end, new),
        Event::GoBack(end) => go_back::entry(end, new),
        Event::RollbackRetried => rollback_retried(new),
        Event::RollbackRetryFailed { failure, output } => {
            let message = "the rollback could not be completed; manual action is needed".to_owned();
            let entry =
                because(rejection(&failure.reason), new(Kind::ROLLBACK_FAILED, Level::Critical, message));
            AuditEntry { container: some(failure.container), output, ..entry }
        }
        Event::BroughtUp { cause } => return brought_up(&cause, new),
        Event::DeployEnded { .. } | Event::RestartUnanswered => return None,
        Event::NewerTag { image, tag } => {
            new(Kind::UPDATE_AVAILABLE, Level::Info, format!("{image}: the registry has the newer tag {tag}"))
        }
        Event::NotNewerTag { image, tag, why } => {
            let (message, advice) = images::tag_not_newer(&image, &tag, why);
            because(advice, new(Kind::UPDATE_AVAILABLE, Level::Info, message))
        }
        Event::TagLineNotRestored { tag, why } => {
            let why = why.unwrap_or_else(|| "it was changed in the meantime".to_owned());
            because(why, new(Kind::ERROR, Level::Warning, images::tag_line_left(&tag)))
        }
        Event::HookFailed { event, why, output } => last_hook_failed(event, why, output, new),
        Event::NotStartedAgain { containers } => snapshot::not_started(&containers, new),
        Event::CopiesNotRemoved { why } => snapshot::not_removed(&why, new),
        Event::WayBackAtRisk { risk } => {
            because(risk, new(Kind::WAY_BACK, Level::Warning, "a rollback would fail now".to_owned()))
        }
        Event::WayBackOk { risk } => {
            because(risk, new(Kind::WAY_BACK, Level::Info, "a rollback would succeed again".to_owned()))
        }
        Event::ResourceAlert(alert) => resource_alert(alert, new),
        of_a_container => return container_entry(of_a_container, new),
    })
}

fn approved(image: &str, digest: &Digest, new: New<'_>) -> AuditEntry {
    let entry = new(Kind::APPROVED, Level::Info, format!("the update of {image} was approved"));
    with_digests(entry, None, Some(digest))
}

fn rollback_retried(new: New<'_>) -> AuditEntry {
    let message = "the retry of the failed rollback succeeded: the last proven images run again";
    new(Kind::ROLLED_BACK, Level::Warning, message.to_owned())
}

fn last_hook_failed(event: HookEvent, why: String, output: String, new: New<'_>) -> AuditEntry {
    let message = format!("the hook {} failed; the deployment is not affected", event.key());
    AuditEntry { output, ..because(why, new(Kind::ERROR, Level::Warning, message)) }
}

/// The fault of a hook that keeps a deployment from beginning.
pub(in crate::service) fn hook_failed(event: HookEvent, why: &str) -> String {
    format!("the hook {} failed, so nothing was deployed: {why}", event.key())
}

fn because(reason: String, entry: AuditEntry) -> AuditEntry {
    AuditEntry { reason: Some(reason), ..entry }
}

fn checked(has_blocked: bool, has_not_found: bool, waits: Option<String>, new: New<'_>) -> AuditEntry {
    let message = match (waits, has_blocked, has_not_found) {
        (Some(why), ..) => format!("checked: an update waits: {why}"),
        (None, false, false) => "checked: everything is up to date".to_owned(),
        (None, true, _) => "checked: the registry still has a blocked digest".to_owned(),
        (None, false, true) => "checked: the local image is still not found".to_owned(),
    };
    new(Kind::CHECKED, Level::Info, message)
}

fn waits_for(image: &str, gate: &Gate, differences: &[ConfigDifference]) -> String {
    let lifts = gate.lifts_at.map(|at| format!(" (until {})", seconds(at))).unwrap_or_default();
    // The gate that asks about them names its own.
    let others = differences.iter().map(ToString::to_string).filter(|text| !gate.why.contains(text));
    let differs = new_image_differs(others);
    format!("{image} has an update that waits ({}): {}{lifts}{differs}", gate.gate, gate.why)
}

/// `; the new image …`, if it differs.
fn new_image_differs(differences: impl Iterator<Item = String>) -> String {
    let all = one_sentence(differences);
    if all.is_empty() { all } else { format!("; the new image {all}") }
}

/// Differences of an image's configuration in one sentence, without its subject.
pub(super) fn one_sentence(differences: impl Iterator<Item = String>) -> String {
    differences.collect::<Vec<_>>().join("; it ")
}

fn resumed(
    image_changes: &[ImageChange],
    in_swarm: Option<&str>,
    step: &str,
    reason: StartReason,
    new: New<'_>,
) -> AuditEntry {
    let reason = match reason {
        StartReason::Start => "the agent was stopped in the middle of it",
        StartReason::Reload => "the configuration of the service was changed in the middle of it",
    };
    let what = match in_swarm {
        Some(service) if image_changes.is_empty() => service.to_owned(),
        _ => names(image_changes),
    };
    let doing = match step {
        "probation" | "converge" => "continuing the probation",
        "diagnose" | "rollback" | "restore_tags" | "verify_rollback" => "continuing the rollback",
        "unpin" => "finishing the deployment",
        _ => "continuing the deployment",
    };
    let message = format!("{doing} of {what}");
    let entry = AuditEntry { reason: Some(reason.to_owned()), ..new(Kind::RESUMED, Level::Info, message) };
    match image_changes {
        [only] => with_digests(entry, only.old_digest.as_ref(), Some(&only.digest)),
        _ => entry,
    }
}

fn rollback_failed(end: RollbackFailed, new: New<'_>) -> AuditEntry {
    let RollbackFailed { failed, going_back_to, why, containers, data, left_stopped } = end;
    let back = match &why {
        RollbackProblem::NoOldImage => "there is no earlier image to roll back to",
        RollbackProblem::NotProven(_) | RollbackProblem::Step(_) => "rollback failed",
    };
    let during = going_back_to.map(|to| format!(" while going back to {to}")).unwrap_or_default();
    let message = format!("{}{during}, and {back}; manual action is needed", what_failed(&failed));
    let reason = Some(rollback_problem(&failed.failure.reason, &why));
    let reason = handover::joined(reason, data.as_ref().map(snapshot::put_back));
    let reason = handover::joined(reason, snapshot::left_off_old_data(&left_stopped));
    let mut entry = failed_deployment(failed, new(Kind::ROLLBACK_FAILED, Level::Critical, message));
    if let RollbackProblem::NotProven(again) = &why {
        entry.output.push_str(&format!(
            "\n--- after the rollback ---\n{}\n{}",
            rejection(&again.reason),
            again.facts
        ));
    }
    entry.output.push_str("\n--- containers now ---\n");
    for ContainerSummary { name, state, image } in containers {
        entry.output.push_str(&format!("{name}: {}, {image}\n", state.as_str()));
    }
    AuditEntry { reason, ..entry }
}

fn container_entry(event: Event, new: New<'_>) -> Option<AuditEntry> {
    let (kind, level, message, container, reason) = match event {
        Event::Unhealthy { container, ended, problem, no_remedy } => {
            let (kind, verb) =
                if ended { (Kind::DIED, "is down") } else { (Kind::UNHEALTHY, "is unhealthy") };
            let message = format!("container {container} {verb}");
            (kind, Level::Warning, message, container, Some(with_remedy(trouble(&problem), no_remedy)))
        }
        Event::Healthy { container } => {
            (Kind::HEALTHY, Level::Info, format!("container {container} is healthy again"), container, None)
        }
        Event::Restarting { container, recreates, problem } => {
            let verb = if recreates { "recreating" } else { "restarting" };
            (
                Kind::RESTARTING,
                Level::Warning,
                format!("{verb} container {container}"),
                container,
                problem.as_ref().map(trouble),
            )
        }
        Event::Restarted { container } => {
            let message = format!("container {container} is healthy again after its restart");
            (Kind::RESTARTED, Level::Info, message, container, None)
        }
        Event::RestartFailed { container, failures, limit, relapsed, problem } => {
            let how = if relapsed { "did not help for long" } else { "did not help" };
            let message = format!("the restart of {container} {how} ({failures} of {limit})");
            (Kind::RESTART_FAILED, Level::Error, message, container, problem.as_ref().map(trouble))
        }
        Event::Exhausted { container, failures, problem } => {
            let message = format!(
                "gave up on container {container} after {failures} restarts that did not help; manual action is needed"
            );
            (Kind::EXHAUSTED, Level::Critical, message, container, problem.as_ref().map(trouble))
        }
        _ => return None,
    };
    Some(AuditEntry { container: Some(container), reason, ..new(kind, level, message) })
}

fn redeployed(
    in_swarm: Option<&str>,
    kept: &[KeptImage],
    held_back: &[Reference],
    new: New<'_>,
) -> AuditEntry {
    let mut message = match in_swarm {
        Some(service) => format!("the tasks of {service} were recreated, and passed their probation"),
        None => "the project was pulled and recreated, and passed its probation".to_owned(),
    };
    let mut named: Vec<String> = kept.iter().map(|one| one.image.clone()).collect();
    named.extend(held_back.iter().map(ToString::to_string));
    if !named.is_empty() {
        message.push_str(&format!("; left on the current image: {}", named.join(", ")));
    }
    let why = |one: &KeptImage| match one.gate.as_str() {
        "blocked" => format!("{}: {}", one.image, one.why),
        _ => one.why.clone(),
    };
    let mut reasons: Vec<String> = kept.iter().map(why).collect();
    reasons.extend(held_back.iter().map(|tag| {
        format!(
            "{tag} names another image by now, built or pulled by somebody, and is none of this service's images: \
             `docker compose up -d` deploys it"
        )
    }));
    AuditEntry { reason: some(reasons.join("; ")), ..new(Kind::FORCE_REDEPLOY, Level::Info, message) }
}

fn not_found(image: &str, remote: &Digest, local: Local, in_swarm: Option<&str>, new: New<'_>) -> AuditEntry {
    if in_swarm.is_some() {
        let entry = new(Kind::NOT_FOUND, Level::Warning, swarm::no_digest(image));
        return with_digests(entry, None, Some(remote));
    }
    let message = format!(
        "{image} has no registry digest on this machine, so it can't be compared; nothing is deployed until the registry has a new digest"
    );
    let reason = match local {
        Local::WithoutDigest => {
            "the image has no registry digest here (built, loaded or untagged here); a redeploy replaces it"
        }
        Local::Absent => "the image is not on this machine; a redeploy fetches it",
        Local::PinnedByCompose => {
            "the compose files pin this image to a digest, so that nothing but an edit of them changes what runs; remove \
             the digest there to get updates, or list the image here as the compose files name it"
        }
    };
    let entry =
        AuditEntry { reason: Some(reason.to_owned()), ..new(Kind::NOT_FOUND, Level::Warning, message) };
    with_digests(entry, None, Some(remote))
}

fn unblocked(unblock: Unblock, new: New<'_>) -> AuditEntry {
    let (message, reason, blocked, remote) = match unblock {
        Unblock::Manual { blocked } => {
            let images = names_with_digests(&blocked);
            let message = if images.is_empty() {
                "released the tag that was replaced in the env file; the next check may deploy it".to_owned()
            } else {
                format!("unblocked {images}; the next check may deploy it")
            };
            (message, "manual", blocked.into_iter().next().map(|(_, digest)| digest), None)
        }
        Unblock::UpToDate { image, blocked, remote } => {
            let message = format!("unblocked {image}: the running image matches the registry again");
            (message, "the remote digest changed", Some(blocked), remote)
        }
        Unblock::NewDigest { image, blocked, remote } => {
            let message = format!("unblocked {image}: the registry has another digest than the blocked one");
            (message, "the remote digest changed", Some(blocked), Some(remote))
        }
        Unblock::NotConfigured { blocked } => {
            let message = format!("unblocked {}: no longer configured", names_with_digests(&blocked));
            let digest = blocked.into_iter().next().map(|(_, digest)| digest);
            (message, "the configuration no longer lists the image", digest, None)
        }
    };
    let entry = AuditEntry { reason: Some(reason.to_owned()), ..new(Kind::UNBLOCKED, Level::Info, message) };
    with_digests(entry, blocked.as_ref(), remote.as_ref())
}

/// Names images with their digests.
fn names_with_digests(images: &[(String, Digest)]) -> String {
    let images = images.iter().map(|(image, digest)| format!("{image} ({digest})"));
    images.collect::<Vec<_>>().join(", ")
}

fn updated(updated: Updated, new: New<'_>) -> AuditEntry {
    let Updated { change, is_same, labels, used, took, also_recreated, left_behind, stopped_first, problems } =
        updated;
    let image = &change.configured;
    let message = if !used {
        format!("{image} was pulled; no running container uses it, so nothing was started")
    } else if is_same {
        format!("{image} has a new digest for the same image; nothing had to be recreated")
    } else {
        let (took, also) = (took.as_secs(), also(&also_recreated));
        let what = tag_change(&change).unwrap_or_else(|| label_change(&labels));
        let differs = new_image_differs(labels.differences.iter().map(|one| one.told("the previous image")));
        format!(
            "{image} was updated{what} and passed its probation {took} s after it was found{also}{differs}"
        )
    };
    let reason = (!left_behind.is_empty()).then(|| {
        format!(
            "compose does not update {}: its service is no longer in the compose files",
            left_behind.join(", ")
        )
    });
    let reason = handover::joined(reason, handover::stopped_first(&stopped_first));
    let reason = handover::with_problems(reason, &problems);
    let kind = if used { Kind::UPDATED } else { Kind::PULLED };
    let output = label_lines(&labels);
    let entry = AuditEntry { reason, output, ..new(kind, Level::Info, message) };
    with_digests(entry, change.old_digest.as_ref(), Some(&change.digest))
}

fn rolled_back(
    failed: FailedDeployment,
    remaining: Option<&Reason>,
    also_recreated: &[String],
    is_uninterrupted: bool,
    new: New<'_>,
) -> AuditEntry {
    let but = but(remaining);
    let served = if is_uninterrupted { "; the service was not interrupted" } else { "" };
    let (what, also) = (what_failed(&failed), also(also_recreated));
    let message = format!("{what}; rolled back to the images that ran before{served}{but}{also}");
    failed_deployment(failed, new(Kind::ROLLED_BACK, Level::Warning, message))
}

fn brought_up(cause: &Cause, new: New<'_>) -> Option<AuditEntry> {
    let (kind, message, reason) = match cause {
        Cause::ComposeChanged => {
            (Kind::COMPOSE_DRIFT, "the compose files changed and were applied", "compose_watch is on")
        }
        Cause::ForceUp { down } => {
            let message = if *down {
                "the containers that were stuck were recreated, and brought up again with compose up"
            } else {
                "the containers that were stuck were brought up again with compose up"
            };
            (Kind::STARTED, message, "containers were stuck, and auto_start is on")
        }
        Cause::Start => {
            (Kind::STARTED, "the project was started", "none of its containers ran, and auto_start is on")
        }
        // The result is reported when the container is healthy again.
        Cause::RecreateContainer { .. }
        | Cause::Update
        | Cause::Redeploy
        | Cause::RetryRollback
        | Cause::GoBack(_) => {
            return None;
        }
    };
    Some(AuditEntry { reason: Some(reason.to_owned()), ..new(kind, Level::Info, message.to_owned()) })
}

fn resource_alert(alert: ResourceAlert, new: New<'_>) -> AuditEntry {
    let ResourceAlert { resource, container, percent, threshold, largest } = alert;
    let of = container.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
    let message = format!("{resource}{of} is at {percent:.2} %, above the threshold of {threshold} %");
    let reason = largest.as_ref().map(|(name, share)| format!("{name} has the largest share: {share:.2} %"));
    let container = container.or(largest.map(|(name, _)| name));
    AuditEntry { container, reason, ..new(Kind::RESOURCE_ALERT, Level::Warning, message) }
}

/// The image can't be deployed because of the machine.
pub(in crate::service) fn by_machine(images: &str, why: &str) -> String {
    format!(
        "{images} could not be brought up by this machine; it is not blocked, and tried again later: {why}"
    )
}

/// What failed, as the first half of a sentence.
fn what_failed(failed: &FailedDeployment) -> String {
    let images = &failed.images;
    if failed.by_node && failed.failure.by_compose {
        format!("{images} could not be brought up by this machine")
    } else if failed.by_node {
        format!("{images} could not be run by the nodes of the swarm")
    } else if failed.failure.by_compose {
        format!("{images} could not be brought up")
    } else {
        format!("{images} failed its probation")
    }
}

fn failed_deployment(failed: FailedDeployment, entry: AuditEntry) -> AuditEntry {
    let FailedDeployment { digests, others, failure, output, .. } = failed;
    let (reason, container) = (Some(rejection(&failure.reason)), some(failure.container));
    let other = |(image, digest): (Reference, Digest)| ImageDigest {
        image: image.to_string(),
        digest: digest.to_string(),
    };
    let also_failed = others.into_iter().map(other).collect();
    let entry = AuditEntry { reason, container, output, also_failed, ..entry };
    match digests {
        Some((old, new)) => with_digests(entry, old.as_ref(), Some(&new)),
        None => entry,
    }
}

/// What a rollback could not bring up besides the old images.
pub(super) fn not_brought_up(services: &[String], why: &str) -> String {
    format!("{} could not be brought up again: {why}", services.join(", "))
}

/// Why an update and its rollback failed.
pub(super) fn rollback_problem(failure: &Reason, problem: &RollbackProblem) -> String {
    let failure = rejection(failure);
    match problem {
        RollbackProblem::NoOldImage => format!("{failure}; there is no earlier image to roll back to"),
        RollbackProblem::NotProven(again) => {
            format!("{failure}; after the rollback {}", rejection(&again.reason))
        }
        RollbackProblem::Step(text) => format!("{failure}; the rollback failed: {text}"),
    }
}

fn with_digests(entry: AuditEntry, old: Option<&Digest>, new: Option<&Digest>) -> AuditEntry {
    let (old_digest, new_digest) = (old.map(ToString::to_string), new.map(ToString::to_string));
    AuditEntry { old_digest, new_digest, ..entry }
}

/// The end of a sentence about a deployment: the containers that compose recreated unnecessarily, if any.
fn also(recreated: &[String]) -> String {
    match recreated {
        [] => String::new(),
        names => format!("; compose also recreated {}, which was not necessary", names.join(", ")),
    }
}

/// The text of a fault.
pub(super) fn fault(cause: &FaultCause<'_>) -> String {
    match cause {
        FaultCause::OldImagesGone { images } => format!(
            "no rollback would be possible: the image that {} runs on is gone from this machine and can't be pulled again; a redeploy proceeds anyway",
            images.join(", ")
        ),
        FaultCause::ComposeUp { cause } => format!("compose up failed: {cause}"),
        FaultCause::ProbationInterrupted { how: Interference::Words(sentence), .. } => sentence.clone(),
        FaultCause::ProbationInterrupted { images, how } => {
            format!("the probation of {images} was interrupted: {}", interference(how))
        }
        FaultCause::Outdated { how } => format!(
            "nothing was deployed: {} while the update was prepared, which is left as it is; the next check decides anew",
            interference(how)
        ),
        FaultCause::Occupied => {
            "nothing was deployed: another compose run on the project has not ended within a minute, or one has followed another"
                .to_owned()
        }
        FaultCause::ImagesUnused { configured, used } => {
            let configured: Vec<String> = configured.iter().map(ToString::to_string).collect();
            format!(
                "no container of the project is made from {}; they are made from {}",
                configured.join(", "),
                used.join(", ")
            )
        }
        FaultCause::FilesUnlisted { files } => {
            let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
            format!(
                "the containers were made with {}, too, which compose_files does not list: without it they would lose \
                 its settings, so they are not recreated; add it to compose_files, or redeploy to continue without it",
                files.join(", ")
            )
        }
        FaultCause::OutsideProject { container, is_of, project } => {
            let is_of = match *is_of {
                "" => "no compose project".to_owned(),
                other => format!("compose project {other}"),
            };
            format!(
                "container {container} belongs to {is_of}, and compose_project is {project}, so compose can't update it: \
                 remove it, and make it anew with `docker compose -p {project} … up -d` (data that is in no volume is lost \
                 with it)"
            )
        }
        FaultCause::ContainerNeeded { container, need } => {
            let (program, down) = match need {
                Need::ForOthers => ("podman", ", `podman compose down`"),
                _ => ("docker", ""),
            };
            format!(
                "compose would stop {container}, {need}, and {}, so nothing is updated: take its image out of `images`, and \
                 update it with `{program} compose pull`{down} and `{program} compose up -d`",
                need.consequence()
            )
        }
        FaultCause::FileMissing { path } => file_missing(path),
    }
}

/// Why the compose files are not applied without a file that compose read before.
pub(crate) fn file_missing(path: &Path) -> String {
    format!(
        "{} was there when the compose files were last applied, and is missing or can't be read: without it its variables \
         would be empty, so the compose files are not applied; put it back, or redeploy to do without it",
        path.display()
    )
}

/// The diagnostics of a failed container for its audit entry.
pub(super) fn diagnostics(failure: &Failure, compose: &str, log: &str) -> String {
    let mut text = failure.facts.clone();
    for (title, part) in [("compose", compose), ("last log lines", log)] {
        if !part.trim().is_empty() {
            text.push_str(&format!("--- {title} ---\n{}\n", part.trim_end()));
        }
    }
    crate::model::text::tail(&text, MAX_OUTPUT).to_owned()
}

/// The error text for a result that does not belong to the current step.
pub(super) fn unexpected_result(result: &StepResult) -> String {
    format!("the step returned the result of a different step: {result:?}")
}

/// The error of one image of several.
pub(super) fn of_image(image: &str, error: &str) -> String {
    format!("{image}: {error}")
}

/// Why a newer tag is passed over.
pub(super) fn lacks_platform(tag: &str, error: &str) -> String {
    format!("tag {tag} has no image for the platform of this machine: {error}")
}

/// The placeholder for log lines that can't be read.
pub(super) fn no_log(error: &str) -> String {
    format!("({error})")
}

/// Warning about containers that were created from other compose files than the configured ones.
pub(super) fn made_from_elsewhere(files: &str) -> String {
    format!(
        "its containers were made from {files}, not from compose_files: relative paths may resolve differently"
    )
}

/// Warning about a configured image that no container was created from, while one was from another tag of it.
pub(super) fn retagged(configured: &str, container: &str, made_from: &str) -> String {
    format!(
        "no container is made from {configured}; {container} is made from {made_from}, which is not in `images`, so that it \
         is not updated: correct `images`"
    )
}

/// The fault of a gate command that failed.
pub(super) fn command_failed(fault: &str) -> String {
    format!("the gate command gave no answer: {fault}")
}

/// The images of a deployment, as configured.
pub(super) fn names<'a>(image_changes: impl IntoIterator<Item = &'a ImageChange>) -> String {
    let names: Vec<&str> = image_changes.into_iter().map(|change| change.configured.as_str()).collect();
    if names.is_empty() {
        return "the project".to_owned();
    }
    names.join(", ")
}

/// An image that already ran, but was not proven, has failed once more, and there is none to go back to.
pub(super) fn still_unproven(images: &str, why: &str) -> String {
    format!("{images} runs but is not proven, and failed again: {why}; there is no other image to go back to")
}

/// What a deployment deploys: its images, or the swarm service if none changes.
pub(super) fn subject(plan: &Plan) -> String {
    match &plan.swarm {
        Some(swarm) if plan.image_changes.is_empty() => swarm.service.clone(),
        _ => names(&plan.image_changes),
    }
}

/// The end of a sentence about a rollback: what is wrong nevertheless, if anything.
fn but(remaining: Option<&Reason>) -> String {
    remaining.map(|reason| format!(", but {}", rejection(reason))).unwrap_or_default()
}

fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}
