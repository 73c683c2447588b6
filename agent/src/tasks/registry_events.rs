//! Polls the services whose image was just pushed (DECISIONS 4, push events).
//!
//! An event is only a hint: it triggers an early poll of those services, which queries the registry like every other poll.
//! The first event about an image triggers a poll at once; events within the next second are combined into one poll. A
//! registry may send its notification too early, so more polls follow. If the pushed tag may be newer than the current one
//! (`tags`), the tag list is read again too, even if it is less than an hour old.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::supervisor::TaskSet;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ports::{Registry, Urgency};
use crate::project::services::Services;

use crate::project::cycle::Cycle;
use crate::project::handle::{Command, Handle};

/// Events about one image within this time are combined into one poll.
const DEBOUNCE: Duration = Duration::from_secs(1);

/// Delays before the follow-up polls. A distribution registry writes the manifest, sends the notification, and only then
/// moves the tag: of 300 pushes with an immediate poll, 43 still returned the old digest. Registries with remote storage
/// take longer.
const AGAIN: [Duration; 4] =
    [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(25)];

/// An image as named in a registry notification: without the registry's host, which may differ inside a network.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PublishedImage {
    /// Path of the repository.
    pub repository: String,
    /// The pushed tag.
    pub tag: String,
}

/// What a push means for the services. For newer tags only the repository is stored, so that many tags can't fill a queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Hint {
    /// A new digest for a configured tag.
    Tag(PublishedImage),
    /// A tag that may be newer than a configured one of this repository.
    NewerTag { repository: String },
}

impl Hint {
    /// Returns what a push means for a service, if anything.
    fn of(worker: &Handle, image: &PublishedImage) -> Option<Self> {
        let own = worker.config.images.iter().map(|configured| &configured.reference);
        let mut own = own.filter(|own| !own.is_pinned() && own.repository.path == image.repository);
        let pattern = worker.config.update.as_ref().and_then(|update| update.tags.as_ref());
        own.find_map(|own| {
            let tag = own.tag.as_deref().unwrap_or("latest");
            if tag == image.tag {
                return Some(Self::Tag(image.clone()));
            }
            pattern?.newest(tag, [image.tag.as_str()])?;
            Some(Self::NewerTag { repository: image.repository.clone() })
        })
    }

    fn repository(&self) -> &str {
        match self {
            Self::Tag(PublishedImage { repository, .. }) | Self::NewerTag { repository } => repository,
        }
    }

    /// Reports whether a service has to be polled.
    fn is_for(&self, worker: &Handle) -> bool {
        match self {
            Self::Tag(image) => Self::of(worker, image).as_ref() == Some(self),
            Self::NewerTag { repository } => {
                let has_pattern = worker.config.update.as_ref().is_some_and(|update| update.tags.is_some());
                let mut own = worker.config.images.iter();
                has_pattern && own.any(|own| own.reference.repository.path == *repository)
            }
        }
    }
}

/// Sends notifications of pushed images to the [`RegistryEvents`] task.
#[derive(Clone)]
pub struct RegistryEventSender {
    services: Arc<Services>,
    hints: mpsc::UnboundedSender<Hint>,
}

impl RegistryEventSender {
    /// Notifies the task of a pushed image. Images that no service uses are dropped, so that unauthenticated clients can't
    /// fill the queue.
    pub fn send(&self, image: &PublishedImage) {
        let hints: HashSet<Hint> =
            self.services.workers().iter().filter_map(|worker| Hint::of(worker, image)).collect();
        for hint in hints {
            // An error means that the agent is stopping.
            let _ = self.hints.send(hint);
        }
    }
}

/// The task that polls after pushes.
pub struct RegistryEvents {
    services: Arc<Services>,
    registry: Arc<dyn Registry>,
    hints: mpsc::UnboundedReceiver<Hint>,
}

impl RegistryEvents {
    /// Creates the task and the sender for its notifications.
    pub fn new(services: Arc<Services>, registry: Arc<dyn Registry>) -> (Self, RegistryEventSender) {
        let (sender, hints) = mpsc::unbounded_channel();
        (
            Self { services: services.clone(), registry, hints },
            RegistryEventSender { services, hints: sender },
        )
    }

    /// Polls until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let polls = TaskSet::new();
        let waiting = Waiting::default();
        let mut followed: HashMap<Hint, FollowUp> = HashMap::new();
        loop {
            let next = followed.values().map(|follow| follow.due).min();
            tokio::select! {
                () = stop.cancelled() => break,
                Some(hint) = self.hints.recv() => followed.entry(hint).or_default().received(Instant::now()),
                () = sleep_until(next), if next.is_some() => {
                    let now = Instant::now();
                    followed.retain(|hint, follow| {
                        if follow.due > now {
                            return true;
                        }
                        if follow.polls == 0 {
                            let tag = if let Hint::Tag(image) = hint { &image.tag } else { "" };
                            tracing::info!(
                                repository = hint.repository(),
                                tag,
                                "image pushed; checking the services that use it"
                            );
                        }
                        self.poll(hint, &waiting, &polls, &stop);
                        follow.polled(now)
                    });
                }
            }
        }
        polls.finish(Duration::ZERO).await;
    }

    fn poll(&self, hint: &Hint, waiting: &Waiting, polls: &TaskSet, stop: &CancellationToken) {
        let cycle = Cycle::new(self.registry.clone(), Urgency::Manual);
        for worker in self.services.workers().iter().filter(|worker| hint.is_for(worker)) {
            if matches!(hint, Hint::NewerTag { .. }) {
                // An error means that the service is no longer configured.
                let _ = worker.inbox.send(Command::TagPushed);
            }
            let name = worker.config.name.clone();
            if !waiting.0.lock().insert(name.clone()) {
                continue;
            }
            let (worker, cycle) = (worker.clone(), cycle.clone());
            let (stop, waiting) = (stop.clone(), waiting.clone());
            polls.spawn("poll after a push", async move {
                stop.run_until_cancelled(poll(worker, cycle, &name, &waiting)).await;
            });
        }
    }
}

/// Services with a poll that waits for the end of their deployment. One poll per service is enough.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<HashSet<String>>>);

/// The schedule of polls for one hint.
struct FollowUp {
    /// Further events are deferred until this time.
    open: Instant,
    /// Time of the next poll.
    due: Instant,
    /// Number of polls since the last event.
    polls: usize,
}

impl Default for FollowUp {
    fn default() -> Self {
        let now = Instant::now();
        Self { open: now, due: now, polls: 0 }
    }
}

impl FollowUp {
    fn received(&mut self, now: Instant) {
        (self.due, self.polls) = (self.open.max(now), 0);
    }

    /// Schedules the next poll. Reports whether there is one.
    fn polled(&mut self, now: Instant) -> bool {
        if self.polls == 0 {
            self.open = now + DEBOUNCE;
        }
        let wait = AGAIN.get(self.polls);
        self.due = now + wait.copied().unwrap_or_default();
        self.polls += 1;
        wait.is_some()
    }
}

/// Polls a service. During a deployment a service makes no checks, so this waits for the end of the deployment.
async fn poll(worker: Handle, cycle: Arc<Cycle>, name: &str, waiting: &Waiting) {
    let is_idle = worker.published.wait_for(|service| !service.is_deploying()).await.is_ok();
    waiting.0.lock().remove(name);
    if !is_idle {
        return;
    }
    let (done, ended) = oneshot::channel();
    if worker.inbox.send(Command::Check(cycle, done)).is_ok() {
        // The worker drops the sender when the check is over.
        let _ = ended.await;
    }
}

async fn sleep_until(at: Option<Instant>) {
    tokio::time::sleep_until(at.unwrap_or_else(Instant::now)).await;
}
