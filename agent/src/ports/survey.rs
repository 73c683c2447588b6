//! The machine as a whole, as `doctor` and `adopt` look at it: which engine this is, and what runs on it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;

use crate::model::EngineError;

/// What is asked of an engine besides the services that are configured.
#[async_trait]
pub trait Survey: Send + Sync + 'static {
    /// What the engine says of itself.
    async fn about(&self) -> Result<EngineInfo, EngineError>;

    /// Every container that runs, sorted by name.
    async fn running(&self) -> Result<Vec<Found>, EngineError>;
}

/// An engine, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineInfo {
    /// Its release, for example `28.5.2`; empty while unknown.
    pub version: String,
    /// The version of its API that it is spoken to in.
    pub api: String,
    /// Whether this program was tested with that version.
    pub is_tested: bool,
    /// Whether it is podman.
    pub is_podman: bool,
    /// Where it keeps images and containers, on its own machine.
    pub data_folder: Option<PathBuf>,
    /// Registries that it speaks to without TLS, as references name them. Those on loopback are not listed.
    pub insecure_registries: Vec<String>,
}

/// A container of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// Name without the leading slash.
    pub name: String,
    /// The reference that it was made from, or an image ID once that tag has moved.
    pub image: String,
    /// All its labels.
    pub labels: BTreeMap<String, String>,
    /// What compose noted about it; `None` outside compose.
    pub origin: Option<Origin>,
}

/// What compose notes about a container besides its files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    /// The project.
    pub project: String,
    /// The folder that relative paths in its files are relative to.
    pub folder: Option<PathBuf>,
    /// The files that were named with `--env-file`.
    pub env_files: Vec<PathBuf>,
}
