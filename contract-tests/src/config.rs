//! The agent's configuration as tests write it: the one place that knows its shape.

use std::path::Path;

use serde_json::{Value, json};

use crate::{PREFIX, Project};

/// One service.
#[derive(Debug, Clone)]
pub struct Service(Value);

impl Service {
    /// One with nothing but a name.
    pub fn named(name: &str) -> Self {
        Self(json!({ "name": name }))
    }

    /// One that keeps these images of a compose project up to date.
    pub fn of_project(name: &str, project: &Project, images: &[&str]) -> Self {
        Self::named(name)
            .set("images", images)
            .set("compose_files", json!([project.file]))
            .set("compose_project", &*project.name)
            .set("auto_update", true)
            .set("health_grace", 3)
    }

    /// One whose compose project is empty, and does not update; its file is made in `folder`.
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

    /// Restarts its containers, not more often than every `cooldown` seconds.
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

/// A whole configuration.
#[derive(Debug, Clone)]
pub struct Config(Value);

impl Config {
    /// One with these services.
    pub fn of(services: impl IntoIterator<Item = Service>) -> Self {
        let services: Vec<Value> = services.into_iter().map(Value::from).collect();
        Self(json!({ "services": services }))
    }

    /// Asks this registry (`host:port`). The poll interval is long: tests ask for checks.
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

/// One that was written elsewhere.
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
