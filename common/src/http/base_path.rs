//! `api.base_path`: the path below which a program is served, for a reverse proxy that serves several programs.

use std::fmt;
use std::sync::Arc;

/// A path such as `/evenkeel`, without a slash at its end; empty by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BasePath(Option<Arc<str>>);

/// Where the path of a request leads.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// To this path of the program.
    Inside(&'a str),
    /// To the base path without the slash at its end: to be redirected, since links on a page are relative to it.
    NoSlash,
    /// Not to this program.
    Outside,
}

impl BasePath {
    /// Parses a configured path. A slash at its end is ignored; empty and `/` mean no base path. The error says what is
    /// allowed.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let path = text.strip_suffix('/').unwrap_or(text);
        if path.is_empty() {
            return Ok(Self::default());
        }
        // These characters are never percent-encoded, and mean nothing in a URL, a cookie or a header.
        let is_segment = |part: &str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
            !part.is_empty() && part != "." && part != ".." && part.bytes().all(is_plain)
        };
        match path.strip_prefix('/') {
            Some(rest) if path.len() <= 200 && rest.split('/').all(is_segment) => Ok(Self(Some(path.into()))),
            _ => Err("a path of letters, digits, \"-\", \"_\", \".\" and \"~\", such as /evenkeel"),
        }
    }

    /// The path without a slash at its end; empty if there is none.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Locates a request. `/health` is also served outside: whoever probes the program itself, such as a container's health
    /// check, does not go through the proxy.
    pub(super) fn place<'a>(&self, path: &'a str) -> Place<'a> {
        match path.strip_prefix(self.as_str()) {
            Some("") => Place::NoSlash,
            Some(rest) if rest.starts_with('/') => Place::Inside(rest),
            _ if path == "/health" => Place::Inside(path),
            _ => Place::Outside,
        }
    }
}

impl fmt::Display for BasePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_path_has_only_characters_that_are_never_encoded() {
        for (text, expected) in [
            ("", ""),
            ("/", ""),
            ("/evenkeel", "/evenkeel"),
            ("/evenkeel/", "/evenkeel"),
            ("/a/B-c_1.2~x/d", "/a/B-c_1.2~x/d"),
        ] {
            assert_eq!(BasePath::parse(text).unwrap().as_str(), expected, "{text}");
        }
        let long = format!("/{}", "x".repeat(200));
        for text in [
            "evenkeel",
            "//",
            "/a//b",
            "/a//",
            "/..",
            "/a/../b",
            "/.",
            "/a b",
            "/a;b",
            "/%41",
            "/ä",
            "/a?b",
            "/a#b",
            "http://x/a",
            "/{name}",
            "/a\n",
            &long,
        ] {
            assert!(BasePath::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_requests_below_the_base_path_and_health_are_inside() {
        let none = BasePath::default();
        for path in ["/", "/ui", "/health", "//"] {
            assert_eq!(none.place(path), Place::Inside(path));
        }
        let base = BasePath::parse("/ek").unwrap();
        for (path, expected) in [
            ("/ek/", Place::Inside("/")),
            ("/ek/ui", Place::Inside("/ui")),
            ("/ek/ek/ui", Place::Inside("/ek/ui")),
            ("/ek/health", Place::Inside("/health")),
            ("/health", Place::Inside("/health")),
            ("/ek", Place::NoSlash),
            ("/", Place::Outside),
            ("/ui", Place::Outside),
            ("/ekx/ui", Place::Outside),
            ("/EK/ui", Place::Outside),
            ("/%65k/ui", Place::Outside),
            ("/health/", Place::Outside),
            ("/metrics", Place::Outside),
        ] {
            assert_eq!(base.place(path), expected, "{path}");
        }
    }
}
