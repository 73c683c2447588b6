//! Starts a poll cycle every `registry.poll_interval`, and at once when somebody asks (spec 1.2, 4.1).
//!
//! A cycle that hangs on a dead registry delays neither the next cycle nor the services of other registries.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::ports::{Registry, Urgency};
use crate::{PROGRAM, fleet::Fleet, live, text};

use super::cycle::Cycle;
use super::worker::{Command, Record};

/// Where a request for a cycle goes.
pub type Polls = mpsc::UnboundedSender<()>;

/// What the poller shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PollState {
    /// End of the last cycle.
    pub last_poll: Option<Timestamp>,
    /// Cycles that ended.
    pub poll_count: u64,
    /// Begin of the next cycle.
    pub next: Option<Timestamp>,
}

/// The task that starts cycles.
pub struct Poller {
    /// Whom to ask.
    pub fleet: Arc<Fleet>,
    /// What the cycles ask.
    pub registry: Arc<dyn Registry>,
    /// Time between two cycles.
    pub live: live::Watch,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Audit.
    pub record: Record,
    /// Whom to tell how long a cycle took.
    pub cycled: Arc<dyn Fn(Duration) + Send + Sync>,
    /// What it shows.
    pub state: Arc<watch::Sender<PollState>>,
    /// Requests for a cycle now.
    pub asked: mpsc::UnboundedReceiver<()>,
}

impl Poller {
    /// Polls until `stop`; the first cycle begins at once.
    pub async fn run(mut self, stop: CancellationToken) {
        let cycles = TaskSet::new();
        let mut begun: Option<tokio::time::Instant> = None;
        let mut interval = self.interval();
        loop {
            let due = begun.map_or_else(tokio::time::Instant::now, |begun| begun + interval);
            tokio::select! {
                () = stop.cancelled() => break,
                Ok(()) = self.live.changed() => {
                    if std::mem::replace(&mut interval, self.interval()) != interval {
                        let passed = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
                        let next = self.clock.now() + interval.saturating_sub(passed);
                        self.state.send_modify(|state| state.next = Some(next));
                    }
                }
                () = tokio::time::sleep_until(due) => {
                    begun = Some(tokio::time::Instant::now());
                    let next = self.clock.now() + interval;
                    self.state.send_modify(|state| state.next = Some(next));
                    let cycle = self.cycle(Urgency::Routine);
                    cycles.spawn("poll cycle", async move { cycle.await; });
                }
                Some(()) = self.asked.recv() => {
                    while self.asked.try_recv().is_ok() {}
                    let message = "a check of all services was asked for";
                    let entry = AuditEntry::new(self.clock.now(), PROGRAM, Kind::MANUAL_TRIGGER, Level::Info, message);
                    (self.record)(entry);
                    let (cycle, fleet) = (self.cycle(Urgency::Asked), self.fleet.clone());
                    let (clock, record) = (self.clock.clone(), self.record.clone());
                    cycles.spawn("asked poll cycle", async move {
                        cycle.await;
                        record(summary(&fleet, clock.now()));
                    });
                }
            }
        }
    }

    fn interval(&mut self) -> Duration {
        self.live.borrow_and_update().config.registry.poll_interval
    }

    /// One cycle over all services; its future ends when all of them have checked.
    fn cycle(&self, urgency: Urgency) -> impl Future<Output = ()> + Send + 'static {
        let cycle = Cycle::new(self.registry.clone(), urgency);
        let mut checks = Vec::new();
        for worker in self.fleet.workers().iter() {
            let (done, ended) = oneshot::channel::<()>();
            if worker.inbox.send(Command::Check(cycle.clone(), done)).is_ok() {
                checks.push(ended);
            }
        }
        let (state, clock, cycled) = (self.state.clone(), self.clock.clone(), self.cycled.clone());
        let began = tokio::time::Instant::now();
        async move {
            for check in checks {
                // The worker drops its end when the check is over; it never sends anything.
                let _ = check.await;
            }
            cycled(began.elapsed());
            state.send_modify(|state| {
                state.last_poll = Some(clock.now());
                state.poll_count += 1;
            });
        }
    }
}

fn summary(fleet: &Fleet, now: Timestamp) -> AuditEntry {
    let report = fleet.report(now);
    let count = |what: &dyn Fn(&evenkeel_common::wire::ServiceStatus) -> bool| {
        report.services.iter().filter(|service| what(service)).count()
    };
    let checked = count(&|service| service.auto_update);
    let message = format!(
        "checked {}: {} deploying, {} blocked, {} not found, {} errored",
        text::count(checked, "service"),
        count(&|service| service.deploying),
        count(&|service| service.blocked.is_some()),
        count(&|service| service.not_found.is_some()),
        count(&|service| service.errored.is_some()),
    );
    AuditEntry::new(now, PROGRAM, Kind::CHECKED, Level::Info, message)
}
