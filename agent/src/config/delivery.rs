//! Notification channels and the push. One that is broken, or whose variable is not set, is left out with a
//! warning: the services are looked after all the same (DECISIONS 2).

use std::collections::HashSet;

use evenkeel_common::config::expand::{Env, expand};
use evenkeel_common::config::{Findings, KeyPath, did_you_mean, quote};
use evenkeel_common::secret::Secret;
use evenkeel_common::wire::{Kind, Level};
use http::{HeaderName, HeaderValue, Method};

use super::file::{DiscordFile, Items, NotificationsFile, PushFile, SmtpFile, WebhookFile};
use super::{DiscordConfig, EntryFilter, NotificationsConfig, PushConfig, SmtpConfig, WebhookConfig};

/// The channels that are complete.
pub(super) fn notifications(
    file: NotificationsFile,
    env: Env<'_>,
    findings: &mut Findings,
) -> NotificationsConfig {
    let at = KeyPath::of("notifications");
    let place = at.key("discord");
    let discord = file.discord.map(|file| discord(file, &place, env, findings));
    let discord = unless_broken(discord, &place, "discord is off", findings).flatten();
    let place = at.key("smtp");
    let smtp = file.smtp.map(|file| smtp(file, &place, env, findings));
    let smtp = unless_broken(smtp, &place, "smtp is off", findings).flatten();
    let mut names = HashSet::new();
    let mut webhooks = Vec::new();
    for (n, file) in file.webhooks.into_iter().enumerate() {
        let at = at.key("webhooks").index(n);
        let channel = webhook(file.unwrap_or_default(), &at, env, findings);
        // Each channel has a queue of its own under its name.
        if !channel.name.is_empty() && !names.insert(channel.name.clone()) {
            findings.fault(
                &at.key("name"),
                format!("{} is the name of an earlier webhook", quote(&channel.name)),
            );
        }
        webhooks.extend(unless_broken(channel, &at, "this webhook is off", findings));
    }
    let webhooks =
        unless_broken(webhooks, &at.key("webhooks"), "all webhooks are off", findings).unwrap_or_default();
    NotificationsConfig { discord, smtp, webhooks }
}

/// `push`: on when there is a warden; then it needs a token, for an empty one never authorises anyone.
pub(super) fn push(file: PushFile, env: Env<'_>, findings: &mut Findings) -> Option<PushConfig> {
    let at = KeyPath::of("push");
    let wanted = !file.warden_url.is_empty();
    let mut config = PushConfig {
        warden_url: file.warden_url.trim_end_matches('/').to_owned(),
        token: Secret::default(),
        machine_id: file.machine_id,
    };
    if wanted {
        if !web_url(&file.warden_url).is_some_and(|url| {
            url.query().is_none()
                && url.fragment().is_none()
                && url.username().is_empty()
                && url.password().is_none()
        }) {
            findings.fault(&at.key("warden_url"), "is not a base URL; allowed: http://host:port or https://host:port, a path after it, no login and no query");
        }
        config.token = expanded(&file.token, &at.key("token"), env, findings);
        if config.token.is_empty() {
            findings
                .fault(&at.key("token"), "is empty; allowed: the token that the warden knows this agent by");
        }
    }
    unless_broken(config, &at, "the push is off", findings).filter(|_| wanted)
}

fn discord(file: DiscordFile, at: &KeyPath, env: Env<'_>, findings: &mut Findings) -> DiscordConfig {
    DiscordConfig {
        webhook_url: url(&file.webhook_url, &at.key("webhook_url"), env, findings),
        filter: filter(file.min_level, file.events, at, findings),
    }
}

fn smtp(file: SmtpFile, at: &KeyPath, env: Env<'_>, findings: &mut Findings) -> SmtpConfig {
    let username = expanded(&Secret::new(file.username), &at.key("username"), env, findings);
    let password = expanded(&file.password, &at.key("password"), env, findings);
    if username.is_empty() && !password.is_empty() {
        findings.warn(&at.key("password"), "is not used: there is no username");
    }
    SmtpConfig {
        host: file.host,
        port: file.port,
        from: file.from,
        to: file.to,
        username: (!username.is_empty()).then(|| username.expose().to_owned()),
        password: (!password.is_empty()).then_some(password),
        tls: file.tls,
        filter: filter(file.min_level, file.events, at, findings),
    }
}

fn webhook(file: WebhookFile, at: &KeyPath, env: Env<'_>, findings: &mut Findings) -> WebhookConfig {
    let method = file.method.to_ascii_uppercase();
    if Method::from_bytes(method.as_bytes()).is_err() {
        findings.fault(
            &at.key("method"),
            format!("{}; allowed: an HTTP method, for example POST", quote(&file.method)),
        );
    }
    let mut headers = Vec::new();
    for (name, value) in file.headers {
        let at = at.key("headers").key(&name);
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            findings.fault(&at, "has a name that no HTTP header can have");
        }
        let value = expanded(&value, &at, env, findings);
        if HeaderValue::from_str(value.expose()).is_err() {
            findings.fault(
                &at,
                "has a value with control characters (a line break?), which no HTTP header can have",
            );
        }
        headers.push((name, value));
    }
    WebhookConfig {
        name: file.name,
        url: url(&file.url, &at.key("url"), env, findings),
        method,
        headers,
        body: file.body,
        filter: filter(file.min_level, file.events, at, findings),
    }
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
        findings
            .warn(&at, "is an empty array, so nothing is ever sent; leave the key away to get everything");
    }
    EntryFilter {
        min_level: min_level.unwrap_or(Level::Info),
        events: events.map(|kinds| kinds.into_iter().flatten().collect()),
    }
}

/// The text with its variables replaced; nothing and a fault when that cannot be done.
fn expanded(text: &Secret, at: &KeyPath, env: Env<'_>, findings: &mut Findings) -> Secret {
    match expand(text.expose(), env) {
        Ok(text) => Secret::new(text),
        Err(error) => {
            findings.fault(at, error.to_string());
            Secret::default()
        }
    }
}

/// An expanded text that is a URL. It is never shown: such URLs hold tokens.
fn url(text: &Secret, at: &KeyPath, env: Env<'_>, findings: &mut Findings) -> Secret {
    let url = expanded(text, at, env, findings);
    if web_url(url.expose()).is_none() {
        findings.fault(at, "is not a URL; allowed: http://… or https://…");
    }
    url
}

fn web_url(text: &str) -> Option<reqwest::Url> {
    let url = reqwest::Url::parse(text).ok()?;
    (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(url)
}

/// The part at `at`, unless something in it is at fault: then the faults become warnings that say what is off.
fn unless_broken<T>(part: T, at: &KeyPath, consequence: &str, findings: &mut Findings) -> Option<T> {
    let faults = findings.take_faults(at);
    for fault in &faults {
        findings.warn(&fault.at, format!("{} ({consequence})", fault.what));
    }
    faults.is_empty().then_some(part)
}
