//! The state of the fleet (DECISIONS 8): the decisions in force and whether a warden answers. Pure: `tasks/fleet.rs`
//! provides the data, `gates/fleet.rs` holds updates accordingly.

use std::time::Duration;

use evenkeel_common::wire::{FailedDigest, FleetDecisions, Freeze, SeenDigest};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::model::image::{Digest, Reference, Repository};
use crate::model::output::clip_end;

/// Longer freezes are cut to this duration.
const MAX_FREEZE: SignedDuration = SignedDuration::from_hours(31 * 24);
/// If the clocks of agent and warden differ by this much, absolute times of the warden are not used.
pub const CLOCK_OFF: SignedDuration = SignedDuration::from_mins(10);
/// Two answers about the same point in time may differ by this much.
const SEEN_TOLERANCE: SignedDuration = SignedDuration::from_mins(2);
/// Maximum number of freezes and of digests that are kept.
const MAX_DECISIONS: usize = 5_000;
/// Maximum length of a one-line text and of an output.
const MAX_LINE: usize = 500;
const MAX_OUTPUT: usize = 8 * 1024;

/// The connection of this agent to its fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Link {
    /// No fleet decisions: no warden is configured, or it does not support them.
    #[default]
    None,
    /// Wardens are configured, and none has answered yet.
    Unknown,
    /// A warden answers.
    Present,
    /// No warden answers.
    Away {
        /// Since when.
        since: Timestamp,
    },
}

/// The fleet's decisions in force, as known to this agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetView {
    /// The connection to the fleet.
    pub link: Link,
    /// Why no warden can be asked, while the link is [`Link::Away`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_away: Option<String>,
    /// Revision of the decisions.
    pub revision: u64,
    /// Freezes; `until` is by this machine's clock.
    pub freezes: Vec<Freeze>,
    /// Digests that the fleet withholds.
    pub failed: Vec<FailedDigest>,
    /// When the fleet first saw the digests of tags, by this machine's clock.
    #[serde(skip)]
    pub seen: Vec<Seen>,
    /// Changes with each verdict on digests found here: a request that was told to wait may now get a different answer.
    #[serde(skip)]
    pub verdicts: u64,
    /// Base URL of the first configured warden, where users can lift the fleet's decisions.
    #[serde(skip)]
    pub warden: String,
    /// Ring of this machine.
    #[serde(skip)]
    pub ring: u8,
    /// How long a ring above 0 waits while no warden answers, and every ring while the wardens have no store.
    #[serde(skip)]
    pub patience: Duration,
    /// Since when the wardens that answer have had no access to their store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_away: Option<Timestamp>,
    /// Seconds that this machine's clock is ahead of the warden's; `None` if the difference is acceptable.
    #[serde(skip)]
    pub clock_ahead: Option<i64>,
    /// Number of times that a warden answered for the first time, or again after an outage: its store may be a new one.
    #[serde(skip)]
    pub contact: u64,
}

/// The digest of a tag, and when the fleet first saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Image reference with its registry's host and its tag.
    pub image: String,
    /// `sha256:<hex>`
    pub digest: String,
    /// Time of the first sighting by this machine's clock.
    pub since: Timestamp,
}

impl FleetView {
    /// Whether the fleet may hold an update.
    pub fn is_gating(&self) -> bool {
        self.link != Link::None
    }

    /// Whether a warden is asked before an update begins. A store that was away before a restart may be back: until a warden
    /// has answered, it is asked. So is a warden that did not answer a while ago: it may be back, and another machine may be
    /// trying the digest.
    pub(in crate::service) fn is_asked(&self) -> bool {
        match self.link {
            Link::None => false,
            Link::Unknown | Link::Present => self.store_away.is_none() || self.contact == 0,
            Link::Away { .. } => true,
        }
    }

    /// Returns the view after an answer of a warden. `date`: the time by the warden's clock.
    #[must_use]
    pub fn with_decisions(&self, decisions: FleetDecisions, date: Option<Timestamp>, now: Timestamp) -> Self {
        let ahead = date.map(|date| now.duration_since(date)).filter(|ahead| ahead.abs() >= CLOCK_OFF);
        let is_storeless = decisions.store.is_some();
        if is_storeless && decisions.revision < self.revision {
            // While its store is unavailable, a warden may know less than what was already received.
            return self.present();
        }
        let FleetDecisions { revision, freezes, failed, seen, verdicts, .. } = decisions;
        let latest = now.checked_add(MAX_FREEZE).unwrap_or(Timestamp::MAX);
        let freezes = freezes.into_iter().take(MAX_DECISIONS).map(|freeze| {
            let left = SignedDuration::from_secs(i64::try_from(freeze.seconds_left).unwrap_or(i64::MAX));
            let by_left = now.checked_add(left).unwrap_or(latest);
            let until = if ahead.is_some() { by_left } else { freeze.until };
            Freeze { until: until.min(latest), reason: line(&freeze.reason), by: line(&freeze.by), ..freeze }
        });
        let failed = failed.into_iter().take(MAX_DECISIONS).map(|failed| FailedDigest {
            agents: failed.agents.iter().take(100).map(|agent| line(agent)).collect(),
            reason: failed.reason.as_deref().map(line),
            output: failed.output.map(|output| tail(&output)),
            ..failed
        });
        Self {
            revision,
            verdicts,
            freezes: freezes.collect(),
            failed: failed.collect(),
            seen: seen.into_iter().take(MAX_DECISIONS).map(|seen| self.seen_at(seen, now)).collect(),
            store_away: self.store_away.filter(|_| is_storeless),
            clock_ahead: ahead.map(|ahead| ahead.as_secs()),
            ..self.present()
        }
    }

    /// Returns the view once a warden answers.
    #[must_use]
    pub fn present(&self) -> Self {
        Self { link: Link::Present, why_away: None, ..self.clone() }
    }

    /// Converts a sighting to this machine's clock. A known time is kept if the new one differs only within
    /// [`SEEN_TOLERANCE`].
    fn seen_at(&self, SeenDigest { image, digest, seconds_ago }: SeenDigest, now: Timestamp) -> Seen {
        let ago = SignedDuration::from_secs(i64::try_from(seconds_ago).unwrap_or(i64::MAX));
        let since = now.checked_sub(ago).unwrap_or(Timestamp::MIN);
        let known = self.seen.iter().find(|known| known.image == image && known.digest == digest);
        let known = known.filter(|known| known.since.duration_since(since).abs() < SEEN_TOLERANCE);
        Seen { since: known.map_or(since, |known| known.since), image: line(&image), digest: line(&digest) }
    }

    /// When the fleet first saw that a tag points to a digest.
    pub(in crate::service) fn seen_since(&self, reference: &Reference, digest: &Digest) -> Option<Timestamp> {
        let (image, digest) = (reference.to_string(), digest.to_string());
        self.seen.iter().find(|seen| seen.image == image && seen.digest == digest).map(|seen| seen.since)
    }

    /// Returns the view while no warden answers: known decisions stay in force.
    #[must_use]
    pub fn without_warden(&self, now: Timestamp) -> Self {
        let link = match self.link {
            Link::None => Link::None,
            Link::Away { since } => Link::Away { since },
            Link::Unknown | Link::Present => Link::Away { since: now },
        };
        // Sightings are dropped, because the clock may be set before a warden answers again.
        Self { link, seen: Vec::new(), ..self.clone() }
    }

    /// The same, with the reason: it may be there, and refuse this agent.
    #[must_use]
    pub fn without_answer(&self, why: &str, now: Timestamp) -> Self {
        let view = self.without_warden(now);
        Self { why_away: (view.link != Link::None).then(|| line(why)), ..view }
    }

    /// Returns the view for wardens without fleet decisions: earlier decisions are void.
    #[must_use]
    pub fn without_fleet(&self) -> Self {
        let Self { warden, ring, patience, contact, .. } = self.clone();
        Self { warden, ring, patience, contact, ..Self::default() }
    }

    /// The longest freeze in force for an image. A warden sends only freezes that apply to this machine.
    pub(in crate::service) fn freeze(&self, reference: &Reference, now: Timestamp) -> Option<&Freeze> {
        let covers = |freeze: &&Freeze| {
            let image = freeze.scope.image.as_deref();
            freeze.until > now && image.is_none_or(|image| is_of(image, &reference.repository))
        };
        self.freezes.iter().filter(covers).max_by_key(|freeze| freeze.until)
    }

    /// Returns the record of a digest that the fleet withholds.
    pub(in crate::service) fn failed(&self, reference: &Reference, digest: &Digest) -> Option<&FailedDigest> {
        let is_it = |failed: &&FailedDigest| {
            failed.digest == digest.to_string() && is_of(&failed.repository, &reference.repository)
        };
        self.failed.iter().find(is_it)
    }

    /// A warning about the clock difference, if any.
    pub fn warning(&self) -> Option<String> {
        let seconds = self.clock_ahead?;
        let (by, side) = (seconds.unsigned_abs(), if seconds > 0 { "ahead of" } else { "behind" });
        Some(format!(
            "push: this machine's clock is {by} s {side} the warden's; freezes are counted in seconds from now"
        ))
    }
}

/// Whether a text is this repository, or a reference in this repository.
fn is_of(text: &str, repository: &Repository) -> bool {
    text == repository.to_string()
        || Reference::parse(text).is_ok_and(|reference| reference.repository == *repository)
}

/// Reduces an untrusted text to one line of limited length.
pub(in crate::service) fn line(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    clip_end(plain.trim(), MAX_LINE)
}

/// Returns the end of an untrusted multi-line text.
fn tail(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
    crate::model::text::tail(&plain, MAX_OUTPUT).to_owned()
}

/// The answer of a warden that holds an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetHold {
    /// Why, in one sentence.
    pub why: String,
    /// The agent that is trying the digest, or on which it failed.
    pub agent: Option<String>,
    /// When the warden is asked again.
    pub until: Timestamp,
    /// Whether no warden has answered in time, so that it is open whether the update may begin.
    pub is_unanswered: bool,
}
