//! A client that sends requests to the agent's API continuously, as users and monitoring do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::request;

/// Time between a response and the next request.
const PAUSE: Duration = Duration::from_millis(20);

/// One request and its result.
#[derive(Debug, Clone)]
pub struct RequestResult {
    /// Path of the request.
    pub path: &'static str,
    /// Time from the connection attempt to the last byte of the response.
    pub took: Duration,
    /// Status code, or the error if there was no response.
    pub answer: Result<u16, String>,
}

/// Sends requests in its own thread until it is stopped or dropped.
pub struct BackgroundClient {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<RequestResult>>>,
}

impl BackgroundClient {
    /// Starts to request these paths in turn from the API at `address`.
    pub fn start(address: &str, paths: &'static [&'static str]) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let (address, stop) = (address.to_owned(), stopped.clone());
        let thread = std::thread::spawn(move || {
            let mut all = Vec::new();
            for path in paths.iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let began = Instant::now();
                let answer = request(&address, "GET", path, &[], &[]);
                let answer = answer.map(|reply| reply.status).map_err(|error| error.to_string());
                all.push(RequestResult { path, took: began.elapsed(), answer });
                std::thread::sleep(PAUSE);
            }
            all
        });
        Self { stopped, thread: Some(thread) }
    }

    /// Stops and returns the results of all requests.
    pub fn stop(mut self) -> Vec<RequestResult> {
        self.stopped.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it is taken only here");
        thread.join().expect("the thread does not panic")
    }

    /// Stops and asserts that every request was answered with one of these status codes.
    #[track_caller]
    pub fn assert_answered(self, codes: &[u16]) {
        let all = self.stop();
        let odd: Vec<&RequestResult> =
            all.iter().filter(|one| !one.answer.as_ref().is_ok_and(|code| codes.contains(code))).collect();
        assert!(odd.is_empty(), "{} of {} requests had an unexpected result: {odd:#?}", odd.len(), all.len());
        assert!(!all.is_empty(), "no request was sent");
    }
}

impl Drop for BackgroundClient {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}
