//! Which maintenance task is due, and its results.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::config::ConfiguredImage;
use crate::model::image::{ImageId, Reference};
use crate::model::tags::TagPattern;
use crate::service::action::Action;
use crate::service::event::Event;
use crate::service::observation::Observation;
use crate::service::upkeep::maintenance::{
    FoundTags, MaintenanceResult, MaintenanceTask, RemovableImage, RollbackRisk, RunningImage, TagInUse,
    WayBack,
};
use crate::service::{Service, compare, wording};

/// Interval between two look-ups of newer tags.
const TAG_INTERVAL: SignedDuration = SignedDuration::from_hours(1);
/// Minimum interval between two look-ups after requests, and push notifications, which may not be from the registry.
const TAG_MIN_INTERVAL: SignedDuration = SignedDuration::from_secs(5);
/// Interval between two checks of the way back.
const WAY_BACK_INTERVAL: SignedDuration = SignedDuration::from_hours(24);
/// The first checks of the way back are spread over this many seconds after the start, by service.
const WAY_BACK_SPREAD: i64 = 3600;

impl Service {
    /// Returns the next task, if one is due, and marks it as begun.
    pub(in crate::service) fn next_maintenance(&mut self, now: Timestamp) -> Option<Action> {
        let task = self.due_task(now)?;
        self.maintenance.is_running = true;
        Some(Action::Maintain(task))
    }

    fn due_task(&mut self, now: Timestamp) -> Option<MaintenanceTask> {
        // The running images must be known.
        if self.maintenance.is_running || self.is_changing_project() || self.known.observation.is_none() {
            return None;
        }
        if std::mem::take(&mut self.maintenance.removal_due) {
            let images = self.removable();
            if !images.is_empty() {
                return Some(MaintenanceTask::RemoveImages { images });
            }
        }
        if self.maintenance.tags_at.is_none_or(|at| at <= now) {
            self.maintenance.tags_at = Some(now + TAG_INTERVAL);
            self.maintenance.last_tag_lookup = Some(now);
            let asked = self.maintenance.asked.take();
            if let Some(task) = self.tags_in_use() {
                self.maintenance.answering = asked;
                return Some(task);
            }
        }
        if self.way_back_at(now).is_some_and(|at| at <= now) {
            self.maintenance.way_back_at = Some(now + WAY_BACK_INTERVAL);
            return self.way_back_task();
        }
        None
    }

    /// When a task is due next.
    pub(in crate::service) fn maintenance_at(&self, now: Timestamp) -> Option<Timestamp> {
        if self.maintenance.is_running || self.is_changing_project() || self.known.observation.is_none() {
            return None;
        }
        let tags_at = self.tag_pattern().map(|_| self.maintenance.tags_at.unwrap_or(now));
        let removal_at = self.maintenance.removal_due.then_some(now);
        [tags_at, removal_at, self.way_back_at(now)].into_iter().flatten().min()
    }

    /// Schedules an immediate check of the way back.
    pub(in crate::service) fn check_way_back_now(&mut self, now: Timestamp) {
        self.maintenance.way_back_at = Some(now);
    }

    /// An update is proven, rolled back, given up, or only pulled: schedules the removal of images that are no longer needed.
    pub(in crate::service) fn remove_old_images_soon(&mut self) {
        self.maintenance.removal_due = true;
    }

    /// Handles the result of a task.
    pub(in crate::service) fn maintained(&mut self, result: MaintenanceResult, now: Timestamp) {
        self.maintenance.is_running = false;
        match result {
            MaintenanceResult::NewerTags(found) => self.tags_found(found, now),
            MaintenanceResult::ImagesRemoved(gone) => {
                for (_, memory) in self.durable.images.iter_mut() {
                    memory.deployed.retain(|image| !gone.contains(&image.id));
                }
            }
            MaintenanceResult::WayBackChecked(risks) => self.way_back_checked(risks, now),
        }
    }

    fn tag_pattern(&self) -> Option<&TagPattern> {
        self.config.update.as_ref()?.tags.as_ref()
    }

    /// A registry has reported a push that may be a newer tag: schedules a look-up.
    pub(in crate::service) fn tag_was_pushed(&mut self, now: Timestamp) {
        let maintenance = &mut self.maintenance;
        maintenance.is_pushed = true;
        let soon = maintenance.last_tag_lookup.map_or(now, |at| now.max(at + TAG_MIN_INTERVAL));
        maintenance.tags_at = maintenance.tags_at.map(|at| at.min(soon));
    }

    /// A user requests a check: schedules a look-up, since the tag that is meant may have been pushed just now. `passes`: the
    /// check passes the gates that a trigger passes.
    pub(in crate::service) fn look_up_tags_now(&mut self, passes: bool, now: Timestamp) {
        if self.tag_pattern().is_none() {
            return;
        }
        // Without the variable, newer tags are only announced.
        if self.config.tag_variable().is_some() {
            let before = self.maintenance.asked.unwrap_or_default();
            self.maintenance.asked = Some(passes || before);
        }
        self.tag_was_pushed(now);
    }

    /// Whether a look-up that users have requested is running, or due. None is due before anything is known of the service.
    pub(in crate::service) fn awaits_tags(&self) -> bool {
        let is_due = self.maintenance.asked.is_some() && self.known.observation.is_some();
        self.maintenance.answering.is_some() || is_due
    }

    pub(in crate::service) fn tags_in_use(&mut self) -> Option<MaintenanceTask> {
        let refresh = std::mem::take(&mut self.maintenance.is_pushed);
        let pattern = self.tag_pattern()?.clone();
        let in_use = self.config.images.iter().filter(|image| !image.reference.is_pinned());
        let images: Vec<TagInUse> = in_use
            .map(|image| {
                let (tag, memory) = (self.tag_in_use(image), self.durable.images.get(&image.configured));
                let known = memory.newest_tag.clone().filter(|_| memory.newest_of.as_ref() == Some(&tag));
                TagInUse {
                    configured: image.configured.clone(),
                    repository: image.reference.repository.clone(),
                    tag,
                    is_shared: self.config.is_of_variable(&image.configured),
                    known,
                }
            })
            .collect();
        (!images.is_empty()).then_some(MaintenanceTask::FindNewerTags { pattern, images, refresh })
    }

    fn tag_in_use(&self, image: &ConfiguredImage) -> String {
        let in_force = self.known.observation.as_ref().and_then(|seen| seen.tag.as_ref());
        match in_force.filter(|_| self.config.is_of_variable(&image.configured)) {
            Some(in_force) => in_force.setting.tag.clone(),
            None => image.reference.tag.clone().unwrap_or_else(|| "latest".to_owned()),
        }
    }

    /// If the env file sets a different tag than before, looks up newer tags again. A tag that a person has replaced with an
    /// older one is declined.
    pub(in crate::service) fn follow_tag(&mut self, observation: &Observation, now: Timestamp) {
        let tag = |seen: &Observation| seen.tag.as_ref().map(|tag| tag.setting.tag.clone());
        let before = self.known.observation.as_deref().and_then(tag);
        let Some(after) = tag(observation) else { return };
        self.follow_declined_tag(before.as_deref(), &after, now);
        if before.is_some_and(|before| before != after) {
            self.maintenance.newer.retain(|image, _| !self.config.is_of_variable(image));
            self.maintenance.tags_at = None;
        }
    }

    /// Applies the found tags. Each newer tag is announced once. While a registry does not answer, its known tags are kept.
    fn tags_found(&mut self, found: FoundTags, now: Timestamp) {
        let before = self.tags_to_deploy();
        let answers = self.maintenance.answering.take();
        self.maintenance.has_tags |= !found.newer.is_empty();
        self.maintenance.tag_errors = found.errors;
        for (image, (tag, why)) in found.not_newer {
            let told = &mut self.durable.images.of(&image).told_tag_of_other_scheme;
            if told.as_ref() != Some(&tag) {
                *told = Some(tag.clone());
                self.emit(Event::NotNewerTag { image, tag, why }, now);
            }
        }
        for (image, newer) in found.newer {
            if self.config.is_of_variable(&image) {
                let was_listed = self.durable.images.get(&image).tags_listed;
                self.maintenance.is_relisted |= was_listed;
                if !was_listed {
                    self.durable.images.of(&image).tags_listed = true;
                }
            }
            let newest = newer.first().cloned();
            let configured = self.config.images.iter().find(|one| one.configured == image);
            let of = newest.as_ref().and(configured).map(|one| self.tag_in_use(one));
            let memory = self.durable.images.get(&image);
            if memory.newest_tag != newest || memory.newest_of != of {
                let memory = self.durable.images.of(&image);
                (memory.newest_tag, memory.newest_of) = (newest.clone(), of);
            }
            let Some(tag) = newest else {
                self.maintenance.newer.remove(&image);
                continue;
            };
            self.maintenance.newer.insert(image.clone(), newer);
            if self.durable.images.of(&image).announce(&tag) {
                self.emit(Event::NewerTag { image, tag }, now);
            }
        }
        if self.tags_to_deploy() != before {
            match answers {
                Some(passes) => self.checks.continue_manual(passes),
                None => self.request_check(),
            }
        }
    }

    /// The newest tag of an image, if it is newer than the configured one.
    pub(in crate::service) fn newer_tag(&self, configured: &str) -> Option<&String> {
        self.tag_pattern().and_then(|_| self.maintenance.newer.get(configured)?.first())
    }

    /// When the next check of the way back is due. The first checks are spread over the services so that not all of them
    /// run compose at the same time.
    fn way_back_at(&self, now: Timestamp) -> Option<Timestamp> {
        if !self.config.auto_update || !self.config.can_deploy() {
            return None;
        }
        if let Some(at) = self.maintenance.way_back_at {
            return Some(at);
        }
        let checked = self.durable.way_back.as_ref().map(|way_back| way_back.checked_at);
        // A clock that was set back must not delay the check.
        let next = checked.filter(|at| *at <= now).map(|at| at + WAY_BACK_INTERVAL);
        let sum =
            self.config.name.bytes().fold(0_i64, |sum, byte| (sum * 31 + i64::from(byte)) % WAY_BACK_SPREAD);
        let first = self.begun + SignedDuration::from_secs(sum);
        Some(next.map_or(first, |next| next.max(first)))
    }

    fn way_back_task(&self) -> Option<MaintenanceTask> {
        let seen = self.known.observation.as_ref()?;
        let images = seen.images.iter().flat_map(|view| {
            view.running.iter().map(|image| RunningImage {
                configured: view.configured.clone(),
                id: image.id.clone(),
                source: compare::old_image(view, image).source,
                size: image.size,
            })
        });
        let images = images.filter(|image| !image.id.0.is_empty()).collect();
        Some(MaintenanceTask::CheckWayBack { project: self.compose_project().map(Box::new), images })
    }

    fn way_back_checked(&mut self, risks: Option<Vec<RollbackRisk>>, now: Timestamp) {
        let Some(risks) = risks else {
            self.maintenance.way_back_at = Some(now + TAG_INTERVAL);
            return;
        };
        let risk = (!risks.is_empty()).then(|| wording::rollback_risks(&risks));
        let before = self.durable.way_back.replace(WayBack { checked_at: now, risk: risk.clone() });
        let before = before.and_then(|way_back| way_back.risk);
        match (before, risk) {
            (before, Some(risk)) if before.as_ref() != Some(&risk) => {
                self.emit(Event::WayBackAtRisk { risk }, now);
            }
            (Some(risk), None) => self.emit(Event::WayBackOk { risk }, now),
            _ => {}
        }
    }

    /// The images that are kept even if no container uses them: the last proven ones, the rollback targets, and those that wait
    /// for a container. While the cleanup is off, that is all of them.
    pub fn needed_images(&self) -> BTreeSet<&ImageId> {
        let keep = self.config.keep_images;
        let mut kept: BTreeSet<&ImageId> = BTreeSet::new();
        for (_, memory) in self.durable.images.iter() {
            kept.extend(memory.proven.as_ref().map(|image| &image.id));
            kept.extend(&memory.unproven);
            kept.extend(memory.waiting_image());
            // It may be tried again.
            let last = memory.deployed.last().filter(|_| !self.durable.postponed.is_empty());
            kept.extend(last.map(|image| &image.id));
            if keep == 0 {
                kept.extend(memory.deployed.iter().map(|image| &image.id));
            }
            let proven = memory.deployed.iter().rev().filter(|image| image.proven);
            kept.extend(proven.take(keep).map(|image| &image.id));
        }
        kept
    }

    /// Deployed and pulled images that this service no longer needs.
    fn removable(&self) -> Vec<RemovableImage> {
        let mut kept = self.needed_images();
        kept.extend(self.containers().iter().map(|container| &container.image));
        let mut old: BTreeMap<&ImageId, Vec<Reference>> = BTreeMap::new();
        let deployed = self.durable.images.iter().flat_map(|(_, memory)| &memory.deployed);
        for image in deployed.filter(|image| !kept.contains(&image.id)) {
            old.entry(&image.id).or_default().extend(image.tags.iter().cloned());
        }
        old.into_iter().map(|(id, tags)| RemovableImage { id: id.clone(), tags }).collect()
    }
}
