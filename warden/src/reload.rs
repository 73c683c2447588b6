//! The active configuration, and the task that reloads it on SIGHUP. Tokens and agents are replaced as a whole; entries,
//! connections and, unless `api.token` has changed, streams go on.

use std::collections::HashSet;
use std::sync::Arc;

use evenkeel_common::systemd::ServiceManager;
use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::auth::tokens::Tokens;
use crate::collector::Collector;
use crate::config::{AgentConfig, Config, ConfigSource};

/// The part of the configuration that endpoints and the heartbeat read, replaced on reload.
pub struct ActiveConfig {
    /// Tokens of agents and users.
    pub tokens: Tokens,
    /// In the order that [`crate::auth::tokens::Tokens::agent`] counts by.
    pub agents: Vec<AgentConfig>,
    /// Ends the streams of users: on shutdown, and when `api.token` changes.
    pub streams: CancellationToken,
}

/// Receives the active configuration.
pub type ConfigReceiver = watch::Receiver<Arc<ActiveConfig>>;

impl ActiveConfig {
    /// The active part of `config`; `streams` ends the streams.
    pub fn new(config: &Config, streams: CancellationToken) -> Self {
        let tokens = Tokens::new(&config.token, config.agents.iter().map(|agent| &agent.token));
        Self { tokens, agents: config.agents.clone(), streams }
    }
}

/// The task that reloads the file.
pub struct Reload {
    config: Config,
    source: ConfigSource,
    active: watch::Sender<Arc<ActiveConfig>>,
    collector: Arc<Collector>,
    manager: Arc<ServiceManager>,
    stop: CancellationToken,
}

impl Reload {
    /// Activates `config`; `stop` ends all streams.
    pub fn new(
        config: Config,
        source: ConfigSource,
        collector: Arc<Collector>,
        manager: Arc<ServiceManager>,
        stop: CancellationToken,
    ) -> Self {
        let active = watch::Sender::new(Arc::new(ActiveConfig::new(&config, stop.child_token())));
        Self { config, source, active, collector, manager, stop }
    }

    /// A receiver of the active configuration.
    pub fn subscribe(&self) -> ConfigReceiver {
        self.active.subscribe()
    }

    /// The status line for the service manager.
    pub fn status_line(&self) -> String {
        match self.config.agents.len() {
            1 => "listening to 1 agent".to_owned(),
            n => format!("listening to {n} agents"),
        }
    }

    /// Reloads at each of `hangups` until the program stops.
    pub async fn run(mut self, mut hangups: Signal) {
        let stop = self.stop.clone();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(()) = hangups.recv() => self.reload().await,
            }
        }
    }

    async fn reload(&mut self) {
        self.manager.reloading();
        let source = self.source.clone();
        let loaded = tokio::task::spawn_blocking(move || source.load::<Config>()).await;
        let problem = match loaded {
            Ok(Ok(config)) => {
                self.activate(config);
                ""
            }
            Ok(Err(faults)) => {
                let faults = faults.in_one_line();
                tracing::error!(faults, "the configuration was read again and refused; the active one stays");
                "; the file has faults and is not in force"
            }
            Err(_) => {
                tracing::error!("reading the configuration failed; it was not reloaded");
                "; the file could not be read"
            }
        };
        self.manager.ready(&format!("{}{problem}", self.status_line()));
    }

    /// Activates a valid configuration.
    fn activate(&mut self, mut config: Config) {
        for warning in &config.warnings {
            tracing::warn!("configuration: {warning}");
        }
        if config.addresses != self.config.addresses {
            tracing::warn!("configuration: a change of api.address or api.port takes effect after a restart");
            config.addresses.clone_from(&self.config.addresses);
        }
        if config.state_path != self.config.state_path {
            tracing::warn!("configuration: a change of api.state_path takes effect after a restart");
            config.state_path.clone_from(&self.config.state_path);
        }
        if config.store != self.config.store {
            tracing::warn!("configuration: a change of store takes effect after a restart");
            config.store.clone_from(&self.config.store);
        }
        let old = self.active.borrow().clone();
        let same_token = config.token == self.config.token;
        let streams = if same_token { old.streams.clone() } else { self.stop.child_token() };
        // Before the tokens: an agent must exist when its first entry arrives.
        self.collector.set_rules(config.rules, config.fuse);
        self.collector.set_agents(config.agents.iter().map(|agent| agent.id.clone()));
        self.active.send_replace(Arc::new(ActiveConfig::new(&config, streams)));
        if !same_token {
            old.streams.cancel();
        }
        tracing::info!(
            added = ids_not_in(&self.config.agents, &config.agents),
            removed = ids_not_in(&config.agents, &self.config.agents),
            agents = config.agents.len(),
            "the configuration was read again and is in force"
        );
        self.config = config;
    }
}

/// Ids of `agents` that are not among `others`.
fn ids_not_in(others: &[AgentConfig], agents: &[AgentConfig]) -> String {
    let others: HashSet<&str> = others.iter().map(|agent| agent.id.as_str()).collect();
    let ids = agents.iter().map(|agent| agent.id.as_str()).filter(|id| !others.contains(id));
    ids.collect::<Vec<_>>().join(", ")
}
