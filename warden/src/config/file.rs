//! The shape of the configuration file: keys, types, ranges, defaults (spec 2.10). Its docs are the JSON Schema's
//! descriptions.
//!
//! What breaks a type or range is reported and taken out before these types are made, so every field has a default,
//! and an element of an array that was wrong is `None` in its place.

use evenkeel_common::secret::Secret;
use schemars::JsonSchema;
use serde::Deserialize;

use super::StoreConfig;

/// Elements of an array that may be wrong one by one.
pub(super) type Items<T> = Vec<Option<T>>;

/// Configuration of Evenkeel's warden.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(title = "Evenkeel warden configuration", extend("required" = ["api"]))]
pub(super) struct WardenFile {
    /// HTTP server and what belongs to it.
    pub(super) api: ApiFile,
    /// How much is kept.
    pub(super) store: StoreFile,
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
    /// Entries that arrived longer ago are removed. Days.
    #[schemars(range(min = 1, max = 36500))]
    pub(super) keep_days: u32,
    /// The oldest entries are removed when the text of all is larger. MiB.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub(super) keep_mib: u32,
}

impl Default for StoreFile {
    fn default() -> Self {
        let StoreConfig { keep_days, keep_mib } = StoreConfig::default();
        Self { keep_days, keep_mib }
    }
}

/// One of `agents`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["id", "url", "token"]))]
pub(super) struct AgentFile {
    /// Name in the dashboard; unique.
    #[schemars(length(min = 1))]
    pub(super) id: String,
    /// Base URL of the agent's API, for the heartbeat; `$NAME` and `${NAME}` are taken from the environment.
    #[schemars(length(min = 1))]
    pub(super) url: Secret,
    /// Token that the agent pushes with (its `push.token`); unique; `$NAME` and `${NAME}` are taken from the environment.
    #[schemars(length(min = 1))]
    pub(super) token: Secret,
}
