//! Somebody who asks the agent's API all the time, as people and monitoring do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::request;

/// Time between an answer and the next request.
const PAUSE: Duration = Duration::from_millis(20);

/// One request and what came of it.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Path that was asked for.
    pub path: &'static str,
    /// From the connection to the last byte of the answer.
    pub took: Duration,
    /// Status code, or why there was no answer.
    pub answer: Result<u16, String>,
}

/// Asks until it is stopped or dropped.
pub struct Asker {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Asked>>>,
}

impl Asker {
    /// Begins to ask the API at `address` for these paths in turn.
    pub fn start(address: &str, paths: &'static [&'static str]) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (address, seen) = (address.to_owned(), over.clone());
        let thread = std::thread::spawn(move || {
            let mut all = Vec::new();
            for path in paths.iter().cycle() {
                if seen.load(Ordering::Relaxed) {
                    break;
                }
                let began = Instant::now();
                let answer = request(&address, "GET", path, &[], &[]);
                let answer = answer.map(|reply| reply.status).map_err(|error| error.to_string());
                all.push(Asked { path, took: began.elapsed(), answer });
                std::thread::sleep(PAUSE);
            }
            all
        });
        Self { over, thread: Some(thread) }
    }

    /// Stops, and says what came of all requests.
    pub fn stop(mut self) -> Vec<Asked> {
        self.over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it is taken only here");
        thread.join().expect("asking does not panic")
    }

    /// Stops. Every request must have been answered with one of these codes.
    #[track_caller]
    pub fn assert_answered(self, codes: &[u16]) {
        let all = self.stop();
        let odd: Vec<&Asked> =
            all.iter().filter(|one| !one.answer.as_ref().is_ok_and(|code| codes.contains(code))).collect();
        assert!(odd.is_empty(), "{} of {} requests were not answered well: {odd:#?}", odd.len(), all.len());
        assert!(!all.is_empty(), "nothing was asked");
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
