//! Reads the engine's events and passes them on: a reader that only reads (DOMAIN findings 6, 7).
//!
//! Events are hints. After every gap each service looks for itself, so a lost event changes nothing.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use futures_util::StreamExt;
use jiff::Timestamp;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::model::{ContainerEvent, EventKind};
use crate::ports::Engine;
use crate::project::services::{EngineHealth, Services};
use crate::service::input::Input;

use crate::project::worker::Command;

/// Longest wait between two tries to connect.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// The same where the stream ends at once each time.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// The task that reads.
pub struct Events {
    /// Whom to listen to.
    pub engine: Arc<dyn Engine>,
    /// Whom to tell.
    pub services: Arc<Services>,
    /// A hung engine keeps its stream open and silent; only its health tells.
    pub health: watch::Receiver<EngineHealth>,
    /// Whom to tell that the stream broke off or is there again: the engine's health may have changed with it.
    pub check_now: Arc<Notify>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Engine's time of the last event, in nanoseconds since the epoch; 0 before the first.
    pub last_nano: i64,
}

/// What was already seen is read again after a break, so far back: it tells a stop that a person asked for from
/// one that the engine made when it went away.
const OVERLAP_NANO: i64 = 60_000_000_000;
/// A stream that ends sooner without an event was none: something between the agent and the engine may refuse it.
const LEAST_LIFE: Duration = Duration::from_secs(5);

/// What came of reading the event stream.
enum Read {
    /// The engine was not reached.
    Nothing,
    /// It ended at once, without an event.
    Refused,
    /// There was one.
    Stream,
}

impl Events {
    /// Reads until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut wait = FIRST_WAIT;
        let mut was_warned = false;
        loop {
            let longest = tokio::select! {
                () = stop.cancelled() => return,
                read = self.read() => match read {
                    Read::Nothing => MAX_WAIT,
                    Read::Refused => {
                        if !was_warned && wait >= MAX_WAIT {
                            was_warned = true;
                            tracing::warn!("the engine's event stream ends at once, again and again: does a proxy refuse /events?");
                        }
                        LONGEST_WAIT
                    }
                    Read::Stream => {
                        wait = FIRST_WAIT;
                        MAX_WAIT
                    }
                },
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => wait = (wait * 2).min(longest),
            }
        }
    }

    /// Reads until the stream ends or the engine stops answering.
    async fn read(&mut self) -> Read {
        // The engine's buffer may tell of stops that were asked for while nobody listened.
        let now = i64::try_from(self.clock.now().as_nanosecond()).unwrap_or(i64::MAX);
        // After the clock was set back the last event lies in the future.
        let since = (self.last_nano.min(now) - OVERLAP_NANO).max(0);
        let mut events = match self.engine.events(since).await {
            Ok(events) => events,
            Err(error) => {
                tracing::debug!(%error, "no event stream");
                return Read::Nothing;
            }
        };
        let (begun, mut told) = (Instant::now(), false);
        // It has just answered: what its health was before tells nothing about this stream.
        self.health.mark_unchanged();
        self.check_now.notify_one();
        let at = self.clock.now();
        self.tell_all(|| Command::Input(Box::new(Input::EngineBack { at })));
        self.tell_all(|| Command::Inspect);
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => {
                        told = true;
                        self.last_nano = event.time_nano;
                        self.pass_on(&event);
                    }
                    None => break,
                },
                changed = self.health.changed() => {
                    if changed.is_err() || self.health.borrow_and_update().error.is_some() {
                        break;
                    }
                }
            }
        }
        tracing::info!("the engine's event stream ended; every service looks for itself when it is back");
        self.check_now.notify_one();
        let at = self.clock.now();
        self.tell_all(|| Command::Input(Box::new(Input::EngineGap { at })));
        if told || begun.elapsed() >= LEAST_LIFE { Read::Stream } else { Read::Refused }
    }

    fn pass_on(&self, event: &ContainerEvent) {
        let at = Timestamp::from_nanosecond(i128::from(event.time_nano)).unwrap_or_default();
        for worker in self.services.workers().iter() {
            let config = &worker.config;
            let concerned = config.compose_project.as_ref().is_some_and(|project| *project == event.project)
                || config.container_name.as_ref().is_some_and(|name| *name == event.name);
            if concerned {
                let input = Input::Event { at, id: event.id.clone(), what: event.what.clone() };
                // A worker that is gone means that the program is stopping.
                let _ = worker.inbox.send(Command::Input(Box::new(input)));
            } else if matches!(event.what, EventKind::Start | EventKind::Destroy) {
                // What uses the network of a container of others is cut off by that.
                let service = worker.published.get().service;
                if service.network_owners().any(|owner| [&event.id, &event.name].contains(&&owner.given)) {
                    let _ = worker.inbox.send(Command::Inspect);
                }
            }
        }
    }

    fn tell_all(&self, command: impl Fn() -> Command) {
        for worker in self.services.workers().iter() {
            let _ = worker.inbox.send(command());
        }
    }
}
