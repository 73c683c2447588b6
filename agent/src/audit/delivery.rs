//! Sends a rendered entry once, as an HTTP request or a mail, and classifies the response.

use std::time::Duration;

use evenkeel_common::proxy::Proxies;
use evenkeel_common::tls;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use lettre::address::Envelope;
use lettre::{AsyncSmtpTransport, AsyncTransport, Tokio1Executor};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Proxy, Request, RequestBuilder, Response, StatusCode};

use super::redact::Redactor;
use crate::ports::meter::server_time;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Limit for a whole mail delivery; lettre's own timeout covers only the connection.
const MAIL_TIMEOUT: Duration = Duration::from_mins(1);
/// Maximum number of bytes read from a response body.
const ANSWER_LIMIT: usize = 16 * 1024;
/// Maximum number of characters of a response in messages.
const SHOWN: usize = 300;
/// Upper bound for a `Retry-After` delay.
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// SMTP client for one mail server.
pub(super) type Mailer = AsyncSmtpTransport<Tokio1Executor>;

/// A rendered entry, ready to be sent.
pub(super) enum Delivery {
    /// An HTTP request.
    Request(Client, Box<Request>),
    /// A mail, to the receiver of the envelope only.
    Mail(Mailer, Box<Envelope>, Vec<u8>),
}

/// Why a delivery failed, classified by how to react to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// A retry may succeed.
    #[error("{why}")]
    Transient {
        /// What went wrong.
        why: String,
        /// The retry delay that the receiver asked for, if any.
        after: Option<Duration>,
    },
    /// The receiver answered, and refused it. Whether because of this entry or because of the channel (its address, token or
    /// settings), no status code says: the next entry shows it (DECISIONS 5).
    #[error("{why}")]
    Refused {
        /// What went wrong.
        why: String,
    },
    /// This entry can't be sent to this receiver; others may be.
    #[error("{why}")]
    Permanent {
        /// What went wrong.
        why: String,
    },
}

fn transient(why: impl Into<String>) -> DeliveryError {
    DeliveryError::Transient { why: why.into(), after: None }
}

/// Creates a client that uses the environment's proxies. It does not follow redirects: they could send secrets and entries to
/// addresses that are not configured.
pub(super) fn web_client() -> Result<Client, String> {
    let proxies = Proxies::from_env();
    Client::builder()
        .tls_backend_preconfigured(tls::client_config())
        .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(REQUEST_TIMEOUT)
        .redirect(Policy::none())
        .proxy(Proxy::custom(move |url| proxies.of(url.as_str())))
        .build()
        .map_err(|error| format!("cannot create the HTTP client: {}", error.without_url()))
}

impl Delivery {
    /// Creates a delivery from the request in `builder`.
    pub(super) fn request(client: &Client, builder: RequestBuilder) -> Result<Self, String> {
        let request = builder.build().map_err(|error| error.without_url().to_string())?;
        Ok(Self::Request(client.clone(), Box::new(request)))
    }

    /// Sends it once. The answer is human-readable; `redactor` removes secrets from it.
    pub(super) async fn send(self, redactor: &Redactor) -> Result<String, DeliveryError> {
        match self {
            Self::Request(client, request) => {
                let answer = exchange(&client, *request, redactor, ANSWER_LIMIT).await?;
                answer.judged().map(|answer| answer.text)
            }
            Self::Mail(mailer, envelope, mail) => {
                match tokio::time::timeout(MAIL_TIMEOUT, mailer.send_raw(&envelope, &mail)).await {
                    Ok(Ok(response)) => {
                        let text: Vec<_> = response.message().collect();
                        Ok(shown(&format!("{} {}", response.code(), text.join(" ")), redactor, false))
                    }
                    Ok(Err(error)) => Err(mail_failure(&error, redactor)),
                    Err(_) => {
                        Err(transient(format!("the mail server took over {} s", MAIL_TIMEOUT.as_secs())))
                    }
                }
            }
        }
    }
}

/// The response to a request.
pub(super) struct Answer {
    /// HTTP status code.
    pub(super) status: StatusCode,
    /// Status and body in human-readable form, without secrets.
    pub(super) text: String,
    /// The body, truncated if it is too long.
    pub(super) body: Vec<u8>,
    wait: Option<Duration>,
}

/// Sends a request once and reads at most `limit` bytes of the response body.
pub(super) async fn exchange(
    client: &Client,
    request: Request,
    redactor: &Redactor,
    limit: usize,
) -> Result<Answer, DeliveryError> {
    let response = client.execute(request).await;
    let response =
        response.map_err(|error| transient(shown(&failure(&error.without_url()), redactor, false)))?;
    Ok(read(response, redactor, limit).await)
}

async fn read(mut response: Response, redactor: &Redactor, limit: usize) -> Answer {
    let status = response.status();
    let wait = retry_after(response.headers(), Timestamp::now());
    let body = beginning_of(&mut response, limit).await;
    let is_cut = body.len() >= limit.min(ANSWER_LIMIT);
    let head = &body[..body.len().min(ANSWER_LIMIT)];
    let text = shown(&format!("{status} {}", String::from_utf8_lossy(head)), redactor, is_cut);
    Answer { status, text, body, wait }
}

/// Reads at most `limit` bytes of a body. What was read counts even if reading the rest fails.
pub(super) async fn beginning_of(response: &mut Response, limit: usize) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk[..chunk.len().min(limit - body.len())]);
        if body.len() == limit {
            break;
        }
    }
    body
}

impl Answer {
    /// Maps the status code to success or to a [`DeliveryError`].
    pub(super) fn judged(self) -> Result<Self, DeliveryError> {
        let Self { status, text, wait, .. } = &self;
        if status.is_success() {
            return Ok(self);
        }
        Err(refusal(*status, text.clone(), *wait))
    }
}

fn refusal(status: StatusCode, text: String, wait: Option<Duration>) -> DeliveryError {
    match status {
        StatusCode::REQUEST_TIMEOUT
        | StatusCode::TOO_EARLY
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => DeliveryError::Transient { why: text, after: wait },
        _ if status.is_redirection() => DeliveryError::Refused {
            why: format!("{text} (redirects are not followed: configure the address itself)"),
        },
        _ => DeliveryError::Refused { why: text },
    }
}

/// Classifies a mail that was not accepted: 5xx replies are refusals, and so is a server that has no common login method or no
/// STARTTLS, or a certificate that is not trusted. Those do not change by themselves.
fn mail_failure(error: &lettre::transport::smtp::Error, redactor: &Redactor) -> DeliveryError {
    let certificate = tls::certificate_error(error);
    if let Some(what) = &certificate {
        let remedy = "trust its CA on this machine (or in SSL_CERT_FILE); smtp.tls: none sends unencrypted";
        return DeliveryError::Refused {
            why: format!("the mail server's certificate is refused: {what}; {remedy}"),
        };
    }
    let why = shown(&chain(error), redactor, false);
    let is_refused = error.status().is_some_and(|code| u16::from(code) >= 500);
    if is_refused || (error.status().is_none() && error.is_client()) {
        DeliveryError::Refused { why }
    } else {
        transient(why)
    }
}

/// Parses `Retry-After`, either in seconds (Discord sends fractions) or as a date relative to the server's own clock.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let asked = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match asked.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() => Duration::from_secs_f64(seconds.clamp(0.0, 1e6)),
        _ => {
            let until = DateTimeParser::new().parse_timestamp(asked).ok()?;
            let now = server_time(headers).unwrap_or(now);
            Duration::try_from(until.duration_since(now)).unwrap_or_default()
        }
    };
    // Zero would cause a busy loop.
    Some(wait.clamp(Duration::from_millis(500), LONGEST_WAIT))
}

/// Formats why a request got no answer.
fn failure(error: &reqwest::Error) -> String {
    match tls::certificate_error(error) {
        Some(what) => format!("the server's certificate is refused: {what}"),
        None => chain(error),
    }
}

/// Formats an error with its chain of causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Formats untrusted text on one line, without secrets and of limited length. Secrets are removed before the whitespace is
/// normalised, while they are still intact, and again afterwards. `is_cut`: the text is the beginning of a longer one.
pub(super) fn shown(text: &str, redactor: &Redactor, is_cut: bool) -> String {
    let line: String =
        redactor.clean(text, is_cut).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let line = redactor.clean(&line.split_whitespace().collect::<Vec<_>>().join(" "), is_cut);
    if line.chars().count() <= SHOWN { line } else { line.chars().take(SHOWN).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date_within_bounds() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let wait = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            retry_after(&headers, now).map(|wait| wait.as_secs_f64())
        };
        assert_eq!(wait("7"), Some(7.0));
        assert_eq!(wait("1.25"), Some(1.25));
        assert_eq!(wait("0"), Some(0.5));
        assert_eq!(wait("-4"), Some(0.5));
        assert_eq!(wait("1e300"), Some(3600.0));
        assert_eq!(wait("NaN"), None);
        assert_eq!(wait("soon"), None);
        assert_eq!(wait("Thu, 01 Jan 2026 00:02:00 GMT"), Some(120.0));
        assert_eq!(wait("Wed, 01 Jan 2025 00:02:00 GMT"), Some(0.5));
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn answers_are_shown_on_one_short_line() {
        let shown = |text: &str| shown(text, &Redactor::default(), false);
        assert_eq!(shown("400 Bad\r\n\x1b[31m  red"), "400 Bad [31m red");
        assert_eq!(shown(&"é".repeat(1000)).chars().count(), SHOWN + 1);
    }
}
