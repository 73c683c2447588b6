//! Selects the newer tag that a check looks up in the registry.

use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;

use super::cycle::Cycle;
use super::maintain;
use super::observe::{Check, within};
use crate::config::ServiceConfig;
use crate::model::image::Reference;
use crate::ports::Registry;
use crate::service::observation::Unanswered;
use crate::service::upkeep::newer_tags::NewerTags;

impl Check {
    /// Returns the newest tag that is newer than the one in the env file and has not failed, and that the registry has. `None`
    /// if there is none: the current tag is checked then, because a new digest under it is an update too. After a failed
    /// rollback, returns the newest failed tag instead, because the current one could not be restored.
    pub(super) async fn newer_than(
        &self,
        tag: &str,
        patience: Option<Duration>,
    ) -> Result<Option<&str>, Unanswered> {
        let selection = Selection {
            config: &self.config,
            asked: &self.asked.newer,
            cycle: &self.cycle,
            registry: self.world.registry.as_ref(),
            patience,
        };
        selection.newer_than(tag).await
    }
}

/// What a newer tag is selected by.
struct Selection<'a> {
    config: &'a ServiceConfig,
    asked: &'a NewerTags,
    cycle: &'a Cycle,
    registry: &'a dyn Registry,
    patience: Option<Duration>,
}

impl<'a> Selection<'a> {
    async fn newer_than(&self, tag: &str) -> Result<Option<&'a str>, Unanswered> {
        let Some(variable) = self.config.tag_variable() else { return Ok(None) };
        let newer = self.asked.tags.iter().map(String::as_str);
        let newer: Vec<&'a str> =
            newer.filter(|newer| variable.pattern.newest(tag, [*newer]).is_some()).collect();
        for (at, newer) in newer.iter().copied().enumerate() {
            if self.has_failed(newer).await {
                continue;
            }
            let of_tag: Vec<Reference> = self.references(newer).collect();
            if is_gone(self.cycle, self.registry, &of_tag, self.patience).await {
                continue;
            }
            // The newest one was compared with the tag in use when it was found, those below it were not.
            let is_older = if at == 0 { Ok(false) } else { self.is_older(newer, tag).await };
            match is_older {
                Ok(false) => return Ok(Some(newer)),
                Ok(true) => {}
                Err(Unanswered::Pending) => return Err(Unanswered::Pending),
                // It may be from years ago.
                Err(Unanswered::Failed(_)) => break,
            }
        }
        Ok(newer.first().copied().filter(|_| self.asked.is_stuck))
    }

    /// The images of the variable with this tag.
    fn references(&self, tag: &str) -> impl Iterator<Item = Reference> {
        self.config.images_of_variable().map(move |image| image.reference.with_tag(tag))
    }

    /// Reports whether a tag still points to a digest that failed; an unanswered request counts as unchanged. One image is
    /// enough, because all images of the variable are updated together.
    async fn has_failed(&self, tag: &str) -> bool {
        for image in self.config.images_of_variable() {
            let failed = self.asked.failed.get(&image.configured).and_then(|tags| tags.get(tag));
            let Some(failed) = failed else { continue };
            let reference = image.reference.with_tag(tag);
            let answer = within(self.patience, self.cycle.digest(&reference)).await;
            let is_other = answer.is_ok_and(|digest| digest != *failed);
            if !is_other {
                return true;
            }
        }
        false
    }

    /// Reports whether an image of a tag was created well before that of the tag in use. Images that do not say when they were
    /// created are not.
    async fn is_older(&self, tag: &str, in_use: &str) -> Result<bool, Unanswered> {
        let references: Vec<(Reference, Reference)> =
            self.references(tag).zip(self.references(in_use)).collect();
        for (of_tag, in_use) in references {
            let Some(in_use) = self.created(&in_use).await? else { continue };
            let created = self.created(&of_tag).await?;
            if created.is_some_and(|created| maintain::is_older(created, in_use)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// When the image of a tag was created; `None` if it does not say, or the registry no longer has the tag.
    async fn created(&self, reference: &Reference) -> Result<Option<Timestamp>, Unanswered> {
        let digest = match within(self.patience, self.cycle.digest(reference)).await {
            Err(Unanswered::Failed(_)) if self.registry.is_gone(reference) => return Ok(None),
            digest => digest?,
        };
        within(self.patience, self.registry.created(&reference.repository.pinned(&digest))).await
    }
}

/// Reports whether the registry has listed a tag and says that there is none. One image is enough, because all images of the
/// variable are updated together.
async fn is_gone(
    cycle: &Cycle,
    registry: &dyn Registry,
    of_tag: &[Reference],
    patience: Option<Duration>,
) -> bool {
    let asked = of_tag.iter().map(|reference| async move {
        let answer = within(patience, cycle.digest(reference)).await;
        matches!(answer, Err(Unanswered::Failed(_))) && registry.is_gone(reference)
    });
    join_all(asked).await.contains(&true)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use async_trait::async_trait;

    use super::*;
    use crate::config::UpdateConfig;
    use crate::model::RegistryError;
    use crate::model::image::{Digest, Repository};
    use crate::model::tags::TagPattern;
    use crate::ports::Urgency;

    /// A registry that has tag 1, has lost the manifest of tag 2, and fails for the others.
    struct Lossy;

    #[async_trait]
    impl Registry for Lossy {
        async fn digest(&self, reference: &Reference, _: Urgency) -> Result<Digest, RegistryError> {
            match reference.tag.as_deref() {
                Some("1") => Ok(Digest::of(b"one")),
                _ => Err(RegistryError("it has no answer".into())),
            }
        }

        async fn digest_from_content(&self, _: &Reference) -> Result<Digest, RegistryError> {
            unreachable!("only tags are asked for")
        }

        async fn has(&self, _: &Repository, _: &Digest) -> Result<bool, RegistryError> {
            unreachable!("only tags are asked for")
        }

        fn is_gone(&self, reference: &Reference) -> bool {
            reference.tag.as_deref() == Some("2")
        }
    }

    #[tokio::test]
    async fn a_listed_tag_that_the_registry_does_not_have_is_passed_over() {
        let cycle = Cycle::new(Arc::new(Lossy), Urgency::Routine);
        let reference = |tag: &&str| Reference::parse("localhost:5000/web").unwrap().with_tag(tag);
        for (tags, gone) in [
            (vec!["1"], false),
            (vec!["2"], true),
            (vec!["1", "2"], true),
            (vec!["1", "3"], false),
            (vec![], false),
        ] {
            for patience in [None, Some(Duration::from_secs(2))] {
                let of_tag: Vec<Reference> = tags.iter().map(reference).collect();
                assert_eq!(is_gone(&cycle, &Lossy, &of_tag, patience).await, gone, "{tags:?}");
            }
        }
    }

    /// A registry that has all tags, and knows when the images of some were created, in days; of others, it does not answer that.
    struct Dated(BTreeMap<&'static str, Option<i64>>);

    #[async_trait]
    impl Registry for Dated {
        async fn digest(&self, reference: &Reference, _: Urgency) -> Result<Digest, RegistryError> {
            Ok(Digest::of(reference.tag.as_deref().expect("a tag").as_bytes()))
        }

        async fn digest_from_content(&self, _: &Reference) -> Result<Digest, RegistryError> {
            unreachable!("only tags are asked for")
        }

        async fn has(&self, _: &Repository, _: &Digest) -> Result<bool, RegistryError> {
            unreachable!("only tags are asked for")
        }

        async fn created(&self, reference: &Reference) -> Result<Option<Timestamp>, RegistryError> {
            let is_of = |tag: &str| reference.digest == Some(Digest::of(tag.as_bytes()));
            match self.0.iter().find(|(tag, _)| is_of(tag)) {
                None => Ok(None),
                Some((_, None)) => Err(RegistryError("it answers 500".into())),
                Some((_, Some(days))) => Ok(Some(Timestamp::from_second(days * 86_400).expect("a time"))),
            }
        }
    }

    #[tokio::test]
    async fn below_a_tag_that_is_passed_over_none_is_selected_whose_image_is_older_than_the_one_in_use() {
        let update = UpdateConfig {
            tags: Some(TagPattern::parse(">=1").unwrap()),
            tag_variable: Some("WEB_TAG".into()),
            ..UpdateConfig::default()
        };
        let config = ServiceConfig {
            update: Some(Arc::new(update)),
            env_file: Some("/srv/web/.env".into()),
            ..crate::service::tests::config()
        };
        let image = config.images[0].configured.clone();
        let in_use = ("3.5.2", Some(1000));
        for (failed, created, expected) in [
            ("4.0.0", vec![in_use, ("3.9.9", Some(10)), ("3.5.3", Some(1040))], Some("3.5.3")),
            ("4.0.0", vec![in_use, ("3.9.9", Some(10)), ("3.5.3", Some(11))], None),
            // Rebuilt in one run.
            ("4.0.0", vec![in_use, ("3.9.9", Some(980))], Some("3.9.9")),
            // An unknown time proves nothing.
            ("4.0.0", vec![in_use], Some("3.9.9")),
            ("4.0.0", vec![("3.9.9", Some(10))], Some("3.9.9")),
            ("4.0.0", vec![in_use, ("3.9.9", None), ("3.5.3", Some(1040))], None),
            // It was compared when it was found.
            ("3.9.9", vec![in_use, ("4.0.0", Some(10))], Some("4.0.0")),
        ] {
            let tags = ["4.0.0", "3.9.9", "3.5.3"].map(str::to_owned).into();
            let of_image = BTreeMap::from([(failed.to_owned(), Digest::of(failed.as_bytes()))]);
            let failed = BTreeMap::from([(image.clone(), of_image)]);
            let asked = NewerTags { tags, failed, is_stuck: false };
            let registry = Arc::new(Dated(created.iter().copied().collect()));
            let cycle = Cycle::new(registry.clone(), Urgency::Routine);
            let selection = Selection {
                config: &config,
                asked: &asked,
                cycle: &cycle,
                registry: &*registry,
                patience: None,
            };
            assert_eq!(selection.newer_than("3.5.2").await, Ok(expected), "{created:?}");
        }
    }
}
