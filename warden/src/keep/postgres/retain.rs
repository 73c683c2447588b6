//! Removing entries, per agent.

use std::ops::RangeInclusive;

use jiff::Timestamp;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::fault::Fault;
use super::number;
use super::write::{Meta, begin, end};
use crate::keep::Retention;

/// Maximum number of entries removed in one transaction, so that other work is not delayed.
const REMOVED_AT_ONCE: i64 = 2000;
/// How many entries of one agent are removed before the sizes are compared again.
const REMOVED_OF_AGENT: i64 = 250;
/// How many entries of an earlier version get their owner in one transaction.
const OWNED_AT_ONCE: i64 = 5000;

/// Adds the owners of some entries that have none, the latest first. The agent is the last field of an entry's line; in the
/// text before it, quotes are escaped. An id has at most 128 bytes.
const ADD_OWNERS: &str = "WITH owned AS (\
        INSERT INTO evenkeel.owners (id, agent, size) \
        SELECT id, coalesce(substring(right(line, 600) FROM '\"agent\":\"([^\"]*)\"[}]$') COLLATE \"C\", machine), size \
        FROM evenkeel.entries WHERE id < $1 ORDER BY id DESC LIMIT $2 \
        ON CONFLICT (id) DO NOTHING RETURNING id, agent, size\
    ), counted AS (\
        INSERT INTO evenkeel.agents AS known (agent, bytes) SELECT agent, sum(size) FROM owned GROUP BY agent \
        ON CONFLICT (agent) DO UPDATE SET bytes = known.bytes + excluded.bytes\
    ) \
    SELECT count(*), min(id) FROM owned";

/// Removes owners by the ids of their entries, and subtracts what each agent has less.
const REMOVE_OWNERS: &str = "WITH gone AS (\
        DELETE FROM evenkeel.owners WHERE id = ANY($1) RETURNING agent, size\
    ) \
    UPDATE evenkeel.agents AS known SET bytes = known.bytes - total.bytes \
    FROM (SELECT agent, sum(size) AS bytes FROM gone GROUP BY agent) AS total WHERE known.agent = total.agent";

/// [`crate::keep::Keep::retain`]. What is too old is removed first. What is too much is removed from the agent with the most
/// text, so that an agent that sends a lot only shortens its own history.
pub(super) async fn retain(client: &Client, limits: Retention, now: Timestamp) -> Result<u64, Fault> {
    let limit = number(limits.bytes);
    let mut meta = begin(client).await?;
    let (owned, is_complete) = add_owners(client).await?;
    let mut removed = remove_old(client, &mut meta, &limits.kept(now)).await?;
    if removed == 0 && meta.bytes > limit {
        removed = if is_complete {
            remove_excess(client, &mut meta, limit).await?
        } else {
            // Whose are too many is not known yet.
            remove_first(client, &mut meta, limit).await?
        };
    }
    if removed == 0 && owned == 0 && is_complete {
        client.batch_execute("ROLLBACK").await?;
    } else {
        client.batch_execute("DELETE FROM evenkeel.agents WHERE bytes <= 0").await?;
        end(client, &meta, false).await?;
    }
    Ok(removed)
}

/// Adds some owners. Returns how many, and whether every entry has its owner now.
async fn add_owners(client: &Client) -> Result<(i64, bool), Fault> {
    let row = client.query_typed_one("SELECT agents_from FROM evenkeel.meta", &[]).await?;
    let from: i64 = row.try_get(0)?;
    if from == 0 {
        return Ok((0, true));
    }
    let some = [(&from as _, Type::INT8), (&OWNED_AT_ONCE as _, Type::INT8)];
    let row = client.query_typed_one(ADD_OWNERS, &some).await?;
    let (owned, first): (i64, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
    let next = first.filter(|_| owned == OWNED_AT_ONCE).unwrap_or(0);
    client.batch_execute(&format!("UPDATE evenkeel.meta SET agents_from = {next}")).await?;
    Ok((owned, next == 0))
}

/// Removes some entries that arrived before these times, and those from the future before them. Returns how many.
async fn remove_old(client: &Client, meta: &mut Meta, kept: &RangeInclusive<i64>) -> Result<u64, Fault> {
    let sql = "SELECT id, arrived FROM evenkeel.entries WHERE arrived <= $1 ORDER BY id LIMIT $2";
    let mut last: Option<i64> = None;
    let some = [(kept.end() as _, Type::INT8), (&REMOVED_AT_ONCE as _, Type::INT8)];
    for row in client.query_typed(sql, &some).await? {
        if row.try_get::<_, i64>(1)? >= *kept.start() {
            break;
        }
        last = Some(row.try_get(0)?);
    }
    let Some(last) = last else { return Ok(0) };
    let sql = "SELECT id FROM evenkeel.entries WHERE id <= $1 ORDER BY id LIMIT $2";
    let some = [(&last as _, Type::INT8), (&REMOVED_AT_ONCE as _, Type::INT8)];
    let mut ids = Vec::new();
    for row in client.query_typed(sql, &some).await? {
        ids.push(row.try_get(0)?);
    }
    remove(client, meta, &ids).await
}

/// Removes the first entries beyond the size, whoever sent them. Returns how many.
async fn remove_first(client: &Client, meta: &mut Meta, limit: i64) -> Result<u64, Fault> {
    let sql = "SELECT id, size FROM evenkeel.entries ORDER BY id LIMIT $1";
    let rows = client.query_typed(sql, &[(&REMOVED_AT_ONCE, Type::INT8)]).await?;
    let ids = beyond(meta.bytes - limit, &rows)?;
    remove(client, meta, &ids).await
}

/// Removes some entries beyond the size, of the agents with the most text. Returns how many.
async fn remove_excess(client: &Client, meta: &mut Meta, limit: i64) -> Result<u64, Fault> {
    let mut removed = 0;
    for _ in 0..REMOVED_AT_ONCE / REMOVED_OF_AGENT {
        if meta.bytes <= limit {
            break;
        }
        let sql = "SELECT id, size FROM evenkeel.owners \
            WHERE agent = (SELECT agent FROM evenkeel.agents ORDER BY bytes DESC, agent LIMIT 1) ORDER BY id LIMIT $1";
        let rows = client.query_typed(sql, &[(&REMOVED_OF_AGENT, Type::INT8)]).await?;
        let ids = beyond(meta.bytes - limit, &rows)?;
        if ids.is_empty() {
            return Ok(removed + remove_first(client, meta, limit).await?);
        }
        removed += remove(client, meta, &ids).await?;
    }
    Ok(removed)
}

/// Returns as many of the first ids as it takes to remove this many bytes. Rows are ids and sizes.
fn beyond(mut excess: i64, rows: &[Row]) -> Result<Vec<i64>, Fault> {
    let mut ids = Vec::new();
    for row in rows {
        if excess <= 0 {
            break;
        }
        excess -= i64::from(row.try_get::<_, i32>(1)?);
        ids.push(row.try_get(0)?);
    }
    Ok(ids)
}

/// Removes entries. Returns how many.
async fn remove(client: &Client, meta: &mut Meta, ids: &[i64]) -> Result<u64, Fault> {
    if ids.is_empty() {
        return Ok(0);
    }
    let these = [(&ids as _, Type::INT8_ARRAY)];
    let sql = "DELETE FROM evenkeel.entries WHERE id = ANY($1) RETURNING size";
    let gone = client.query_typed(sql, &these).await?;
    client.execute_typed(REMOVE_OWNERS, &these).await?;
    for row in &gone {
        meta.bytes -= i64::from(row.try_get::<_, i32>(0)?);
    }
    let count = gone.len() as u64;
    meta.entries -= number(count);
    Ok(count)
}
