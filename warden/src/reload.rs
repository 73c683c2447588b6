//! The active configuration, and the task that reloads it on SIGHUP. Tokens and agents are replaced as a whole. Entries and
//! connections are kept, and so are streams unless `api.token` has changed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use evenkeel_common::http::BasePath;
use evenkeel_common::systemd::ServiceManager;
use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::auth::tokens::Tokens;
use crate::collector::Collector;
use crate::config::{AgentConfig, Config, ConfigSource};

/// The part of the configuration that the endpoints and the heartbeat read. It is replaced on reload.
pub struct ActiveConfig {
    /// Tokens of agents and users.
    pub tokens: Tokens,
    /// In configuration order; [`crate::auth::tokens::Tokens::agent`] returns an index into this list.
    pub agents: Vec<AgentConfig>,
    /// Cancels the users' streams: on shutdown, and when `api.token` changes.
    pub streams: CancellationToken,
    /// Path below which everything is served. It does not change on reload.
    pub base_path: BasePath,
}

/// Receives the active configuration.
pub type ConfigReceiver = watch::Receiver<Arc<ActiveConfig>>;

impl ActiveConfig {
    /// Extracts the active part of `config`; `streams` cancels the users' streams.
    pub fn new(config: &Config, streams: CancellationToken) -> Self {
        let tokens = Tokens::new(&config.token, config.agents.iter().map(|agent| &agent.token));
        Self { tokens, agents: config.agents.clone(), streams, base_path: config.base_path.clone() }
    }
}

/// The task that reloads the configuration file.
pub struct Reload {
    config: Config,
    source: ConfigSource,
    active: watch::Sender<Arc<ActiveConfig>>,
    collector: Arc<Collector>,
    manager: Arc<ServiceManager>,
    stop: CancellationToken,
}

impl Reload {
    /// Activates `config`; `stop` cancels all streams.
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

    /// Returns a receiver for the active configuration.
    pub fn subscribe(&self) -> ConfigReceiver {
        self.active.subscribe()
    }

    /// Returns the status line for the service manager.
    pub fn status_line(&self) -> String {
        match self.config.agents.len() {
            1 => "listening to 1 agent".to_owned(),
            n => format!("listening to {n} agents"),
        }
    }

    /// Reloads on every SIGHUP until shutdown.
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
        let (source, active) = (self.source.clone(), self.config.clone());
        let read = move || {
            let loaded = source.load::<Config>();
            let is_same = loaded.as_ref().is_ok_and(|config| *config == active);
            (loaded, source.outdated_variables(is_same))
        };
        let (loaded, outdated) = tokio::task::spawn_blocking(read).await.ok().unzip();
        let problem = match loaded {
            Some(Ok(config)) => {
                self.activate(config);
                ""
            }
            Some(Err(faults)) => {
                let faults = faults.in_one_line();
                tracing::error!(faults, "the new configuration is invalid; the active one is kept");
                "; the file has errors and is not active"
            }
            None => {
                tracing::error!("cannot read the configuration; it was not reloaded");
                "; the file could not be read"
            }
        };
        if let Some(outdated) = outdated.flatten() {
            tracing::warn!("configuration: {}", outdated.text);
        }
        self.manager.ready(&format!("{}{problem}", self.status_line()));
    }

    /// Activates a valid configuration.
    pub fn activate(&mut self, mut config: Config) {
        for warning in &config.warnings {
            tracing::warn!("configuration: {warning}");
        }
        if config.addresses != self.config.addresses {
            tracing::warn!("configuration: a change to api.address or api.port takes effect after a restart");
            config.addresses.clone_from(&self.config.addresses);
        }
        if config.base_path != self.config.base_path {
            tracing::warn!("configuration: a change to api.base_path takes effect after a restart");
            config.base_path.clone_from(&self.config.base_path);
        }
        if config.state_path != self.config.state_path {
            tracing::warn!("configuration: a change to api.state_path takes effect after a restart");
            config.state_path.clone_from(&self.config.state_path);
        }
        if config.store != self.config.store {
            tracing::warn!("configuration: a change to store takes effect after a restart");
            config.store.clone_from(&self.config.store);
        }
        let old = self.active.borrow().clone();
        let same_token = config.token == self.config.token;
        let streams = if same_token { old.streams.clone() } else { self.stop.child_token() };
        // Update the agents before the tokens: an agent must exist when its first entry arrives.
        self.collector.set_rules(config.rules, config.fuse);
        self.collector.set_agents(config.ids(), config.left_out == 0);
        // So must a machine under another id report before its polls end: verdicts count for what was reported.
        self.collector.expect_reports(renamed(&self.config.agents, &config.agents));
        self.active.send_replace(Arc::new(ActiveConfig::new(&config, streams)));
        if !same_token {
            old.streams.cancel();
        }
        tracing::info!(
            added = ids_not_in(&self.config.agents, &config.agents),
            removed = ids_not_in(&config.agents, &self.config.agents),
            agents = config.agents.len(),
            "the configuration was reloaded"
        );
        self.config = config;
    }
}

/// Returns the ids of the agents whose tokens belonged to other ids before.
fn renamed(before: &[AgentConfig], agents: &[AgentConfig]) -> Vec<String> {
    let before = owners(before);
    let is_renamed = |(token, id): &(&str, &str)| before.get(*token).is_some_and(|was| was != id);
    owners(agents).into_iter().filter(is_renamed).map(|(_, id)| id.to_owned()).collect()
}

/// Returns the ids of agents by their tokens. A shared token belongs to the first, as in [`Tokens`].
fn owners(agents: &[AgentConfig]) -> HashMap<&str, &str> {
    agents.iter().rev().map(|agent| (agent.token.expose(), agent.id.as_str())).collect()
}

/// Lists the ids of `agents` that are not in `others`.
fn ids_not_in(others: &[AgentConfig], agents: &[AgentConfig]) -> String {
    let others: HashSet<&str> = others.iter().map(|agent| agent.id.as_str()).collect();
    let ids = agents.iter().map(|agent| agent.id.as_str()).filter(|id| !others.contains(id));
    ids.collect::<Vec<_>>().join(", ")
}
