//! The configuration in force, and reading it again (SIGHUP): who may ask and whom to ask change as a whole, while the
//! entries, the streams and the connections stay.

use std::sync::Arc;

use evenkeel_common::systemd::ServiceManager;
use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::config::{AgentConfig, Config, ConfigSource};
use crate::ring::Ring;

/// What the endpoints and the heartbeat go by.
pub struct Live {
    /// Tokens.
    pub access: Access,
    /// In the order of their tokens.
    pub agents: Vec<AgentConfig>,
    /// Ends the streams of people: when the program stops, and when their token is another.
    pub streams: CancellationToken,
}

/// A view of the configuration in force.
pub type Watch = watch::Receiver<Arc<Live>>;

impl Live {
    /// What this configuration says; `streams` is what ends the streams.
    pub fn new(config: &Config, streams: CancellationToken) -> Self {
        let access = Access::new(&config.token, config.agents.iter().map(|agent| &agent.token));
        Self { access, agents: config.agents.clone(), streams }
    }
}

/// The task that reads the file again.
pub struct Reload {
    config: Config,
    source: ConfigSource,
    live: watch::Sender<Arc<Live>>,
    ring: Arc<Ring>,
    manager: Arc<ServiceManager>,
    stop: CancellationToken,
}

impl Reload {
    /// Puts `config` into force until there is another; `stop` ends all streams.
    pub fn new(
        config: Config,
        source: ConfigSource,
        ring: Arc<Ring>,
        manager: Arc<ServiceManager>,
        stop: CancellationToken,
    ) -> Self {
        let live = watch::Sender::new(Arc::new(Live::new(&config, stop.child_token())));
        Self { config, source, live, ring, manager, stop }
    }

    /// The configuration in force.
    pub fn live(&self) -> Watch {
        self.live.subscribe()
    }

    /// What the program does, for the service manager.
    pub fn in_words(&self) -> String {
        match self.config.agents.len() {
            1 => "listening to 1 agent".to_owned(),
            n => format!("listening to {n} agents"),
        }
    }

    /// Reads the file again at each of `hangups` until the program stops.
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
        let refused = match loaded {
            Ok(Ok(config)) => {
                self.take_over(config);
                ""
            }
            Ok(Err(faults)) => {
                let faults = faults.in_one_line();
                tracing::error!(
                    faults,
                    "the configuration was read again and refused; the one in force stays"
                );
                "; the file has faults and is not in force"
            }
            Err(_) => {
                tracing::error!("reading the configuration failed; the one in force stays");
                "; the file could not be read"
            }
        };
        self.manager.ready(&format!("{}{refused}", self.in_words()));
    }

    /// Puts a valid file into force.
    fn take_over(&mut self, mut config: Config) {
        for warning in &config.warnings {
            tracing::warn!("configuration: {warning}");
        }
        if config.addresses != self.config.addresses {
            tracing::warn!(
                "configuration: api.address or api.port has changed in the file, which needs a restart"
            );
            config.addresses.clone_from(&self.config.addresses);
        }
        if config.state_path != self.config.state_path {
            tracing::warn!("configuration: api.state_path has changed in the file, which needs a restart");
            config.state_path.clone_from(&self.config.state_path);
        }
        let old = self.live.borrow().clone();
        let same_people = config.token == self.config.token;
        let streams = if same_people { old.streams.clone() } else { self.stop.child_token() };
        // First the ring: an agent is known before it may send.
        self.ring.know(config.agents.iter().map(|agent| agent.id.clone()));
        self.live.send_replace(Arc::new(Live::new(&config, streams)));
        if !same_people {
            old.streams.cancel();
        }
        let is_in = |agents: &[AgentConfig], id: &str| agents.iter().any(|agent| agent.id == id);
        let missing_from = |agents: &[AgentConfig], of: &[AgentConfig]| {
            let ids = of.iter().map(|agent| agent.id.as_str()).filter(|id| !is_in(agents, id));
            ids.collect::<Vec<_>>().join(", ")
        };
        tracing::info!(
            added = missing_from(&self.config.agents, &config.agents),
            removed = missing_from(&config.agents, &self.config.agents),
            agents = config.agents.len(),
            "the configuration was read again and is in force"
        );
        self.config = config;
    }
}
