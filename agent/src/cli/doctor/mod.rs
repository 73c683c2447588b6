//! `doctor`: checks everything that the agent depends on, even if no agent is running, and shows how to fix problems.
//!
//! | file | areas |
//! |---|---|
//! | `configuration` | the file, its notification channels |
//! | `engine` | engine, API version, compose |
//! | `services` | running containers, health checks, compose files, mounts; the way back |
//! | `updaters` | other programs that update or restart containers |
//! | `files` | paths and permissions; disk space |
//! | `registry` | each image; this machine's clock |
//! | `warden` | the push |
//! | `api` | listen addresses, the lock of the state |
//! | `unit` | the systemd unit |
//! | `preflight` | with `--preflight`: the calls that a proxy in front of the engine must let through |
//! | `finding` | findings and their output |
//!
//! A check is a function from facts to findings. This file gathers the facts concurrently, each with a timeout, so that a
//! hanging dependency is a finding. To add a check to an area, call it from the area's `check`; a new area needs a file and
//! an entry in [`areas`].

mod api;
mod configuration;
mod credentials;
mod engine;
mod facts;
mod files;
mod finding;
mod handover;
mod preflight;
mod registry;
mod services;
mod snapshot;
mod unit;
mod updaters;
mod warden;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use evenkeel_common::cli::eprint_line;
use evenkeel_common::config::{ConfigSource, environment, source};
use evenkeel_common::http::{self, BasePath, BindError};
use evenkeel_common::permissions::{is_private, is_private_socket};
use evenkeel_common::store;
use evenkeel_common::wire::Health;
use futures_util::future::{FutureExt as _, LocalBoxFuture, OptionFuture, join_all};
use futures_util::stream::{self, StreamExt as _};
use tokio::time::timeout;

use self::finding::{Finding, Report, Words};
use super::client::{Client, reachable};
use super::terminal::{Terminal, print};
use crate::app::clients::{EngineClients, RegistryClients};
use crate::audit::trial::ask_wardens;
use crate::config::{Config, ConfiguredImage, PushConfig, Runtime, ServiceConfig, in_container};
use crate::model::probe::{Answer, Target};
use crate::model::{Container, Difference, Digest, Members, Model, Project, Reference, SwarmError};
use crate::ports::survey::{EngineInfo, ListedContainer};
use crate::ports::{Registry, Urgency};
use crate::project::definition::{Comparison, bound_files};
use crate::project::files::{Offload, follow_moved};

/// Timeout of a single request.
const REQUEST_LIMIT: Duration = Duration::from_secs(12);
/// Timeout of all checks of an area.
const AREA_LIMIT: Duration = Duration::from_secs(40);
/// Number of services that are examined concurrently; each runs compose.
const RENDERED_AT_ONCE: usize = 4;

/// Output format of the findings.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Also try every call of the engine's API that the configuration needs, with a target that does not exist: for a proxy in
    /// front of the engine
    #[arg(long)]
    preflight: bool,
}

/// Runs all checks and prints the findings. 0: nothing worse than a warning; 1: at least one error.
pub(super) fn perform(args: &Args, config: &Path) -> ExitCode {
    let report = match super::block_on(examine(config, args.preflight)) {
        Ok(report) => report,
        Err(code) => return code,
    };
    if args.json {
        print(&format!("{}\n", serde_json::json!(report)));
    } else {
        print(&report.show(Terminal::of_process()));
    }
    if report.is_fine() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Set for a program that has the variables of the unit.
const HAS_UNIT_VARIABLES: &str = "EVENKEEL_HAS_UNIT_VARIABLES";

/// Runs this program again with the variables and credentials of the agent's unit that are not set here, once. They decide which
/// engine is asked, how registries and channels are reached and where the logins are (`DOCKER_HOST`, `HTTPS_PROXY`,
/// `DOCKER_CONFIG`). Returns if there are none.
pub(super) fn take_unit_variables() {
    if std::env::var_os(HAS_UNIT_VARIABLES).is_some() {
        return;
    }
    let Ok(Some(unit)) = super::block_on(find_unit()) else { return };
    let unset = unit.unset(unit_variables(&unit), |name| std::env::var_os(name).is_some());
    let (false, Ok(program)) = (unset.is_empty(), std::env::current_exe()) else { return };
    let names: Vec<&str> = unset.keys().map(String::as_str).collect();
    eprint_line(format_args!("evenkeel: uses {} from the unit {}", names.join(", "), unit::UNIT));
    let mut command = std::process::Command::new(program);
    command.args(std::env::args_os().skip(1)).envs(&unset).env(HAS_UNIT_VARIABLES, "1");
    let error = command.exec();
    eprint_line(format_args!("evenkeel: continuing without these variables: {error}"));
}

/// The findings of an area; `None` if it could not be checked.
type Outcome = (&'static str, Option<Vec<Finding>>);

/// Areas that share their facts.
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
        what: format!("it could not be checked within {} s", AREA_LIMIT.as_secs()),
        why: "whatever hangs here also blocks the agent",
        remedy: "find out what is slow: disk (`dmesg | tail`), network, or the engine (`journalctl -u docker -n 50`)",
    };
    words.error(area, area)
}

/// Returns all areas for a valid configuration.
fn areas<'a>(
    config: &'a Config,
    path: &'a Path,
    unit: Option<&'a unit::Unit>,
    preflight: bool,
) -> Vec<Group<'a>> {
    let mut groups = vec![
        Group::new(&[configuration::AREA, configuration::CHANNELS], async move {
            let mut warnings = configuration::warnings(config);
            let mut channels = configuration::channels(config);
            if let Some(unit) = unit {
                for finding in warnings.iter_mut().chain(&mut channels) {
                    configuration::excuse(finding, |name| unit.credentials.may_have(name));
                }
            }
            let known = [&warnings[..], &channels[..]].concat();
            channels.extend(configuration::undelivered(&reported_by_agent(config).await, &known));
            vec![(configuration::AREA, Some(warnings)), (configuration::CHANNELS, Some(channels))]
        }),
        Group::new(&[files::AREA], async move {
            let config = config.clone();
            let places = blocking(move || files::look(&config)).await.unwrap_or_default();
            vec![(files::AREA, Some(files::check(&places)))]
        }),
        Group::new(&[api::AREA], async move { vec![(api::AREA, Some(listeners(config).await))] }),
        Group::new(&[registry::AREA, registry::CLOCK], registries(config)),
        Group::new(
            &[engine::AREA, facts::AREA, facts::WAY_BACK, updaters::AREA, files::DISK],
            of_engine(config),
        ),
    ];
    if let Some(push) = &config.push {
        groups.push(Group::new(&[warden::AREA], async move {
            vec![(warden::AREA, Some(of_wardens(push).await))]
        }));
    }
    if preflight {
        groups.push(Group::new(&[preflight::AREA], async move {
            let clients = EngineClients::new(config).ok();
            let look = async |clients: EngineClients| preflight::look(config, clients.survey.as_ref()).await;
            vec![(preflight::AREA, OptionFuture::from(clients.map(look)).await.flatten())]
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
    let answers = ask_wardens(push, REQUEST_LIMIT).await;
    push.warden_urls.iter().zip(answers).flat_map(|(url, answer)| warden::check(url, &answer)).collect()
}

async fn examine(path: &Path, preflight: bool) -> Report {
    let mut report = Report::default();
    let unit = find_unit().await;
    let vars = unit.as_ref().map(unit_variables).unwrap_or_default();
    // Read the file as the agent does: with the variables of the unit, which are not set in a shell.
    let of_process = |name: &str| std::env::var(name).ok();
    let source =
        ConfigSource::new(path.to_owned(), move |name| of_process(name).or_else(|| vars.get(name).cloned()));
    let config: Config = match timeout(REQUEST_LIMIT, blocking(move || source.load::<Config>())).await {
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
    let looked =
        join_all(areas(&config, path, unit.as_ref(), preflight).into_iter().map(Group::bounded)).await;
    for (area, found) in looked.into_iter().flatten() {
        report.add(area, found);
    }
    report
}

/// Runs blocking file operations on a separate thread.
async fn blocking<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(look).await.ok()
}

// --- registries ------------------------------------------------------------------------------------------------------

/// The variables that name a proxy for registries.
const PROXIES: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];

async fn registries(config: &Config) -> Vec<Outcome> {
    let about = async {
        let clients = EngineClients::new(config).ok()?;
        timeout(REQUEST_LIMIT, clients.survey.about()).await.ok()?.ok()
    };
    let about = about.await;
    let clients = match RegistryClients::new(config, about.as_ref()) {
        Ok(clients) => clients,
        Err(error) => {
            let words = Words {
                what: error.to_string(),
                why: "no image can be checked",
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
        let answer = timeout(REQUEST_LIMIT, clients.registry.digest(reference, Urgency::Manual)).await;
        let fault = match answer {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(registry::hung(&reference.repository.host, REQUEST_LIMIT)),
        };
        registry::Lookup { image, fault }
    };
    let asked = join_all(images.into_iter().map(ask)).await;
    let has_proxy = PROXIES.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
    let proxy = about.and_then(|about| about.proxy).filter(|_| !has_proxy);
    vec![
        (registry::AREA, Some(registry::check(&asked, proxy.as_deref()))),
        (registry::CLOCK, registry::clock(&clients.clock_offsets())),
    ]
}

// --- engine ----------------------------------------------------------------------------------------------------------

async fn of_engine(config: &Config) -> Vec<Outcome> {
    let skipped = [(facts::AREA, None), (facts::WAY_BACK, None), (updaters::AREA, None)];
    let clients = match EngineClients::new(config) {
        Ok(clients) => clients,
        Err(error) => {
            let found = vec![engine::no_address(&format!("{error:#}"))];
            let disk = (files::DISK, Some(disk(config, None, 0).await));
            return [(engine::AREA, Some(found)), disk].into_iter().chain(skipped).collect();
        }
    };
    let needs_compose = config.services.iter().any(|service| service.project().is_some());
    let problem = async {
        if needs_compose { timeout(2 * REQUEST_LIMIT, clients.compose.problem()).await.ok()? } else { None }
    };
    let (about, compose) = tokio::join!(clients.survey.about(), problem);
    let facts = engine::Facts {
        endpoint: &clients.endpoint,
        runtime: config.runtime,
        about: &about,
        compose: compose.as_deref(),
        in_container: in_container(),
    };
    let mut outcomes = vec![(engine::AREA, Some(engine::check(&facts)))];
    let Ok(about) = about else {
        outcomes.push((files::DISK, Some(disk(config, None, 0).await)));
        outcomes.extend(skipped);
        return outcomes;
    };
    let registry = RegistryClients::new(config, Some(&about)).ok().map(|clients| clients.registry);
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
    outcomes.push((facts::AREA, Some(of_services)));
    outcomes.push((facts::WAY_BACK, Some(of_way_back)));
    outcomes.push((
        updaters::AREA,
        match clients.survey.all_containers().await {
            Ok(mut containers) => {
                containers.retain(|one| one.is_running);
                Some(others(config, &containers).await)
            }
            Err(_) => None,
        },
    ));
    let is_local = clients.endpoint.starts_with("unix://");
    outcomes.push((files::DISK, Some(disk(config, Some(&about).filter(|_| is_local), largest).await)));
    outcomes
}

/// Gathers the facts about one service.
async fn look_at<'a>(
    config: &'a ServiceConfig,
    clients: &EngineClients,
    registry: Option<&dyn Registry>,
    compose_is_usable: bool,
) -> Result<facts::Facts<'a>, Finding> {
    let members = Members::of(config.compose_project.as_deref(), config.container_name.as_deref());
    let mut containers = match (&config.swarm_service, &members) {
        (Some(name), _) => of_swarm(config, name, clients).await?,
        (None, Some(members)) => clients.engine.containers(members).await.map_err(|error| {
            let remedy = "see what the engine reports: `docker ps -a`, `journalctl -u docker -n 50`";
            let words = Words {
                what: format!("its containers can't be listed: {error}"),
                why: "the state of the service is unknown",
                remedy,
            };
            words.error(facts::AREA, config.name.as_str())
        })?,
        (None, None) => Vec::new(),
    };
    if !in_container() {
        follow_moved(Offload::Threads, &mut containers, &config.compose_files).await;
    }
    let labelled: BTreeSet<PathBuf> =
        containers.iter().flat_map(|container| container.compose_files.iter().cloned()).collect();
    let configured = config.compose_files.clone();
    let files = blocking(move || facts::Files::look(&configured, &labelled)).await.unwrap_or_default();
    let project = config.project().map(|project| project.as_started_by(&containers));
    let project = project.filter(|_| compose_is_usable);
    let model = match &project {
        Some(project) => timeout(REQUEST_LIMIT, clients.compose.model(project)).await.ok(),
        None => None,
    };
    let differences = match (&project, &model) {
        (Some(project), Some(Ok(model))) => differences(config, clients, (project, model), &containers).await,
        _ => Vec::new(),
    };
    let bound_files = bound_files(&containers).await;
    let rules = config.update.as_ref().and_then(|update| update.snapshot.as_ref());
    let data = match (rules, &model) {
        (Some(rules), Some(Ok(model))) => clients.data.look(&config.name, rules, model, None, &[]).await.ok(),
        _ => None,
    };
    let probed = probe(config, clients, &containers).await;
    let mut running = Vec::new();
    for container in containers {
        let image = match &*container.image.0 {
            "" => None,
            id => clients.engine.image(id).await.ok().flatten(),
        };
        let is_certain =
            image.as_ref().is_some_and(|image| image.is_complete && !image.repo_digests.is_empty());
        let served =
            match (Reference::parse(&container.config_image), Digest::parse(&container.image.0), registry) {
                (Ok(reference), Ok(digest), Some(registry)) if !is_certain => {
                    timeout(REQUEST_LIMIT, registry.has(&reference.repository, &digest))
                        .await
                        .ok()
                        .and_then(Result::ok)
                }
                _ => None,
            };
        running.push(facts::Running { container, image, served });
    }
    let variable = config.tag_variable().map(|variable| (variable.file.to_owned(), variable.name.to_owned()));
    let tag = match variable {
        Some((file, name)) => blocking(move || facts::tag_in_force(&file, &name)).await.flatten(),
        None => None,
    };
    let containers = running;
    Ok(facts::Facts { config, containers, model, differences, bound_files, data, probed, files, tag })
}

/// Tries the probe of a service once, at what runs now.
async fn probe(
    config: &ServiceConfig,
    clients: &EngineClients,
    containers: &[Container],
) -> Vec<(String, Answer)> {
    let Some(probe) = config.update.as_ref().and_then(|update| update.probe.as_ref()) else {
        return Vec::new();
    };
    let names: BTreeMap<Target, String> = match &probe.from {
        Some(_) => [(Target::own_address(), String::new())].into(),
        None => containers
            .iter()
            .filter(|container| services::is_asked(config, probe, container))
            .map(|container| (Target(container.id.clone()), container.name.clone()))
            .collect(),
    };
    let targets: Vec<Target> = names.keys().cloned().collect();
    let answers = clients.probes.ask(probe, &targets).await;
    answers.into_iter().filter_map(|(target, answer)| Some((names.get(&target)?.clone(), answer))).collect()
}

/// Compares the definitions of the running compose services with what runs. Unlike the agent, this program may run in the
/// surroundings of a person's shell. A comparison that is not possible finds nothing: what is in its way is a finding already.
async fn differences(
    config: &ServiceConfig,
    clients: &EngineClients,
    (project, model): (&Project, &Model),
    containers: &[Container],
) -> Vec<Difference> {
    let live: Vec<Container> = containers.iter().filter(|container| container.is_live()).cloned().collect();
    let mut services: Vec<String> = live.iter().map(|container| container.compose_service.clone()).collect();
    services.sort();
    services.dedup();
    services.retain(|name| model.service(name).is_some());
    let asked = (clients.engine.as_ref(), clients.compose.as_ref());
    let compared = Comparison::read(asked, project, model, &services, &live);
    // A line that was edited is applied by an update.
    let is_own_change = |from: &Reference, to: &Reference| {
        let mut of_variable = config.images_of_variable().map(|image| &image.reference.repository);
        from.repository == to.repository && of_variable.any(|repository| *repository == to.repository)
    };
    match timeout(REQUEST_LIMIT, compared).await {
        Ok(Ok(comparison)) => comparison.with_absent(&services).await.differences(&services, is_own_change),
        _ => Vec::new(),
    }
}

/// Returns the tasks of a swarm service as containers.
async fn of_swarm(
    config: &ServiceConfig,
    name: &str,
    clients: &EngineClients,
) -> Result<Vec<Container>, Finding> {
    let service = clients.swarm.service(name).await.map_err(|error| {
        let remedy = match error {
            SwarmError::NoService(_) => "set \"swarm_service\" to a name shown by `docker service ls`",
            SwarmError::NoLeader(_) => "check the managers: `docker node ls`",
            SwarmError::Unusable(_) => "follow the engine's advice, for example `docker swarm unlock`",
            _ => "run the agent on a manager: `docker node ls`, `docker service ls`",
        };
        let words = Words { what: error.to_string(), why: "it can be neither checked nor updated", remedy };
        words.error(facts::AREA, config.name.as_str())
    })?;
    Ok(service.containers())
}

async fn others(config: &Config, running: &[ListedContainer]) -> Vec<Finding> {
    let projects = config.services.iter().filter_map(|service| service.compose_project.clone()).collect();
    let processes = blocking(processes).await.unwrap_or_default();
    let heals = config.services.iter().any(|service| service.auto_heal);
    updaters::check(&updaters::Facts { running, processes: &processes, projects: &projects, heals })
}

/// Returns the names of processes outside containers.
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

/// Checks disk space for state, audit file and images. `about` is set if the engine is on this machine.
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
        holders.push((address.clone(), holder(address, &config.api.base_path).await));
    }
    let state = config.state_path.clone();
    let in_use = blocking(move || store::is_in_use(&state)).await.unwrap_or(false);
    api::check(&holders, &config.state_path, in_use)
}

async fn holder(address: &str, base: &BasePath) -> api::Holder {
    match http::bind(&[address.to_owned()]) {
        Ok(_) => api::Holder::Free,
        Err(BindError::Listen { cause, .. }) if cause.kind() == io::ErrorKind::AddrInUse => {
            identify(address, base).await
        }
        Err(BindError::Listen { cause, .. }) if cause.kind() == io::ErrorKind::AddrNotAvailable => {
            api::Holder::Absent
        }
        Err(error) => api::Holder::Unusable(error.to_string()),
    }
}

/// Returns the warnings of the running agent, if there is one.
async fn reported_by_agent(config: &Config) -> Vec<String> {
    for address in &config.api.addresses {
        let ask = async {
            let url = format!("{}{}", reachable(address), config.api.base_path);
            Client::new(Some(&url), Path::new("")).ok()?.get::<Health>(&["health"]).await.ok()
        };
        if let Ok(Some(health)) = timeout(REQUEST_LIMIT, ask).await {
            return health.config_warnings;
        }
    }
    Vec::new()
}

/// Identifies the program at an address: an agent is recognised by its metrics.
async fn identify(address: &str, base: &BasePath) -> api::Holder {
    let ask = async {
        let client = Client::new(Some(&format!("{}{base}", reachable(address))), Path::new(""))
            .map_err(|error| error.to_string())?;
        client.text(&["metrics"]).await.map_err(|error| error.to_string())
    };
    match timeout(REQUEST_LIMIT, ask).await {
        Ok(Ok(metrics)) if metrics.contains("evenkeel_") => api::Holder::Agent,
        Ok(Ok(metrics)) if metrics.contains("prometheus_build_info") => {
            api::Holder::Other("it is Prometheus, which uses port 9090 by default, too".to_owned())
        }
        Ok(Ok(_)) => api::Holder::Other("it answers, but is not an Evenkeel agent".to_owned()),
        Ok(Err(cause)) => api::Holder::Other(cause),
        Err(_) => api::Holder::Other(format!("it does not answer within {} s", REQUEST_LIMIT.as_secs())),
    }
}

/// Returns the systemd unit of the agent, if the machine runs systemd and the unit is installed.
async fn find_unit() -> Option<unit::Unit> {
    if !Path::new("/run/systemd/system").is_dir() {
        return None;
    }
    let ask = async |args: &[&str]| {
        let mut command = tokio::process::Command::new("systemctl");
        command.args(args).kill_on_drop(true);
        let output = timeout(REQUEST_LIMIT, command.output()).await.ok()?.ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let properties = ask(&["show", unit::UNIT, "--property", unit::PROPERTIES]).await?;
    let files = ask(&["cat", unit::UNIT]).await.unwrap_or_default();
    unit::Unit::parse(&properties, &files)
}

/// Where systemd keeps the credentials of the running agent.
const CREDENTIALS: &str = "/run/credentials/evenkeel-agent.service";

/// Returns the variables in the environment files of the unit, as far as this user may read them.
fn file_variables(unit: &unit::Unit) -> BTreeMap<String, String> {
    let files = unit.environment_files().into_iter().filter_map(|path| source::read(&path).ok());
    files.flat_map(|text| environment::variables(&text)).collect()
}

/// Returns the variables and credentials that the unit provides to the agent, as far as this user may read them.
fn unit_variables(unit: &unit::Unit) -> BTreeMap<String, String> {
    let mut vars = unit.credentials.read(Path::new(CREDENTIALS));
    vars.extend(file_variables(unit));
    vars
}

async fn of_unit(config: &Config, path: &Path, unit: &unit::Unit) -> Option<Vec<Finding>> {
    let folder = config.audit_path.as_deref().and_then(Path::parent).map(Path::to_owned);
    let read: Vec<PathBuf> = config
        .services
        .iter()
        .flat_map(|service| {
            let keys = service.update.iter().flat_map(|update| &update.signed_by);
            service.compose_files.iter().chain(&service.env_file).chain(keys).cloned()
        })
        .collect();
    let endpoint = EngineClients::new(config).ok().map(|clients| clients.endpoint);
    let socket = endpoint.as_deref().and_then(|address| address.strip_prefix("unix://")).map(PathBuf::from);
    let folders: Vec<PathBuf> = [config.state_path.clone()].into_iter().chain(folder).collect();
    let services = config.services.iter().filter(|service| !service.silent);
    let tags: Vec<PathBuf> =
        services.filter_map(|service| Some(service.tag_variable()?.file.to_owned())).collect();
    let look = move || {
        let writes = folders.iter().map(|path| unit::Written::in_folder(path));
        let writes = writes.chain(tags.iter().filter_map(|path| unit::Written::tag(path))).collect();
        let is_closed = |path: &PathBuf| is_private_socket(path.canonicalize().as_ref().unwrap_or(path));
        (read.into_iter().filter(|path| is_private(path)).collect(), writes, socket.filter(is_closed))
    };
    let (private, writes, socket) = blocking(look).await?;
    Some(unit::check(&unit::Facts {
        unit,
        config: path,
        writes,
        private,
        socket,
        runs_podman_compose: config.runtime == Runtime::Podman
            && config.services.iter().any(|service| service.project().is_some()),
        needed: &config.named_variables,
        given: unit_variables(unit).into_keys().collect(),
    }))
}
