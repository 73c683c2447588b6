//! The audit entry (spec 2.7) and its vocabulary.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One notable event.
///
/// Field order is wire order.
// Spec 2.7; `machine` and what follows `reason` are additions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditEntry {
    /// When it happened, RFC 3339 UTC with millisecond precision.
    #[schemars(with = "String")]
    pub timestamp: Timestamp,
    /// Machine on which it happened; empty until the entry leaves the machine.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// Configured service name, or `evenkeel` for the program itself.
    pub service: String,
    /// What happened.
    pub event: Kind,
    /// One human-readable sentence.
    pub message: String,
    /// Severity.
    pub level: Level,
    /// Digest that ran before, `sha256:<hex>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_digest: Option<String>,
    /// Digest that the entry is about: running, tried or to be deployed; `sha256:<hex>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_digest: Option<String>,
    /// Name of the affected container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Why, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Longer output: compose output, last log lines (at most 8 KiB).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// Sequence number among the entries of its agent, which only increases; absent until the entry leaves the machine.
    // DECISIONS 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Identifies the numbering that `seq` belongs to: an opaque string of at most 64 characters, created with the agent's
    /// state.
    // DECISIONS 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
    /// Affected image, including the registry host, so that different spellings on different machines match.
    // DECISIONS 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Further images that failed in the same deployment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also_failed: Vec<ImageDigest>,
    /// For how many seconds a deployment interrupted the service: none of the containers was running and healthy. Of several
    /// compose services the longest; omitted where unknown.
    // DECISIONS 12.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage_seconds: Option<Tenths>,
}

/// A number of seconds with one decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(from = "f64", into = "f64")]
#[schemars(with = "f64")]
pub struct Tenths(u32);

impl From<f64> for Tenths {
    /// Rounds; a number out of range becomes the nearest one.
    // The cast saturates, and makes NaN 0.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn from(seconds: f64) -> Self {
        Self((seconds * 10.0).round() as u32)
    }
}

impl From<Tenths> for f64 {
    fn from(Tenths(tenths): Tenths) -> Self {
        f64::from(tenths) / 10.0
    }
}

impl From<Duration> for Tenths {
    fn from(duration: Duration) -> Self {
        Self::from(duration.as_secs_f64())
    }
}

impl fmt::Display for Tenths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", f64::from(*self))
    }
}

/// An image and its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageDigest {
    /// Image reference, including the registry host.
    pub image: String,
    /// `sha256:<hex>`
    pub digest: String,
}

impl AuditEntry {
    /// Creates an entry with the five required fields.
    pub fn new(at: Timestamp, service: &str, event: Kind, level: Level, message: impl Into<String>) -> Self {
        Self {
            timestamp: at,
            machine: String::new(),
            service: service.to_owned(),
            event,
            message: message.into(),
            level,
            old_digest: None,
            new_digest: None,
            container: None,
            reason: None,
            output: String::new(),
            seq: None,
            epoch: None,
            image: None,
            also_failed: Vec::new(),
            outage_seconds: None,
        }
    }
}

/// Kind of an audit entry. The known kinds are constants; an entry from another program may have any other kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Kind(Cow<'static, str>);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        impl Kind {
            $($(#[$doc])* pub const $name: Kind = Kind(Cow::Borrowed($text));)*

            /// All kinds that these programs write, in the order of the documentation.
            pub const ALL: &'static [Kind] = &[$(Kind::$name),*];
        }
    };
}

kinds! {
    /// The program, or a service, was started.
    STARTED = "started";
    /// The program is stopping.
    SHUTDOWN = "shutdown";
    /// An operator requested an immediate check.
    MANUAL_TRIGGER = "manual_trigger";
    /// A manual check found nothing to do.
    CHECKED = "checked";
    /// A manual check failed.
    TRIGGER_FAILED = "trigger_failed";
    /// A persistent fault began or changed.
    ERROR = "error";
    /// A receiver does not accept an entry, but others: the entry is not sent to it again.
    NOT_DELIVERED = "not_delivered";
    /// A persistent fault has been resolved.
    RECOVERED = "recovered";
    /// The local image could not be resolved.
    NOT_FOUND = "not_found";
    /// An operator approved an image.
    APPROVED = "approved";
    /// A new image passed its probation.
    UPDATED = "updated";
    /// A new image was pulled, but no container runs it.
    PULLED = "pulled";
    /// A new image failed and the old one is healthy again.
    ROLLED_BACK = "rolled_back";
    /// A new image failed, and so did the rollback.
    ROLLBACK_FAILED = "rollback_failed";
    /// A gate holds back an image, or there is a newer tag.
    UPDATE_AVAILABLE = "update_available";
    /// A rollback would now fail, or is possible again.
    WAY_BACK = "way_back";
    /// The compose files changed and were applied.
    COMPOSE_DRIFT = "compose_drift";
    /// A manual redeployment succeeded.
    FORCE_REDEPLOY = "force_redeploy";
    /// A manual redeployment failed.
    FORCE_REDEPLOY_FAILED = "force_redeploy_failed";
    /// A block was lifted.
    UNBLOCKED = "unblocked";
    /// A container became unhealthy.
    UNHEALTHY = "unhealthy";
    /// The healer restarts a container.
    RESTARTING = "restarting";
    /// A restart did not help.
    RESTART_FAILED = "restart_failed";
    /// A restart helped.
    RESTARTED = "restarted";
    /// The healer gave up.
    EXHAUSTED = "exhausted";
    /// A container became healthy.
    HEALTHY = "healthy";
    /// A container died.
    DIED = "died";
    /// CPU or memory usage exceeded its threshold.
    RESOURCE_ALERT = "resource_alert";
    /// An unfinished deployment was resumed after a restart.
    RESUMED = "resumed";
    /// The configuration was reloaded and applied.
    CONFIG_RELOADED = "config_reloaded";
    /// The configuration was reloaded and rejected.
    CONFIG_REJECTED = "config_rejected";
    /// The container engine stopped responding.
    DAEMON_DOWN = "daemon_down";
    /// The container engine responds again.
    DAEMON_UP = "daemon_up";
    /// An agent responds to the warden again.
    AGENT_ONLINE = "agent_online";
    /// An agent stopped responding to the warden.
    AGENT_OFFLINE = "agent_offline";
    /// Updates of the fleet, or of part of it, are frozen.
    FROZEN = "frozen";
    /// A freeze was lifted early.
    THAWED = "thawed";
    /// No warden is reachable, or one is reachable again.
    FLEET_AWAY = "fleet_away";
}

impl Kind {
    /// The value on the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Severity of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Worth knowing.
    Info,
    /// Worth a look during working hours.
    Warning,
    /// Something does not work.
    Error,
    /// Requires action.
    Critical,
}

impl Level {
    /// The value on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Error => "error",
            Level::Critical => "critical",
        }
    }
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_fields_are_omitted_and_the_order_is_that_of_the_spec() {
        let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let mut entry = AuditEntry::new(at, "web", Kind::UPDATED, Level::Info, "web is up to date");
        entry.new_digest = Some("sha256:ab".into());
        assert_eq!(
            serde_json::to_string(&entry).unwrap(),
            r#"{"timestamp":"2026-01-02T03:04:05Z","service":"web","event":"updated","message":"web is up to date","level":"info","new_digest":"sha256:ab"}"#
        );
    }

    #[test]
    fn an_unknown_kind_survives_the_round_trip() {
        let kind: Kind = serde_json::from_str("\"from_elsewhere\"").unwrap();
        assert_eq!(serde_json::to_string(&kind).unwrap(), "\"from_elsewhere\"");
    }
}
