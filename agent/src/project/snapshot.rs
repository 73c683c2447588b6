//! Looks at the data that snapshots are taken of, and performs their steps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::sync::watch;

use crate::model::snapshot::{
    CopyMade, EarlierData, KeptFolder, Mounter, Named, Place, SnapshotError, SnapshotRules, Source, named,
    stop_order,
};
use crate::model::{EngineError, IfFound, Members, Model};
use crate::ports::snapshot::{Snapshots, Volumes};
use crate::ports::{Engine, PullProgress};
use crate::service::action::SnapshotStep;
use crate::service::gates::candidate::SnapshotSeen;
use crate::service::input::{SnapshotStepped, StepResult};

/// What snapshots need of the world.
#[derive(Clone)]
pub struct Data {
    /// Copies folders.
    pub folders: Arc<dyn Snapshots>,
    /// The volumes of the engine.
    pub volumes: Arc<dyn Volumes>,
    /// Where hooks leave what they save of the data.
    pub dumps: PathBuf,
}

/// Label with the name of the volume that was copied.
const OF_LABEL: &str = "evenkeel.snapshot.of";

impl Data {
    /// Finds the data that the rules name, and measures it, and finds the earlier data that is to be put in its place; the
    /// reason if it can't be copied or put back.
    pub(crate) async fn look(
        &self,
        rules: &SnapshotRules,
        model: &Model,
        earlier: Option<&EarlierData>,
    ) -> Result<Result<SnapshotSeen, String>, EngineError> {
        let (mut sources, mut rooms) = (Vec::new(), Vec::new());
        for of in &rules.of {
            let source = match self.find(of, model).await? {
                Ok(source) => source,
                Err(why) => return Ok(Err(format!("{of} can't be copied: {why}"))),
            };
            let target = source.target();
            match self.folders.measure(&source.folder, &target).await {
                Ok(room) => rooms.push((target.parent().map(Path::to_owned).unwrap_or(target), room)),
                Err(SnapshotError(why)) => return Ok(Err(format!("{of} can't be copied: {why}"))),
            }
            sources.push(source);
        }
        let mut seen = SnapshotSeen { sources, rooms, dumps: self.dumps.clone(), earlier: None };
        if let Some(earlier) = earlier
            && let Err(why) = self.find_earlier(earlier, &mut seen).await
        {
            return Ok(Err(format!("the data of {} can't be put back: {why}", earlier.at)));
        }
        Ok(Ok(seen))
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
            // The folders are exchanged, which takes no room.
            room.is_shared |= identity.device == of_now.device;
            found.push(identity);
        }
        seen.earlier = Some((earlier.clone(), found));
        Ok(())
    }

    async fn find(&self, of: &str, model: &Model) -> Result<Result<Source, String>, EngineError> {
        let of = of.to_owned();
        let volume = match named(&of, model) {
            Ok(Named::Directory(folder)) => return Ok(Ok(Source { of, volume: None, folder })),
            Ok(Named::Volume(volume)) => volume,
            Err(why) => return Ok(Err(why)),
        };
        let Some(seen) = self.volumes.volume(&volume).await? else {
            return Ok(Err(format!("there is no volume {volume}")));
        };
        Ok(seen.data().map(|(folder, is_engines)| Source {
            of,
            volume: is_engines.then_some(volume),
            folder,
        }))
    }

    /// Performs a step. Every step can be repeated after a crash in the middle of it.
    pub(super) async fn perform(
        &self,
        engine: &dyn Engine,
        step: SnapshotStep,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<StepResult, EngineError> {
        let stepped = match step {
            SnapshotStep::Quiesce { stop, of, writable } => {
                let folders: Vec<&Path> = of.iter().map(|source| source.folder.as_path()).collect();
                SnapshotStepped::Running(self.quiesce(engine, &stop, &folders, writable).await?)
            }
            SnapshotStep::Copy { places, labels, id } => self.copy(places, &labels, &id, progress).await?,
            SnapshotStep::Restore { stop, copies, labels, id } => {
                let running = self.at_rest(engine, &stop, &copies).await?;
                if !running.is_empty() {
                    return Ok(StepResult::Snapshot(SnapshotStepped::Running(running)));
                }
                for (CopyMade { source, copied }, place) in &copies {
                    self.folders.restore(place, copied).await.map_err(refused)?;
                    self.show(source, &place.aside, &format!("{id}-set-aside"), &labels).await?;
                }
                SnapshotStepped::Done
            }
            SnapshotStep::UndoRestore { stop, copies } => {
                let running = self.at_rest(engine, &stop, &copies).await?;
                if !running.is_empty() {
                    return Ok(StepResult::Snapshot(SnapshotStepped::Running(running)));
                }
                for (CopyMade { copied, .. }, place) in &copies {
                    self.folders.undo(place, copied).await.map_err(refused)?;
                }
                SnapshotStepped::Done
            }
            SnapshotStep::Resume { start, project } => {
                for container in start.iter().rev() {
                    match engine.start(container).await.found() {
                        Err(error) if error.is_unavailable() => return Err(error),
                        Err(error) => tracing::warn!(%error, "a container that was stopped can't be started"),
                        Ok(_) => {}
                    }
                }
                let containers = engine.containers(&Members::Project(project)).await?;
                SnapshotStepped::Resumed { containers }
            }
            SnapshotStep::Expire { remove } => {
                for KeptFolder { folder, volume, .. } in &remove {
                    if let Some(volume) = volume {
                        self.volumes.remove_volume(volume).await?;
                    }
                    self.folders.remove(folder).await.map_err(refused)?;
                }
                SnapshotStepped::Done
            }
        };
        Ok(StepResult::Snapshot(stepped))
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
        match self.copy_all(&places, labels, id, progress).await {
            Ok(copies) => {
                let running = self.volumes.mounters(&live, true).await?;
                if running.is_empty() {
                    return Ok(SnapshotStepped::Copied(copies));
                }
                self.remove_copies(&places).await?;
                Ok(SnapshotStepped::Running(running))
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

fn refused(SnapshotError(why): SnapshotError) -> EngineError {
    EngineError::Refused(why)
}
