//! Write operations. Each function is one transaction, and holds the lock that serializes all writers. Removing entries is in
//! `retain.rs`.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_common::wire::FleetEntry;
use jiff::Timestamp;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::fault::Fault;
use super::locks::{self, APPEND};
use super::{count, number, plain, schema};
use crate::fleet::Machine;
use crate::keep::{Change, Needs, Outcome, fold, needs};

/// Adds owners (ids, agents and sizes of entries), and what each agent has more.
const ADD_OWNERS: &str = "WITH owned AS (\
        INSERT INTO evenkeel.owners (id, agent, size) \
        SELECT * FROM unnest($1::int8[], $2::text[], $3::int4[]) RETURNING agent, size\
    ) \
    INSERT INTO evenkeel.agents AS known (agent, bytes) SELECT agent, sum(size) FROM owned GROUP BY agent \
    ON CONFLICT (agent) DO UPDATE SET bytes = known.bytes + excluded.bytes";

/// The counters.
pub(super) struct Meta {
    next_id: u64,
    revision: i64,
    pub(super) entries: i64,
    pub(super) bytes: i64,
}

/// [`crate::keep::Keep::commit`]
pub(super) async fn commit(
    client: &Client,
    changes: Vec<Change>,
    now: Timestamp,
) -> Result<Vec<Outcome>, Fault> {
    let is_probe = changes.is_empty();
    let mut meta = begin(client).await?;
    let Needs { agents, values } = needs(&changes);
    let (machines, values) = (machines(client, agents).await?, values_of(client, values).await?);
    let folded = fold(changes, machines, values, meta.next_id, now);
    if folded.machines.is_empty() && folded.values.is_empty() && !is_probe {
        client.batch_execute("ROLLBACK").await?;
        return Ok(folded.outcomes);
    }
    meta.revision += 1;
    add_entries(client, &mut meta, &folded.entries, now).await?;
    put_machines(client, meta.revision, &folded.machines).await?;
    put_values(client, meta.revision, &folded.values).await?;
    end(client, &meta, !is_probe).await?;
    Ok(folded.outcomes)
}

/// [`crate::keep::Keep::swap`]
pub(super) async fn swap(
    client: &Client,
    name: &str,
    expected: u64,
    value: Vec<u8>,
) -> Result<Option<u64>, Fault> {
    let mut meta = begin(client).await?;
    let sql = "SELECT revision FROM evenkeel.state WHERE name = $1";
    let row = client.query_typed_opt(sql, &[(&plain(name), Type::TEXT)]).await?;
    let current: i64 = row.map(|row| row.try_get(0)).transpose()?.unwrap_or(0);
    if count(current) != expected {
        client.batch_execute("ROLLBACK").await?;
        return Ok(None);
    }
    meta.revision += 1;
    put_values(client, meta.revision, &[(name.to_owned(), value)]).await?;
    end(client, &meta, true).await?;
    Ok(Some(count(meta.revision)))
}

/// [`crate::keep::Keep::remove`]
pub(super) async fn remove(client: &Client, name: &str, expected: u64) -> Result<bool, Fault> {
    let meta = begin(client).await?;
    let sql = "DELETE FROM evenkeel.state WHERE name = $1 AND revision = $2";
    let row = [(&plain(name) as _, Type::TEXT), (&number(expected) as _, Type::INT8)];
    let removed = client.execute_typed(sql, &row).await?;
    end(client, &meta, false).await?;
    Ok(removed > 0)
}

/// Begins a transaction, waits for the lock, and reads the current counters.
pub(super) async fn begin(client: &Client) -> Result<Meta, Fault> {
    let sql = format!("BEGIN ISOLATION LEVEL READ COMMITTED; {}", locks::transaction(APPEND));
    client.batch_execute(&sql).await?;
    let sql = "SELECT schema, next_id, revision, entries, bytes FROM evenkeel.meta";
    let row = client.query_typed_one(sql, &[]).await?;
    // The tables may have been upgraded since the session started.
    schema::check(row.try_get(0)?)?;
    Ok(Meta {
        next_id: count(row.try_get(1)?),
        revision: row.try_get(2)?,
        entries: row.try_get(3)?,
        bytes: row.try_get(4)?,
    })
}

/// Writes the counters, notifies the other wardens if there is something new for them, and commits.
pub(super) async fn end(client: &Client, meta: &Meta, has_news: bool) -> Result<(), Fault> {
    let notify = if has_news { format!("NOTIFY evenkeel, '{}';", meta.next_id - 1) } else { String::new() };
    let Meta { next_id, revision, entries, bytes } = meta;
    let sql = format!(
        "UPDATE evenkeel.meta SET next_id = {next_id}, revision = {revision}, entries = {entries}, bytes = {bytes}; \
         {notify} COMMIT"
    );
    Ok(client.batch_execute(&sql).await?)
}

async fn machines(client: &Client, agents: BTreeSet<String>) -> Result<BTreeMap<String, Machine>, Fault> {
    let agents: Vec<String> = agents.into_iter().collect();
    let sql = "SELECT agent, machine FROM evenkeel.machines WHERE agent = ANY($1)";
    let mut machines = BTreeMap::new();
    for row in client.query_typed(sql, &[(&agents, Type::TEXT_ARRAY)]).await? {
        machines.insert(row.try_get(0)?, serde_json::from_str(row.try_get(1)?)?);
    }
    Ok(machines)
}

async fn values_of(client: &Client, names: BTreeSet<String>) -> Result<BTreeMap<String, Vec<u8>>, Fault> {
    let mut values = BTreeMap::new();
    // Most batches need none.
    if names.is_empty() {
        return Ok(values);
    }
    let kept: Vec<_> = names.iter().map(|name| plain(name)).collect();
    let sql = "SELECT name, value FROM evenkeel.state WHERE name = ANY($1)";
    let rows = client.query_typed(sql, &[(&kept, Type::TEXT_ARRAY)]).await?;
    let found = rows
        .iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect::<Result<BTreeMap<&str, Vec<u8>>, Fault>>()?;
    for name in &names {
        if let Some(value) = found.get(&*plain(name)) {
            values.insert(name.clone(), value.clone());
        }
    }
    Ok(values)
}

async fn add_entries(
    client: &Client,
    meta: &mut Meta,
    entries: &[FleetEntry],
    now: Timestamp,
) -> Result<(), Fault> {
    if entries.is_empty() {
        return Ok(());
    }
    let first = meta.next_id;
    let lines = entries.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    let ids: Vec<i64> = (first..).take(entries.len()).map(number).collect();
    let times: Vec<i64> = entries.iter().map(|entry| entry.timestamp.as_microsecond()).collect();
    let sizes: Vec<i32> = lines.iter().map(|line| i32::try_from(line.len()).unwrap_or(i32::MAX)).collect();
    let of = |field: fn(&FleetEntry) -> &str| entries.iter().map(|e| plain(field(e))).collect::<Vec<_>>();
    let (machines, services) = (of(|entry| &entry.machine), of(|entry| &entry.service));
    let (events, levels) = (of(|entry| &entry.event), of(|entry| &entry.level));
    let images: Vec<_> = entries.iter().map(|entry| entry.image.as_deref().map(plain)).collect();
    let sql = "INSERT INTO evenkeel.entries (arrived, id, at, size, machine, service, image, event, level, line) \
        SELECT $1, * FROM unnest($2::int8[], $3::int8[], $4::int4[], $5::text[], $6::text[], $7::text[], $8::text[], \
        $9::text[], $10::text[])";
    let added = [
        (&now.as_microsecond() as _, Type::INT8),
        (&ids as _, Type::INT8_ARRAY),
        (&times as _, Type::INT8_ARRAY),
        (&sizes as _, Type::INT4_ARRAY),
        (&machines as _, Type::TEXT_ARRAY),
        (&services as _, Type::TEXT_ARRAY),
        (&images as _, Type::TEXT_ARRAY),
        (&events as _, Type::TEXT_ARRAY),
        (&levels as _, Type::TEXT_ARRAY),
        (&lines as _, Type::TEXT_ARRAY),
    ];
    let agents = of(|entry| &entry.agent);
    let owned =
        [(&ids as _, Type::INT8_ARRAY), (&agents as _, Type::TEXT_ARRAY), (&sizes as _, Type::INT4_ARRAY)];
    // Both are sent at once. If the first fails, the second only says that it was not tried.
    let (added, owned) =
        tokio::join!(client.execute_typed(sql, &added), client.execute_typed(ADD_OWNERS, &owned));
    added.and(owned)?;
    meta.next_id += entries.len() as u64;
    meta.entries = meta.entries.saturating_add(number(entries.len() as u64));
    meta.bytes += sizes.iter().copied().map(i64::from).sum::<i64>();
    Ok(())
}

async fn put_machines(client: &Client, revision: i64, machines: &[Machine]) -> Result<(), Fault> {
    if machines.is_empty() {
        return Ok(());
    }
    let agents: Vec<&str> = machines.iter().map(Machine::id).collect();
    let texts = machines.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    let sql = "INSERT INTO evenkeel.machines (revision, agent, machine) \
        SELECT $1, * FROM unnest($2::text[], $3::text[]) \
        ON CONFLICT (agent) DO UPDATE SET revision = excluded.revision, machine = excluded.machine";
    let rows =
        [(&revision as _, Type::INT8), (&agents as _, Type::TEXT_ARRAY), (&texts as _, Type::TEXT_ARRAY)];
    client.execute_typed(sql, &rows).await?;
    Ok(())
}

async fn put_values(client: &Client, revision: i64, values: &[(String, Vec<u8>)]) -> Result<(), Fault> {
    if values.is_empty() {
        return Ok(());
    }
    // Keyed by the stored name: one statement cannot write a row twice.
    let values: BTreeMap<_, _> = values.iter().map(|(name, value)| (plain(name), value.as_slice())).collect();
    let (names, values): (Vec<_>, Vec<_>) = values.into_iter().unzip();
    let sql = "INSERT INTO evenkeel.state (revision, name, value) \
        SELECT $1, * FROM unnest($2::text[], $3::bytea[]) \
        ON CONFLICT (name) DO UPDATE SET revision = excluded.revision, value = excluded.value";
    let rows =
        [(&revision as _, Type::INT8), (&names as _, Type::TEXT_ARRAY), (&values as _, Type::BYTEA_ARRAY)];
    client.execute_typed(sql, &rows).await?;
    Ok(())
}
