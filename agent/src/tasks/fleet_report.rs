//! What the wardens learn of this machine beside its entries (DECISIONS 8): what runs, and which leases are in use.
//!
//! Both follow from what the services show, so that nothing is lost with a message: a lease is renewed as long as its
//! deployment is under way, and kept until the verdict has arrived. A service gives back itself what nothing came of
//! (`service/permit.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::wire::{FleetAsk, Inventory, InventoryImage};
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::ports::fleet::Fleet;
use crate::project::published;
use crate::project::services::Services;
use crate::project::worker::Handle;
use crate::service::fleet::{FleetView, Link};

/// How often it is looked whether the inventory has changed.
const SETTLE: Duration = Duration::from_secs(3);
/// How often the inventory is sent although nothing has changed, and again where that failed.
const INVENTORY_EVERY: Duration = Duration::from_hours(1);
const INVENTORY_RETRY: Duration = Duration::from_mins(1);
/// Images of one report; a warden takes no more.
const MOST_IMAGES: usize = 1000;
/// How often a lease is renewed; it is dead after 90 s.
const RENEW_EVERY: Duration = Duration::from_secs(30);
/// How often it is looked which leases are in use, and whether a verdict has arrived.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a lease is kept for a verdict that does not arrive.
const VERDICT_PATIENCE: Duration = Duration::from_mins(5);

/// How far the push to the warden is.
#[derive(Clone)]
pub struct PushProgress {
    /// What was recorded up to now.
    pub mark: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Whether the warden has everything up to a mark.
    pub is_delivered: Arc<dyn Fn(u64) -> bool + Send + Sync>,
}

/// The task that reports.
pub struct FleetReporter {
    /// What runs.
    pub services: Arc<Services>,
    /// The wardens.
    pub fleet: Arc<dyn Fleet>,
    /// What is known of the fleet.
    pub view: watch::Receiver<Arc<FleetView>>,
    /// How far the push is.
    pub push: PushProgress,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

impl FleetReporter {
    /// Reports until `stop`. Leases of deployments that are still under way are taken up by the next life.
    pub async fn run(self, stop: CancellationToken) {
        // Being told to stop is the only end.
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
                        "the fleet is not told of all images: {MOST_IMAGES} are the most"
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

    /// What runs here, and how many images that leaves out.
    fn inventory(&self) -> (Inventory, usize) {
        let records = self.services.records(self.clock.now());
        let mut images = Vec::new();
        for (worker, record) in self.services.workers().iter().zip(records) {
            images.extend(images_of(worker, &record));
        }
        let left_out = keep_most(&mut images);
        (Inventory { ring: self.view.borrow().ring, images }, left_out)
    }

    async fn leases(&self) {
        let mut kept: BTreeMap<String, Lease> = BTreeMap::new();
        // Those of services that are configured no more, too, until they have ended.
        let mut doors: Vec<published::Receiver> = Vec::new();
        let mut view = self.view.clone();
        loop {
            // Where no warden decides anything, there are no leases to look for.
            if kept.is_empty() && view.wait_for(|view| view.link != Link::None).await.is_err() {
                return std::future::pending().await;
            }
            for worker in self.services.workers().iter() {
                if !doors.iter().any(|door| door.is_same(&worker.published)) {
                    doors.push(worker.published.clone());
                }
            }
            let (mut held, mut decided) = (Vec::new(), Vec::new());
            doors.retain(|door| {
                // Asked first: what a service that has ended showed last counts, too.
                let has_ended = door.has_ended();
                let snapshot = door.snapshot();
                held.extend(snapshot.leases);
                decided.extend(snapshot.decided);
                !has_ended
            });
            let renew = reconcile(&mut kept, &held, &decided, Instant::now(), &self.push);
            let renew = renew.iter().map(|ask| async {
                if let Err(error) = self.fleet.ask(ask).await {
                    tracing::debug!(image = ask.image, "a lease could not be renewed: {error}");
                }
            });
            join_all(renew).await;
            sleep(LOOK_EVERY).await;
        }
    }
}

/// Leaves out what is too much; how many that are.
fn keep_most(images: &mut Vec<InventoryImage>) -> usize {
    images.drain(MOST_IMAGES.min(images.len())..).count()
}

/// What was reported last.
struct Sent {
    inventory: Inventory,
    /// [`FleetView::contact`] then: a warden that was away since may have a store that knows nothing of this machine.
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
    let snapshot = worker.published.snapshot();
    let image = |configured: &crate::config::ConfiguredImage| {
        let reference = snapshot.in_force.get(&configured.configured).unwrap_or(&configured.reference);
        let reference = reference.to_string();
        let state = snapshot.images.iter().find(|state| state.image == configured.configured);
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
            blocked: snapshot.blocked.get(&configured.configured).map(ToString::to_string),
            gate: waiting.map(|waiting| waiting.gate.clone()),
            why: waiting.map(|waiting| waiting.why.clone()),
            image: reference,
        }
    };
    worker.config.images.iter().map(image).collect()
}

/// A lease that this agent has.
struct Lease {
    ask: FleetAsk,
    renewed: Instant,
    /// The verdict was recorded: since when, and up to where the push must have come.
    decided: Option<(Instant, u64)>,
}

fn key(ask: &FleetAsk) -> String {
    format!("{} {} {}", ask.service, ask.image, ask.digest)
}

/// What is to be asked for once more, by the leases that are in use (`held`) and those whose deployment has its verdict
/// (`decided`).
fn reconcile(
    kept: &mut BTreeMap<String, Lease>,
    held: &[FleetAsk],
    decided: &[FleetAsk],
    now: Instant,
    push: &PushProgress,
) -> Vec<FleetAsk> {
    for ask in held {
        let fresh = || Lease { ask: ask.clone(), renewed: now, decided: None };
        kept.entry(key(ask)).or_insert_with(fresh).decided = None;
    }
    let mut renew = Vec::new();
    kept.retain(|name, lease| {
        if held.iter().all(|ask| key(ask) != *name) {
            if lease.decided.is_none() && decided.iter().all(|ask| key(ask) != *name) {
                return false;
            }
            let (since, mark) = *lease.decided.get_or_insert_with(|| (now, (push.mark)()));
            // The warden ends the lease by the verdict.
            if (push.is_delivered)(mark) || now.duration_since(since) >= VERDICT_PATIENCE {
                return false;
            }
        }
        if now.duration_since(lease.renewed) >= RENEW_EVERY {
            lease.renewed = now;
            renew.push(lease.ask.clone());
        }
        true
    });
    renew
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn ask(digest: &str) -> FleetAsk {
        FleetAsk { image: "r.example/web:1".into(), digest: digest.into(), service: "web".into(), ring: 0 }
    }

    #[test]
    fn what_was_reported_is_reported_again_after_a_change_an_hour_or_a_silence_of_the_warden() {
        let (at, inventory) = (Instant::now(), Inventory::default());
        let sent = Sent { inventory: inventory.clone(), contact: 1, at };
        let hour = Duration::from_hours(1);
        assert!(!sent.is_outdated(&inventory, 1, at + hour / 2));
        assert!(sent.is_outdated(&inventory, 1, at + hour));
        assert!(sent.is_outdated(&inventory, 2, at));
        assert!(sent.is_outdated(&Inventory { ring: 1, ..inventory }, 1, at));
    }

    #[test]
    fn of_too_many_images_the_first_are_reported() {
        for (count, left_out) in [(0, 0), (1000, 0), (1003, 3)] {
            let image =
                |n| serde_json::from_str(&format!(r#"{{"service":"s{n}","image":"r.example/web:1"}}"#));
            let mut images: Vec<InventoryImage> = (0..count).map(|n| image(n).unwrap()).collect();
            assert_eq!(keep_most(&mut images), left_out);
            assert_eq!(images.len(), count - left_out);
            assert!(images.first().is_none_or(|first| first.service == "s0"));
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
        // Its verdict is recorded, and not delivered yet.
        assert_eq!(at(40, &[], &a), (0, 1));
        assert_eq!(at(61, &[], &a), (1, 1));
        delivered.store(true, Ordering::Relaxed);
        assert_eq!(at(62, &[], &a), (0, 0));
        // It stays decided, and nothing follows from that any more.
        assert_eq!(at(63, &[], &a), (0, 0));
        // One that does not begin, or ends without a verdict, is given back by its service.
        assert_eq!(at(70, &b, &a), (0, 1));
        assert_eq!(at(71, &[], &[]), (0, 0));
        // A verdict that never arrives does not keep it for ever.
        delivered.store(false, Ordering::Relaxed);
        at(80, &b, &[]);
        assert_eq!(at(81, &[], &b).1, 1);
        assert_eq!(at(81 + 300, &[], &b).1, 0);
    }
}
