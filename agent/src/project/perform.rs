//! Performs one step of a deployment. Every step can be repeated after a crash in the middle of it.

use std::collections::BTreeMap;

use tokio::sync::{OnceCell, watch};

use crate::model::image::{ImageId, PIN_HOST, Reference, Repository};
use crate::model::image_config::ConfigChange;
use crate::model::{EngineError, Model, Platform, Project};
use crate::ports::{Compose, Engine, EnvFiles, GateCommand, Image, PullProgress};
use crate::service::action::{DisplacedTag, OldImage, Replaced, Step};
use crate::service::input::StepResult;
use crate::service::rollout::tag::LineChange;

use super::bring_up::{Start, bring_up};
use super::handover;
use super::snapshot::Data;
use super::tag_file::{self, Written};

/// Number of log lines kept of a failed container (black box).
const LOG_LINES: u32 = 20;

/// Pulls images.
pub(super) struct Fetch<'a> {
    /// The engine that pulls them.
    pub(super) engine: &'a dyn Engine,
    /// Provides their platform.
    pub(super) compose: &'a dyn Compose,
    /// The files with their tags.
    pub(super) env_files: &'a dyn EnvFiles,
    /// Runs hooks.
    pub(super) commands: &'a dyn GateCommand,
    /// Copies data.
    pub(super) data: &'a Data,
    /// The project that uses them.
    pub(super) project: Option<Project>,
    /// Progress of the pull.
    pub(super) progress: &'a watch::Sender<PullProgress>,
    /// The project's compose model, loaded on demand; `None` if it can't be read.
    pub(super) model: OnceCell<Option<Model>>,
}

/// Performs one step and returns its result.
pub(super) async fn perform(fetch: &Fetch<'_>, step: Step) -> StepResult {
    let engine = fetch.engine;
    let done = match step {
        Step::PinImages { project, images } => pin_images(fetch, &project, &images).await,
        Step::Pull { images, old, local } => pull(fetch, &images, &old, &local).await,
        Step::WriteTag { project, variable, tag, line, back, images } => {
            Ok(write_tag(fetch, &project, (variable, tag, line), back, &images).await)
        }
        Step::ReadTags { sibling_tags } => read_tags(engine, &sibling_tags).await,
        Step::Start { tags, displaced, project, down, up_mode, scope, pull, definition, is_guarded } => {
            let start =
                Start { tags, displaced, project, down, up_mode, scope, pull, definition, is_guarded };
            bring_up(fetch, start).await
        }
        Step::RestoreTags { tags } => point_tags(fetch, &tags).await.map(|()| StepResult::TagsRestored),
        Step::Diagnose { container } => diagnose(engine, &container).await,
        Step::Snapshot(step) => fetch.data.perform(engine, step, fetch.progress).await,
        Step::Handover(step) => handover::perform(engine, fetch.commands, step).await,
        Step::RunHook(call) => Ok(StepResult::HookEnded(fetch.commands.run_hook(&call).await)),
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

/// Writes a tag into its line. A new tag is written only if the compose files use the variable: otherwise the file would be
/// misleading, and nothing would be deployed.
async fn write_tag(
    fetch: &Fetch<'_>,
    project: &Project,
    (variable, tag, line): (String, String, LineChange),
    back: bool,
    images: &[Reference],
) -> StepResult {
    if !back {
        let model = match fetch.compose.model(project).await {
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
    match tag_file::write(fetch.env_files, &line, &variable, &tag, back).await {
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
    let engine = fetch.engine;
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
    old: &BTreeMap<String, Replaced>,
    local: &BTreeMap<String, ImageId>,
) -> Result<StepResult, EngineError> {
    let engine = fetch.engine;
    let mut ids = Vec::with_capacity(images.len());
    let mut labels = BTreeMap::new();
    for (text, reference) in images {
        let known = match local.get(text) {
            Some(id) => engine.image(&id.0).await?.filter(|image| image.is_complete),
            None => None,
        };
        let new = match known {
            Some(image) => image,
            None => fetch.image(text, reference).await?,
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
        ids.push((text.clone(), new.id));
    }
    Ok(StepResult::Pulled { ids, labels })
}

impl Fetch<'_> {
    /// Returns the image. Pulls it if it is incomplete, or present for another platform only.
    async fn image(&self, configured: &str, reference: &Reference) -> Result<Image, EngineError> {
        let tag = Reference::parse(configured).ok().and_then(|configured| configured.tag);
        let wanted = self.platform(reference, tag.as_deref()).await;
        let suits = |image: &Image| match (&image.platform, &wanted) {
            (Some(platform), Some(wanted)) => platform.satisfies(wanted),
            _ => true,
        };
        match self.engine.image(&reference.to_string()).await? {
            Some(image) if image.is_complete && suits(&image) => Ok(image),
            _ => self.fetch(reference, wanted.as_ref()).await,
        }
    }

    /// Returns the platform that the project requests for this repository and tag, or for another tag of the repository if
    /// no service uses this one. Unreadable files are ignored, because compose will report them.
    async fn platform(&self, reference: &Reference, tag: Option<&str>) -> Option<Platform> {
        let project = self.project.as_ref()?;
        let model = self.model.get_or_init(async || self.compose.model(project).await.ok()).await.as_ref()?;
        let users = model.services().filter_map(|service| Some((service.image()?, service)));
        let users = users.filter(|(image, _)| image.repository == reference.repository);
        let (_, user) = users.min_by_key(|(image, _)| image.tag.as_deref() != tag)?;
        user.platform()
    }

    async fn fetch(&self, reference: &Reference, platform: Option<&Platform>) -> Result<Image, EngineError> {
        self.progress.send_replace(PullProgress::default());
        self.engine.pull(reference, platform, self.progress).await?;
        let image = self.engine.image(&reference.to_string()).await?;
        image.ok_or_else(|| {
            EngineError::Refused(format!(
                "pull of {reference} succeeded, but the engine does not have the image"
            ))
        })
    }

    /// Pulls the missing parts of an image whose record is present. Parts can be removed by force (containerd store).
    async fn complete(&self, image: &OldImage) -> Result<(), EngineError> {
        let Some(source) = &image.source else {
            return Err(EngineError::NotFound(format!("image {} is not complete", image.id)));
        };
        self.fetch(source, self.platform(source, None).await.as_ref()).await.map(|_| ())
    }

    /// Points `tag` to the image, which is pulled again by its digest if it is missing.
    async fn tag(&self, image: &OldImage, tag: &Reference) -> Result<ImageId, EngineError> {
        match (self.engine.tag(&image.id, tag).await, &image.source) {
            (Ok(()), _) => Ok(image.id.clone()),
            (Err(EngineError::NotFound(_)), Some(source)) => {
                let platform = self.platform(source, tag.tag.as_deref()).await;
                let id = self.fetch(source, platform.as_ref()).await?.id;
                self.engine.tag(&id, tag).await?;
                Ok(id)
            }
            (Err(EngineError::NotFound(_)), None) => Err(EngineError::NotFound(format!(
                "image {} is missing on this machine, and it was never in a registry",
                image.id
            ))),
            (Err(error), _) => Err(error),
        }
    }
}

pub(super) async fn point_tags(fetch: &Fetch<'_>, tags: &[(Reference, OldImage)]) -> Result<(), EngineError> {
    for (tag, image) in tags {
        fetch.tag(image, tag).await?;
    }
    Ok(())
}

/// Returns the tags of other services that point to another image than the one their service runs.
async fn read_tags(engine: &dyn Engine, others: &[(Reference, ImageId)]) -> Result<StepResult, EngineError> {
    let mut displaced = Vec::new();
    for (tag, runs) in others {
        match engine.image(&tag.tagged()).await {
            Ok(Some(named)) if named.id != *runs => {
                displaced.push(DisplacedTag { tag: tag.clone(), runs: runs.clone(), named: named.id });
            }
            Err(error) if error.is_unavailable() => return Err(error),
            // It points to the running image, or there is nothing to restore.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(StepResult::TagsRead { displaced })
}

/// Points these tags to the images that their services run. If that fails, compose uses the tag as it is.
pub(super) async fn point_at_running(engine: &dyn Engine, displaced: &[DisplacedTag]) {
    for DisplacedTag { tag, runs, .. } in displaced {
        if let Err(error) = engine.tag(runs, tag).await {
            tracing::debug!(%tag, %error, "the tag could not be moved");
        }
    }
}

/// Restores the targets of these tags. A tag that was moved by another client meanwhile is left alone.
pub(super) async fn restore_displaced(
    engine: &dyn Engine,
    displaced: &[DisplacedTag],
) -> Result<(), EngineError> {
    for DisplacedTag { tag, runs, named } in displaced {
        let is_ours = match engine.image(&tag.tagged()).await {
            Ok(image) => image.is_some_and(|image| image.id == *runs),
            Err(error) if error.is_unavailable() => return Err(error),
            Err(_) => false,
        };
        if !is_ours {
            continue;
        }
        match engine.tag(named, tag).await {
            Err(error) if error.is_unavailable() => return Err(error),
            Err(error) => {
                tracing::warn!(%tag, %error, "the tag can't be restored to its previous image");
            }
            Ok(()) => {}
        }
    }
    Ok(())
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

/// Returns the final name of a container that compose calls `<12 hex digits>_<name>` while it replaces another one.
pub(super) fn real_name(temporary: &str) -> Option<&str> {
    let (prefix, name) = temporary.split_once('_')?;
    let is_id =
        prefix.len() == 12 && prefix.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    (is_id && !name.is_empty()).then_some(name)
}

/// Returns the repository of the tags that pin a project's images during a deployment. Its host can't be a registry, so the
/// tags are never pulled. Two projects may share it (`a_b`, `a-b`): if one loses its tag, its anchor still pins the image.
fn pin_repository(project: &str) -> Repository {
    let mut path: String = project
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .collect();
    path.trim_matches('-').to_owned().clone_into(&mut path);
    if path.is_empty() {
        "project".clone_into(&mut path);
    }
    Repository { host: PIN_HOST.to_owned(), path }
}

fn pin_tag(project: &str, id: &ImageId) -> Reference {
    Reference { repository: pin_repository(project), tag: Some(short_id(id)), digest: None }
}

fn anchor_name(project: &str, id: &ImageId) -> String {
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
    fn only_temporary_names_have_a_final_one() {
        assert_eq!(real_name("0123456789ab_shop-web-1"), Some("shop-web-1"));
        assert_eq!(real_name("0123456789ab_a_b"), Some("a_b"));
        for name in ["shop-web-1", "0123456789abc_web", "0123456789AB_web", "0123456789ab_", "shop_web_1"] {
            assert_eq!(real_name(name), None, "{name}");
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
