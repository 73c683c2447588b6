//! Asks every agent how it is, all at once and each within a time of its own (spec 6.4).

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::tls;
use futures_util::future::join_all;
use reqwest::header::ACCEPT_ENCODING;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::config::AgentConfig;
use crate::live::Watch;
use crate::ring::Ring;

/// Time between two rounds (spec 8).
const INTERVAL: Duration = Duration::from_secs(30);
/// Time for one answer, from the first packet to the last byte that is read.
const DEADLINE: Duration = Duration::from_secs(5);
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
        join_all(agents.iter().map(|agent| async move {
            let outcome = timeout(DEADLINE, self.ask(agent)).await;
            let outcome =
                outcome.unwrap_or_else(|_| Err(format!("no answer within {} s", DEADLINE.as_secs())));
            self.ring.heard(&agent.id, outcome);
        }))
        .await;
    }

    /// Whether the agent answers. Its words are its own; the address is not in them, since it may hold a secret.
    async fn ask(&self, agent: &AgentConfig) -> Result<(), String> {
        let url = format!("{}/health", agent.url.expose());
        let sent = self.client.get(url).header(ACCEPT_ENCODING, "identity").send().await;
        let response = sent.map_err(|error| words(&error.without_url()))?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        // An agent whose engine is down is an agent that answers (DECISIONS 3); a proxy that says 503 is none.
        if status == StatusCode::SERVICE_UNAVAILABLE && is_health(response).await {
            return Ok(());
        }
        Err(format!("GET /health answers {status}"))
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

/// The last cause is what a person wants to know ("connection refused"), without ports and times, so that the same
/// fault has the same words.
fn words(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    let text: String = cause.to_string().chars().filter(|c| !c.is_control()).take(200).collect();
    if error.is_connect() { format!("cannot connect: {text}") } else { text }
}
