//! One connection, checked before it is used.

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::task::{Poll, ready};

use evenkeel_common::supervisor::TaskSet;
use tokio::sync::watch;
use tokio_postgres::{AsyncMessage, Client, Connection, SimpleQueryMessage, Socket};

use super::fault::{Fault, POOLER};
use super::skew::Skew;
use super::tls::{Stream, Tls};
use super::{locks, schema};
use crate::config::StoreUrl;
use crate::keep::Duty;

/// The oldest server that is supported: 13.
const OLDEST: u32 = 130_000;
/// A warden that hangs must not block the others, and the server must quickly notice a lost one. Timeouts are in ms, TCP
/// keepalive settings in s.
const SETTINGS: &str = "SET lock_timeout = 5000; SET statement_timeout = 9000; \
    SET idle_in_transaction_session_timeout = 10000; SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; \
    SET tcp_keepalives_count = 3; SET tcp_user_timeout = 25000";

/// The database's time, in seconds since 1970.
const TIME: &str = "extract(epoch FROM clock_timestamp())";

/// The purpose of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Write transactions, one at a time.
    Write,
    /// Single read statements.
    Read,
    /// Listening for notifications, and holding the duties.
    Watch,
}

/// A connection that has passed all checks.
pub(super) struct Session {
    pub(super) client: Client,
    /// Different for each session, starting at 1.
    pub(super) number: u64,
    /// PID of its backend process.
    backend: i32,
    duties: HashSet<Duty>,
    skew: Arc<Skew>,
}

/// Creates sessions.
pub(super) struct Connector {
    url: StoreUrl,
    hints: watch::Sender<u64>,
    /// PID of this warden's writing backend, whose notifications are ignored.
    writer: Arc<AtomicI32>,
    skew: Arc<Skew>,
    /// Number of sessions made so far.
    made: AtomicU64,
    tasks: TaskSet,
}

impl Connector {
    pub(super) fn new(url: StoreUrl, hints: watch::Sender<u64>, skew: Arc<Skew>) -> Self {
        Self { url, hints, writer: Arc::default(), skew, made: AtomicU64::new(0), tasks: TaskSet::new() }
    }

    /// Connects, checks the server, and creates or upgrades the tables if needed.
    pub(super) async fn connect(&self, role: Role) -> Result<Session, Fault> {
        let client = self.open().await?;
        let asked = self.skew.now();
        let facts = facts(&client).await?;
        check_version(facts.version)?;
        if let Some(time) = facts.time {
            self.skew.note(asked, time);
        }
        if facts.encoding != "UTF8" {
            return Err(Fault::Refused(format!(
                "the database of store.url has the encoding {}; it must be UTF8",
                facts.encoding
            )));
        }
        client.batch_execute(SETTINGS).await?;
        self.check_pooler(&client, facts.backend).await?;
        schema::migrate(&client).await?;
        match role {
            Role::Write => self.writer.store(facts.backend, Ordering::Relaxed),
            Role::Read => {}
            Role::Watch => {
                client.batch_execute("LISTEN evenkeel").await?;
                // Earlier notifications were missed.
                self.hints.send_modify(|count| *count += 1);
            }
        }
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let (backend, skew) = (facts.backend, self.skew.clone());
        Ok(Session { client, number, backend, duties: HashSet::new(), skew })
    }

    async fn open(&self) -> Result<Client, Fault> {
        let url = self.url.clone();
        // This reads files, which blocks.
        let tls = tokio::task::spawn_blocking(move || Tls::of(&url)).await;
        let tls = tls.unwrap_or_else(|_| Err(Fault::Refused("TLS could not be prepared".to_owned())))?;
        let (client, connection) = self.url.config.connect(tls).await?;
        self.tasks.spawn("postgres", drive(connection, self.hints.clone(), self.writer.clone()));
        Ok(client)
    }

    /// Detects a pooler in transaction mode, which assigns one backend to several sessions, or several to one.
    async fn check_pooler(&self, client: &Client, backend: i32) -> Result<(), Fault> {
        let other = self.open().await?;
        let theirs = facts(&other).await?.backend;
        let ours = facts(client).await?.backend;
        if theirs == backend || ours != backend {
            return Err(Fault::Refused(POOLER.to_owned()));
        }
        Ok(())
    }
}

impl Session {
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Reports whether this session holds a duty; takes it if it is free.
    pub(super) async fn hold(&mut self, duty: Duty) -> Result<bool, Fault> {
        let has = self.duties.contains(&duty);
        let take = if has { "true".to_owned() } else { locks::try_session(duty) };
        let asked = self.skew.now();
        let ask = format!("SELECT {take}, pg_backend_pid(), {TIME}::float8");
        let row = self.client.query_typed_one(&ask, &[]).await?;
        self.skew.note(asked, row.try_get(2)?);
        if row.try_get::<_, i32>(1)? != self.backend {
            return Err(Fault::Refused(POOLER.to_owned()));
        }
        let holds = row.try_get(0)?;
        if holds {
            self.duties.insert(duty);
        } else {
            // The next question may then take it.
            self.client.query_typed(&locks::end_silent_session(duty), &[]).await?;
        }
        Ok(holds)
    }
}

/// The facts that are queried from a server first.
struct Facts {
    version: u32,
    encoding: String,
    backend: i32,
    time: Option<f64>,
}

/// Queries the facts. Uses simple queries only: they work on every server, and through every pooler.
async fn facts(client: &Client) -> Result<Facts, Fault> {
    let ask =
        format!("SHOW server_version_num; SHOW server_encoding; SELECT pg_backend_pid(); SELECT {TIME}");
    let answers = client.simple_query(&ask).await?;
    let mut rows = answers.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.try_get(0).ok().flatten(),
        _ => None,
    });
    let (version, encoding, backend) = (rows.next(), rows.next(), rows.next());
    let time = rows.next().and_then(|time| time.parse().ok());
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u32>().ok());
    let (Some(version), Some(encoding), Some(backend)) = (number(version), encoding, number(backend)) else {
        return Err(Fault::Refused("the server of store.url does not respond like PostgreSQL".to_owned()));
    };
    Ok(Facts { version, encoding: encoding.to_owned(), backend: backend.cast_signed(), time })
}

fn check_version(version: u32) -> Result<(), Fault> {
    if version < OLDEST {
        let (major, minor) = (version / 10_000, version % 10_000);
        return Err(Fault::Refused(format!(
            "PostgreSQL is too old: it is {major}.{minor}; allowed: {} or later",
            OLDEST / 10_000
        )));
    }
    Ok(())
}

/// Drives a connection until it ends, and turns notifications from other wardens into hints.
async fn drive(
    mut connection: Connection<Socket, Stream>,
    hints: watch::Sender<u64>,
    writer: Arc<AtomicI32>,
) {
    poll_fn(|context| {
        loop {
            match ready!(connection.poll_message(context)) {
                Some(Ok(AsyncMessage::Notification(note))) => {
                    if note.process_id() != writer.load(Ordering::Relaxed) {
                        hints.send_modify(|count| *count += 1);
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!(%error, "a connection to PostgreSQL was lost");
                    return Poll::Ready(());
                }
                None => return Poll::Ready(()),
            }
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keep::KeepError;

    #[test]
    fn a_server_that_is_too_old_is_refused_with_its_version() {
        assert!(check_version(130_000).is_ok() && check_version(180_001).is_ok());
        let error = KeepError::from(check_version(120_022).unwrap_err());
        assert_eq!(error.0, "PostgreSQL is too old: it is 12.22; allowed: 13 or later");
    }
}
