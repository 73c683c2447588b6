//! Runs of the agent with two services in one compose project: the steps, and whether every property held.
//!
//! | file | contents |
//! |---|---|
//! | `agent.rs` | the agent, from one start to its end |
//! | `gates.rs` | the gates of a service |
//! | `step.rs` | the steps of a run |
//! | `random.rs` | random runs |

mod agent;
pub(crate) mod gates;
pub(crate) mod random;
pub(crate) mod step;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_agent::config::{Config, ServiceConfig};
use evenkeel_agent::service::input::ServiceRequest;
use jiff::SignedDuration;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use crate::configuration;
use crate::world::{Act, Behaviour, FakeWorld, VARIABLE, reference};
use crate::{API, WEB, new_world};
use agent::Agent;
use gates::Gates;
use step::{Step, TimedStep};

/// The maximum duration of the calm phase at the end, and how long nothing must have happened to end it earlier. All
/// pending work must be finished by then.
const CALM: Duration = Duration::from_mins(3);
const QUIET: Duration = Duration::from_secs(45);
/// What compose says while the world has faults.
const COMPOSE_FAULTS: [&str; 3] = ["did not find expected key", "already allocated", "network not found"];
const DB: &str = "localhost:5000/db:latest";
/// The image of `web` if the env file sets its tag.
const WEB_1: &str = "localhost:5000/web:1.1.0";

/// The automatic actions of a service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // configuration flags
pub(crate) struct Flags {
    pub(crate) auto_update: bool,
    pub(crate) auto_heal: bool,
    pub(crate) auto_start: bool,
    pub(crate) compose_watch: bool,
}

/// The setup and the steps of a run.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools)] // independent options
pub(crate) struct Simulation {
    /// Of the services `web` and `api`.
    pub(crate) flags: [Flags; 2],
    pub(crate) gates: [Gates; 2],
    /// The containers have a restart policy.
    pub(crate) restarts_itself: bool,
    /// Both services have the image of `web`.
    pub(crate) shares_image: bool,
    /// The compose file has a third service, which the agent does not update.
    pub(crate) has_third: bool,
    /// An env file sets the tag of `web`, and the agent writes newer tags to it.
    pub(crate) has_variable: bool,
    /// The new containers of `web` start beside the old ones.
    pub(crate) starts_first: bool,
    /// `web` has a volume, which is copied before updates.
    pub(crate) has_data: bool,
    /// The old containers are told before they are stopped.
    pub(crate) drains: bool,
    /// They can't be told to serve again.
    pub(crate) drains_for_good: bool,
    /// How many seconds that takes, if not one.
    pub(crate) drain_wait: Option<u64>,
    pub(crate) steps: Vec<TimedStep>,
}

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) violations: Vec<String>,
    pub(crate) transcript: Vec<String>,
}

impl Flags {
    fn describe(self) -> String {
        let Flags { auto_update, auto_heal, auto_start, compose_watch } = self;
        let all = [
            (auto_update, "auto_update"),
            (auto_heal, "auto_heal"),
            (auto_start, "auto_start"),
            (compose_watch, "compose_watch"),
        ];
        let on: Vec<&str> = all.into_iter().filter(|(is_on, _)| *is_on).map(|(_, word)| word).collect();
        if on.is_empty() { "nothing".to_owned() } else { on.join(", ") }
    }
}

impl Simulation {
    fn web(&self) -> &'static str {
        if self.has_variable { WEB_1 } else { WEB }
    }

    /// Describes the setup and the steps for the transcript.
    pub(crate) fn describe(&self) -> String {
        let policy = if self.restarts_itself { "with" } else { "without" };
        let shared = if self.shares_image { "; both list the image of web" } else { "" };
        let variable = if self.has_variable { "; an env file sets the tag of web" } else { "" };
        let first = if self.starts_first { "; web starts first" } else { "" };
        let drained = if self.drains { " and is drained" } else { "" };
        let data = if self.has_data { "; the data of web is copied" } else { "" };
        let third = if self.has_third { ", and a third service that is not configured" } else { "" };
        let seconds = |at: &Duration| format!("{:>4}.{:03}", at.as_secs(), at.subsec_millis());
        let line = |(at, step): &TimedStep| format!("{}  {}\n", seconds(at), step.describe());
        let steps = self.steps.iter().map(line).collect::<Vec<_>>().concat();
        format!(
            "web: {}{}\napi: {}{}\ncontainers {policy} a restart policy{third}{shared}{variable}{first}{drained}{data}\n\nsteps\n{steps}",
            self.flags[0].describe(),
            self.gates[0].describe(),
            self.flags[1].describe(),
            self.gates[1].describe(),
        )
    }

    /// Executes the run.
    pub(crate) fn run(&self) -> Outcome {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).max_blocking_threads(1).build();
        runtime.expect("a runtime can be made").block_on(self.execute())
    }

    async fn execute(&self) -> Outcome {
        let fake = new_world();
        let folder = tempfile::tempdir().expect("a folder can be made");
        let (file, env_file) = (folder.path().join("compose.yml"), folder.path().join(".env"));
        // The configuration requires that it exists. The world has its own.
        std::fs::write(&env_file, "").expect("it can be written");
        fake.set_up(self, &file);
        let mut execution = Execution::new(self, fake.clone(), &file, &env_file);
        tokio::select! {
            biased;
            () = fake.advance() => unreachable!("the world never ends"),
            () = execution.run(&self.steps) => {}
        }
        Outcome { violations: fake.violations(), transcript: fake.transcript() }
    }
}

/// A run in progress.
struct Execution {
    fake: FakeWorld,
    agent: Option<Agent>,
    /// The services as in the configuration file, and whether the file has them at the moment.
    services: Vec<(Value, bool)>,
    /// Services that were configured earlier.
    former: Vec<Arc<ServiceConfig>>,
    /// When the agent is started again.
    start_at: Option<Instant>,
    /// Seconds until the agent is started again after a kill.
    away: u64,
    loses_write: bool,
}

impl Execution {
    fn new(simulation: &Simulation, fake: FakeWorld, file: &Path, env_file: &Path) -> Self {
        let service = |(name, images, flags, gates): (&str, &[&str], Flags, Gates)| {
            let mut service = configuration::service(name, images);
            service["compose_files"] = serde_json::json!([file]);
            service["health_grace"] = 8.into();
            service["heal_cooldown"] = 15.into();
            service["auto_update"] = flags.auto_update.into();
            service["auto_heal"] = flags.auto_heal.into();
            service["auto_start"] = flags.auto_start.into();
            service["compose_watch"] = flags.compose_watch.into();
            if gates != Gates::default() {
                service["update"] = gates.update();
            }
            (service, true)
        };
        let of_api: &[&str] = if simulation.shares_image { &[API, WEB] } else { &[API] };
        let services = [
            ("web", &[simulation.web()][..], simulation.flags[0], simulation.gates[0]),
            ("api", of_api, simulation.flags[1], simulation.gates[1]),
        ];
        let mut services: Vec<(Value, bool)> = services.map(service).into();
        if simulation.has_variable {
            let web = &mut services[0].0;
            web["env_file"] = serde_json::json!(env_file);
            (web["update"]["tags"], web["update"]["tag_variable"]) = (">=1".into(), VARIABLE.into());
            services[1].0["env_file"] = serde_json::json!(env_file);
        }
        if simulation.has_data {
            services[0].0["update"]["snapshot"] = json!(["data"]);
        }
        if simulation.drains {
            let wait = simulation.drain_wait.unwrap_or(1);
            let drain = json!({"exec": ["drain"], "command": ["/bin/true"], "wait": wait, "timeout": 5});
            services[0].0["update"]["drain"] = drain;
            if !simulation.drains_for_good {
                services[0].0["update"]["drain"]["undo"] = json!(["undrain"]);
            }
        }
        Self { fake, agent: None, services, former: Vec::new(), start_at: None, away: 1, loses_write: false }
    }

    fn config(&mut self) -> Config {
        let wanted = self.services.iter().filter(|(_, is_there)| *is_there);
        // A section without effect would cause a warning.
        let effective = |(service, _): &(Value, bool)| {
            let mut service = service.clone();
            if service["auto_update"] == false {
                service.as_object_mut().expect("a service is an object").remove("update");
            }
            service
        };
        let config = configuration::read(&wanted.map(effective).collect::<Vec<_>>());
        let services: Vec<Arc<ServiceConfig>> = config.services.clone();
        self.fake.configured(&services);
        self.former.retain(|former| services.iter().all(|service| service.name != former.name));
        self.former.extend(services);
        config
    }

    async fn run(&mut self, steps: &[TimedStep]) {
        let started = Instant::now();
        self.start().await;
        for (at, step) in steps {
            self.pass(started + *at).await;
            self.step(step.clone()).await;
        }
        self.pass(Instant::now() + Duration::from_secs(1)).await;
        self.fake.calm();
        self.send_registry_events();
        let (end, mut seen, mut quiet_since) = (Instant::now() + CALM, 0, Instant::now());
        while Instant::now() < end && quiet_since.elapsed() < QUIET {
            self.pass(Instant::now() + Duration::from_secs(5)).await;
            self.operators_retry_updates();
            let lines = self.fake.transcript_len();
            if std::mem::replace(&mut seen, lines) != lines || self.gate_opens_soon() {
                quiet_since = Instant::now();
            }
        }
        if let Some(agent) = &self.agent {
            self.fake.check_end(&agent.at_end());
        }
        self.operators_clear_waiting().await;
        if let Some(agent) = self.agent.take() {
            agent.kill().await;
        }
    }

    /// Sends a registry event for pushed newer tags.
    fn send_registry_events(&self) {
        self.agent.iter().for_each(Agent::tag_was_pushed);
    }

    /// Reports whether a gate is about to open.
    fn gate_opens_soon(&self) -> bool {
        let now = self.fake.clock().now();
        let lifts = self.agent.iter().flat_map(Agent::at_end).filter_map(|one| one.record.waiting?.lifts_at);
        lifts.into_iter().any(|at| at > now && at.duration_since(now) < SignedDuration::from_secs(180))
    }

    /// Once what they failed for is over, operators ask for updates that were postponed, instead of waiting for the next attempt.
    fn operators_retry_updates(&self) {
        let Some(agent) = &self.agent else { return };
        let request = ServiceRequest::Check;
        for one in agent.at_end() {
            let fault = one.record.errored.unwrap_or_default();
            let is_of_compose = COMPOSE_FAULTS.iter().any(|text| fault.contains(text));
            let is_postponed = is_of_compose && self.fake.is_postponed(&one.config.name);
            if !fault.contains("no space left") && !is_postponed {
                continue;
            }
            let service = &one.config.name;
            self.fake.trace("step", &format!("an operator sends to {service}: {request:?}"));
            self.fake.operator_asked();
            self.fake.service_asked(service, &request);
            agent.ask(service, request.clone());
        }
    }

    /// At the end, operators request the updates that still wait.
    async fn operators_clear_waiting(&mut self) {
        for request in [ServiceRequest::Check, ServiceRequest::Redeploy] {
            let Some(agent) = &self.agent else { return };
            let waiting: Vec<String> = agent
                .at_end()
                .into_iter()
                .filter(|one| {
                    let waiting = one.record.waiting.as_ref();
                    waiting.is_some_and(|waiting| !waiting.clear.starts_with("POST /unblock/"))
                })
                .map(|one| one.config.name.clone())
                .collect();
            if waiting.is_empty() {
                return;
            }
            for service in &waiting {
                let Some(agent) = &self.agent else { return };
                self.fake.trace("step", &format!("an operator sends to {service}: {request:?}"));
                self.fake.operator_asked();
                self.fake.service_asked(service, &request);
                agent.ask(service, request.clone());
                // One after the other, since a project has one deployment at a time.
                self.pass(Instant::now() + Duration::from_mins(1)).await;
            }
            let Some(agent) = &self.agent else { return };
            let asked = agent.at_end().into_iter().filter(|one| waiting.contains(&one.config.name));
            self.fake.check_passed(&asked.collect::<Vec<_>>(), &request);
        }
    }

    /// Waits until `until`. Meanwhile the agent may be killed and started again.
    async fn pass(&mut self, until: Instant) {
        loop {
            let fake = self.fake.clone();
            let next = self.start_at.map_or(until, |at| at.min(until));
            let panicked = async {
                match &self.agent {
                    Some(agent) => agent.panicked().await,
                    None => std::future::pending().await,
                }
            };
            let is_killed = tokio::select! {
                biased;
                () = fake.crash.notified() => true,
                () = panicked => panic!("a task of the agent panicked"),
                () = sleep_until(next) => false,
            };
            if is_killed {
                self.kill().await;
            } else if self.start_at.take_if(|at| *at <= Instant::now()).is_some() {
                self.start().await;
            } else {
                return;
            }
        }
    }

    async fn start(&mut self) {
        self.start_at = None;
        self.fake.trace("agent", "starts");
        let config = self.config();
        self.agent = Some(Agent::start(&self.fake.clone(), &config, &self.former).await);
        self.fake.agent_runs(true);
    }

    async fn kill(&mut self) {
        self.fake.crash_at(None);
        let Some(agent) = self.agent.take() else { return };
        self.fake.trace("agent", "is killed");
        self.fake.agent_runs(false);
        agent.kill().await;
        if std::mem::take(&mut self.loses_write) {
            self.fake.power_cut();
        }
        self.start_at = Some(Instant::now() + Duration::from_secs(self.away));
    }

    async fn step(&mut self, step: Step) {
        if !matches!(step, Step::World(_)) {
            self.fake.trace("step", &step.describe());
        }
        match step {
            Step::World(act) => {
                self.fake.act(act);
                if matches!(act, Act::PushNewer(_) | Act::PushSameNewer) {
                    self.send_registry_events();
                }
            }
            Step::Ask(service, request) => {
                // Without a running agent the request is lost.
                let Some(agent) = &self.agent else { return };
                self.fake.operator_asked();
                self.fake.service_asked(service, &request);
                agent.ask(service, request);
            }
            Step::Poll => {
                self.fake.operator_asked();
                self.agent.iter().for_each(Agent::poll);
            }
            Step::Kill { calls, away, loses_write } => {
                (self.away, self.loses_write) = (away, loses_write);
                self.fake.crash_at(Some(calls));
            }
            Step::StopAgent { away } => {
                let Some(agent) = self.agent.take() else { return };
                self.fake.agent_runs(false);
                let is_killed = tokio::select! {
                    biased;
                    () = self.fake.crash.notified() => true,
                    () = agent.stop() => false,
                };
                if is_killed {
                    agent.kill().await;
                }
                self.start_at = Some(Instant::now() + Duration::from_secs(away));
            }
            Step::Drop(name) => {
                self.reload(|services| set(services, name, |service| service.1 = false)).await;
            }
            Step::Add(name) => self.reload(|services| set(services, name, |service| service.1 = true)).await,
            Step::Rename => {
                self.reload(|services| set(services, "web", |service| service.0["name"] = "shop".into()))
                    .await;
            }
            Step::Toggle(name, key) => {
                let toggle = |service: &mut (Value, bool)| {
                    let is_on = service.0[key].as_bool().unwrap_or_default();
                    service.0[key] = (!is_on).into();
                };
                self.reload(|services| set(services, name, toggle)).await;
            }
        }
    }

    async fn reload(&mut self, change: impl FnOnce(&mut Vec<(Value, bool)>)) {
        change(&mut self.services);
        let config = self.config();
        let Some(agent) = &mut self.agent else { return };
        let fake = self.fake.clone();
        let is_killed = tokio::select! {
            biased;
            () = fake.crash.notified() => true,
            () = agent.reload(&config) => false,
        };
        if is_killed {
            self.kill().await;
        }
    }
}

fn set(services: &mut [(Value, bool)], name: &str, change: impl Fn(&mut (Value, bool))) {
    services.iter_mut().filter(|(service, _)| service["name"] == name).for_each(change);
}

impl FakeWorld {
    /// Sets up a running project of two or three services with working images.
    fn set_up(&self, simulation: &Simulation, file: &Path) {
        let all = [("web", simulation.web()), ("api", API), ("db", DB)];
        for (service, text) in &all[..if simulation.has_third { 3 } else { 2 }] {
            let (reference, image) = (reference(text), format!("{service} v1"));
            self.compose_service(service, &reference);
            self.add_image(&reference, &image, Behaviour::Good, true);
            self.push(&reference, &image, Behaviour::Good);
            self.trust(&image);
        }
        if simulation.has_data {
            self.has_data();
        }
        if simulation.starts_first {
            self.starts_first("web");
        }
        self.set_compose_file(file, simulation.restarts_itself);
        if simulation.has_variable {
            self.set_tag_in_env_file("web");
        }
        self.operator_up();
    }
}
