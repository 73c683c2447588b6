//! A way to the engine on which every event is told many times.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Engine;
use crate::head::Head;

/// Passes requests on to an engine; each event comes back `times` times. Lives as long as the test's process.
pub struct LoudEngine {
    told: Arc<AtomicUsize>,
}

impl LoudEngine {
    /// Listens on `socket`.
    pub fn start(socket: &Path, engine: &Engine, times: usize) -> Self {
        let listener = UnixListener::bind(socket).expect("the socket can be made");
        let told = Arc::new(AtomicUsize::new(0));
        let (target, counter) = (engine.socket().to_owned(), told.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (target, counter) = (target.clone(), counter.clone());
                // The end of either side ends the other.
                std::thread::spawn(move || relay(client, &target, times, &counter));
            }
        });
        Self { told }
    }

    /// How many events were passed on so far, each as often as it was told.
    pub fn told(&self) -> usize {
        self.told.load(Ordering::Relaxed)
    }
}

/// Passes requests on to an engine; what is to fetch an image fails, as on a disk that is full. Lives as long as the test's
/// process.
pub struct FullEngine {
    failed: Arc<AtomicUsize>,
}

impl FullEngine {
    /// Listens on `socket`.
    pub fn start(socket: &Path, engine: &Engine) -> Self {
        let listener = UnixListener::bind(socket).expect("the socket can be made");
        let failed = Arc::new(AtomicUsize::new(0));
        let (target, counter) = (engine.socket().to_owned(), failed.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (target, counter) = (target.clone(), counter.clone());
                std::thread::spawn(move || {
                    let mut asks = BufReader::new(client.try_clone()?);
                    let Some(head) = Head::read(&mut asks)? else { return Ok(()) };
                    if head.first.starts_with("POST") && head.first.contains("/images/create?") {
                        counter.fetch_add(1, Ordering::Relaxed);
                        return refuse(client);
                    }
                    pass(head, asks, client, &target, 1, &AtomicUsize::new(0))
                });
            }
        });
        Self { failed }
    }

    /// How many images were not fetched.
    pub fn failed(&self) -> usize {
        self.failed.load(Ordering::Relaxed)
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

fn relay(client: UnixStream, target: &Path, times: usize, told: &AtomicUsize) -> io::Result<()> {
    let mut asks = BufReader::new(client.try_clone()?);
    let Some(head) = Head::read(&mut asks)? else { return Ok(()) };
    pass(head, asks, client, target, times, told)
}

fn pass(
    mut head: Head,
    mut asks: BufReader<UnixStream>,
    mut answers: UnixStream,
    target: &Path,
    times: usize,
    told: &AtomicUsize,
) -> io::Result<()> {
    let is_events = head.first.contains("/events?");
    // A connection carries one request. Whoever keeps it would send the next one, for the events perhaps, past us.
    if head.get("upgrade").is_none() {
        head.set("Connection", Some("close"));
    }
    let mut engine = UnixStream::connect(target)?;
    head.write(&mut engine)?;
    let back = engine.try_clone()?;
    std::thread::spawn(move || {
        let _ = io::copy(&mut asks, &mut engine);
        let _ = engine.shutdown(std::net::Shutdown::Both);
    });
    let mut back = BufReader::new(back);
    if is_events {
        repeat(&mut back, &mut answers, times, told)?;
    } else {
        io::copy(&mut back, &mut answers)?;
    }
    answers.shutdown(std::net::Shutdown::Both)
}

/// Copies an answer in chunks, of which each is one event.
fn repeat(from: &mut impl BufRead, to: &mut impl Write, times: usize, told: &AtomicUsize) -> io::Result<()> {
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
        told.fetch_add(times, Ordering::Relaxed);
    }
    Ok(())
}

/// The next chunk of a chunked body; none at its end.
pub(crate) fn read_chunk(from: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let Ok(size @ 1..) = usize::from_str_radix(line.trim(), 16) else { return Ok(None) };
    let mut chunk = vec![0; size + 2];
    from.read_exact(&mut chunk)?;
    chunk.truncate(size);
    Ok(Some(chunk))
}
