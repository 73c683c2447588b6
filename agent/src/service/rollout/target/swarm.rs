//! The steps on a swarm service, whose own `update_config` decides how its tasks are replaced. What proves an image there
//! is in `watch.rs`.
//!
//! Every step first reads the service, and is done if that already names the image, so it can be repeated. If the swarm has
//! already rolled back by itself, nothing is left to do. An image that is neither the old nor the new one was set by
//! someone else, and stays.

use crate::model::image::Reference;
use crate::model::swarm::is_same_image;
use crate::service::action::{SetImage, SwarmStep};
use crate::service::rollout::deployment::Deployment;
use crate::service::rollout::plan::SwarmPlan;
use crate::service::rollout::step::Phase;

impl Deployment {
    /// Returns the step of the current phase; `None` if the phase only waits, or there is none for it in a swarm.
    pub(super) fn step_in_swarm(&self, swarm: &SwarmPlan) -> Option<SwarmStep> {
        let SwarmPlan { service, from, to, back, force, .. } = swarm;
        match &self.phase {
            Phase::Admit => {
                let old = self.plan().image_changes.first().and_then(|change| change.old_digest.clone());
                let service = service.clone();
                Reference::parse(to).ok().map(|image| SwarmStep::Admit { service, image, old })
            }
            Phase::Update => Some(SwarmStep::Set(SetImage {
                service: service.clone(),
                from: from.clone(),
                to: to.clone(),
                force: *force,
                back: false,
                before: None,
            })),
            Phase::Diagnose(failed) => Some(SwarmStep::Diagnose {
                task: failed.task.clone(),
                container: failed.failure.container_id.clone(),
            }),
            Phase::Rollback(_) => Some(SwarmStep::Set(SetImage {
                service: service.clone(),
                from: to.clone(),
                to: back.clone(),
                force: None,
                back: true,
                before: Some(from.clone()).filter(|from| !is_same_image(from, back)),
            })),
            _ => None,
        }
    }
}
