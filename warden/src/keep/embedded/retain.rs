//! Removing entries, per agent, and adding those that were saved of a damaged file.

use std::ops::RangeInclusive;

use evenkeel_common::wire::FleetEntry;
use jiff::Timestamp;
use redb::{Database, ReadableTable};

use super::TableError;
use super::tables::{AGENTS_FROM, BYTES, BYTES_OF, NEXT_ID, Tables, add, add_bytes, begin_write, counter};
use crate::fleet::Machine;
use crate::keep::query::Field;
use crate::keep::{Folded, Retention, agent_of};

/// Maximum number of entries removed in one transaction, so that other work is not delayed.
const REMOVED_AT_ONCE: usize = 2000;
/// The same for the entries of an earlier version that are added to the index of agents.
const INDEXED_AT_ONCE: usize = 20_000;
/// How many entries of one agent are removed before the sizes are compared again.
const REMOVED_OF_AGENT: usize = 50;

/// [`crate::keep::Keep::retain`]. What is too old is removed first. What is too much is removed from the agent with the most
/// text, so that an agent that sends a lot only shortens its own history.
pub(super) fn retain(database: &Database, limits: Retention, now: Timestamp) -> Result<u64, TableError> {
    let transaction = begin_write(database)?;
    let (removed, indexed) = {
        let mut tables = Tables::open(&transaction)?;
        let indexed = tables.index_agents()?;
        let mut removed = tables.remove_old(&limits.kept(now))?;
        // Until all entries are known by agent, it is not known whose are too many.
        if removed == 0 && counter(&tables.meta, AGENTS_FROM)? == 0 {
            removed = tables.remove_excess(limits.bytes)?;
        }
        (removed, indexed)
    };
    if removed == 0 && indexed == 0 {
        transaction.abort()?;
    } else {
        transaction.commit()?;
    }
    Ok(removed)
}

impl Tables<'_> {
    /// Adds some entries of an earlier version to the index of agents, the latest first. Returns how many.
    fn index_agents(&mut self) -> Result<usize, TableError> {
        let from = counter(&self.meta, AGENTS_FROM)?;
        if from == 0 {
            return Ok(0);
        }
        let mut found = Vec::new();
        for item in self.entries.range(..from)?.rev().take(INDEXED_AT_ONCE) {
            let (id, row) = item?;
            let line = row.value().1;
            found.push((id.value(), agent_of(line), line.len()));
        }
        for (id, agent, size) in &found {
            self.index.insert((Field::Agent as u8, agent.as_str(), *id), ())?;
            add_bytes(&mut self.meta, agent, *size)?;
        }
        let next = if found.len() < INDEXED_AT_ONCE { 0 } else { found.last().map_or(0, |(id, ..)| *id) };
        self.meta.insert(AGENTS_FROM, next)?;
        Ok(found.len().max(1))
    }

    /// Removes some entries that arrived before these times, and those from the future before them. Returns how many.
    fn remove_old(&mut self, kept: &RangeInclusive<i64>) -> Result<u64, TableError> {
        let mut gone = Vec::new();
        let mut old = 0;
        for item in self.entries.range::<u64>(..)? {
            let (id, row) = item?;
            let arrived = row.value().0;
            if kept.contains(&arrived) || old == REMOVED_AT_ONCE {
                break;
            }
            if gone.len() < REMOVED_AT_ONCE {
                gone.push(id.value());
            }
            if arrived < *kept.start() {
                old = gone.len();
            }
        }
        gone.truncate(old);
        gone.iter().try_for_each(|id| self.remove(*id))?;
        Ok(gone.len() as u64)
    }

    /// Removes some entries beyond the size. Returns how many.
    fn remove_excess(&mut self, limit: u64) -> Result<u64, TableError> {
        let mut removed = 0;
        while counter(&self.meta, BYTES)? > limit && removed < REMOVED_AT_ONCE as u64 {
            let most = self.agent_with_most()?;
            let mut ids = Vec::new();
            if let Some(agent) = &most {
                let field = Field::Agent as u8;
                let range = (field, agent.as_str(), 0)..=(field, agent.as_str(), u64::MAX);
                for item in self.index.range(range)?.take(REMOVED_OF_AGENT) {
                    ids.push(item?.0.value().2);
                }
            }
            if ids.is_empty() {
                // Entries that an earlier version stored after a downgrade.
                let first = self.entries.first()?.map(|(id, _)| id.value());
                let Some(first) = first else { break };
                ids.push(first);
            }
            for id in ids {
                if counter(&self.meta, BYTES)? <= limit {
                    break;
                }
                self.remove(id)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn agent_with_most(&self) -> Result<Option<String>, TableError> {
        let mut most: Option<(u64, String)> = None;
        for item in self.meta.range(BYTES_OF..)? {
            let (key, bytes) = item?;
            let Some(agent) = key.value().strip_prefix(BYTES_OF) else { break };
            if bytes.value() > most.as_ref().map_or(0, |(bytes, _)| *bytes) {
                most = Some((bytes.value(), agent.to_owned()));
            }
        }
        Ok(most.map(|(_, agent)| agent))
    }

    fn remove(&mut self, id: u64) -> Result<(), TableError> {
        let Some(line) = self.entries.remove(id)?.map(|row| row.value().1.to_owned()) else { return Ok(()) };
        let bytes = counter(&self.meta, BYTES)?.saturating_sub(line.len() as u64);
        self.meta.insert(BYTES, bytes)?;
        let Ok(entry) = serde_json::from_str::<FleetEntry>(&line) else { return Ok(()) };
        for field in Field::ALL {
            let Some(value) = field.of(&entry) else { continue };
            let was_indexed = self.index.remove((field as u8, value, id))?.is_some();
            if field == Field::Agent && was_indexed {
                let name = format!("{BYTES_OF}{value}");
                let left = self.meta.get(name.as_str())?.map_or(0, |bytes| bytes.value());
                match left.saturating_sub(line.len() as u64) {
                    0 => drop(self.meta.remove(name.as_str())?),
                    left => drop(self.meta.insert(name.as_str(), left)?),
                }
            }
        }
        Ok(())
    }
}

/// Adds what was saved of a damaged file: entries with their ids and arrival times, machines, values.
pub(super) fn restore(
    database: &Database,
    entries: &[(u64, i64, String)],
    machines: &[Machine],
    values: &[(String, Vec<u8>)],
) -> Result<(), TableError> {
    let transaction = begin_write(database)?;
    {
        let mut tables = Tables::open(&transaction)?;
        let mut bytes = counter(&tables.meta, BYTES)?;
        let mut next = counter(&tables.meta, NEXT_ID)?;
        for (id, arrival, line) in entries {
            let Ok(entry) = serde_json::from_str::<FleetEntry>(line) else { continue };
            bytes += line.len() as u64;
            next = next.max(id + 1);
            tables.insert(*id, *arrival, &entry, line)?;
        }
        tables.meta.insert(BYTES, bytes)?;
        tables.meta.insert(NEXT_ID, next)?;
    }
    if !machines.is_empty() || !values.is_empty() {
        let (machines, values) = (machines.to_vec(), values.to_vec());
        add(&transaction, &Folded { machines, values, ..Folded::default() }, Timestamp::UNIX_EPOCH)?;
    }
    transaction.commit()?;
    Ok(())
}
