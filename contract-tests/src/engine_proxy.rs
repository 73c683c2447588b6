//! Proxies of the engine's socket that misbehave: duplicate events, failed pulls, cut connections.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::Engine;
use crate::head::Head;

/// Forwards requests to an engine and repeats each of its events `times` times. Runs until the test process exits.
pub struct DuplicatingEngine {
    sent: Arc<AtomicUsize>,
}

impl DuplicatingEngine {
    /// Listens on `socket`.
    pub fn start(socket: &Path, engine: &Engine, times: usize) -> Self {
        let listener = UnixListener::bind(socket).expect("the socket can be made");
        let sent = Arc::new(AtomicUsize::new(0));
        let (target, counter) = (engine.socket().to_owned(), sent.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (target, counter) = (target.clone(), counter.clone());
                // When either side closes the connection, the other one is closed, too.
                std::thread::spawn(move || repeat_events(client, &target, times, &counter));
            }
        });
        Self { sent }
    }

    /// Returns the number of events sent so far, repetitions included.
    pub fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }
}

/// Forwards requests to an engine, but fails every pull as if the disk were full. Runs until the test process exits.
pub struct DiskFullEngine {
    failed: Arc<AtomicUsize>,
}

impl DiskFullEngine {
    /// Listens on `socket`.
    pub fn start(socket: &Path, engine: &Engine) -> Self {
        let listener = UnixListener::bind(socket).expect("the socket can be made");
        let failed = Arc::new(AtomicUsize::new(0));
        let (target, counter) = (engine.socket().to_owned(), failed.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (target, counter) = (target.clone(), counter.clone());
                std::thread::spawn(move || {
                    let mut requests = BufReader::new(client.try_clone()?);
                    let Some(head) = Head::read(&mut requests)? else { return Ok(()) };
                    if head.first.starts_with("POST") && head.first.contains("/images/create?") {
                        counter.fetch_add(1, Ordering::Relaxed);
                        return refuse(client);
                    }
                    forward(head, requests, client, &target, 1, &AtomicUsize::new(0))
                });
            }
        });
        Self { failed }
    }

    /// Returns the number of failed pulls.
    pub fn failed(&self) -> usize {
        self.failed.load(Ordering::Relaxed)
    }
}

/// Forwards requests to an engine as long as it is not cut. Runs until the test process exits.
#[derive(Clone)]
pub struct CuttableEngine {
    is_cut: Arc<AtomicBool>,
    clients: Arc<Mutex<Vec<UnixStream>>>,
}

impl CuttableEngine {
    /// Listens on `socket`.
    pub fn start(socket: &Path, engine: &Engine) -> Self {
        let listener = UnixListener::bind(socket).expect("the socket can be made");
        let target = engine.socket().to_owned();
        let relay = Self { is_cut: Arc::default(), clients: Arc::default() };
        let accepting = relay.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if !accepting.is_cut.load(Ordering::SeqCst) {
                    // When either side closes the connection, the other one is closed, too.
                    let _ = accepting.connect(client, &target);
                }
            }
        });
        relay
    }

    fn connect(&self, client: UnixStream, target: &Path) -> io::Result<()> {
        let engine = UnixStream::connect(target)?;
        self.clients.lock().push(client.try_clone()?);
        let (mut from, mut to) = (client.try_clone()?, engine.try_clone()?);
        std::thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
        let (mut from, mut to) = (engine, client);
        std::thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
        Ok(())
    }

    /// Cuts all connections and refuses new ones, or accepts them again.
    pub fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
        if is_cut {
            for client in self.clients.lock().drain(..) {
                let _ = client.shutdown(std::net::Shutdown::Both);
            }
        }
    }
}

/// Forwards only the requests that are listed, and refuses the others as a socket proxy does. Runs until the test process exits.
#[derive(Clone)]
pub struct FilteredEngine {
    refused: Arc<Mutex<Vec<String>>>,
}

impl FilteredEngine {
    /// Listens on `socket`. `allowed`: such as `GET /containers/{id}/json`, without the version.
    pub fn start(socket: &Path, engine: &Engine, allowed: Vec<String>) -> Self {
        let listener = UnixListener::bind(socket).expect("the socket can be made");
        let target = engine.socket().to_owned();
        let filter = Self { refused: Arc::default() };
        let (accepting, allowed) = (filter.clone(), Arc::new(allowed));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (filter, allowed, target) = (accepting.clone(), allowed.clone(), target.clone());
                // When either side closes the connection, the other one is closed, too.
                std::thread::spawn(move || filter.pass(client, &target, &allowed));
            }
        });
        filter
    }

    fn pass(&self, mut client: UnixStream, target: &Path, allowed: &[String]) -> io::Result<()> {
        let mut requests = BufReader::new(client.try_clone()?);
        let Some(head) = Head::read(&mut requests)? else { return Ok(()) };
        if !allowed.iter().any(|one| is_call(&head.first, one)) {
            self.refused.lock().push(head.first);
            let body = "<html><body><h1>403 Forbidden</h1></body></html>";
            write!(
                client,
                "HTTP/1.1 403 Forbidden\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            )?;
            return client.shutdown(std::net::Shutdown::Both);
        }
        forward(head, requests, client, target, 1, &AtomicUsize::new(0))
    }

    /// Returns the first lines of the requests that were refused so far.
    pub fn refused(&self) -> Vec<String> {
        self.refused.lock().clone()
    }
}

/// Reports whether the first line of a request is this call. Names of images may contain slashes.
fn is_call(first: &str, call: &str) -> bool {
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let method = if method == "HEAD" { "GET" } else { method };
    let path = path.split('?').next().unwrap_or_default();
    let path = match path.strip_prefix("/v1.").and_then(|rest| rest.split_once('/')) {
        Some((version, rest)) if version.bytes().all(|b| b.is_ascii_digit()) => format!("/{rest}"),
        _ => path.to_owned(),
    };
    let asked = format!("{method} {path}");
    match call.split_once("{id}") {
        None => asked == call,
        Some((before, after)) => {
            let id = asked.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
            id.is_some_and(|id| {
                !id.is_empty()
                    && (call.contains("/images/") || call.contains("/distribution/") || !id.contains('/'))
            })
        }
    }
}

fn refuse(mut client: UnixStream) -> io::Result<()> {
    let body = r#"{"message":"write /var/lib/docker/tmp/GetImageBlob1: no space left on device"}"#;
    write!(
        client,
        "HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )?;
    client.shutdown(std::net::Shutdown::Both)
}

fn repeat_events(client: UnixStream, target: &Path, times: usize, sent: &AtomicUsize) -> io::Result<()> {
    let mut requests = BufReader::new(client.try_clone()?);
    let Some(head) = Head::read(&mut requests)? else { return Ok(()) };
    forward(head, requests, client, target, times, sent)
}

fn forward(
    mut head: Head,
    mut requests: BufReader<UnixStream>,
    mut responses: UnixStream,
    target: &Path,
    times: usize,
    sent: &AtomicUsize,
) -> io::Result<()> {
    let is_events = head.first.contains("/events?");
    // One request per connection. Later requests on a kept connection, such as one for events, would not be inspected.
    if head.get("upgrade").is_none() {
        head.set("Connection", Some("close"));
    }
    let mut engine = UnixStream::connect(target)?;
    head.write(&mut engine)?;
    let back = engine.try_clone()?;
    std::thread::spawn(move || {
        let _ = io::copy(&mut requests, &mut engine);
        let _ = engine.shutdown(std::net::Shutdown::Both);
    });
    let mut back = BufReader::new(back);
    if is_events {
        repeat(&mut back, &mut responses, times, sent)?;
    } else {
        io::copy(&mut back, &mut responses)?;
    }
    responses.shutdown(std::net::Shutdown::Both)
}

/// Copies a chunked response and repeats each chunk. Each chunk is one event.
fn repeat(from: &mut impl BufRead, to: &mut impl Write, times: usize, sent: &AtomicUsize) -> io::Result<()> {
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        if from.read_line(&mut line)? == 0 {
            return Ok(());
        }
        to.write_all(line.as_bytes())?;
    }
    while let Some(event) = read_chunk(from)? {
        let mut chunk = format!("{:x}\r\n", event.len()).into_bytes();
        chunk.extend(event);
        chunk.extend(b"\r\n");
        to.write_all(&chunk.repeat(times))?;
        sent.fetch_add(times, Ordering::Relaxed);
    }
    Ok(())
}

/// Reads the next chunk of a chunked body; `None` at its end.
pub(crate) fn read_chunk(from: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let Ok(size @ 1..) = usize::from_str_radix(line.trim(), 16) else { return Ok(None) };
    let mut chunk = vec![0; size + 2];
    from.read_exact(&mut chunk)?;
    chunk.truncate(size);
    Ok(Some(chunk))
}
