//! Sentences about going back to earlier images.

use evenkeel_common::wire::{AuditEntry, ImageDigest, Kind, Level};

use crate::model::image::Digest;
use crate::service::event::{GoBackEnd, GoBackResult};
use crate::service::rollout::plan::{GoBack, GoBackReason, ImageChange, LateFailure};
use crate::service::rollout::probation::{Failure, Reason};
use crate::service::rollout::snapshot::DataBack;
use crate::service::wording::{New, but, rejection, snapshot, some, with_digests};

/// The reason of an entry about a rollback by hand, and of the block of what was left.
pub(in crate::service) const BY_HAND: &str = "rolled back by hand";

/// Why nothing is rolled back if nothing runs.
pub(in crate::service) const STOPPED: &str =
    "its containers are stopped; a rollback replaces what runs, so start them first";

/// Why the data of an image is not put back.
pub(in crate::service) const NO_DATA: &str = "no snapshot of the data was taken when that image was left";

/// Why nothing is rolled back if the configuration was changed in the meantime.
pub(in crate::service) const NOT_CONFIGURED: &str = "the image is no longer configured";

/// Why a person has to decide about the way back from an image that may have migrated its data. `to`: the digest that the
/// command has to name, if it has to.
pub(in crate::service) fn left_to_a_person(name: &str, to: Option<&Digest>, has_data: bool) -> String {
    let to = to.map(|digest| format!(" --to {digest}")).unwrap_or_default();
    let command = format!("evenkeel rollback {name}{to}");
    let why = "the data may have been migrated, and what was written since the update would be lost if it were put back";
    let with_data = format!("; `{command} --data` puts back the data from before the update, too");
    let with_data = if has_data { with_data } else { String::new() };
    format!("{why}; `{command}` goes back and leaves the data as it is{with_data}")
}

/// Why a service has gone back.
pub(in crate::service) fn reason(back: &GoBack) -> String {
    match &back.why {
        GoBackReason::ByHand => BY_HAND.to_owned(),
        GoBackReason::Late { reason } => late_failure(reason),
    }
}

/// How an image failed after its probation.
fn late_failure(failure: &LateFailure) -> String {
    match failure {
        LateFailure::RestartsExhausted { container } => format!("restarts of {container} did not help"),
        LateFailure::Crashes { crashes, minutes } => {
            format!("its containers crashed {crashes} times within {minutes} minutes")
        }
        LateFailure::Words(words) => words.clone(),
    }
}

fn names(back: &GoBack) -> String {
    back.to.iter().map(|to| to.configured.as_str()).collect::<Vec<_>>().join(", ")
}

/// The digests that a service goes back to.
pub(in crate::service) fn targets(back: &GoBack) -> String {
    back.to.iter().map(|to| to.digest.short()).collect::<Vec<_>>().join(", ")
}

/// The entry about the end of a way back.
pub(super) fn entry(end: GoBackEnd, new: New<'_>) -> AuditEntry {
    let mut failed = end
        .failed()
        .into_iter()
        .map(|(image, digest)| ImageDigest { image: image.to_string(), digest: digest.to_string() });
    let first = failed.next();
    let also_failed: Vec<ImageDigest> = failed.collect();
    let GoBackEnd { back, result } = end;
    let entry = match result {
        GoBackResult::Proven { changes, data } => with_data(gone_back(&back, &changes, new), data.as_ref()),
        GoBackResult::NotBegun { why, output, .. } => {
            let new_digest = first.map(|one| one.digest);
            AuditEntry { new_digest, ..not_gone_back(&back, why, output, new) }
        }
        GoBackResult::Undone { failure, output, remaining, data } => {
            with_data(undone(&back, *failure, output, remaining.as_ref(), new), data.as_ref())
        }
    };
    AuditEntry { also_failed, ..entry }
}

/// Says which data was put back.
fn with_data(entry: AuditEntry, data: Option<&DataBack>) -> AuditEntry {
    let Some(data) = data else { return entry };
    AuditEntry { message: format!("{}; {}", entry.message, snapshot::put_back(data)), ..entry }
}

/// The entry about earlier images that are proven again. As in every `rolled_back`, the new digest is the one that was left.
fn gone_back(back: &GoBack, changes: &[ImageChange], new: New<'_>) -> AuditEntry {
    let (names, targets) = (names(back), targets(back));
    let blocked = "what was left is blocked until the registry has another digest";
    let entry = match &back.why {
        GoBackReason::ByHand => {
            let message =
                format!("{names} was rolled back by hand to {targets}, which is proven again; {blocked}");
            new(Kind::ROLLED_BACK, Level::Info, message)
        }
        GoBackReason::Late { reason } => {
            let how = late_failure(reason);
            let message =
                format!("{names} failed after its update: {how}; rolled back to {targets}; {blocked}");
            new(Kind::ROLLED_BACK, Level::Warning, message)
        }
    };
    let first = changes.iter().find(|change| change.left().is_some()).or_else(|| changes.first());
    let (to, left) = (first.map(|change| &change.digest), first.and_then(ImageChange::left));
    with_digests(AuditEntry { reason: Some(reason(back)), ..entry }, to, left)
}

/// The entry about a way back that was not taken.
fn not_gone_back(back: &GoBack, why: String, output: String, new: New<'_>) -> AuditEntry {
    let (names, targets) = (names(back), targets(back));
    let message = match &back.why {
        GoBackReason::ByHand => format!("{names} was not rolled back to {targets}; nothing was changed"),
        GoBackReason::Late { reason } => {
            let how = late_failure(reason);
            format!(
                "{names} failed after its update: {how}; it was not rolled back to {targets}; nothing was changed"
            )
        }
    };
    AuditEntry { reason: Some(why), output, ..new(Kind::ROLLBACK_FAILED, level(back), message) }
}

/// The entry about earlier images that failed their probation.
fn undone(
    back: &GoBack,
    failure: Failure,
    output: String,
    remaining: Option<&Reason>,
    new: New<'_>,
) -> AuditEntry {
    let but = but(remaining);
    let message = format!(
        "{} did not pass its probation on {}; what ran before runs again{but}, and nothing is blocked for it",
        names(back),
        targets(back)
    );
    let entry = new(Kind::ROLLBACK_FAILED, level(back), message);
    AuditEntry {
        reason: Some(rejection(&failure.reason)),
        container: some(failure.container),
        output,
        ..entry
    }
}

/// A person who has asked looks at the answer; a failure at night wakes one.
fn level(back: &GoBack) -> Level {
    match back.why {
        GoBackReason::ByHand => Level::Warning,
        GoBackReason::Late { .. } => Level::Critical,
    }
}
