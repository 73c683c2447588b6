//! Polls the services whose image was just pushed (DECISIONS 4, push events).
//!
//! An event is a hint: it only makes a poll of those services come early, which asks the registry as every poll does.
//! The first event about an image is acted on at once; those of the next second together at its end. As a registry
//! may tell too early, more polls follow. Where a tag is pushed that may be newer than the one in use (`tags`), the list of
//! tags is read, too, before its hour is over.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_common::supervisor::TaskSet;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ports::{Registry, Urgency};
use crate::project::services::Services;

use crate::project::cycle::Cycle;
use crate::project::worker::{Command, Handle};

/// Events about one image that come within this time make one poll.
const DEBOUNCE: Duration = Duration::from_secs(1);

/// Waits before the polls that follow the first one. A distribution registry writes the manifest, tells of it, and
/// only then moves the tag: of 300 pushes to one that was asked at once, 43 still showed the old digest. Others
/// take longer, when their storage is a network away.
const AGAIN: [Duration; 4] =
    [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(25)];

/// An image as a registry names it: without its own address, which may be another one inside a network.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PublishedImage {
    /// Path of the repository.
    pub repository: String,
    /// The tag that was written.
    pub tag: String,
}

/// What a push is news of. Of newer tags it counts only in which repository, so that the names of tags fill no list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum News {
    /// Another digest under the tag that is configured.
    Tag(PublishedImage),
    /// A tag that may be newer than one of this repository.
    NewerTag { repository: String },
}

impl News {
    /// What a push means for a service.
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

    /// Whether a service has to be asked.
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

/// Where news of pushed images goes.
#[derive(Clone)]
pub struct RegistryEventSender {
    services: Arc<Services>,
    news: mpsc::UnboundedSender<News>,
}

impl RegistryEventSender {
    /// Tells of an image. One that no service uses is forgotten at once, so that strangers can fill no queue.
    pub fn tell(&self, image: &PublishedImage) {
        let news: HashSet<News> =
            self.services.workers().iter().filter_map(|worker| News::of(worker, image)).collect();
        for news in news {
            // An error means that the program is stopping.
            let _ = self.news.send(news);
        }
    }
}

/// The task that polls.
pub struct RegistryEvents {
    services: Arc<Services>,
    registry: Arc<dyn Registry>,
    news: mpsc::UnboundedReceiver<News>,
}

impl RegistryEvents {
    /// The task, and where it gets its news from.
    pub fn new(services: Arc<Services>, registry: Arc<dyn Registry>) -> (Self, RegistryEventSender) {
        let (sender, news) = mpsc::unbounded_channel();
        (Self { services: services.clone(), registry, news }, RegistryEventSender { services, news: sender })
    }

    /// Polls until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let polls = TaskSet::new();
        let waiting = Waiting::default();
        let mut followed: HashMap<News, Follow> = HashMap::new();
        loop {
            let next = followed.values().map(|follow| follow.due).min();
            tokio::select! {
                () = stop.cancelled() => break,
                Some(news) = self.news.recv() => followed.entry(news).or_default().told(Instant::now()),
                () = sleep_until(next), if next.is_some() => {
                    let now = Instant::now();
                    followed.retain(|news, follow| {
                        if follow.due > now {
                            return true;
                        }
                        if follow.polls == 0 {
                            let tag = if let News::Tag(image) = news { &image.tag } else { "" };
                            tracing::info!(
                                repository = news.repository(),
                                tag,
                                "pushed; checking the services that use it"
                            );
                        }
                        self.poll(news, &waiting, &polls, &stop);
                        follow.polled(now)
                    });
                }
            }
        }
        polls.finish(Duration::ZERO).await;
    }

    fn poll(&self, news: &News, waiting: &Waiting, polls: &TaskSet, stop: &CancellationToken) {
        let cycle = Cycle::new(self.registry.clone(), Urgency::Asked);
        for worker in self.services.workers().iter().filter(|worker| news.is_for(worker)) {
            if matches!(news, News::NewerTag { .. }) {
                // An error means that the service is no longer configured.
                let _ = worker.inbox.send(Command::TagPushed);
            }
            let name = worker.config.name.clone();
            if !waiting.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone()) {
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

/// Services for which a poll waits until their deployment is over: one is enough, however many events come.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<HashSet<String>>>);

/// The polls that events about one image cause.
struct Follow {
    /// Before this, further events wait.
    open: Instant,
    /// The next poll.
    due: Instant,
    /// Polls since the last event.
    polls: usize,
}

impl Default for Follow {
    fn default() -> Self {
        let now = Instant::now();
        Self { open: now, due: now, polls: 0 }
    }
}

impl Follow {
    fn told(&mut self, now: Instant) {
        (self.due, self.polls) = (self.open.max(now), 0);
    }

    /// Whether there is another poll to come.
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

/// A service that is being deployed does not check; it does when it is done.
async fn poll(worker: Handle, cycle: Arc<Cycle>, name: &str, waiting: &Waiting) {
    let is_there = worker.published.wait_for(|shown| !shown.status.deploying).await.is_ok();
    waiting.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    if !is_there {
        return;
    }
    let (done, ended) = oneshot::channel();
    if worker.inbox.send(Command::Check(cycle, done)).is_ok() {
        // The worker drops its end when the check is over.
        let _ = ended.await;
    }
}

async fn sleep_until(at: Option<Instant>) {
    tokio::time::sleep_until(at.unwrap_or_else(Instant::now)).await;
}
