//! What must hold of an image that is told as updated.

use evenkeel_agent::model::image::Digest;
use evenkeel_common::wire::AuditEntry;
use jiff::SignedDuration;

use super::super::{FakeContainer, Inner};

const PROVEN: &str = "an image is updated only when it has run well for the grace";
/// A verdict that the disk did not take is written so soon after it takes writes again.
const LATE_VERDICT: SignedDuration = SignedDuration::from_secs(10);

impl Inner {
    /// An update was told.
    pub(super) fn check_updated(&mut self, entry: &AuditEntry) {
        let digest = entry.new_digest.as_deref().and_then(|digest| Digest::parse(digest).ok());
        let Some((id, _)) = digest.and_then(|digest| self.published.get(&digest).cloned()) else { return };
        let config = self.truth.configs.iter().find(|config| config.name == entry.service);
        // The agent's own steps take their time.
        let grace = config.map(|config| config.health_grace).unwrap_or_default();
        let now = self.now;
        let is_proven =
            |c: &FakeContainer| c.is_well(now) && c.started().is_some_and(|since| now >= since + grace);
        let of_image = || self.containers.iter().filter(|c| c.image == id);
        // A verdict that the disk did not take is told when it does, about what was then.
        let is_late = self.truth.is_torn
            || self.truth.disk_changed_at.is_some_and(|at| now.duration_since(at) < LATE_VERDICT);
        // A start that has an earlier time than the one before it can't be told from that one's end.
        let is_set_back = self.clock_set.iter().any(|(_, by)| by.is_negative());
        let begun = self.truth.begun.get(&entry.service);
        let is_blurred = is_set_back && begun.is_some_and(|begun| !begun.touched.is_empty());
        let holds = of_image().all(is_proven)
            || is_late
            || is_blurred
            || !self.is_calm_since(SignedDuration::from_secs(3));
        self.unless(holds, PROVEN, |inner| inner.truth.word(&id));
    }
}
