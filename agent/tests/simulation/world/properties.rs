//! What must hold after every step, each as a sentence. They are judged by what is true in the world, not by what the
//! agent believes.

mod end;
mod env_file;
pub(super) mod gates;
mod proven;
mod tags;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_agent::config::ServiceConfig;
use evenkeel_agent::model::HealthState;
use evenkeel_agent::model::image::{Digest, ImageId, Reference};
use evenkeel_agent::service::Durable;
use evenkeel_common::store::Change;
use evenkeel_common::wire::{AuditEntry, Kind, ServiceStatus, StatusValue};
use jiff::{SignedDuration, Timestamp};

use super::people::digest_words;
use super::{Behaviour, Definition, FakeWorld, Inner, Run, digest_of, id_of};

const BLOCKED: &str = "a blocked digest is never deployed";
const ONE_ACTION: &str = "at most one action per project at once";
const EXACTLY: &str = "a rollback restores exactly what ran";
const GOOD: &str = "a good image is not blocked unless somebody or something interfered";
const CAP: &str = "restarts never exceed the cap between two healthy states";
const COOLDOWN: &str = "a container is not restarted twice within the cooldown";
const PERSON: &str = "what a person has stopped is not restarted by the healer";
const SEQUENCE: &str = "the audit sequence grows without gaps and never changes";
const FIRST_ROW: &str = "the status is the first true row of spec 3.1";

pub(crate) use end::AtEnd;

/// A container has run well for so long: it works.
const WORKS_AFTER: SignedDuration = SignedDuration::from_secs(5);

/// What was stopped so shortly before the engine went counts as stopped by the engine.
const ENGINE_SHUTDOWN: SignedDuration = SignedDuration::from_secs(16);

/// A deployment as the world saw it begin.
struct Begun {
    /// Image of each compose service that ran.
    images: BTreeMap<String, ImageId>,
    /// Those of them that are known not to have proven themselves: a rollback leads to what ran before them.
    unproven: Vec<ImageId>,
    /// What each tag named.
    tags: BTreeMap<String, ImageId>,
    /// What the env file set.
    tag: Option<String>,
    /// Something has happened since for which its images can do nothing.
    is_disturbed: bool,
    /// Somebody has moved or removed tags since.
    are_tags_moved: bool,
    /// Compose services that people have touched since.
    touched: BTreeSet<String>,
}

#[derive(Default)]
struct Restarts {
    /// Since it was healthy last.
    count: u32,
    last: Option<Timestamp>,
    id: String,
}

/// What is true, whatever the agent thinks.
#[derive(Default)]
pub(super) struct Truth {
    /// Names of digests and image IDs.
    names: BTreeMap<String, String>,
    versions: BTreeMap<String, u32>,
    /// The images that were pushed for each service, the last one under the tag.
    pub(super) tags: BTreeMap<String, Vec<String>>,
    /// Compose services that a person has stopped or removed, and nobody has started since.
    pub(super) at_rest: BTreeSet<String>,
    /// Containers whose stop the agent may never hear of.
    pub(super) unheard: BTreeSet<String>,
    /// Images that a person brought up.
    pub(super) tainted: BTreeSet<ImageId>,
    /// Images that a person pulled: whatever brings up the project brings them.
    pub(super) pulled: BTreeSet<ImageId>,
    pub(super) agent_runs: bool,
    /// When the disk began or ceased to refuse writes.
    pub(super) disk_changed_at: Option<Timestamp>,
    /// Containers that were found stopped by a signal when the agent started: nothing may tell it by whom.
    unknown: BTreeSet<String>,
    begun: BTreeMap<String, Begun>,
    disturbed_at: Option<Timestamp>,
    /// Images of which a container has run well for a while.
    worked: BTreeSet<ImageId>,
    restarts: BTreeMap<String, Restarts>,
    configs: Vec<Arc<ServiceConfig>>,
    recorded: BTreeMap<u64, AuditEntry>,
    delivered: BTreeMap<u64, AuditEntry>,
    unnumbered: Vec<AuditEntry>,
    /// Writes are lost in this life, and with them what was said of them.
    is_write_lost: bool,
    /// A write that was reported as failed was made: two deployments may be under way after a restart.
    is_torn: bool,
    pub(super) gated: gates::Gated,
    /// Tags that the env file may set while nothing is deployed: the one that is proven, and one that people have kept from
    /// being proven.
    known_tags: BTreeSet<String>,
    statuses: BTreeMap<String, StatusValue>,
    phases: BTreeMap<String, &'static str>,
}

impl Truth {
    pub(super) fn name(&mut self, name: &str) {
        self.names.insert(digest_of(name).to_string(), name.to_owned());
        self.names.insert(id_of(name).to_string(), name.to_owned());
    }

    pub(super) fn word(&self, image: &ImageId) -> String {
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
        digest_words(text, names)
    }

    fn unless(&mut self, holds: bool, property: &str, what: impl FnOnce(&Self) -> String) {
        if !holds {
            let what = what(self);
            self.violated(format!("{property}: {what}"));
        }
    }

    /// Something happened for which no image can do anything.
    pub(super) fn interfere(&mut self) {
        self.truth.disturbed_at = Some(self.now);
        self.truth.begun.values_mut().for_each(|begun| begun.is_disturbed = true);
    }

    /// Somebody moves or removes tags.
    pub(super) fn tags_are_moved(&mut self) {
        self.truth.begun.values_mut().for_each(|begun| begun.are_tags_moved = true);
    }

    /// Somebody builds an image under the tag of a compose service: a redeployment of another one brings it up.
    pub(super) fn built_beside(&mut self, service: &str) {
        for (_, begun) in self.truth.begun.iter_mut().filter(|(name, _)| *name != service) {
            begun.touched.insert(service.to_owned());
        }
    }

    /// A person touches the containers of a compose service.
    pub(super) fn touched(&mut self, service: &str) {
        self.interfere();
        self.truth.restarts.clear();
        for begun in self.truth.begun.values_mut() {
            begun.touched.insert(service.to_owned());
        }
    }

    pub(super) fn everybody_is_touched(&mut self) {
        for service in self.services.clone() {
            self.touched(&service.name);
        }
    }

    /// The engine goes: it is nobody's fault what ends by that.
    pub(super) fn engine_went(&mut self) {
        self.truth.restarts.clear();
        self.truth.disturbed_at = Some(self.now);
        self.stops_are_unclear(ENGINE_SHUTDOWN);
    }

    /// The event stream breaks off.
    pub(super) fn stream_breaks(&mut self) {
        self.stops_are_unclear(SignedDuration::from_secs(1));
        self.events.disconnect();
    }

    /// Stops of the last moments look like the engine's own.
    pub(super) fn stops_are_unclear(&mut self, time: SignedDuration) {
        let now = self.now;
        let is_recent = |c: &&super::FakeContainer| matches!(c.run, Run::Ended { at, .. } if now.duration_since(at) <= time);
        self.truth.unheard.extend(self.containers.iter().filter(is_recent).map(|c| c.id.clone()));
    }

    /// Of what ended as if it was told to, nobody knows who told it.
    fn ends_are_unclear(&mut self) {
        let is_unknown = |c: &&super::FakeContainer| matches!(c.run, Run::Ended { code: 143, .. });
        let unknown = self.containers.iter().filter(is_unknown).map(|c| c.id.clone());
        self.truth.unknown.extend(unknown);
    }

    fn is_calm_since(&self, time: SignedDuration) -> bool {
        self.truth.disturbed_at.is_none_or(|at| self.now.duration_since(at) > time)
    }

    /// A container is seen as it is now.
    pub(super) fn note_health(&mut self, at: usize) {
        let (now, c) = (self.now, &self.containers[at]);
        let Some(since) = c.started().filter(|_| c.is_well(now)) else { return };
        let lasts = now.duration_since(since) >= WORKS_AFTER;
        let is_healthy = c.health(now) == Some(HealthState::Healthy);
        if lasts && (is_healthy || c.behaviour == Behaviour::Unchecked) {
            self.truth.worked.insert(c.image.clone());
        }
        if (is_healthy || (c.behaviour == Behaviour::Unchecked && lasts))
            && let Some(restarts) = self.truth.restarts.get_mut(&c.name())
        {
            restarts.count = 0;
        }
    }

    /// Compose is about to bring up a service.
    pub(super) fn check_up(&mut self, definition: &Definition) {
        let Definition { name, reference, version, .. } = definition;
        let Some((id, image)) = self.by_name(&reference.tagged()) else { return };
        let stays = |c: &super::FakeContainer| c.image == id && c.made_with == *version && c.is_up();
        if self.container(name).is_some_and(stays) || self.truth.tainted.contains(&id) {
            return;
        }
        self.check_line();
        let is_blocked = |durable: &Durable| {
            let failed = durable.failed_tags.iter();
            let failed = failed.flat_map(|(image, tags)| tags.values().map(move |digest| (image, digest)));
            durable.blocked.iter().chain(failed).any(|(configured, digest)| {
                Reference::parse(configured).is_ok_and(|r| r.repository == reference.repository)
                    && image.digests.contains(&reference.repository.at(digest))
            })
        };
        // Blocks belong to services; those of one that is configured no more are nobody's.
        let is_configured = |name: &String| self.truth.configs.iter().any(|config| config.name == *name);
        let blocked = self.durable.iter().any(|(name, durable)| is_configured(name) && is_blocked(durable));
        self.check_started(&id, &image);
        self.unless(!blocked, BLOCKED, |inner| format!("{} for {name}", inner.truth.word(&id)));
    }

    /// Compose or a restart is about to change the project.
    pub(super) fn check_turn(&mut self, restarts: bool) {
        let deploying = self.durable.values().filter(|durable| durable.deployment.is_some()).count();
        let most = usize::from(!restarts);
        self.unless(deploying <= most || self.truth.is_torn, ONE_ACTION, |_| {
            let what = if restarts { "a container is restarted" } else { "compose runs" };
            format!("{what} while {deploying} services deploy")
        });
    }

    /// The healer is about to restart a container.
    pub(super) fn check_restart(&mut self, at: usize) {
        let now = self.now;
        let c = &self.containers[at];
        let (name, id) = (c.name(), c.id.clone());
        // A restart that is on its way to the engine is not called back.
        let is_down = matches!(c.run, Run::Ended { at, .. } if now.duration_since(at) > SignedDuration::from_millis(100));
        let is_at_rest = is_down && self.truth.at_rest.contains(&c.service);
        let heard = !self.truth.unheard.contains(&id);
        self.unless(!(is_at_rest && heard), PERSON, |_| name.clone());
        let cap = self.truth.configs.iter().map(|c| c.heal_max_restarts).max();
        let cooldown = self.truth.configs.iter().map(|c| c.heal_cooldown).min();
        let restarts = self.truth.restarts.entry(name.clone()).or_default();
        if restarts.id != id {
            *restarts = Restarts { id, ..Restarts::default() };
        }
        restarts.count += 1;
        let (count, last) = (restarts.count, restarts.last.replace(now));
        self.unless(cap.is_none_or(|cap| count <= cap), CAP, |_| format!("{name}: {count}"));
        // It counts from the decision, which the engine carries out a moment later.
        let in_time = |last: Timestamp| {
            cooldown.is_none_or(|cooldown| now + SignedDuration::from_secs(1) >= last + cooldown)
        };
        self.unless(last.is_none_or(in_time), COOLDOWN, |_| name.clone());
    }

    /// These rows are in the store now.
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
        self.check_line();
    }

    /// A write was made and is reported as failed.
    pub(super) fn torn(&mut self) {
        self.truth.is_torn = true;
    }

    /// Writes were lost.
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
            self.tell("journal", &format!("{service}: {step}"));
            self.follow_line(service, durable);
        }
        for (image, digest) in &durable.blocked {
            if old.blocked.get(image) != Some(digest) {
                self.check_block(service, digest);
            }
        }
        self.check_found(service, durable);
        match (&old.deployment, &durable.deployment) {
            (None, Some(deployment)) => {
                self.check_begun(service, deployment.plan());
                let live = self.containers.iter().filter(|c| c.is_up());
                let all = self.services.iter().map(|service| service.name.clone()).collect();
                let begun = Begun {
                    images: live.map(|c| (c.service.clone(), c.image.clone())).collect(),
                    unproven: old.unproven.values().cloned().collect(),
                    tags: self.tags(),
                    tag: self.tag_in_force(),
                    is_disturbed: self.truth.is_torn,
                    are_tags_moved: self.truth.is_torn,
                    touched: if self.truth.is_torn { all } else { BTreeSet::new() },
                };
                self.truth.begun.insert(service.to_owned(), begun);
            }
            (Some(deployment), None) => self.check_tags(service, deployment),
            _ => {}
        }
    }

    fn check_block(&mut self, service: &str, digest: &Digest) {
        let works = self.published.get(digest).is_some_and(|(_, behaviour)| behaviour.works());
        let others_work = self.containers.iter().all(super::FakeContainer::works);
        let is_disturbed = self.truth.begun.get(service).is_none_or(|begun| begun.is_disturbed);
        let holds = !works || !others_work || is_disturbed;
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
        self.tell("audit", &line);
        if entry.event == Kind::ROLLED_BACK {
            self.check_rolled_back(&entry);
        } else if entry.event == Kind::UPDATED {
            self.check_updated(&entry);
        }
        self.follow_tag(&entry);
        self.truth.recorded.insert(seq, entry);
    }

    fn check_rolled_back(&mut self, entry: &AuditEntry) {
        let Some(begun) = self.truth.begun.get(&entry.service) else { return };
        let wrong = begun.images.iter().find(|(service, image)| {
            let runs = self.container(service).map(|c| &c.image);
            !begun.touched.contains(*service) && !begun.unproven.contains(image) && runs != Some(image)
        });
        let wrong = wrong.map(|(service, image)| format!("{service} ran on {}", self.truth.word(image)));
        self.unless(wrong.is_none(), EXACTLY, |_| wrong.clone().unwrap_or_default());
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
            self.tell("status", &line);
        }
    }
}

impl FakeWorld {
    /// What is configured from now on.
    pub(crate) fn configured(&self, configs: &[Arc<ServiceConfig>]) {
        let mut inner = self.lock();
        let before = std::mem::replace(&mut inner.truth.configs, configs.to_vec());
        let healers = |configs: &[Arc<ServiceConfig>]| -> BTreeSet<(String, bool)> {
            configs.iter().map(|config| (config.name.clone(), config.auto_heal)).collect()
        };
        // A container that another service heals from now on has a clean restart history.
        if healers(&before) != healers(configs) {
            inner.truth.restarts.clear();
            inner.ends_are_unclear();
        }
    }

    /// The agent runs, or does not.
    pub(crate) fn agent_runs(&self, runs: bool) {
        let mut inner = self.lock();
        inner.truth.agent_runs = runs;
        inner.check_line();
    }

    /// A person asks the agent for something: the limits of the healer begin again.
    pub(crate) fn person_asked(&self) {
        self.lock().truth.restarts.clear();
    }

    /// The agent begins anew, with what is in the store.
    pub(crate) async fn reread(&self) {
        let rows = evenkeel_common::store::Store::scan(&self.store, "").await.expect("memory");
        let rows: Vec<Change> = rows.into_iter().map(|(key, row)| (key, Some(row))).collect();
        let mut inner = self.lock();
        inner.written(&rows);
        inner.ends_are_unclear();
    }

    /// A destination has taken an entry.
    pub(crate) fn deliver(&self, seq: Option<u64>, entry: &AuditEntry) {
        let mut inner = self.lock();
        let Some(seq) = seq else { return inner.truth.unnumbered.push(entry.clone()) };
        let before = inner.truth.delivered.insert(seq, entry.clone());
        let holds = before.is_none_or(|before| before == *entry) || inner.truth.is_write_lost;
        inner.unless(holds, SEQUENCE, |_| format!("number {seq} is delivered as two entries"));
    }

    /// A service shows this.
    pub(crate) fn shows(&self, record: &ServiceStatus) {
        self.lock().check_status(record);
    }

    /// Adds a line to the transcript.
    pub(crate) fn tell(&self, who: &str, what: &str) {
        self.lock().tell(who, what);
    }

    /// Lines in the transcript so far.
    pub(crate) fn told(&self) -> usize {
        self.lock().transcript.len()
    }

    pub(crate) fn transcript(&self) -> Vec<String> {
        self.lock().transcript.clone()
    }
}
