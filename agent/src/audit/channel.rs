//! A channel: its settings, and the sender that is built from them.

use evenkeel_common::secret::Secret;
use evenkeel_common::wire::{AuditEntry, PushedEntry};

use super::channels::{Discord, Push, Sent, Smtp, Webhook, recipients};
use super::delivery::{DeliveryError, Render};
use super::redact::Redactor;
use crate::config::{Config, DiscordConfig, EntryFilter, PushConfig, SmtpConfig, WebhookConfig};

/// The configuration of one channel. Equal settings produce equivalent channels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settings {
    /// The warden.
    Push(PushConfig),
    /// A Discord webhook.
    Discord(DiscordConfig),
    /// Mail to one recipient.
    Smtp {
        /// The server, the sender and all recipients.
        config: SmtpConfig,
        /// The address of this one.
        recipient: String,
    },
    /// One of the custom webhooks.
    Webhook(WebhookConfig),
}

impl Settings {
    /// Returns the settings of all configured channels; the push comes first.
    pub fn of(config: &Config) -> Vec<Self> {
        let notifications = config.notifications.clone();
        let mails = notifications.smtp.into_iter().flat_map(|config| {
            let recipients = recipients(&config).into_iter();
            recipients.map(move |recipient| Self::Smtp { config: config.clone(), recipient })
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

    /// The channel's unique name: used in logs and metrics, and as its destination name in the outbox.
    pub fn name(&self) -> String {
        match self {
            Self::Push(_) => "push".to_owned(),
            Self::Discord(_) => "discord".to_owned(),
            // Always with the address, so that a queue stays with its recipient.
            Self::Smtp { recipient, .. } => format!("smtp/{recipient}"),
            Self::Webhook(config) => format!("webhook/{}", config.name),
        }
    }

    /// Its section of the configuration, as warnings name it.
    pub fn key(&self) -> String {
        match self {
            Self::Push(_) => "push".to_owned(),
            Self::Discord(_) => "notifications.discord".to_owned(),
            Self::Smtp { config, .. } if recipients(config).len() == 1 => "notifications.smtp".to_owned(),
            Self::Smtp { recipient, .. } => format!("notifications.smtp ({recipient})"),
            Self::Webhook(config) => format!("notifications.webhooks ({})", config.name),
        }
    }

    /// Builds the channel, or returns the reason why it is disabled.
    pub fn open(&self) -> Result<Channel, String> {
        let rendered =
            |render: Box<dyn Render>, filter: &EntryFilter| (Carrier::Each(render), filter.clone());
        let (carrier, filter) = match self {
            Self::Push(config) => (Carrier::Warden(Push::new(config)?), EntryFilter::default()),
            Self::Discord(config) => rendered(Box::new(Discord::new(config)?), &config.filter),
            Self::Smtp { config, recipient } => {
                rendered(Box::new(Smtp::new(config, recipient)?), &config.filter)
            }
            Self::Webhook(config) => rendered(Box::new(Webhook::new(config)?), &config.filter),
        };
        Ok(Channel { name: self.name(), filter, redactor: self.redactor(), carrier })
    }

    /// Builds a redactor for the secrets that this channel sends to its receiver.
    fn redactor(&self) -> Redactor {
        let mut redactor = Redactor::default();
        match self {
            Self::Push(config) => {
                redactor.hide(&config.token);
                for url in &config.warden_urls {
                    redactor.hide_url(&Secret::new(url.as_str()));
                }
            }
            Self::Discord(config) => redactor.hide_url(&config.webhook_url),
            Self::Smtp { config, .. } => {
                if let (Some(name), Some(password)) = (&config.username, &config.password) {
                    redactor.login(name, password.expose());
                    redactor.hide(password);
                }
            }
            Self::Webhook(config) => {
                redactor.hide_url(&config.url);
                for (name, value) in &config.headers {
                    // These headers are not secret unless they contain variables, and error messages may show them.
                    let is_plain =
                        ["content-type", "accept", "user-agent"].iter().any(|n| name.eq_ignore_ascii_case(n));
                    if !is_plain || value.parts().next().is_some() {
                        redactor.hide(value);
                    }
                }
            }
        }
        redactor
    }
}

enum Carrier {
    /// Sends one entry at a time.
    Each(Box<dyn Render>),
    /// Sends batches of entries.
    Warden(Push),
    /// A receiver that is a function.
    #[cfg(test)]
    Scripted(usize, Scripted),
}

/// The answers of a receiver in tests.
#[cfg(test)]
pub(super) type Scripted = Box<dyn Fn(&[PushedEntry]) -> Result<Sent, DeliveryError> + Send + Sync>;

/// One destination outside this machine.
pub struct Channel {
    name: String,
    filter: EntryFilter,
    /// Removes secrets from log lines, even when the receiver echoes them.
    redactor: Redactor,
    carrier: Carrier,
}

impl Channel {
    /// A channel named `x` to a scripted receiver.
    #[cfg(test)]
    pub(super) fn scripted(batch: usize, answer: Scripted) -> Self {
        let (filter, redactor) = (EntryFilter::default(), Redactor::default());
        Self { name: "x".to_owned(), filter, redactor, carrier: Carrier::Scripted(batch, answer) }
    }

    /// See [`Settings::name`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reports whether the entry passes the channel's filter.
    pub fn wants(&self, entry: &AuditEntry) -> bool {
        self.filter.passes(entry)
    }

    /// The maximum number of entries to pass to [`Channel::send_some`].
    pub(super) fn batch(&self) -> usize {
        match &self.carrier {
            Carrier::Each(_) => 1,
            Carrier::Warden(push) => push.batch(),
            #[cfg(test)]
            Carrier::Scripted(batch, _) => *batch,
        }
    }

    /// Sends one entry, without retries, and returns the receiver's answer.
    pub async fn send(&self, entry: &AuditEntry) -> Result<String, DeliveryError> {
        let entry = PushedEntry { entry: entry.clone(), seq: None, epoch: None, image: None, agent: None };
        self.send_some(&[entry]).await.map(|sent| sent.answer)
    }

    /// Sends the first of these entries, and as many of the following ones as the receiver accepts in the same request.
    pub(super) async fn send_some(&self, entries: &[PushedEntry]) -> Result<Sent, DeliveryError> {
        let render = match &self.carrier {
            Carrier::Each(render) => render,
            Carrier::Warden(push) => return push.send(entries, &self.redactor).await,
            #[cfg(test)]
            Carrier::Scripted(_, answer) => return answer(entries),
        };
        let Some(first) = entries.first() else {
            return Ok(Sent { settled: 0, refused: Vec::new(), answer: String::new() });
        };
        match render.render(&first.entry, first.seq) {
            Ok(delivery) => {
                let answer = delivery.send(&self.redactor).await?;
                Ok(Sent { settled: 1, refused: Vec::new(), answer })
            }
            Err(why) => Err(DeliveryError::Permanent { why: self.redactor.clean(&why, false) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use evenkeel_common::clock::{Clock, SystemClock};
    use evenkeel_common::wire::{Kind, Level};
    use wiremock::matchers::any;
    use wiremock::{Mock, MockServer, Request, ResponseTemplate};

    use super::*;

    /// A server that rejects a request and echoes everything it received.
    async fn echo_server(status: u16) -> MockServer {
        let server = MockServer::start().await;
        let repeat = move |request: &Request| {
            let header =
                |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
            let pairs: Vec<_> = request.url.query_pairs().map(|(_, value)| value.into_owned()).collect();
            let body = format!(
                "no: {} | {} | {pairs:?} | {} | {}",
                request.url.path(),
                request.url.query().unwrap_or_default(),
                header("authorization"),
                header("x-key"),
            );
            ResponseTemplate::new(status).set_body_string(body)
        };
        Mock::given(any()).respond_with(repeat).mount(&server).await;
        server
    }

    async fn answer(settings: Settings) -> String {
        let entry = AuditEntry::new(SystemClock.now(), "web", Kind::UPDATED, Level::Info, "m");
        match settings.open().unwrap().send(&entry).await {
            Ok(answer) => answer,
            Err(fault) => fault.to_string(),
        }
    }

    #[tokio::test]
    async fn secrets_echoed_by_a_server_are_redacted() {
        // Accepted, rejected permanently, rejected temporarily, rejected until an operator acts.
        for status in [200, 400, 503, 403] {
            let server = echo_server(status).await;
            let place = server.uri().replace("http://", "");
            let url = format!("http://ann:s3cret%2Fpw@{place}/hooks/tok%20en-1/x?key=que%2Fry-1&last");
            let webhook = WebhookConfig {
                name: "chat".into(),
                url: Secret::new(url.as_str()),
                method: "POST".into(),
                headers: vec![("x-key".into(), Secret::of_parts("pre-header1", ["header1".to_owned()]))],
                body: None,
                filter: EntryFilter::default(),
            };
            let discord = DiscordConfig { webhook_url: Secret::new(url), filter: EntryFilter::default() };
            let push = PushConfig {
                warden_urls: vec![format!("http://{place}/secret-base")],
                token: Secret::new("push-token-1"),
                ring: 0,
                patience: Duration::ZERO,
            };
            for settings in [Settings::Webhook(webhook), Settings::Discord(discord), Settings::Push(push)] {
                let name = settings.name();
                let shown = answer(settings).await;
                assert!(shown.contains("no: /") && shown.contains("(redacted)"), "{name}: {shown}");
                for secret in [
                    "tok ",
                    "tok%",
                    "en-1",
                    "que/",
                    "ry-1",
                    "s3cret",
                    "header1",
                    "push-token",
                    "secret-base",
                    // base64 of ann:s3cret/pw
                    "YW5uOnMzY3JldC9wdw",
                ] {
                    assert!(!shown.contains(secret), "{name}, {status}: {shown}");
                }
            }
        }
    }

    #[tokio::test]
    async fn text_that_is_not_secret_is_shown() {
        let server = MockServer::start().await;
        let answers = ResponseTemplate::new(400).set_body_string("unsupported media type application/json");
        Mock::given(any()).respond_with(answers).mount(&server).await;
        let config = WebhookConfig {
            name: "chat".into(),
            url: Secret::new(format!("{}/secret", server.uri())),
            method: "POST".into(),
            headers: vec![
                ("Content-Type".into(), Secret::new("application/json")),
                ("x-short".into(), Secret::new("a")),
            ],
            body: None,
            filter: EntryFilter::default(),
        };
        assert_eq!(
            answer(Settings::Webhook(config)).await,
            "400 Bad Request unsupported media type application/json"
        );
    }
}
