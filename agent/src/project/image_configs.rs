//! Compares the configuration of a new image, in its registry, with that of the running one, or while none runs, with that of
//! the one that would be started (DECISIONS 15).

use crate::model::Platform;
use crate::model::image::{Digest, Repository};
use crate::model::image_config::{ConfigDifference, ImageConfig, Tagged, differences};
use crate::ports::{Image, Registry};
use crate::service::gates::candidate::ConfigsCompared;
use crate::service::observation::{ImageView, LocalImage};

/// Compares it with every running one before anything is pulled. `local`: the engine's images of `view.current()`, in that
/// order; one that the engine no longer has is read from the registry. An error says what is not known.
pub(super) async fn compare(
    registry: &dyn Registry,
    view: &ImageView,
    local: &[Option<Image>],
) -> ConfigsCompared {
    let Some(digest) = &view.remote else { return Ok(Vec::new()) };
    let mut found: Vec<ConfigDifference> = Vec::new();
    for (n, old) in view.current().iter().enumerate() {
        let local = local.get(n).and_then(Option::as_ref).filter(|image| image.is_complete);
        let running = match local {
            Some(image) => image.config.clone(),
            None => of_running(registry, &view.reference.repository, old).await?,
        };
        let platform = local.and_then(|image| image.platform.as_ref());
        let new = read(registry, &view.target().repository, digest, platform).await;
        let new = new.map_err(|why| format!("the configuration of the new image is not known: {why}"))?;
        let all = differences(
            Tagged { config: &running, tag: view.from.tag.as_deref() },
            Tagged { config: &new, tag: view.target().tag.as_deref() },
        );
        for one in all {
            if !found.contains(&one) {
                found.push(one);
            }
        }
    }
    Ok(found)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use async_trait::async_trait;

    use super::*;
    use crate::model::RegistryError;
    use crate::model::image::{ImageId, Reference};
    use crate::ports::Urgency;

    /// The users of the images in a registry, by digest and platform; `None` for one that can't be read.
    struct Users(BTreeMap<(Digest, Option<Platform>), Option<&'static str>>);

    #[async_trait]
    impl Registry for Users {
        async fn digest(&self, _: &Reference, _: Urgency) -> Result<Digest, RegistryError> {
            unreachable!("the tag was asked for before")
        }

        async fn digest_from_content(&self, _: &Reference) -> Result<Digest, RegistryError> {
            unreachable!("the tag was asked for before")
        }

        async fn has(&self, _: &Repository, _: &Digest) -> Result<bool, RegistryError> {
            unreachable!("nothing is looked up")
        }

        async fn config(
            &self,
            _: &Repository,
            digest: &Digest,
            platform: Option<&Platform>,
        ) -> Result<Option<ImageConfig>, RegistryError> {
            match self.0.get(&(digest.clone(), platform.cloned())) {
                Some(user) => Ok(user.map(with_user)),
                None => Err(RegistryError("the registry answers 503".to_owned())),
            }
        }
    }

    fn with_user(user: &str) -> ImageConfig {
        ImageConfig { user: user.to_owned(), ..ImageConfig::default() }
    }

    #[allow(clippy::unnecessary_wraps)] // as the engine answers
    fn local(user: &str, platform: Option<&str>) -> Option<Image> {
        Some(Image {
            id: ImageId("sha256:local".into()),
            repo_digests: Vec::new(),
            size: 1,
            config: with_user(user),
            platform: platform.and_then(Platform::parse),
            is_complete: true,
        })
    }

    fn view(running: &[&[Digest]]) -> ImageView {
        let local = |digests: &&[Digest]| LocalImage {
            id: ImageId("sha256:local".into()),
            digests: digests.to_vec(),
            size: 1,
        };
        ImageView {
            remote: Some(Digest::of(b"new")),
            running: running.iter().map(local).collect(),
            ..ImageView::new("web".into(), Reference::parse("localhost:5000/web:1").unwrap())
        }
    }

    fn told(compared: ConfigsCompared) -> Result<Vec<String>, String> {
        compared.map(|all| all.into_iter().map(|one| format!("{}, {}", one.after, one.before)).collect())
    }

    #[tokio::test]
    async fn the_image_for_the_platform_that_runs_is_compared_with_every_running_image() {
        let arm = Platform::parse("linux/arm64");
        let new = Digest::of(b"new");
        let registry = Users([((new.clone(), arm), Some("999")), ((new, None), Some("1000"))].into());
        let (first, second) = (local("999", Some("linux/arm64")), local("5", Some("linux/arm64")));
        let twice = view(&[&[], &[]]);
        assert_eq!(
            told(compare(&registry, &view(&[&[]]), std::slice::from_ref(&first)).await),
            Ok(Vec::new())
        );
        let two = [first, second.clone()];
        assert_eq!(
            told(compare(&registry, &twice, &two).await),
            Ok(vec!["runs as user 999, as 5".to_owned()])
        );
        let same = [second.clone(), second];
        assert_eq!(
            told(compare(&registry, &twice, &same).await).map(|all| all.len()),
            Ok(1),
            "each difference once"
        );
        let unknown = [local("5", None)];
        let compared = compare(&registry, &view(&[&[]]), &unknown).await;
        assert_eq!(told(compared), Ok(vec!["runs as user 1000, as 5".to_owned()]));
    }

    #[tokio::test]
    async fn a_running_image_that_the_engine_no_longer_has_is_read_from_the_registry() {
        let (old, new) = (Digest::of(b"old"), Digest::of(b"new"));
        let registry = Users([((new.clone(), None), Some("999")), ((old.clone(), None), Some(""))].into());
        let compared = compare(&registry, &view(&[&[old]]), &[None]).await;
        assert_eq!(told(compared), Ok(vec!["runs as user 999, as root".to_owned()]));
        let incomplete = local("999", None).map(|image| Image { is_complete: false, ..image });
        let gone = told(compare(&registry, &view(&[&[]]), &[incomplete]).await);
        assert!(gone.as_ref().is_err_and(|why| why.contains("the running image is not known")), "{gone:?}");
    }

    #[tokio::test]
    async fn while_nothing_runs_the_image_that_would_be_started_is_compared() {
        let (old, new) = (Digest::of(b"old"), Digest::of(b"new"));
        let registry = Users([((new, None), Some("999")), ((old.clone(), None), Some("5"))].into());
        let tagged = |digests| ImageView { tagged: view(&[digests]).running.pop(), ..view(&[]) };
        for (seen, local) in [(tagged(&[]), local("5", None)), (tagged(std::slice::from_ref(&old)), None)] {
            let compared = compare(&registry, &seen, &[local]).await;
            assert_eq!(told(compared), Ok(vec!["runs as user 999, as 5".to_owned()]));
        }
        assert_eq!(told(compare(&registry, &view(&[]), &[]).await), Ok(Vec::new()), "a first start");
    }

    #[tokio::test]
    async fn what_is_not_known_is_an_error_and_no_difference() {
        let new = Digest::of(b"new");
        for (registry, part) in [
            (Users([((new, None), None)].into()), "the registry has none that can be read"),
            (Users(BTreeMap::new()), "the registry answers 503"),
        ] {
            let compared = told(compare(&registry, &view(&[&[]]), &[local("5", None)]).await);
            assert!(
                compared.as_ref().is_err_and(|why| why.contains("new image") && why.contains(part)),
                "{compared:?}"
            );
        }
    }
}
