//! A scripted program behind a real page: answers and streams are what the test says.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use evenkeel_common::http::{HeaderMap, StatusCode};
use evenkeel_common::page::{self, Document};
use serde_json::{Value, json};

/// Frames that a new stream gets first (spec 8).
const REPLAY: usize = 50;

/// The program. Ends on drop.
pub struct Stage {
    address: String,
    shared: Arc<Shared>,
}

struct Shared {
    path: &'static str,
    document: Document,
    state: Mutex<State>,
    away: AtomicBool,
    over: AtomicBool,
}

#[derive(Default)]
struct State {
    answers: HashMap<String, (u16, String)>,
    asked: Vec<String>,
    /// The same with what follows the path, and the body.
    received: Vec<(String, String)>,
    /// The last status frame.
    status: Option<String>,
    /// Entry frames, oldest first.
    entries: Vec<String>,
    streams: Vec<TcpStream>,
    /// Streams that are open and bring nothing any more.
    muted: Vec<TcpStream>,
    next_id: u64,
    /// Ids before the first entry that is kept.
    skipped: u64,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no other thread panics with the lock")
    }
}

impl Stage {
    /// Plays an agent.
    pub fn agent() -> Self {
        let document = page::document(
            include_str!("../../agent/src/ui/page.html"),
            include_str!("../../agent/src/ui/page.css"),
            include_str!("../../agent/src/ui/page.js"),
        );
        let stage = Self::start("/ui", document);
        stage.answer("GET /health", 200, &json!({ "status": "ok" }));
        stage.answer("GET /audit", 200, &json!([]));
        stage
    }

    /// Plays a warden that everyone is logged in to.
    pub fn warden() -> Self {
        let document = page::document(
            include_str!("../../warden/src/ui/page.html"),
            include_str!("../../warden/src/ui/page.css"),
            concat!(include_str!("../../warden/src/ui/map.js"), include_str!("../../warden/src/ui/page.js")),
        );
        let stage = Self::start("/", document);
        stage.answer("GET /health", 200, &json!({ "status": "ok" }));
        stage.answer("GET /machines", 200, &json!([]));
        stage.answer("GET /history", 200, &json!({ "entries": [] }));
        let nothing = json!({ "revision": 0, "machines": [], "freezes": [], "failed": [], "images": [] });
        stage.answer("GET /fleet/images", 200, &nothing);
        stage
    }

    /// Plays a warden that nobody is logged in to.
    pub fn login() -> Self {
        Self::login_form(include_str!("../../warden/src/ui/login.html"))
    }

    /// Plays a warden that was shown a wrong token.
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
            away: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        let mine = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if mine.over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                if mine.away.load(Ordering::SeqCst) {
                    continue;
                }
                let mine = mine.clone();
                std::thread::spawn(move || {
                    let _ = serve(&mine, stream);
                });
            }
        });
        Self { address, shared }
    }

    /// Address of its page.
    pub fn url(&self) -> String {
        format!("http://{}{}", self.address, self.shared.path)
    }

    /// Bytes of its page, uncompressed.
    pub fn size(&self) -> usize {
        self.shared.document.size()
    }

    /// What it answers to a request, for example `POST /trigger/web`. One with a query goes before one without.
    pub fn answer(&self, request: &str, status: u16, body: &Value) {
        self.shared.state().answers.insert(request.to_owned(), (status, body.to_string()));
    }

    /// Requests so far, without page and streams.
    pub fn asked(&self) -> Vec<String> {
        self.shared.state().asked.clone()
    }

    /// The same requests with their queries, and their bodies.
    pub fn received(&self) -> Vec<(String, String)> {
        self.shared.state().received.clone()
    }

    /// How many streams are open.
    pub fn streams(&self) -> usize {
        self.shared.state().streams.len()
    }

    /// Sends a status to all streams, and to every new one first.
    pub fn status(&self, report: &Value) {
        let frame = format!("event:status\ndata:{report}\n\n");
        let mut state = self.shared.state();
        state.status = Some(frame.clone());
        state.send(&frame);
    }

    /// Gives the next entry this id, as if as many had been before.
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

    /// Leaves the streams of now open, and sends nothing on them any more, as a proxy does that has lost their other end.
    pub fn mute(&self) {
        let mut state = self.shared.state();
        let muted = std::mem::take(&mut state.streams);
        state.muted.extend(muted);
    }

    /// Goes away, or comes back: all connections are cut, new ones get no answer.
    pub fn away(&self, away: bool) {
        self.shared.away.store(away, Ordering::SeqCst);
        if away {
            self.shared.state().cut();
        }
    }
}

impl State {
    fn send(&mut self, frame: &str) {
        self.streams.retain_mut(|stream| stream.write_all(frame.as_bytes()).is_ok());
    }

    fn cut(&mut self) {
        for stream in self.streams.drain(..).chain(self.muted.drain(..)) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.shared.state().cut();
        let _ = TcpStream::connect(&self.address);
    }
}

/// One request per connection.
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
    if shared.away.load(Ordering::SeqCst) {
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
            state.asked.push(request.clone());
            let whole = format!("{method} {target}");
            let answer = state.answers.get(&whole).or_else(|| state.answers.get(&request));
            let answer = answer.cloned().or_else(|| why(path));
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

/// What keeps a service from being updated, where nothing does.
fn why(path: &str) -> Option<(u16, String)> {
    let service = path.strip_prefix("/why/")?;
    let gate = json!({ "gate": "config", "holds": false, "why": "auto_update is on" });
    let report = json!({ "service": service, "answer": "It is up to date.", "gates": [gate] });
    Some((200, report.to_string()))
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

/// Known entries first, or those after the one that the browser had; then whatever comes.
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
