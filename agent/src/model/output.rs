//! Sanitizes external text for logs, pages and comparison: no control characters, bounded size, no varying parts.

use std::borrow::Cow;
use std::iter::Peekable;
use std::str::Chars;

use crate::model::text::tail;

/// Maximum size of the output that is kept of a child process or a container, in bytes.
pub(crate) const OUTPUT_LIMIT: usize = 8 * 1024;

/// Keeps the tail of a stream of text.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    kept: Vec<u8>,
    cut: bool,
}

impl Tail {
    /// More than the limit is kept, because cleaning removes some of it.
    const KEEP: usize = 2 * OUTPUT_LIMIT;

    /// Appends a piece and drops the oldest bytes above the limit.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        let surplus = (self.kept.len() + piece.len()).saturating_sub(Self::KEEP);
        self.cut |= surplus > 0;
        let from_kept = surplus.min(self.kept.len());
        self.kept.drain(..from_kept);
        self.kept.extend_from_slice(&piece[surplus - from_kept..]);
    }

    fn cleaned(&self) -> String {
        clean(&String::from_utf8_lossy(&self.kept))
    }

    /// Reports whether [`Self::text`] lacks the beginning.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut || self.cleaned().len() > OUTPUT_LIMIT
    }

    /// Returns the cleaned text. If the beginning was dropped, the text starts with a whole line.
    pub(crate) fn text(&self) -> String {
        let text = self.cleaned();
        let end = tail(&text, OUTPUT_LIMIT);
        let cut = self.cut || end.len() < text.len();
        let whole = match end.split_once('\n') {
            Some((_, rest)) if cut && !rest.trim().is_empty() => rest,
            _ => end,
        };
        whole.trim_end().to_owned()
    }
}

/// Truncates `text` to `limit` characters and appends an ellipsis if it was longer.
pub(crate) fn clip_end(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Removes terminal escape sequences and control characters except newline and tab. A carriage return, with which a
/// terminal overwrites the line, becomes a newline.
pub(crate) fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\n' | '\t' => out.push(c),
            '\r' => {
                if chars.peek() != Some(&'\n') {
                    out.push('\n');
                }
            }
            '\u{1b}' => match chars.next_if(|c| *c != '\n') {
                Some('[') => skip_control_sequence(&mut chars),
                Some(']') => skip_system_command(&mut chars),
                _ => {}
            },
            '\u{9b}' => skip_control_sequence(&mut chars),
            // Bidirectional control characters can disguise a line.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {}
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

fn skip_control_sequence(chars: &mut Peekable<Chars<'_>>) {
    while let Some(c) = chars.next_if(|c| *c != '\n') {
        if ('\u{40}'..='\u{7e}').contains(&c) {
            break;
        }
    }
}

/// Skips an operating system command, which ends with BEL or ESC \. One without an end must not hide what follows.
fn skip_system_command(chars: &mut Peekable<Chars<'_>>) {
    const LONGEST: usize = 2048;
    for _ in 0..LONGEST {
        match chars.next_if(|c| *c != '\n') {
            None | Some('\u{7}') => return,
            Some('\u{1b}') if chars.next_if_eq(&'\\').is_some() => return,
            Some(_) => {}
        }
    }
}

/// How much is kept of a long error: what failed is at its beginning, and why at its end, as in `…: no space left on device`.
const BEGINNING: usize = 3 * 1024;
const END: usize = 1024;

/// Cuts the middle out of a long text, between two words if it has any. An engine passes on what a registry has answered,
/// which may be whole pages, or whatever somebody makes of it.
fn without_middle(text: &str) -> Cow<'_, str> {
    if text.len() <= BEGINNING + END {
        return Cow::Borrowed(text);
    }
    let mut beginning = BEGINNING;
    while !text.is_char_boundary(beginning) {
        beginning -= 1;
    }
    let (beginning, end) = (&text[..beginning], tail(text, END));
    let beginning = beginning.rsplit_once(char::is_whitespace).map_or(beginning, |(words, _)| words);
    let end = end.split_once(char::is_whitespace).map_or(end, |(_, words)| words);
    Cow::Owned(format!("{beginning} … {end}"))
}

/// Normalizes a line by removing IDs, times, queries, addresses of connections and local ports, so that the same fault always
/// gives the same text. Digests (`sha256:…`) are kept because they identify the fault. The middle of a long one is cut before
/// that, which takes time by the square of the length.
pub(crate) fn stable(line: &str) -> String {
    let line = without_middle(&clean(line)).replace('\n', " ");
    let line = without_addresses(&without_queries(&line));
    let line = without_paths_on_full_disk(&line);
    let mut out = String::with_capacity(line.len());
    let mut rest = line.as_str();
    // The next word is the value of a name such as `request id:`.
    let mut is_value = false;
    while let Some(c) = rest.chars().next() {
        if !c.is_ascii_alphanumeric() {
            is_value &= !matches!(c, ',' | ';' | '.' | ')' | '}');
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        }
        let after_colon = out.ends_with(':');
        if let Some(length) = time_at(rest).filter(|_| !out.ends_with(['.', '/', ':'])) {
            out.push_str("<time>");
            rest = &rest[length..];
            continue;
        }
        let is_of_value = |c: &char| c.is_ascii_alphanumeric() || "-_+/=".contains(*c);
        let value = if is_value { rest.chars().take_while(is_of_value).count() } else { 0 };
        if rest[..value].bytes().any(|b| b.is_ascii_digit()) {
            out.push_str("<id>");
            rest = &rest[value..];
            is_value = false;
            continue;
        }
        // The key of a snapshot that containerd extracts a layer to: nanoseconds, and something random.
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if out.ends_with("extract-") && digits >= 4 && rest[digits..].starts_with('-') {
            let is_of_key = |c: &char| c.is_ascii_alphanumeric() || "-_".contains(*c);
            out.push_str("<id>");
            rest = &rest[rest.chars().take_while(is_of_key).count()..];
            continue;
        }
        let (word, after) = rest.split_at(word_length(rest));
        is_value = NAMES_OF_IDS.iter().any(|name| is_end_of_name(&out, word, name));
        let is_random = (!after_colon && is_id(word)) || is_temporary(&out, word);
        out.push_str(if is_random { "<id>" } else { word });
        rest = after;
    }
    without_local_ports(out.trim())
}

/// Names whose value differs with each request, without the signs between their words.
const NAMES_OF_IDS: [&str; 8] =
    ["requestid", "reqid", "traceid", "correlationid", "rayid", "transactionid", "spanid", "referenceid"];

/// Reports whether `word` after `before` ends one of the names: `request id`, `request-id`, `RequestId`.
fn is_end_of_name(before: &str, word: &str, name: &str) -> bool {
    let word = word.to_ascii_lowercase();
    let Some(missing) = name.strip_suffix(word.as_str()) else { return false };
    let before = before.trim_end_matches([' ', '-', '_', '"']);
    missing.is_empty() || {
        let start = before.len().saturating_sub(missing.len());
        before.is_char_boundary(start) && before[start..].eq_ignore_ascii_case(missing)
    }
}

/// Length of the word at the start: letters and digits, and a whole UUID.
fn word_length(text: &str) -> usize {
    let of_letters = |text: &str| text.bytes().take_while(u8::is_ascii_alphanumeric).count();
    let mut length = 0;
    for part in [8, 4, 4, 4, 12] {
        let next = &text[length..];
        let next = if length == 0 { next } else { next.strip_prefix('-').unwrap_or_default() };
        if of_letters(next) != part || !next[..part].bytes().all(|b| b.is_ascii_hexdigit()) {
            return of_letters(text);
        }
        length += part + usize::from(length > 0);
    }
    length
}

/// Length of the time at the start of a text, if there is one: `2024-01-01T10:11:12.5Z`, `2024/01/01 10:11:12`,
/// `10:11:12`, `Mon, 01 Jan 2024 10:11:12 GMT`.
fn time_at(text: &str) -> Option<usize> {
    const CLOCK: &[u8] = b"dd:dd:dd";
    let shape: Vec<u8> = text.bytes().take(40).map(|b| if b.is_ascii_digit() { b'd' } else { b }).collect();
    let is_at = |from: usize, wanted: &[u8]| {
        shape.get(from..from + wanted.len()).is_some_and(|part| {
            part.iter().zip(wanted).all(|(b, w)| b == w || (*w == b'a' && b.is_ascii_alphabetic()))
        })
    };
    let dates: [&[u8]; 3] = [b"dddd-dd-ddT", b"dddd-dd-dd dd:dd:dd", b"dddd/dd/dd dd:dd:dd"];
    let (from, has_zone) = if dates.iter().any(|date| is_at(0, date)) {
        (11, true)
    } else if is_at(0, b"aaa, dd aaa dddd dd:dd:dd") {
        (17, true)
    } else if is_at(0, CLOCK) {
        (0, false)
    } else {
        return None;
    };
    let mut end = from + if is_at(from, CLOCK) { CLOCK.len() } else { 0 };
    let rest = &text.as_bytes()[end..];
    let more = rest.iter().take_while(|b| b.is_ascii_digit() || matches!(b, b'.' | b':')).count();
    end += more;
    let zone = &text.as_bytes()[end..];
    let zone_length = match zone {
        [b'Z', ..] => 1,
        [b'+' | b'-', digits @ ..] if has_zone => {
            1 + digits.iter().take_while(|b| b.is_ascii_digit() || **b == b':').count()
        }
        [b' ', b'G', b'M', b'T', ..] | [b' ', b'U', b'T', b'C', ..] => 4,
        _ => 0,
    };
    // `10:11:12` must not be the start of something longer, such as a hardware address.
    let after = &text[end + zone_length..];
    let goes_on = after.strip_prefix(':').unwrap_or(after).starts_with(|c: char| c.is_ascii_alphanumeric());
    (!goes_on).then_some(end + zone_length)
}

/// Reports whether a word is an ID or a Unix time: no name has this form.
fn is_id(word: &str) -> bool {
    let has_digit = word.bytes().any(|b| b.is_ascii_digit());
    let is_hex = word.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    let is_number = word.bytes().all(|b| b.is_ascii_digit());
    let is_upper = word.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase());
    match word.len() {
        10 => is_number && matches!(word.as_bytes()[..2], [b'1', b'6'..=b'9']),
        12..16 => has_digit && is_hex,
        16.. => has_digit && (is_hex || is_upper),
        _ => false,
    }
}

/// Reports whether a word after `before` names a temporary file with a random number: `/tmp/GetImageBlob872957069`.
fn is_temporary(before: &str, word: &str) -> bool {
    let name = word.trim_end_matches(|c: char| c.is_ascii_digit());
    word.len() - name.len() >= 6
        && name.bytes().all(|b| b.is_ascii_alphabetic())
        && last_word(before).starts_with('/')
        && last_word(before).contains("/tmp/")
}

fn last_word(text: &str) -> &str {
    text.rsplit([' ', '"', '\'', '(']).next().unwrap_or_default()
}

/// Cuts the paths of what could not be written to a full disk, as in `write /var/lib/docker/tmp/x: no space left on device`:
/// each try gets to another file. The folder that tells which disk it is stays; a path in an image tells nothing.
fn without_paths_on_full_disk(line: &str) -> String {
    const FULL: [&str; 2] = ["no space left on device", "disk quota exceeded"];
    const FOLDERS: [&str; 4] = ["/tmp/", "/snapshots/", "/overlay2/", "/overlay/"];
    let lower = line.to_ascii_lowercase();
    let mut ends: Vec<usize> =
        FULL.iter().flat_map(|text| lower.match_indices(*text)).map(|(at, _)| at).collect();
    ends.sort_unstable();
    let mut out = String::with_capacity(line.len());
    let mut from = 0;
    for end in ends {
        let Some(before) = line[from..end].strip_suffix(": ") else { continue };
        let path = last_word(before);
        let start = from + before.len() - path.len();
        let folder = FOLDERS.iter().filter_map(|folder| Some(path.find(*folder)? + folder.len())).min();
        if !path.starts_with('/') {
            continue;
        }
        if let Some(length) = folder {
            out.extend([&line[from..start + length], "…"]);
        } else if ["layer", "tar file"].iter().any(|words| says(before, words)) {
            out.extend([&line[from..start], "<path>"]);
        } else {
            continue;
        }
        from = start + path.len();
    }
    out.push_str(&line[from..]);
    out
}

/// Cuts the queries of web addresses. Those of a download are signed: they are secret, and differ with each try.
pub(crate) fn without_queries(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = ["http://", "https://"].iter().filter_map(|scheme| rest.find(scheme)).min() {
        let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '\\' | '<' | '>');
        let end = rest[start..].find(is_end).map_or(rest.len(), |length| start + length);
        out.push_str(&rest[..start]);
        match rest[start..end].split_once('?') {
            Some((address, query)) => {
                let after = query.trim_end_matches([':', ',', ';', ')']).len();
                out.extend([address, "?…", &query[after..]]);
            }
            None => out.push_str(&rest[start..end]),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// Replaces the addresses of connections and of resolvers, as in `dial tcp 10.0.0.1:443`: a name may have several.
fn without_addresses(line: &str) -> String {
    let mut words: Vec<&str> = line.split(' ').collect();
    for at in 2..words.len() {
        let is_of_connection = ["dial", "read", "write"].iter().any(|verb| words[at - 2].ends_with(verb))
            && matches!(words[at - 1], "tcp" | "udp");
        let is_of_resolver = words[at - 1] == "on" && at > 2 && words[at - 3].ends_with("lookup");
        if (is_of_connection || is_of_resolver) && words[at].contains(|c: char| c.is_ascii_digit()) {
            words[at] = if words[at].ends_with(':') { "<address>:" } else { "<address>" };
        }
    }
    words.join(" ")
}

/// Removes ephemeral local ports, as in `127.0.0.1:51234->10.0.0.1:443`.
fn without_local_ports(line: &str) -> String {
    let mut pieces = line.split("->");
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let digits = out.bytes().rev().take_while(u8::is_ascii_digit).count();
        let before = out.len() - digits;
        if digits > 0 && out[..before].ends_with(':') {
            out.truncate(before - 1);
        }
        out.push_str("->");
        out.push_str(piece);
    }
    out
}

/// Reports whether another program's message has these words, given in lower case. Its next version may write them with a
/// capital letter, or no longer: engines began with `Cannot overwrite digest` and went on with `cannot overwrite digest`.
pub fn says(message: &str, words: &str) -> bool {
    message.to_ascii_lowercase().contains(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_sequences_and_control_characters_are_removed() {
        assert_eq!(clean("a\u{1b}[31;1mred\u{1b}[0m b\u{7}\u{0}\tc\r\nd"), "ared b\tc\nd");
        assert_eq!(clean("\u{1b}]0;title\u{7}x\u{1b}]8;;http://a\u{1b}\\y"), "xy");
        assert_eq!(clean("10%\r20%\r"), "10%\n20%\n");
        assert_eq!(clean("\u{202e}evil\u{1b}"), "evil");
        assert_eq!(clean("\u{1b}[31"), "", "a sequence that never ends");
        assert_eq!(clean("\u{1b}[31\n1\nx"), "\n1\nx", "nor does it hide other lines");
        assert_eq!(clean("\u{1b}]hidden\nshown\u{1b}\nthis, too"), "\nshown\nthis, too");
        let long = format!("\u{1b}]{}shown", "x".repeat(2048));
        assert_eq!(clean(&long), "shown");
    }

    #[test]
    fn only_the_tail_of_long_output_is_kept_and_it_starts_with_a_whole_line() {
        let mut tail = Tail::default();
        for n in 0..100_000 {
            tail.push(format!("line {n}\n").as_bytes());
        }
        let text = tail.text();
        assert!(text.len() <= OUTPUT_LIMIT && text.len() > OUTPUT_LIMIT - 100, "{}", text.len());
        assert!(text.ends_with("line 99999"), "{text}");
        assert!(text.lines().all(|line| line.starts_with("line ")), "{text}");
    }

    #[test]
    fn long_output_in_one_piece_is_cut_the_same_way() {
        for size in [9_000, 17_000, 200_000] {
            let mut tail = Tail::default();
            tail.push(b"before\n");
            tail.push(format!("{}\nlast", "x\n".repeat(size / 2)).as_bytes());
            let text = tail.text();
            assert!(
                text.len() <= OUTPUT_LIMIT && text.starts_with("x\n") && text.ends_with("last"),
                "{size}"
            );
            assert!(tail.is_cut(), "{size}");
        }
    }

    #[test]
    fn what_is_removed_in_cleaning_is_no_part_that_is_missing() {
        let mut tail = Tail::default();
        tail.push("\u{1b}[31mred\n".repeat(1500).as_bytes());
        assert!(!tail.is_cut());
        assert_eq!(tail.text().lines().count(), 1500);
    }

    #[test]
    fn one_endless_line_is_clipped_at_a_character() {
        let mut tail = Tail::default();
        tail.push("ä".repeat(100_000).as_bytes());
        let text = tail.text();
        assert!(text.len() <= OUTPUT_LIMIT && text.ends_with("ää"), "{}", text.len());
    }

    #[test]
    fn bytes_that_are_not_text_stay_bounded() {
        let mut tail = Tail::default();
        tail.push(&vec![0xff; 50_000]);
        assert!(tail.text().len() <= OUTPUT_LIMIT);
    }

    #[test]
    fn the_same_fault_gives_the_same_text() {
        let id = "3f".repeat(32);
        for (seen, want) in [
            (
                format!(
                    "Conflict. The container name \"/3fb71c0a9d12_p-web-1\" is already in use by container \"{id}\"."
                ),
                "Conflict. The container name \"/<id>_p-web-1\" is already in use by container \"<id>\".",
            ),
            (
                "read tcp 127.0.0.1:51234->127.0.0.1:5000: read: connection reset by peer".to_owned(),
                "read tcp <address>: read: connection reset by peer",
            ),
            (
                "proxy 127.0.0.1:51234->127.0.0.1:5000: reset".to_owned(),
                "proxy 127.0.0.1->127.0.0.1:5000: reset",
            ),
            (
                "Get \"https://r.example/v2/\": dial tcp 104.18.124.25:443: i/o timeout".to_owned(),
                "Get \"https://r.example/v2/\": dial tcp <address>: i/o timeout",
            ),
            (
                "dial tcp: lookup r.example on 127.0.0.53:53: read udp 10.0.0.2:4711->10.0.0.1:53: i/o timeout"
                    .to_owned(),
                "dial tcp: lookup r.example on <address>: read udp <address>: i/o timeout",
            ),
            ("dial tcp [2606:4700::6810:84e5]:443: refused".to_owned(), "dial tcp <address>: refused"),
            (
                "httpReadSeeker: Get https://cdn.example/a/data?verify=1577462404-ru4iI1%3D: EOF".to_owned(),
                "httpReadSeeker: Get https://cdn.example/a/data?…: EOF",
            ),
            (
                "why? Get \"http://a.example/x?sig=a%2Bb&se=1\": EOF, Get \"https://a.example/y?X-Amz-Signature=0f\""
                    .to_owned(),
                "why? Get \"http://a.example/x?…\": EOF, Get \"https://a.example/y?…\"",
            ),
            ("at 2024-05-01T10:11:12.123Z it failed".to_owned(), "at <time> it failed"),
            ("my-app-1 2024-05-01 12-3".to_owned(), "my-app-1 2024-05-01 12-3"),
            ("5 s after 2024-05-01 10:11:12 it failed".to_owned(), "5 s after <time> it failed"),
            ("Wed, 01 May 2024 10:11:12 GMT: denied".to_owned(), "<time>: denied"),
            ("[10:11:12.123] denied".to_owned(), "[<time>] denied"),
            ("denied (request id: a1-7)".to_owned(), "denied (request id: <id>)"),
            ("denied, RequestId=\"X7q\", host web1".to_owned(), "denied, RequestId=\"<id>\", host web1"),
            (
                "status code: 503, request id: 7Q, host id: x".to_owned(),
                "status code: 503, request id: <id>, host id: x",
            ),
            ("6f1b34a0-1c2d-4e5f-8a9b-0c1d2e3f4a5b: denied".to_owned(), "<id>: denied"),
            ("retry after 1764046800 or 1764046800123".to_owned(), "retry after <id> or <id>"),
            ("trace 4bf92f3577b34da6a3ce929d0e0e4736".to_owned(), "trace <id>"),
            (
                "write /var/lib/docker/tmp/GetImageBlob872957069: no space left on device".to_owned(),
                "write /var/lib/docker/tmp/…: no space left on device",
            ),
            (
                "open /var/lib/docker/tmp/GetImageBlob872957069: input/output error".to_owned(),
                "open /var/lib/docker/tmp/<id>: input/output error",
            ),
            (
                "extract: mkdir /var/lib/containerd/overlayfs/snapshots/12/fs/usr: no space left on device: unknown"
                    .to_owned(),
                "extract: mkdir /var/lib/containerd/overlayfs/snapshots/…: no space left on device: unknown",
            ),
            (
                "failed to register layer: write /usr/lib/libx.so: No space left on device".to_owned(),
                "failed to register layer: write <path>: No space left on device",
            ),
            (
                "can't prepare \"extract-872957069-Xk_3 sha256:ab\": full".to_owned(),
                "can't prepare \"extract-<id> sha256:ab\": full",
            ),
        ] {
            assert_eq!(stable(&seen), want);
        }
    }

    #[test]
    fn of_a_long_error_the_beginning_and_the_end_are_kept() {
        for piece in ["1234567-", "requestid-", "x /a: no space left on device ", "http://a?secret ", "ä"] {
            let long = stable(&piece.repeat(8 * 1024 / piece.len()));
            assert!(long.len() <= BEGINNING + END + " … ".len(), "{piece}: {}", long.len());
        }
        let page = format!("pull web:1: <html>{}: no space left on device", "a".repeat(1 << 16));
        let kept = stable(&page);
        assert!(kept.starts_with("pull web:1: … ") && kept.ends_with(" no space left on device"), "{kept}");
        let id = |n: u32| format!("6f1b34a0-1c2d-4e5f-8a9b-0c1d2e3f{n:04}");
        let ids = stable(&(0..500).map(id).collect::<Vec<_>>().join(", "));
        assert!(!ids.contains("1c2d"), "no part of an ID is left where the text was cut: {ids}");
        let short = "x".repeat(BEGINNING + END);
        assert_eq!(stable(&short), short);
    }

    #[test]
    fn digests_and_names_are_kept() {
        let text = format!("manifest for localhost:5000/x@sha256:{} not found", "ab".repeat(32));
        assert_eq!(stable(&text), text);
        for text in [
            "Bind for 0.0.0.0:8080 failed",
            "manifest for web:20240501101112abcdef not found",
            "invalid reference format: deadbeef",
            "unknown flag: --no-deps in docker-compose v2.26.1",
            "service web at 02:42:ac:11:00:02 is unhealthy",
            "mkdir /srv/web20240501/data: disk quota exceeded",
            "open /srv/web20240501/compose.yml: no such file or directory",
            "container shop-extract-1 is unhealthy",
        ] {
            assert_eq!(stable(text), text);
        }
    }
}
