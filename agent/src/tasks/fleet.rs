//! Hears what the fleet decides (DECISIONS 8): a long poll at the wardens, kept durable, so that what is known holds after
//! a restart and while no warden answers.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::store::Store;
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::PROGRAM;
use crate::config::active::Watch;
use crate::config::{Config, FleetTerms, PushConfig};
use crate::ports::fleet::{Fleet, FleetError, Known};
use crate::project::worker::Record;
use crate::service::fleet::{FleetView, Link};

/// Key of what is known in the store.
pub const STORED: &str = "fleet";
/// How long a warden may keep a question.
const WAIT: Duration = Duration::from_secs(50);
/// Least time between two questions, whatever the answers.
const PACE: Duration = Duration::from_millis(500);
/// Time between two questions to a warden that answers at once although nothing has changed.
const IMPATIENT_PACE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_mins(1);
/// How long no warden may answer, after the first question in vain, before the fleet counts as away.
const SILENCE: Duration = Duration::from_secs(30);
/// How long a fleet that was there must be denied before it counts as gone; and how often a warden is asked that knows of
/// none.
const GONE: SignedDuration = SignedDuration::from_hours(1);
const GONE_PAUSE: Duration = Duration::from_hours(1);

/// Uses the wardens of a configuration from now on.
pub type ReplaceWardens = Box<dyn Fn(Option<&PushConfig>) -> Result<(), String> + Send + Sync>;

/// The task that listens.
pub struct FleetListener {
    /// The wardens.
    pub fleet: Arc<dyn Fleet>,
    /// How they are exchanged.
    pub replace: ReplaceWardens,
    /// Where it is shown what is known.
    pub view: watch::Sender<Arc<FleetView>>,
    /// Where that is kept.
    pub store: Arc<dyn Store>,
    /// The configuration in force.
    pub active: Watch,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Audit.
    pub record: Record,
}

/// What is known from earlier lives, for this configuration.
pub async fn load(store: &dyn Store, config: &Config, now: Timestamp) -> FleetView {
    let row = store.get(STORED).await.ok().flatten();
    let known: FleetView = row.and_then(|row| serde_json::from_slice(&row).ok()).unwrap_or_default();
    configured(known, config, now)
}

/// What is known, for this configuration. A push that is off for a fault is a fleet whose wardens do not answer: what it has
/// decided holds, and a machine of a later ring waits.
fn configured(known: FleetView, config: &Config, now: Timestamp) -> FleetView {
    let link = if known.link == Link::None { Link::Unknown } else { known.link };
    match (&config.push, config.fleet_cut_off) {
        (Some(push), _) => {
            let warden = push.warden_urls.first().cloned().unwrap_or_default();
            FleetView { link, warden, ring: push.ring, patience: push.patience, ..known }
        }
        (None, Some(FleetTerms { ring, patience })) => FleetView { link, ring, patience, ..known }.away(now),
        (None, None) => FleetView { contact: known.contact, ..FleetView::default() },
    }
}

impl FleetListener {
    /// Listens until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        // Being told to stop is the only end.
        let _ = stop.run_until_cancelled(self.listen()).await;
    }

    async fn listen(mut self) {
        loop {
            let config = self.active.borrow_and_update().config.clone();
            if let Err(why) = (self.replace)(config.push.as_ref()) {
                tracing::warn!("the fleet is not asked: {why}");
            }
            let known = (**self.view.borrow()).clone();
            self.show(configured(known, &config, self.clock.now())).await;
            let wanted = |config: &Config| (config.push.clone(), config.fleet_cut_off);
            let is_other = async |active: &mut Watch| {
                // An error means that the program is stopping.
                let _ = active.wait_for(|active| wanted(&active.config) != wanted(&config)).await;
            };
            let mut active = self.active.clone();
            if config.push.is_none() {
                is_other(&mut active).await;
            } else {
                tokio::select! {
                    () = is_other(&mut active) => {}
                    () = self.poll() => {}
                }
            }
        }
    }

    /// Asks again and again.
    async fn poll(&self) {
        let (mut pause, mut is_first) = (FIRST_PAUSE, true);
        let (mut away_at, mut gone_since) = (None, None);
        loop {
            let begin = Instant::now();
            let known = {
                let view = self.view.borrow();
                Known { revision: view.revision, verdicts: view.verdicts }
            };
            // The first answer tells that there is a warden.
            let wait = if is_first { Duration::ZERO } else { WAIT };
            let now = || self.clock.now();
            match self.away_from(away_at, self.fleet.decisions(known, wait)).await {
                Ok(heard) => {
                    (away_at, gone_since, pause) = (None, None, FIRST_PAUSE);
                    let Known { revision, verdicts } = known;
                    let is_news =
                        (heard.decisions.revision, heard.decisions.verdicts) != (revision, verdicts);
                    let is_stale = heard.decisions.store.is_some();
                    let known = self.view.borrow().clone();
                    let contact = known.contact + u64::from(is_first);
                    let heard = known.heard(heard.decisions, heard.date, now());
                    self.show(FleetView { contact, ..heard }).await;
                    let is_early = is_stale || !is_news && !is_first && begin.elapsed() < WAIT / 2;
                    tokio::time::sleep(if is_early { IMPATIENT_PACE } else { PACE }).await;
                    is_first = false;
                }
                Err(FleetError::NoFleet) => {
                    away_at = None;
                    let since = *gone_since.get_or_insert_with(now);
                    let known = self.view.borrow().clone();
                    let was_there = matches!(known.link, Link::Present | Link::Away { .. });
                    if was_there && now().duration_since(since) < GONE {
                        // A proxy may answer so for a warden that is down.
                        self.show(known.away(now())).await;
                        tokio::time::sleep(jitter(LAST_PAUSE)).await;
                    } else {
                        self.show(known.without_fleet()).await;
                        tokio::time::sleep(jitter(GONE_PAUSE)).await;
                    }
                    is_first = true;
                }
                // One that has no time for long does not count as there, either: nobody knows what it decides.
                Err(error @ (FleetError::Away(_) | FleetError::Busy)) => {
                    tracing::debug!("no warden answers: {error}");
                    is_first = true;
                    away_at = away_at.or_else(|| Some(Instant::now() + SILENCE));
                    self.away_from(away_at, tokio::time::sleep(jitter(pause))).await;
                    pause = LAST_PAUSE.min(pause * 2);
                }
            }
        }
    }

    /// Waits for something; shows that the fleet is away as soon as it counts as that. Neither a question that nobody
    /// answers nor a long pause puts that off.
    async fn away_from<T>(&self, away_at: Option<Instant>, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        if let Some(at) = away_at {
            tokio::select! {
                biased;
                done = &mut future => return done,
                () = tokio::time::sleep_until(at) => {}
            }
            let known = self.view.borrow().clone();
            self.show(known.away(self.clock.now())).await;
        }
        future.await
    }

    /// Shows and keeps what is known from now on, and says when the fleet goes and comes.
    async fn show(&self, view: FleetView) {
        let before = self.view.borrow().clone();
        if *before == view {
            return;
        }
        match (before.link, view.link) {
            (Link::Present, Link::Away { .. }) => {
                let message = "no warden answers; updates go on without the fleet, by what is known of it";
                self.say(Level::Warning, message);
            }
            (Link::Away { .. }, Link::Present) => self.say(Level::Info, "a warden answers again"),
            _ => {}
        }
        let row = (view.link != Link::None).then(|| serde_json::to_vec(&view).ok()).flatten();
        // Whoever watches over the state says when it can't be written; what is known holds all the same.
        let _ = self.store.put_all(vec![(STORED.to_owned(), row)]).await;
        self.view.send_replace(Arc::new(view));
    }

    fn say(&self, level: Level, message: &str) {
        (self.record)(AuditEntry::new(self.clock.now(), PROGRAM, Kind::FLEET_AWAY, level, message));
    }
}

/// Between three quarters of the pause and all of it, so that many agents do not come back at the same instant.
fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(1.0 - fastrand::f64() / 4.0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;

    use async_trait::async_trait;
    use evenkeel_common::clock::TokioClock;
    use evenkeel_common::config::Configuration;
    use evenkeel_common::store::MemoryStore;
    use evenkeel_common::wire::{FleetAnswer, FleetAsk, FleetDecisions, Inventory};
    use jiff::Timestamp;
    use tokio::time::timeout;

    use super::*;
    use crate::config::Config;
    use crate::config::active::ActiveConfig;
    use crate::ports::fleet::Heard;

    /// A warden that is asked for its decisions only.
    #[async_trait]
    trait Decides: Send + Sync + 'static {
        async fn decisions(&self, known: Known, wait: Duration) -> Result<Heard, FleetError>;
    }

    struct Only<T>(Arc<T>);

    #[async_trait]
    impl<T: Decides> Fleet for Only<T> {
        async fn decisions(&self, known: Known, wait: Duration) -> Result<Heard, FleetError> {
            self.0.decisions(known, wait).await
        }

        async fn ask(&self, _: &FleetAsk) -> Result<FleetAnswer, FleetError> {
            Err(FleetError::NoFleet)
        }

        async fn release(&self, _: &FleetAsk) -> Result<(), FleetError> {
            Err(FleetError::NoFleet)
        }

        async fn report(&self, _: &Inventory) -> Result<(), FleetError> {
            Err(FleetError::NoFleet)
        }
    }

    /// A warden that answers once, and then takes some time to give no answer.
    struct Gone {
        takes: Duration,
        /// When questions ended in vain.
        failed: Mutex<Vec<Instant>>,
        asked: Mutex<Vec<Known>>,
    }

    const HEARD: Known = Known { revision: 3, verdicts: 2 };

    #[async_trait]
    impl Decides for Gone {
        async fn decisions(&self, known: Known, _: Duration) -> Result<Heard, FleetError> {
            self.asked.lock().unwrap().push(known);
            if known != HEARD {
                let Known { revision, verdicts } = HEARD;
                let decisions = FleetDecisions { revision, verdicts, ..FleetDecisions::default() };
                return Ok(Heard { decisions, date: None });
            }
            tokio::time::sleep(self.takes).await;
            self.failed.lock().unwrap().push(Instant::now());
            Err(FleetError::Away("no connection".to_owned()))
        }
    }

    /// Wardens that are cut off from their store and answer in turn.
    struct CutOff(Mutex<u64>);

    #[async_trait]
    impl Decides for CutOff {
        async fn decisions(&self, _: Known, _: Duration) -> Result<Heard, FleetError> {
            let mut asked = self.0.lock().unwrap();
            *asked += 1;
            let (revision, store) = (*asked % 2, Some("away".to_owned()));
            Ok(Heard {
                decisions: FleetDecisions { revision, store, ..FleetDecisions::default() },
                date: None,
            })
        }
    }

    fn listener<T: Decides>(fleet: Arc<T>, record: Record) -> FleetListener {
        let config = Config::parse("{}", Path::new("c.json"), &|_| None).unwrap();
        let active = ActiveConfig { config: Arc::new(config), warnings: Arc::default() };
        let link = Link::Unknown;
        FleetListener {
            fleet: Arc::new(Only(fleet)),
            replace: Box::new(|_| Ok(())),
            view: watch::Sender::new(Arc::new(FleetView { link, ..FleetView::default() })),
            store: Arc::new(MemoryStore::default()),
            active: watch::channel(active).1,
            clock: Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH)),
            record,
        }
    }

    #[test]
    fn a_push_that_is_off_for_a_fault_keeps_what_the_fleet_has_decided() {
        let config = |text: &str| Config::parse(text, Path::new("c.json"), &|_| None).unwrap();
        let (now, known) =
            (Timestamp::UNIX_EPOCH, FleetView { link: Link::Present, revision: 7, ..FleetView::default() });
        let faulty =
            config(r#"{"push": {"warden_url": "http://w", "token": "$NOT_SET", "ring": 5, "patience": 60}}"#);
        let view = configured(known.clone(), &faulty, now);
        assert_eq!((view.link, view.revision), (Link::Away { since: now }, 7));
        assert_eq!((view.ring, view.patience), (5, Duration::from_mins(1)));
        // A machine that has never heard of its fleet waits as well.
        assert_eq!(configured(FleetView::default(), &faulty, now).link, Link::Away { since: now });
        // Whoever takes the push out of the file leaves the fleet.
        assert_eq!(configured(known, &config("{}"), now), FleetView::default());
    }

    /// A warden that fails every third question.
    struct Restarted(Mutex<u64>);

    #[async_trait]
    impl Decides for Restarted {
        async fn decisions(&self, _: Known, wait: Duration) -> Result<Heard, FleetError> {
            tokio::time::sleep(wait).await;
            let mut asked = self.0.lock().unwrap();
            *asked += 1;
            if (*asked).is_multiple_of(3) {
                return Err(FleetError::Away("no connection".to_owned()));
            }
            Ok(Heard { decisions: FleetDecisions::default(), date: None })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_warden_that_is_heard_again_counts_as_one_that_knows_nothing_yet() {
        let listener = listener(Arc::new(Restarted(Mutex::default())), Arc::new(|_| ()));
        assert_eq!(listener.view.borrow().contact, 0);
        // Heard at 0 s and at 50 s, missed at 100 s.
        let _ = timeout(Duration::from_secs(90), listener.poll()).await;
        assert_eq!(listener.view.borrow().contact, 1);
        let _ = timeout(Duration::from_secs(160), listener.poll()).await;
        assert_eq!(listener.view.borrow().contact, 3, "once for the new start, once after the silence");
        assert_eq!(listener.view.borrow().without_fleet().contact, 3, "it never counts anew");
    }

    #[tokio::test(start_paused = true)]
    async fn wardens_that_are_all_cut_off_are_not_asked_without_a_pause() {
        let fleet = Arc::new(CutOff(Mutex::default()));
        let listener = listener(fleet.clone(), Arc::new(|_| ()));
        let _ = timeout(Duration::from_mins(1), listener.poll()).await;
        let asked = *fleet.0.lock().unwrap();
        assert!((12..=13).contains(&asked), "every five seconds, and not {asked} times");
        assert_eq!(listener.view.borrow().link, Link::Present);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fleet_is_away_half_a_minute_after_the_first_question_in_vain() {
        // The pauses between two questions, and a question that hangs, are longer than what is left of the time.
        for takes in [Duration::ZERO, Duration::from_secs(10), Duration::from_secs(25)] {
            let gone = Arc::new(Gone { takes, failed: Mutex::default(), asked: Mutex::default() });
            let said = Arc::new(Mutex::new(Vec::new()));
            let sink = said.clone();
            let record = move |entry: AuditEntry| sink.lock().unwrap().push((entry.event, Instant::now()));
            let listener = listener(gone.clone(), Arc::new(record));
            let _ = timeout(Duration::from_mins(5), listener.poll()).await;
            let first = gone.failed.lock().unwrap()[0];
            let said = said.lock().unwrap().clone();
            assert_eq!(said, [(Kind::FLEET_AWAY, first + SILENCE)], "once, {takes:?}");
            let asked = gone.asked.lock().unwrap().clone();
            assert_eq!(asked[..2], [Known::default(), HEARD]);
            assert!(asked.len() < 14, "{takes:?}: it was asked {} times", asked.len());
        }
    }
}
