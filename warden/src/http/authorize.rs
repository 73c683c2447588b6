//! Authorization of users by session or `api.token`. Wrong tokens are throttled.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::http::{Arrival, HeaderMap, Request, Response, StatusCode, error, too_many};
use http::header::{HeaderValue, WWW_AUTHENTICATE};

use super::Api;
use super::metrics::LoginRefusal;
use crate::auth::throttle;
use crate::auth::tokens;
use crate::config::SHORT_TOKEN;
use crate::reload::ActiveConfig;

/// Why a user is not authorized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoginError {
    /// No token was sent.
    Missing,
    /// The token is not `api.token`.
    Wrong,
    /// Too many wrong tokens came from this address; retry after this many seconds.
    Throttled(u16),
}

impl LoginError {
    /// Returns the response; `required` says what would have been accepted.
    pub(super) fn reply(self, required: &str) -> Response {
        match self {
            Self::Missing | Self::Wrong => unauthorized(required),
            Self::Throttled(seconds) => too_many(self.message().unwrap_or_default(), seconds),
        }
    }

    /// Returns the text for the user; `None` if no token was sent.
    pub(super) fn message(self) -> Option<String> {
        match self {
            Self::Missing => None,
            Self::Wrong => Some("That token is not accepted.".to_owned()),
            Self::Throttled(seconds) => {
                Some(format!("Too many wrong tokens came from this address. Try again in {seconds} seconds."))
            }
        }
    }
}

impl Api {
    /// Returns the active configuration.
    pub(super) fn config(&self) -> Arc<ActiveConfig> {
        self.config.borrow().clone()
    }

    /// Accepts a session, or `api.token` in the query, in the cookie or as bearer token.
    pub(super) fn authorize(&self, request: &Request) -> Result<(), LoginError> {
        let query = request.query.get(tokens::TOKEN).cloned();
        let bearer = tokens::bearer(&request.headers).map(str::to_owned);
        self.authorize_with(&request.headers, &request.arrival, query.into_iter().chain(bearer))
    }

    /// The same without the bearer token.
    pub(super) fn authorize_page(&self, request: &Request) -> Result<(), LoginError> {
        let query = request.query.get(tokens::TOKEN).cloned();
        self.authorize_with(&request.headers, &request.arrival, query.into_iter())
    }

    /// The same without the token in the query: for requests with a body, before it is read.
    pub(super) fn authorize_body(&self, headers: &HeaderMap, arrival: &Arrival) -> Result<(), LoginError> {
        let bearer = tokens::bearer(headers).map(str::to_owned);
        self.authorize_with(headers, arrival, bearer.into_iter())
    }

    fn authorize_with(
        &self,
        headers: &HeaderMap,
        arrival: &Arrival,
        others: impl Iterator<Item = String>,
    ) -> Result<(), LoginError> {
        let cookies = tokens::cookies(headers);
        let (config, now) = (self.config(), self.clock.now());
        if cookies.iter().any(|value| config.tokens.session_remaining(value, now).is_some()) {
            return Ok(());
        }
        let cookies = cookies.into_iter().filter(|value| !tokens::is_session(value));
        self.check_api_token(&config, headers, arrival, cookies.chain(others))
    }

    /// Checks whether one of `sent` is `api.token`. Wrong tokens count against the client.
    pub(super) fn check_api_token(
        &self,
        config: &ActiveConfig,
        headers: &HeaderMap,
        arrival: &Arrival,
        sent: impl Iterator<Item = String>,
    ) -> Result<(), LoginError> {
        let sent: Vec<String> = sent.filter(|token| !token.is_empty()).collect();
        if sent.is_empty() {
            return Err(LoginError::Missing);
        }
        let right = sent.iter().find(|token| config.tokens.is_api(token));
        // One that is too long to be guessed is not affected while another client behind the same proxy is throttled.
        if right.is_some_and(|token| token.len() >= SHORT_TOKEN) {
            return Ok(());
        }
        let client = throttle::client_address(arrival, headers);
        if let Some(wait) = self.throttle.retry_after(client) {
            self.metrics.count_login_refusal(LoginRefusal::Throttled);
            return Err(LoginError::Throttled(whole_seconds(wait)));
        }
        if right.is_some() {
            return Ok(());
        }
        for token in &sent {
            self.metrics.count_login_refusal(LoginRefusal::Wrong);
            self.throttle.record_failure(client, &tokens::digest(token), "user");
        }
        Err(LoginError::Wrong)
    }
}

/// Rounds up to whole seconds, for `Retry-After`.
pub(super) fn whole_seconds(wait: Duration) -> u16 {
    u16::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u16::MAX)
}

/// Returns a 401 response as JSON.
pub(super) fn unauthorized(text: &str) -> Response {
    challenge(error(StatusCode::UNAUTHORIZED, text))
}

/// Adds the header that a 401 response requires.
pub(super) fn challenge(mut response: Response) -> Response {
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}
