//! Text shared by the human-readable channels.

use std::borrow::Cow;

use evenkeel_common::wire::{AuditEntry, Tenths};

/// `[level] event: service on machine`, on one line.
pub(super) fn title(entry: &AuditEntry) -> String {
    let machine = if entry.machine.is_empty() { String::new() } else { format!(" on {}", entry.machine) };
    one_line(&format!("[{}] {}: {}{machine}", entry.level, entry.event, entry.service))
}

/// The entry's other non-empty fields with their labels.
pub(super) fn fields(entry: &AuditEntry) -> Vec<(&'static str, Cow<'_, str>)> {
    let all = [
        ("Machine", Some(entry.machine.as_str())),
        ("Container", entry.container.as_deref()),
        ("Old digest", entry.old_digest.as_deref()),
        ("New digest", entry.new_digest.as_deref()),
        ("Reason", entry.reason.as_deref()),
    ];
    let texts = all.into_iter().filter_map(|(name, value)| Some((name, Cow::Borrowed(value?))));
    let outage = entry.outage_seconds.map(|seconds| ("Interruption", Cow::Owned(interruption(seconds))));
    texts.chain(outage).filter(|(_, text)| !text.trim().is_empty()).collect()
}

fn interruption(seconds: Tenths) -> String {
    if f64::from(seconds) == 0.0 { "none".to_owned() } else { format!("down for {seconds} s") }
}

/// Replaces line breaks and other control characters by spaces.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
