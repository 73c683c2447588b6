//! Selects the newer tag that a check looks up in the registry.

use std::time::Duration;

use futures_util::future::join_all;

use super::cycle::Cycle;
use super::observe::{Check, within};
use crate::model::image::Reference;
use crate::ports::Registry;
use crate::service::observation::Unanswered;

impl Check {
    /// Returns the newest tag that is newer than the one in the env file and has not failed, and that the registry has. `None`
    /// if there is none: the current tag is checked then, because a new digest under it is an update too. After a failed
    /// rollback, returns the newest failed tag instead, because the current one could not be restored.
    pub(super) async fn newer_than(&self, tag: &str, patience: Option<Duration>) -> Option<&str> {
        let variable = self.config.tag_variable()?;
        let newer = self.asked.newer.tags.iter().map(String::as_str);
        let newer: Vec<&str> =
            newer.filter(|newer| variable.pattern.newest(tag, [*newer]).is_some()).collect();
        for tag in &newer {
            if self.has_failed(tag, patience).await {
                continue;
            }
            let of_tag = self.config.images_of_variable().map(|image| image.reference.with_tag(tag));
            let of_tag: Vec<Reference> = of_tag.collect();
            if !is_gone(&self.cycle, self.world.registry.as_ref(), &of_tag, patience).await {
                return Some(tag);
            }
        }
        newer.first().copied().filter(|_| self.asked.newer.is_stuck)
    }

    /// Reports whether a tag still points to a digest that failed; an unanswered request counts as unchanged. One image is
    /// enough, because all images of the variable are updated together.
    async fn has_failed(&self, tag: &str, patience: Option<Duration>) -> bool {
        for image in self.config.images_of_variable() {
            let failed = self.asked.newer.failed.get(&image.configured).and_then(|tags| tags.get(tag));
            let Some(failed) = failed else { continue };
            let reference = image.reference.with_tag(tag);
            let answer = within(patience, self.cycle.digest(&reference)).await;
            let is_other = answer.is_ok_and(|digest| digest != *failed);
            if !is_other {
                return true;
            }
        }
        false
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
    use std::sync::Arc;

    use async_trait::async_trait;

    use super::*;
    use crate::model::RegistryError;
    use crate::model::image::{Digest, Repository};
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
}
