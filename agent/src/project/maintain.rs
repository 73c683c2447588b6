//! The tasks beside checks and deployments, done outside.

use std::collections::BTreeMap;

use crate::model::image::Reference;
use crate::model::tags::TagPattern;
use crate::model::{EngineError, Project};
use crate::service::maintenance::{
    GoneFrom, MaintenanceResult, MaintenanceTask, RollbackRisk, RunningImage, TagInUse,
};

use super::worker::World;

/// Does one task and says how it ended.
pub(super) async fn maintain(world: &World, task: MaintenanceTask) -> MaintenanceResult {
    match task {
        MaintenanceTask::FindNewerTags { pattern, images } => find_newer(world, &pattern, images).await,
        MaintenanceTask::RemoveImages { images } => {
            let mut gone = Vec::new();
            for id in images {
                match world.engine.remove_image(&id).await {
                    Ok(true) => gone.push(id),
                    Ok(false) => tracing::debug!(%id, "the image is named or used, and stays"),
                    Err(error) => tracing::debug!(%id, %error, "the image could not be removed"),
                }
            }
            MaintenanceResult::ImagesRemoved(gone)
        }
        MaintenanceTask::CheckWayBack { project, images } => {
            let risks = check_way_back(world, &project, &images).await;
            MaintenanceResult::WayBackChecked(risks.ok())
        }
    }
}

async fn find_newer(world: &World, pattern: &TagPattern, images: Vec<TagInUse>) -> MaintenanceResult {
    let mut found = BTreeMap::new();
    for TagInUse { configured, repository, tag } in images {
        match world.tags.tags(&repository).await {
            Ok(tags) => {
                let newest = pattern.newest(&tag, tags.iter().map(String::as_str));
                found.insert(configured, newest.map(str::to_owned));
            }
            Err(error) => tracing::warn!(image = configured, %error, "newer tags can't be looked for"),
        }
    }
    MaintenanceResult::NewerTags(found)
}

/// What would keep a rollback to what runs now from succeeding. An error: the engine gave no answer.
///
/// The state is not written here to see whether that works: whoever waits for the store while the worker does, too, is
/// not polled, and both would wait for ever. A state that can't be written is an alarm of its own (`state_health`).
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

/// Why an image can't be had any more; `None` where it is here or in its registry.
async fn gone(world: &World, image: &RunningImage) -> Result<Option<GoneFrom>, EngineError> {
    match world.engine.image(&image.id.0).await {
        Ok(Some(found)) if found.whole => return Ok(None),
        Err(error) if error.is_unavailable() => return Err(error),
        _ => {}
    }
    let Some(Reference { repository, digest: Some(digest), .. }) = &image.source else {
        return Ok(Some(GoneFrom::NeverPushed));
    };
    Ok(match world.registry.has(repository, digest).await {
        Ok(true) => None,
        Ok(false) => Some(GoneFrom::Removed),
        Err(error) => Some(GoneFrom::Unknown(error.to_string())),
    })
}
