//! Is an image up to date? What runs is compared with what the registry has (DECISIONS 4, DOMAIN 1.4).

use crate::model::image::{Digest, Reference};

use super::Durable;
use super::action::OldImage;
use super::input::{ImageView, LocalImage};

/// How one image stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Comparison {
    /// Pinned to a digest: it never updates.
    Pinned,
    /// A container of it is kept by somebody else, who updates it, too (DECISIONS 9).
    Managed,
    /// The registry gave no digest.
    Unanswered,
    /// What runs is what the registry has.
    UpToDate,
    /// The registry has a digest that failed here.
    Blocked,
    /// There is nothing to compare with; `new` when this was not known for this remote digest.
    NotFound {
        /// What the registry has.
        remote: Digest,
        /// Whether it was not known yet.
        new: bool,
    },
    /// The registry has something else than what runs, and it must be signed and does not count as that: it is neither
    /// fetched nor started, and what runs stays (DECISIONS 7).
    Unsigned,
    /// The registry has something else than what runs.
    Stale {
        /// What the registry has.
        remote: Digest,
    },
}

/// Compares one image.
pub(super) fn compare(view: &ImageView, durable: &Durable) -> Comparison {
    let Some(remote) = &view.remote else { return Comparison::Pinned };
    let local = local(view);
    // Also when it runs: after a rollback that failed, or started by hand. Running does not prove it.
    if durable.is_blocked(&view.configured, remote) {
        return Comparison::Blocked;
    }
    if !local.is_empty() && local.iter().all(|image| image.digests.contains(remote)) {
        // It runs, but it was never proven: its probation was interrupted, or a person unblocked it.
        let unproven = durable.unproven.get(&view.configured);
        if view.running.iter().any(|image| Some(&image.id) == unproven) {
            return Comparison::Stale { remote: remote.clone() };
        }
        return Comparison::UpToDate;
    }
    match durable.not_found.get(&view.configured) {
        _ if is_comparable(view) => Comparison::Stale { remote: remote.clone() },
        Some(known) if known == remote => Comparison::NotFound { remote: remote.clone(), new: false },
        // Suppressed until the remote digest changes (spec 3.2), and now it has.
        Some(_) => Comparison::Stale { remote: remote.clone() },
        None => Comparison::NotFound { remote: remote.clone(), new: true },
    }
}

/// What runs decides; the tag only when nothing runs.
fn local(view: &ImageView) -> Vec<&LocalImage> {
    if view.running.is_empty() { view.tagged.iter().collect() } else { view.running.iter().collect() }
}

/// Whether there is a digest here for all that the registry's is compared with.
pub(super) fn is_comparable(view: &ImageView) -> bool {
    let local = local(view);
    !local.is_empty() && local.iter().all(|image| !image.digests.is_empty())
}

/// The digest that stands for an image: the registry's where it has it, else the one it got last.
pub(super) fn shown_digest(image: &LocalImage, remote: Option<&Digest>) -> Option<Digest> {
    match remote {
        Some(remote) if image.digests.contains(remote) => Some(remote.clone()),
        _ => image.digests.last().cloned(),
    }
}

/// An image of this view as something to go back to.
pub(super) fn old_image(view: &ImageView, image: &LocalImage) -> OldImage {
    let source = shown_digest(image, view.remote.as_ref()).map(|digest| Reference {
        repository: view.reference.repository.clone(),
        tag: None,
        digest: Some(digest),
    });
    OldImage { id: image.id.clone(), source }
}
