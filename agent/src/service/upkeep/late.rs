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
    /// By how much the clock was set since the watch began: each time from what it was before until now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clock_set: Vec<SignedDuration>,
}

impl LateWatch {
    /// Moves the exits after the clock was set by `by`. The engine may report them again, by the clock as it was.
    pub(in crate::service) fn clock_was_set(&mut self, by: SignedDuration) {
        for (exit, _) in &mut self.exits {
            *exit = exit.checked_add(by).unwrap_or(*exit);
        }
        self.clock_set.iter_mut().for_each(|earlier| *earlier = earlier.saturating_add(by));
        self.clock_set.push(by);
    }

    /// Whether this exit is noted, by whichever clock it is reported.
    pub(in crate::service) fn has_noted(&self, at: Timestamp, id: &str) -> bool {
        let mut moved = self.clock_set.iter().chain([&SignedDuration::ZERO]);
        moved.any(|by| {
            let at = at.checked_add(*by).unwrap_or(at);
            self.exits.iter().any(|(exit, of)| *exit == at && of == id)
        })
    }
}
