//! What must hold of gates: what they hold is neither fetched nor started, and they hold nothing longer than they may.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_agent::config::{ServiceConfig, UpdateConfig};
use evenkeel_agent::model::image::{Digest, ImageId, Reference};
use evenkeel_agent::ports::GateQuestion;
use evenkeel_agent::service::Durable;
use evenkeel_agent::service::candidate::Found;
use evenkeel_agent::service::input::ServiceRequest;
use evenkeel_agent::service::rollout::plan::{Cause, Plan};
use evenkeel_common::store::Change;
use evenkeel_common::wire::{AuditEntry, Kind};
use jiff::{SignedDuration, Timestamp};

use super::super::{FakeImage, FakeWorld, Inner, digest_of};
use super::AtEnd;

const HELD: &str = "a digest that a gate holds is neither fetched nor started";
const APPROVAL: &str = "an approval is a person's, outlives the agent, and ends with the digest";
const TRIGGER: &str = "a trigger is a person's, and ends with the digest that it found";
const FIRST_SEEN: &str = "since when a digest is known outlives the agent";
const PASSES: &str = "a trigger passes approval, age and window, and a redeploy passes the command, too";

/// How long after a person's trigger its check may end. A registry that hangs takes 30 s.
const TRIGGERED: SignedDuration = SignedDuration::from_secs(75);
/// What a gate lifts at the end of a life must be deployed by then.
const SLACK: SignedDuration = SignedDuration::from_secs(20);

/// Who wants an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    Cycle,
    Trigger,
    Redeploy,
}

/// What is true of digests and gates.
#[derive(Default)]
pub(in super::super) struct Gated {
    /// When the agent was told of a digest under a tag first, since it noted another one there.
    told: BTreeMap<(String, Digest), Timestamp>,
    /// What the agent has noted, by service and tag.
    noted: BTreeMap<(String, String), (Digest, Timestamp)>,
    /// What persons have approved, by service.
    approved: BTreeSet<(String, Digest)>,
    /// When a person triggered a service last.
    triggered: BTreeMap<String, Timestamp>,
    /// What these triggers have found, by service.
    found_by_trigger: BTreeSet<(String, Digest)>,
    /// Whether the gate command's last answer was "go", by service.
    answers: BTreeMap<(String, Digest), bool>,
    /// Digests that may be here: they ran from the beginning, a person has fetched them, or a deployment of them was
    /// allowed to begin.
    let_go: BTreeSet<Digest>,
}

impl Gated {
    pub(in super::super) fn fetched_by_person(&mut self, digest: &Digest) {
        self.let_go.insert(digest.clone());
    }

    /// Writes were lost, and with them what persons had asked for last. This is left.
    pub(super) fn lost(&mut self, service: &str, durable: &Durable) {
        let is_left = |digest: &Digest, what: fn(&Found) -> bool| {
            durable.found.iter().any(|found| found.digest == *digest && what(found))
        };
        self.approved.retain(|(of, digest)| of != service || is_left(digest, |found| found.approved));
        self.found_by_trigger
            .retain(|(of, digest)| of != service || is_left(digest, |found| found.triggered));
    }
}

impl Inner {
    /// The registry tells the agent what it has under a tag.
    pub(in super::super) fn digest_told(&mut self, reference: &Reference, digest: Option<&Digest>) {
        let Some(digest) = digest else { return };
        self.truth.gated.told.entry((reference.tagged(), digest.clone())).or_insert(self.now);
    }

    /// The gate command answers.
    pub(in super::super) fn command_answers(&mut self, question: &GateQuestion, goes: bool) {
        let key = (question.service.clone(), question.digest.clone());
        self.truth.gated.answers.insert(key, goes);
    }

    /// The gate that holds a digest, by what is true.
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
        if asker == Asker::Trigger {
            return None;
        }
        if update.approve && !gated.approved.contains(&key) {
            return Some("approval");
        }
        let told = gated.told.get(&(tag.to_owned(), digest.clone()));
        if update.min_age.is_some_and(|age| told.is_none_or(|told| now < *told + age)) {
            return Some("min_age");
        }
        let window = update.window.as_ref();
        window.is_some_and(|window| !window.is_open(self.wall(now))).then_some("window")
    }

    /// The gate of any service of the project that lists the image and updates it.
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

    /// Whether a gate holds a digest at the end of a life, or has until a moment ago.
    pub(super) fn is_held(&self, tag: &str, digest: &Digest, asker: Asker) -> bool {
        self.any_holds(tag, digest, asker, self.now - SLACK).is_some()
            || self.any_holds(tag, digest, asker, self.now).is_some()
    }

    fn is_blurred(&self) -> bool {
        self.truth.is_torn || self.truth.is_write_lost
    }

    /// A deployment begins.
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
            if config.is_some() && is_new {
                // The decision was made a moment before it was written.
                let before = self.now - SignedDuration::from_secs(2);
                let hold = |now| self.any_holds(&tag, &change.digest, asker, now);
                let gate = hold(self.now).filter(|(_, gate)| *gate != "window" || hold(before).is_some());
                let holds = gate.is_none() || self.is_blurred();
                self.unless(holds, HELD, |inner| {
                    let what = inner.readable(change.digest.as_str());
                    let (of, gate) = gate.clone().unwrap_or_default();
                    format!("{what} is deployed for {service} past {gate} of {of}")
                });
            }
            self.truth.gated.let_go.insert(change.digest.clone());
        }
    }

    /// The agent fetches a digest.
    pub(in super::super) fn check_fetched(&mut self, digest: &Digest) {
        let is_simple = self.truth.configs.is_empty();
        let holds = is_simple || self.truth.gated.let_go.contains(digest) || self.is_blurred();
        self.unless(holds, HELD, |inner| format!("{} is fetched", inner.readable(digest.as_str())));
    }

    /// Compose fetches by itself what the registry has under a tag.
    pub(in super::super) fn check_fetched_by_compose(&mut self, tag: &str, digest: &Digest) {
        if self.any_holds(tag, digest, Asker::Cycle, self.now).is_none() {
            self.truth.gated.let_go.insert(digest.clone());
        }
        self.check_fetched(digest);
    }

    /// The agent's compose makes a container from an image.
    pub(super) fn check_started(&mut self, id: &ImageId, image: &FakeImage) {
        let let_go = &self.truth.gated.let_go;
        let is_let_go =
            let_go.iter().any(|digest| image.digests.iter().any(|d| d.ends_with(digest.as_str())));
        let is_simple = self.truth.configs.is_empty() || image.digests.is_empty();
        let holds = is_simple || is_let_go || self.truth.pulled.contains(id) || self.is_blurred();
        self.unless(holds, HELD, |inner| format!("{} is started", inner.truth.word(id)));
    }

    /// What persons have approved is in the transaction that writes it down.
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

    /// What the agent has noted of the digests that the registry has.
    pub(super) fn check_found(&mut self, service: &str, durable: &Durable) {
        let now = self.now;
        let gated = &mut self.truth.gated;
        let is_there = |digest: &Digest| durable.found.iter().any(|found| found.digest == *digest);
        gated.approved.retain(|(of, digest)| of != service || is_there(digest));
        gated.found_by_trigger.retain(|(of, digest)| of != service || is_there(digest));
        let is_noted = |tag: &str, digest: &Digest| {
            durable.found.iter().any(|found| found.digest == *digest && tag_of(found) == tag)
        };
        gated.noted.retain(|(of, tag), (digest, _)| of != service || is_noted(tag, digest));
        let triggered = gated.triggered.get(service).copied();
        let is_triggered = triggered.is_some_and(|at| now.duration_since(at) <= TRIGGERED);
        let (mut odd, mut anew, mut untriggered) = (Vec::new(), Vec::new(), Vec::new());
        for found in &durable.found {
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
                odd.push(found.digest.clone());
            }
            let tag = tag_of(found);
            // Another service that lists the image may have noted a later digest already.
            let noted = &gated.noted;
            let is_noted_elsewhere = |digest: &Digest| {
                noted.iter().any(|((of, at), (known, _))| of != service && *at == tag && known == digest)
            };
            gated.told.retain(|(of, digest), _| {
                *of != tag || *digest == found.digest || is_noted_elsewhere(digest)
            });
            // What is noted was told, even where another service noted an earlier digest in between.
            gated.told.entry((tag.clone(), found.digest.clone())).or_insert(now);
            let place = (service.to_owned(), tag);
            let noted = (found.digest.clone(), found.first_seen);
            if let Some(before) = gated.noted.insert(place, noted.clone()).filter(|before| *before != noted) {
                anew.push((before, noted));
            }
        }
        let is_blurred = self.is_blurred();
        for digest in odd {
            self.unless(is_blurred, APPROVAL, |inner| inner.readable(digest.as_str()));
        }
        for digest in untriggered {
            self.unless(is_blurred, TRIGGER, |inner| inner.readable(digest.as_str()));
        }
        for ((digest, before), (_, after)) in anew {
            let holds = is_blurred || self.is_shifted(before, after);
            self.unless(holds, FIRST_SEEN, |inner| {
                format!("{}, {before} became {after}", inner.readable(digest.as_str()))
            });
        }
    }

    /// At the end it is written down since when the digests are known that gates may hold.
    pub(super) fn check_noted(&mut self, one: &AtEnd) {
        // Under which tags it asks the registry is its own choice, where it has one.
        let chooses = one.config.tag_variable().is_some();
        if one.config.update.is_none() || one.record.errored.is_some() || chooses {
            return;
        }
        for image in &one.config.images {
            let Some(digest) = self.registry.get(&image.reference.tagged()).cloned() else { continue };
            let found = self.durable.get(&one.config.name).map(|durable| durable.found.clone());
            let holds = found.unwrap_or_default().iter().any(|found| found.digest == digest);
            self.unless(holds, FIRST_SEEN, |inner| inner.readable(digest.as_str()));
        }
    }
}

/// The tag under which a digest was found.
fn tag_of(found: &Found) -> String {
    let configured = || Reference::parse(&found.image).ok();
    found.reference.clone().or_else(configured).map(|reference| reference.tagged()).unwrap_or_default()
}

impl FakeWorld {
    /// These images were there before everything, signed.
    pub(crate) fn trusts(&self, name: &str) {
        let mut inner = self.lock();
        inner.signed.insert(digest_of(name));
        inner.truth.gated.let_go.insert(digest_of(name));
    }

    /// A person asks this of a service.
    pub(crate) fn service_asked(&self, service: &str, request: &ServiceRequest) {
        let mut inner = self.lock();
        let now = inner.now;
        if *request == ServiceRequest::Check {
            inner.truth.gated.triggered.insert(service.to_owned(), now);
        }
    }

    /// A person has asked for this update a while ago, and everything works.
    pub(crate) fn check_passed(&self, all: &[AtEnd], request: &ServiceRequest) {
        let is_redeploy = *request == ServiceRequest::Redeploy;
        let mut inner = self.lock();
        for one in all {
            let waits = one.record.waiting.as_ref().map(|waiting| waiting.gate.clone());
            // No request passes a signature.
            let waits = waits.filter(|gate| {
                gate != "signature" && (is_redeploy || (gate != "command" && gate != "project"))
            });
            // What the request found under a newer tag may have failed since; what is found next waits for a request of its own.
            let durable = inner.durable.get(&one.config.name);
            let has_failed = durable.is_some_and(|d| !d.blocked.is_empty() || !d.failed_tags.is_empty());
            let may_be_next = one.config.tag_variable().is_some() && (!is_redeploy || has_failed);
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
