use async_trait::async_trait;
use evenkeel_common::clock::SystemClock;
use evenkeel_common::store::MemoryStore;

use super::*;
use crate::audit::receiver::Carrier;
use crate::audit::redact::Redactor;
use crate::config::{EntryFilter, WebhookConfig};
use evenkeel_common::secret::Secret;

/// A receiver that is a function.
struct Scripted<F> {
    batch: usize,
    answer: F,
}

#[async_trait]
impl<F: Fn(&[AuditEntry]) -> Result<Sent, DeliveryError> + Send + Sync> Carrier for Scripted<F> {
    fn batch(&self) -> usize {
        self.batch
    }

    async fn send(&self, entries: &[AuditEntry], _: &Redactor) -> Result<Sent, DeliveryError> {
        (self.answer)(entries)
    }
}

/// A destination whose receiver refuses entries by their message.
struct Case {
    sink: Sink,
    outbox: Outbox,
    refused: Arc<Mutex<Vec<&'static str>>>,
    /// Messages that get no answer.
    silent: Arc<Mutex<Vec<&'static str>>>,
    /// Messages that are answered with a request for a pause.
    limited: Arc<Mutex<Vec<&'static str>>>,
    /// More entries at once get no answer.
    most: Arc<Mutex<usize>>,
    accepted: Arc<Mutex<Vec<String>>>,
}

impl Case {
    async fn new(batch: usize, refused: &[&'static str], entries: &[&str]) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let store = Arc::new(MemoryStore::new());
        let outbox = Outbox::open(store, clock.clone(), PROGRAM, &["x".to_owned()]).await.unwrap().outbox;
        let (accepted, refused) = (Arc::default(), Arc::new(Mutex::new(refused.to_vec())));
        let silent = Arc::<Mutex<Vec<&'static str>>>::default();
        let unanswered = silent.clone();
        let limited = Arc::<Mutex<Vec<&'static str>>>::default();
        let limits = limited.clone();
        let most = Arc::new(Mutex::new(usize::MAX));
        let limit = most.clone();
        let (taken, refusals): (Arc<Mutex<Vec<String>>>, _) = (Arc::clone(&accepted), refused.clone());
        let answer = move |entries: &[AuditEntry]| {
            let messages: Vec<_> = entries.iter().map(|entry| entry.message.clone()).collect();
            let is_refused = |message: &String| refusals.lock().iter().any(|text| message.contains(text));
            let is_limited = |message: &String| limits.lock().iter().any(|text| message.contains(text));
            let is_silent = |message: &String| unanswered.lock().iter().any(|text| message.contains(text));
            if messages.len() > *limit.lock() || messages.iter().any(is_silent) {
                return Err(DeliveryError::Transient { why: "no answer".to_owned(), after: None });
            }
            if messages.iter().any(is_limited) {
                let after = Some(Duration::from_secs(30));
                return Err(DeliveryError::Transient { why: "too many requests".to_owned(), after });
            }
            if messages.iter().any(is_refused) {
                return Err(DeliveryError::Refused { why: "no".to_owned() });
            }
            taken.lock().extend(messages);
            Ok(Sent { settled: entries.len(), refused: Vec::new(), answer: String::new() })
        };
        let sink = Sink {
            channel: Channel::by(Box::new(Scripted { batch, answer })),
            destination: outbox.destination("x").unwrap(),
            machine: "rack-1".to_owned(),
            epoch: "e".to_owned(),
            counts: Arc::default(),
            audit: Audit::new(outbox.clone()),
            clock,
            backoff: Backoff::new(FIRST_PAUSE, LAST_PAUSE),
            singly: 0,
            at_once: usize::MAX,
        };
        let case = Self { sink, outbox, refused, silent, limited, most, accepted };
        case.record(entries).await;
        case
    }

    async fn record(&self, messages: &[&str]) {
        let entry = |text: &&str| {
            Arc::new(AuditEntry::new(SystemClock.now(), "web", Kind::UPDATED, Level::Info, *text))
        };
        self.outbox.commit(Vec::new(), messages.iter().map(entry).collect()).await.unwrap();
    }

    /// Runs for this long, or until nothing waits.
    async fn run(&mut self, time: Duration) -> &mut Self {
        let end = Instant::now() + time;
        while !self.sink.destination.is_empty() && Instant::now() < end {
            let wait = self.sink.step().await;
            tokio::time::sleep(wait).await;
            // Entries that were put meanwhile become available.
            if self.outbox.unwritten() > 0 {
                self.record(&["-"]).await;
            }
        }
        self
    }

    fn accepted(&self) -> Vec<String> {
        self.accepted.lock().iter().filter(|text| *text != "-").cloned().collect()
    }

    fn refused_count(&self) -> u64 {
        self.sink.counts.refused.load(Ordering::Relaxed)
    }
}

const HOUR: Duration = Duration::from_hours(1);

fn about(entry: &str) -> impl Fn(&String) -> bool {
    move |text| text.starts_with("x does not accept the entry") && !text.contains(entry)
}

#[tokio::test(start_paused = true)]
async fn an_entry_leaves_the_machine_with_all_that_it_says() {
    let mut case = Case::new(1, &[], &[]).await;
    let mut entry =
        AuditEntry::new(SystemClock.now(), "web", Kind::UPDATED, Level::Info, "web is up to date");
    entry.image = Some("registry.example/web:1".to_owned());
    case.outbox.commit(Vec::new(), vec![Arc::new(entry.clone())]).await.unwrap();
    let item = case.sink.destination.next().await;
    entry.machine = "rack-1".to_owned();
    entry.seq = item.seq;
    entry.epoch = Some("e".to_owned());
    assert_eq!(case.sink.outgoing(&item), entry);
    assert!(entry.seq.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_refused_entry_is_set_aside_once_the_next_is_accepted() {
    for batch in [1, 10] {
        let mut case = Case::new(batch, &["spam"], &["a", "spam", "b", "c"]).await;
        case.run(HOUR).await;
        let accepted = case.accepted();
        assert_eq!(accepted[..3], ["a", "b", "c"], "batch {batch}");
        assert!(accepted[3..].iter().all(about("spam")) && accepted.len() == 4, "{accepted:?}");
        assert_eq!(case.refused_count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn several_refused_entries_in_a_row_silence_nobody() {
    let mut case = Case::new(1, &["spam"], &["spam 1", "spam 2", "spam 3", "a", "b"]).await;
    case.run(HOUR).await;
    assert_eq!(case.accepted()[..2], ["a", "b"]);
    assert_eq!(case.refused_count(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_entry_without_an_answer_is_not_set_aside_because_a_later_one_was_accepted() {
    let mut case = Case::new(1, &["first"], &["first", "a", "b"]).await;
    // It is refused at first, and then there is no answer to it for a while.
    case.run(Duration::from_secs(2)).await;
    *case.silent.lock() = vec!["first"];
    case.refused.lock().clear();
    case.run(Duration::from_mins(2)).await;
    assert_eq!(case.refused_count(), 0);
    let repeats = case.accepted().iter().filter(|text| *text == "a").count();
    assert!(repeats <= 1, "the later one is not sent again and again: {repeats}");
    case.silent.lock().clear();
    case.run(HOUR).await;
    let accepted = case.accepted();
    for entry in ["first", "a", "b"] {
        assert!(accepted.iter().any(|text| text == entry), "{accepted:?}");
    }
    assert_eq!(case.refused_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_entry_whose_receiver_asks_for_a_pause_is_not_set_aside_however_long_that_lasts() {
    let mut case = Case::new(1, &[], &["first", "a"]).await;
    *case.limited.lock() = vec!["first"];
    case.run(2 * LONG).await;
    assert_eq!((case.accepted(), case.refused_count()), (Vec::new(), 0), "the later one waits, too");
    // The same if it was refused for another reason at first.
    let first = case.sink.destination.next().await;
    assert!(!case.sink.pass(std::slice::from_ref(&first)).await);
    assert_eq!(case.refused_count(), 0);
    case.limited.lock().clear();
    case.run(HOUR).await;
    assert_eq!(case.accepted(), ["first", "a"]);
}

#[tokio::test(start_paused = true)]
async fn arrays_that_get_no_answer_become_smaller_until_they_do_and_larger_again_later() {
    let all: Vec<String> = (0..40).map(|number| format!("entry {number}")).collect();
    let texts: Vec<&str> = all.iter().map(String::as_str).collect();
    for most in [1, 3, 39] {
        let mut case = Case::new(40, &[], &texts).await;
        *case.most.lock() = most;
        case.run(HOUR).await;
        assert_eq!(case.accepted(), all, "at most {most}");
        assert_eq!(case.refused_count(), 0);
        assert!(case.sink.at_once <= 2 * most, "{} at once", case.sink.at_once);
        *case.most.lock() = usize::MAX;
        case.record(&texts).await;
        case.run(HOUR).await;
        assert_eq!(case.accepted().len(), 80);
        assert!(case.sink.at_once > most, "{} at once", case.sink.at_once);
    }
}

#[tokio::test(start_paused = true)]
async fn one_entry_without_an_answer_does_not_hold_up_the_others_of_its_array() {
    let mut case = Case::new(10, &[], &["a", "b", "broken", "c", "d"]).await;
    *case.silent.lock() = vec!["broken"];
    case.run(Duration::from_mins(2)).await;
    assert_eq!(case.accepted(), ["a", "b"], "those before it");
    case.run(HOUR).await;
    let accepted = case.accepted();
    assert_eq!(accepted[..4], ["a", "b", "c", "d"]);
    assert_eq!(case.refused_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_set_aside_while_everything_is_refused() {
    let mut case = Case::new(10, &[""], &["a", "b", "c"]).await;
    case.run(3 * HOUR).await;
    assert_eq!((case.accepted().len(), case.refused_count()), (0, 0));
    let trouble = case.sink.counts.trouble.lock().clone().expect("it is known");
    assert!(trouble.began.elapsed() >= LONG && trouble.why == "no", "{trouble:?}");
    case.refused.lock().clear();
    case.run(HOUR).await;
    assert_eq!(case.accepted(), ["a", "b", "c"], "in order");
    assert_eq!(*case.sink.counts.trouble.lock(), None);
}

#[tokio::test(start_paused = true)]
async fn a_refused_entry_without_another_one_waits_for_the_next() {
    let mut case = Case::new(1, &["spam"], &["spam"]).await;
    case.run(HOUR).await;
    assert_eq!((case.accepted().len(), case.refused_count()), (0, 0));
    case.record(&["a"]).await;
    case.run(HOUR).await;
    assert_eq!(case.accepted()[0], "a");
    assert_eq!(case.refused_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refused_entry_is_set_aside_however_many_follow_that_the_channel_does_not_want() {
    let mut case = Case::new(1, &["spam"], &["spam"]).await;
    case.sink.channel.want_only(Kind::UPDATED);
    let unwanted = |_| Arc::new(AuditEntry::new(SystemClock.now(), "web", Kind::HEALTHY, Level::Info, "-"));
    case.outbox.commit(Vec::new(), (0..1500).map(unwanted).collect()).await.unwrap();
    case.record(&["a"]).await;
    case.run(HOUR).await;
    assert_eq!((case.accepted().first().map(String::as_str), case.refused_count()), (Some("a"), 1));
}

#[tokio::test(start_paused = true)]
async fn a_report_that_is_refused_is_not_reported() {
    let mut case = Case::new(1, &["spam", "does not accept"], &["spam", "a", "b"]).await;
    case.run(HOUR).await;
    case.record(&["c", "d"]).await;
    case.run(HOUR).await;
    assert_eq!(case.accepted(), ["a", "b", "c", "d"]);
    assert_eq!(case.refused_count(), 2, "the entry and the report about it");
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_delivers_nothing_for_ten_minutes_is_a_warning_until_it_delivers() {
    let mut case = Case::new(1, &[""], &["a"]).await;
    let settings = Settings::Webhook(WebhookConfig {
        name: "x".to_owned(),
        url: Secret::new("http://127.0.0.1:1/"),
        method: "POST".to_owned(),
        headers: Vec::new(),
        body: None,
        filter: EntryFilter::default(),
    });
    let deliveries = Deliveries::new(case.outbox.clone(), Arc::new(SystemClock), CancellationToken::new());
    let (_end, ended) = oneshot::channel();
    deliveries.sinks().push(Running {
        settings,
        machine: String::new(),
        counts: case.sink.counts.clone(),
        close: CancellationToken::new(),
        ended,
    });
    case.run(Duration::from_mins(9)).await;
    assert_eq!(deliveries.warnings(), Vec::<String>::new(), "a short outage is none");
    case.run(Duration::from_mins(3)).await;
    let warnings = deliveries.warnings();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    let (key, what) = warning.split_once(": ").expect("the key comes first");
    assert_eq!(key, "notifications.webhooks (x)");
    assert!(what.starts_with(UNDELIVERED) && what.ends_with(": no"), "{what}");
    case.refused.lock().clear();
    case.run(HOUR).await;
    assert_eq!(deliveries.warnings(), Vec::<String>::new());
}
