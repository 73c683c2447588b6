//! A person's way back. Who rolls a service back to an older image while the registry still has the newer one does not
//! want that one, whatever the tag says: it is held until the registry has another digest, or a person asks for it.

use jiff::Timestamp;

use crate::service::Service;
use crate::service::event::Event;
use crate::service::gates;
use crate::service::input::Observation;
use crate::service::rollout::plan::ImageChange;

impl Service {
    /// Notes what people have replaced, and forgets what is no longer so. `asked`: a person asks for what the registry
    /// has.
    pub(in crate::service) fn follow_people(
        &mut self,
        observation: &Observation,
        asked: bool,
        now: Timestamp,
    ) {
        if observation.swarm.is_none() {
            return;
        }
        let mut replaced = Vec::new();
        for view in &observation.images {
            let Some(remote) = &view.remote else { continue };
            let image = &view.configured;
            let durable = &mut self.durable;
            let runs = view.running.iter().any(|local| local.digests.contains(remote));
            if runs || asked || durable.declined.get(image) != Some(remote) {
                durable.declined.remove(image);
            }
            // It ran while the registry had it, the registry still has it, and the service was set to another one.
            let is_known = view.running.iter().any(|local| !local.digests.is_empty());
            if runs || !is_known || durable.published.get(image) != Some(remote) {
                continue;
            }
            durable.published.remove(image);
            if !asked && durable.blocked.get(image) != Some(remote) {
                let old = view.running.iter().find_map(|local| local.digests.last().cloned());
                replaced.push((image.clone(), remote.clone(), old));
            }
        }
        for (image, digest, old_digest) in replaced {
            self.durable.declined.insert(image.clone(), digest.clone());
            let gate = gates::declined(&self.config.name, &image, &digest);
            self.emit(Event::UpdateAvailable { image, digest, old_digest, gate }, now);
        }
    }

    /// A person has replaced an image in the middle of its update.
    pub(super) fn decline(&mut self, change: Option<ImageChange>) {
        if let Some(change) = change {
            self.durable.declined.insert(change.configured, change.digest);
        }
    }
}
