//! Compares the running image with the registry to decide whether it is up to date (DECISIONS 4, DOMAIN 1.4).

use crate::model::image::Digest;
use crate::service::images::{ImageMemory, OldImage};
use crate::service::observation::{ImageView, LocalImage};

/// The result of comparing one image with the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Comparison {
    /// Pinned to a digest: it never updates.
    Pinned,
    /// One of its containers is managed by another tool, which also updates it (DECISIONS 9).
    Managed,
    /// The registry returned no digest.
    Unanswered,
    /// The running digest is the one in the registry.
    UpToDate,
    /// The digest in the registry has failed here.
    Blocked,
    /// There is no local digest to compare with.
    NotFound {
        /// The digest in the registry.
        remote: Digest,
        /// Whether this was not known yet for this remote digest.
        new: bool,
    },
    /// Nothing of the project runs, and nothing of the image was ever here: bringing up the project pulls it, if no gate
    /// opens for one digest only.
    FirstStart {
        /// The digest in the registry.
        remote: Digest,
    },
    /// The registry has a different digest, which must be signed and does not count as signed: it is neither pulled nor
    /// started, and the running image is kept (DECISIONS 7).
    Unsigned,
    /// Nothing runs, and the digest in the registry has been pulled: it is deployed once something runs, or with the service
    /// that waits for a job on it.
    Pulled {
        /// The digest in the registry.
        remote: Digest,
    },
    /// The registry has a different digest than the running one.
    Stale {
        /// The digest in the registry.
        remote: Digest,
    },
}

/// Compares one image.
pub(super) fn compare(view: &ImageView, memory: &ImageMemory) -> Comparison {
    let Some(remote) = &view.remote else { return Comparison::Pinned };
    let local = view.current();
    // Even if it runs, after a failed rollback or a manual start: running does not prove it.
    if memory.is_blocked(remote) {
        return Comparison::Blocked;
    }
    if !local.is_empty() && local.iter().all(|image| image.digests.contains(remote)) {
        // It runs, but was never proven: its probation was interrupted, or a user unblocked it.
        if view.running.iter().any(|image| memory.is_unproven(&image.id)) {
            return Comparison::Stale { remote: remote.clone() };
        }
        return Comparison::UpToDate;
    }
    match &memory.not_found {
        _ if is_comparable(view) => Comparison::Stale { remote: remote.clone() },
        Some(known) if known == remote => Comparison::NotFound { remote: remote.clone(), new: false },
        // Suppressed until the remote digest changes (spec 3.2), and now it has.
        Some(_) => Comparison::Stale { remote: remote.clone() },
        None => Comparison::NotFound { remote: remote.clone(), new: true },
    }
}

/// Whether every local image that is compared with the registry has a digest.
pub(super) fn is_comparable(view: &ImageView) -> bool {
    let local = view.current();
    !local.is_empty() && local.iter().all(|image| !image.digests.is_empty())
}

/// The digest to show for an image: the registry's if the image has it, or else the one it received last.
pub(super) fn shown_digest(image: &LocalImage, remote: Option<&Digest>) -> Option<Digest> {
    match remote {
        Some(remote) if image.digests.contains(remote) => Some(remote.clone()),
        _ => image.digests.last().cloned(),
    }
}

/// An image of this view as a rollback target.
pub(super) fn old_image(view: &ImageView, image: &LocalImage) -> OldImage {
    let digest = shown_digest(image, view.remote.as_ref());
    let source = digest.map(|digest| view.reference.repository.pinned(&digest));
    OldImage { id: image.id.clone(), source }
}
