//! Reads a registry's answers: digest, manifest, message, `Retry-After`.

use std::io::Read;
use std::time::Duration;

use http::StatusCode;
use http::header::{CONTENT_ENCODING, DATE, HeaderMap, RETRY_AFTER};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use serde::Deserialize;

use super::client::Response;
use super::fault::{Fault, plain, status_words, transport_words};
use crate::model::image::Digest;

/// The usual limit of registries for a manifest.
const MANIFEST_LIMIT: usize = 4 * 1024 * 1024;
/// Most that is read of an error's body.
const MESSAGE_LIMIT: usize = 16 * 1024;
/// Wait after a 429 that names no time.
const DEFAULT_WAIT: Duration = Duration::from_mins(1);
/// Longest wait that a registry may ask for.
const LONGEST_WAIT: u64 = 3600;

/// The digest that the registry claims, where it is one.
pub(super) fn claimed_digest(headers: &HeaderMap) -> Option<Digest> {
    let text = headers.get("docker-content-digest")?.to_str().ok()?;
    Digest::parse(text.trim()).ok()
}

/// The manifest as the registry keeps it, byte by byte.
pub(super) async fn manifest(whose: &str, response: Response) -> Result<Vec<u8>, Fault> {
    let fault = |why: &str| Fault::Image(format!("{whose}: {why}"));
    let body = content(whose, "manifest", response, MANIFEST_LIMIT).await?;
    let body = body.ok_or_else(|| fault("the manifest is over 4 MiB"))?;
    // A login page with status 200 has a digest too; it must not look like a new image.
    match serde_json::from_slice::<Shape>(&body) {
        Ok(Shape { schema_version: 2 }) => Ok(body),
        Ok(Shape { schema_version }) => Err(fault(&format!(
            "a manifest of schema version {schema_version} has no digest that can be compared (2 has)"
        ))),
        Err(_) => Err(fault("the answer is not an image manifest")),
    }
}

/// A `what` as the registry keeps it, byte by byte; `None` when it is longer than `limit`.
pub(super) async fn content(
    whose: &str,
    what: &str,
    response: Response,
    limit: usize,
) -> Result<Option<Vec<u8>>, Fault> {
    let encoding = response
        .headers()
        .get(CONTENT_ENCODING)
        .map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_ascii_lowercase());
    let Some(body) = body(whose, response, limit).await? else { return Ok(None) };
    match encoding.as_deref() {
        None | Some("" | "identity") => Ok(Some(body)),
        // Not asked for, but proxies do it. The digest is that of the content underneath.
        Some("gzip" | "x-gzip") => {
            gunzip(&body, limit).map_err(|_| Fault::Image(format!("{whose}: the {what} is broken (gzip)")))
        }
        Some(other) => Err(Fault::Image(format!(
            "{whose}: the {what} came with content encoding {}, though none was asked for",
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

/// The body; `None` when it is longer than `limit`, in which case the rest is not read.
pub(super) async fn body(
    whose: &str,
    mut response: Response,
    limit: usize,
) -> Result<Option<Vec<u8>>, Fault> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(None) => return Ok(Some(body)),
            Ok(Some(chunk)) if body.len() + chunk.len() > limit => return Ok(None),
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Err(error) => return Err(Fault::Host(format!("{whose}: {}", transport_words(&error)))),
        }
    }
}

/// The registry's own message about a failure; empty where it has none that can be shown.
pub(super) async fn message(whose: &str, response: Response) -> Message {
    match body(whose, response, MESSAGE_LIMIT).await {
        Ok(Some(body)) => Message::parse(&body),
        Ok(None) | Err(_) => Message::default(),
    }
}

/// A registry's error: its code and its words.
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
        // A page or a document is of no use as one line.
        let readable = !text.starts_with(['<', '{', '[']);
        Self {
            code: String::new(),
            text: if readable { plain(text.lines().next().unwrap_or("")) } else { String::new() },
        }
    }
}

/// What follows from a status that is no success, 401 and 404 aside.
pub(super) fn refusal(whose: &str, status: StatusCode, headers: &HeaderMap, path: &str) -> Fault {
    let text = format!("{whose}: {}", status_words(status));
    match status.as_u16() {
        429 => Fault::Limited { text, wait: asked_wait(headers, Timestamp::now()).unwrap_or(DEFAULT_WAIT) },
        // Without a time of its own it is down like any other.
        503 => match asked_wait(headers, Timestamp::now()) {
            Some(wait) => Fault::Limited { text, wait },
            None => Fault::Host(text),
        },
        408 | 500 | 502..=599 => Fault::Host(text),
        _ => Fault::Image(format!("{text} for {path}")),
    }
}

/// How long the registry asks us to wait: `Retry-After` in seconds or as a date, `X-Retry-After` also as a Unix time.
fn asked_wait(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let date = |text: &str| DateTimeParser::new().parse_timestamp(text).ok();
    // A date is meant by the registry's clock, which its answer shows.
    let now = text(DATE.as_str()).and_then(date).unwrap_or(now).as_second();
    let wait = |text: &str| match text.parse::<i64>() {
        Ok(time) if time > 1_000_000_000 => Some(time - now),
        Ok(seconds) => Some(seconds),
        Err(_) => Some(date(text)?.as_second() - now),
    };
    let wait = text(RETRY_AFTER.as_str()).and_then(wait).or_else(|| text("x-retry-after").and_then(wait))?;
    Some(Duration::from_secs(u64::try_from(wait).unwrap_or(0).clamp(1, LONGEST_WAIT)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn wait(pairs: &[(&'static str, &str)]) -> u64 {
        let wait = asked_wait(&headers(pairs), "2026-01-01T00:00:00Z".parse().unwrap());
        wait.unwrap_or(DEFAULT_WAIT).as_secs()
    }

    #[test]
    fn a_time_to_stay_away_counts_with_429_and_503_alike() {
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
            assert!(matches!(fault, Fault::Host(_)), "{fault:?}");
        }
    }

    #[test]
    fn the_time_to_stay_away_is_read_in_all_its_forms() {
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
    fn a_date_counts_by_the_registrys_own_clock() {
        let date = ("date", "Thu, 01 Jan 2026 05:00:00 GMT");
        assert_eq!(wait(&[date, ("retry-after", "Thu, 01 Jan 2026 05:00:30 GMT")]), 30);
    }

    #[test]
    fn messages_are_taken_from_what_registries_send() {
        let known = Message::parse(br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest\u001b[1m unknown","detail":{"Tag":"1"}}]}"#);
        assert_eq!(known, Message { code: "MANIFEST_UNKNOWN".into(), text: "manifest unknown".into() });
        assert_eq!(Message::parse(b"404 page not found\n").text, "404 page not found");
        for body in ["", "<html>no</html>", "{\"a\":1}", "{\"errors\":[]}", "[[[["] {
            assert_eq!(Message::parse(body.as_bytes()), Message::default(), "{body}");
        }
    }
}
