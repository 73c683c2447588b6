//! Negotiation of the engine's API version (DECISIONS 9).

use std::fmt;

use serde_json::Value;

use super::answer;

/// The newest tested version: Docker 28.5. Engine 29 supports it, too.
const NEWEST_TESTED: ApiVersion = ApiVersion { major: 1, minor: 51 };
/// The version for engines that report none: Docker 20.10's, which podman also supports.
const OLDEST_TESTED: ApiVersion = ApiVersion { major: 1, minor: 41 };

/// Since Docker 24, the engine reads a container's counters on request. Before that, and in podman, which uses an older
/// version, a response may wait for the next run of the collector (DOMAIN 5).
const STATS_ON_REQUEST: ApiVersion = ApiVersion { major: 1, minor: 43 };

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

    /// Reports whether this version is within the tested range.
    pub(super) fn is_tested(self) -> bool {
        (OLDEST_TESTED..=NEWEST_TESTED).contains(&self)
    }

    /// Reports whether an engine with this version reads a container's counters on request.
    pub(super) fn reads_stats_on_request(self) -> bool {
        self >= STATS_ON_REQUEST
    }

    /// Converts it to the client library's type.
    pub(super) fn for_client(self) -> bollard::ClientVersion {
        let number = |part: u32| usize::try_from(part).unwrap_or_default();
        bollard::ClientVersion { major_version: number(self.major), minor_version: number(self.minor) }
    }
}

/// The API versions that an engine reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Supported {
    newest: Option<ApiVersion>,
    oldest: Option<ApiVersion>,
    /// Whether it is podman.
    pub(super) podman: bool,
}

impl Supported {
    /// Reads the response of `/version`.
    pub(super) fn from_version(version: &Value) -> Self {
        let number = |pointer: &str| answer::text(version, pointer).and_then(ApiVersion::parse);
        let is_podman =
            |part: &Value| answer::text(part, "/Name").is_some_and(|name| name.contains("Podman"));
        Self {
            newest: number("/ApiVersion"),
            oldest: number("/MinAPIVersion"),
            podman: answer::list(version, "/Components").iter().any(is_podman),
        }
    }

    /// Reads the version header of `/_ping`, which only has the newest version.
    pub(super) fn from_ping(header: &str) -> Self {
        Self { newest: ApiVersion::parse(header), ..Self::default() }
    }

    /// Returns the lower of the engine's newest version and the newest tested one, but not less than the engine's oldest.
    pub(super) fn negotiated(self) -> ApiVersion {
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
        Supported::from_version(&told).negotiated().to_string()
    }

    #[test]
    fn the_newest_common_version_is_negotiated() {
        for (newest, oldest, want) in [
            ("1.41", "1.12", "1.41"),
            ("1.45", "1.24", "1.45"),
            ("1.51", "1.24", "1.51"),
            ("1.52", "1.44", "1.51"),
            ("1.99", "1.44", "1.51"),
            ("2.0", "1.44", "1.51"),
            // Never below the engine's minimum, tested or not.
            ("1.60", "1.55", "1.55"),
            ("1.9", "1.9", "1.9"),
        ] {
            assert_eq!(agreed(newest, oldest), want, "{newest} {oldest}");
        }
    }

    #[test]
    fn missing_versions_are_unknown() {
        assert_eq!(agreed(Value::Null, Value::Null), "1.41");
        assert_eq!(agreed("nonsense", 5), "1.41");
        assert_eq!(agreed(Value::Null, "1.44"), "1.44");
        assert_eq!(agreed("1.51", Value::Null), "1.51");
        assert_eq!(Supported::from_version(&json!([1])).negotiated().to_string(), "1.41");
        assert_eq!(Supported::from_ping("1.41").negotiated().to_string(), "1.41");
        assert_eq!(Supported::from_ping("").negotiated().to_string(), "1.41");
    }

    #[test]
    fn podman_is_recognized_by_its_component() {
        let podman =
            json!({ "ApiVersion": "1.41", "Components": [{ "Name": "Podman Engine", "Version": "5.4.2" }] });
        assert!(Supported::from_version(&podman).podman);
        let docker =
            json!({ "ApiVersion": "1.51", "Components": [{ "Name": "Engine" }, null, { "Name": 3 }] });
        assert!(!Supported::from_version(&docker).podman);
    }
}
