//! A stub server with the real page of agent or warden and scripted responses and event streams.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_common::http::{HeaderMap, StatusCode};
use evenkeel_common::page::{self, Document};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

/// Number of frames that are replayed to a new stream (spec 8).
const REPLAY: usize = 50;

/// The stub server. Stops on drop.
pub struct StubServer {
    address: String,
    shared: Arc<Shared>,
}

struct Shared {
    path: &'static str,
    document: Document,
    state: Mutex<State>,
    offline: AtomicBool,
    stopped: AtomicBool,
}

#[derive(Default)]
struct State {
    answers: HashMap<String, (u16, String)>,
    requests: Vec<String>,
    /// Requests with their query, and their body.
    received: Vec<(String, String)>,
    /// The last status frame.
    status: Option<String>,
    /// Entry frames, oldest first.
    entries: Vec<String>,
    streams: Vec<TcpStream>,
    /// Open streams that no longer receive anything.
    stalled: Vec<TcpStream>,
    next_id: u64,
    /// Number of IDs before the first entry in `entries`.
    skipped: u64,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
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
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let shared = Arc::new(Shared {
            path,
            document,
            state: Mutex::new(State { next_id: 1, ..State::default() }),
            offline: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        });
        let served = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if served.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                if served.offline.load(Ordering::SeqCst) {
                    continue;
                }
                let served = served.clone();
                std::thread::spawn(move || {
                    let _ = serve(&served, stream);
                });
            }
        });
        Self { address, shared }
    }

    /// Returns the URL of its page.
    pub fn url(&self) -> String {
        format!("http://{}{}", self.address, self.shared.path)
    }

    /// Returns the uncompressed size of its page in bytes.
    pub fn size(&self) -> usize {
        self.shared.document.size()
    }

    /// Sets the response to a request, for example `POST /trigger/web`. A request with a query takes precedence over the same
    /// one without.
    pub fn answer(&self, request: &str, status: u16, body: &Value) {
        self.shared.state().answers.insert(request.to_owned(), (status, body.to_string()));
    }

    /// Returns the requests so far, except those for the page and for streams.
    pub fn requests(&self) -> Vec<String> {
        self.shared.state().requests.clone()
    }

    /// Returns the same requests with their query and body.
    pub fn received(&self) -> Vec<(String, String)> {
        self.shared.state().received.clone()
    }

    /// Returns the number of open streams.
    pub fn streams(&self) -> usize {
        self.shared.state().streams.len()
    }

    /// Sends a status to all streams, and as the first frame to every new one.
    pub fn status(&self, report: &Value) {
        let frame = format!("event:status\ndata:{report}\n\n");
        let mut state = self.shared.state();
        state.status = Some(frame.clone());
        state.send(&frame);
    }

    /// Sets the ID of the next entry, as if earlier entries had existed.
    pub fn skip_to(&self, id: u64) {
        let mut state = self.shared.state();
        state.skipped = id.saturating_sub(1);
        state.next_id = id;
    }

    /// Sends an entry to all streams and keeps it for new ones.
    pub fn entry(&self, entry: &Value) {
        let event = if self.shared.path == "/ui" { "event:audit\n" } else { "" };
        let mut state = self.shared.state();
        let frame = format!("{event}data:{entry}\nid:{}\n\n", state.next_id);
        state.next_id += 1;
        state.entries.push(frame.clone());
        state.send(&frame);
    }

    /// Keeps the current streams open but sends nothing more on them, like a proxy that has lost its upstream.
    pub fn stall_streams(&self) {
        let mut state = self.shared.state();
        let stalled = std::mem::take(&mut state.streams);
        state.stalled.extend(stalled);
    }

    /// Takes the server offline (closes all streams and gives no response to new connections) or back online.
    pub fn set_offline(&self, offline: bool) {
        self.shared.offline.store(offline, Ordering::SeqCst);
        if offline {
            self.shared.state().disconnect();
        }
    }
}

impl State {
    fn send(&mut self, frame: &str) {
        self.streams.retain_mut(|stream| stream.write_all(frame.as_bytes()).is_ok());
    }

    fn disconnect(&mut self) {
        for stream in self.streams.drain(..).chain(self.stalled.drain(..)) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for StubServer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.shared.state().disconnect();
        let _ = TcpStream::connect(&self.address);
    }
}

/// Handles one request per connection.
fn serve(shared: &Shared, mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut words = first.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut length = 0;
    let mut after = None;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? <= 2 {
            break;
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "last-event-id" => after = value.trim().parse::<usize>().ok(),
            _ => {}
        }
    }
    let mut body = String::new();
    reader.take(length).read_to_string(&mut body)?;
    if shared.offline.load(Ordering::SeqCst) {
        return Ok(());
    }
    let path = target.split('?').next().unwrap_or_default();
    match path {
        path if path == shared.path => send_page(shared, stream),
        "/ui/stream" | "/events" => {
            let named = target.split_once("after=").and_then(|(_, id)| id.parse().ok());
            follow(shared, stream, after.or(named))
        }
        path => {
            let request = format!("{method} {path}");
            let mut state = shared.state();
            state.requests.push(request.clone());
            let whole = format!("{method} {target}");
            let answer = state.answers.get(&whole).or_else(|| state.answers.get(&request));
            let answer = answer.cloned().or_else(|| why(path)).or_else(|| history(path));
            state.received.push((whole, body));
            drop(state);
            let (status, body) = answer.unwrap_or_else(|| (404, r#"{"error":"nothing here"}"#.to_owned()));
            write!(
                stream,
                "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            )
        }
    }
}

/// The default response for `/why/<service>`: no gate prevents an update.
fn why(path: &str) -> Option<(u16, String)> {
    let service = path.strip_prefix("/why/")?;
    let gate = json!({ "gate": "config", "holds": false, "why": "auto_update is on" });
    let report = json!({ "service": service, "answer": "It is up to date.", "gates": [gate] });
    Some((200, report.to_string()))
}

/// The default response for `/history/<service>`: no image was proven yet.
fn history(path: &str) -> Option<(u16, String)> {
    path.strip_prefix("/history/").map(|_| (200, "[]".to_owned()))
}

fn send_page(shared: &Shared, mut stream: TcpStream) -> std::io::Result<()> {
    let answer = shared.document.reply(StatusCode::OK, &HeaderMap::new());
    let mut head = "HTTP/1.1 200 OK\r\nConnection: close\r\n".to_owned();
    for (name, value) in answer.headers() {
        head.push_str(&format!("{name}: {}\r\n", value.to_str().expect("our headers are text")));
    }
    write!(stream, "{head}Content-Length: {}\r\n\r\n", shared.document.size())?;
    stream.write_all(shared.document.text())
}

/// Sends the latest entries, or those after the browser's last event ID, and registers the stream for new ones.
fn follow(shared: &Shared, mut stream: TcpStream, after: Option<usize>) -> std::io::Result<()> {
    let mut state = shared.state();
    let known = state.entries.len();
    let skipped = usize::try_from(state.skipped).unwrap_or(usize::MAX);
    let after = after.and_then(|id| id.checked_sub(skipped));
    let from = after.filter(|id| *id <= known).unwrap_or_else(|| known.saturating_sub(REPLAY));
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\nConnection: close\r\n\r\nretry:500\n\n";
    let frames = state.status.iter().chain(&state.entries[from..]).map(String::as_str);
    let text: String = std::iter::once(head).chain(frames).collect();
    stream.write_all(text.as_bytes())?;
    state.streams.push(stream);
    Ok(())
}
