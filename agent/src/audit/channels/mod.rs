//! The channels: each file says what the settings of one kind of receiver mean, and renders entries for it.
//! [`super::sink`] delivers them.
//!
//! To add a channel: a file here, and a variant of [`Settings`].

mod discord;
mod message;
mod push;
mod smtp;
mod webhook;

use super::channel::Channel;
use super::receiver::Receiver;
use crate::config::{Config, DiscordConfig, PushConfig, WebhookConfig};
pub(super) use push::Push;
pub use push::WardenAnswer;
pub use smtp::Mail;
use smtp::recipients;

/// The configuration of one channel. Equal settings produce equivalent channels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settings {
    /// The warden.
    Push(PushConfig),
    /// A Discord webhook.
    Discord(DiscordConfig),
    /// Mail to one recipient.
    Smtp(Mail),
    /// One of the custom webhooks.
    Webhook(WebhookConfig),
}

impl Settings {
    /// Returns the settings of all configured channels; the push comes first.
    pub fn of(config: &Config) -> Vec<Self> {
        let notifications = config.notifications.clone();
        let mails = notifications.smtp.into_iter().flat_map(|config| {
            let recipients = recipients(&config).into_iter();
            recipients.map(move |recipient| Self::Smtp(Mail { config: config.clone(), recipient }))
        });
        config
            .push
            .clone()
            .map(Self::Push)
            .into_iter()
            .chain(notifications.discord.map(Self::Discord))
            .chain(mails)
            .chain(notifications.webhooks.into_iter().map(Self::Webhook))
            .collect()
    }

    fn receiver(&self) -> &dyn Receiver {
        match self {
            Self::Push(config) => config,
            Self::Discord(config) => config,
            Self::Smtp(mail) => mail,
            Self::Webhook(config) => config,
        }
    }

    /// See [`Receiver::name`].
    pub fn name(&self) -> String {
        self.receiver().name()
    }

    /// See [`Receiver::key`].
    pub fn key(&self) -> String {
        self.receiver().key()
    }

    /// Builds the channel, or returns the reason why it is disabled.
    pub fn open(&self) -> Result<Channel, String> {
        Channel::of(self.receiver())
    }
}
