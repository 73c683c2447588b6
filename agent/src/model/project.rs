//! Compose projects and the options of `up`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::compose::Model;

/// Which containers `up` recreates or starts.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpMode {
    /// Recreate only containers that have changed.
    Changed,
    /// Recreate all containers (`--force-recreate`).
    All,
    /// Create and change nothing, only start existing containers (`compose start`).
    #[serde(alias = "nothing")]
    StartOnly,
    /// Like [`StartOnly`](Self::StartOnly), for these compose services only.
    StartServices(Vec<String>),
    /// Recreate the containers of one compose service, and leave all others alone (`--no-deps`).
    #[serde(alias = "only")]
    ForceService(String),
    /// Recreate changed containers of these compose services only (`--no-deps`).
    #[serde(alias = "alone")]
    Services(Vec<String>),
    /// Like [`Services`](Self::Services), but override the number of containers of some services (`--scale`).
    ScaledServices {
        /// The compose services.
        names: Vec<String>,
        /// Number of containers by compose service.
        replicas: BTreeMap<String, usize>,
        /// Whether their dependencies are passed on to compose, too (no `--no-deps`).
        #[serde(default)]
        with_dependencies: bool,
        /// Whether existing containers stay as they are, and only missing ones are created (`--no-recreate`).
        #[serde(default)]
        keeps_containers: bool,
    },
}

/// Which images `up` may pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// None (`--pull never`): for a rollback, and whenever all required images are present.
    Never,
    /// Those that are missing on this machine (`--pull missing`). A tag that resolves locally is not updated.
    Missing,
}

impl UpMode {
    /// Returns the compose services passed to compose; empty for the whole project.
    pub fn services(&self) -> &[String] {
        match self {
            UpMode::Changed | UpMode::All | UpMode::StartOnly => &[],
            UpMode::ForceService(service) => std::slice::from_ref(service),
            UpMode::Services(names) | UpMode::StartServices(names) | UpMode::ScaledServices { names, .. } => {
                names
            }
        }
    }

    /// Reports whether existing containers are only started.
    pub fn starts_only(&self) -> bool {
        matches!(self, UpMode::StartOnly | UpMode::StartServices(_))
    }

    /// Reports whether the mode is limited to a list of services that is empty.
    pub fn is_for_none(&self) -> bool {
        !matches!(self, UpMode::Changed | UpMode::All | UpMode::StartOnly) && self.services().is_empty()
    }
}

/// Where a person's `compose up` took a project from, according to the labels of its containers (DECISIONS 4a).
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Origin {
    /// The project directory, which relative paths in the files refer to; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// The env files for interpolation (`--env-file`, or `.env` in the project directory).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_files: Vec<PathBuf>,
}

/// A compose project as configured, and as it was started.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Project {
    /// Its name (`-p`).
    pub name: String,
    /// Its files in order (`-f`).
    pub files: Vec<PathBuf>,
    /// File whose variables are added to compose's environment.
    pub env_file: Option<PathBuf>,
    /// Variables that override those of the file: the tag being deployed, even if the file has changed meanwhile.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// `health_grace`, added to the timeout of `up`.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub health_grace: Duration,
    /// The project directory; `None`: the directory of the first file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// Env files for interpolation, in order; empty: `.env` in the project directory, if there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_files: Vec<PathBuf>,
    /// Time that the containers to be replaced get to stop, added to the timeout of `up`.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub stop_grace: Duration,
    /// Time that compose may wait for health checks and jobs which others of the services depend on, and for hooks, added to the
    /// timeout of `up`.
    #[serde(skip)]
    pub wait_grace: Duration,
    /// Numbers of containers that are kept although the files say otherwise (`--scale`), by compose service.
    #[serde(skip)]
    pub kept_counts: BTreeMap<String, usize>,
    /// The compose services of the whole project, for modes without services; empty: those that compose finds. It does not
    /// find those of a profile that a person has named (`--profile`).
    #[serde(skip)]
    pub all_services: Vec<String>,
    /// The profiles that compose is called with (`--profile`). Then the services have to be named, since compose would bring
    /// up all of these profiles, and those of `COMPOSE_PROFILES` do not count.
    #[serde(skip)]
    pub profiles: BTreeSet<String>,
    /// The compose services that have containers, where these are known. If compose can't render all services, it renders these.
    #[serde(skip)]
    pub present: Vec<String>,
    /// Whether compose names containers with `_`, as with `--compatibility`, or with `-`; `None`: as it does by itself.
    #[serde(skip)]
    pub compatibility: Option<bool>,
    /// A definition that is used in place of the files.
    #[serde(skip)]
    pub definition: Option<Arc<Model>>,
}

impl Project {
    /// Returns the project as a person has started it, as far as the configuration does not say otherwise.
    #[must_use]
    pub fn as_started(mut self, origin: Option<&Origin>) -> Self {
        if let Some(origin) = origin {
            // Tools that use compose as a library label all their containers with the root.
            self.folder = origin.folder.clone().filter(|folder| folder.parent().is_some());
            self.env_files.clone_from(&origin.env_files);
            // Beside the variables of a file that the project was not started with, compose reads `.env` only.
            if self.env_file.as_ref().is_some_and(|file| !origin.env_files.contains(file)) {
                let default = self.default_env_file();
                self.env_files.retain(|file| Some(file) == default.as_ref());
            }
        }
        self
    }

    /// Returns the project directory.
    pub fn directory(&self) -> Option<&Path> {
        self.folder.as_deref().or_else(|| self.files.first()?.parent())
    }

    /// Returns `.env` in the project directory, which compose reads if no env file is named, and does without if it is absent.
    pub fn default_env_file(&self) -> Option<PathBuf> {
        Some(self.directory()?.join(".env"))
    }

    /// Returns the project defined by `model` in place of its files.
    #[must_use]
    pub fn defined_by(self, model: Arc<Model>) -> Self {
        Self { definition: Some(model), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_no_project_directory() {
        let started = |folder: &str| {
            let origin = Origin { folder: Some(folder.into()), env_files: Vec::new() };
            let project = Project { files: vec!["/srv/shop/compose.yml".into()], ..Project::default() };
            project.as_started(Some(&origin)).folder
        };
        assert_eq!(started("/srv/shop"), Some("/srv/shop".into()));
        assert_eq!(started("/"), None, "it is the directory of the first file");
    }

    #[test]
    fn an_env_file_that_the_project_was_started_with_replaces_the_default_one() {
        let origin = Origin { folder: Some("/srv".into()), env_files: vec!["/srv/prod.env".into()] };
        let with = |env_file: Option<&str>| {
            let project = Project { env_file: env_file.map(PathBuf::from), ..Project::default() };
            project.as_started(Some(&origin)).env_files
        };
        assert_eq!(with(None), origin.env_files);
        assert_eq!(with(Some("/srv/prod.env")), origin.env_files);
        assert_eq!(with(Some("/srv/other.env")), Vec::<PathBuf>::new(), "the configuration says otherwise");
    }

    #[test]
    fn an_env_file_of_the_configuration_does_not_replace_the_default_one() {
        let with = |folder: Option<&str>| {
            let env_files = vec!["/srv/.env".into(), "/srv/prod.env".into()];
            let origin = Origin { folder: folder.map(PathBuf::from), env_files };
            let files = vec!["/srv/compose.yml".into()];
            let project = Project { files, env_file: Some("/srv/other.env".into()), ..Project::default() };
            project.as_started(Some(&origin)).env_files
        };
        assert_eq!(with(Some("/srv")), [PathBuf::from("/srv/.env")]);
        assert_eq!(with(None), [PathBuf::from("/srv/.env")]);
        assert_eq!(with(Some("/opt")), Vec::<PathBuf>::new(), "it is another directory's");
    }
}
