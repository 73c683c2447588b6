//! Leases: which machine may try a digest first (DECISIONS 8, *first alone*). A lease is renewed by asking again, expires if
//! it is not renewed, and ends when the verdict arrives or when it is released.
//!
//! A machine that holds others back must get somewhere: a lease ends after three renewals without progress, and a machine
//! has a limited time per digest and day. What it has used is in its [`Trial`], which is also what a later verdict is based
//! on: a machine that was never seen trying a digest can't have proven it.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::verdict::DigestRecord;

/// A lease that has not been renewed for this long has expired.
pub const LIFETIME: SignedDuration = SignedDuration::from_secs(90);
/// How much longer than an outage of the store the leases last that were in force when it began: in this time, their machines
/// renew them.
pub const AFTER_OUTAGE: SignedDuration = SignedDuration::from_secs(60);
/// A request that comes sooner than this after the last renewal renews nothing, so that it does not have to be written.
const RENEWAL: SignedDuration = SignedDuration::from_secs(20);
/// After this many renewals without progress a lease ends.
const MAX_STALLED: u8 = 3;
/// How long a machine may hold others back with one digest, in addition to its probation, in seconds. The probation counts
/// up to twenty hours.
const MAX_HELD: u32 = 3600;
const MAX_PROBATION: u32 = 72_000;
/// The longest probation that an agent can be configured with, in seconds: a trial is not remembered for longer than that.
const LONGEST_PROBATION: u32 = 31_536_000;
/// The least that is counted for taking a lease, so that taking and releasing it again and again ends, too. Seconds.
const LEAST_HELD: u32 = 10;
/// How long the time that a machine has used counts, and its trial is remembered at least.
const TRIAL: SignedDuration = SignedDuration::from_hours(24);
/// How many digests of a repository one agent may try within [`TRIAL`] without a verdict, while other machines wait for it:
/// what it has used is never forgotten to make room for another one.
const MAX_TRIALS_OF_AGENT: usize = 8;
/// Maximum number of trials of a repository.
const MAX_TRIALS: usize = 256;

/// All leases of one repository: a value of the store, see [`name`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Leases {
    /// In the order in which they were taken.
    pub held: Vec<Lease>,
    /// Which machines have tried which digests, the oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<Trial>,
}

/// A lease: one service of one machine is trying a digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Id of the agent.
    pub agent: String,
    /// The service.
    pub service: String,
    /// The digest.
    pub digest: String,
    /// When it was taken; absent in leases from an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// When it was last renewed.
    pub renewed: Timestamp,
    /// Id of the entry with the agent's verdict on the digest when the lease was taken; 0 without one. A later verdict ends
    /// the lease.
    pub after: u64,
    /// The progress that the agent reported last, if it reports any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<u64>,
    /// Number of renewals since then without progress.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stalled: u8,
}

/// A machine has tried a digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Id of the agent.
    pub agent: String,
    /// The digest.
    pub digest: String,
    /// When it began.
    pub since: Timestamp,
    /// How long the machine has held a lease for it. Seconds.
    pub held: u32,
    /// The probation that the machine has reported for it. Seconds.
    #[serde(default)]
    pub probation: u32,
    /// How long after its beginning a proof counts, if that is longer than this probation. Seconds; absent in trials from an
    /// earlier version.
    #[serde(default)]
    pub proof_after: u32,
    /// Id of the entry with the agent's verdict when it began; 0 without one. A later verdict ends the trial.
    pub after: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u8) -> bool {
    *number == 0
}

/// The machine that asks for a lease, or renews one.
#[derive(Debug, Clone, Copy)]
pub struct Holder<'a> {
    /// Id of the agent.
    pub agent: &'a str,
    /// The service.
    pub service: &'a str,
    /// The progress that it reports.
    pub progress: Option<u64>,
    /// The probation that it has reported for the image, in seconds; 0 if it has reported none.
    pub probation: u32,
    /// How long after the beginning of its trial a proof counts at the earliest, in seconds.
    pub proof_after: u32,
}

/// Returns the name of the value that holds the leases of a repository.
pub fn name(repository: &str) -> String {
    format!("{PREFIX}{repository}")
}

/// Prefix of these names.
pub const PREFIX: &str = "leases/";

impl Lease {
    /// Reports whether it is in force; `record` holds the verdicts on its digest, if known. The wardens' clocks differ, so a
    /// renewal in the future counts like one in the past.
    fn is_live(&self, record: Option<&DigestRecord>, now: Timestamp) -> bool {
        let verdict = record.and_then(|record| record.agents.get(&self.agent));
        let is_over =
            verdict.is_some_and(|latest| latest.entry > self.after && latest.service == self.service);
        now.duration_since(self.renewed).abs() < LIFETIME && self.stalled < MAX_STALLED && !is_over
    }

    /// Reports whether it is the lease of this service for this digest.
    pub fn is_of(&self, agent: &str, service: &str, digest: &str) -> bool {
        self.agent == agent && self.service == service && self.digest == digest
    }
}

impl Trial {
    fn is_of(&self, agent: &str, digest: &str) -> bool {
        self.agent == agent && self.digest == digest
    }

    /// Reports whether a verdict may still follow.
    fn is_remembered(&self, now: Timestamp) -> bool {
        let probation = self.probation.min(LONGEST_PROBATION);
        now.duration_since(self.since) < TRIAL + SignedDuration::from_secs(probation.into())
    }

    fn is_spent(&self, now: Timestamp) -> bool {
        let limit = MAX_HELD + self.probation.min(MAX_PROBATION);
        self.held >= limit && self.counts(now)
    }

    /// Reports whether the time that it has used counts. A beginning that is far in the future is that of a wrong clock.
    fn counts(&self, now: Timestamp) -> bool {
        now.duration_since(self.since).abs() < TRIAL
    }

    fn add(&mut self, held: SignedDuration) {
        let seconds = u32::try_from(held.min(LIFETIME).as_secs()).unwrap_or(0);
        self.held = self.held.saturating_add(seconds);
    }
}

impl Leases {
    /// Returns the leases in force; `record` returns the verdicts on a digest, if known.
    pub fn live<'a>(
        &'a self,
        record: impl Fn(&str) -> Option<&'a DigestRecord>,
        now: Timestamp,
    ) -> impl Iterator<Item = &'a Lease> {
        self.held.iter().filter(move |lease| {
            let is_spent = || self.has_spent(&lease.agent, &lease.digest, now);
            lease.is_live(record(&lease.digest), now) && !is_spent()
        })
    }

    /// The same, given the verdicts on one of the digests.
    pub fn live_with<'a>(
        &'a self,
        record: &'a DigestRecord,
        now: Timestamp,
    ) -> impl Iterator<Item = &'a Lease> {
        self.live(move |digest| (digest == record.digest).then_some(record), now)
    }

    /// Reports whether a machine has a lease for this digest and service.
    pub fn has(&self, agent: &str, service: &str, record: &DigestRecord, now: Timestamp) -> bool {
        self.live_with(record, now).any(|lease| lease.is_of(agent, service, &record.digest))
    }

    /// Reports whether a machine has used up its time with a digest.
    pub fn has_spent(&self, agent: &str, digest: &str, now: Timestamp) -> bool {
        self.tried.iter().any(|trial| trial.is_of(agent, digest) && trial.is_spent(now))
    }

    /// Reports whether a machine may begin to try a digest. It has to wait if it has already tried others within a day, and
    /// none of these trials has ended with a verdict (see [`Self::without_decided`]).
    pub fn has_room(&self, agent: &str, digest: &str, now: Timestamp) -> bool {
        let mut known = self.tried.iter().filter(|trial| trial.agent == agent && trial.counts(now));
        known.clone().count() < MAX_TRIALS_OF_AGENT || known.any(|trial| trial.digest == digest)
    }

    /// Returns the leases without an agent's trials of other digests that have ended with a verdict. `record` returns the
    /// verdicts on a digest, if known.
    #[must_use]
    pub fn without_decided<'a>(
        &self,
        agent: &str,
        digest: &str,
        record: impl Fn(&str) -> Option<&'a DigestRecord>,
    ) -> Self {
        let mut next = self.clone();
        next.tried.retain(|trial| {
            let latest = || record(&trial.digest)?.agents.get(agent);
            let is_decided = || latest().is_some_and(|latest| latest.entry > trial.after);
            trial.agent != agent || trial.digest == digest || !is_decided()
        });
        next
    }

    /// Returns the leases after an outage of the store, in which none could be renewed, except for moments: those that were in
    /// force when it began, or were taken or renewed since, last [`AFTER_OUTAGE`] longer than it. `record` returns the verdicts
    /// on a digest, if known.
    #[must_use]
    pub fn after_outage<'a>(
        &self,
        since: Timestamp,
        until: Timestamp,
        record: impl Fn(&str) -> Option<&'a DigestRecord>,
    ) -> Self {
        let least = until.checked_sub(LIFETIME - AFTER_OUTAGE).unwrap_or(until);
        let mut next = self.clone();
        for lease in &mut next.held {
            let is_spent = self.has_spent(&lease.agent, &lease.digest, since);
            if lease.is_live(record(&lease.digest), since.max(lease.renewed)) && !is_spent {
                lease.renewed = lease.renewed.max(least);
            }
        }
        next
    }

    /// Undoes [`Self::after_outage`] for the leases that were not renewed since: stored, it would count as a renewal, so that
    /// with a store that fails again and again the lease of a dead machine would never end.
    pub fn restore(&mut self, stored: &Self, extended: &Self) {
        for lease in &mut self.held {
            let renewed_in = |all: &Self| {
                let same = all.held.iter().find(|of| of.is_of(&lease.agent, &lease.service, &lease.digest));
                same.map(|same| same.renewed)
            };
            if renewed_in(extended) == Some(lease.renewed)
                && let Some(before) = renewed_in(stored)
            {
                lease.renewed = before;
            }
        }
    }

    /// Returns when a verdict of a machine that arrives now begins to count as proof: not before a probation can be over.
    /// `None` if the machine was not seen trying the digest since its last verdict.
    pub fn proof(&self, agent: &str, record: &DigestRecord, now: Timestamp) -> Option<Timestamp> {
        let last = record.entry_of(agent);
        let trial = self.tried.iter().find(|trial| trial.is_of(agent, &record.digest) && trial.after == last);
        if let Some(trial) = trial {
            let probation = SignedDuration::from_secs(trial.probation.max(trial.proof_after).into());
            return Some(trial.since.min(now).checked_add(probation).unwrap_or(Timestamp::MAX).max(now));
        }
        // Earlier versions of the warden store the lease only.
        let is_lease = |lease: &Lease| {
            lease.agent == agent
                && lease.digest == record.digest
                && lease.after == last
                && self.tried.is_empty()
        };
        self.held.iter().any(is_lease).then_some(now)
    }

    /// Returns the leases with one for this machine, taken or renewed now, and without the expired ones.
    #[must_use]
    pub fn with(&self, holder: &Holder<'_>, record: &DigestRecord, now: Timestamp) -> Self {
        let Holder { agent, service, .. } = *holder;
        let mut next = self.clone();
        // What was not released was held until it expired.
        for lost in self.held.iter().filter(|lease| now.duration_since(lease.renewed).abs() >= LIFETIME) {
            next.charge(&lost.agent, &lost.digest, LIFETIME);
        }
        next.held = self.live_with(record, now).cloned().collect();
        next.begin_trial(holder, record, now);
        if let Some(at) = next.held.iter().position(|lease| lease.is_of(agent, service, &record.digest)) {
            let passed = now.duration_since(next.held[at].renewed);
            if passed.abs() >= RENEWAL {
                next.charge(agent, &record.digest, passed);
                let lease = &mut next.held[at];
                let is_stalled = holder.progress.is_some() && holder.progress == lease.progress;
                lease.stalled = if is_stalled { lease.stalled + 1 } else { 0 };
                (lease.progress, lease.renewed) = (holder.progress, now);
                if lease.stalled >= MAX_STALLED {
                    next.spend(agent, &record.digest);
                }
            }
        } else {
            next.charge(agent, &record.digest, SignedDuration::from_secs(LEAST_HELD.into()));
            next.held.push(Lease {
                agent: agent.to_owned(),
                service: service.to_owned(),
                digest: record.digest.clone(),
                since: Some(now),
                renewed: now,
                after: record.entry_of(agent),
                progress: holder.progress,
                stalled: 0,
            });
        }
        next
    }

    /// Returns the leases without the one of this machine; `None` if it has none.
    pub fn without(&self, agent: &str, service: &str, digest: &str, now: Timestamp) -> Option<Self> {
        let mut next = self.clone();
        let lease = self.held.iter().find(|lease| lease.is_of(agent, service, digest))?;
        next.charge(agent, digest, now.duration_since(lease.renewed));
        next.held.retain(|lease| !lease.is_of(agent, service, digest));
        Some(next)
    }

    /// Returns the leases and trials of some agents only; `None` if that are all.
    pub fn only_of(&self, is_kept: impl Fn(&str) -> bool) -> Option<Self> {
        let mut next = self.clone();
        next.held.retain(|lease| is_kept(&lease.agent));
        next.tried.retain(|trial| is_kept(&trial.agent));
        (next != *self).then_some(next)
    }

    /// Returns how many leases and trials of an agent are remembered.
    pub fn traces_of(&self, agent: &str) -> usize {
        let held = self.held.iter().filter(|lease| lease.agent == agent).count();
        held + self.tried.iter().filter(|trial| trial.agent == agent).count()
    }

    /// Reports whether nothing in it matters any more.
    pub fn is_outdated(&self, keep: SignedDuration, now: Timestamp) -> bool {
        self.held.iter().all(|lease| now.duration_since(lease.renewed) > keep)
            && !self.tried.iter().any(|trial| trial.is_remembered(now))
    }

    fn begin_trial(&mut self, holder: &Holder<'_>, record: &DigestRecord, now: Timestamp) {
        let (agent, probation) = (holder.agent, holder.probation.min(LONGEST_PROBATION));
        let after = record.entry_of(agent);
        self.tried.retain(|trial| {
            let is_over = trial.is_of(agent, &record.digest) && trial.after != after;
            trial.is_remembered(now) && !is_over
        });
        if let Some(known) = self.tried.iter_mut().find(|trial| trial.is_of(agent, &record.digest)) {
            // A later report can't shorten it.
            known.probation = known.probation.max(probation);
            known.proof_after = known.proof_after.max(holder.proof_after);
            if known.since.duration_since(now) >= TRIAL {
                // It began while the clock was wrong. Otherwise its time would not count until then.
                (known.since, known.held) = (now, 0);
            }
            return;
        }
        let digest = record.digest.clone();
        let (agent, proof_after) = (agent.to_owned(), holder.proof_after);
        self.tried.push(Trial { agent, digest, since: now, held: 0, probation, proof_after, after });
        self.limit_trials(now);
    }

    /// Forgets trials if there are too many: first those whose time no longer counts, then those that have used the least.
    /// What is being tried, and the latest one, is kept, since a proof depends on it.
    fn limit_trials(&mut self, now: Timestamp) {
        while self.tried.len() > MAX_TRIALS {
            let is_held = |trial: &Trial| {
                self.held.iter().any(|lease| lease.agent == trial.agent && lease.digest == trial.digest)
            };
            let earlier = self.tried.iter().enumerate().take(self.tried.len() - 1);
            let least = earlier
                .filter(|(_, trial)| !is_held(trial))
                .min_by_key(|(_, trial)| (trial.counts(now), trial.held));
            let at = least.map_or(0, |(at, _)| at);
            self.tried.remove(at);
        }
    }

    fn charge(&mut self, agent: &str, digest: &str, held: SignedDuration) {
        if let Some(trial) = self.tried.iter_mut().find(|trial| trial.is_of(agent, digest)) {
            trial.add(held);
        }
    }

    fn spend(&mut self, agent: &str, digest: &str) {
        if let Some(trial) = self.tried.iter_mut().find(|trial| trial.is_of(agent, digest)) {
            trial.held = u32::MAX;
        }
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
