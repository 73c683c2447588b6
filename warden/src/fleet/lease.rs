//! Leases: whose turn it is to try a digest (DECISIONS 8, *first alone*). A lease is renewed by asking again, dead when that
//! stays out, and over when the verdict comes or when it is given back.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::verdict::DigestRecord;

/// A lease that was not renewed for so long is dead.
pub const LIFE: SignedDuration = SignedDuration::from_secs(90);

/// All leases of one repository: a value of the store, see [`name`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Leases {
    /// In the order in which they were taken.
    pub held: Vec<Lease>,
}

/// One service of one machine that tries a digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Id of the agent.
    pub agent: String,
    /// The service.
    pub service: String,
    /// The digest.
    pub digest: String,
    /// When it was taken; absent in one of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// When it was asked for last.
    pub renewed: Timestamp,
    /// Id of the entry with the agent's verdict on the digest at that time; 0 without one. A later one ends the lease.
    pub after: u64,
}

/// Name of the value that holds the leases of a repository.
pub fn name(repository: &str) -> String {
    format!("leases/{repository}")
}

impl Lease {
    /// Whether it is in force; `record` holds the verdicts on its digest where they are known. Clocks of wardens differ, so
    /// one from the future is as good as one from the past.
    pub fn is_live(&self, record: Option<&DigestRecord>, now: Timestamp) -> bool {
        let verdict = record.and_then(|record| record.agents.get(&self.agent));
        let is_over =
            verdict.is_some_and(|latest| latest.entry > self.after && latest.service == self.service);
        now.duration_since(self.renewed).abs() < LIFE && !is_over
    }

    fn is_of(&self, agent: &str, service: &str, digest: &str) -> bool {
        self.agent == agent && self.service == service && self.digest == digest
    }
}

impl Leases {
    /// Those in force, given the verdicts on one of the digests.
    pub fn live<'a>(&'a self, record: &'a DigestRecord, now: Timestamp) -> impl Iterator<Item = &'a Lease> {
        self.held.iter().filter(move |lease| {
            let record = (lease.digest == record.digest).then_some(record);
            lease.is_live(record, now)
        })
    }

    /// Whether a machine has one for this digest and service.
    pub fn has(&self, agent: &str, service: &str, record: &DigestRecord, now: Timestamp) -> bool {
        self.live(record, now).any(|lease| lease.is_of(agent, service, &record.digest))
    }

    /// With one for this machine, taken or renewed now, and without the dead ones.
    #[must_use]
    pub fn with(&self, agent: &str, service: &str, record: &DigestRecord, now: Timestamp) -> Self {
        let mut held: Vec<Lease> = self.live(record, now).cloned().collect();
        if let Some(lease) = held.iter_mut().find(|lease| lease.is_of(agent, service, &record.digest)) {
            lease.renewed = now;
        } else {
            held.push(Lease {
                agent: agent.to_owned(),
                service: service.to_owned(),
                digest: record.digest.clone(),
                since: Some(now),
                renewed: now,
                after: record.agents.get(agent).map_or(0, |latest| latest.entry),
            });
        }
        Self { held }
    }

    /// Without the one of this machine; `None` where it has none.
    pub fn without(&self, agent: &str, service: &str, digest: &str) -> Option<Self> {
        let mut held = self.held.clone();
        held.retain(|lease| !lease.is_of(agent, service, digest));
        (held.len() < self.held.len()).then_some(Self { held })
    }
}
