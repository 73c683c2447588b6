//! A channel as the sink uses it: its filter, and the carrier that its settings have built.

use evenkeel_common::wire::AuditEntry;

use super::delivery::DeliveryError;
use super::receiver::{Carrier, Receiver, Sent};
use super::redact::Redactor;
use crate::config::EntryFilter;

/// One destination outside this machine.
pub struct Channel {
    name: String,
    filter: EntryFilter,
    /// Removes secrets from log lines, even when the receiver echoes them.
    redactor: Redactor,
    carrier: Box<dyn Carrier>,
}

impl Channel {
    /// Builds the channel of a receiver, or returns the reason why it is disabled.
    pub(super) fn of(receiver: &dyn Receiver) -> Result<Self, String> {
        let mut redactor = Redactor::default();
        receiver.hide_secrets(&mut redactor);
        let (name, filter, carrier) = (receiver.name(), receiver.filter(), receiver.open()?);
        Ok(Self { name, filter, redactor, carrier })
    }

    /// A channel named `x` that sends everything by this carrier.
    #[cfg(test)]
    pub(super) fn by(carrier: Box<dyn Carrier>) -> Self {
        let (filter, redactor) = (EntryFilter::default(), Redactor::default());
        Self { name: "x".to_owned(), filter, redactor, carrier }
    }

    #[cfg(test)]
    pub(super) fn want_only(&mut self, kind: evenkeel_common::wire::Kind) {
        self.filter.events = Some(vec![kind]);
    }

    /// See [`Receiver::name`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reports whether the entry passes the channel's filter.
    pub fn wants(&self, entry: &AuditEntry) -> bool {
        self.filter.passes(entry)
    }

    /// See [`Carrier::batch`].
    pub(super) fn batch(&self) -> usize {
        self.carrier.batch()
    }

    /// Sends one entry, without retries, and returns the receiver's answer.
    pub async fn send(&self, entry: &AuditEntry) -> Result<String, DeliveryError> {
        self.send_some(std::slice::from_ref(entry)).await.map(|sent| sent.answer)
    }

    /// See [`Carrier::send`].
    pub(super) async fn send_some(&self, entries: &[AuditEntry]) -> Result<Sent, DeliveryError> {
        self.carrier.send(entries, &self.redactor).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use evenkeel_common::clock::{Clock, SystemClock};
    use evenkeel_common::secret::Secret;
    use evenkeel_common::wire::{Kind, Level};
    use wiremock::matchers::any;
    use wiremock::{Mock, MockServer, Request, ResponseTemplate};

    use super::*;
    use crate::audit::channels::Settings;
    use crate::config::{DiscordConfig, PushConfig, WebhookConfig};

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
