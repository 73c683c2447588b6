//! The properties of gates: a held image is neither fetched nor started, and no gate holds an image longer than allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_agent::config::{ServiceConfig, UpdateConfig};
use evenkeel_agent::model::HookEvent;
use evenkeel_agent::model::image::{Digest, ImageId, Reference};
use evenkeel_agent::ports::{GateQuestion, HookCall};
use evenkeel_agent::service::Durable;
use evenkeel_agent::service::images::Found;
use evenkeel_agent::service::input::ServiceRequest;
use evenkeel_agent::service::rollout::baseline::Baseline;
use evenkeel_agent::service::rollout::plan::{Cause, ImageChange, Plan};
use evenkeel_common::store::Change;
use evenkeel_common::wire::{AuditEntry, Kind};
use jiff::{SignedDuration, Timestamp};

use super::super::{FakeImage, FakeWorld, Inner, digest_of};
use super::AtEnd;

const HELD: &str = "a digest that a gate holds is neither fetched nor started";
const ASKED: &str =
    "an image that differs in what `ask_on` names is deployed only with an approval or by a redeploy";
const BREAKING: &str = "breaking";
const APPROVAL: &str = "an approval comes from an operator, survives restarts, and ends with its digest";
const TRIGGER: &str = "a trigger comes from an operator and ends with the digest that it found";
const FIRST_SEEN: &str = "the first-seen time of a digest survives restarts";
const PASSES: &str = "a trigger bypasses approval, age and window, and a redeploy also bypasses the command";

/// How long after an operator's trigger its check may end, and another one of a newer tag that was found for it. A hanging
/// registry takes 30 s, and so does its list of tags.
const TRIGGERED: SignedDuration = SignedDuration::from_secs(150);
/// How long an image may remain undeployed after its gate opened, at the end of a run.
const SLACK: SignedDuration = SignedDuration::from_secs(20);

/// What asks for an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    Cycle,
    Trigger,
    Redeploy,
}

/// The ground truth about digests and gates.
#[derive(Default)]
pub(in super::super) struct Gated {
    /// When the registry first reported a digest under a tag, since the agent noted another one for that tag.
    first_reported: BTreeMap<(String, Digest), Timestamp>,
    /// The digests that the agent has noted, by service and tag.
    noted: BTreeMap<(String, String), (Digest, Timestamp)>,
    /// The digests that operators have approved, by service.
    approved: BTreeSet<(String, Digest)>,
    /// When an operator last triggered a service.
    triggered: BTreeMap<String, Timestamp>,
    /// The digests that these triggers have found, by service.
    found_by_trigger: BTreeSet<(String, Digest)>,
    /// Whether the gate command's last answer was "go", by service.
    answers: BTreeMap<(String, Digest), bool>,
    /// Digests that may be present locally: they ran from the beginning, an operator pulled them, or a deployment of them
    /// was allowed to begin.
    allowed: BTreeSet<Digest>,
}

impl Gated {
    pub(in super::super) fn pulled_by_operator(&mut self, digest: &Digest) {
        self.allowed.insert(digest.clone());
    }

    /// Writes were lost, and with them the latest requests of operators. `durable` is the remaining state.
    pub(super) fn lost(&mut self, service: &str, durable: &Durable) {
        let is_left = |digest: &Digest, what: fn(&Found) -> bool| {
            durable.images.found().any(|found| found.digest == *digest && what(found))
        };
        self.approved.retain(|(of, digest)| of != service || is_left(digest, |found| found.approved));
        self.found_by_trigger
            .retain(|(of, digest)| of != service || is_left(digest, |found| found.triggered));
    }
}

impl Inner {
    /// The registry reports the digest of a tag to the agent.
    pub(in super::super) fn digest_reported(&mut self, reference: &Reference, digest: Option<&Digest>) {
        let Some(digest) = digest else { return };
        self.truth.gated.first_reported.entry((reference.tagged(), digest.clone())).or_insert(self.now);
    }

    /// The gate command answers.
    pub(in super::super) fn command_answers(&mut self, question: &GateQuestion, goes: bool) {
        let key = (question.service.clone(), question.digest.clone());
        self.truth.gated.answers.insert(key, goes);
    }

    /// Notes the run of a hook, and checks what is recorded by then.
    pub(in super::super) fn hook_runs(&mut self, call: &HookCall) {
        let kind = match call.event {
            HookEvent::Before => return,
            HookEvent::Updated => Kind::UPDATED,
            HookEvent::RolledBack => Kind::ROLLED_BACK,
        };
        let digest = call.question.digest.to_string();
        let is_it = |entry: &AuditEntry| entry.event == kind && entry.new_digest.as_ref() == Some(&digest);
        if !self.truth.recorded.values().any(is_it) && !self.truth.is_write_lost {
            self.violated("a hook that follows a deployment runs once its entry is durable");
        }
    }

    /// Returns the gate that holds a digest, according to the ground truth.
    fn holds(
        &self,
        config: &ServiceConfig,
        tag: &str,
        digest: &Digest,
        asker: Asker,
        now: Timestamp,
    ) -> Option<&'static str> {
        let update: &UpdateConfig = config.update.as_deref()?;
        let gated = &self.truth.gated;
        let key = (config.name.clone(), digest.clone());
        if !update.signed_by.is_empty() && !self.signed.contains(digest) {
            return Some("signature");
        }
        if asker == Asker::Redeploy {
            return None;
        }
        if !update.gate.is_empty() && gated.answers.get(&key) != Some(&true) {
            return Some("command");
        }
        let is_breaking =
            || !update.ask_on.is_empty() && !gated.approved.contains(&key) && self.moves_volume(tag, digest);
        if asker == Asker::Trigger {
            return is_breaking().then_some(BREAKING);
        }
        if update.approve && !gated.approved.contains(&key) {
            return Some("approval");
        }
        let first_reported = gated.first_reported.get(&(tag.to_owned(), digest.clone()));
        if update
            .min_age
            .is_some_and(|age| first_reported.is_none_or(|first_reported| now < *first_reported + age))
        {
            return Some("min_age");
        }
        let window = update.window.as_ref();
        if window.is_some_and(|window| !window.is_open(self.wall(now))) {
            return Some("window");
        }
        is_breaking().then_some(BREAKING)
    }

    /// Reports whether an image declares another volume than a running one of its tag.
    fn moves_volume(&self, tag: &str, digest: &Digest) -> bool {
        let Some((id, _)) = self.published.get(digest) else { return false };
        let Ok(of) = Reference::parse(tag) else { return false };
        let runs = |c: &&super::super::FakeContainer| c.is_up() && c.reference.repository == of.repository;
        self.containers.iter().filter(runs).any(|c| self.volume_of(&c.image) != self.volume_of(id))
    }

    /// Checks that what differs was approved, by what ran according to the plan.
    fn check_asked(&mut self, config: &ServiceConfig, plan: &Plan, change: &ImageChange) {
        let asks = config.update.as_ref().is_some_and(|update| !update.ask_on.is_empty());
        if !asks || plan.cause != Cause::Update {
            return;
        }
        let Some((id, _)) = self.published.get(&change.digest).cloned() else { return };
        let volume = self.volume_of(&id);
        let is_moved = |was: &Baseline| {
            let of = change.from.as_ref().unwrap_or(&change.reference).tagged();
            was.live && was.config_image == of && self.volume_of(&was.image) != volume
        };
        // While nothing runs, the image that would be started is replaced. It is not in the plan if it was never proven.
        let durable = self.durable.get(&config.name);
        let is_down = !plan.before.iter().any(|was| was.live)
            && durable
                .is_some_and(|durable| !durable.images.iter().any(|(_, memory)| memory.unproven.is_some()));
        let replaces_moved =
            change.old.as_ref().is_some_and(|old| is_down && self.volume_of(&old.id) != volume);
        let key = (config.name.clone(), change.digest.clone());
        let is_approved = self.truth.gated.approved.contains(&key);
        let is_asked = plan.before.iter().any(is_moved) || replaces_moved;
        let holds = is_approved || !is_asked || self.is_uncertain();
        self.unless(holds, ASKED, |inner| inner.readable(change.digest.as_str()));
    }

    /// Returns a holding gate of any service of the project that lists the image and updates it.
    fn any_holds(
        &self,
        tag: &str,
        digest: &Digest,
        asker: Asker,
        now: Timestamp,
    ) -> Option<(String, &'static str)> {
        let of = Reference::parse(tag).map(|reference| reference.repository).ok();
        let has = |config: &&Arc<ServiceConfig>| {
            let mut images = config.images.iter();
            config.auto_update && images.any(|image| Some(&image.reference.repository) == of.as_ref())
        };
        let mut all = self.truth.configs.iter().filter(has);
        all.find_map(|one| Some((one.name.clone(), self.holds(one, tag, digest, asker, now)?)))
    }

    /// Reports whether a gate holds a digest at the end of a run, or did until a moment ago.
    pub(super) fn is_held(&self, tag: &str, digest: &Digest, asker: Asker) -> bool {
        self.any_holds(tag, digest, asker, self.now - SLACK).is_some()
            || self.any_holds(tag, digest, asker, self.now).is_some()
    }

    fn is_uncertain(&self) -> bool {
        self.truth.is_torn || self.truth.is_write_lost
    }

    /// Checks a deployment that begins.
    pub(super) fn check_begun(&mut self, service: &str, plan: &Plan) {
        let config = self.truth.configs.iter().find(|config| config.name == service).cloned();
        for change in &plan.image_changes {
            let key = (service.to_owned(), change.digest.clone());
            let is_triggered = self.truth.gated.found_by_trigger.remove(&key);
            let asker = match plan.cause {
                Cause::Redeploy => Asker::Redeploy,
                _ if is_triggered => Asker::Trigger,
                _ => Asker::Cycle,
            };
            let tag = change.reference.tagged();
            let is_new = change.old_digest.as_ref() != Some(&change.digest);
            if let Some(config) = config.as_ref().filter(|_| is_new) {
                self.check_asked(config, plan, change);
            }
            // What was proven before needs no gate, nor does what ran before the engine lost it.
            let is_back = matches!(plan.cause, Cause::GoBack(_));
            let is_lost = change.old.is_none() && !plan.before.iter().any(|was| was.live);
            let is_restart = is_lost && self.truth.gated.allowed.contains(&change.digest);
            if config.is_some() && is_new && !is_back && !is_restart {
                // The decision was made shortly before it was written.
                let before = self.now - SignedDuration::from_secs(2);
                let hold = |now| self.any_holds(&tag, &change.digest, asker, now);
                let gate = hold(self.now).filter(|(_, gate)| *gate != "window" || hold(before).is_some());
                // What ran when it was decided is in the plan, and is checked above.
                let gate = gate.filter(|(_, gate)| *gate != BREAKING);
                let holds = gate.is_none() || self.is_uncertain();
                self.unless(holds, HELD, |inner| {
                    let what = inner.readable(change.digest.as_str());
                    let (of, gate) = gate.clone().unwrap_or_default();
                    format!("{what} is deployed for {service} past {gate} of {of}")
                });
            }
            self.truth.gated.allowed.insert(change.digest.clone());
        }
    }

    /// Checks a digest that the agent fetches.
    pub(in super::super) fn check_fetched(&mut self, digest: &Digest) {
        let is_simple = self.truth.configs.is_empty();
        let holds = is_simple || self.truth.gated.allowed.contains(digest) || self.is_uncertain();
        self.unless(holds, HELD, |inner| format!("{} is fetched", inner.readable(digest.as_str())));
    }

    /// Checks an image that compose pulls by itself.
    pub(in super::super) fn check_fetched_by_compose(&mut self, tag: &str, digest: &Digest) {
        if self.any_holds(tag, digest, Asker::Cycle, self.now).is_none() {
            self.truth.gated.allowed.insert(digest.clone());
        }
        self.check_fetched(digest);
    }

    /// Checks an image from which compose, run by the agent, creates a container.
    pub(super) fn check_started(&mut self, id: &ImageId, image: &FakeImage) {
        let allowed = &self.truth.gated.allowed;
        let is_allowed =
            allowed.iter().any(|digest| image.digests.iter().any(|d| d.ends_with(digest.as_str())));
        let is_simple = self.truth.configs.is_empty() || image.digests.is_empty();
        let holds = is_simple || is_allowed || self.truth.pulled.contains(id) || self.is_uncertain();
        self.unless(holds, HELD, |inner| format!("{} is started", inner.truth.image_name(id)));
    }

    /// Notes approvals, whose entries are in the transaction that stores them.
    pub(super) fn note_approvals(&mut self, changes: &[Change]) {
        for (_, row) in changes.iter().filter(|(key, _)| key.starts_with("outbox/entry/")) {
            let Some(row) = row else { continue };
            let entry: AuditEntry = serde_json::from_slice(row).expect("the agent wrote it");
            let digest = entry.new_digest.as_deref().and_then(|digest| Digest::parse(digest).ok());
            if let Some(digest) = digest.filter(|_| entry.event == Kind::APPROVED) {
                self.truth.gated.approved.insert((entry.service, digest));
            }
        }
    }

    /// Checks what the agent has stored about the digests in the registry.
    pub(super) fn check_found(&mut self, service: &str, durable: &Durable) {
        let now = self.now;
        let gated = &mut self.truth.gated;
        let is_there = |digest: &Digest| durable.images.found().any(|found| found.digest == *digest);
        gated.approved.retain(|(of, digest)| of != service || is_there(digest));
        gated.found_by_trigger.retain(|(of, digest)| of != service || is_there(digest));
        let is_noted = |tag: &str, digest: &Digest| {
            durable.images.found().any(|found| found.digest == *digest && tag_of(found) == tag)
        };
        gated.noted.retain(|(of, tag), (digest, _)| of != service || is_noted(tag, digest));
        let triggered = gated.triggered.get(service).copied();
        let is_triggered = triggered.is_some_and(|at| now.duration_since(at) <= TRIGGERED);
        let (mut unexpected, mut changed, mut untriggered) = (Vec::new(), Vec::new(), Vec::new());
        for found in durable.images.found() {
            let key = (service.to_owned(), found.digest.clone());
            if found.approved && is_triggered {
                gated.approved.insert(key.clone());
            }
            if found.triggered && !gated.found_by_trigger.contains(&key) {
                if is_triggered {
                    gated.found_by_trigger.insert(key.clone());
                } else {
                    untriggered.push(found.digest.clone());
                }
            }
            if found.approved != gated.approved.contains(&key) {
                unexpected.push(found.digest.clone());
            }
            let tag = tag_of(found);
            // Another service that lists the image may already have noted a later digest.
            let noted = &gated.noted;
            let is_noted_elsewhere = |digest: &Digest| {
                noted.iter().any(|((of, at), (known, _))| of != service && *at == tag && known == digest)
            };
            gated.first_reported.retain(|(of, digest), _| {
                *of != tag || *digest == found.digest || is_noted_elsewhere(digest)
            });
            // A noted digest was reported, even if another service noted an earlier digest in between.
            gated.first_reported.entry((tag.clone(), found.digest.clone())).or_insert(now);
            let place = (service.to_owned(), tag);
            let noted = (found.digest.clone(), found.first_seen);
            if let Some(before) = gated.noted.insert(place, noted.clone()).filter(|before| *before != noted) {
                changed.push((before, noted));
            }
        }
        let is_uncertain = self.is_uncertain();
        for digest in unexpected {
            self.unless(is_uncertain, APPROVAL, |inner| inner.readable(digest.as_str()));
        }
        for digest in untriggered {
            self.unless(is_uncertain, TRIGGER, |inner| inner.readable(digest.as_str()));
        }
        for ((digest, before), (_, after)) in changed {
            let holds = is_uncertain || self.is_shifted(before, after);
            self.unless(holds, FIRST_SEEN, |inner| {
                format!("{}, {before} became {after}", inner.readable(digest.as_str()))
            });
        }
    }

    /// Checks that at the end the first-seen time is stored for every digest that gates may hold.
    pub(super) fn check_noted(&mut self, one: &AtEnd) {
        // A service with a tag variable chooses itself which tags it checks.
        let chooses = one.config.tag_variable().is_some();
        if one.config.update.is_none() || one.record.errored.is_some() || chooses {
            return;
        }
        for image in &one.config.images {
            let Some(digest) = self.registry.get(&image.reference.tagged()).cloned() else { continue };
            let durable = self.durable.get(&one.config.name);
            let holds = durable.is_some_and(|d| d.images.found().any(|found| found.digest == digest));
            self.unless(holds, FIRST_SEEN, |inner| inner.readable(digest.as_str()));
        }
    }
}

/// Returns the tag under which a digest was found.
fn tag_of(found: &Found) -> String {
    found.reference.as_ref().map(Reference::tagged).unwrap_or_default()
}

impl FakeWorld {
    /// Marks an image as signed and present from the beginning.
    pub(crate) fn trust(&self, name: &str) {
        let mut inner = self.lock();
        inner.signed.insert(digest_of(name));
        inner.truth.gated.allowed.insert(digest_of(name));
    }

    /// An operator sends this request to a service.
    pub(crate) fn service_asked(&self, service: &str, request: &ServiceRequest) {
        let mut inner = self.lock();
        let now = inner.now;
        if *request == ServiceRequest::Check {
            inner.truth.gated.triggered.insert(service.to_owned(), now);
        }
        if matches!(request, ServiceRequest::Rollback { .. }) {
            inner.truth.going_back.insert(service.to_owned());
        }
    }

    /// Checks that services no longer wait some time after an operator requested the update, with everything working.
    pub(crate) fn check_passed(&self, all: &[AtEnd], request: &ServiceRequest) {
        let is_redeploy = *request == ServiceRequest::Redeploy;
        let mut inner = self.lock();
        for one in all {
            let waits = one.record.waiting.as_ref();
            // Only an unblock of the other service releases what that has blocked.
            let waits = waits.filter(|waiting| !waiting.clear.starts_with("POST /unblock/"));
            let waits = waits.map(|waiting| waiting.gate.clone());
            // No request bypasses a signature, and only a redeployment an edit that was not applied.
            let waits = waits.filter(|gate| {
                gate != "signature"
                    && (is_redeploy
                        || !matches!(gate.as_str(), "definition" | "command" | "breaking" | "project"))
            });
            // The newer tag that the request found may have failed since; the next one waits for its own request.
            let durable = inner.durable.get(&one.config.name);
            let has_failed = durable.is_some_and(|d| {
                d.images.blocked().next().is_some() || d.images.failed_tags().next().is_some()
            });
            let may_be_next = one.config.tag_variable().is_some() && (!is_redeploy || has_failed);
            // A trigger ends when its update begins: an image that was rolled back with a failed one waits for the next.
            let may_be_next = may_be_next || (has_failed && one.config.images.len() > 1);
            let waits = waits.filter(|_| !may_be_next);
            inner.unless(waits.is_none(), PASSES, |_| {
                format!(
                    "{} waits for {} after {request:?}",
                    one.config.name,
                    waits.clone().unwrap_or_default()
                )
            });
        }
    }
}
