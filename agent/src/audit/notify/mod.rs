//! Notification channels: each file turns an entry into what its receiver reads; sending is [`super::sink`]'s.

mod discord;
mod message;
mod smtp;
mod template;
mod template_syntax;
mod webhook;

use evenkeel_common::wire::{AuditEntry, Level};

use crate::config::EntryFilter;

pub(super) use discord::Discord;
pub(super) use smtp::Smtp;
pub(super) use template::Escape;
pub(super) use webhook::Webhook;

/// What is wrong with a mail address of the configuration.
pub fn check_sender(from: &str) -> Result<(), String> {
    smtp::sender(from).map(drop)
}

/// What is wrong with a list of mail addresses of the configuration.
pub fn check_receivers(to: &str) -> Result<(), String> {
    smtp::receivers(to).map(drop)
}

/// What a webhook with this template for its body would send: what the fuzzer looks at.
pub fn render_template(body: &str, entry: &AuditEntry) -> Result<String, String> {
    template::Template::new(body, template::Escape::Json)?.render(entry)
}

/// What is wrong with a template of a webhook's body.
pub fn check_template(body: &str) -> Result<(), String> {
    template::Template::new(body, template::Escape::None).map(drop)
}

impl EntryFilter {
    /// Whether an entry passes (DECISIONS 5).
    pub fn passes(&self, entry: &AuditEntry) -> bool {
        entry.level >= self.min_level && self.events.as_ref().is_none_or(|kinds| kinds.contains(&entry.event))
    }
}

/// Every entry passes.
impl Default for EntryFilter {
    fn default() -> Self {
        Self { min_level: Level::Info, events: None }
    }
}
