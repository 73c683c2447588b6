//! How the plan of a rollout in a swarm is made: the image to set, and the one that a rollback would restore.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::image::{Digest, ImageId, Reference};
use crate::model::swarm::{SwarmService, Task, is_same_image};
use crate::service::Service;
use crate::service::event::Fault;
use crate::service::images::OldImage;
use crate::service::observation::{ImageView, Observation};
use crate::service::rollout::deployment::Deployment;
use crate::service::rollout::outage::Outage;
use crate::service::rollout::plan::{Cause, ImageChange, Plan, Planned, SwarmPlan};
use crate::service::wording::swarm as wording;

/// Time until the next check while an external update is in progress.
const BUSY_INTERVAL: Duration = Duration::from_secs(30);

impl Service {
    /// Plans an update from the last observation. Returns whether there is one to do.
    pub(in crate::service) fn begin_in_swarm(&mut self, cause: Cause, now: Timestamp) -> bool {
        let Some(observation) = self.known.observation.clone() else { return false };
        let Some(swarm) = &observation.swarm else { return false };
        if swarm.is_changing() {
            self.wait_for_external_update(&swarm.name, &cause, now);
            return false;
        }
        let Some((to, change)) = self.target(&observation, swarm, &cause, now) else { return false };
        let change = change.map(|change| self.with_known_old(change, swarm));
        // The running image, unless it is known to have failed.
        let old = change.as_ref().and_then(|change| change.old.as_ref()?.source.as_ref()?.digest.clone());
        let back = match (old, observation.images.first()) {
            (Some(old), Some(view)) if swarm.digest().as_ref() != Some(&old) => at(view, swarm, old),
            _ => swarm.image.clone(),
        };
        let is_set = is_same_image(&to, &swarm.image);
        // Nothing else makes the swarm go on with a rollback that it has paused.
        let is_stuck = is_set && cause == Cause::RetryRollback && swarm.is_paused();
        let force = (is_stuck || cause == Cause::Redeploy).then_some(swarm.force_update + 1);
        // If the service is already set to the image, no task is replaced: the existing ones prove it, as do those that the swarm
        // has left on the image when it paused a change. If it replaces them nevertheless, they end without a failure.
        let is_replaced = |task: &Task| {
            let is_left = task.should_run && !task.is_failed() && is_same_image(&task.image, &to);
            force.is_some() || !(is_set || is_left)
        };
        let known = swarm.tasks.iter().filter(|task| is_replaced(task)).map(|task| task.id.clone());
        let known: BTreeSet<String> = known.collect();
        let set =
            SwarmPlan { service: swarm.name.clone(), from: swarm.image.clone(), force, known, to, back };
        let kept = self.kept_by(&cause);
        let plan = Plan {
            kept,
            image_changes: change.into_iter().collect(),
            swarm: Some(set),
            ..Plan::bare(cause, &self.config.name, self.config.health_grace)
        };
        let deployment = Deployment::of_swarm(plan, Outage::of_swarm(swarm, now), now);
        self.durable.deployment = Some(Box::new(deployment));
        self.note_begun();
        true
    }

    /// While the swarm has paused a change, the old image is the one that all tasks still run. If the specification names no
    /// digest, it is the one that the tag had until now, as far as is known. The tag alone is none: the nodes would pull what
    /// it has now, which may be the image that failed.
    fn with_known_old(&self, change: ImageChange, swarm: &SwarmService) -> ImageChange {
        let memory = self.durable.images.get(&change.configured);
        let may_be_old = |digest: &Digest| *digest != change.digest && !memory.failed_before(digest);
        let still_runs = swarm.runs_instead().filter(may_be_old);
        if still_runs.is_none() && change.old.as_ref().is_none_or(|old| old.source.is_some()) {
            return change;
        }
        let before = still_runs.or_else(|| memory.not_found.clone().filter(may_be_old));
        let old = before
            .as_ref()
            .map(|digest| OldImage { id: ImageId::from(digest), source: Some(change.source(digest)) });
        ImageChange { old_digest: before, old, ..change }
    }

    /// Waits for an external update. A manual redeploy fails instead, because the request is not stored.
    fn wait_for_external_update(&mut self, service: &str, cause: &Cause, now: Timestamp) {
        if *cause == Cause::Redeploy {
            return self.redeploy_failed(wording::busy_for_redeploy(service), String::new(), now);
        }
        self.retry_rollback |= *cause == Cause::RetryRollback;
        let text = wording::busy(service);
        self.set_fault(Some(Fault { text, from_check: true }), now);
        self.checks.request_by(now + BUSY_INTERVAL);
    }

    /// Returns the image to set, and the change of the configured image; `None` if there is nothing to do.
    fn target(
        &self,
        observation: &Observation,
        swarm: &SwarmService,
        cause: &Cause,
        now: Timestamp,
    ) -> Option<(String, Option<ImageChange>)> {
        let decisions = self.decide_images(observation, cause, now);
        let planned = decisions.first().and_then(|it| self.plan_image(it, &decisions, observation, cause));
        let view = observation.images.first();
        match (planned, view) {
            (Some(Planned::Change(change)), Some(view)) => {
                Some((at(view, swarm, change.digest.clone()), Some(change)))
            }
            (Some(Planned::Keep(_, image)), Some(view)) if *cause != Cause::Update => {
                let proven = image.source.and_then(|source| source.digest);
                Some((proven.map_or_else(|| swarm.image.clone(), |digest| at(view, swarm, digest)), None))
            }
            // The image is pinned, or none is configured: the tasks are recreated unchanged.
            _ if *cause == Cause::Redeploy => Some((swarm.image.clone(), None)),
            _ => None,
        }
    }
}

/// Returns the configured image with this digest, spelled as the specification spells it: to a client that compares the texts,
/// another spelling is another image, for which it replaces all tasks.
fn at(view: &ImageView, swarm: &SwarmService, digest: Digest) -> String {
    let own = format!("{}@{digest}", swarm.image.split('@').next().unwrap_or_default());
    let wanted = Reference { digest: Some(digest), ..view.reference.clone() }.to_string();
    // Without a tag and a digest, `latest` is meant; with a digest, none.
    if is_same_image(&own, &wanted) { own } else { wanted }
}
