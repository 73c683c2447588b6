//! The tables and their versions. A new version adds a migration; existing ones are never changed.

use tokio_postgres::Client;

use super::fault::Fault;
use super::locks::{self, SCHEMA};

/// The first one creates all tables. A migration must take no longer than a statement may (see `session.rs`), however many
/// entries there are: what takes longer is done later, step by step.
const MIGRATIONS: [&str; 2] = [include_str!("schema.sql"), include_str!("schema_agents.sql")];
/// Version of the tables that this program supports.
#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "a few")]
const VERSION: i32 = MIGRATIONS.len() as i32;

/// Upgrades the tables to this program's version. If several wardens start at once, one of them does it.
pub(super) async fn migrate(client: &Client) -> Result<(), Fault> {
    if version(client).await? == VERSION {
        return Ok(());
    }
    client
        .batch_execute(&format!("BEGIN ISOLATION LEVEL READ COMMITTED; {}", locks::transaction(SCHEMA)))
        .await?;
    let before = version(client).await?;
    check(before)?;
    if before == 0 {
        client.batch_execute("CREATE SCHEMA IF NOT EXISTS evenkeel").await?;
    }
    for migration in MIGRATIONS.iter().skip(usize::try_from(before).unwrap_or(0)) {
        client.batch_execute(migration).await?;
    }
    client.batch_execute(&format!("UPDATE evenkeel.meta SET schema = {VERSION}; COMMIT")).await?;
    if before < VERSION {
        tracing::info!(before, now = VERSION, "the tables in PostgreSQL were created or upgraded");
    }
    Ok(())
}

/// Checks whether this program supports tables of this version.
pub(super) fn check(version: i32) -> Result<(), Fault> {
    if version > VERSION {
        return Err(Fault::Refused(format!(
            "the tables in PostgreSQL have version {version}, written by a newer evenkeel; this one supports up to {VERSION}"
        )));
    }
    Ok(())
}

/// Returns the version of the tables; 0 if there are none.
async fn version(client: &Client) -> Result<i32, Fault> {
    // Read from the tables of the catalog: `to_regclass` may answer from a cache that is older than the lock.
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
               WHERE n.nspname = 'evenkeel' AND c.relname = 'meta')";
    let found = client.query_typed_one(sql, &[]).await?;
    if !found.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let version = client.query_typed_one("SELECT schema FROM evenkeel.meta", &[]).await?.try_get(0)?;
    check(version)?;
    Ok(version)
}
