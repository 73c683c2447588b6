//! Manual rollbacks. An operator who rolls a service back to an older image while the registry still has the newer one
//! has declined the newer digest: it is held until the registry has another digest or an operator asks for it.

use jiff::Timestamp;

use crate::service::event::Event;
use crate::service::images::ImageMemory;
use crate::service::observation::{ImageView, LocalImage, Observation};
use crate::service::{Service, compare, gates};

impl Service {
    /// Records digests that operators have replaced, and drops records that no longer apply. `is_asked_for`: an
    /// operator requested the registry's digest.
    pub(in crate::service) fn detect_manual_changes(
        &mut self,
        observation: &Observation,
        is_asked_for: bool,
        now: Timestamp,
    ) {
        let is_in_swarm = observation.swarm.is_some();
        let mut replaced = Vec::new();
        for view in &observation.images {
            let Some(remote) = &view.remote else { continue };
            let image = &view.configured;
            let is_postponed = self.durable.postponed.iter().any(|one| one.is_of(&[remote]));
            let memory = self.durable.images.of(image);
            let runs = view.running.iter().any(|local| local.digests.contains(remote));
            if runs {
                // Whoever has started it, it is no longer only pulled.
                memory.pulled = None;
            }
            if runs || is_asked_for || memory.declined.as_ref() != Some(remote) {
                memory.declined = None;
            }
            // Nobody has to have seen it run: an update and its rollback may both fall between two checks.
            let is_left = observation.swarm.as_ref().is_some_and(|swarm| swarm.is_rolled_back_from(remote));
            let is_left_now = is_left && memory.rolled_back_from.as_ref() != Some(remote);
            memory.rolled_back_from = is_left.then(|| remote.clone());
            // One that has failed here was rolled back for that.
            let is_left_unseen =
                is_left_now && !is_postponed && memory.declined.is_none() && !memory.failed_before(remote);
            // It ran while the registry had it, the registry still has it, but the service was set to another one.
            let is_replaced = if is_in_swarm {
                view.running.iter().any(|local| !local.digests.is_empty())
            } else {
                is_put_back(view, memory)
                    && observation.blocked_elsewhere.iter().all(|blocked| blocked.digest != *remote)
            };
            let has_run = memory.published.as_ref() == Some(remote) || is_left_unseen;
            if runs || !is_replaced || !has_run {
                continue;
            }
            memory.published = None;
            if !is_asked_for && memory.blocked.as_ref() != Some(remote) {
                if !is_in_swarm {
                    // What was put back was proven before. A probation that was interrupted says nothing against it.
                    if view.running.iter().any(|local| memory.is_unproven(&local.id)) {
                        memory.unproven = None;
                    }
                    // `auto_start` must not set the tag to the image that was declined.
                    let target = view.running.first().map(|local| compare::old_image(view, local));
                    memory.keep_target(target.as_ref());
                }
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

/// Reports whether somebody has set a tag back to an image that was proven here and left, and has made all containers from it.
/// A container that was only started again runs on another image than its tag.
fn is_put_back(view: &ImageView, memory: &ImageMemory) -> bool {
    let was_left = |local: &LocalImage| {
        view.tagged.as_ref().is_some_and(|tagged| tagged.id == local.id)
            && local.digests.iter().any(|digest| memory.has_left(digest))
    };
    let is_of_tag = view.newer.is_none() && view.from == view.reference;
    // What was only pulled never ran here, so that nobody has replaced it.
    let has_run = memory.pulled.is_none() || memory.pulled != view.remote;
    is_of_tag && has_run && !view.running.is_empty() && view.running.iter().all(was_left)
}
