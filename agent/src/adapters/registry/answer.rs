//! Parses registry responses: digest, manifest, error message, `Retry-After`.

use std::io::Read;
use std::time::Duration;

use http::StatusCode;
use http::header::{CONTENT_ENCODING, DATE, HeaderMap, RETRY_AFTER};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use serde::Deserialize;

use super::client::Response;
use super::fault::{Fault, plain, status_text};
use crate::model::image::Digest;

/// The usual manifest size limit of registries.
const MANIFEST_LIMIT: usize = 4 * 1024 * 1024;
/// Maximum number of bytes read of an error's body.
const MESSAGE_LIMIT: usize = 16 * 1024;
/// Default wait after a 429.
const DEFAULT_WAIT: Duration = Duration::from_mins(1);
/// Maximum wait in seconds that a registry may request.
const MAX_WAIT: u64 = 3600;

/// Returns the digest header, if valid.
pub(super) fn claimed_digest(headers: &HeaderMap) -> Option<Digest> {
    let text = headers.get("docker-content-digest")?.to_str().ok()?;
    Digest::parse(text.trim()).ok()
}

/// Reads a manifest as the exact bytes that the registry stores.
pub(super) async fn manifest(subject: &str, response: Response) -> Result<Vec<u8>, Fault> {
    let fault = |why: &str| Fault::Image(format!("{subject}: {why}"));
    let body = content(subject, "manifest", response, MANIFEST_LIMIT).await?;
    let body = body.ok_or_else(|| fault("the manifest is over 4 MiB"))?;
    // A login page with status 200 must not look like a new image.
    match serde_json::from_slice::<Shape>(&body) {
        Ok(Shape { schema_version: 2 }) => Ok(body),
        Ok(Shape { schema_version }) => Err(fault(&format!(
            "manifests of schema version {schema_version} have no comparable digest (version 2 is required)"
        ))),
        Err(_) => Err(fault("the answer is not an image manifest")),
    }
}

/// Reads a `what` as the exact bytes that the registry stores, or `None` if it is larger than `limit`.
pub(super) async fn content(
    subject: &str,
    what: &str,
    response: Response,
    limit: usize,
) -> Result<Option<Vec<u8>>, Fault> {
    let encoding = response
        .headers()
        .get(CONTENT_ENCODING)
        .map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_ascii_lowercase());
    let Some(body) = body(subject, response, limit).await? else { return Ok(None) };
    match encoding.as_deref() {
        None | Some("" | "identity") => Ok(Some(body)),
        // Not requested, but proxies do it. The digest is that of the uncompressed content.
        Some("gzip" | "x-gzip") => {
            gunzip(&body, limit).map_err(|_| Fault::Image(format!("{subject}: the {what} is broken (gzip)")))
        }
        Some(other) => Err(Fault::Image(format!(
            "{subject}: the {what} has content encoding {}, although none was requested",
            plain(other)
        ))),
    }
}

#[derive(Deserialize)]
struct Shape {
    #[serde(rename = "schemaVersion")]
    schema_version: u64,
}

fn gunzip(body: &[u8], limit: usize) -> std::io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    let most = limit as u64 + 1;
    flate2::read::MultiGzDecoder::new(body).take(most).read_to_end(&mut content)?;
    Ok((content.len() <= limit).then_some(content))
}

/// Reads the body, or returns `None` as soon as it exceeds `limit`.
pub(super) async fn body(
    subject: &str,
    mut response: Response,
    limit: usize,
) -> Result<Option<Vec<u8>>, Fault> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(None) => return Ok(Some(body)),
            Ok(Some(chunk)) if body.len() + chunk.len() > limit => return Ok(None),
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Err(error) => return Err(Fault::of(subject, &error)),
        }
    }
}

/// Reads the registry's error message; empty if there is none that can be shown. Its text is for the log only: many
/// registries put a request ID or a time into it, so the same failure would look like a new one with every poll.
pub(super) async fn message(subject: &str, response: Response) -> Message {
    match body(subject, response, MESSAGE_LIMIT).await {
        Ok(Some(body)) => Message::parse(&body),
        Ok(None) | Err(_) => Message::default(),
    }
}

/// A registry's error: code and message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) code: String,
    pub(super) text: String,
}

impl Message {
    fn parse(body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Errors {
            errors: Vec<One>,
        }
        #[derive(Deserialize)]
        struct One {
            #[serde(default)]
            code: String,
            #[serde(default)]
            message: String,
        }
        if let Ok(Errors { errors }) = serde_json::from_slice(body) {
            let Some(first) = errors.into_iter().next() else { return Self::default() };
            return Self { code: plain(&first.code), text: plain(&first.message) };
        }
        let text = String::from_utf8_lossy(body);
        let text = text.trim();
        // HTML or JSON makes no readable line.
        let readable = !text.starts_with(['<', '{', '[']);
        Self {
            code: String::new(),
            text: if readable { plain(text.lines().next().unwrap_or("")) } else { String::new() },
        }
    }
}

/// Converts an error status other than 401 and 404. Only a registry that asks for a pause gets one for all its images: any
/// other error may concern a single repository, such as one with damaged storage.
pub(super) fn refusal(subject: &str, status: StatusCode, headers: &HeaderMap, path: &str) -> Fault {
    let text = format!("{subject}: {}", status_text(status));
    let wait = requested_wait(headers, Timestamp::now());
    match (status.as_u16(), wait) {
        (429, wait) => Fault::Limited { text, wait: wait.unwrap_or(DEFAULT_WAIT) },
        (503, Some(wait)) => Fault::Limited { text, wait },
        _ => Fault::Repository(format!("{text} for {path}")),
    }
}

/// Returns how long the registry asks us to wait: `Retry-After` in seconds or as a date, `X-Retry-After` also as a Unix time.
fn requested_wait(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let date = |text: &str| DateTimeParser::new().parse_timestamp(text).ok();
    // A date refers to the registry's clock, which its `Date` header shows.
    let now = text(DATE.as_str()).and_then(date).unwrap_or(now).as_second();
    let wait = |text: &str| match text.parse::<i64>() {
        Ok(time) if time > 1_000_000_000 => Some(time - now),
        Ok(seconds) => Some(seconds),
        Err(_) => Some(date(text)?.as_second() - now),
    };
    let wait = text(RETRY_AFTER.as_str()).and_then(wait).or_else(|| text("x-retry-after").and_then(wait))?;
    Some(Duration::from_secs(u64::try_from(wait).unwrap_or(0).clamp(1, MAX_WAIT)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn wait(pairs: &[(&'static str, &str)]) -> u64 {
        let wait = requested_wait(&headers(pairs), "2026-01-01T00:00:00Z".parse().unwrap());
        wait.unwrap_or(DEFAULT_WAIT).as_secs()
    }

    #[test]
    fn retry_after_is_respected_with_429_and_503() {
        let of = |code: u16, pairs: &[(&'static str, &str)]| {
            refusal("registry r", StatusCode::from_u16(code).unwrap(), &headers(pairs), "/v2/")
        };
        let asked = [("retry-after", "600")];
        for code in [429, 503] {
            let fault = of(code, &asked);
            assert!(matches!(&fault, Fault::Limited { wait, .. } if wait.as_secs() == 600), "{fault:?}");
        }
        assert!(matches!(of(429, &[]), Fault::Limited { wait: DEFAULT_WAIT, .. }));
        for fault in [of(503, &[]), of(503, &[("retry-after", "soon")]), of(502, &asked)] {
            assert!(matches!(fault, Fault::Repository(_)), "{fault:?}");
        }
    }

    #[test]
    fn an_error_status_is_about_one_repository() {
        for code in (400..600).filter(|code| *code != 429) {
            let fault = refusal("registry r", StatusCode::from_u16(code).unwrap(), &HeaderMap::new(), "web");
            assert!(matches!(&fault, Fault::Repository(text) if text.ends_with(" for web")), "{fault:?}");
        }
    }

    #[test]
    fn retry_after_is_parsed_in_all_forms() {
        assert_eq!(wait(&[]), 60);
        assert_eq!(wait(&[("retry-after", "120")]), 120);
        assert_eq!(wait(&[("retry-after", "0")]), 1);
        assert_eq!(wait(&[("retry-after", "-5")]), 1);
        assert_eq!(wait(&[("retry-after", "999999")]), 3600);
        assert_eq!(wait(&[("retry-after", "soon")]), 60);
        assert_eq!(wait(&[("retry-after", "soon"), ("x-retry-after", "30")]), 30);
        assert_eq!(wait(&[("retry-after", "Thu, 01 Jan 2026 00:02:00 GMT")]), 120);
        assert_eq!(wait(&[("retry-after", "Thu, 01 Jan 2026 00:00:00 GMT")]), 1);
        assert_eq!(wait(&[("x-retry-after", "1767225690")]), 90);
        assert_eq!(wait(&[("retry-after", "99999999999999999999")]), 60);
    }

    #[test]
    fn a_date_is_relative_to_the_registrys_own_clock() {
        let date = ("date", "Thu, 01 Jan 2026 05:00:00 GMT");
        assert_eq!(wait(&[date, ("retry-after", "Thu, 01 Jan 2026 05:00:30 GMT")]), 30);
    }

    #[test]
    fn error_messages_are_extracted() {
        let known = Message::parse(br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest\u001b[1m unknown","detail":{"Tag":"1"}}]}"#);
        assert_eq!(known, Message { code: "MANIFEST_UNKNOWN".into(), text: "manifest unknown".into() });
        assert_eq!(Message::parse(b"404 page not found\n").text, "404 page not found");
        for body in ["", "<html>no</html>", "{\"a\":1}", "{\"errors\":[]}", "[[[["] {
            assert_eq!(Message::parse(body.as_bytes()), Message::default(), "{body}");
        }
    }
}
