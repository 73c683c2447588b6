//! Removes secrets from text sent by a receiver: a server may echo the path, a query value or the login of a request, in
//! any encoding.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use evenkeel_common::secret::Secret;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use reqwest::Url;

use crate::config::template::Escape;

/// Shorter strings are not treated as secrets: removing them would make the rest unreadable.
const SHORTEST: usize = 4;
/// The same limit for a piece of a part, which is more likely to be an ordinary word.
const SHORTEST_PIECE: usize = 6;
/// Separators between a name and a token in a part such as `bot123:token` or `key=token`.
const SEPARATORS: [char; 9] = [':', ';', ',', '=', '&', '|', '@', ' ', '"'];
const MARK: &str = "(redacted)";

/// Replaces secrets in text. It deliberately has no `Debug` implementation.
#[derive(Default)]
pub(super) struct Redactor {
    /// In lower case: servers may change the case of echoed text, for example of `%2f`.
    patterns: BTreeSet<String>,
}

impl Redactor {
    /// Hides a secret, the values it was composed of, and its parts.
    pub(super) fn hide(&mut self, secret: &Secret) {
        self.part(secret.expose());
        secret.parts().for_each(|part| self.part(part));
    }

    /// Hides the parts of a URL that may be secret: login, path segments and query.
    pub(super) fn hide_url(&mut self, secret: &Secret) {
        self.encodings(secret.expose());
        secret.parts().for_each(|part| self.part(part));
        let Ok(url) = Url::parse(secret.expose()) else { return };
        self.encodings(url.as_str());
        self.encodings(url.path().trim_start_matches('/'));
        url.path_segments().into_iter().flatten().for_each(|segment| self.part(segment));
        if let Some(query) = url.query() {
            self.encodings(query);
            for pair in query.split('&') {
                // A key without a value may be a secret itself.
                self.part(pair.split_once('=').map_or(pair, |(_, value)| value));
            }
        }
        if let Some(password) = url.password() {
            self.part(password);
            self.login(&decoded(url.username()), &decoded(password));
        } else if !url.username().is_empty() {
            // A token in place of the user name.
            self.part(url.username());
            self.login(&decoded(url.username()), "");
        }
    }

    /// Hides a login in the encodings of HTTP (Basic) and SMTP (PLAIN, LOGIN).
    pub(super) fn login(&mut self, name: &str, password: &str) {
        self.encodings(&format!("{name}:{password}"));
        self.encodings(&format!("\0{name}\0{password}"));
        self.encodings(password);
    }

    fn part(&mut self, part: &str) {
        self.encodings(part);
        for text in [part.to_owned(), decoded(part)] {
            text.split(SEPARATORS)
                .filter(|piece| piece.len() >= SHORTEST_PIECE)
                .for_each(|piece| self.encodings(piece));
        }
    }

    /// Adds all encodings of one string.
    fn encodings(&mut self, text: &str) {
        let mut plain = BTreeSet::from([text.to_owned(), decoded(text), decoded(&text.replace('+', " "))]);
        plain.retain(|text| text.chars().count() >= SHORTEST);
        for text in plain {
            let percent = utf8_percent_encode(&text, NON_ALPHANUMERIC).to_string();
            let json = Escape::Json.apply(&text);
            self.patterns.extend(
                [
                    percent.replace("%20", "+"),
                    percent,
                    json.replace('/', "\\/"),
                    json,
                    Escape::Html.apply(&text),
                    // Without padding, so that padded text matches as well.
                    STANDARD_NO_PAD.encode(&text),
                    URL_SAFE_NO_PAD.encode(&text),
                    text,
                ]
                .map(|encoding| encoding.to_ascii_lowercase()),
            );
        }
    }

    /// Returns the text without secrets. `is_cut`: the text was truncated, possibly in the middle of a secret.
    pub(super) fn clean(&self, text: &str, is_cut: bool) -> String {
        let lower = text.to_ascii_lowercase();
        let mut hidden = vec![false; text.len()];
        for pattern in &self.patterns {
            // Occurrences may overlap.
            let mut from = 0;
            while let Some(at) = lower[from..].find(pattern.as_str()) {
                hidden[from + at..from + at + pattern.len()].fill(true);
                from += at + pattern.chars().next().map_or(1, char::len_utf8);
            }
            let begins =
                |length: &usize| pattern.is_char_boundary(*length) && lower.ends_with(&pattern[..*length]);
            if is_cut && let Some(length) = (SHORTEST..pattern.len()).rev().find(begins) {
                hidden[lower.len() - length..].fill(true);
            }
        }
        let mut shown = String::with_capacity(text.len());
        for (at, character) in text.char_indices() {
            if !hidden[at] {
                shown.push(character);
            } else if at == 0 || !hidden[at - 1] {
                shown.push_str(MARK);
            }
        }
        shown
    }
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_url(url: &str) -> Redactor {
        let mut redactor = Redactor::default();
        redactor.hide_url(&Secret::new(url));
        redactor
    }

    #[test]
    fn every_part_of_a_url_is_removed_in_every_encoding() {
        let url = "https://me%40x:p%2Fss%20w0rd@chat.example/hooks/T0KEN%2Fabc+d/send?key=Qu%C3%A9ry/1&sig=a%2Bbcd==&alonetoken";
        let redactor = of_url(url);
        for echoed in [
            url,
            "T0KEN%2Fabc+d",
            "T0KEN%2fabc+d",
            "T0KEN/abc+d",
            "t0ken/ABC+D",
            "T0KEN\\/abc+d",
            "T0KEN%2Fabc%2Bd",
            "Qu%C3%A9ry/1",
            "Quéry/1",
            "a+bcd==",
            "a%2Bbcd%3D%3D",
            "alonetoken",
            "p/ss w0rd",
            "p%2Fss+w0rd",
            // base64 of me@x:p/ss w0rd, with and without its name
            "bWVAeDpwL3NzIHcwcmQ=",
            "Basic bWVAeDpwL3NzIHcwcmQ",
        ] {
            let shown = redactor.clean(&format!("403 no access for {echoed}, sorry"), false);
            let expected =
                ["403 no access for (redacted), sorry", "403 no access for Basic (redacted), sorry"];
            // Base64 padding reveals nothing.
            let shown = shown.replace("(redacted)=", "(redacted)");
            assert!(expected.contains(&shown.as_str()), "{echoed}: {shown}");
        }
        assert_eq!(redactor.clean("404 not found at chat.example", false), "404 not found at chat.example");
    }

    #[test]
    fn a_token_is_removed_without_the_name_before_it() {
        let redactor = of_url("https://api.example/bot123456:AAE-token_x/sendMessage");
        assert_eq!(redactor.clean("no bot with AAE-token_x", false), "no bot with (redacted)");
        let mut redactor = Redactor::default();
        redactor.hide(&Secret::of_parts("Bearer preabcdef", ["abcdef".to_owned()]));
        assert_eq!(
            redactor.clean("bad token: abcdef, given: preabcdef", false),
            "bad token: (redacted), given: (redacted)"
        );
    }

    #[test]
    fn a_secret_that_is_truncated_or_repeated_is_removed_as_well() {
        let redactor = of_url("https://x.example/abcdefghij");
        assert_eq!(redactor.clean("the key is abcdefg", true), "the key is (redacted)");
        assert_eq!(redactor.clean("the key is abcdefghijabcdefghij!", false), "the key is (redacted)!");
        let mut overlapping = of_url("https://x.example/aabaab");
        overlapping.hide(&Secret::new("aabb"));
        assert_eq!(overlapping.clean("xaabaabaabby", false), "x(redacted)y");
    }

    #[test]
    fn a_mail_login_is_removed_in_the_encodings_of_smtp() {
        let mut redactor = Redactor::default();
        redactor.login("me@x.example", "hunter22");
        for sent in ["AG1lQHguZXhhbXBsZQBodW50ZXIyMg==", "aHVudGVyMjI=", "hunter22"] {
            assert!(redactor.clean(&format!("535 {sent}"), false).starts_with("535 (redacted)"), "{sent}");
        }
    }
}
