//! Errors of PostgreSQL, each as one sentence. They never contain the URL, and repeated failures have the same text.

use std::error::Error;
use std::io;

use tokio_postgres::error::SqlState;

use crate::keep::KeepError;

/// Maximum number of characters repeated from a server's message.
const MAX_MESSAGE: usize = 300;

/// Why an operation failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// An error of the client or the server.
    Postgres(tokio_postgres::Error),
    /// The server, the database or its content cannot be used.
    Refused(String),
    /// The operation took too long.
    Timeout,
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

impl From<serde_json::Error> for Fault {
    fn from(error: serde_json::Error) -> Self {
        Self::Refused(format!("a row in PostgreSQL cannot be read: {error}"))
    }
}

impl From<Fault> for KeepError {
    fn from(fault: Fault) -> Self {
        Self(match fault {
            Fault::Postgres(error) => sentence(&error),
            Fault::Refused(why) => why,
            Fault::Timeout => "PostgreSQL does not answer in time".to_owned(),
        })
    }
}

fn sentence(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return known(error.code()).map_or_else(
            || {
                format!(
                    "PostgreSQL reports: {} (SQLSTATE {})",
                    one_line(error.message()),
                    error.code().code()
                )
            },
            str::to_owned,
        );
    }
    let mut cause: &dyn Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    let text = error.to_string();
    if let Some(io) = cause.downcast_ref::<io::Error>()
        && io.kind() == io::ErrorKind::PermissionDenied
        && io.to_string().contains("does not allow writes")
    {
        return READ_ONLY.to_owned();
    }
    let last = cause.to_string();
    let text = if text.contains(&last) { text } else { format!("{text}: {last}") };
    if text.contains("password missing") {
        return "store.url has no password, but PostgreSQL requires one".to_owned();
    }
    format!("PostgreSQL cannot be reached: {}", one_line(&text))
}

/// The server does not accept writes.
const READ_ONLY: &str = "PostgreSQL is read-only (a replica, or default_transaction_read_only is on); store.url must name the primary";

/// Returns a sentence that is more helpful than the server's message.
fn known(code: &SqlState) -> Option<&'static str> {
    Some(match *code {
        SqlState::INVALID_PASSWORD => "PostgreSQL rejects the user or the password of store.url",
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            "PostgreSQL does not allow the user of store.url to connect from this host (check its role, pg_hba.conf, and whether TLS is required)"
        }
        SqlState::INVALID_CATALOG_NAME => "the database of store.url does not exist",
        SqlState::INSUFFICIENT_PRIVILEGE => {
            "the user of store.url may not create or use the schema evenkeel: GRANT CREATE ON DATABASE, or make the user the schema's owner"
        }
        SqlState::READ_ONLY_SQL_TRANSACTION => READ_ONLY,
        SqlState::DISK_FULL => "PostgreSQL's disk is full",
        SqlState::TOO_MANY_CONNECTIONS => "PostgreSQL has too many connections (max_connections)",
        SqlState::CANNOT_CONNECT_NOW => "PostgreSQL is starting or stopping",
        SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN => "PostgreSQL is stopping",
        SqlState::LOCK_NOT_AVAILABLE => "another warden has been writing to PostgreSQL for too long",
        SqlState::QUERY_CANCELED => "PostgreSQL does not answer in time",
        // A pooler has assigned the session with the unnamed statement to another client.
        SqlState::INVALID_SQL_STATEMENT_NAME => POOLER,
        _ => return None,
    })
}

/// A connection pooler shares sessions between clients.
pub(super) const POOLER: &str = "there is a pooler in transaction mode in front of PostgreSQL; use session mode, or let store.url point to the server itself";

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE).collect()
}
