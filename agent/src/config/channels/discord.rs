//! `notifications.discord`

use evenkeel_common::config::expand::Env;
use evenkeel_common::config::{Findings, KeyPath};
use evenkeel_common::secret::Secret;
use evenkeel_common::wire::{Kind, Level};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{EntryFilter, filter, url};
use crate::config::items::Items;

/// `notifications.discord`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["webhook_url"]))]
pub(super) struct DiscordFile {
    /// Webhook URL of the Discord channel; `$NAME` and `${NAME}` are replaced by environment variables.
    #[schemars(length(min = 1))]
    pub(super) webhook_url: Secret,
    /// Minimum level of the entries to send; the default is all levels.
    pub(super) min_level: Option<Level>,
    /// Event kinds to send; the default is all kinds.
    #[schemars(with = "Option<Vec<String>>")]
    pub(super) events: Option<Items<Kind>>,
}

/// `notifications.discord`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscordConfig {
    /// Webhook URL, http or https, expanded. It is a secret: it grants access to the channel.
    pub webhook_url: Secret,
    /// The entries to send.
    pub filter: EntryFilter,
}

/// Reads the section. What is wrong with it is a finding.
pub(super) fn read(file: DiscordFile, at: &KeyPath, env: Env<'_>, findings: &mut Findings) -> DiscordConfig {
    DiscordConfig {
        webhook_url: url(&file.webhook_url, &at.key("webhook_url"), env, findings),
        filter: filter(file.min_level, file.events, at, findings),
    }
}
