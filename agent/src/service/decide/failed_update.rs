//! What is remembered of the last update that failed, so that whoever looks later sees the reason: a fold over events.

use evenkeel_common::wire::FailedUpdate;
use jiff::Timestamp;

use crate::model::image::Digest;
use crate::model::text;
use crate::service::event::{Event, FailedDeployment, GoBackEnd, GoBackResult, RollbackFailed};
use crate::service::rollout::plan::{GoBackReason, ImageChange};
use crate::service::{Service, wording};

/// How much of the output is kept in bytes; the end is kept.
const MAX_OUTPUT: usize = 2 * 1024;

impl Service {
    /// Remembers a failed update, and forgets it once an image is proven.
    pub(in crate::service) fn note_failed_update(&mut self, event: &Event, now: Timestamp) {
        // A rollback that has failed is worse than whatever becomes of another image, and stays known.
        if self.is_failed_rollback_known() && !matches!(event, Event::RollbackFailed(_)) {
            return;
        }
        let stays = matches!(
            event,
            Event::Updated(updated) if self.fails_above(&updated.change) || self.explains_block()
        );
        let known = &mut self.durable.failed_update;
        match event {
            // What failed for the machine's sake is a fault of the service, and tried again.
            Event::RolledBack { failed, .. } if !failed.by_node => {
                *known = Some(Box::new(of(failed, wording::rejection(&failed.failure.reason), true, now)));
            }
            Event::RollbackFailed(RollbackFailed { failed, why, .. }) => {
                let reason = wording::rollback_problem(&failed.failure.reason, why);
                *known = Some(Box::new(of(failed, reason, false, now)));
            }
            // What was left is blocked, and this says why. The record shows the first blocked digest by the image's name.
            Event::GoBack(GoBackEnd { back, result: GoBackResult::Proven { changes, .. } }) => {
                let all_left = changes.iter().filter_map(|change| Some((&change.configured, change.left()?)));
                let left = all_left.min_by_key(|(image, _)| *image).map(|(_, digest)| digest);
                *known = Some(Box::new(FailedUpdate {
                    at: now,
                    image: wording::names(changes),
                    digest: left.map(ToString::to_string),
                    reason: wording::go_back::reason(back),
                    container: None,
                    output: String::new(),
                    rolled_back: true,
                    by_hand: back.why == GoBackReason::ByHand,
                }));
            }
            Event::RollbackRetried => {
                if let Some(known) = known {
                    known.rolled_back = true;
                }
            }
            Event::Updated(_) if !stays => *known = None,
            _ => {}
        }
    }

    /// Whether the failed update that is remembered is one whose rollback has failed, and still stands.
    fn is_failed_rollback_known(&self) -> bool {
        let is_known = self.durable.failed_update.as_ref().is_some_and(|known| !known.rolled_back);
        is_known && self.durable.rollback_failed && self.rollback_stands()
    }

    /// Remembers a newer tag that has no image for this machine. A failed rollback is worse, and stays known.
    pub(in crate::service) fn note_passed_over(&mut self, change: &ImageChange, why: &str, now: Timestamp) {
        if self.durable.rollback_failed {
            return;
        }
        let tag = change.reference.tag.as_deref().unwrap_or_default();
        self.durable.failed_update = Some(Box::new(FailedUpdate {
            at: now,
            image: change.configured.clone(),
            digest: Some(change.digest.to_string()),
            reason: wording::lacks_platform(tag, why),
            container: None,
            output: String::new(),
            rolled_back: true,
            by_hand: false,
        }));
    }

    /// Whether the last failed update was to a newer tag than this image has been updated to: its digest stays blocked.
    fn fails_above(&self, change: &ImageChange) -> bool {
        let known = self.durable.failed_update.as_ref();
        let Some(digest) = known.and_then(|known| known.digest.as_deref()) else { return false };
        let has_variable = self.config.is_of_variable(&change.configured);
        let tag = change.reference.tag.as_deref().filter(|_| has_variable);
        let is_newer = |failed: &str| tag.is_none_or(|tag| self.is_newer_tag(failed, tag));
        let mut failed = self.durable.images.failed_tags().flat_map(|(_, tags)| tags);
        failed.any(|(tag, of)| of.as_str() == digest && is_newer(tag))
    }

    /// The failed update that the service still suffers from: its digest is blocked, or its rollback has failed.
    pub(in crate::service) fn failed_update(&self) -> Option<&FailedUpdate> {
        let durable = self.durable();
        let matters = durable.rollback_failed || durable.images.blocked().next().is_some();
        durable.failed_update.as_deref().filter(|_| matters)
    }

    /// The same if it is what this blocked digest comes from: another image may have failed since.
    pub(in crate::service) fn failed_update_of(&self, image: &str, digest: &Digest) -> Option<&FailedUpdate> {
        self.failed_update().filter(|failed| is_about(failed, image, digest))
    }

    /// Whether the last failed update is the reason of a block that stands.
    fn explains_block(&self) -> bool {
        let known = self.durable.failed_update.as_deref();
        known.is_some_and(|known| {
            self.durable.images.blocked().any(|(image, digest)| is_about(known, image, digest))
        })
    }

    /// Whether the blocked digest of an image is one that has failed here. One that was proven here first may have been left by a
    /// person, and others are blocked because a rollback failed.
    pub fn blocks_a_failure(&self, image: &str) -> bool {
        let memory = self.durable.images.get(image);
        let Some(digest) = &memory.blocked else { return false };
        let by_hand = self.failed_update_of(image, digest).is_some_and(|failed| failed.by_hand);
        memory.failed_before(digest) && !memory.has_left(digest) && !by_hand
    }

    /// Why a blocked digest is not deployed.
    pub(in crate::service) fn why_blocked(&self, image: &str, digest: &Digest) -> String {
        let is_of = |failed: &&FailedUpdate| failed.image.split(", ").any(|name| name == image);
        // A digest that failed earlier may be blocked again after that.
        let was_left = self.durable.images.get(image).has_left(digest);
        match self.failed_update().filter(|failed| failed.by_hand && was_left).filter(is_of) {
            Some(left) => wording::left_by_hand(digest, left.at),
            None => wording::blocked(digest),
        }
    }
}

/// Whether this digest of an image was blocked for a failed update. Of several images, the update names one digest only.
fn is_about(failed: &FailedUpdate, image: &str, digest: &Digest) -> bool {
    let names: Vec<&str> = failed.image.split(", ").collect();
    names.contains(&image) && (names.len() > 1 || failed.digest.as_deref() == Some(digest.as_str()))
}

fn of(failed: &FailedDeployment, reason: String, rolled_back: bool, now: Timestamp) -> FailedUpdate {
    FailedUpdate {
        at: now,
        image: failed.images.clone(),
        digest: failed.digests.as_ref().map(|(_, new)| new.to_string()),
        reason,
        container: Some(failed.failure.container.clone()).filter(|name| !name.is_empty()),
        output: text::tail(&failed.output, MAX_OUTPUT).to_owned(),
        rolled_back,
        by_hand: false,
    }
}
