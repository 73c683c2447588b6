//! The complete environment of a deployment: registry, project, configuration, agent.

use std::path::Path;

use tempfile::TempDir;

use crate::engine::on_engine_host;
use crate::{
    Agent, Config, ContainerView, Engine, Image, PREFIX, Project, Proxy, Pushed, Registry, Service, Shape,
    wait_for,
};

/// A registry and a compose project on an engine. Agents must be dropped first.
pub struct World {
    /// The compose project.
    pub project: Project,
    /// The registry.
    pub registry: Registry,
    /// The engine.
    pub engine: Engine,
    /// `host:port` of the registry for engine and agent: the registry's own, or that of a proxy in front of it.
    pub host: String,
    folder: TempDir,
}

impl World {
    /// Creates a world on the engine under test, with its own registry.
    pub fn new(about: &str) -> Self {
        Self::with(about, &Engine::under_test(), Registry::start())
    }

    /// Creates a world on this engine, with this registry.
    pub fn with(about: &str, engine: &Engine, registry: Registry) -> Self {
        let folder = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{about}-"))
            .tempdir()
            .expect("a temporary folder can be created");
        let project = Project::new(about, folder.path(), engine);
        let host = registry.host.clone();
        Self { project, registry, engine: engine.clone(), host, folder }
    }

    /// Creates a world with a running service `web`, version `v1` of [`Image::good`].
    pub fn with_web(about: &str) -> (Self, Pushed) {
        Self::with_web_of(about, &Image::good("v1"), &[])
    }

    /// Creates a world with a running service `web` of this image. `more` are further lines of its compose service.
    pub fn with_web_of(about: &str, image: &Image, more: &[&str]) -> (Self, Pushed) {
        let mut world = Self::new(about);
        let v1 = world.push("web", image);
        world.service("web", "web", more);
        world.project.up();
        (world, v1)
    }

    /// Creates a world with a running service `web`, version `v1`, and a proxy in front of the registry.
    pub fn behind_proxy(about: &str) -> (Self, Proxy, Pushed) {
        let mut world = Self::new(about);
        let proxy = Proxy::start(&world.registry.host);
        world.host.clone_from(&proxy.host);
        let v1 = world.push("web", &Image::good("v1"));
        world.service("web", "web", &[]);
        world.project.up();
        (world, proxy, v1)
    }

    /// Returns the folder of this world, which is removed on drop.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Pushes an image as `<repository>:latest`, without the engine.
    pub fn push(&self, repository: &str, image: &Image) -> Pushed {
        self.push_as(repository, image, Shape::Docker)
    }

    /// Like [`Self::push`], with this kind of manifest.
    pub fn push_as(&self, repository: &str, image: &Image, shape: Shape) -> Pushed {
        self.registry.push(repository, "latest", image, shape, &self.project.name)
    }

    /// Returns the full image reference of a repository's `latest`.
    pub fn reference(&self, repository: &str) -> String {
        format!("{}/{repository}:latest", self.host)
    }

    /// Adds a compose service that uses a repository's `latest`.
    pub fn service(&mut self, name: &str, repository: &str, more: &[&str]) {
        let image = self.reference(repository);
        self.project.service(name, &image, more);
    }

    /// Returns the agent's configuration of a service of this project.
    pub fn entry(&self, name: &str, images: &[&str]) -> Service {
        Service::of_project(name, &self.project, images)
    }

    /// Returns an agent configuration with these services.
    pub fn config(&self, services: impl IntoIterator<Item = Service>) -> Config {
        let config = Config::of(services).registry(&self.host);
        match std::env::var("EVENKEEL_TEST_RUNTIME") {
            Ok(runtime) => config.set("runtime", runtime),
            Err(_) => config,
        }
    }

    /// Starts an agent with `web:latest` as service `web`, and waits for its first poll.
    pub fn agent(&self) -> Agent {
        self.agent_for([self.entry("web", &["web:latest"])])
    }

    /// Starts an agent with these services, and waits for its first poll.
    pub fn agent_for(&self, services: impl IntoIterator<Item = Service>) -> Agent {
        self.agent_with(self.config(services), &[])
    }

    /// Starts an agent with this configuration and these environment variables, and waits for its first poll.
    pub fn agent_with(&self, config: Config, environment: &[(&str, &str)]) -> Agent {
        let host = self.engine.host();
        let mut all = vec![("DOCKER_HOST", host.as_str())];
        all.extend_from_slice(environment);
        let agent = Agent::start(self.folder.path(), config, &all);
        agent.wait_first_poll();
        agent
    }

    /// Returns the process IDs of the main processes of these compose services.
    #[track_caller]
    pub fn pids(&self, services: &[&str]) -> Vec<String> {
        let views = self.project.containers();
        let ids = services.iter().map(|service| {
            let view = views.iter().find(|view| view.service == *service);
            view.unwrap_or_else(|| panic!("{service} has no container: {views:#?}")).id.as_str()
        });
        let arguments: Vec<&str> = ["inspect", "-f", "{{.State.Pid}}"].into_iter().chain(ids).collect();
        self.engine.docker(&arguments).lines().map(|pid| pid.trim().to_owned()).collect()
    }

    /// Kills the main processes of these compose services without the engine, like a crash.
    #[track_caller]
    pub fn crash(&self, services: &[&str]) {
        kill_from_outside(&self.pids(services));
    }

    /// Asserts that the only container of compose service `service` runs `version` and is not unhealthy.
    #[track_caller]
    pub fn assert_runs(&self, service: &str, version: &str) -> ContainerView {
        let view = self.project.container(service);
        assert_eq!(
            (view.version.as_str(), view.state.as_str()),
            (version, "running"),
            "{service} runs {version}: {view:#?}"
        );
        assert_ne!(view.health, "unhealthy", "{view:#?}");
        view
    }

    /// Asserts that no leftovers of a deployment exist: no half-created container, no hold, no foreign tag.
    #[track_caller]
    pub fn assert_tidy(&self) {
        wait_for("the leftovers of the deployment to be removed", || {
            let holds = self.engine.holds(&self.project.name);
            let names: Vec<String> = self.project.containers().into_iter().map(|view| view.name).collect();
            let half_made = names.iter().any(|name| !name.starts_with(&self.project.name));
            let foreign: Vec<String> = self
                .engine
                .tags(&self.project.name)
                .into_iter()
                .filter(|tag| !tag.starts_with(&format!("{}/", self.host)))
                .collect();
            if holds.is_empty() && foreign.is_empty() && !half_made {
                Ok(())
            } else {
                Err(format!("holds {holds:?}, tags {foreign:?}, containers {names:?}"))
            }
        });
    }
}

/// Kills processes without the engine, like a crash.
#[track_caller]
pub fn kill_from_outside(pids: &[String]) {
    assert!(
        signal_from_outside("KILL", pids),
        "processes {pids:?} could not be killed (this test needs root or sudo)"
    );
}

/// Sends a signal to processes without the engine. Returns whether all of them got it.
pub(crate) fn signal_from_outside(signal: &str, pids: &[String]) -> bool {
    // The engine reports 0 for a container that has ended, which to `kill` is the process group of this test.
    let pids = pids.iter().filter(|pid| *pid != "0");
    // The shell's builtin: a minimal system has no `kill` program.
    let script = ["-c", "kill -\"$0\" \"$@\"", signal];
    let sent = on_engine_host("sh").args(script).args(pids).stderr(std::process::Stdio::null()).status();
    sent.expect("sh can be run").success()
}
