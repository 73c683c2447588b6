//! A receiver of HTTP requests that answers as it is told, and may not answer at all.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a receiver does with a request.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// `None` never answers.
    status: Option<u16>,
    headers: Vec<(&'static str, String)>,
    body: String,
    accepts: bool,
}

impl Answer {
    pub(crate) fn says(status: u16, body: &str) -> Self {
        Self { status: Some(status), headers: Vec::new(), body: body.to_owned(), accepts: status < 300 }
    }

    pub(crate) fn redirects(status: u16, to: &str) -> Self {
        Self::says(status, "").with("location", to)
    }

    pub(crate) fn hangs() -> Self {
        Self { status: None, accepts: false, ..Self::says(204, "") }
    }

    pub(crate) fn takes_and_hangs() -> Self {
        Self { accepts: true, ..Self::hangs() }
    }

    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }
}

/// A request that came.
#[derive(Debug, Clone)]
pub(crate) struct Taken {
    pub(crate) method: String,
    pub(crate) path: String,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) was_accepted: bool,
}

impl Taken {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

pub(crate) struct Receiver {
    address: String,
    answer: Arc<Mutex<Answer>>,
    taken: Arc<Mutex<Vec<Taken>>>,
}

impl Receiver {
    /// One that answers 204.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answer = Arc::new(Mutex::new(Answer::says(204, "")));
        let taken = Arc::new(Mutex::new(Vec::new()));
        let state = (answer.clone(), taken.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, taken) = state.clone();
                std::thread::spawn(move || serve(&stream, &answer, &taken));
            }
        });
        Self { address, answer, taken }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn answer(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    pub(crate) fn taken(&self) -> Vec<Taken> {
        self.taken.lock().unwrap().clone()
    }
}

/// One request a connection. A fault of the connection ends it: the agent under test may be killed at any time.
fn serve(mut stream: &TcpStream, answers: &Mutex<Answer>, all: &Mutex<Vec<Taken>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length")?.1.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let answer = answers.lock().unwrap().clone();
    all.lock().unwrap().push(Taken { method, path, headers, body, was_accepted: answer.accepts });
    let Some(status) = answer.status else {
        std::thread::sleep(Duration::from_mins(2));
        return None;
    };
    let reason = http::StatusCode::from_u16(status).ok()?.canonical_reason().unwrap_or_default().to_owned();
    let mut text = format!(
        "HTTP/1.1 {status} {reason}\r\nconnection: close\r\ncontent-length: {}\r\n",
        answer.body.len()
    );
    for (name, value) in &answer.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{text}\r\n{}", answer.body).as_bytes()).ok()
}
