//! Containers beside others of their service: how compose makes them, and what must hold while they hand over.

use evenkeel_agent::model::{EngineError, Origin, UpMode};

use super::{Behaviour, Definition, FakeContainer, Inner, Run};

const ONLY_FOR_PROVEN: &str =
    "a container that ran before is never stopped by a handover whose new image was not proven";
const AS_MANY: &str = "at every instant of a handover at least as many containers run as before";

impl Inner {
    /// How many containers of a service compose is to leave.
    fn wanted_count(&self, mode: &UpMode, service: &str) -> usize {
        match mode {
            UpMode::ScaledServices { replicas, .. } => replicas.get(service).copied().unwrap_or(1),
            _ => self.kept_counts.get(service).copied().unwrap_or(1),
        }
    }

    /// Compose creates the missing containers of a service, and leaves those that exist as they are.
    pub(super) fn up_beside(
        &mut self,
        wanted: &Definition,
        mode: &UpMode,
        origin: &Origin,
    ) -> Result<(), String> {
        let of_service = |inner: &Self| -> Vec<usize> {
            let all = inner.containers.iter().enumerate();
            all.filter(|(_, c)| c.service == wanted.name).map(|(at, _)| at).collect()
        };
        while of_service(self).len() < self.wanted_count(mode, &wanted.name) {
            let at = self.create(wanted, origin)?;
            self.start_created(at)?;
        }
        for at in of_service(self) {
            if !self.containers[at].is_up() {
                self.start_created(at)?;
            }
        }
        Ok(())
    }

    fn start_created(&mut self, at: usize) -> Result<(), String> {
        if self.containers[at].behaviour == Behaviour::BadEntrypoint {
            return Err("exec: no such file".to_owned());
        }
        self.start(at);
        Ok(())
    }

    /// Creates a container with the next number.
    pub(super) fn create(&mut self, wanted: &Definition, origin: &Origin) -> Result<usize, String> {
        let Definition { name, reference, version, restarts_itself, .. } = wanted;
        let (id, image) =
            self.by_name(&reference.tagged()).ok_or_else(|| format!("No such image: {reference}"))?;
        let last = self.containers.iter().filter(|c| c.service == *name).map(|c| c.number).max();
        let container = FakeContainer {
            id: self.new_id(),
            service: name.clone(),
            number: last.unwrap_or_default() + 1,
            reference: reference.clone(),
            image: id,
            behaviour: image.behaviour,
            made_with: *version,
            secret_file: self.secret_file.clone(),
            origin: origin.clone(),
            restarts_itself: *restarts_itself,
            run: Run::Never,
            restarts: 0,
            sick: false,
            ruined: false,
            is_draining: false,
            reported_health: None,
            is_paused: false,
            unmeasured_until: None,
            stopping: None,
        };
        self.containers.push(container);
        Ok(self.containers.len() - 1)
    }

    /// Compose removes the containers of a service that are too many, those of an earlier image first.
    pub(super) fn scale_down(&mut self, wanted: &Definition, mode: &UpMode) {
        let image = self.by_name(&wanted.reference.tagged()).map(|(id, _)| id);
        loop {
            let all = self.containers.iter().enumerate().filter(|(_, c)| c.service == wanted.name);
            let all: Vec<(usize, &FakeContainer)> = all.collect();
            if all.len() <= self.wanted_count(mode, &wanted.name) {
                return;
            }
            let is_current = |c: &FakeContainer| image.as_ref() == Some(&c.image);
            let Some((at, _)) = all.iter().min_by_key(|(_, c)| (is_current(c), u32::MAX - c.number)) else {
                return;
            };
            let at = *at;
            self.remove(at);
        }
    }

    pub(super) fn at(&self, id: &str) -> Result<usize, EngineError> {
        let at = self.containers.iter().position(|c| c.id == id);
        at.ok_or_else(|| EngineError::NotFound(format!("No such container: {id}")))
    }

    /// The agent stops a container.
    pub(super) fn stop_by_agent(&mut self, at: usize) {
        if !self.containers[at].is_up() {
            return;
        }
        self.check_stopped(at);
        let name = self.containers[at].name();
        self.trace("engine", &format!("stops {name}"));
        self.end_by_sigterm(at, 143);
    }

    fn check_stopped(&mut self, at: usize) {
        let (id, service) = (self.containers[at].id.clone(), self.containers[at].service.clone());
        let deploying = self.durable.values().filter_map(|durable| durable.deployment.as_ref());
        // What writes to data that is copied is stopped first.
        let before: Vec<String> = deploying
            .filter(|deployment| deployment.plan().snapshot.is_none())
            .flat_map(|deployment| deployment.plan().before.iter())
            .filter(|was| was.running && was.compose_service == service)
            .map(|was| was.id.clone())
            .collect();
        if !before.contains(&id) {
            return;
        }
        let is_touched =
            self.truth.baselines.values().any(|b| b.touched.contains(&service) || b.is_disturbed);
        let of_service = || self.containers.iter().filter(|c| c.service == service);
        // The new image may be the one that runs: it is proven again if it was not.
        let proven = of_service().any(|c| !before.contains(&c.id) && self.truth.has_worked(&c.image));
        let others = of_service().filter(|c| c.id != id && c.is_well(self.now)).count();
        let holds = is_touched || self.truth.has_lost_track();
        if !(holds || proven) {
            self.violated(format!("{ONLY_FOR_PROVEN}: {service}"));
        }
        if !(holds || others >= before.len()) {
            self.violated(format!("{AS_MANY}: {service} has {others} others"));
        }
    }
}
