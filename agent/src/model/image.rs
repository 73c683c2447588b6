//! Image references and digests: parsing, normalization and comparison (Docker's reference grammar).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Docker Hub's host in image references.
pub const HUB: &str = "docker.io";

/// Host that podman gives to images that are only on this machine.
pub const LOCAL_HOST: &str = "localhost";

/// Host of the tags that pin old images during a deployment. No registry can have this name.
pub const PIN_HOST: &str = "evenkeel.hold";

/// Content digest, `sha256:<64 hex>` or `sha512:<128 hex>`. Clones share the text, because a service stores the same digest
/// in a dozen places.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(Arc<str>);

impl Digest {
    /// Parses and validates a digest.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        let hex_of = |len: usize, hex: &str| {
            hex.len() == len && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        let ok = match text.split_once(':') {
            Some(("sha256", hex)) => hex_of(64, hex),
            Some(("sha512", hex)) => hex_of(128, hex),
            _ => false,
        };
        if ok { Ok(Self(text.into())) } else { Err(ReferenceError::Digest(clip(text))) }
    }

    /// Computes the SHA-256 digest of `content`.
    pub fn of(content: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(format!("sha256:{}", hex::encode(sha2::Sha256::digest(content))).into())
    }

    /// Reports whether this is the digest of `content`, using the digest's own algorithm.
    pub fn is_of(&self, content: &[u8]) -> bool {
        use sha2::Digest as _;
        match self.0.split_once(':') {
            Some(("sha512", hex)) => hex::encode(sha2::Sha512::digest(content)) == hex,
            _ => *self == Self::of(content),
        }
    }

    /// Returns the digest as text, including the algorithm.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the first 19 characters (spec 2.2).
    pub fn short(&self) -> &str {
        &self.0[..19]
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Digest {
    type Error = ReferenceError;
    fn try_from(text: String) -> Result<Self, ReferenceError> {
        Self::parse(&text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.0.as_ref().to_owned()
    }
}

/// ID of an image in the local engine (a config digest, or a manifest digest with the containerd store). Clones share the
/// text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct ImageId(pub Arc<str>);

impl From<String> for ImageId {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<ImageId> for String {
    fn from(id: ImageId) -> String {
        id.0.as_ref().to_owned()
    }
}

impl From<&Digest> for ImageId {
    fn from(digest: &Digest) -> Self {
        Self(digest.0.clone())
    }
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The `org.opencontainers.image.*` labels of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageLabels {
    /// `version`, for example 1.27.3.
    pub version: Option<String>,
    /// `revision`: the commit that the image was built from.
    pub revision: Option<String>,
    /// `source`: URL of the source code.
    pub source: Option<String>,
}

impl ImageLabels {
    /// Reads the labels of an image. Each value is reduced to one line of at most 200 characters.
    pub fn read<'a>(label: impl Fn(&str) -> Option<&'a str>) -> Self {
        let read = |name: &str| {
            let text = label(&format!("org.opencontainers.image.{name}"))?;
            let text: String = text.trim().chars().filter(|c| !c.is_control()).take(200).collect();
            (!text.is_empty()).then_some(text)
        };
        Self { version: read("version"), revision: read("revision"), source: read("source") }
    }
}

/// Registry host and repository path of an image, normalized.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Repository {
    /// Host and port; [`HUB`] for Docker Hub.
    pub host: String,
    /// Path inside the registry; official Docker Hub images have `library/`.
    pub path: String,
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.path)
    }
}

/// A normalized image reference.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Reference {
    /// Registry and repository.
    pub repository: Repository,
    /// Tag; `latest` if the text has neither tag nor digest.
    pub tag: Option<String>,
    /// Digest that the reference is pinned to.
    pub digest: Option<Digest>,
}

/// Why a text is not an image reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// Not `sha256:<64 hex>` or `sha512:<128 hex>`.
    #[error("\"{0}\" is not a digest (sha256: and 64 hex digits, or sha512: and 128)")]
    Digest(String),
    /// The text is empty.
    #[error("an image reference is empty")]
    Empty,
    /// The repository path is invalid.
    #[error(
        "\"{0}\" is not a repository name (lower-case letters and digits, separated by single . _ __ - or /, at most 255 characters)"
    )]
    Path(String),
    /// The tag is invalid.
    #[error(
        "\"{0}\" is not a tag (letters, digits, _ . -, at most 128 characters, not starting with . or -)"
    )]
    Tag(String),
    /// The host is invalid.
    #[error("\"{0}\" is not a registry host (a name with a dot, name:port, or localhost)")]
    Host(String),
}

impl Reference {
    /// Returns the reference with another tag.
    #[must_use]
    pub fn with_tag(&self, tag: &str) -> Self {
        Self { tag: Some(tag.to_owned()), ..self.clone() }
    }

    /// Parses a reference as the engine does: the default host is Docker Hub.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        Self::parse_in(text, HUB)
    }

    /// Parses a reference, using `default_host` if it has no host (DECISIONS 4).
    pub fn parse_in(text: &str, default_host: &str) -> Result<Self, ReferenceError> {
        if text.is_empty() {
            return Err(ReferenceError::Empty);
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(Digest::parse(digest)?)),
            None => (text, None),
        };
        let (host, rest) = match rest.split_once('/') {
            Some((host, rest)) if is_host(host) => (host, rest),
            _ => (default_host, rest),
        };
        // Only a colon after the last slash starts a tag; the host with its port is already split off.
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
            _ => (rest, None),
        };
        // A default host like `registry` would be parsed as a path on Docker Hub later; it must be written `registry:80`.
        if !is_host(host) || !host_is_valid(host) {
            return Err(ReferenceError::Host(clip(host)));
        }
        let host = if host == "index.docker.io" { HUB } else { host };
        let path =
            if host == HUB && !path.contains('/') { format!("library/{path}") } else { path.to_owned() };
        if !path_is_valid(&path) {
            return Err(ReferenceError::Path(clip(&path)));
        }
        if let Some(tag) = tag
            && !tag_is_valid(tag)
        {
            return Err(ReferenceError::Tag(clip(tag)));
        }
        let tag = match (tag, &digest) {
            (Some(tag), _) => Some(tag.to_owned()),
            (None, None) => Some("latest".to_owned()),
            (None, Some(_)) => None,
        };
        Ok(Self { repository: Repository { host: host.to_owned(), path }, tag, digest })
    }

    /// Reports whether the reference is pinned to a digest, so that there is nothing to poll.
    pub fn is_pinned(&self) -> bool {
        self.digest.is_some()
    }

    /// Returns `host/path:tag`, as used to tag images in the engine.
    pub fn tagged(&self) -> String {
        format!("{}:{}", self.repository, self.tag.as_deref().unwrap_or("latest"))
    }
}

impl Repository {
    /// Returns `host/path@digest`, as used to pull images by digest.
    pub fn at(&self, digest: &Digest) -> String {
        format!("{self}@{digest}")
    }

    /// Returns the reference to the image with this digest.
    pub fn pinned(&self, digest: &Digest) -> Reference {
        Reference { repository: self.clone(), tag: None, digest: Some(digest.clone()) }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.repository.fmt(f)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl TryFrom<String> for Reference {
    type Error = ReferenceError;
    fn try_from(text: String) -> Result<Self, ReferenceError> {
        Self::parse(&text)
    }
}

impl From<Reference> for String {
    fn from(reference: Reference) -> String {
        reference.to_string()
    }
}

/// Returns the digests among an image's `RepoDigests` (`name@sha256:…`) that belong to exactly `repository`.
pub fn digests_in<'a>(
    repository: &'a Repository,
    repo_digests: &'a [String],
) -> impl Iterator<Item = Digest> + 'a {
    repo_digests
        .iter()
        .filter_map(|text| Reference::parse(text).ok())
        .filter(move |reference| reference.repository == *repository)
        .filter_map(|reference| reference.digest)
}

/// The engine's rule: the part before the first slash is a host if it contains a dot or a colon, or is `localhost`.
fn is_host(text: &str) -> bool {
    text.contains(['.', ':']) || text == "localhost"
}

fn host_is_valid(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (host, None),
    };
    let name_ok = match name.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')) {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !name.is_empty()
                && name.split('.').all(|label| {
                    !label.is_empty()
                        && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                        && !label.starts_with('-')
                        && !label.ends_with('-')
                })
        }
    };
    // Digits only: `parse` alone would accept `+80`.
    let port_ok = |port: &str| {
        port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    name_ok && port.is_none_or(port_ok)
}

fn path_is_valid(path: &str) -> bool {
    path.len() <= 255 && path.split('/').all(component_is_valid)
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
fn component_is_valid(text: &str) -> bool {
    let bytes = text.as_bytes();
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    if bytes.first().is_none_or(|b| !word(*b)) || bytes.last().is_none_or(|b| !word(*b)) {
        return false;
    }
    text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        .all(|separator| matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|b| b == b'-'))
}

/// Reports whether the engine accepts this as a tag.
pub fn tag_is_valid(tag: &str) -> bool {
    tag.len() <= 128
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
        && tag.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Truncates input quoted in error messages.
fn clip(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(text: &str) -> String {
        Reference::parse(text).unwrap().to_string()
    }

    #[test]
    fn references_are_normalized_as_by_the_engine() {
        for text in ["x", "library/x", "docker.io/x", "docker.io/library/x", "index.docker.io/x"] {
            assert_eq!(full(text), "docker.io/library/x:latest", "{text}");
        }
        for text in ["foo/x", "index.docker.io/foo/x"] {
            assert_eq!(full(text), "docker.io/foo/x:latest", "{text}");
        }
        assert_eq!(full("foo_bar/x"), "docker.io/foo_bar/x:latest");
        assert_eq!(full("localhost/x"), "localhost/x:latest");
        assert_eq!(full("localhost:5000/x"), "localhost:5000/x:latest");
        assert_eq!(full("127.0.0.1:5000/a/b:T1"), "127.0.0.1:5000/a/b:T1");
        assert_eq!(full("foo.bar/x"), "foo.bar/x:latest");
        assert_eq!(full("docker.io:443/x"), "docker.io:443/x:latest");
        assert_eq!(full("[::1]:5000/x"), "[::1]:5000/x:latest");
    }

    #[test]
    fn a_reference_without_host_belongs_to_the_configured_registry() {
        let home = |text: &str| Reference::parse_in(text, "localhost:5000").unwrap().to_string();
        assert_eq!(home("web:latest"), "localhost:5000/web:latest");
        assert_eq!(home("team/web"), "localhost:5000/team/web:latest");
        assert_eq!(home("ghcr.io/a/b:1"), "ghcr.io/a/b:1");
    }

    #[test]
    fn pinned_references_keep_tag_and_digest() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let both = Reference::parse(&format!("localhost:5000/x:1@{digest}")).unwrap();
        assert!(both.is_pinned());
        assert_eq!(both.tag.as_deref(), Some("1"));
        let only = Reference::parse(&format!("localhost:5000/x@{digest}")).unwrap();
        assert_eq!(only.tag, None);
        assert_eq!(only.to_string(), format!("localhost:5000/x@{digest}"));
    }

    #[test]
    fn invalid_references_are_rejected_with_a_reason() {
        for text in
            ["", "Foo/x", "x/", "/x", "a//b", "x:", "x:-1", "x@sha256:12", "x y", "a__-b", "-x", "x\n"]
        {
            assert!(Reference::parse(text).is_err(), "{text:?}");
        }
        let long = "a".repeat(100_000);
        assert!(Reference::parse(&long).unwrap_err().to_string().len() < 400);
    }

    #[test]
    fn hosts_and_ports_follow_the_grammar() {
        for text in
            ["a:+80/x", "a:0/x", "a:65536/x", "a:/x", ":80/x", "-a.b/x", "a..b/x", "[::g]:1/x", "a_b.c/x"]
        {
            assert!(matches!(Reference::parse(text), Err(ReferenceError::Host(_))), "{text}");
        }
        assert!(matches!(Reference::parse_in("x", "registry"), Err(ReferenceError::Host(_))));
        assert_eq!(Reference::parse_in("x", "registry:80").unwrap().to_string(), "registry:80/x:latest");
    }

    #[test]
    fn references_round_trip() {
        for text in
            ["x", "a/b:1", "localhost/x", "localhost:5000/a/b:T1", "[::1]:5000/x", "ghcr.io/a/b:1.2-x_y"]
        {
            let reference = Reference::parse(text).unwrap();
            assert_eq!(Reference::parse(&reference.to_string()), Ok(reference), "{text}");
        }
    }

    #[test]
    fn content_is_verified_with_the_digests_own_algorithm() {
        let sha512 = {
            use sha2::Digest as _;
            Digest::parse(&format!("sha512:{}", hex::encode(sha2::Sha512::digest(b"content")))).unwrap()
        };
        assert!(sha512.is_of(b"content") && !sha512.is_of(b"other"));
        assert!(Digest::of(b"content").is_of(b"content") && !Digest::of(b"content").is_of(b"other"));
        for text in ["sha256:", "sha512:aa", "SHA256:aa", "md5:aa", ""] {
            assert!(Digest::parse(text).is_err(), "{text}");
        }
        assert!(Digest::parse(&format!("sha256:{}", "A".repeat(64))).is_err(), "digests are lower case");
    }

    #[test]
    fn only_digests_of_exactly_that_repository_count() {
        let d = |n: char| format!("sha256:{}", n.to_string().repeat(64));
        let have = vec![
            format!("localhost:5000/web@{}", d('a')),
            format!("localhost:5000/web2@{}", d('b')),
            "<none>".into(),
        ];
        let reference = Reference::parse("localhost:5000/web").unwrap();
        let found: Vec<_> = digests_in(&reference.repository, &have).collect();
        assert_eq!(found, [Digest::parse(&d('a')).unwrap()]);
    }
}
