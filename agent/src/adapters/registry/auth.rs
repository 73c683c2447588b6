//! Answers a registry's challenge: turns a login into an `Authorization` header, with a token for Bearer challenges.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Method, StatusCode};
use tokio::time::Instant;
use url::Url;

use super::answer;
use super::challenge::Challenge;
use super::credentials::{Credentials, Login};
use super::fault::Fault;
use super::reach::Reach;
use super::transport::{Outgoing, Transport};
use crate::model::image::Repository;

/// Default lifetime of a token in seconds (distribution's token specification).
const DEFAULT_LIFETIME: u64 = 60;
/// A token counts as expired this many seconds before its end.
const MARGIN: u64 = 10;
/// Maximum lifetime of a token in seconds.
const MAX_LIFETIME: u64 = 24 * 3600;
/// Maximum size of a token response in bytes.
const TOKEN_LIMIT: usize = 256 * 1024;

/// An authorization for one repository.
#[derive(Debug, Clone)]
pub(super) struct Access {
    /// The challenge that it answers.
    pub(super) challenge: Challenge,
    /// The header; marked sensitive to keep it out of debug output.
    pub(super) authorization: HeaderValue,
    /// Whether it is based on a configured login.
    pub(super) with_login: bool,
    /// Reach of the registry that sent the challenge.
    pub(super) reach: Reach,
    until: Option<Instant>,
}

/// The registry and repository that a login is for.
pub(super) struct Target<'a> {
    /// Base URL of the registry's API.
    pub(super) base: &'a Url,
    /// The registry whose certificates apply to its token service: this one, or the one that redirects to it.
    pub(super) registry: &'a Url,
    /// Reach of the registry.
    pub(super) reach: Reach,
    /// The repository to access.
    pub(super) repository: &'a Repository,
    /// The host under which the login is stored; `None` if it gets none.
    pub(super) login: Option<&'a str>,
}

impl Access {
    pub(super) fn is_valid(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }
}

/// Gets access to a repository by answering `challenge`.
pub(super) async fn open(
    transport: &Transport,
    credentials: &Credentials,
    target: &Target<'_>,
    challenge: Challenge,
) -> Result<Access, Fault> {
    let repository = target.repository;
    let login = match target.login {
        Some(name) => {
            let login = credentials.for_repository(name, &repository.path).await;
            login.map_err(|error| Fault::Image(error.0))?
        }
        None => None,
    };
    let with_login = login.is_some();
    let (authorization, until) = match (&challenge, login) {
        (Challenge::Basic, Some(Login::UsernamePassword { username, password })) => {
            (basic(&username, &password), None)
        }
        (Challenge::Basic, Some(Login::IdentityToken(_))) => {
            return Err(Fault::Image(format!(
                "registry {}: it requires a user name and password, but the Docker configuration has an identity token",
                repository.host
            )));
        }
        (Challenge::Basic, None) => return Err(unauthorized(repository, false)),
        (Challenge::Bearer { realm, service, scope }, login) => {
            let ask = TokenRequest { realm, service: service.as_deref(), scope: scope.as_deref(), login };
            let (header, life) = ask.send(transport, target).await?;
            (header, Some(Instant::now() + life))
        }
    };
    Ok(Access { challenge, authorization, with_login, reach: target.reach, until })
}

/// The error for refused access.
pub(super) fn unauthorized(repository: &Repository, with_login: bool) -> Fault {
    let why = if with_login {
        "the credentials in the Docker configuration were refused"
    } else {
        "no credentials in the Docker configuration"
    };
    Fault::Repository(format!(
        "registry {}: 401 unauthorized for {} ({why})",
        repository.host, repository.path
    ))
}

struct TokenRequest<'a> {
    realm: &'a Url,
    service: Option<&'a str>,
    scope: Option<&'a str>,
    login: Option<Login>,
}

impl TokenRequest<'_> {
    async fn send(
        self,
        transport: &Transport,
        target: &Target<'_>,
    ) -> Result<(HeaderValue, Duration), Fault> {
        let Target { base, registry, reach, repository, .. } = *target;
        let with_login = self.login.is_some();
        let server = self.realm.host_str().unwrap_or_default();
        let subject = format!("registry {}: its token service {server}", repository.host);
        if with_login && base.scheme() == "https" && self.realm.scheme() != "https" {
            return Err(Fault::Image(format!("{subject} has no TLS, so it does not get the credentials")));
        }
        let is_here = |url| Reach::of_literal(url) == Some(Reach::Here);
        if with_login && is_here(base) && !is_here(self.realm) {
            let why = "is on another host, so it does not get the credentials of a registry on this one";
            return Err(Fault::Image(format!("{subject} {why}")));
        }
        let request = self.request(repository);
        let response = transport.send_for(registry, &subject, request, Some(reach)).await?;
        let status = response.status();
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST) {
            return Err(unauthorized(repository, with_login));
        }
        if !status.is_success() {
            return Err(answer::refusal(&subject, status, response.headers(), &repository.path));
        }
        let broken = || Fault::Image(format!("{subject} gave no usable token"));
        let body = answer::body(&subject, response, TOKEN_LIMIT).await?.ok_or_else(broken)?;
        token(&body).ok_or_else(broken)
    }

    fn request(self, repository: &Repository) -> Outgoing {
        let scope = self.scope.map_or_else(|| format!("repository:{}:pull", repository.path), str::to_owned);
        let mut fields: Vec<(&str, &str)> = Vec::new();
        fields.extend(self.service.map(|service| ("service", service)));
        fields.push(("scope", &scope));

        let mut url = self.realm.clone();
        let (method, authorization, form) = match &self.login {
            None => (Method::GET, None, None),
            Some(Login::UsernamePassword { username, password }) => {
                fields.push(("account", username));
                (Method::GET, Some(basic(username, password)), None)
            }
            Some(Login::IdentityToken(token)) => {
                fields.extend([
                    ("grant_type", "refresh_token"),
                    ("client_id", "evenkeel"),
                    ("refresh_token", token),
                ]);
                let mut form = url.clone();
                form.query_pairs_mut().clear().extend_pairs(&fields);
                (Method::POST, None, form.query().map(str::to_owned))
            }
        };
        if form.is_none() {
            url.query_pairs_mut().extend_pairs(&fields);
        }
        Outgoing { method, url, accept: "application/json", authorization, form }
    }
}

/// Parses a token service's response: the header to send and how long it is valid.
fn token(body: &[u8]) -> Option<(HeaderValue, Duration)> {
    let answer: serde_json::Value = serde_json::from_slice(body).ok()?;
    let token = ["token", "access_token"]
        .iter()
        .find_map(|key| answer.get(key)?.as_str().filter(|token| !token.is_empty()))?;
    let mut header = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    header.set_sensitive(true);
    let life = answer.get("expires_in").and_then(serde_json::Value::as_u64).unwrap_or(DEFAULT_LIFETIME);
    Some((header, Duration::from_secs(life.min(MAX_LIFETIME).saturating_sub(MARGIN))))
}

fn basic(username: &str, password: &str) -> HeaderValue {
    let encoded = STANDARD.encode(format!("{username}:{password}"));
    let mut header = HeaderValue::from_str(&format!("Basic {encoded}")).expect("base64 is ASCII");
    header.set_sensitive(true);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_valid_until_ten_seconds_before_its_end() {
        let life = |body: &str| token(body.as_bytes()).unwrap().1.as_secs();
        assert_eq!(life(r#"{"token":"t"}"#), 50);
        assert_eq!(life(r#"{"access_token":"t","expires_in":300}"#), 290);
        assert_eq!(life(r#"{"token":"t","expires_in":5}"#), 0);
        assert_eq!(life(r#"{"token":"t","expires_in":18446744073709551615}"#), 24 * 3600 - 10);
        assert_eq!(life(r#"{"token":"t","expires_in":"soon"}"#), 50);
    }

    #[test]
    fn an_invalid_token_response_gives_no_token() {
        for body in ["", "<html>", "[]", "{}", r#"{"token":""}"#, r#"{"token":7}"#, "{\"token\":\"a\\nb\"}"] {
            assert!(token(body.as_bytes()).is_none(), "{body}");
        }
    }

    #[test]
    fn the_realms_own_query_is_kept() {
        let realm = Url::parse("http://127.0.0.1:5059/token?a=1,2").unwrap();
        let login = Some(Login::UsernamePassword { username: "u".into(), password: "p&w".into() });
        let ask = TokenRequest { realm: &realm, service: Some("dom, svc"), scope: None, login };
        let repository = Repository { host: "r.example".into(), path: "dom-n/app".into() };
        let request = ask.request(&repository);
        let url = request.url.as_str();
        assert!(
            url.starts_with("http://127.0.0.1:5059/token?a=1,2&service=dom%2C+svc&scope=repository%3Adom-n"),
            "{url}"
        );
        assert!(!url.contains("p%26w"));
        assert!(!format!("{request:?}").contains(&STANDARD.encode("u:p&w")));
    }

    #[tokio::test]
    async fn credentials_are_not_sent_without_tls_nor_to_this_host() {
        let refused = async |base: &str, realm: &str| {
            let realm = Url::parse(realm).unwrap();
            let login = Some(Login::IdentityToken("s3cret".into()));
            let ask = TokenRequest { realm: &realm, service: None, scope: None, login };
            let base = Url::parse(base).unwrap();
            let repository = Repository { host: "r.example".into(), path: "a".into() };
            let transport = Transport::new(None);
            let reach = Reach::of_literal(&base).unwrap_or(Reach::Public);
            let login = Some(repository.host.as_str());
            let target = Target { base: &base, registry: &base, reach, repository: &repository, login };
            match ask.send(&transport, &target).await {
                Err(Fault::Image(text)) => text,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(
            refused("https://r.example", "http://auth.example/token").await,
            "registry r.example: its token service auth.example has no TLS, so it does not get the credentials"
        );
        for (host, shown) in [
            ("127.0.0.1", "127.0.0.1"),
            ("[::ffff:0.0.0.0]", "[::ffff:0:0]"),
            ("[::]", "[::]"),
            ("0x7f.1", "127.0.0.1"),
            ("localhost", "localhost"),
            ("169.254.169.254", "169.254.169.254"),
        ] {
            assert_eq!(
                refused("https://r.example", &format!("https://{host}:9090/trigger")).await,
                format!("registry r.example: its token service {shown}: it is at an address of this host")
            );
        }
        assert_eq!(
            refused("https://r.example", "https://10.9.8.7/token").await,
            "registry r.example: its token service 10.9.8.7: it is at an address in a private network"
        );
        for base in ["http://localhost:5000", "http://127.0.0.1:5000", "http://[::1]:5000"] {
            assert_eq!(
                refused(base, "https://auth.example/token").await,
                "registry r.example: its token service auth.example is on another host, so it does not get the \
                 credentials of a registry on this one"
            );
        }
    }
}
