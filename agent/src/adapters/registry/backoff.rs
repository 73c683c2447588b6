//! Backoff per registry: after a failure, requests are rejected for a while, then a single probe is sent first. Failures
//! that concern one image back off that image alone.

use std::collections::HashMap;
use std::time::Duration;

use evenkeel_common::backoff;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;

use super::client::REQUEST_TIMEOUT;
use super::fault::Fault;
use crate::model::RegistryError;
use crate::model::image::Digest;
use crate::ports::Urgency;

/// Initial backoff after a failure. It doubles with every further one.
const INITIAL_WAIT: Duration = Duration::from_secs(5);
/// Maximum backoff after a failure.
const MAX_WAIT: Duration = Duration::from_mins(1);
/// The same after a registry has asked for a wait without saying how long.
const INITIAL_LIMIT: Duration = Duration::from_secs(1);
/// How long requests wait for a registry that asks for a short wait, instead of being refused. It includes the jitter of five
/// seconds.
const PATIENCE: Duration = Duration::from_secs(6);
/// How long requests may wait for others that get no answer in time, and still be sent: through two rounds of these. Otherwise a
/// registry that hangs as a whole would get all requests of every cycle, and each check would take as long as they do.
const SECOND_ROUND: Duration = REQUEST_TIMEOUT.saturating_mul(2);

/// Admits requests to one registry, or fails them immediately.
#[derive(Debug)]
pub(super) struct Gate {
    slots: Semaphore,
    state: watch::Sender<State>,
}

#[derive(Debug, Default)]
struct State {
    closed: Option<Closed>,
    /// Incremented whenever the gate closes. All requests in progress at that time count as a single failure.
    generation: u64,
    /// The backoff is over and one request is the probe. The others wait for its result.
    probing: bool,
    /// When the registry last answered a request.
    answered: Option<Instant>,
}

#[derive(Debug)]
struct Closed {
    until: Instant,
    since: Instant,
    failures: u32,
    /// The registry requested this wait (429, or 503 with `Retry-After`); since when it has.
    limited_since: Option<Instant>,
    /// The registry was reached and did not answer in time.
    is_timeout: bool,
    error: RegistryError,
}

enum Verdict {
    Go { probe: bool },
    Refused(Refusal),
    WaitUntil(Instant),
    WaitForProbe,
}

/// Why no request was sent.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The registry's last error.
    pub(super) error: RegistryError,
    /// The registry failed after this request was made, so that the failure answers it.
    pub(super) is_answer: bool,
}

impl Closed {
    fn refusal(&self, asked_at: Instant) -> Refusal {
        // That it wants fewer requests, or gave no answer in time, says nothing about an image that it was not asked for.
        let is_answer = self.limited_since.is_none() && !self.is_timeout && self.since > asked_at;
        Refusal { error: self.error.clone(), is_answer }
    }

    /// The registry asks for so short a wait that requests wait, too.
    fn is_short(&self) -> bool {
        self.limited_since.is_some_and(|since| self.until <= since + PATIENCE)
    }
}

impl From<Refusal> for RegistryError {
    fn from(refusal: Refusal) -> Self {
        refusal.error
    }
}

impl State {
    /// Decides on a request that was made at `asked_at`.
    fn verdict(&self, urgency: Urgency, asked_at: Instant, now: Instant) -> Verdict {
        match &self.closed {
            None => Verdict::Go { probe: false },
            // It may be that only some repositories hang. What has waited for them is sent all the same, and shows that.
            Some(closed) if closed.is_timeout && closed.since > asked_at && now < asked_at + SECOND_ROUND => {
                Verdict::Go { probe: false }
            }
            Some(closed) if urgency == Urgency::Manual && closed.limited_since.is_none() => {
                // A failure newer than the request answers it: many concurrent requests cost one timeout.
                if closed.since > asked_at {
                    Verdict::Refused(closed.refusal(asked_at))
                } else {
                    Verdict::Go { probe: false }
                }
            }
            Some(closed) if now < closed.until && closed.is_short() => Verdict::WaitUntil(closed.until),
            Some(closed) if now < closed.until => Verdict::Refused(closed.refusal(asked_at)),
            Some(_) if self.probing => Verdict::WaitForProbe,
            Some(_) => Verdict::Go { probe: true },
        }
    }
}

impl Gate {
    /// Creates an open gate that admits `concurrency` concurrent requests.
    pub(super) fn new(concurrency: usize) -> Self {
        let slots = concurrency.clamp(1, Semaphore::MAX_PERMITS);
        Self { slots: Semaphore::new(slots), state: watch::Sender::new(State::default()) }
    }

    /// Reports whether the registry could not be reached, and has not been since.
    pub(super) fn is_down(&self) -> bool {
        self.state.borrow().closed.as_ref().is_some_and(|closed| closed.limited_since.is_none())
    }

    /// Reports whether the registry has asked for fewer requests, and has given no other answer since.
    pub(super) fn is_limited(&self) -> bool {
        self.state.borrow().closed.as_ref().is_some_and(|closed| closed.limited_since.is_some())
    }

    /// Sends a request once it may be sent. If the registry refuses it for a short time only, it is repeated once.
    pub(super) async fn send<T, F>(
        &self,
        urgency: Urgency,
        request: impl Fn() -> F,
    ) -> Result<Result<T, Fault>, Refusal>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let pass = self.pass(urgency).await?;
        let outcome = request().await;
        pass.settle(&outcome);
        if !matches!(outcome, Err(Fault::Limited { .. })) {
            return Ok(outcome);
        }
        let Ok(pass) = self.pass(urgency).await else { return Ok(outcome) };
        let outcome = request().await;
        pass.settle(&outcome);
        Ok(outcome)
    }

    /// Waits for a permit. During backoff, returns the registry's last error without a request.
    async fn pass(&self, urgency: Urgency) -> Result<Pass<'_>, Refusal> {
        let asked_at = Instant::now();
        loop {
            // Check before acquiring a slot, so that a refused request fails even while hanging requests hold all slots.
            let verdict = self.state.borrow().verdict(urgency, asked_at, Instant::now());
            match verdict {
                Verdict::Refused(error) => return Err(error),
                Verdict::WaitUntil(time) => {
                    tokio::time::sleep_until(time).await;
                    continue;
                }
                Verdict::Go { .. } | Verdict::WaitForProbe => {}
            }
            let slot = self.slots.acquire().await.expect("the semaphore is never closed");
            let mut verdict = Verdict::WaitForProbe;
            let mut generation = 0;
            self.state.send_if_modified(|state| {
                verdict = state.verdict(urgency, asked_at, Instant::now());
                generation = state.generation;
                state.probing |= matches!(verdict, Verdict::Go { probe: true });
                false
            });
            match verdict {
                Verdict::Go { probe } => {
                    return Ok(Pass { gate: self, generation, probe, began: Instant::now(), _slot: slot });
                }
                Verdict::Refused(error) => return Err(error),
                Verdict::WaitUntil(_) | Verdict::WaitForProbe => drop(slot),
            }
            let mut changes = self.state.subscribe();
            let _ = changes.wait_for(|state| !state.probing).await;
        }
    }
}

/// A permit for one request. Dropping it without a result (the caller gave up) changes nothing.
pub(super) struct Pass<'a> {
    gate: &'a Gate,
    generation: u64,
    probe: bool,
    began: Instant,
    _slot: SemaphorePermit<'a>,
}

impl Pass<'_> {
    /// Reports the result of the request.
    pub(super) fn settle<T>(self, outcome: &Result<T, Fault>) {
        let now = Instant::now();
        self.gate.state.send_modify(|state| {
            let of_now = state.generation == self.generation;
            match outcome {
                // The registry answered, even if with "no such tag". That does not end the backoff if another
                // request has received a 429 in the meantime.
                Ok(_) | Err(Fault::Image(_) | Fault::Gone(_) | Fault::Repository(_)) => {
                    state.answered = Some(now);
                    if of_now || state.closed.as_ref().is_some_and(|closed| closed.limited_since.is_none()) {
                        state.closed = None;
                    }
                }
                Err(fault @ (Fault::Host(_) | Fault::Timeout(_))) => {
                    let is_timeout = matches!(fault, Fault::Timeout(_));
                    let answers_others = state.answered.is_some_and(|at| at > self.began);
                    if of_now && !(is_timeout && answers_others) {
                        let failures = state.closed.as_ref().map_or(0, |c| c.failures).saturating_add(1);
                        let until = now + wait_after(failures);
                        let error = RegistryError(fault.text().to_owned());
                        let limited_since = None;
                        state.close(Closed { until, since: now, failures, limited_since, is_timeout, error });
                    }
                }
                Err(Fault::Unfinished(_)) => {}
                Err(Fault::Limited { text, wait }) => {
                    let before = state.closed.as_ref();
                    let failures =
                        before.map_or(0, |closed| closed.failures).saturating_add(u32::from(of_now));
                    // A pause that is long over is another one.
                    let recent = before.filter(|closed| now < closed.until + PATIENCE);
                    let since = recent.and_then(|closed| closed.limited_since);
                    let wait = wait.unwrap_or_else(|| backoff::after(failures, INITIAL_LIMIT, MAX_WAIT));
                    let until = now + wait.mul_f64(1.0 + fastrand::f64() / 10.0);
                    let until = match before {
                        Some(closed) if since.is_some() => until.max(closed.until),
                        _ => until,
                    };
                    let limited_since = Some(since.unwrap_or(now));
                    let error = RegistryError(text.clone());
                    state.close(Closed {
                        until,
                        since: now,
                        failures,
                        limited_since,
                        is_timeout: false,
                        error,
                    });
                }
            }
        });
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.probe {
            self.gate.state.send_modify(|state| state.probing = false);
        }
    }
}

impl State {
    fn close(&mut self, closed: Closed) {
        self.closed = Some(closed);
        self.generation += 1;
    }
}

/// The last result for each image of one registry.
#[derive(Debug, Default)]
pub(super) struct Results(Mutex<HashMap<String, LastResult>>);

#[derive(Debug)]
struct LastResult {
    answer: Result<Digest, RegistryError>,
    /// The answer was that there is no such tag.
    is_gone: bool,
    /// The last request got no answer in time.
    has_hung: bool,
    at: Instant,
    failures: u32,
    /// No further routine request until then.
    until: Instant,
}

impl Results {
    /// Returns the last error of an image while it backs off. A user's request is sent anyway.
    pub(super) fn backed_off(&self, image: &str, urgency: Urgency) -> Option<RegistryError> {
        let known = self.0.lock();
        let last =
            known.get(image).filter(|last| urgency == Urgency::Routine && Instant::now() < last.until)?;
        last.answer.clone().err()
    }

    /// Returns what the registry last answered about an image.
    pub(super) fn last(&self, image: &str) -> Option<Result<Digest, RegistryError>> {
        Some(self.0.lock().get(image)?.answer.clone())
    }

    /// Reports whether the registry last answered that there is no such tag.
    pub(super) fn is_gone(&self, image: &str) -> bool {
        self.0.lock().get(image).is_some_and(|last| last.is_gone)
    }

    /// Reports whether the last request for an image got no answer in time.
    pub(super) fn has_hung(&self, image: &str) -> bool {
        self.0.lock().get(image).is_some_and(|last| last.has_hung)
    }

    /// Records the error that an image got without a request, so that it gets the same one until it is asked for. That is no
    /// failure of the image, so its back-off stays as it is.
    pub(super) fn refused(&self, image: String, error: &RegistryError) {
        let now = Instant::now();
        let mut known = self.0.lock();
        let new = || LastResult {
            answer: Err(error.clone()),
            is_gone: false,
            has_hung: false,
            at: now,
            failures: 0,
            until: now,
        };
        let last = known.entry(image).or_insert_with(new);
        (last.answer, last.is_gone) = (Err(error.clone()), false);
    }

    /// Records a result of a request that was made at `asked_at`.
    pub(super) fn record(&self, image: String, asked_at: Instant, outcome: &Result<Digest, Fault>) {
        let now = Instant::now();
        let mut known = self.0.lock();
        let before = known.get(&image).filter(|last| last.until > last.at);
        let is_failure = matches!(outcome, Err(Fault::Repository(_) | Fault::Timeout(_)));
        let failures = match before {
            _ if !is_failure => 0,
            None => 1,
            // Concurrent requests that failed count as one failure.
            Some(last) if last.at > asked_at => last.failures,
            Some(last) => last.failures.saturating_add(1),
        };
        let wait = if failures == 0 { Duration::ZERO } else { wait_after(failures) };
        let answer = match outcome {
            Ok(digest) => Ok(digest.clone()),
            Err(fault) => Err(RegistryError(fault.text().to_owned())),
        };
        let is_gone = matches!(outcome, Err(Fault::Gone(_)));
        let has_hung = matches!(outcome, Err(Fault::Timeout(_)));
        known.insert(image, LastResult { answer, is_gone, has_hung, at: now, failures, until: now + wait });
    }
}

fn wait_after(failures: u32) -> Duration {
    backoff::jittered(backoff::after(failures, INITIAL_WAIT, MAX_WAIT))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::future::join_all;

    use super::*;

    fn down() -> Result<(), Fault> {
        Err(Fault::Host("registry r: connection refused".into()))
    }

    fn limited(seconds: u64) -> Result<(), Fault> {
        Err(Fault::Limited { text: "registry r: 429".into(), wait: Some(Duration::from_secs(seconds)) })
    }

    async fn refused(gate: &Gate, urgency: Urgency) -> bool {
        gate.pass(urgency).await.is_err()
    }

    #[test]
    fn waits_grow_from_five_to_sixty_seconds() {
        let longest = |failures| backoff::after(failures, INITIAL_WAIT, MAX_WAIT);
        let waits: Vec<u64> = (1..8).map(|failures| longest(failures).as_secs()).collect();
        assert_eq!(waits, [5, 10, 20, 40, 60, 60, 60]);
        for failures in [1, 4, u32::MAX] {
            let (wait, longest) = (wait_after(failures), longest(failures));
            assert!(wait <= longest && wait >= longest.mul_f64(0.75), "{failures}: {wait:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_closes_the_gate_until_its_time_and_one_probe_goes_first() {
        let gate = Gate::new(8);
        gate.pass(Urgency::Routine).await.unwrap().settle(&down());
        assert!(refused(&gate, Urgency::Routine).await);
        tokio::time::advance(Duration::from_secs(5)).await;
        let probe = gate.pass(Urgency::Routine).await.unwrap();
        let other = gate.pass(Urgency::Routine);
        tokio::pin!(other);
        assert!(
            tokio::time::timeout(Duration::from_secs(1), &mut other).await.is_err(),
            "waits for the probe"
        );
        probe.settle(&Ok(()));
        other.await.unwrap().settle(&Ok(()));
        assert!(!refused(&gate, Urgency::Routine).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_probe_also_fails_the_requests_that_waited_for_it() {
        let gate = Gate::new(8);
        gate.pass(Urgency::Routine).await.unwrap().settle(&down());
        tokio::time::advance(Duration::from_secs(5)).await;
        let probe = gate.pass(Urgency::Routine).await.unwrap();
        let (waiting, ()) = tokio::join!(gate.pass(Urgency::Routine), async { probe.settle(&down()) });
        assert!(waiting.is_err());
        tokio::time::advance(Duration::from_secs(6)).await;
        assert!(refused(&gate, Urgency::Routine).await, "the second wait is about ten seconds");
    }

    fn hung() -> Result<(), Fault> {
        Err(Fault::Timeout("registry r: no answer in time".into()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_an_answer_closes_the_gate_only_if_no_other_one_got_one_meanwhile() {
        let gate = Gate::new(8);
        let hangs = gate.pass(Urgency::Routine).await.unwrap();
        let other = gate.pass(Urgency::Routine).await.unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        other.settle(&Ok(()));
        tokio::time::advance(Duration::from_secs(14)).await;
        hangs.settle(&hung());
        assert!(!refused(&gate, Urgency::Routine).await);

        gate.pass(Urgency::Routine).await.unwrap().settle(&hung());
        tokio::time::advance(Duration::from_millis(1)).await;
        let refusal = gate.pass(Urgency::Routine).await.err().unwrap();
        assert!(!refusal.is_answer, "another image did not get it");
    }

    #[tokio::test(start_paused = true)]
    async fn what_waited_for_a_request_without_an_answer_is_sent() {
        for urgency in [Urgency::Routine, Urgency::Manual] {
            let gate = Gate::new(1);
            gate.pass(urgency).await.unwrap().settle(&hung());
            tokio::time::advance(Duration::from_secs(5)).await;
            let first = gate.pass(urgency).await.unwrap();
            let (waiting, ()) = tokio::join!(gate.pass(urgency), async {
                tokio::time::sleep(Duration::from_secs(15)).await;
                first.settle(&hung());
            });
            waiting.unwrap().settle(&Ok(()));
            assert!(!refused(&gate, Urgency::Routine).await, "the registry answers");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_registry_that_hangs_costs_two_rounds_of_requests_in_each_cycle() {
        for urgency in [Urgency::Routine, Urgency::Manual] {
            let gate = Gate::new(8);
            for cycle in 0..3 {
                let count = AtomicU32::new(0);
                let hangs = || async {
                    count.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(REQUEST_TIMEOUT).await;
                    hung()
                };
                let began = Instant::now();
                let outcomes = join_all((0..300).map(|_| gate.send(urgency, &hangs))).await;
                assert!(
                    began.elapsed() < SECOND_ROUND + Duration::from_secs(1),
                    "{cycle}: {:?}",
                    began.elapsed()
                );
                assert!(count.load(Ordering::Relaxed) <= 16, "{cycle}: {count:?}");
                let mut refusals = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
                assert!(refusals.all(|refusal| !refusal.is_answer), "those images were not asked for");
                assert!(gate.is_down());
                tokio::time::advance(Duration::from_mins(5)).await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reading_that_took_too_long_is_no_answer() {
        let gate = Gate::new(8);
        gate.pass(Urgency::Routine).await.unwrap().settle(&Err::<(), _>(Fault::Unfinished("r".into())));
        assert!(!refused(&gate, Urgency::Routine).await);
        gate.pass(Urgency::Routine).await.unwrap().settle(&down());
        tokio::time::advance(Duration::from_secs(5)).await;
        gate.pass(Urgency::Routine).await.unwrap().settle(&Err::<(), _>(Fault::Unfinished("r".into())));
        assert!(gate.is_down());
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_probe_admits_the_next_one() {
        let gate = Gate::new(8);
        gate.pass(Urgency::Routine).await.unwrap().settle(&down());
        tokio::time::advance(Duration::from_secs(5)).await;
        drop(gate.pass(Urgency::Routine).await.unwrap());
        assert!(!refused(&gate, Urgency::Routine).await);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_failed_together_count_once() {
        let gate = Gate::new(8);
        let mut passes = Vec::new();
        for _ in 0..8 {
            passes.push(gate.pass(Urgency::Routine).await.unwrap());
        }
        for pass in passes {
            pass.settle(&down());
        }
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(!refused(&gate, Urgency::Routine).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_on_demand_request_bypasses_failures_but_not_a_429() {
        let gate = Gate::new(8);
        gate.pass(Urgency::Routine).await.unwrap().settle(&down());
        gate.pass(Urgency::Manual).await.unwrap().settle(&limited(120));
        assert!(refused(&gate, Urgency::Manual).await);
        tokio::time::advance(Duration::from_secs(119)).await;
        assert!(refused(&gate, Urgency::Manual).await);
        tokio::time::advance(Duration::from_secs(14)).await;
        assert!(!refused(&gate, Urgency::Manual).await);
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_on_demand_requests_share_one_failure() {
        let gate = Gate::new(1);
        let first = gate.pass(Urgency::Manual).await.unwrap();
        let (second, ()) = tokio::join!(gate.pass(Urgency::Manual), async {
            tokio::time::sleep(Duration::from_secs(15)).await;
            first.settle(&down());
        });
        assert!(second.is_err());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!refused(&gate, Urgency::Manual).await, "a later request is sent");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_to_an_older_request_does_not_clear_a_429() {
        let gate = Gate::new(8);
        let early = gate.pass(Urgency::Routine).await.unwrap();
        gate.pass(Urgency::Routine).await.unwrap().settle(&limited(60));
        early.settle(&Ok(()));
        assert!(refused(&gate, Urgency::Routine).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_about_one_image_does_not_close_the_gate() {
        let gate = Gate::new(8);
        for fault in [Fault::Image("404".into()), Fault::Repository("500".into())] {
            gate.pass(Urgency::Routine).await.unwrap().settle(&Err::<(), _>(fault));
            assert!(!refused(&gate, Urgency::Routine).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_an_answer_only_to_requests_made_before_the_failure() {
        let gate = Gate::new(1);
        let first = gate.pass(Urgency::Routine).await.unwrap();
        let (second, ()) = tokio::join!(gate.pass(Urgency::Routine), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            first.settle(&down());
        });
        assert!(second.err().unwrap().is_answer);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!gate.pass(Urgency::Routine).await.err().unwrap().is_answer);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_limit_is_no_answer_about_an_image_that_was_not_asked_for() {
        let gate = Gate::new(1);
        let first = gate.pass(Urgency::Routine).await.unwrap();
        let (second, ()) = tokio::join!(gate.pass(Urgency::Routine), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            first.settle(&limited(600));
        });
        assert!(!second.err().unwrap().is_answer);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_for_the_end_of_a_short_rate_limit_and_the_refused_one_is_repeated_once() {
        let gate = Gate::new(1);
        let began = Instant::now();
        let answers = Mutex::new(vec![Ok(()), limited(1)]);
        let repeated = gate.send(Urgency::Routine, || async { answers.lock().pop().unwrap() });
        let waiting = gate.send(Urgency::Routine, || async { Ok(()) });
        let (repeated, waiting) = tokio::join!(repeated, waiting);
        assert!(repeated.unwrap().is_ok() && waiting.unwrap().is_ok() && answers.lock().is_empty());
        assert!(began.elapsed() >= Duration::from_secs(1), "none is sent earlier");

        let count = AtomicU32::new(0);
        let refuses = || async {
            count.fetch_add(1, Ordering::Relaxed);
            limited(1)
        };
        let outcome = gate.send(Urgency::Routine, refuses).await.unwrap();
        assert!(matches!(outcome, Err(Fault::Limited { .. })));
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_registry_that_refuses_again_and_again_is_not_waited_for() {
        let gate = Gate::new(1);
        let mut count = 0;
        while let Ok(pass) = gate.pass(Urgency::Routine).await {
            pass.settle(&limited(1));
            count += 1;
        }
        assert!((5..=7).contains(&count), "{count}");
        tokio::time::advance(Duration::from_mins(1)).await;
        gate.pass(Urgency::Routine).await.unwrap().settle(&Ok(()));
        gate.pass(Urgency::Routine).await.unwrap().settle(&limited(60));
        assert!(refused(&gate, Urgency::Routine).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_limit_without_a_time_grows_from_a_second_to_a_minute() {
        let gate = Gate::new(1);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            let pass = gate.pass(Urgency::Routine).await.unwrap();
            pass.settle(&Err::<(), _>(Fault::Limited { text: "registry r: 429".into(), wait: None }));
            let until = gate.state.borrow().closed.as_ref().unwrap().until;
            let wait = until - Instant::now();
            let longest = Duration::from_secs(seconds);
            assert!(wait >= longest && wait <= longest.mul_f64(1.1), "{seconds}: {wait:?}");
            tokio::time::advance(wait).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_without_a_request_changes_no_backoff() {
        let results = Results::default();
        results.record("web:1".into(), Instant::now(), &Err(Fault::Repository("500 for web".into())));
        let down = RegistryError("registry r: connection refused".into());
        results.refused("web:1".into(), &down);
        results.refused("web:2".into(), &down);
        assert_eq!(results.backed_off("web:1", Urgency::Routine), Some(down.clone()));
        assert_eq!(results.backed_off("web:2", Urgency::Routine), None);
        assert_eq!(results.last("web:2"), Some(Err(down)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_image_backs_off_alone_and_longer_each_time() {
        let results = Results::default();
        let failed = || Err(Fault::Repository("500 for web".into()));
        let is_asked = |image: &str| results.backed_off(image, Urgency::Routine).is_none();
        for wait in [5, 10, 20] {
            results.record("web:1".into(), Instant::now(), &failed());
            assert!(!is_asked("web:1") && is_asked("web:2"));
            assert!(results.backed_off("web:1", Urgency::Manual).is_none(), "a user is waiting");
            tokio::time::advance(Duration::from_secs(wait)).await;
            assert!(is_asked("web:1"));
        }
        let digest = Digest::of(b"web");
        results.record("web:1".into(), Instant::now(), &Ok(digest.clone()));
        assert!(is_asked("web:1"));
        assert_eq!(results.last("web:1"), Some(Ok(digest)));
        results.record("web:1".into(), Instant::now(), &Err(Fault::Image("404".into())));
        assert!(is_asked("web:1"), "a missing tag is a normal answer");
    }
}
