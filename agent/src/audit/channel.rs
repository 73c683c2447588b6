//! A channel: its settings, and the sender that is built from them.

use evenkeel_common::secret::Secret;
use evenkeel_common::wire::{AuditEntry, PushedEntry};

use super::channels::{Discord, Push, Sent, Smtp, Webhook};
use super::delivery::{Delivery, DeliveryError};
use super::redact::Redactor;
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
        let rendered =
            |render: Box<dyn Render>, filter: &EntryFilter| (Carrier::Each(render), filter.clone());
        let (carrier, filter) = match self {
            Self::Push(config) => (Carrier::Warden(Push::new(config)?), EntryFilter::default()),
            Self::Discord(config) => rendered(Box::new(Discord::new(config)?), &config.filter),
            Self::Smtp(config) => rendered(Box::new(Smtp::new(config)?), &config.filter),
            Self::Webhook(config) => rendered(Box::new(Webhook::new(config)?), &config.filter),
        };
        Ok(Channel { name: self.name(), filter, redactor: self.redactor(), carrier })
    }

    /// Secrets that are sent to the other side and shown nowhere else.
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
            Self::Smtp(config) => {
                if let (Some(name), Some(password)) = (&config.username, &config.password) {
                    redactor.login(name, password.expose());
                    redactor.hide(password);
                }
            }
            Self::Webhook(config) => {
                redactor.hide_url(&config.url);
                for (name, value) in &config.headers {
                    // Without variables these are no secrets, and error messages show them.
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

/// What each channel's file implements.
pub(super) trait Render: Send + Sync + 'static {
    /// The entry as this channel sends it. `seq` is its number in the outbox.
    fn render(&self, entry: &AuditEntry, seq: Option<u64>) -> Result<Delivery, String>;
}

enum Carrier {
    /// One entry at a time.
    Each(Box<dyn Render>),
    /// Many at once.
    Warden(Push),
}

/// One destination outside this machine.
pub struct Channel {
    name: String,
    filter: EntryFilter,
    /// Removes what must not appear in a log line, even when the other side repeats it.
    redactor: Redactor,
    carrier: Carrier,
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

    /// How many entries are worth handing over at once.
    pub(super) fn batch(&self) -> usize {
        match &self.carrier {
            Carrier::Each(_) => 1,
            Carrier::Warden(push) => push.batch(),
        }
    }

    /// Sends one entry, once, and returns what the other side answered.
    pub async fn send(&self, entry: &AuditEntry) -> Result<String, DeliveryError> {
        let entry = PushedEntry { entry: entry.clone(), seq: None, epoch: None, image: None, agent: None };
        self.send_some(&[entry]).await.map(|sent| sent.answer)
    }

    /// Sends the first of these entries, and those after it that the other side takes together with it.
    pub(super) async fn send_some(&self, entries: &[PushedEntry]) -> Result<Sent, DeliveryError> {
        let render = match &self.carrier {
            Carrier::Each(render) => render,
            Carrier::Warden(push) => return push.send(entries, &self.redactor).await,
        };
        let Some(first) = entries.first() else {
            return Ok(Sent { settled: 0, refused: Vec::new(), answer: String::new() });
        };
        match render.render(&first.entry, first.seq) {
            Ok(letter) => {
                let answer = letter.send(&self.redactor).await?;
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

    /// A server that refuses a request and repeats everything it received.
    async fn parrot(status: u16) -> MockServer {
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
    async fn no_secret_comes_back_from_a_server_that_repeats_the_request() {
        // Taken, refused for good, refused for now, refused until a person acts.
        for status in [200, 400, 503, 403] {
            let server = parrot(status).await;
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
                machine_id: String::new(),
                ring: 0,
                patience: Duration::ZERO,
            };
            for settings in [Settings::Webhook(webhook), Settings::Discord(discord), Settings::Push(push)] {
                let name = settings.name();
                let said = answer(settings).await;
                assert!(said.contains("no: /") && said.contains("(redacted)"), "{name}: {said}");
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
                    assert!(!said.contains(secret), "{name}, {status}: {said}");
                }
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_secret_is_shown() {
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
