//! A swarm with one manager and a registry. It runs on a private engine, so that the machine's engine joins no swarm.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    Agent, Config, Engine, Image, PREFIX, PrivateEngine, Pushed, Registry, Service, Shape, wait_for,
};

/// Owner label of its images.
const OWNER: &str = "swarm";

/// A swarm with a registry for its services. Agents must be dropped first.
pub struct Swarm {
    engine: PrivateEngine,
    /// The registry.
    pub registry: Registry,
    folder: TempDir,
}

impl Swarm {
    /// Starts a registry and an engine that is a manager.
    pub fn start() -> Self {
        Self::start_with(Registry::start_for_private_engine())
    }

    /// Like [`Self::start`], without a swarm.
    pub fn engine_only() -> Self {
        Self::beside(Registry::start_for_private_engine())
    }

    /// Starts a manager with this registry, which must be one for a private engine.
    pub fn start_with(registry: Registry) -> Self {
        let swarm = Self::beside(registry);
        swarm.engine().docker(&["swarm", "init", "--advertise-addr", "127.0.0.1"]);
        swarm
    }

    fn beside(registry: Registry) -> Self {
        let engine = PrivateEngine::start(&registry);
        let folder = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}swarm-"))
            .tempdir()
            .expect("a temporary folder can be created");
        Self { engine, registry, folder }
    }

    /// Starts a manager that other nodes can join.
    pub fn start_for_others() -> Self {
        let swarm = Self::engine_only();
        swarm.engine().docker(&["swarm", "init", "--advertise-addr", &swarm.registry.address()]);
        swarm
    }

    /// Starts another node, which joins as a worker.
    pub fn join(&self) -> Node {
        self.join_as("worker")
    }

    fn join_as(&self, role: &str) -> Node {
        let network = Registry::start_mirror(&self.registry);
        let node = Node { engine: PrivateEngine::start(&network), network };
        let token = self.engine().docker(&["swarm", "join-token", "-q", role]);
        let (manager, own) = (format!("{}:2377", self.registry.address()), node.network.address());
        node.engine().docker(&["swarm", "join", "--token", &token, "--advertise-addr", &own, &manager]);
        node
    }

    /// Returns the engine.
    pub fn engine(&self) -> Engine {
        self.engine.engine()
    }

    /// Starts its daemon again, or kills it.
    pub fn set_running(&mut self, running: bool) {
        if running { self.engine.run() } else { self.engine.end("KILL") }
    }

    /// Starts another node, which joins as a manager.
    pub fn join_as_manager(&self) -> Node {
        self.join_as("manager")
    }

    /// Updates the service `shop_web` as an operator would, without waiting.
    #[track_caller]
    pub fn change(&self, options: &[&str]) {
        let fixed = ["service", "update", "--detach", "--quiet"];
        self.engine().docker(&[&fixed, options, &["shop_web"]].concat());
    }

    /// Waits until `UpdateStatus` has this state.
    #[track_caller]
    pub fn wait_state(&self, wanted: &str) {
        self.wait_any_state(&[wanted]);
    }

    /// Like [`Self::wait_state`], for any of these states.
    #[track_caller]
    pub fn wait_any_state(&self, wanted: &[&str]) {
        wait_for(&format!("the update to be {}", wanted.join(" or ")), || {
            let service = self.service();
            if wanted.iter().any(|state| service["UpdateStatus"]["State"] == *state) {
                Ok(())
            } else {
                Err(format!("{} {:#?}", service["UpdateStatus"], self.engine().get("/tasks")))
            }
        });
    }

    /// Returns the folder of this swarm, which is removed on drop.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Pushes an image as `web:latest`.
    pub fn push(&self, image: &Image) -> Pushed {
        self.push_as(image, Shape::Docker)
    }

    /// Like [`Self::push`], with this kind of manifest.
    pub fn push_as(&self, image: &Image, shape: Shape) -> Pushed {
        self.registry.push("web", "latest", image, shape, OWNER)
    }

    /// Deletes the configuration of a pushed image: its manifest is still served, but the image can't be pulled.
    pub fn delete_config(&self, image: &Image) {
        self.registry.delete_config("web", image, OWNER);
    }

    /// Returns the full image reference of `web:latest`.
    pub fn image(&self) -> String {
        format!("{}/web:latest", self.registry.host)
    }

    /// Creates the service `shop_web` from `web:latest` with these options, and waits until a task runs.
    #[track_caller]
    pub fn create(&self, options: &[&str]) {
        self.create_with(&[], options);
    }

    /// Like [`Self::create`], with these global options of the `docker` client.
    #[track_caller]
    pub fn create_with(&self, client: &[&str], options: &[&str]) {
        let image = self.image();
        let fixed = ["service", "create", "--detach", "--quiet", "--name", "shop_web", "--network", "host"];
        let quick = ["--update-monitor", "2s", "--rollback-monitor", "1s", "--restart-delay", "1s"];
        let arguments = [client, &fixed, &quick, options, &[image.as_str()]].concat();
        self.engine().docker(&arguments);
        wait_for("the service to run", || {
            let tasks = self.running();
            if tasks.is_empty() { Err("no task runs".to_owned()) } else { Ok(()) }
        });
    }

    /// Returns the service `shop_web`.
    #[track_caller]
    pub fn service(&self) -> Value {
        self.engine().get("/services/shop_web")
    }

    /// Returns the image of its specification.
    pub fn spec_image(&self) -> String {
        let service = self.service();
        service["Spec"]["TaskTemplate"]["ContainerSpec"]["Image"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns the image of each running task.
    pub fn running(&self) -> Vec<String> {
        let tasks = self.engine().get("/tasks");
        let tasks = tasks.as_array().cloned().unwrap_or_default();
        let runs = tasks
            .iter()
            .filter(|task| task["Status"]["State"] == "running" && task["DesiredState"] == "running");
        runs.map(|task| task["Spec"]["ContainerSpec"]["Image"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    /// Asserts that exactly `replicas` tasks run, all with the pushed digest, and that the specification has it, too.
    #[track_caller]
    pub fn assert_runs(&self, pushed: &Pushed, replicas: usize) {
        let running = self.running();
        assert_eq!(running.len(), replicas, "{running:#?}");
        for image in running.into_iter().chain([self.spec_image()]) {
            assert!(image.ends_with(&pushed.digest), "{image} is {}", pushed.digest);
        }
    }

    /// Returns an agent's configuration of the service `web`.
    pub fn entry(&self) -> Service {
        Service::named("web")
            .set("swarm_service", "shop_web")
            .set("images", vec!["web:latest"])
            .set("auto_update", true)
            .set("health_grace", 3)
    }

    /// Starts an agent on another node of the swarm, with its files in `folder`.
    pub fn agent_on(&self, node: &Node, folder: &Path) -> Agent {
        let config = Config::of([self.entry()]).registry(&self.registry.host);
        let agent = Agent::start(folder, config, &[("DOCKER_HOST", &node.engine().host())]);
        agent.wait_first_poll();
        agent
    }

    /// Starts an agent for a service, and waits for its first poll.
    pub fn agent(&self, service: Service) -> Agent {
        self.agent_with(service, &[])
    }

    /// Like [`Self::agent`], with these environment variables.
    pub fn agent_with(&self, service: Service, environment: &[(&str, &str)]) -> Agent {
        let host = self.engine().host();
        let config = Config::of([service]).registry(&self.registry.host);
        let environment = [&[("DOCKER_HOST", host.as_str())], environment].concat();
        let agent = Agent::start(self.folder(), config, &environment);
        agent.wait_first_poll();
        agent
    }
}

/// Another node of a swarm. It must be dropped before the swarm.
pub struct Node {
    engine: PrivateEngine,
    /// The engine runs in its network namespace and pulls images from it.
    network: Registry,
}

impl Node {
    /// Returns the engine.
    pub fn engine(&self) -> Engine {
        self.engine.engine()
    }

    /// Returns its ID in the swarm.
    pub fn id(&self) -> String {
        self.engine().docker(&["info", "--format", "{{.Swarm.NodeID}}"])
    }

    /// Starts its daemon again, or kills it.
    pub fn set_running(&mut self, running: bool) {
        if running { self.engine.run() } else { self.engine.end("KILL") }
    }
}
