//! An open-loop load: requests start at a fixed rate, whether or not earlier ones have ended, so that none is left out while
//! a service does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

/// How long a request may take.
const LIMIT: Duration = Duration::from_secs(10);

/// A request that was not answered with 200.
#[derive(Debug, Clone)]
pub struct FailedRequest {
    /// Time since the start of the load.
    pub at: Duration,
    /// What it got instead.
    pub what: String,
}

/// What became of the requests.
#[derive(Debug, Clone, Default)]
pub struct LoadReport {
    /// How many were made.
    pub requests: usize,
    /// Those that failed, in the order in which they ended.
    pub failed: Vec<FailedRequest>,
}

impl LoadReport {
    /// The time from the first to the last failure.
    pub fn failing_for(&self) -> Duration {
        let times = || self.failed.iter().map(|failed| failed.at);
        times().max().unwrap_or_default().saturating_sub(times().min().unwrap_or_default())
    }
}

/// A load in progress.
pub struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<LoadReport>>,
}

impl Load {
    /// Requests `/` of `address` so many times a second, each over a connection of its own.
    pub fn start(address: &str, per_second: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, address) = (stop.clone(), address.to_owned());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be made").block_on(make(&stopped, &address, per_second))
        });
        Self { stop, thread: Some(thread) }
    }

    /// Ends it, and waits for the requests in progress.
    pub fn stop(mut self) -> LoadReport {
        self.stop.store(true, Ordering::SeqCst);
        let thread = self.thread.take().expect("it is stopped once");
        thread.join().expect("the load does not panic")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

async fn make(stop: &AtomicBool, address: &str, per_second: u32) -> LoadReport {
    let started = Instant::now();
    let mut report = LoadReport::default();
    let mut requests = JoinSet::new();
    let mut next = tokio::time::Instant::now();
    let mut note = |ended: Result<Option<FailedRequest>, _>| {
        report.failed.extend(ended.expect("a request does not panic"));
    };
    loop {
        // One that comes late is made up for: the rate holds.
        next += Duration::from_secs(1) / per_second;
        sleep_until(next).await;
        let address = address.to_owned();
        requests.spawn(async move {
            let at = started.elapsed();
            let answer = timeout(LIMIT, request(&address)).await;
            let what = answer.unwrap_or_else(|_| Err("no answer in time".to_owned())).err()?;
            Some(FailedRequest { at, what })
        });
        report.requests += 1;
        while let Some(ended) = requests.try_join_next() {
            note(ended);
        }
        // After at least one request.
        if stop.load(Ordering::SeqCst) {
            break;
        }
    }
    while let Some(ended) = requests.join_next().await {
        note(ended);
    }
    report
}

async fn request(address: &str) -> Result<(), String> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = ask.await.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&answer);
    let status = text.lines().next().unwrap_or_default();
    let is_whole = text.ends_with("fine\n");
    if status.contains(" 200 ") && is_whole { Ok(()) } else { Err(format!("{status:?}, whole: {is_whole}")) }
}
