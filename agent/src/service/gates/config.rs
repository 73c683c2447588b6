//! The gate for a configuration with which no image can be deployed, or whose gates have a fault.

use evenkeel_common::wire::Gate;

use crate::config::UpdateConfig;
use crate::service::candidate::Candidate;
use crate::service::wording;

use super::{CONFIG, View, cleared_by, held, open};

pub(super) fn config(view: &View<'_>) -> Gate {
    let (word, config) = (CONFIG, view.service.config());
    if !config.auto_update {
        return cleared_by(
            "set auto_update to true in the configuration",
            held(word, "auto_update is false: the agent does not check for new images"),
        );
    }
    if config.images.is_empty() {
        return cleared_by("name images in the configuration", held(word, "no image is configured"));
    }
    if !config.can_deploy() {
        return cleared_by(
            "configure compose_files and compose_project, or swarm_service",
            held(word, "no compose project is configured, so new images can't be deployed"),
        );
    }
    if config.images.iter().all(|image| image.reference.is_pinned()) {
        return cleared_by(
            "configure an image by its tag",
            held(word, "every image is pinned to a digest, which never changes"),
        );
    }
    if let Some(why) = view.service.undeployable() {
        return held(word, why);
    }
    let faulty = config.update.as_deref().and_then(faulty);
    let faulty = faulty.or_else(|| view.candidates.iter().find_map(probes_nothing));
    faulty.unwrap_or_else(|| open(word, "auto_update is on"))
}

/// The gate of an update that could never be proven, because its probe names a compose service that does not exist.
pub(super) fn probes_nothing(candidate: &Candidate) -> Option<Gate> {
    let why = wording::probe_names_no_service(candidate.probe_lacks.as_ref()?);
    Some(cleared_by("correct the configuration file and reload it", held(CONFIG, why)))
}

/// The gate of a service whose gates are configured wrongly.
pub(super) fn faulty(update: &UpdateConfig) -> Option<Gate> {
    let why = wording::faulty_gates(update.fault.as_ref()?);
    Some(cleared_by("correct the configuration file and reload it", held(CONFIG, why)))
}
