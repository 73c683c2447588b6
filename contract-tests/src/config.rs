//! Builders for the agent's configuration. No other part of the harness depends on its structure.

use std::path::Path;

use serde_json::{Value, json};

use crate::{PREFIX, Project};

/// Configuration of one service.
#[derive(Debug, Clone)]
pub struct Service(Value);

impl Service {
    /// Creates a service with only a name.
    pub fn named(name: &str) -> Self {
        Self(json!({ "name": name }))
    }

    /// Creates a service that keeps these images of a compose project up to date.
    pub fn of_project(name: &str, project: &Project, images: &[&str]) -> Self {
        Self::named(name)
            .set("images", images)
            .set("compose_files", json!([project.file]))
            .set("compose_project", &*project.name)
            .set("auto_update", true)
            .set("health_grace", 3)
    }

    /// Creates a service with an empty compose project and without `auto_update`. The compose file is written to `folder`.
    pub fn idle(name: &str, folder: &Path) -> Self {
        let file = folder.join("compose.yml");
        std::fs::write(&file, "services: {}\n").expect("a file can be written");
        Self::named(name)
            .set("compose_files", json!([file]))
            .set("compose_project", format!("{PREFIX}{name}"))
    }

    /// Sets a key.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0[key] = value.into();
        self
    }

    /// Enables automatic restarts, at most one every `cooldown` seconds.
    #[must_use]
    pub fn healing(self, cooldown: u32) -> Self {
        self.set("auto_heal", true).set("heal_cooldown", cooldown)
    }
}

impl From<Service> for Value {
    fn from(service: Service) -> Self {
        service.0
    }
}

/// A complete configuration.
#[derive(Debug, Clone)]
pub struct Config(Value);

impl Config {
    /// Creates a configuration with these services.
    pub fn of(services: impl IntoIterator<Item = Service>) -> Self {
        let services: Vec<Value> = services.into_iter().map(Value::from).collect();
        Self(json!({ "services": services }))
    }

    /// Sets the registry (`host:port`). The poll interval is long because tests trigger checks explicitly.
    #[must_use]
    pub fn registry(self, host: &str) -> Self {
        self.set("registry.url", format!("http://{host}")).set("registry.poll_interval", 3600)
    }

    /// Sets the value at a path of keys, for example `docker_health.timeout`.
    #[must_use]
    pub fn set(mut self, path: &str, value: impl Into<Value>) -> Self {
        let place = path.split('.').fold(&mut self.0, |place, key| &mut place[key]);
        *place = value.into();
        self
    }
}

/// Wraps an existing configuration.
impl From<Value> for Config {
    fn from(config: Value) -> Self {
        Self(config)
    }
}

impl From<Config> for Value {
    fn from(config: Config) -> Self {
        config.0
    }
}
