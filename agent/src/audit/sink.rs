//! What every destination outside this machine has in common: retry, back-off, order, counting, ending. A channel
//! only renders (DECISIONS 5).

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_common::queue::{Destination, Item, Outbox};
use evenkeel_common::secret::Secret;
use evenkeel_common::wire::AuditEntry;
use tokio_util::sync::CancellationToken;

use super::letter::{Fault, Letter};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_mins(1);
/// Between two tries where only a person can help.
const DENIED_PAUSE: Duration = Duration::from_mins(1);
/// How long a destination may go on after the program was asked to stop; what is left goes out after the next start.
const FAREWELL: Duration = Duration::from_secs(5);

/// One way out. It knows what to send and to whom; [`Sink`] does the rest.
pub trait Channel: Send + Sync + 'static {
    /// Unique name: in logs, metrics, and as the key of the channel's place in the outbox.
    fn name(&self) -> &str;

    /// Whether the entry is for this channel.
    fn wants(&self, entry: &AuditEntry) -> bool;

    /// The entry as this channel sends it. `seq` is its number in the outbox.
    fn render(&self, entry: &AuditEntry, seq: Option<u64>) -> Result<Letter, String>;

    /// What must not get into a log line, even when the other side repeats it.
    fn secrets(&self) -> Vec<&Secret>;
}

/// Sends one entry through a channel, once, and returns what the other side answered.
pub async fn send(channel: &dyn Channel, entry: &AuditEntry, seq: Option<u64>) -> Result<String, Fault> {
    let outcome = match channel.render(entry, seq) {
        Ok(letter) => letter.send().await,
        Err(why) => Err(Fault::Refused { why }),
    };
    let secrets = channel.secrets();
    outcome
        .map(|answer| scrub(answer, &secrets))
        .map_err(|fault| fault.map_text(|text| scrub(text, &secrets)))
}

fn scrub(mut text: String, secrets: &[&Secret]) -> String {
    for secret in secrets {
        // Shorter ones would only make the text unreadable.
        if secret.expose().len() >= 4 {
            text = text.replace(secret.expose(), "(redacted)");
        }
    }
    text
}

/// What became of a destination's entries since the program started.
#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
}

/// The destinations' numbers at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    /// The channel's name.
    pub name: String,
    /// Entries that the other side took.
    pub sent: u64,
    /// Tries that failed and were or will be made again.
    pub failed: u64,
    /// Entries that the other side does not want, whatever one does; they are not tried again.
    pub refused: u64,
    /// Entries that wait.
    pub queued: u64,
}

/// All destinations' numbers, for the metrics.
#[derive(Clone)]
pub struct Deliveries {
    outbox: Outbox,
    counts: Arc<Vec<(String, Arc<Counts>)>>,
}

impl Deliveries {
    /// The numbers now.
    pub fn tally(&self) -> Vec<Tally> {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let tally = |(name, counts): &(String, Arc<Counts>)| Tally {
            name: name.clone(),
            sent: number(&counts.sent),
            failed: number(&counts.failed),
            refused: number(&counts.refused),
            queued: self.outbox.waiting(name),
        };
        self.counts.iter().map(tally).collect()
    }
}

/// A task that delivers the entries of one destination, in order.
pub struct Sink {
    channel: Arc<dyn Channel>,
    destination: Destination,
    machine: String,
    counts: Arc<Counts>,
    trouble: Option<Trouble>,
    pause: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Passing,
    Denied,
}

/// A sink for each channel, and their numbers. `machine` is what entries say they come from. The outbox must have
/// been opened for these channels.
pub fn sinks(channels: &[Arc<dyn Channel>], outbox: &Outbox, machine: &str) -> (Vec<Sink>, Deliveries) {
    let mut sinks = Vec::new();
    let mut counts = Vec::new();
    for channel in channels {
        let Some(destination) = outbox.destination(channel.name()) else { continue };
        let own = Arc::new(Counts::default());
        counts.push((channel.name().to_owned(), own.clone()));
        sinks.push(Sink {
            channel: channel.clone(),
            destination,
            machine: machine.to_owned(),
            counts: own,
            trouble: None,
            pause: FIRST_PAUSE,
        });
    }
    (sinks, Deliveries { outbox: outbox.clone(), counts: Arc::new(counts) })
}

impl Sink {
    /// The channel's name.
    pub fn name(&self) -> &str {
        self.channel.name()
    }

    /// Delivers until `stop` is cancelled; then hands over what it can in a few seconds.
    pub async fn run(mut self, stop: CancellationToken) {
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
        let farewell = async { while !self.destination.is_empty() && self.step().await.is_zero() {} };
        let in_time = tokio::time::timeout(FAREWELL, farewell).await.is_ok();
        if !in_time || !self.destination.is_empty() {
            let name = self.channel.name();
            tracing::info!(destination = name, "entries that wait are delivered after the next start");
        }
    }

    /// Waits for an entry and sends it. Returns how long to wait before the next step.
    async fn step(&mut self) -> Duration {
        let item = self.destination.next().await;
        if !item.is_loss && !self.channel.wants(&item.entry) {
            self.destination.done(&item);
            return Duration::ZERO;
        }
        let mut entry = (*item.entry).clone();
        entry.machine.clone_from(&self.machine);
        let outcome = send(self.channel.as_ref(), &entry, item.seq).await;
        self.settle(&item, outcome)
    }

    fn settle(&mut self, item: &Item, outcome: Result<String, Fault>) -> Duration {
        let destination = self.channel.name();
        let (trouble, why, wait) = match outcome {
            Ok(_) => {
                self.counts.sent.fetch_add(1, Ordering::Relaxed);
                self.destination.done(item);
                if self.trouble.take().is_some() {
                    tracing::info!(destination, "entries are delivered again");
                }
                self.pause = FIRST_PAUSE;
                return Duration::ZERO;
            }
            Err(Fault::Refused { why }) => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                self.destination.done(item);
                let (service, event) = (&item.entry.service, item.entry.event.as_str());
                tracing::error!(
                    destination,
                    service,
                    event,
                    why,
                    "an entry was refused and is not sent again"
                );
                return Duration::ZERO;
            }
            Err(Fault::Later { why, after }) => {
                let wait = after.unwrap_or_else(|| jitter(self.pause));
                self.pause = LAST_PAUSE.min(self.pause * 2);
                (Trouble::Passing, why, wait)
            }
            Err(Fault::Denied { why }) => (Trouble::Denied, why, jitter(DENIED_PAUSE)),
        };
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        if self.trouble == Some(trouble) {
            tracing::debug!(destination, why, "entries still can't be delivered");
        } else {
            tracing::warn!(destination, why, "entries can't be delivered; they wait and are tried again");
        }
        self.trouble = Some(trouble);
        wait
    }
}

/// Between three quarters of the pause and all of it, so that many agents do not come back at the same instant.
fn jitter(pause: Duration) -> Duration {
    // Each hasher of the standard library has a random seed.
    let random = u32::try_from(RandomState::new().hash_one(0) % 1000).unwrap_or_default();
    pause.mul_f64(f64::from(750 + random / 4) / 1000.0)
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

    #[test]
    fn secrets_are_taken_out_of_answers() {
        let (token, short) = (Secret::new("hunter22"), Secret::new("a"));
        assert_eq!(scrub("bad token hunter22!".into(), &[&token, &short]), "bad token (redacted)!");
    }
}
