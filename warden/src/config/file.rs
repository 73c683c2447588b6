//! The shape of the configuration file: keys, types, ranges, defaults (spec 2.10). The doc comments become the descriptions
//! in the JSON Schema.
//!
//! Values with a wrong type or range are reported and removed before deserialization. So every field has a default, and an
//! invalid array element becomes `None`.

use evenkeel_common::config::shape::seconds;
use evenkeel_common::secret::Secret;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{FuseRule, Rules, StoreConfig};

/// Elements of an array; an invalid one is `None`.
pub(super) type Items<T> = Vec<Option<T>>;

/// Configuration of Evenkeel's warden.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(title = "Evenkeel warden configuration", extend("required" = ["api"]))]
pub(super) struct WardenFile {
    /// The HTTP server and its data.
    pub(super) api: ApiFile,
    /// Where entries and decisions are stored, and for how long.
    pub(super) store: StoreFile,
    /// Which machines update first.
    pub(super) rings: RingsFile,
    /// How many machines may deploy the same image at once; unlimited by default.
    #[schemars(range(min = 1, max = 10_000))]
    pub(super) max_at_once: Option<u32>,
    /// When the warden freezes the whole fleet automatically.
    pub(super) fuse: FuseFile,
    /// The agents of the fleet.
    #[schemars(with = "Vec<AgentFile>")]
    pub(super) agents: Items<AgentFile>,
}

/// `api`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["token"]))]
pub(super) struct ApiFile {
    /// Listen port on all interfaces, 1 to 65535; 8080 unless it or `address` is given.
    pub(super) port: Option<String>,
    /// Listen addresses, each `host:port`, instead of `port`. The host is an IP address (v6 in brackets), `localhost`,
    /// or empty for all interfaces.
    #[schemars(with = "Option<Vec<String>>", length(min = 1))]
    pub(super) address: Option<Items<String>>,
    /// Path below which everything is served, for a reverse proxy that serves several programs under one name, for example
    /// `/warden`: letters, digits, `-`, `_`, `.` and `~`. `/health` is also served without it.
    pub(super) base_path: String,
    /// Token for users, in the browser and elsewhere; `$NAME` and `${NAME}` are taken from the environment.
    #[schemars(length(min = 1))]
    pub(super) token: Secret,
    /// Absolute path of the folder that keeps entries and decisions across restarts; if empty, they are kept in memory only.
    /// A state file of an earlier version at this path is imported.
    pub(super) state_path: String,
}

/// `store`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct StoreFile {
    /// URL of a PostgreSQL database (13 or later) that stores everything and can be shared by several wardens:
    /// `postgres://user:password@host:5432/database?sslmode=verify-full`. Without it, the store is in `api.state_path`.
    /// `$NAME` and `${NAME}` are taken from the environment.
    #[schemars(length(min = 1))]
    pub(super) url: Option<Secret>,
    /// Entries older than this, counted from their arrival, are removed. Days.
    #[schemars(range(min = 1, max = 36500))]
    pub(super) keep_days: u32,
    /// When the text of all entries exceeds this size, the oldest entries of the agent with the most text are removed. MiB.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub(super) keep_mib: u32,
}

impl Default for StoreFile {
    fn default() -> Self {
        let StoreConfig { url: _, keep_days, keep_mib } = StoreConfig::default();
        Self { url: None, keep_days, keep_mib }
    }
}

/// `rings`: an agent's `push.ring` sets its ring.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct RingsFile {
    /// How long an image must be proven in lower rings before the next ring may deploy it. Seconds.
    #[schemars(schema_with = "seconds::<0, 604_800>")]
    pub(super) soak: u32,
    /// On how many machines in lower rings it must be proven; 0 disables rings.
    #[schemars(range(min = 0, max = 10_000))]
    pub(super) need: u32,
}

impl Default for RingsFile {
    fn default() -> Self {
        let Rules { soak, need, .. } = Rules::default();
        Self { soak, need }
    }
}

/// `fuse`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct FuseFile {
    /// How many different images must be rolled back to freeze the fleet; 0 disables the fuse.
    #[schemars(range(min = 0, max = 1000))]
    pub(super) rollbacks: u32,
    /// The time within which these rollbacks must happen. Seconds.
    #[schemars(schema_with = "seconds::<60, 604_800>")]
    pub(super) within: u32,
    /// How long the fleet is then frozen. Seconds.
    #[schemars(schema_with = "seconds::<60, 2_592_000>")]
    pub(super) freeze: u32,
}

impl Default for FuseFile {
    fn default() -> Self {
        let FuseRule { rollbacks, within, freeze } = FuseRule::default();
        Self { rollbacks, within, freeze }
    }
}

/// One of `agents`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["id", "token"]))]
pub(super) struct AgentFile {
    /// Name in the dashboard; unique.
    #[schemars(length(min = 1))]
    pub(super) id: String,
    /// Base URL of the agent's API, for the heartbeat; `$NAME` and `${NAME}` are taken from the environment. Without it, the
    /// agent counts as online while it polls the warden.
    #[schemars(length(min = 1))]
    pub(super) url: Option<Secret>,
    /// Token that the agent pushes with (its `push.token`); unique; `$NAME` and `${NAME}` are taken from the environment.
    #[schemars(length(min = 1))]
    pub(super) token: Secret,
}
