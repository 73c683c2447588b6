//! Starts a poll cycle every `registry.poll_interval`, and immediately on request (spec 1.2, 4.1).
//!
//! A cycle that hangs on an unresponsive registry delays neither the next cycle nor the services of other registries.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::ports::{Registry, Urgency};
use crate::service::input::CheckFault;
use jiff::Timestamp;

use crate::PROGRAM;
use crate::config::active;
use crate::model::text;
use crate::project::cycle::Cycle;
use crate::project::handle::{CheckEnd, Command, Handle};
use crate::project::services::{PollState, Services};
use crate::project::world::Record;

/// Minimum time between the starts of two requested cycles. Requests in between are combined into one cycle.
const MIN_REQUEST_INTERVAL: Duration = Duration::from_secs(1);

/// Number of services that a cycle checks concurrently: more than registries and engine serve at once. A running check takes
/// some kilobytes of memory, so the other checks start later.
const CHECKS_AT_ONCE: usize = 32;
/// All remaining checks start when no check has ended for this long, or when the cycle has taken [`LATEST`], so that hanging
/// checks do not delay the others.
const STALLED: Duration = Duration::from_secs(1);
/// See [`STALLED`].
const LATEST: Duration = Duration::from_secs(10);

/// The task that starts cycles.
pub struct Poller {
    /// Services to check.
    pub services: Arc<Services>,
    /// Registries to query.
    pub registry: Arc<dyn Registry>,
    /// Active configuration: the poll interval.
    pub active: active::Watch,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Audit.
    pub record: Record,
    /// Receives the duration of each cycle.
    pub cycled: Arc<dyn Fn(Duration) + Send + Sync>,
    /// Published state.
    pub state: watch::Sender<PollState>,
    /// Requests for an immediate cycle.
    pub requests: mpsc::UnboundedReceiver<()>,
}

impl Poller {
    /// Polls until `stop`; the first cycle starts immediately.
    pub async fn run(mut self, stop: CancellationToken) {
        let cycles = TaskSet::new();
        let mut begun: Option<Instant> = None;
        let (mut asked_open, mut asked) = (Instant::now(), false);
        let mut interval = self.interval();
        loop {
            let due = begun.map_or_else(Instant::now, |begun| begun + interval);
            tokio::select! {
                () = stop.cancelled() => break,
                Ok(()) = self.active.changed() => {
                    if std::mem::replace(&mut interval, self.interval()) != interval {
                        let passed = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
                        let next = self.clock.now() + interval.saturating_sub(passed);
                        self.state.send_modify(|state| state.next = Some(next));
                    }
                }
                () = tokio::time::sleep_until(due) => {
                    begun = Some(Instant::now());
                    let next = self.clock.now() + interval;
                    self.state.send_modify(|state| state.next = Some(next));
                    let cycle = self.cycle(&Cycle::new(self.registry.clone(), Urgency::Routine));
                    cycles.spawn("poll cycle", async move { cycle.await; });
                }
                Some(()) = self.requests.recv() => {
                    if !std::mem::replace(&mut asked, true) {
                        let message = "manual check of all services";
                        (self.record)(AuditEntry::new(
                            self.clock.now(), PROGRAM, Kind::MANUAL_TRIGGER, Level::Info, message,
                        ));
                    }
                }
                () = tokio::time::sleep_until(asked_open), if asked => {
                    asked = false;
                    asked_open = Instant::now() + MIN_REQUEST_INTERVAL;
                    let cycle = self.cycle(&Cycle::manual(self.registry.clone()));
                    let (services, clock, record) = (self.services.clone(), self.clock.clone(), self.record.clone());
                    cycles.spawn("asked poll cycle", async move {
                        let ends = cycle.await;
                        record(summary(&ends, &services, clock.now()));
                    });
                }
            }
        }
    }

    fn interval(&mut self) -> Duration {
        self.active.borrow_and_update().config.registry.poll_interval
    }

    /// Runs one cycle over all services and returns the results of their checks. A service that has nothing to check, or is
    /// busy with a deployment, has no result.
    fn cycle(&self, cycle: &Arc<Cycle>) -> impl Future<Output = Vec<CheckEnd>> + Send + use<> {
        let (workers, cycle) = (self.services.workers(), cycle.clone());
        let (state, clock, cycled) = (self.state.clone(), self.clock.clone(), self.cycled.clone());
        let began = Instant::now();
        async move {
            let check = |worker: &Handle| {
                let (done, ended) = oneshot::channel();
                // A worker that has ended drops the sender.
                let _ = worker.inbox.send(Command::Check(cycle.clone(), done));
                ended
            };
            let ends = check_all(&workers, check).await;
            cycled(began.elapsed());
            state.send_modify(|state| {
                state.last_poll = Some(clock.now());
                state.poll_count += 1;
            });
            ends
        }
    }
}

/// Checks all services, [`CHECKS_AT_ONCE`] at a time while checks make progress.
async fn check_all<T>(services: &[T], check: impl Fn(&T) -> oneshot::Receiver<CheckEnd>) -> Vec<CheckEnd> {
    let begun = Instant::now();
    let mut waiting = services.iter();
    let mut checks: FuturesUnordered<_> = waiting.by_ref().take(CHECKS_AT_ONCE).map(&check).collect();
    let mut ends = Vec::new();
    loop {
        let patience = (Instant::now() + STALLED).min(begun + LATEST);
        let ended = if waiting.len() == 0 {
            checks.next().await
        } else if let Ok(ended) = timeout_at(patience, checks.next()).await {
            checks.extend(waiting.next().map(&check));
            ended
        } else {
            checks.extend(waiting.by_ref().map(&check));
            continue;
        };
        match ended {
            Some(end) => ends.extend(end),
            None => return ends,
        }
    }
}

/// Builds the audit entry for a manual check of all services. Only services that were checked count.
fn summary(ends: &[CheckEnd], services: &Services, now: Timestamp) -> AuditEntry {
    let checked = ends.iter().filter(|end| end.is_ok()).count();
    let mut faults: Vec<&str> = ends
        .iter()
        .filter_map(|end| end.as_ref().err())
        .map(|(CheckFault::Failed(text) | CheckFault::EngineAway(text))| text.as_str())
        .collect();
    let failed = faults.len();
    faults.sort_unstable();
    faults.dedup();
    let why = Some(faults.join("; ")).filter(|text| !text.is_empty());
    if checked == 0
        && let Some(why) = why.clone().or_else(|| services.engine_error())
    {
        let message = "the manual check of all services failed";
        let mut entry = AuditEntry::new(now, PROGRAM, Kind::TRIGGER_FAILED, Level::Error, message);
        entry.reason = Some(why);
        return entry;
    }
    let (mut deploying, mut blocked, mut not_found, mut errored) = (0, 0, 0, 0);
    for service in services.records(now) {
        deploying += usize::from(service.deploying);
        blocked += usize::from(service.blocked.is_some());
        not_found += usize::from(service.not_found.is_some());
        errored += usize::from(service.errored.is_some());
    }
    let not_checked = if failed == 0 { String::new() } else { format!(", {failed} could not be checked") };
    let message = format!(
        "checked {}{not_checked}: {deploying} deploying, {blocked} blocked, {not_found} not found, {errored} errored",
        text::count(checked, "service"),
    );
    let level = if failed == 0 { Level::Info } else { Level::Warning };
    let mut entry = AuditEntry::new(now, PROGRAM, Kind::CHECKED, level, message);
    entry.reason = why;
    entry
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    const MANY: usize = 3 * CHECKS_AT_ONCE;

    /// Checks many services; those selected by `hangs` take a minute. Returns when each check began, and how many ended.
    async fn check(hangs: fn(usize) -> bool) -> (Vec<Duration>, usize) {
        let (tasks, begun, begins) = (TaskSet::new(), Instant::now(), Mutex::new(vec![Duration::MAX; MANY]));
        let services: Vec<usize> = (0..MANY).collect();
        let ends = check_all(&services, |service| {
            let (service, (done, ended)) = (*service, oneshot::channel());
            begins.lock()[service] = begun.elapsed();
            let takes = if hangs(service) { Duration::from_mins(1) } else { Duration::from_millis(10) };
            tasks.spawn("check", async move {
                tokio::time::sleep(takes).await;
                let _ = done.send(Ok(()));
            });
            ended
        })
        .await;
        (begins.into_inner(), ends.len())
    }

    #[tokio::test(start_paused = true)]
    async fn checks_that_make_progress_run_a_few_at_a_time() {
        let (begins, ended) = check(|_| false).await;
        assert_eq!(ended, MANY);
        for (n, begin) in begins.iter().enumerate() {
            let before = u32::try_from(n / CHECKS_AT_ONCE).unwrap();
            assert!(*begin >= before * Duration::from_millis(10), "{n}: {begin:?}");
            assert!(*begin < STALLED, "{n}: {begin:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_checks_do_not_delay_others_for_long() {
        // All of the first batch hang, so that nothing makes progress; or all but one, so that progress is slow.
        let cases: [fn(usize) -> bool; 2] = [|n| n < CHECKS_AT_ONCE, |n| n > 0 && n < CHECKS_AT_ONCE];
        for hangs in cases {
            let (begins, ended) = check(hangs).await;
            assert_eq!(ended, MANY);
            let last = begins.iter().max().unwrap();
            assert!(*last <= LATEST, "{last:?}");
        }
    }

    #[tokio::test]
    async fn a_worker_that_has_ended_has_no_result() {
        let ends = check_all(&[(); MANY], |()| oneshot::channel().1).await;
        assert!(ends.is_empty());
    }
}
