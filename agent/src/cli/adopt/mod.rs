//! `adopt`: the configuration of what runs on this machine, from the labels of its containers. `describe` makes it; this
//! file gathers what is known and prints it, remarks on standard error.

mod describe;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use evenkeel_common::cli::say;
use evenkeel_common::config::{ConfigSource, Configuration as _};
use serde::Serialize;
use tokio::time::timeout;

use self::describe::{Alone, Described, FileSeen, InRegistry, Project, Runs, Service};
use super::terminal::print;
use crate::app::clients::{EngineClients, RegistryClients};
use crate::config::Config;
use crate::model::Project as ComposeProject;
use crate::model::image::digests_in;
use crate::model::{Container, EngineError, Members, Reference};
use crate::ports::Urgency;
use crate::ports::survey::{Found, Origin};

/// For one question to a registry or to compose.
const QUESTION: Duration = Duration::from_secs(15);

/// What is adopted.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Only this compose project; all projects and single containers without it
    project: Option<String>,
}

/// What is printed: a whole configuration.
#[derive(Serialize)]
struct File {
    /// That of the configuration file which this is to replace.
    #[serde(skip_serializing_if = "Option::is_none")]
    audit: Option<AuditPart>,
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

/// Prints it. 0: there is something to watch; 1: there is not, or the engine does not answer.
pub(super) fn perform(args: &Args, config: &Path) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(adopt(args.project.as_deref(), config)),
        Err(error) => Err(anyhow::anyhow!("cannot start the async runtime: {error}")),
    };
    match outcome {
        Ok(file) if file.services.is_empty() => {
            match &args.project {
                Some(project) => say(format_args!("evenkeel: nothing of project {project} can be watched")),
                None => say(format_args!("evenkeel: nothing runs that can be watched")),
            }
            ExitCode::FAILURE
        }
        Ok(file) => {
            let text = serde_json::to_string_pretty(&file).expect("it has only text keys, texts and flags");
            print(&format!("{text}\n"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            say(format_args!("evenkeel: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn adopt(project: Option<&str>, path: &Path) -> anyhow::Result<File> {
    let mut config = configured(path);
    let clients = EngineClients::new(&config)?;
    let about = clients.survey.about().await?;
    let running = clients.survey.running().await?;
    let (mut projects, mut alone) = (BTreeMap::new(), Vec::new());
    for one in &running {
        if let Some(origin) = &one.origin {
            projects.entry(origin.project.clone()).or_insert_with(|| origin.clone());
        } else {
            alone.push(one);
        }
    }
    if let Some(project) = project {
        projects.retain(|name, _| name == project);
        alone.clear();
    }
    let mut members = Vec::new();
    for (name, origin) in projects {
        members.push((origin, clients.engine.containers(&Members::Project(name)).await?));
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
    let registries = RegistryClients::new(&config)?;
    let mut services = Vec::new();
    for (origin, containers) in members {
        let project = look_at(origin, containers, &clients, &registries).await?;
        services.extend(told(describe::project(&project)));
    }
    for one in alone {
        let single = single(one, &clients).await?;
        services.extend(single.and_then(|single| told(describe::alone(&single))));
    }
    let audit = config.audit_path.map(|path| AuditPart { path });
    Ok(File { audit, registry, services })
}

/// The remarks go to standard error.
fn told(described: Described) -> Option<Service> {
    for remark in described.remarks {
        say(format_args!("{remark}"));
    }
    described.service
}

/// The runtime and registry of the file where it can be read, else the defaults.
fn configured(path: &Path) -> Config {
    let loaded = ConfigSource::of_process(path.to_owned()).load::<Config>();
    loaded.unwrap_or_else(|_| {
        Config::parse("{}", path, &|_| None).expect("a file without keys is a valid configuration")
    })
}

fn reference_of(container: &Container) -> Option<Reference> {
    Reference::parse(&container.config_image).ok()
}

/// All that can be found out about a project.
async fn look_at(
    origin: Origin,
    containers: Vec<Container>,
    clients: &EngineClients,
    registries: &RegistryClients,
) -> Result<Project, EngineError> {
    let folder = origin.folder.clone();
    // Containers that were made at different times may name different files; the longest list is the whole of it.
    let lists: BTreeSet<&Vec<PathBuf>> =
        containers.iter().map(|container| &container.compose_files).collect();
    let files = lists.iter().max_by_key(|list| list.len()).map(|list| (*list).clone()).unwrap_or_default();
    let lists_differ = lists.len() > 1;
    let look =
        move || files.into_iter().map(|file| FileSeen::look(&file, folder.as_deref())).collect::<Vec<_>>();
    let files = tokio::task::spawn_blocking(look).await.unwrap_or_default();
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
                match timeout(QUESTION, registries.registry.digest(reference, Urgency::Asked)).await {
                    Ok(Ok(_)) => InRegistry::Yes,
                    Ok(Err(error)) if error.0.contains("not found") => InRegistry::No,
                    Ok(Err(error)) => InRegistry::Unknown(error.0),
                    Err(_) => InRegistry::Unknown(format!("no answer within {} s", QUESTION.as_secs())),
                }
            }
            _ => InRegistry::No,
        };
        runs.push(Runs { container, in_registry });
    }
    let mut project = Project { origin, files, lists_differ, runs, rendered: None };
    if let Some(compose) = describe::project(&project).service.and_then(|service| as_compose(&service)) {
        let model = timeout(QUESTION, clients.compose.model(&compose)).await;
        let model = model.unwrap_or_else(|_| {
            Err(crate::model::ComposeError {
                cause: format!("compose gave no answer within {} s", QUESTION.as_secs()),
                output: String::new(),
            })
        });
        project.rendered = Some(model.map_err(|error| error.cause));
    }
    Ok(project)
}

fn as_compose(service: &Service) -> Option<ComposeProject> {
    let name = service.compose_project.clone()?;
    let env_file = service.env_file.clone();
    (!service.compose_files.is_empty()).then(|| ComposeProject {
        name,
        files: service.compose_files.clone(),
        env_file,
        set: BTreeMap::new(),
        health_grace: std::time::Duration::ZERO,
    })
}

/// A container outside compose; `None` where it is gone by now.
async fn single(one: &Found, clients: &EngineClients) -> Result<Option<Alone>, EngineError> {
    let containers = clients.engine.containers(&Members::Name(one.name.clone())).await?;
    let is_of_swarm = one.labels.contains_key("com.docker.swarm.service.name");
    Ok(containers.into_iter().next().map(|container| Alone { container, is_of_swarm }))
}
