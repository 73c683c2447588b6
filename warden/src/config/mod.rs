//! The warden's configuration as validated values (spec 2.10, DECISIONS 2). Only some faults are fatal (DECISIONS 6);
//! others are warnings.

use std::path::PathBuf;

use evenkeel_common::http::BasePath;
use evenkeel_common::secret::Secret;

mod file;
mod load;
mod store_url;

pub use evenkeel_common::config::expand::Env;
pub use evenkeel_common::config::{ConfigErrors, ConfigSource, Configuration};
pub use load::{SHORT_TOKEN, schema, web_url};
pub use store_url::{StoreUrl, Verify};

/// Listen port if the file sets neither a port nor addresses (spec 2.10).
pub const DEFAULT_PORT: u16 = 8080;

/// A valid configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Validated `host:port` strings; an empty host means all interfaces.
    pub addresses: Vec<String>,
    /// Path below which everything is served.
    pub base_path: BasePath,
    /// Token for users, expanded, never empty.
    pub token: Secret,
    /// Folder of the embedded store; `None` keeps everything in memory only.
    pub state_path: Option<PathBuf>,
    /// Where entries are stored, and for how long.
    pub store: StoreConfig,
    /// `rings` and `max_at_once`
    pub rules: Rules,
    /// `fuse`
    pub fuse: FuseRule,
    /// Agents; ids are unique.
    pub agents: Vec<AgentConfig>,
    /// How many more agents the file lists, which are left out because of a fault. A second list, or one under a misspelt
    /// key, counts as one.
    pub left_out: usize,
    /// Faults that are not fatal, each `<key>: <reason>`.
    pub warnings: Vec<String>,
}

impl Config {
    /// Returns the ids of the agents.
    pub fn ids(&self) -> impl Iterator<Item = String> + '_ {
        self.agents.iter().map(|agent| agent.id.clone())
    }
}

/// `store`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// PostgreSQL, expanded; `None` for the embedded store.
    pub url: Option<StoreUrl>,
    /// Entries that arrived longer ago are removed. Days, 1 to 36,500.
    pub keep_days: u32,
    /// When the text of all entries is larger, the oldest of the agent with the most text are removed. MiB, 1 to 1,048,576.
    pub keep_mib: u32,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self { url: None, keep_days: 90, keep_mib: 2048 }
    }
}

/// One of `agents`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentConfig {
    /// Display name.
    pub id: String,
    /// Base URL, http or https, expanded, without trailing slash. It may contain a secret. `None` for an agent that cannot be
    /// reached: it counts as online while it polls.
    pub url: Option<Secret>,
    /// Token that the agent pushes with, expanded, never empty.
    pub token: Secret,
}

/// `rings` and `max_at_once`: which machines wait for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// How long a digest must be proven in lower rings. Seconds.
    pub soak: u32,
    /// On how many machines; 0 disables rings.
    pub need: u32,
    /// How many machines may deploy the same image at once; `None` for no limit.
    pub max_at_once: Option<u32>,
}

impl Default for Rules {
    fn default() -> Self {
        Self { soak: 1800, need: 1, max_at_once: None }
    }
}

/// `fuse`: when the whole fleet is frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FuseRule {
    /// How many distinct images must be rolled back; 0 disables the fuse.
    pub rollbacks: u32,
    /// The time within which they are rolled back. Seconds.
    pub within: u32,
    /// How long the freeze lasts. Seconds.
    pub freeze: u32,
}

impl Default for FuseRule {
    fn default() -> Self {
        Self { rollbacks: 3, within: 3600, freeze: 86_400 }
    }
}
