//! A fake of compose, as far as updates need it.

use async_trait::async_trait;
use evenkeel_agent::model::{ComposeError, EventKind, Model, Origin, Project, PullPolicy, Reference, UpMode};
use evenkeel_agent::ports::{Compose, Hashes, Priority, Turn};

use super::container::FakeContainer;
use super::{Behaviour, Definition, FakeImage, FakeWorld, Inner, RegistryFault, UpFault};

const BROKEN: &str = "yaml: line 3: did not find expected key";

fn failed(cause: &str) -> ComposeError {
    ComposeError { output: cause.to_owned(), ..ComposeError::new(cause) }
}

impl Inner {
    /// Brings up one service.
    pub(super) fn up_one(
        &mut self,
        wanted: &Definition,
        mode: &UpMode,
        origin: &Origin,
    ) -> Result<(), String> {
        if matches!(mode, UpMode::ScaledServices { keeps_containers: true, .. }) {
            return self.up_beside(wanted, mode, origin);
        }
        if !mode.starts_only() {
            self.scale_down(wanted, mode);
        }
        let Definition { name, reference, version, .. } = wanted;
        let (id, _) =
            self.by_name(&reference.tagged()).ok_or_else(|| format!("No such image: {reference}"))?;
        let forced = matches!(mode, UpMode::All | UpMode::ForceService(_));
        let at = self.containers.iter().position(|c| c.service == *name);
        let is_current = |c: &FakeContainer| {
            c.image == id && c.reference == *reference && c.made_with == *version && !forced
        };
        let at = match at {
            Some(at) if mode.starts_only() || is_current(&self.containers[at]) => at,
            _ => {
                if let Some(at) = at {
                    self.check_replaced(at, wanted, mode);
                    self.remove(at);
                }
                self.create(wanted, origin)?
            }
        };
        if self.containers[at].is_up() {
            return Ok(());
        }
        if self.containers[at].behaviour == Behaviour::BadEntrypoint {
            return Err("exec: no such file".to_owned());
        }
        self.start(at);
        Ok(())
    }

    /// Pulls the missing images of these services. Compose does that before it changes anything, and checks no gate.
    fn fetch_missing(&mut self, services: &[Definition]) -> Result<(), ComposeError> {
        for reference in services.iter().map(|service| &service.reference) {
            let tag = reference.tagged();
            let Some(digest) = self.registry.get(&tag).cloned().filter(|_| self.by_name(&tag).is_none())
            else {
                continue;
            };
            let is_away = matches!(self.faults.registry, RegistryFault::Errors | RegistryFault::Hangs);
            if self.faults.pull || is_away {
                self.interfere();
                self.trace("compose", "can't pull the missing images");
                return Err(failed("no space left on device"));
            }
            self.check_fetched_by_compose(&tag, &digest);
            let Some((id, behaviour)) = self.published.get(&digest).cloned() else { continue };
            let image = FakeImage { behaviour, digests: [].into(), tags: [].into() };
            self.images.entry(id.clone()).or_insert(image).digests.insert(reference.repository.at(&digest));
            let tagged = self.tag(&id, tag);
            tagged.expect("the image is present");
        }
        Ok(())
    }

    pub(super) fn up_all(&mut self) {
        for definition in self.definitions(None) {
            // An image that can't be started is ignored.
            let _ = self.up_one(&definition, &UpMode::Changed, &person());
        }
    }

    pub(super) fn start(&mut self, at: usize) {
        let now = self.now;
        self.containers[at].start(now);
        let service = self.containers[at].service.clone();
        // An operator may be stopping another container of the service.
        if !self.containers.iter().any(|c| c.service == service && c.stopping.is_some()) {
            self.truth.stopped_by_operator.remove(&service);
        }
        self.container_event(at, now, EventKind::Start);
        self.migrate(at);
    }

    /// Stops the container if it is running, and removes it.
    pub(super) fn remove(&mut self, at: usize) {
        let now = self.now;
        if self.containers[at].is_up() {
            self.end_by_sigterm(at, 143);
        }
        let gone = self.containers.remove(at);
        self.emit(gone.id.clone(), gone.name(), now, EventKind::Destroy);
    }
}

#[async_trait]
impl Compose for FakeWorld {
    async fn turn(&self, _: Priority) -> Option<Turn> {
        (!self.lock().gives_no_turns).then(Turn::default)
    }

    async fn validate(&self, _: &Project) -> Result<(), ComposeError> {
        if self.lock().is_file_broken { Err(failed(BROKEN)) } else { Ok(()) }
    }

    async fn model(&self, project: &Project) -> Result<Model, ComposeError> {
        let mut inner = self.lock();
        inner.definition_reads += 1;
        if inner.is_file_broken && project.definition.is_none() {
            inner.interfere();
            return Err(failed(BROKEN));
        }
        let element = |service: &Definition| {
            let labels = serde_json::json!({ "version": service.version.to_string() });
            let mut element = serde_json::json!({ "image": service.reference.tagged(), "labels": labels });
            if service.starts_first {
                element["deploy"] = serde_json::json!({ "update_config": { "order": "start-first" } });
            }
            if let Some(to) = inner.ties.get(&service.name) {
                let tie = serde_json::json!({ "condition": "service_started", "restart": true });
                element["depends_on"] = serde_json::json!({ to: tie });
            }
            if !inner.secret_file.is_empty() {
                element["secrets"] = serde_json::json!([{ "source": "key" }]);
            }
            element
        };
        let services: serde_json::Map<String, serde_json::Value> =
            inner.definitions(Some(project)).iter().map(|s| (s.name.clone(), element(s))).collect();
        let volumes = serde_json::json!({ "data": { "name": "p_data" }, "more": { "name": "p_more" } });
        let mut model = serde_json::json!({ "services": services, "volumes": volumes });
        if !inner.secret_file.is_empty() {
            model["secrets"] = serde_json::json!({ "key": { "file": inner.secret_file } });
        }
        Ok(serde_json::from_value(model).expect("a model"))
    }

    async fn hashes(&self, project: &Project) -> Result<Hashes, ComposeError> {
        let mut inner = self.lock();
        inner.definition_reads += 1;
        if inner.is_file_broken && project.definition.is_none() {
            return Err(failed(BROKEN));
        }
        let hash = |s: &Definition| (s.name.clone(), hash_of(&s.reference, s.version));
        let by_service = inner.definitions(Some(project)).iter().map(hash).collect();
        Ok(Hashes { by_service, version: "1".to_owned(), ..Hashes::default() })
    }

    async fn up(
        &self,
        project: &Project,
        up_mode: &UpMode,
        pull: PullPolicy,
    ) -> Result<String, ComposeError> {
        let _changing = Changing::begin(self, Change::Compose);
        self.lock().brought_up.insert(project.name.clone());
        self.point().await;
        let (services, fault) = {
            let mut inner = self.lock();
            if inner.engine_down || inner.is_cut {
                return Err(failed("cannot connect"));
            }
            inner.up_count += 1;
            inner.kept_counts.clone_from(&project.kept_counts);
            let named = up_mode.services();
            let words = if named.is_empty() { "everything".to_owned() } else { named.join(", ") };
            inner.trace("compose", &format!("up {words}"));
            let fault = inner.faults.up;
            let is_broken = inner.is_file_broken && project.definition.is_none();
            if fault == UpFault::AtOnce || is_broken {
                inner.interfere();
                inner.trace("compose", "fails before it changes anything");
                return Err(failed(if is_broken { BROKEN } else { "port is already allocated" }));
            }
            let whole: &[String] = if up_mode.starts_only() { &[] } else { &project.all_services };
            let named = if named.is_empty() { whole } else { named };
            let services = inner.definitions(Some(project)).into_iter();
            let services: Vec<Definition> =
                services.filter(|service| named.is_empty() || named.contains(&service.name)).collect();
            if pull == PullPolicy::Missing {
                inner.fetch_missing(&services)?;
            }
            (services, fault)
        };
        for definition in services {
            let result = {
                let mut inner = self.lock();
                inner.check_up(&definition);
                let before = inner.container(&definition.name).map(|c| c.id.clone());
                let result = inner.up_one(&definition, up_mode, &origin_of(project));
                inner.trace_up(&definition.name, before.as_deref());
                result
            };
            self.moved.notify_one();
            // The agent may be killed while compose is running, when only some services are done.
            self.point().await;
            if let Err(cause) = result {
                return Err(failed(&cause));
            }
            if fault == UpFault::Halfway {
                let mut inner = self.lock();
                inner.interfere();
                inner.trace("compose", "fails halfway");
                return Err(failed("network not found"));
            }
        }
        Ok(String::new())
    }
}

/// Where a person starts the project: not where the agent would by itself. The folder exists.
pub(super) fn person() -> Origin {
    Origin { folder: Some("/usr".into()), env_files: vec!["/srv/shop/prod.env".into()] }
}

/// The surroundings in which compose is called.
pub(super) fn origin_of(project: &Project) -> Origin {
    Origin { folder: project.folder.clone(), env_files: project.env_files.clone() }
}

/// The hash that compose labels a container with.
pub(super) fn hash_of(reference: &Reference, version: u64) -> String {
    format!("{} {version}", reference.tagged())
}

/// A kind of call that changes a project.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Change {
    Compose,
    Restart,
}

/// A call in progress that changes the project. It ends when this is dropped, even by a kill.
pub(super) struct Changing {
    fake: FakeWorld,
    change: Change,
}

impl Changing {
    pub(super) fn begin(fake: &FakeWorld, change: Change) -> Self {
        let mut inner = fake.lock();
        let is_alone = match change {
            Change::Compose => inner.composing + inner.restarting == 0,
            // Several containers of one service may be restarted at once.
            Change::Restart => inner.composing == 0,
        };
        if !is_alone {
            inner.violated(
                "at most one action per project runs at a time: compose runs beside another action",
            );
        }
        inner.check_turn(change == Change::Restart);
        *inner.count(change) += 1;
        Self { fake: fake.clone(), change }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        *self.fake.lock().count(self.change) -= 1;
    }
}

impl Inner {
    fn count(&mut self, change: Change) -> &mut usize {
        match change {
            Change::Compose => &mut self.composing,
            Change::Restart => &mut self.restarting,
        }
    }

    fn trace_up(&mut self, service: &str, before: Option<&str>) {
        let Some(container) = self.container(service) else { return };
        if before != Some(&container.id) {
            let image = self.truth.image_name(&container.image);
            let line = format!("{service} runs {image}");
            self.trace("compose", &line);
        }
    }
}
