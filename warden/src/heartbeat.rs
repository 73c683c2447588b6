//! The heartbeat: probes the `/health` of every agent, many at once, each with its own timeout (spec 6.4). An agent that
//! could not be probed for lack of local resources is not offline.
//!
//! An agent without a URL is online while it polls a warden (DECISIONS 8).
//!
//! Probes of a round start one after the other, not all at once: what a burst needs stays allocated for good.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_common::secret::Secret;
use evenkeel_common::tls;
use futures_util::{FutureExt, StreamExt, stream};
use jiff::SignedDuration;
use reqwest::header::ACCEPT_ENCODING;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};
use rustix::io::Errno;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::collector::Collector;
use crate::config::AgentConfig;
use crate::keep::Duty;
use crate::reload::ConfigReceiver;

/// Time between two rounds of probes (spec 8).
const INTERVAL: Duration = Duration::from_secs(30);
/// Timeout of one probe, from connecting to the last byte that is read.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Limit on concurrent probes.
pub const MAX_CONCURRENT: usize = 512;
/// Time between the starts of two probes; less when that would take more than half of the interval.
const SPACING: Duration = Duration::from_millis(10);
/// An agent without a URL that has not polled for so long is offline (DECISIONS 8).
const NO_POLL: SignedDuration = SignedDuration::from_secs(120);
/// Limit on the bytes of an answer's body that are read.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// The HTTP client cannot be built.
#[derive(Debug, thiserror::Error)]
#[error("building the HTTP client of the heartbeat")]
pub struct HeartbeatError(#[from] reqwest::Error);

/// The task.
pub struct Heartbeat {
    client: Client,
    /// Whether `client` knows the certificate authorities. They are loaded only when an agent has an https URL.
    has_roots: bool,
    config: ConfigReceiver,
    collector: Arc<Collector>,
    interval: Duration,
    /// Since when an agent is known here to have no URL. Nobody is offline for polls that were due before.
    without_url: HashMap<String, Instant>,
}

impl Heartbeat {
    /// A heartbeat of the configured agents that reports to `collector`.
    pub fn new(config: ConfigReceiver, collector: Arc<Collector>) -> Result<Self, HeartbeatError> {
        let has_roots = needs_roots(&config.borrow().agents);
        Ok(Self {
            client: client(has_roots)?,
            has_roots,
            config,
            collector,
            interval: INTERVAL,
            without_url: HashMap::new(),
        })
    }

    /// Sets another interval between two rounds, for tests.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Runs until `stop` is cancelled. The first round starts now, and another one whenever the agents have changed.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut due = Instant::now();
        loop {
            let config = self.config.borrow_and_update().clone();
            if let Err(error) = self.load_roots(&config.agents) {
                tracing::error!(%error, "agents with https URLs cannot be probed");
            }
            self.note_without_url(&config.agents);
            tokio::select! {
                () = self.round(&config.agents) => {}
                () = stop.cancelled() => return,
            }
            due = (due + self.interval).max(Instant::now());
            tokio::select! {
                () = sleep_until(due) => {}
                Ok(()) = self.config.changed() => due = Instant::now(),
                () = stop.cancelled() => return,
            }
        }
    }

    /// Notes which agents have no URL from now on.
    fn note_without_url(&mut self, agents: &[AgentConfig]) {
        let mut before = std::mem::take(&mut self.without_url);
        let now = Instant::now();
        let without = agents.iter().filter(|agent| agent.url.is_none());
        let mut since = |agent: &AgentConfig| before.remove(&agent.id).unwrap_or(now);
        self.without_url = without.map(|agent| (agent.id.clone(), since(agent))).collect();
    }

    /// Loads the certificate authorities if these agents need them for the first time.
    fn load_roots(&mut self, agents: &[AgentConfig]) -> Result<(), HeartbeatError> {
        if !self.has_roots && needs_roots(agents) {
            (self.client, self.has_roots) = (client(true)?, true);
        }
        Ok(())
    }

    /// Probes all agents, unless another warden does.
    async fn round(&self, agents: &[AgentConfig]) {
        if let Err(error) = self.collector.share_polls().await {
            tracing::debug!(%error, "which agents have polled was not stored");
        }
        match self.collector.keep().hold(Duty::Heartbeat).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(%error, "agents were not probed: the store does not say whose duty that is");
                return;
            }
        }
        let skipped = AtomicU64::new(0);
        let count = u32::try_from(agents.len()).unwrap_or(u32::MAX).max(1);
        let spacing = SPACING.min(self.interval / 2 / count);
        stream::iter(agents)
            .then(|agent| sleep(spacing).map(move |()| agent))
            .for_each_concurrent(MAX_CONCURRENT, |agent| async {
                let Some(url) = &agent.url else { return self.judge_polls(&agent.id).await };
                let probed = timeout(TIMEOUT, self.probe(url)).await;
                match probed.unwrap_or_else(|_| Err(ProbeError::Agent(timed_out()))) {
                    Ok(()) => self.record(&agent.id, Ok(())).await,
                    Err(ProbeError::Agent(reason)) => self.record(&agent.id, Err(reason)).await,
                    Err(ProbeError::Local) => drop(skipped.fetch_add(1, Ordering::Relaxed)),
                }
            })
            .await;
        let skipped = skipped.into_inner();
        if skipped > 0 {
            tracing::warn!(skipped, "agents were not probed: this machine is out of files, ports or memory");
        }
    }

    /// Whether an agent without a URL has polled. One of which nothing is known yet gets its time.
    async fn judge_polls(&self, agent: &str) {
        let now = self.collector.now();
        let silence = self.collector.last_poll(agent).map(|last| now.duration_since(last));
        if silence.is_some_and(|silence| silence < NO_POLL) {
            self.record(agent, Ok(())).await;
        } else if self.without_url.get(agent).is_some_and(|since| since.elapsed() >= NO_POLL.unsigned_abs()) {
            let reason = format!("it has not polled for {} s", NO_POLL.as_secs());
            self.record(agent, Err(reason)).await;
        }
    }

    /// Records an outcome. Where the store is away the next round records it.
    async fn record(&self, agent: &str, outcome: Result<(), String>) {
        let reason = outcome.clone().err();
        match self.collector.record_heartbeat(agent, outcome).await {
            Ok(true) if reason.is_none() => tracing::info!(agent, "agent_online"),
            Ok(true) => tracing::warn!(agent, reason, "agent_offline"),
            Ok(false) => {}
            Err(error) => tracing::debug!(agent, %error, "the outcome of a heartbeat was not stored"),
        }
    }

    /// Whether the agent answers. The URL is not part of the error, since it may hold a secret.
    async fn probe(&self, url: &Secret) -> Result<(), ProbeError> {
        let url = format!("{}/health", url.expose());
        let sent = self.client.get(url).header(ACCEPT_ENCODING, "identity").send().await;
        let response = sent.map_err(|error| probe_error(&error.without_url()))?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        // An agent whose engine is down still answers (DECISIONS 3); a proxy's 503 is not an answer of the agent.
        if status == StatusCode::SERVICE_UNAVAILABLE && is_health(response).await {
            return Ok(());
        }
        Err(ProbeError::Agent(format!("GET /health answers {status}")))
    }
}

fn needs_roots(agents: &[AgentConfig]) -> bool {
    let mut urls = agents.iter().filter_map(|agent| agent.url.as_ref());
    urls.any(|url| !url.expose().starts_with("http://"))
}

fn client(with_roots: bool) -> Result<Client, HeartbeatError> {
    let tls = if with_roots { tls::client_config() } else { tls::client_config_without_roots() };
    let client = Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("evenkeel-warden/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        // Proxies from the environment are not meant for agents, and a pooled connection may be a dead one.
        .no_proxy()
        .pool_max_idle_per_host(0)
        .build()?;
    Ok(client)
}

/// Whether a body is a JSON object with a `status`.
async fn is_health(mut response: Response) -> bool {
    let mut body = Vec::new();
    while let Ok(Some(part)) = response.chunk().await {
        body.extend_from_slice(&part);
        if body.len() > MAX_BODY_BYTES {
            return false;
        }
    }
    serde_json::from_slice::<serde_json::Value>(&body).is_ok_and(|body| body["status"].is_string())
}

/// Why a probe failed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ProbeError {
    /// The agent or the network did not answer properly, with the reason.
    Agent(String),
    /// This machine is out of resources, which says nothing about the agent.
    Local,
}

fn timed_out() -> String {
    format!("no answer within {} s", TIMEOUT.as_secs())
}

/// Classifies an error. The reason is its root cause ("connection refused"), without ports and times, so that the same
/// fault has the same text.
fn probe_error(error: &(dyn std::error::Error + 'static)) -> ProbeError {
    let is_connect = error.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_connect);
    let mut cause = error;
    loop {
        if cause.downcast_ref::<std::io::Error>().is_some_and(is_local) {
            return ProbeError::Local;
        }
        let Some(next) = cause.source() else { break };
        cause = next;
    }
    let text: String = cause.to_string().chars().filter(|c| !c.is_control()).take(200).collect();
    ProbeError::Agent(if is_connect { format!("cannot connect: {text}") } else { text })
}

/// Whether this machine is out of resources.
fn is_local(error: &std::io::Error) -> bool {
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
    fn local_resource_exhaustion_says_nothing_about_an_agent() {
        let of = |code: Errno| probe_error(&std::io::Error::from_raw_os_error(code.raw_os_error()));
        for local in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::ADDRNOTAVAIL] {
            assert_eq!(of(local), ProbeError::Local, "{local}");
        }
        for remote in [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::TIMEDOUT] {
            assert!(matches!(of(remote), ProbeError::Agent(_)), "{remote}");
        }
    }
}
