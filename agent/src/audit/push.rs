//! The push to the warden: one entry a request, each with its number (spec 5, DECISIONS 3 and 5).

use evenkeel_common::secret::Secret;
use evenkeel_common::wire::{AuditEntry, PushedEntry};
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Client, Url};

use super::letter::{Letter, web_client};
use super::sink::Channel;
use crate::config::PushConfig;

/// The warden as a destination.
pub struct Push {
    client: Client,
    url: Url,
    authorization: HeaderValue,
    token: Secret,
}

impl Push {
    /// Name of the destination.
    pub const NAME: &'static str = "push";

    /// The warden of the configuration.
    pub fn new(config: &PushConfig) -> Result<Self, String> {
        let url = Url::parse(&format!("{}/ingest", config.warden_url))
            .map_err(|error| format!("warden_url is not a URL: {error}"))?;
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", config.token.expose()))
            .map_err(|_| "token has characters that no HTTP header can have".to_owned())?;
        authorization.set_sensitive(true);
        Ok(Self { client: web_client(&url)?, url, authorization, token: config.token.clone() })
    }
}

impl Channel for Push {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn wants(&self, _entry: &AuditEntry) -> bool {
        true
    }

    fn render(&self, entry: &AuditEntry, seq: Option<u64>) -> Result<Letter, String> {
        let request = self
            .client
            .post(self.url.clone())
            .header(AUTHORIZATION, self.authorization.clone())
            .json(&PushedEntry { entry: entry.clone(), seq, agent: None })
            .build()
            .map_err(|error| error.without_url().to_string())?;
        Ok(Letter::Request(self.client.clone(), Box::new(request)))
    }

    fn secrets(&self) -> Vec<&Secret> {
        vec![&self.token]
    }
}
