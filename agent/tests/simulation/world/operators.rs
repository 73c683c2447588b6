//! Operator actions that bypass the agent, and faults.

use std::collections::BTreeSet;

use evenkeel_agent::model::EventKind;
use evenkeel_agent::model::image::Digest;
use jiff::SignedDuration;

use super::container::Run;
use super::env_file::tag_of_version;
use super::{
    Behaviour, CommandFault, EventFault, FakeWorld, Faults, Inner, ProbeFault, RegistryFault, StoreFault,
    UpFault, digest_of, id_of,
};

const STOPPING: SignedDuration = SignedDuration::from_millis(10);

/// An event in the world. Services are those of the compose file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Another image is pushed under the tag.
    Push(&'static str, Behaviour),
    /// A working image is pushed that declares another volume than those before.
    PushMoved(&'static str),
    /// An image is pushed under a newer tag, if the env file sets the tag: a new image, or the image of the current tag.
    PushNewer(Behaviour),
    PushSameNewer,
    /// An operator edits other lines of the env file.
    EditEnvFile,
    /// The tag is moved back to the image that it named before.
    MoveBack(&'static str),
    Registry(RegistryFault),
    PullsFail(bool),
    UpFails(UpFault),
    Store(StoreFault),
    Events(EventFault),
    /// The process of a container exits with code 1.
    Crash(&'static str),
    /// The health check of a container fails until its next start.
    Sicken(&'static str),
    /// The health check of a container fails, even after restarts.
    Ruin(&'static str),
    /// The engine stops all containers and goes away.
    EngineStops,
    /// The engine is back, and starts the containers with a restart policy.
    EngineStarts,
    /// Only the event stream disconnects.
    StreamBreaks,
    /// The connection to the engine is cut, or works again; the engine and its containers run on.
    Cut(bool),
    /// `docker pause`, `unpause`, `commit`.
    Pause(&'static str),
    Unpause(&'static str),
    Commit(&'static str),
    /// `docker stop` of a container that finishes its work first, for this many seconds, and fails its health check then.
    StopSlowly(&'static str, i64),
    /// `docker stop`, `start`, `restart`, `rm --force`.
    Stop(&'static str),
    Start(&'static str),
    Restart(&'static str),
    Remove(&'static str),
    /// `docker build --tag`: the tag names an image that is in no registry.
    Build(&'static str),
    /// The image that the tag names in the registry is signed.
    Sign(&'static str),
    /// How the gate command answers from now on.
    Command(CommandFault),
    /// What probes are told from now on.
    Probe(ProbeFault),
    /// An operator sets the clock forward or back by this many seconds.
    SetClock(i64),
    /// `docker compose pull`, `up`, `down`.
    Pull(&'static str),
    Up,
    Down,
    /// `docker image prune --all`
    Prune,
    /// An operator edits a service in the compose file, makes the file invalid, or repairs it.
    Edit(&'static str),
    BreakFile,
    MendFile,
}

impl Act {
    /// Describes it for the transcript.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Push(service, behaviour) => {
                format!("an image that {} is pushed for {service}", behaviour.describe())
            }
            Self::PushMoved(service) => {
                format!("an image that declares another volume is pushed for {service}")
            }
            Self::PushNewer(behaviour) => {
                format!("an image that {} is pushed for web under a newer tag", behaviour.describe())
            }
            Self::PushSameNewer => "the image of web gets a newer tag".to_owned(),
            Self::EditEnvFile => "an operator edits other lines of the env file".to_owned(),
            Self::MoveBack(service) => format!("the tag of {service} is moved back in the registry"),
            Self::Registry(RegistryFault::None) => "the registry works again".to_owned(),
            Self::Registry(fault) => format!("the registry from now on: {fault:?}").to_lowercase(),
            Self::PullsFail(fails) => format!("pulls {} from now on", if fails { "fail" } else { "work" }),
            Self::UpFails(UpFault::None) => "compose up works again".to_owned(),
            Self::UpFails(fault) => format!("compose up fails from now on ({fault:?})").to_lowercase(),
            Self::Store(StoreFault::None) => "the disk accepts writes again".to_owned(),
            Self::Store(StoreFault::Refuses) => "the disk refuses writes".to_owned(),
            Self::Store(StoreFault::Torn) => "the disk applies writes but reports errors".to_owned(),
            Self::Events(fault) => format!("events from now on: {fault:?}").to_lowercase(),
            Self::Crash(service) => format!("the process of {service} crashes"),
            Self::Sicken(service) => format!("{service} becomes unhealthy until its next start"),
            Self::Ruin(service) => format!("{service} becomes unhealthy permanently"),
            Self::Build(service) => format!("an operator builds an image under the tag of {service}"),
            Self::Sign(service) => format!("the image of {service} in the registry is signed"),
            Self::SetClock(by) => format!("an operator changes the clock by {by} s"),
            Self::Command(CommandFault::None) => "the gate command allows everything from now on".to_owned(),
            Self::Command(fault) => format!("the gate command from now on: {fault:?}").to_lowercase(),
            Self::Probe(fault) => format!("probes from now on: {fault:?}").to_lowercase(),
            Self::EngineStops => "the engine stops all containers and goes away".to_owned(),
            Self::EngineStarts => "the engine is back".to_owned(),
            Self::StreamBreaks => "the engine's event stream disconnects".to_owned(),
            Self::Cut(true) => "the connection to the engine is cut".to_owned(),
            Self::Cut(false) => "the connection to the engine works again".to_owned(),
            Self::Pause(service) => format!("an operator pauses {service}"),
            Self::Unpause(service) => format!("an operator unpauses {service}"),
            Self::Commit(service) => format!("a backup commits {service}"),
            Self::StopSlowly(service, seconds) => {
                format!("an operator stops {service}, which takes {seconds} s")
            }
            Self::Stop(service) => format!("an operator stops {service}"),
            Self::Start(service) => format!("an operator starts {service}"),
            Self::Restart(service) => format!("an operator restarts {service}"),
            Self::Remove(service) => format!("an operator removes the container of {service}"),
            Self::Pull(service) => format!("an operator pulls {service}"),
            Self::Up => "an operator brings the project up".to_owned(),
            Self::Down => "an operator takes the project down".to_owned(),
            Self::Prune => "an operator prunes unused images".to_owned(),
            Self::Edit(service) => format!("an operator edits {service} in the compose file"),
            Self::BreakFile => "an operator makes the compose file invalid".to_owned(),
            Self::MendFile => "an operator repairs the compose file".to_owned(),
        }
    }
}

/// Replaces digests and image IDs in a text by their names.
pub(super) fn name_digests(text: &str, names: impl Iterator<Item = (String, String)>) -> String {
    names.fold(text.to_owned(), |text, (digest, name)| {
        let digest: &str = &digest;
        let short = Digest::parse(digest).map(|digest| digest.short().to_owned()).unwrap_or_default();
        let text = text.replace(digest, &format!("<{name}>"));
        if short.is_empty() { text } else { text.replace(&short, &format!("<{name}>")) }
    })
}

impl FakeWorld {
    /// Applies an event.
    pub(crate) fn act(&self, act: Act) {
        self.lock().act(act);
        if let Act::SetClock(by) = act {
            self.set_clock(by);
        }
        self.moved.notify_one();
    }

    /// Removes all faults.
    pub(crate) fn calm(&self) {
        self.crash_at(None);
        let (is_down, is_cut, is_broken) = {
            let inner = self.lock();
            (inner.engine_down, inner.is_cut, inner.is_file_broken)
        };
        {
            let mut inner = self.lock();
            // A gate command that answers "wait" is no fault, and keeps doing so.
            let command = inner.faults.command;
            let waits = command == CommandFault::Waits;
            let command = if waits { command } else { CommandFault::None };
            inner.faults = Faults { command, ..Faults::default() };
            inner.trace("world", "has no faults from now on");
        }
        if is_broken {
            self.act(Act::MendFile);
        }
        if is_cut {
            self.act(Act::Cut(false));
        }
        if is_down {
            self.act(Act::EngineStarts);
        }
        let paused = self.lock().paused();
        for service in
            ["web", "api", "db"].into_iter().filter(|service| paused.contains(&(*service).to_owned()))
        {
            self.act(Act::Unpause(service));
        }
    }
}

impl Inner {
    #[allow(clippy::too_many_lines)] // one arm per act
    fn act(&mut self, act: Act) {
        self.trace("world", &act.describe());
        match act {
            Act::Push(service, behaviour) => self.push_next(service, behaviour),
            Act::PushMoved(service) => {
                *self.next_volumes.entry(service.to_owned()).or_default() += 1;
                self.push_next(service, Behaviour::Good);
            }
            Act::PushNewer(behaviour) => self.push_newer(Some(behaviour)),
            Act::PushSameNewer => self.push_newer(None),
            Act::EditEnvFile => self.edit_env_file(),
            Act::MoveBack(service) => self.move_back(service),
            Act::Registry(fault) => self.faults.registry = fault,
            Act::PullsFail(fails) => self.faults.pull = fails,
            Act::UpFails(fault) => self.faults.up = fault,
            Act::Store(fault) => self.set_disk(fault),
            Act::Events(fault) => self.faults.events = fault,
            Act::Crash(service) => self.accident(service, |inner, at| {
                let now = inner.now;
                inner.containers[at].end(now, 1, false);
                inner.container_event(at, now, EventKind::Die { exit_code: 1 });
            }),
            Act::Sicken(service) => self.accident(service, |inner, at| inner.containers[at].sick = true),
            Act::Ruin(service) => self.accident(service, |inner, at| inner.containers[at].ruined = true),
            Act::Build(service) => self.build(service),
            Act::Sign(service) => self.sign(service),
            Act::Command(fault) => self.faults.command = fault,
            Act::Probe(fault) => {
                self.interfere();
                self.truth.have_probes_lied |= fault != ProbeFault::None;
                self.faults.probe = fault;
            }
            // `FakeWorld` owns the clock and sets it.
            Act::SetClock(_) => {}
            Act::EngineStops => self.engine_stops(),
            Act::EngineStarts => self.engine_starts(),
            Act::StreamBreaks => {
                self.stream_breaks();
            }
            Act::Cut(cut) => {
                self.is_cut = cut;
                self.truth.disturbed_at = Some(self.now);
                if cut {
                    self.events.disconnect();
                }
            }
            Act::Pause(service) => self.in_passing(service, Self::pause),
            Act::Unpause(service) => self.in_passing(service, Self::unpause),
            Act::Commit(service) => self.in_passing(service, Self::commit),
            Act::StopSlowly(service, seconds) => {
                self.in_passing(service, |inner, at| inner.stop_slowly(at, seconds));
            }
            Act::Stop(service) => self.by_operator(service, Self::stop),
            Act::Start(service) => self.by_operator(service, |inner, at| {
                if !inner.containers[at].is_up() {
                    inner.start_by_hand(at);
                }
            }),
            Act::Restart(service) => self.by_operator(service, |inner, at| {
                inner.stop(at);
                inner.start_by_hand(at);
            }),
            Act::Remove(service) => self.by_operator(service, |inner, at| {
                inner.truth.stopped_by_operator.insert(service.to_owned());
                inner.remove(at);
            }),
            Act::Pull(service) => self.pull(service),
            Act::Up => {
                self.touch_all();
                if !self.is_file_broken && !self.engine_down {
                    self.truth.started_by_operator = self.images.keys().cloned().collect();
                    self.up_all();
                }
            }
            Act::Down | Act::Prune if self.engine_down => {}
            Act::Down => {
                self.touch_all();
                while !self.containers.is_empty() {
                    self.remove(0);
                }
                self.truth.stopped_by_operator =
                    self.services.iter().map(|service| service.name.clone()).collect();
            }
            Act::Prune => {
                self.interfere();
                self.tags_are_moved();
                self.prune();
            }
            Act::Edit(service) => {
                self.interfere();
                self.services.iter_mut().filter(|s| s.name == service).for_each(|s| s.version += 1);
                self.write_file();
            }
            Act::BreakFile => {
                self.interfere();
                self.is_file_broken = true;
                self.write_file();
            }
            Act::MendFile => {
                self.is_file_broken = false;
                self.write_file();
            }
        }
    }

    /// Writes the compose file. The agent only checks whether its content has changed.
    pub(super) fn write_file(&self) {
        let Some(file) = &self.file else { return };
        let versions: Vec<u64> = self.services.iter().map(|service| service.version).collect();
        let text = format!("{versions:?} {} {}", self.is_file_broken, self.secret_file);
        std::fs::write(file, text).expect("the file can be written");
    }

    fn tag_of(&self, service: &str) -> Option<evenkeel_agent::model::image::Reference> {
        self.definitions(None).into_iter().find(|s| s.name == service).map(|s| s.reference)
    }

    /// Signs all images of the service in the registry.
    fn sign(&mut self, service: &str) {
        let Some(reference) = self.tag_of(service) else { return };
        for tag in self.tags_of(&reference.repository) {
            self.signed.extend(self.registry.get(&reference.with_tag(&tag).tagged()).cloned());
        }
    }

    /// Pushes a newer tag: of a new image, or of the image of the current tag.
    fn push_newer(&mut self, behaviour: Option<Behaviour>) {
        let Some(service) = self.definitions(None).into_iter().find(|service| service.has_variable) else {
            return;
        };
        let version = self.truth.next_version(&service.name);
        let newer = service.reference.with_tag(&tag_of_version(version));
        if let Some(behaviour) = behaviour {
            self.publish(&newer, &format!("{} v{version}", service.name), behaviour);
        } else {
            let digest = self.registry.get(&service.reference.tagged()).cloned();
            self.registry.extend(digest.map(|digest| (newer.tagged(), digest)));
        }
    }

    fn push_next(&mut self, service: &str, behaviour: Behaviour) {
        let Some(reference) = self.tag_of(service) else { return };
        let version = self.truth.next_version(service);
        let name = format!("{service} v{version}");
        self.publish(&reference, &name, behaviour);
    }

    fn move_back(&mut self, service: &str) {
        let Some(reference) = self.tag_of(service) else { return };
        let pushed = self.truth.tags.entry(service.to_owned()).or_default();
        if pushed.len() > 1 {
            pushed.pop();
        }
        if let Some(name) = pushed.last() {
            self.registry.insert(reference.tagged(), digest_of(name));
        }
    }

    fn accident(&mut self, service: &str, what: impl FnOnce(&mut Self, usize)) {
        let at = self.containers.iter().position(|c| c.service == service && c.is_up());
        let Some(at) = at else { return };
        self.interfere();
        what(self, at);
    }

    /// One of the containers of a service.
    pub(super) fn any_of(&self, service: &str) -> Option<usize> {
        let of_service = |c: &super::FakeContainer| c.service == service;
        if self.next_id.is_multiple_of(2) {
            self.containers.iter().rposition(of_service)
        } else {
            self.containers.iter().position(of_service)
        }
    }

    fn by_operator(&mut self, service: &str, what: impl FnOnce(&mut Self, usize)) {
        if self.engine_down {
            return;
        }
        let Some(at) = self.any_of(service) else { return };
        self.touch(service);
        what(self, at);
    }

    fn stop(&mut self, at: usize) {
        if !self.containers[at].is_up() {
            return;
        }
        let service = self.containers[at].service.clone();
        // Only `api` exits with code 0 on SIGTERM.
        let code = if service == "api" { 0 } else { 143 };
        self.note_lost_event(at);
        self.end_by_sigterm(at, code);
        self.truth.stopped_by_operator.insert(service);
    }

    /// An event of this container may never reach the agent.
    pub(super) fn note_lost_event(&mut self, at: usize) {
        if self.faults.events != EventFault::None {
            self.truth.unseen_stops.insert(self.containers[at].id.clone());
        }
    }

    /// Ends a process with SIGTERM. The end lies slightly in the past, so that the next start comes after it.
    pub(super) fn end_by_sigterm(&mut self, at: usize, code: i64) {
        let ended = self.now - STOPPING;
        self.container_event(at, ended, EventKind::Kill { signal: Some(15) });
        self.containers[at].end(ended, code, false);
        self.container_event(at, ended, EventKind::Die { exit_code: code });
        self.container_event(at, ended, EventKind::Stop);
    }

    fn start_by_hand(&mut self, at: usize) {
        if self.containers[at].behaviour != Behaviour::BadEntrypoint {
            self.start(at);
        }
    }

    fn set_disk(&mut self, fault: StoreFault) {
        self.faults.store = fault;
        self.truth.disk_changed_at = Some(self.now);
    }

    fn pull(&mut self, service: &str) {
        let Some(reference) = self.tag_of(service) else { return };
        let Some(digest) = self.registry.get(&reference.tagged()).cloned() else { return };
        if self.engine_down || self.faults.registry != RegistryFault::None {
            return;
        }
        self.interfere();
        self.tags_are_moved();
        let Some((id, behaviour)) = self.published.get(&digest).cloned() else { return };
        self.truth.gated.pulled_by_operator(&digest);
        let empty = super::FakeImage { behaviour, digests: [].into(), tags: [].into() };
        self.images.entry(id.clone()).or_insert(empty).digests.insert(reference.repository.at(&digest));
        let tagged = self.tag(&id, reference.tagged());
        tagged.expect("the image is present");
        self.truth.pulled.insert(id);
    }

    fn build(&mut self, service: &str) {
        let Some(reference) = self.tag_of(service) else { return };
        if self.engine_down {
            return;
        }
        self.interfere();
        self.tags_are_moved();
        self.image_was_built(service);
        let name = format!("{service} build {}", self.truth.next_version(service));
        self.truth.name(&name);
        let id = id_of(&name);
        let image = super::FakeImage { behaviour: Behaviour::Good, digests: [].into(), tags: [].into() };
        self.images.insert(id.clone(), image);
        self.tag(&id, reference.tagged()).expect("the image is present");
        self.truth.pulled.insert(id);
    }

    /// `docker image prune -af`
    pub(super) fn prune(&mut self) {
        let used: BTreeSet<_> =
            self.containers.iter().map(|c| c.image.clone()).chain(self.anchors.values().cloned()).collect();
        self.images.retain(|id, _| used.contains(id));
    }

    fn engine_stops(&mut self) {
        if self.engine_down {
            return;
        }
        self.engine_went();
        for at in 0..self.containers.len() {
            if self.containers[at].is_up() {
                self.forget_recent_stop(at);
                self.end_by_sigterm(at, 143);
            }
        }
        self.engine_down = true;
        // A kept buffer would tell the agent that the engine has run on.
        self.events.forget();
    }

    fn engine_starts(&mut self) {
        if !std::mem::take(&mut self.engine_down) {
            return;
        }
        self.engine_since = Some(self.now);
        for at in 0..self.containers.len() {
            let c = &self.containers[at];
            let is_kept = c.restarts_itself && !self.truth.stopped_by_operator.contains(&c.service);
            if is_kept && matches!(c.run, Run::Ended { .. }) {
                self.start(at);
            }
        }
    }
}
