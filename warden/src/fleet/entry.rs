//! An audit entry from an agent (`POST /ingest`): parsed, truncated, attributed to the agent whose token was used.

use evenkeel_common::wire::{FleetEntry, ImageDigest, Kind, Level};
use jiff::{SignedDuration, Timestamp};
use serde::de::{DeserializeOwned, Error as _};
use serde_json::value::RawValue;

use crate::PROGRAM;

/// Limit in bytes for names, kinds, levels and digests; longer ones are truncated.
const MAX_NAME: usize = 256;
/// Limit in bytes for an image reference: 255 for the repository, 128 for the tag, 71 for the digest, and their separators.
pub const MAX_IMAGE: usize = 512;
/// Limit in bytes for the message and the reason.
const MAX_TEXT: usize = 4 * 1024;
/// Limit in bytes for the output; its end is kept.
const MAX_OUTPUT: usize = 8 * 1024;

/// Limit on `also_failed`; a project has no more images.
const MAX_ALSO_FAILED: usize = 32;
/// Limit in characters for `epoch`.
const MAX_EPOCH: usize = 64;

/// The body is not an audit entry.
#[derive(Debug, thiserror::Error)]
#[error("the body is not an audit entry: {0}")]
pub struct InvalidEntry(String);

impl From<serde_json::Error> for InvalidEntry {
    /// The parser's message may quote a whole string of the body.
    fn from(error: serde_json::Error) -> Self {
        Self(truncate(error.to_string(), MAX_NAME))
    }
}

/// Parses a body that must be an object. serde would accept an array as the fields in their order.
pub fn object<T: DeserializeOwned>(body: &[u8]) -> Result<T, serde_json::Error> {
    match body.trim_ascii_start().first() {
        Some(b'{') | None => serde_json::from_slice(body),
        Some(_) => Err(serde_json::Error::custom("it is not an object; allowed: {\"key\": value, …}")),
    }
}

/// Parses the entry that `agent` sent (spec 2.7, DECISIONS 3). Unknown fields are ignored.
pub fn parse(body: &[u8], agent: &str) -> Result<FleetEntry, InvalidEntry> {
    let body: FleetEntry = object(body)?;
    if body.epoch.as_ref().is_some_and(|epoch| epoch.chars().count() > MAX_EPOCH) {
        return Err(InvalidEntry(format!("epoch has more than {MAX_EPOCH} characters")));
    }
    let name =
        |text: Option<String>| text.filter(|text| !text.is_empty()).map(|text| truncate(text, MAX_NAME));
    let text =
        |text: Option<String>| text.filter(|text| !text.is_empty()).map(|text| truncate(text, MAX_TEXT));
    Ok(FleetEntry {
        timestamp: body.timestamp,
        machine: name(Some(body.machine)).unwrap_or_else(|| agent.to_owned()),
        service: truncate(body.service, MAX_NAME),
        event: truncate(body.event, MAX_NAME),
        message: truncate(body.message, MAX_TEXT),
        level: truncate(body.level, MAX_NAME),
        old_digest: name(body.old_digest),
        new_digest: name(body.new_digest),
        container: name(body.container),
        reason: text(body.reason),
        output: body.output.filter(|text| !text.is_empty()).map(|text| truncate_start(text, MAX_OUTPUT)),
        seq: body.seq,
        epoch: body.epoch.filter(|epoch| !epoch.is_empty()),
        image: body.image.filter(|image| !image.is_empty()).map(|image| truncate(image, MAX_IMAGE)),
        also_failed: body.also_failed.into_iter().filter(is_whole).take(MAX_ALSO_FAILED).collect(),
        outage_seconds: body.outage_seconds,
        agent: agent.to_owned(),
    })
}

/// Reports whether a further image names both, and in full: a truncated reference would be another one.
fn is_whole(other: &ImageDigest) -> bool {
    (1..=MAX_IMAGE).contains(&other.image.len()) && (1..=MAX_NAME).contains(&other.digest.len())
}

/// Returns the elements of a body that is an array of at most `limit`; `None` if it is not an array.
pub fn elements(body: &[u8], limit: usize) -> Option<Result<Vec<&RawValue>, InvalidEntry>> {
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'[') {
        return None;
    }
    let elements: Result<Vec<&RawValue>, _> = serde_json::from_slice(body);
    Some(match elements {
        Err(error) => Err(error.into()),
        Ok(elements) if elements.is_empty() => Err(InvalidEntry("the array is empty".to_owned())),
        Ok(elements) if elements.len() > limit => {
            Err(InvalidEntry(format!("the array has {} elements; allowed: up to {limit}", elements.len())))
        }
        Ok(elements) => Ok(elements),
    })
}

/// Creates an entry of the warden itself (DECISIONS 3).
pub(super) fn of_warden(kind: &Kind, level: Level, message: String, now: Timestamp) -> FleetEntry {
    FleetEntry {
        timestamp: now,
        machine: PROGRAM.to_owned(),
        service: PROGRAM.to_owned(),
        event: kind.as_str().to_owned(),
        message,
        level: level.as_str().to_owned(),
        old_digest: None,
        new_digest: None,
        container: None,
        reason: None,
        output: None,
        seq: None,
        epoch: None,
        image: None,
        also_failed: Vec::new(),
        outage_seconds: None,
        agent: String::new(),
    }
}

/// Truncates a text that is too long, and keeps its beginning.
fn truncate(mut text: String, bytes: usize) -> String {
    if text.len() > bytes {
        text.truncate(text.floor_char_boundary(bytes));
        text.push('…');
    }
    text
}

/// Returns the beginning of a text as one line.
pub(super) fn one_line(text: &str, bytes: usize) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    truncate(line.trim().to_owned(), bytes)
}

/// Truncates a text that is too long, and keeps its end.
pub(super) fn truncate_start(text: String, bytes: usize) -> String {
    if text.len() <= bytes {
        return text;
    }
    format!("…{}", &text[text.ceil_char_boundary(text.len() - bytes)..])
}

/// Formats a duration in its two largest units.
pub(super) fn format_duration(time: SignedDuration) -> String {
    let seconds = time.as_secs().max(0);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    let two = |first: i64, name: &str, second: i64, sub: &str| {
        let rest = if second > 0 { format!(" {second} {sub}") } else { String::new() };
        format!("{first} {name}{rest}")
    };
    match () {
        () if days > 0 => two(days, "d", hours, "h"),
        () if hours > 0 => two(hours, "h", minutes, "min"),
        () if minutes > 0 => two(minutes, "min", seconds % 60, "s"),
        () => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_common::wire::{AuditEntry, Tenths};
    use serde_json::{Value, json};

    use super::*;

    fn body(changes: Value) -> Vec<u8> {
        let mut body = json!({
            "timestamp": "2026-01-02T03:04:05.5Z", "service": "web", "event": "updated", "message": "m", "level": "info",
        });
        let Value::Object(changes) = changes else { panic!("an object") };
        for (key, value) in changes {
            body[key] = value;
        }
        body.to_string().into_bytes()
    }

    fn parsed(changes: Value) -> FleetEntry {
        parse(&body(changes), "box").unwrap()
    }

    #[test]
    fn an_entry_of_our_own_agent_keeps_all_its_fields() {
        // All fields are named, so that a new one does not compile until it is here, too.
        let entry = AuditEntry {
            timestamp: "2026-01-02T03:04:05Z".parse().unwrap(),
            machine: "rack-1".into(),
            service: "web".into(),
            event: Kind::ROLLED_BACK,
            message: "back".into(),
            level: Level::Warning,
            old_digest: Some("sha256:a".into()),
            new_digest: Some("sha256:b".into()),
            container: Some("web-1".into()),
            reason: Some("it crashed".into()),
            output: "line\n".into(),
            seq: Some(17),
            epoch: Some("e".into()),
            image: Some("r/web:1".into()),
            also_failed: vec![ImageDigest { image: "r/db:1".into(), digest: "sha256:c".into() }],
            outage_seconds: Some(Tenths::from(3.2)),
        };
        let mut sent = serde_json::to_value(&entry).unwrap();
        let kept = parse(sent.to_string().as_bytes(), "box").unwrap();
        sent["agent"] = json!("box");
        assert_eq!(serde_json::to_value(&kept).unwrap(), sent);
    }

    #[test]
    fn an_entry_of_another_program_is_taken_as_it_is() {
        let kept = parsed(json!({
            "level": "WARN", "event": "image.deployed", "extra": {"deep": [1]}, "old_digest": "", "reason": null,
            "outage_seconds": "none", "also_failed": "no",
            "timestamp": "2024-05-06T07:08:09.123456789+02:00",
        }));
        assert_eq!(
            serde_json::to_string(&kept).unwrap(),
            r#"{"timestamp":"2024-05-06T05:08:09.123456789Z","machine":"box","service":"web","event":"image.deployed","message":"m","level":"WARN","agent":"box"}"#
        );
    }

    #[test]
    fn the_agent_field_of_a_body_is_ignored() {
        let kept = parsed(json!({"agent": "other", "machine": "rack-9"}));
        assert_eq!((kept.agent.as_str(), kept.machine.as_str()), ("box", "rack-9"));
        for machine in [json!(""), json!(null)] {
            assert_eq!(parsed(json!({"agent": 5, "machine": machine})).machine, "box");
        }
    }

    #[test]
    fn an_invalid_entry_is_refused_with_the_reason() {
        for (changes, why) in [
            (json!({"timestamp": null}), "timestamp"),
            (json!({"timestamp": "yesterday"}), "timestamp"),
            (json!({"timestamp": 5}), "invalid type"),
            (json!({"service": null}), "invalid type: null"),
            (json!({"machine": 5}), "invalid type: integer"),
            (json!({"message": {}}), "invalid type: map"),
            (json!({"seq": -1}), "invalid value: integer `-1`"),
            (json!({"seq": "7"}), "invalid type: string"),
            (json!({"seq": 1.5}), "invalid type: floating point"),
            (json!({"reason": ["x"]}), "invalid type: sequence"),
        ] {
            let error = parse(&body(changes.clone()), "box").unwrap_err().to_string();
            assert!(error.starts_with("the body is not an audit entry: "), "{error}");
            assert!(error.contains(why) || why == "timestamp", "{changes}: {error}");
        }
        for text in ["", "null", "[]", "{}", "{\"a\"", "x", "[[[[", "\u{feff}{}"] {
            assert!(parse(text.as_bytes(), "box").is_err(), "{text}");
        }
        let missing = parse(br#"{"timestamp":"2026-01-02T03:04:05Z","service":"a"}"#, "box").unwrap_err();
        assert!(missing.to_string().contains("missing field `event`"), "{missing}");
        assert!(parse(&"[".repeat(1_000_000).into_bytes(), "box").is_err(), "the depth is limited");
    }

    #[test]
    fn long_texts_are_truncated_at_a_character() {
        let long = "é".repeat(100_000);
        let kept = parsed(json!({
            "service": long, "event": long, "level": long, "machine": long, "message": long, "reason": long,
            "output": format!("{long}end"), "container": long, "old_digest": long, "new_digest": long,
        }));
        assert!(serde_json::to_string(&kept).unwrap().len() < 20 * 1024);
        assert_eq!(kept.service.len(), MAX_NAME + '…'.len_utf8());
        assert!(kept.output.unwrap().ends_with("end"));
    }

    #[test]
    fn the_longest_image_reference_is_kept_whole() {
        let image = format!("{}:{}@sha256:{}", "r".repeat(255), "t".repeat(128), "0".repeat(64));
        assert_eq!(parsed(json!({"image": image})).image, Some(image));
    }

    #[test]
    fn control_characters_are_kept() {
        let kept = parsed(json!({"message": "a\u{0}b\u{1b}[31m\n</script>"}));
        assert_eq!(kept.message, "a\u{0}b\u{1b}[31m\n</script>");
        assert!(!serde_json::to_string(&kept).unwrap().contains('\n'));
    }

    #[test]
    fn durations_have_two_units() {
        for (seconds, words) in [
            (-5, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (61, "1 min 1 s"),
            (3_660, "1 h 1 min"),
            (90_000, "1 d 1 h"),
        ] {
            assert_eq!(format_duration(SignedDuration::from_secs(seconds)), words);
        }
    }
}
