//! Entries and times for tests.

use evenkeel_common::wire::FleetEntry;
use jiff::{SignedDuration, Timestamp};

/// Returns the time this many seconds after the start of the test.
pub(crate) fn at(seconds: i64) -> Timestamp {
    let begin: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    begin + SignedDuration::from_secs(seconds)
}

/// Creates an entry of an agent about an image.
pub(crate) fn entry(agent: &str, event: &str, image: &str, digest: &str) -> FleetEntry {
    FleetEntry {
        timestamp: at(0),
        machine: agent.to_owned(),
        service: "web".to_owned(),
        event: event.to_owned(),
        message: "m".to_owned(),
        level: "info".to_owned(),
        old_digest: None,
        new_digest: Some(digest.to_owned()),
        container: None,
        reason: Some("it crashed".to_owned()),
        output: Some("exit code 1".to_owned()),
        seq: None,
        epoch: None,
        image: Some(image.to_owned()),
        agent: agent.to_owned(),
    }
}
