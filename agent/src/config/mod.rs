//! The agent's configuration as checked values (spec 2.9, DECISIONS 2).

use std::path::PathBuf;
use std::time::Duration;

use crate::image::Reference;

/// A configuration that passed every fatal rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Container runtime to talk to and to run compose with.
    pub runtime: Runtime,
    /// The registry that images without a host belong to.
    pub registry: RegistryConfig,
    /// Listen addresses.
    pub api: ApiConfig,
    /// Audit file; `None` disables it.
    pub audit_path: Option<PathBuf>,
    /// Folder for durable state.
    pub state_path: PathBuf,
    /// Services that passed their rules, in the file's order.
    pub services: Vec<ServiceConfig>,
    /// What is wrong without being fatal, each `<service or key>: <reason>`.
    pub warnings: Vec<String>,
}

/// Container runtime executable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// `docker`
    Docker,
    /// `podman`
    Podman,
}

/// `registry.*`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryConfig {
    /// Base URL as configured, without trailing slash.
    pub url: String,
    /// Host and port of `url`, as it stands in image references.
    pub host: String,
    /// Time between two poll cycles.
    pub poll_interval: Duration,
    /// Do not verify this registry's certificate.
    pub insecure: bool,
    /// How many requests may be under way at once.
    pub concurrency: usize,
}

/// `api.*`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiConfig {
    /// `host:port` texts as configured, each checked; an empty host means all interfaces.
    pub addresses: Vec<String>,
    /// Additional names that a `Host` header may carry.
    pub allowed_hosts: Vec<String>,
}

/// One service that passed its rules.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceConfig {
    /// Unique name.
    pub name: String,
    /// Images as configured, with their normal form.
    pub images: Vec<ConfiguredImage>,
    /// No validation, polling, stats.
    pub silent: bool,
    /// Absolute paths, in order.
    pub compose_files: Vec<PathBuf>,
    /// Compose project.
    pub compose_project: Option<String>,
    /// Container to match where there is no project.
    pub container_name: Option<String>,
    /// Variables for compose.
    pub env_file: Option<PathBuf>,
    /// Poll and deploy.
    pub auto_update: bool,
    /// Start when nothing runs.
    pub auto_start: bool,
    /// Restart what falls over.
    pub auto_heal: bool,
    /// Redeploy when the compose files change.
    pub compose_watch: bool,
    /// Percent; 0 disables the alert.
    pub cpu_threshold: f64,
    /// Percent; 0 disables the alert.
    pub memory_threshold: f64,
    /// Probation time.
    pub health_grace: Duration,
    /// Minimum time between two restarts.
    pub heal_cooldown: Duration,
    /// Consecutive failed restarts before giving up.
    pub heal_max_restarts: u32,
}

/// An image reference as its user wrote it, and what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredImage {
    /// As configured; the key in maps (DECISIONS 4).
    pub text: String,
    /// Normal form.
    pub reference: Reference,
}
