//! Receives the fleet's decisions (DECISIONS 8) by long polling the wardens. The decisions are stored, so that they stay in
//! force after a restart and while no warden responds.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::backoff::{Backoff, jittered};
use evenkeel_common::clock::Clock;
use evenkeel_common::store::Store;
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::PROGRAM;
use crate::config::active::Watch;
use crate::config::{Config, FleetTerms, PushConfig};
use crate::ports::fleet::{Fleet, FleetError, KnownRevisions};
use crate::project::world::Record;
use crate::service::fleet::{FleetView, Link};

/// Store key of the fleet view.
pub const STORED: &str = "fleet";
/// Maximum duration of a long poll.
const WAIT: Duration = Duration::from_secs(50);
/// Duration of a long poll while the wardens have no store: nothing ends it when one has its store again, or another warden
/// has one. Not zero: a poll that does not wait counts as the first of a series.
const STORELESS_WAIT: Duration = Duration::from_secs(1);
/// Minimum time between two requests.
const PACE: Duration = Duration::from_millis(500);
/// Time between two requests to a warden that responds at once although nothing has changed.
const IMPATIENT_PACE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_mins(1);
/// Time after the first failed request until the fleet counts as away, and after the first answer without a store until the
/// store does.
const SILENCE: Duration = Duration::from_secs(30);
/// How long the wardens must report that there is no fleet before a former fleet counts as gone; and how often a warden
/// without a fleet is queried.
const GONE: SignedDuration = SignedDuration::from_hours(1);
const GONE_PAUSE: Duration = Duration::from_hours(1);
/// How often the stored view is written if it keeps changing, how many writes may follow each other at once, and the size of
/// one in bytes: a warden must not be able to wear the disk.
const SAVE_EVERY: Duration = Duration::from_secs(10);
const SAVE_BURST: u32 = 6;
const MAX_SAVED: usize = 256 * 1024;
/// Why no warden can be asked if the push is off because of a fault.
const DISABLED: &str = "\"push\" in the configuration file has a fault";
/// A warden that has news more often than this within [`WAIT`] is asked at [`IMPATIENT_PACE`].
const MAX_NEWS: u32 = 20;

/// Replaces the wardens with those of a configuration.
pub type ReplaceWardens = Box<dyn Fn(Option<&PushConfig>) -> Result<(), String> + Send + Sync>;

/// The task that receives the fleet's decisions.
pub struct FleetListener {
    /// The wardens.
    pub fleet: Arc<dyn Fleet>,
    /// Replaces the wardens after a reload.
    pub replace: ReplaceWardens,
    /// Published fleet view.
    pub view: watch::Sender<Arc<FleetView>>,
    /// Stores the fleet view.
    pub store: Arc<dyn Store>,
    /// The active configuration.
    pub active: Watch,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Audit.
    pub record: Record,
    /// What has been stored.
    pub saving: Saving,
}

/// A time in which no warden could be asked.
struct Silence {
    /// When the fleet counts as away.
    away_at: Instant,
    /// Why the last request failed.
    why: String,
}

/// What has been stored of the view, and what is to be stored later.
#[derive(Default)]
pub struct Saving(Mutex<Saved>);

/// The row as it should be; `None`: there is none.
struct Row(Option<Vec<u8>>);

#[derive(Default)]
struct Saved {
    row: Option<Vec<u8>>,
    waiting: Option<Row>,
    /// When the writes so far no longer count.
    until: Option<Instant>,
}

impl Saved {
    /// Returns whether a row may be written now, and counts it.
    fn may_write(&mut self, now: Instant) -> bool {
        let until = self.until.unwrap_or(now).max(now) + SAVE_EVERY;
        let may = until.duration_since(now) <= SAVE_EVERY * SAVE_BURST;
        if may {
            self.until = Some(until);
        }
        may
    }
}

/// Returns the view as it is stored. A view that is too large is stored without the output of failures, and then without the
/// last ones: after a restart, the first answer of a warden brings them back.
fn row_of(view: &FleetView) -> Option<Vec<u8>> {
    let row = serde_json::to_vec(view).ok()?;
    if row.len() <= MAX_SAVED {
        return Some(row);
    }
    let mut view = view.clone();
    view.failed.iter_mut().for_each(|failed| failed.output = None);
    loop {
        let row = serde_json::to_vec(&view).ok()?;
        if row.len() <= MAX_SAVED || view.failed.is_empty() && view.freezes.is_empty() {
            return Some(row);
        }
        let list = view.failed.len();
        view.failed.truncate(list / 2);
        if list == 0 {
            view.freezes.truncate(view.freezes.len() / 2);
        }
    }
}

/// Loads the fleet view of the last run and adapts it to this configuration.
pub async fn load(store: &dyn Store, config: &Config, now: Timestamp) -> FleetView {
    let row = store.get(STORED).await.ok().flatten();
    let known: FleetView = row.and_then(|row| serde_json::from_slice(&row).ok()).unwrap_or_default();
    configured(known, config, now)
}

/// Adapts a fleet view to this configuration. If the push is disabled by a fault, the fleet counts as away: its decisions
/// stay in force, and machines in later rings wait.
fn configured(known: FleetView, config: &Config, now: Timestamp) -> FleetView {
    let link = if known.link == Link::None { Link::Unknown } else { known.link };
    match (&config.push, config.fleet_terms_without_push) {
        (Some(push), _) => {
            let warden = push.warden_urls.first().cloned().unwrap_or_default();
            // A fault that is mended is no reason any more.
            let why_away = known.why_away.filter(|why| why != DISABLED);
            FleetView { link, why_away, warden, ring: push.ring, patience: push.patience, ..known }
        }
        (None, Some(FleetTerms { ring, patience })) => {
            FleetView { link, ring, patience, ..known }.without_answer(DISABLED, now)
        }
        (None, None) => FleetView { contact: known.contact, ..FleetView::default() },
    }
}

impl FleetListener {
    /// Receives decisions until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        // `listen` ends only by cancellation.
        let _ = stop.run_until_cancelled(self.listen()).await;
    }

    async fn listen(mut self) {
        loop {
            let config = self.active.borrow_and_update().config.clone();
            if let Err(why) = (self.replace)(config.push.as_ref()) {
                tracing::warn!("the configured wardens can't be used: {why}");
            }
            let known = (**self.view.borrow()).clone();
            self.show(configured(known, &config, self.clock.now())).await;
            let wanted = |config: &Config| (config.push.clone(), config.fleet_terms_without_push);
            let is_other = async |active: &mut Watch| {
                // An error means that the agent is stopping.
                let _ = active.wait_for(|active| wanted(&active.config) != wanted(&config)).await;
            };
            let mut active = self.active.clone();
            if config.push.is_none() {
                is_other(&mut active).await;
            } else {
                tokio::select! {
                    () = is_other(&mut active) => {}
                    () = self.poll() => {}
                    () = self.save_later() => {}
                }
            }
        }
    }

    /// Polls the wardens until cancelled.
    async fn poll(&self) {
        let (mut backoff, mut is_first) = (Backoff::new(FIRST_PAUSE, LAST_PAUSE), true);
        let (mut silence, mut gone_since) = (None, None);
        let mut storeless_at: Option<Instant> = None;
        let mut news = (Instant::now(), 0);
        let mut unreadable = None;
        loop {
            let begin = Instant::now();
            let known = {
                let view = self.view.borrow();
                KnownRevisions { revision: view.revision, verdicts: view.verdicts }
            };
            // The first request does not wait, so that its response shows whether a warden is present.
            let wait = match storeless_at {
                _ if is_first => Duration::ZERO,
                Some(_) => STORELESS_WAIT,
                None => WAIT,
            };
            let now = || self.clock.now();
            match self.or_away(silence.as_ref(), self.fleet.decisions(known, wait)).await {
                Ok(response) => {
                    (silence, gone_since, unreadable) = (None, None, None);
                    backoff.succeeded();
                    let KnownRevisions { revision, verdicts } = known;
                    let is_news =
                        (response.decisions.revision, response.decisions.verdicts) != (revision, verdicts);
                    let is_stale = response.decisions.store.is_some();
                    storeless_at = is_stale.then(|| storeless_at.unwrap_or_else(|| Instant::now() + SILENCE));
                    let is_storeless = storeless_at.is_some_and(|at| at <= Instant::now());
                    let known = self.view.borrow().clone();
                    let contact = known.contact + u64::from(is_first);
                    let view = known.with_decisions(response.decisions, response.date, now());
                    let store_away = view.store_away.or_else(|| is_storeless.then(now));
                    self.show(FleetView { store_away, contact, ..view }).await;
                    if news.0.elapsed() > WAIT {
                        news = (Instant::now(), 0);
                    }
                    news.1 += u32::from(is_news);
                    let is_early =
                        is_stale || news.1 > MAX_NEWS || !is_news && !is_first && begin.elapsed() < WAIT / 2;
                    tokio::time::sleep(if is_early { IMPATIENT_PACE } else { PACE }).await;
                    is_first = false;
                }
                Err(error @ FleetError::NoFleet) => {
                    silence = None;
                    let since = *gone_since.get_or_insert_with(now);
                    let known = self.view.borrow().clone();
                    let was_there = matches!(known.link, Link::Present | Link::Away { .. });
                    if was_there && now().duration_since(since) < GONE {
                        // A proxy may send this response for a warden that is down.
                        self.show(known.without_answer(&error.to_string(), now())).await;
                        tokio::time::sleep(jittered(LAST_PAUSE)).await;
                    } else {
                        self.show(known.without_fleet()).await;
                        tokio::time::sleep(jittered(GONE_PAUSE)).await;
                    }
                    is_first = true;
                }
                // The decisions that are known stay in force, and updates are held until a warden's answer can be read.
                Err(FleetError::Unreadable(why)) => {
                    if unreadable.replace(why.clone()).as_ref() != Some(&why) {
                        tracing::warn!(
                            "the fleet's decisions cannot be read: {why}; the known ones stay in force"
                        );
                    }
                    (silence, gone_since, is_first) = (None, None, true);
                    let known = self.view.borrow().clone();
                    self.show(known.present()).await;
                    tokio::time::sleep(jittered(backoff.failed())).await;
                }
                // A warden that stays busy counts as away too, because its decisions are unknown.
                Err(error @ (FleetError::Unavailable(_) | FleetError::Busy)) => {
                    tracing::debug!("no warden can be asked: {error}");
                    is_first = true;
                    let away_at =
                        silence.map_or_else(|| Instant::now() + SILENCE, |Silence { away_at, .. }| away_at);
                    silence = Some(Silence { away_at, why: error.to_string() });
                    self.or_away(silence.as_ref(), tokio::time::sleep(jittered(backoff.failed()))).await;
                }
            }
        }
    }

    /// Awaits a future, and publishes that the fleet is away when it has been silent for too long. Neither a hanging request
    /// nor a long pause can delay that.
    async fn or_away<T>(&self, silence: Option<&Silence>, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        if let Some(Silence { away_at, why }) = silence {
            tokio::select! {
                biased;
                done = &mut future => return done,
                () = tokio::time::sleep_until(*away_at) => {}
            }
            let known = self.view.borrow().clone();
            self.show(known.without_answer(why, self.clock.now())).await;
        }
        future.await
    }

    /// Publishes and stores the fleet view, and records when the fleet becomes unreachable or reachable.
    async fn show(&self, view: FleetView) {
        let before = self.view.borrow().clone();
        if *before == view {
            return;
        }
        match (before.link, view.link) {
            (Link::Present, Link::Away { .. }) => {
                let message = if view.ring == 0 {
                    "no warden can be asked; updates continue with the last known decisions of the fleet"
                } else {
                    "no warden can be asked; updates wait for push.patience, and continue then with the last known \
                     decisions of the fleet"
                };
                self.emit(Level::Warning, message, view.why_away.clone());
            }
            (Link::Away { .. }, Link::Present) => self.emit(Level::Info, "a warden answers again", None),
            _ => {}
        }
        match (before.store_away, view.store_away) {
            (None, Some(_)) => {
                let message = "the warden's store is away; updates wait for push.patience, and continue then with the \
                               last known decisions of the fleet";
                self.emit(Level::Warning, message, None);
            }
            (Some(_), None) if view.link == Link::Present => {
                self.emit(Level::Info, "the warden has its store again", None);
            }
            _ => {}
        }
        let row = (view.link != Link::None).then(|| row_of(&view)).flatten();
        self.save(Some(Row(row))).await;
        self.view.send_replace(Arc::new(view));
    }

    /// Stores a row, or what is waiting to be stored. If there have been too many writes, it waits.
    async fn save(&self, row: Option<Row>) {
        let mut saved = self.saving.0.lock().await;
        let Some(Row(row)) = row.or_else(|| saved.waiting.take()) else { return };
        saved.waiting = None;
        if saved.row.is_some() && saved.row == row {
            return;
        }
        if !saved.may_write(Instant::now()) {
            saved.waiting = Some(Row(row));
            return;
        }
        // A failed write is reported by the state health task; the view is used all the same.
        let written = self.store.put_all(vec![(STORED.to_owned(), row.clone())]).await;
        saved.row = row.filter(|_| written.is_ok());
    }

    /// Stores what is waiting, until cancelled.
    async fn save_later(&self) {
        loop {
            tokio::time::sleep(SAVE_EVERY).await;
            self.save(None).await;
        }
    }

    fn emit(&self, level: Level, message: &str, reason: Option<String>) {
        let entry = AuditEntry::new(self.clock.now(), PROGRAM, Kind::FLEET_AWAY, level, message);
        (self.record)(AuditEntry { reason, ..entry });
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use async_trait::async_trait;
    use evenkeel_common::clock::TokioClock;
    use evenkeel_common::config::Configuration;
    use evenkeel_common::store::MemoryStore;
    use evenkeel_common::wire::{FleetAnswer, FleetAsk, FleetDecisions, Inventory};
    use jiff::Timestamp;
    use parking_lot::Mutex;
    use tokio::time::timeout;

    use super::*;
    use crate::config::Config;
    use crate::config::active::ActiveConfig;
    use crate::ports::fleet::DecisionsResponse;

    /// A warden that only serves decisions.
    #[async_trait]
    trait Decides: Send + Sync + 'static {
        async fn decisions(
            &self,
            known: KnownRevisions,
            wait: Duration,
        ) -> Result<DecisionsResponse, FleetError>;
    }

    struct Only<T>(Arc<T>);

    #[async_trait]
    impl<T: Decides> Fleet for Only<T> {
        async fn decisions(
            &self,
            known: KnownRevisions,
            wait: Duration,
        ) -> Result<DecisionsResponse, FleetError> {
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

    /// A warden that responds once; later requests fail after some time.
    struct Gone {
        takes: Duration,
        /// The error of these requests.
        why: &'static str,
        /// When requests failed.
        failed: Mutex<Vec<Instant>>,
        asked: Mutex<Vec<KnownRevisions>>,
    }

    const HEARD: KnownRevisions = KnownRevisions { revision: 3, verdicts: 2 };

    #[async_trait]
    impl Decides for Gone {
        async fn decisions(
            &self,
            known: KnownRevisions,
            _: Duration,
        ) -> Result<DecisionsResponse, FleetError> {
            self.asked.lock().push(known);
            if known != HEARD {
                let KnownRevisions { revision, verdicts } = HEARD;
                let decisions = FleetDecisions { revision, verdicts, ..FleetDecisions::default() };
                return Ok(DecisionsResponse { decisions, date: None });
            }
            tokio::time::sleep(self.takes).await;
            self.failed.lock().push(Instant::now());
            Err(FleetError::Unavailable(self.why.to_owned()))
        }
    }

    impl Gone {
        fn new(takes: Duration, why: &'static str) -> Arc<Self> {
            Arc::new(Self { takes, why, failed: Mutex::default(), asked: Mutex::default() })
        }
    }

    /// Wardens that are disconnected from their store and respond in turn.
    struct WithoutStore(Mutex<u64>);

    #[async_trait]
    impl Decides for WithoutStore {
        async fn decisions(&self, _: KnownRevisions, _: Duration) -> Result<DecisionsResponse, FleetError> {
            let mut asked = self.0.lock();
            *asked += 1;
            let (revision, store) = (*asked % 2, Some("away".to_owned()));
            Ok(DecisionsResponse {
                decisions: FleetDecisions { revision, store, ..FleetDecisions::default() },
                date: None,
            })
        }
    }

    /// A warden that has its store again from the 20th request on.
    struct StoreReturns(Mutex<u64>);

    #[async_trait]
    impl Decides for StoreReturns {
        async fn decisions(&self, _: KnownRevisions, _: Duration) -> Result<DecisionsResponse, FleetError> {
            let mut asked = self.0.lock();
            *asked += 1;
            let store = (*asked < 20).then(|| "away".to_owned());
            Ok(DecisionsResponse {
                decisions: FleetDecisions { store, ..FleetDecisions::default() },
                date: None,
            })
        }
    }

    /// Wardens that are asked in turn, of which some have a store, by the number of the request and the time since the start.
    struct SomeStores {
        begun: Instant,
        asked: Mutex<u64>,
        has_store: fn(u64, Duration) -> bool,
    }

    impl SomeStores {
        fn new(has_store: fn(u64, Duration) -> bool) -> Arc<Self> {
            Arc::new(Self { begun: Instant::now(), asked: Mutex::default(), has_store })
        }
    }

    #[async_trait]
    impl Decides for SomeStores {
        async fn decisions(
            &self,
            _: KnownRevisions,
            wait: Duration,
        ) -> Result<DecisionsResponse, FleetError> {
            tokio::time::sleep(wait).await;
            let mut asked = self.asked.lock();
            *asked += 1;
            let store = (!(self.has_store)(*asked, self.begun.elapsed())).then(|| "away".to_owned());
            Ok(DecisionsResponse {
                decisions: FleetDecisions { store, ..FleetDecisions::default() },
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
            saving: Saving::default(),
        }
    }

    #[test]
    fn a_push_that_is_disabled_by_a_fault_keeps_the_fleets_decisions() {
        let config = |text: &str| Config::parse(text, Path::new("c.json"), &|_| None).unwrap();
        let (now, known) =
            (Timestamp::UNIX_EPOCH, FleetView { link: Link::Present, revision: 7, ..FleetView::default() });
        let faulty =
            config(r#"{"push": {"warden_url": "http://w", "token": "$NOT_SET", "ring": 5, "patience": 60}}"#);
        let view = configured(known.clone(), &faulty, now);
        assert_eq!((view.link, view.revision), (Link::Away { since: now }, 7));
        assert_eq!((view.ring, view.patience), (5, Duration::from_mins(1)));
        // Until a warden has been asked, only the reason of the fault is over.
        let mended = config(r#"{"push": {"warden_url": "http://w", "token": "0123456789abcdef-fake"}}"#);
        assert_eq!(view.why_away.as_deref(), Some(DISABLED));
        let without_fault = configured(view.clone(), &mended, now);
        assert_eq!((without_fault.link, without_fault.why_away), (Link::Away { since: now }, None));
        let refused = FleetView { why_away: Some("refused".to_owned()), ..view };
        assert_eq!(configured(refused, &mended, now).why_away.as_deref(), Some("refused"));
        // A machine that has never reached its fleet waits as well.
        assert_eq!(configured(FleetView::default(), &faulty, now).link, Link::Away { since: now });
        // A machine without a configured push leaves the fleet.
        assert_eq!(configured(known, &config("{}"), now), FleetView::default());
    }

    /// A warden that fails every third request.
    struct Restarted(Mutex<u64>);

    #[async_trait]
    impl Decides for Restarted {
        async fn decisions(
            &self,
            _: KnownRevisions,
            wait: Duration,
        ) -> Result<DecisionsResponse, FleetError> {
            tokio::time::sleep(wait).await;
            let mut asked = self.0.lock();
            *asked += 1;
            if (*asked).is_multiple_of(3) {
                return Err(FleetError::Unavailable("no connection".to_owned()));
            }
            Ok(DecisionsResponse { decisions: FleetDecisions::default(), date: None })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_warden_that_responds_again_counts_as_a_new_contact() {
        let listener = listener(Arc::new(Restarted(Mutex::default())), Arc::new(|_| ()));
        assert_eq!(listener.view.borrow().contact, 0);
        // Responds at 0 s and at 50 s, fails at 100 s.
        let _ = timeout(Duration::from_secs(90), listener.poll()).await;
        assert_eq!(listener.view.borrow().contact, 1);
        let _ = timeout(Duration::from_secs(160), listener.poll()).await;
        assert_eq!(listener.view.borrow().contact, 3, "once for the restart, once after the failure");
        assert_eq!(listener.view.borrow().without_fleet().contact, 3, "the count is never reset");
    }

    #[tokio::test(start_paused = true)]
    async fn wardens_that_are_all_cut_off_from_their_store_are_polled_with_a_pause() {
        let fleet = Arc::new(WithoutStore(Mutex::default()));
        let listener = listener(fleet.clone(), Arc::new(|_| ()));
        let _ = timeout(Duration::from_mins(1), listener.poll()).await;
        let asked = *fleet.0.lock();
        assert!((12..=13).contains(&asked), "every five seconds, and not {asked} times");
        assert_eq!(listener.view.borrow().link, Link::Present);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_stays_away_is_reported_once_after_half_a_minute() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let sink = said.clone();
        let record = move |entry: AuditEntry| sink.lock().push((entry.event, entry.level));
        let listener = listener(Arc::new(StoreReturns(Mutex::default())), Arc::new(record));
        let _ = timeout(Duration::from_secs(29), listener.poll()).await;
        assert_eq!((listener.view.borrow().store_away, said.lock().len()), (None, 0));
        let _ = timeout(Duration::from_secs(40), listener.poll()).await;
        assert!(listener.view.borrow().store_away.is_some());
        assert_eq!(*said.lock(), [(Kind::FLEET_AWAY, Level::Warning)]);
        let _ = timeout(Duration::from_mins(2), listener.poll()).await;
        assert_eq!(listener.view.borrow().store_away, None);
        assert_eq!(*said.lock(), [(Kind::FLEET_AWAY, Level::Warning), (Kind::FLEET_AWAY, Level::Info)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_back_is_known_within_seconds() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let sink = said.clone();
        let record = move |entry: AuditEntry| sink.lock().push(entry.level);
        let fleet = SomeStores::new(|_, passed| passed >= Duration::from_mins(2));
        let listener = listener(fleet, Arc::new(record));
        let _ = timeout(Duration::from_secs(130), listener.poll()).await;
        assert_eq!(
            (listener.view.borrow().store_away, said.lock().clone()),
            (None, vec![Level::Warning, Level::Info])
        );
    }

    #[tokio::test(start_paused = true)]
    async fn two_wardens_without_a_store_are_not_taken_for_all_three() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let sink = said.clone();
        let record = move |entry: AuditEntry| sink.lock().push(entry.event);
        let listener = listener(SomeStores::new(|asked, _| asked > 2), Arc::new(record));
        let _ = timeout(Duration::from_mins(5), listener.poll()).await;
        assert_eq!((listener.view.borrow().store_away, said.lock().len()), (None, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_without_a_store_does_not_begin_anew_with_a_restart() {
        let listener = listener(SomeStores::new(|_, _| false), Arc::new(|_| ()));
        let _ = timeout(Duration::from_mins(1), listener.poll()).await;
        let since = listener.view.borrow().store_away;
        assert!(since.is_some());
        let push = r#"{"push": {"warden_url": "http://w", "token": "0123456789abcdef-fake"}}"#;
        let config = Config::parse(push, Path::new("c.json"), &|_| None).unwrap();
        let stored = load(listener.store.as_ref(), &config, listener.clock.now()).await;
        listener.view.send_replace(Arc::new(stored));
        assert_eq!(listener.view.borrow().store_away, since);
        let _ = timeout(Duration::from_mins(1), listener.poll()).await;
        assert_eq!(listener.view.borrow().store_away, since);
    }

    #[tokio::test(start_paused = true)]
    async fn a_warden_that_refuses_the_token_is_named_as_the_reason_while_the_fleet_is_away() {
        let why = "the warden refuses this agent's token";
        for (ring, expected) in [(0, "updates continue"), (1, "updates wait for push.patience")] {
            let said = Arc::new(Mutex::new(Vec::new()));
            let sink = said.clone();
            let record = move |entry: AuditEntry| sink.lock().push((entry.message, entry.reason));
            let listener = listener(Gone::new(Duration::ZERO, why), Arc::new(record));
            listener.view.send_modify(|view| Arc::make_mut(view).ring = ring);
            let _ = timeout(Duration::from_mins(5), listener.poll()).await;
            let said = said.lock().clone();
            let [(message, reason)] = &said[..] else { panic!("{said:?}") };
            assert!(message.contains(expected) && !message.contains("answer"), "{message}");
            assert_eq!(reason.as_deref(), Some(why));
            let away = listener.view.borrow().clone();
            assert_eq!(away.why_away.as_deref(), Some(why));
            let back = away.with_decisions(FleetDecisions::default(), None, Timestamp::UNIX_EPOCH);
            assert_eq!((back.link, back.why_away), (Link::Present, None));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_fleet_is_away_half_a_minute_after_the_first_failed_request() {
        // The pauses between requests, and a hanging request, are longer than the remaining time.
        for takes in [Duration::ZERO, Duration::from_secs(10), Duration::from_secs(25)] {
            let gone = Gone::new(takes, "no connection");
            let said = Arc::new(Mutex::new(Vec::new()));
            let sink = said.clone();
            let record = move |entry: AuditEntry| sink.lock().push((entry.event, Instant::now()));
            let listener = listener(gone.clone(), Arc::new(record));
            let _ = timeout(Duration::from_mins(5), listener.poll()).await;
            let first = gone.failed.lock()[0];
            let said = said.lock().clone();
            assert_eq!(said, [(Kind::FLEET_AWAY, first + SILENCE)], "once, {takes:?}");
            let asked = gone.asked.lock().clone();
            assert_eq!(asked[..2], [KnownRevisions::default(), HEARD]);
            assert!(asked.len() < 14, "{takes:?}: it was asked {} times", asked.len());
        }
    }
}
