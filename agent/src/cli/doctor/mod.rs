//! `doctor`: looks at everything that the agent needs, without one, and says what to do about what is wrong.
//!
//! | file | areas |
//! |---|---|
//! | `configuration` | the file, its notification channels |
//! | `engine` | engine, API version, compose |
//! | `services` | what runs, health checks, compose files, mounts; the way back |
//! | `updaters` | other programs that update or restart |
//! | `files` | paths and rights; room on disk |
//! | `registry` | each image; this machine's clock |
//! | `warden` | the push |
//! | `api` | listen addresses, the state's lock |
//! | `unit` | the systemd unit |
//! | `finding` | what a finding is, and how it is shown |
//!
//! A check is a function from facts to findings. This file gathers the facts: side by side, each with a time limit, so
//! that what hangs is a finding. A new check of a known area is a function that the area's `check` calls; a new area is a
//! file, and one line in [`areas`].

mod api;
mod configuration;
mod engine;
mod files;
mod finding;
mod registry;
mod services;
mod unit;
mod updaters;
mod warden;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use evenkeel_common::cli::say;
use evenkeel_common::config::{ConfigSource, source};
use evenkeel_common::http::{self, BindError};
use evenkeel_common::store;
use futures_util::future::{FutureExt as _, LocalBoxFuture, join_all};
use futures_util::stream::{self, StreamExt as _};
use tokio::time::timeout;

use self::finding::{Finding, Report, Words};
use super::client::{Client, reachable};
use super::terminal::{Terminal, print};
use crate::app::clients::{EngineClients, RegistryClients};
use crate::audit::trial::ask_wardens;
use crate::config::{Config, ConfiguredImage, PushConfig, ServiceConfig};
use crate::model::{Container, Digest, Members, Reference, SwarmError};
use crate::ports::survey::{EngineInfo, Found};
use crate::ports::{Registry, Urgency};

/// For one question to somebody else.
const QUESTION: Duration = Duration::from_secs(12);
/// For all questions of an area.
const AREA_LIMIT: Duration = Duration::from_secs(40);
/// Compose runs at once.
const RENDERED_AT_ONCE: usize = 4;

/// How the findings are shown.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// Looks at everything and prints what it found. 0: nothing worse than a warning; 1: at least one error.
pub(super) fn perform(args: &Args, config: &Path) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(format_args!("evenkeel: cannot start the async runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let report = runtime.block_on(examine(config));
    // A file system that hangs keeps its thread; nobody waits for it.
    runtime.shutdown_background();
    if args.json {
        print(&format!("{}\n", serde_json::json!(report)));
    } else {
        print(&report.show(Terminal::of_process()));
    }
    if report.is_fine() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What was found in an area; `None` where it could not be looked at.
type Outcome = (&'static str, Option<Vec<Finding>>);

/// Areas whose facts are gathered together.
struct Group<'a> {
    areas: &'static [&'static str],
    look: LocalBoxFuture<'a, Vec<Outcome>>,
}

impl<'a> Group<'a> {
    fn new(areas: &'static [&'static str], look: impl Future<Output = Vec<Outcome>> + 'a) -> Self {
        Self { areas, look: look.boxed_local() }
    }

    async fn bounded(self) -> Vec<Outcome> {
        let late = |area: &&'static str| (*area, Some(vec![hangs(area)]));
        timeout(AREA_LIMIT, self.look).await.unwrap_or_else(|_| self.areas.iter().map(late).collect())
    }
}

fn hangs(area: &'static str) -> Finding {
    let words = Words {
        what: format!("it could not be looked at within {} s", AREA_LIMIT.as_secs()),
        why: "what hangs here hangs the agent's work, too",
        remedy: "see what is slow: disk (`dmesg | tail`), network, or the engine (`journalctl -u docker -n 50`)",
    };
    words.error(area, area)
}

/// All areas of a configuration that can be used.
fn areas<'a>(config: &'a Config, path: &'a Path, unit: Option<&'a unit::Unit>) -> Vec<Group<'a>> {
    let mut groups = vec![
        Group::new(&[configuration::AREA, configuration::CHANNELS], async move {
            vec![
                (configuration::AREA, Some(configuration::warnings(config))),
                (configuration::CHANNELS, Some(configuration::channels(config))),
            ]
        }),
        Group::new(&[files::AREA], async move {
            let config = config.clone();
            let places = blocking(move || files::look(&config)).await.unwrap_or_default();
            vec![(files::AREA, Some(files::check(&places)))]
        }),
        Group::new(&[api::AREA], async move { vec![(api::AREA, Some(listeners(config).await))] }),
        Group::new(&[registry::AREA, registry::CLOCK], registries(config)),
        Group::new(
            &[engine::AREA, services::AREA, services::WAY_BACK, updaters::AREA, files::DISK],
            of_engine(config),
        ),
    ];
    if let Some(push) = &config.push {
        groups.push(Group::new(&[warden::AREA], async move {
            vec![(warden::AREA, Some(of_wardens(push).await))]
        }));
    }
    if let Some(unit) = unit {
        groups.push(Group::new(&[unit::AREA], async move {
            vec![(unit::AREA, of_unit(config, path, unit).await)]
        }));
    }
    groups
}

async fn of_wardens(push: &PushConfig) -> Vec<finding::Finding> {
    let answers = ask_wardens(push, QUESTION).await;
    push.warden_urls.iter().zip(answers).flat_map(|(url, answer)| warden::check(url, &answer)).collect()
}

async fn examine(path: &Path) -> Report {
    let mut report = Report::default();
    let unit = find_unit().await;
    let lent = unit.as_ref().map(lent_variables).unwrap_or_default();
    // As the agent reads it; a shell does not have the variables that the unit gives.
    let of_process = |name: &str| std::env::var(name).ok();
    let source =
        ConfigSource::new(path.to_owned(), move |name| of_process(name).or_else(|| lent.get(name).cloned()));
    let config: Config = match timeout(QUESTION, blocking(move || source.load::<Config>())).await {
        Ok(Some(Ok(config))) => config,
        Ok(Some(Err(faults))) => {
            report.add(configuration::AREA, Some(configuration::refused(&faults)));
            return report;
        }
        Ok(None) | Err(_) => {
            report.add(configuration::AREA, Some(vec![hangs(configuration::AREA)]));
            return report;
        }
    };
    let looked = join_all(areas(&config, path, unit.as_ref()).into_iter().map(Group::bounded)).await;
    for (area, found) in looked.into_iter().flatten() {
        report.add(area, found);
    }
    report
}

/// Does what may wait for a disk on a thread of its own.
async fn blocking<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(look).await.ok()
}

// --- registries ------------------------------------------------------------------------------------------------------

async fn registries(config: &Config) -> Vec<Outcome> {
    let clients = match RegistryClients::new(config) {
        Ok(clients) => clients,
        Err(error) => {
            let words = Words {
                what: error.to_string(),
                why: "no image can be asked for",
                remedy: "correct registry.url",
            };
            return vec![
                (registry::AREA, Some(vec![words.error(registry::AREA, "registry.url")])),
                (registry::CLOCK, None),
            ];
        }
    };
    let mut images: Vec<&ConfiguredImage> = Vec::new();
    for image in
        config.services.iter().filter(|service| service.auto_update).flat_map(|service| &service.images)
    {
        if !image.reference.is_pinned() && !images.iter().any(|known| known.reference == image.reference) {
            images.push(image);
        }
    }
    let ask = async |image| {
        let reference: &Reference = &ConfiguredImage::clone(image).reference;
        let answer = timeout(QUESTION, clients.registry.digest(reference, Urgency::Asked)).await;
        let fault = match answer {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(registry::hung(&reference.repository.host, QUESTION)),
        };
        registry::Asked { image, fault }
    };
    let asked = join_all(images.into_iter().map(ask)).await;
    vec![
        (registry::AREA, Some(registry::check(&asked))),
        (registry::CLOCK, registry::clock(&clients.clock_offsets())),
    ]
}

// --- engine ----------------------------------------------------------------------------------------------------------

async fn of_engine(config: &Config) -> Vec<Outcome> {
    let skipped = [(services::AREA, None), (services::WAY_BACK, None), (updaters::AREA, None)];
    let clients = match EngineClients::new(config) {
        Ok(clients) => clients,
        Err(error) => {
            let found = vec![engine::no_address(&format!("{error:#}"))];
            let disk = (files::DISK, Some(disk(config, None, 0).await));
            return [(engine::AREA, Some(found)), disk].into_iter().chain(skipped).collect();
        }
    };
    let needs_compose = config.services.iter().any(|service| service.project().is_some());
    let unfit = async {
        if needs_compose { timeout(2 * QUESTION, clients.compose.unfit()).await.ok()? } else { None }
    };
    let (about, compose) = tokio::join!(clients.survey.about(), unfit);
    let facts = engine::Facts {
        endpoint: &clients.endpoint,
        runtime: config.runtime,
        about: &about,
        compose: compose.as_deref(),
    };
    let mut outcomes = vec![(engine::AREA, Some(engine::check(&facts)))];
    let Ok(about) = about else {
        outcomes.push((files::DISK, Some(disk(config, None, 0).await)));
        outcomes.extend(skipped);
        return outcomes;
    };
    let registry = RegistryClients::new(config).ok().map(|clients| clients.registry);
    let is_usable = compose.is_none();
    let watched = config.services.iter().filter(|service| !service.silent);
    let looked: Vec<_> = stream::iter(watched)
        .map(|service| look_at(service, &clients, registry.as_deref(), is_usable))
        .buffered(RENDERED_AT_ONCE)
        .collect()
        .await;
    let (mut of_services, mut of_way_back, mut largest) = (Vec::new(), Vec::new(), 0);
    for outcome in &looked {
        match outcome {
            Ok(facts) => {
                of_services.extend(services::check(facts));
                of_way_back.extend(services::way_back(facts));
                let sizes =
                    facts.containers.iter().filter_map(|one| one.image.as_ref()).map(|image| image.size);
                largest = sizes.fold(largest, u64::max);
            }
            Err(finding) => of_services.push(finding.clone()),
        }
    }
    outcomes.push((services::AREA, Some(of_services)));
    outcomes.push((services::WAY_BACK, Some(of_way_back)));
    let running = clients.survey.running().await;
    outcomes.push((
        updaters::AREA,
        match running {
            Ok(running) => Some(others(config, &running).await),
            Err(_) => None,
        },
    ));
    let is_local = clients.endpoint.starts_with("unix://");
    outcomes.push((files::DISK, Some(disk(config, Some(&about).filter(|_| is_local), largest).await)));
    outcomes
}

/// The facts about one service.
async fn look_at<'a>(
    config: &'a ServiceConfig,
    clients: &EngineClients,
    registry: Option<&dyn Registry>,
    compose_is_usable: bool,
) -> Result<services::Facts<'a>, Finding> {
    let members = Members::of(config.compose_project.as_deref(), config.container_name.as_deref());
    let containers = match (&config.swarm_service, &members) {
        (Some(name), _) => of_swarm(config, name, clients).await?,
        (None, Some(members)) => clients.engine.containers(members).await.map_err(|error| {
            let remedy = "see what the engine says: `docker ps -a`, `journalctl -u docker -n 50`";
            let words = Words {
                what: format!("its containers can't be listed: {error}"),
                why: "nothing is known of it",
                remedy,
            };
            words.error(services::AREA, config.name.as_str())
        })?,
        (None, None) => Vec::new(),
    };
    let labelled: BTreeSet<PathBuf> =
        containers.iter().flat_map(|container| container.compose_files.iter().cloned()).collect();
    let configured = config.compose_files.clone();
    let files = blocking(move || services::Files::look(&configured, &labelled)).await.unwrap_or_default();
    let model = match config.project().filter(|_| compose_is_usable) {
        Some(project) => timeout(QUESTION, clients.compose.model(&project)).await.ok(),
        None => None,
    };
    let mut running = Vec::new();
    for container in containers {
        let image = match &*container.image.0 {
            "" => None,
            id => clients.engine.image(id).await.ok().flatten(),
        };
        let is_certain = image.as_ref().is_some_and(|image| image.whole && !image.repo_digests.is_empty());
        let served =
            match (Reference::parse(&container.config_image), Digest::parse(&container.image.0), registry) {
                (Ok(reference), Ok(digest), Some(registry)) if !is_certain => {
                    timeout(QUESTION, registry.has(&reference.repository, &digest))
                        .await
                        .ok()
                        .and_then(Result::ok)
                }
                _ => None,
            };
        running.push(services::Running { container, image, served });
    }
    let variable = config.tag_variable().map(|variable| (variable.file.to_owned(), variable.name.to_owned()));
    let tag = match variable {
        Some((file, name)) => blocking(move || services::tag_in_force(&file, &name)).await.flatten(),
        None => None,
    };
    Ok(services::Facts { config, containers: running, model, files, tag })
}

/// The tasks of a swarm service.
async fn of_swarm(
    config: &ServiceConfig,
    name: &str,
    clients: &EngineClients,
) -> Result<Vec<Container>, Finding> {
    let service = clients.swarm.service(name).await.map_err(|error| {
        let remedy = match error {
            SwarmError::NoService(_) => "correct \"swarm_service\" to a name that `docker service ls` shows",
            SwarmError::NoLeader(_) => "look at the managers: `docker node ls`",
            SwarmError::Unusable(_) => "do what the engine says, for example `docker swarm unlock`",
            _ => "run the agent on a manager: `docker node ls`, `docker service ls`",
        };
        let words = Words { what: error.to_string(), why: "it can be neither checked nor updated", remedy };
        words.error(services::AREA, config.name.as_str())
    })?;
    Ok(service.containers())
}

async fn others(config: &Config, running: &[Found]) -> Vec<Finding> {
    let projects = config.services.iter().filter_map(|service| service.compose_project.clone()).collect();
    let processes = blocking(processes).await.unwrap_or_default();
    let heals = config.services.iter().any(|service| service.auto_heal);
    updaters::check(&updaters::Facts { running, processes: &processes, projects: &projects, heals })
}

/// Names of the processes that are in no container.
fn processes() -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return BTreeSet::new() };
    let name = |folder: PathBuf| {
        let status = std::fs::read_to_string(folder.join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let is_outside = field("NSpid:").is_some_and(|ids| ids.split_whitespace().count() == 1);
        Some(field("Name:")?.trim().to_owned()).filter(|_| is_outside)
    };
    entries.flatten().filter_map(|entry| name(entry.path())).collect()
}

/// Room for state, audit and images. `about` is an engine on this machine.
async fn disk(config: &Config, about: Option<&EngineInfo>, largest: u64) -> Vec<Finding> {
    let mut places = vec![(config.state_path.clone(), 0)];
    places.extend(config.audit_path.as_ref().and_then(|path| Some((path.parent()?.to_owned(), 0))));
    places.extend(
        about
            .and_then(|about| about.data_folder.clone())
            .filter(|path| path.is_dir())
            .map(|path| (path, largest.max(1))),
    );
    let look =
        move || places.iter().filter_map(|(path, image)| files::room(path, *image)).collect::<Vec<_>>();
    files::check_room(&blocking(look).await.unwrap_or_default())
}

// --- the agent itself ------------------------------------------------------------------------------------------------

async fn listeners(config: &Config) -> Vec<Finding> {
    let mut holders = Vec::new();
    for address in &config.api.addresses {
        holders.push((address.clone(), holder(address).await));
    }
    let state = config.state_path.clone();
    let in_use = blocking(move || store::is_in_use(&state)).await.unwrap_or(false);
    api::check(&holders, &config.state_path, in_use)
}

async fn holder(address: &str) -> api::Holder {
    match http::bind(&[address.to_owned()]) {
        Ok(_) => api::Holder::Nobody,
        Err(BindError::Listen { cause, .. }) if cause.kind() == io::ErrorKind::AddrInUse => {
            who_answers(address).await
        }
        Err(error) => api::Holder::Impossible(error.to_string()),
    }
}

/// An agent is known by its metrics.
async fn who_answers(address: &str) -> api::Holder {
    let ask = async {
        let client =
            Client::new(Some(&reachable(address)), Path::new("")).map_err(|error| error.to_string())?;
        let answer = client.stream(&["metrics"], None).await.map_err(|error| error.to_string())?;
        answer.text().await.map_err(|error| error.to_string())
    };
    match timeout(QUESTION, ask).await {
        Ok(Ok(metrics)) if metrics.contains("evenkeel_") => api::Holder::Agent,
        Ok(Ok(_)) => api::Holder::Other("it answers, but is no agent of this program".to_owned()),
        Ok(Err(cause)) => api::Holder::Other(cause),
        Err(_) => api::Holder::Other(format!("it says nothing for {} s", QUESTION.as_secs())),
    }
}

/// The unit of this program, where systemd runs this machine and has it.
async fn find_unit() -> Option<unit::Unit> {
    if !Path::new("/run/systemd/system").is_dir() {
        return None;
    }
    let mut command = tokio::process::Command::new("systemctl");
    command.args(["show", unit::UNIT, "--property", unit::PROPERTIES]).kill_on_drop(true);
    let output = timeout(QUESTION, command.output()).await.ok()?.ok()?;
    unit::Unit::parse(&String::from_utf8_lossy(&output.stdout))
}

/// The variables and credentials that the unit gives the agent, as far as this user may read them.
fn lent_variables(unit: &unit::Unit) -> BTreeMap<String, String> {
    let files = unit.environment_files().into_iter().filter_map(|path| source::read(&path).ok());
    let mut lent: BTreeMap<String, String> = files.flat_map(|text| unit::variables(&text)).collect();
    for (name, path) in unit.credential_files() {
        if let Ok(text) = source::read(&path) {
            lent.insert(name, text.trim_end_matches(['\n', '\r']).to_owned());
        }
    }
    lent
}

async fn of_unit(config: &Config, path: &Path, unit: &unit::Unit) -> Option<Vec<Finding>> {
    let folder = config.audit_path.as_deref().and_then(Path::parent).map(Path::to_owned);
    let read: Vec<PathBuf> = config
        .services
        .iter()
        .flat_map(|service| service.compose_files.iter().chain(&service.env_file).cloned())
        .collect();
    let private = blocking(move || read.into_iter().filter(|path| unit::is_private(path)).collect()).await?;
    let variables = lent_variables(unit).into_keys();
    Some(unit::check(&unit::Facts {
        unit,
        config: path,
        writes: [config.state_path.clone()].into_iter().chain(folder).collect(),
        private,
        needed: &config.named_variables,
        given: variables.chain(unit.credential_files().into_iter().map(|(name, _)| name)).collect(),
    }))
}
