//! One check, and one step, of a swarm service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::config::ConfiguredImage;
use crate::model::image::{ImageId, Reference, Repository};
use crate::model::image_config::{ConfigChange, ImageConfig};
use crate::model::swarm::{SwarmService, is_same_image};
use crate::model::{Container, Digest, SwarmError};
use crate::ports::{Registry, Swarm};
use crate::service::action::{SetImage, SwarmStep};
use crate::service::input::{CheckFault, StepResult, SwarmResult};
use crate::service::observation::{ImageView, LocalImage, Observation, Unanswered};

use super::observe::{Check, Judged, signed_by, within};

/// Number of log lines kept of a failed container or task (black box).
pub(super) const LOG_LINES: u32 = 20;
/// Number of attempts to apply a change that conflicts with changes by other clients.
const CONFLICTS: u32 = 5;

impl Check {
    /// Reads service and registry. The image in the specification counts as the running one, because the tasks follow it.
    pub(super) async fn observe_swarm(
        &self,
        name: &str,
        patience: Option<Duration>,
    ) -> Result<Observation, CheckFault> {
        let configured = self.config.images.first().filter(|_| self.asked.images);
        let remote = async {
            match configured {
                Some(image) if !image.reference.is_pinned() => {
                    within(patience, self.cycle.digest(&image.reference)).await.map(Some)
                }
                _ => Ok(None),
            }
        };
        let (remote, service) = tokio::join!(remote, self.world.swarm.service(name));
        let service = service.map_err(|error| match error {
            SwarmError::Unavailable(_) => CheckFault::EngineAway(error.to_string()),
            other => CheckFault::Failed(other.to_string()),
        })?;
        let (mut unanswered, mut judged) = (BTreeMap::new(), Judged::default());
        let mut images = Vec::new();
        for image in &self.config.images {
            let mut view = ImageView {
                running: local(&service, image),
                ..ImageView::new(image.configured.clone(), image.reference.clone())
            };
            match self.answer(remote.clone(), &view, patience).await {
                Ok(digest) => view.remote = digest,
                Err(why) => {
                    unanswered.insert(view.configured.clone(), why);
                }
            }
            if let Some(digest) = &view.remote
                && let Err(pending) = self.judge(digest, &view, patience, &mut judged).await
            {
                view.remote = None;
                unanswered.insert(view.configured.clone(), pending);
            }
            images.push(view);
        }
        let containers: Arc<[Container]> = service.containers().into();
        let needed = Box::pin(self.needed(&images, &containers)).await?;
        Ok(Observation {
            images,
            containers,
            swarm: Some(Box::new(service)),
            needed,
            unanswered,
            unsigned: judged.unsigned,
            signed_earlier: judged.signed_earlier,
            configs: judged.configs,
            key_faults: self.world.signatures.key_errors(signed_by(&self.config)).await,
            ..Observation::default()
        })
    }

    /// Returns the digest in the registry. A digest never seen on this machine is confirmed, because it is about to be
    /// acted on.
    async fn answer(
        &self,
        remote: Result<Option<Digest>, Unanswered>,
        view: &ImageView,
        patience: Option<Duration>,
    ) -> Result<Option<Digest>, Unanswered> {
        let Some(digest) = remote? else { return Ok(None) };
        let runs = view.running.iter().any(|image| image.digests.contains(&digest));
        if runs || self.asked.settled.contains(&(view.configured.clone(), digest.clone())) {
            return Ok(Some(digest));
        }
        within(patience, self.world.registry.digest_from_content(&view.reference)).await.map(Some)
    }
}

/// Returns the running version of a configured image; empty if the service runs another image.
fn local(service: &SwarmService, image: &ConfiguredImage) -> Vec<LocalImage> {
    let Some(runs) = service.reference() else { return Vec::new() };
    let tag = |tag: &Option<String>| tag.clone().unwrap_or_else(|| "latest".to_owned());
    if runs.repository != image.reference.repository || tag(&runs.tag) != tag(&image.reference.tag) {
        return Vec::new();
    }
    let id = runs.digest.as_ref().map_or_else(|| ImageId("".into()), ImageId::from);
    vec![LocalImage { id, digests: runs.digest.into_iter().collect(), size: 0 }]
}

/// Performs a step for the decision core.
pub(super) async fn step(swarm: &dyn Swarm, registry: &dyn Registry, step: SwarmStep) -> StepResult {
    let done = match step {
        SwarmStep::Admit { service, image, old } => {
            admit(swarm, registry, &service, &image, old.as_ref()).await
        }
        SwarmStep::Set(change) => set(swarm, &change).await,
        SwarmStep::Diagnose { task, container } => diagnose(swarm, &task, &container).await,
    };
    StepResult::Swarm(done.unwrap_or_else(|error| {
        if error.is_transient() {
            SwarmResult::Transient(error)
        } else {
            SwarmResult::Failed(error.to_string())
        }
    }))
}

/// Asks the swarm whether it takes the new image, and compares the two.
async fn admit(
    swarm: &dyn Swarm,
    registry: &dyn Registry,
    service: &str,
    image: &Reference,
    old: Option<&Digest>,
) -> Result<SwarmResult, SwarmError> {
    swarm.admits(&swarm.service(service).await?, image).await?;
    Ok(SwarmResult::Admitted { labels: config_change(registry, image, old).await })
}

/// Reads the configurations of the old and the new image from the registry, because the nodes pull the images, not this
/// engine.
async fn config_change(registry: &dyn Registry, image: &Reference, old: Option<&Digest>) -> ConfigChange {
    let tag = image.tag.as_deref();
    let (old, new) = tokio::join!(
        config(registry, &image.repository, old),
        config(registry, &image.repository, image.digest.as_ref())
    );
    ConfigChange::between(old.as_ref().map(|old| (old, tag)), new.as_ref().map(|new| (new, tag)))
}

async fn config(
    registry: &dyn Registry,
    repository: &Repository,
    digest: Option<&Digest>,
) -> Option<ImageConfig> {
    registry.config(repository, digest?, None).await.unwrap_or_else(|error| {
        tracing::debug!(%repository, "cannot read an image's configuration: {error}");
        None
    })
}

/// Collects the logs and health check output of a failed task. The latter is only available on the task's own node.
async fn diagnose(swarm: &dyn Swarm, task: &str, container: &str) -> Result<SwarmResult, SwarmError> {
    let log = match task {
        "" => String::new(),
        task => match swarm.task_log(task, LOG_LINES).await {
            // A log that can't be read in time must not delay the rollback, which itself waits for the engine.
            Err(SwarmError::Unavailable(why)) => {
                tracing::warn!(task, "the log of the task could not be read: {why}");
                String::new()
            }
            log => log?,
        },
    };
    let health = if container.is_empty() { Ok(String::new()) } else { swarm.health_check(container).await };
    // The container may be gone by now.
    Ok(SwarmResult::Diagnosed { log, health: health.unwrap_or_default() })
}

/// Sets the image of the specification, provided that it is still the expected one. Other clients may change the service at
/// any time, so it is read again after each conflict.
async fn set(swarm: &dyn Swarm, change: &SetImage) -> Result<SwarmResult, SwarmError> {
    for _ in 0..CONFLICTS {
        let service = swarm.service(&change.service).await?;
        let is_forced = change.force.is_none_or(|value| service.force_update >= value);
        // A paused rollback does not continue by itself, and some tasks may still run the new image.
        let is_stuck = change.back && service.is_paused();
        let names = |image: &str| is_same_image(&service.image, image);
        let is_set = names(&change.to);
        if is_set && is_forced && !is_stuck {
            return Ok(SwarmResult::Set);
        }
        let is_before = change.before.as_deref().is_some_and(names) && service.is_rolled_back_by_swarm();
        if !is_set && !names(&change.from) && !is_before {
            return Ok(SwarmResult::Foreign { image: service.image });
        }
        if service.is_changing() && !change.back {
            return Ok(SwarmResult::Busy);
        }
        let leads_back = service.previous_image.as_deref().is_some_and(|old| is_same_image(old, &change.to));
        let done = if change.back && !is_set && leads_back {
            swarm.roll_back(&service).await
        } else {
            swarm.set_image(&service, &change.to, !is_forced || is_stuck).await
        };
        match done {
            Err(SwarmError::Conflict) => {}
            done => return done.map(|()| SwarmResult::Set),
        }
    }
    Ok(SwarmResult::Busy)
}

#[cfg(test)]
mod tests {

    use async_trait::async_trait;
    use parking_lot::Mutex;

    use super::*;
    use crate::model::swarm::{Restarts, SwarmMode, UpdateState, UpdateStatus};

    const OLD: &str = "web:1@sha256:1111111111111111111111111111111111111111111111111111111111111111";
    const NEW: &str = "web:1@sha256:2222222222222222222222222222222222222222222222222222222222222222";

    /// The image before the old one, unproven.
    const BEFORE: &str = "web:1@sha256:3333333333333333333333333333333333333333333333333333333333333333";

    /// A service, and the number of concurrent changes by other clients; and the changes made.
    struct Fake(Mutex<(SwarmService, u32)>, Mutex<Vec<String>>);

    impl Fake {
        fn change(&self, service: &SwarmService, image: &str, how: &str) -> Result<(), SwarmError> {
            let (now, others) = &mut *self.0.lock();
            if *others > 0 {
                (*others, now.version) = (*others - 1, now.version + 1);
            }
            if service.version != now.version {
                return Err(SwarmError::Conflict);
            }
            self.1.lock().push(how.to_owned());
            image.clone_into(&mut now.image);
            Ok(())
        }
    }

    #[async_trait]
    impl Swarm for Fake {
        async fn service(&self, _: &str) -> Result<SwarmService, SwarmError> {
            Ok(self.0.lock().0.clone())
        }

        async fn admits(&self, _: &SwarmService, _: &Reference) -> Result<(), SwarmError> {
            Ok(())
        }

        async fn set_image(
            &self,
            service: &SwarmService,
            image: &str,
            force: bool,
        ) -> Result<(), SwarmError> {
            self.change(service, image, if force { "force" } else { "set" })
        }

        async fn roll_back(&self, service: &SwarmService) -> Result<(), SwarmError> {
            let image = service.previous_image.clone().unwrap_or_default();
            self.change(service, &image, "roll back")
        }

        async fn task_log(&self, _: &str, _: u32) -> Result<String, SwarmError> {
            Ok(String::new())
        }

        async fn health_check(&self, _: &str) -> Result<String, SwarmError> {
            Ok(String::new())
        }
    }

    fn service(image: &str) -> SwarmService {
        SwarmService {
            id: "s".into(),
            name: "web".into(),
            version: 1,
            image: image.into(),
            previous_image: None,
            force_update: 0,
            mode: SwarmMode::Replicated(1),
            update: None,
            tasks: Vec::new(),
            nodes_down: std::collections::BTreeSet::new(),
            nodes_paused: std::collections::BTreeSet::new(),
            restarts: Restarts::All,
            is_constrained: false,
        }
    }

    async fn set_with(service: SwarmService, others: u32, back: bool) -> (SwarmResult, Vec<String>) {
        let fake = Fake(Mutex::new((service, others)), Mutex::default());
        let (from, to) = if back { (NEW, OLD) } else { (OLD, NEW) };
        let before = back.then(|| BEFORE.to_owned());
        let service = "web".to_owned();
        let change = SetImage { service, from: from.into(), to: to.into(), force: None, back, before };
        let result = set(&fake, &change).await.expect("it responds");
        (result, fake.1.into_inner())
    }

    #[tokio::test]
    async fn a_conflict_is_retried_and_no_change_is_made_twice() {
        assert_eq!(set_with(service(OLD), 0, false).await, (SwarmResult::Set, vec!["set".to_owned()]));
        assert_eq!(set_with(service(OLD), 2, false).await, (SwarmResult::Set, vec!["set".to_owned()]));
        assert_eq!(set_with(service(OLD), 99, false).await, (SwarmResult::Busy, vec![]));
        assert_eq!(set_with(service(NEW), 0, false).await, (SwarmResult::Set, vec![]));
    }

    #[tokio::test]
    async fn an_image_set_by_another_client_is_left_alone() {
        let foreign = SwarmResult::Foreign { image: "web:2".into() };
        assert_eq!(set_with(service("web:2"), 0, false).await, (foreign.clone(), vec![]));
        assert_eq!(set_with(service("web:2"), 0, true).await, (foreign, vec![]));
        let update = Some(UpdateStatus { state: UpdateState::Updating, message: String::new() });
        let busy = SwarmService { update, ..service(OLD) };
        assert_eq!(set_with(busy, 0, false).await, (SwarmResult::Busy, vec![]));
    }

    #[tokio::test]
    async fn a_rollback_uses_the_previous_specification_if_that_has_the_old_image() {
        let previous = SwarmService { previous_image: Some(OLD.into()), ..service(NEW) };
        assert_eq!(set_with(previous, 0, true).await, (SwarmResult::Set, vec!["roll back".to_owned()]));
        let other = SwarmService { previous_image: Some(NEW.into()), ..service(NEW) };
        assert_eq!(set_with(other, 0, true).await, (SwarmResult::Set, vec!["set".to_owned()]));
        // The swarm has already rolled back.
        assert_eq!(set_with(service(OLD), 0, true).await, (SwarmResult::Set, vec![]));
        // The swarm has paused its rollback.
        let update = UpdateStatus { state: UpdateState::RollbackPaused, message: String::new() };
        let halfway = SwarmService { update: Some(update), ..service(OLD) };
        assert_eq!(set_with(halfway, 0, true).await, (SwarmResult::Set, vec!["force".to_owned()]));
    }

    /// The swarm's own rollback leads to the image before, which was not proven either.
    #[tokio::test]
    async fn a_rollback_also_starts_after_the_swarm_has_rolled_back_by_itself() {
        let with = |state| {
            let update = UpdateStatus { state, message: "as configured".into() };
            SwarmService { update: Some(update), ..service(BEFORE) }
        };
        for state in [UpdateState::RollbackStarted, UpdateState::RollbackCompleted] {
            let done = (SwarmResult::Set, vec!["set".to_owned()]);
            assert_eq!(set_with(with(state), 0, true).await, done, "{state:?}");
        }
        // Set by another client.
        let foreign = (SwarmResult::Foreign { image: BEFORE.into() }, vec![]);
        assert_eq!(set_with(with(UpdateState::Completed), 0, true).await, foreign);
        assert_eq!(set_with(service(BEFORE), 0, true).await, foreign);
    }

    #[tokio::test]
    async fn an_image_that_is_spelled_differently_is_the_same() {
        let long = |image: &str| format!("docker.io/library/{image}");
        assert_eq!(set_with(service(&long(NEW)), 0, false).await, (SwarmResult::Set, vec![]));
        assert_eq!(set_with(service(&long(OLD)), 0, false).await, (SwarmResult::Set, vec!["set".to_owned()]));
        let previous = SwarmService { previous_image: Some(long(OLD)), ..service(&long(NEW)) };
        assert_eq!(set_with(previous, 0, true).await, (SwarmResult::Set, vec!["roll back".to_owned()]));
    }
}
