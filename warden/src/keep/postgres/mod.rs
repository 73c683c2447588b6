//! The PostgreSQL store, which several wardens can share (DECISIONS 8).
//!
//! Each warden has one session for writing, a few for reading, and one that listens for notifications and holds the duties.
//! The latter is used at least every few seconds, so it is soon replaced after a connection loss. Only idle sessions are kept
//! between calls: if the server is unreachable, the next call tries again.

mod fault;
mod locks;
mod pool;
mod read;
mod retain;
mod schema;
mod session;
mod skew;
mod tls;
mod write;

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use evenkeel_common::clock::Clock;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use self::pool::Pool;
use self::session::{Connector, Role};
use self::skew::Skew;
use super::{
    Change, Duty, Keep, KeepError, News, Outcome, Page, Position, Query, Retention, Stored, Usage, Versioned,
};
use crate::config::StoreUrl;

/// Number of sessions for reading.
const READERS: usize = 2;

/// The PostgreSQL store.
pub struct Postgres {
    writer: Pool,
    readers: Pool,
    watcher: Pool,
    hints: watch::Sender<u64>,
    skew: Arc<Skew>,
}

impl Postgres {
    /// Creates a store in this database. It connects on the first call. `clock` is compared with the database's clock.
    pub fn new(url: StoreUrl, clock: Arc<dyn Clock>) -> Self {
        let (hints, skew) = (watch::Sender::new(0), Arc::new(Skew::new(clock)));
        let connector = Arc::new(Connector::new(url, hints.clone(), skew.clone()));
        Self {
            writer: Pool::new(connector.clone(), Role::Write, 1),
            readers: Pool::new(connector.clone(), Role::Read, READERS),
            watcher: Pool::new(connector, Role::Watch, 1),
            hints,
            skew,
        }
    }
}

#[async_trait]
impl Keep for Postgres {
    async fn commit(&self, changes: Vec<Change>, now: Timestamp) -> Result<Vec<Outcome>, KeepError> {
        self.writer.run(|session| Box::pin(write::commit(&session.client, changes, now))).await
    }

    async fn news(&self, after: Position, limit: usize) -> Result<News, KeepError> {
        self.watcher.run(|session| Box::pin(read::news(session, after, limit))).await
    }

    async fn tail(&self, after: u64, limit: usize) -> Result<Vec<Stored>, KeepError> {
        self.readers.run(|session| Box::pin(read::tail(&session.client, after, limit))).await
    }

    async fn history(&self, query: &Query) -> Result<Page, KeepError> {
        let query = query.clone();
        self.readers
            .run(|session| Box::pin(async move { read::history(&session.client, &query).await }))
            .await
    }

    async fn value(&self, name: &str) -> Result<Versioned, KeepError> {
        let name = name.to_owned();
        self.readers.run(|session| Box::pin(async move { read::value(&session.client, &name).await })).await
    }

    async fn values(&self, names: &[String]) -> Result<Vec<Versioned>, KeepError> {
        let names = names.to_vec();
        self.readers.run(|session| Box::pin(async move { read::values(&session.client, &names).await })).await
    }

    async fn swap(&self, name: &str, expected: u64, value: Vec<u8>) -> Result<Option<u64>, KeepError> {
        let name = name.to_owned();
        self.writer
            .run(|session| {
                Box::pin(async move { write::swap(&session.client, &name, expected, value).await })
            })
            .await
    }

    async fn remove(&self, name: &str, expected: u64) -> Result<bool, KeepError> {
        let name = name.to_owned();
        self.writer
            .run(|session| Box::pin(async move { write::remove(&session.client, &name, expected).await }))
            .await
    }

    async fn hold(&self, duty: Duty) -> Result<bool, KeepError> {
        self.watcher.run(|session| Box::pin(session.hold(duty))).await
    }

    async fn retain(&self, limits: Retention, now: Timestamp) -> Result<u64, KeepError> {
        self.writer.run(|session| Box::pin(retain::retain(&session.client, limits, now))).await
    }

    async fn usage(&self) -> Result<Usage, KeepError> {
        self.readers.run(|session| Box::pin(read::usage(&session.client))).await
    }

    fn hints(&self) -> watch::Receiver<u64> {
        self.hints.subscribe()
    }

    fn clock_ahead(&self) -> Option<SignedDuration> {
        self.skew.ahead()
    }
}

/// Converts a number to PostgreSQL's signed type.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Converts a number from PostgreSQL that is never negative.
fn count(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Replaces NUL characters, which PostgreSQL does not accept.
fn plain(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}
