//! The warden's configuration as checked values (spec 2.10, DECISIONS 2). Every fault is fatal: a warden that takes
//! a wrong token for a right one is worse than none.

use std::path::PathBuf;

use evenkeel_common::secret::Secret;

mod file;
mod load;
mod store_url;

pub use evenkeel_common::config::expand::Env;
pub use evenkeel_common::config::{ConfigFaults, ConfigSource, Configuration};
pub use load::{SHORT_TOKEN, schema, web_url};
pub use store_url::{StoreUrl, Verify};

/// Listen port where the file names neither port nor addresses (spec 2.10).
pub const DEFAULT_PORT: u16 = 8080;

/// A configuration that passed every rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `host:port` texts, each checked; an empty host means all interfaces.
    pub addresses: Vec<String>,
    /// Token for people, expanded, never empty.
    pub token: Secret,
    /// Folder of the embedded store; `None` keeps everything in memory only.
    pub state_path: Option<PathBuf>,
    /// What is kept, and where.
    pub store: StoreConfig,
    /// `rings` and `max_at_once`
    pub rules: Rules,
    /// `fuse`
    pub fuse: FuseRule,
    /// Agents, ids and tokens unique.
    pub agents: Vec<AgentConfig>,
    /// What is wrong without being fatal, each `<key>: <reason>`.
    pub warnings: Vec<String>,
}

/// `store`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// PostgreSQL, expanded; `None` for the embedded store.
    pub url: Option<StoreUrl>,
    /// Entries that arrived longer ago are removed. Days, 1 to 36,500.
    pub keep_days: u32,
    /// The oldest entries are removed when their text is larger. MiB, 1 to 1,048,576.
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
    /// Base URL, http or https, expanded, without trailing slash. It may hold a secret. `None` for an agent that cannot be
    /// reached: it is online while it polls.
    pub url: Option<Secret>,
    /// Token that the agent pushes with, expanded, never empty.
    pub token: Secret,
}

/// `rings` and `max_at_once`: who waits for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// How long a digest must be proven in lower rings. Seconds.
    pub soak: u32,
    /// On how many machines; 0 switches rings off.
    pub need: u32,
    /// Machines that may deploy the same image at once; `None` without a limit.
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
    /// After so many rollbacks of distinct images; 0 never.
    pub rollbacks: u32,
    /// Within so many seconds.
    pub within: u32,
    /// For so many seconds.
    pub freeze: u32,
}

impl Default for FuseRule {
    fn default() -> Self {
        Self { rollbacks: 3, within: 3600, freeze: 86_400 }
    }
}
