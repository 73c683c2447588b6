//! The properties that must hold at the end of a run, after everything has worked for a while.

use std::sync::Arc;

use evenkeel_agent::config::ServiceConfig;
use evenkeel_agent::model::HealthState;
use evenkeel_agent::model::image::Digest;
use evenkeel_agent::service::Durable;
use evenkeel_common::wire::ServiceStatus;
use jiff::{SignedDuration, Timestamp};

use super::super::env_file::{tag_of_version, version_of};
use super::super::{Behaviour, Definition, FakeWorld, Inner};
use super::gates::Asker;

const DELIVERED: &str = "every recorded entry reaches the destination";
const ENDLESS: &str = "nothing waits for ever once its cause is gone";
const LEFT_OVER: &str = "no container is left beside another of its service";
const DOWN: &str = "no service is down while a working image is available";

/// How long an image that crashes late runs before the healer sees it exit again.
const ROUND: SignedDuration = SignedDuration::from_secs(30);

/// What the agent publishes about a service at the end of a run.
pub(crate) struct AtEnd {
    pub(crate) config: Arc<ServiceConfig>,
    pub(crate) record: ServiceStatus,
}

impl FakeWorld {
    /// Reports whether an update of a service waits since it has failed.
    pub(crate) fn is_postponed(&self, service: &str) -> bool {
        self.lock().durable.get(service).is_some_and(|durable| !durable.postponed.is_empty())
    }

    /// Checks what must be finished after the world has been calm for a while.
    pub(crate) fn check_end(&self, all: &[AtEnd]) {
        let mut inner = self.lock();
        inner.check_delivered();
        for one in all {
            inner.check_nothing_waits(one);
            inner.check_images(one);
            inner.check_noted(one);
        }
        let services: Vec<String> = inner.services.iter().map(|service| service.name.clone()).collect();
        for service in services {
            inner.check_runs(&service, all);
        }
    }
}

impl Inner {
    fn check_delivered(&mut self) {
        let missing = self.truth.recorded.iter().find(|(seq, entry)| {
            self.truth.delivered.get(seq) != Some(entry) && !self.truth.unnumbered.contains(entry)
        });
        let missing = missing.map(|(seq, entry)| format!("number {seq}, {}", entry.message));
        let holds = missing.is_none() || self.truth.is_write_lost;
        self.unless(holds, DELIVERED, |_| missing.clone().unwrap_or_default());
    }

    fn check_nothing_waits(&mut self, one: &AtEnd) {
        let (name, record) = (&one.config.name, &one.record);
        let deploying = self.durable.get(name).is_some_and(|durable| durable.deployment.is_some());
        self.unless(!deploying && !record.deploying, ENDLESS, |_| format!("{name} is deploying"));
        let is_healed = !record.degraded || self.is_healed_in_vain(&one.config);
        self.unless(is_healed, ENDLESS, |_| format!("{name} is degraded"));
        let is_fresh =
            |at: Timestamp| self.wall(self.now).duration_since(at).abs() <= SignedDuration::from_secs(40);
        let is_checked = !one.config.is_polled() || record.last_check.is_some_and(is_fresh);
        self.unless(is_checked, ENDLESS, |_| format!("{name} is no longer checked"));
        let fault = record.errored.clone().unwrap_or_default();
        let is_over = [
            "registry",
            "no space left",
            "did not find expected key",
            "already allocated",
            "network not found",
        ];
        // An update that has failed, and that a gate holds by now, is not tried again.
        let failed = self.durable.get(name).map(|durable| durable.postponed.as_slice()).unwrap_or_default();
        let is_of_held = record.waiting.is_some()
            && failed.iter().any(|one| !one.why.is_empty() && fault.contains(&one.why));
        let remains = !is_of_held && is_over.iter().any(|text| fault.contains(text));
        self.unless(!remains, ENDLESS, |_| format!("{name} shows \"{fault}\""));
    }

    /// Whether the healer has just restarted a container that never works: the cause remains, and the healer may not have
    /// used up its restarts yet.
    fn is_healed_in_vain(&self, config: &ServiceConfig) -> bool {
        let patience = SignedDuration::try_from(config.heal_cooldown).unwrap_or(SignedDuration::MAX) + ROUND;
        let is_recent = |at: Timestamp| self.now.duration_since(at) <= patience;
        let mut broken = self.containers.iter().filter(|container| !container.works());
        broken.any(|container| {
            let restarts = self.truth.restarts.get(&container.name());
            restarts.and_then(|restarts| restarts.last).is_some_and(is_recent)
        })
    }

    /// Checks that every configured image is the registry's current one, or that the agent has a reason why not.
    fn check_images(&mut self, one: &AtEnd) {
        if !one.config.auto_update {
            return;
        }
        for image in &one.config.images {
            let repository = &image.reference.repository;
            let all = self.definitions(None);
            let Some(service) = all.iter().find(|s| s.reference.repository == *repository) else { continue };
            let tag = self.wanted_tag(service);
            let (Some(digest), Some(container)) =
                (self.registry.get(&tag).cloned(), self.container(&service.name))
            else {
                continue;
            };
            let wanted = self.published.get(&digest).map(|(id, _)| id.clone());
            let is_current = Some(&container.image) == wanted.as_ref() || !container.is_up();
            let is_known = |durable: &Durable| {
                has_failed(durable, &digest) || durable.images.not_found().any(|(_, known)| *known == digest)
            };
            let is_held = self.is_held(&tag, &digest, Asker::Cycle);
            // An edit that nobody has applied: an update would apply it, too.
            let is_edited = self.container(&service.name).is_some_and(|c| c.made_with != service.version);
            let excused =
                self.durable.values().any(is_known) || one.record.errored.is_some() || is_held || is_edited;
            let (service, runs) = (service.name.clone(), container.image.clone());
            self.unless(is_current || excused, ENDLESS, |inner| {
                format!("{service} runs {} and is not updated", inner.truth.image_name(&runs))
            });
        }
    }

    /// Returns the tag that a service must have reached: if the env file sets it, the newest tag that has not failed, otherwise
    /// the current one.
    fn wanted_tag(&self, service: &Definition) -> String {
        let in_force = service.reference.tag.as_deref().and_then(version_of);
        let (Some(in_force), true) = (in_force, service.has_variable) else {
            return service.reference.tagged();
        };
        let tags = self.tags_of(&service.reference.repository);
        let newer = tags.iter().filter_map(|tag| version_of(tag)).filter(|version| *version > in_force);
        let mut newer: Vec<String> =
            newer.map(|version| service.reference.with_tag(&tag_of_version(version)).tagged()).collect();
        newer.sort_by_key(|tag| std::cmp::Reverse(tag.rsplit_once(':').and_then(|(_, tag)| version_of(tag))));
        let has_failed = |tag: &&String| {
            let digest = &self.registry[*tag];
            self.durable.values().any(|durable| has_failed(durable, digest))
        };
        // After a failed rollback, only a still newer tag is tried.
        let is_stuck = self.durable.values().any(|durable| durable.rollback_failed);
        if is_stuck {
            newer.truncate(1);
        }
        let wanted = newer.iter().find(|tag| !has_failed(tag)).or(newer.first().filter(|_| is_stuck));
        wanted.cloned().unwrap_or_else(|| service.reference.tagged())
    }

    /// Checks that a service runs a working image, unless the agent could not achieve that.
    fn check_runs(&mut self, service: &str, all: &[AtEnd]) {
        let count = self.containers.iter().filter(|c| c.service == service).count();
        self.unless(count <= 1, LEFT_OVER, |_| format!("{service} has {count}"));
        let now = self.now;
        let container = self.container(service);
        let is_well = container.is_some_and(|c| {
            c.is_up()
                && !matches!(c.health(now), Some(HealthState::Unhealthy))
                && c.behaviour != Behaviour::CrashLoop
        });
        let heals = all.iter().any(|one| one.config.auto_heal);
        let exhausted = all.iter().any(|one| one.record.exhausted);
        let failed = self.durable.values().any(|durable| durable.rollback_failed);
        let works = container.is_some_and(|c| c.behaviour.works());
        let definition = self.services.iter().find(|definition| definition.name == service);
        let repository = definition.map(|definition| definition.reference.repository.clone());
        let mut images = all.iter().flat_map(|one| &one.config.images);
        let is_configured = images.any(|image| Some(&image.reference.repository) == repository.as_ref());
        let excused = self.truth.stopped_by_operator.contains(service)
            || exhausted
            || match container {
                // Only operators remove containers for good.
                None => false,
                Some(c) if self.truth.unknown.contains(&c.id) => true,
                // A working image whose container exited, by itself or with the engine: only the healer restarts it.
                Some(_) if works => !heals,
                // A reload removed its service before the image was proven, and an operator ended the deployment.
                Some(_) if !is_configured => true,
                // It has worked before, and no earlier image is known to work better.
                Some(c) => {
                    let by_operator = [&self.truth.started_by_operator, &self.truth.pulled];
                    failed
                        || self.truth.worked.contains(&c.image)
                        || by_operator.iter().any(|images| images.contains(&c.image))
                }
            };
        let what = container.map_or_else(
            || "no container".to_owned(),
            |c| format!("{:?} with {}", c.run, self.truth.image_name(&c.image)),
        );
        self.unless(is_well || excused, DOWN, |_| format!("{service}: {what}"));
    }
}

/// Reports whether a digest has failed. A failed digest stays blocked under every tag that names it, even if the status
/// shows a newer failed tag.
fn has_failed(durable: &Durable, digest: &Digest) -> bool {
    durable.images.iter().any(|(_, memory)| memory.is_blocked(digest))
}
