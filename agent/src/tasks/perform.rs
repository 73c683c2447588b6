//! One step of a deployment, done outside. Each can be done again after a crash in the middle of it.

use tokio::sync::watch;

use crate::image::{HOLD_HOST, ImageId, Reference, Repository};
use crate::ports::{Compose, Engine, EngineError, Members, Pulled};
use crate::service::action::{OldImage, Step};
use crate::service::fact::StepResult;

/// How many of a failed container's last lines are kept (black box).
const LOG_LINES: u32 = 20;

/// Does one step and says how it ended.
pub(super) async fn perform(
    engine: &dyn Engine,
    compose: &dyn Compose,
    step: Step,
    progress: &watch::Sender<Pulled>,
) -> StepResult {
    let done = match step {
        Step::Hold { project, images } => hold(engine, &project, &images, progress).await,
        Step::Pull { images } => pull(engine, &images, progress).await,
        Step::Start { tags, others, project, down, recreate } => {
            match point_tags(engine, &tags, progress).await {
                Ok(()) => {
                    let moved = point_others(engine, &others).await;
                    let cleared = if down { compose.down(&project).await } else { Ok(String::new()) };
                    let up = match cleared {
                        Ok(_) => compose.up(&project, &recreate).await,
                        Err(error) => Err(error),
                    };
                    for (tag, id) in moved {
                        let _ = engine.tag(&id, &tag).await;
                    }
                    let up = after_up(engine, up, project.name).await;
                    // Compose was at work: what it did must be seen before anything is decided.
                    Ok(up.unwrap_or_else(|error| StepResult::EngineAway(error.to_string())))
                }
                Err(error) => Err(error),
            }
        }
        Step::TagsBack { tags } => point_tags(engine, &tags, progress).await.map(|()| StepResult::TagsBack),
        Step::Evidence { container } => evidence(engine, &container).await,
        Step::Release { project, onto } => release(engine, &project, onto.as_ref()).await,
    };
    done.unwrap_or_else(|error| match error {
        EngineError::Unavailable(_) => StepResult::EngineAway(error.to_string()),
        EngineError::NotFound(text) | EngineError::Refused(text) => StepResult::Failed(text),
    })
}

async fn hold(
    engine: &dyn Engine,
    project: &str,
    images: &[OldImage],
    progress: &watch::Sender<Pulled>,
) -> Result<StepResult, EngineError> {
    let mut missing = Vec::new();
    for image in images {
        let tag = hold_tag(project, &image.id);
        match fetch_and_tag(engine, image, &tag, progress).await {
            Ok(id) => engine.anchor(&hold_name(project, &image.id), &id, project).await?,
            Err(error) if error.is_unavailable() => return Err(error),
            Err(_) => {
                missing.push(image.source.as_ref().map_or_else(|| image.id.to_string(), ToString::to_string));
            }
        }
    }
    Ok(StepResult::Held { missing })
}

async fn pull(
    engine: &dyn Engine,
    images: &[(String, Reference)],
    progress: &watch::Sender<Pulled>,
) -> Result<StepResult, EngineError> {
    let mut ids = Vec::with_capacity(images.len());
    for (text, reference) in images {
        let id = match engine.image(&reference.to_string()).await? {
            Some(image) => image.id,
            None => fetch(engine, reference, progress).await?,
        };
        ids.push((text.clone(), id));
    }
    Ok(StepResult::Pulled { ids })
}

async fn fetch(
    engine: &dyn Engine,
    reference: &Reference,
    progress: &watch::Sender<Pulled>,
) -> Result<ImageId, EngineError> {
    progress.send_replace(Pulled::default());
    engine.pull(reference, progress).await?;
    let image = engine.image(&reference.to_string()).await?;
    image.map(|image| image.id).ok_or_else(|| {
        EngineError::Refused(format!(
            "pull of {reference} ended well, but the engine does not have the image"
        ))
    })
}

async fn point_tags(
    engine: &dyn Engine,
    tags: &[(Reference, OldImage)],
    progress: &watch::Sender<Pulled>,
) -> Result<(), EngineError> {
    for (tag, image) in tags {
        fetch_and_tag(engine, image, tag, progress).await?;
    }
    Ok(())
}

/// Lets the tags of other services name what they run on. Where one could not, compose takes what the tag names.
/// What they named before, to be put back.
async fn point_others(engine: &dyn Engine, others: &[(Reference, ImageId)]) -> Vec<(Reference, ImageId)> {
    let mut moved = Vec::new();
    for (tag, runs) in others {
        if let Ok(Some(named)) = engine.image(&tag.tagged()).await
            && named.id != *runs
            && engine.tag(runs, tag).await.is_ok()
        {
            moved.push((tag.clone(), named.id));
        }
    }
    moved
}

/// Lets `tag` name the image; fetches it again by its digest where it is gone.
async fn fetch_and_tag(
    engine: &dyn Engine,
    image: &OldImage,
    tag: &Reference,
    progress: &watch::Sender<Pulled>,
) -> Result<ImageId, EngineError> {
    match (engine.tag(&image.id, tag).await, &image.source) {
        (Ok(()), _) => Ok(image.id.clone()),
        (Err(EngineError::NotFound(_)), Some(source)) => {
            let id = fetch(engine, source, progress).await?;
            engine.tag(&id, tag).await?;
            Ok(id)
        }
        (Err(EngineError::NotFound(_)), None) => Err(EngineError::NotFound(format!(
            "image {} is gone from this machine, and it was never in a registry",
            image.id
        ))),
        (Err(error), _) => Err(error),
    }
}

async fn after_up(
    engine: &dyn Engine,
    up: Result<String, crate::ports::ComposeError>,
    project: String,
) -> Result<StepResult, EngineError> {
    if up.is_err() {
        // Compose can't tell an engine that went away from a project that does not start; the engine can.
        engine.ping().await?;
    }
    let mut containers = engine.containers(&Members::Project(project)).await?;
    // A run that was killed after it removed the old container leaves the new one under a makeshift name, and
    // the next run is content with it.
    for at in 0..containers.len() {
        let Some(name) = real_name(&containers[at].name).map(str::to_owned) else { continue };
        if containers.iter().all(|other| other.name != name) {
            engine.rename(&containers[at].id, &name).await?;
            containers[at].name = name;
        }
    }
    Ok(StepResult::Started { up, containers })
}

async fn evidence(engine: &dyn Engine, container: &str) -> Result<StepResult, EngineError> {
    if container.is_empty() {
        return Ok(StepResult::Evidence { log: String::new() });
    }
    engine.log_tail(container, LOG_LINES).await.map(|log| StepResult::Evidence { log })
}

/// Lets go of everything that is held for a project, also of what a deployment held that nobody remembers.
async fn release(
    engine: &dyn Engine,
    project: &str,
    onto: Option<&ImageId>,
) -> Result<StepResult, EngineError> {
    for name in engine.anchors(project).await? {
        engine.remove_anchor(&name).await?;
    }
    for tag in engine.tags(&hold_repository(project)).await? {
        // Removing the last tag of an image deletes the image: the tag goes to one that has others first.
        match onto.map(|id| engine.tag(id, &tag)) {
            Some(moved) => match moved.await {
                Err(error) if error.is_unavailable() => return Err(error),
                _ => engine.untag(&tag).await?,
            },
            None => engine.untag(&tag).await?,
        }
    }
    Ok(StepResult::Released)
}

/// The name that compose means for a container that it calls `<12 hex digits>_<name>` while it replaces another.
fn real_name(makeshift: &str) -> Option<&str> {
    let (prefix, name) = makeshift.split_once('_')?;
    let is_id =
        prefix.len() == 12 && prefix.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    (is_id && !name.is_empty()).then_some(name)
}

/// Where the tags of a project are that hold images during a deployment. Its host can't be a registry, so nothing
/// ever pulls them. Two projects may share it (`a_b`, `a-b`): one that loses its tag to the other has the anchor yet.
fn hold_repository(project: &str) -> Repository {
    let mut path: String = project
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .collect();
    path.trim_matches('-').to_owned().clone_into(&mut path);
    if path.is_empty() {
        "project".clone_into(&mut path);
    }
    Repository { host: HOLD_HOST.to_owned(), path }
}

fn hold_tag(project: &str, id: &ImageId) -> Reference {
    Reference { repository: hold_repository(project), tag: Some(short_id(id)), digest: None }
}

fn hold_name(project: &str, id: &ImageId) -> String {
    format!("evenkeel-hold-{project}-{}", short_id(id))
}

fn short_id(id: &ImageId) -> String {
    let hex = id.0.rsplit(':').next().unwrap_or_default();
    hex.chars().filter(char::is_ascii_alphanumeric).take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_makeshift_names_have_a_real_one() {
        assert_eq!(real_name("0123456789ab_shop-web-1"), Some("shop-web-1"));
        assert_eq!(real_name("0123456789ab_a_b"), Some("a_b"));
        for name in ["shop-web-1", "0123456789abc_web", "0123456789AB_web", "0123456789ab_", "shop_web_1"] {
            assert_eq!(real_name(name), None, "{name}");
        }
    }

    #[test]
    fn hold_tags_are_valid_for_every_project_name_that_the_spec_admits() {
        let id = ImageId(format!("sha256:{}", "ab".repeat(32)));
        for project in ["web", "Web_2", "_x", "-x", "___", "a--b"] {
            let text = hold_tag(project, &id).to_string();
            assert!(Reference::parse(&text).is_ok(), "{project}: {text}");
            assert!(text.ends_with(":abababababab"), "{text}");
        }
    }
}
