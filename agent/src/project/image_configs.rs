//! Compares the configuration of a new image, in its registry, with that of the running one (DECISIONS 15).

use crate::model::Platform;
use crate::model::image::{Digest, Repository};
use crate::model::image_config::{ConfigDifference, ImageConfig, Tagged, differences};
use crate::ports::{Engine, Registry};
use crate::service::input::{ConfigsCompared, ImageView, LocalImage};

/// Compares it with every running one before anything is pulled. A running image is read from the engine, or from the registry if the engine
/// no longer has it (`None`: it never has). An error says what is not known.
pub(super) async fn compare(
    engine: Option<&dyn Engine>,
    registry: &dyn Registry,
    view: &ImageView,
) -> ConfigsCompared {
    let Some(digest) = &view.remote else { return Ok(Vec::new()) };
    let mut found: Vec<ConfigDifference> = Vec::new();
    for old in &view.running {
        let differences = with_running(engine, registry, view, (old, digest)).await?;
        found.extend(differences.into_iter().filter(|one| !found.contains(one)).collect::<Vec<_>>());
    }
    Ok(found)
}

async fn with_running(
    engine: Option<&dyn Engine>,
    registry: &dyn Registry,
    view: &ImageView,
    (old, digest): (&LocalImage, &Digest),
) -> ConfigsCompared {
    let repository = &view.target().repository;
    let local = match engine {
        Some(engine) if !old.id.0.is_empty() => engine.image(&old.id.0).await.ok().flatten(),
        _ => None,
    };
    let local = local.filter(|image| image.is_complete);
    let platform = local.as_ref().and_then(|image| image.platform.clone());
    let running = match local {
        Some(image) => image.config,
        None => of_running(registry, &view.reference.repository, old).await?,
    };
    let new = read(registry, repository, digest, platform.as_ref()).await;
    let new = new.map_err(|why| format!("the configuration of the new image is not known: {why}"))?;
    Ok(differences(
        Tagged { config: &running, tag: view.from.tag.as_deref() },
        Tagged { config: &new, tag: view.target().tag.as_deref() },
    ))
}

async fn of_running(
    registry: &dyn Registry,
    repository: &Repository,
    old: &LocalImage,
) -> Result<ImageConfig, String> {
    let read = match old.digests.first() {
        Some(digest) => read(registry, repository, digest, None).await,
        None => Err("this machine no longer has it, and it is not from the registry".to_owned()),
    };
    read.map_err(|why| format!("the configuration of the running image is not known: {why}"))
}

async fn read(
    registry: &dyn Registry,
    repository: &Repository,
    digest: &Digest,
    platform: Option<&Platform>,
) -> Result<ImageConfig, String> {
    match registry.config(repository, digest, platform).await {
        Ok(Some(config)) => Ok(config),
        Ok(None) => Err("the registry has none that can be read".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
