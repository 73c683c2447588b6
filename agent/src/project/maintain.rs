//! The tasks beside checks and deployments, done outside.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::model::image::Reference;
use crate::model::tags::TagPattern;
use crate::model::{EngineError, Project};
use crate::service::maintenance::{
    GoneFrom, MaintenanceResult, MaintenanceTask, OldDeployedImage, RollbackRisk, RunningImage, TagInUse,
};
use crate::service::newer_tags::MOST_NEWER;

use super::worker::World;

/// Does one task and says how it ended.
pub(super) async fn maintain(world: &World, task: MaintenanceTask) -> MaintenanceResult {
    match task {
        MaintenanceTask::FindNewerTags { pattern, images, anew } => {
            find_newer(world, &pattern, images, anew).await
        }
        MaintenanceTask::RemoveImages { images } => {
            let mut gone = Vec::new();
            for OldDeployedImage { id, tags } in images {
                match world.engine.remove_image(&id, &tags).await {
                    Ok(true) => gone.push(id),
                    Ok(false) => tracing::debug!(%id, "the image is named or used, and stays"),
                    Err(error) => tracing::debug!(%id, %error, "the image could not be removed"),
                }
            }
            MaintenanceResult::ImagesRemoved(gone)
        }
        MaintenanceTask::CheckWayBack { project, images } => {
            let risks = match project {
                Some(project) => check_way_back(world, &project, &images).await.ok(),
                None => Some(check_way_back_in_swarm(world, &images).await),
            };
            MaintenanceResult::WayBackChecked(risks)
        }
    }
}

async fn find_newer(
    world: &World,
    pattern: &TagPattern,
    images: Vec<TagInUse>,
    anew: bool,
) -> MaintenanceResult {
    let mut lists = Vec::new();
    let mut is_complete = true;
    for image in images {
        match world.tags.tags(&image.repository, anew).await {
            Ok(tags) => lists.push((image, tags)),
            Err(error) => {
                tracing::warn!(image = image.configured, %error, "newer tags can't be looked for");
                is_complete &= !image.is_shared;
            }
        }
    }
    // Where not all lists are known, nothing is known of a tag that all must have.
    lists.retain(|(image, _)| is_complete || !image.is_shared);
    let shared = lists.iter().filter(|(image, _)| image.is_shared);
    let shared: Vec<BTreeSet<&str>> =
        shared.map(|(_, tags)| tags.iter().map(String::as_str).collect()).collect();
    let newest = |(image, tags): &(TagInUse, Arc<[String]>)| {
        let tags = tags.iter().map(String::as_str);
        let tags = tags.filter(|tag| !image.is_shared || shared.iter().all(|list| list.contains(tag)));
        let newer = pattern.newer(&image.tag, tags, MOST_NEWER);
        (image.configured.clone(), newer.into_iter().map(str::to_owned).collect())
    };
    MaintenanceResult::NewerTags(lists.iter().map(newest).collect())
}

/// What would keep a rollback to what runs now from succeeding. An error: the engine gave no answer.
///
/// The state is not written here to see whether that works: whoever waits for the store while the worker does, too, is
/// not polled, and both would wait for ever. Whether it can be written is watched by `state_health` and counts when the
/// record is shown (`service/status.rs`).
async fn check_way_back(
    world: &World,
    project: &Project,
    images: &[RunningImage],
) -> Result<Vec<RollbackRisk>, EngineError> {
    let mut risks = Vec::new();
    for image in images {
        if let Some(registry) = gone(world, image).await? {
            let image = image.configured.clone();
            risks.push(RollbackRisk::ImageGone { image, registry });
        }
    }
    if let Err(error) = world.compose.validate(project).await {
        risks.push(RollbackRisk::ComposeFiles { why: error.cause });
    }
    let needed = images.iter().map(|image| image.size).max().unwrap_or(0);
    if let Some(free) = world.engine.free_space().await?.filter(|free| *free < needed) {
        risks.push(RollbackRisk::Disk { free, needed });
    }
    Ok(risks)
}

/// The same for the tasks of a swarm: a node may have lost the image, or never had it.
async fn check_way_back_in_swarm(world: &World, images: &[RunningImage]) -> Vec<RollbackRisk> {
    let mut risks = Vec::new();
    for image in images {
        if let Some(registry) = not_served(world, image).await {
            risks.push(RollbackRisk::NotServed { image: image.configured.clone(), registry });
        }
    }
    risks
}

/// Why an image can't be had any more; `None` where it is here or in its registry.
async fn gone(world: &World, image: &RunningImage) -> Result<Option<GoneFrom>, EngineError> {
    match world.engine.image(&image.id.0).await {
        Ok(Some(found)) if found.whole => return Ok(None),
        Err(error) if error.is_unavailable() => return Err(error),
        _ => {}
    }
    Ok(not_served(world, image).await)
}

/// Why a registry does not serve an image; `None` where it does.
async fn not_served(world: &World, image: &RunningImage) -> Option<GoneFrom> {
    let Some(Reference { repository, digest: Some(digest), .. }) = &image.source else {
        return Some(GoneFrom::NeverPushed);
    };
    match world.registry.has(repository, digest).await {
        Ok(true) => None,
        Ok(false) => Some(GoneFrom::Removed),
        Err(error) => Some(GoneFrom::Unknown(error.to_string())),
    }
}
