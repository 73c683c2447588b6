//! Notification channels: each file turns an entry into what its receiver reads; sending is [`super::sink`]'s.

mod discord;
mod message;
mod smtp;
mod template;
mod webhook;

use std::sync::Arc;

use evenkeel_common::wire::AuditEntry;

use super::sink::Channel;
use crate::config::{EntryFilter, NotificationsConfig};

pub use discord::Discord;
pub use smtp::Smtp;
pub use webhook::Webhook;

/// The channels of the configuration, and why others of it are off.
pub fn channels(config: &NotificationsConfig) -> (Vec<Arc<dyn Channel>>, Vec<String>) {
    let mut channels: Vec<Arc<dyn Channel>> = Vec::new();
    let mut warnings = Vec::new();
    let mut add = |at: String, made: Result<Arc<dyn Channel>, String>| match made {
        Ok(channel) => channels.push(channel),
        Err(why) => warnings.push(format!("notifications.{at}: {why} (this channel is off)")),
    };
    if let Some(config) = &config.discord {
        add("discord".to_owned(), Discord::new(config).map(|channel| Arc::new(channel) as _));
    }
    if let Some(config) = &config.smtp {
        add("smtp".to_owned(), Smtp::new(config).map(|channel| Arc::new(channel) as _));
    }
    for config in &config.webhooks {
        let at = format!("webhooks \"{}\"", config.name);
        add(at, Webhook::new(config).map(|channel| Arc::new(channel) as _));
    }
    (channels, warnings)
}

/// What is wrong with a mail address of the configuration.
pub fn check_sender(from: &str) -> Result<(), String> {
    smtp::sender(from).map(drop)
}

/// What is wrong with a list of mail addresses of the configuration.
pub fn check_receivers(to: &str) -> Result<(), String> {
    smtp::receivers(to).map(drop)
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
