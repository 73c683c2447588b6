//! The gate for a configuration with which no image can be deployed, or whose gates have a fault.

use evenkeel_common::wire::Gate;

use crate::config::UpdateConfig;
use crate::service::gates::candidate::Candidate;
use crate::service::gates::rules::{CONFIG, cleared_by, held};
use crate::service::wording;

/// The gate of an update that could never be proven, because its probe names a compose service that does not exist.
pub(in crate::service) fn probes_nothing(candidate: &Candidate) -> Option<Gate> {
    let why = wording::probe_names_no_service(candidate.probe_lacks.as_ref()?);
    Some(cleared_by("correct the configuration file and reload it", held(CONFIG, why)))
}

/// The gate of a service whose gates are configured wrongly.
pub(in crate::service) fn faulty(update: &UpdateConfig) -> Option<Gate> {
    let why = wording::faulty_gates(update.fault.as_ref()?);
    Some(cleared_by("correct the configuration file and reload it", held(CONFIG, why)))
}
