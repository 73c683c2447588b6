//! Limits on the rate at which one agent may send (DECISIONS 8: a token is worth one machine). A correct agent never reaches
//! them, even if it delivers everything that it has queued during an outage; one that does keeps its entries and continues
//! later. Each warden counts for itself.

use std::collections::HashMap;
use std::time::Duration;

use evenkeel_common::http::{Response, too_many};
use parking_lot::Mutex;
use tokio::time::Instant;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quota {
    /// Entries, also those that are refused, and bodies that are none.
    Entries,
    /// Bytes of request bodies at `/ingest`.
    Bytes,
    /// Entries with a verdict on an image.
    Verdicts,
    /// Requests for leases, and their releases.
    Asks,
    /// Inventories.
    Reports,
    /// Requests for the decisions; a long poll is one.
    Polls,
}

/// How much may be sent at once, and how long it takes until as much may be sent again.
struct Rate {
    burst: u64,
    period: Duration,
}

impl Quota {
    const COUNT: usize = 6;

    fn rate(self) -> Rate {
        let (burst, seconds) = match self {
            // A queue has up to 10,000 entries (DECISIONS 5).
            Self::Entries => (10_000, 500),
            Self::Bytes => (32 * 1024 * 1024, 1024),
            Self::Verdicts => (1000, 2000),
            // A machine with 256 images renews 256 leases each 30 s.
            Self::Asks => (600, 60),
            Self::Reports => (60, 300),
            // An agent waits at least half a second between two polls, and five seconds after 20 of them in a row.
            Self::Polls => (60, 60),
        };
        Rate { burst, period: Duration::from_secs(seconds) }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Entries => "entries",
            Self::Bytes => "bytes",
            Self::Verdicts => "verdicts",
            Self::Asks => "requests for leases",
            Self::Reports => "inventories",
            Self::Polls => "requests for decisions",
        }
    }
}

/// Minimum time between two log lines about the same of one agent.
const MIN_LOG_PAUSE: Duration = Duration::from_mins(1);

/// The use of all quotas by all agents.
#[derive(Default)]
pub struct Quotas {
    agents: Mutex<HashMap<String, [Used; Quota::COUNT]>>,
    /// Entries that were refused, by agent.
    refused: Mutex<HashMap<String, Refused>>,
}

/// How many of an agent's entries were refused since that was last logged.
#[derive(Default)]
struct Refused {
    last_logged: Option<Instant>,
    unlogged: u64,
}

/// When what has been sent is no longer counted: later than now by the share of the burst that is used.
#[derive(Clone, Copy, Default)]
struct Used {
    until: Option<Instant>,
    /// When a refusal was last logged.
    last_logged: Option<Instant>,
}

/// Reports whether to log something now, and remembers that.
fn is_due(last_logged: &mut Option<Instant>, now: Instant) -> bool {
    let is_due = last_logged.is_none_or(|last| now.duration_since(last) >= MIN_LOG_PAUSE);
    if is_due {
        *last_logged = Some(now);
    }
    is_due
}

impl Quotas {
    /// Counts what an agent sends, or returns the refusal if it is too much.
    #[allow(clippy::result_large_err)]
    pub(super) fn take(&self, agent: &str, quota: Quota, count: usize) -> Result<(), Response> {
        let Err(wait) = self.take_at(agent, quota, count as u64, Instant::now()) else { return Ok(()) };
        let seconds = u16::try_from(wait.as_secs() + 1).unwrap_or(u16::MAX);
        Err(too_many(format!("this agent sends too many {}", quota.name()), seconds))
    }

    /// Counts entries that were refused, and logs them from time to time; `fault` says why the latest one was.
    pub(super) fn note_refused(&self, agent: &str, count: usize, fault: &str) {
        if let Some(count) = self.note_refused_at(agent, count as u64, Instant::now()) {
            tracing::warn!(
                agent,
                count,
                fault,
                "entries were refused since the last such message, the latest for this reason"
            );
        }
    }

    /// Returns how many refused entries to log now, if any.
    fn note_refused_at(&self, agent: &str, count: u64, now: Instant) -> Option<u64> {
        let mut agents = self.refused.lock();
        let refused = agents.entry(agent.to_owned()).or_default();
        refused.unlogged += count;
        is_due(&mut refused.last_logged, now).then(|| std::mem::take(&mut refused.unlogged))
    }

    fn take_at(&self, agent: &str, quota: Quota, count: u64, now: Instant) -> Result<(), Duration> {
        let Rate { burst, period } = quota.rate();
        let mut agents = self.agents.lock();
        if !agents.contains_key(agent) {
            agents.insert(agent.to_owned(), [Used::default(); Quota::COUNT]);
        }
        let Some(used) = agents.get_mut(agent).map(|of_agent| &mut of_agent[quota as usize]) else {
            return Ok(());
        };
        let cost = period.mul_f64(count as f64 / burst as f64);
        let until = used.until.unwrap_or(now).max(now) + cost;
        let excess = until.duration_since(now).saturating_sub(period);
        // More than a burst at once is accepted if nothing else was sent.
        if excess.is_zero() || used.until.is_none_or(|until| until <= now) {
            used.until = Some(until);
            return Ok(());
        }
        // An agent that stays at the limit is accepted and refused in turns.
        if is_due(&mut used.last_logged, now) {
            let what = quota.name();
            tracing::warn!(agent, "the agent sends too many {what}; some of its requests are refused");
        }
        Err(excess)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_may_send_a_burst_and_then_at_the_rate() {
        let (quotas, start) = (Quotas::default(), Instant::now());
        let take = |agent, count, seconds| {
            quotas.take_at(agent, Quota::Asks, count, start + Duration::from_secs(seconds))
        };
        for _ in 0..600 {
            assert_eq!(take("a", 1, 0), Ok(()));
        }
        assert!(take("a", 1, 0).is_err());
        assert_eq!(take("b", 600, 0), Ok(()), "each agent has its own");
        assert_eq!(take("a", 10, 1), Ok(()));
        assert!(take("a", 1, 1).is_err());
        assert_eq!(take("a", 600, 100), Ok(()), "the burst is available again");
    }

    #[test]
    fn refused_entries_of_an_agent_are_one_line_in_a_minute() {
        let (quotas, start) = (Quotas::default(), Instant::now());
        let note = |agent, count, seconds| {
            quotas.note_refused_at(agent, count, start + Duration::from_secs(seconds))
        };
        assert_eq!(note("a", 1, 0), Some(1));
        assert_eq!(note("a", 500, 0), None);
        assert_eq!(note("b", 2, 1), Some(2), "each agent has its own");
        assert_eq!(note("a", 1, 59), None);
        assert_eq!(note("a", 1, 60), Some(502));
        assert_eq!(note("a", 1, 61), None);
    }

    #[test]
    fn an_agent_that_stays_at_the_limit_is_logged_once_a_minute() {
        let (quotas, start) = (Quotas::default(), Instant::now());
        let mut logged = Vec::new();
        for second in 0..=60 {
            let now = start + Duration::from_secs(second);
            while quotas.take_at("a", Quota::Asks, 1, now).is_ok() {}
            let agents = quotas.agents.lock();
            logged.extend(agents["a"][Quota::Asks as usize].last_logged);
        }
        logged.dedup();
        assert_eq!(logged, [start, start + MIN_LOG_PAUSE]);
    }

    #[test]
    fn a_correct_agent_may_always_ask_for_the_decisions() {
        let (quotas, start) = (Quotas::default(), Instant::now());
        // It asks every half second up to 20 times, and every five seconds after that, until 50 s have passed.
        for begin in (0..600).step_by(50) {
            let at = |millis| start + Duration::from_secs(begin) + Duration::from_millis(millis);
            for n in 0..20 {
                assert_eq!(quotas.take_at("a", Quota::Polls, 1, at(n * 500)), Ok(()));
            }
            for n in 0..8 {
                assert_eq!(quotas.take_at("a", Quota::Polls, 1, at(10_000 + n * 5000)), Ok(()));
            }
        }
    }

    #[test]
    fn a_correct_agent_delivers_its_whole_queue() {
        let (quotas, start) = (Quotas::default(), Instant::now());
        for _ in 0..20 {
            assert_eq!(quotas.take_at("a", Quota::Entries, 500, start), Ok(()));
            assert_eq!(quotas.take_at("a", Quota::Bytes, 1024 * 1024, start), Ok(()));
        }
    }
}
