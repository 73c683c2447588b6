//! A compose project, and what `up` does with it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// What `up` does with containers that need no change.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpMode {
    /// Leave them alone.
    Changed,
    /// Make all anew (`--force-recreate`).
    All,
    /// Make and change nothing, only start what is there (`compose start`).
    #[serde(alias = "nothing")]
    StartOnly,
    /// Make those of one compose service anew, and touch no other (`--no-deps`).
    #[serde(alias = "only")]
    ForceService(String),
    /// Leave alone what needs no change, and all that is not of these compose services (`--no-deps`).
    #[serde(alias = "alone")]
    Services(Vec<String>),
    /// The same, with a number of containers other than the files' for some of them (`--scale`).
    ScaledServices {
        /// The compose services.
        names: Vec<String>,
        /// How many containers each of these keeps.
        replicas: BTreeMap<String, usize>,
    },
}

/// Which images `up` may fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// None (`--pull never`): a rollback, and whatever is given the images that it needs.
    Never,
    /// Those that are not on this machine (`--pull missing`). A tag that names one is left where it is.
    Missing,
}

impl UpMode {
    /// The compose services that compose is told to keep to; none where it has the whole project.
    pub fn services(&self) -> &[String] {
        match self {
            UpMode::Changed | UpMode::All | UpMode::StartOnly => &[],
            UpMode::ForceService(service) => std::slice::from_ref(service),
            UpMode::Services(names) | UpMode::ScaledServices { names, .. } => names,
        }
    }

    /// Whether it is for a list of services, and that is empty.
    pub fn is_for_none(&self) -> bool {
        matches!(self, UpMode::Services(names) | UpMode::ScaledServices { names, .. } if names.is_empty())
    }
}

/// A compose project as configured.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Project {
    /// Its name (`-p`).
    pub name: String,
    /// Its files in order (`-f`).
    pub files: Vec<PathBuf>,
    /// File whose variables are added to compose's environment.
    pub env_file: Option<PathBuf>,
    /// Variables that win over those of the file: the tag that a deployment is about, whatever the file says by then.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// `health_grace`: so much longer `up` may take, which waits for health checks that `depends_on` names.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub health_grace: Duration,
}
