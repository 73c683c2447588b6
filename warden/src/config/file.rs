//! The shape of the configuration file: keys, types, ranges, defaults (spec 2.10). Its docs are the JSON Schema's
//! descriptions.
//!
//! What breaks a type or range is reported and taken out before these types are made, so every field has a default,
//! and an element of an array that was wrong is `None` in its place.

use evenkeel_common::secret::Secret;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{FuseRule, Rules, StoreConfig};

/// Elements of an array that may be wrong one by one.
pub(super) type Items<T> = Vec<Option<T>>;

/// Configuration of Evenkeel's warden.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(title = "Evenkeel warden configuration", extend("required" = ["api"]))]
pub(super) struct WardenFile {
    /// HTTP server and what belongs to it.
    pub(super) api: ApiFile,
    /// Where entries and decisions are kept, and how much.
    pub(super) store: StoreFile,
    /// Which machines update first.
    pub(super) rings: RingsFile,
    /// Machines that may deploy the same image at once; no limit without it.
    #[schemars(range(min = 1, max = 10_000))]
    pub(super) max_at_once: Option<u32>,
    /// When the warden freezes the whole fleet by itself.
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
    /// Token that people need, in the browser and elsewhere; `$NAME` and `${NAME}` are taken from the environment.
    #[schemars(length(min = 1))]
    pub(super) token: Secret,
    /// Absolute path of the folder that keeps entries and decisions over a restart; empty keeps them in memory only. A
    /// file of an earlier version in its place is taken over.
    pub(super) state_path: String,
}

/// `store`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct StoreFile {
    /// URL of a PostgreSQL database (13 or later) that keeps everything, for several wardens at once:
    /// `postgres://user:password@host:5432/database?sslmode=verify-full`. Without it the store is in `api.state_path`.
    /// `$NAME` and `${NAME}` are taken from the environment.
    #[schemars(length(min = 1))]
    pub(super) url: Option<Secret>,
    /// Entries that arrived longer ago are removed. Days.
    #[schemars(range(min = 1, max = 36500))]
    pub(super) keep_days: u32,
    /// The oldest entries are removed when the text of all is larger. MiB.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub(super) keep_mib: u32,
}

impl Default for StoreFile {
    fn default() -> Self {
        let StoreConfig { url: _, keep_days, keep_mib } = StoreConfig::default();
        Self { url: None, keep_days, keep_mib }
    }
}

/// `rings`: an agent's `push.ring` says which one it is in.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct RingsFile {
    /// How long an image must be proven in lower rings before the next one goes. Seconds.
    #[schemars(range(min = 0, max = 604_800))]
    pub(super) soak: u32,
    /// On how many machines of lower rings; 0 switches rings off.
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
    /// After so many rollbacks of different images; 0 switches it off.
    #[schemars(range(min = 0, max = 1000))]
    pub(super) rollbacks: u32,
    /// Within this time. Seconds.
    #[schemars(range(min = 60, max = 604_800))]
    pub(super) within: u32,
    /// For how long the fleet is then frozen. Seconds.
    #[schemars(range(min = 60, max = 2_592_000))]
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
    /// Base URL of the agent's API, for the heartbeat; `$NAME` and `${NAME}` are taken from the environment. Without it the
    /// agent is online while it polls the warden.
    #[schemars(length(min = 1))]
    pub(super) url: Option<Secret>,
    /// Token that the agent pushes with (its `push.token`); unique; `$NAME` and `${NAME}` are taken from the environment.
    #[schemars(length(min = 1))]
    pub(super) token: Secret,
}
