//! HTTP client for the wardens (DECISIONS 8). They are tried in order, starting with the one that answered last.
//! Responses are bounded in size and time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use evenkeel_common::proxy::Proxies;
use evenkeel_common::tls;
use evenkeel_common::wire::{
    ErrorBody, FleetAnswer, FleetAsk, FleetDecisions, Inventory, InventoryReply, ReleaseReply,
};
use parking_lot::{Mutex, RwLock};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Proxy, RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::config::PushConfig;
use crate::model::output::clip_end;
use crate::ports::fleet::{DecisionsResponse, Fleet, FleetError, KnownRevisions};
use crate::ports::meter::server_time;

const CONNECT: Duration = Duration::from_secs(2);
/// Timeout of a request to a warden, not counting the long poll's wait.
const ASK: Duration = Duration::from_secs(2);
const REPORT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent requests, not counting the long poll. A warden accepts 16 per agent, including pushed
/// entries.
const MAX_CONCURRENT: usize = 8;
/// Maximum size of a response body in bytes.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// The same for a response of `/health`, and for an error.
const MAX_SMALL: usize = 64 * 1024;
/// Maximum length of an error that is shown.
const MAX_ERROR: usize = 200;

/// How an answer that could be read is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// At once.
    Now,
    /// Only if no other warden has a better one: it was given without access to the store.
    Last,
    /// Only if `/health` shows that a warden gave it.
    IfWarden,
}

/// The wardens in use; `None` if there is no fleet. A reload that changes `push` replaces them (DECISIONS 2).
#[derive(Default)]
pub struct Wardens(RwLock<Option<Arc<Connected>>>);

impl Wardens {
    /// Creates a client for the configured wardens. Sends no request yet.
    pub fn new(config: &PushConfig) -> Result<Self, String> {
        let wardens = Self::default();
        wardens.replace(Some(config))?;
        Ok(wardens)
    }

    /// Uses these wardens from now on. `None` means no fleet.
    pub fn replace(&self, config: Option<&PushConfig>) -> Result<(), String> {
        let connected = config.map(Connected::new).transpose()?;
        *self.0.write() = connected.map(Arc::new);
        Ok(())
    }

    fn connected(&self) -> Result<Arc<Connected>, FleetError> {
        self.0.read().clone().ok_or(FleetError::NoFleet)
    }
}

/// The wardens of a configuration.
struct Connected {
    client: Client,
    bases: Vec<Url>,
    authorization: HeaderValue,
    /// Index of the one that answered last.
    active: Mutex<usize>,
    /// Limits concurrent requests. Waiting for a permit does not count towards a request's timeout.
    permits: Semaphore,
}

impl Connected {
    fn new(config: &PushConfig) -> Result<Self, String> {
        let base = |url: &String| {
            Url::parse(&format!("{url}/")).map_err(|error| format!("warden_url is not a URL: {error}"))
        };
        let bases = config.warden_urls.iter().map(base).collect::<Result<Vec<_>, _>>()?;
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", config.token.expose()))
            .map_err(|_| "token has characters that are not allowed in an HTTP header".to_owned())?;
        authorization.set_sensitive(true);
        let proxies = Proxies::from_env();
        let client = Client::builder()
            .tls_backend_preconfigured(tls::client_config())
            .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .redirect(Policy::none())
            .proxy(Proxy::custom(move |url| proxies.of(url.as_str())))
            .build()
            .map_err(|error| format!("cannot create the HTTP client: {}", error.without_url()))?;
        Ok(Self {
            client,
            bases,
            authorization,
            active: Mutex::new(0),
            permits: Semaphore::new(MAX_CONCURRENT),
        })
    }

    /// Waits for a permit to send a request.
    async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.permits.acquire().await.ok()
    }

    /// Returns the first usable answer, see [`Use`]. Returns [`FleetError::NoFleet`] only if every warden reports that it does
    /// not support fleets.
    async fn first<T: DeserializeOwned>(
        &self,
        limit: Duration,
        request: impl Fn(&Client, Url) -> RequestBuilder,
        path: &str,
        usable: impl Fn(&T) -> Use,
    ) -> Result<(T, HeaderMap), FleetError> {
        let active = *self.active.lock();
        let others = (0..self.bases.len()).filter(|at| *at != active);
        let (mut away, mut is_busy, mut unreadable, mut fallback) = (None, false, None, None);
        let stranger = || Some("the server that answers is not a warden".to_owned());
        for at in std::iter::once(active).chain(others) {
            let Some(url) = self.bases.get(at).and_then(|base| base.join(path).ok()) else { continue };
            let request = request(&self.client, url).header(AUTHORIZATION, self.authorization.clone());
            let answer = tokio::time::timeout(limit, self.exchange(at, request.timeout(limit))).await;
            let late = |_| Err(FleetError::Unavailable(format!("no answer within {} s", limit.as_secs())));
            match answer.unwrap_or_else(late) {
                Ok(answer) if usable(&answer.0) == Use::Last => fallback = fallback.or(Some(answer)),
                Ok(answer) if usable(&answer.0) == Use::IfWarden && !self.is_warden(at).await => {
                    away = away.or_else(stranger);
                }
                Ok(answer) => {
                    *self.active.lock() = at;
                    return Ok(answer);
                }
                Err(FleetError::NoFleet) if self.is_warden(at).await => {}
                Err(FleetError::NoFleet) => away = away.or_else(stranger),
                Err(FleetError::Unavailable(why)) => away = away.or(Some(why)),
                Err(FleetError::Busy) => is_busy = true,
                // Whatever a proxy answers is not a decision of a warden.
                Err(FleetError::Unreadable(why)) if !self.is_warden(at).await => away = away.or(Some(why)),
                Err(FleetError::Unreadable(why)) => unreadable = unreadable.or(Some(why)),
            }
        }
        if let Some(answer) = fallback {
            return Ok(answer);
        }
        *self.active.lock() = 0;
        if is_busy {
            return Err(FleetError::Busy);
        }
        if let Some(why) = unreadable {
            return Err(FleetError::Unreadable(why));
        }
        Err(away.map_or(FleetError::NoFleet, FleetError::Unavailable))
    }

    /// Sends a request and reads the response.
    async fn exchange<T: DeserializeOwned>(
        &self,
        at: usize,
        request: RequestBuilder,
    ) -> Result<(T, HeaderMap), FleetError> {
        let away = |error: reqwest::Error| {
            if let Some(what) = tls::certificate_error(&error) {
                return FleetError::Unavailable(format!("the warden's certificate is refused: {what}"));
            }
            let kind = if error.is_timeout() {
                "no answer in time"
            } else if error.is_connect() {
                "no connection"
            } else {
                "the connection was closed before the response was complete"
            };
            FleetError::Unavailable(kind.to_owned())
        };
        let mut response = request.send().await.map_err(away)?;
        match response.status() {
            StatusCode::OK => {}
            status @ (StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) => {
                let body = body_of(&mut response, MAX_SMALL).await.map_err(away)?;
                return Err(missing(status, &body.unwrap_or_default()));
            }
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                return Err(FleetError::Unavailable(if self.is_warden(at).await {
                    "the warden refuses this agent's token".to_owned()
                } else {
                    format!("the server that answers is not a warden (it answers {})", status.as_u16())
                }));
            }
            StatusCode::TOO_MANY_REQUESTS => return Err(FleetError::Busy),
            StatusCode::SERVICE_UNAVAILABLE if response.headers().contains_key(RETRY_AFTER) => {
                return Err(FleetError::Busy);
            }
            other => return Err(FleetError::Unavailable(format!("the warden answers {other}"))),
        }
        let headers = response.headers().clone();
        let body = body_of(&mut response, MAX_BYTES).await.map_err(away)?;
        let body = body.ok_or_else(|| FleetError::Unreadable("it is too large".to_owned()))?;
        let answer = serde_json::from_slice(&body);
        let answer = answer.map_err(|_| FleetError::Unreadable("it is invalid".to_owned()))?;
        Ok((answer, headers))
    }

    /// Reports whether `/health` answers like a warden's. A status code alone says nothing: many proxies have such a path of
    /// their own.
    async fn is_warden(&self, at: usize) -> bool {
        let Some(url) = self.bases.get(at).and_then(|base| base.join("health").ok()) else { return false };
        let Ok(mut answer) = self.client.get(url).timeout(ASK).send().await else { return false };
        let body = body_of(&mut answer, MAX_SMALL).await.ok().flatten().unwrap_or_default();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        answer.status() == StatusCode::OK && body["status"].is_string()
    }
}

/// Judges a server that does not have the path. A server that explains this in JSON is an Evenkeel: an agent, or a warden whose
/// API is below another path. Every warden of Evenkeel makes decisions for a fleet, so they are only unknown. The predecessor
/// answers in plain text.
fn missing(status: StatusCode, body: &[u8]) -> FleetError {
    let Ok(ErrorBody { error }) = serde_json::from_slice(body) else { return FleetError::NoFleet };
    let error = clip_end(&error, MAX_ERROR);
    FleetError::Unavailable(format!(
        "the server that answers is not a warden, or not at this path ({}: {error})",
        status.as_u16()
    ))
}

/// Reads a body of limited size; `None` if it is larger.
async fn body_of(response: &mut Response, limit: usize) -> Result<Option<Vec<u8>>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > limit {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}

#[async_trait]
impl Fleet for Wardens {
    async fn decisions(
        &self,
        known: KnownRevisions,
        wait: Duration,
    ) -> Result<DecisionsResponse, FleetError> {
        let wardens = self.connected()?;
        let KnownRevisions { revision, verdicts } = known;
        let path = format!("fleet?after={revision}&wait={}&verdicts={verdicts}", wait.as_secs());
        // A warden whose store is a new one starts again at a low revision.
        let usable = |decisions: &FleetDecisions| {
            let is_older = decisions.store.is_none() && decisions.revision < revision;
            if is_older { Use::IfWarden } else { Use::Now }
        };
        let (decisions, headers) = wardens.first(wait + REPORT, reqwest::Client::get, &path, usable).await?;
        if decisions.store.is_some() {
            // This warden has no access to its store: ask the next one next time.
            let mut active = wardens.active.lock();
            *active = (*active + 1) % wardens.bases.len().max(1);
        }
        Ok(DecisionsResponse { decisions, date: server_time(&headers) })
    }

    async fn ask(&self, ask: &FleetAsk) -> Result<FleetAnswer, FleetError> {
        let wardens = self.connected()?;
        let _permit = wardens.permit().await;
        let post = |client: &Client, url| client.post(url).json(ask);
        let usable = |answer: &FleetAnswer| if answer.store.is_some() { Use::Last } else { Use::Now };
        Ok(wardens.first(ASK, post, "fleet/ask", usable).await?.0)
    }

    async fn release(&self, ask: &FleetAsk) -> Result<(), FleetError> {
        let wardens = self.connected()?;
        let _permit = wardens.permit().await;
        let post = |client: &Client, url| client.post(url).json(ask);
        wardens.first::<ReleaseReply>(REPORT, post, "fleet/release", |_| Use::Now).await.map(|_| ())
    }

    async fn report(&self, inventory: &Inventory) -> Result<(), FleetError> {
        let wardens = self.connected()?;
        let _permit = wardens.permit().await;
        let post = |client: &Client, url| client.post(url).json(inventory);
        wardens.first::<InventoryReply>(REPORT, post, "inventory", |_| Use::Now).await.map(|_| ())
    }
}

#[cfg(test)]
#[path = "warden_tests.rs"]
mod tests;
