//! The agent's validated configuration (spec 2.9, DECISIONS 2).
//!
//! | module | content |
//! |---|---|
//! | `file` | the structure of the file, defaults and ranges; source of the JSON Schema |
//! | `global` | rules of registry, monitor and engine health; only faults that the spec lists are fatal |
//! | `api` | listen addresses and allowed host names |
//! | `paths` | the paths that the agent writes to, and who else can write there |
//! | `service` | rules 1-7; a service that violates one is skipped, the others are unaffected |
//! | `update` | the gates of a service |
//! | `probe` | the probe of a new image |
//! | `misplaced` | keys of gates in the wrong place |
//! | `channels` | notification channels; an invalid one is disabled, the others are unaffected |
//! | `push` | the wardens, and the terms of the fleet |
//! | `named` | the variables that the file names, including those in invalid sections |
//! | `notes` | what `--check` says besides warnings |
//! | `template`, `template_syntax`, `mail` | templates of webhook bodies, mail addresses |
//! | `load` | parses a file into a [`Config`] or into all its [`ConfigErrors`] |
//! | `active` | the active configuration, which tasks watch |

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::config::quote;
use evenkeel_common::http::BasePath;
use evenkeel_common::secret::Secret;
use evenkeel_common::wire::LeftOutService;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::image::{Reference, Repository};
use crate::model::image_config::Aspect;
use crate::model::snapshot::SnapshotRules;
use crate::model::tags::TagPattern;
use crate::model::window::Window;
use crate::model::{Container, Drain, Hooks, Order, Probe, Project};

pub mod active;
mod api;
mod channels;
mod file;
mod global;
mod items;
mod load;
pub(crate) mod mail;
mod misplaced;
mod named;
mod notes;
mod paths;
mod probe;
mod push;
mod service;
pub mod template;
mod template_syntax;
mod update;

pub use channels::*;
pub use evenkeel_common::config::expand::Env;
pub use evenkeel_common::config::{ConfigErrors, ConfigSource, Configuration};
pub use load::{WithoutServices, schema};
pub(crate) use misplaced::HELD;
pub(crate) use paths::{in_container, is_set_by_engine};

/// A configuration without fatal faults.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Container runtime to connect to and to run compose with.
    pub runtime: Runtime,
    /// The registry for image references without a host.
    pub registry: RegistryConfig,
    /// Listen addresses.
    pub api: ApiConfig,
    /// Audit file; `None` disables it.
    pub audit_path: Option<PathBuf>,
    /// Folder for durable state.
    pub state_path: PathBuf,
    /// Measurements of CPU and memory.
    pub monitor: MonitorConfig,
    /// Checks of the container daemon.
    pub docker_health: DockerHealthConfig,
    /// Valid notification channels.
    pub notifications: NotificationsConfig,
    /// Where entries are pushed to; `None` disables it.
    pub push: Option<PushConfig>,
    /// `push.machine_id`: the name of this machine in notifications and at the warden; empty: the host name.
    pub machine_id: String,
    /// The terms of the fleet if `push` is configured but disabled because of a fault: the known state of the fleet then
    /// applies as if no warden answered.
    pub fleet_terms_without_push: Option<FleetTerms>,
    /// Valid services, in the order of the file.
    pub services: Vec<Arc<ServiceConfig>>,
    /// Names of channels that are configured but disabled because of a fault; their queued entries are kept.
    pub faulty_channels: Vec<String>,
    /// Why `services` as a whole is invalid, or is not all that the file lists. At start-up the agent then runs with the
    /// services that were read; a reload is rejected.
    pub unusable_services: Option<String>,
    /// Environment variables that the file references with `$`; their values are secret.
    pub named_variables: BTreeSet<String>,
    /// Services that the file lists and that are not watched because of a fault, in the order of the file.
    pub left_out: Vec<LeftOutService>,
    /// Non-fatal problems, each `<service or key>: <reason>`.
    pub warnings: Vec<String>,
    /// Remarks for someone who checks the file.
    pub notes: Vec<String>,
    /// Distinguishes the text of the file from an edited one.
    pub text_hash: u64,
}

/// Container runtime executable.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// `docker`
    #[default]
    Docker,
    /// `podman`
    Podman,
}

/// `registry.*`
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct RegistryConfig {
    /// Base URL as configured, without trailing slash.
    pub url: String,
    /// Host and port of `url`, as in image references.
    pub host: String,
    /// Time between two poll cycles.
    pub poll_interval: Duration,
    /// Do not verify this registry's certificate.
    pub insecure: bool,
    /// Maximum number of concurrent requests.
    pub concurrency: usize,
}

/// `api.*`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ApiConfig {
    /// Validated `host:port` strings as configured; an empty host means all interfaces.
    pub addresses: Vec<String>,
    /// Additional host names accepted in the `Host` header.
    pub allowed_hosts: Vec<String>,
    /// Path below which everything is served.
    pub base_path: BasePath,
}

/// `monitor.*`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorConfig {
    /// Time between two measurements.
    pub stats_interval: Duration,
}

/// `docker_health.*`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerHealthConfig {
    /// Time between two checks.
    pub check_interval: Duration,
    /// Timeout of a check; less than `check_interval`.
    pub timeout: Duration,
}

/// A valid `push.*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushConfig {
    /// Base URLs of the wardens, http or https, without trailing slash; at least one. The first that answers is used.
    pub warden_urls: Vec<String>,
    /// Bearer token, expanded, never empty.
    pub token: Secret,
    /// Ring in the fleet, 0 to 9.
    pub ring: u8,
    /// How long a machine in ring 1 to 9 delays an update while no warden answers, and every machine while the warden's store
    /// is away.
    pub patience: Duration,
}

/// The rules for this machine while no warden answers (DECISIONS 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FleetTerms {
    /// Ring in the fleet, 0 to 9.
    pub ring: u8,
    /// How long a machine in ring 1 to 9 delays an update.
    pub patience: Duration,
}

/// A valid service.
#[derive(Debug, Default, Clone, PartialEq)]
// These are the flags of the specification.
#[allow(clippy::struct_excessive_bools)]
pub struct ServiceConfig {
    /// Unique name.
    pub name: String,
    /// Images as configured, with their normalised references.
    pub images: Vec<ConfiguredImage>,
    /// No validation, polling or measurements.
    pub silent: bool,
    /// Absolute paths of the compose files, in order.
    pub compose_files: Vec<PathBuf>,
    /// Compose project.
    pub compose_project: Option<String>,
    /// Container to match if there is no project.
    pub container_name: Option<String>,
    /// Swarm service that replaces a compose project.
    pub swarm_service: Option<String>,
    /// File with variables for compose.
    pub env_file: Option<PathBuf>,
    /// Poll the registry and deploy new images.
    pub auto_update: bool,
    /// Start the project when none of its containers is running.
    pub auto_start: bool,
    /// Restart unhealthy and crashed containers.
    pub auto_heal: bool,
    /// Redeploy when the compose files change.
    pub compose_watch: bool,
    /// CPU threshold in percent of what may be used; 0 disables the alert.
    pub cpu_threshold: f64,
    /// Memory threshold in percent; 0 disables the alert.
    pub memory_threshold: f64,
    /// Probation time.
    pub health_grace: Duration,
    /// Minimum time between two restarts.
    pub heal_cooldown: Duration,
    /// Consecutive failed restarts before giving up.
    pub heal_max_restarts: u32,
    /// Number of images deployed and proven by this agent to keep, including the running one; 0 keeps all.
    pub keep_images: usize,
    /// Gates for new images; `None` deploys them immediately.
    pub update: Option<Arc<UpdateConfig>>,
}

/// `services[].update`: the gates that can defer an update (DECISIONS 7).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpdateConfig {
    /// The faults of these settings; they hold every update until they are corrected.
    pub fault: Option<String>,
    /// Minimum age of a digest since this agent first saw it.
    pub min_age: Option<Duration>,
    /// The time ranges in which an update may begin.
    pub window: Option<Window>,
    /// Whether each digest needs manual approval.
    pub approve: bool,
    /// The gate program with its arguments; empty if there is none.
    pub gate: Vec<String>,
    /// Public keys, one of which must have signed the image; if empty, no signature is required.
    pub signed_by: Vec<PathBuf>,
    /// Other repositories that a signature may name.
    pub signed_for: Vec<Repository>,
    /// The newer tags to look for.
    pub tags: Option<TagPattern>,
    /// The variable in `env_file` that a newer tag is written to.
    pub tag_variable: Option<String>,
    /// Commands that run before and after a deployment.
    pub hooks: Option<Hooks>,
    /// How long an update is watched after it is proven; zero if it is not.
    pub watch: Duration,
    /// What must not differ in a new image without an approval.
    pub ask_on: BTreeSet<Aspect>,
    /// What the containers of a new image must answer on probation.
    pub probe: Option<Probe>,
    /// Whether the new containers start beside the old ones; `None`: the compose files decide.
    pub order: Option<Order>,
    /// How the old containers are relieved of their requests before they are stopped.
    pub drain: Drain,
    /// What is copied before an update.
    pub snapshot: Option<SnapshotRules>,
}

impl ServiceConfig {
    /// Returns the compose project; `None` if the service has no project name or no compose files.
    pub fn project(&self) -> Option<Project> {
        let name = self.compose_project.clone()?;
        let files = self.compose_files.clone();
        (!files.is_empty()).then(|| Project {
            name,
            files,
            env_file: self.env_file.clone(),
            health_grace: self.health_grace,
            ..Project::default()
        })
    }

    /// Returns the variable that newer tags are written to; `None` if they are only reported.
    pub fn tag_variable(&self) -> Option<TagVariable<'_>> {
        let update = self.update.as_deref().filter(|_| self.auto_update && self.swarm_service.is_none())?;
        let (name, pattern) = (update.tag_variable.as_deref()?, update.tags.as_ref()?);
        Some(TagVariable { name, file: self.env_file.as_deref()?, pattern })
    }

    /// Returns the images whose tag is set by the variable: those configured with the same tag as the first image whose
    /// tag is a version.
    pub fn images_of_variable(&self) -> impl Iterator<Item = &ConfiguredImage> {
        let has_version = |tag: &String| self.tag_variable().is_some_and(|v| v.pattern.can_compare(tag));
        let tags = self.images.iter().filter_map(|image| image.moving_tag());
        let tag = tags.into_iter().find(|tag| has_version(tag));
        self.images.iter().filter(move |image| tag.is_some() && image.moving_tag() == tag)
    }

    /// Reports whether the tag of this image is set by the variable.
    pub fn is_of_variable(&self, configured: &str) -> bool {
        self.images_of_variable().any(|image| image.configured == configured)
    }

    /// Reports whether the service names something to watch.
    pub fn names_something(&self) -> bool {
        self.silent
            || self.compose_project.is_some()
            || self.container_name.is_some()
            || self.swarm_service.is_some()
    }

    /// Reports whether new images can be deployed: there is a swarm service or a compose project.
    pub fn can_deploy(&self) -> bool {
        self.swarm_service.is_some() || self.project().is_some()
    }

    /// Reports whether a container of the service is not of its compose project: as the project had none, the container was
    /// found by `container_name`. Compose does not update such a one.
    pub fn is_outside_project(&self, container: &Container) -> bool {
        self.container_name.is_some()
            && self.compose_project.as_ref().is_some_and(|project| *project != container.project)
    }

    /// Reports whether compose can make this container anew.
    pub fn can_recreate(&self, container: &Container) -> bool {
        let is_of_compose = !container.compose_service.is_empty() && self.project().is_some();
        is_of_compose && !self.is_outside_project(container)
    }

    /// Reports whether poll cycles check the service: its images, its compose files, or whether it is running.
    pub fn is_polled(&self) -> bool {
        (self.auto_update || self.auto_start || self.compose_watch) && !self.silent
    }
}

/// `tag_variable`: the variable in `env_file` that holds a tag used in the compose files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagVariable<'a> {
    /// Its name.
    pub name: &'a str,
    /// The file that sets it.
    pub file: &'a Path,
    /// The tags that it may be set to.
    pub pattern: &'a TagPattern,
}

/// An image reference as configured, and its normalised form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredImage {
    /// As configured; used as the key in maps (DECISIONS 4).
    pub configured: String,
    /// Normalised form.
    pub reference: Reference,
}

impl ConfiguredImage {
    /// Reports whether it is configured without a registry host and so belongs to `registry.url`.
    pub fn has_no_host(&self) -> bool {
        Reference::parse_in(&self.configured, "other.invalid")
            .is_ok_and(|elsewhere| elsewhere.repository.host != self.reference.repository.host)
    }

    /// Explains what an image without a host means where `registry.url` is not set.
    pub fn host_note(&self) -> String {
        let hub = Reference::parse(&self.configured).map(|hub| hub.to_string());
        format!(
            "{} means {}, because registry.url is not set; the image of Docker Hub is {}",
            quote(&self.configured),
            self.reference,
            hub.unwrap_or_else(|_| format!("docker.io/{}", self.configured))
        )
    }

    /// Returns the tag, unless the image is pinned to a digest.
    fn moving_tag(&self) -> Option<&String> {
        self.reference.tag.as_ref().filter(|_| !self.reference.is_pinned())
    }
}

/// Helpers for the tests of the rules.
#[cfg(test)]
mod testing {
    use std::path::Path;

    use serde_json::Value;

    use super::{Config, ConfigErrors, Configuration, Env};

    pub(super) fn parse(tree: &Value, env: Env<'_>) -> Result<Config, ConfigErrors> {
        Config::parse(&tree.to_string(), Path::new("c.json"), env)
    }

    pub(super) fn good(tree: &Value) -> Config {
        parse(tree, &|_| None).unwrap()
    }

    /// The faults without the file's path.
    pub(super) fn faults(tree: &Value) -> Vec<String> {
        let faults = parse(tree, &|_| None).unwrap_err().to_string();
        faults.lines().map(|line| line.strip_prefix("c.json: ").unwrap_or(line).to_owned()).collect()
    }
}
