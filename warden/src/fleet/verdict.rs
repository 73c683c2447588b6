//! The machines' verdicts on a digest: the latest one of each, and the resulting decision (DECISIONS 8).

use std::collections::BTreeMap;

use evenkeel_common::wire::{FailedDigest, FleetEntry, Kind, Level};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{entry, repository};

/// How many failures of a digest have their black box kept. The first one matters most to operators.
const BLACK_BOXES: usize = 2;
/// Limit in bytes for the reason and the black box of a failure: these are kept for every digest.
const MAX_REASON: usize = 300;
const MAX_OUTPUT: usize = 4 * 1024;
/// How many agents a decision names.
const MAX_NAMED: usize = 32;

/// The outcome of a machine's latest deployment of a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It passed probation.
    Proven,
    /// It was rolled back.
    Failed,
}

/// All verdicts on one digest: a value of the store, see [`name`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DigestRecord {
    /// Repository with its registry's host, without a tag.
    pub repository: String,
    /// `sha256:<hex>`
    pub digest: String,
    /// The latest verdict of each agent, by id.
    pub agents: BTreeMap<String, AgentVerdict>,
}

/// The latest verdict of one agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentVerdict {
    /// The verdict.
    pub verdict: Verdict,
    /// When it arrived.
    pub at: Timestamp,
    /// Since when the agent's verdicts have been the same, and counted. A proof counts from the end of the probation.
    pub since: Timestamp,
    /// Id of the entry.
    pub entry: u64,
    /// The service.
    pub service: String,
    /// Why it failed, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The black box.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// An operator has lifted it: it no longer counts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lifted: bool,
}

/// Returns the name of the value that holds the verdicts on a digest.
pub fn name(repository: &str, digest: &str) -> String {
    format!("{PREFIX}{repository}@{digest}")
}

/// Prefix of these names.
pub const PREFIX: &str = "verdicts/";

/// A verdict that an entry claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim<'a> {
    /// Without a tag.
    pub repository: &'a str,
    /// The digest.
    pub digest: &'a str,
    /// The verdict.
    pub verdict: Verdict,
}

/// Returns the verdicts that an entry claims: on its image, and on those that failed with it.
pub fn claims(entry: &FleetEntry) -> impl Iterator<Item = Claim<'_>> {
    let first = verdict(entry).map(|(repository, digest, verdict)| Claim { repository, digest, verdict });
    let is_failed = first.is_some_and(|first| first.verdict == Verdict::Failed);
    let others = entry.also_failed.iter().filter(move |_| is_failed).map(|other| Claim {
        repository: repository(&other.image),
        digest: &other.digest,
        verdict: Verdict::Failed,
    });
    first.into_iter().chain(others)
}

/// Extracts the verdict of an entry: the repository, the digest, and the verdict. Errors, stops and aborted probations are
/// not verdicts. Neither is an `updated` with level warning: that image was pulled, but no container runs it.
pub fn verdict(entry: &FleetEntry) -> Option<(&str, &str, Verdict)> {
    let verdict = match entry.event.as_str() {
        kind if kind == Kind::UPDATED.as_str() && entry.level != Level::Warning.as_str() => Verdict::Proven,
        kind if kind == Kind::ROLLED_BACK.as_str() || kind == Kind::ROLLBACK_FAILED.as_str() => {
            Verdict::Failed
        }
        _ => return None,
    };
    Some((repository(entry.image.as_deref()?), entry.new_digest.as_deref()?, verdict))
}

impl DigestRecord {
    /// Records the verdict of an entry with this id that has just arrived. The latest one counts, from `from` on, or since
    /// earlier if it repeats the one before.
    pub fn record(
        &mut self,
        entry: &FleetEntry,
        verdict: Verdict,
        id: u64,
        (from, now): (Timestamp, Timestamp),
    ) {
        let before = self.agents.get(&entry.agent);
        let since =
            before.filter(|before| before.verdict == verdict).map_or(from, |before| before.since.min(from));
        let boxes = self.agents.values().filter(|agent| agent.output.is_some()).count();
        let is_failed = verdict == Verdict::Failed;
        let latest = AgentVerdict {
            verdict,
            at: now,
            since,
            entry: id,
            service: entry.service.clone(),
            reason: entry
                .reason
                .as_deref()
                .filter(|_| is_failed)
                .map(|text| entry::one_line(text, MAX_REASON)),
            output: entry
                .output
                .as_deref()
                .filter(|_| is_failed && boxes < BLACK_BOXES)
                .map(|text| entry::truncate_start(text.to_owned(), MAX_OUTPUT)),
            lifted: false,
        };
        self.agents.insert(entry.agent.clone(), latest);
    }

    /// Lifts all failures. Returns whether there were any.
    pub fn lift(&mut self) -> bool {
        let mut found = false;
        for agent in self.agents.values_mut().filter(|agent| agent.is_failed()) {
            (agent.lifted, found) = (true, true);
        }
        found
    }

    /// Returns the id of the entry with an agent's latest verdict; 0 without one.
    pub fn entry_of(&self, agent: &str) -> u64 {
        self.agents.get(agent).map_or(0, |latest| latest.entry)
    }

    /// Returns when the latest verdict arrived.
    pub fn latest_at(&self) -> Option<Timestamp> {
        self.agents.values().map(|latest| latest.at).max()
    }

    /// Reports whether this agent's latest verdict is `Proven`.
    pub fn is_proven_at(&self, agent: &str) -> bool {
        self.agents.get(agent).is_some_and(|agent| agent.verdict == Verdict::Proven)
    }

    /// Reports whether it is proven on any machine by now.
    pub fn is_proven(&self, now: Timestamp) -> bool {
        self.agents.values().any(|agent| agent.verdict == Verdict::Proven && agent.since <= now)
    }

    /// Returns the record without the verdicts of some agents; `None` if it has none of theirs.
    pub fn only_of(&self, is_kept: impl Fn(&str) -> bool) -> Option<Self> {
        let mut next = self.clone();
        next.agents.retain(|agent, _| is_kept(agent));
        (next.agents.len() < self.agents.len()).then_some(next)
    }

    /// Reports whether it failed on this agent and has not been lifted.
    pub fn has_failed_at(&self, agent: &str) -> bool {
        self.agents.get(agent).is_some_and(AgentVerdict::is_failed)
    }

    /// Returns the decision that withholds the digest, if more of the latest verdicts are `Failed` than `Proven`.
    pub fn withheld(&self) -> Option<FailedDigest> {
        self.withheld_by(|_| true)
    }

    /// The same for one agent: counts failures on other machines, unless the digest is proven on this one. The agent's own
    /// failure does not count: its own block remains until an operator lifts it (DECISIONS 8: "from others").
    pub fn withheld_from(&self, agent: &str) -> Option<FailedDigest> {
        self.withheld_by(|other| other != agent).filter(|_| !self.is_proven_at(agent))
    }

    fn withheld_by(&self, counts: impl Fn(&str) -> bool) -> Option<FailedDigest> {
        let proven = self.agents.values().filter(|agent| agent.verdict == Verdict::Proven).count();
        let failed = self.agents.iter().filter(|(id, agent)| agent.is_failed() && counts(id));
        let mut failed: Vec<_> = failed.collect();
        if failed.len() <= proven {
            return None;
        }
        failed.sort_by_key(|(_, agent)| agent.entry);
        let (_, first) = failed.first()?;
        Some(FailedDigest {
            repository: self.repository.clone(),
            digest: self.digest.clone(),
            since: first.at,
            reason: first.reason.clone(),
            output: first.output.clone(),
            more_agents: failed.len().saturating_sub(MAX_NAMED) as u64,
            agents: failed.into_iter().take(MAX_NAMED).map(|(id, _)| id.clone()).collect(),
        })
    }
}

impl AgentVerdict {
    fn is_failed(&self) -> bool {
        self.verdict == Verdict::Failed && !self.lifted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::testing::{at, entry};

    #[test]
    fn only_the_end_of_a_deployment_is_a_verdict() {
        for (event, image, expected) in [
            ("updated", Some("r:5000/web:1"), Some(("r:5000/web", "sha256:b", Verdict::Proven))),
            ("rolled_back", Some("web"), Some(("web", "sha256:b", Verdict::Failed))),
            ("rollback_failed", Some("web"), Some(("web", "sha256:b", Verdict::Failed))),
            ("updated", None, None),
            // A way back has failed, or nodes could not run the image.
            ("rollback_failed", None, None),
            ("error", Some("web"), None),
            ("resumed", Some("web"), None),
            ("force_redeploy", Some("web"), None),
        ] {
            let entry =
                FleetEntry { image: image.map(str::to_owned), ..entry("a", event, "web", "sha256:b") };
            assert_eq!(verdict(&entry), expected, "{event} {image:?}");
        }
        let unused = FleetEntry { level: "warning".to_owned(), ..entry("a", "updated", "web", "sha256:b") };
        assert_eq!(verdict(&unused), None, "no container runs on it");
    }

    /// Verdicts of machines, in order, and the agents named in the resulting decision.
    #[test]
    fn a_digest_is_withheld_while_more_machines_failed_than_proved_it() {
        type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);
        let cases: [Case<'_>; 8] = [
            (&[], &[]),
            (&[("a", "rolled_back")], &["a"]),
            (&[("a", "updated")], &[]),
            (&[("b", "rollback_failed"), ("a", "rolled_back"), ("c", "updated")], &["b", "a"]),
            (&[("a", "rolled_back"), ("c", "updated")], &[]),
            (&[("a", "rolled_back"), ("a", "updated")], &[]),
            (&[("a", "updated"), ("a", "rolled_back")], &["a"]),
            (&[("a", "rolled_back"), ("a", "rolled_back"), ("c", "updated")], &[]),
        ];
        for (said, expected) in cases {
            let mut record = DigestRecord::default();
            for (number, (agent, event)) in (0_u32..).zip(said.iter()) {
                let entry = entry(agent, event, "web", "d");
                let (_, _, verdict) = verdict(&entry).unwrap();
                record.record(&entry, verdict, number.into(), (at(number.into()), at(number.into())));
            }
            let agents = record.withheld().map(|failed| failed.agents).unwrap_or_default();
            assert_eq!(agents, expected, "{said:?}");
        }
    }

    #[test]
    fn a_digest_that_failed_only_on_an_agent_is_not_withheld_from_it() {
        let said = |said: &[(&str, &str)]| {
            let mut record = DigestRecord::default();
            for (number, (agent, event)) in (0_u32..).zip(said) {
                let entry = entry(agent, event, "web", "d");
                let now = at(number.into());
                record.record(&entry, verdict(&entry).unwrap().2, number.into(), (now, now));
            }
            record
        };
        let (failed, proven) = ("rolled_back", "updated");
        for (record, agent, expected) in [
            (said(&[("a", failed)]), "a", None),
            (said(&[("a", failed)]), "b", Some(vec!["a"])),
            (said(&[("a", failed), ("b", failed)]), "a", Some(vec!["b"])),
            (said(&[("a", failed), ("b", failed), ("c", proven)]), "a", None),
            (said(&[("a", failed), ("b", failed), ("c", proven)]), "d", Some(vec!["a", "b"])),
            (said(&[("a", failed), ("b", failed), ("c", proven)]), "c", None),
        ] {
            let withheld = record.withheld_from(agent).map(|failed| failed.agents);
            let expected = expected.map(|ids| ids.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(withheld, expected, "{agent}: {record:?}");
        }
    }

    #[test]
    fn a_proof_from_the_time_of_a_wrong_clock_counts_as_soon_as_it_is_repeated() {
        let (mut record, proof) = (DigestRecord::default(), entry("a", "updated", "web", "d"));
        record.record(&proof, Verdict::Proven, 1, (at(86_400), at(86_400)));
        assert!(!record.is_proven(at(10)));
        record.record(&proof, Verdict::Proven, 2, (at(10), at(10)));
        assert!(record.is_proven(at(10)));
        record.record(&proof, Verdict::Proven, 3, (at(20), at(20)));
        assert_eq!(record.agents["a"].since, at(10), "repeated, it counts since the first one");
    }

    #[test]
    fn a_lifted_digest_is_withheld_again_after_a_new_failure() {
        let (mut record, failure) = (DigestRecord::default(), entry("a", "rolled_back", "web", "d"));
        record.record(&failure, Verdict::Failed, 1, (at(1), at(1)));
        assert!(record.lift() && record.withheld().is_none());
        assert!(!record.lift(), "once");
        record.record(&failure, Verdict::Failed, 2, (at(2), at(2)));
        let withheld = record.withheld().unwrap();
        assert_eq!(
            (withheld.agents, withheld.output.as_deref()),
            (vec!["a".to_owned()], Some("exit code 1"))
        );
    }
}
