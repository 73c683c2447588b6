//! Who may ask: the tokens of a request against those of the configuration, in a time that tells nothing.

use evenkeel_common::http::HeaderMap;
use evenkeel_common::secret::Secret;
use http::header::{AUTHORIZATION, COOKIE};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// Name of the cookie and of the query parameter.
pub const TOKEN: &str = "token";
/// What a cookie's value may not hold as it is, and `%` itself.
const COOKIE_ESCAPES: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The tokens. Only their digests are kept: of one length, so that a comparison tells not even that.
#[derive(Clone)]
pub struct Access {
    api: [u8; 32],
    agents: Vec<[u8; 32]>,
}

impl Access {
    /// `api` for people, `agents` in the order of the configuration. None of them is empty.
    pub fn new<'a>(api: &Secret, agents: impl IntoIterator<Item = &'a Secret>) -> Self {
        let agents = agents.into_iter().map(|token| digest(token.expose())).collect();
        Self { api: digest(api.expose()), agents }
    }

    /// Whether this is the token for people.
    pub fn is_api(&self, token: &str) -> bool {
        bool::from(digest(token).ct_eq(&self.api)) && !token.is_empty()
    }

    /// The place of the agent that this token belongs to. All are compared, whichever it is.
    pub fn agent(&self, token: &str) -> Option<usize> {
        let given = digest(token);
        let (mut found, mut place) = (Choice::from(0), 0u64);
        for (at, known) in (0u64..).zip(&self.agents) {
            let same = given.ct_eq(known);
            place.conditional_assign(&at, same);
            found |= same;
        }
        let place = usize::try_from(place).ok().filter(|_| bool::from(found));
        place.filter(|_| !token.is_empty())
    }
}

fn digest(token: &str) -> [u8; 32] {
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

/// `Set-Cookie` for a token that was right (DECISIONS 3).
pub fn set_cookie(token: &str, https: bool) -> String {
    let secure = if https { "; Secure" } else { "" };
    let value = utf8_percent_encode(token, COOKIE_ESCAPES);
    format!("{TOKEN}={value}; Path=/; HttpOnly; SameSite=Strict{secure}")
}

/// `Set-Cookie` that makes a browser forget the token.
pub fn forget_cookie(https: bool) -> String {
    format!("{}; Max-Age=0", set_cookie("", https))
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
        assert_eq!(["one", "two", "three"].map(|token| access.agent(token)), [Some(0), Some(1), Some(2)]);
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
            let made = set_cookie(token, false);
            let (pair, rest) = made.split_once(';').unwrap();
            assert_eq!(rest, " Path=/; HttpOnly; SameSite=Strict");
            let sent = headers(&[("cookie", &format!("theme=dark; {pair}; x=y"))]);
            assert_eq!(cookies(&sent), [token]);
        }
        assert!(set_cookie("t", true).ends_with("; SameSite=Strict; Secure"));
        assert_eq!(forget_cookie(true), "token=; Path=/; HttpOnly; SameSite=Strict; Secure; Max-Age=0");
        let two = headers(&[("cookie", "token=a"), ("cookie", "mytoken=b; token=c; token")]);
        assert_eq!(cookies(&two), ["a", "c"]);
    }
}
