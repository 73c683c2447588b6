//! Asks every agent how it is, many at once and each within a time of its own (spec 6.4). An agent is judged by what it
//! answered, or did not answer in its own time: one that could not be asked yet is not offline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_common::tls;
use futures_util::{StreamExt, stream};
use reqwest::header::ACCEPT_ENCODING;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};
use rustix::io::Errno;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::config::AgentConfig;
use crate::live::Watch;
use crate::ring::Ring;

/// Time between two rounds (spec 8).
const INTERVAL: Duration = Duration::from_secs(30);
/// Time for one answer, from the first packet to the last byte that is read.
const DEADLINE: Duration = Duration::from_secs(5);
/// How many are asked at once.
pub const AT_ONCE: usize = 512;
/// Of an answer no more than this is read.
const MAX_BYTES: usize = 64 * 1024;

/// Why there can be no heartbeat at all.
#[derive(Debug, thiserror::Error)]
#[error("preparing to ask the agents how they are")]
pub struct HeartbeatError(#[from] reqwest::Error);

/// The task.
pub struct Heartbeat {
    client: Client,
    live: Watch,
    ring: Arc<Ring>,
    interval: Duration,
}

impl Heartbeat {
    /// A heartbeat of the agents in force into that ring.
    pub fn new(live: Watch, ring: Arc<Ring>) -> Result<Self, HeartbeatError> {
        let client = Client::builder()
            .tls_backend_preconfigured(tls::client_config())
            .user_agent(concat!("evenkeel-warden/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            // A proxy of the environment is not meant for the agents, and a kept connection may be a dead one.
            .no_proxy()
            .pool_max_idle_per_host(0)
            .build()?;
        Ok(Self { client, live, ring, interval: INTERVAL })
    }

    /// Another time between two rounds, for tests.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Asks until `stop` is cancelled, beginning now, and at once when there are others to ask.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut due = Instant::now();
        loop {
            let agents = self.live.borrow_and_update().clone();
            tokio::select! {
                () = self.round(&agents.agents) => {}
                () = stop.cancelled() => return,
            }
            due = (due + self.interval).max(Instant::now());
            tokio::select! {
                () = sleep_until(due) => {}
                Ok(()) = self.live.changed() => due = Instant::now(),
                () = stop.cancelled() => return,
            }
        }
    }

    async fn round(&self, agents: &[AgentConfig]) {
        let unasked = AtomicU64::new(0);
        stream::iter(agents)
            .for_each_concurrent(AT_ONCE, |agent| async {
                let asked = timeout(DEADLINE, self.ask(agent)).await;
                match asked.unwrap_or_else(|_| Err(Silence::Theirs(no_answer()))) {
                    Ok(()) => self.ring.heard(&agent.id, Ok(())),
                    Err(Silence::Theirs(reason)) => self.ring.heard(&agent.id, Err(reason)),
                    // It says nothing about the agent.
                    Err(Silence::Ours) => drop(unasked.fetch_add(1, Ordering::Relaxed)),
                }
            })
            .await;
        let unasked = unasked.into_inner();
        if unasked > 0 {
            tracing::warn!(unasked, "this machine had no open file, port or memory left to ask these agents");
        }
    }

    /// Whether the agent answers. Its words are its own; the address is not in them, since it may hold a secret.
    async fn ask(&self, agent: &AgentConfig) -> Result<(), Silence> {
        let url = format!("{}/health", agent.url.expose());
        let sent = self.client.get(url).header(ACCEPT_ENCODING, "identity").send().await;
        let response = sent.map_err(|error| silence(&error.without_url()))?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        // An agent whose engine is down is an agent that answers (DECISIONS 3); a proxy that says 503 is none.
        if status == StatusCode::SERVICE_UNAVAILABLE && is_health(response).await {
            return Ok(());
        }
        Err(Silence::Theirs(format!("GET /health answers {status}")))
    }
}

/// Whether a body is a JSON object with a `status`.
async fn is_health(mut response: Response) -> bool {
    let mut body = Vec::new();
    while let Ok(Some(part)) = response.chunk().await {
        body.extend_from_slice(&part);
        if body.len() > MAX_BYTES {
            return false;
        }
    }
    serde_json::from_slice::<serde_json::Value>(&body).is_ok_and(|body| body["status"].is_string())
}

/// Why there was no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Silence {
    /// The agent, or what lies between.
    Theirs(String),
    /// This machine could not even ask.
    Ours,
}

fn no_answer() -> String {
    format!("no answer within {} s", DEADLINE.as_secs())
}

/// The last cause is what a person wants to know ("connection refused"), without ports and times, so that the same
/// fault has the same words.
fn silence(error: &(dyn std::error::Error + 'static)) -> Silence {
    let is_connect = error.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_connect);
    let mut cause = error;
    loop {
        if cause.downcast_ref::<std::io::Error>().is_some_and(is_ours) {
            return Silence::Ours;
        }
        let Some(next) = cause.source() else { break };
        cause = next;
    }
    let text: String = cause.to_string().chars().filter(|c| !c.is_control()).take(200).collect();
    Silence::Theirs(if is_connect { format!("cannot connect: {text}") } else { text })
}

/// Whether this machine has run out of something.
fn is_ours(error: &std::io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        code,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL | Errno::AGAIN)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_machine_lacks_says_nothing_about_an_agent() {
        let of = |code: Errno| silence(&std::io::Error::from_raw_os_error(code.raw_os_error()));
        for ours in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::ADDRNOTAVAIL] {
            assert_eq!(of(ours), Silence::Ours, "{ours}");
        }
        for theirs in [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::TIMEDOUT] {
            assert!(matches!(of(theirs), Silence::Theirs(_)), "{theirs}");
        }
    }
}
