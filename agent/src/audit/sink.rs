//! Common behaviour of all remote destinations: retry, backoff, ordering, counters, shutdown and replacement at runtime.
//! A channel only renders (DECISIONS 5).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_common::backoff::{Backoff, jittered};
use evenkeel_common::clock::Clock;
use evenkeel_common::queue::{Destination, Item, Outbox};
use evenkeel_common::supervisor::TaskSet;
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Audit;
use super::channel::Channel;
use super::channels::Settings;
use super::delivery::DeliveryError;
use super::receiver::Sent;
use crate::PROGRAM;
use crate::model::text;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_mins(1);
/// After this many refusals of an entry, the ones after it are tried (DECISIONS 5).
const REFUSALS: u32 = 3;
/// An entry that gets no answer for this long is treated like a refused one; a channel that delivers nothing for this long is
/// reported.
const LONG: Duration = Duration::from_mins(10);
/// Maximum number of entries after a refused one that are tried to find one that the receiver accepts.
const AHEAD: usize = 1000;
/// The beginning of a warning about a destination.
pub const UNDELIVERED: &str = "nothing has been delivered since";
/// How long a destination may continue after shutdown was requested; remaining entries are sent after the next start.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Delivery counters of a destination since the program started.
#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    trouble: Mutex<Option<Trouble>>,
}

/// Why nothing is delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Trouble {
    /// When the first attempt failed.
    since: Timestamp,
    /// The same by the monotonic clock.
    began: Instant,
    /// Why the last one failed.
    why: String,
    /// How often the receiver has refused the oldest entry.
    refusals: u32,
    /// How many of the entries after it were refused, too.
    refused_after: usize,
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
    clock: Arc<dyn Clock>,
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
    pub fn new(outbox: Outbox, clock: Arc<dyn Clock>, stop: CancellationToken) -> Self {
        let (sinks, tasks) = (Mutex::default(), TaskSet::new());
        Self(Arc::new(Inner { outbox, clock, sinks, tasks, stop }))
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
        let names: Vec<String> = settings.iter().map(Settings::name).chain(names_of_off(off)).collect();
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
            audit: Audit::new(self.0.outbox.clone()),
            clock: self.0.clock.clone(),
            backoff: Backoff::new(FIRST_PAUSE, LAST_PAUSE),
            singly: 0,
            at_once: usize::MAX,
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

    /// Returns a warning for each destination to which nothing could be delivered for a while: `<key>: <since when and why>`.
    pub fn warnings(&self) -> Vec<String> {
        let warning = |sink: &Running| {
            let trouble =
                sink.counts.trouble.lock().clone().filter(|trouble| trouble.began.elapsed() >= LONG)?;
            let since = text::seconds(trouble.since);
            Some(format!("{}: {UNDELIVERED} {since}: {}", sink.settings.key(), trouble.why))
        };
        self.sinks().iter().filter_map(warning).collect()
    }

    fn sinks(&self) -> MutexGuard<'_, Vec<Running>> {
        self.0.sinks.lock()
    }
}

/// The names that the outbox keeps for destinations that are off: several recipients have a queue each.
pub fn names_of_off(off: &[String]) -> impl Iterator<Item = String> {
    off.iter().flat_map(|name| [name.clone(), format!("{name}/*")])
}

/// A task that delivers the entries of one destination, in order.
struct Sink {
    channel: Channel,
    destination: Destination,
    machine: String,
    /// The epoch of the entries' sequence numbers.
    epoch: String,
    counts: Arc<Counts>,
    audit: Audit,
    clock: Arc<dyn Clock>,
    backoff: Backoff,
    /// How many entries are sent one at a time, after several at once were refused.
    singly: usize,
    /// How many entries are sent at once: fewer after several got no answer, more again after some were delivered. A slow
    /// line may not carry a full array in time, and a proxy may drop one because of a single entry.
    at_once: usize,
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
        let limit = if self.singly > 0 { 1 } else { self.channel.batch().min(self.at_once) };
        let mut items = self.destination.next_batch(limit).await;
        if let [first, ..] = &items[..]
            && !self.wants(first)
        {
            self.destination.done(first);
            return Duration::ZERO;
        }
        items.truncate(items.iter().take_while(|item| self.wants(item)).count());
        let failure = match self.send(&items).await {
            Ok(sent) => {
                self.settle(&items, &sent);
                return Duration::ZERO;
            }
            Err(failure) => failure,
        };
        let Some(first) = items.first() else { return Duration::ZERO };
        if let DeliveryError::Permanent { why } = failure {
            self.set_aside(first, &why);
            self.destination.done(first);
            // The next one has not been refused yet.
            if let Some(trouble) = self.counts.trouble.lock().as_mut() {
                (trouble.refusals, trouble.refused_after) = (0, 0);
            }
            return Duration::ZERO;
        }
        let trouble = self.note(&failure);
        // Such an answer says nothing against the entry.
        let asks_for_pause = matches!(failure, DeliveryError::Transient { after: Some(_), .. });
        if items.len() > 1 && matches!(failure, DeliveryError::Refused { .. }) {
            // One of them may be the reason.
            self.singly = items.len();
        } else if items.len() > 1 {
            self.at_once = items.len() / 2;
        } else if (matches!(failure, DeliveryError::Refused { .. }) && trouble.refusals >= REFUSALS
            || trouble.began.elapsed() >= LONG && !asks_for_pause)
            && self.passes(first, trouble.refused_after).await
        {
            return Duration::ZERO;
        }
        let pause = jittered(self.backoff.failed());
        match failure {
            DeliveryError::Transient { after: Some(after), .. } => after,
            _ => pause,
        }
    }

    fn wants(&self, item: &Item) -> bool {
        item.is_loss || self.channel.wants(&item.entry)
    }

    async fn send(&self, items: &[Item]) -> Result<Sent, DeliveryError> {
        let entries: Vec<AuditEntry> = items.iter().map(|item| self.outgoing(item)).collect();
        self.channel.send_some(&entries).await
    }

    /// Returns the entry as it leaves this machine.
    fn outgoing(&self, item: &Item) -> AuditEntry {
        let epoch = item.seq.is_some().then(|| self.epoch.clone());
        AuditEntry { machine: self.machine.clone(), seq: item.seq, epoch, ..(*item.entry).clone() }
    }

    /// Removes the settled items from the queue.
    fn settle(&mut self, items: &[Item], sent: &Sent) {
        let settled = &items[..sent.settled.min(items.len())];
        let taken = settled.len().saturating_sub(sent.refused.len());
        self.counts.sent.fetch_add(taken as u64, Ordering::Relaxed);
        for (at, why) in &sent.refused {
            if let Some(item) = settled.get(*at) {
                self.set_aside(item, why);
            }
        }
        if let Some(last) = settled.last() {
            self.destination.done(last);
        }
        self.singly = self.singly.saturating_sub(settled.len());
        if settled.len() >= self.at_once {
            self.at_once = self.at_once.saturating_mul(2);
        }
        if self.counts.trouble.lock().take().is_some() {
            tracing::info!(destination = self.channel.name(), "entries are delivered again");
        }
        self.backoff.succeeded();
    }

    /// Counts a failed attempt to deliver the oldest entry.
    fn note(&self, failure: &DeliveryError) -> Trouble {
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        let (destination, why) = (self.channel.name(), failure.to_string());
        let mut trouble = self.counts.trouble.lock();
        if trouble.is_some() {
            tracing::debug!(destination, why, "entries still can't be delivered");
        } else {
            tracing::warn!(destination, why, "entries can't be delivered; they stay queued and are retried");
        }
        let noted = trouble.get_or_insert_with(|| Trouble {
            since: self.clock.now(),
            began: Instant::now(),
            why: String::new(),
            refusals: 0,
            refused_after: 0,
        });
        noted.refusals += u32::from(matches!(failure, DeliveryError::Refused { .. }));
        noted.why = why;
        noted.clone()
    }

    /// Tries an entry after a refused one. If the receiver accepts that, the refusal was about the entry: those before it are
    /// tried once more, and set aside if they are refused again. Otherwise the channel is at fault, or the entry after that is
    /// to be tried. Returns whether the queue has moved.
    async fn passes(&mut self, first: &Item, refused_after: usize) -> bool {
        let mut before = vec![first.clone()];
        let mut last = first.clone();
        while before.len() <= AHEAD {
            let Some(item) = self.destination.after(&last).await else { break };
            last = item;
            if !self.wants(&last) {
                continue;
            }
            if before.len() <= refused_after {
                before.push(last.clone());
                continue;
            }
            return match self.send(std::slice::from_ref(&last)).await {
                Ok(sent) => {
                    let is_settled = self.pass(&before).await;
                    if is_settled {
                        self.settle(std::slice::from_ref(&last), &sent);
                    }
                    is_settled
                }
                Err(DeliveryError::Transient { .. }) => false,
                Err(DeliveryError::Refused { .. } | DeliveryError::Permanent { .. }) => {
                    self.set_refused_after(refused_after + 1);
                    false
                }
            };
        }
        // All that wait have been refused; the next round begins with the first of them.
        self.set_refused_after(0);
        false
    }

    fn set_refused_after(&self, count: usize) {
        if let Some(trouble) = self.counts.trouble.lock().as_mut() {
            trouble.refused_after = count;
        }
    }

    /// Sends entries once more, after a later one was accepted, and sets those aside that are refused again. Returns whether
    /// all are settled: one without an answer stays in the queue, and the later one is sent again after it.
    async fn pass(&self, items: &[Item]) -> bool {
        for item in items {
            match self.send_patiently(item).await {
                Ok(sent) if sent.refused.is_empty() => {
                    self.counts.sent.fetch_add(1, Ordering::Relaxed);
                }
                Ok(sent) => {
                    let why = sent.refused.first().map(|(_, why)| why.as_str());
                    self.set_aside(item, why.unwrap_or_default());
                }
                Err(DeliveryError::Transient { after, .. })
                    if after.is_some() || !self.is_silent_for_long() =>
                {
                    return false;
                }
                Err(failure) => self.set_aside(item, &failure.to_string()),
            }
            self.destination.done(item);
        }
        true
    }

    /// Sends an entry, several times while there is no answer. One that asks for a pause is an answer.
    async fn send_patiently(&self, item: &Item) -> Result<Sent, DeliveryError> {
        let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        for _ in 1..REFUSALS {
            match self.send(std::slice::from_ref(item)).await {
                Err(DeliveryError::Transient { after: None, .. }) => {
                    tokio::time::sleep(jittered(backoff.failed())).await;
                }
                outcome => return outcome,
            }
        }
        self.send(std::slice::from_ref(item)).await
    }

    fn is_silent_for_long(&self) -> bool {
        self.counts.trouble.lock().as_ref().is_some_and(|trouble| trouble.began.elapsed() >= LONG)
    }

    /// Records that an entry is not sent again. An entry about that is not reported in turn.
    fn set_aside(&self, item: &Item, why: &str) {
        self.counts.refused.fetch_add(1, Ordering::Relaxed);
        let (destination, entry) = (self.channel.name(), &item.entry);
        let (service, event) = (&entry.service, entry.event.as_str());
        tracing::error!(destination, service, event, why, "an entry was refused and is not sent again");
        if entry.event == Kind::NOT_DELIVERED {
            return;
        }
        let message = format!(
            "{destination} does not accept the entry {event} of {service} from {}; it is not sent there again",
            text::seconds(entry.timestamp)
        );
        let told = AuditEntry::new(self.clock.now(), PROGRAM, Kind::NOT_DELIVERED, Level::Warning, message);
        self.audit.record(AuditEntry { reason: Some(why.to_owned()), ..told });
    }
}

#[cfg(test)]
#[path = "sink_tests.rs"]
mod tests;
