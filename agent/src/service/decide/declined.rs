//! Manual rollbacks. An operator who rolls a service back to an older image while the registry still has the newer one
//! has declined the newer digest: it is held until the registry has another digest or an operator asks for it.

use jiff::Timestamp;

use crate::service::event::Event;
use crate::service::observation::Observation;
use crate::service::{Service, gates};

impl Service {
    /// Records digests that operators have replaced, and drops records that no longer apply. `is_manual`: an operator
    /// requested the registry's digest.
    pub(in crate::service) fn detect_manual_changes(
        &mut self,
        observation: &Observation,
        is_manual: bool,
        now: Timestamp,
    ) {
        if observation.swarm.is_none() {
            return;
        }
        let mut replaced = Vec::new();
        for view in &observation.images {
            let Some(remote) = &view.remote else { continue };
            let image = &view.configured;
            let memory = self.durable.images.of(image);
            let runs = view.running.iter().any(|local| local.digests.contains(remote));
            if runs || is_manual || memory.declined.as_ref() != Some(remote) {
                memory.declined = None;
            }
            // It ran while the registry had it, the registry still has it, but the service was set to another one.
            let is_known = view.running.iter().any(|local| !local.digests.is_empty());
            if runs || !is_known || memory.published.as_ref() != Some(remote) {
                continue;
            }
            memory.published = None;
            if !is_manual && memory.blocked.as_ref() != Some(remote) {
                let old = view.running.iter().find_map(|local| local.digests.last().cloned());
                replaced.push((image.clone(), remote.clone(), old));
            }
        }
        for (image, digest, old_digest) in replaced {
            self.durable.images.of(&image).declined = Some(digest.clone());
            let gate = gates::declined(&self.config.name, &image, &digest);
            let differences = Vec::new();
            self.emit(Event::UpdateAvailable { image, digest, old_digest, gate, differences }, now);
        }
    }
}
