//! One engine client for all calls: its API version agreed upon when it is first needed and again after a failure, every
//! call with a deadline.

use std::error::Error as _;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bollard::errors::Error;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::client::{ANSWER_LIMIT_SECS, Client, negotiate};
use super::endpoint::Endpoint;
use super::transport::Transport;
use crate::model::EngineError;
use crate::model::output::stable;

/// How long the engine may take for a question that changes nothing.
pub(super) const READ: Duration = Duration::from_secs(10);
/// Questions under way at once, and connections that are kept for the next ones. Each takes 50 KiB here and a thread's
/// work there; all services ask at the same moment when the agent starts.
pub(super) const AT_ONCE: usize = 8;
/// Longest wait for a permit while no request is answered. The limit is a courtesy: what hangs the requests about some
/// containers must not hold up those about all others.
const COURTESY: Duration = Duration::from_secs(1);

/// The way to one engine.
pub(super) struct Connection {
    endpoint: Endpoint,
    transport: Arc<Transport>,
    client: Mutex<Option<Client>>,
    places: Semaphore,
    /// Services whose containers are read have permits of their own, so that those that wait hold nothing yet.
    service_places: Semaphore,
    /// Counters have permits of their own: there are many of them, and nobody waits for one.
    stats_places: Semaphore,
    /// Questions that were answered.
    answers: AtomicU64,
}

impl Connection {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self {
            transport: Arc::new(Transport::new(&endpoint)),
            endpoint,
            client: Mutex::new(None),
            places: Semaphore::new(AT_ONCE),
            service_places: Semaphore::new(AT_ONCE),
            stats_places: Semaphore::new(AT_ONCE),
            answers: AtomicU64::new(0),
        }
    }

    /// Whether the engine is on this machine.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.endpoint, Endpoint::Unix(_))
    }

    /// Asks the engine for something that it knows at once, [`AT_ONCE`] at a time where they are answered in time.
    pub(super) async fn read<T, F, Fut>(&self, doing: &str, ask: F) -> Result<T, EngineError>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        self.read_in(&self.places, doing, READ, ask).await
    }

    /// Asks the engine for a container's counters. Engines of before 24.0 answer all who wait when their collector has
    /// run, once a second, so they are asked for all at once; others over the connections that are kept.
    pub(super) async fn read_stats<T, F, Fut>(
        &self,
        doing: &str,
        limit: Duration,
        ask: F,
    ) -> Result<T, EngineError>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        let client = self.client.lock().await.clone();
        if client.is_none_or(|client| client.version.reads_stats_at_once()) {
            self.read_in(&self.stats_places, doing, limit, ask).await
        } else {
            self.call(doing, limit, ask).await
        }
    }

    async fn read_in<T, F, Fut>(
        &self,
        places: &Semaphore,
        doing: &str,
        limit: Duration,
        ask: F,
    ) -> Result<T, EngineError>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        let _place = self.place(places).await;
        let result = self.call(doing, limit, ask).await;
        let answered = !result.as_ref().is_err_and(EngineError::is_unavailable);
        self.answers.fetch_add(u64::from(answered), Ordering::Relaxed);
        result
    }

    /// Waits until it is time to read the containers of another service, as long as the engine answers others.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.place(&self.service_places).await
    }

    /// Waits for a permit as long as the engine answers others.
    async fn place<'a>(&self, places: &'a Semaphore) -> Option<SemaphorePermit<'a>> {
        let mut place = pin!(places.acquire());
        loop {
            let before = self.answers.load(Ordering::Relaxed);
            match timeout(COURTESY, &mut place).await {
                Ok(place) => return place.ok(),
                Err(_) if self.answers.load(Ordering::Relaxed) == before => return None,
                Err(_) => {}
            }
        }
    }

    /// Asks the engine. `doing` is for the error text, `limit` holds for everything, a new connection included.
    pub(super) async fn call<T, F, Fut>(&self, doing: &str, limit: Duration, ask: F) -> Result<T, EngineError>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        if let Endpoint::Unusable(why) = &self.endpoint {
            return Err(EngineError::Unavailable(why.clone()));
        }
        let asked = async {
            match ask(self.client().await?).await {
                // The engine was replaced meanwhile: negotiate the version and try once more.
                Err(error) if is_version_mismatch(&error) => {
                    self.forget().await;
                    ask(self.client().await?).await
                }
                answer => answer,
            }
        };
        // On the heap only while it is asked: it is large, and many may wait for a place.
        let asked = timeout(limit, Box::pin(asked));
        let result = match asked.await {
            Ok(answer) => answer.map_err(|error| self.explain(doing, &error)),
            Err(_) => Err(EngineError::Unavailable(format!(
                "{}: no answer within {} s",
                self.endpoint,
                limit.as_secs()
            ))),
        };
        if result.as_ref().is_err_and(EngineError::is_unavailable) {
            self.forget().await;
        }
        result
    }

    /// The client, with the API version agreed upon.
    pub(super) async fn client(&self) -> Result<Client, Error> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        // All others wait for it: not for as long as the call that needs it may take.
        let negotiated = timeout(READ, negotiate(&self.transport)).await;
        Ok(client.insert(negotiated.map_err(|_| Error::RequestTimeoutError)??).clone())
    }

    /// Whether the engine answers, on a new connection, too: one that is shutting down still answers on those that it has.
    pub(super) async fn ping(&self, limit: Duration) -> Result<(), EngineError> {
        self.call("ping", limit, |client| async move {
            match &self.endpoint {
                Endpoint::Unix(path) => drop(UnixStream::connect(path).await?),
                Endpoint::Tcp(address) => drop(TcpStream::connect(address).await?),
                Endpoint::Unusable(_) => {}
            }
            client.docker.ping().await.map(|_| ())
        })
        .await
    }

    /// A client whose version the engine has just accepted: a stream can't be begun a second time.
    pub(super) async fn fresh(&self) -> Result<Client, EngineError> {
        self.call("connect", READ, |client| async move {
            client.docker.ping().await?;
            Ok(client)
        })
        .await
    }

    /// Whether the engine is podman, as far as it was asked.
    pub(super) async fn is_podman(&self) -> bool {
        self.client.lock().await.as_ref().is_some_and(|client| client.podman)
    }

    /// Drops the client, so that the next call negotiates the version again.
    pub(super) async fn forget(&self) {
        *self.client.lock().await = None;
    }

    /// What an error of the client means to us. Texts are stable: the same fault gives the same text.
    pub(super) fn explain(&self, doing: &str, error: &Error) -> EngineError {
        let unavailable = |reason: &str| EngineError::Unavailable(format!("{}: {reason}", self.endpoint));
        match error {
            Error::DockerResponseServerError { status_code: 404, message } => {
                EngineError::NotFound(format!("{doing}: {}", stable(message)))
            }
            Error::DockerResponseServerError { status_code: status @ (502..=504), message } => {
                unavailable(&format!("it answered {status}: {}", stable(message)))
            }
            Error::DockerResponseServerError { message, .. }
            | Error::DockerStreamError { error: message } => {
                EngineError::Refused(format!("{doing}: {}", stable(message)))
            }
            Error::RequestTimeoutError => unavailable(&format!("no answer within {ANSWER_LIMIT_SECS} s")),
            Error::SocketNotFoundError(_) => unavailable("there is no such socket"),
            Error::IOError { .. } | Error::HyperResponseError { .. } | Error::HyperLegacyError { .. } => {
                unavailable(&broken_connection(error))
            }
            Error::JsonSerdeError { err } if err.is_eof() => unavailable("connection lost"),
            other => EngineError::Refused(format!(
                "{doing}: the engine's answer was not understood: {}",
                stable(&other.to_string())
            )),
        }
    }
}

fn is_version_mismatch(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 400, message }
        if message.contains("client version")
            && (message.contains("too old") || message.contains("too new")))
}

/// The operating system's reason at the bottom of a connection error.
fn broken_connection(error: &Error) -> String {
    use std::io::ErrorKind;
    let mut cause = error.source();
    let mut io = None;
    if let Error::IOError { err } = error {
        io = Some(err);
    }
    while let Some(source) = cause {
        io = source.downcast_ref::<std::io::Error>().or(io);
        cause = source.source();
    }
    match io.map(std::io::Error::kind) {
        Some(ErrorKind::NotFound) => "there is no such socket".to_owned(),
        Some(ErrorKind::ConnectionRefused) => "connection refused".to_owned(),
        Some(ErrorKind::PermissionDenied) => {
            "permission denied (the agent's user must be allowed to use the engine's socket)".to_owned()
        }
        Some(ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) => {
            "the host does not answer".to_owned()
        }
        None
        | Some(
            ErrorKind::Other
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionAborted
            | ErrorKind::NotConnected,
        ) => "connection lost".to_owned(),
        Some(_) => io.map(|io| stable(&io.to_string())).unwrap_or_default(),
    }
}
