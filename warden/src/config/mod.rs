//! The warden's configuration as checked values (spec 2.10, DECISIONS 2). Every fault is fatal: a warden that takes
//! a wrong token for a right one is worse than none.

use std::path::PathBuf;

use evenkeel_common::secret::Secret;

mod file;
mod load;

pub use evenkeel_common::config::expand::Env;
pub use evenkeel_common::config::{ConfigFaults, ConfigSource, Configuration};
pub use load::{schema, web_url};

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
    /// Agents, ids and tokens unique.
    pub agents: Vec<AgentConfig>,
    /// What is wrong without being fatal, each `<key>: <reason>`.
    pub warnings: Vec<String>,
}

/// `store`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreConfig {
    /// Entries that arrived longer ago are removed. Days, 1 to 36,500.
    pub keep_days: u32,
    /// The oldest entries are removed when their text is larger. MiB, 1 to 1,048,576.
    pub keep_mib: u32,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self { keep_days: 90, keep_mib: 2048 }
    }
}

/// One of `agents`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentConfig {
    /// Display name.
    pub id: String,
    /// Base URL, http or https, expanded, without trailing slash. It may hold a secret.
    pub url: Secret,
    /// Token that the agent pushes with, expanded, never empty.
    pub token: Secret,
}
