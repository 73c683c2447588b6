//! The configuration of the services, parsed like the real file: keys that a test does not set have their defaults.

use std::path::Path;
use std::sync::Arc;

use evenkeel_agent::config::{Config, ServiceConfig};
use evenkeel_common::config::Configuration;
use serde_json::{Value, json};

/// Parses a configuration with these services.
pub(crate) fn read(services: &[Value]) -> Config {
    let text = json!({
        "registry": { "poll_interval": 10 },
        "docker_health": { "check_interval": 5, "timeout": 1 },
        "services": services,
    });
    let config = Config::parse(&text.to_string(), Path::new("config.json"), &|_| None);
    let config = config.unwrap_or_else(|faults| panic!("{faults}"));
    let unwanted: Vec<&String> = config.warnings.iter().filter(|text| text.starts_with("service")).collect();
    assert!(unwanted.is_empty() && config.services.len() == services.len(), "{:?}", config.warnings);
    config
}

/// A compose file. It must exist, but its content is not read.
const COMPOSE_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");

/// Returns a service of the project `shop` as in the file: it updates these images and does nothing else.
pub(crate) fn service(name: &str, images: &[&str]) -> Value {
    json!({
        "name": name,
        "images": images,
        "compose_files": [COMPOSE_FILE],
        "compose_project": "shop",
        "auto_update": true,
        "health_grace": 10,
    })
}

/// Returns the service `shop`.
pub(crate) fn config(images: &[&str]) -> Arc<ServiceConfig> {
    read(&[service("shop", images)]).services.remove(0)
}
