//! Supervises named tasks: the first task that ends unexpectedly stops the program. All tasks are spawned here.
//!
//! Shutdown has two stages. First [`Supervisor::token`] stops the work (pollers, workers, servers). When all of it has
//! ended, [`Supervisor::delivery_token`] tells the delivery tasks (audit file, channels) that no more entries will follow,
//! and they deliver the remaining ones.

use std::any::Any;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Signals within this time after the first are duplicates: wrappers signal the process and then its group.
const DUPLICATE_SIGNAL: Duration = Duration::from_millis(250);

/// Time that blocking operations get to return after all tasks have ended.
const BLOCKING_GRACE: Duration = Duration::from_secs(1);

/// Why the program stopped without a request.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// A task returned without having been stopped.
    #[error("task \"{0}\" ended unexpectedly")]
    Ended(String),
    /// A task panicked.
    #[error("task \"{task}\" panicked: {text}")]
    Panicked {
        /// Its name.
        task: String,
        /// The panic message.
        text: String,
    },
    /// The shutdown timed out.
    #[error("shutdown timed out; still running: {}", .0.join(", "))]
    TooSlow(Vec<String>),
    /// A second signal requested an immediate stop.
    #[error("stopped immediately by a second {0}")]
    Forced(&'static str),
}

/// The program's long-running tasks.
#[derive(Debug, Default)]
pub struct Supervisor {
    work: Stage,
    delivery: Stage,
}

#[derive(Debug, Default)]
struct Stage {
    tasks: JoinSet<()>,
    names: HashMap<Id, String>,
    stop: CancellationToken,
}

impl Stage {
    // The lint that disallows `tokio::spawn` refers to this module.
    fn spawn(&mut self, name: String, task: impl Future<Output = ()> + Send + 'static) {
        let handle = self.tasks.spawn(task);
        self.names.insert(handle.id(), name);
    }

    /// Removes a finished task. Returns its name, and its message if it panicked.
    fn finished(&mut self, end: Result<(Id, ()), JoinError>) -> (String, Option<String>) {
        let (id, panic) = match end {
            Ok((id, ())) => (id, None),
            Err(error) => (error.id(), error.try_into_panic().ok().map(|panic| panic_text(panic.as_ref()))),
        };
        (self.names.remove(&id).expect("every task was given a name"), panic)
    }

    /// Stops all tasks and waits for them; the first panic is stored in `first_error`.
    async fn end(&mut self, first_error: &mut Option<StopError>) {
        self.stop.cancel();
        while let Some(end) = self.tasks.join_next_with_id().await {
            let (task, panic) = self.finished(end);
            if let Some(text) = panic {
                first_error.get_or_insert(StopError::Panicked { task, text });
            }
        }
    }
}

impl Supervisor {
    /// Creates a supervisor without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a task that runs until [`token`](Self::token) is cancelled.
    pub fn spawn(&mut self, name: impl Into<String>, task: impl Future<Output = ()> + Send + 'static) {
        self.work.spawn(name.into(), task);
    }

    /// Starts a task that delivers until [`delivery_token`](Self::delivery_token) is cancelled and its queue is
    /// empty.
    pub fn spawn_delivery(
        &mut self,
        name: impl Into<String>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.delivery.spawn(name.into(), task);
    }

    /// Cancelled on shutdown.
    pub fn token(&self) -> CancellationToken {
        self.work.stop.clone()
    }

    /// Cancelled when all work has ended, so that nothing more will be recorded.
    pub fn delivery_token(&self) -> CancellationToken {
        self.delivery.stop.clone()
    }

    /// Runs until a signal arrives, the token is cancelled elsewhere, or a task ends unexpectedly; then stops everything,
    /// with a time limit of `grace` per stage. A second signal stops immediately, unless it is a duplicate of the first.
    /// Tasks that have not ended by then are aborted.
    pub async fn run_until(
        mut self,
        signals: impl Stream<Item = &'static str>,
        grace: Duration,
    ) -> Result<(), StopError> {
        let mut signals = std::pin::pin!(signals.fuse());
        let mut error = self.first_event(&mut signals).await;
        if let Some(error) = &error {
            tracing::error!(%error, "stopping");
        }
        let forced = async {
            let duplicates = async { while signals.next().await.is_some() {} };
            let _ = tokio::time::timeout(DUPLICATE_SIGNAL, duplicates).await;
            match signals.next().await {
                Some(name) => name,
                None => std::future::pending().await,
            }
        };
        let stages = async {
            let mut slow = Vec::new();
            for stage in [&mut self.work, &mut self.delivery] {
                if tokio::time::timeout(grace, stage.end(&mut error)).await.is_err() {
                    stage.tasks.abort_all();
                    slow.extend(stage.names.values().cloned());
                }
            }
            slow
        };
        let slow = tokio::select! {
            slow = stages => slow,
            name = forced => return Err(StopError::Forced(name)),
        };
        match error {
            Some(error) => Err(error),
            None if slow.is_empty() => Ok(()),
            None => Err(StopError::TooSlow(slow)),
        }
    }

    async fn first_event(
        &mut self,
        signals: &mut (impl Stream<Item = &'static str> + Unpin),
    ) -> Option<StopError> {
        let stop = self.work.stop.clone();
        let (task, panic) = tokio::select! {
            Some(name) = signals.next() => {
                tracing::info!(signal = name, "stopping");
                return None;
            }
            () = stop.cancelled() => return None,
            Some(end) = self.work.tasks.join_next_with_id() => self.work.finished(end),
            Some(end) = self.delivery.tasks.join_next_with_id() => self.delivery.finished(end),
            else => return None,
        };
        // A task may see the cancelled token, and end, before this loop sees it.
        if stop.is_cancelled() && panic.is_none() {
            return None;
        }
        Some(match panic {
            Some(text) => StopError::Panicked { task, text },
            None => StopError::Ended(task),
        })
    }
}

/// Runs a program to its end. A thread whose disk or name server does not answer does not hold up the end: what counts was
/// written by the tasks.
pub fn run_to_end<F: Future>(runtime: Runtime, program: F) -> F::Output {
    let end = runtime.block_on(program);
    runtime.shutdown_timeout(BLOCKING_GRACE);
    end
}

/// A stream of the signals that stop the program, by name.
pub fn signals() -> std::io::Result<impl Stream<Item = &'static str> + Send> {
    let named = |kind, name| {
        let stream = futures_util::stream::unfold(signal(kind)?, move |mut signal| async move {
            signal.recv().await.map(|()| (name, signal))
        });
        Ok::<_, std::io::Error>(stream.boxed())
    };
    Ok(futures_util::stream::select(
        named(SignalKind::terminate(), "SIGTERM")?,
        named(SignalKind::interrupt(), "SIGINT")?,
    ))
}

/// A set of short-lived tasks that are joined together. A panic is logged with the task name and does not affect the others.
#[derive(Debug, Clone, Default)]
pub struct TaskSet {
    tracker: TaskTracker,
    kill: CancellationToken,
    panicked: CancellationToken,
}

impl TaskSet {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a task.
    pub fn spawn(&self, name: impl Into<String>, task: impl Future<Output = ()> + Send + 'static) {
        let (name, kill, panicked) = (name.into(), self.kill.clone(), self.panicked.clone());
        // Boxed, since each wrapper that takes the future by value would hold it twice.
        let task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(task);
        self.tracker.spawn(async move {
            let task = AssertUnwindSafe(kill.run_until_cancelled_owned(task)).catch_unwind();
            if let Err(panic) = task.await {
                tracing::error!(task = name, panic = panic_text(panic.as_ref()), "a task panicked");
                panicked.cancel();
            }
        });
    }

    /// Completes when a task has panicked, for an owner that must stop in that case.
    pub async fn panicked(&self) {
        self.panicked.cancelled().await;
    }

    /// Number of running tasks.
    pub fn len(&self) -> usize {
        self.tracker.len()
    }

    /// Reports whether all tasks have ended.
    pub fn is_empty(&self) -> bool {
        self.tracker.is_empty()
    }

    /// Waits for all tasks to end and aborts those still running after `grace`. Reports whether all ended by themselves.
    pub async fn finish(&self, grace: Duration) -> bool {
        self.tracker.close();
        let in_time = tokio::time::timeout(grace, self.tracker.wait()).await.is_ok();
        self.kill.cancel();
        self.tracker.wait().await;
        in_time
    }
}

/// Returns the message of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".to_owned())
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::stream;
    use parking_lot::Mutex;

    use super::*;

    const GRACE: Duration = Duration::from_secs(5);

    fn never() -> impl Stream<Item = &'static str> {
        stream::pending()
    }

    #[test]
    fn a_thread_that_hangs_does_not_hold_up_the_end_of_the_program() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (answer, unanswered) = std::sync::mpsc::channel::<()>();
        let end = run_to_end(runtime, async move {
            let (started, is_started) = tokio::sync::oneshot::channel();
            drop(tokio::task::spawn_blocking(move || {
                let _ = started.send(());
                unanswered.recv()
            }));
            is_started.await
        });
        assert_eq!(end, Ok(()));
        drop(answer);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_returns_stops_the_program_and_is_named() {
        let mut supervisor = Supervisor::new();
        let token = supervisor.token();
        supervisor.spawn("poller", async move { token.cancelled().await });
        supervisor.spawn("events", tokio::time::sleep(Duration::from_secs(3)));
        let error = supervisor.run_until(never(), GRACE).await.unwrap_err();
        assert_eq!(error.to_string(), "task \"events\" ended unexpectedly");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_stops_the_program_and_is_named() {
        let mut supervisor = Supervisor::new();
        supervisor.spawn_delivery("audit file", async { panic!("no {}", "paper") });
        let error = supervisor.run_until(never(), GRACE).await.unwrap_err();
        assert_eq!(error.to_string(), "task \"audit file\" panicked: no paper");
    }

    #[tokio::test(start_paused = true)]
    async fn a_signal_stops_work_first_and_delivery_after_it() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut supervisor = Supervisor::new();
        let (work, delivery) = (supervisor.token(), supervisor.delivery_token());
        let log = order.clone();
        supervisor.spawn_delivery("file", async move {
            delivery.cancelled().await;
            log.lock().push("delivered");
        });
        let log = order.clone();
        supervisor.spawn("worker", async move {
            work.cancelled().await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            log.lock().push("worked");
        });
        let signals = stream::iter(["SIGTERM"]).chain(stream::pending());
        supervisor.run_until(signals, GRACE).await.unwrap();
        assert_eq!(*order.lock(), ["worked", "delivered"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_stops_at_once() {
        let mut supervisor = Supervisor::new();
        supervisor.spawn("stuck", pending());
        let second = stream::once(async {
            tokio::time::sleep(DUPLICATE_SIGNAL * 2).await;
            "SIGINT"
        });
        let signals = stream::iter(["SIGTERM"]).chain(second).chain(stream::pending());
        let start = tokio::time::Instant::now();
        let error = supervisor.run_until(Box::pin(signals), GRACE).await.unwrap_err();
        assert_eq!(error.to_string(), "stopped immediately by a second SIGINT");
        assert!(start.elapsed() < DUPLICATE_SIGNAL * 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_signal_sent_twice_in_quick_succession_counts_once() {
        let mut supervisor = Supervisor::new();
        let token = supervisor.token();
        supervisor.spawn("worker", async move {
            token.cancelled().await;
            tokio::time::sleep(Duration::from_secs(2)).await;
        });
        let signals = stream::iter(["SIGTERM", "SIGTERM"]).chain(stream::pending());
        supervisor.run_until(signals, GRACE).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_stop_within_the_grace_period_is_named() {
        let mut supervisor = Supervisor::new();
        let delivered = Arc::new(AtomicBool::new(false));
        let (token, flag) = (supervisor.delivery_token(), delivered.clone());
        supervisor.spawn("stuck", pending());
        supervisor.spawn_delivery("file", async move {
            token.cancelled().await;
            flag.store(true, Ordering::Relaxed);
        });
        supervisor.token().cancel();
        let error = supervisor.run_until(never(), GRACE).await.unwrap_err();
        assert_eq!(error.to_string(), "shutdown timed out; still running: stuck");
        assert!(delivered.load(Ordering::Relaxed), "delivery still runs");
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_in_a_set_affects_no_other_task_and_a_late_task_is_aborted() {
        let set = TaskSet::new();
        let done = Arc::new(AtomicBool::new(false));
        let flag = done.clone();
        set.spawn("bad", async { panic!("bang") });
        set.spawn("good", async move { flag.store(true, Ordering::Relaxed) });
        assert!(set.finish(GRACE).await);
        assert!(done.load(Ordering::Relaxed));
        set.panicked().await;

        let set = TaskSet::new();
        set.spawn("stuck", pending());
        assert_eq!(set.len(), 1);
        assert!(!set.finish(GRACE).await);
        assert!(set.is_empty());
    }

    #[tokio::test]
    async fn stop_signals_are_received() {
        use rustix::process::{Signal, getpid, kill_process};
        let mut signals = std::pin::pin!(signals().unwrap());
        for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT"), (Signal::TERM, "SIGTERM")]
        {
            kill_process(getpid(), signal).unwrap();
            let received = tokio::time::timeout(GRACE, signals.next()).await;
            assert_eq!(received.expect("in time"), Some(name));
        }
    }
}
