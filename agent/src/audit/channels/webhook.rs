//! Custom webhooks with any address, method and headers, and an optional body template (SPEC 2.9, DECISIONS 5).

use evenkeel_common::wire::AuditEntry;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Url};

use crate::audit::delivery::{Delivery, web_client};
use crate::audit::receiver::{Carrier, Receiver, Render};
use crate::audit::redact::Redactor;
use crate::config::template::{Escape, Template};
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
        redactor.hide_url(&self.url);
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
    url: Url,
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
        let url = Url::parse(config.url.expose()).map_err(|error| format!("url: {error}"))?;
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
        Ok(Self { client: web_client(&url)?, url, method, headers, body })
    }
}

/// Guesses the content type: a body that starts like a JSON object or array is JSON, unless the `{` begins a template tag.
fn likely_content_type(body: &str) -> &'static str {
    let body = body.trim_start();
    let is_template = ["{{", "{%", "{#"].iter().any(|mark| body.starts_with(mark));
    if body.starts_with(['{', '[']) && !is_template {
        "application/json"
    } else {
        "text/plain; charset=utf-8"
    }
}

impl Render for Webhook {
    fn render(&self, entry: &AuditEntry) -> Result<Delivery, String> {
        let request = self.client.request(self.method.clone(), self.url.clone());
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
    use super::*;

    #[test]
    fn the_content_type_is_guessed_from_the_beginning() {
        for (body, json) in [
            (" {\"a\": 1}", true),
            ("[1]", true),
            ("{{ message }}", false),
            ("{% if a %}", false),
            ("hi", false),
        ] {
            assert_eq!(likely_content_type(body) == "application/json", json, "{body}");
        }
    }
}
