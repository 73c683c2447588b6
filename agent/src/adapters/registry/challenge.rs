//! Parses the challenges of a 401: `WWW-Authenticate` headers (RFC 9110 section 11).
//!
//! The parser skips what it does not understand. That of the crate `http-auth` ends instead, and with it the challenges that
//! follow are lost: at an unquoted URL, at the token of another scheme (`Negotiate abc==`), at a character beyond ASCII.

use http::header::{HeaderMap, WWW_AUTHENTICATE};
use url::Url;

use super::transport::without_login;

/// A supported challenge of a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// User name and password with every request.
    Basic,
    /// A token issued by a token service.
    Bearer {
        /// URL of the token service.
        realm: Box<Url>,
        /// The service that the token is for.
        service: Option<String>,
        /// The access that the token grants.
        scope: Option<String>,
    },
}

impl Challenge {
    /// Returns the best supported challenge among all headers, Bearer before Basic, if any.
    pub(super) fn choose(headers: &HeaderMap) -> Option<Self> {
        let offers: Vec<Offer> = headers
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .flat_map(|value| parse(&String::from_utf8_lossy(value.as_bytes())))
            .collect();
        offers.iter().find_map(Offer::bearer).or_else(|| offers.iter().find_map(Offer::basic))
    }
}

/// A challenge as received in a header.
#[derive(Debug, PartialEq, Eq)]
struct Offer {
    scheme: String,
    parameters: Vec<(String, String)>,
}

impl Offer {
    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    fn bearer(&self) -> Option<Challenge> {
        if !self.scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        // Credentials in the URL would be sent as a login chosen by the registry.
        let realm = without_login(Url::parse(self.parameter("realm")?).ok()?)?;
        Some(Challenge::Bearer {
            realm: Box::new(realm),
            service: self.parameter("service").map(str::to_owned),
            scope: self.parameter("scope").filter(|scope| !scope.is_empty()).map(str::to_owned),
        })
    }

    fn basic(&self) -> Option<Challenge> {
        self.scheme.eq_ignore_ascii_case("basic").then_some(Challenge::Basic)
    }
}

/// Parses a header leniently: invalid parts are skipped.
fn parse(header: &str) -> Vec<Offer> {
    let mut rest = Scanner(header);
    let mut offers = Vec::new();
    loop {
        rest.skip(|c| c == ',' || c.is_whitespace());
        if rest.0.is_empty() {
            return offers;
        }
        let scheme = rest.take(is_token);
        if scheme.is_empty() {
            rest.skip_one();
            continue;
        }
        let mut parameters = Vec::new();
        while let Some(parameter) = rest.parameter() {
            parameters.push(parameter);
        }
        offers.push(Offer { scheme: scheme.to_owned(), parameters });
    }
}

/// The unparsed rest of a header.
struct Scanner<'a>(&'a str);

impl<'a> Scanner<'a> {
    fn take(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let end = self.0.find(|c| !belongs(c)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at(end);
        self.0 = rest;
        taken
    }

    fn skip(&mut self, belongs: impl Fn(char) -> bool) {
        self.take(belongs);
    }

    fn skip_one(&mut self) {
        let mut chars = self.0.chars();
        chars.next();
        self.0 = chars.as_str();
    }

    /// Parses `name=value` or `name="value"`. Returns `None` and consumes nothing if a new scheme starts.
    fn parameter(&mut self) -> Option<(String, String)> {
        let mut ahead = Scanner(self.0);
        ahead.skip(|c| c == ',' || c.is_whitespace());
        let name = ahead.take(is_token);
        ahead.skip(char::is_whitespace);
        if name.is_empty() || !ahead.0.starts_with('=') {
            return None;
        }
        ahead.skip_one();
        ahead.skip(char::is_whitespace);
        // Registries also send unquoted URLs, which the grammar does not allow.
        let value = if ahead.0.starts_with('"') {
            ahead.quoted()
        } else {
            ahead.take(|c| c != ',' && !c.is_whitespace()).to_owned()
        };
        self.0 = ahead.0;
        Some((name.to_owned(), value))
    }

    fn quoted(&mut self) -> String {
        let mut value = String::new();
        let mut chars = self.0.chars();
        chars.next();
        while let Some(c) = chars.next() {
            match c {
                '"' => break,
                '\\' => value.extend(chars.next()),
                c => value.push(c),
            }
        }
        self.0 = chars.as_str();
        value
    }
}

fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(headers: &[&str]) -> Option<Challenge> {
        let mut map = HeaderMap::new();
        for text in headers {
            map.append(WWW_AUTHENTICATE, text.parse().unwrap());
        }
        Challenge::choose(&map)
    }

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Challenge {
        Challenge::Bearer {
            realm: Box::new(Url::parse(realm).unwrap()),
            service: service.map(str::to_owned),
            scope: scope.map(str::to_owned),
        }
    }

    #[test]
    fn commas_escaped_quotes_and_equal_signs_are_allowed_in_quoted_values() {
        assert_eq!(
            choose(&[
                r#"Bearer realm="http://127.0.0.1:5059/token?a=1,2",service="dom, \"svc\"",scope="repository:dom-n/app:pull""#
            ]),
            Some(bearer(
                "http://127.0.0.1:5059/token?a=1,2",
                Some("dom, \"svc\""),
                Some("repository:dom-n/app:pull")
            ))
        );
        assert_eq!(
            choose(&[r#"Basic realm="Dom \"Quoted\", Bearer realm=x, realm""#]),
            Some(Challenge::Basic)
        );
    }

    #[test]
    fn several_challenges_may_share_one_header_or_have_one_each() {
        let wanted = Some(bearer("https://a.example/t", Some("s"), None));
        let header = r#"Negotiate abc==, Basic realm="x, y", Bearer realm="https://a.example/t",service="s""#;
        assert_eq!(choose(&[header]), wanted);
        assert_eq!(choose(&["Basic realm=x", r#"bEARER rEALM = "https://a.example/t" , SERVICE=s"#]), wanted);
        assert_eq!(choose(&["Bearer realm=https://a.example/t,service=s"]), wanted);
    }

    #[test]
    fn an_unsupported_challenge_is_none() {
        for text in
            ["", "Negotiate", "Bearer", "Bearer realm=\"\"", "Bearer realm=\"ftp://x/\"", "=,=\"\\", "\"é"]
        {
            assert_eq!(choose(&[text]), None, "{text:?}");
        }
        assert_eq!(choose(&["Bearer realm=\"file:///etc\", Basic realm=\"x"]), Some(Challenge::Basic));
    }

    #[test]
    fn credentials_in_the_realm_are_dropped() {
        assert_eq!(
            choose(&["Bearer realm=\"https://u:p@a.example/t#x\""]),
            Some(bearer("https://a.example/t", None, None))
        );
    }
}
