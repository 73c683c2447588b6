//! The push to the warden: one entry a request, each with its number (spec 5, DECISIONS 3 and 5).

use evenkeel_common::wire::{AuditEntry, PushedEntry};
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Client, Url};

use crate::audit::channel::Render;
use crate::audit::delivery::{Delivery, web_client};
use crate::config::PushConfig;

/// The warden as a destination.
pub(in crate::audit) struct Push {
    client: Client,
    url: Url,
    authorization: HeaderValue,
}

impl Push {
    /// The warden of the configuration.
    pub(in crate::audit) fn new(config: &PushConfig) -> Result<Self, String> {
        let url = Url::parse(&format!("{}/ingest", config.warden_url))
            .map_err(|error| format!("warden_url is not a URL: {error}"))?;
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", config.token.expose()))
            .map_err(|_| "token has characters that no HTTP header can have".to_owned())?;
        authorization.set_sensitive(true);
        Ok(Self { client: web_client(&url)?, url, authorization })
    }
}

impl Render for Push {
    fn render(&self, entry: &AuditEntry, seq: Option<u64>) -> Result<Delivery, String> {
        let request = self
            .client
            .post(self.url.clone())
            .header(AUTHORIZATION, self.authorization.clone())
            .json(&PushedEntry { entry: entry.clone(), seq, agent: None });
        Delivery::request(&self.client, request)
    }
}
