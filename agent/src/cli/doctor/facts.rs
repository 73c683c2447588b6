//! What is known of a service as it runs now, for the checks of services.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use evenkeel_common::config::source;

use crate::config::{ConfiguredImage, ServiceConfig, in_container};
use crate::model::env_file::find_tag;
use crate::model::probe::Answer;
use crate::model::{ComposeError, Container, Difference, Model, Reference};
use crate::ports::Image;
use crate::service::gates::candidate::SnapshotSeen;

pub(super) const AREA: &str = "services";
/// Whether a failed update could be rolled back.
pub(super) const WAY_BACK: &str = "rollback";

/// The files that compose uses by default, and the override files that it adds.
const DEFAULT_FILES: [&str; 4] = ["compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"];
const OVERRIDES: [&str; 4] = [
    "compose.override.yaml",
    "compose.override.yml",
    "docker-compose.override.yaml",
    "docker-compose.override.yml",
];

/// Facts about one service.
pub(super) struct Facts<'a> {
    pub(super) config: &'a ServiceConfig,
    /// Its containers, each with its image.
    pub(super) containers: Vec<Running>,
    /// Its rendered compose files; `None` if there are none.
    pub(super) model: Option<Result<Model, ComposeError>>,
    /// How what the files define differs from what runs.
    pub(super) differences: Vec<Difference>,
    /// The host paths of bind mounts that are no directories.
    pub(super) bound_files: BTreeSet<String>,
    /// The data that an update copies first, or why it can't be; `None` if none is configured, or if unknown.
    pub(super) data: Option<Result<SnapshotSeen, String>>,
    /// What its probe was answered, by container; empty for the probe's own address, and without a probe.
    pub(super) probed: Vec<(String, Answer)>,
    /// Its compose files compared with those of its containers.
    pub(super) files: Files,
    /// The tag in the env file for the images of `tag_variable`; `None` if unknown.
    pub(super) tag: Option<String>,
}

impl Facts<'_> {
    /// Returns the reference that containers of an image should use; `None` if its tag is unknown.
    pub(super) fn in_force(&self, image: &ConfiguredImage) -> Option<Reference> {
        if self.config.is_of_variable(&image.configured) {
            self.tag.as_deref().map(|tag| image.reference.with_tag(tag))
        } else {
            Some(image.reference.clone())
        }
    }
}

/// Returns the tag that a variable in an env file is set to.
pub(super) fn tag_in_force(file: &Path, variable: &str) -> Option<String> {
    Some(find_tag(&source::read(file).ok()?, variable).ok()?.tag)
}

/// A container and its image.
pub(super) struct Running {
    pub(super) container: Container,
    /// The image; `None` if it is gone or can't be inspected.
    pub(super) image: Option<Image>,
    /// Whether the registry has the running image; `None` if it was not asked or gave no answer.
    pub(super) served: Option<bool>,
}

/// Compose files compared by their real paths.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Files {
    /// Files of the containers that are not configured.
    pub(super) unnamed: Vec<PathBuf>,
    /// Files of the containers that are not accessible here.
    pub(super) unseen: Vec<PathBuf>,
    /// Whether the containers use at least one configured file.
    pub(super) share: bool,
    /// An override file next to the configured file, which compose uses when run manually.
    pub(super) by_hand: Option<PathBuf>,
    /// Whether this program runs in a container, where paths may differ from those on the engine's machine.
    pub(super) in_container: bool,
}

impl Files {
    /// Compares the files. `labelled` are those in the labels of the containers.
    pub(super) fn look(configured: &[PathBuf], labelled: &BTreeSet<PathBuf>) -> Self {
        let real = |path: &PathBuf| path.canonicalize().ok();
        let known: Vec<Option<PathBuf>> = configured.iter().map(real).collect();
        let is_known = |path: &PathBuf| {
            configured.contains(path) || real(path).is_some_and(|real| known.contains(&Some(real)))
        };
        let (named, others): (Vec<&PathBuf>, Vec<&PathBuf>) =
            labelled.iter().partition(|path| is_known(path));
        let (unnamed, unseen) =
            others.into_iter().cloned().partition(|path| path.is_absolute() && path.is_file());
        let by_hand = match configured {
            [only] if only.file_name().is_some_and(|name| DEFAULT_FILES.iter().any(|file| name == *file)) => {
                let folder = only.parent().unwrap_or(Path::new("/"));
                let beside = OVERRIDES.iter().map(|name| folder.join(name));
                beside.into_iter().find(|path| path.is_file() && !labelled.contains(path))
            }
            _ => None,
        };
        Self { unnamed, unseen, share: !named.is_empty(), by_hand, in_container: in_container() }
    }

    /// Reports whether the containers were made from files that are accessible here, and that are not the configured ones.
    pub(super) fn are_others(&self) -> bool {
        !self.share && self.unseen.is_empty() && !self.unnamed.is_empty()
    }
}

pub(super) fn live<'a>(facts: &'a Facts<'_>) -> impl Iterator<Item = &'a Running> + Clone {
    facts.containers.iter().filter(|one| one.container.is_live())
}

/// Returns the containers whose health decides about a new image of the service.
pub(super) fn judged<'a>(facts: &'a Facts<'_>) -> impl Iterator<Item = &'a Running> {
    let images: Vec<Reference> =
        facts.config.images.iter().filter_map(|image| facts.in_force(image)).collect();
    let updates = facts.config.auto_update;
    live(facts)
        .filter(move |one| updates && images.iter().any(|reference| one.container.is_made_from(reference)))
}
