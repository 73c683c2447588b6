//! Notification channels: each file renders entries for one kind of receiver; [`super::sink`] delivers them.

mod discord;
mod message;
mod push;
mod smtp;
mod webhook;

use evenkeel_common::wire::{AuditEntry, Level};

use crate::config::EntryFilter;

pub(super) use discord::Discord;
pub use push::WardenAnswer;
pub(super) use push::{Push, Sent};
pub(super) use smtp::{Smtp, recipients};
pub(super) use webhook::Webhook;

impl EntryFilter {
    /// Reports whether an entry passes the filter (DECISIONS 5).
    pub fn passes(&self, entry: &AuditEntry) -> bool {
        entry.level >= self.min_level && self.events.as_ref().is_none_or(|kinds| kinds.contains(&entry.event))
    }
}

/// A filter that every entry passes.
impl Default for EntryFilter {
    fn default() -> Self {
        Self { min_level: Level::Info, events: None }
    }
}
