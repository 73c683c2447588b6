//! A compose project for one test.

use std::path::{Path, PathBuf};
use std::process::Output;

use crate::world::signal_from_outside;
use crate::{ContainerView, Engine, LABEL, unique_name, wait_for};

/// A compose project: its file and its containers. Removed on drop.
pub struct Project {
    /// Its name.
    pub name: String,
    /// Its file.
    pub file: PathBuf,
    engine: Engine,
    services: Vec<(String, String, String)>,
}

impl Project {
    /// Creates a project without services, with its file in `folder`.
    pub fn new(about: &str, folder: &Path, engine: &Engine) -> Self {
        Self::named(&unique_name(about), folder, engine)
    }

    /// Like [`Self::new`], with exactly this name. Only for a private engine, where it can't collide with other tests.
    pub fn named(name: &str, folder: &Path, engine: &Engine) -> Self {
        let project = Self {
            name: name.to_owned(),
            file: folder.join("compose.yml"),
            engine: engine.clone(),
            services: Vec::new(),
        };
        project.write();
        project
    }

    /// Adds a service to the file. `more` are further lines of it, for example `restart: always`.
    pub fn service(&mut self, name: &str, image: &str, more: &[&str]) {
        let more = more.iter().fold(String::new(), |lines, line| lines + "    " + line + "\n");
        self.services.push((name.to_owned(), image.to_owned(), more));
        self.write();
    }

    /// Replaces the file with this text, for projects that are more than a list of services. `{labels}` in it is replaced
    /// with the value that the `labels` of every service must have.
    pub fn write_text(&mut self, text: &str) {
        self.services.clear();
        let labels = format!("{{ {LABEL}: {} }}", self.name);
        let networks = format!("networks:\n  default:\n    labels: {labels}\n");
        let text = text.replace("{labels}", &labels) + &networks;
        std::fs::write(&self.file, text).expect("the compose file can be written");
    }

    fn write(&self) {
        let services = self.services.iter().fold(String::new(), |text, (name, image, more)| {
            let labels = format!("    labels:\n      {LABEL}: {}\n", self.name);
            format!("{text}  {name}:\n    image: {image}\n    network_mode: none\n{labels}{more}")
        });
        let text =
            if services.is_empty() { "services: {}\n".to_owned() } else { format!("services:\n{services}") };
        std::fs::write(&self.file, text).expect("the compose file can be written");
    }

    /// Runs `docker compose` on it.
    pub fn compose(&self, arguments: &[&str]) -> Output {
        let file = self.file.display().to_string();
        self.engine
            .cli(&["compose", "-p", &self.name, "-f", &file, "--progress", "quiet"])
            .args(arguments)
            .output()
            .expect("docker can be run")
    }

    /// Starts it as an operator would, and waits until all services run and none is in its health check's start period.
    #[track_caller]
    pub fn up(&self) {
        let output = self.compose(&["up", "-d"]);
        assert!(output.status.success(), "compose up: {}", String::from_utf8_lossy(&output.stderr));
        wait_for("the project to run", || {
            let views = self.containers();
            let settled =
                views.iter().all(|view| view.state == "running" && matches!(&*view.health, "" | "healthy"));
            if settled && views.len() >= self.services.len() { Ok(()) } else { Err(format!("{views:#?}")) }
        });
    }

    /// Tells the container of [`Image::fails_on_command`](crate::Image::fails_on_command) to fail once it runs `version`, and waits
    /// until it has exited.
    #[track_caller]
    pub fn fail(&self, service: &str, version: &str) {
        let of =
            || self.containers().into_iter().find(|view| view.service == service && view.version == version);
        wait_for("the new version to run", || match of() {
            Some(view) if view.state == "running" => Ok(()),
            other => Err(format!("{other:#?}")),
        });
        // Repeated, because the command is lost if the container is not ready for it yet.
        wait_for("the new version to fail", || match of().filter(|view| view.state == "running") {
            None => Ok(()),
            Some(view) => {
                let pid = self.engine.docker(&["inspect", "-f", "{{.State.Pid}}", &view.id]);
                signal_from_outside("USR1", &[pid]);
                Err(format!("{view:#?}"))
            }
        });
    }

    /// Returns its containers.
    pub fn containers(&self) -> Vec<ContainerView> {
        self.engine.containers(&self.name)
    }

    /// Returns the only container of a service. Waits for the one to be the only one: while compose recreates a container, there
    /// are two for a moment.
    #[track_caller]
    pub fn container(&self, service: &str) -> ContainerView {
        wait_for("one container of the service", || {
            let mut views = self.containers();
            views.retain(|view| view.service == service);
            match <[ContainerView; 1]>::try_from(views) {
                Ok([view]) => Ok(view),
                Err(views) => Err(format!("{service}: {views:#?}")),
            }
        })
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        self.engine.remove_all(&self.name);
    }
}
