//! The world outside for commands that need no running agent (`doctor`, `adopt`).

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use evenkeel_common::clock::{Clock, SystemClock};
use jiff::SignedDuration;

use crate::adapters::compose::ComposeCli;
use crate::adapters::docker::{DockerEngine, Endpoint, Surroundings};
use crate::adapters::registry::{Credentials, RegistryClient, RegistrySettings};
use crate::config::Config;
use crate::ports::survey::Survey;
use crate::ports::{Compose, Engine, Registry, Swarm};

/// One engine, and compose that talks to it.
#[derive(Clone)]
pub struct EngineClients {
    /// Its address.
    pub endpoint: String,
    /// The engine, for what is configured.
    pub engine: Arc<dyn Engine>,
    /// The same one, for the machine as a whole.
    pub survey: Arc<dyn Survey>,
    /// The same one, as a manager of a swarm.
    pub swarm: Arc<dyn Swarm>,
    /// Compose.
    pub compose: Arc<dyn Compose>,
}

impl EngineClients {
    /// The engine that an agent with this configuration uses. Nothing is asked yet.
    pub fn new(config: &Config) -> anyhow::Result<Self> {
        let variable = |name: &str| std::env::var(name).ok();
        let surroundings = Surroundings { variable: &variable, root: Path::new("/") };
        let endpoint =
            Endpoint::resolve(config.runtime, &surroundings).context("cannot find the container engine")?;
        let compose = ComposeCli::new(config.runtime, &endpoint, std::env::vars_os());
        compose.withhold(&config.named_variables);
        let engine = Arc::new(DockerEngine::new(endpoint.clone(), Arc::new(Credentials::from_env())));
        Ok(Self {
            endpoint: endpoint.to_string(),
            survey: engine.clone(),
            swarm: engine.clone(),
            engine,
            compose: Arc::new(compose),
        })
    }
}

/// The registries, and how far their clocks are from this machine's.
#[derive(Clone)]
pub struct RegistryClients {
    /// The client of all of them.
    pub registry: Arc<dyn Registry>,
    offsets: Arc<Mutex<Vec<SignedDuration>>>,
}

impl RegistryClients {
    /// The client that an agent with this configuration uses. Nothing is asked yet.
    pub fn new(config: &Config) -> anyhow::Result<Self> {
        let offsets: Arc<Mutex<Vec<SignedDuration>>> = Arc::default();
        let noted = offsets.clone();
        let client =
            RegistryClient::new(RegistrySettings::from(&config.registry), Arc::new(Credentials::from_env()))?;
        let client = client.dated(Arc::new(move |date| {
            let offset = SystemClock.now().duration_since(date);
            noted.lock().unwrap_or_else(PoisonError::into_inner).push(offset);
        }));
        Ok(Self { registry: Arc::new(client), offsets })
    }

    /// How far this machine's clock is ahead of each answer that said what time it was, so far.
    pub fn clock_offsets(&self) -> Vec<SignedDuration> {
        self.offsets.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
