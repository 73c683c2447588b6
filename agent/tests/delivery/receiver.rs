//! A receiver of HTTP requests that answers as it is told, and may not answer at all: wiremock with a memory.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Runtime;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

/// What a receiver does with a request.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    template: ResponseTemplate,
    accepts: bool,
}

impl Answer {
    pub(crate) fn says(status: u16, body: &str) -> Self {
        Self { template: ResponseTemplate::new(status).set_body_string(body), accepts: status < 300 }
    }

    pub(crate) fn redirects(status: u16, to: &str) -> Self {
        Self::says(status, "").with("location", to)
    }

    /// The answer comes when nobody waits for it any more.
    pub(crate) fn hangs() -> Self {
        Self { accepts: false, ..Self::takes_and_hangs() }
    }

    pub(crate) fn takes_and_hangs() -> Self {
        let answer = Self::says(204, "");
        Self { template: answer.template.set_delay(Duration::from_mins(2)), accepts: true }
    }

    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.template = self.template.insert_header(name, value);
        self
    }
}

/// A request that came.
#[derive(Debug, Clone)]
pub(crate) struct Taken {
    pub(crate) request: Request,
    pub(crate) was_accepted: bool,
}

impl Taken {
    pub(crate) fn path(&self) -> &str {
        self.request.url.path()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.request.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.request.body
    }
}

pub(crate) struct Receiver {
    server: MockServer,
    answer: Arc<Mutex<Answer>>,
    taken: Arc<Mutex<Vec<Taken>>>,
    /// The server lives in it.
    _runtime: Runtime,
}

impl Receiver {
    /// One that answers 204.
    pub(crate) fn start() -> Self {
        let answer = Arc::new(Mutex::new(Answer::says(204, "")));
        let taken = Arc::new(Mutex::new(Vec::new()));
        let (answers, all) = (answer.clone(), taken.clone());
        let respond = move |request: &Request| {
            // It takes entries and knows nothing of fleets, like a warden of before.
            if request.url.path() == "/health" {
                return ResponseTemplate::new(200).set_body_string(r#"{"status": "ok"}"#);
            }
            if request.url.path().starts_with("/fleet") || request.url.path() == "/inventory" {
                return ResponseTemplate::new(404);
            }
            // Held until the request is in the list: one that comes after a change of the answer has got the new one.
            let answer = answers.lock().unwrap();
            all.lock().unwrap().push(Taken { request: request.clone(), was_accepted: answer.accepts });
            answer.template.clone()
        };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = runtime.block_on(async {
            let server = MockServer::start().await;
            Mock::given(any()).respond_with(respond).mount(&server).await;
            server
        });
        Self { server, answer, taken, _runtime: runtime }
    }

    /// `http://host:port`
    pub(crate) fn url(&self) -> String {
        self.server.uri()
    }

    pub(crate) fn answer(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    pub(crate) fn taken(&self) -> Vec<Taken> {
        self.taken.lock().unwrap().clone()
    }
}
