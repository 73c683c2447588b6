//! Fleet decisions, leases and inventories. An answer that allows a deployment is based on the store; answers from memory
//! can only defer one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_common::wire::{FleetAnswer, FleetDecisions, FleetImages, Inventory, Permission};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::Collector;
use crate::fleet::answer::{self, Answered, Asking, Facts, Rules};
use crate::fleet::decisions::{DECISIONS, Decision, Decisions, FUSE, Fuse, FuseRule};
use crate::fleet::inventory::{self, Reported};
use crate::fleet::is_possible;
use crate::fleet::lease::{self, Leases};
use crate::fleet::retention::{self, Outdated, Reduced};
use crate::fleet::state::{bytes, parse};
use crate::fleet::verdict::{self, DigestRecord};
use crate::fleet::view::{POLLS, View};
use crate::keep::{Change, KeepError, Outcome, Versioned};

/// Time limit for answering an agent, whose own timeout is 2 s (DECISIONS 8).
const ASK_TIME: Duration = Duration::from_millis(1500);
/// Time limit for recording an agent's poll before the poll is answered.
const POLL_TIME: Duration = Duration::from_secs(1);
/// Attempts to update a value that other wardens change concurrently.
const MAX_ATTEMPTS: usize = 20;
/// Maximum number of values removed in one pass, so that other work is not delayed.
const MAX_REMOVALS: usize = 100;
/// Maximum number of leases of one agent.
const MAX_LEASES: usize = 256;
/// Maximum number of leases and trials of one agent that are remembered: each repository has a value of its own, and an agent
/// can name any number of them.
const MAX_TRACES: usize = 2000;
/// How many leases an agent may request for images that it has not reported, and the time until it may request another one:
/// it reports its images a few seconds after its start.
const MAX_UNREPORTED: u32 = 64;
const NEXT_UNREPORTED: Duration = Duration::from_mins(1);
/// Name of the value with the time up to which this was last judged what is too old, and how often it is written.
const RETAINED: &str = "retained";
const RETAINED_EVERY: SignedDuration = SignedDuration::from_hours(1);
/// If more time than this has passed since then, the clock may be wrong. It is believed once it has been seen for the time
/// below.
const LEAP: SignedDuration = SignedDuration::from_hours(24);
const BELIEVED: Duration = Duration::from_hours(1);
/// How long after the store was read a machine without a report may be about to send one.
const REPORT_TIME: SignedDuration = SignedDuration::from_mins(2);
/// Outages of the store that follow each other closely count as one, for this long after the store was first back.
const MAX_OUTAGE: SignedDuration = SignedDuration::from_mins(10);
/// Polls older than this are dropped.
const POLL_RETENTION: SignedDuration = SignedDuration::from_hours(24);

/// A time without the store, in which no lease could be renewed, except for moments.
#[derive(Debug, Clone, Copy)]
struct Outage {
    since: Timestamp,
    /// When it first seemed to be over.
    back: Option<Timestamp>,
    /// `None` while it lasts.
    until: Option<Timestamp>,
}

/// The fleet's state in memory.
#[derive(Default)]
pub(super) struct Fleet {
    view: parking_lot::Mutex<View>,
    rules: parking_lot::Mutex<(Rules, FuseRule)>,
    revision: watch::Sender<u64>,
    /// Wakes waiting long polls when there may be something new for them.
    news: watch::Sender<()>,
    /// Held while a lease is taken, so that a thousand concurrent requests do not race for one value.
    lease_lock: tokio::sync::Mutex<()>,
    /// Polls that this warden received.
    polls: parking_lot::Mutex<BTreeMap<String, Timestamp>>,
    /// When the requests of an agent for images that it has not reported are no longer counted, by agent.
    unreported: parking_lot::Mutex<BTreeMap<String, Instant>>,
    /// The agents that have to report before they poll again: what is known of them may be of another machine.
    unknown: parking_lot::Mutex<BTreeSet<String>>,
    /// When everything was last read from the store: at the start, and after the store has lost something.
    loaded_at: parking_lot::Mutex<Option<Timestamp>>,
    /// The last time without the store.
    outage: parking_lot::Mutex<Option<Outage>>,
    answers: [AtomicU64; 3],
    /// Whether a question could not be answered from the store: it may be that the store can only be read.
    is_doubted: AtomicBool,
    /// Since when the clock is ahead of the last retention by more than a day.
    leap: parking_lot::Mutex<Option<Instant>>,
}

impl Fleet {
    fn rules(&self) -> (Rules, FuseRule) {
        *self.rules.lock()
    }

    /// Returns the fuse, if it is enabled.
    pub(super) fn fuse(&self) -> Option<FuseRule> {
        Some(self.rules().1).filter(|rule| rule.rollbacks > 0)
    }

    /// Returns whether the store has to be checked for being writable, and forgets that.
    pub(super) fn take_doubt(&self) -> bool {
        self.is_doubted.swap(false, Ordering::Relaxed)
    }

    /// Notes that the store has gone away, or that it is back.
    pub(super) fn note_store(&self, is_away: bool, now: Timestamp) {
        let mut outage = self.outage.lock();
        if !is_away {
            if let Some(outage) = outage.as_mut() {
                outage.back.get_or_insert(now);
                outage.until = Some(now);
            }
            return;
        }
        // A store that fails again before all leases could be renewed was not back.
        let is_same = |last: &Outage| {
            last.until.is_some_and(|until| now.duration_since(until) < lease::AFTER_OUTAGE)
                && last.back.is_some_and(|back| now.duration_since(back) < MAX_OUTAGE)
        };
        let (since, back) = outage.filter(is_same).map_or((now, None), |last| (last.since, last.back));
        *outage = Some(Outage { since, back, until: None });
    }

    /// Applies values read from the store, and wakes waiting long polls.
    pub(super) fn apply(&self, values: impl IntoIterator<Item = (String, Versioned)>) {
        self.apply_to(&mut self.view.lock(), values, false);
    }

    /// Replaces everything by the values of a store that has lost what was read before.
    pub(super) fn replace(&self, values: impl IntoIterator<Item = (String, Versioned)>) {
        let mut view = self.view.lock();
        *view = View::default();
        self.apply_to(&mut view, values, true);
    }

    fn apply_to(
        &self,
        view: &mut View,
        values: impl IntoIterator<Item = (String, Versioned)>,
        mut is_news: bool,
    ) {
        for (name, Versioned { revision, value }) in values {
            is_news |= view.apply(&name, revision, &value);
        }
        let revision = view.revision();
        self.revision.send_if_modified(|known| std::mem::replace(known, revision) != revision);
        if is_news {
            self.news.send_replace(());
        }
    }
}

impl Collector {
    /// Replaces the configured rules.
    pub fn set_rules(&self, rules: Rules, fuse: FuseRule) {
        *self.fleet.rules.lock() = (rules, fuse);
    }

    /// Returns the revision of the decisions.
    pub fn fleet_revision(&self) -> u64 {
        *self.fleet.revision.borrow()
    }

    /// Waits until there is something new for an agent. `verdicts` is the [`FleetDecisions::verdicts`] it last received, if
    /// it supports that field.
    pub async fn news_for(&self, agent: &str, revision: u64, verdicts: Option<u64>) {
        let mut news = self.fleet.news.subscribe();
        let has_other = || {
            let view = self.fleet.view.lock();
            view.revision() != revision || verdicts.is_some_and(|known| view.verdicts_for(agent) != known)
        };
        while !has_other() && news.changed().await.is_ok() {}
    }

    /// Returns the decisions in force for an agent.
    pub fn decisions_for(&self, agent: &str) -> FleetDecisions {
        let machines = self.machines.lock().ids().to_vec();
        let store = self.store_state().borrow().error().map(|_| "away".to_owned());
        let decisions = self.fleet.view.lock().decisions_for(agent, &machines, self.clock.now());
        FleetDecisions { store, ..decisions }
    }

    /// Returns the images of all machines.
    pub fn fleet_images(&self) -> FleetImages {
        let ids = self.machines().iter().map(|machine| machine.id().to_owned()).collect();
        let store = self.store_state().borrow().error().map(|_| "away".to_owned());
        let images = self.fleet.view.lock().images(ids, self.clock.now());
        FleetImages { store, ..images }
    }

    /// Returns the number of withheld digests that matter to the machines that still report.
    pub fn withheld_digests(&self) -> usize {
        let ids = self.machines.lock().ids().to_vec();
        self.fleet.view.lock().withheld(&ids, self.clock.now())
    }

    /// Returns the number of leases in force.
    pub fn live_leases(&self) -> usize {
        self.fleet.view.lock().live_leases(self.clock.now())
    }

    /// Returns how many requests were answered with go, wait, and no.
    pub fn answers(&self) -> [u64; 3] {
        [0, 1, 2].map(|kind| self.fleet.answers[kind].load(Ordering::Relaxed))
    }

    /// Stores an operator's decision. Returns the id of its entry (`None` if it changed nothing), and the resulting revision.
    pub async fn decide(&self, decision: Decision) -> Result<(Option<u64>, u64), KeepError> {
        let mut decisions = Vec::new();
        if let Decision::Thaw { id: None } = decision {
            // One entry for each freeze, in the history of its machine. The last decision ends what was added meanwhile.
            let freezes = self.fleet_images().freezes;
            decisions.extend(freezes.into_iter().map(|freeze| Decision::Thaw { id: Some(freeze.id) }));
        }
        decisions.push(decision);
        let outcomes = self.commit(decisions.into_iter().map(Change::Decision).collect()).await?;
        let id = outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Stored(id) => Some(*id),
            Outcome::Unchanged => None,
        });
        Ok((id, *self.fleet.revision.borrow()))
    }

    /// Answers whether a deployment may begin. A lease is taken in the store before the answer is `Go`, so no answer is `Go`
    /// while the store is unavailable.
    pub async fn ask(&self, asking: &Asking<'_>) -> FleetAnswer {
        let reply = if !self.store_state().borrow().is_read {
            self.answer_from_memory(asking)
        } else if let Some(why) = self.over_limit(asking) {
            answer::over_limit(why)
        } else if let Ok(Ok(reply)) = timeout(ASK_TIME, self.try_ask(asking)).await {
            reply
        } else {
            // Agents wait for their patience only once the store counts as away. Without news, nothing else is written.
            self.fleet.is_doubted.store(true, Ordering::Relaxed);
            self.answer_from_memory(asking)
        };
        let kind = match reply.answer {
            Permission::Go => 0,
            Permission::Wait => 1,
            Permission::No => 2,
        };
        self.fleet.answers[kind].fetch_add(1, Ordering::Relaxed);
        reply
    }

    /// Returns why an agent gets no further lease, if it has too many.
    fn over_limit(&self, asking: &Asking<'_>) -> Option<&'static str> {
        let view = self.fleet.view.lock();
        if view.has_lease(asking.agent, asking.service, asking.repository, asking.digest) {
            return None;
        }
        if view.leases_of(asking.agent, self.clock.now()) >= MAX_LEASES {
            return Some("this machine has too many deployments in progress");
        }
        if view.traces_of(asking.agent) >= MAX_TRACES {
            return Some("this machine has tried too many images lately");
        }
        let has_reported = |own: &Reported| own.images_of(asking.repository).next().is_some();
        if view.inventory(asking.agent).is_some_and(has_reported) {
            return None;
        }
        drop(view);
        let now = Instant::now();
        let mut unreported = self.fleet.unreported.lock();
        let used = unreported.entry(asking.agent.to_owned()).or_insert(now);
        let until = (*used).max(now) + NEXT_UNREPORTED;
        if until.duration_since(now) > NEXT_UNREPORTED * MAX_UNREPORTED {
            return Some("this machine has not reported this image");
        }
        *used = until;
        None
    }

    async fn try_ask(&self, asking: &Asking<'_>) -> Result<FleetAnswer, KeepError> {
        // The leases first: an agent that releases one after a verdict changes them, which the swap below detects.
        let of = lease::name(asking.repository);
        let names = [of.clone(), verdict::name(asking.repository, asking.digest), DECISIONS.to_owned()];
        let mut guard = None;
        for _ in 0..MAX_ATTEMPTS {
            let mut values = self.keep.values(&names).await?.into_iter();
            let mut next = || values.next().unwrap_or_default();
            let (leases, record, decisions) = (next(), next(), next());
            let (expected, leases) = (leases.revision, parse(&leases.value).unwrap_or_default());
            let record = DigestRecord {
                repository: asking.repository.to_owned(),
                digest: asking.digest.to_owned(),
                ..parse(&record.value).unwrap_or_default()
            };
            let decisions: Decisions = parse(&decisions.value).unwrap_or_default();
            let Answered { reply, leases } = self.answer(asking, &decisions, &record, &leases);
            let Some(leases) = leases else { return Ok(reply) };
            if guard.is_none() {
                let Ok(free) = self.fleet.lease_lock.try_lock() else {
                    // Another request may change the leases meanwhile.
                    guard = Some(self.fleet.lease_lock.lock().await);
                    continue;
                };
                guard = Some(free);
            }
            if self.replace(&of, expected, bytes(&leases)).await? {
                return Ok(reply);
            }
        }
        Err(KeepError("other wardens keep changing the leases".to_owned()))
    }

    fn answer(
        &self,
        asking: &Asking<'_>,
        decisions: &Decisions,
        record: &DigestRecord,
        leases: &Leases,
    ) -> Answered {
        let (rules, _) = self.fleet.rules();
        let now = self.clock.now();
        // A machine that may only be left out of the list because of a fault still holds back those of higher rings.
        let may_be_configured = self.may_be_configured(now);
        let ids = self.machines.lock().ids().to_vec();
        let view = self.fleet.view.lock();
        let machines: Vec<(&str, &Reported)> =
            view.reports().filter(|(agent, _)| may_be_configured(agent)).collect();
        let missing = self.missing_report(&view, asking.agent, &ids);
        let verdicts = |digest: &str| view.record(asking.repository, digest);
        let stored = leases.without_decided(asking.agent, asking.digest, verdicts);
        let outage = *self.fleet.outage.lock();
        let extended = outage
            .map(|Outage { since, until, .. }| stored.after_outage(since, until.unwrap_or(now), verdicts));
        let leases = extended.as_ref().unwrap_or(&stored);
        let facts = Facts { decisions, record, leases, machines: &machines, missing, rules };
        let mut answered = answer::answer(asking, &facts, now);
        if let Some(next) = answered.leases.as_mut() {
            next.restore(&stored, leases);
        }
        answered
    }

    /// Returns a function that reports whether an agent may be configured, at this warden or at another one.
    fn may_be_configured(&self, now: Timestamp) -> impl Fn(&str) -> bool + Send + Sync + use<> {
        let view = self.fleet.view.lock();
        let reporting = view.reporting(now).filter(|_| self.keep.is_shared()).map(str::to_owned);
        self.machines.lock().may_be_configured(&reporting.collect::<Vec<_>>())
    }

    /// Returns one of these machines, other than the asking one, whose report may be on its way.
    fn missing_report<'a>(&self, view: &View, asking: &str, ids: &'a [String]) -> Option<&'a str> {
        let loaded_at = (*self.fleet.loaded_at.lock())?;
        let now = self.clock.now();
        let is_new = now.duration_since(loaded_at).abs() < REPORT_TIME;
        let is_missing = |id: &&String| is_new && *id != asking && lacks_report(view, id, now);
        ids.iter().find(is_missing).map(String::as_str)
    }

    /// Notes that everything was read from the store.
    pub(super) fn note_loaded(&self) {
        *self.fleet.loaded_at.lock() = Some(self.clock.now());
    }

    /// Answers from memory. Memory is recent enough to defer a deployment; `Go` requires the current state of the store.
    fn answer_from_memory(&self, asking: &Asking<'_>) -> FleetAnswer {
        let view = self.fleet.view.lock();
        let record = view.record(asking.repository, asking.digest).cloned().unwrap_or_default();
        let facts = Facts {
            decisions: view.decisions(),
            record: &record,
            leases: &Leases::default(),
            machines: &[],
            missing: None,
            rules: Rules::default(),
        };
        answer::held_by_decision(asking, &facts, self.clock.now()).unwrap_or_else(answer::away)
    }

    /// Releases a lease. Returns whether there was one.
    pub async fn release(&self, asking: &Asking<'_>) -> Result<bool, KeepError> {
        let of = lease::name(asking.repository);
        let released = self.update(&of, |value| {
            let leases: Leases = parse(value).unwrap_or_default();
            let leases = leases.without(asking.agent, asking.service, asking.digest, self.clock.now());
            leases.map(|leases| bytes(&leases))
        });
        released.await
    }

    /// Stores a machine's inventory.
    pub async fn report(&self, agent: &str, inventory: Inventory) -> Result<(), KeepError> {
        let now = self.clock.now();
        let name = inventory::name(agent);
        let stored = self.update(&name, |value| {
            let before: Option<Reported> = parse(value);
            let reported = Reported::new(before.as_ref(), inventory.clone(), now);
            (!before.is_some_and(|before| reported.repeats(&before))).then(|| bytes(&reported))
        });
        stored.await?;
        self.fleet.unknown.lock().remove(agent);
        Ok(())
    }

    /// Makes these agents report before they poll again: their reports may be lost, or those of other machines.
    pub fn expect_reports(&self, agents: impl IntoIterator<Item = String>) {
        self.fleet.unknown.lock().extend(agents);
    }

    /// Makes the configured agents without a recent report do so: they may have had other ids when this warden was last started,
    /// or it was off for so long that theirs no longer counts.
    pub(super) fn expect_missing_reports(&self) {
        let mut ids = self.machines.lock().ids().to_vec();
        let (view, now) = (self.fleet.view.lock(), self.clock.now());
        ids.retain(|id| lacks_report(&view, id, now));
        drop(view);
        self.expect_reports(ids);
    }

    /// Reports whether an agent has to report before it polls again. It does so after each failed poll, once the next one
    /// has succeeded, which is the first of a series.
    pub fn is_report_expected(&self, agent: &str, is_first_poll: bool) -> bool {
        let mut unknown = self.fleet.unknown.lock();
        if is_first_poll {
            unknown.remove(agent);
        }
        unknown.contains(agent)
    }

    /// Records a poll. An agent that was offline because it had not polled is online again.
    pub async fn record_poll(&self, agent: &str) {
        let now = self.clock.now();
        self.fleet.polls.lock().insert(agent.to_owned(), now);
        // The agent gets the decisions even if the store fails; the next poll is recorded, too.
        match timeout(POLL_TIME, self.record_heartbeat(agent, Ok(()))).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(agent, %error, "cannot store the agent's poll"),
            Err(_) => tracing::debug!(agent, "the agent's poll was not stored in time"),
        }
    }

    /// Shares the polls that this warden received with the other wardens.
    pub async fn share_polls(&self) -> Result<(), KeepError> {
        let now = self.clock.now();
        let mut mine = std::mem::take(&mut *self.fleet.polls.lock());
        mine.retain(|_, at| is_possible(*at, now));
        if mine.is_empty() {
            return Ok(());
        }
        let shared = self.update(POLLS, |value| {
            let mut polls: BTreeMap<String, Timestamp> = parse(value).unwrap_or_default();
            polls.retain(|_, at| now.duration_since(*at) < POLL_RETENTION && is_possible(*at, now));
            for (agent, at) in &mine {
                polls.entry(agent.clone()).and_modify(|known| *known = (*at).max(*known)).or_insert(*at);
            }
            Some(bytes(&polls))
        });
        let shared = shared.await;
        if shared.is_err() {
            let mut polls = self.fleet.polls.lock();
            for (agent, at) in mine {
                polls.entry(agent).or_insert(at);
            }
        }
        shared.map(drop)
    }

    /// Returns when an agent last polled any warden.
    pub fn last_poll(&self, agent: &str) -> Option<Timestamp> {
        let mine = self.fleet.polls.lock().get(agent).copied();
        let shared = self.fleet.view.lock().last_poll(agent);
        let now = self.clock.now();
        mine.into_iter().chain(shared).filter(|at| is_possible(*at, now)).max()
    }

    /// Returns the time by which the retention judges what is too old: that of the last one while the clock may be wrong.
    pub async fn retention_time(&self) -> Result<Timestamp, KeepError> {
        let now = self.clock.now();
        let found = self.keep.value(RETAINED).await?;
        let Some(last) = parse::<Timestamp>(&found.value) else {
            self.keep.swap(RETAINED, found.revision, bytes(&now)).await?;
            return Ok(now);
        };
        let passed = now.duration_since(last);
        if passed <= LEAP {
            *self.fleet.leap.lock() = None;
        } else if self.fleet.leap.lock().get_or_insert_with(Instant::now).elapsed() < BELIEVED {
            return Ok(last);
        }
        if passed.abs() >= RETAINED_EVERY {
            self.keep.swap(RETAINED, found.revision, bytes(&now)).await?;
        }
        Ok(now)
    }

    /// Removes some outdated values of the fleet's state. Returns whether there may be more. Values that change concurrently
    /// are kept.
    pub async fn forget_outdated(&self, keep: SignedDuration, now: Timestamp) -> Result<bool, KeepError> {
        let machines = self.machines.lock().ids().to_vec();
        let is_more = self.forget_agents(now).await?;
        let outdated = self.fleet.view.lock().outdated(&machines, keep, now);
        for Outdated { name, revision, decision, is_marked } in outdated.iter().take(MAX_REMOVALS) {
            if *is_marked {
                self.keep.remove(name, *revision).await?;
                self.fleet.view.lock().forget(name);
                continue;
            }
            let is_gone = self.replace(name, *revision, retention::mark(now)).await?;
            if let Some(decision) = decision.as_ref().filter(|_| is_gone) {
                self.amend(DECISIONS, |decisions: &mut Decisions| decisions.forget(decision)).await?;
            }
        }
        Ok(is_more || outdated.len() > MAX_REMOVALS)
    }

    /// Removes what is based on agents that are no longer configured, and what one agent has too much of. Returns whether
    /// there may be more.
    async fn forget_agents(&self, now: Timestamp) -> Result<bool, KeepError> {
        let is_configured = self.may_be_configured(now);
        let reduced = self.fleet.view.lock().reduced(&is_configured);
        for Reduced { name, revision, value, decision } in reduced.iter().take(MAX_REMOVALS) {
            let is_replaced = self.replace(name, *revision, value.clone()).await?;
            if let Some((repository, digest, failed)) = decision.as_ref().filter(|_| is_replaced) {
                let reduce =
                    |decisions: &mut Decisions| decisions.reduce_failed(repository, digest, failed.clone());
                self.amend(DECISIONS, reduce).await?;
            }
        }
        if self.fleet.view.lock().decisions().clone().forget_agents(&is_configured) {
            self.amend(DECISIONS, |decisions: &mut Decisions| decisions.forget_agents(&is_configured))
                .await?;
        }
        // Failures that have not tripped the fuse yet are in no decision, and not in memory.
        self.amend(FUSE, |fuse: &mut Fuse| fuse.forget_agents(&is_configured)).await?;
        Ok(reduced.len() > MAX_REMOVALS)
    }

    /// Updates a value. Returns `false` if `change` leaves it as it is.
    async fn update(
        &self,
        name: &str,
        change: impl Fn(&[u8]) -> Option<Vec<u8>> + Send,
    ) -> Result<bool, KeepError> {
        for _ in 0..MAX_ATTEMPTS {
            let found = self.keep.value(name).await?;
            let Some(value) = change(&found.value) else { return Ok(false) };
            if self.replace(name, found.revision, value).await? {
                return Ok(true);
            }
        }
        Err(KeepError(format!("other wardens keep changing {name}")))
    }

    /// Changes a value if there is one and `change` reports that it has changed it.
    async fn amend<T: DeserializeOwned + Serialize>(
        &self,
        name: &str,
        change: impl Fn(&mut T) -> bool + Send,
    ) -> Result<bool, KeepError> {
        let changed = move |value: &[u8]| {
            let mut content: T = parse(value)?;
            change(&mut content).then(|| bytes(&content))
        };
        self.update(name, changed).await
    }

    /// Replaces a value in the store, and then in memory. Returns `false` if another warden changed it first.
    async fn replace(&self, name: &str, expected: u64, value: Vec<u8>) -> Result<bool, KeepError> {
        let Some(revision) = self.keep.swap(name, expected, value.clone()).await? else { return Ok(false) };
        self.fleet.apply([(name.to_owned(), Versioned { revision, value })]);
        Ok(true)
    }
}

/// Reports whether the view has no report of this machine, or only one that is too old to count.
fn lacks_report(view: &View, id: &str, now: Timestamp) -> bool {
    view.inventory(id).is_none_or(|reported| !inventory::is_recent(reported.at, now))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evenkeel_common::clock::{SystemClock, TokioClock};

    use super::*;
    use crate::fleet::lease::Holder;
    use crate::fleet::testing;
    use crate::keep::embedded::Embedded;
    use crate::keep::{Keep, Retention};

    fn asking<'a>(agent: &'a str, repository: &'a str) -> Asking<'a> {
        let (image, digest) = (repository, "sha256:new");
        Asking { agent, ring: 0, service: "web", repository, image, digest, progress: None }
    }

    #[test]
    fn an_agent_that_names_ever_new_repositories_gets_no_lease_for_another_one() {
        let keep: Arc<dyn Keep> = Arc::new(Embedded::in_memory(Arc::new(SystemClock)).unwrap());
        let retention = Retention { days: 90, bytes: 1 << 40 };
        let agents = ["a", "b"].map(str::to_owned);
        let (collector, _task) = Collector::new(keep, agents, retention, Arc::new(SystemClock));
        let now = collector.now();
        let record = DigestRecord { digest: "d".to_owned(), ..DigestRecord::default() };
        let holder = Holder { agent: "a", service: "web", progress: None, probation: 0, proof_after: 0 };
        let released = Leases::default().with(&holder, &record, now).without("a", "web", "d", now).unwrap();
        let values = (0..MAX_TRACES).map(|number| {
            (lease::name(&format!("r/{number}")), Versioned { revision: 1, value: bytes(&released) })
        });
        collector.fleet.apply(values);
        let refusal = Some("this machine has tried too many images lately");
        assert_eq!(collector.over_limit(&asking("a", "r/new")), refusal);
        assert_eq!(collector.over_limit(&asking("b", "r/new")), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_without_a_report_is_waited_for_two_minutes_after_the_store_was_read() {
        let keep: Arc<dyn Keep> = Arc::new(Embedded::in_memory(Arc::new(SystemClock)).unwrap());
        let retention = Retention { days: 90, bytes: 1 << 40 };
        let ids = ["a", "b", "c"].map(str::to_owned);
        let clock = Arc::new(TokioClock::starting_at(testing::at(0)));
        let (collector, _task) = Collector::new(keep, ids.clone(), retention, clock);
        let missing = || collector.missing_report(&collector.fleet.view.lock(), "a", &ids).map(str::to_owned);
        assert_eq!(missing(), None, "nothing was read");
        collector.note_loaded();
        assert_eq!(missing().as_deref(), Some("b"), "and not the asking one");
        let reports = testing::reported(&["b"], &["web:1"]).into_iter();
        collector.fleet.apply(reports.map(|(name, value)| (name, Versioned { revision: 1, value })));
        assert_eq!(missing().as_deref(), Some("c"));
        tokio::time::sleep(Duration::from_secs(121)).await;
        assert_eq!(missing(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_from_before_a_long_time_off_counts_as_missing() {
        let keep: Arc<dyn Keep> = Arc::new(Embedded::in_memory(Arc::new(SystemClock)).unwrap());
        let retention = Retention { days: 90, bytes: 1 << 40 };
        let ids = ["a", "b"].map(str::to_owned);
        let clock = Arc::new(TokioClock::starting_at(testing::at(25 * 3600)));
        let (collector, _task) = Collector::new(keep, ids.clone(), retention, clock);
        for (report, at) in [(&["a"], 24 * 3600), (&["b"], 0)] {
            let reports = testing::reported_at(report, &["web:1"], testing::at(at)).into_iter();
            collector.fleet.apply(reports.map(|(name, value)| (name, Versioned { revision: 1, value })));
        }
        collector.note_loaded();
        let missing = collector.missing_report(&collector.fleet.view.lock(), "a", &ids).map(str::to_owned);
        assert_eq!(missing.as_deref(), Some("b"), "a ring that it belongs to would otherwise be passed over");
        collector.expect_missing_reports();
        assert!(collector.is_report_expected("b", false) && !collector.is_report_expected("a", false));
    }
}
