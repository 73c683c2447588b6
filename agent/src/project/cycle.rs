//! One registry request per unique image, shared by all services of a poll cycle (DECISIONS 4, 7).

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;

use crate::model::image::{Digest, Reference, Repository};
use crate::model::{RegistryError, SignatureError, SignatureVerdict, Signers};
use crate::ports::{Registry, Signatures, Urgency};

use crate::service::input::CheckFault;
use crate::service::observation::Observation;

type Shareable<T> = Shared<BoxFuture<'static, T>>;
type Answer = Shareable<Result<Digest, RegistryError>>;
type Verdict = Shareable<Result<SignatureVerdict, SignatureError>>;
/// An image and the key files.
type Signed = (Repository, Digest, Signers);

/// The requests of one cycle and their results.
pub struct Cycle {
    registry: Arc<dyn Registry>,
    urgency: Urgency,
    manual: bool,
    answers: Mutex<HashMap<Reference, Answer>>,
    verdicts: Mutex<HashMap<Signed, Verdict>>,
}

impl Cycle {
    /// Creates a cycle.
    pub fn new(registry: Arc<dyn Registry>, urgency: Urgency) -> Arc<Self> {
        Self::of(registry, urgency, false)
    }

    /// Creates a cycle that was requested manually.
    pub fn manual(registry: Arc<dyn Registry>) -> Arc<Self> {
        Self::of(registry, Urgency::Manual, true)
    }

    fn of(registry: Arc<dyn Registry>, urgency: Urgency, manual: bool) -> Arc<Self> {
        let (answers, verdicts) = (Mutex::default(), Mutex::default());
        Arc::new(Self { registry, urgency, manual, answers, verdicts })
    }

    /// Reports whether it was requested manually.
    pub fn is_manual(&self) -> bool {
        self.manual
    }

    /// Reports whether it is a poll cycle: a scheduled one, or one requested manually.
    pub fn is_new(&self) -> bool {
        self.manual || self.urgency == Urgency::Routine
    }

    /// Returns the digest that the tag points to; the first caller triggers the request.
    pub async fn digest(&self, reference: &Reference) -> Result<Digest, RegistryError> {
        let answer = {
            let mut answers = self.answers.lock();
            let ask = || {
                let (registry, reference) = (self.registry.clone(), reference.clone());
                let urgency = self.urgency;
                async move { registry.digest(&reference, urgency).await }.boxed().shared()
            };
            answers.entry(reference.clone()).or_insert_with(ask).clone()
        };
        answer.await
    }

    /// Verifies the signatures of a digest; the first caller triggers the requests.
    pub async fn signature(
        &self,
        signatures: &Arc<dyn Signatures>,
        repository: &Repository,
        digest: &Digest,
        signers: &Signers,
    ) -> Result<SignatureVerdict, SignatureError> {
        let signed = (repository.clone(), digest.clone(), signers.clone());
        let verdict = {
            let mut verdicts = self.verdicts.lock();
            let ask = || {
                let (signatures, (repository, digest, signers)) = (signatures.clone(), signed.clone());
                async move { signatures.verify(&repository, &digest, &signers).await }.boxed().shared()
            };
            verdicts.entry(signed.clone()).or_insert_with(ask).clone()
        };
        verdict.await
    }

    /// Returns the unfinished requests of a check, to keep them alive until the check continues.
    pub(super) fn pending(&self, seen: &Result<Observation, CheckFault>) -> Pending {
        let Ok(seen) = seen else { return Pending::default() };
        let answers = self.answers.lock();
        let own = seen.images.iter().filter_map(|view| answers.get(view.target()));
        Pending(own.filter(|answer| answer.peek().is_none()).cloned().collect())
    }

    /// Drops requests that no service awaits any more. They are no longer polled, but would keep the registry's slot.
    pub(super) fn drop_abandoned(&self) {
        let mut answers = self.answers.lock();
        let abandoned: Vec<_> = answers.extract_if(|_, answer| is_abandoned(answer)).collect();
        // Dropping a request may wake other tasks that take this lock.
        drop(answers);
        drop(abandoned);
        let mut verdicts = self.verdicts.lock();
        let abandoned: Vec<_> = verdicts.extract_if(|_, verdict| is_abandoned(verdict)).collect();
        drop(verdicts);
        drop(abandoned);
    }
}

/// Requests that are kept alive although they are not awaited at the moment.
#[derive(Default)]
pub(super) struct Pending(Vec<Answer>);

impl Pending {
    /// Drops the requests.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Reports whether a request is unfinished and held only by the cycle.
fn is_abandoned<T: Clone>(request: &Shareable<T>) -> bool {
    request.peek().is_none() && request.strong_count() == Some(1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use async_trait::async_trait;
    use tokio::sync::Semaphore;

    use super::*;

    /// A registry with one slot that never responds.
    struct Silent(Arc<Semaphore>);

    #[async_trait]
    impl Registry for Silent {
        async fn digest(&self, _: &Reference, _: Urgency) -> Result<Digest, RegistryError> {
            let _slot = self.0.acquire().await;
            std::future::pending().await
        }
        async fn digest_from_content(&self, _: &Reference) -> Result<Digest, RegistryError> {
            std::future::pending().await
        }
        async fn has(&self, _: &Repository, _: &Digest) -> Result<bool, RegistryError> {
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_request_releases_its_slot() {
        let slots = Arc::new(Semaphore::new(1));
        let cycle = Cycle::new(Arc::new(Silent(slots.clone())), Urgency::Routine);
        let reference = Reference::parse("localhost:5000/web:latest").unwrap();
        let ask = || tokio::time::timeout(Duration::from_secs(2), cycle.digest(&reference));
        assert!(ask().await.is_err());
        assert_eq!(slots.available_permits(), 0, "another service may still ask");
        let mut waiting = Box::pin(cycle.digest(&reference));
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut waiting).await.is_err());
        cycle.drop_abandoned();
        assert_eq!(slots.available_permits(), 0, "it is still awaited");
        drop(waiting);
        cycle.drop_abandoned();
        assert_eq!(slots.available_permits(), 1);
    }
}
