//! Tokens and sessions: compares those of a request with the configured tokens, in constant time.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use evenkeel_common::http::{BasePath, HeaderMap};
use evenkeel_common::secret::Secret;
use http::header::{AUTHORIZATION, COOKIE};
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use ring::{hmac, pbkdf2};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Name of the cookie and of the query parameter.
pub const TOKEN: &str = "token";
/// Lifetime of a session; the page renews it after half of this time.
pub const SESSION_LIFETIME: Duration = Duration::from_hours(7 * 24);
/// How far the clocks of two wardens may differ.
const AHEAD: Duration = Duration::from_hours(1);
/// Prefix of every session; it includes the version of the format.
const SESSION_PREFIX: &str = "s1.";
/// Rounds of PBKDF2. With a stolen session, the token can be guessed offline; this makes each guess expensive.
const KEY_ROUNDS: NonZeroU32 = NonZeroU32::new(50_000).expect("it is not zero");
const KEY_SALT: &[u8] = b"evenkeel warden session 1";
/// Characters that must be escaped in a cookie's value.
const COOKIE_ESCAPES: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The configured tokens. Only digests are stored; they all have the same length, so that a comparison does not reveal the
/// length of a token.
#[derive(Clone)]
pub struct Tokens {
    api: [u8; 32],
    /// Position of the agent in the configuration, by the digest of its token.
    agents: HashMap<[u8; 32], usize>,
    /// Derived from `api.token` alone, so that all wardens with that token accept each other's sessions.
    session_key: hmac::Key,
}

impl Tokens {
    /// `api` is `api.token`; `agents` are in configuration order. A token that two agents share belongs to the first.
    pub fn new<'a>(api: &Secret, agents: impl IntoIterator<Item = &'a Secret>) -> Self {
        let mut by_digest = HashMap::new();
        for (index, token) in agents.into_iter().enumerate().filter(|(_, token)| !token.is_empty()) {
            by_digest.entry(digest(token.expose())).or_insert(index);
        }
        let mut key = [0; 32];
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, KEY_ROUNDS, KEY_SALT, api.expose().as_bytes(), &mut key);
        Self {
            api: digest(api.expose()),
            agents: by_digest,
            session_key: hmac::Key::new(hmac::HMAC_SHA256, &key),
        }
    }

    /// Reports whether this is `api.token`.
    pub fn is_api(&self, token: &str) -> bool {
        bool::from(digest(token).ct_eq(&self.api)) && !token.is_empty()
    }

    /// Returns the position in the configuration of the agent with this token. The lookup is by digest: its cost does not
    /// depend on the number of agents, and its timing does not help in guessing a token.
    pub fn agent(&self, token: &str) -> Option<usize> {
        let given = digest(token);
        let (known, agent) = self.agents.get_key_value(&given)?;
        (bool::from(known.ct_eq(&given)) && !token.is_empty()).then_some(*agent)
    }

    /// Creates a new session, as the value of a cookie.
    pub fn session(&self, now: Timestamp) -> String {
        let end = now.as_second().saturating_add(SESSION_LIFETIME.as_secs().cast_signed());
        let signed = format!("{SESSION_PREFIX}{end}");
        let tag = hmac::sign(&self.session_key, signed.as_bytes());
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag))
    }

    /// Returns the remaining lifetime of a session; `None` if it has expired or was not signed with this key, or if it lasts
    /// longer than any may: it was made while a warden's clock was wrong.
    pub fn session_remaining(&self, value: &str, now: Timestamp) -> Option<Duration> {
        let (signed, tag) = value.strip_prefix(SESSION_PREFIX).and(value.rsplit_once('.'))?;
        let tag = BASE64_URL_SAFE_NO_PAD.decode(tag).ok()?;
        hmac::verify(&self.session_key, signed.as_bytes(), &tag).ok()?;
        let end: i64 = signed.strip_prefix(SESSION_PREFIX)?.parse().ok()?;
        let left = end.checked_sub(now.as_second())?;
        let left = u64::try_from(left).ok().filter(|left| *left > 0).map(Duration::from_secs);
        left.filter(|left| *left <= SESSION_LIFETIME + AHEAD)
    }
}

/// Reports whether a cookie's value looks like a session and so does not count as a guess at the token.
pub fn is_session(value: &str) -> bool {
    value.starts_with(SESSION_PREFIX)
}

/// Returns the digest used to compare and remember a token.
pub fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Returns the token of `Authorization: Bearer …` if there is exactly one such header.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (all.next()?, all.next()) else { return None };
    // `to_str` would reject non-ASCII characters, and agents send a token as it is in their configuration.
    let (scheme, token) = std::str::from_utf8(value.as_bytes()).ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Returns the decoded values of all cookies named [`TOKEN`]: another program on the same host may have set one, too.
pub fn cookies(headers: &HeaderMap) -> Vec<String> {
    let pairs = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let pairs = pairs.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let ours = pairs.filter(|(name, _)| *name == TOKEN).take(8);
    ours.filter_map(|(_, value)| Some(percent_decode_str(value).decode_utf8().ok()?.into_owned())).collect()
}

/// Returns a `Set-Cookie` value for a session (DECISIONS 3). `base` is the path that the browser sends it to, so that
/// wardens below different paths of one host do not end each other's sessions.
pub fn set_cookie(session: &str, base: &BasePath, https: bool) -> String {
    format!("{}; Max-Age={}", cookie(session, base, https), SESSION_LIFETIME.as_secs())
}

/// Returns a `Set-Cookie` value that deletes the session.
pub fn delete_cookie(base: &BasePath, https: bool) -> String {
    format!("{}; Max-Age=0", cookie("", base, https))
}

fn cookie(value: &str, base: &BasePath, https: bool) -> String {
    let secure = if https { "; Secure" } else { "" };
    let path = if base.as_str().is_empty() { "/" } else { base.as_str() };
    let value = utf8_percent_encode(value, COOKIE_ESCAPES);
    format!("{TOKEN}={value}; Path={path}; HttpOnly; SameSite=Strict{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> Tokens {
        Tokens::new(&Secret::new("people"), &[Secret::new("one"), Secret::new("two"), Secret::new("three")])
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn each_token_identifies_its_own_agent_only() {
        let tokens = tokens();
        assert_eq!(["one", "two", "three"].map(|token| tokens.agent(token)), [Some(0), Some(1), Some(2)]);
        assert!(tokens.is_api("people"));
        for wrong in ["", "people", "on", "one ", "ONE", "one\0", "onetwo"] {
            assert_eq!(tokens.agent(wrong), None, "{wrong}");
        }
        for wrong in ["", "one", "peopl", "people ", "People"] {
            assert!(!tokens.is_api(wrong), "{wrong}");
        }
    }

    #[test]
    fn an_empty_token_is_never_accepted_even_if_configured() {
        let tokens = Tokens::new(&Secret::default(), &[Secret::default()]);
        assert!(!tokens.is_api(""));
        assert_eq!(tokens.agent(""), None);
        assert_eq!(Tokens::new(&Secret::new("a"), &[]).agent("x"), None);
    }

    #[test]
    fn only_one_well_formed_bearer_counts() {
        let of = |values: &[&str]| {
            let pairs: Vec<_> = values.iter().map(|value| ("authorization", *value)).collect();
            bearer(&headers(&pairs)).map(str::to_owned)
        };
        assert_eq!(of(&["Bearer abc"]).as_deref(), Some("abc"));
        assert_eq!(of(&["bearer   abc "]).as_deref(), Some("abc"));
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, http::HeaderValue::from_bytes("Bearer schlüssel".as_bytes()).unwrap());
        assert_eq!(bearer(&headers), Some("schlüssel"), "a non-ASCII token of an agent");
        for wrong in
            [&[][..], &["abc"], &["Bearer"], &["Basic abc"], &["Bearer abc", "Bearer abc"], &["Bearerabc"]]
        {
            assert_eq!(of(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn any_token_survives_the_round_trip_through_a_cookie() {
        for token in ["plain", "a;b=c", "50% off", "with space", "\"quoted\"", "é+%41", "a\u{7f}b"] {
            let made = cookie(token, &BasePath::default(), false);
            let (pair, rest) = made.split_once(';').unwrap();
            assert_eq!(rest, " Path=/; HttpOnly; SameSite=Strict");
            let sent = headers(&[("cookie", &format!("theme=dark; {pair}; x=y"))]);
            assert_eq!(cookies(&sent), [token]);
        }
        let root = BasePath::default();
        assert!(set_cookie("t", &root, true).ends_with("; SameSite=Strict; Secure; Max-Age=604800"));
        assert_eq!(
            delete_cookie(&root, true),
            "token=; Path=/; HttpOnly; SameSite=Strict; Secure; Max-Age=0"
        );
        let base = BasePath::parse("/warden").unwrap();
        assert!(
            set_cookie("t", &base, false)
                .starts_with("token=t; Path=/warden; HttpOnly; SameSite=Strict; Max-Age=")
        );
        assert!(delete_cookie(&base, false).starts_with("token=; Path=/warden; "));
        let two = headers(&[("cookie", "token=a"), ("cookie", "mytoken=b; token=c; token")]);
        assert_eq!(cookies(&two), ["a", "c"]);
    }

    #[test]
    fn a_session_is_signed_and_ends_after_its_lifetime_or_with_its_token() {
        let (tokens, now) = (tokens(), "2026-01-02T03:04:05Z".parse().unwrap());
        let session = tokens.session(now);
        assert!(is_session(&session) && !session.contains("people"), "{session}");
        assert_eq!(tokens.session_remaining(&session, now), Some(SESSION_LIFETIME));
        let later = |seconds: u64| now.checked_add(Duration::from_secs(seconds)).unwrap();
        assert_eq!(
            tokens.session_remaining(&session, later(SESSION_LIFETIME.as_secs() - 1)),
            Some(Duration::from_secs(1))
        );
        assert_eq!(tokens.session_remaining(&session, later(SESSION_LIFETIME.as_secs())), None);
        let ahead = |seconds| tokens.session_remaining(&tokens.session(later(seconds)), now);
        assert_eq!(ahead(3600), Some(SESSION_LIFETIME + AHEAD), "another warden's clock is ahead");
        assert_eq!(ahead(365 * 24 * 3600), None, "the clock was wrong for a while");
        let sibling = Tokens::new(&Secret::new("people"), &[]);
        assert!(sibling.session_remaining(&session, now).is_some(), "another warden with the same token");
        let other = Tokens::new(&Secret::new("another"), &[]);
        assert_eq!(other.session_remaining(&session, now), None);
        let end = session.split('.').nth(1).unwrap().to_owned();
        let longer = session.replace(&end, &(end.parse::<u64>().unwrap() + 1).to_string());
        for wrong in
            [&longer, &session[..session.len() - 1], "s1.", "s1.9999999999", "s1.9999999999.", "", "people"]
        {
            assert_eq!(tokens.session_remaining(wrong, now), None, "{wrong}");
        }
    }

    #[test]
    fn each_of_ten_thousand_tokens_is_found_and_a_shared_one_belongs_to_the_first_agent() {
        let all: Vec<_> =
            (0..10_000).map(|n| Secret::new(format!("0123456789abcdef-{}", n % 9_999))).collect();
        let tokens = Tokens::new(&Secret::new("people"), &all);
        assert_eq!(tokens.agents.len(), 9_999, "a table with one slot for each token");
        for index in [0, 1, 5_000, 9_998] {
            assert_eq!(tokens.agent(all[index].expose()), Some(index));
        }
        assert_eq!(tokens.agent(all[9_999].expose()), Some(0));
        assert_eq!(tokens.agent("0123456789abcdef-x"), None);
    }
}
