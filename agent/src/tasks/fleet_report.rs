//! Reports to the wardens which images run on this machine and which leases are in use (DECISIONS 8).
//!
//! Both are derived from the published state of the services, so that a lost message does no harm: a lease is renewed while
//! its deployment is in progress, and kept until the warden has the verdict. A lease that led to no deployment is released
//! by the service itself (`service/decide/permit.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::wire::{DeployPhase, DeployProgress, FleetAsk, Inventory, InventoryImage};
use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::ports::fleet::{Fleet, FleetError};
use crate::project::handle::Handle;
use crate::project::published;
use crate::project::services::Services;
use crate::service::fleet::{FleetView, Link};

/// Interval of checks for inventory changes.
const SETTLE: Duration = Duration::from_secs(3);
/// Interval at which an unchanged inventory is sent again, and delay before a retry.
const INVENTORY_EVERY: Duration = Duration::from_hours(1);
const INVENTORY_RETRY: Duration = Duration::from_mins(1);
/// Maximum number of images in a report; a warden accepts no more.
const MOST_IMAGES: usize = 1000;
/// Interval of lease renewals; a lease expires after 90 s.
const RENEW_EVERY: Duration = Duration::from_secs(30);
/// Time after which a renewal that failed is tried again: the lease must not expire because two requests were lost.
const RENEW_RETRY: Duration = Duration::from_secs(5);
/// Interval of checks for leases in use and delivered verdicts.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a step counts as progress that has no deadline of its own: compose has ten minutes, and may wait hours for a job. A
/// warden ends a lease after an hour and the probation.
const STEP_LIMIT: SignedDuration = SignedDuration::from_hours(1);
/// How long a lease is kept for a verdict that can't be delivered.
const VERDICT_PATIENCE: Duration = Duration::from_mins(5);

/// Progress of the push to the warden.
#[derive(Clone)]
pub struct PushProgress {
    /// Returns a mark for everything recorded so far.
    pub mark: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Reports whether everything up to a mark has been delivered.
    pub is_delivered: Arc<dyn Fn(u64) -> bool + Send + Sync>,
}

/// The task that reports to the wardens.
pub struct FleetReporter {
    /// Services to report.
    pub services: Arc<Services>,
    /// The wardens.
    pub fleet: Arc<dyn Fleet>,
    /// View of the fleet.
    pub view: watch::Receiver<Arc<FleetView>>,
    /// Progress of the push.
    pub push: PushProgress,
    /// Clock.
    pub clock: Arc<dyn Clock>,
}

impl FleetReporter {
    /// Reports until `stop`. Leases of deployments in progress are renewed by the next run of the agent.
    pub async fn run(self, stop: CancellationToken) {
        // Both futures end only by cancellation.
        let _ = stop.run_until_cancelled(futures_util::future::join(self.inventories(), self.leases())).await;
    }

    async fn inventories(&self) {
        let mut view = self.view.clone();
        let mut sent: Option<Sent> = None;
        loop {
            let present = |view: &Arc<FleetView>| matches!(view.link, Link::Present);
            if view.wait_for(present).await.is_err() {
                return std::future::pending().await;
            }
            let contact = self.view.borrow().contact;
            let (inventory, left_out) = self.inventory();
            let is_due =
                sent.as_ref().is_none_or(|sent| sent.is_outdated(&inventory, contact, Instant::now()));
            let mut wait = SETTLE;
            if is_due && !self.services.is_starting() {
                if left_out > 0 {
                    tracing::warn!(
                        left_out,
                        "not all images are reported to the fleet: the maximum is {MOST_IMAGES}"
                    );
                }
                match self.fleet.report(&inventory).await {
                    Ok(()) => sent = Some(Sent { inventory, contact, at: Instant::now() }),
                    Err(error) => {
                        tracing::debug!("the inventory could not be sent: {error}");
                        wait = INVENTORY_RETRY;
                    }
                }
            }
            sleep(wait).await;
        }
    }

    /// Returns the inventory and the number of images left out.
    fn inventory(&self) -> (Inventory, usize) {
        let records = self.services.records(self.clock.now());
        let mut images = Vec::new();
        for (worker, record) in self.services.workers().iter().zip(records) {
            images.extend(images_of(worker, &record));
        }
        let left_out = keep_most(&mut images);
        (Inventory { ring: self.view.borrow().ring, images }, left_out)
    }

    /// The progress of a service's deployment; `None` if it is unknown, or over.
    fn progress(&self, service: &str) -> Option<u64> {
        let now = self.clock.now();
        progress_of(&self.services.status(service, now).ok()?.deploy?, now)
    }

    async fn leases(&self) {
        let mut kept: BTreeMap<String, Lease> = BTreeMap::new();
        // Includes services that are no longer configured, until they have ended.
        let mut services: Vec<published::Receiver> = Vec::new();
        let mut view = self.view.clone();
        loop {
            // Without a fleet there are no leases.
            if kept.is_empty() && view.wait_for(|view| view.link != Link::None).await.is_err() {
                return std::future::pending().await;
            }
            for worker in self.services.workers().iter() {
                if !services.iter().any(|service| service.is_same(&worker.published)) {
                    services.push(worker.published.clone());
                }
            }
            let (mut held, mut decided) = (Vec::new(), Vec::new());
            services.retain(|service| {
                // Read before its state, so that the last state of an ended service is included.
                let has_ended = service.has_ended();
                let service = service.get().service;
                held.extend(service.leases());
                decided.extend_from_slice(service.decided_leases());
                !has_ended
            });
            let renew = reconcile(&mut kept, &held, &decided, Instant::now(), &self.push);
            let renewed = join_all(renew.into_iter().map(|ask| self.renew(ask))).await;
            retry(&mut kept, renewed.into_iter().flatten(), Instant::now());
            sleep(LOOK_EVERY).await;
        }
    }

    /// Renews a lease. Returns its key if it has to be tried again: no warden has stored the renewal.
    async fn renew(&self, ask: FleetAsk) -> Option<String> {
        let ask = FleetAsk { progress: self.progress(&ask.service), ..ask };
        let why = match self.fleet.ask(&ask).await {
            Ok(answer) if answer.store.is_none() => return None,
            Ok(answer) => answer.why,
            // There is no lease without a fleet.
            Err(FleetError::NoFleet) => return None,
            Err(error) => error.to_string(),
        };
        tracing::debug!(image = ask.image, "a lease could not be renewed: {why}");
        Some(key(&ask))
    }
}

/// A number that grows while a deployment gets on: with its phases, with the bytes that are pulled or copied, and with the
/// time of a probation or step that may still take it. `None` if it is unknown: the engine does not tell how much it has
/// pulled, it unpacks what it has, or data is put back.
fn progress_of(deploy: &DeployProgress, now: Timestamp) -> Option<u64> {
    let begun = u64::try_from(deploy.since.as_millisecond()).unwrap_or(0);
    if matches!(deploy.phase, DeployPhase::Pulling | DeployPhase::Copying | DeployPhase::Restoring) {
        return (deploy.pulled_bytes < deploy.total_bytes).then(|| begun + deploy.pulled_bytes);
    }
    let limit = || deploy.since.checked_add(STEP_LIMIT).unwrap_or(Timestamp::MAX);
    let end = deploy.deadline.unwrap_or_else(limit).min(now);
    Some(begun + u64::try_from(end.duration_since(deploy.since).as_secs()).unwrap_or(0))
}

/// Drops images above the limit and returns their number.
fn keep_most(images: &mut Vec<InventoryImage>) -> usize {
    images.drain(MOST_IMAGES.min(images.len())..).count()
}

/// The last report.
struct Sent {
    inventory: Inventory,
    /// [`FleetView::contact`] at that time: a warden that was away meanwhile may have lost its store.
    contact: u64,
    at: Instant,
}

impl Sent {
    fn is_outdated(&self, inventory: &Inventory, contact: u64, now: Instant) -> bool {
        self.inventory != *inventory
            || self.contact != contact
            || now.duration_since(self.at) >= INVENTORY_EVERY
    }
}

fn images_of(worker: &Handle, record: &evenkeel_common::wire::ServiceStatus) -> Vec<InventoryImage> {
    let service = worker.published.get().service;
    let (in_force, states) = (service.in_force(), service.image_states());
    let image = |configured: &crate::config::ConfiguredImage| {
        let reference = in_force.get(&configured.configured).unwrap_or(&configured.reference);
        let reference = reference.to_string();
        let state = states.iter().find(|state| state.image == configured.configured);
        let waiting = record.waiting.as_ref().filter(|waiting| waiting.image == configured.configured);
        InventoryImage {
            service: record.name.clone(),
            digest: state.and_then(|state| state.running.as_ref()).map(ToString::to_string),
            proven_at: state.and_then(|state| state.proven_at),
            available: state.and_then(|state| state.available.as_ref()).map(ToString::to_string),
            available_image: state
                .and_then(|state| state.available_as.as_ref())
                .map(ToString::to_string)
                .filter(|available| *available != reference),
            behind_since: state.and_then(|state| state.behind_since),
            blocked: service
                .durable()
                .images
                .get(&configured.configured)
                .blocked
                .as_ref()
                .map(ToString::to_string),
            has_failed: service.blocks_a_failure(&configured.configured),
            gate: waiting.map(|waiting| waiting.gate.clone()),
            why: waiting.map(|waiting| waiting.why.clone()),
            probation: u32::try_from(worker.config.health_grace.as_secs()).ok(),
            image: reference,
        }
    };
    worker.config.images.iter().map(image).collect()
}

/// A lease held by this agent.
struct Lease {
    ask: FleetAsk,
    /// When it is renewed next.
    due: Instant,
    /// When the verdict was recorded, and the mark up to which the push must be delivered.
    decided: Option<(Instant, u64)>,
}

fn key(ask: &FleetAsk) -> String {
    format!("{} {} {}", ask.service, ask.image, ask.digest)
}

/// Updates the kept leases from those in use (`held`) and those whose deployment has a verdict (`decided`). Returns the
/// leases to renew.
fn reconcile(
    kept: &mut BTreeMap<String, Lease>,
    held: &[FleetAsk],
    decided: &[FleetAsk],
    now: Instant,
    push: &PushProgress,
) -> Vec<FleetAsk> {
    for ask in held {
        let fresh = || Lease { ask: ask.clone(), due: now + RENEW_EVERY, decided: None };
        kept.entry(key(ask)).or_insert_with(fresh).decided = None;
    }
    let mut renew = Vec::new();
    kept.retain(|name, lease| {
        if held.iter().all(|ask| key(ask) != *name) {
            if lease.decided.is_none() && decided.iter().all(|ask| key(ask) != *name) {
                return false;
            }
            let (since, mark) = *lease.decided.get_or_insert_with(|| (now, (push.mark)()));
            // The warden ends the lease when it receives the verdict.
            if (push.is_delivered)(mark) || now.duration_since(since) >= VERDICT_PATIENCE {
                return false;
            }
        }
        if now >= lease.due {
            lease.due = now + RENEW_EVERY;
            renew.push(lease.ask.clone());
        }
        true
    });
    renew
}

/// Makes the leases with these keys due again soon.
fn retry(kept: &mut BTreeMap<String, Lease>, failed: impl IntoIterator<Item = String>, now: Instant) {
    for key in failed {
        if let Some(lease) = kept.get_mut(&key) {
            lease.due = now + RENEW_RETRY;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use evenkeel_common::clock::{SystemClock, Uptime};
    use evenkeel_common::wire::{FleetAnswer, Permission};
    use tokio::sync::mpsc;

    use super::*;
    use crate::ports::fleet::{DecisionsResponse, KnownRevisions};
    use crate::project::services::{Dependencies, EngineHealth, PollState, Workers};

    /// A warden with one answer to all requests.
    struct Answers(Result<FleetAnswer, FleetError>);

    #[async_trait]
    impl Fleet for Answers {
        async fn decisions(&self, _: KnownRevisions, _: Duration) -> Result<DecisionsResponse, FleetError> {
            Err(FleetError::Busy)
        }

        async fn ask(&self, _: &FleetAsk) -> Result<FleetAnswer, FleetError> {
            self.0.clone()
        }

        async fn release(&self, _: &FleetAsk) -> Result<(), FleetError> {
            Err(FleetError::Busy)
        }

        async fn report(&self, _: &Inventory) -> Result<(), FleetError> {
            Err(FleetError::Busy)
        }
    }

    /// A machine without services, whose warden has this answer.
    fn reporter(answer: Result<FleetAnswer, FleetError>) -> FleetReporter {
        let dependencies = Dependencies {
            workers: watch::channel(Some(Workers::default())).1,
            poll_state: watch::channel(PollState::default()).1,
            engine: watch::channel(EngineHealth::default()).1,
            services: watch::channel(()).1,
            state: watch::channel(None).1,
            active: None,
        };
        FleetReporter {
            services: Arc::new(Services::new(
                mpsc::unbounded_channel().0,
                dependencies,
                Uptime::starting_now(),
            )),
            fleet: Arc::new(Answers(answer)),
            view: watch::channel(Arc::default()).1,
            push: PushProgress { mark: Arc::new(|| 0), is_delivered: Arc::new(|_| true) },
            clock: Arc::new(SystemClock),
        }
    }

    fn ask(digest: &str) -> FleetAsk {
        FleetAsk {
            image: "r.example/web:1".into(),
            digest: digest.into(),
            service: "web".into(),
            ring: 0,
            progress: None,
        }
    }

    #[test]
    fn a_report_is_repeated_after_a_change_after_an_hour_and_after_the_warden_was_away() {
        let (at, inventory) = (Instant::now(), Inventory::default());
        let sent = Sent { inventory: inventory.clone(), contact: 1, at };
        let hour = Duration::from_hours(1);
        assert!(!sent.is_outdated(&inventory, 1, at + hour / 2));
        assert!(sent.is_outdated(&inventory, 1, at + hour));
        assert!(sent.is_outdated(&inventory, 2, at));
        assert!(sent.is_outdated(&Inventory { ring: 1, ..inventory }, 1, at));
    }

    #[test]
    fn a_deployment_that_gets_on_has_growing_progress() {
        let at = |seconds| Timestamp::from_second(1_790_000_000 + seconds).unwrap();
        let deploy = |phase, since, deadline: Option<i64>, (pulled_bytes, total_bytes)| DeployProgress {
            phase,
            image: "web".into(),
            since: at(since),
            deadline: deadline.map(at),
            pulled_bytes,
            total_bytes,
            probe: None,
            handover: None,
            hook: None,
        };
        let pulling = |bytes| progress_of(&deploy(DeployPhase::Pulling, 0, None, bytes), at(50));
        assert_eq!(pulling((0, 0)), None, "the engine does not tell");
        assert!(pulling((7, 9)) > pulling((5, 9)));
        assert_eq!(pulling((9, 9)), None, "it unpacks");
        let copying = |bytes| progress_of(&deploy(DeployPhase::Copying, 0, None, bytes), at(50));
        assert!(copying((7, 9)) > copying((5, 9)));
        assert_eq!(progress_of(&deploy(DeployPhase::Restoring, 0, None, (0, 0)), at(50)), None);
        for phase in [DeployPhase::Starting, DeployPhase::Draining, DeployPhase::RollingBack] {
            let step = |now| progress_of(&deploy(phase, 60, None, (0, 0)), at(now));
            assert!(step(300) > step(61), "it may take some minutes: {phase:?}");
            assert!(step(60 + 1800) > step(60 + 1770), "it may wait for a job: {phase:?}");
            assert_eq!(step(60 + 3600), step(9999), "it hangs: {phase:?}");
        }
        let starting = |now| progress_of(&deploy(DeployPhase::Starting, 60, None, (0, 0)), at(now));
        assert!(starting(61) > pulling((8, 9)));
        let probation = |now| progress_of(&deploy(DeployPhase::Probation, 70, Some(100), (0, 0)), at(now));
        assert!(probation(71) > starting(61) && probation(90) > probation(71));
        assert_eq!(probation(100), probation(999), "its time is over");
    }

    #[test]
    fn images_above_the_limit_are_left_out() {
        for (count, left_out) in [(0, 0), (1000, 0), (1003, 3)] {
            let image =
                |n| serde_json::from_str(&format!(r#"{{"service":"s{n}","image":"r.example/web:1"}}"#));
            let mut images: Vec<InventoryImage> = (0..count).map(|n| image(n).unwrap()).collect();
            assert_eq!(keep_most(&mut images), left_out);
            assert_eq!(images.len(), count - left_out);
            assert!(images.first().is_none_or(|first| first.service == "s0"));
        }
    }

    #[tokio::test]
    async fn a_renewal_that_no_warden_has_stored_is_tried_again_before_the_lease_expires() {
        let answer = |store: Option<&str>| FleetAnswer {
            answer: Permission::Go,
            why: "this machine has the lease".into(),
            gate: None,
            again: 30,
            agent: None,
            store: store.map(str::to_owned),
        };
        for (answer, next) in [
            (Ok(answer(None)), 60),
            (Err(FleetError::NoFleet), 60),
            (Ok(answer(Some("away"))), 35),
            (Err(FleetError::Unavailable("no connection".into())), 35),
            (Err(FleetError::Unreadable("it is invalid".into())), 35),
            (Err(FleetError::Busy), 35),
        ] {
            let reporter = reporter(answer.clone());
            let (mut kept, start) = (BTreeMap::new(), Instant::now());
            let held = [ask("sha256:a")];
            let due = |kept: &mut BTreeMap<String, Lease>, seconds: u64| {
                reconcile(kept, &held, &[], start + Duration::from_secs(seconds), &reporter.push)
            };
            assert_eq!(due(&mut kept, 0), []);
            assert_eq!(due(&mut kept, 30), held);
            let failed = reporter.renew(held[0].clone()).await;
            retry(&mut kept, failed, start + Duration::from_secs(30));
            assert_eq!(due(&mut kept, next - 1), [], "{answer:?}");
            assert_eq!(due(&mut kept, next), held, "{answer:?}");
        }
    }

    #[test]
    fn a_lease_is_renewed_while_it_is_used_and_kept_for_its_verdict() {
        let delivered = Arc::new(AtomicBool::new(false));
        let seen = delivered.clone();
        let push = PushProgress {
            mark: Arc::new(|| 7),
            is_delivered: Arc::new(move |mark| mark == 7 && seen.load(Ordering::Relaxed)),
        };
        let mut kept = BTreeMap::new();
        let start = Instant::now();
        let mut at = |seconds, held: &[FleetAsk], decided: &[FleetAsk]| {
            let renewed = reconcile(&mut kept, held, decided, start + Duration::from_secs(seconds), &push);
            (renewed.len(), kept.len())
        };
        let (a, b) = ([ask("sha256:a")], [ask("sha256:b")]);
        assert_eq!(at(0, &a, &[]), (0, 1));
        assert_eq!(at(29, &a, &[]), (0, 1));
        assert_eq!(at(30, &a, &[]), (1, 1));
        assert_eq!(at(31, &a, &[]), (0, 1));
        // Its verdict is recorded but not yet delivered.
        assert_eq!(at(40, &[], &a), (0, 1));
        assert_eq!(at(61, &[], &a), (1, 1));
        delivered.store(true, Ordering::Relaxed);
        assert_eq!(at(62, &[], &a), (0, 0));
        // It stays decided, which has no further effect.
        assert_eq!(at(63, &[], &a), (0, 0));
        // A lease without a deployment or a verdict is released by its service.
        assert_eq!(at(70, &b, &a), (0, 1));
        assert_eq!(at(71, &[], &[]), (0, 0));
        // An undelivered verdict does not keep the lease forever.
        delivered.store(false, Ordering::Relaxed);
        at(80, &b, &[]);
        assert_eq!(at(81, &[], &b).1, 1);
        assert_eq!(at(81 + 300, &[], &b).1, 0);
    }
}
