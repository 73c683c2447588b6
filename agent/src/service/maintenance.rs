//! What is done for a service beside checks and deployments (DECISIONS 7): newer tags are looked for, images that are no
//! longer needed are removed, and it is checked whether a rollback would be possible.
//!
//! Nothing of it changes a container, and nothing of it runs while the project is being changed. Like everything else it
//! is decided here and done outside (`project/maintain.rs`), one task at a time.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::config::ConfiguredImage;
use crate::model::Project;
use crate::model::image::{ImageId, Reference, Repository};
use crate::model::tags::TagPattern;

use super::action::Action;
use super::event::Event;
use super::input::Observation;
use super::{Service, compare, wording};

/// Time between two looks for newer tags.
const TAGS_EVERY: SignedDuration = SignedDuration::from_hours(1);
/// The same where a registry tells of pushes, whoever says that it is the registry.
const TAGS_APART: SignedDuration = SignedDuration::from_secs(5);
/// Time between two checks of the way back.
const WAY_BACK_EVERY: SignedDuration = SignedDuration::from_hours(24);
/// The first check of the way back comes at some time of this span after the start, another for each service.
const FIRST_WAY_BACK: i64 = 3600;
/// Deployed images that are remembered for each configured image.
const MOST_DEPLOYED: usize = 50;

/// One thing to do outside.
#[derive(Debug, Clone, PartialEq)]
pub enum MaintenanceTask {
    /// Read the tags of repositories.
    FindNewerTags {
        /// Which are looked for.
        pattern: TagPattern,
        /// What is in use.
        images: Vec<TagInUse>,
        /// Something was pushed: lists that were read before do not count.
        anew: bool,
    },
    /// Remove images that no container uses, and that no tag names but those that they were deployed under.
    RemoveImages {
        /// Which.
        images: Vec<OldDeployedImage>,
    },
    /// See whether a rollback to what runs now would be possible.
    CheckWayBack {
        /// What would be brought up; `None` for a service of a swarm, whose nodes all fetch what they lack.
        project: Option<Project>,
        /// What runs.
        images: Vec<RunningImage>,
    },
}

/// A configured image and its tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagInUse {
    /// As configured.
    pub configured: String,
    /// Where it is published.
    pub repository: Repository,
    /// The tag.
    pub tag: String,
    /// Whether its newer tag must be one that all images have of which this is true: one variable is the tag of all.
    pub is_shared: bool,
}

/// An image that is no longer needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldDeployedImage {
    /// Its ID.
    pub id: ImageId,
    /// What it was deployed under: tags that are removed with it.
    pub tags: Vec<Reference>,
}

/// An image that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningImage {
    /// As configured.
    pub configured: String,
    /// Its ID.
    pub id: ImageId,
    /// Where it can be fetched again; `None` for one that was only built here.
    pub source: Option<Reference>,
    /// Uncompressed size in bytes; 0 while unknown.
    pub size: u64,
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq)]
pub enum MaintenanceResult {
    /// Tags of each image, as configured, that are newer than the one in use: the newest first, at most
    /// [`MOST_NEWER`](super::newer_tags::MOST_NEWER). What could not be read is left out.
    NewerTags(BTreeMap<String, Vec<String>>),
    /// Images that are no longer here.
    ImagesRemoved(Vec<ImageId>),
    /// What stands in the way of a rollback; `None` where the engine gave no answer, so that nothing is known.
    WayBackChecked(Option<Vec<RollbackRisk>>),
}

/// Something that would keep a rollback from succeeding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RollbackRisk {
    /// The registry does not serve the image that the tasks of a swarm run on.
    NotServed {
        /// As configured.
        image: String,
        /// Why not.
        registry: GoneFrom,
    },
    /// An image that runs is neither here nor in its registry.
    ImageGone {
        /// As configured.
        image: String,
        /// Why its registry is of no help.
        registry: GoneFrom,
    },
    /// Compose does not accept the files.
    ComposeFiles {
        /// What it says.
        why: String,
    },
    /// There is too little space for one more image.
    Disk {
        /// Bytes that are free.
        free: u64,
        /// Bytes that the largest image takes.
        needed: u64,
    },
}

/// Why an image can't be fetched from its registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GoneFrom {
    /// It never was in one.
    NeverPushed,
    /// The registry has it no more.
    Removed,
    /// The registry gave no answer.
    Unknown(String),
}

/// What is known of the way back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayBack {
    /// When it was checked last.
    pub checked_at: Timestamp,
    /// What stands in its way, in words; `None`: nothing.
    pub risk: Option<String>,
}

/// An image that this agent has deployed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeployedImage {
    /// Its ID.
    pub id: ImageId,
    /// Whether it passed its probation.
    pub proven: bool,
    /// The tags that it was deployed under.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Reference>,
}

/// What is due, and what was found.
// Each flag is one open question of its own; none excludes another.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, Default)]
pub(super) struct Maintenance {
    is_running: bool,
    tags_at: Option<Timestamp>,
    /// When newer tags were looked for last.
    tags_looked_at: Option<Timestamp>,
    /// Something was pushed since.
    is_told: bool,
    way_back_at: Option<Timestamp>,
    removal_due: bool,
    /// Newer tags by image as configured, the newest first.
    pub(super) newer: BTreeMap<String, Vec<String>>,
    /// The registry has given an answer since the start.
    pub(super) has_looked: bool,
}

impl Maintenance {
    /// All times that it waits for.
    pub(super) fn times(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let tags = self.tags_at.iter_mut().chain(self.tags_looked_at.iter_mut());
        tags.chain(self.way_back_at.iter_mut())
    }
}

impl Service {
    /// The next task, where one is due; marks it as begun.
    pub(super) fn next_maintenance(&mut self, now: Timestamp) -> Option<Action> {
        let task = self.due_task(now)?;
        self.maintenance.is_running = true;
        Some(Action::Maintain(task))
    }

    fn due_task(&mut self, now: Timestamp) -> Option<MaintenanceTask> {
        // What runs must be known.
        if self.maintenance.is_running || self.is_at_work() || self.seen.is_none() {
            return None;
        }
        if std::mem::take(&mut self.maintenance.removal_due) {
            let images = self.removable();
            if !images.is_empty() {
                return Some(MaintenanceTask::RemoveImages { images });
            }
        }
        if self.maintenance.tags_at.is_none_or(|at| at <= now) {
            self.maintenance.tags_at = Some(now + TAGS_EVERY);
            self.maintenance.tags_looked_at = Some(now);
            if let Some(task) = self.tags_in_use() {
                return Some(task);
            }
        }
        if self.way_back_at(now).is_some_and(|at| at <= now) {
            self.maintenance.way_back_at = Some(now + WAY_BACK_EVERY);
            return self.way_back_task();
        }
        None
    }

    /// When a task is due next.
    pub(super) fn maintenance_at(&self, now: Timestamp) -> Option<Timestamp> {
        if self.maintenance.is_running || self.is_at_work() || self.seen.is_none() {
            return None;
        }
        let tags_at = self.tag_pattern().map(|_| self.maintenance.tags_at.unwrap_or(now));
        let removal_at = self.maintenance.removal_due.then_some(now);
        [tags_at, removal_at, self.way_back_at(now)].into_iter().flatten().min()
    }

    /// A person wants the way back checked now.
    pub(super) fn check_way_back_now(&mut self, now: Timestamp) {
        self.maintenance.way_back_at = Some(now);
    }

    /// An update is proven: what it has replaced may be no longer needed.
    pub(super) fn remove_old_images_soon(&mut self) {
        self.maintenance.removal_due = true;
    }

    /// A task ended.
    pub(super) fn maintained(&mut self, result: MaintenanceResult, now: Timestamp) {
        self.maintenance.is_running = false;
        match result {
            MaintenanceResult::NewerTags(found) => self.tags_found(found, now),
            MaintenanceResult::ImagesRemoved(gone) => {
                for deployed in self.durable.deployed.values_mut() {
                    deployed.retain(|image| !gone.contains(&image.id));
                }
            }
            MaintenanceResult::WayBackChecked(risks) => self.way_back_checked(risks, now),
        }
    }

    fn tag_pattern(&self) -> Option<&TagPattern> {
        self.config.update.as_ref()?.tags.as_ref()
    }

    /// A registry has told of a push that may be a newer tag: it is looked for soon.
    pub fn tag_was_pushed(&mut self, now: Timestamp) {
        let maintenance = &mut self.maintenance;
        maintenance.is_told = true;
        let soon = maintenance.tags_looked_at.map_or(now, |at| now.max(at + TAGS_APART));
        maintenance.tags_at = maintenance.tags_at.map(|at| at.min(soon));
    }

    fn tags_in_use(&mut self) -> Option<MaintenanceTask> {
        let anew = std::mem::take(&mut self.maintenance.is_told);
        let pattern = self.tag_pattern()?.clone();
        let in_use = self.config.images.iter().filter(|image| !image.reference.is_pinned());
        let images: Vec<TagInUse> = in_use
            .map(|image| TagInUse {
                configured: image.configured.clone(),
                repository: image.reference.repository.clone(),
                tag: self.tag_in_use(image),
                is_shared: self.config.is_of_variable(&image.configured),
            })
            .collect();
        (!images.is_empty()).then_some(MaintenanceTask::FindNewerTags { pattern, images, anew })
    }

    fn tag_in_use(&self, image: &ConfiguredImage) -> String {
        let in_force = self.seen.as_ref().and_then(|seen| seen.tag.as_ref());
        match in_force.filter(|_| self.config.is_of_variable(&image.configured)) {
            Some(in_force) => in_force.setting.tag.clone(),
            None => image.reference.tag.clone().unwrap_or_else(|| "latest".to_owned()),
        }
    }

    /// The env file sets another tag than before: what is newer than that is looked for.
    pub(super) fn follow_tag(&mut self, observation: &Observation) {
        let tag = |seen: &Observation| seen.tag.as_ref().map(|tag| tag.setting.tag.clone());
        let before = self.seen.as_deref().and_then(tag);
        if let (Some(before), Some(after)) = (before, tag(observation))
            && before != after
        {
            self.maintenance.newer.retain(|image, _| !self.config.is_of_variable(image));
            self.maintenance.tags_at = None;
        }
    }

    /// Each newer tag is told once; while a registry gives no answer, what is known of it stays.
    fn tags_found(&mut self, found: BTreeMap<String, Vec<String>>, now: Timestamp) {
        let before = self.tags_to_deploy();
        self.maintenance.has_looked |= !found.is_empty();
        for (image, newer) in found {
            let Some(tag) = newer.first().cloned() else {
                self.maintenance.newer.remove(&image);
                continue;
            };
            self.maintenance.newer.insert(image.clone(), newer);
            if self.durable.told_tags.get(&image) != Some(&tag) {
                self.durable.told_tags.insert(image.clone(), tag.clone());
                self.emit(Event::NewerTag { image, tag }, now);
            }
        }
        if self.tags_to_deploy() != before {
            self.check_due |= self.can_check();
        }
    }

    /// The newest tag that is newer than the configured one of this image.
    pub(super) fn newer_tag(&self, configured: &str) -> Option<&String> {
        self.tag_pattern().and_then(|_| self.maintenance.newer.get(configured)?.first())
    }

    /// When the way back is to be checked. The first time is another for each service: many that are checked at once
    /// would all run compose at once.
    fn way_back_at(&self, now: Timestamp) -> Option<Timestamp> {
        if !self.config.auto_update || !self.config.can_deploy() {
            return None;
        }
        if let Some(at) = self.maintenance.way_back_at {
            return Some(at);
        }
        let checked = self.durable.way_back.as_ref().map(|way_back| way_back.checked_at);
        // A clock that was set back must not put it off.
        let next = checked.filter(|at| *at <= now).map(|at| at + WAY_BACK_EVERY);
        let sum =
            self.config.name.bytes().fold(0_i64, |sum, byte| (sum * 31 + i64::from(byte)) % FIRST_WAY_BACK);
        let first = self.begun + SignedDuration::from_secs(sum);
        Some(next.map_or(first, |next| next.max(first)))
    }

    fn way_back_task(&self) -> Option<MaintenanceTask> {
        let seen = self.seen.as_ref()?;
        let images = seen.images.iter().flat_map(|view| {
            view.running.iter().map(|image| RunningImage {
                configured: view.configured.clone(),
                id: image.id.clone(),
                source: compare::old_image(view, image).source,
                size: image.size,
            })
        });
        let images = images.filter(|image| !image.id.0.is_empty()).collect();
        Some(MaintenanceTask::CheckWayBack { project: self.config.project(), images })
    }

    fn way_back_checked(&mut self, risks: Option<Vec<RollbackRisk>>, now: Timestamp) {
        let Some(risks) = risks else {
            self.maintenance.way_back_at = Some(now + TAGS_EVERY);
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

    /// Notes an image that was deployed under a reference.
    pub(super) fn note_deployed(
        &mut self,
        configured: &str,
        id: &ImageId,
        proven: bool,
        reference: &Reference,
    ) {
        let deployed = self.durable.deployed.entry(configured.to_owned()).or_default();
        let before = deployed.iter().position(|image| image.id == *id).map(|at| deployed.remove(at));
        let mut tags = before.map(|image| image.tags).unwrap_or_default();
        if reference.tag.is_some() && !reference.is_pinned() && !tags.contains(reference) {
            tags.push(reference.clone());
        }
        deployed.push(DeployedImage { id: id.clone(), proven, tags });
        let too_many = deployed.len().saturating_sub(MOST_DEPLOYED);
        deployed.drain(..too_many);
    }

    /// Images that were deployed once and are no longer needed: not among those that were proven last, not what a
    /// rollback leads to, and used by no container of the project.
    fn removable(&self) -> Vec<OldDeployedImage> {
        let keep = self.config.keep_images;
        if keep == 0 {
            return Vec::new();
        }
        let mut kept: BTreeSet<&ImageId> = BTreeSet::new();
        kept.extend(self.durable.proven.values().map(|image| &image.id));
        kept.extend(self.durable.unproven.values());
        kept.extend(self.containers().iter().map(|container| &container.image));
        for deployed in self.durable.deployed.values() {
            let proven = deployed.iter().rev().filter(|image| image.proven);
            kept.extend(proven.take(keep).map(|image| &image.id));
        }
        let mut old: BTreeMap<&ImageId, Vec<Reference>> = BTreeMap::new();
        for image in self.durable.deployed.values().flatten().filter(|image| !kept.contains(&image.id)) {
            old.entry(&image.id).or_default().extend(image.tags.iter().cloned());
        }
        old.into_iter().map(|(id, tags)| OldDeployedImage { id: id.clone(), tags }).collect()
    }
}
