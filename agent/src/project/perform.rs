//! Performs one step of a deployment. Every step can be repeated after a crash in the middle of it.

use std::collections::BTreeMap;

use crate::model::image::{HUB, ImageId, PIN_HOST, Reference, Repository};
use crate::model::image_config::ConfigChange;
use crate::model::{EngineError, Members, Project};
use crate::ports::{Engine, HOLD_PREFIX, HookCall, Image};
use crate::service::action::{DisplacedTag, Keeps, Replaced, Step};
use crate::service::images::OldImage;
use crate::service::input::StepResult;
use crate::service::rollout::tag::LineChange;

use super::bring_up::bring_up;
use super::fetch::{Fetch, point_tags, restore_displaced};
use super::handover;
use super::swarm::{self, LOG_LINES};
use super::tag_file::{self, Written};
use super::volumes;
use super::world::World;

/// Performs one step and returns its result.
pub(super) async fn perform(fetch: &Fetch<'_>, step: Step) -> StepResult {
    let world = fetch.world;
    let engine = &*world.engine;
    let done = match step {
        Step::PinImages { project, images } => pin_images(fetch, &project, &images).await,
        Step::Pull { images, old, local, keeps } => {
            pull(fetch, &images, (&old, &local), keeps.as_ref()).await
        }
        Step::WriteTag { project, variable, tag, line, back, images } => {
            Ok(write_tag(fetch, &project, (variable, tag, line), back, &images).await)
        }
        Step::ReadTags { sibling_tags } => read_tags(engine, &sibling_tags).await,
        Step::Start(run) => bring_up(fetch, run).await,
        Step::RestoreTags { tags } => point_tags(fetch, &tags).await.map(|()| StepResult::TagsRestored),
        Step::Diagnose { container } => diagnose(engine, &container).await,
        Step::Snapshot(step) => world.data.perform(engine, step, fetch.progress).await,
        Step::Handover { project, step } => {
            handover::perform(engine, &*world.gate_command, project, step).await
        }
        Step::Swarm(step) => Ok(swarm::step(&*world.swarm, &*world.registry, step).await),
        Step::RunHook { call, look_at } => Ok(run_hook(world, &call, look_at).await),
        Step::Unpin { project, displaced, onto } => match restore_displaced(engine, &displaced).await {
            Ok(()) => unpin(engine, &project, onto.as_ref()).await,
            Err(error) => Err(error),
        },
    };
    done.unwrap_or_else(|error| match error {
        EngineError::Unavailable(_) => StepResult::EngineAway(error.to_string()),
        EngineError::NotFound(text) | EngineError::Refused(text) => StepResult::Failed(text),
    })
}

/// Runs a hook, which may have stopped containers or made them anew.
async fn run_hook(world: &World, call: &HookCall, look_at: Option<String>) -> StepResult {
    let ended = world.gate_command.run_hook(call).await;
    // Without an answer the plan stays as it is: the hook itself needs no engine, and must not run again.
    let containers = match look_at.filter(|_| ended.is_ok()) {
        Some(project) => world.engine.containers(&Members::Project(project)).await.ok(),
        None => None,
    };
    StepResult::HookEnded(ended.map(|()| containers))
}

/// Writes a tag into its line, unless it is there already. A new tag is deployed only if the compose files use the variable:
/// otherwise the file would be misleading, and nothing would be deployed.
async fn write_tag(
    fetch: &Fetch<'_>,
    project: &Project,
    (variable, tag, line): (String, String, Option<LineChange>),
    back: bool,
    images: &[Reference],
) -> StepResult {
    if !back {
        let model = match fetch.rendered(project).await {
            Ok(model) => model,
            Err(error) => return StepResult::Failed(error.to_string()),
        };
        let follows = |image: &&Reference| model.services().any(|s| s.image().as_ref() == Some(*image));
        if let Some(image) = images.iter().find(|image| !follows(image)) {
            let repository = &image.repository;
            let why = format!("the compose files do not use {variable} as the tag of {repository}");
            return StepResult::Failed(why);
        }
    }
    let Some(line) = line else { return StepResult::TagWritten };
    match tag_file::write(&*fetch.world.env_files, &line, &variable, &tag, back).await {
        Ok(Written::Done) => StepResult::TagWritten,
        Ok(Written::Conflict) => StepResult::TagLineChanged,
        Err(why) => StepResult::Failed(why),
    }
}

async fn pin_images(
    fetch: &Fetch<'_>,
    project: &str,
    images: &[OldImage],
) -> Result<StepResult, EngineError> {
    let engine = &*fetch.world.engine;
    let mut missing = Vec::new();
    for image in images {
        let name = anchor_name(project, &image.id);
        match fetch.tag(image, &pin_tag(project, &image.id)).await {
            Ok(id) => match engine.anchor(&name, &id, project).await {
                Err(EngineError::NotFound(_)) => match fetch.complete(image).await {
                    Ok(()) => engine.anchor(&name, &id, project).await?,
                    Err(error) if error.is_unavailable() => return Err(error),
                    Err(_) => missing.push(name_of(image)),
                },
                anchored => anchored?,
            },
            Err(error) if error.is_unavailable() => return Err(error),
            Err(_) => missing.push(name_of(image)),
        }
    }
    Ok(StepResult::ImagesPinned { missing })
}

fn name_of(image: &OldImage) -> String {
    image.source.as_ref().map_or_else(|| image.id.to_string(), ToString::to_string)
}

async fn pull(
    fetch: &Fetch<'_>,
    images: &[(String, Reference)],
    (old, local): (&BTreeMap<String, Replaced>, &BTreeMap<String, ImageId>),
    keeps: Option<&Keeps>,
) -> Result<StepResult, EngineError> {
    let engine = &*fetch.world.engine;
    let mut pulled = Vec::with_capacity(images.len());
    let mut labels = BTreeMap::new();
    for (text, reference) in images {
        let new = match new_image(fetch, text, reference, local.get(text)).await {
            Ok(image) => image,
            Err(EngineError::NotFound(why) | EngineError::Refused(why)) => {
                let lacks_platform = lacks_platform(&why);
                let (image, pulled) = (text.clone(), ids_of(pulled));
                return Ok(StepResult::PullFailed { image, why, lacks_platform, pulled });
            }
            Err(error @ EngineError::Unavailable(_)) => return Err(error),
        };
        // What the old image says is only informational.
        let change = match old.get(text) {
            Some(replaced) => {
                let image =
                    engine.image(&replaced.id.0).await.ok().flatten().filter(|image| image.is_complete);
                let old = image.as_ref().map(|image| (&image.config, replaced.tag.as_deref()));
                ConfigChange::between(old, Some((&new.config, replaced.new_tag.as_deref())))
            }
            None => ConfigChange::between(None, Some((&new.config, None))),
        };
        labels.insert(text.clone(), change);
        pulled.push((text.clone(), new));
    }
    if let Some(keeps) = keeps {
        let containers = engine.containers(&Members::Project(keeps.project.clone())).await?;
        for (image, new) in &pulled {
            if let Some(why) = volumes::left_behind(keeps, &containers, image, new) {
                let (image, pulled) = (image.clone(), ids_of(pulled));
                return Ok(StepResult::PullFailed { image, why, lacks_platform: false, pulled });
            }
        }
    }
    Ok(StepResult::Pulled { ids: ids_of(pulled), labels })
}

fn ids_of(pulled: Vec<(String, Image)>) -> Vec<(String, ImageId)> {
    pulled.into_iter().map(|(text, image)| (text, image.id)).collect()
}

/// Returns an image that is to be deployed: the one with this ID, if it is still there, or else it is pulled.
async fn new_image(
    fetch: &Fetch<'_>,
    text: &str,
    reference: &Reference,
    local: Option<&ImageId>,
) -> Result<Image, EngineError> {
    let known = match local {
        Some(id) => fetch.world.engine.image(&id.0).await?.filter(|image| image.is_complete),
        None => None,
    };
    match known {
        Some(image) => Ok(image),
        None => fetch.image(text, reference).await,
    }
}

/// Reports whether an engine says that an image exists, but not for the platform that was asked for.
fn lacks_platform(why: &str) -> bool {
    // Docker with its own store, Docker with the containerd store, and podman.
    const TEXTS: [&str; 4] = [
        "no matching manifest for",
        "no match for platform in manifest",
        "no image found in manifest list for architecture",
        "no image found in image index for architecture",
    ];
    let why = why.to_lowercase();
    TEXTS.iter().any(|text| why.contains(text))
}

/// Returns the tags of other services that point to another image than the one their service runs, or to none.
async fn read_tags(engine: &dyn Engine, others: &[(Reference, ImageId)]) -> Result<StepResult, EngineError> {
    let mut displaced = Vec::new();
    for (tag, runs) in others {
        match engine.image(&tag.tagged()).await {
            Ok(Some(named)) if named.id != *runs => {
                displaced.push(DisplacedTag { tag: tag.clone(), runs: runs.clone(), named: Some(named.id) });
            }
            Ok(None) if !is_named_by_id(tag, runs) => {
                displaced.push(DisplacedTag { tag: tag.clone(), runs: runs.clone(), named: None });
            }
            Err(error) if error.is_unavailable() => return Err(error),
            // It points to the running image, or what it points to is not known.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(StepResult::TagsRead { displaced })
}

/// Reports whether what looks like a tag is the ID of the image: a container may be made from that, and needs no tag.
fn is_named_by_id(tag: &Reference, id: &ImageId) -> bool {
    let Some(name) = tag.repository.path.strip_prefix("library/").filter(|_| tag.repository.host == HUB)
    else {
        return false;
    };
    let hex = id.0.rsplit(':').next().unwrap_or_default();
    match tag.tag.as_deref() {
        Some("latest") | None => hex.starts_with(name),
        Some(tag) => name == "sha256" && hex.starts_with(tag),
    }
}

async fn diagnose(engine: &dyn Engine, container: &str) -> Result<StepResult, EngineError> {
    if container.is_empty() {
        return Ok(StepResult::Diagnosed { log: String::new() });
    }
    match engine.log_tail(container, LOG_LINES).await {
        // The engine responds: a log that can't be read in time must not delay the rollback.
        Err(error) if error.is_unavailable() && engine.ping().await.is_ok() => {
            Err(EngineError::Refused(error.to_string()))
        }
        log => log.map(|log| StepResult::Diagnosed { log }),
    }
}

/// Removes all tags and anchors that pin images of a project, including leftovers of forgotten deployments.
async fn unpin(
    engine: &dyn Engine,
    project: &str,
    onto: Option<&ImageId>,
) -> Result<StepResult, EngineError> {
    for name in engine.anchors(project).await? {
        engine.remove_anchor(&name).await?;
    }
    for tag in engine.tags(&pin_repository(project)).await? {
        // Removing the last tag of an image deletes the image, so the tag is first moved to an image that has other tags.
        match onto.map(|id| engine.tag(id, &tag)) {
            Some(moved) => match moved.await {
                Err(error) if error.is_unavailable() => return Err(error),
                _ => engine.untag(&tag).await?,
            },
            None => engine.untag(&tag).await?,
        }
    }
    Ok(StepResult::Unpinned)
}

/// Returns the repository of the tags that pin a project's images during a deployment. Its host can't be a registry, so the
/// tags are never pulled. Two projects may share it (`a_b`, `a-b`): if one loses its tag, its anchor still pins the image.
fn pin_repository(project: &str) -> Repository {
    let path: String = project
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .collect();
    let path = match path.trim_matches('-') {
        "" => "project",
        path => path,
    };
    Repository { host: PIN_HOST.to_owned(), path: path.to_owned() }
}

fn pin_tag(project: &str, id: &ImageId) -> Reference {
    Reference { repository: pin_repository(project), tag: Some(short_id(id)), digest: None }
}

fn anchor_name(project: &str, id: &ImageId) -> String {
    format!("{HOLD_PREFIX}{project}-{}", short_id(id))
}

fn short_id(id: &ImageId) -> String {
    let hex = id.0.rsplit(':').next().unwrap_or_default();
    hex.chars().filter(char::is_ascii_alphanumeric).take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_image_for_other_platforms_lacks_the_platform() {
        for text in [
            "no matching manifest for linux/arm/v7 in the manifest list entries",
            "failed to resolve reference: no match for platform in manifest: not found",
            "choosing an image: no image found in manifest list for architecture \"arm\", variant \"v7\", OS \"linux\"",
            "choosing image instance: no image found in image index for architecture \"arm\", OS \"linux\"",
        ] {
            assert!(lacks_platform(text), "{text}");
        }
        for text in ["no space left on device", "manifest unknown", "net/http: TLS handshake timeout"] {
            assert!(!lacks_platform(text), "{text}");
        }
    }

    #[test]
    fn a_container_that_was_made_from_the_id_of_its_image_lacks_no_tag() {
        let hex = "0123456789ab".repeat(5) + "cdef";
        let id = ImageId(format!("sha256:{hex}").into());
        let is_id = |image: &str| is_named_by_id(&Reference::parse(image).expect("a reference"), &id);
        for image in [format!("sha256:{hex}").as_str(), "sha256:0123456789ab", hex.as_str(), "0123456789ab"] {
            assert!(is_id(image), "{image}");
        }
        for image in ["proxy:1", "ba9876543210", "registry:5000/0123456789ab", "proxy:0123456789ab"] {
            assert!(!is_id(image), "{image}");
        }
    }

    #[test]
    fn pin_tags_are_valid_for_every_project_name_that_the_spec_allows() {
        let id = ImageId(format!("sha256:{}", "ab".repeat(32)).into());
        for project in ["web", "Web_2", "_x", "-x", "___", "a--b"] {
            let text = pin_tag(project, &id).to_string();
            assert!(Reference::parse(&text).is_ok(), "{project}: {text}");
            assert!(text.ends_with(":abababababab"), "{text}");
        }
    }
}
