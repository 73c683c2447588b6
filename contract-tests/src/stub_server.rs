//! A stub server with the real page of agent or warden and scripted responses and event streams.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use evenkeel_common::http::{self, Response, StatusCode};
use evenkeel_common::page::{self, Document};
use futures_util::{FutureExt, stream};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, UnboundedSender};
use warp::Reply;
use warp::http::header::{CONTENT_TYPE, HeaderValue};

use crate::server::{Request, Server};

/// Number of frames that are replayed to a new stream (spec 8).
const REPLAY: usize = 50;

/// The stub server. Stops on drop.
pub struct StubServer {
    server: Server,
    shared: Arc<Shared>,
}

struct Shared {
    path: &'static str,
    document: Document,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    answers: HashMap<String, (u16, Value)>,
    requests: Vec<String>,
    /// Requests with their query, and their body.
    received: Vec<(String, String)>,
    /// The frame of the epoch, if one was set.
    epoch: Option<String>,
    /// The last status frame.
    status: Option<String>,
    /// Entry frames, oldest first.
    entries: Vec<String>,
    streams: Vec<UnboundedSender<String>>,
    /// Open streams that no longer receive anything.
    stalled: Vec<UnboundedSender<String>>,
    next_id: u64,
    /// Number of IDs before the first entry in `entries`.
    skipped: u64,
}

impl StubServer {
    /// Starts a stub of an agent.
    pub fn agent() -> Self {
        let document = page::document(
            include_str!("../../agent/src/ui/page.html"),
            include_str!("../../agent/src/ui/page.css"),
            include_str!("../../agent/src/ui/page.js"),
        );
        let stub = Self::start("/ui", document);
        stub.answer("GET /health", 200, &json!({ "status": "ok" }));
        stub.answer("GET /audit", 200, &json!([]));
        stub
    }

    /// Starts a stub of a warden whose users are all logged in.
    pub fn warden() -> Self {
        let document = page::document(
            include_str!("../../warden/src/ui/page.html"),
            include_str!("../../warden/src/ui/page.css"),
            concat!(include_str!("../../warden/src/ui/map.js"), include_str!("../../warden/src/ui/page.js")),
        );
        let stub = Self::start("/", document);
        stub.answer("GET /health", 200, &json!({ "status": "ok" }));
        stub.answer("GET /machines", 200, &json!([]));
        stub.answer("GET /history", 200, &json!({ "entries": [] }));
        let nothing = json!({ "revision": 0, "machines": [], "freezes": [], "failed": [], "images": [] });
        stub.answer("GET /fleet/images", 200, &nothing);
        stub
    }

    /// Starts a stub of a warden that shows its login form.
    pub fn login() -> Self {
        Self::login_form(include_str!("../../warden/src/ui/login.html"))
    }

    /// Starts a stub of a warden whose login form reports a wrong token.
    pub fn login_refused() -> Self {
        let form = include_str!("../../warden/src/ui/login.html");
        Self::login_form(&form.replace(" hidden></p>", ">That token is not accepted.</p>"))
    }

    fn login_form(html: &str) -> Self {
        let document = page::document(
            html,
            include_str!("../../warden/src/ui/page.css"),
            include_str!("../../warden/src/ui/login.js"),
        );
        Self::start("/", document)
    }

    fn start(path: &'static str, document: Document) -> Self {
        let state = Mutex::new(State { next_id: 1, ..State::default() });
        let shared = Arc::new(Shared { path, document, state });
        let served = shared.clone();
        let server = Server::start(move |request| std::future::ready(served.answer(&request)).boxed());
        Self { server, shared }
    }

    /// Returns the URL of its page.
    pub fn url(&self) -> String {
        format!("http://{}{}", self.server.address(), self.shared.path)
    }

    /// Returns the uncompressed size of its page in bytes.
    pub fn size(&self) -> usize {
        self.shared.document.size()
    }

    /// Sets the response to a request, for example `POST /trigger/web`. A request with a query takes precedence over the same
    /// one without.
    pub fn answer(&self, request: &str, status: u16, body: &Value) {
        self.shared.state.lock().answers.insert(request.to_owned(), (status, body.clone()));
    }

    /// Returns the requests so far, except those for the page and for streams.
    pub fn requests(&self) -> Vec<String> {
        self.shared.state.lock().requests.clone()
    }

    /// Returns the same requests with their query and body.
    pub fn received(&self) -> Vec<(String, String)> {
        self.shared.state.lock().received.clone()
    }

    /// Returns the number of open streams.
    pub fn streams(&self) -> usize {
        let mut state = self.shared.state.lock();
        state.streams.retain(|stream| !stream.is_closed());
        state.streams.len()
    }

    /// Sends a status to all streams, and as the first frame to every new one.
    pub fn status(&self, report: &Value) {
        let frame = format!("event:status\ndata:{report}\n\n");
        let mut state = self.shared.state.lock();
        state.status = Some(frame.clone());
        state.send(&frame);
    }

    /// Turns into another agent, without the entries so far.
    pub fn epoch(&self, epoch: &str) {
        let frame = format!("event:epoch\ndata:\"{epoch}\"\n\n");
        let mut state = self.shared.state.lock();
        state.epoch = Some(frame.clone());
        state.entries.clear();
        state.skipped = state.next_id - 1;
        state.send(&frame);
    }

    /// Sets the ID of the next entry, as if earlier entries had existed.
    pub fn skip_to(&self, id: u64) {
        let mut state = self.shared.state.lock();
        state.skipped = id.saturating_sub(1);
        state.next_id = id;
    }

    /// Sends an entry to all streams and keeps it for new ones.
    pub fn entry(&self, entry: &Value) {
        let event = if self.shared.path == "/ui" { "event:audit\n" } else { "" };
        let mut state = self.shared.state.lock();
        let frame = format!("{event}data:{entry}\nid:{}\n\n", state.next_id);
        state.next_id += 1;
        state.entries.push(frame.clone());
        state.send(&frame);
    }

    /// Keeps the current streams open but sends nothing more on them, like a proxy that has lost its upstream.
    pub fn stall_streams(&self) {
        let mut state = self.shared.state.lock();
        let stalled = std::mem::take(&mut state.streams);
        state.stalled.extend(stalled);
    }

    /// Takes the server offline (closes all streams and gives no response to new connections) or back online.
    pub fn set_offline(&self, offline: bool) {
        self.server.set_online(!offline);
        if offline {
            let mut state = self.shared.state.lock();
            state.streams.clear();
            state.stalled.clear();
        }
    }
}

impl State {
    fn send(&mut self, frame: &str) {
        self.streams.retain(|stream| stream.send(frame.to_owned()).is_ok());
    }
}

impl Shared {
    fn answer(&self, request: &Request) -> Response {
        match &*request.path {
            path if path == self.path => self.document.reply(StatusCode::OK, &request.headers),
            "/ui/stream" | "/events" => self.follow(request),
            path => {
                let (route, line) = (request.route(), request.line());
                let mut state = self.state.lock();
                let answer = state.answers.get(&line).or_else(|| state.answers.get(&route));
                let answer = answer.cloned().or_else(|| why(path)).or_else(|| history(path));
                state.requests.push(route);
                state.received.push((line, String::from_utf8_lossy(&request.body).into_owned()));
                let (status, body) = answer.unwrap_or_else(|| (404, json!({ "error": "nothing here" })));
                http::json(StatusCode::from_u16(status).expect("a status of HTTP"), &body)
            }
        }
    }

    /// Sends the latest entries, or those after the browser's last event ID, and registers the stream for new ones.
    fn follow(&self, request: &Request) -> Response {
        let header = request.headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
        let after: Option<u64> = header.or_else(|| request.number("after"));
        let mut state = self.state.lock();
        let known = state.entries.len();
        let after = after.and_then(|id| usize::try_from(id.checked_sub(state.skipped)?).ok());
        let from = after.filter(|id| *id <= known).unwrap_or_else(|| known.saturating_sub(REPLAY));
        let (sender, receiver) = mpsc::unbounded_channel();
        let before = state.epoch.iter().chain(&state.status);
        let frames = before.chain(&state.entries[from..]).map(String::as_str);
        let first: String = std::iter::once("retry:500\n\n").chain(frames).collect();
        // The other end is `receiver`.
        let _ = sender.send(first);
        state.streams.push(sender);
        let frames = stream::unfold(receiver, |mut receiver| async move {
            Some((Ok::<_, Infallible>(receiver.recv().await?), receiver))
        });
        let mut response = warp::reply::stream(frames).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        response
    }
}

/// The default response for `/why/<service>`: no gate prevents an update.
fn why(path: &str) -> Option<(u16, Value)> {
    let service = path.strip_prefix("/why/")?;
    let gate = json!({ "gate": "config", "holds": false, "why": "auto_update is on" });
    Some((200, json!({ "service": service, "answer": "It is up to date.", "gates": [gate] })))
}

/// The default response for `/history/<service>`: no image was proven yet.
fn history(path: &str) -> Option<(u16, Value)> {
    path.strip_prefix("/history/").map(|_| (200, json!([])))
}
