//! The shape of the configuration file: keys, types, ranges, defaults (spec 2.9). Its docs are the JSON
//! Schema's descriptions.
//!
//! What breaks a type or range is reported and taken out before these types are made, so every field has a
//! default (so `required` has to be said to the schema), and an element of an array that was wrong is `None` in
//! its place.

use std::collections::BTreeMap;

use evenkeel_common::config::shape::one_or_many;
use evenkeel_common::secret::Secret;
use evenkeel_common::wire::{Kind, Level};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Runtime, SmtpTls};

/// Elements of an array that may be wrong one by one.
pub(super) type Items<T> = Vec<Option<T>>;

/// Configuration of Evenkeel's agent.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(title = "Evenkeel agent configuration")]
pub(super) struct AgentFile {
    /// Which engine to talk to, and which executable runs `compose`.
    pub(super) runtime: Runtime,
    /// The local image registry.
    pub(super) registry: RegistryFile,
    /// HTTP API and dashboard.
    pub(super) api: ApiFile,
    /// Audit file.
    pub(super) audit: AuditFile,
    /// Durable state.
    pub(super) state: StateFile,
    /// Measurements of CPU and memory.
    pub(super) monitor: MonitorFile,
    /// Checks of the container engine.
    pub(super) docker_health: DockerHealthFile,
    /// Notification channels; each is off unless it is given.
    pub(super) notifications: NotificationsFile,
    /// Forwarding of audit entries to a warden.
    pub(super) push: PushFile,
    /// The services that the agent keeps.
    #[schemars(with = "Vec<ServiceFile>")]
    pub(super) services: Items<ServiceFile>,
}

impl Default for AgentFile {
    fn default() -> Self {
        Self {
            runtime: Runtime::Docker,
            registry: RegistryFile::default(),
            api: ApiFile::default(),
            audit: AuditFile::default(),
            state: StateFile::default(),
            monitor: MonitorFile::default(),
            docker_health: DockerHealthFile::default(),
            notifications: NotificationsFile::default(),
            push: PushFile::default(),
            services: Vec::new(),
        }
    }
}

/// `registry`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct RegistryFile {
    /// Base URL, `http(s)://host[:port]`, without a login. Images that name no registry belong to its host.
    pub(super) url: String,
    /// Seconds between two poll cycles.
    #[schemars(range(min = 10, max = 86400))]
    pub(super) poll_interval: u64,
    /// Do not verify the certificate of this one registry (for self-signed ones only).
    pub(super) insecure: bool,
    /// Requests under way at once, for each registry.
    #[schemars(range(min = 1, max = 256))]
    pub(super) concurrency: u64,
}

impl Default for RegistryFile {
    fn default() -> Self {
        Self { url: "http://localhost:5000".into(), poll_interval: 300, insecure: false, concurrency: 8 }
    }
}

/// `api`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct ApiFile {
    /// Listen addresses, each `host:port`. The host is an IP address (v6 in brackets), `localhost`, or empty for all
    /// interfaces; the port is 1 to 65535. The API has no login: keep it on loopback, or behind a proxy that asks for
    /// one. An address that other machines reach gives a warning. One that another entry covers already gives a
    /// warning and is left out.
    #[schemars(with = "Vec<String>", length(min = 1))]
    pub(super) address: Items<String>,
    /// Further names that a request's `Host` may carry, for example that of a reverse proxy. No scheme, port or
    /// wildcard.
    #[schemars(with = "Vec<String>")]
    pub(super) allowed_hosts: Items<String>,
}

impl Default for ApiFile {
    fn default() -> Self {
        Self { address: vec![Some("127.0.0.1:9090".into())], allowed_hosts: Vec::new() }
    }
}

/// `audit`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct AuditFile {
    /// Absolute path of the audit file (JSON Lines), created if missing. Empty for none: `GET /audit` is then `[]`,
    /// and everything else goes on.
    pub(super) path: String,
}

/// `state`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct StateFile {
    /// Absolute path of the folder for durable state; empty for `$STATE_DIRECTORY` (which systemd sets), else
    /// `/var/lib/evenkeel`. Where it can't be written, the agent runs from memory and says so in `config_warnings`.
    pub(super) path: String,
}

/// `monitor`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct MonitorFile {
    /// Seconds between two measurements; without it that of `registry.poll_interval`.
    #[schemars(range(min = 1, max = 86400))]
    pub(super) stats_interval: Option<u64>,
}

/// `docker_health`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct DockerHealthFile {
    /// Seconds between two checks of the engine.
    #[schemars(range(min = 5, max = 3600))]
    pub(super) check_interval: u64,
    /// Seconds that one check may take; less than `check_interval`.
    #[schemars(range(min = 1, max = 30))]
    pub(super) timeout: u64,
}

impl Default for DockerHealthFile {
    fn default() -> Self {
        Self { check_interval: 30, timeout: 5 }
    }
}

/// `notifications`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct NotificationsFile {
    /// Discord chat.
    pub(super) discord: Option<DiscordFile>,
    /// Mail.
    pub(super) smtp: Option<SmtpFile>,
    /// HTTP requests of your own.
    #[schemars(with = "Vec<WebhookFile>")]
    pub(super) webhooks: Items<WebhookFile>,
}

/// `notifications.discord`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["webhook_url"]))]
pub(super) struct DiscordFile {
    /// The channel's webhook URL; `$NAME` and `${NAME}` are taken from the environment.
    #[schemars(length(min = 1))]
    pub(super) webhook_url: Secret,
    /// Entries below this level are not sent; all are without it.
    pub(super) min_level: Option<Level>,
    /// Kinds of entries that are sent; all without it.
    #[schemars(with = "Option<Vec<String>>")]
    pub(super) events: Option<Items<Kind>>,
}

/// `notifications.smtp`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["host", "port", "from", "to"]))]
pub(super) struct SmtpFile {
    /// Mail server.
    #[schemars(length(min = 1))]
    pub(super) host: String,
    /// Its port.
    #[schemars(range(min = 1, max = 65535))]
    pub(super) port: u16,
    /// Sender's address.
    #[schemars(length(min = 1))]
    pub(super) from: String,
    /// Receivers' addresses, separated by commas.
    #[schemars(length(min = 1))]
    pub(super) to: String,
    /// Login name; `$NAME` and `${NAME}` are taken from the environment. Without it there is no login.
    pub(super) username: String,
    /// Password; `$NAME` and `${NAME}` are taken from the environment.
    pub(super) password: Secret,
    /// Encryption of the connection.
    pub(super) tls: SmtpTls,
    /// Entries below this level are not sent; all are without it.
    pub(super) min_level: Option<Level>,
    /// Kinds of entries that are sent; all without it.
    #[schemars(with = "Option<Vec<String>>")]
    pub(super) events: Option<Items<Kind>>,
}

/// One of `notifications.webhooks`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["name", "url", "method"]))]
pub(super) struct WebhookFile {
    /// Unique name.
    #[schemars(length(min = 1))]
    pub(super) name: String,
    /// Address; `$NAME` and `${NAME}` are taken from the environment.
    #[schemars(length(min = 1))]
    pub(super) url: Secret,
    /// HTTP method, for example POST.
    #[schemars(length(min = 1))]
    pub(super) method: String,
    /// Headers; `$NAME` and `${NAME}` in values are taken from the environment.
    pub(super) headers: BTreeMap<String, Secret>,
    /// Template of the body, with the fields `service`, `event`, `message`, `reason`, `old_digest`, `new_digest`,
    /// `container`, `timestamp`, `level`, `machine`. Without it the whole entry is sent as JSON.
    pub(super) body: Option<String>,
    /// Entries below this level are not sent; all are without it.
    pub(super) min_level: Option<Level>,
    /// Kinds of entries that are sent; all without it.
    #[schemars(with = "Option<Vec<String>>")]
    pub(super) events: Option<Items<Kind>>,
}

/// `push`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct PushFile {
    /// Base URL of the warden, or a list of which the first that answers is used; empty disables the push.
    #[schemars(schema_with = "one_or_many")]
    pub(super) warden_url: Items<String>,
    /// The token that the warden knows this agent by, not empty where there is a warden; `$NAME` and `${NAME}` are taken from the environment.
    pub(super) token: Secret,
    /// Name of this machine in the warden's dashboard.
    pub(super) machine_id: String,
    /// Which ring of the fleet this machine is in: a new image goes to ring 0 first, and to the others when the warden
    /// lets them.
    #[schemars(range(min = 0, max = 9))]
    pub(super) ring: u8,
    /// Seconds that a machine in ring 1 to 9 waits with an update while no warden answers.
    #[schemars(range(min = 0, max = 31_536_000))]
    pub(super) patience: u64,
}

impl Default for PushFile {
    fn default() -> Self {
        Self {
            warden_url: Vec::new(),
            token: Secret::default(),
            machine_id: String::new(),
            ring: 0,
            patience: 86_400,
        }
    }
}

/// One of `services`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["name"]))]
// These are the flags of the specification.
#[allow(clippy::struct_excessive_bools)]
pub(super) struct ServiceFile {
    /// Unique name, used in API paths, metric labels, notifications. Of two services with one name the first stays.
    #[schemars(regex(pattern = "^[a-zA-Z0-9_.-]{1,64}$"))]
    pub(super) name: String,
    /// Image references; needed for `auto_update`. `web:latest` belongs to `registry.url`, `ghcr.io/a/b:1` is asked
    /// for at that host. A reference with a digest is never updated.
    #[schemars(with = "Vec<String>")]
    pub(super) images: Items<String>,
    /// No validation, no polling, no measurements, no `containers` in the status; the healer still acts when
    /// `auto_heal` is on.
    pub(super) silent: bool,
    /// Absolute paths, applied in order; needed for `auto_update`.
    #[schemars(with = "Vec<String>")]
    pub(super) compose_files: Items<String>,
    /// Name of the compose project, `^[a-zA-Z0-9_-]{1,64}$`; needed for `auto_update`. Compose itself refuses capitals
    /// and a leading `-` or `_`: such a name gives a warning.
    pub(super) compose_project: String,
    /// Container that the service consists of where there is no compose project, or where that has no container.
    pub(super) container_name: String,
    /// Service of a swarm, as `docker service ls` names it, in place of `compose_files`, `compose_project` and
    /// `container_name`; with exactly one of `images`. The engine must be a manager. `auto_start`, `auto_heal` and
    /// `compose_watch` have no meaning there: the swarm does that itself.
    pub(super) swarm_service: String,
    /// Absolute path of a file with variables for compose. They go into compose's environment, never into the
    /// agent's.
    pub(super) env_file: String,
    /// Poll the registry and deploy new images.
    pub(super) auto_update: bool,
    /// Start the project when nothing of it runs and there is no update; `down` and `up` for containers that are
    /// stuck in created or restarting.
    pub(super) auto_start: bool,
    /// Restart what is unhealthy or fell over. Where several services share a compose project, each container is
    /// healed by one of them: the first by name with `auto_heal` that lists its image, or else the first with
    /// `auto_heal`.
    pub(super) auto_heal: bool,
    /// Redeploy when the content of the compose files changes.
    pub(super) compose_watch: bool,
    /// Percent of CPU; an alert is raised when the service as a whole, or one of its containers, is above it. 0 for
    /// none.
    #[schemars(range(min = 0))]
    pub(super) cpu_threshold: f64,
    /// The same for memory, each container by its own limit; 0 for none.
    #[schemars(range(min = 0))]
    pub(super) memory_threshold: f64,
    /// Seconds that a new image is on probation; longer where its own health check needs longer.
    #[schemars(range(min = 0, max = 31_536_000))]
    pub(super) health_grace: u64,
    /// Seconds at least between two automatic restarts, and between two resource alerts.
    #[schemars(range(min = 0, max = 31_536_000))]
    pub(super) heal_cooldown: u64,
    /// Restarts in a row that did not help before the healer gives up.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub(super) heal_max_restarts: u32,
    /// Images that stay on this machine of those that were deployed and proven, for each image; 0 keeps all.
    #[schemars(range(min = 0, max = 50))]
    pub(super) keep_images: u64,
    /// When a found image may be deployed. Without it: at once.
    pub(super) update: Option<UpdateFile>,
}

/// `services[].update`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct UpdateFile {
    /// Seconds that must have passed since this agent, or its fleet, first saw the image in its registry; 0 for none.
    #[schemars(range(min = 0, max = 31_536_000))]
    pub(super) min_age: u64,
    /// When updates may begin: one range or several, for example "Mon-Fri 02:00-05:00" or "22:00-04:00" (every day).
    #[schemars(schema_with = "one_or_many", default)]
    pub(super) window: Option<Items<String>>,
    /// Time zone of the window, for example Europe/Vienna; empty for the machine's.
    pub(super) timezone: String,
    /// A person must approve each new image.
    pub(super) approve: bool,
    /// A program that is asked, and its arguments: 0 lets the update go, 75 holds it back.
    #[schemars(with = "Option<Vec<String>>", length(min = 1))]
    pub(super) gate: Option<Items<String>>,
    /// Absolute path of a cosign public key, or several: one of them must have signed the image.
    #[schemars(schema_with = "one_or_many", default)]
    pub(super) signed_by: Option<Items<String>>,
    /// Newer tags to look for: a range of versions ("~1.27") or a pattern ("1.27.*-alpine").
    pub(super) tags: String,
    /// The variable in `env_file` that is the tag in the compose files. A newer tag is written there and deployed.
    pub(super) tag_variable: String,
}

impl Default for ServiceFile {
    fn default() -> Self {
        Self {
            name: String::new(),
            images: Vec::new(),
            silent: false,
            compose_files: Vec::new(),
            compose_project: String::new(),
            container_name: String::new(),
            swarm_service: String::new(),
            env_file: String::new(),
            auto_update: false,
            auto_start: false,
            auto_heal: false,
            compose_watch: false,
            cpu_threshold: 0.0,
            memory_threshold: 0.0,
            health_grace: 60,
            heal_cooldown: 300,
            heal_max_restarts: 3,
            keep_images: 3,
            update: None,
        }
    }
}
