//! One check: what the registry has and what runs here, read side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;

use crate::config::{ConfiguredImage, ServiceConfig};
use crate::image::{Digest, ImageId, Reference, digests_in};
use crate::ports::{Container, Engine, EngineError, Members, Project};
use crate::service::action::FilesAsked;
use crate::service::fact::{CheckFault, Files, ImageView, LocalImage, Observation};

use super::cycle::Cycle;
use super::files;
use super::worker::World;

/// Time between two reads of changed compose files.
const SETTLE: Duration = Duration::from_secs(1);

/// What a check reads besides the containers.
#[derive(Clone, Copy)]
pub(super) struct Reads<'a> {
    /// Compare the images with the registry.
    pub images: bool,
    /// Read the compose files.
    pub files: Option<&'a FilesAsked>,
    /// Digests whose case is settled, per image as configured.
    pub settled: &'a BTreeMap<String, Digest>,
}

/// Reads everything that a decision needs. Nothing is decided here, and a read that failed is a fault, never an
/// empty answer.
pub(super) async fn observe(
    world: &World,
    cycle: &Cycle,
    config: &ServiceConfig,
    reads: Reads<'_>,
) -> Result<Observation, CheckFault> {
    let wanted: &[ConfiguredImage] = if reads.images { &config.images } else { &[] };
    let remote = join_all(wanted.iter().map(|image| async {
        if image.reference.is_pinned() { Ok(None) } else { cycle.digest(&image.reference).await.map(Some) }
    }));
    let members = config
        .compose_project
        .clone()
        .map(Members::Project)
        .or_else(|| config.container_name.clone().map(Members::Name));
    let engine = world.engine.as_ref();
    let containers = async {
        match &members {
            Some(members) => engine.containers(members).await,
            None => Ok(Vec::new()),
        }
    };
    let files = async {
        match reads.files {
            Some(asked) => read_files(world, asked).await,
            None => Files::Unread,
        }
    };
    let (remote, containers, files) = tokio::join!(remote, containers, files);
    let containers = containers.map_err(engine_fault)?;

    let faults: BTreeSet<String> =
        remote.iter().filter_map(|answer| answer.as_ref().err()).map(ToString::to_string).collect();
    if !faults.is_empty() {
        return Err(CheckFault::Failed(faults.into_iter().collect::<Vec<_>>().join("; ")));
    }

    let mut images = Vec::with_capacity(config.images.len());
    for (image, remote) in wanted.iter().zip(remote.into_iter().flatten()) {
        let mut running = Vec::new();
        for id in running_on(&containers, &image.reference) {
            // The image of a running container may have been removed by force: known, but without digest.
            let found = local_image(engine, &id.0, &image.reference).await?;
            running.push(found.unwrap_or(LocalImage { id, digests: Vec::new(), size: 0 }));
        }
        let pinned = image.reference.is_pinned();
        let tag = if pinned { image.reference.to_string() } else { image.reference.tagged() };
        images.push(ImageView {
            text: image.text.clone(),
            tagged: local_image(engine, &tag, &image.reference).await?,
            reference: image.reference.clone(),
            remote,
            running,
        });
    }
    for view in &mut images {
        let here = |digest: &Digest| {
            view.running.iter().chain(view.tagged.iter()).any(|image| image.digests.contains(digest))
        };
        let Some(digest) = &view.remote else { continue };
        // A digest never seen here is about to be acted on: look at the content, not only at a header.
        if !here(digest) && reads.settled.get(&view.text) != Some(digest) {
            let confirmed = world.registry.confirm(&view.reference).await;
            view.remote = Some(confirmed.map_err(|error| CheckFault::Failed(error.to_string()))?);
        }
    }
    let left_out = left_out(world, config, &containers).await;
    Ok(Observation { images, containers, blocked_elsewhere: Vec::new(), files, left_out })
}

/// Files that would be left out, see [`Observation::left_out`]. Where compose can't say what the files come to, they
/// all count: what they set is not known.
async fn left_out(world: &World, config: &ServiceConfig, containers: &[Container]) -> Vec<PathBuf> {
    let Some(project) = config.project() else { return Vec::new() };
    let made_with: BTreeSet<Vec<PathBuf>> =
        containers.iter().map(|container| container.compose_files.clone()).collect();
    let sets = files::larger(made_with, &project.files).await;
    if sets.is_empty() {
        return Vec::new();
    }
    let configured = world.compose.model(&project).await;
    let mut left_out = BTreeSet::new();
    for files::Larger { files, unnamed } in sets {
        let larger = world.compose.model(&Project { files, ..project.clone() }).await;
        let keeps_all = match (&configured, &larger) {
            (Ok(configured), Ok(larger)) => configured.is_part_of(larger),
            _ => false,
        };
        if !keeps_all {
            left_out.extend(unnamed);
        }
    }
    left_out.into_iter().collect()
}

/// Hashes the compose files. A change counts only when two reads agree and compose accepts it: editors write in
/// steps (DOMAIN 3.2).
async fn read_files(world: &World, asked: &FilesAsked) -> Files {
    let first = files::hash(&asked.project.files).await;
    if let Ok(hash) = &first
        && asked.known.as_ref().is_none_or(|known| known == hash)
    {
        return Files::Hash(hash.clone());
    }
    tokio::time::sleep(SETTLE).await;
    let hash = match (first, files::hash(&asked.project.files).await) {
        (Ok(first), Ok(second)) if first == second => second,
        (Err(first), Err(second)) if first == second => return Files::Unusable(second),
        _ => return Files::Unsettled,
    };
    match world.compose.validate(&asked.project).await {
        Ok(()) => Files::Hash(hash),
        Err(error) => Files::Unusable(format!("the compose files are not valid: {error}")),
    }
}

/// IDs of the images that live containers of this reference run on, without repeats.
fn running_on(containers: &[Container], reference: &Reference) -> Vec<ImageId> {
    let mut ids: Vec<ImageId> = Vec::new();
    for container in containers {
        if container.is_live() && container.is_made_from(reference) && !ids.contains(&container.image) {
            ids.push(container.image.clone());
        }
    }
    ids
}

async fn local_image(
    engine: &dyn Engine,
    name: &str,
    reference: &Reference,
) -> Result<Option<LocalImage>, CheckFault> {
    let image = engine.image(name).await.map_err(engine_fault)?;
    Ok(image.map(|image| LocalImage {
        digests: digests_in(&reference.repository, &image.repo_digests).collect(),
        id: image.id,
        size: image.size,
    }))
}

fn engine_fault(error: EngineError) -> CheckFault {
    match error {
        EngineError::Unavailable(_) => CheckFault::EngineAway(error.to_string()),
        other => CheckFault::Failed(format!("container engine: {other}")),
    }
}
