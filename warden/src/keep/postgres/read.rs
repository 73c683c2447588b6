//! Read-only operations. Several statements do not see one consistent snapshot, so the position is read first: concurrent
//! changes are read again, and nothing is skipped.

use std::collections::BTreeMap;

use jiff::Timestamp;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::fault::Fault;
use super::session::Session;
use super::{count, number, plain};
use crate::keep::query::{Collect, Field};
use crate::keep::{News, Page, Position, Query, Stored, Usage, Versioned};

/// Maximum number of entries that one statement reads for a page: they take a few milliseconds.
const CHUNK: usize = 1000;

/// [`crate::keep::Keep::news`]
pub(super) async fn news(session: &Session, after: Position, limit: usize) -> Result<News, Fault> {
    let client = &session.client;
    let row = client.query_typed_one("SELECT revision, next_id FROM evenkeel.meta", &[]).await?;
    let revision = count(row.try_get(0)?);
    let last = count(row.try_get(1)?).saturating_sub(1);
    let (mut machines, mut values) = (Vec::new(), Vec::new());
    if revision > after.revision {
        let since = [(&number(after.revision) as &(dyn ToSql + Sync), Type::INT8)];
        let sql = "SELECT machine FROM evenkeel.machines WHERE revision > $1 ORDER BY revision, agent";
        for row in client.query_typed(sql, &since).await? {
            machines.push(serde_json::from_str(row.try_get(0)?)?);
        }
        let sql = "SELECT name, revision, value FROM evenkeel.state WHERE revision > $1 ORDER BY name";
        for row in client.query_typed(sql, &since).await? {
            values.push((row.try_get(0)?, versioned(&row)?));
        }
    }
    let entries = tail(client, after.entry, limit).await?;
    let entry = entries.last().map_or(after.entry.min(last), |entry| entry.id);
    let position = Position { entry, revision };
    Ok(News { entries, machines, values, position, connection: session.number })
}

/// [`crate::keep::Keep::tail`]
pub(super) async fn tail(client: &Client, after: u64, limit: usize) -> Result<Vec<Stored>, Fault> {
    let sql = "SELECT id, line FROM evenkeel.entries WHERE id > $1 ORDER BY id LIMIT $2";
    let asked = [(&number(after) as _, Type::INT8), (&number(limit as u64) as _, Type::INT8)];
    let rows = client.query_typed(sql, &asked).await?;
    rows.iter().map(|row| Ok(Stored { id: count(row.try_get(0)?), line: row.try_get(1)? })).collect()
}

/// [`crate::keep::Keep::history`]: reads growing chunks, since most pages fill up quickly. Lines that cannot match by their
/// columns are not sent; the others are checked as in every store. The text search is done here: on the server it takes 2 µs
/// per line, more than sending the line.
pub(super) async fn history(client: &Client, query: &Query) -> Result<Page, Fault> {
    let index = query.index();
    let by = index.map_or(String::new(), |(field, _)| format!("AND {} = $9", column(field)));
    let sql = format!(
        "SELECT id, CASE WHEN ($3::text IS NULL OR machine = $3) AND ($4::text IS NULL OR service = $4) \
         AND ($5::text IS NULL OR event = $5) AND ($6::text IS NULL OR level = $6) \
         AND ($7::int8 IS NULL OR at >= $7) AND ($8::int8 IS NULL OR at <= $8) THEN line END \
         FROM evenkeel.entries WHERE id < $1 {by} ORDER BY id DESC LIMIT $2"
    );
    let of = |field| query.wanted(field).map(plain);
    let (machine, service) = (of(Field::Machine), of(Field::Service));
    let (event, level) = (of(Field::Event), of(Field::Level));
    let indexed = index.map(|(_, value)| plain(value));
    let micros = |time: Option<Timestamp>| time.map(Timestamp::as_microsecond);
    let (since, until) = (micros(query.since), micros(query.until));
    let mut page = Collect::new(query);
    let (mut before, mut size) = (query.before, query.limit.max(1) + 1);
    loop {
        let (id, limit) = (number(before), number(size as u64));
        let mut asked: Vec<(&(dyn ToSql + Sync), Type)> = vec![
            (&id, Type::INT8),
            (&limit, Type::INT8),
            (&machine, Type::TEXT),
            (&service, Type::TEXT),
            (&event, Type::TEXT),
            (&level, Type::TEXT),
            (&since, Type::INT8),
            (&until, Type::INT8),
        ];
        asked.extend(indexed.iter().map(|value| (value as &(dyn ToSql + Sync), Type::TEXT)));
        let rows = client.query_typed(&sql, &asked).await?;
        for row in &rows {
            before = count(row.try_get(0)?);
            if !page.takes(before) {
                return Ok(page.finish());
            }
            page.look(before, row.try_get::<_, Option<&str>>(1)?.unwrap_or_default());
        }
        if rows.len() < size {
            return Ok(page.finish());
        }
        // One extra row tells whether there are more entries.
        size = if page.is_over() { 1 } else { (size * 4).min(CHUNK) };
    }
}

/// [`crate::keep::Keep::value`]
pub(super) async fn value(client: &Client, name: &str) -> Result<Versioned, Fault> {
    let sql = "SELECT name, revision, value FROM evenkeel.state WHERE name = $1";
    let row = client.query_typed_opt(sql, &[(&plain(name), Type::TEXT)]).await?;
    row.map_or_else(|| Ok(Versioned::default()), |row| versioned(&row))
}

/// [`crate::keep::Keep::values`]. One statement sees one snapshot, and takes one round trip.
pub(super) async fn values(client: &Client, names: &[String]) -> Result<Vec<Versioned>, Fault> {
    let kept: Vec<_> = names.iter().map(|name| plain(name)).collect();
    let sql = "SELECT name, revision, value FROM evenkeel.state WHERE name = ANY($1)";
    let rows = client.query_typed(sql, &[(&kept, Type::TEXT_ARRAY)]).await?;
    let mut found = BTreeMap::new();
    for row in &rows {
        found.insert(row.try_get::<_, String>(0)?, versioned(row)?);
    }
    Ok(kept.iter().map(|name| found.remove(&**name).unwrap_or_default()).collect())
}

/// [`crate::keep::Keep::usage`]
pub(super) async fn usage(client: &Client) -> Result<Usage, Fault> {
    let sql = "SELECT entries, bytes, (SELECT arrived FROM evenkeel.entries ORDER BY id LIMIT 1) FROM evenkeel.meta";
    let row = client.query_typed_one(sql, &[]).await?;
    let oldest = row.try_get::<_, Option<i64>>(2)?.and_then(|at| Timestamp::from_microsecond(at).ok());
    Ok(Usage { entries: count(row.try_get(0)?), bytes: count(row.try_get(1)?), oldest })
}

fn versioned(row: &Row) -> Result<Versioned, Fault> {
    Ok(Versioned { revision: count(row.try_get(1)?), value: row.try_get(2)? })
}

fn column(field: Field) -> &'static str {
    match field {
        Field::Machine => "machine",
        Field::Service => "service",
        Field::Image => "image",
        Field::Event => "event",
        // No query names an agent.
        Field::Level | Field::Agent => "level",
    }
}
