//! Notification channels: a file for each kind, with its section of the configuration and the rules for it. A channel that is
//! invalid, or whose variable is not set, is disabled with a warning; the services are still managed (DECISIONS 2).
//!
//! To add a channel: a file here with its section, its settings and their rules, and below a field of [`NotificationsFile`]
//! and [`NotificationsConfig`], a line in [`notifications`], and a row of [`SINGLE`].

mod discord;
mod smtp;
mod webhook;

use std::collections::HashSet;

use evenkeel_common::config::expand::{Env, expand, names};
use evenkeel_common::config::{Findings, KeyPath, did_you_mean, is_slip_of, quote};
use evenkeel_common::secret::Secret;
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Config;
use super::items::Items;
pub use discord::DiscordConfig;
use discord::DiscordFile;
use smtp::SmtpFile;
pub use smtp::{SmtpConfig, SmtpTls};
pub use webhook::WebhookConfig;
use webhook::WebhookFile;

/// `notifications`
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct NotificationsFile {
    /// Discord.
    discord: Option<DiscordFile>,
    /// Mail.
    smtp: Option<SmtpFile>,
    /// Custom HTTP requests.
    #[schemars(with = "Vec<WebhookFile>")]
    webhooks: Items<WebhookFile>,
}

/// `notifications.*`: the valid channels.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NotificationsConfig {
    /// Discord.
    pub discord: Option<DiscordConfig>,
    /// Mail.
    pub smtp: Option<SmtpConfig>,
    /// Custom webhooks, in the order of the file; names are unique.
    pub webhooks: Vec<WebhookConfig>,
}

/// Reports whether a channel is valid, and therefore on.
type IsOn = fn(&NotificationsConfig) -> bool;

/// The channels of which there is at most one: the name of the section, and whether the channel is valid. A section that is
/// not here would lose the queue of its channel as soon as it has a fault (a test compares).
const SINGLE: [(&str, IsOn); 2] = [
    ("discord", |notifications| notifications.discord.is_some()),
    ("smtp", |notifications| notifications.smtp.is_some()),
];

/// The section of the channels of which there may be several.
const WEBHOOKS: &str = "webhooks";

fn sections() -> impl Iterator<Item = &'static str> {
    SINGLE.iter().map(|(name, _)| *name).chain([WEBHOOKS])
}

/// Selects the entries that a channel sends (DECISIONS 5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryFilter {
    /// Entries below this level are not sent.
    pub min_level: Level,
    /// Only these kinds are sent; `None` means all.
    pub events: Option<Vec<Kind>>,
}

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

/// Records a fault where the file may name channels that would not be read, under a misspelt key or beside `notifications`, and
/// puts them where they belong: a channel that nobody knows of loses its queue, and nobody is told that it is off.
pub(super) fn note_unread(tree: &mut Value, findings: &mut Findings) {
    let at = KeyPath::of("notifications");
    let Some(members) = tree.as_object_mut() else { return };
    if is_absent(members, "notifications")
        && let Some((key, section)) = take_slip(members, "notifications")
    {
        findings.fault(&at, format!("is written {}; allowed: \"notifications\"", quote(&key)));
        members.insert("notifications".to_owned(), section);
    }
    let mut inside = match members.remove("notifications") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(inside)) => inside,
        Some(other) => {
            members.insert("notifications".to_owned(), other);
            return;
        }
    };
    for name in sections() {
        if !is_absent(&inside, name) {
            continue;
        }
        let found = take_slip(&mut inside, name).map(|found| (found, ""));
        let found = found.or_else(|| Some((take_slip(members, name)?, " beside \"notifications\"")));
        if let Some(((key, channel), beside)) = found {
            let (key, allowed) = (quote(&key), quote(name));
            let what = format!("is written {key}{beside}; allowed: {allowed} in \"notifications\"");
            findings.fault(&at.key(name), what);
            inside.insert(name.to_owned(), channel);
        }
    }
    if !inside.is_empty() {
        members.insert("notifications".to_owned(), Value::Object(inside));
    }
}

fn is_absent(members: &Map<String, Value>, name: &str) -> bool {
    members.get(name).is_none_or(Value::is_null)
}

/// Takes what has a value under a misspelt `name`.
fn take_slip(members: &mut Map<String, Value>, name: &str) -> Option<(String, Value)> {
    let key = key_in(members, |key| is_slip_of(key, name))?;
    let value = members.remove(&key)?;
    Some((key, value))
}

/// Returns the key that is meant and has a value. One with a mark in front is a remark.
pub(super) fn key_in(members: &Map<String, Value>, is_meant: impl Fn(&str) -> bool) -> Option<String> {
    let is_one = |(key, value): &(&String, &Value)| {
        !value.is_null() && key.starts_with(|c: char| c.is_ascii_alphanumeric()) && is_meant(key)
    };
    members.iter().find(is_one).map(|(key, _)| key.clone())
}

/// Returns the valid channels; none if the section as a whole has a fault.
pub(super) fn notifications(
    file: NotificationsFile,
    env: Env<'_>,
    findings: &mut Findings,
) -> NotificationsConfig {
    let at = KeyPath::of("notifications");
    if findings.fault_at(&at).is_some() {
        return NotificationsConfig::default();
    }
    let place = at.key("discord");
    let discord = file.discord.map(|file| discord::read(file, &place, env, findings));
    let discord = unless_faulty(discord, &place, "discord is off", findings).flatten();
    let place = at.key("smtp");
    let smtp = file.smtp.map(|file| smtp::read(file, &place, env, findings));
    let smtp = unless_faulty(smtp, &place, "smtp is off", findings).flatten();
    let mut names = HashSet::new();
    let mut webhooks = Vec::new();
    for (n, file) in file.webhooks.into_iter().enumerate() {
        let at = at.key(WEBHOOKS).index(n);
        let channel = webhook::read(file.unwrap_or_default(), &at, env, findings);
        // Each channel has its own queue under its name.
        if !channel.name.is_empty() && !names.insert(channel.name.clone()) {
            findings.fault(
                &at.key("name"),
                format!("{} is the name of an earlier webhook", quote(&channel.name)),
            );
        }
        webhooks.extend(unless_faulty(channel, &at, "this webhook is off", findings));
    }
    let webhooks =
        unless_faulty(webhooks, &at.key(WEBHOOKS), "all webhooks are off", findings).unwrap_or_default();
    NotificationsConfig { discord, smtp, webhooks }
}

fn filter(
    min_level: Option<Level>,
    events: Option<Items<Kind>>,
    at: &KeyPath,
    findings: &mut Findings,
) -> EntryFilter {
    let at = at.key("events");
    for (n, kind) in events.iter().flatten().enumerate() {
        if let Some(kind) = kind
            && !Kind::ALL.contains(kind)
        {
            let hint = did_you_mean(kind.as_str(), Kind::ALL.iter().map(Kind::as_str));
            findings.warn(&at.index(n), format!("{} is not a kind of entry{hint}", quote(kind.as_str())));
        }
    }
    if events.as_ref().is_some_and(Vec::is_empty) {
        findings.warn(&at, "is an empty array, so nothing is ever sent; omit the key to receive everything");
    }
    EntryFilter {
        min_level: min_level.unwrap_or(Level::Info),
        events: events.map(|kinds| kinds.into_iter().flatten().collect()),
    }
}

/// Expands the variables in `text`. On failure it reports a fault and returns an empty secret.
pub(super) fn expanded(text: &Secret, at: &KeyPath, env: Env<'_>, findings: &mut Findings) -> Secret {
    match expand(text.expose(), env) {
        // The receiver may echo the value of a variable without the text around it.
        Ok(expanded) => Secret::of_parts(expanded, names(text.expose()).iter().filter_map(|name| env(name))),
        Err(error) => {
            findings.fault(at, error.to_string());
            Secret::default()
        }
    }
}

/// Expands `text` and checks that it is a URL. Messages never show it: such URLs contain tokens.
fn url(text: &Secret, at: &KeyPath, env: Env<'_>, findings: &mut Findings) -> Secret {
    let url = expanded(text, at, env, findings);
    if web_url(url.expose()).is_none() {
        findings.fault(at, "is not a URL; allowed: http://… or https://…");
    }
    url
}

pub(super) fn web_url(text: &str) -> Option<reqwest::Url> {
    let url = reqwest::Url::parse(text).ok()?;
    (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(url)
}

/// Returns `part`, unless there are faults at or below `at`. The faults then become warnings that state the consequence.
pub(super) fn unless_faulty<T>(
    part: T,
    at: &KeyPath,
    consequence: &str,
    findings: &mut Findings,
) -> Option<T> {
    let faults = findings.take_faults(at);
    for fault in &faults {
        findings.warn(&fault.at, format!("{} ({consequence})", fault.message));
    }
    faults.is_empty().then_some(part)
}

/// Reports whether a warning says that a channel, all of them, or the push is off.
pub fn says_it_is_off(warning: &str) -> bool {
    ["is off)", "are off)"].iter().any(|end| warning.ends_with(end))
}

/// The channels that the file names.
#[derive(Debug, Default)]
pub(super) struct Named {
    names: Vec<String>,
    /// Those in values that do not count, because their key is given once more.
    replaced: Vec<(KeyPath, Vec<String>)>,
}

impl Named {
    /// Finds them, including invalid ones if their name is readable.
    pub(super) fn of(tree: &Value, findings: &Findings) -> Self {
        let sections = sections().map(|name| format!("notifications.{name}"));
        let keys =
            ["notifications", "push", "push.warden_url"].map(str::to_owned).into_iter().chain(sections);
        let mut replaced = Vec::new();
        for key in keys {
            let at = KeyPath::of(&key);
            let inside = |value: Value, name: &str| Value::Object(Map::from_iter([(name.to_owned(), value)]));
            let trees = findings.replaced(&at).map(|value| key.rsplit('.').fold(value.clone(), inside));
            let names: Vec<String> = trees.flat_map(|tree| names_in(&tree)).collect();
            replaced.push((at, names));
        }
        Self { names: names_in(tree), replaced }
    }

    /// Returns those that are off. A warning says which part of the file is not read.
    pub(super) fn off(self, config: &Config, findings: &mut Findings) -> Vec<String> {
        let Self { mut names, replaced } = self;
        names.retain(|name| !is_on(config, name));
        for (at, earlier) in replaced {
            let is_lost = |name: &String| !is_on(config, name) && !names.contains(name);
            let lost: Vec<String> = earlier.into_iter().filter(is_lost).collect();
            if !lost.is_empty() {
                let what = "is given more than once, and what only an earlier one has is not read (these channels are off)";
                findings.warn(&at, what);
                names.extend(lost);
            }
        }
        names
    }
}

/// Returns the names of the channels in a file, including invalid ones if their name is readable.
fn names_in(tree: &Value) -> Vec<String> {
    let notifications = &tree["notifications"];
    let wardens = match &tree["push"] {
        Value::Object(push) => push.get("warden_url").unwrap_or(&Value::Null),
        other => other,
    };
    let is_wanted = match wardens {
        Value::Null => false,
        Value::String(url) => !url.is_empty(),
        Value::Array(urls) => urls.iter().any(|url| *url != ""),
        _ => true,
    };
    let mut found: Vec<String> = is_wanted.then(|| "push".to_owned()).into_iter().collect();
    let single = SINGLE.iter().filter(|(name, _)| !notifications[*name].is_null());
    found.extend(single.map(|(name, _)| (*name).to_owned()));
    let webhooks = match &notifications[WEBHOOKS] {
        Value::Array(webhooks) => &webhooks[..],
        // A single webhook that is not in an array.
        other => std::slice::from_ref(other),
    };
    let names = webhooks.iter().filter_map(|webhook| webhook["name"].as_str());
    for name in names.filter(|name| !name.is_empty()).map(|name| format!("webhook/{name}")) {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

/// Reports whether the channel with this name is valid and therefore enabled.
fn is_on(config: &Config, name: &str) -> bool {
    let notifications = &config.notifications;
    if let Some(webhook) = name.strip_prefix("webhook/") {
        return notifications.webhooks.iter().any(|one| one.name == webhook);
    }
    match SINGLE.iter().find(|(single, _)| *single == name) {
        Some((_, is_on)) => is_on(notifications),
        None => name == "push" && config.push.is_some(),
    }
}

#[cfg(test)]
mod tests;
