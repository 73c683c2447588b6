//! Images that a redeployment does not replace: a manual request bypasses neither a block nor a missing signature
//! (DECISIONS 7). The reply and the audit entry list these images.

use evenkeel_common::wire::KeptImage;

use crate::model::image::Digest;
use crate::service::compare::Comparison;
use crate::service::observation::{ImageView, Observation};
use crate::service::rollout::plan::Cause;
use crate::service::{Service, wording};

impl Service {
    /// The kept images as of the last check. Before the first check only blocks are known, not signatures.
    pub(in crate::service) fn kept_images(&self) -> Vec<KeptImage> {
        if let Some(seen) = &self.known.observation {
            return seen.images.iter().filter_map(|view| self.kept_image(view, seen)).collect();
        }
        let configured = self.config.images.iter().map(|image| &image.configured);
        let blocked =
            configured.filter_map(|image| Some((image, self.durable.images.get(image).blocked.as_ref()?)));
        blocked
            .map(|(image, digest)| kept(image, digest, "blocked", self.why_blocked(image, digest)))
            .collect()
    }

    /// The images that the deployment about to begin keeps; empty unless it is a redeployment.
    pub(in crate::service) fn kept_by(&self, cause: &Cause) -> Vec<KeptImage> {
        if *cause == Cause::Redeploy { self.kept_images() } else { Vec::new() }
    }

    fn kept_image(&self, view: &ImageView, seen: &Observation) -> Option<KeptImage> {
        let image = &view.configured;
        let memory = self.durable.images.get(image);
        match self.compared(view, seen) {
            Comparison::Blocked if memory.declined.is_none() => {
                let own = memory.blocked.as_ref();
                let digest = view.remote.as_ref().or(own)?;
                let elsewhere = seen.block_elsewhere(view).filter(|_| !memory.is_blocked(digest));
                let why = elsewhere.map_or_else(
                    || self.why_blocked(image, digest),
                    |blocked| wording::blocked_elsewhere(digest, &blocked.service),
                );
                Some(kept(image, digest, "blocked", why))
            }
            Comparison::Unsigned => {
                let (why, digest) = (seen.unsigned.get(image)?, view.remote.as_ref()?);
                Some(kept(image, digest, "signature", wording::unsigned(image, digest, why)))
            }
            _ => None,
        }
    }
}

fn kept(image: &str, digest: &Digest, gate: &str, why: String) -> KeptImage {
    KeptImage { image: image.to_owned(), digest: digest.to_string(), gate: gate.to_owned(), why }
}
