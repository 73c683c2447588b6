//! One way out of this machine: the settings that name it, and what they make of it.

use evenkeel_common::secret::Secret;
use evenkeel_common::wire::AuditEntry;

use super::letter::{Fault, Letter};
use super::notify::{Discord, Smtp, Webhook};
use super::push::Push;
use crate::config::{Config, DiscordConfig, EntryFilter, PushConfig, SmtpConfig, WebhookConfig};

/// What the configuration says about one channel. The same settings make the same channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settings {
    /// The warden.
    Push(PushConfig),
    /// Chat.
    Discord(DiscordConfig),
    /// Mail.
    Smtp(SmtpConfig),
    /// One of the custom webhooks.
    Webhook(WebhookConfig),
}

impl Settings {
    /// All that the configuration names; the push comes first.
    pub fn of(config: &Config) -> Vec<Self> {
        let notifications = config.notifications.clone();
        config
            .push
            .clone()
            .map(Self::Push)
            .into_iter()
            .chain(notifications.discord.map(Self::Discord))
            .chain(notifications.smtp.map(Self::Smtp))
            .chain(notifications.webhooks.into_iter().map(Self::Webhook))
            .collect()
    }

    /// Unique name: in logs, metrics, and as the key of the channel's place in the outbox.
    pub fn name(&self) -> String {
        match self {
            Self::Push(_) => "push".to_owned(),
            Self::Discord(_) => "discord".to_owned(),
            Self::Smtp(_) => "smtp".to_owned(),
            Self::Webhook(config) => format!("webhook/{}", config.name),
        }
    }

    /// The channel, or why it is off.
    pub fn open(&self) -> Result<Channel, String> {
        let (render, filter, secrets): (Box<dyn Render>, _, _) = match self {
            Self::Push(config) => {
                (Box::new(Push::new(config)?), EntryFilter::default(), vec![config.token.clone()])
            }
            Self::Discord(config) => {
                (Box::new(Discord::new(config)?), config.filter.clone(), vec![config.webhook_url.clone()])
            }
            Self::Smtp(config) => (
                Box::new(Smtp::new(config)?),
                config.filter.clone(),
                config.password.iter().cloned().collect(),
            ),
            Self::Webhook(config) => {
                (Box::new(Webhook::new(config)?), config.filter.clone(), secrets_of(config))
            }
        };
        Ok(Channel { name: self.name(), filter, secrets, render })
    }
}

fn secrets_of(config: &WebhookConfig) -> Vec<Secret> {
    let mut secrets = vec![config.url.clone()];
    for (_, value) in &config.headers {
        secrets.push(value.clone());
        // `Bearer <token>`: the other side may repeat the token alone.
        secrets.extend(value.expose().split_once(' ').map(|(_, token)| Secret::new(token)));
    }
    secrets
}

/// What a channel's file is there for.
pub(super) trait Render: Send + Sync + 'static {
    /// The entry as this channel sends it. `seq` is its number in the outbox.
    fn render(&self, entry: &AuditEntry, seq: Option<u64>) -> Result<Letter, String>;
}

/// One way out.
pub struct Channel {
    name: String,
    filter: EntryFilter,
    /// What must not get into a log line, even when the other side repeats it.
    secrets: Vec<Secret>,
    render: Box<dyn Render>,
}

impl Channel {
    /// As in [`Settings::name`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the entry is for this channel.
    pub fn wants(&self, entry: &AuditEntry) -> bool {
        self.filter.passes(entry)
    }

    /// Sends one entry, once, and returns what the other side answered.
    pub async fn send(&self, entry: &AuditEntry, seq: Option<u64>) -> Result<String, Fault> {
        let outcome = match self.render.render(entry, seq) {
            Ok(letter) => letter.send().await,
            Err(why) => Err(Fault::Refused { why }),
        };
        outcome.map(|answer| self.scrub(answer)).map_err(|fault| fault.map_text(|text| self.scrub(text)))
    }

    fn scrub(&self, text: String) -> String {
        // Shorter ones would only make the text unreadable.
        let secrets = self.secrets.iter().map(Secret::expose).filter(|secret| secret.len() >= 4);
        secrets.fold(text, |text, secret| text.replace(secret, "(redacted)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_taken_out_of_answers() {
        let config = WebhookConfig {
            name: "chat".into(),
            url: Secret::new("http://chat.example/key-of-it"),
            method: "POST".into(),
            headers: vec![
                ("authorization".into(), Secret::new("Bearer hunter22")),
                ("x-short".into(), Secret::new("a")),
            ],
            body: None,
            filter: EntryFilter::default(),
        };
        let channel = Settings::Webhook(config).open().unwrap();
        let text = "bad token hunter22 at http://chat.example/key-of-it!";
        assert_eq!(channel.scrub(text.into()), "bad token (redacted) at (redacted)!");
    }
}
