//! Who may ask: the tokens of a request against those of the configuration, in a time that tells nothing.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use evenkeel_common::http::HeaderMap;
use evenkeel_common::secret::Secret;
use http::header::{AUTHORIZATION, COOKIE};
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use ring::{hmac, pbkdf2};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Name of the cookie and of the query parameter.
pub const TOKEN: &str = "token";
/// A token with fewer bytes can be guessed: it counts from this machine only.
pub const SHORT_TOKEN: usize = 16;
/// How long a login lasts; the page renews it when half of that is over.
pub const SESSION: Duration = Duration::from_hours(7 * 24);
/// What a session begins with: its form.
const SESSION_FORM: &str = "s1.";
/// Whoever steals a session can guess the token by it; each guess costs so many rounds.
const ROUNDS: NonZeroU32 = NonZeroU32::new(50_000).expect("it is not zero");
const SALT: &[u8] = b"evenkeel warden session 1";
/// What a cookie's value may not hold as it is, and `%` itself.
const COOKIE_ESCAPES: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The tokens. Only their digests are kept: of one length, so that a comparison tells not even that.
#[derive(Clone)]
pub struct Access {
    api: [u8; 32],
    api_is_short: bool,
    /// By the digests of their tokens.
    agents: HashMap<[u8; 32], AgentToken>,
    /// Made of the token for people alone, so that every warden with that token takes the sessions of the others.
    sessions: hmac::Key,
}

/// What is known of an agent by its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentToken {
    /// Place of the agent in the configuration.
    pub place: usize,
    /// Whether the token can be guessed.
    pub is_short: bool,
}

impl Access {
    /// `api` for people, `agents` in the order of the configuration. Of agents with one token the first is meant.
    pub fn new<'a>(api: &Secret, agents: impl IntoIterator<Item = &'a Secret>) -> Self {
        let mut by_digest = HashMap::new();
        for (place, token) in agents.into_iter().enumerate().filter(|(_, token)| !token.is_empty()) {
            let known = AgentToken { place, is_short: is_short(token) };
            by_digest.entry(digest(token.expose())).or_insert(known);
        }
        let mut key = [0; 32];
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ROUNDS, SALT, api.expose().as_bytes(), &mut key);
        Self {
            api: digest(api.expose()),
            api_is_short: is_short(api),
            agents: by_digest,
            sessions: hmac::Key::new(hmac::HMAC_SHA256, &key),
        }
    }

    /// Whether this is the token for people.
    pub fn is_api(&self, token: &str) -> bool {
        bool::from(digest(token).ct_eq(&self.api)) && !token.is_empty()
    }

    /// Whether the token for people can be guessed.
    pub fn api_is_short(&self) -> bool {
        self.api_is_short
    }

    /// The agent that this token belongs to. It is looked up by its digest: the cost does not depend on how many there
    /// are, and the time tells nothing that helps to find a token.
    pub fn agent(&self, token: &str) -> Option<AgentToken> {
        let given = digest(token);
        let (known, agent) = self.agents.get_key_value(&given)?;
        (bool::from(known.ct_eq(&given)) && !token.is_empty()).then_some(*agent)
    }

    /// The value of a cookie for a person who has just shown the token.
    pub fn session(&self, now: Timestamp) -> String {
        let end = now.as_second().saturating_add(SESSION.as_secs().cast_signed());
        let signed = format!("{SESSION_FORM}{end}");
        let tag = hmac::sign(&self.sessions, signed.as_bytes());
        format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag))
    }

    /// How long a session still lasts; `None` for one that is over, or is none of this token's.
    pub fn session_left(&self, value: &str, now: Timestamp) -> Option<Duration> {
        let (signed, tag) = value.strip_prefix(SESSION_FORM).and(value.rsplit_once('.'))?;
        let tag = BASE64_URL_SAFE_NO_PAD.decode(tag).ok()?;
        hmac::verify(&self.sessions, signed.as_bytes(), &tag).ok()?;
        let end: i64 = signed.strip_prefix(SESSION_FORM)?.parse().ok()?;
        let left = end.checked_sub(now.as_second())?;
        u64::try_from(left).ok().filter(|left| *left > 0).map(Duration::from_secs)
    }
}

/// Whether a cookie's value has the form of a session, so that it is no guess at a token.
pub fn is_session(value: &str) -> bool {
    value.starts_with(SESSION_FORM)
}

fn is_short(token: &Secret) -> bool {
    token.expose().len() < SHORT_TOKEN
}

/// What stands for a token where it is compared or remembered.
pub fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// The token of `Authorization: Bearer …`, when there is exactly one such header.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (all.next()?, all.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The tokens in cookies of that name, decoded. There may be several: another program on the same host name may
/// have set one.
pub fn cookies(headers: &HeaderMap) -> Vec<String> {
    let pairs = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let pairs = pairs.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let ours = pairs.filter(|(name, _)| *name == TOKEN).take(8);
    ours.filter_map(|(_, value)| Some(percent_decode_str(value).decode_utf8().ok()?.into_owned())).collect()
}

/// `Set-Cookie` for a session (DECISIONS 3).
pub fn set_cookie(session: &str, https: bool) -> String {
    format!("{}; Max-Age={}", cookie(session, https), SESSION.as_secs())
}

/// `Set-Cookie` that makes a browser forget the session.
pub fn forget_cookie(https: bool) -> String {
    format!("{}; Max-Age=0", cookie("", https))
}

fn cookie(value: &str, https: bool) -> String {
    let secure = if https { "; Secure" } else { "" };
    let value = utf8_percent_encode(value, COOKIE_ESCAPES);
    format!("{TOKEN}={value}; Path=/; HttpOnly; SameSite=Strict{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        Access::new(&Secret::new("people"), &[Secret::new("one"), Secret::new("two"), Secret::new("three")])
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn each_token_opens_its_own_door_only() {
        let access = access();
        let place = |token: &str| access.agent(token).map(|agent| agent.place);
        assert_eq!(["one", "two", "three"].map(place), [Some(0), Some(1), Some(2)]);
        assert!(access.is_api("people"));
        for wrong in ["", "people", "on", "one ", "ONE", "one\0", "onetwo"] {
            assert_eq!(access.agent(wrong), None, "{wrong}");
        }
        for wrong in ["", "one", "peopl", "people ", "People"] {
            assert!(!access.is_api(wrong), "{wrong}");
        }
    }

    #[test]
    fn an_empty_token_authorises_nobody_even_if_one_were_configured() {
        let access = Access::new(&Secret::default(), &[Secret::default()]);
        assert!(!access.is_api(""));
        assert_eq!(access.agent(""), None);
        assert_eq!(Access::new(&Secret::new("a"), &[]).agent("x"), None);
    }

    #[test]
    fn only_one_well_formed_bearer_counts() {
        let of = |values: &[&str]| {
            let pairs: Vec<_> = values.iter().map(|value| ("authorization", *value)).collect();
            bearer(&headers(&pairs)).map(str::to_owned)
        };
        assert_eq!(of(&["Bearer abc"]).as_deref(), Some("abc"));
        assert_eq!(of(&["bearer   abc "]).as_deref(), Some("abc"));
        for wrong in
            [&[][..], &["abc"], &["Bearer"], &["Basic abc"], &["Bearer abc", "Bearer abc"], &["Bearerabc"]]
        {
            assert_eq!(of(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn any_token_survives_the_way_through_a_cookie() {
        for token in ["plain", "a;b=c", "50% off", "with space", "\"quoted\"", "é+%41", "a\u{7f}b"] {
            let made = cookie(token, false);
            let (pair, rest) = made.split_once(';').unwrap();
            assert_eq!(rest, " Path=/; HttpOnly; SameSite=Strict");
            let sent = headers(&[("cookie", &format!("theme=dark; {pair}; x=y"))]);
            assert_eq!(cookies(&sent), [token]);
        }
        assert!(set_cookie("t", true).ends_with("; SameSite=Strict; Secure; Max-Age=604800"));
        assert_eq!(forget_cookie(true), "token=; Path=/; HttpOnly; SameSite=Strict; Secure; Max-Age=0");
        let two = headers(&[("cookie", "token=a"), ("cookie", "mytoken=b; token=c; token")]);
        assert_eq!(cookies(&two), ["a", "c"]);
    }

    #[test]
    fn a_session_is_signed_ends_by_itself_and_with_its_token() {
        let (access, now) = (access(), "2026-01-02T03:04:05Z".parse().unwrap());
        let session = access.session(now);
        assert!(is_session(&session) && !session.contains("people"), "{session}");
        assert_eq!(access.session_left(&session, now), Some(SESSION));
        let later = |seconds: u64| now.checked_add(Duration::from_secs(seconds)).unwrap();
        assert_eq!(access.session_left(&session, later(SESSION.as_secs() - 1)), Some(Duration::from_secs(1)));
        assert_eq!(access.session_left(&session, later(SESSION.as_secs())), None);
        let sibling = Access::new(&Secret::new("people"), &[]);
        assert!(sibling.session_left(&session, now).is_some(), "another warden with the same token");
        let other = Access::new(&Secret::new("another"), &[]);
        assert_eq!(other.session_left(&session, now), None);
        let end = session.split('.').nth(1).unwrap().to_owned();
        let longer = session.replace(&end, &(end.parse::<u64>().unwrap() + 1).to_string());
        for wrong in
            [&longer, &session[..session.len() - 1], "s1.", "s1.9999999999", "s1.9999999999.", "", "people"]
        {
            assert_eq!(access.session_left(wrong, now), None, "{wrong}");
        }
    }

    #[test]
    fn of_ten_thousand_tokens_each_is_found_by_its_digest_and_the_first_agent_owns_a_shared_one() {
        let tokens: Vec<_> =
            (0..10_000).map(|n| Secret::new(format!("0123456789abcdef-{}", n % 9_999))).collect();
        let access = Access::new(&Secret::new("people"), &tokens);
        assert_eq!(
            access.agents.len(),
            9_999,
            "one place of a table for each token, and nothing to go through"
        );
        for place in [0, 1, 5_000, 9_998] {
            let agent = access.agent(tokens[place].expose());
            assert_eq!(agent, Some(AgentToken { place, is_short: false }));
        }
        assert_eq!(access.agent(tokens[9_999].expose()).map(|agent| agent.place), Some(0));
        assert_eq!(access.agent("0123456789abcdef-x"), None);
    }

    #[test]
    fn tokens_under_16_bytes_are_short() {
        let access = Access::new(
            &Secret::new("0123456789abcde"),
            &[Secret::new("0123456789abcdef"), Secret::new("short")],
        );
        assert!(access.api_is_short());
        let is_short = |token: &str| access.agent(token).map(|agent| agent.is_short);
        assert_eq!((is_short("0123456789abcdef"), is_short("short")), (Some(false), Some(true)));
    }
}
