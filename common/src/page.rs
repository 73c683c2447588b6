//! A page as a single document: style and script are inline, allowed by their hashes, and compressed once (DECISIONS 6).
//!
//! ```
//! use evenkeel_common::page::{self, Document};
//! # use evenkeel_common::http::{HeaderMap, StatusCode};
//! // In the program: include_str!("../ui/page.html") and so on.
//! let html = "<style><!--style--></style><p>hello</p><script type=\"module\"><!--script--></script>";
//! let document: Document = page::document(html, "p { margin: 0 }", "console.log(1);");
//! let answer = document.reply(StatusCode::OK, &HeaderMap::new());
//! assert!(answer.headers()["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
//! ```

use std::io::Write;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    HeaderValue, IF_NONE_MATCH, VARY,
};
use http::{HeaderMap, Response as HttpResponse, StatusCode};
use sha2::{Digest, Sha256};

use crate::http::Response;

const THEME_JS: &str = include_str!("../ui/theme.js");
const THEME_CSS: &str = include_str!("../ui/theme.css");
const PARTS_JS: &str = include_str!("../ui/parts.js");

/// A page that is ready to be sent.
#[derive(Debug, Clone)]
pub struct Document {
    plain: Bytes,
    gzip: Bytes,
    policy: HeaderValue,
    /// The entity tag without its quotes.
    tag: String,
}

/// Assembles a page. In `html`, `<!--theme-->` is replaced by the script that sets the theme before the first paint,
/// `<!--style-->` by the shared style and `css`, `<!--parts and script-->` by the shared parts and `js`, and
/// `<!--script-->` by `js` alone. Parts without a placeholder in `html` are left out.
pub fn document(html: &str, css: &str, js: &str) -> Document {
    let mut page = html.to_owned();
    let mut put = |placeholder: &str, text: &str| {
        let (before, after) = page.split_once(placeholder)?;
        let source = format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)));
        page = [before, text, after].concat();
        Some(source)
    };
    let theme = put("<!--theme-->", THEME_JS);
    let style = put("<!--style-->", &[THEME_CSS, css].concat());
    let script = put("<!--parts and script-->", &[PARTS_JS, js].concat());
    let own_script = put("<!--script-->", js);
    let sources = |sources: &[Option<String>]| {
        let known: Vec<&str> = sources.iter().flatten().map(String::as_str).collect();
        if known.is_empty() { "'none'".to_owned() } else { known.join(" ") }
    };
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; form-action 'self'; \
         base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
        sources(&[theme, script, own_script]),
        sources(&[style])
    );
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(page.as_bytes()).expect("writing to memory cannot fail");
    let gzip = encoder.finish().expect("writing to memory cannot fail");
    Document {
        gzip: gzip.into(),
        policy: HeaderValue::from_str(&policy).expect("the policy is plain text"),
        tag: hex::encode(&Sha256::digest(&page)[..16]),
        plain: page.into(),
    }
}

impl Document {
    /// Returns the response to a request with these headers: compressed if the client accepts it, or 304 if the client
    /// already has the page. `status` is for pages in place of another response, such as a login form with 401.
    pub fn reply(&self, status: StatusCode, request: &HeaderMap) -> Response {
        let gzip = accepts_gzip(request);
        let tag = format!("\"{}{}\"", self.tag, if gzip { "-gz" } else { "" });
        let known = request.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        let known = known.flat_map(|value| value.split(','));
        let is_known = known.map(str::trim).any(|one| one == "*" || one.trim_start_matches("W/") == tag);
        let mut response = if status == StatusCode::OK && is_known {
            let mut response = HttpResponse::new(Bytes::new().into());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            let mut response = HttpResponse::new(if gzip { &self.gzip } else { &self.plain }.clone().into());
            *response.status_mut() = status;
            if gzip {
                response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
            response
        };
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        headers.insert(CONTENT_SECURITY_POLICY, self.policy.clone());
        headers.insert(ETAG, HeaderValue::from_str(&tag).expect("hex digits are header text"));
        headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        // Revalidated each time, sent again only after a change.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }

    /// The whole document, uncompressed.
    pub fn text(&self) -> &[u8] {
        &self.plain
    }

    /// Size of the whole document in bytes, uncompressed.
    pub fn size(&self) -> usize {
        self.plain.len()
    }
}

/// Reports whether `Accept-Encoding` allows gzip.
fn accepts_gzip(request: &HeaderMap) -> bool {
    let mut rest = None;
    for value in request.get_all(ACCEPT_ENCODING) {
        for part in value.to_str().unwrap_or_default().split(',') {
            let (name, parameter) = part.split_once(';').unwrap_or((part, ""));
            let quality = parameter.trim().strip_prefix("q=").map_or(Ok(1.0), |q| q.trim().parse::<f32>());
            let accepted = quality.is_ok_and(|quality| quality > 0.0);
            match name.trim().to_ascii_lowercase().as_str() {
                "gzip" | "x-gzip" => return accepted,
                "*" => rest = Some(accepted),
                _ => {}
            }
        }
    }
    rest.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;
    use http::header::HeaderName;

    use super::*;

    const HTML: &str = "<script><!--theme--></script><style><!--style--></style><script type=\"module\"><!--parts and script--></script>";

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
        text.split_once(before).unwrap().1.split_once(after).unwrap().0
    }

    #[test]
    fn every_inline_part_is_allowed_by_its_own_hash_and_nothing_else_is() {
        let page = document(HTML, "p{}", "say();");
        let text = std::str::from_utf8(&page.plain).unwrap();
        let policy = page.policy.to_str().unwrap();
        for part in [
            between(text, "<script>", "</script>"),
            between(text, "<style>", "</style>"),
            between(text, "<script type=\"module\">", "</script>"),
        ] {
            assert!(part.len() > 20);
            assert!(policy.contains(&format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(part)))));
        }
        assert!(text.contains("p{}") && text.contains("say();"));
        assert!(!policy.contains("unsafe"), "{policy}");
        let bare = document("<p>nothing inside</p>", "", "");
        assert!(bare.policy.to_str().unwrap().contains("script-src 'none'; style-src 'none'"));
    }

    #[test]
    fn shared_parts_cannot_end_their_own_element() {
        for text in [THEME_JS, THEME_CSS, PARTS_JS] {
            assert!(!text.contains("</s") && !text.contains("<!--"));
        }
    }

    #[test]
    fn pages_are_compressed_if_the_client_accepts_gzip() {
        let page = document(HTML, "", "");
        for (accept, expected) in [
            ("gzip, deflate, br", true),
            ("br;q=1.0, GZIP;q=0.5", true),
            ("*", true),
            ("gzip;q=0", false),
            ("gzip;q=0, *", false),
            ("*;q=0", false),
            ("gzip;q=x", false),
            ("deflate", false),
            ("identity", false),
            ("", false),
        ] {
            let reply = page.reply(StatusCode::OK, &headers(&[(ACCEPT_ENCODING, accept)]));
            assert_eq!(reply.headers().contains_key(CONTENT_ENCODING), expected, "{accept}");
            assert_eq!(reply.headers()[VARY], "Accept-Encoding");
        }
        let mut text = Vec::new();
        GzDecoder::new(page.gzip.as_ref()).read_to_end(&mut text).unwrap();
        assert_eq!(text, page.plain);
        assert!(page.gzip.len() < page.plain.len() / 2);
    }

    #[test]
    fn a_page_that_the_client_has_is_not_sent_again() {
        let page = document(HTML, "", "");
        let tag = page.reply(StatusCode::OK, &HeaderMap::new()).headers()[ETAG].to_str().unwrap().to_owned();
        let gzip_tag =
            page.reply(StatusCode::OK, &headers(&[(ACCEPT_ENCODING, "gzip")])).headers()[ETAG].clone();
        assert_ne!(tag, gzip_tag);
        for known in [tag.clone(), format!("\"x\", {tag}"), format!("W/{tag}"), "*".to_owned()] {
            let ask = headers(&[(IF_NONE_MATCH, &known)]);
            assert_eq!(page.reply(StatusCode::OK, &ask).status(), 304, "{known}");
            assert_eq!(page.reply(StatusCode::UNAUTHORIZED, &ask).status(), 401);
        }
        let ask = headers(&[(IF_NONE_MATCH, "\"x\"")]);
        assert_eq!(page.reply(StatusCode::OK, &ask).status(), 200);
        let other = document(HTML, "p{}", "");
        assert_ne!(other.reply(StatusCode::OK, &HeaderMap::new()).headers()[ETAG], tag);
    }
}
