//! Sessions of one role: made when they are needed, used again when all went well, closed when anything did not.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::fault::Fault;
use super::session::{Connector, Role, Session};
use crate::keep::KeepError;

/// Time that one piece of work may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A server that could not be reached is not tried again for this time, so that nobody waits in vain behind others.
const PAUSE: Duration = Duration::from_secs(1);

/// The sessions.
pub(super) struct Pool {
    connector: Arc<Connector>,
    role: Role,
    permits: Semaphore,
    idle: Mutex<Vec<Session>>,
    failed: Mutex<Option<(Instant, KeepError)>>,
}

impl Pool {
    /// At most `size` sessions.
    pub(super) fn new(connector: Arc<Connector>, role: Role, size: usize) -> Self {
        let permits = Semaphore::new(size);
        Self { connector, role, permits, idle: Mutex::default(), failed: Mutex::default() }
    }

    /// Does a piece of work with a session of its own. After an error, or when the caller goes away, nobody knows what
    /// the session is in the middle of: it is closed, and the server undoes what was not committed.
    pub(super) async fn run<R>(
        &self,
        work: impl for<'s> FnOnce(&'s mut Session) -> BoxFuture<'s, Result<R, Fault>> + Send,
    ) -> Result<R, KeepError> {
        let _permit = self.permits.acquire().await.map_err(|error| KeepError(error.to_string()))?;
        let mut session = self.session().await?;
        let done = timeout(TIMEOUT, work(&mut session)).await.unwrap_or(Err(Fault::Timeout))?;
        lock(&self.idle).push(session);
        Ok(done)
    }

    async fn session(&self) -> Result<Session, KeepError> {
        let found = {
            let mut idle = lock(&self.idle);
            idle.retain(|session| !session.is_closed());
            idle.pop()
        };
        if let Some(session) = found {
            return Ok(session);
        }
        if let Some((at, error)) = &*lock(&self.failed)
            && at.elapsed() < PAUSE
        {
            return Err(error.clone());
        }
        let made = timeout(TIMEOUT, self.connector.connect(self.role)).await;
        let made = made.unwrap_or(Err(Fault::Timeout)).map_err(KeepError::from);
        *lock(&self.failed) = made.as_ref().err().map(|error| (Instant::now(), error.clone()));
        made
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
