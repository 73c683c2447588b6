//! The fleet's state as it is saved and restored.

use std::sync::Arc;

use evenkeel_common::wire::FleetEntry;
use serde::Deserialize;

use super::Machine;

/// The state that a previous run saved.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct SavedState {
    /// Version of the file's format.
    pub version: u32,
    /// Whether it was saved on shutdown, so that nothing was stored after it.
    pub is_complete: bool,
    /// Id of the next entry.
    pub next_id: u64,
    /// The last entries, oldest first.
    pub entries: Vec<FleetEntry>,
    /// State of each agent.
    pub machines: Vec<Machine>,
}

/// What is to be written.
pub struct Changes {
    /// Lines of JSON with their ids, oldest first.
    pub entries: Vec<(u64, Arc<str>)>,
    /// Id of the next entry.
    pub next_id: u64,
    /// Machines as they are now.
    pub machines: Vec<Machine>,
}
