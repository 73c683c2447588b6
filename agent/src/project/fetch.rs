//! Images and their tags: pulls what is missing, and points tags where a step needs them.

use tokio::sync::{OnceCell, watch};

use crate::model::image::{Digest, ImageId, Reference, Repository};
use crate::model::{ComposeError, Container, EngineError, Members, Model, Platform, Project};
use crate::ports::{Engine, Image, PullProgress};
use crate::service::action::{DisplacedTag, IfGone};
use crate::service::images::OldImage;

use super::world::World;

/// Pulls images.
pub(super) struct Fetch<'a> {
    /// What a step reaches outside.
    pub(super) world: &'a World,
    /// The project that uses them.
    pub(super) project: Option<Project>,
    /// Progress of the pull.
    pub(super) progress: &'a watch::Sender<PullProgress>,
    /// The project's compose model and its containers, loaded on demand; `None` if the model can't be read.
    pub(super) model: OnceCell<Option<(Model, Vec<Container>)>>,
}

impl Fetch<'_> {
    /// Returns the image. Pulls it if it is incomplete, or present for another platform only.
    pub(super) async fn image(&self, configured: &str, reference: &Reference) -> Result<Image, EngineError> {
        let tag = Reference::parse(configured).ok().and_then(|configured| configured.tag);
        let wanted = self.platform(reference, tag.as_deref()).await;
        let suits = |image: &Image| match (&image.platform, &wanted) {
            (Some(platform), Some(wanted)) => platform.satisfies(wanted),
            _ => true,
        };
        match self.world.engine.image(&reference.to_string()).await? {
            Some(image) if image.is_complete && suits(&image) => Ok(image),
            _ => self.fetch(reference, wanted.as_ref()).await,
        }
    }

    /// Returns the project's compose model.
    pub(super) async fn rendered(&self, project: &Project) -> Result<Model, ComposeError> {
        self.rendered_with(project).await.map(|(model, _)| model)
    }

    /// Returns the project's compose model, and its containers. Compose can render more of it if it is known which there are.
    async fn rendered_with(&self, project: &Project) -> Result<(Model, Vec<Container>), ComposeError> {
        let members = Members::Project(project.name.clone());
        let containers = self.world.engine.containers(&members).await.unwrap_or_default();
        let model = self.world.compose.model(&project.clone().with_present(&containers)).await?;
        Ok((model, containers))
    }

    /// Returns the platform that the project requests for this repository and tag. Unreadable files are ignored, because compose
    /// will report them.
    pub(super) async fn platform(&self, reference: &Reference, tag: Option<&str>) -> Option<Platform> {
        let project = self.project.as_ref()?;
        let loaded = self.model.get_or_init(async || self.rendered_with(project).await.ok()).await;
        let (model, containers) = loaded.as_ref()?;
        requested_platform(model, containers, &reference.repository, tag)
    }

    async fn fetch(&self, reference: &Reference, platform: Option<&Platform>) -> Result<Image, EngineError> {
        self.progress.send_replace(PullProgress::default());
        self.world.engine.pull(reference, platform, self.progress).await?;
        let image = self.world.engine.image(&reference.to_string()).await?;
        image.ok_or_else(|| {
            EngineError::Refused(format!(
                "pull of {reference} succeeded, but the engine does not have the image"
            ))
        })
    }

    /// Pulls the missing parts of an image whose record is present. Parts can be removed by force (containerd store).
    pub(super) async fn complete(&self, image: &OldImage) -> Result<(), EngineError> {
        let Some(source) = &image.source else {
            return Err(EngineError::NotFound(format!("image {} is not complete", image.id)));
        };
        self.fetch(source, self.platform(source, None).await.as_ref()).await.map(|_| ())
    }

    /// Points `tag` to the image, which is pulled again by its digest if it is missing.
    pub(super) async fn tag(&self, image: &OldImage, tag: &Reference) -> Result<ImageId, EngineError> {
        match (self.world.engine.tag(&image.id, tag).await, &image.source) {
            (Ok(()), _) => Ok(image.id.clone()),
            (Err(EngineError::NotFound(_)), Some(source)) => {
                let platform = self.platform(source, tag.tag.as_deref()).await;
                let id = self.fetch(source, platform.as_ref()).await?.id;
                self.world.engine.tag(&id, tag).await?;
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

/// Returns the platform that a project requests for this repository and tag, or for another tag of the repository if no service
/// uses this one. What runs decides, or else what is there: the model has the services of all profiles, also of those that
/// are never used.
fn requested_platform(
    model: &Model,
    containers: &[Container],
    repository: &Repository,
    tag: Option<&str>,
) -> Option<Platform> {
    let users = model.services().filter_map(|service| Some((service.image()?, service)));
    let users = users.filter(|(image, _)| image.repository == *repository);
    let (_, user) = users.min_by_key(|(image, service)| {
        let own: Vec<&Container> = containers.iter().filter(|c| c.compose_service == service.name).collect();
        (image.tag.as_deref() != tag, !own.iter().any(|c| c.is_live()), own.is_empty())
    })?;
    user.platform()
}

pub(super) async fn point_tags(fetch: &Fetch<'_>, tags: &[(Reference, OldImage)]) -> Result<(), EngineError> {
    for (tag, image) in tags {
        fetch.tag(image, tag).await?;
    }
    Ok(())
}

/// Returns these tags with what they name now. They were read before the run waited for its turn, and somebody may have moved
/// them since. One at the running image is left so by an earlier run that was interrupted.
pub(super) async fn read_again(
    engine: &dyn Engine,
    mut displaced: Vec<DisplacedTag>,
) -> Result<Vec<DisplacedTag>, EngineError> {
    for one in &mut displaced {
        match engine.image(&one.tag.tagged()).await {
            Ok(Some(image)) if image.id != one.runs => one.named = Some(image.id),
            Ok(None) => one.named = None,
            Err(error) if error.is_unavailable() => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(displaced)
}

/// Points these tags to the images that their services run. Those of `called` are of services that compose is called for: it
/// would bring another image to them, or find none. If a tag can't be moved and this run goes on, compose uses it as it is.
pub(super) async fn point_at_running(
    fetch: &Fetch<'_>,
    displaced: &[DisplacedTag],
    called: &[Reference],
    if_gone: IfGone,
) -> Result<(), EngineError> {
    for DisplacedTag { tag, runs, named } in displaced {
        let is_called = called.contains(tag);
        // Compose does not miss it.
        if named.is_none() && !is_called {
            continue;
        }
        // Only the containerd store forgets an image that runs once its tag is moved, and there the ID is the digest.
        let digest = Digest::parse(&runs.0).ok().filter(|_| is_called);
        let source = digest.map(|digest| tag.repository.pinned(&digest));
        match fetch.tag(&OldImage { id: runs.clone(), source }, tag).await {
            Ok(_) => {}
            Err(EngineError::NotFound(why) | EngineError::Refused(why))
                if is_called && if_gone == IfGone::Stop =>
            {
                return Err(EngineError::Refused(not_called(tag, named.is_some(), &why)));
            }
            Err(error) if is_called && if_gone == IfGone::Stop => return Err(error),
            Err(error) => tracing::debug!(%tag, %error, "the tag could not be moved"),
        }
    }
    Ok(())
}

/// Why compose is not called if the image that another service runs can't be tagged.
fn not_called(tag: &Reference, is_there: bool, why: &str) -> String {
    let (state, from, remedy) = if is_there {
        (
            "names another image than its service runs, and the one that runs",
            "from the other image",
            "Bring the service up on the image of the tag with `docker compose up -d`",
        )
    } else {
        (
            "is no longer here, and the image that its service runs",
            "would find no image",
            "Pull or build it, and bring the service up on it with `docker compose up -d`",
        )
    };
    format!(
        "{tag} {state} can't be tagged: {why}. Compose would recreate that service, too, and {from}, so it was not called. \
         {remedy}, or remove its tie to the updated service"
    )
}

/// Restores the targets of these tags. A tag that was moved by another client meanwhile is left alone, and so is one that was
/// missing.
pub(super) async fn restore_displaced(
    engine: &dyn Engine,
    displaced: &[DisplacedTag],
) -> Result<(), EngineError> {
    for DisplacedTag { tag, runs, named } in displaced {
        let Some(named) = named else { continue };
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

/// Returns the final name of a container that compose calls `<12 hex digits>_<name>` while it replaces another one.
pub(super) fn real_name(temporary: &str) -> Option<&str> {
    let (prefix, name) = temporary.split_once('_')?;
    let is_id =
        prefix.len() == 12 && prefix.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    (is_id && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::State;

    #[test]
    fn the_platform_of_an_image_is_that_of_the_services_that_run_it() {
        let model: Model = serde_json::from_value(serde_json::json!({"services": {
            "debug-arm": {"image": "app:1", "platform": "linux/arm64", "profiles": ["debug"]},
            "old": {"image": "app:0", "platform": "linux/386"},
            "web": {"image": "app:1"},
            "worker": {"image": "app:1", "platform": "linux/arm/v7"},
        }}))
        .expect("a model");
        let repository = Reference::parse("app").expect("a reference").repository;
        let of = |containers: &[Container], tag: &str| {
            requested_platform(&model, containers, &repository, Some(tag))
                .map(|platform| platform.to_string())
        };
        let running = |name: &str| Container::running(name, "app:1");
        let stopped = |name: &str| Container { state: State::Exited, ..running(name) };
        let (arm, arm_v7) = (Some("linux/arm64".to_owned()), Some("linux/arm/v7".to_owned()));
        assert_eq!(of(&[running("web")], "1"), None);
        assert_eq!(of(&[stopped("debug-arm"), running("web")], "1"), None);
        assert_eq!(of(&[stopped("web"), running("worker")], "1"), arm_v7);
        assert_eq!(of(&[stopped("worker")], "1"), arm_v7, "it may be started again");
        assert_eq!(of(&[], "1"), arm, "nothing tells");
        assert_eq!(of(&[running("web")], "0"), Some("linux/386".to_owned()), "another tag has another image");
        assert_eq!(of(&[running("web")], "2"), None, "no service uses that tag");
    }

    #[test]
    fn only_temporary_names_have_a_final_one() {
        assert_eq!(real_name("0123456789ab_shop-web-1"), Some("shop-web-1"));
        assert_eq!(real_name("0123456789ab_a_b"), Some("a_b"));
        for name in ["shop-web-1", "0123456789abc_web", "0123456789AB_web", "0123456789ab_", "shop_web_1"] {
            assert_eq!(real_name(name), None, "{name}");
        }
    }
}
