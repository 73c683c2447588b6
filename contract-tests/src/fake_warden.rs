//! A fake warden. The test controls its decisions, its responses and its faults.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::http::{self, Response, StatusCode};
use futures_util::FutureExt;
use jiff::fmt::rfc2822::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use warp::Reply;
use warp::http::header::{DATE, HeaderValue};

use crate::server::{Request, Server};

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
    server: Server,
    state: Arc<watch::Sender<State>>,
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

impl Default for FakeWarden {
    fn default() -> Self {
        Self::start()
    }
}

impl FakeWarden {
    /// Starts a warden without decisions that grants every lease.
    pub fn start() -> Self {
        let state = State {
            behaviour: Behaviour::Good,
            decisions: json!({ "revision": 0, "freezes": [], "failed": [] }),
            before_answer: None,
            answer: json!({ "answer": "go", "why": "nobody else wants it", "again": 30 }),
            ahead: SignedDuration::ZERO,
            received: Vec::new(),
        };
        let state = Arc::new(watch::Sender::new(state));
        let served = state.clone();
        let server = Server::start(move |request| serve(served.clone(), request).boxed());
        Self { server, state }
    }

    /// Returns its base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.server.address())
    }

    /// Returns `push` for an agent's configuration.
    pub fn push(&self) -> Value {
        json!({ "warden_url": self.url(), "token": "0123456789abcdef-fake", "machine_id": "here" })
    }

    /// Sets its behaviour from now on and ends pending long polls.
    pub fn behave(&self, behaviour: Behaviour) {
        let before = self.state.borrow().behaviour;
        self.state.send_modify(|state| state.behaviour = behaviour);
        if (before == Behaviour::Gone) != (behaviour == Behaviour::Gone) {
            self.server.set_online(behaviour != Behaviour::Gone);
        }
    }

    /// Sets its decisions from now on.
    pub fn decide(&self, decisions: Value) {
        self.state.send_modify(|state| state.decisions = decisions);
    }

    /// Sets its response to lease requests (`POST /fleet/ask`).
    pub fn answer(&self, answer: Value) {
        self.state.send_modify(|state| state.answer = answer);
    }

    /// Sets decisions that take effect while the next lease request is pending, long enough for the agent to receive them
    /// before the response.
    pub fn decide_while_asked(&self, decisions: Value) {
        self.state.send_modify(|state| state.before_answer = Some(decisions));
    }

    /// Sets the offset of its clock from the machine's clock.
    pub fn set_clock(&self, ahead: SignedDuration) {
        self.state.send_modify(|state| state.ahead = ahead);
    }

    /// Returns the received requests that begin with `begin`, oldest first.
    pub fn received(&self, begin: &str) -> Vec<ReceivedRequest> {
        let state = self.state.borrow();
        state.received.iter().filter(|received| received.line.starts_with(begin)).cloned().collect()
    }
}

/// Handles one request.
async fn serve(state: Arc<watch::Sender<State>>, request: Request) -> Response {
    let body = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
    state.send_modify(|state| state.received.push(ReceivedRequest { line: request.line(), body }));
    let is_fleet = request.path.starts_with("/fleet") || request.path == "/inventory";
    let behaviour = if is_fleet { state.borrow().behaviour } else { Behaviour::Good };
    let mut response = match behaviour {
        Behaviour::Good => {
            let answer = answer(&state, &request).await;
            if is_fleet && state.borrow().behaviour != behaviour {
                http::error(StatusCode::SERVICE_UNAVAILABLE, "no longer")
            } else {
                http::json(StatusCode::OK, &answer)
            }
        }
        Behaviour::Status(status) => {
            let status = StatusCode::from_u16(status).expect("a status of HTTP");
            http::json(status, &json!({ "error": "no" }))
        }
        Behaviour::Garbage => "{\"revision\": \"many\", ".into_response(),
        Behaviour::Huge => format!("{{\"x\": \"{}\"}}", "x".repeat(6 * 1024 * 1024)).into_response(),
        Behaviour::Slow | Behaviour::Gone => {
            let mut changed = state.subscribe();
            let _ = timeout(Duration::from_secs(20), changed.wait_for(|state| state.behaviour != behaviour))
                .await;
            http::error(StatusCode::SERVICE_UNAVAILABLE, "too late")
        }
    };
    let ahead = state.borrow().ahead;
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&(Timestamp::now() + ahead));
    if let Some(date) = date.ok().and_then(|date| HeaderValue::from_str(&date).ok()) {
        response.headers_mut().insert(DATE, date);
    }
    response
}

/// Returns the response of a good warden.
async fn answer(state: &watch::Sender<State>, request: &Request) -> Value {
    match &*request.path {
        "/fleet" => {
            let (after, wait) = (request.number("after"), request.number("wait").unwrap_or(0));
            let is_news = |state: &State| {
                state.behaviour != Behaviour::Good || state.decisions["revision"].as_u64() != after
            };
            let mut changed = state.subscribe();
            let _ = timeout(Duration::from_secs(wait), changed.wait_for(is_news)).await;
            state.borrow().decisions.clone()
        }
        "/fleet/ask" => {
            let mut decisions = None;
            state.send_modify(|state| decisions = state.before_answer.take());
            if let Some(decisions) = decisions {
                state.send_modify(|state| state.decisions = decisions);
                sleep(Duration::from_millis(1300)).await;
            }
            state.borrow().answer.clone()
        }
        "/fleet/release" => json!({ "status": "released" }),
        _ => json!({ "status": "accepted", "fleet": state.borrow().decisions["revision"] }),
    }
}
