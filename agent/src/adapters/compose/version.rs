//! Checks of compose's version. Each problem is one sentence that says what to install.

use std::fmt;

use crate::config::Runtime;

/// Oldest supported compose (DECISIONS 9).
const OLDEST: Version = Version { major: 2, minor: 20, patch: 0 };
/// Packages that provide compose.
const PACKAGES: &str = "docker-compose-v2 or docker-compose-plugin";

/// A version of compose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Version {
    /// Finds the version in the output of `compose version`, for example `Docker Compose version v2.26.1-4`. Returns
    /// `None` for podman-compose, which has its own version numbers.
    pub(super) fn find(text: &str) -> Option<Self> {
        if text.contains("podman-compose") {
            return None;
        }
        text.split_whitespace().find_map(|word| {
            let word = word.trim_start_matches('v');
            let end = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
            let mut numbers = word[..end].split('.').map(str::parse);
            let mut next = || numbers.next()?.ok();
            Some(Self { major: next()?, minor: next()?, patch: next().unwrap_or(0) })
        })
    }

    /// Returns why this version cannot be used with any engine.
    pub(super) fn fault(self, runtime: Runtime) -> Option<String> {
        let install = match runtime {
            Runtime::Docker => format!("install a newer {PACKAGES}"),
            Runtime::Podman => "install a newer docker-compose, which `podman compose` runs".to_owned(),
        };
        (self < OLDEST).then(|| {
            format!(
                "compose {self} is too old: {}.{} or later is needed ({install})",
                OLDEST.major, OLDEST.minor
            )
        })
    }

    /// Reports whether this version treats unchanged images as changed if the engine uses the containerd store
    /// (docker/compose#14005, #14036; fixed in 5.5.0).
    pub(super) fn misreads_containerd(self) -> bool {
        (self.major, self.minor) == (5, 4)
    }
}

/// The warning about [`Version::misreads_containerd`].
pub(super) fn misread(version: Version) -> String {
    format!(
        "compose {version} recreates unchanged containers where the engine keeps images in containerd's store: \
         install compose 5.5 or later (updates name the services that they change, so they are safe; `redeploy`, \
         compose_watch and auto_start are not)"
    )
}

/// Compose and the engine have no API version in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ApiMismatch {
    /// The engine requires a newer version than compose's.
    ComposeTooOld {
        /// Compose's.
        compose: String,
        /// The engine's minimum.
        engine: String,
    },
    /// Compose requires a newer version than the engine's.
    EngineTooOld {
        /// Compose's.
        compose: String,
        /// The engine's maximum.
        engine: String,
    },
}

impl ApiMismatch {
    /// Finds the error message of the engine, or of the client library in compose.
    pub(super) fn find(output: &str) -> Option<Self> {
        // The version number after this text.
        let after = |words: &str| {
            let rest = output.split_once(words)?.1.trim_start();
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            let number = rest[..end].trim_end_matches('.');
            (!number.is_empty()).then(|| number.to_owned())
        };
        let client = || after("client version ");
        if output.contains("is too old. Minimum supported API version is") {
            let engine = after("Minimum supported API version is ")?;
            return Some(Self::ComposeTooOld { compose: client()?, engine });
        }
        if output.contains("is too new. Maximum supported API version is") {
            let engine = after("Maximum supported API version is ")?;
            return Some(Self::EngineTooOld { compose: client()?, engine });
        }
        if output.contains("is not supported by this client: the minimum supported API version is") {
            let compose = after("the minimum supported API version is ")?;
            return Some(Self::EngineTooOld { compose, engine: after("API version ")? });
        }
        None
    }

    /// Describes the mismatch in one sentence.
    pub(super) fn sentence(&self, version: Option<Version>) -> String {
        let name = version.map_or_else(|| "this compose".to_owned(), |version| format!("compose {version}"));
        let (compose, engine) = match self {
            Self::ComposeTooOld { compose, engine } | Self::EngineTooOld { compose, engine } => {
                (compose, engine)
            }
        };
        let of_engine = release(engine).map(|docker| format!(" (Docker {docker})")).unwrap_or_default();
        match self {
            Self::ComposeTooOld { .. } => format!(
                "{name} is too old for this engine: it uses API {compose}, but the engine requires \
                 {engine}{of_engine} or later; install compose 2.26 or later ({PACKAGES})"
            ),
            Self::EngineTooOld { .. } => format!(
                "{name} is too new for this engine: it requires API {compose} or later, but the engine supports \
                 {engine}{of_engine} at most; upgrade the engine, or install compose 2.40"
            ),
        }
    }
}

/// The Docker release that introduced an API version.
fn release(api: &str) -> Option<&'static str> {
    Some(match api {
        "1.40" => "19.03",
        "1.41" => "20.10",
        "1.42" => "23.0",
        "1.43" => "24.0",
        "1.44" => "25.0",
        "1.45" => "26.0",
        "1.46" => "27.0",
        "1.48" => "28.0",
        "1.52" => "29.0",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_the_output_of_every_distribution() {
        let version = |text: &str| Version::find(text).map(|version| version.to_string());
        for (text, expected) in [
            ("Docker Compose version v2.26.1-4", Some("2.26.1")),
            ("Docker Compose version 2.40.3-3\n", Some("2.40.3")),
            ("2.20.0+ds1", Some("2.20.0")),
            ("v5.4.0-rc.1", Some("5.4.0")),
            ("docker-compose version 1.29.2, build unknown\ndocker-py version: 5.0.3", Some("1.29.2")),
            ("podman-compose version 1.0.6\nusing podman version: 4.3.1", None),
            ("Docker Compose version dev", None),
            ("", None),
        ] {
            assert_eq!(version(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn only_versions_below_the_oldest_supported_one_are_refused() {
        let fault = |text: &str| Version::find(text).unwrap().fault(Runtime::Docker);
        for good in ["2.20.0", "2.26.1-4", "2.40.3", "5.0.0", "5.9.1"] {
            assert_eq!(fault(good), None);
        }
        for bad in ["1.29.2", "2.5.0", "2.19.99"] {
            let text = fault(bad).unwrap();
            assert!(
                text.starts_with(&format!("compose {bad} is too old: 2.20 or later is needed")),
                "{text}"
            );
        }
    }

    #[test]
    fn an_api_mismatch_is_described_in_one_sentence() {
        let said =
            |text: &str| ApiMismatch::find(text).map(|mismatch| mismatch.sentence(Version::find("2.5.0")));
        let too_old = "Error response from daemon: client version 1.42 is too old. Minimum supported API version is 1.44, \
                       please upgrade your client to a newer version";
        assert_eq!(
            said(too_old).unwrap(),
            "compose 2.5.0 is too old for this engine: it uses API 1.42, but the engine requires \
             1.44 (Docker 25.0) or later; install compose 2.26 or later (docker-compose-v2 or docker-compose-plugin)"
        );
        let too_new = "client version 1.52 is too new. Maximum supported API version is 1.41";
        let text = "compose 2.5.0 is too new for this engine: it requires API 1.52 or later, but the engine supports \
                    1.41 (Docker 20.10) at most; upgrade the engine, or install compose 2.40";
        assert_eq!(said(too_new).unwrap(), text);
        let library =
            "API version 1.41 is not supported by this client: the minimum supported API version is 1.44";
        assert_eq!(said(library).unwrap(), text.replace("1.52", "1.44"));
        assert_eq!(said("Error response from daemon: No such image: web:1"), None);
    }
}
