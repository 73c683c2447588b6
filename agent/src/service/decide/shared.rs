//! Images that several services of a compose project use: an update for one service also affects the others, so it waits
//! for the gates of all of them (DECISIONS 7).
//!
//! Each service evaluates a digest by its own configuration and state: when it was first seen, whether it is approved, the
//! gate command's answer, whether it is signed. The worker of the project passes the results on with every check. Fleet
//! decisions are the same for all services of a machine, and are not evaluated twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::config::{ConfiguredImage, ServiceConfig};
use crate::model::image::Digest;
use crate::service::compare::Comparison;
use crate::service::gates::SIGN;
use crate::service::gates::candidate::{Candidate, SharedCandidate, Unsigned};
use crate::service::observation::{ImageView, Observation};
use crate::service::{Service, wording};

impl Service {
    /// Whether another service of the project may hold an image of this one.
    pub(in crate::service) fn shares_gates(&self) -> bool {
        self.siblings().any(|other| other.auto_update && other.update.is_some() && self.shares_image(other))
    }

    /// Whether gates of this service, or of another one with an image of it, open for one digest only: what is pulled then
    /// must be exactly that digest.
    pub(in crate::service) fn opens_for_digests(&self) -> bool {
        let opens = |service: &ServiceConfig| {
            let update = service.update.as_ref().filter(|_| service.auto_update);
            update.is_some_and(|update| {
                update.approve
                    || update.min_age.is_some()
                    || !update.gate.is_empty()
                    || !update.signed_by.is_empty()
            })
        };
        self.config.auto_update
            && (opens(&self.config) || self.siblings().any(|other| opens(other) && self.shares_image(other)))
    }

    fn shares_image(&self, other: &ServiceConfig) -> bool {
        let has = |image: &ConfiguredImage| {
            other.images.iter().any(|theirs| theirs.reference.repository == image.reference.repository)
        };
        self.config.images.iter().any(has)
    }

    /// Returns this service's view of a digest that another service found, and why it does not count as signed. `None` if
    /// this service has no gates or no such image, or already runs the digest.
    fn shared_candidate(
        &self,
        view: &ImageView,
        digest: &Digest,
        now: Timestamp,
    ) -> Option<(SharedCandidate, Option<Unsigned>)> {
        let update = self.config.update.clone().filter(|_| self.config.auto_update)?;
        let image = self.config.images.iter().find(|image| self.is_shared(image, view))?;
        let seen = self.known.observation.as_ref();
        let own = seen.and_then(|seen| Some((seen, seen.images.iter().find(|v| is_same(v, image, view))?)));
        let own = own.filter(|(_, own)| own.remote.as_ref() == Some(digest));
        if own.is_some_and(|(seen, own)| self.compared(own, seen) == Comparison::UpToDate) {
            return None;
        }
        let found = self.durable.images.get(&image.configured).found_digest(view.target(), digest);
        let is_approved = found.is_some_and(|found| found.approved);
        let fault =
            if update.signed_by.is_empty() { None } else { self.signature_fault(own, digest, is_approved) };
        let candidate = Candidate {
            image: image.configured.clone(),
            reference: view.target().clone(),
            digest: digest.clone(),
            old_digest: None,
            // It will be recorded by this service's next check.
            first_seen: found.map_or(now, |found| found.first_seen),
            approved: is_approved,
            // Both are reported as `Unsigned::Elsewhere` instead.
            unsigned: None,
            played_back: None,
            triggered: false,
            command: self.command_answer(&image.configured, digest).cloned(),
            definition: None,
            orders: BTreeMap::new(),
            configs: own.and_then(|(seen, own)| seen.configs_of(own)),
            snapshot: own.and_then(|(seen, _)| seen.snapshot.clone()),
            not_copied: self.durable.images.get(&image.configured).not_copied(digest).cloned(),
            probe_lacks: None,
            fleet: None,
            others: Vec::new(),
        };
        Some((SharedCandidate { service: self.config.name.clone(), update, candidate }, fault))
    }

    /// Returns why a digest does not count as signed for the others, as this service requires it; `own`: its view of the digest.
    fn signature_fault(
        &self,
        own: Option<(&Arc<Observation>, &ImageView)>,
        digest: &Digest,
        is_approved: bool,
    ) -> Option<Unsigned> {
        let name = &self.config.name;
        let Some((seen, own)) = own else {
            return Some(Unsigned::Elsewhere {
                why: wording::not_checked_yet(name, digest),
                clear: format!("POST /trigger/{name}?pass=false"),
            });
        };
        let (why, clear) = match seen.unsigned.get(&own.configured) {
            Some(why) if !matches!(why, Unsigned::Elsewhere { .. }) => {
                (wording::unsigned(&own.configured, digest, why), SIGN.to_owned())
            }
            _ => {
                let played_back = self.played_back(own, digest, seen).filter(|_| !is_approved)?;
                let why = wording::played_back(&own.configured, digest, played_back);
                (why, format!("POST /approve/{name}"))
            }
        };
        Some(Unsigned::Elsewhere { why: wording::unsigned_elsewhere(name, &why), clear })
    }

    /// Whether an image of this service is the one that another service has queried. Includes a newer tag that this service
    /// does not know yet, if it would be deployed here.
    fn is_shared(&self, image: &ConfiguredImage, view: &ImageView) -> bool {
        let views = self.known.observation.iter().flat_map(|seen| &seen.images);
        let own = views.into_iter().find(|own| own.configured == image.configured);
        let target = own.map_or(&image.reference, ImageView::target);
        if target == view.target() {
            return true;
        }
        let tags = (view.target().tag.as_deref(), target.tag.as_deref());
        let (Some(newer), Some(tag)) = tags else { return false };
        view.newer.is_some()
            && target.repository == view.target().repository
            && self.config.is_of_variable(&image.configured)
            && self.is_newer_tag(newer, tag)
    }
}

/// Whether a view of this service refers to the same repository and tag.
fn is_same(own: &ImageView, image: &ConfiguredImage, view: &ImageView) -> bool {
    own.configured == image.configured && own.target() == view.target()
}

/// Adds to the observation of one service how the other services of its project see the digests.
pub fn add_shared_candidates(observation: &mut Observation, others: &[&Service], now: Timestamp) {
    let Observation { images, others: shared_candidates, unsigned, .. } = observation;
    for view in images {
        let Some(digest) = &view.remote else { continue };
        let is_here = view.running.iter().any(|image| image.digests.contains(digest));
        for other in others {
            let Some((shared, fault)) = other.shared_candidate(view, digest, now) else { continue };
            if let Some(why) = fault.filter(|_| !is_here) {
                unsigned.entry(view.configured.clone()).or_insert(why);
            }
            shared_candidates.entry(view.configured.clone()).or_default().push(shared);
        }
    }
}
