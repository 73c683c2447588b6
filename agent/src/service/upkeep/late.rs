//! The late watch: an image that was proven and fails soon afterwards is rolled back as on probation (DECISIONS 14).

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// How long an exit is looked at before it counts: an engine that goes away stops all containers first.
pub(in crate::service) const SETTLED: SignedDuration = SignedDuration::from_secs(20);

/// What is watched after one update. An image is watched once: an update ends the earlier watch over the images that it changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateWatch {
    /// When the update was proven.
    pub since: Timestamp,
    /// When the watch ends.
    pub until: Timestamp,
    /// The images that were updated, as configured.
    pub images: Vec<String>,
    /// Unwanted exits of their containers: when, and the container's ID.
    pub exits: Vec<(Timestamp, String)>,
}
