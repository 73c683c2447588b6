//! Sentences about images: signatures, labels, whether a rollback to them would succeed.

use evenkeel_common::wire::Gate;
use jiff::Timestamp;

use crate::model::SignatureFlaw;
use crate::model::image::Digest;
use crate::model::image_config::ConfigChange;
use crate::model::text::seconds;
use crate::service::gates::candidate::{PlayedBack, Unsigned};
use crate::service::rollout::plan::ImageChange;
use crate::service::rollout::tag::TagChange;
use crate::service::upkeep::maintenance::{MissingReason, NotNewer, RollbackRisk};

/// What prevents a rollback, in one line that stays the same as long as the obstacles do.
pub(in crate::service) fn rollback_risks(risks: &[RollbackRisk]) -> String {
    let words = |risk: &RollbackRisk| match risk {
        RollbackRisk::NotServed { image, registry } => {
            format!("nodes without the running image of {image} can't pull it: {}", missing(registry))
        }
        RollbackRisk::ImageGone { image, registry } => {
            format!("the running image of {image} is not on this machine, and {}", missing(registry))
        }
        RollbackRisk::ComposeFiles { why } => format!("the compose files are not valid: {why}"),
        RollbackRisk::Disk => "the engine's disk has no room for one more image".to_owned(),
    };
    risks.iter().map(words).collect::<Vec<_>>().join("; ")
}

/// Why an image can't be pulled.
fn missing(registry: &MissingReason) -> String {
    match registry {
        MissingReason::NeverPushed => "no registry has it".to_owned(),
        MissingReason::Removed => "its registry no longer has it".to_owned(),
        MissingReason::Unknown(why) => format!("its registry does not answer: {why}"),
    }
}

/// Why a failed digest is not deployed.
pub(in crate::service) fn blocked(digest: &Digest) -> String {
    format!("{digest} failed here and is blocked until the registry has another digest")
}

/// Why a digest that a person went back from is not deployed.
pub(in crate::service) fn left_by_hand(digest: &Digest, at: Timestamp) -> String {
    format!(
        "{digest} was left by hand at {}, and is blocked until the registry has another digest",
        seconds(at)
    )
}

/// The end of a sentence about a failed digest: the reason, and when it failed.
pub(in crate::service) fn failed_because(reason: &str, at: Timestamp) -> String {
    format!("; it failed at {}: {reason}", seconds(at))
}

/// Why a digest that another service of the project has blocked is not deployed.
pub(in crate::service) fn blocked_elsewhere(digest: &Digest, service: &str) -> String {
    format!("{digest} failed for {service}, another service of the project, which has blocked it")
}

/// Why an update waits for the gate of another service of the project.
pub(in crate::service) fn held_elsewhere(service: &str, gate: &Gate) -> String {
    format!("{service} uses the same image and holds it back ({}): {}", gate.gate, gate.why)
}

/// Why an update waits for a signature that another service of the project requires.
pub(in crate::service) fn unsigned_elsewhere(service: &str, why: &str) -> String {
    format!("{service}, which uses the same image, requires a signature: {why}")
}

/// The same if that service has not checked the digest yet.
pub(in crate::service) fn not_checked_yet(service: &str, digest: &Digest) -> String {
    format!("{service}, which uses the same image, has not checked yet whether {} is signed", digest.short())
}

/// Why an update waits for a signature.
pub(in crate::service) fn unsigned(image: &str, digest: &Digest, why: &Unsigned) -> String {
    let digest = digest.short();
    match why {
        Unsigned::Missing => format!("{image}: {digest} is not signed"),
        Unsigned::Invalid(SignatureFlaw::Malformed) => {
            format!("{image}: {digest} has no signature in a known format")
        }
        Unsigned::Invalid(SignatureFlaw::OtherKey) => {
            format!("{image}: {digest} is signed, but not with a key of signed_by")
        }
        Unsigned::Invalid(SignatureFlaw::OtherDigest) => {
            format!("{image}: {digest} carries a signature that was made for another image")
        }
        Unsigned::Invalid(SignatureFlaw::OtherRepository) => {
            format!(
                "{image}: {digest} is signed for another repository; if it is a copy of that, list it in signed_for"
            )
        }
        Unsigned::Elsewhere { why, .. } => why.clone(),
        Unsigned::Unknown(text) => format!("{image}: can't tell whether {digest} is signed: {text}"),
    }
}

/// Why a signed digest waits for an approval.
pub(in crate::service) fn played_back(image: &str, digest: &Digest, why: PlayedBack) -> String {
    let why = match why {
        PlayedBack::Left => "it ran here before and was replaced",
        PlayedBack::SignedEarlier => "it was signed before the image that runs",
    };
    format!(
        "{image}: {} is signed, but {why}; a registry that serves an old image again needs an approval",
        digest.short()
    )
}

/// ` from tag 1.27.3 to 1.27.4`; `None` if the tag does not change.
pub(super) fn tag_change(change: &ImageChange) -> Option<String> {
    let (old, new) = (change.from.as_ref()?.tag.as_ref()?, change.reference.tag.as_ref()?);
    Some(format!(" from tag {old} to {new}"))
}

fn line_of(tag: &TagChange) -> String {
    let path = tag.line.as_ref().map(|line| format!(" in {}", line.path.display()));
    format!("{}{}", tag.variable, path.unwrap_or_default())
}

/// Why an update is not started.
pub(in crate::service) fn tag_taken(tag: &TagChange) -> String {
    let line = line_of(tag);
    format!("{line} was changed after the check, so the tag {} is not written", tag.new)
}

/// Warning about an env file line that a rollback has not restored.
pub(super) fn tag_line_left(tag: &TagChange) -> String {
    let (line, old) = (line_of(tag), &tag.old);
    format!("{line} was not restored to {old}; the images that ran with {old} are brought up anyway")
}

/// The announcement of a tag that is not taken for newer, and what to do if it is wanted.
pub(super) fn tag_not_newer(image: &str, tag: &str, why: NotNewer) -> (String, String) {
    let (why, advice) = match why {
        NotNewer::OtherScheme => {
            ("few tags have such numbers", "to deploy it, narrow update.tags down to its numbers")
        }
        NotNewer::Older => (
            "its image was created more than 30 days before the one in use",
            "to deploy it, set the tag in the compose files or the env file",
        ),
        NotNewer::Declined => return tag_declined(image, tag),
    };
    let message = format!("{image}: the registry has the tag {tag}, which is not taken for newer: {why}");
    (message, advice.to_owned())
}

/// The service was set to an image other than the registry's, and not by the agent. Who has done that is not known.
pub(in crate::service) fn declined(image: &str, digest: &Digest) -> String {
    format!(
        "{image}: {digest} was replaced here by something other than Evenkeel (such as a rollback by hand, or of another \
         project with the same tag), so it is held until the registry has another digest"
    )
}

/// The announcement that a tag is held that a person has left.
pub(in crate::service) fn tag_declined(image: &str, tag: &str) -> (String, String) {
    let message = format!(
        "{image}: the tag {tag} was replaced with an older one in the env file, so it is held until the registry has a newer one"
    );
    (message, "to deploy it, set it in the env file again, or trigger or unblock the service".to_owned())
}

/// ` from 1.27.3 to 1.27.4`, if the image labels tell; by revision if their versions do not differ.
pub(super) fn label_change(labels: &ConfigChange) -> String {
    let ConfigChange { old, new, .. } = labels;
    let short = |text: &String| text.chars().take(12).collect::<String>();
    let (before, after) = if old.version == new.version {
        (old.revision.as_ref().map(short), new.revision.as_ref().map(short))
    } else {
        (old.version.clone(), new.version.clone())
    };
    match (before, after) {
        (Some(before), Some(after)) if before != after => format!(" from {before} to {after}"),
        (None, Some(after)) => format!(" to {after}"),
        _ => String::new(),
    }
}

/// Image labels before and after, one per line.
pub(super) fn label_lines(labels: &ConfigChange) -> String {
    let ConfigChange { old, new, .. } = labels;
    let all = [
        ("version", &old.version, &new.version),
        ("revision", &old.revision, &new.revision),
        ("source", &old.source, &new.source),
    ];
    let line = |(name, before, after): (&str, &Option<String>, &Option<String>)| match (before, after) {
        (Some(before), Some(after)) if before != after => Some(format!("{name}: {before} → {after}")),
        (_, Some(after)) => Some(format!("{name}: {after}")),
        (Some(before), None) => Some(format!("{name}: {before} → none")),
        (None, None) => None,
    };
    all.into_iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::image::ImageLabels;

    fn labels(version: &str, revision: &str) -> ImageLabels {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        ImageLabels { version: some(version), revision: some(revision), source: None }
    }

    #[test]
    fn an_update_reports_the_changed_labels() {
        let long = "0123456789abcdef";
        for (old, new, short, lines) in [
            (
                labels("1.0", "a"),
                labels("1.1", "b"),
                " from 1.0 to 1.1",
                "version: 1.0 → 1.1\nrevision: a → b",
            ),
            (labels("", ""), labels("1.1", ""), " to 1.1", "version: 1.1"),
            (
                labels("1.0", "a"),
                labels("1.0", long),
                " from a to 0123456789ab",
                "version: 1.0\nrevision: a → 0123456789abcdef",
            ),
            (labels("1.0", ""), labels("", ""), "", "version: 1.0 → none"),
            (labels("1.0", "a"), labels("1.0", "a"), "", "version: 1.0\nrevision: a"),
            (labels("", ""), labels("", ""), "", ""),
        ] {
            let change = ConfigChange { old, new, differences: Vec::new() };
            assert_eq!((label_change(&change).as_str(), label_lines(&change).as_str()), (short, lines));
        }
    }
}
