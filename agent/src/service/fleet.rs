//! What is known of the fleet (DECISIONS 8): the decisions in force, whether a warden answers, and what it said to an
//! update. Pure: `tasks/fleet.rs` brings the facts, `gates.rs` holds updates by them.

use std::time::Duration;

use evenkeel_common::wire::{FailedDigest, FleetDecisions, Freeze, SeenDigest};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::model::image::{Digest, Reference, Repository};
use crate::model::output::clip_end;

use super::Service;
use super::candidate::Candidate;
use super::gates::Rules;

/// A freeze that would last longer is cut.
const LONGEST_FREEZE: SignedDuration = SignedDuration::from_hours(31 * 24);
/// A clock that differs by this much from the warden's is not relied on.
pub const CLOCK_OFF: SignedDuration = SignedDuration::from_mins(10);
/// By so much two answers about the same moment may differ.
const SEEN_TOLERANCE: SignedDuration = SignedDuration::from_mins(2);
/// Most freezes and digests that are kept, and most characters of a text.
const MOST: usize = 5_000;
const REASON: usize = 500;
const OUTPUT: usize = 8 * 1024;

/// How this agent stands to its fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Link {
    /// No warden decides anything: none is configured, or it is one that does not know how.
    #[default]
    None,
    /// Wardens are configured, and none has been heard yet.
    Unknown,
    /// A warden answers.
    Present,
    /// No warden answers.
    Away {
        /// Since when that is known.
        since: Timestamp,
    },
}

/// The decisions in force as this agent knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetView {
    /// How this agent stands to its fleet.
    pub link: Link,
    /// Revision of the decisions.
    pub revision: u64,
    /// Freezes; `until` is by this machine's clock.
    pub freezes: Vec<Freeze>,
    /// Digests that are withheld.
    pub failed: Vec<FailedDigest>,
    /// Since when the fleet has known what tags name, by this machine's clock.
    #[serde(skip)]
    pub seen: Vec<Seen>,
    /// Changes with verdicts on what was found here: who was told to wait may be answered otherwise.
    #[serde(skip)]
    pub verdicts: u64,
    /// Base URL of the first configured warden, where people can end what the fleet decides.
    #[serde(skip)]
    pub warden: String,
    /// Ring of this machine.
    #[serde(skip)]
    pub ring: u8,
    /// How long a ring above 0 waits while no warden answers.
    #[serde(skip)]
    pub patience: Duration,
    /// Seconds that this machine's clock is ahead of the warden's, where that is too much to rely on it.
    #[serde(skip)]
    pub clock_ahead: Option<i64>,
    /// Counts how often a warden was heard for the first time, or again after a silence: its store may be a new one.
    #[serde(skip)]
    pub contact: u64,
}

/// What a tag names, and since when the fleet has known that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Image reference with its registry's host and its tag.
    pub image: String,
    /// `sha256:<hex>`
    pub digest: String,
    /// By this machine's clock.
    pub since: Timestamp,
}

impl FleetView {
    /// Whether anything may hold an update.
    pub fn is_gating(&self) -> bool {
        self.link != Link::None
    }

    /// Whether a warden is asked before an update begins.
    pub(super) fn is_asked(&self) -> bool {
        matches!(self.link, Link::Unknown | Link::Present)
    }

    /// The same after a warden has answered. `date`: the time by its clock.
    #[must_use]
    pub fn heard(&self, decisions: FleetDecisions, date: Option<Timestamp>, now: Timestamp) -> Self {
        let ahead = date.map(|date| now.duration_since(date)).filter(|ahead| ahead.abs() >= CLOCK_OFF);
        if decisions.store.is_some() && decisions.revision < self.revision {
            // Cut off from its store it knows less than what was heard before.
            return Self { link: Link::Present, ..self.clone() };
        }
        let FleetDecisions { revision, freezes, failed, seen, verdicts, .. } = decisions;
        let latest = now.checked_add(LONGEST_FREEZE).unwrap_or(Timestamp::MAX);
        let freezes = freezes.into_iter().take(MOST).map(|freeze| {
            let left = SignedDuration::from_secs(i64::try_from(freeze.seconds_left).unwrap_or(i64::MAX));
            let by_left = now.checked_add(left).unwrap_or(latest);
            let until = if ahead.is_some() { by_left } else { freeze.until };
            Freeze { until: until.min(latest), reason: line(&freeze.reason), by: line(&freeze.by), ..freeze }
        });
        let failed = failed.into_iter().take(MOST).map(|failed| FailedDigest {
            agents: failed.agents.iter().take(100).map(|agent| line(agent)).collect(),
            reason: failed.reason.as_deref().map(line),
            output: failed.output.map(|output| tail(&output)),
            ..failed
        });
        Self {
            link: Link::Present,
            revision,
            verdicts,
            freezes: freezes.collect(),
            failed: failed.collect(),
            seen: seen.into_iter().take(MOST).map(|seen| self.seen_at(seen, now)).collect(),
            clock_ahead: ahead.map(|ahead| ahead.as_secs()),
            ..self.clone()
        }
    }

    /// A digest that the fleet has seen. What differs by no more than the way here takes stays as it was.
    fn seen_at(&self, SeenDigest { image, digest, seconds_ago }: SeenDigest, now: Timestamp) -> Seen {
        let ago = SignedDuration::from_secs(i64::try_from(seconds_ago).unwrap_or(i64::MAX));
        let since = now.checked_sub(ago).unwrap_or(Timestamp::MIN);
        let known = self.seen.iter().find(|known| known.image == image && known.digest == digest);
        let known = known.filter(|known| known.since.duration_since(since).abs() < SEEN_TOLERANCE);
        Seen { since: known.map_or(since, |known| known.since), image: line(&image), digest: line(&digest) }
    }

    /// Since when the fleet has known that a tag names a digest.
    pub(super) fn seen_since(&self, reference: &Reference, digest: &Digest) -> Option<Timestamp> {
        let (image, digest) = (reference.to_string(), digest.to_string());
        self.seen.iter().find(|seen| seen.image == image && seen.digest == digest).map(|seen| seen.since)
    }

    /// The same while no warden answers: what is known holds.
    #[must_use]
    pub fn away(&self, now: Timestamp) -> Self {
        let link = match self.link {
            // Nobody is missed.
            Link::None => Link::None,
            Link::Away { since } => Link::Away { since },
            Link::Unknown | Link::Present => Link::Away { since: now },
        };
        // How long ago it was is not certain for long: the clock may be set.
        Self { link, seen: Vec::new(), ..self.clone() }
    }

    /// The same with wardens that decide nothing: what was decided before is void.
    #[must_use]
    pub fn without_fleet(&self) -> Self {
        let Self { warden, ring, patience, contact, .. } = self.clone();
        Self { warden, ring, patience, contact, ..Self::default() }
    }

    /// The freeze in force for an image that lasts longest. A warden sends only those that cover this machine.
    pub(super) fn freeze(&self, reference: &Reference, now: Timestamp) -> Option<&Freeze> {
        let covers = |freeze: &&Freeze| {
            let image = freeze.scope.image.as_deref();
            freeze.until > now && image.is_none_or(|image| is_of(image, &reference.repository))
        };
        self.freezes.iter().filter(covers).max_by_key(|freeze| freeze.until)
    }

    /// What is known of a digest that is withheld here.
    pub(super) fn failed(&self, reference: &Reference, digest: &Digest) -> Option<&FailedDigest> {
        let is_it = |failed: &&FailedDigest| {
            failed.digest == digest.to_string() && is_of(&failed.repository, &reference.repository)
        };
        self.failed.iter().find(is_it)
    }

    /// What people should know about the clock.
    pub fn warning(&self) -> Option<String> {
        let seconds = self.clock_ahead?;
        let (by, side) = (seconds.unsigned_abs(), if seconds > 0 { "ahead of" } else { "behind" });
        Some(format!(
            "push: this machine's clock is {by} s {side} the warden's; freezes are counted in seconds from now"
        ))
    }
}

/// Whether a repository, or a reference of which only the repository counts, is this one.
fn is_of(text: &str, repository: &Repository) -> bool {
    text == repository.to_string()
        || Reference::parse(text).is_ok_and(|reference| reference.repository == *repository)
}

/// A text from outside on one line.
pub(super) fn line(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    clip_end(plain.trim(), REASON)
}

/// The end of a text from outside, with its lines.
fn tail(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
    let from = plain.len().saturating_sub(OUTPUT);
    let from = (from..=plain.len()).find(|at| plain.is_char_boundary(*at)).unwrap_or(plain.len());
    plain[from..].to_owned()
}

impl Service {
    /// What is known of the fleet has changed.
    pub(super) fn fleet_changed(&mut self, view: std::sync::Arc<FleetView>, now: Timestamp) {
        let holds = |service: &Self| {
            let seen = service.seen_candidates();
            let rules = service.rules(now);
            let hold = |c: &Candidate| rules.and_then(|rules| rules.first_hold(c));
            seen.iter().map(|candidate| hold(candidate).map(|gate| gate.gate)).collect::<Vec<_>>()
        };
        let said = |fleet: &FleetView| (fleet.revision, fleet.verdicts, std::mem::discriminant(&fleet.link));
        let said_before = said(&self.fleet);
        let was_gating = self.fleet.is_gating();
        let before = holds(self);
        self.fleet = view;
        if said(&self.fleet) != said_before {
            self.permits.ask_again();
        }
        self.take_fleets_word();
        self.recheck_when_lifted(now);
        let is_other = holds(self) != before || self.fleet.is_gating() != was_gating;
        if is_other && self.seen.is_some() && self.can_check() && !self.is_deploying() {
            // It is compared once more, and told that it waits, or begins if nothing holds it.
            self.check_due = true;
        }
    }

    /// What it takes it to be before anything was heard.
    pub fn set_fleet(&mut self, view: std::sync::Arc<FleetView>) {
        self.fleet = view;
    }
}

/// The gate of a ring while no warden answers: when it lets a digest go.
pub(super) fn ring_waits_until(rules: &Rules<'_>, candidate: &Candidate) -> Option<Timestamp> {
    let Link::Away { since } = rules.fleet.link else { return None };
    if rules.fleet.ring == 0 {
        return None;
    }
    let patience = SignedDuration::try_from(rules.fleet.patience).unwrap_or(SignedDuration::MAX);
    // What was seen while it is away waits as long as what waited before.
    let begun = since.max(candidate.first_seen);
    let until = begun.checked_add(patience).unwrap_or(Timestamp::MAX);
    (until > rules.now).then_some(until)
}
