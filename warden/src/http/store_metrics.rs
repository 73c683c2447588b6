//! Metrics of the store: its availability, size and commit times, and how far the view may be behind.

use evenkeel_common::metrics::{flag, single};
use jiff::{SignedDuration, Timestamp};
use prometheus::proto::MetricFamily;

use crate::collector::Figures;
use crate::keep::Usage;

/// The current state of the store.
pub(super) struct StoreFigures {
    pub(super) is_up: bool,
    pub(super) figures: Figures,
    /// `None` while the store is unavailable.
    pub(super) usage: Option<Usage>,
    /// How far this machine's clock is ahead of the store's, if the store has its own.
    pub(super) clock_ahead: Option<SignedDuration>,
    pub(super) now: Timestamp,
}

impl StoreFigures {
    /// Returns all metrics of the store.
    pub(super) fn families(&self) -> Vec<MetricFamily> {
        let one = |name: &str, help: &str, value: f64| {
            single(&format!("evenkeel_warden_store_{name}"), help, value)
        };
        let figures = self.figures;
        let mut families = vec![
            one("up", "1 while the store can be read and written, else 0.", flag(self.is_up)),
            one("commits_total", "Batches committed to the store.", figures.commits as f64),
            one("commit_seconds_total", "Time spent on commits.", figures.commit_micros as f64 / 1e6),
            one("failures_total", "Failed calls to the store.", figures.failures as f64),
            one(
                "removed_entries_total",
                "Entries removed because of age or total size.",
                figures.removed as f64,
            ),
            one("waiting_requests", "Requests waiting for the store.", figures.waiting as f64),
            one("lag_seconds", "Time since the store was last read completely.", figures.lag.as_secs_f64()),
        ];
        if let Some(ahead) = self.clock_ahead {
            families.push(single(
                "evenkeel_warden_store_clock_skew_seconds",
                "How far this machine's clock is ahead of the store's; negative if it is behind.",
                ahead.as_secs_f64(),
            ));
        }
        if let Some(usage) = self.usage {
            families.push(one("entries", "Stored entries.", usage.entries as f64));
            families.push(one("bytes", "Text of the stored entries.", usage.bytes as f64));
            let age = |oldest| self.now.duration_since(oldest).as_secs_f64().max(0.0);
            if let Some(oldest) = usage.oldest {
                families.push(one("oldest_entry_seconds", "Age of the oldest stored entry.", age(oldest)));
            }
        }
        families
    }
}
