//! A fake warden. The test controls its decisions, its responses and its faults.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::fmt::rfc2822::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde_json::{Value, json};

/// How it responds to fleet requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Like a real warden.
    Good,
    /// With this status and a body without details.
    Status(u16),
    /// With 200 and invalid JSON.
    Garbage,
    /// With 200 and a body far over the limit.
    Huge,
    /// Only after the agent's timeout.
    Slow,
    /// Closes every connection immediately, for any request.
    Gone,
}

/// A received request.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    /// Method, path and query, for example `GET /fleet?after=0&wait=50`.
    pub line: String,
    /// Body, or `null` without one.
    pub body: Value,
}

/// The fake warden. Stops on drop.
pub struct FakeWarden {
    address: String,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    stopped: AtomicBool,
}

struct State {
    behaviour: Behaviour,
    decisions: Value,
    /// Replaces `decisions` on the next `/fleet/ask`, before the response.
    before_answer: Option<Value>,
    answer: Value,
    /// Offset of its clock from the machine's clock.
    ahead: SignedDuration,
    received: Vec<ReceivedRequest>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Default for FakeWarden {
    fn default() -> Self {
        Self::start()
    }
}

impl FakeWarden {
    /// Starts a warden without decisions that grants every lease.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let state = State {
            behaviour: Behaviour::Good,
            decisions: json!({ "revision": 0, "freezes": [], "failed": [] }),
            before_answer: None,
            answer: json!({ "answer": "go", "why": "nobody else wants it", "again": 30 }),
            ahead: SignedDuration::ZERO,
            received: Vec::new(),
        };
        let (changed, stopped) = (Condvar::new(), AtomicBool::new(false));
        let shared = Arc::new(Shared { state: Mutex::new(state), changed, stopped });
        let mine = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if mine.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), shared) = (stream, mine.clone()) else { continue };
                std::thread::spawn(move || {
                    // Ignore clients that disconnect.
                    let _ = serve(stream, &shared);
                });
            }
        });
        Self { address, shared }
    }

    /// Returns its base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns `push` for an agent's configuration.
    pub fn push(&self) -> Value {
        json!({ "warden_url": self.url(), "token": "0123456789abcdef-fake", "machine_id": "here" })
    }

    /// Sets its behaviour from now on and ends pending long polls.
    pub fn behave(&self, behaviour: Behaviour) {
        self.shared.state().behaviour = behaviour;
        self.shared.changed.notify_all();
    }

    /// Sets its decisions from now on.
    pub fn decide(&self, decisions: Value) {
        self.shared.state().decisions = decisions;
        self.shared.changed.notify_all();
    }

    /// Sets its response to lease requests (`POST /fleet/ask`).
    pub fn answer(&self, answer: Value) {
        self.shared.state().answer = answer;
    }

    /// Sets decisions that take effect while the next lease request is pending, long enough for the agent to receive them
    /// before the response.
    pub fn decide_while_asked(&self, decisions: Value) {
        self.shared.state().before_answer = Some(decisions);
    }

    /// Sets the offset of its clock from the machine's clock.
    pub fn set_clock(&self, ahead: SignedDuration) {
        self.shared.state().ahead = ahead;
    }

    /// Returns the received requests that begin with `begin`, oldest first.
    pub fn received(&self, begin: &str) -> Vec<ReceivedRequest> {
        self.shared
            .state()
            .received
            .iter()
            .filter(|received| received.line.starts_with(begin))
            .cloned()
            .collect()
    }
}

impl Drop for FakeWarden {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.behave(Behaviour::Gone);
        // Wake the listener thread so that it sees the flag.
        let _ = TcpStream::connect(&self.address);
    }
}

/// Handles one request.
fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    if shared.state().behaviour == Behaviour::Gone {
        return Ok(());
    }
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line)?;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? <= 2 {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let line = line.rsplit_once(' ').map_or(line.as_str(), |(asked, _)| asked).to_owned();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    shared.state().received.push(ReceivedRequest { line: line.clone(), body });
    let is_fleet =
        ["GET /fleet", "POST /fleet", "POST /inventory"].iter().any(|fleet| line.starts_with(fleet));
    let behaviour = if is_fleet { shared.state().behaviour } else { Behaviour::Good };
    let (status, text) = match behaviour {
        Behaviour::Good => match answer(&line, shared) {
            Some(answer) => (200, answer.to_string()),
            None => return Ok(()),
        },
        Behaviour::Status(status) => (status, "{\"error\": \"no\"}".to_owned()),
        Behaviour::Garbage => (200, "{\"revision\": \"many\", ".to_owned()),
        Behaviour::Huge => (200, format!("{{\"x\": \"{}\"}}", "x".repeat(6 * 1024 * 1024))),
        Behaviour::Slow => {
            drop(wait(shared, Duration::from_secs(20), |state| state.behaviour != Behaviour::Slow));
            return Ok(());
        }
        Behaviour::Gone => return Ok(()),
    };
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&(Timestamp::now() + shared.state().ahead));
    let date = date.unwrap_or_default();
    write!(
        stream,
        "HTTP/1.1 {status} x\r\ndate: {date}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{text}",
        text.len()
    )
}

/// Returns the response of a good warden; `None` if the behaviour has changed while the request was pending.
fn answer(line: &str, shared: &Shared) -> Option<Value> {
    let parameter = |name: &str| -> Option<u64> {
        let (_, query) = line.split_once('?')?;
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    };
    if line.starts_with("GET /fleet") {
        let (after, limit) = (parameter("after"), Duration::from_secs(parameter("wait").unwrap_or(0)));
        let is_news = |state: &State| {
            state.behaviour != Behaviour::Good || state.decisions["revision"].as_u64() != after
        };
        let state = wait(shared, limit, is_news);
        return (state.behaviour == Behaviour::Good).then(|| state.decisions.clone());
    }
    if line.starts_with("POST /fleet/ask") {
        let decisions = shared.state().before_answer.take();
        if let Some(decisions) = decisions {
            shared.state().decisions = decisions;
            shared.changed.notify_all();
            std::thread::sleep(Duration::from_millis(1300));
        }
        return Some(shared.state().answer.clone());
    }
    if line.starts_with("POST /fleet/release") {
        return Some(json!({ "status": "released" }));
    }
    Some(json!({ "status": "accepted", "fleet": shared.state().decisions["revision"] }))
}

/// Waits until `holds` returns true, or until the time limit.
fn wait(shared: &Shared, limit: Duration, holds: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
    let end = Instant::now() + limit;
    let mut state = shared.state();
    while !holds(&state) && Instant::now() < end && !shared.stopped.load(Ordering::SeqCst) {
        let left = end.saturating_duration_since(Instant::now());
        shared.changed.wait_for(&mut state, left);
    }
    state
}
