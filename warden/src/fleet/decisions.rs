//! The decisions in force, and how they change: freezes by operators and by the fuse, and withheld digests (DECISIONS 8). A
//! decision can only defer or refuse a deployment.

use std::collections::BTreeSet;

use evenkeel_common::wire::{FailedDigest, FleetDecisions, FleetEntry, Freeze, FreezeScope, Kind, Level};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{entry, repository};
pub use crate::config::FuseRule;

/// Name of the value that holds the decisions.
pub const DECISIONS: &str = "decisions";
/// Name of the value that holds the fuse's counts.
pub const FUSE: &str = "fuse";
/// Maximum duration of a freeze.
pub const MAX_FREEZE: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Maximum number of freezes in force at once.
pub const MAX_FREEZES: usize = 200;
/// How many withheld digests are sent to agents, and how many of these with the black box. An agent that asks about an older
/// one is still refused.
const MAX_FAILED: usize = 200;
const MAX_OUTPUTS: usize = 16;
/// Maximum number of failures that the fuse remembers.
const MAX_FAILURES: usize = 1000;

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
}

/// The failures that the fuse counts: a value of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fuse {
    failures: Vec<Failure>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Failure {
    at: Timestamp,
    repository: String,
}

impl Decisions {
    /// Returns the freezes in force.
    pub fn freezes_at(&self, now: Timestamp) -> impl Iterator<Item = &Freeze> {
        self.freezes.iter().filter(move |freeze| freeze.until > now)
    }

    /// Returns the decisions in force, with the remaining seconds of each freeze.
    pub fn at(&self, revision: u64, now: Timestamp) -> FleetDecisions {
        let freezes = self.freezes_at(now).map(|freeze| Freeze {
            seconds_left: u64::try_from(freeze.until.duration_since(now).as_secs()).unwrap_or(0) + 1,
            ..freeze.clone()
        });
        let failed = self.failed.clone();
        FleetDecisions { revision, freezes: freezes.collect(), failed, ..FleetDecisions::default() }
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
        self.failed.truncate(MAX_FAILED);
        self.failed.iter_mut().skip(MAX_OUTPUTS).for_each(|failed| failed.output = None);
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
    }
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
    pub(super) fn record(&mut self, repository: &str, at: Timestamp, now: Timestamp) {
        self.failures.push(Failure { at: at.min(now), repository: repository.to_owned() });
        let excess = self.failures.len().saturating_sub(MAX_FAILURES);
        self.failures.drain(..excess);
    }

    /// Returns the reason and the end of the freeze if the fuse trips. The counts are then cleared, so it trips once.
    pub(super) fn trip(&mut self, rule: FuseRule, now: Timestamp) -> Option<(String, Timestamp)> {
        let begin = now.checked_sub(SignedDuration::from_secs(rule.within.into())).unwrap_or(Timestamp::MIN);
        self.failures.retain(|failure| failure.at > begin);
        let images: BTreeSet<&str> =
            self.failures.iter().map(|failure| failure.repository.as_str()).collect();
        if rule.rollbacks == 0 || images.len() < usize::try_from(rule.rollbacks).unwrap_or(usize::MAX) {
            return None;
        }
        let window = entry::format_duration(SignedDuration::from_secs(rule.within.into()));
        let images: Vec<&str> = images.into_iter().collect();
        let reason =
            format!("{} images were rolled back within {window}: {}", images.len(), images.join(", "));
        let reason = reason.chars().take(500).collect();
        let until = now.checked_add(SignedDuration::from_secs(rule.freeze.into()).min(MAX_FREEZE));
        self.failures.clear();
        Some((reason, until.unwrap_or(Timestamp::MAX)))
    }
}
