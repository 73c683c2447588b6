//! What a service says: persistent faults, and what becomes an audit entry.

use evenkeel_common::wire::{AuditEntry, Kind, Level};
use jiff::Timestamp;

use super::deploy::ImageChange;
use super::{Fault, Service};

impl Service {
    /// Shows, changes or clears the persistent fault; the same text again says nothing (spec 2.6).
    pub(super) fn set_fault(&mut self, fault: Option<Fault>, now: Timestamp, entries: &mut Vec<AuditEntry>) {
        let text = |fault: &Option<Fault>| fault.as_ref().map(|fault| fault.text.clone());
        if text(&fault) != text(&self.fault) {
            entries.push(match (&fault, &self.fault) {
                (Some(new), _) => {
                    let mut entry = self.entry(now, Kind::ERROR, Level::Error, new.text.clone());
                    entry.reason =
                        Some(if new.from_check { "the check failed" } else { "the deploy failed" }.into());
                    entry
                }
                (None, old) => {
                    let mut entry = self.entry(now, Kind::RECOVERED, Level::Info, "the fault is over");
                    entry.reason = old.as_ref().map(|old| old.text.clone());
                    entry
                }
            });
        }
        self.fault = fault;
    }

    pub(super) fn entry(
        &self,
        now: Timestamp,
        kind: Kind,
        level: Level,
        message: impl Into<String>,
    ) -> AuditEntry {
        AuditEntry::new(now, &self.config.name, kind, level, message)
    }
}

pub(super) fn names(image_changes: &[ImageChange]) -> String {
    if image_changes.is_empty() {
        return "the project".to_owned();
    }
    image_changes.iter().map(|m| m.configured.as_str()).collect::<Vec<_>>().join(", ")
}

pub(super) fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}
