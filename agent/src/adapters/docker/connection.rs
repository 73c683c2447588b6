//! The engine client that all calls share. The API version is negotiated on first use and again after a failure. Every call
//! has a deadline.

use std::error::Error as _;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bollard::errors::Error;
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::PING;
use super::client::{ANSWER_LIMIT_SECS, Client, Query, negotiate};
use super::endpoint::Endpoint;
use super::transport::{AT_ONCE, Transport};
use crate::model::EngineError;
use crate::model::output::{says, stable};

/// Timeout of a read request.
pub(super) const READ: Duration = Duration::from_secs(10);
/// Maximum wait for a permit while no request is answered. After that, requests proceed without a permit: requests that
/// hang for some containers must not block those for all others.
const PERMIT_WAIT: Duration = Duration::from_secs(1);

/// Why a request failed.
struct Failed {
    error: EngineError,
    /// Whether its own time limit ended it, as opposed to a lost connection.
    is_late: bool,
}

/// The connection to one engine.
pub(super) struct Connection {
    endpoint: Endpoint,
    transport: Arc<Transport>,
    /// For pings.
    without_pool: Transport,
    client: Mutex<Option<Client>>,
    permits: Semaphore,
    /// Separate permits for reading a service's containers, so that waiting services hold no other resources.
    service_permits: Semaphore,
    /// Separate permits for stats requests: they are many and not urgent.
    stats_permits: Semaphore,
    /// Number of answered read requests.
    answers: AtomicU64,
}

impl Connection {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self {
            transport: Arc::new(Transport::new(&endpoint)),
            without_pool: Transport::without_pool(&endpoint),
            endpoint,
            client: Mutex::new(None),
            permits: Semaphore::new(AT_ONCE),
            service_permits: Semaphore::new(AT_ONCE),
            stats_permits: Semaphore::new(AT_ONCE),
            answers: AtomicU64::new(0),
        }
    }

    /// The address of the engine.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Reports whether the engine runs on this host.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.endpoint, Endpoint::Unix(_))
    }

    /// Sends a read request that the engine can answer immediately. At most [`AT_ONCE`] run concurrently, as long as the
    /// engine answers.
    pub(super) async fn read<T, F, Fut>(&self, doing: &str, ask: F) -> Result<T, EngineError>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        self.read_in(&self.permits, doing, READ, ask).await.map_err(|failed| failed.error)
    }

    /// Sends a read request about one container, see [`Connection::call_for_one`].
    pub(super) async fn read_one<T, F, Fut>(&self, doing: &str, ask: F) -> Result<T, EngineError>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        let answer = self.read_in(&self.permits, doing, READ, ask).await;
        self.of_one(doing, READ, answer).await
    }

    /// Sends a request about one container. If the engine does not answer it in time, but answers a ping, only this container
    /// hangs: the request counts as refused.
    pub(super) async fn call_for_one<T, F, Fut>(
        &self,
        doing: &str,
        limit: Duration,
        ask: F,
    ) -> Result<T, EngineError>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        let answer = self.attempt(doing, limit, ask).await;
        self.of_one(doing, limit, answer).await
    }

    async fn of_one<T>(
        &self,
        doing: &str,
        limit: Duration,
        answer: Result<T, Failed>,
    ) -> Result<T, EngineError> {
        if answer.as_ref().is_err_and(|failed| failed.is_late) && self.ping(PING).await.is_ok() {
            return Err(EngineError::Refused(format!("{doing}: no answer within {} s", limit.as_secs())));
        }
        answer.map_err(|failed| failed.error)
    }

    /// Sends a read request and returns the JSON response.
    pub(super) async fn get(&self, doing: &str, path: &str, query: Query<'_>) -> Result<Value, EngineError> {
        self.get_within(READ, doing, path, query).await
    }

    /// Like [`Self::get`], with this timeout.
    pub(super) async fn get_within(
        &self,
        limit: Duration,
        doing: &str,
        path: &str,
        query: Query<'_>,
    ) -> Result<Value, EngineError> {
        let ask = |client: Client| async move { client.get(path, query, None).await };
        self.read_in(&self.permits, doing, limit, ask).await.map_err(|failed| failed.error)
    }

    /// Requests a container's stats, see [`Connection::call_for_one`]. Engines before 24.0 answer all pending requests when their
    /// collector runs, once a second, so these are sent all at once. For newer engines, concurrency is limited to the pooled
    /// connections.
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
        let answer = if client.is_none_or(|client| client.version.reads_stats_on_request()) {
            self.read_in(&self.stats_permits, doing, limit, ask).await
        } else {
            self.attempt(doing, limit, ask).await
        };
        self.of_one(doing, limit, answer).await
    }

    async fn read_in<T, F, Fut>(
        &self,
        permits: &Semaphore,
        doing: &str,
        limit: Duration,
        ask: F,
    ) -> Result<T, Failed>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        let _permit = self.permit(permits).await;
        let result = self.attempt(doing, limit, ask).await;
        let answered = !result.as_ref().is_err_and(|failed| failed.error.is_unavailable());
        self.answers.fetch_add(u64::from(answered), Ordering::Relaxed);
        result
    }

    /// Waits for a permit to read a service's containers, as long as the engine answers other requests.
    pub(super) async fn service_permit(&self) -> Option<SemaphorePermit<'_>> {
        self.permit(&self.service_permits).await
    }

    /// Waits for a permit as long as the engine answers other requests.
    async fn permit<'a>(&self, permits: &'a Semaphore) -> Option<SemaphorePermit<'a>> {
        let mut permit = pin!(permits.acquire());
        loop {
            let before = self.answers.load(Ordering::Relaxed);
            match timeout(PERMIT_WAIT, &mut permit).await {
                Ok(permit) => return permit.ok(),
                Err(_) if self.answers.load(Ordering::Relaxed) == before => return None,
                Err(_) => {}
            }
        }
    }

    /// Sends a request to the engine. `doing` describes it in errors. `limit` covers everything, including a new connection.
    pub(super) async fn call<T, F, Fut>(&self, doing: &str, limit: Duration, ask: F) -> Result<T, EngineError>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        self.attempt(doing, limit, ask).await.map_err(|failed| failed.error)
    }

    async fn attempt<T, F, Fut>(&self, doing: &str, limit: Duration, ask: F) -> Result<T, Failed>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        if let Endpoint::Unusable(why) = &self.endpoint {
            return Err(Failed { error: EngineError::Unavailable(why.clone()), is_late: false });
        }
        let asked = async {
            match ask(self.client().await?).await {
                // The engine was replaced: negotiate the version again and retry once.
                Err(error) if is_version_mismatch(&error) => {
                    self.forget().await;
                    ask(self.client().await?).await
                }
                answer => answer,
            }
        };
        // Boxed only during the request: the future is large, and many may wait for a permit.
        let asked = timeout(limit, Box::pin(asked));
        let result = if let Ok(answer) = asked.await {
            answer.map_err(|error| Failed {
                is_late: matches!(error, Error::RequestTimeoutError),
                error: self.explain(doing, &error),
            })
        } else {
            let why = format!("{}: no answer within {} s", self.endpoint, limit.as_secs());
            Err(Failed { error: EngineError::Unavailable(why), is_late: true })
        };
        if result.as_ref().is_err_and(|failed| failed.error.is_unavailable()) {
            self.forget().await;
        }
        result
    }

    /// Returns the client, negotiating the API version if needed.
    pub(super) async fn client(&self) -> Result<Client, Error> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        // All other calls wait for the negotiation, so it has its own, shorter timeout.
        let negotiated = timeout(READ, negotiate(&self.transport)).await;
        Ok(client.insert(negotiated.map_err(|_| Error::RequestTimeoutError)??).clone())
    }

    /// Checks that the engine answers on a new connection: during shutdown it still answers on existing ones. A connection
    /// proves nothing by itself, because systemd may hold the socket.
    pub(super) async fn ping(&self, limit: Duration) -> Result<(), EngineError> {
        self.call("ping", limit, |client| async move { client.ping_on(&self.without_pool).await }).await
    }

    /// Returns a client whose version the engine has just accepted, for streams, which cannot be retried.
    pub(super) async fn fresh(&self) -> Result<Client, EngineError> {
        self.call("connect", READ, |client| async move {
            client.docker.ping().await?;
            Ok(client)
        })
        .await
    }

    /// Reports whether the engine is podman; false before the first negotiation.
    pub(super) async fn is_podman(&self) -> bool {
        self.client.lock().await.as_ref().is_some_and(|client| client.podman)
    }

    /// Drops the client, so that the next call negotiates the version again.
    pub(super) async fn forget(&self) {
        *self.client.lock().await = None;
    }

    /// Converts an error of the client. The text is stable: the same fault always gives the same text.
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
        if says(message, "client version") && (says(message, "too old") || says(message, "too new")))
}

/// Describes a connection error by its underlying I/O error.
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
