//! A warden whose every word the test chooses: decisions, answers, and how badly it behaves.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use jiff::fmt::rfc2822::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// How it answers what is asked of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// As a warden does.
    Good,
    /// With this status, and a body that says nothing.
    Status(u16),
    /// With 200 and what is no JSON.
    Garbage,
    /// With 200 and far too much.
    Huge,
    /// Not before the agent has given up.
    Slow,
    /// Every connection is closed at once, whatever it is about.
    Gone,
}

/// A request that came: method and path with its query, and the body.
#[derive(Debug, Clone)]
pub struct Heard {
    /// For example `GET /fleet?after=0&wait=50`.
    pub line: String,
    /// `null` without one.
    pub body: Value,
}

/// The warden. Ends on drop.
pub struct FakeWarden {
    address: String,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    over: AtomicBool,
}

struct State {
    behaviour: Behaviour,
    decisions: Value,
    /// Taken on when it is asked for the first time: before its answer.
    before_answer: Option<Value>,
    answer: Value,
    /// Its clock, against that of the machine.
    ahead: SignedDuration,
    heard: Vec<Heard>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no other thread panics with the lock")
    }
}

impl Default for FakeWarden {
    fn default() -> Self {
        Self::start()
    }
}

impl FakeWarden {
    /// One that has decided nothing and lets everything go.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let state = State {
            behaviour: Behaviour::Good,
            decisions: json!({ "revision": 0, "freezes": [], "failed": [] }),
            before_answer: None,
            answer: json!({ "answer": "go", "why": "nobody else wants it", "again": 30 }),
            ahead: SignedDuration::ZERO,
            heard: Vec::new(),
        };
        let (changed, over) = (Condvar::new(), AtomicBool::new(false));
        let shared = Arc::new(Shared { state: Mutex::new(state), changed, over });
        let mine = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if mine.over.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), shared) = (stream, mine.clone()) else { continue };
                std::thread::spawn(move || {
                    // A client that breaks off is none of its business.
                    let _ = serve(stream, &shared);
                });
            }
        });
        Self { address, shared }
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// An agent's `push`.
    pub fn push(&self) -> Value {
        json!({ "warden_url": self.url(), "token": "0123456789abcdef-fake", "machine_id": "here" })
    }

    /// How it behaves from now on; long polls that wait are over.
    pub fn behave(&self, behaviour: Behaviour) {
        self.shared.state().behaviour = behaviour;
        self.shared.changed.notify_all();
    }

    /// What is decided from now on.
    pub fn decide(&self, decisions: Value) {
        self.shared.state().decisions = decisions;
        self.shared.changed.notify_all();
    }

    /// What it answers to those who ask whether they may begin.
    pub fn answer(&self, answer: Value) {
        self.shared.state().answer = answer;
    }

    /// What is decided while the next question waits for its answer, long enough for the agent to hear of it.
    pub fn decide_while_asked(&self, decisions: Value) {
        self.shared.state().before_answer = Some(decisions);
    }

    /// Sets its clock, so far ahead of the machine's.
    pub fn set_clock(&self, ahead: SignedDuration) {
        self.shared.state().ahead = ahead;
    }

    /// What came for a path, oldest first.
    pub fn heard(&self, begin: &str) -> Vec<Heard> {
        self.shared.state().heard.iter().filter(|heard| heard.line.starts_with(begin)).cloned().collect()
    }
}

impl Drop for FakeWarden {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.behave(Behaviour::Gone);
        // The thread that waits for clients sees that it is over.
        let _ = TcpStream::connect(&self.address);
    }
}

/// One request, and its answer.
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
    shared.state().heard.push(Heard { line: line.clone(), body });
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

/// What a warden answers; `None` when it has turned bad meanwhile.
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

/// Waits until something holds, or the time is over.
fn wait(shared: &Shared, limit: Duration, holds: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
    let end = Instant::now() + limit;
    let mut state = shared.state();
    while !holds(&state) && Instant::now() < end && !shared.over.load(Ordering::SeqCst) {
        let left = end.saturating_duration_since(Instant::now());
        state = shared.changed.wait_timeout(state, left).expect("no other thread panics with the lock").0;
    }
    state
}
