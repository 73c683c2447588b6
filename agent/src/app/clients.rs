//! Engine, compose and registry clients for commands that need no running agent (`doctor`, `adopt`).

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use evenkeel_common::clock::{Clock, SystemClock};
use jiff::SignedDuration;
use parking_lot::Mutex;

use crate::adapters::compose::ComposeCli;
use crate::adapters::docker::{DockerEngine, Endpoint, HostEnvironment};
use crate::adapters::probe::ProbeClient;
use crate::adapters::registry::{Credentials, Insecure, RegistryClient};
use crate::adapters::snapshot::FolderSnapshots;
use crate::config::Config;
use crate::ports::survey::{EngineInfo, Survey};
use crate::ports::{Compose, Engine, Probes, Registry, Swarm};
use crate::project::snapshot::{AtRest, Data};

/// Clients for one engine, and a compose CLI that uses the same engine.
#[derive(Clone)]
pub struct EngineClients {
    /// Address of the engine.
    pub endpoint: String,
    /// The engine, for configured services.
    pub engine: Arc<dyn Engine>,
    /// The same engine, for queries about the whole machine.
    pub survey: Arc<dyn Survey>,
    /// The same engine, as a swarm manager.
    pub swarm: Arc<dyn Swarm>,
    /// Probes of the engine's containers.
    pub probes: Arc<dyn Probes>,
    /// The data of the engine's containers.
    pub data: Data,
    /// The compose CLI.
    pub compose: Arc<dyn Compose>,
}

impl EngineClients {
    /// Builds clients for the engine that an agent with this configuration would use. Sends no requests.
    pub fn new(config: &Config) -> anyhow::Result<Self> {
        let variable = |name: &str| std::env::var(name).ok();
        let surroundings = HostEnvironment { variable: &variable, root: Path::new("/") };
        let endpoint =
            Endpoint::resolve(config.runtime, &surroundings).context("cannot find the container engine")?;
        let compose = ComposeCli::new(config.runtime, &endpoint, std::env::vars_os());
        compose.withhold(&config.named_variables);
        let credentials = Arc::new(Credentials::from_env(config.runtime));
        let engine = Arc::new(DockerEngine::new(endpoint.clone(), credentials));
        Ok(Self {
            endpoint: endpoint.to_string(),
            survey: engine.clone(),
            swarm: engine.clone(),
            probes: Arc::new(ProbeClient::new(engine.clone())),
            data: Data {
                folders: Arc::new(FolderSnapshots::here()),
                volumes: engine.clone(),
                dumps: config.state_path.join("snapshots"),
                at_rest: AtRest::default(),
            },
            engine,
            compose: Arc::new(compose),
        })
    }
}

/// Returns how the engine reaches registries.
pub(super) fn insecure(about: &EngineInfo) -> Insecure {
    Insecure {
        names: about.insecure_registries.clone(),
        networks: about.insecure_networks.clone(),
        mirrors: about.mirrors.clone(),
    }
}

/// A registry client that also measures the clock offset between this machine and the registries.
#[derive(Clone)]
pub struct RegistryClients {
    /// Client for all registries.
    pub registry: Arc<dyn Registry>,
    offsets: Arc<Mutex<Vec<SignedDuration>>>,
}

impl RegistryClients {
    /// Builds the client that an agent with this configuration would use with this engine, if it answers. Sends no requests.
    pub fn new(config: &Config, about: Option<&EngineInfo>) -> anyhow::Result<Self> {
        let offsets: Arc<Mutex<Vec<SignedDuration>>> = Arc::default();
        let noted = offsets.clone();
        let credentials = Arc::new(Credentials::from_env(config.runtime));
        let client = RegistryClient::new(&config.registry, credentials)?;
        let client = client.with_date_sink(Arc::new(move |date| {
            let offset = SystemClock.now().duration_since(date);
            noted.lock().push(offset);
        }));
        let client = match about.map(insecure) {
            Some(insecure) => client.with_engine(Arc::new(move || {
                let insecure = insecure.clone();
                Box::pin(async move { Some(insecure) })
            })),
            None => client,
        };
        Ok(Self { registry: Arc::new(client), offsets })
    }

    /// Returns how far this machine's clock is ahead of each response so far that had a date.
    pub fn clock_offsets(&self) -> Vec<SignedDuration> {
        self.offsets.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Configuration as _;
    use crate::model::image::{Digest, Reference};
    use crate::ports::Urgency;

    #[tokio::test]
    async fn a_registry_is_reached_as_the_engine_reaches_it() {
        let server = wiremock::MockServer::start().await;
        let digest = Digest::of(b"a manifest");
        let answer =
            wiremock::ResponseTemplate::new(200).insert_header("docker-content-digest", digest.as_str());
        wiremock::Mock::given(wiremock::matchers::any()).respond_with(answer).mount(&server).await;
        // Connects to this host, and is no loopback address.
        let name = format!("0.0.0.0:{}", server.address().port());
        let image = Reference::parse(&format!("{name}/web:1")).unwrap();
        let config = Config::parse("{}", Path::new("c.json"), &|_| None).unwrap();
        let about = EngineInfo { insecure_registries: vec![name], ..EngineInfo::default() };
        for (about, is_reached) in [(None, false), (Some(&about), true)] {
            let clients = RegistryClients::new(&config, about).unwrap();
            let answer = clients.registry.digest(&image, Urgency::Manual).await;
            assert_eq!(answer.is_ok(), is_reached, "{answer:?}");
        }
    }
}
