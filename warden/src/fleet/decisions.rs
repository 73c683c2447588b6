//! The decisions in force, and how they change: freezes by operators and by the fuse, and withheld digests (DECISIONS 8). A
//! decision can only defer or refuse a deployment.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_common::wire::{FailedDigest, FleetDecisions, FleetEntry, Freeze, FreezeScope, Kind, Level};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{AHEAD, entry, repository};
pub use crate::config::FuseRule;

/// Name of the value that holds the decisions.
pub const DECISIONS: &str = "decisions";
/// Name of the value that holds the fuse's counts.
pub const FUSE: &str = "fuse";
/// Maximum duration of a freeze.
pub const MAX_FREEZE: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Maximum number of freezes in force at once.
pub const MAX_FREEZES: usize = 200;
/// How many withheld digests are listed, how many of these because of one agent, and how many with the black box. An agent
/// that asks about another one is still refused.
const MAX_FAILED: usize = 400;
const MAX_FAILED_OF_AGENT: usize = 32;
const MAX_OUTPUTS: usize = 16;
/// Maximum number of failures of one agent that the fuse remembers.
const MAX_FAILURES_OF_AGENT: usize = 32;
/// The failures of an agent count towards the fuse once in this time.
const FUSE_REST: SignedDuration = SignedDuration::from_hours(24);
/// How many agents and images the reason of a tripped fuse names.
const MAX_NAMED: usize = 8;
/// Maximum number of characters of that reason.
const MAX_REASON: usize = 500;

/// An operator's decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Updates in `scope` wait until `until`.
    Freeze {
        /// Why, in one line.
        reason: String,
        /// At most [`MAX_FREEZE`] from now.
        until: Timestamp,
        /// What it covers.
        scope: FreezeScope,
    },
    /// Ends the freeze with this id, or all.
    Thaw {
        /// The freeze.
        id: Option<String>,
    },
    /// Lifts the failures of a digest.
    Unblock {
        /// Without a tag.
        repository: String,
        /// `sha256:<hex>`
        digest: String,
    },
}

/// The decisions: a value of the store. Its revision is the fleet's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Decisions {
    /// In the order of their beginning; those that have ended are removed by the next change.
    pub freezes: Vec<Freeze>,
    /// The latest first.
    pub failed: Vec<FailedDigest>,
    /// How many withheld digests were left out because there are too many.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The failures that the fuse counts: a value of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fuse {
    failures: Vec<Failure>,
    /// When the failures of an agent last tripped it, by id.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tripped: BTreeMap<String, Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Failure {
    at: Timestamp,
    repository: String,
    /// Empty in failures from an earlier version.
    #[serde(default)]
    agent: String,
}

impl Decisions {
    /// Returns the freezes in force.
    pub fn freezes_at(&self, now: Timestamp) -> impl Iterator<Item = &Freeze> {
        self.freezes.iter().filter(move |freeze| is_in_force(freeze, now))
    }

    /// Returns the decisions in force, with the remaining seconds of each freeze.
    pub fn at(&self, revision: u64, now: Timestamp) -> FleetDecisions {
        let freezes = self.freezes_at(now).map(|freeze| Freeze {
            seconds_left: u64::try_from(freeze.until.duration_since(now).as_secs()).unwrap_or(0) + 1,
            ..freeze.clone()
        });
        FleetDecisions {
            revision,
            freezes: freezes.collect(),
            failed: self.failed.clone(),
            left_out: self.left_out,
            ..FleetDecisions::default()
        }
    }

    /// Adds a freeze. Returns `None` if there are already too many; this limit does not apply to the fuse, which only adds one
    /// if none covers the whole fleet.
    pub(super) fn freeze(&mut self, freeze: Freeze, now: Timestamp) -> Option<FleetEntry> {
        self.freezes.retain(|freeze| freeze.until > now);
        if freeze.by != BY_FUSE && self.freezes.len() >= MAX_FREEZES {
            return None;
        }
        let is_fuse = freeze.by != OPERATOR;
        let level = if is_fuse { Level::Critical } else { Level::Warning };
        let message = format!("updates {} are frozen until {}", what(&freeze.scope), freeze.until);
        let mut entry = entry::of_warden(&Kind::FROZEN, level, message, now);
        entry.reason = Some(freeze.reason.clone());
        entry.image.clone_from(&freeze.scope.image);
        if let Some(machine) = &freeze.scope.machine {
            entry.machine.clone_from(machine);
        }
        self.freezes.push(freeze);
        Some(entry)
    }

    /// Ends a freeze, or all. Returns `None` if there is none.
    pub(super) fn thaw(&mut self, id: Option<&str>, now: Timestamp) -> Option<FleetEntry> {
        self.freezes.retain(|freeze| freeze.until > now);
        let ends = |freeze: &Freeze| id.is_none_or(|id| freeze.id == id);
        let ended: Vec<Freeze> = self.freezes.iter().filter(|freeze| ends(freeze)).cloned().collect();
        self.freezes.retain(|freeze| !ends(freeze));
        let first = ended.first()?;
        let message = match ended.len() {
            1 => format!("updates {} may go on", what(&first.scope)),
            count => format!("{count} freezes were ended; updates may go on"),
        };
        let mut entry = entry::of_warden(&Kind::THAWED, Level::Info, message, now);
        entry.reason = Some(ended.iter().map(|freeze| freeze.reason.as_str()).collect::<Vec<_>>().join("; "));
        // As in the entry of the freeze, so that both are in the same history.
        let shared = |part: fn(&FreezeScope) -> &Option<String>| {
            part(&first.scope)
                .clone()
                .filter(|_| ended.iter().all(|freeze| part(&freeze.scope) == part(&first.scope)))
        };
        entry.image = shared(|scope| &scope.image);
        entry.machine = shared(|scope| &scope.machine).unwrap_or(entry.machine);
        Some(entry)
    }

    /// Replaces the decision about a digest.
    pub(super) fn set_failed(&mut self, repository: &str, digest: &str, failed: Option<FailedDigest>) {
        let is_it = |known: &FailedDigest| known.repository == repository && known.digest == digest;
        match (self.failed.iter_mut().find(|known| is_it(known)), failed) {
            (Some(known), Some(failed)) => *known = failed,
            (Some(_), None) => self.failed.retain(|known| !is_it(known)),
            (None, Some(failed)) => self.failed.insert(0, failed),
            (None, None) => {}
        }
        self.cut();
        self.failed.iter_mut().skip(MAX_OUTPUTS).for_each(|failed| failed.output = None);
    }

    /// Removes the oldest digests of agents that alone are the reason for many, so that one agent can't displace those of
    /// others from the list.
    fn cut(&mut self) {
        let before = self.failed.len();
        let mut of: BTreeMap<String, usize> = BTreeMap::new();
        self.failed.retain(|failed| {
            let [only] = &failed.agents[..] else { return true };
            let count = of.entry(only.clone()).or_default();
            *count += 1;
            *count <= MAX_FAILED_OF_AGENT
        });
        while self.failed.len() > MAX_FAILED {
            let most = of.iter().max_by_key(|(_, count)| **count).filter(|(_, count)| **count > 0);
            let Some(agent) = most.map(|(agent, _)| agent.clone()) else { break };
            of.entry(agent.clone()).and_modify(|count| *count -= 1);
            let oldest = self.failed.iter().rposition(|failed| failed.agents == [agent.as_str()]);
            oldest.map(|at| self.failed.remove(at));
        }
        self.failed.truncate(MAX_FAILED);
        let cut = (before - self.failed.len()) as u64;
        self.left_out = if self.failed.is_empty() { 0 } else { self.left_out.saturating_add(cut) };
    }

    /// Ends what is based on agents that are no longer configured: freezes of them, fuses that only they tripped, and
    /// digests that failed only there. Returns whether there was anything.
    pub(crate) fn forget_agents(&mut self, is_configured: impl Fn(&str) -> bool) -> bool {
        let before = (self.freezes.len(), self.failed.len());
        let has_some = |agents: &[String]| agents.is_empty() || agents.iter().any(|id| is_configured(id));
        self.freezes.retain(|freeze| {
            freeze.scope.machine.as_deref().is_none_or(&is_configured) && has_some(&freeze.agents)
        });
        self.failed.retain(|failed| has_some(&failed.agents));
        (self.freezes.len(), self.failed.len()) != before
    }

    /// Replaces the decision about a digest whose verdicts were reduced. Returns whether it was listed.
    pub(crate) fn reduce_failed(
        &mut self,
        repository: &str,
        digest: &str,
        failed: Option<FailedDigest>,
    ) -> bool {
        let before = self.failed.clone();
        self.set_failed(repository, digest, failed);
        self.failed != before
    }

    /// Removes the decision that was based on outdated verdicts, unless it has changed since. Returns whether it was removed.
    pub(crate) fn forget(&mut self, failed: &FailedDigest) -> bool {
        let key = |failed: &FailedDigest| {
            (failed.repository.clone(), failed.digest.clone(), failed.since, failed.agents.clone())
        };
        let before = self.failed.len();
        self.failed.retain(|known| key(known) != key(failed));
        self.failed.len() < before
    }
}

/// Origin of a freeze: an operator.
pub const OPERATOR: &str = "operator";
/// Origin of a freeze: the warden's fuse.
pub const BY_FUSE: &str = "fuse";

/// Creates a freeze of the whole fleet.
pub(super) fn freeze_of(id: u64, by: &str, reason: String, until: Timestamp, now: Timestamp) -> Freeze {
    Freeze {
        id: id.to_string(),
        reason,
        by: by.to_owned(),
        since: now,
        until,
        seconds_left: 0,
        scope: FreezeScope::default(),
        agents: Vec::new(),
    }
}

/// Reports whether a freeze is in force. One that ends later than any freeze may was made while a warden's clock was wrong.
fn is_in_force(freeze: &Freeze, now: Timestamp) -> bool {
    let left = freeze.until.duration_since(now);
    left.is_positive() && left <= MAX_FREEZE + AHEAD
}

fn what(scope: &FreezeScope) -> String {
    match (&scope.machine, &scope.image) {
        (None, None) => "of all machines".to_owned(),
        (Some(machine), None) => format!("of {machine}"),
        (None, Some(image)) => format!("of {image}"),
        (Some(machine), Some(image)) => format!("of {image} on {machine}"),
    }
}

/// Reports whether a freeze covers this machine and repository.
pub fn covers(scope: &FreezeScope, machine: &str, of: &str) -> bool {
    scope.machine.as_deref().is_none_or(|only| only == machine)
        && scope.image.as_deref().is_none_or(|only| repository(only) == of)
}

impl Fuse {
    /// Records a rollback at the time that its agent reports; a time in the future counts as now.
    pub(super) fn record(&mut self, repository: &str, agent: &str, at: Timestamp, now: Timestamp) {
        let (repository, agent) = (repository.to_owned(), agent.to_owned());
        let of_agent = |failure: &Failure| failure.agent == agent;
        if self.failures.iter().filter(|failure| of_agent(failure)).count() >= MAX_FAILURES_OF_AGENT
            && let Some(first) = self.failures.iter().position(of_agent)
        {
            self.failures.remove(first);
        }
        self.failures.push(Failure { at: at.min(now), repository, agent });
    }

    /// Returns the freeze if the fuse trips. The counts are then cleared, so it trips once, and the failures of the same
    /// agents count again a day later.
    pub(super) fn trip(&mut self, rule: FuseRule, id: u64, now: Timestamp) -> Option<Freeze> {
        let within = SignedDuration::from_secs(rule.within.into());
        self.failures.retain(|failure| now.duration_since(failure.at).abs() < within);
        self.tripped.retain(|_, at| now.duration_since(*at).abs() < FUSE_REST);
        let counted = || self.failures.iter().filter(|failure| !self.tripped.contains_key(&failure.agent));
        let images: BTreeSet<&str> = counted().map(|failure| failure.repository.as_str()).collect();
        if rule.rollbacks == 0 || images.len() < usize::try_from(rule.rollbacks).unwrap_or(usize::MAX) {
            return None;
        }
        let window = entry::format_duration(within);
        let mut of: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for failure in counted().filter(|failure| !failure.agent.is_empty()) {
            of.entry(&failure.agent).or_default().insert(&failure.repository);
        }
        let on = of.iter().take(MAX_NAMED).map(|(agent, images)| format!("{agent} ({})", some(images)));
        let on: Vec<String> = on.collect();
        let place = if on.is_empty() { some(&images) } else { format!("on {}", on.join(", ")) };
        let reason = format!("{} images were rolled back within {window}: {place}", images.len());
        let reason = reason.chars().take(MAX_REASON).collect();
        let agents: Vec<String> = of.into_keys().map(str::to_owned).collect();
        let until = now.checked_add(SignedDuration::from_secs(rule.freeze.into()).min(MAX_FREEZE));
        let until = until.unwrap_or(Timestamp::MAX);
        self.failures.clear();
        self.tripped.extend(agents.iter().map(|agent| (agent.clone(), now)));
        let agents = agents.into_iter().take(MAX_FAILED_OF_AGENT).collect();
        Some(Freeze { agents, ..freeze_of(id, BY_FUSE, reason, until, now) })
    }

    /// Forgets the failures of agents that are no longer configured. Returns whether there were any.
    pub(crate) fn forget_agents(&mut self, is_configured: impl Fn(&str) -> bool) -> bool {
        let before = self.failures.len();
        self.failures.retain(|failure| failure.agent.is_empty() || is_configured(&failure.agent));
        self.failures.len() != before
    }
}

/// Lists some names, and says how many more there are.
fn some(names: &BTreeSet<&str>) -> String {
    let listed: Vec<&str> = names.iter().take(MAX_NAMED).copied().collect();
    match names.len() - listed.len() {
        0 => listed.join(", "),
        more => format!("{} and {more} more", listed.join(", ")),
    }
}
