//! The answer to `POST /fleet/ask`: may a machine start a deployment now (DECISIONS 8)? A pure function of the store's
//! content. It can only defer or refuse a deployment; the agent decides whether to start one.

use evenkeel_common::wire::{FleetAnswer, Permission};
use jiff::{SignedDuration, Timestamp};

use super::decisions::{Decisions, covers};
use super::entry::format_duration;
use super::inventory::{Reported, is_recent};
use super::is_possible;
use super::lease::{Holder, Leases};
use super::verdict::{AgentVerdict, DigestRecord, Verdict};
pub use crate::config::Rules;

/// Seconds after which a lease must be renewed.
const RENEW: u64 = 30;
/// Seconds after which to ask again while it is another machine's turn.
const RETRY: u64 = 10;
/// The longest time between two requests, in seconds.
const MAX_RETRY: u64 = 300;
/// Seconds after which to ask again when the time with a digest is used up.
const SPENT_RETRY: u64 = 120;
/// The probation of a machine whose configuration sets none, in seconds: it counts if no other machine has reported one.
const USUAL_PROBATION: u32 = 60;
/// The longest time by which the reports of other machines delay a proof, in seconds: one of them may be false, too.
const MAX_PROBATION_OF_OTHERS: u32 = 3600;
/// How many agents a sentence names.
const MAX_NAMED: usize = 8;
/// A machine in a lower ring that has not found the digest this long after the asking one follows another tag.
const SPREAD: SignedDuration = SignedDuration::from_hours(24);

/// The requesting agent, and the image it wants to deploy.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    /// Id of the agent.
    pub agent: &'a str,
    /// Its ring.
    pub ring: u8,
    /// The service.
    pub service: &'a str,
    /// Repository with its registry's host, without a tag.
    pub repository: &'a str,
    /// The reference that it follows, with its tag.
    pub image: &'a str,
    /// The digest.
    pub digest: &'a str,
    /// The progress of its deployment, if it reports any.
    pub progress: Option<u64>,
}

/// The state that an answer is based on.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The decisions.
    pub decisions: &'a Decisions,
    /// The verdicts on the digest.
    pub record: &'a DigestRecord,
    /// The leases of the repository.
    pub leases: &'a Leases,
    /// The reports of the machines that are or may be configured.
    pub machines: &'a [(&'a str, &'a Reported)],
    /// A machine whose report may be on its way, after the store was read: it may be in a lower ring.
    pub missing: Option<&'a str>,
    /// The rules.
    pub rules: Rules,
}

/// The answer, and the leases that must be stored before it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The answer.
    pub reply: FleetAnswer,
    /// The new leases; `None` if nothing changes.
    pub leases: Option<Leases>,
}

/// Answers a request. An agent that has a lease renews it with each request, whatever the answer: a deployment that has
/// started is brought to its end.
pub fn answer(asking: &Asking<'_>, facts: &Facts<'_>, now: Timestamp) -> Answered {
    let Facts { record, leases, rules, .. } = *facts;
    let probation =
        own_report(asking, facts).map_or(0, |own| own.probation_of(asking.repository, asking.service));
    let proof_after = probation.max(probation_of_others(asking, facts, now));
    let Asking { agent, service, progress, .. } = *asking;
    let holder = Holder { agent, service, progress, probation, proof_after };
    let taken = || leases.with(&holder, record, now);
    // Nothing is written if nothing has changed.
    let renewed = || Some(taken()).filter(|taken| taken != leases);
    let is_mine = leases.has(asking.agent, asking.service, record, now);
    if let Some(reply) = held_by_decision(asking, facts, now) {
        return Answered { reply, leases: renewed().filter(|_| is_mine) };
    }
    if is_mine {
        return Answered { reply: go("this machine has the lease".to_owned()), leases: renewed() };
    }
    let held = held_by_ring(asking, facts, now)
        .or_else(|| held_by_lease(asking, facts, now))
        .or_else(|| held_by_time(asking, facts, now));
    if let Some(reply) = held {
        return Answered { reply, leases: None };
    }
    if record.is_proven(now) && rules.max_at_once.is_none() {
        return Answered { reply: go("the digest is proven in the fleet".to_owned()), leases: None };
    }
    if let Some(reply) = held_by_trials(asking, facts, now) {
        return Answered { reply, leases: None };
    }
    let why = if record.is_proven(now) {
        "there is room for one more machine"
    } else {
        "this machine is the first"
    };
    Answered { reply: go(why.to_owned()), leases: Some(taken()) }
}

/// Returns the longest probation that the other machines have reported for the repository, in seconds. What a machine reports of
/// itself must not let it prove a digest at once.
fn probation_of_others(asking: &Asking<'_>, facts: &Facts<'_>, now: Timestamp) -> u32 {
    let images = others(asking, facts, now).flat_map(|(_, reported)| reported.images_of(asking.repository));
    let longest = images.filter_map(|image| image.probation).max();
    longest.map_or(USUAL_PROBATION, |longest| longest.min(MAX_PROBATION_OF_OTHERS))
}

/// Checks for a freeze or a withheld digest. A machine's verdict in the store counts, also one that was lifted, and else its
/// report. These need no lease and can safely be answered from memory.
pub fn held_by_decision(asking: &Asking<'_>, facts: &Facts<'_>, now: Timestamp) -> Option<FleetAnswer> {
    let mut freezes = facts.decisions.freezes_at(now);
    if let Some(freeze) = freezes.find(|freeze| covers(&freeze.scope, asking.agent, asking.repository)) {
        let left = u64::try_from(freeze.until.duration_since(now).as_secs()).unwrap_or(0);
        let why = format!("frozen by {} until {}: {}", freeze.by, freeze.until, freeze.reason);
        return Some(hold(Permission::Wait, "freeze", why, left.clamp(RETRY, MAX_RETRY), None));
    }
    let Some(failed) = facts.record.withheld_from(asking.agent) else {
        return held_by_report(asking, facts, now);
    };
    let named: Vec<&str> = failed.agents.iter().take(MAX_NAMED).map(String::as_str).collect();
    let more = failed.more_agents + failed.agents.len().saturating_sub(MAX_NAMED) as u64;
    let why = format!(
        "it failed on {}{}{}",
        named.join(", "),
        if more > 0 { format!(" and {more} more") } else { String::new() },
        failed.reason.map(|reason| format!(": {reason}")).unwrap_or_default()
    );
    Some(hold(Permission::No, "immunity", why, MAX_RETRY, failed.agents.into_iter().next()))
}

/// Refuses a digest that has failed on more machines than it is proven on, by the reports of those of which the store has no
/// verdict: it was lost or restored.
fn held_by_report(asking: &Asking<'_>, facts: &Facts<'_>, now: Timestamp) -> Option<FleetAnswer> {
    let (record, of, digest) = (facts.record, asking.repository, asking.digest);
    if record.is_proven_at(asking.agent) {
        return None;
    }
    let mut proven = record.agents.values().filter(|latest| latest.verdict == Verdict::Proven).count();
    let mut failed: Vec<&str> = Vec::new();
    for (agent, reported) in others(asking, facts, now) {
        if record.agents.contains_key(*agent) {
            continue;
        }
        if reported.has_failed(of, digest) {
            failed.push(agent);
        }
        proven += usize::from(reported.proven_since(of, digest).is_some());
    }
    let first = failed.first().filter(|_| failed.len() > proven)?;
    let more = failed.len().saturating_sub(MAX_NAMED);
    let why = format!(
        "it failed on {}{}, by its own report, and is blocked there",
        failed[..failed.len() - more].join(", "),
        if more > 0 { format!(" and {more} more") } else { String::new() },
    );
    Some(hold(Permission::No, "immunity", why, MAX_RETRY, Some((*first).to_owned())))
}

/// Makes ring n wait for the rings below, as far as machines there run the repository and will get the digest.
fn held_by_ring(asking: &Asking<'_>, facts: &Facts<'_>, now: Timestamp) -> Option<FleetAnswer> {
    let (record, rules, of) = (facts.record, facts.rules, asking.repository);
    if rules.need == 0 {
        return None;
    }
    let ring = asking.ring;
    if let Some(missing) = facts.missing.filter(|_| ring > 0) {
        let why =
            format!("ring {ring} waits: {missing} has not reported since the warden has read its store");
        return Some(hold(Permission::Wait, "ring", why, RETRY, Some(missing.to_owned())));
    }
    let below: Vec<_> =
        others(asking, facts, now).filter(|(_, reported)| reported.inventory.ring < ring).collect();
    if let Some((failed, _)) = below.iter().find(|(agent, _)| record.has_failed_at(agent)) {
        let why = format!("ring {ring} waits: it failed on {failed}, which is in a lower ring");
        return Some(hold(Permission::Wait, "ring", why, MAX_RETRY, Some((*failed).to_owned())));
    }
    // By the warden's clock, for this reference, and from the asking machine's own reports: no other machine can end the wait
    // with a wrong clock, a false report, or another tag that has had the digest for longer.
    let own = own_report(asking, facts);
    let known_since = own.and_then(|own| own.found_since(asking.image, asking.digest));
    // It may run the digest without having found it under the tag while this warden listened.
    let told_from = known_since.or_else(|| own?.running_since(of, asking.digest));
    let is_spreading = known_since.is_none_or(|since| now.duration_since(since) < SPREAD);
    let candidates: Vec<_> = below
        .iter()
        .filter(|(agent, reported)| {
            let is_there = |digest: &Option<String>| digest.as_deref() == Some(asking.digest);
            let mut images = reported.images_of(of);
            record.is_proven_at(agent)
                || reported.images_of(of).any(|image| is_there(&image.digest))
                || images
                    .any(|image| !is_there(&image.blocked) && (is_spreading || is_there(&image.available)))
        })
        .collect();
    let need = usize::try_from(rules.need).unwrap_or(usize::MAX).min(candidates.len());
    let soak = SignedDuration::from_secs(rules.soak.into());
    let mut waits = Vec::new();
    let mut not_on = Vec::new();
    for (agent, reported) in candidates {
        let verdict = record.agents.get(*agent).filter(|latest| is_possible(latest.at, now));
        let since = proven_since(verdict, reported, asking, told_from);
        let wait = since.map(|since| soak.saturating_sub(now.duration_since(since)));
        if wait.is_none_or(|wait| wait > SignedDuration::ZERO) {
            not_on.push(*agent);
        }
        waits.extend(wait);
    }
    waits.sort();
    let ready = waits.iter().filter(|wait| **wait <= SignedDuration::ZERO).count();
    if ready >= need {
        return None;
    }
    // A new verdict wakes waiting agents (`FleetDecisions::verdicts`); the remaining soak time is known.
    let again = waits.get(need - 1).map_or(60, |wait| u64::try_from(wait.as_secs()).unwrap_or(0) + 1);
    let named = &not_on[..not_on.len().min(MAX_NAMED)];
    let why = format!(
        "ring {ring} waits: proven for {} on {ready} of {need} machines in lower rings, not on {}{}",
        format_duration(soak),
        named.join(", "),
        if not_on.len() > named.len() {
            format!(" and {} more", not_on.len() - named.len())
        } else {
            String::new()
        },
    );
    let first = not_on.first().map(|agent| (*agent).to_owned());
    Some(hold(Permission::Wait, "ring", why, again.clamp(1, MAX_RETRY), first))
}

/// Returns since when a machine has proven the digest. What it has only reported, without a verdict, counts from when the asking
/// machine has found the digest, or runs it: a false report from before the release must not stand for the soak.
fn proven_since(
    verdict: Option<&AgentVerdict>,
    reported: &Reported,
    asking: &Asking<'_>,
    told_from: Option<Timestamp>,
) -> Option<Timestamp> {
    let verdict = verdict.filter(|latest| latest.verdict == Verdict::Proven);
    let told = || Some(reported.proven_since(asking.repository, asking.digest)?.max(told_from?));
    verdict.map(|latest| latest.since).or_else(told)
}

/// Lets one machine try a new digest first, and enforces `max_at_once`.
fn held_by_lease(asking: &Asking<'_>, facts: &Facts<'_>, now: Timestamp) -> Option<FleetAnswer> {
    let others: Vec<_> =
        facts.leases.live_with(facts.record, now).filter(|lease| lease.agent != asking.agent).collect();
    let first = others.iter().find(|lease| lease.digest == asking.digest);
    if let Some(first) = first.filter(|_| !facts.record.is_proven(now)) {
        let since = first.since.map(|since| format!(" since {}", whole_seconds(since))).unwrap_or_default();
        let proven = facts.record.agents.iter().find(|(_, said)| said.verdict == Verdict::Proven);
        let so_far = match proven {
            Some((agent, said)) => format!("the proof of {agent} counts from {}", whole_seconds(said.since)),
            None => "it is not proven anywhere yet".to_owned(),
        };
        let why = format!("{} has been trying it first{since}; {so_far}", first.agent);
        return Some(hold(Permission::Wait, "ring", why, RETRY, Some(first.agent.clone())));
    }
    let limit = facts.rules.max_at_once?;
    let mut agents: Vec<&str> = others.iter().map(|lease| lease.agent.as_str()).collect();
    agents.sort_unstable();
    agents.dedup();
    if agents.len() < usize::try_from(limit).unwrap_or(usize::MAX) {
        return None;
    }
    let why = format!("{} machines are deploying this image (limit: max_at_once)", agents.len());
    Some(hold(Permission::Wait, "ring", why, RETRY, None))
}

/// Lets the others go first if a machine has had a digest for its whole time without a verdict.
fn held_by_time(asking: &Asking<'_>, facts: &Facts<'_>, now: Timestamp) -> Option<FleetAnswer> {
    if facts.record.is_proven(now)
        || !has_others(asking, facts, now)
        || !facts.leases.has_spent(asking.agent, asking.digest, now)
    {
        return None;
    }
    let why = "this machine has tried it for a long time without a result; others go first";
    Some(hold(Permission::Wait, "ring", why.to_owned(), SPENT_RETRY, None))
}

/// Makes a machine wait that has tried many other digests without a verdict: each of them has held the others back.
fn held_by_trials(asking: &Asking<'_>, facts: &Facts<'_>, now: Timestamp) -> Option<FleetAnswer> {
    let has_room = || facts.leases.has_room(asking.agent, asking.digest, now);
    if facts.record.is_proven(now) || has_room() || !has_others(asking, facts, now) {
        return None;
    }
    let why = "within a day, this machine has tried several other digests of this image without a result; it has to wait \
               before it tries another one";
    Some(hold(Permission::Wait, "ring", why.to_owned(), SPENT_RETRY, None))
}

/// Returns the report of the asking machine.
fn own_report<'a>(asking: &Asking<'_>, facts: &Facts<'a>) -> Option<&'a Reported> {
    facts.machines.iter().find(|(agent, _)| *agent == asking.agent).map(|(_, reported)| *reported)
}

/// Returns the other machines that have reported the repository lately.
fn others<'a>(
    asking: &'a Asking<'a>,
    facts: &'a Facts<'a>,
    now: Timestamp,
) -> impl Iterator<Item = &'a (&'a str, &'a Reported)> {
    facts.machines.iter().filter(move |(agent, reported)| {
        *agent != asking.agent
            && is_recent(reported.at, now)
            && reported.images_of(asking.repository).next().is_some()
    })
}

/// Reports whether there are such machines.
fn has_others(asking: &Asking<'_>, facts: &Facts<'_>, now: Timestamp) -> bool {
    others(asking, facts, now).next().is_some()
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn go(why: String) -> FleetAnswer {
    FleetAnswer { answer: Permission::Go, why, gate: None, again: RENEW, agent: None, store: None }
}

fn hold(answer: Permission, gate: &str, why: String, again: u64, agent: Option<String>) -> FleetAnswer {
    FleetAnswer { answer, why, gate: Some(gate.to_owned()), again, agent, store: None }
}

/// The answer to an agent that has too many leases.
pub fn over_limit(why: &str) -> FleetAnswer {
    hold(Permission::Wait, "ring", why.to_owned(), RETRY, None)
}

/// The answer while the store is unavailable and no lease can be taken.
pub fn away() -> FleetAnswer {
    let why = "the warden's store is away, so no machine can be told that it is its turn";
    let store = Some("away".to_owned());
    FleetAnswer { store, ..hold(Permission::Wait, "ring", why.to_owned(), RETRY, None) }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
