//! The properties that must hold after every step, each stated as a sentence. They are checked against the state of the
//! simulated world, not against the agent's view of it.

mod end;
mod env_file;
pub(super) mod gates;
mod proven;
mod tags;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_agent::config::ServiceConfig;
use evenkeel_agent::model::image::{Digest, ImageId, Reference};
use evenkeel_agent::model::{HealthState, UpMode};
use evenkeel_agent::service::Durable;
use evenkeel_common::store::Change;
use evenkeel_common::wire::{AuditEntry, Kind, ServiceStatus, StatusValue};
use jiff::{SignedDuration, Timestamp};

use super::operators::name_digests;
use super::pauses::NEXT_PROBE;
use super::{Behaviour, Definition, FakeWorld, Inner, ProbeFault, Run, digest_of, id_of};

const ONLY_IMAGES: &str = "no update or rollback changes anything but images";
const BLOCKED: &str = "a blocked digest is never deployed";
const ONE_ACTION: &str = "at most one action per project runs at a time";
const EXACT_ROLLBACK: &str = "a rollback restores exactly the images that ran before";
/// The reason of an operator's way back.
const BY_HAND: &str = "rolled back by hand";
const GONE_BACK: &str = "a way back ends on an image that was proven before";
const GOOD: &str = "a good image is not blocked unless an operator or a fault interfered";
const CAP: &str = "restarts never exceed the limit between two healthy states";
const COOLDOWN: &str = "a container is not restarted twice within the cooldown";
const OPERATOR_STOPPED: &str = "the healer does not restart containers that an operator stopped";
const UNMEASURED: &str =
    "the healer does not restart containers that have not been probed since they were paused";
const SEQUENCE: &str = "the audit sequence has no gaps and its entries never change";
const FIRST_ROW: &str = "the status is the first true row of spec 3.1";

pub(crate) use end::AtEnd;

/// An image works once a container of it has been well for this long.
const WORKS_AFTER: SignedDuration = SignedDuration::from_secs(5);

/// A container that stopped this shortly before the engine went away counts as stopped by the engine.
const ENGINE_SHUTDOWN: SignedDuration = SignedDuration::from_secs(16);

/// The state of the world when a deployment began.
pub(super) struct Baseline {
    /// The image of each running compose service.
    images: BTreeMap<String, ImageId>,
    /// Images recorded as not proven: a rollback restores the images that ran before them.
    unproven: Vec<ImageId>,
    /// The image of each tag.
    tags: BTreeMap<String, ImageId>,
    /// The tag that the env file set.
    tag: Option<String>,
    /// Something has interfered since that the images are not to blame for.
    pub(super) is_disturbed: bool,
    /// Tags have been moved or removed since.
    are_tags_moved: bool,
    /// Compose services whose containers an operator has touched since.
    pub(super) touched: BTreeSet<String>,
}

#[derive(Default)]
struct Restarts {
    /// Restarts since it was last healthy.
    count: u32,
    last: Option<Timestamp>,
    id: String,
}

/// The ground truth, independent of the agent's view.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools)] // independent facts
pub(super) struct Truth {
    /// Names of digests and image IDs.
    names: BTreeMap<String, String>,
    /// Whether the new containers of a handover in progress were proven when the old ones were about to be removed.
    settled: BTreeMap<String, bool>,
    versions: BTreeMap<String, u32>,
    /// The images pushed for each service; the tag names the last one.
    pub(super) tags: BTreeMap<String, Vec<String>>,
    /// Compose services that an operator has stopped or removed and that have not been started since.
    pub(super) stopped_by_operator: BTreeSet<String>,
    /// Containers whose stop event may never reach the agent.
    pub(super) unseen_stops: BTreeSet<String>,
    /// Images that were present when an operator ran `docker compose up`.
    pub(super) started_by_operator: BTreeSet<ImageId>,
    /// Images that an operator pulled or built: the next `up` of the project starts them.
    pub(super) pulled: BTreeSet<ImageId>,
    pub(super) agent_runs: bool,
    /// When the disk fault last changed.
    pub(super) disk_changed_at: Option<Timestamp>,
    /// Containers that were stopped by a signal when the agent started: it may be unable to determine the cause.
    pub(super) unknown: BTreeSet<String>,
    pub(super) baselines: BTreeMap<String, Baseline>,
    pub(super) disturbed_at: Option<Timestamp>,
    /// Images of which a container has been well for `WORKS_AFTER`.
    worked: BTreeSet<ImageId>,
    restarts: BTreeMap<String, Restarts>,
    configs: Vec<Arc<ServiceConfig>>,
    recorded: BTreeMap<u64, AuditEntry>,
    delivered: BTreeMap<u64, AuditEntry>,
    unnumbered: Vec<AuditEntry>,
    /// A write was lost in this run, and with it the entries about it.
    is_write_lost: bool,
    /// A write that was reported as failed was applied: two deployments may be in progress after a restart.
    is_torn: bool,
    pub(super) gated: gates::Gated,
    /// Services of which an operator has asked to go back: what they leave is blocked, however good it is.
    going_back: BTreeSet<String>,
    /// Probes were told something else than what was so.
    pub(super) have_probes_lied: bool,
    /// Tags that the env file may set while nothing is deployed: the proven one, and one whose probation an operator
    /// disturbed.
    known_tags: BTreeSet<String>,
    statuses: BTreeMap<String, StatusValue>,
    phases: BTreeMap<String, &'static str>,
}

impl Truth {
    pub(super) fn name(&mut self, name: &str) {
        self.names.insert(digest_of(name).to_string(), name.to_owned());
        self.names.insert(id_of(name).to_string(), name.to_owned());
    }

    /// Reports whether a container of the image has been well for a while.
    pub(super) fn has_worked(&self, image: &ImageId) -> bool {
        self.worked.contains(image)
    }

    /// Reports whether a write was lost: the agent may know less than what it has done.
    pub(super) fn has_lost_track(&self) -> bool {
        self.is_torn || self.is_write_lost
    }

    pub(super) fn image_name(&self, image: &ImageId) -> String {
        self.names.get(&*image.0).cloned().unwrap_or_else(|| image.to_string())
    }

    pub(super) fn next_version(&mut self, service: &str) -> u32 {
        let version = self.versions.entry(service.to_owned()).or_insert(1);
        *version += 1;
        *version
    }
}

impl Inner {
    fn readable(&self, text: &str) -> String {
        let names = self.truth.names.iter().map(|(digest, name)| (digest.clone(), name.clone()));
        name_digests(text, names)
    }

    fn unless(&mut self, holds: bool, property: &str, what: impl FnOnce(&Self) -> String) {
        if !holds {
            let what = what(self);
            self.violated(format!("{property}: {what}"));
        }
    }

    /// Notes an interference that no image is to blame for.
    pub(super) fn interfere(&mut self) {
        self.truth.disturbed_at = Some(self.now);
        self.truth.baselines.values_mut().for_each(|baseline| baseline.is_disturbed = true);
    }

    /// Notes that tags are moved or removed.
    pub(super) fn tags_are_moved(&mut self) {
        self.truth.baselines.values_mut().for_each(|baseline| baseline.are_tags_moved = true);
    }

    /// An image is built under the tag of a compose service: a deployment of another service may start it.
    pub(super) fn image_was_built(&mut self, service: &str) {
        for (_, baseline) in self.truth.baselines.iter_mut().filter(|(name, _)| *name != service) {
            baseline.touched.insert(service.to_owned());
        }
    }

    /// An operator touches the containers of a compose service.
    pub(super) fn touch(&mut self, service: &str) {
        self.interfere();
        self.truth.restarts.clear();
        for baseline in self.truth.baselines.values_mut() {
            baseline.touched.insert(service.to_owned());
        }
    }

    pub(super) fn touch_all(&mut self) {
        for service in self.services.clone() {
            self.touch(&service.name);
        }
    }

    /// The engine goes away: containers that end with it do not count against their images.
    pub(super) fn engine_went(&mut self) {
        self.truth.restarts.clear();
        self.truth.disturbed_at = Some(self.now);
        self.stops_are_unclear(ENGINE_SHUTDOWN);
    }

    /// The event stream disconnects. Its events are read again afterwards.
    pub(super) fn stream_breaks(&mut self) {
        self.events.disconnect();
    }

    /// Stops within the last `time` can't be distinguished from the engine's own.
    fn stops_are_unclear(&mut self, time: SignedDuration) {
        let now = self.now;
        let is_recent = |c: &&super::FakeContainer| matches!(c.run, Run::Ended { at, .. } if now.duration_since(at) <= time);
        self.truth.unseen_stops.extend(self.containers.iter().filter(is_recent).map(|c| c.id.clone()));
    }

    /// The cause of stops with exit code 143 is unknown from now on.
    fn ends_are_unclear(&mut self) {
        let is_unknown = |c: &&super::FakeContainer| matches!(c.run, Run::Ended { code: 143, .. });
        let unknown = self.containers.iter().filter(is_unknown).map(|c| c.id.clone());
        self.truth.unknown.extend(unknown);
    }

    fn is_calm_since(&self, time: SignedDuration) -> bool {
        self.truth.disturbed_at.is_none_or(|at| self.now.duration_since(at) > time)
    }

    /// Notes the health of a container.
    pub(super) fn note_health(&mut self, at: usize) {
        let (now, c) = (self.now, &self.containers[at]);
        let Some(since) = c.started().filter(|_| c.is_well(now) && !c.is_paused) else { return };
        let lasts = now.duration_since(since) >= WORKS_AFTER;
        let is_healthy = c.health(now) == Some(HealthState::Healthy);
        // Without a probe, one that never answers is as good as one that does.
        if lasts && (is_healthy || matches!(c.behaviour, Behaviour::Unchecked | Behaviour::Mute)) {
            self.truth.worked.insert(c.image.clone());
        }
        if (is_healthy || (c.behaviour == Behaviour::Unchecked && lasts))
            && let Some(restarts) = self.truth.restarts.get_mut(&c.name())
        {
            restarts.count = 0;
        }
    }

    /// Checks a container that compose is about to replace.
    pub(super) fn check_replaced(&mut self, at: usize, wanted: &Definition, mode: &UpMode) {
        let is_for_image =
            matches!(mode, UpMode::ScaledServices { .. } | UpMode::Services(_) | UpMode::ForceService(_));
        let made_with = self.containers[at].made_with;
        self.unless(!is_for_image || made_with == wanted.version, ONLY_IMAGES, |_| {
            format!("{} was made with version {made_with}, compose brings {}", wanted.name, wanted.version)
        });
    }

    /// Checks a service that compose is about to bring up.
    pub(super) fn check_up(&mut self, definition: &Definition) {
        let Definition { name, reference, version, .. } = definition;
        let Some((id, image)) = self.by_name(&reference.tagged()) else { return };
        let stays = |c: &super::FakeContainer| c.image == id && c.made_with == *version && c.is_up();
        if self.container(name).is_some_and(stays) || self.truth.started_by_operator.contains(&id) {
            return;
        }
        self.check_env_file();
        let is_blocked = |durable: &Durable| {
            let failed = durable.images.failed_tags();
            let failed = failed.flat_map(|(image, tags)| tags.values().map(move |digest| (image, digest)));
            durable.images.blocked().chain(failed).any(|(configured, digest)| {
                Reference::parse(configured).is_ok_and(|r| r.repository == reference.repository)
                    && image.digests.contains(&reference.repository.at(digest))
            })
        };
        // Blocks belong to services; those of a service that is no longer configured do not count.
        let is_configured = |name: &String| self.truth.configs.iter().any(|config| config.name == *name);
        let blocked = self.durable.iter().any(|(name, durable)| is_configured(name) && is_blocked(durable));
        self.check_started(&id, &image);
        self.unless(!blocked, BLOCKED, |inner| format!("{} for {name}", inner.truth.image_name(&id)));
    }

    /// Checks that no other action is in progress when compose or a restart is about to change the project.
    pub(super) fn check_turn(&mut self, restarts: bool) {
        let deploying = self.durable.values().filter(|durable| durable.is_changing_containers()).count();
        let most = usize::from(!restarts);
        self.unless(deploying <= most || self.truth.is_torn, ONE_ACTION, |_| {
            let action = if restarts { "a container is restarted" } else { "compose runs" };
            format!("{action} while {deploying} services are deploying")
        });
    }

    /// Checks a restart that the healer is about to make.
    pub(super) fn check_restart(&mut self, at: usize) {
        let now = self.now;
        let c = &self.containers[at];
        let (name, id) = (c.name(), c.id.clone());
        // Whoever paused it did so longer ago than the agent needs to notice.
        let is_old = |until: Timestamp| until - NEXT_PROBE + SignedDuration::from_millis(500) < now;
        let is_unmeasured =
            c.health(now) == Some(HealthState::Unmeasured) && c.unmeasured_until.is_some_and(is_old);
        // A restart request that is already on its way to the engine can't be cancelled.
        let is_down = matches!(c.run, Run::Ended { at, .. } if now.duration_since(at) > SignedDuration::from_millis(100));
        let is_draining =
            c.stopping.is_some_and(|(told, _)| now.duration_since(told) > SignedDuration::from_millis(100));
        let is_stopped = (is_down || is_draining) && self.truth.stopped_by_operator.contains(&c.service);
        let was_seen = !self.truth.unseen_stops.contains(&id);
        self.unless(!(is_stopped && was_seen), OPERATOR_STOPPED, |_| name.clone());
        self.unless(!is_unmeasured, UNMEASURED, |_| name.clone());
        let cap = self.truth.configs.iter().map(|c| c.heal_max_restarts).max();
        let cooldown = self.truth.configs.iter().map(|c| c.heal_cooldown).min();
        let restarts = self.truth.restarts.entry(name.clone()).or_default();
        if restarts.id != id {
            *restarts = Restarts { id, ..Restarts::default() };
        }
        restarts.count += 1;
        let (count, last) = (restarts.count, restarts.last.replace(now));
        self.unless(cap.is_none_or(|cap| count <= cap), CAP, |_| format!("{name}: {count}"));
        // The cooldown counts from the decision, which the engine carries out a moment later.
        let in_time = |last: Timestamp| {
            cooldown.is_none_or(|cooldown| now + SignedDuration::from_secs(1) >= last + cooldown)
        };
        self.unless(last.is_none_or(in_time), COOLDOWN, |_| name.clone());
    }

    /// Checks rows that were written to the store.
    pub(super) fn written(&mut self, changes: &[Change]) {
        self.note_approvals(changes);
        for (key, row) in changes {
            let Some(service) = key.strip_prefix("service/") else { continue };
            let durable: Durable = row
                .as_ref()
                .map(|row| serde_json::from_slice(row).expect("the agent wrote it"))
                .unwrap_or_default();
            self.state_written(service, &durable);
        }
        for (key, row) in changes {
            let (Some(seq), Some(row)) = (key.strip_prefix("outbox/entry/"), row) else { continue };
            let seq = seq.parse().expect("the outbox numbers its rows");
            let entry: AuditEntry = serde_json::from_slice(row).expect("the agent wrote it");
            self.entry_written(seq, entry);
        }
        self.check_env_file();
    }

    /// Notes a write that was applied but reported as failed.
    pub(super) fn torn(&mut self) {
        self.truth.is_torn = true;
    }

    /// Notes that writes were lost; `rows` are the remaining values.
    pub(super) fn restore(&mut self, rows: &[Change]) {
        self.truth.is_write_lost = true;
        for (key, row) in rows {
            if let Some(service) = key.strip_prefix("service/") {
                let durable = row.as_ref().map(|row| serde_json::from_slice(row).expect("written before"));
                let durable = durable.unwrap_or_default();
                self.truth.gated.lost(service, &durable);
                self.durable.insert(service.to_owned(), durable);
            }
            if let Some(seq) = key.strip_prefix("outbox/entry/") {
                self.truth.recorded.remove(&seq.parse().expect("the outbox numbers its rows"));
            }
        }
        self.truth.restarts.clear();
        self.interfere();
        self.tags_are_moved();
    }

    fn state_written(&mut self, service: &str, durable: &Durable) {
        let old = self.durable.insert(service.to_owned(), durable.clone()).unwrap_or_default();
        let phase = durable.deployment.as_ref().map_or("", |d| d.phase.name());
        let before = self.truth.phases.insert(service.to_owned(), phase);
        if before.unwrap_or_default() != phase {
            let step = if phase.is_empty() { "done" } else { phase };
            self.trace("journal", &format!("{service}: {step}"));
            self.note_phase(service, durable);
            self.note_settling(service, durable);
        }
        for (image, digest) in durable.images.blocked() {
            if old.images.get(image).blocked.as_ref() != Some(digest) {
                self.check_block(service, digest);
            }
        }
        self.check_found(service, durable);
        match (&old.deployment, &durable.deployment) {
            (None, Some(deployment)) => {
                self.check_begun(service, deployment.plan());
                let live = self.containers.iter().filter(|c| c.is_up());
                let all = self.services.iter().map(|service| service.name.clone()).collect();
                let baseline = Baseline {
                    images: live.map(|c| (c.service.clone(), c.image.clone())).collect(),
                    unproven: old.images.iter().filter_map(|(_, memory)| memory.unproven.clone()).collect(),
                    tags: self.tags(),
                    tag: self.tag_in_force(),
                    is_disturbed: self.truth.is_torn || self.faults.probe != ProbeFault::None,
                    are_tags_moved: self.truth.is_torn,
                    touched: if self.truth.is_torn { all } else { BTreeSet::new() },
                };
                self.truth.baselines.insert(service.to_owned(), baseline);
            }
            (Some(deployment), None) => self.check_tags(service, deployment),
            _ => {}
        }
    }

    fn check_block(&mut self, service: &str, digest: &Digest) {
        let works = self.published.get(digest).is_some_and(|(_, behaviour)| behaviour.works());
        let others_work = self.containers.iter().all(super::FakeContainer::works);
        let is_disturbed = self.truth.baselines.get(service).is_none_or(|baseline| baseline.is_disturbed);
        let holds = !works || !others_work || is_disturbed || self.truth.going_back.contains(service);
        self.unless(holds, GOOD, |inner| inner.readable(digest.as_str()));
    }

    fn entry_written(&mut self, seq: u64, entry: AuditEntry) {
        let known = self.truth.recorded.get(&seq);
        if known == Some(&entry) {
            return;
        }
        let follows = self.truth.recorded.last_key_value().is_none_or(|(last, _)| *last + 1 == seq);
        let holds = known.is_none() && follows;
        self.unless(holds || self.truth.is_write_lost, SEQUENCE, |_| format!("number {seq}"));
        let AuditEntry { service, event, level, message, .. } = &entry;
        let reason = entry.reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        let line = format!("{service}: {} [{level:?}] {message}{reason}", event.as_str());
        let line = self.readable(&line);
        self.trace("audit", &line);
        if entry.event == Kind::ROLLED_BACK {
            self.check_rolled_back(&entry);
        } else if entry.event == Kind::UPDATED {
            self.check_updated(&entry);
        }
        self.note_verdict(&entry);
        self.truth.recorded.insert(seq, entry);
    }

    /// Checks that an operator's way back ended on the image that the entry names, which was proven before.
    fn check_gone_back(&mut self, entry: &AuditEntry) {
        let digest = |text: &Option<String>| Digest::parse(text.as_deref().unwrap_or_default()).ok();
        let target = digest(&entry.old_digest);
        let id = target.as_ref().and_then(|digest| Some(self.published.get(digest)?.0.clone()));
        let runs = id.as_ref().is_some_and(|id| self.containers.iter().any(|c| c.image == *id));
        let has_worked = id.as_ref().is_some_and(|id| self.truth.worked.contains(id));
        let holds = (runs && has_worked && target != digest(&entry.new_digest))
            || self.truth.is_torn
            || !self.is_calm_since(SignedDuration::from_secs(3));
        self.unless(holds, GONE_BACK, |_| format!("{entry:?}"));
    }

    fn check_rolled_back(&mut self, entry: &AuditEntry) {
        if entry.reason.as_deref() == Some(BY_HAND) {
            return self.check_gone_back(entry);
        }
        let Some(baseline) = self.truth.baselines.get(&entry.service) else { return };
        let wrong = baseline.images.iter().find(|(service, image)| {
            let runs = self.container(service).map(|c| &c.image);
            !baseline.touched.contains(*service) && !baseline.unproven.contains(image) && runs != Some(image)
        });
        let wrong =
            wrong.map(|(service, image)| format!("{service} ran on {}", self.truth.image_name(image)));
        self.unless(wrong.is_none(), EXACT_ROLLBACK, |_| wrong.clone().unwrap_or_default());
    }

    fn check_status(&mut self, record: &ServiceStatus) {
        let rows = [
            (record.exhausted, StatusValue::Exhausted),
            (record.degraded, StatusValue::Degraded),
            (record.errored.is_some(), StatusValue::Errored),
            (record.blocked.is_some(), StatusValue::Blocked),
            (record.not_found.is_some(), StatusValue::NotFound),
            (record.deploying, StatusValue::Deploying),
            (record.healthy == Some(true), StatusValue::Ok),
            (record.healthy == Some(false), StatusValue::Unhealthy),
        ];
        let first = rows.iter().find(|(holds, _)| *holds).map_or(StatusValue::Unknown, |(_, value)| *value);
        self.unless(record.status == first, FIRST_ROW, |_| format!("{}: {:?}", record.name, record.status));
        let before = self.truth.statuses.insert(record.name.clone(), record.status);
        if before != Some(record.status) {
            let line = format!("{} is {:?}", record.name, record.status);
            let why = record.errored.clone().filter(|_| record.status == StatusValue::Errored);
            let line = why.map_or(line.clone(), |why| format!("{line}: {why}"));
            let line = self.readable(&line);
            self.trace("status", &line);
        }
    }
}

impl FakeWorld {
    /// Sets the services that are configured from now on.
    pub(crate) fn configured(&self, configs: &[Arc<ServiceConfig>]) {
        let mut inner = self.lock();
        let before = std::mem::replace(&mut inner.truth.configs, configs.to_vec());
        let healers = |configs: &[Arc<ServiceConfig>]| -> BTreeSet<(String, bool)> {
            configs.iter().map(|config| (config.name.clone(), config.auto_heal)).collect()
        };
        // A container that is healed by another service from now on has a clean restart history.
        if healers(&before) != healers(configs) {
            inner.truth.restarts.clear();
            inner.ends_are_unclear();
        }
    }

    /// Sets whether the agent is running.
    pub(crate) fn agent_runs(&self, runs: bool) {
        let mut inner = self.lock();
        inner.truth.agent_runs = runs;
        inner.check_env_file();
    }

    /// An operator sends a request to the agent, which resets the limits of the healer.
    pub(crate) fn operator_asked(&self) {
        self.lock().truth.restarts.clear();
    }

    /// The agent starts with the state in the store.
    pub(crate) async fn reread(&self) {
        let rows = evenkeel_common::store::Store::scan(&self.store, "").await.expect("memory");
        let rows: Vec<Change> = rows.into_iter().map(|(key, row)| (key, Some(row))).collect();
        let mut inner = self.lock();
        inner.written(&rows);
        inner.ends_are_unclear();
    }

    /// A destination has accepted an entry.
    pub(crate) fn deliver(&self, seq: Option<u64>, entry: &AuditEntry) {
        let mut inner = self.lock();
        let Some(seq) = seq else { return inner.truth.unnumbered.push(entry.clone()) };
        let before = inner.truth.delivered.insert(seq, entry.clone());
        let holds = before.is_none_or(|before| before == *entry) || inner.truth.is_write_lost;
        inner.unless(holds, SEQUENCE, |_| format!("number {seq} is delivered as two entries"));
    }

    /// Checks a published status record.
    pub(crate) fn check_status(&self, record: &ServiceStatus) {
        self.lock().check_status(record);
    }

    /// Adds a line to the transcript.
    pub(crate) fn trace(&self, who: &str, what: &str) {
        self.lock().trace(who, what);
    }

    /// The number of lines in the transcript so far.
    pub(crate) fn transcript_len(&self) -> usize {
        self.lock().transcript.len()
    }

    pub(crate) fn transcript(&self) -> Vec<String> {
        self.lock().transcript.clone()
    }
}
