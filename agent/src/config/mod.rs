//! The agent's configuration as checked values (spec 2.9, DECISIONS 2).
//!
//! | module | what it holds |
//! |---|---|
//! | `file` | the shape of the file, defaults and ranges; the JSON Schema comes from it |
//! | `global` | rules of registry, monitor and engine health; only faults that the spec lists stop the program |
//! | `api` | where the agent listens, and under which names it may be asked |
//! | `paths` | where it writes, and who else could |
//! | `service` | rules 1-7; a service that breaks one is left out, the others go on |
//! | `update` | when a found image may be deployed |
//! | `delivery` | notification channels; a broken one is left out, the rest goes on |
//! | `push` | the wardens, and the terms of the fleet |
//! | `named` | the variables and channels that the file names, those of a broken part included |
//! | `load` | from a path or a text to a [`Config`] or to all [`ConfigFaults`] |

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::secret::Secret;
use evenkeel_common::wire::{Kind, Level};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::Project;
use crate::model::image::Reference;
use crate::model::tags::TagPattern;
use crate::model::window::Window;

pub mod active;
mod api;
mod delivery;
mod file;
mod global;
mod load;
pub(crate) mod mail;
mod named;
mod paths;
mod push;
mod service;
pub mod template;
mod template_syntax;
mod update;

pub use evenkeel_common::config::expand::Env;
pub use evenkeel_common::config::{ConfigFaults, ConfigSource, Configuration};
pub use load::schema;

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
    /// Stats.
    pub monitor: MonitorConfig,
    /// Checks of the container daemon.
    pub docker_health: DockerHealthConfig,
    /// Notification channels that are complete.
    pub notifications: NotificationsConfig,
    /// Where entries are pushed to; `None` disables it.
    pub push: Option<PushConfig>,
    /// What the fleet asks of this machine where `push` stands in the file and is off for a fault in it: what is known of
    /// the fleet holds as if no warden answered.
    pub fleet_cut_off: Option<FleetTerms>,
    /// Services that passed their rules, in the file's order.
    pub services: Vec<Arc<ServiceConfig>>,
    /// Channels that stand in the file and are off for a fault in it, by name: what waits for them is kept.
    pub faulty_channels: Vec<String>,
    /// Why `services` as a whole can't be used. At a start the program goes on without any; a reload is refused.
    pub unusable_services: Option<String>,
    /// Variables of the environment that the file names with `$`: what they hold is secret.
    pub named_variables: BTreeSet<String>,
    /// What is wrong without being fatal, each `<service or key>: <reason>`.
    pub warnings: Vec<String>,
}

/// Container runtime executable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
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
    /// How long one check may take; less than `check_interval`.
    pub timeout: Duration,
}

/// `notifications.*`: the channels that are complete.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NotificationsConfig {
    /// Chat.
    pub discord: Option<DiscordConfig>,
    /// Mail.
    pub smtp: Option<SmtpConfig>,
    /// HTTP, in the file's order; names are unique.
    pub webhooks: Vec<WebhookConfig>,
}

/// Which entries a channel sends (DECISIONS 5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryFilter {
    /// Entries below this level are not sent.
    pub min_level: Level,
    /// Only these kinds are sent; `None` for all.
    pub events: Option<Vec<Kind>>,
}

/// `notifications.discord`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscordConfig {
    /// Address that gives access to whoever knows it; http or https, expanded.
    pub webhook_url: Secret,
    /// What is sent.
    pub filter: EntryFilter,
}

/// `notifications.smtp`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmtpConfig {
    /// Mail server.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Sender.
    pub from: String,
    /// Receiver.
    pub to: String,
    /// Login name, expanded; `None` sends without login.
    pub username: Option<String>,
    /// Password, expanded.
    pub password: Option<Secret>,
    /// Encryption.
    pub tls: SmtpTls,
    /// What is sent.
    pub filter: EntryFilter,
}

/// How the connection to the mail server is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SmtpTls {
    /// From the first byte on port 465. Elsewhere by STARTTLS: with a login and another machine only so, else where
    /// the server offers it.
    #[default]
    Auto,
    /// From the first byte.
    Implicit,
    /// By STARTTLS; without it nothing is sent.
    Starttls,
    /// Not at all.
    None,
}

/// One of `notifications.webhooks`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookConfig {
    /// Unique name.
    pub name: String,
    /// Address, http or https, expanded.
    pub url: Secret,
    /// HTTP method in capitals.
    pub method: String,
    /// Headers, valid as such, values expanded.
    pub headers: Vec<(String, Secret)>,
    /// Template of the body as configured.
    pub body: Option<String>,
    /// What is sent.
    pub filter: EntryFilter,
}

/// `push.*`, complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushConfig {
    /// Base URLs of the wardens, http or https, without trailing slash; at least one. The first that answers is used.
    pub warden_urls: Vec<String>,
    /// Bearer token, expanded, never empty.
    pub token: Secret,
    /// Name of this machine in the warden's dashboard; may be empty.
    pub machine_id: String,
    /// Ring of the fleet, 0 to 9.
    pub ring: u8,
    /// How long a machine in ring 1 to 9 waits with an update while no warden answers.
    pub patience: Duration,
}

/// What holds for this machine while no warden answers (DECISIONS 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FleetTerms {
    /// Ring of the fleet, 0 to 9.
    pub ring: u8,
    /// How long a machine in ring 1 to 9 waits with an update.
    pub patience: Duration,
}

/// One service that passed its rules.
#[derive(Debug, Clone, PartialEq)]
// These are the flags of the specification.
#[allow(clippy::struct_excessive_bools)]
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
    /// Service of a swarm, in place of a compose project.
    pub swarm_service: Option<String>,
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
    /// Proven images that are kept of those that this agent deployed, the running one included; 0: all are kept.
    pub keep_images: usize,
    /// When a found image may be deployed; `None`: at once.
    pub update: Option<Arc<UpdateConfig>>,
}

/// `services[].update`: what holds back the start of an update (DECISIONS 7).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpdateConfig {
    /// How long ago this agent must have seen a digest first.
    pub min_age: Option<Duration>,
    /// The hours in which an update may begin.
    pub window: Option<Window>,
    /// Whether a person must approve each digest.
    pub approve: bool,
    /// A program that is asked, with its arguments; empty: none.
    pub gate: Vec<String>,
    /// Public keys of which one must have signed the image; empty: none need be.
    pub signed_by: Vec<PathBuf>,
    /// Newer tags that are looked for.
    pub tags: Option<TagPattern>,
    /// The line of `env_file` that a newer tag is written into.
    pub tag_variable: Option<String>,
}

impl ServiceConfig {
    /// What compose is given; `None` where the service has no project or no files.
    pub fn project(&self) -> Option<Project> {
        let name = self.compose_project.clone()?;
        let files = self.compose_files.clone();
        (!files.is_empty()).then(|| Project {
            name,
            files,
            env_file: self.env_file.clone(),
            set: BTreeMap::new(),
            health_grace: self.health_grace,
        })
    }

    /// Where newer tags are written; `None` where they are only told.
    pub fn tag_variable(&self) -> Option<TagVariable<'_>> {
        let update = self.update.as_deref().filter(|_| self.auto_update && self.swarm_service.is_none())?;
        let (name, pattern) = (update.tag_variable.as_deref()?, update.tags.as_ref()?);
        Some(TagVariable { name, file: self.env_file.as_deref()?, pattern })
    }

    /// The images whose tag the variable is: those that are configured with the same tag as the first one that has a
    /// version.
    pub fn images_of_variable(&self) -> impl Iterator<Item = &ConfiguredImage> {
        let has_version = |tag: &String| self.tag_variable().is_some_and(|v| v.pattern.can_compare(tag));
        let tags = self.images.iter().filter_map(|image| image.moving_tag());
        let tag = tags.into_iter().find(|tag| has_version(tag));
        self.images.iter().filter(move |image| tag.is_some() && image.moving_tag() == tag)
    }

    /// Whether the variable is the tag of this image.
    pub fn is_of_variable(&self, configured: &str) -> bool {
        self.images_of_variable().any(|image| image.configured == configured)
    }

    /// Whether there is something that new images can be deployed to.
    pub fn can_deploy(&self) -> bool {
        self.swarm_service.is_some() || self.project().is_some()
    }

    /// Whether poll cycles check anything of it: its images, its compose files, or whether it runs.
    pub fn is_polled(&self) -> bool {
        (self.auto_update || self.auto_start || self.compose_watch) && !self.silent
    }
}

/// `tag_variable`: the variable of `env_file` that stands for a tag in the compose files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagVariable<'a> {
    /// Its name.
    pub name: &'a str,
    /// The file that sets it.
    pub file: &'a Path,
    /// Which tags it may get.
    pub pattern: &'a TagPattern,
}

/// An image reference as its user wrote it, and what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredImage {
    /// As configured; the key in maps (DECISIONS 4).
    pub configured: String,
    /// Normal form.
    pub reference: Reference,
}

impl ConfiguredImage {
    /// Its tag, unless it is pinned to a digest.
    fn moving_tag(&self) -> Option<&String> {
        self.reference.tag.as_ref().filter(|_| !self.reference.is_pinned())
    }
}

/// What the tests of the rules have in common.
#[cfg(test)]
mod testing {
    use std::path::Path;

    use serde_json::Value;

    use super::{Config, ConfigFaults, Configuration, Env};

    pub(super) fn parse(tree: &Value, env: Env<'_>) -> Result<Config, ConfigFaults> {
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
