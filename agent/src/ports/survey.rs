//! The whole host, for `doctor` and `adopt`: the engine and all containers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;

use crate::model::{EngineError, Origin};

/// Engine queries that are not limited to the configured services.
#[async_trait]
pub trait Survey: Send + Sync + 'static {
    /// Returns information about the engine.
    async fn about(&self) -> Result<EngineInfo, EngineError>;

    /// Returns all containers, sorted by name.
    async fn all_containers(&self) -> Result<Vec<ListedContainer>, EngineError>;

    /// Makes a call, and returns the status of the answer, whatever it is. `path` has the query, but no version.
    async fn try_call(&self, method: &str, path: &str, body: &str) -> Result<u16, EngineError>;
}

/// Engine information, as reported by the engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineInfo {
    /// Its release, for example `28.5.2`; empty while unknown.
    pub version: String,
    /// The API version in use.
    pub api: String,
    /// Whether Evenkeel was tested with that API version.
    pub is_tested: bool,
    /// Whether it is podman.
    pub is_podman: bool,
    /// Its data directory, on its own host.
    pub data_folder: Option<PathBuf>,
    /// Registries that it uses without TLS, as named in image references. Loopback registries are not listed.
    pub insecure_registries: Vec<String>,
    /// The networks whose registries it uses without TLS, as `address/bits`.
    pub insecure_networks: Vec<String>,
    /// URLs of the mirrors of Docker Hub that it asks first.
    pub mirrors: Vec<String>,
    /// URL of the proxy through which it reaches registries, without a login.
    pub proxy: Option<String>,
}

/// A container as the engine lists it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListedContainer {
    /// Name without the leading slash.
    pub name: String,
    /// Whether it runs, and is neither paused nor waiting to be restarted.
    pub is_running: bool,
    /// The image reference it was created from, or an image ID once that tag has moved.
    pub image: String,
    /// All its labels.
    pub labels: BTreeMap<String, String>,
    /// Its compose project; `None` if compose did not create it.
    pub project: Option<String>,
    /// Where compose created it.
    pub origin: Origin,
}
