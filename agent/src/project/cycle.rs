//! One request per unique image: services that ask in the same poll cycle share the answer (DECISIONS 4, 7).

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};

use crate::model::image::{Digest, Reference, Repository};
use crate::model::{RegistryError, SignatureError, SignatureVerdict};
use crate::ports::{Registry, Signatures, Urgency};

use super::observe::Check;
use crate::service::input::{CheckFault, Observation};

type Shareable<T> = Shared<BoxFuture<'static, T>>;
type Answer = Shareable<Result<Digest, RegistryError>>;
type Verdict = Shareable<Result<SignatureVerdict, SignatureError>>;
/// An image, and the files with the keys.
type Signed = (Repository, Digest, Vec<PathBuf>);

/// The questions and answers of one cycle.
pub struct Cycle {
    registry: Arc<dyn Registry>,
    urgency: Urgency,
    by_person: bool,
    answers: Mutex<HashMap<Reference, Answer>>,
    verdicts: Mutex<HashMap<Signed, Verdict>>,
}

impl Cycle {
    /// A cycle in which nothing was asked yet.
    pub fn new(registry: Arc<dyn Registry>, urgency: Urgency) -> Arc<Self> {
        Self::of(registry, urgency, false)
    }

    /// A cycle that a person asked for.
    pub fn by_person(registry: Arc<dyn Registry>) -> Arc<Self> {
        Self::of(registry, Urgency::Asked, true)
    }

    fn of(registry: Arc<dyn Registry>, urgency: Urgency, by_person: bool) -> Arc<Self> {
        let (answers, verdicts) = (Mutex::default(), Mutex::default());
        Arc::new(Self { registry, urgency, by_person, answers, verdicts })
    }

    /// Whether a person asked for it.
    pub fn is_by_person(&self) -> bool {
        self.by_person
    }

    /// Whether it is a poll cycle of its own: one by the clock, or one that a person asked for.
    pub fn is_new(&self) -> bool {
        self.by_person || self.urgency == Urgency::Routine
    }

    /// What the tag points at; the first to ask causes the request.
    pub async fn digest(&self, reference: &Reference) -> Result<Digest, RegistryError> {
        let answer = {
            let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            let ask = || {
                let (registry, reference) = (self.registry.clone(), reference.clone());
                let urgency = self.urgency;
                async move { registry.digest(&reference, urgency).await }.boxed().shared()
            };
            answers.entry(reference.clone()).or_insert_with(ask).clone()
        };
        answer.await
    }

    /// Whether one of the keys signed this digest; the first to ask causes the requests.
    pub async fn signature(
        &self,
        signatures: &Arc<dyn Signatures>,
        repository: &Repository,
        digest: &Digest,
        keys: &[PathBuf],
    ) -> Result<SignatureVerdict, SignatureError> {
        let signed = (repository.clone(), digest.clone(), keys.to_vec());
        let verdict = {
            let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
            let ask = || {
                let (signatures, (repository, digest, keys)) = (signatures.clone(), signed.clone());
                async move { signatures.verify(&repository, &digest, &keys).await }.boxed().shared()
            };
            verdicts.entry(signed.clone()).or_insert_with(ask).clone()
        };
        verdict.await
    }

    /// The questions of a check that are not answered yet, so that they last until it asks on.
    pub(super) fn pending(&self, seen: &Result<Observation, CheckFault>) -> Pending {
        let Ok(seen) = seen else { return Pending::default() };
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let own = seen.images.iter().filter_map(|view| answers.get(view.target()));
        Pending(own.filter(|answer| answer.peek().is_none()).cloned().collect())
    }

    /// Gives up the questions that nobody waits for any more. Nobody drives them on, and they would keep the registry's slot.
    pub(super) fn drop_abandoned(&self) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let abandoned: Vec<_> = answers.extract_if(|_, answer| is_abandoned(answer)).collect();
        // A question that is dropped may wake others, which ask here.
        drop(answers);
        drop(abandoned);
        let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        let abandoned: Vec<_> = verdicts.extract_if(|_, verdict| is_abandoned(verdict)).collect();
        drop(verdicts);
        drop(abandoned);
    }
}

/// Questions that are kept although nobody asks them at this moment.
#[derive(Default)]
pub(super) struct Pending(Vec<Answer>);

impl Drop for Check {
    fn drop(&mut self) {
        self.pending.0.clear();
        self.cycle.drop_abandoned();
    }
}

/// Whether a question is unanswered, and held by nothing but the cycle.
fn is_abandoned<T: Clone>(question: &Shareable<T>) -> bool {
    question.peek().is_none() && question.strong_count() == Some(1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use async_trait::async_trait;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::model::image::ImageLabels;

    /// Answers nothing, and has one slot.
    struct Silent(Arc<Semaphore>);

    #[async_trait]
    impl Registry for Silent {
        async fn digest(&self, _: &Reference, _: Urgency) -> Result<Digest, RegistryError> {
            let _slot = self.0.acquire().await;
            std::future::pending().await
        }
        async fn confirm(&self, _: &Reference) -> Result<Digest, RegistryError> {
            std::future::pending().await
        }
        async fn has(&self, _: &Repository, _: &Digest) -> Result<bool, RegistryError> {
            std::future::pending().await
        }
        async fn labels(&self, _: &Repository, _: &Digest) -> ImageLabels {
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_nobody_waits_for_any_more_gives_its_slot_back() {
        let slots = Arc::new(Semaphore::new(1));
        let cycle = Cycle::new(Arc::new(Silent(slots.clone())), Urgency::Routine);
        let reference = Reference::parse("localhost:5000/web:latest").unwrap();
        let ask = || tokio::time::timeout(Duration::from_secs(2), cycle.digest(&reference));
        assert!(ask().await.is_err());
        assert_eq!(slots.available_permits(), 0, "another service may still ask");
        let mut waiting = Box::pin(cycle.digest(&reference));
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut waiting).await.is_err());
        cycle.drop_abandoned();
        assert_eq!(slots.available_permits(), 0, "somebody waits for it");
        drop(waiting);
        cycle.drop_abandoned();
        assert_eq!(slots.available_permits(), 1);
    }
}
