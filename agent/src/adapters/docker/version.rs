//! Which version of its API an engine is spoken to in (DECISIONS 9).

use std::fmt;

use serde_json::Value;

use super::answer;

/// The newest version that this program was tested with: Docker 28.5. Engine 29 speaks it, too.
const NEWEST_TESTED: ApiVersion = ApiVersion { major: 1, minor: 51 };
/// What an engine is asked in that names no version: Docker 20.10's, which podman speaks as well.
const OLDEST_TESTED: ApiVersion = ApiVersion { major: 1, minor: 41 };

/// Since Docker 24 an engine reads a container's counters when it is asked. Before, and in podman, which speaks an older
/// version, an answer may wait for the next run of a collector (DOMAIN 5).
const STATS_AT_ONCE: ApiVersion = ApiVersion { major: 1, minor: 43 };

/// A version of the engine's API, for example `1.41`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ApiVersion {
    major: u32,
    minor: u32,
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl ApiVersion {
    fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.trim().split_once('.')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }

    /// Whether this program was tested with it, or with a newer and an older one.
    pub(super) fn is_tested(self) -> bool {
        (OLDEST_TESTED..=NEWEST_TESTED).contains(&self)
    }

    /// Whether an engine that speaks it reads a container's counters when it is asked.
    pub(super) fn reads_stats_at_once(self) -> bool {
        self >= STATS_AT_ONCE
    }

    /// Its number in the client library's terms.
    pub(super) fn for_client(self) -> bollard::ClientVersion {
        let number = |part: u32| usize::try_from(part).unwrap_or_default();
        bollard::ClientVersion { major_version: number(self.major), minor_version: number(self.minor) }
    }
}

/// What an engine says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Spoken {
    newest: Option<ApiVersion>,
    oldest: Option<ApiVersion>,
    /// Whether it is podman.
    pub(super) podman: bool,
}

impl Spoken {
    /// From the answer to `/version`.
    pub(super) fn told(version: &Value) -> Self {
        let number = |pointer: &str| answer::text(version, pointer).and_then(ApiVersion::parse);
        let is_podman =
            |part: &Value| answer::text(part, "/Name").is_some_and(|name| name.contains("Podman"));
        Self {
            newest: number("/ApiVersion"),
            oldest: number("/MinAPIVersion"),
            podman: answer::list(version, "/Components").iter().any(is_podman),
        }
    }

    /// From the header of an answer to `/_ping`, which only names the newest version.
    pub(super) fn hinted(header: &str) -> Self {
        Self { newest: ApiVersion::parse(header), ..Self::default() }
    }

    /// The lower of the engine's newest version and the newest tested one, but not under the engine's oldest.
    pub(super) fn agreed(self) -> ApiVersion {
        let best = self.newest.map_or(OLDEST_TESTED, |newest| newest.min(NEWEST_TESTED));
        self.oldest.map_or(best, |oldest| best.max(oldest))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn agreed(newest: impl Into<Value>, oldest: impl Into<Value>) -> String {
        let told = json!({ "ApiVersion": newest.into(), "MinAPIVersion": oldest.into() });
        Spoken::told(&told).agreed().to_string()
    }

    #[test]
    fn the_version_is_the_newest_that_both_know() {
        for (newest, oldest, want) in [
            ("1.41", "1.12", "1.41"),
            ("1.45", "1.24", "1.45"),
            ("1.51", "1.24", "1.51"),
            ("1.52", "1.44", "1.51"),
            ("1.99", "1.44", "1.51"),
            ("2.0", "1.44", "1.51"),
            // Never under the engine's minimum, be it tested or not.
            ("1.60", "1.55", "1.55"),
            ("1.9", "1.9", "1.9"),
        ] {
            assert_eq!(agreed(newest, oldest), want, "{newest} {oldest}");
        }
    }

    #[test]
    fn what_is_not_said_is_unknown() {
        assert_eq!(agreed(Value::Null, Value::Null), "1.41");
        assert_eq!(agreed("nonsense", 5), "1.41");
        assert_eq!(agreed(Value::Null, "1.44"), "1.44");
        assert_eq!(agreed("1.51", Value::Null), "1.51");
        assert_eq!(Spoken::told(&json!([1])).agreed().to_string(), "1.41");
        assert_eq!(Spoken::hinted("1.41").agreed().to_string(), "1.41");
        assert_eq!(Spoken::hinted("").agreed().to_string(), "1.41");
    }

    #[test]
    fn podman_is_known_by_its_component() {
        let podman =
            json!({ "ApiVersion": "1.41", "Components": [{ "Name": "Podman Engine", "Version": "5.4.2" }] });
        assert!(Spoken::told(&podman).podman);
        let docker =
            json!({ "ApiVersion": "1.51", "Components": [{ "Name": "Engine" }, null, { "Name": 3 }] });
        assert!(!Spoken::told(&docker).podman);
    }
}
