//! Parses registry responses: digest, manifest, error message, `Retry-After`.

use std::io::Read;
use std::time::Duration;

use http::StatusCode;
use http::header::{CONTENT_ENCODING, HeaderMap, RETRY_AFTER};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use serde::{Deserialize, Deserializer};

use super::client::Response;
use super::fault::{Fault, plain, status_text};
use super::subject;
use crate::model::image::{Digest, Repository};
use crate::ports::meter::server_time;

/// The usual manifest size limit of registries.
const MANIFEST_LIMIT: usize = 4 * 1024 * 1024;
/// Maximum number of bytes read of an error's body.
const MESSAGE_LIMIT: usize = 16 * 1024;
/// Maximum wait in seconds that a registry may request.
const MAX_WAIT: f64 = 3600.0;

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

/// Reads `null` as nothing: programs in Go write it for an empty list, map or object.
pub(super) fn or_null<'de, D, T>(field: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(field)?.unwrap_or_default())
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

/// Converts a registry's response about a repository with an error status other than 401 and 404.
pub(super) fn refused(repository: &Repository, response: &Response) -> Fault {
    refusal(&subject(repository), response.status(), response.headers(), &repository.path)
}

/// Converts an error status other than 401 and 404. Only a registry that asks for a pause gets one for all its images: any
/// other error may concern a single repository, such as one with damaged storage.
pub(super) fn refusal(subject: &str, status: StatusCode, headers: &HeaderMap, path: &str) -> Fault {
    let text = format!("{subject}: {}", status_text(status));
    let wait = requested_wait(headers, Timestamp::now());
    match (status.as_u16(), wait) {
        (429, wait) | (503, wait @ Some(_)) => Fault::Limited { text, wait },
        _ => Fault::Repository(format!("{text} for {path}")),
    }
}

/// Returns how long the registry asks us to wait: `Retry-After` in seconds, as a duration of Go or as a date,
/// `X-Retry-After` also as a Unix time.
fn requested_wait(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    // The sign of a microsecond is not ASCII.
    let text = |name: &str| Some(std::str::from_utf8(headers.get(name)?.as_bytes()).ok()?.trim());
    let date = |text: &str| DateTimeParser::new().parse_timestamp(text).ok();
    // A date refers to the registry's clock, which its `Date` header shows.
    let now = server_time(headers).unwrap_or(now);
    let until = |time: Timestamp| time.duration_since(now).as_secs_f64();
    let wait = |text: &str| match text.parse::<i64>() {
        Ok(time) if time > 1_000_000_000 => Some(until(Timestamp::from_second(time).ok()?)),
        Ok(_) | Err(_) => seconds(text).or_else(|| date(text).map(until)),
    };
    let wait = text(RETRY_AFTER.as_str()).and_then(wait).or_else(|| text("x-retry-after").and_then(wait))?;
    Some(Duration::from_secs_f64(wait.clamp(1.0, MAX_WAIT)))
}

/// Parses seconds (`120`, `0.7`), or a duration as Go prints it (`714.6µs`, `1m0s`).
fn seconds(text: &str) -> Option<f64> {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    if text.trim_start_matches('-').chars().all(is_number) {
        // More digits than those of a time are no wait.
        return text.parse().ok().filter(|seconds: &f64| *seconds <= 1e9);
    }
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !is_number(c))?);
        let (unit, after) = after.split_at(after.find(is_number).unwrap_or(after.len()));
        let unit = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            // The micro sign, and the Greek letter.
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * unit;
        rest = after;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let value = |text: &str| http::HeaderValue::from_bytes(text.as_bytes()).unwrap();
        pairs.iter().map(|(name, text)| (name.parse().unwrap(), value(text))).collect()
    }

    fn wait(pairs: &[(&'static str, &str)]) -> Option<u64> {
        let wait = requested_wait(&headers(pairs), "2026-01-01T00:00:00Z".parse().unwrap());
        wait.map(|wait| wait.as_secs())
    }

    #[test]
    fn retry_after_is_respected_with_429_and_503() {
        let of = |code: u16, pairs: &[(&'static str, &str)]| {
            refusal("registry r", StatusCode::from_u16(code).unwrap(), &headers(pairs), "/v2/")
        };
        let asked = [("retry-after", "600")];
        for code in [429, 503] {
            let fault = of(code, &asked);
            assert!(
                matches!(&fault, Fault::Limited { wait, .. } if *wait == Some(Duration::from_mins(10))),
                "{fault:?}"
            );
        }
        assert!(matches!(of(429, &[]), Fault::Limited { wait: None, .. }));
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
        for (text, seconds) in [
            ("120", Some(120)),
            ("0", Some(1)),
            ("-5", Some(1)),
            ("999999", Some(3600)),
            ("0.7", Some(1)),
            ("12.5", Some(12)),
            ("714.6µs", Some(1)),
            ("714.6μs", Some(1)),
            ("700us", Some(1)),
            ("0.7ms", Some(1)),
            ("2500ms", Some(2)),
            ("90s", Some(90)),
            ("1m0s", Some(60)),
            ("1m30.5s", Some(90)),
            ("2h0m0s", Some(3600)),
            ("Thu, 01 Jan 2026 00:02:00 GMT", Some(120)),
            ("Thu, 01 Jan 2026 00:00:00 GMT", Some(1)),
            ("1767225690", Some(90)),
            ("99999999999999999999", None),
            ("", None),
            (".", None),
            ("s", None),
            ("5 apples", None),
            ("1m-5s", None),
            ("inf", None),
            ("soon", None),
        ] {
            assert_eq!(wait(&[("retry-after", text)]), seconds, "{text}");
            assert_eq!(wait(&[("x-retry-after", text)]), seconds, "{text}");
        }
        assert_eq!(wait(&[]), None);
        assert_eq!(wait(&[("retry-after", "soon"), ("x-retry-after", "30")]), Some(30));
    }

    #[test]
    fn a_date_is_relative_to_the_registrys_own_clock() {
        let date = ("date", "Thu, 01 Jan 2026 05:00:00 GMT");
        assert_eq!(wait(&[date, ("retry-after", "Thu, 01 Jan 2026 05:00:30 GMT")]), Some(30));
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
