//! `adopt`: creates a configuration from the labels of the containers running on this machine. `describe` builds the
//! services; this file gathers the facts and prints the result, with remarks on standard error.

mod describe;
mod labels;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use evenkeel_common::cli::eprint_line;
use evenkeel_common::config::{ConfigSource, Configuration as _};
use serde::Serialize;
use tokio::time::timeout;

use self::describe::{Alone, Described, FileSeen, InRegistry, Project, Runs, Service};
use self::labels::Labels;
use super::terminal::print;
use crate::app::clients::{EngineClients, RegistryClients};
use crate::config::{Config, in_container};
use crate::model::image::digests_in;
use crate::model::{Container, EngineError, Members, Origin, Project as ComposeProject, Reference};
use crate::ports::Urgency;
use crate::ports::survey::ListedContainer;
use crate::project::definition::bound_files;
use crate::project::files::{Offload, follow_moved};

/// Timeout of one request to a registry or of one run of compose.
const REQUEST_LIMIT: Duration = Duration::from_secs(15);

/// Where the packages expect the audit file.
const AUDIT_FILE: &str = "/var/log/evenkeel/audit.jsonl";

/// What to adopt.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Only this compose project [default: all projects and single containers]
    project: Option<String>,
}

/// The printed configuration.
#[derive(Serialize)]
struct File {
    /// Taken from the current configuration file, or the default of the packages.
    audit: AuditPart,
    #[serde(skip_serializing_if = "Option::is_none")]
    registry: Option<RegistryPart>,
    services: Vec<Service>,
}

#[derive(Serialize)]
struct AuditPart {
    path: PathBuf,
}

#[derive(Serialize)]
struct RegistryPart {
    url: String,
}

/// Prints the configuration. 0: it has at least one service; 1: it has none, or the engine does not answer.
pub(super) fn perform(args: &Args, config: &Path) -> ExitCode {
    let outcome = match super::block_on(adopt(args.project.as_deref(), config)) {
        Ok(outcome) => outcome,
        Err(code) => return code,
    };
    match outcome {
        Ok(file) if file.services.is_empty() => {
            match &args.project {
                Some(project) => {
                    eprint_line(format_args!(
                        "evenkeel: no running container of project {project} can be managed"
                    ));
                }
                None => eprint_line(format_args!("evenkeel: no running container can be managed")),
            }
            ExitCode::FAILURE
        }
        Ok(file) => {
            let text = serde_json::to_string_pretty(&file).expect("it has only text keys, texts and flags");
            print(&format!("{text}\n"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprint_line(format_args!("evenkeel: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn adopt(project: Option<&str>, path: &Path) -> anyhow::Result<File> {
    let mut config = configured(path);
    if !config.services.is_empty() {
        eprint_line(format_args!(
            "{} has services already, whose settings are not in this output: copy from it what you need, and do not replace \
             the file",
            path.display()
        ));
    }
    let clients = EngineClients::new(&config)?;
    let about = clients.survey.about().await?;
    let mut all = clients.survey.all_containers().await?;
    if let Some(project) = project {
        all.retain(|one| one.project.as_deref() == Some(project));
    }
    let (mut projects, mut alone) = (BTreeMap::new(), Vec::new());
    for one in all.iter().filter(|one| one.is_running) {
        if let Some(project) = &one.project {
            projects.entry(project.clone()).or_insert_with(|| one.origin.clone());
        } else {
            alone.push(one);
        }
    }
    let opt_in = opt_in(&all);
    if !opt_in.is_empty() {
        eprint_line(format_args!(
            "containers of this machine opt in with {}=true: those without it are left out; give them the label, or list them \
             yourself",
            opt_in.join("=true or ")
        ));
    }
    let mut members = Vec::new();
    for (name, origin) in projects {
        let containers = clients.engine.containers(&Members::Project(name.clone())).await?;
        members.push(((name, origin), containers));
    }
    let references = members.iter().flat_map(|(_, containers)| containers).filter_map(reference_of);
    let plain = references
        .map(|reference| reference.repository.host)
        .find(|host| about.insecure_registries.contains(host) && *host != config.registry.host);
    let registry = plain.map(|host| {
        config.registry.url = format!("http://{host}");
        config.registry.host = host;
        RegistryPart { url: config.registry.url.clone() }
    });
    let registries = RegistryClients::new(&config, Some(&about))?;
    let mut services = Vec::new();
    for (named, containers) in members {
        let project = look_at(named, containers, &all, &clients, &registries).await?;
        services.extend(print_remarks(describe::project(&project)));
    }
    for one in alone {
        let single = single(one, &opt_in, &clients).await?;
        let service = single.and_then(|single| print_remarks(describe::alone(&single, &services)));
        services.extend(service);
    }
    let on_hub = services.iter().flat_map(|one| &one.images).find(|image| image.starts_with("docker.io/"));
    if let Some(image) = on_hub {
        let plain = image.trim_start_matches("docker.io/").trim_start_matches("library/");
        eprint_line(format_args!(
            "images are listed with their registry: {plain:?} alone would mean {}/{plain}, the registry of registry.url; on \
             Docker Hub it is {image}",
            config.registry.host
        ));
    }
    let audit = AuditPart { path: config.audit_path.unwrap_or_else(|| AUDIT_FILE.into()) };
    Ok(File { audit, registry, services })
}

/// Prints the remarks to standard error and returns the service.
fn print_remarks(described: Described) -> Option<Service> {
    for remark in described.remarks {
        eprint_line(format_args!("{remark}"));
    }
    described.service
}

/// Loads the configuration file, or the defaults if it can't be used.
fn configured(path: &Path) -> Config {
    let loaded = ConfigSource::of_process(path.to_owned()).load::<Config>();
    loaded.unwrap_or_else(|_| {
        Config::parse("{}", path, &|_| None).expect("a file without keys is a valid configuration")
    })
}

fn reference_of(container: &Container) -> Option<Reference> {
    Reference::parse(&container.config_image).ok()
}

/// Gathers the facts about a project.
async fn look_at(
    (name, mut origin): (String, Origin),
    mut containers: Vec<Container>,
    all: &[ListedContainer],
    clients: &EngineClients,
    registries: &RegistryClients,
) -> Result<Project, EngineError> {
    let folder = origin.folder.clone();
    let lists: BTreeSet<Vec<PathBuf>> =
        containers.iter().map(|container| container.compose_files.clone()).collect();
    let lists_differ = lists.len() > 1;
    let look = move || {
        let seen = |list: Vec<PathBuf>| -> Vec<FileSeen> {
            list.iter().map(|file| FileSeen::look(file, folder.as_deref())).collect()
        };
        // Containers that were created at different times may list different files; the longest list is taken as complete.
        // A project may have been moved since some of them were created.
        let is_there = |list: &Vec<FileSeen>| list.first().is_some_and(|file| file.usable.is_ok());
        lists.into_iter().map(seen).max_by_key(|list| (is_there(list), list.len())).unwrap_or_default()
    };
    let files = tokio::task::spawn_blocking(look).await.unwrap_or_default();
    let named: Vec<PathBuf> = files.iter().map(|file| file.named.clone()).collect();
    if !in_container() {
        follow_moved(Offload::Threads, &mut containers, &named).await;
    }
    if let Some(started) = Origin::of(&containers, &named).filter(|started| started.folder.is_some()) {
        origin = started;
    }
    let mut runs = Vec::new();
    for container in containers {
        let image = match &*container.image.0 {
            "" => None,
            id => clients.engine.image(id).await?,
        };
        let reference = reference_of(&container);
        let in_registry = match (&reference, &image) {
            (Some(reference), Some(image))
                if digests_in(&reference.repository, &image.repo_digests).next().is_some() =>
            {
                match timeout(REQUEST_LIMIT, registries.registry.digest(reference, Urgency::Manual)).await {
                    Ok(answer) => InRegistry::of(answer),
                    Err(_) => InRegistry::Unknown(format!("no answer within {} s", REQUEST_LIMIT.as_secs())),
                }
            }
            _ => InRegistry::No,
        };
        let labels = labels_of(&container.name, all);
        runs.push(Runs { container, in_registry, labels });
    }
    let containers: Vec<Container> = runs.iter().map(|one| one.container.clone()).collect();
    let bound_files = bound_files(&containers).await;
    let opt_in = opt_in(all);
    let mut project =
        Project { name, origin, files, lists_differ, runs, rendered: None, bound_files, opt_in };
    let described = describe::project(&project).service;
    if let Some(compose) = described.and_then(|service| as_compose(&service, &project.origin)) {
        let compose = compose.with_present(&containers);
        let model = timeout(REQUEST_LIMIT, clients.compose.model(&compose)).await;
        let model = model.unwrap_or_else(|_| {
            let cause = format!("compose did not finish within {} s", REQUEST_LIMIT.as_secs());
            Err(crate::model::ComposeError::new(cause))
        });
        project.rendered = Some(model.map_err(|error| error.cause));
    }
    Ok(project)
}

fn as_compose(service: &Service, origin: &Origin) -> Option<ComposeProject> {
    let name = service.compose_project.clone()?;
    (!service.compose_files.is_empty()).then(|| {
        let (files, env_file) = (service.compose_files.clone(), service.env_file.clone());
        ComposeProject { name, files, env_file, ..ComposeProject::default() }.as_started(Some(origin))
    })
}

/// Looks up a container outside compose; `None` if it is gone by now.
async fn single(
    one: &ListedContainer,
    opt_in: &[&'static str],
    clients: &EngineClients,
) -> Result<Option<Alone>, EngineError> {
    let containers = clients.engine.containers(&Members::Name(one.name.clone())).await?;
    let is_of_swarm = one.labels.contains_key("com.docker.swarm.service.name");
    let alone =
        |container| Alone { container, is_of_swarm, labels: one.labels.clone(), opt_in: opt_in.to_vec() };
    Ok(containers.into_iter().next().map(alone))
}

/// Returns the labels with which containers opt in.
fn opt_in(all: &[ListedContainer]) -> Vec<&'static str> {
    labels::opt_in(all.iter().map(|one| (one.image.as_str(), &one.labels)))
}

/// Returns the labels of a container, which may be stopped: once it runs again, it is updated with the others of its project.
fn labels_of(name: &str, all: &[ListedContainer]) -> Labels {
    all.iter().find(|one| one.name == name).map(|one| one.labels.clone()).unwrap_or_default()
}
