//! The heartbeat: probes the `/health` endpoint of every agent, many at once, each with its own timeout (spec 6.4). An agent
//! that cannot be probed for lack of local resources does not count as offline, nor do those that cannot be reached while this
//! machine seems to have no network.
//!
//! An agent without a URL is online while it polls a warden (DECISIONS 8).
//!
//! The probes of a round start one after the other, not all at once: the memory that a burst needs would stay allocated.

mod lookup;

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_common::config::address;
use evenkeel_common::secret::Secret;
use evenkeel_common::tls;
use futures_util::{FutureExt, StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use reqwest::header::ACCEPT_ENCODING;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url};
use rustix::io::Errno;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::collector::Collector;
use crate::config::AgentConfig;
use crate::fleet::view::NO_POLL;
use crate::keep::Duty;
use crate::reload::ConfigReceiver;
use lookup::Lookup;

/// Time between two rounds of probes (spec 8).
const INTERVAL: Duration = Duration::from_secs(30);
/// Timeout of one probe, from connecting to reading the last byte.
const TIMEOUT: Duration = Duration::from_secs(5);
/// For how many rounds in a row this machine may seem to have no network.
const MAX_CUT_OFF: u32 = 3;
/// Limit on concurrent probes.
pub const MAX_CONCURRENT: usize = 512;
/// Time between the starts of two probes; shorter if a round would otherwise take more than half of the interval.
const SPACING: Duration = Duration::from_millis(10);
/// Maximum number of bytes of a response body that are read.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// If the wall clock has advanced by this much more than the monotonic one since the previous round, it was set forward, or
/// this machine was suspended.
const LEAP: SignedDuration = SignedDuration::from_secs(30);

/// The HTTP client cannot be built.
#[derive(Debug, thiserror::Error)]
#[error("building the HTTP client of the heartbeat")]
pub struct HeartbeatError(#[from] reqwest::Error);

/// The heartbeat task.
pub struct Heartbeat {
    client: Client,
    lookup: Lookup,
    /// Whether `client` has the certificate authorities. They are loaded only when an agent has an https URL.
    has_roots: bool,
    config: ConfigReceiver,
    collector: Arc<Collector>,
    interval: Duration,
    /// When this warden first saw each agent without a URL, or its clock has leapt. Polls that were due before do not make an
    /// agent offline.
    without_url: HashMap<String, Instant>,
    /// When the previous round began, by both clocks.
    last_round: (Timestamp, Instant),
    /// In how many rounds in a row this machine has seemed to have no network.
    cut_off: u32,
    /// With which agent the next round begins. A resolver that does not answer has no thread left for the last ones.
    first: usize,
}

impl Heartbeat {
    /// Creates a heartbeat for the configured agents that reports to `collector`.
    pub fn new(config: ConfigReceiver, collector: Arc<Collector>) -> Result<Self, HeartbeatError> {
        let has_roots = needs_roots(&config.borrow().agents);
        let lookup = Lookup::new();
        Ok(Self {
            client: client(&lookup, has_roots)?,
            lookup,
            has_roots,
            config,
            last_round: (collector.now(), Instant::now()),
            collector,
            interval: INTERVAL,
            without_url: HashMap::new(),
            cut_off: 0,
            first: 0,
        })
    }

    /// Overrides the interval between two rounds, for tests.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Runs until `stop` is cancelled. The first round starts immediately, and so does another whenever the configuration
    /// changes.
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

    /// Records which agents have no URL, and since when. After a leap of the clock, all polls seem older than they are.
    fn note_without_url(&mut self, agents: &[AgentConfig]) {
        let mut before = std::mem::take(&mut self.without_url);
        let (wall, now) = (self.collector.now(), Instant::now());
        let (last_wall, last) = std::mem::replace(&mut self.last_round, (wall, now));
        let passed = SignedDuration::try_from(now.duration_since(last)).unwrap_or(SignedDuration::MAX);
        if wall.duration_since(last_wall).saturating_sub(passed) > LEAP {
            before.clear();
        }
        let without = agents.iter().filter(|agent| agent.url.is_none());
        let mut since = |agent: &AgentConfig| before.remove(&agent.id).unwrap_or(now);
        self.without_url = without.map(|agent| (agent.id.clone(), since(agent))).collect();
    }

    /// Loads the certificate authorities when an agent first needs them.
    fn load_roots(&mut self, agents: &[AgentConfig]) -> Result<(), HeartbeatError> {
        if !self.has_roots && needs_roots(agents) {
            (self.client, self.has_roots) = (client(&self.lookup, true)?, true);
        }
        Ok(())
    }

    /// Probes all agents, unless another warden holds the duty.
    async fn round(&mut self, agents: &[AgentConfig]) {
        if let Err(error) = self.collector.share_polls().await {
            tracing::debug!(%error, "cannot store the agents' last polls");
        }
        match self.collector.keep().hold(Duty::Heartbeat).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(%error, "agents were not probed: cannot claim the heartbeat duty in the store");
                return;
            }
        }
        let (skipped, has_network) = (AtomicU64::new(0), AtomicBool::new(false));
        let unroutable = Mutex::new(Vec::new());
        let agents = self.in_turn(agents);
        let heartbeat = &*self;
        let count = u32::try_from(agents.len()).unwrap_or(u32::MAX).max(1);
        let spacing = SPACING.min(self.interval / 2 / count);
        stream::iter(agents)
            .then(|agent| sleep(spacing).map(move |()| agent))
            .for_each_concurrent(MAX_CONCURRENT, |agent| async {
                let Some(url) = &agent.url else { return heartbeat.judge_polls(&agent.id).await };
                let outcome = match timeout(TIMEOUT, heartbeat.probe(url)).await {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(ProbeError::Agent(reason))) => Err(reason),
                    Ok(Err(ProbeError::Unroutable(reason))) => {
                        unroutable.lock().push((agent.id.as_str(), reason));
                        return;
                    }
                    Ok(Err(ProbeError::Local)) => {
                        skipped.fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                    // This also happens without a network.
                    Err(_) => return heartbeat.record(&agent.id, Err(timed_out())).await,
                };
                if !is_near(url) {
                    has_network.store(true, Ordering::Relaxed);
                }
                heartbeat.record(&agent.id, outcome).await;
            })
            .await;
        let skipped = skipped.into_inner();
        let (unroutable, has_network) = (unroutable.into_inner(), has_network.into_inner());
        if skipped > 0 {
            let why = "this machine is out of files, ports or memory, or its resolver does not answer";
            tracing::warn!(skipped, "agents were not probed: {why}");
            if unroutable.is_empty() && !has_network {
                // Such a round says nothing about the network.
                return;
            }
        }
        self.record_unroutable(unroutable, has_network).await;
    }

    /// Returns the agents in the order of this round.
    fn in_turn<'a>(&mut self, agents: &'a [AgentConfig]) -> Vec<&'a AgentConfig> {
        let mut agents: Vec<&AgentConfig> = agents.iter().collect();
        let first = self.first % agents.len().max(1);
        self.first = first + lookup::MAX_CONCURRENT;
        agents.rotate_left(first);
        agents
    }

    /// Records the agents to which there is no route or whose names could not be looked up, unless this may be because this
    /// machine has no network.
    async fn record_unroutable(&mut self, agents: Vec<(&str, String)>, has_network: bool) {
        let Some((_, reason)) = agents.first().filter(|_| !has_network) else {
            self.cut_off = 0;
            return self.record_all(agents).await;
        };
        self.cut_off = self.cut_off.saturating_add(1);
        if self.cut_off > MAX_CUT_OFF {
            return self.record_all(agents).await;
        }
        let skipped = agents.len();
        tracing::warn!(skipped, reason, "agents were not reached: this machine may have no network");
    }

    async fn record_all(&self, offline: Vec<(&str, String)>) {
        for (agent, reason) in offline {
            self.record(agent, Err(reason)).await;
        }
    }

    /// Records whether an agent without a URL is online, based on its polls. An agent that was just configured gets
    /// [`NO_POLL`] to send its first one.
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

    /// Records an outcome. If the store is unavailable, the next round records it.
    async fn record(&self, agent: &str, outcome: Result<(), String>) {
        let reason = outcome.clone().err();
        match self.collector.record_heartbeat(agent, outcome).await {
            Ok(true) if reason.is_none() => tracing::info!(agent, "agent_online"),
            Ok(true) => tracing::warn!(agent, reason, "agent_offline"),
            Ok(false) => {}
            Err(error) => tracing::debug!(agent, %error, "cannot store the outcome of a heartbeat"),
        }
    }

    /// Probes an agent. The error does not include the URL, which may contain a secret.
    async fn probe(&self, url: &Secret) -> Result<(), ProbeError> {
        let url = format!("{}/health", url.expose());
        let sent = self.client.get(url.as_str()).header(ACCEPT_ENCODING, "identity").send().await;
        let response = match sent.map_err(reqwest::Error::without_url) {
            Ok(response) => response,
            Err(error) => {
                let judged = probe_error(&error);
                // A name for which there was no thread would only wait once more.
                if judged != ProbeError::Local || error.is_dns() {
                    return Err(judged);
                }
                return Err(judged_again(&self.lookup.addresses_of(&url).await, route).await);
            }
        };
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        // An agent whose engine is down still answers (DECISIONS 3); a 503 from a proxy is not an answer from the agent.
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

/// Reports whether a URL may lead to this machine itself, so that an answer does not show that it has a network. A name without
/// a dot is often that of a container beside this one.
fn is_near(url: &Secret) -> bool {
    let Ok(url) = Url::parse(url.expose()) else { return false };
    let host = url.host_str().unwrap_or_default();
    address::is_this_machine(host) || !host.contains(['.', ':'])
}

fn client(lookup: &Lookup, with_roots: bool) -> Result<Client, HeartbeatError> {
    let tls = if with_roots { tls::client_config() } else { tls::client_config_without_roots() };
    let client = Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("evenkeel-warden/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .dns_resolver(lookup.clone())
        // Proxies from the environment are not meant for agents, and a pooled connection may be dead.
        .no_proxy()
        .pool_max_idle_per_host(0)
        .build()?;
    Ok(client)
}

/// Reports whether a body is a JSON object with a `status`.
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
    /// The agent did not answer properly, or the network failed; with the reason.
    Agent(String),
    /// There is no route to the agent, or its name could not be looked up; with the reason. If this machine has no network, it
    /// says nothing about the agent.
    Unroutable(String),
    /// This machine is out of resources, which says nothing about the agent.
    Local,
}

fn timed_out() -> String {
    format!("no answer within {} s", TIMEOUT.as_secs())
}

/// Classifies an error. The reason is its root cause ("connection refused"), without ports and times, so that the same
/// fault always has the same text.
fn probe_error(error: &(dyn std::error::Error + 'static)) -> ProbeError {
    if let Some(what) = tls::certificate_error(error) {
        return ProbeError::Agent(format!("its certificate is refused: {what}"));
    }
    let of_client = error.downcast_ref::<reqwest::Error>();
    let is_connect = of_client.is_some_and(reqwest::Error::is_connect);
    let mut is_unroutable = of_client.is_some_and(reqwest::Error::is_dns);
    let mut cause = error;
    loop {
        let of_system = cause.downcast_ref::<io::Error>();
        if of_system.is_some_and(is_local) {
            return ProbeError::Local;
        }
        is_unroutable |= of_system.is_some_and(has_no_route);
        let Some(next) = cause.source() else { break };
        cause = next;
    }
    let text: String = cause.to_string().chars().filter(|c| !c.is_control()).take(200).collect();
    let reason = if is_connect { format!("cannot connect: {text}") } else { text };
    if is_unroutable { ProbeError::Unroutable(reason) } else { ProbeError::Agent(reason) }
}

/// Judges a probe that failed for lack of local resources once more. `EADDRNOTAVAIL` also means that this machine has no
/// address of that kind, such as IPv6; then `route` fails, too. The client reports only one error for all addresses.
async fn judged_again(addresses: &[SocketAddr], route: impl Fn(SocketAddr) -> io::Result<()>) -> ProbeError {
    if addresses.is_empty() {
        return ProbeError::Local;
    }
    let has_none = |error: io::Error| error.raw_os_error() == Some(Errno::ADDRNOTAVAIL.raw_os_error());
    let mut judged = ProbeError::Agent("this machine has no address that reaches it (IPv6?)".to_owned());
    for address in addresses {
        if route(*address).is_err_and(has_none) {
            continue;
        }
        judged = match TcpStream::connect(address).await {
            Ok(_) => ProbeError::Local,
            Err(error) => probe_error(&error),
        };
        if judged == ProbeError::Local {
            break;
        }
    }
    judged
}

/// Looks for the way to an address with UDP, which sends nothing and needs no TCP port.
fn route(address: SocketAddr) -> io::Result<()> {
    let own: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    UdpSocket::bind(own)?.connect(address)
}

/// Reports whether this machine has no route, rather than a router on the way.
fn has_no_route(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::NETUNREACH | Errno::NETDOWN))
}

/// Reports whether this machine is out of resources.
fn is_local(error: &io::Error) -> bool {
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
        let of = |code: Errno| probe_error(&io::Error::from_raw_os_error(code.raw_os_error()));
        for local in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::ADDRNOTAVAIL] {
            assert_eq!(of(local), ProbeError::Local, "{local}");
        }
        for unroutable in [Errno::NETUNREACH, Errno::NETDOWN] {
            assert!(matches!(of(unroutable), ProbeError::Unroutable(_)), "{unroutable}");
        }
        for remote in [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::TIMEDOUT] {
            assert!(matches!(of(remote), ProbeError::Agent(_)), "{remote}");
        }
    }

    #[test]
    fn a_refused_certificate_is_explained() {
        use tokio_rustls::rustls::{CertificateError, Error};
        let error = io::Error::other(Error::InvalidCertificate(CertificateError::Expired));
        let reason = "its certificate is refused: it has expired".to_owned();
        assert_eq!(probe_error(&error), ProbeError::Agent(reason));
    }

    #[tokio::test]
    async fn an_agent_for_which_this_machine_has_no_address_is_offline() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap();
        let closed = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap()
        };
        let foreign: SocketAddr = "[2001:db8::1]:80".parse().unwrap();
        let judged = async |addresses: &[SocketAddr]| {
            let route = |address: SocketAddr| match address {
                SocketAddr::V4(_) => route(address),
                SocketAddr::V6(_) => Err(io::Error::from_raw_os_error(Errno::ADDRNOTAVAIL.raw_os_error())),
            };
            match judged_again(addresses, route).await {
                ProbeError::Agent(reason) | ProbeError::Unroutable(reason) => Some(reason),
                ProbeError::Local => None,
            }
        };
        let none = Some("this machine has no address that reaches it (IPv6?)".to_owned());
        assert_eq!(judged(&[foreign]).await, none);
        for addresses in [[foreign, closed], [closed, foreign]] {
            let reason = judged(&addresses).await;
            assert!(reason.is_some() && reason != none, "{reason:?}");
        }
        assert_eq!(judged(&[foreign, open]).await, None, "it was out of ports for a moment");
        assert_eq!(judged(&[]).await, None, "its name cannot be looked up");
    }
}
