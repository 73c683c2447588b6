//! Leases: which machine may try a digest first (DECISIONS 8, *first alone*). A lease is renewed by asking again, expires if
//! it is not renewed, and ends when the verdict arrives or when it is released.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::verdict::DigestRecord;

/// A lease that has not been renewed for this long has expired.
pub const LIFETIME: SignedDuration = SignedDuration::from_secs(90);

/// All leases of one repository: a value of the store, see [`name`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Leases {
    /// In the order in which they were taken.
    pub held: Vec<Lease>,
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
}

/// Returns the name of the value that holds the leases of a repository.
pub fn name(repository: &str) -> String {
    format!("leases/{repository}")
}

impl Lease {
    /// Reports whether it is in force; `record` holds the verdicts on its digest, if known. The wardens' clocks differ, so a
    /// renewal in the future counts like one in the past.
    pub fn is_live(&self, record: Option<&DigestRecord>, now: Timestamp) -> bool {
        let verdict = record.and_then(|record| record.agents.get(&self.agent));
        let is_over =
            verdict.is_some_and(|latest| latest.entry > self.after && latest.service == self.service);
        now.duration_since(self.renewed).abs() < LIFETIME && !is_over
    }

    fn is_of(&self, agent: &str, service: &str, digest: &str) -> bool {
        self.agent == agent && self.service == service && self.digest == digest
    }
}

impl Leases {
    /// Returns the leases in force, given the verdicts on one of the digests.
    pub fn live<'a>(&'a self, record: &'a DigestRecord, now: Timestamp) -> impl Iterator<Item = &'a Lease> {
        self.held.iter().filter(move |lease| {
            let record = (lease.digest == record.digest).then_some(record);
            lease.is_live(record, now)
        })
    }

    /// Reports whether a machine has a lease for this digest and service.
    pub fn has(&self, agent: &str, service: &str, record: &DigestRecord, now: Timestamp) -> bool {
        self.live(record, now).any(|lease| lease.is_of(agent, service, &record.digest))
    }

    /// Returns the leases with one for this machine, taken or renewed now, and without the expired ones.
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

    /// Returns the leases without the one of this machine; `None` if it has none.
    pub fn without(&self, agent: &str, service: &str, digest: &str) -> Option<Self> {
        let mut held = self.held.clone();
        held.retain(|lease| !lease.is_of(agent, service, digest));
        (held.len() < self.held.len()).then_some(Self { held })
    }
}
