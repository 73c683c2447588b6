//! One request per unique image: services that ask in the same poll cycle share the answer (DECISIONS 4).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};

use crate::model::RegistryError;
use crate::model::image::{Digest, Reference};
use crate::ports::{Registry, Urgency};

type Answer = Shared<BoxFuture<'static, Result<Digest, RegistryError>>>;

/// The questions and answers of one cycle.
pub struct Cycle {
    registry: Arc<dyn Registry>,
    urgency: Urgency,
    by_person: bool,
    answers: Mutex<HashMap<Reference, Answer>>,
}

impl Cycle {
    /// A cycle in which nothing was asked yet.
    pub fn new(registry: Arc<dyn Registry>, urgency: Urgency) -> Arc<Self> {
        Arc::new(Self { registry, urgency, by_person: false, answers: Mutex::default() })
    }

    /// A cycle that a person asked for.
    pub fn by_person(registry: Arc<dyn Registry>) -> Arc<Self> {
        Arc::new(Self { registry, urgency: Urgency::Asked, by_person: true, answers: Mutex::default() })
    }

    /// Whether a person asked for it.
    pub fn is_by_person(&self) -> bool {
        self.by_person
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
}
