//! A pool of sessions of one role: created on demand, reused after success, closed after any failure.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::fault::Fault;
use super::session::{Connector, Role, Session};
use crate::keep::KeepError;

/// Timeout of one operation.
const TIMEOUT: Duration = Duration::from_secs(10);
/// After a failed connection, calls fail immediately for this time, so that they do not queue for an unreachable server.
const PAUSE: Duration = Duration::from_secs(1);

/// The pool.
pub(super) struct Pool {
    connector: Arc<Connector>,
    role: Role,
    permits: Semaphore,
    idle: Mutex<Vec<Session>>,
    failed: Mutex<Option<(Instant, KeepError)>>,
}

impl Pool {
    /// Creates a pool of at most `size` sessions.
    pub(super) fn new(connector: Arc<Connector>, role: Role, size: usize) -> Self {
        let permits = Semaphore::new(size);
        Self { connector, role, permits, idle: Mutex::default(), failed: Mutex::default() }
    }

    /// Runs an operation with exclusive use of a session. After an error, or if the caller is cancelled, the state of the
    /// session is unknown. It is then closed, and the server rolls back uncommitted work.
    pub(super) async fn run<R>(
        &self,
        work: impl for<'s> FnOnce(&'s mut Session) -> BoxFuture<'s, Result<R, Fault>> + Send,
    ) -> Result<R, KeepError> {
        let _permit = self.permits.acquire().await.map_err(|error| KeepError(error.to_string()))?;
        let mut session = self.session().await?;
        let done = timeout(TIMEOUT, work(&mut session)).await.unwrap_or(Err(Fault::Timeout))?;
        self.idle.lock().push(session);
        Ok(done)
    }

    async fn session(&self) -> Result<Session, KeepError> {
        let found = {
            let mut idle = self.idle.lock();
            idle.retain(|session| !session.is_closed());
            idle.pop()
        };
        if let Some(session) = found {
            return Ok(session);
        }
        if let Some((at, error)) = &*self.failed.lock()
            && at.elapsed() < PAUSE
        {
            return Err(error.clone());
        }
        let made = timeout(TIMEOUT, self.connector.connect(self.role)).await;
        let made = made.unwrap_or(Err(Fault::Timeout)).map_err(KeepError::from);
        *self.failed.lock() = made.as_ref().err().map(|error| (Instant::now(), error.clone()));
        made
    }
}
