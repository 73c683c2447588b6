//! The structure of the configuration file: keys, types, ranges, defaults (spec 2.9). The doc comments become the
//! descriptions in the JSON Schema.
//!
//! Values of a wrong type or out of range are reported and removed before deserialisation. Therefore every field has a
//! default, required keys are declared in the schema explicitly, and an invalid array element becomes `None`.

use evenkeel_common::config::shape::{one_or_many, seconds};

use evenkeel_common::secret::Secret;
use schemars::JsonSchema;
use serde::Deserialize;

use super::Runtime;
use super::channels::NotificationsFile;
use super::items::Items;
use crate::model::Order;
use crate::model::image_config::Aspect;

/// Configuration of Evenkeel's agent.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(title = "Evenkeel agent configuration")]
pub(super) struct AgentFile {
    /// The container engine to use, and the executable that runs `compose`.
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
    /// Notification channels; each is off unless configured.
    pub(super) notifications: NotificationsFile,
    /// Forwarding of audit entries to a warden.
    pub(super) push: PushFile,
    /// The services that the agent manages.
    #[schemars(with = "Vec<ServiceFile>")]
    pub(super) services: Items<ServiceFile>,
}

/// `registry`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct RegistryFile {
    /// Base URL, `http(s)://host[:port]`, without credentials. Image references without a registry host refer to this
    /// registry.
    pub(super) url: String,
    /// Seconds between two poll cycles.
    #[schemars(schema_with = "seconds::<10, 86400>")]
    pub(super) poll_interval: u64,
    /// Do not verify the TLS certificate of this registry. Use it only for a self-signed certificate.
    pub(super) insecure: bool,
    /// Maximum number of concurrent requests per registry.
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
    /// Listen addresses, each `host:port`. The host is an IP address (IPv6 in brackets), `localhost`, or empty for all
    /// interfaces; the port is 1 to 65535. The API has no authentication: bind it to loopback, or put an authenticating
    /// proxy in front. An address that other machines can reach causes a warning. An address that overlaps with an
    /// earlier entry causes a warning and is ignored.
    #[schemars(with = "Vec<String>", length(min = 1))]
    pub(super) address: Items<String>,
    /// Additional host names accepted in the `Host` header, for example that of a reverse proxy. No scheme, port or
    /// wildcard.
    #[schemars(with = "Vec<String>")]
    pub(super) allowed_hosts: Items<String>,
    /// Path below which everything is served, for a reverse proxy that serves several programs under one name, for example
    /// `/evenkeel`: letters, digits, `-`, `_`, `.` and `~`. `/health` is also served without it.
    pub(super) base_path: String,
}

impl Default for ApiFile {
    fn default() -> Self {
        Self {
            address: vec![Some("127.0.0.1:9090".into())],
            allowed_hosts: Vec::new(),
            base_path: String::new(),
        }
    }
}

/// `audit`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct AuditFile {
    /// Absolute path of the audit file (JSON Lines), created if missing. If empty, there is no audit file and `GET /audit`
    /// returns `[]`; everything else works as usual.
    pub(super) path: String,
}

/// `state`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct StateFile {
    /// Absolute path of the folder for durable state. If empty, `$STATE_DIRECTORY` (set by systemd) is used, or else
    /// `/var/lib/evenkeel`. If the folder can be read but not written, the agent keeps its state in memory only and reports this in
    /// `config_warnings`.
    pub(super) path: String,
}

/// `monitor`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct MonitorFile {
    /// Seconds between two measurements; the default is `registry.poll_interval`.
    #[schemars(schema_with = "seconds::<1, 86400>", default)]
    pub(super) stats_interval: Option<u64>,
}

/// `docker_health`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct DockerHealthFile {
    /// Seconds between two checks of the engine.
    #[schemars(schema_with = "seconds::<5, 3600>")]
    pub(super) check_interval: u64,
    /// Timeout of a check in seconds; must be less than `check_interval`. The default is 5, or less if `check_interval` is 5.
    #[schemars(schema_with = "seconds::<1, 30>", default)]
    pub(super) timeout: Option<u64>,
}

impl Default for DockerHealthFile {
    fn default() -> Self {
        Self { check_interval: 30, timeout: None }
    }
}

/// `push`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct PushFile {
    /// Base URL of the warden, or a list of URLs of which the first that answers is used. Empty disables the push.
    #[schemars(schema_with = "one_or_many")]
    pub(super) warden_url: Items<String>,
    /// Token of this agent at the warden, required with `warden_url`; `$NAME` and `${NAME}` are replaced by environment
    /// variables.
    pub(super) token: Secret,
    /// Name of this machine in notifications and in the warden's dashboard; the default is the host name.
    pub(super) machine_id: String,
    /// Ring of this machine in the fleet. New images are deployed in ring 0 first, and in the other rings when the warden
    /// allows it.
    #[schemars(range(min = 0, max = 9))]
    pub(super) ring: u8,
    /// Seconds that a machine in ring 1 to 9 delays an update while no warden answers, and every machine while the warden's
    /// store is away.
    #[schemars(schema_with = "seconds::<0, 31_536_000>")]
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
    /// Unique name, used in API paths, metric labels and notifications. If two services have the same name, the second is
    /// skipped.
    #[schemars(regex(pattern = "^[a-zA-Z0-9_.-]{1,64}$"))]
    pub(super) name: String,
    /// Image references; required for `auto_update`. `web:latest` refers to `registry.url`, `ghcr.io/a/b:1` to the registry
    /// at that host. A reference with a digest is never updated.
    #[schemars(with = "Vec<String>")]
    pub(super) images: Items<String>,
    /// No validation, no polling, no measurements, no `containers` in the status. The healer still acts if `auto_heal` is
    /// on.
    pub(super) silent: bool,
    /// Absolute paths of the compose files, applied in order; required for `auto_update`.
    #[schemars(with = "Vec<String>")]
    pub(super) compose_files: Items<String>,
    /// Name of the compose project, `^[a-zA-Z0-9_-]{1,64}$`; required for `auto_update`. Compose itself rejects upper-case
    /// letters and a leading `-` or `_`; such a name causes a warning.
    pub(super) compose_project: String,
    /// Name of the service's container if there is no compose project, or if the project has no containers.
    pub(super) container_name: String,
    /// Name of a swarm service, as in `docker service ls`. It replaces `compose_files`, `compose_project` and
    /// `container_name`, and needs exactly one image in `images`. The engine must be a swarm manager. `auto_start`,
    /// `auto_heal` and `compose_watch` have no effect: the swarm does that itself.
    pub(super) swarm_service: String,
    /// Absolute path of a file with variables for compose. They are set in compose's environment, never in the agent's.
    pub(super) env_file: String,
    /// Poll the registry and deploy new images.
    pub(super) auto_update: bool,
    /// Start the project if none of its containers is running and there is no update. Containers stuck in the state created
    /// or restarting are recreated, and no others.
    pub(super) auto_start: bool,
    /// Restart containers that are unhealthy or have crashed. If several services share a compose project, each container
    /// is healed by one of them: the first by name with `auto_heal` that lists its image, or else the first with
    /// `auto_heal`.
    pub(super) auto_heal: bool,
    /// Redeploy when the content of the compose files changes.
    pub(super) compose_watch: bool,
    /// CPU threshold in percent. An alert is raised when a container uses more of its CPU limit (without one: of all cores of
    /// the machine), or the whole service uses more of all cores. 0 disables the alert.
    #[schemars(range(min = 0))]
    pub(super) cpu_threshold: f64,
    /// Memory threshold in percent; each container is measured against its own limit. 0 disables the alert.
    #[schemars(range(min = 0))]
    pub(super) memory_threshold: f64,
    /// Probation of a new image in seconds; it is extended if the health check needs longer.
    #[schemars(schema_with = "seconds::<0, 31_536_000>")]
    pub(super) health_grace: u64,
    /// Minimum number of seconds between two automatic restarts, and between two resource alerts.
    #[schemars(schema_with = "seconds::<0, 31_536_000>")]
    pub(super) heal_cooldown: u64,
    /// Number of consecutive restarts that did not help after which the healer gives up.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub(super) heal_max_restarts: u32,
    /// Number of deployed and proven versions of each image to keep on this machine; 0 keeps all.
    #[schemars(range(min = 0, max = 50))]
    pub(super) keep_images: u64,
    /// Gates for new images. Without this object, a new image is deployed immediately.
    pub(super) update: Option<UpdateFile>,
}

/// The schema of `ask_on`: a list, a single one, or true for all.
fn aspects(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let names = Aspect::ALL.map(Aspect::name);
    schemars::json_schema!({
        "type": ["array", "string", "boolean"], "items": {"type": "string", "enum": names}, "minItems": 1,
    })
}

/// `services[].update`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct UpdateFile {
    /// Minimum age of an image in seconds since this agent, or its fleet, first saw it in the registry; 0 disables the gate.
    #[schemars(schema_with = "seconds::<0, 31_536_000>")]
    pub(super) min_age: u64,
    /// Time ranges in which updates may begin: one or several, for example "Mon-Fri 02:00-05:00" or "22:00-04:00" (every
    /// day).
    #[schemars(schema_with = "one_or_many", default)]
    pub(super) window: Option<Items<String>>,
    /// Time zone of the window, for example Europe/Vienna; the default is the machine's time zone.
    pub(super) timezone: String,
    /// Require manual approval of each new image.
    pub(super) approve: bool,
    /// Program to run before an update, with its arguments. Exit status 0 allows the update, 75 defers it.
    #[schemars(with = "Option<Vec<String>>", length(min = 1))]
    pub(super) gate: Option<Items<String>>,
    /// Absolute path of a cosign public key, or a list of paths: one of the keys must have signed the image.
    #[schemars(schema_with = "one_or_many", default)]
    pub(super) signed_by: Option<Items<String>>,
    /// Repositories that a signature may name instead of the image's own, for example `ghcr.io/acme/web` for a mirror of it.
    #[schemars(schema_with = "one_or_many", default)]
    pub(super) signed_for: Option<Items<String>>,
    /// Newer tags to look for: a version range ("~1.27") or a pattern ("1.27.*-alpine").
    pub(super) tags: String,
    /// The variable in `env_file` that holds the tag used in the compose files. A newer tag is written there and deployed.
    pub(super) tag_variable: String,
    /// Programs to run before and after a deployment, with their arguments.
    pub(super) hooks: Option<HooksFile>,
    /// Seconds after an update is proven in which a failing service is rolled back, as on probation; 0 disables this.
    #[schemars(schema_with = "seconds::<0, 31_536_000>")]
    pub(super) watch: u64,
    /// Differences between the configurations of the new and the running image that need an approval, or true for all.
    #[schemars(schema_with = "aspects", default)]
    pub(super) ask_on: Option<Items<Aspect>>,
    /// What a new container must answer before its image counts as proven, in addition to its health check.
    pub(super) probe: Option<ProbeFile>,
    /// Whether the new containers start beside the old ones, which serve until the new ones are proven: `start_first` for
    /// all compose services without writable volumes for which the compose file does not say `stop-first`, or `stop_first` for
    /// none. The default is what the compose file says (`deploy.update_config.order`).
    #[schemars(schema_with = "order", default)]
    pub(super) order: Option<Order>,
    /// How the old containers are relieved of their requests before they are stopped.
    pub(super) drain: Option<DrainFile>,
    /// What is copied before an update and put back with the image, or just the list of it.
    #[schemars(schema_with = "snapshot")]
    pub(super) snapshot: Option<SnapshotFile>,
}

/// The schema of `snapshot`: a list stands for an object with `of` only.
fn snapshot(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = SnapshotFile::json_schema(generator);
    schema.insert("type".to_owned(), serde_json::json!(["object", "array", "null"]));
    schema.insert("items".to_owned(), serde_json::json!({"type": "string"}));
    schema
}

/// `services[].update.snapshot`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct SnapshotFile {
    /// Volumes as the compose file names them, and absolute directories that containers mount. May be left out if `hooks.before`
    /// saves the data.
    #[schemars(schema_with = "one_or_many", default)]
    pub(super) of: Items<String>,
    /// How many copies of proven updates are kept, and how often the data of failed ones.
    #[schemars(range(min = 1, max = 100))]
    pub(super) keep: u64,
    /// How many MiB may be copied at most; copies that share their blocks with the data do not count.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub(super) max_mib: u64,
}

impl Default for SnapshotFile {
    fn default() -> Self {
        Self { of: Vec::new(), keep: 2, max_mib: 20_480 }
    }
}

/// The schema of `order`.
fn order(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": ["string", "null"], "enum": ["start_first", "start-first", "stop_first", "stop-first", null],
    })
}

/// `services[].update.drain`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct DrainFile {
    /// Program to run in each old container, with its arguments. One with a health check is then awaited until it is
    /// unhealthy, so that a proxy sends it no more requests.
    #[schemars(with = "Option<Vec<String>>", length(min = 1))]
    pub(super) exec: Option<Items<String>>,
    /// Program to run on this machine, afterwards.
    #[schemars(with = "Option<Vec<String>>", length(min = 1))]
    pub(super) command: Option<Items<String>>,
    /// Program to run in an old container that is to serve again.
    #[schemars(with = "Option<Vec<String>>", length(min = 1))]
    pub(super) undo: Option<Items<String>>,
    /// Seconds that requests in progress get to finish, before the old containers are stopped.
    #[schemars(schema_with = "seconds::<0, 3_600>")]
    pub(super) wait: u64,
    /// Time limit in seconds of each program, and of becoming unhealthy.
    #[schemars(schema_with = "seconds::<1, 3_600>")]
    pub(super) timeout: u64,
}

impl Default for DrainFile {
    fn default() -> Self {
        Self { exec: None, command: None, undo: None, wait: 0, timeout: 30 }
    }
}

/// `services[].update.hooks`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct HooksFile {
    /// Runs before anything is stopped. If it fails, nothing is deployed.
    #[schemars(with = "Option<Vec<String>>", length(min = 1))]
    pub(super) before: Option<Items<String>>,
    /// Runs after an update is proven.
    #[schemars(with = "Option<Vec<String>>", length(min = 1))]
    pub(super) after: Option<Items<String>>,
    /// Runs after a rollback is proven.
    #[schemars(with = "Option<Vec<String>>", length(min = 1))]
    pub(super) rolled_back: Option<Items<String>>,
    /// Time limit of each program in seconds.
    #[schemars(schema_with = "seconds::<1, 86_400>")]
    pub(super) timeout: u64,
}

impl Default for HooksFile {
    fn default() -> Self {
        Self { before: None, after: None, rolled_back: None, timeout: 600 }
    }
}

/// `services[].update.probe`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct ProbeFile {
    /// Port and path of a `GET` request, for example ":8080/health". With `from` only the path is used.
    #[schemars(length(min = 1))]
    pub(super) http: Option<String>,
    /// The same with TLS.
    #[schemars(length(min = 1))]
    pub(super) https: Option<String>,
    /// Port of a TCP connection, in place of `http` and `https`.
    #[schemars(range(min = 1, max = 65535))]
    pub(super) tcp: Option<u16>,
    /// Status codes that count as a success: codes and ranges, separated by commas. Redirects are not followed.
    pub(super) status: String,
    /// Name in the `Host` header and in TLS; the default is the address that is asked.
    #[schemars(length(min = 1))]
    pub(super) host: Option<String>,
    /// Accept any certificate.
    pub(super) insecure_skip_verify: bool,
    /// Seconds between two requests.
    #[schemars(schema_with = "seconds::<1, 3600>")]
    pub(super) interval: u64,
    /// Seconds that an answer may take.
    #[schemars(schema_with = "seconds::<1, 3600>")]
    pub(super) timeout: u64,
    /// The compose service whose containers are asked; the default is every one whose image has changed.
    #[schemars(length(min = 1))]
    pub(super) service: Option<String>,
    /// What is asked in place of each new container: an absolute URL without a path for HTTP, `host:port` for TCP.
    #[schemars(length(min = 1))]
    pub(super) from: Option<String>,
}

impl Default for ProbeFile {
    fn default() -> Self {
        Self {
            http: None,
            https: None,
            tcp: None,
            status: "200-399".to_owned(),
            host: None,
            insecure_skip_verify: false,
            interval: 2,
            timeout: 5,
            service: None,
            from: None,
        }
    }
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
