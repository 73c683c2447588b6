//! The property of an image that is reported as updated.

use evenkeel_agent::model::image::Digest;
use evenkeel_agent::service::Durable;
use evenkeel_common::wire::AuditEntry;
use jiff::SignedDuration;

use super::super::{Behaviour, FakeContainer, Inner};

const PROVEN: &str = "an image is reported as updated only after it was well for the health grace";
const PROBED: &str = "an image whose containers never answer their probe is not reported as updated";
/// How soon a verdict that could not be written is written after the disk accepts writes again.
const LATE_VERDICT: SignedDuration = SignedDuration::from_secs(10);

impl Inner {
    /// Notes whether the new containers of a handover are proven when the old ones are about to be removed.
    pub(super) fn note_settling(&mut self, service: &str, durable: &Durable) {
        let Some(deployment) = &durable.deployment else { return };
        match deployment.phase.name() {
            "settle" if self.truth.settled.contains_key(service) => {}
            "settle" => {
                let (now, grace) = (self.now, deployment.plan().grace);
                let is_new = |c: &&FakeContainer| deployment.new_ids.values().any(|id| *id == c.image);
                let is_proven = |c: &FakeContainer| {
                    c.is_well(now) && c.started().is_some_and(|since| now >= since + grace)
                };
                let proven = self.containers.iter().filter(is_new).all(is_proven);
                self.truth.settled.insert(service.to_owned(), proven);
            }
            "unpin" => {}
            _ => drop(self.truth.settled.remove(service)),
        }
    }

    /// Checks an `updated` entry.
    pub(super) fn check_updated(&mut self, entry: &AuditEntry) {
        let digest = entry.new_digest.as_deref().and_then(|digest| Digest::parse(digest).ok());
        let Some((id, behaviour)) = digest.and_then(|digest| self.published.get(&digest).cloned()) else {
            return;
        };
        let config = self.truth.configs.iter().find(|config| config.name == entry.service);
        let is_probed =
            config.is_some_and(|config| config.update.as_ref().is_some_and(|u| u.probe.is_some()));
        let never_answers = is_probed && behaviour == Behaviour::Mute && !self.truth.have_probes_lied;
        let grace = config.map(|config| config.health_grace).unwrap_or_default();
        let now = self.now;
        let is_proven =
            |c: &FakeContainer| c.is_well(now) && c.started().is_some_and(|since| now >= since + grace);
        let of_image = || self.containers.iter().filter(|c| c.image == id);
        // A verdict that could not be written is recorded later, about the state at the time of the verdict.
        let is_late = self.truth.is_torn
            || self.truth.disk_changed_at.is_some_and(|at| now.duration_since(at) < LATE_VERDICT);
        // If the clock was set back, a start may have an earlier time than the previous one, and the two are ambiguous.
        let is_set_back = self.clock_set.iter().any(|(_, by)| by.is_negative());
        let baseline = self.truth.baselines.get(&entry.service);
        let is_uncertain = is_set_back && baseline.is_some_and(|baseline| !baseline.touched.is_empty());
        // In a handover the verdict is reached before the old containers are removed, and reported afterwards.
        let was_proven = self.truth.settled.get(&entry.service).is_some_and(|proven| *proven);
        let holds = of_image().all(is_proven)
            || was_proven
            || is_late
            || is_uncertain
            || !self.is_calm_since(SignedDuration::from_secs(3));
        self.unless(!never_answers, PROBED, |inner| inner.truth.image_name(&id));
        self.unless(holds, PROVEN, |inner| inner.truth.image_name(&id));
    }
}
