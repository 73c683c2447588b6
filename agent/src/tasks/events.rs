//! Reads the engine's events and forwards them to the services (DOMAIN findings 6, 7).
//!
//! Events are hints. After every gap each service inspects its containers, so lost events do no harm.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::backoff;
use evenkeel_common::clock::Clock;
use futures_util::StreamExt;
use jiff::Timestamp;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::model::{ContainerEvent, EventKind};
use crate::ports::Engine;
use crate::project::services::{EngineHealth, Workers};
use crate::service::input::Input;

use crate::project::handle::Command;

/// Maximum delay between two connection attempts.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// The same while the stream keeps ending immediately.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// The task that reads the events.
pub struct Events {
    /// Source of the events.
    pub engine: Arc<dyn Engine>,
    /// Receivers of the events: the configured services, and those that finish a deployment.
    pub listeners: watch::Receiver<Workers>,
    /// Engine health. A hung engine keeps its event stream open, so only the health check detects it.
    pub health: watch::Receiver<EngineHealth>,
    /// Requests a health check when the stream ends or resumes, and when a container is told to stop, because the engine's
    /// health may have changed.
    pub check_now: Arc<Notify>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Engine time of the last event, in nanoseconds since the epoch; 0 before the first.
    pub last_nano: i64,
    /// When the last stream ended.
    pub ended_at: Option<Timestamp>,
    /// Since when the engine had been running, as it said when the last stream began.
    pub ran_since: Option<Timestamp>,
}

/// How far back events are read again after a gap. This distinguishes stops by an operator from stops caused by the
/// engine's shutdown.
const OVERLAP_NANO: i64 = 60_000_000_000;
/// How far back events are read at most. Podman's are in the machine's journal, which may go back for years. What ended
/// earlier is left alone, since nothing tells who ended it.
const FARTHEST_NANO: i64 = 24 * 3_600 * 1_000_000_000;
/// How long the engine may take to send the events that it remembers.
const PAST: Duration = Duration::from_secs(5);
/// A stream that ends sooner and without an event counts as refused: a proxy in front of the engine may block it.
const MIN_LIFETIME: Duration = Duration::from_secs(5);

/// Result of reading the event stream.
enum Read {
    /// The engine was not reached.
    Nothing,
    /// The stream ended immediately, without an event.
    Refused,
    /// The stream was open.
    Stream,
}

impl Events {
    /// Reads until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut failures = 0_u32;
        let mut was_warned = false;
        loop {
            let longest = tokio::select! {
                () = stop.cancelled() => return,
                read = self.read() => match read {
                    Read::Nothing => MAX_WAIT,
                    Read::Refused => {
                        if !was_warned && backoff::after(failures + 1, FIRST_WAIT, MAX_WAIT) == MAX_WAIT {
                            was_warned = true;
                            tracing::warn!("the engine's event stream keeps ending immediately; check whether a proxy blocks /events");
                        }
                        LONGEST_WAIT
                    }
                    Read::Stream => {
                        failures = 0;
                        MAX_WAIT
                    }
                },
            };
            failures = failures.saturating_add(1);
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(backoff::after(failures, FIRST_WAIT, longest)) => {}
            }
        }
    }

    /// Reads until the stream ends or the engine stops answering.
    async fn read(&mut self) -> Read {
        // Was only the connection gone? The answer tells who has stopped the containers that ended meanwhile.
        let wanted = self.ended_at.unwrap_or(Timestamp::UNIX_EPOCH);
        let engine_since = match self.engine.running_since(wanted).await {
            Ok(since) => since,
            Err(error) if error.is_unavailable() => {
                tracing::debug!(%error, "no event stream");
                return Read::Nothing;
            }
            Err(error) => {
                tracing::debug!(%error, "unknown since when the engine has been running");
                None
            }
        };
        // The engine has just responded, so earlier health changes do not apply to this stream.
        self.health.mark_unchanged();
        self.check_now.notify_one();
        let since = self.read_past().await;
        let mut events = match self.engine.events(since, None).await {
            Ok(events) => events,
            Err(error) => {
                tracing::debug!(%error, "no event stream");
                return Read::Nothing;
            }
        };
        let (begun, mut received) = (Instant::now(), false);
        // The same evidence as before the gap shows the same run, even if the clock was set meanwhile and its time seems to be
        // in the gap.
        let ran_before = std::mem::replace(&mut self.ran_since, engine_since);
        let is_same_run = engine_since.is_some() && engine_since == ran_before;
        let engine_since = if is_same_run { Some(Timestamp::UNIX_EPOCH) } else { engine_since };
        let at = self.clock.now();
        self.send_all(|| Command::Input(Box::new(Input::EngineBack { at, engine_since })));
        self.send_all(|| Command::Inspect);
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => {
                        received = true;
                        self.last_nano = event.time_nano;
                        self.forward(&event);
                        // An engine that shuts down stops its containers, which may take longer than the time between two
                        // checks. Until it is known, each stop looks like that of a person.
                        if matches!(event.what, EventKind::Kill { .. }) {
                            self.check_now.notify_one();
                        }
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
        tracing::info!("the engine's event stream ended; all services are inspected when it resumes");
        self.check_now.notify_one();
        let at = self.clock.now();
        self.ended_at = Some(at);
        self.send_all(|| Command::Input(Box::new(Input::EngineGap { at })));
        if received || begun.elapsed() >= MIN_LIFETIME { Read::Stream } else { Read::Refused }
    }

    /// Passes on what the engine remembers, before any service is told that the engine is back: a person who is stopping a
    /// container must not be taken for a container that is unwell. Returns the time from which the stream is to be read: all of
    /// this once more if it could not be read to its end, or else a moment before that.
    async fn read_past(&mut self) -> i64 {
        // As late as possible: until the stream is open, nobody listens.
        let now = i64::try_from(self.clock.now().as_nanosecond()).unwrap_or(i64::MAX);
        // The engine's event buffer may contain requested stops that happened during the gap. If the clock was set back, the
        // last event is in the future.
        let since = self.last_nano.min(now).max(now.saturating_sub(FARTHEST_NANO));
        let since = (since - OVERLAP_NANO).max(0);
        let Ok(mut past) = self.engine.events(since, Some(now)).await else { return since };
        let all = async {
            while let Some(event) = past.next().await {
                self.last_nano = event.time_nano;
                self.forward(&event);
            }
        };
        if tokio::time::timeout(PAST, all).await.is_err() {
            tracing::debug!("the engine takes long to say which events it remembers");
            return since;
        }
        since.max(now - OVERLAP_NANO)
    }

    fn forward(&self, event: &ContainerEvent) {
        let at = Timestamp::from_nanosecond(i128::from(event.time_nano)).unwrap_or_default();
        for worker in self.listeners().iter() {
            let (config, service) = (&worker.config, worker.published.get().service);
            // A deployment may be in a project that is no longer configured.
            let concerned = config.compose_project.as_ref().is_some_and(|project| *project == event.project)
                || config.container_name.as_ref().is_some_and(|name| *name == event.name)
                || service.project_name() == Some(event.project.as_str());
            if concerned {
                let input = Input::Event { at, id: event.id.clone(), what: event.what.clone() };
                // An error means that the agent is stopping, or that the service has ended.
                let _ = worker.inbox.send(Command::Input(Box::new(input)));
            } else if matches!(event.what, EventKind::Start | EventKind::Destroy) {
                // Containers that share the network of this container lose their connection.
                if service.network_owners().any(|owner| [&event.id, &event.name].contains(&&owner.id_or_name))
                {
                    let _ = worker.inbox.send(Command::Inspect);
                }
            }
        }
    }

    fn send_all(&self, command: impl Fn() -> Command) {
        for worker in self.listeners().iter() {
            let _ = worker.inbox.send(command());
        }
    }

    fn listeners(&self) -> Workers {
        self.listeners.borrow().clone()
    }
}
