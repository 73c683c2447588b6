//! Builds services of the configuration from running containers, with remarks on everything that can't be adopted.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use super::labels::{self, Labels, Wish};
use crate::model::errors::is_not_in_registry;
use crate::model::handover::asked;
use crate::model::image::LOCAL_HOST;
use crate::model::{
    Container, Digest, Model, ModelService, Obstacle, Order, Origin, Reference, RegistryError, RestartPolicy,
};

/// Maximum length of the name of a service and of a project (spec 2.9).
const LONGEST_NAME: usize = 64;

/// A service in the configuration file.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Service {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) images: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) compose_files: Vec<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) compose_project: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) env_file: Option<PathBuf>,
    pub(super) auto_update: bool,
    pub(super) auto_heal: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) update: Option<Update>,
}

/// Gates of a service in the configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Update {
    pub(super) approve: bool,
}

/// A service, if one can be built, and remarks about it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Described {
    pub(super) service: Option<Service>,
    pub(super) remarks: Vec<String>,
}

/// A compose file listed in a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileSeen {
    /// The path in the label.
    pub(super) named: PathBuf,
    /// The path for the configuration, or why the file can't be used.
    pub(super) usable: Result<PathBuf, String>,
}

impl FileSeen {
    /// Looks up the file; a relative path is relative to the project's folder.
    pub(super) fn look(named: &Path, folder: Option<&Path>) -> Self {
        let path = folder.map_or_else(|| named.to_owned(), |folder| folder.join(named));
        let usable = match path.canonicalize() {
            Ok(real) if !real.is_file() => Err("is not a file".to_owned()),
            Ok(real) => {
                let is_plain = path.is_absolute()
                    && !path.components().any(|part| part == Component::ParentDir)
                    && !path.symlink_metadata().is_ok_and(|about| about.is_symlink());
                let usable = if is_plain { path.clone() } else { real };
                // An agent running as this user could not open the file either.
                std::fs::File::open(&usable)
                    .map(|_| usable)
                    .map_err(|error| crate::model::text::describe_io_error(&error))
            }
            Err(error) => Err(crate::model::text::describe_io_error(&error)),
        };
        Self { named: named.to_owned(), usable }
    }
}

/// Whether a registry has the image of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InRegistry {
    Yes,
    /// The image was built or loaded on this machine, or the registry no longer has its tag.
    No,
    /// The registry could not be asked, with the reason.
    Unknown(String),
}

impl InRegistry {
    /// What the answer for the digest of an image says.
    pub(super) fn of(answer: Result<Digest, RegistryError>) -> Self {
        match answer {
            Ok(_) => Self::Yes,
            Err(RegistryError(why)) if is_not_in_registry(&why) => Self::No,
            Err(RegistryError(why)) => Self::Unknown(why),
        }
    }
}

/// A container of a project.
pub(super) struct Runs {
    pub(super) container: Container,
    pub(super) in_registry: InRegistry,
    pub(super) labels: Labels,
}

/// A running compose project.
pub(super) struct Project {
    pub(super) name: String,
    pub(super) origin: Origin,
    /// Its compose files in order.
    pub(super) files: Vec<FileSeen>,
    /// Whether its containers were created from different lists of files.
    pub(super) lists_differ: bool,
    pub(super) runs: Vec<Runs>,
    /// The rendered compose files; `None` before they are rendered.
    pub(super) rendered: Option<Result<Model, String>>,
    /// The host paths of bind mounts that are no directories.
    pub(super) bound_files: BTreeSet<String>,
    /// The labels with which containers on this machine opt in.
    pub(super) opt_in: Vec<&'static str>,
}

impl Project {
    fn wish(&self, one: &Runs) -> Wish {
        labels::wish(&one.container.config_image, &one.labels, &self.opt_in)
    }

    /// Reports whether the rendered files contain the service of this container; true before they are rendered.
    fn renders(&self, one: &Runs) -> bool {
        match &self.rendered {
            Some(Ok(model)) => model.service(&one.container.compose_service).is_some(),
            Some(Err(_)) | None => true,
        }
    }

    /// Returns the images that the rendered files build. Other compose services may use them, too.
    fn built(&self) -> BTreeSet<Reference> {
        let Some(Ok(model)) = &self.rendered else { return BTreeSet::new() };
        let is_built =
            |service: &ModelService<'_>| service.element().get("build").is_some_and(|build| !build.is_null());
        let named = model.services().filter(is_built).filter_map(ModelService::image);
        // The files need not name the image of a service that is built.
        let of_service =
            |one: &&Runs| model.service(&one.container.compose_service).is_some_and(|it| is_built(&it));
        let unnamed = self.runs.iter().filter(of_service);
        named.chain(unnamed.filter_map(|one| Reference::parse(&one.container.config_image).ok())).collect()
    }
}

/// A container outside compose.
pub(super) struct Alone {
    pub(super) container: Container,
    pub(super) is_of_swarm: bool,
    pub(super) labels: Labels,
    /// The labels with which containers on this machine opt in.
    pub(super) opt_in: Vec<&'static str>,
}

/// Builds the service of a container outside compose: it can't be recreated, so it is only healed. `listed` are the services
/// before it: a compose project may have its name.
pub(super) fn alone(single: &Alone, listed: &[Service]) -> Described {
    let name = &single.container.name;
    let without = |why: &str| Described { service: None, remarks: vec![format!("{name}: left out: {why}")] };
    if single.is_of_swarm {
        return without("it belongs to a swarm service");
    }
    if let Some(manager) = &single.container.manager {
        return without(&format!("{manager} manages it"));
    }
    if single.container.restart_policy == RestartPolicy::Removed {
        return without("it is removed when it ends");
    }
    if let Wish::Exclude(why) = labels::wish(&single.container.config_image, &single.labels, &single.opt_in) {
        return without(&why);
    }
    if labels::is_of_kamal(name, &single.labels) {
        return without("Kamal manages it");
    }
    let mut own_name = name.clone();
    while listed.iter().any(|other| other.name == own_name) {
        own_name.push_str("-container");
    }
    if own_name.len() > LONGEST_NAME {
        return without("its name is too long");
    }
    let mut remarks =
        vec![format!("{name}: it belongs to no compose project: restarted when unhealthy, but not updated")];
    if own_name != *name {
        remarks.push(format!("{name}: listed as {own_name}: another service has its name"));
    }
    let service =
        Service { name: own_name, container_name: Some(name.clone()), auto_heal: true, ..Service::default() };
    Described { service: Some(service), remarks }
}

/// Builds the service of a compose project.
pub(super) fn project(project: &Project) -> Described {
    let name = &project.name;
    let mut remarks = Vec::new();
    let mut remark = |text: String| remarks.push(format!("{name}: {text}"));
    if let Some(manager) = project.runs.iter().find_map(|one| one.container.manager.as_ref()) {
        remark(format!("left out: {manager} manages its containers"));
        return Described { service: None, remarks };
    }
    if name.len() > LONGEST_NAME {
        remark(format!("left out: its name has more than {LONGEST_NAME} characters"));
        return Described { service: None, remarks };
    }
    let wishes: Vec<Wish> = project.runs.iter().map(|one| project.wish(one)).collect();
    if let Some(Wish::Exclude(why)) = wishes.first()
        && wishes.iter().all(|wish| matches!(wish, Wish::Exclude(_)))
    {
        remark(format!("left out: {why}"));
        return Described { service: None, remarks };
    }
    let compose_files = files(project, &mut remark);
    let images = images(project, &mut remark);
    let env_file =
        if compose_files.is_empty() { None } else { env_file(project, &compose_files, &mut remark) };
    unrendered(project, &mut remark);
    uninterrupted(project, &mut remark);
    let auto_update = !images.is_empty() && !compose_files.is_empty();
    let asks = wishes.iter().find_map(|wish| if let Wish::Ask(label) = wish { Some(label) } else { None });
    if let Some(label) = asks.filter(|_| auto_update) {
        remark(format!(
            "updates wait for an approval (`evenkeel approve {name}`), because of the label {label}"
        ));
    }
    if !auto_update {
        remark("it is restarted when unhealthy, but not updated".to_owned());
    }
    let service = Service {
        name: name.clone(),
        images: if auto_update { images } else { Vec::new() },
        compose_files,
        compose_project: Some(name.clone()),
        container_name: None,
        env_file,
        auto_update,
        auto_heal: !auto_update,
        update: asks.filter(|_| auto_update).map(|_| Update { approve: true }),
    };
    Described { service: Some(service), remarks }
}

/// Returns the compose files; none if one of them can't be used.
fn files(project: &Project, remark: &mut impl FnMut(String)) -> Vec<PathBuf> {
    if project.files.is_empty() {
        remark("its containers do not say which compose files they were created from".to_owned());
    }
    if project.lists_differ {
        remark(
            "its containers were created from different compose files; of the lists whose first file exists, the longest is used".to_owned(),
        );
    }
    let mut usable = Vec::new();
    let mut complete = true;
    for FileSeen { named, usable: found } in &project.files {
        match found {
            Ok(path) => {
                if path != named {
                    remark(format!("compose file {} is adopted as {}", named.display(), path.display()));
                }
                usable.push(path.clone());
            }
            Err(why) => {
                complete = false;
                remark(format!("compose file {} can't be used: it {why}", named.display()));
            }
        }
    }
    if complete { usable } else { Vec::new() }
}

/// Returns the images that are available in a registry, without duplicates, in the order of their containers.
fn images(project: &Project, remark: &mut impl FnMut(String)) -> Vec<String> {
    let mut images: Vec<String> = Vec::new();
    // An update of an image is one of all containers that use it.
    let excluded: BTreeSet<Reference> = project
        .runs
        .iter()
        .filter(|one| matches!(project.wish(one), Wish::Exclude(_)))
        .filter_map(|one| Reference::parse(&one.container.config_image).ok())
        .collect();
    let built = project.built();
    for one in project.runs.iter().filter(|one| project.renders(one)) {
        let Runs { container, in_registry, labels } = one;
        let service = &container.compose_service;
        let Ok(reference) = Reference::parse(&container.config_image) else {
            remark(format!("{service}: its image no longer has a name ({})", container.config_image));
            continue;
        };
        let text = reference.to_string();
        if images.contains(&text) {
            continue;
        }
        let others = labels::not_taken_over(labels);
        if !others.is_empty() {
            remark(format!("{service}: not taken over: the labels {}", others.join(", ")));
        }
        match in_registry {
            _ if excluded.contains(&reference) => {
                let why = match project.wish(one) {
                    Wish::Exclude(why) => why,
                    Wish::Update | Wish::Ask(_) => "another container with this image is left out".to_owned(),
                };
                remark(format!("{service}: left out: {why}"));
                continue;
            }
            _ if reference.is_pinned() => {
                remark(format!("{service}: {text} is pinned to a digest and never updated"));
            }
            InRegistry::Yes => images.push(text),
            InRegistry::No => remark(format!(
                "{service}: {text} is not in its registry (built or loaded on this machine?) and is not updated"
            )),
            // The engine may give these a digest like that of an image which was pulled, and Docker Hub asks for a login where it
            // has no such repository.
            InRegistry::Unknown(why)
                if built.contains(&reference) || reference.repository.host == LOCAL_HOST =>
            {
                remark(format!(
                    "{service}: {text} is built on this machine, and its registry does not say that it has it ({why}): it is not \
                     updated"
                ));
            }
            InRegistry::Unknown(why) => {
                remark(format!("{service}: {why}; `evenkeel doctor` shows how to fix it"));
                images.push(text);
            }
        }
        if labels::is_database(container)
            && images.last().is_some_and(|last| last.contains(&reference.repository.path))
        {
            remark(format!(
                "{service}: {} looks like a database with a volume: a rollback restores the image, not the data; use a tag \
                 that stays on one major version, and consider \"update\": {{\"approve\": true}}",
                container.config_image
            ));
        }
    }
    images
}

/// Returns the env file, unless compose finds it by default.
fn env_file(project: &Project, files: &[PathBuf], remark: &mut impl FnMut(String)) -> Option<PathBuf> {
    let beside = files.first().and_then(|file| file.parent());
    let default = beside.map(|folder| folder.join(".env"));
    let named: Vec<&PathBuf> =
        project.origin.env_files.iter().filter(|file| Some(*file) != default.as_ref()).collect();
    match named.as_slice() {
        [one] if one.is_absolute() && one.is_file() => Some((*one).clone()),
        [one] => {
            remark(format!("env file {} can't be used: it does not exist", one.display()));
            None
        }
        // The agent finds several in the labels of the containers.
        [..] => None,
    }
}

/// Adds a remark if updates could be without an interruption.
fn uninterrupted(project: &Project, remark: &mut impl FnMut(String)) {
    let Some(Ok(model)) = &project.rendered else { return };
    let containers: Vec<Container> = project.runs.iter().map(|one| one.container.clone()).collect();
    let asked_for = asked(model, &containers, None, &project.bound_files);
    let possible = asked(model, &containers, Some(Order::StartFirst), &project.bound_files);
    let is_new = |(service, obstacle): &(&String, &Option<Obstacle>)| {
        let has_check =
            |one: &Runs| one.container.compose_service == **service && one.container.health_timing.is_some();
        obstacle.is_none() && !asked_for.contains_key(*service) && project.runs.iter().any(has_check)
    };
    let names: Vec<&str> = possible.iter().filter(is_new).map(|(service, _)| service.as_str()).collect();
    if !names.is_empty() {
        remark(format!(
            "updates of {} could be without an interruption: set deploy.update_config.order: start-first in the compose file \
             (see \"Handover\" in the manual)",
            names.join(", ")
        ));
    }
    for (service, obstacle) in asked_for.iter().filter_map(|(service, why)| Some((service, why.as_ref()?))) {
        remark(format!(
            "{service}: it is to start first and can't: it has {}; {}",
            obstacle.line(),
            obstacle.remedy()
        ));
    }
}

/// Adds a remark if the files can't be rendered, or if a running service is not in them.
fn unrendered(project: &Project, remark: &mut impl FnMut(String)) {
    match &project.rendered {
        None => {}
        Some(Err(why)) => remark(format!("compose can't use its compose files: {why}")),
        Some(Ok(_)) => {
            let left_out = project.runs.iter().filter(|one| !project.renders(one));
            let mut missing: Vec<&str> = left_out.map(|one| one.container.compose_service.as_str()).collect();
            missing.dedup();
            if !missing.is_empty() {
                remark(format!("left out because they are no longer in the files: {}", missing.join(", ")));
            }
        }
    }
}

#[cfg(test)]
#[path = "describe_tests.rs"]
mod tests;
