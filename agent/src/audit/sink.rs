//! Common behaviour of all remote destinations: retry, backoff, ordering, counters, shutdown and replacement at runtime.
//! A channel only renders (DECISIONS 5).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_common::queue::{Destination, Item, Outbox};
use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::wire::PushedEntry;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::channel::{Channel, Settings};
use super::channels::Sent;
use super::delivery::DeliveryError;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_mins(1);
/// Pause between two attempts while only an operator can fix the problem.
const MISCONFIGURED_PAUSE: Duration = Duration::from_mins(1);
/// How long a destination may continue after shutdown was requested; remaining entries are sent after the next start.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Delivery counters of a destination since the program started.
#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
}

/// A snapshot of a destination's counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryStats {
    /// The channel's name.
    pub name: String,
    /// Entries that the receiver accepted.
    pub sent: u64,
    /// Failed attempts that are retried.
    pub failed: u64,
    /// Entries that the receiver rejected permanently; they are not sent again.
    pub refused: u64,
    /// Entries in the queue.
    pub queued: u64,
}

/// All remote destinations, one task each, which can be replaced at runtime. Queued entries stay in the outbox
/// meanwhile.
#[derive(Clone)]
pub struct Deliveries(Arc<Inner>);

struct Inner {
    outbox: Outbox,
    sinks: Mutex<Vec<Running>>,
    tasks: TaskSet,
    stop: CancellationToken,
}

/// A destination's task.
struct Running {
    settings: Settings,
    machine: String,
    counts: Arc<Counts>,
    close: CancellationToken,
    /// Resolves when the task has ended: the task owns the sender.
    ended: oneshot::Receiver<()>,
}

/// The changes made by a new configuration, by channel name.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reconfigured {
    /// New channels: they receive entries recorded from now on.
    pub added: Vec<String>,
    /// Changed channels, or channels enabled again after a fault: they continue with their queued entries.
    pub changed: Vec<String>,
    /// Removed channels, with the number of queued entries that were dropped.
    pub removed: Vec<(String, u64)>,
    /// Why channels are disabled; their entries stay queued.
    pub faults: Vec<String>,
}

impl Deliveries {
    /// Starts without destinations. When `stop` is cancelled, the destinations deliver what they still can and end.
    pub fn new(outbox: Outbox, stop: CancellationToken) -> Self {
        let (sinks, tasks) = (Mutex::default(), TaskSet::new());
        Self(Arc::new(Inner { outbox, sinks, tasks, stop }))
    }

    /// Applies these settings; `machine` is the origin set in entries. A destination with unchanged settings keeps
    /// running. An entry in flight to a changed destination may be delivered twice. Destinations named in `off` are
    /// disabled and keep their queued entries.
    pub async fn reconfigure(&self, settings: Vec<Settings>, off: &[String], machine: &str) -> Reconfigured {
        let is_same = |sink: &Running| sink.machine == machine && settings.contains(&sink.settings);
        let (staying, leaving): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *self.sinks()).into_iter().partition(is_same);
        let fresh: Vec<&Settings> =
            settings.iter().filter(|wanted| staying.iter().all(|sink| sink.settings != **wanted)).collect();
        self.sinks().extend(staying);
        for sink in &leaving {
            sink.close.cancel();
        }
        let mut known = Vec::new();
        for sink in leaving {
            // Nothing is ever sent; the channel closes when the task ends.
            let _ = sink.ended.await;
            known.push((sink.settings.name(), sink.counts));
        }
        let outbox = &self.0.outbox;
        let names: Vec<String> = settings.iter().map(Settings::name).chain(off.iter().cloned()).collect();
        let queued: Vec<bool> = fresh.iter().map(|wanted| outbox.has_destination(&wanted.name())).collect();
        let mut reconfigured =
            Reconfigured { removed: outbox.set_destinations(&names), ..Reconfigured::default() };
        for (settings, is_known) in fresh.into_iter().zip(queued) {
            let name = settings.name();
            let counts = known.iter().find(|(known, _)| *known == name).map(|(_, counts)| counts.clone());
            match settings.open() {
                Ok(channel) => self.begin(settings.clone(), channel, machine, counts.unwrap_or_default()),
                Err(why) => reconfigured.faults.push(format!("{name}: {why} (it is off)")),
            }
            if is_known { reconfigured.changed.push(name) } else { reconfigured.added.push(name) }
        }
        reconfigured
    }

    fn begin(&self, settings: Settings, channel: Channel, machine: &str, counts: Arc<Counts>) {
        let name = channel.name().to_owned();
        let destination = self.0.outbox.destination(&name).expect("the name was registered with the outbox");
        let sink = Sink {
            channel,
            destination,
            machine: machine.to_owned(),
            epoch: self.0.outbox.epoch().to_owned(),
            counts: counts.clone(),
            trouble: None,
            pause: FIRST_PAUSE,
        };
        let close = CancellationToken::new();
        let (end, ended) = oneshot::channel::<()>();
        let work = close.clone().run_until_cancelled_owned(Box::pin(sink.run(self.0.stop.clone())));
        self.0.tasks.spawn(name, async move {
            let _end = end;
            work.await;
        });
        self.sinks().push(Running { settings, machine: machine.to_owned(), counts, close, ended });
    }

    /// Returns when all destinations have ended after `stop`, or as soon as one has panicked.
    pub async fn run(self) {
        tokio::select! {
            () = self.0.stop.cancelled() => {}
            () = self.0.tasks.panicked() => return,
        }
        self.0.tasks.finish(DRAIN_TIMEOUT * 2).await;
    }

    /// Returns the current counters.
    pub fn stats(&self) -> Vec<DeliveryStats> {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stats = |sink: &Running| {
            let name = sink.settings.name();
            let queued = self.0.outbox.waiting(&name);
            let counts = &sink.counts;
            let (sent, failed, refused) =
                (number(&counts.sent), number(&counts.failed), number(&counts.refused));
            DeliveryStats { name, sent, failed, refused, queued }
        };
        self.sinks().iter().map(stats).collect()
    }

    fn sinks(&self) -> MutexGuard<'_, Vec<Running>> {
        self.0.sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task that delivers the entries of one destination, in order.
struct Sink {
    channel: Channel,
    destination: Destination,
    machine: String,
    /// The epoch of the entries' sequence numbers.
    epoch: String,
    counts: Arc<Counts>,
    trouble: Option<Trouble>,
    pause: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Transient,
    Misconfigured,
}

impl Sink {
    /// Delivers until `stop` is cancelled, then drains the queue within [`DRAIN_TIMEOUT`].
    async fn run(mut self, stop: CancellationToken) {
        loop {
            let wait = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                wait = self.step() => wait,
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(wait) => {}
            }
        }
        let drain = async { while !self.destination.is_empty() && self.step().await.is_zero() {} };
        let in_time = tokio::time::timeout(DRAIN_TIMEOUT, drain).await.is_ok();
        if !in_time || !self.destination.is_empty() {
            let name = self.channel.name();
            tracing::info!(destination = name, "queued entries are delivered after the next start");
        }
    }

    /// Waits for entries and sends them. Returns the delay before the next step.
    async fn step(&mut self) -> Duration {
        let mut items = self.destination.next_batch(self.channel.batch()).await;
        let wants = |item: &Item| item.is_loss || self.channel.wants(&item.entry);
        if let [first, ..] = &items[..]
            && !wants(first)
        {
            self.destination.done(first);
            return Duration::ZERO;
        }
        items.truncate(items.iter().take_while(|item| wants(item)).count());
        let entries: Vec<PushedEntry> = items.iter().map(|item| self.pushed(item)).collect();
        let outcome = self.channel.send_some(&entries).await;
        self.settle(&items, outcome)
    }

    fn pushed(&self, item: &Item) -> PushedEntry {
        let mut entry = (*item.entry).clone();
        entry.machine.clone_from(&self.machine);
        let epoch = item.seq.is_some().then(|| self.epoch.clone());
        PushedEntry { image: entry.image.take(), entry, seq: item.seq, epoch, agent: None }
    }

    fn refused(&self, item: &Item, why: &str) {
        self.counts.refused.fetch_add(1, Ordering::Relaxed);
        let (destination, service, event) =
            (self.channel.name(), &item.entry.service, item.entry.event.as_str());
        tracing::error!(destination, service, event, why, "an entry was refused and is not sent again");
    }

    /// Removes the settled items from the queue. Returns the delay before the next step.
    fn settle(&mut self, items: &[Item], outcome: Result<Sent, DeliveryError>) -> Duration {
        let destination = self.channel.name();
        let (trouble, why, wait) = match outcome {
            Ok(sent) => {
                let settled = &items[..sent.settled.min(items.len())];
                let taken = settled.len().saturating_sub(sent.refused.len());
                self.counts.sent.fetch_add(taken as u64, Ordering::Relaxed);
                for (at, why) in &sent.refused {
                    if let Some(item) = settled.get(*at) {
                        self.refused(item, why);
                    }
                }
                if let Some(last) = settled.last() {
                    self.destination.done(last);
                }
                if self.trouble.take().is_some() {
                    tracing::info!(destination, "entries are delivered again");
                }
                self.pause = FIRST_PAUSE;
                return Duration::ZERO;
            }
            Err(DeliveryError::Permanent { why }) => {
                if let Some(first) = items.first() {
                    self.refused(first, &why);
                    self.destination.done(first);
                }
                return Duration::ZERO;
            }
            Err(DeliveryError::Transient { why, after }) => {
                let wait = after.unwrap_or_else(|| jitter(self.pause));
                self.pause = LAST_PAUSE.min(self.pause * 2);
                (Trouble::Transient, why, wait)
            }
            Err(DeliveryError::Misconfigured { why }) => {
                (Trouble::Misconfigured, why, jitter(MISCONFIGURED_PAUSE))
            }
        };
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        if self.trouble == Some(trouble) {
            tracing::debug!(destination, why, "entries still can't be delivered");
        } else {
            tracing::warn!(destination, why, "entries can't be delivered; they stay queued and are retried");
        }
        self.trouble = Some(trouble);
        wait
    }
}

/// Returns between 75 % and 100 % of the pause, so that many agents do not retry at the same instant.
fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(1.0 - fastrand::f64() / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_spread_but_never_longer() {
        let pauses: Vec<_> = (0..200).map(|_| jitter(Duration::from_secs(40))).collect();
        assert!(pauses.iter().all(|pause| (30.0..=40.0).contains(&pause.as_secs_f64())));
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
