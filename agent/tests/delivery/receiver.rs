//! An HTTP receiver with configurable responses, which may also hang: wiremock with a list of received requests.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Runtime;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

/// How a receiver responds to a request.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    template: ResponseTemplate,
    accepts: bool,
}

impl Answer {
    pub(crate) fn status(status: u16, body: &str) -> Self {
        Self { template: ResponseTemplate::new(status).set_body_string(body), accepts: status < 300 }
    }

    pub(crate) fn redirects(status: u16, to: &str) -> Self {
        Self::status(status, "").with("location", to)
    }

    /// The response comes only after the client's timeout.
    pub(crate) fn hangs() -> Self {
        Self { accepts: false, ..Self::accepts_and_hangs() }
    }

    pub(crate) fn accepts_and_hangs() -> Self {
        let answer = Self::status(204, "");
        Self { template: answer.template.set_delay(Duration::from_mins(2)), accepts: true }
    }

    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.template = self.template.insert_header(name, value);
        self
    }
}

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) request: Request,
    pub(crate) was_accepted: bool,
}

impl Received {
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
    refused: Arc<Mutex<Vec<(String, Answer)>>>,
    received: Arc<Mutex<Vec<Received>>>,
    /// Runs the server.
    _runtime: Runtime,
}

impl Receiver {
    /// Starts a receiver that responds with 204.
    pub(crate) fn start() -> Self {
        let answer = Arc::new(Mutex::new(Answer::status(204, "")));
        let received = Arc::new(Mutex::new(Vec::new()));
        let refused = Arc::<Mutex<Vec<(String, Answer)>>>::default();
        let (answers, refusals, all) = (answer.clone(), refused.clone(), received.clone());
        let respond = move |request: &Request| {
            // It accepts entries and does not support fleets, like an old warden.
            if request.url.path() == "/health" {
                return ResponseTemplate::new(200).set_body_string(r#"{"status": "ok"}"#);
            }
            if request.url.path().starts_with("/fleet") || request.url.path() == "/inventory" {
                return ResponseTemplate::new(404);
            }
            // Locked until the request is in the list, so that requests listed after a change of the answer got the new one.
            let usual = answers.lock();
            let refusals = refusals.lock();
            let body = String::from_utf8_lossy(&request.body);
            let refusal = refusals.iter().find(|(text, _)| body.contains(text));
            let answer = refusal.map_or(&*usual, |(_, refusal)| refusal);
            all.lock().push(Received { request: request.clone(), was_accepted: answer.accepts });
            answer.template.clone()
        };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = runtime.block_on(async {
            let server = MockServer::start().await;
            Mock::given(any()).respond_with(respond).mount(&server).await;
            server
        });
        Self { server, answer, refused, received, _runtime: runtime }
    }

    /// `http://host:port`
    pub(crate) fn url(&self) -> String {
        self.server.uri()
    }

    pub(crate) fn answer(&self, answer: Answer) {
        *self.answer.lock() = answer;
    }

    /// Responds with this to requests whose body contains a text.
    pub(crate) fn refuse(&self, text: &str, answer: Answer) {
        self.refused.lock().push((text.to_owned(), answer));
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().clone()
    }
}
