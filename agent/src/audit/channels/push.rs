//! The push to the warden: entries with their sequence numbers, as an array if several are queued (spec 5, DECISIONS 3, 5
//! and 8).

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use evenkeel_common::clock::{Clock, SystemClock};
use evenkeel_common::secret::Secret;
use evenkeel_common::wire::{AuditEntry, IngestReply};
use futures_util::future::join_all;
use jiff::SignedDuration;
use parking_lot::Mutex;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, StatusCode, Url};
use tokio::time::{Instant, timeout};

use crate::audit::delivery::{Answer, DeliveryError, beginning_of, chain, exchange, shown, web_client};
use crate::audit::receiver::{Carrier, Receiver, Sent};
use crate::audit::redact::Redactor;
use crate::config::{EntryFilter, PushConfig};
use crate::ports::meter::server_time;

/// Maximum number of entries per request.
const BATCH: usize = 500;
/// Maximum size of an array in bytes; a warden accepts 1 MiB.
const BATCH_BYTES: usize = 512 * 1024;
/// How long a warden that does not support arrays is sent one entry at a time.
const SINGLE_FOR: Duration = Duration::from_hours(1);
/// Maximum number of bytes read from an answer, which lists each rejected entry.
const ANSWER_LIMIT: usize = 256 * 1024;
/// Maximum number of bytes read from an answer to `GET /health`.
const HEALTH_LIMIT: usize = 64 * 1024;
/// Delay assumed for a refusal.
const REFUSED_WAIT: Duration = Duration::from_mins(1);

/// The wardens as a destination.
pub(in crate::audit) struct Push {
    wardens: Vec<Warden>,
    authorization: HeaderValue,
    /// The warden that last accepted entries; it is tried first.
    active: Mutex<usize>,
}

struct Warden {
    client: Client,
    url: Url,
    /// The time until which it is sent one entry at a time.
    single_until: Mutex<Option<Instant>>,
}

impl Receiver for PushConfig {
    fn name(&self) -> String {
        "push".to_owned()
    }

    fn key(&self) -> String {
        "push".to_owned()
    }

    fn filter(&self) -> EntryFilter {
        EntryFilter::default()
    }

    fn hide_secrets(&self, redactor: &mut Redactor) {
        redactor.hide(&self.token);
        for url in &self.warden_urls {
            redactor.hide_url(&Secret::new(url.as_str()));
        }
    }

    fn open(&self) -> Result<Box<dyn Carrier>, String> {
        Ok(Box::new(Push::new(self)?))
    }
}

impl Push {
    /// Creates the channel from its configuration.
    pub(in crate::audit) fn new(config: &PushConfig) -> Result<Self, String> {
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", config.token.expose()))
            .map_err(|_| "token has characters that are not allowed in an HTTP header".to_owned())?;
        authorization.set_sensitive(true);
        let wardens = config.warden_urls.iter().map(|url| Warden::new(url));
        Ok(Self { wardens: wardens.collect::<Result<_, _>>()?, authorization, active: Mutex::new(0) })
    }

    /// Probes whether the wardens answer and accept the token, without sending an entry: an empty list is rejected as
    /// malformed, but only after authentication (DECISIONS 8). Each warden has `limit` to answer.
    pub(in crate::audit) async fn ask(&self, limit: Duration) -> Vec<Result<WardenAnswer, String>> {
        let late = || Err(format!("no answer within {} s", limit.as_secs()));
        let asked = self.wardens.iter().map(|warden| timeout(limit, warden.probe(&self.authorization)));
        let answers = join_all(asked).await;
        answers.into_iter().map(|answer| answer.unwrap_or_else(|_| late())).collect()
    }
}

#[async_trait]
impl Carrier for Push {
    fn batch(&self) -> usize {
        let active = self.wardens.get(*self.active.lock());
        if active.is_some_and(Warden::takes_arrays) { BATCH } else { 1 }
    }

    /// Sends as many entries as fit into one request to the first warden that accepts them. On success at least one is
    /// settled.
    async fn send(&self, entries: &[AuditEntry], redactor: &Redactor) -> Result<Sent, DeliveryError> {
        let active = *self.active.lock();
        let others = (0..self.wardens.len()).filter(|at| *at != active);
        let mut failures = Vec::new();
        for at in std::iter::once(active).chain(others) {
            let Some(warden) = self.wardens.get(at) else { continue };
            match warden.send(entries, &self.authorization, redactor).await {
                // The entry itself is at fault; other wardens would reject it as well.
                Err(refused @ DeliveryError::Permanent { .. }) => return Err(refused),
                Err(error) => failures.push(error),
                Ok(sent) => {
                    *self.active.lock() = at;
                    return Ok(sent);
                }
            }
        }
        *self.active.lock() = 0;
        let why = "no warden is configured".to_owned();
        // The shortest delay counts: a warden that asks for a long pause must not delay the others.
        let failure = failures.into_iter().min_by_key(wait_after);
        Err(failure.unwrap_or(DeliveryError::Refused { why }))
    }
}

impl Warden {
    fn new(base: &str) -> Result<Self, String> {
        let url = Url::parse(&format!("{base}/ingest"));
        let url = url.map_err(|error| format!("warden_url is not a URL: {error}"))?;
        Ok(Self { client: web_client()?, url, single_until: Mutex::default() })
    }

    async fn probe(&self, authorization: &HeaderValue) -> Result<WardenAnswer, String> {
        let said = |error: reqwest::Error| chain(&error.without_url());
        let mut answer = self.client.get(self.at("/health")).send().await.map_err(said)?;
        let health = answer.status().as_u16();
        let clock_ahead = server_time(answer.headers()).map(|date| SystemClock.now().duration_since(date));
        let body = beginning_of(&mut answer, HEALTH_LIMIT).await;
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let request = self.client.post(self.url.clone()).header(AUTHORIZATION, authorization.clone());
        let nothing: [(); 0] = [];
        let ingest = request.json(&nothing).send().await.map_err(said)?.status().as_u16();
        let mut decisions = self.at("/fleet");
        // An invalid revision: it is rejected only after authentication, and does not count as a heartbeat.
        decisions.set_query(Some("after=none"));
        let request = self.client.get(decisions).header(AUTHORIZATION, authorization.clone());
        let fleet = request.send().await.map_err(said)?.status().as_u16();
        let (has_status, store_is_away) = (body.get("status").is_some(), body["store"] == "away");
        Ok(WardenAnswer { health, has_status, store_is_away, ingest, fleet, clock_ahead })
    }

    /// Returns the URL of another path of the same warden.
    fn at(&self, path: &str) -> Url {
        let mut url = self.url.clone();
        let base = url.path().strip_suffix("/ingest").unwrap_or_default().to_owned();
        url.set_path(&format!("{base}{path}"));
        url
    }

    fn takes_arrays(&self) -> bool {
        self.single_until.lock().is_none_or(|until| until <= Instant::now())
    }

    async fn send(
        &self,
        entries: &[AuditEntry],
        authorization: &HeaderValue,
        redactor: &Redactor,
    ) -> Result<Sent, DeliveryError> {
        let serialised = serialised(entries);
        if serialised.len() > 1 && self.takes_arrays() {
            let answer = self.post(format!("[{}]", serialised.join(",")), authorization, redactor).await?;
            let is_unknown = [
                StatusCode::BAD_REQUEST,
                StatusCode::NOT_FOUND,
                StatusCode::PAYLOAD_TOO_LARGE,
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ];
            if !is_unknown.contains(&answer.status) {
                let answer = self.judged(answer, redactor).await?;
                return Ok(Sent {
                    settled: serialised.len(),
                    refused: refused(&answer.body, serialised.len(), redactor),
                    answer: answer.text,
                });
            }
            *self.single_until.lock() = Some(Instant::now() + SINGLE_FOR);
        }
        let first = serialised.into_iter().next().unwrap_or_default();
        let answer = self.post(first, authorization, redactor).await?;
        let answer = self.judged(answer, redactor).await?;
        Ok(Sent { settled: 1, refused: Vec::new(), answer: answer.text })
    }

    /// Classifies an answer. Only a warden can reject an entry permanently: a proxy, or a TLS server that is sent plain
    /// HTTP, answers 400 to everything.
    async fn judged(&self, answer: Answer, redactor: &Redactor) -> Result<Answer, DeliveryError> {
        let is_about_the_entry = matches!(
            answer.status,
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY
        );
        let why = match answer.judged() {
            Err(DeliveryError::Refused { why }) if is_about_the_entry => why,
            outcome => return outcome,
        };
        if self.is_warden(redactor).await? {
            return Err(DeliveryError::Permanent { why });
        }
        // It was not a warden that rejected the array.
        *self.single_until.lock() = None;
        let why = format!("{why} (not from a warden: its GET /health does not answer like a warden's)");
        Err(DeliveryError::Refused { why })
    }

    /// Reports whether a warden answers at this address, even if its store is unavailable.
    async fn is_warden(&self, redactor: &Redactor) -> Result<bool, DeliveryError> {
        let request = self.client.get(self.at("/health")).build().map_err(permanent)?;
        let answer = exchange(&self.client, request, redactor, HEALTH_LIMIT).await?;
        let is_usual = [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE].contains(&answer.status);
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        Ok(is_usual && body.get("status").is_some())
    }

    async fn post(
        &self,
        body: String,
        authorization: &HeaderValue,
        redactor: &Redactor,
    ) -> Result<Answer, DeliveryError> {
        let request = self.client.post(self.url.clone()).header(AUTHORIZATION, authorization.clone());
        let request = request.header(CONTENT_TYPE, "application/json").body(body).build();
        exchange(&self.client, request.map_err(permanent)?, redactor, ANSWER_LIMIT).await
    }
}

fn permanent(error: reqwest::Error) -> DeliveryError {
    DeliveryError::Permanent { why: error.without_url().to_string() }
}

/// Returns the delay that a failure asks for. The usual backoff counts as zero, shorter than any delay that a server asks
/// for.
fn wait_after(failure: &DeliveryError) -> Duration {
    match failure {
        DeliveryError::Transient { after, .. } => after.unwrap_or_default(),
        DeliveryError::Refused { .. } => REFUSED_WAIT,
        DeliveryError::Permanent { .. } => Duration::ZERO,
    }
}

/// Serialises as many entries as fit into one array, at least the first.
fn serialised(entries: &[AuditEntry]) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        // An entry has only text keys and finite values.
        let text = serde_json::to_string(entry).unwrap_or_default();
        bytes += text.len() + 1;
        if bytes > BATCH_BYTES && !texts.is_empty() {
            break;
        }
        texts.push(text);
    }
    texts
}

/// Parses which entries of an array the warden rejected, each once. An answer in another format rejects none.
fn refused(body: &[u8], sent: usize, redactor: &Redactor) -> Vec<(usize, String)> {
    let reply: Option<IngestReply> = serde_json::from_slice(body).ok();
    let mut errors = BTreeMap::new();
    for rejected in reply.into_iter().flat_map(|reply| reply.rejected).filter(|one| one.index < sent) {
        errors.entry(rejected.index).or_insert(rejected.error);
    }
    errors.into_iter().map(|(index, error)| (index, shown(&error, redactor, false))).collect()
}

/// A warden's answers to a probe that sends no entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WardenAnswer {
    /// Status code of `GET /health`.
    pub health: u16,
    /// Whether its body is JSON with a "status", as with every warden.
    pub has_status: bool,
    /// Whether it reports that its store is unavailable.
    pub store_is_away: bool,
    /// Status code of `POST /ingest` without an entry: 400 if the warden accepts the token, 401 if it does not.
    pub ingest: u16,
    /// Status code of `GET /fleet` with an invalid revision: 400 if the token is valid and the warden makes decisions for a
    /// fleet, otherwise 401 or 404.
    pub fleet: u16,
    /// How far this machine's clock is ahead of the warden's, according to the `Date` header if there is one.
    pub clock_ahead: Option<SignedDuration>,
}

#[cfg(test)]
#[path = "push_tests.rs"]
mod tests;
