//! Looks at the data that snapshots are taken of, and performs their steps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::model::snapshot::{
    CopyMade, EarlierData, Ended, KeptFolder, Mounter, Named, Place, Room, SnapshotError, SnapshotRules,
    Source, named, overlap, stop_order,
};
use crate::model::{Container, EngineError, IfFound, Members, Model};
use crate::ports::snapshot::{Snapshots, Volumes};
use crate::ports::{Engine, PullProgress};
use crate::service::Durable;
use crate::service::action::SnapshotStep;
use crate::service::gates::candidate::SnapshotSeen;
use crate::service::input::{NotStarted, SnapshotStepped, StepResult};
use crate::service::wording::snapshot::lacks_free;

/// What snapshots need of the world.
#[derive(Clone)]
pub struct Data {
    /// Copies folders.
    pub folders: Arc<dyn Snapshots>,
    /// The volumes of the engine.
    pub volumes: Arc<dyn Volumes>,
    /// Where hooks leave what they save of the data.
    pub dumps: PathBuf,
    /// What is stopped for the snapshots of all services.
    pub at_rest: AtRest,
}

/// What is stopped for the snapshots of all services, and the data that each of them may put back.
#[derive(Clone, Default)]
pub struct AtRest(Arc<Mutex<Held>>);

#[derive(Default)]
struct Held {
    /// Containers that are stopped while data is at rest, by ID, whoever they belong to. After a restart of the agent, they are
    /// known again once the steps are repeated; those that a failed way back has left stopped are not.
    containers: BTreeSet<String>,
    /// The folders that are at rest for a service, or that it may put back. No other service may stop what writes to them, or
    /// copy what an unproven image has written.
    folders: BTreeMap<String, BTreeSet<PathBuf>>,
}

impl Held {
    /// Why a service has to leave data alone for now.
    fn taken(&self, service: &str, of: &[Source]) -> Option<String> {
        let others = self.folders.iter().filter(|(other, _)| *other != service);
        let mut taken = others.flat_map(|(other, folders)| folders.iter().map(move |folder| (other, folder)));
        let (other, folder) =
            taken.find(|(_, folder)| of.iter().any(|source| overlap(&source.folder, folder)))?;
        let folder = folder.display();
        Some(format!("{other} may put the data in {folder} back until its new image is proven"))
    }

    fn take<'a>(&mut self, service: &str, of: impl Iterator<Item = &'a Source>) {
        let mut folders = of.map(|source| source.folder.clone()).peekable();
        if folders.peek().is_some() {
            self.folders.entry(service.to_owned()).or_default().extend(folders);
        }
    }
}

impl AtRest {
    /// Why a service has to leave data alone for now: another one may put back what overlaps with it.
    fn taken(&self, service: &str, of: &[Source]) -> Option<String> {
        self.0.lock().taken(service, of)
    }

    /// The same, and takes the data for the service if no other one has it.
    fn take(&self, service: &str, of: &[Source]) -> Option<String> {
        let mut held = self.0.lock();
        let why = held.taken(service, of);
        if why.is_none() {
            held.take(service, of.iter());
        }
        why
    }

    /// Takes the data that a service has in use after a start of the agent.
    pub(super) fn take_again(&self, service: &str, durable: &Durable) {
        self.0.lock().take(service, durable.data_in_use());
    }

    /// Lets go of the data of a service that puts nothing back any more.
    pub(super) fn release_unused(&self, service: &str, durable: &Durable) {
        if !durable.may_use_data() {
            self.release(service);
        }
    }

    /// Lets go of the data of a service.
    pub(super) fn release(&self, service: &str) {
        self.0.lock().folders.remove(service);
    }

    /// Notes what a step is about to stop, or to start again.
    fn follow(&self, step: &SnapshotStep) {
        match step {
            SnapshotStep::Quiesce { stop, .. }
            | SnapshotStep::Restore { stop, .. }
            | SnapshotStep::UndoRestore { stop, .. } => {
                self.0.lock().containers.extend(stop.iter().map(|one| one.id.clone()));
            }
            SnapshotStep::Resume { start, .. } => {
                self.0.lock().containers.retain(|id| start.iter().all(|one| one.id != *id));
            }
            SnapshotStep::Copy { .. } | SnapshotStep::Expire { .. } => {}
        }
    }

    /// Reports whether one of these containers is stopped for a snapshot.
    pub(super) fn holds_any(&self, containers: &[Container]) -> bool {
        let held = self.0.lock();
        // One that runs again was started by somebody.
        containers.iter().any(|container| !container.is_live() && held.containers.contains(&container.id))
    }
}

/// Why sources can't be copied of which one lies in another: a volume may bind a directory in another one, and a link may lead
/// there. It would be copied twice, and be put back into what was put back before.
fn nested(sources: &[Source]) -> Option<String> {
    for (n, one) in sources.iter().enumerate() {
        for two in &sources[..n] {
            let (outer, inner) = if one.folder.starts_with(&two.folder) { (two, one) } else { (one, two) };
            if inner.folder.starts_with(&outer.folder) {
                return Some(format!(
                    "{} can't be copied beside {}: its directory {} is in {}; name only {} in update.snapshot.of",
                    inner.of,
                    outer.of,
                    inner.folder.display(),
                    outer.folder.display(),
                    outer.of
                ));
            }
        }
    }
    None
}

/// Label with the name of the volume that was copied.
const OF_LABEL: &str = "evenkeel.snapshot.of";

impl Data {
    /// Finds the data that the rules of a service name, and measures what of it was not measured, and finds the earlier data that
    /// is to be put in its place; the reason if it can't be copied or put back.
    pub(crate) async fn look(
        &self,
        service: &str,
        rules: &SnapshotRules,
        model: &Model,
        earlier: Option<&EarlierData>,
        measured: &[(Source, Room)],
    ) -> Result<Result<SnapshotSeen, String>, EngineError> {
        let mut sources = Vec::with_capacity(rules.of.len());
        for of in &rules.of {
            match self.find(of, model).await? {
                Ok(source) => sources.push(source),
                Err(why) => return Ok(Err(format!("{of} can't be copied: {why}"))),
            }
        }
        if let Some(why) = nested(&sources).or_else(|| self.at_rest.taken(service, &sources)) {
            return Ok(Err(why));
        }
        // To measure the data, all of it is walked through, which would be done in vain in every cycle.
        if let Some(why) = self.hindrance(&sources).await? {
            return Ok(Err(why));
        }
        let mut rooms = Vec::with_capacity(sources.len());
        for source in &sources {
            match self.measure(source, measured).await {
                Ok(room) => rooms.push(room),
                Err(SnapshotError(why)) => return Ok(Err(format!("{} can't be copied: {why}", source.of))),
            }
        }
        let mut seen = SnapshotSeen { sources, rooms, dumps: self.dumps.clone(), earlier: None };
        if let Some(earlier) = earlier
            && let Err(why) = self.find_earlier(earlier, &mut seen).await
        {
            return Ok(Err(format!("the data of {} can't be put back: {why}", earlier.at)));
        }
        Ok(Ok(seen))
    }

    /// What a copy would need, and where it goes. Others may have taken free room since the data was measured.
    async fn measure(
        &self,
        source: &Source,
        measured: &[(Source, Room)],
    ) -> Result<(PathBuf, Room), SnapshotError> {
        let target = source.target();
        let room = match measured.iter().find(|(of, _)| of == source) {
            Some((_, room)) => {
                let free = self.folders.available(&target).await?;
                Room { available: free.bytes, free_entries: free.entries, ..*room }
            }
            None => self.folders.measure(&source.folder, &target).await?,
        };
        Ok((target.parent().map(Path::to_owned).unwrap_or(target), room))
    }

    /// What is missing of the room for the copies now. Since the update was decided, its images and others have taken some.
    async fn lacks_free(&self, of: &[Source]) -> Result<Option<String>, SnapshotError> {
        let mut rooms = Vec::with_capacity(of.len());
        for source in of {
            rooms.push(self.measure(source, &[]).await?);
        }
        Ok(lacks_free(&rooms, true))
    }

    /// Why what writes to the data can't be stopped.
    async fn hindrance(&self, sources: &[Source]) -> Result<Option<String>, EngineError> {
        if sources.is_empty() {
            return Ok(None);
        }
        let folders: Vec<&Path> = sources.iter().map(|source| source.folder.as_path()).collect();
        match self.volumes.mounters(&folders, true).await.and_then(all_stoppable) {
            Ok(_) => Ok(None),
            Err(EngineError::Refused(why)) => Ok(Some(format!("the data can't be copied: {why}"))),
            Err(error) => Err(error),
        }
    }

    async fn find_earlier(&self, earlier: &EarlierData, seen: &mut SnapshotSeen) -> Result<(), String> {
        let names = |of: &mut dyn Iterator<Item = &String>| of.cloned().collect::<BTreeSet<_>>();
        let kept = names(&mut earlier.folders.iter().map(|kept| &kept.of));
        let configured = names(&mut seen.sources.iter().map(|source| &source.of));
        if kept != configured {
            let list = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(", ");
            return Err(format!(
                "it is that of {}, and update.snapshot names {}",
                list(kept),
                list(configured)
            ));
        }
        let mut found = Vec::new();
        for (source, (_, room)) in seen.sources.iter().zip(&mut seen.rooms) {
            let Some(kept) = earlier.folders.iter().find(|kept| kept.of == source.of) else { continue };
            let identity = self.folders.identify(&kept.folder).await.map_err(|SnapshotError(why)| why)?;
            let of_now = self.folders.identify(&source.folder).await.map_err(|SnapshotError(why)| why)?;
            // The folders are exchanged, which takes no room, or the data of now is copied.
            if room.copies == 1 && identity.device == of_now.device {
                (room.is_shared, room.unshared, room.entries) = (true, 0, 0);
            }
            room.copies = 1;
            found.push(identity);
        }
        seen.earlier = Some((earlier.clone(), found));
        Ok(())
    }

    async fn find(&self, of: &str, model: &Model) -> Result<Result<Source, String>, EngineError> {
        let of = of.to_owned();
        let volume = match named(&of, model) {
            Ok(Named::Directory(folder)) => return Ok(self.source(of, None, &folder).await),
            Ok(Named::Volume(volume)) => volume,
            Err(why) => return Ok(Err(why)),
        };
        let Some(seen) = self.volumes.volume(&volume).await? else {
            return Ok(Err(format!("there is no volume {volume}")));
        };
        match seen.data() {
            Ok((folder, is_engines)) => Ok(self.source(of, is_engines.then_some(volume), &folder).await),
            Err(why) => Ok(Err(why)),
        }
    }

    async fn source(&self, of: String, volume: Option<String>, folder: &Path) -> Result<Source, String> {
        let folder = self.folders.resolve(folder).await.map_err(|SnapshotError(why)| why)?;
        Ok(Source { of, volume, folder })
    }

    /// Performs a step. Every step can be repeated after a crash in the middle of it.
    pub(super) async fn perform(
        &self,
        engine: &dyn Engine,
        step: SnapshotStep,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<StepResult, EngineError> {
        self.at_rest.follow(&step);
        let stepped = match step {
            SnapshotStep::Quiesce { service, stop, of, measures } => {
                // What is stopped already was taken before.
                if stop.is_empty()
                    && let Some(why) = self.at_rest.take(&service, &of)
                {
                    return Ok(StepResult::Snapshot(SnapshotStepped::Waiting { why }));
                }
                if measures && let Some(why) = self.lacks_free(&of).await.map_err(refused)? {
                    return Err(EngineError::Refused(why));
                }
                let folders: Vec<&Path> = of.iter().map(|source| source.folder.as_path()).collect();
                let running = self.quiesce(engine, &stop, &folders, true).await?;
                SnapshotStepped::Running(all_stoppable(running)?)
            }
            SnapshotStep::Copy { places, labels, id } => self.copy(places, &labels, &id, progress).await?,
            SnapshotStep::Restore { stop, copies, labels, id } => {
                let running = self.at_rest(engine, &stop, &copies).await?;
                if !running.is_empty() {
                    return Ok(StepResult::Snapshot(SnapshotStepped::Running(running)));
                }
                self.put_back(&copies, &labels, &id).await?
            }
            SnapshotStep::UndoRestore { stop, copies } => {
                let running = self.at_rest(engine, &stop, &copies).await?;
                if !running.is_empty() {
                    return Ok(StepResult::Snapshot(SnapshotStepped::Running(running)));
                }
                self.exchange_all(&copies, Way::Forth).await?
            }
            SnapshotStep::Resume { start, project } => self.resume(engine, start, project).await?,
            SnapshotStep::Expire { remove } => self.expire(remove).await?,
        };
        Ok(StepResult::Snapshot(stepped))
    }

    /// Removes what is no longer kept. What can't be removed does not keep the rest.
    async fn expire(&self, remove: Vec<KeptFolder>) -> Result<SnapshotStepped, EngineError> {
        let (mut left, mut why) = (Vec::new(), Vec::new());
        for kept in remove {
            match self.remove_kept(&kept).await {
                Err(error) if error.is_unavailable() => return Err(error),
                Err(error) => {
                    why.push(error.to_string());
                    left.push(kept);
                }
                Ok(()) => {}
            }
        }
        Ok(SnapshotStepped::Expired { left, why: why.join("; ") })
    }

    async fn remove_kept(&self, kept: &KeptFolder) -> Result<(), EngineError> {
        if let Some(volume) = &kept.volume {
            self.volumes.remove_volume(volume).await?;
        }
        self.folders.remove(&kept.folder).await.map_err(refused)
    }

    /// Puts the copies back, and looks again who runs: where folders can't be exchanged, it takes as long as the copy did, and
    /// whoever is started meanwhile finds a part of the data.
    async fn put_back(
        &self,
        copies: &[(CopyMade, Place)],
        labels: &[(String, String)],
        id: &str,
    ) -> Result<SnapshotStepped, EngineError> {
        let stepped = self.exchange_all(copies, Way::Back).await?;
        if stepped != SnapshotStepped::Done {
            return Ok(stepped);
        }
        self.show_set_aside(copies, labels, id).await?;
        let folders: Vec<&Path> = copies.iter().map(|(_, place)| place.live.as_path()).collect();
        let running = self.volumes.mounters(&folders, true).await?;
        Ok(if running.is_empty() { SnapshotStepped::Done } else { SnapshotStepped::Disturbed(running) })
    }

    /// Puts all copies in place of the data, or none of them, and the same the other way: images never find a part of their
    /// data. Every call can be repeated, so what was put back before the process was killed is no special case.
    async fn exchange_all(
        &self,
        copies: &[(CopyMade, Place)],
        way: Way,
    ) -> Result<SnapshotStepped, EngineError> {
        for (nth, (made, place)) in copies.iter().enumerate() {
            let Err(SnapshotError(why)) = self.exchange(made, place, way).await else { continue };
            let mut left = Vec::new();
            for (made, place) in copies[..=nth].iter().rev() {
                if let Err(SnapshotError(why)) = self.exchange(made, place, way.reverse()).await {
                    let Place { live, copy, aside } = place;
                    let (live, copy, aside) = (live.display(), copy.display(), aside.display());
                    left.push(format!("{live} ({why}; see also {copy} and {aside})"));
                }
            }
            if left.is_empty() {
                return Err(EngineError::Refused(why));
            }
            let why = format!("{why}; what was done could not be undone in {}", left.join(", "));
            return Ok(SnapshotStepped::Mixed { why });
        }
        Ok(SnapshotStepped::Done)
    }

    async fn exchange(&self, made: &CopyMade, place: &Place, way: Way) -> Result<(), SnapshotError> {
        match way {
            Way::Back => self.folders.restore(place, &made.copied).await,
            Way::Forth => self.folders.undo(place, &made.copied).await,
        }
    }

    /// Shows what was set aside. The data is in place, so that a volume which can't be created is no reason to fail.
    async fn show_set_aside(
        &self,
        copies: &[(CopyMade, Place)],
        labels: &[(String, String)],
        id: &str,
    ) -> Result<(), EngineError> {
        for (CopyMade { source, .. }, place) in copies {
            match self.show(source, &place.aside, &format!("{id}-set-aside"), labels).await {
                Err(error) if error.is_unavailable() => return Err(error),
                Err(error) => tracing::warn!(%error, "no volume stands for what was set aside"),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Starts what was stopped, as far as that does not change what it is.
    async fn resume(
        &self,
        engine: &dyn Engine,
        start: Vec<Mounter>,
        project: String,
    ) -> Result<SnapshotStepped, EngineError> {
        let (start, mut not_started) = startable(start);
        let (refused, gone) = start_each(&start, |id| engine.start(id)).await?;
        not_started.extend(refused);
        let containers = engine.containers(&Members::Project(project.clone())).await?;
        not_started.extend(lost(gone, &project, &containers));
        Ok(SnapshotStepped::Resumed { containers, not_started })
    }

    /// Stops containers before the data is exchanged. Whoever only reads it would go on to see what is set aside.
    async fn at_rest(
        &self,
        engine: &dyn Engine,
        stop: &[Mounter],
        copies: &[(CopyMade, Place)],
    ) -> Result<Vec<Mounter>, EngineError> {
        let folders: Vec<&Path> = copies.iter().map(|(_, place)| place.live.as_path()).collect();
        self.quiesce(engine, stop, &folders, false).await
    }

    /// Stops containers, those that depend on others first, and returns what else mounts the folders and runs.
    async fn quiesce(
        &self,
        engine: &dyn Engine,
        stop: &[Mounter],
        folders: &[&Path],
        writable: bool,
    ) -> Result<Vec<Mounter>, EngineError> {
        for group in stop_order(stop) {
            let stopped = group.into_iter().map(|one| engine.stop(&one.id));
            for stopped in join_all(stopped).await {
                stopped.found()?;
            }
        }
        self.volumes.mounters(folders, writable).await
    }

    async fn copy(
        &self,
        places: Vec<(Source, Place)>,
        labels: &[(String, String)],
        id: &str,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<SnapshotStepped, EngineError> {
        let live: Vec<&Path> = places.iter().map(|(source, _)| source.folder.as_path()).collect();
        let before = self.volumes.ended(&live).await?;
        match self.copy_all(&places, labels, id, progress).await {
            Ok(copies) => {
                let running = self.volumes.mounters(&live, true).await?;
                let ran = ran_since(&before, &self.volumes.ended(&live).await?);
                if running.is_empty() && ran.is_none() {
                    return Ok(SnapshotStepped::Copied(copies));
                }
                self.remove_copies(&places).await?;
                match ran {
                    Some(why) if running.is_empty() => Err(EngineError::Refused(why)),
                    _ => Ok(SnapshotStepped::Running(all_stoppable(running)?)),
                }
            }
            Err(error) => {
                // The service, which is started again, may need the room.
                if !error.is_unavailable()
                    && let Err(error) = self.remove_copies(&places).await
                {
                    tracing::warn!(%error, "what was copied can't be removed yet");
                }
                Err(error)
            }
        }
    }

    async fn remove_copies(&self, places: &[(Source, Place)]) -> Result<(), EngineError> {
        for (_, place) in places {
            self.folders.remove(&place.copy).await.map_err(refused)?;
        }
        Ok(())
    }

    async fn copy_all(
        &self,
        places: &[(Source, Place)],
        labels: &[(String, String)],
        id: &str,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<Vec<CopyMade>, EngineError> {
        let mut copies = Vec::with_capacity(places.len());
        for (source, place) in places {
            let (sent, mut bytes) = watch::channel(0);
            let show = async {
                while bytes.changed().await.is_ok() {
                    progress.send_replace(PullProgress { bytes: *bytes.borrow_and_update(), total: 0 });
                }
            };
            let copy = async {
                let copied = self.folders.copy(place, &sent).await;
                drop(sent);
                copied
            };
            let (copied, ()) = tokio::join!(copy, show);
            let copied = copied.map_err(refused)?;
            self.show(source, &place.copy, id, labels).await?;
            copies.push(CopyMade { source: source.clone(), copied });
        }
        Ok(copies)
    }

    /// Makes the copy of a volume a volume, too, so that `docker` commands reach it.
    async fn show(
        &self,
        source: &Source,
        folder: &Path,
        id: &str,
        labels: &[(String, String)],
    ) -> Result<(), EngineError> {
        let Some(volume) = &source.volume else { return Ok(()) };
        let mut labels: BTreeMap<String, String> = labels.iter().cloned().collect();
        labels.insert(OF_LABEL.to_owned(), volume.clone());
        self.volumes.bind_volume(&format!("{volume}-evenkeel-{id}"), folder, labels).await
    }
}

/// Which way data is exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The copies take the place of the data.
    Back,
    /// The data that was set aside is put where it was.
    Forth,
}

impl Way {
    fn reverse(self) -> Self {
        match self {
            Self::Back => Self::Forth,
            Self::Forth => Self::Back,
        }
    }
}

/// Splits off the containers that are not started again, with the reasons.
fn startable(stopped: Vec<Mounter>) -> (Vec<Mounter>, Vec<NotStarted>) {
    let (mut start, mut not_started) = (Vec::new(), Vec::new());
    for one in stopped {
        let why = match &one.task_of {
            Some(service) => Some(format!(
                "it was a task of the swarm service {service}; whether another one starts in its place is up to the swarm"
            )),
            None => one.is_paused.then(|| "it was paused, and would run now".to_owned()),
        };
        match why {
            Some(why) => not_started.push(NotStarted { name: one.name, why }),
            None => start.push(one),
        }
    }
    (start, not_started)
}

/// Starts containers, those that others depend on first. Returns those that the engine refuses, and those that are gone. What
/// is refused is tried again as long as others were started meanwhile: it may be in the network of one of them.
async fn start_each<'a, F: Future<Output = Result<(), EngineError>> + Send>(
    all: &'a [Mounter],
    start: impl Fn(&'a str) -> F,
) -> Result<(Vec<NotStarted>, Vec<Mounter>), EngineError> {
    let mut left: Vec<&Mounter> = stop_order(all).into_iter().rev().flatten().collect();
    let mut gone = Vec::new();
    loop {
        let (tried, mut refused, mut why) = (left.len(), Vec::new(), Vec::new());
        for one in left {
            match start(&one.id).await {
                Ok(()) => {}
                Err(EngineError::NotFound(_)) => gone.push(one.clone()),
                Err(error) if error.is_unavailable() => return Err(error),
                Err(error) => {
                    refused.push(one);
                    why.push(NotStarted { name: one.name.clone(), why: error.to_string() });
                }
            }
        }
        if refused.is_empty() || refused.len() == tried {
            return Ok((why, gone));
        }
        left = refused;
    }
}

/// The containers that are gone, but for those of the project that the update has made anew.
fn lost(gone: Vec<Mounter>, project: &str, containers: &[Container]) -> impl Iterator<Item = NotStarted> {
    let is_new = move |one: &Mounter| {
        one.service.0 == project && containers.iter().any(|c| c.compose_service == one.service.1)
    };
    let lost = gone.into_iter().filter(move |one| !is_new(one));
    lost.map(|one| NotStarted { name: one.name, why: "it is gone".to_owned() })
}

/// Why a copy is of no use during which containers have run that can write to the data; `None` if none has. They are not
/// started again by the agent.
fn ran_since(before: &[Ended], after: &[Ended]) -> Option<String> {
    let was_there =
        |one: &Ended| before.iter().any(|was| was.id == one.id && was.started_at == one.started_at);
    let names: Vec<&str> = after.iter().filter(|one| !was_there(one)).map(|one| one.name.as_str()).collect();
    let verb = if names.len() == 1 { "was" } else { "were" };
    let why =
        || format!("{} {verb} started while the data was copied, and can write to it", names.join(", "));
    (!names.is_empty()).then(why)
}

/// Fails if one of these containers is paused, as it would run afterwards, or does not stay stopped.
fn all_stoppable(running: Vec<Mounter>) -> Result<Vec<Mounter>, EngineError> {
    let task = running.iter().find_map(|one| Some((&one.name, one.task_of.as_ref()?)));
    if let Some((name, service)) = task {
        return Err(EngineError::Refused(format!(
            "container {name} mounts it and is a task of the swarm service {service}, which starts another one for each that is \
             stopped; scale the service to 0, or let it mount the data read-only"
        )));
    }
    match running.iter().find(|one| one.is_paused) {
        Some(paused) => Err(EngineError::Refused(format!(
            "container {} mounts it and is paused, and could not be put back into that state after it was stopped; unpause or \
             stop it",
            paused.name
        ))),
        None => Ok(running),
    }
}

fn refused(SnapshotError(why): SnapshotError) -> EngineError {
    EngineError::Refused(why)
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
