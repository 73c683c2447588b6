//! The push to the warden: one entry a request, each with its number (spec 5, DECISIONS 3 and 5).

use evenkeel_common::wire::{AuditEntry, PushedEntry};
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Client, Url};

use crate::audit::channel::Render;
use crate::audit::delivery::{Delivery, chain, web_client};
use crate::audit::trial::WardenAnswer;
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

impl Push {
    /// Asks whether the warden is there and knows the token, without sending an entry: a list without entries is refused
    /// as malformed, but only from an agent that the warden knows (DECISIONS 8).
    pub(in crate::audit) async fn ask(&self) -> Result<WardenAnswer, String> {
        let said = |error: reqwest::Error| chain(&error.without_url());
        let mut health = self.url.clone();
        health.set_path(&format!("{}/health", self.url.path().trim_end_matches("/ingest")));
        let answer = self.client.get(health).send().await.map_err(said)?;
        let health = answer.status().as_u16();
        let body: serde_json::Value = answer.json().await.unwrap_or_default();
        let request = self.client.post(self.url.clone()).header(AUTHORIZATION, self.authorization.clone());
        let nothing: [(); 0] = [];
        let answer = request.json(&nothing).send().await.map_err(said)?;
        Ok(WardenAnswer { health, store_is_away: body["store"] == "away", ingest: answer.status().as_u16() })
    }
}

impl Render for Push {
    fn render(&self, entry: &AuditEntry, seq: Option<u64>) -> Result<Delivery, String> {
        let request = self
            .client
            .post(self.url.clone())
            .header(AUTHORIZATION, self.authorization.clone())
            .json(&PushedEntry { entry: entry.clone(), seq, epoch: None, image: None, agent: None });
        Delivery::request(&self.client, request)
    }
}
