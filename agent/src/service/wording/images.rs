//! What is said of images: signatures, labels, whether they could be brought back.

use crate::model::SignatureFlaw;
use crate::model::image::{Digest, LabelChange};
use crate::service::input::Unsigned;
use crate::service::maintenance::{GoneFrom, RollbackRisk};

/// What stands in the way of a rollback, in one line that stays the same as long as that does.
pub(in crate::service) fn rollback_risks(risks: &[RollbackRisk]) -> String {
    let words = |risk: &RollbackRisk| match risk {
        RollbackRisk::ImageGone { image, registry } => {
            let registry = match registry {
                GoneFrom::NeverPushed => "and no registry has it".to_owned(),
                GoneFrom::Removed => "and its registry does not have it any more".to_owned(),
                GoneFrom::Unknown(why) => format!("and its registry does not answer: {why}"),
            };
            format!("the image of {image} that runs is not on this machine, {registry}")
        }
        RollbackRisk::ComposeFiles { why } => format!("the compose files are not valid: {why}"),
        RollbackRisk::Disk { .. } => "the engine's disk has no room for one more image".to_owned(),
    };
    risks.iter().map(words).collect::<Vec<_>>().join("; ")
}

/// Why an update waits for a signature.
pub(in crate::service) fn unsigned(image: &str, digest: &Digest, why: &Unsigned) -> String {
    let digest = digest.short();
    match why {
        Unsigned::Missing => format!("{image}: {digest} is not signed"),
        Unsigned::Invalid(SignatureFlaw::Malformed) => {
            format!("{image}: {digest} has no signature in a form that is known")
        }
        Unsigned::Invalid(SignatureFlaw::OtherKey) => {
            format!("{image}: {digest} is signed, but not with a key of signed_by")
        }
        Unsigned::Invalid(SignatureFlaw::OtherDigest) => {
            format!("{image}: {digest} carries a signature that was made for another image")
        }
        Unsigned::Unknown(text) => format!("{image}: whether {digest} is signed is not known: {text}"),
    }
}

/// ` from 1.27.3 to 1.27.4`, as far as the images say so; where they name no version, by their revisions.
pub(super) fn label_change(labels: &LabelChange) -> String {
    let LabelChange { old, new } = labels;
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

/// What the images say of themselves, before and after, one label a line.
pub(super) fn label_lines(labels: &LabelChange) -> String {
    let LabelChange { old, new } = labels;
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
    fn an_update_says_what_changed_as_far_as_the_images_tell() {
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
            let change = LabelChange { old, new };
            assert_eq!((label_change(&change).as_str(), label_lines(&change).as_str()), (short, lines));
        }
    }
}
