//! Custom webhooks with any address, method and headers, and an optional body template (SPEC 2.9, DECISIONS 5).

use evenkeel_common::secret::Secret;
use evenkeel_common::wire::AuditEntry;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Url};

use crate::audit::delivery::{Delivery, web_client};
use crate::audit::receiver::{Carrier, Receiver, Render};
use crate::audit::redact::Redactor;
use crate::config::template::{Escape, Template, url_for, without_id};
use crate::config::{EntryFilter, WebhookConfig};

/// These headers are not secret unless they contain variables, and error messages may show them.
const PLAIN_HEADERS: [&str; 3] = ["content-type", "accept", "user-agent"];

impl Receiver for WebhookConfig {
    fn name(&self) -> String {
        format!("webhook/{}", self.name)
    }

    fn key(&self) -> String {
        format!("notifications.webhooks ({})", self.name)
    }

    fn filter(&self) -> EntryFilter {
        self.filter.clone()
    }

    fn hide_secrets(&self, redactor: &mut Redactor) {
        let parts = self.url.parts().map(str::to_owned);
        redactor.hide_url(&Secret::of_parts(without_id(self.url.expose()), parts));
        for (name, value) in &self.headers {
            let is_plain = PLAIN_HEADERS.iter().any(|plain| name.eq_ignore_ascii_case(plain));
            if !is_plain || value.parts().next().is_some() {
                redactor.hide(value);
            }
        }
    }

    fn open(&self) -> Result<Box<dyn Carrier>, String> {
        Ok(Box::new(Webhook::new(self)?))
    }
}

/// One of the custom webhooks.
struct Webhook {
    client: Client,
    /// With the template of the entry's id.
    url: String,
    method: Method,
    headers: HeaderMap,
    body: Body,
}

enum Body {
    /// No body is configured, and the method has none.
    Empty,
    /// No body is configured: the entry is sent as JSON.
    Entry,
    Template(Box<Template>),
}

impl Webhook {
    /// Creates the channel from its configuration.
    fn new(config: &WebhookConfig) -> Result<Self, String> {
        Url::parse(config.url.expose()).map_err(|error| format!("url: {error}"))?;
        let method =
            Method::from_bytes(config.method.as_bytes()).map_err(|error| format!("method: {error}"))?;
        let mut headers = HeaderMap::new();
        for (name, value) in &config.headers {
            let bad = || format!("headers.{name} is not a valid header");
            let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
            let mut header = HeaderValue::from_str(value.expose()).map_err(|_| bad())?;
            header.set_sensitive(true);
            headers.append(key, header);
        }
        let body = match &config.body {
            None if matches!(method, Method::GET | Method::HEAD) => Body::Empty,
            None => Body::Entry,
            Some(text) => {
                let content_type = headers
                    .entry(CONTENT_TYPE)
                    .or_insert_with(|| HeaderValue::from_static(likely_content_type(text)));
                let escape = Escape::of(content_type.to_str().unwrap_or_default());
                Body::Template(Box::new(
                    Template::new(text, escape).map_err(|error| format!("body: {error}"))?,
                ))
            }
        };
        Ok(Self { client: web_client()?, url: config.url.expose().to_owned(), method, headers, body })
    }
}

/// Parts of a template that write nothing themselves.
const SILENT_TAGS: [(&str, &str); 2] = [("{%", "%}"), ("{#", "#}")];

/// Guesses the content type: a body that starts like a JSON object or array is JSON. Statements and comments of the template
/// before that do not count; a value there (`{{`) can be anything.
fn likely_content_type(body: &str) -> &'static str {
    let mut body = body.trim_start();
    while let Some(rest) = after_silent_tag(body) {
        body = rest.trim_start();
    }
    if body.starts_with(['{', '[']) && !body.starts_with("{{") {
        "application/json"
    } else {
        "text/plain; charset=utf-8"
    }
}

/// Returns the text behind the statement or comment that the body begins with.
fn after_silent_tag(body: &str) -> Option<&str> {
    SILENT_TAGS.iter().find_map(|(open, close)| Some(body.strip_prefix(open)?.split_once(close)?.1))
}

impl Render for Webhook {
    fn render(&self, entry: &AuditEntry) -> Result<Delivery, String> {
        let url = Url::parse(&url_for(&self.url, entry)).map_err(|error| format!("url: {error}"))?;
        let request = self.client.request(self.method.clone(), url);
        let request = match &self.body {
            Body::Empty => request,
            Body::Entry => request.json(entry),
            Body::Template(template) => request.body(template.render(entry)?),
        };
        // Configured headers replace those set by the body.
        Delivery::request(&self.client, request.headers(self.headers.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use evenkeel_common::wire::{Kind, Level};
    use jiff::Timestamp;
    use serde_json::{Value, json};
    use wiremock::matchers::any;
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;

    /// A Matrix homeserver takes a second message with the same transaction for a repetition: it answers 200 and drops it.
    #[tokio::test]
    async fn a_receiver_that_drops_repeated_addresses_gets_each_entry_once() {
        let server = MockServer::start().await;
        Mock::given(any()).respond_with(ResponseTemplate::new(200)).mount(&server).await;
        let config = WebhookConfig {
            name: "matrix".to_owned(),
            url: Secret::new(format!("{}/token-of-a-room/send/{{{{ id }}}}", server.uri())),
            method: "PUT".to_owned(),
            headers: Vec::new(),
            body: Some(r#"{"body": "{{ message }} {{ id }}"}"#.to_owned()),
            filter: EntryFilter::default(),
        };
        let webhook = config.open().unwrap();
        for seq in [7, 8, 8, 9] {
            let at = Timestamp::UNIX_EPOCH;
            let mut entry = AuditEntry::new(at, "web", Kind::UPDATED, Level::Info, seq.to_string());
            (entry.machine, entry.seq, entry.epoch) = ("nas 1".to_owned(), Some(seq), Some("e".to_owned()));
            webhook.send(&[entry], &Redactor::default()).await.unwrap();
        }
        let mut kept = BTreeMap::new();
        for request in server.received_requests().await.unwrap() {
            let sent: Value = serde_json::from_slice(&request.body).unwrap();
            kept.entry(request.url.path().to_owned()).or_insert(sent);
        }
        let expected = [7, 8, 9].map(|seq| {
            let sent = json!({ "body": format!("{seq} nas_1-e-{seq}") });
            (format!("/token-of-a-room/send/nas_1-e-{seq}"), sent)
        });
        assert_eq!(kept, BTreeMap::from(expected));
    }

    #[test]
    fn a_secret_beside_the_template_of_the_id_is_redacted() {
        let config = WebhookConfig {
            name: "matrix".to_owned(),
            url: Secret::new("https://m.example/room-token/{{ id }}?key=query-token{{ id }}"),
            method: "PUT".to_owned(),
            headers: Vec::new(),
            body: None,
            filter: EntryFilter::default(),
        };
        let mut redactor = Redactor::default();
        config.hide_secrets(&mut redactor);
        let shown = redactor.clean("no /room-token/nas-1?key=query-tokennas-1", false);
        assert!(shown.contains("nas-1") && !shown.contains("-token"), "{shown}");
    }

    #[test]
    fn the_content_type_is_guessed_from_the_beginning() {
        for (body, json) in [
            (" {\"a\": 1}", true),
            ("[1]", true),
            ("{{ message }}", false),
            ("{% if a %}", false),
            ("{% if a %}{\"x\": 1}{% endif %}", true),
            ("{%- if a -%}\n{# why #} [1]{% endif %}", true),
            ("{% if a %}{{ message }}{% endif %}", false),
            ("{% if a %}hi {{ message }}{% endif %}", false),
            ("hi", false),
        ] {
            assert_eq!(likely_content_type(body) == "application/json", json, "{body}");
        }
    }

    #[test]
    fn a_json_body_within_a_condition_is_escaped() {
        let body = r#"{% if level == "critical" %}{"text": "@here {{ reason }}"}{% else %}{"text": "{{ reason }}"}{% endif %}"#;
        let template = Template::new(body, Escape::of(likely_content_type(body))).unwrap();
        for (level, text) in
            [(Level::Critical, "@here say \"x\\\"\nand y"), (Level::Info, "say \"x\\\"\nand y")]
        {
            let mut entry = AuditEntry::new(Timestamp::UNIX_EPOCH, "web", Kind::UPDATED, level, "a message");
            entry.reason = Some("say \"x\\\"\nand y".to_owned());
            let sent: Value = serde_json::from_str(&template.render(&entry).unwrap()).unwrap();
            assert_eq!(sent, json!({ "text": text }));
        }
    }
}
