//! Sanitizes external text for logs, pages and comparison: no control characters, bounded size, no varying parts.

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

    /// Returns the cleaned text. If the beginning was dropped, the text starts with a whole line.
    pub(crate) fn text(&self) -> String {
        let text = clean(&String::from_utf8_lossy(&self.kept));
        let end = clip_start(&text, OUTPUT_LIMIT);
        let cut = self.cut || end.len() < text.len();
        let whole = match end.split_once('\n') {
            Some((_, rest)) if cut && !rest.trim().is_empty() => rest,
            _ => end,
        };
        whole.trim_end().to_owned()
    }
}

/// Returns at most the last `limit` bytes of `text`, cut at a character boundary.
fn clip_start(text: &str, limit: usize) -> &str {
    let mut start = text.len().saturating_sub(limit);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
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
            '\u{1b}' => match chars.next() {
                Some('[') => skip_control_sequence(&mut chars),
                // An operating system command ends with BEL or ESC \.
                Some(']') => {
                    while let Some(c) = chars.next() {
                        if c == '\u{7}' || (c == '\u{1b}' && chars.next_if_eq(&'\\').is_some()) {
                            break;
                        }
                    }
                }
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

fn skip_control_sequence(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    for c in chars.by_ref() {
        if ('\u{40}'..='\u{7e}').contains(&c) {
            break;
        }
    }
}

/// Normalizes a line by removing IDs, timestamps and local ports, so that the same fault always gives the same text.
/// Digests (`sha256:…`) are kept because they identify the fault.
pub(crate) fn stable(line: &str) -> String {
    let line = clean(line);
    let mut out = String::with_capacity(line.len());
    let mut word = String::new();
    // The trailing space flushes the last word.
    for c in line.chars().map(|c| if c == '\n' { ' ' } else { c }).chain([' ']) {
        if c.is_ascii_alphanumeric() || (is_time(&word) && matches!(c, '-' | ':' | '.' | '+')) {
            word.push(c);
            continue;
        }
        // `2024-01-01` must stay one word to be recognized as a date.
        if c == '-' && word.len() < 11 && word.bytes().all(|b| b.is_ascii_digit() || b == b'-') {
            word.push(c);
            continue;
        }
        let after_colon = out.ends_with(':');
        if is_time(&word) {
            out.push_str("<time>");
        } else if is_id(&word) && !after_colon {
            out.push_str("<id>");
        } else {
            out.push_str(&word);
        }
        word.clear();
        out.push(c);
    }
    without_local_ports(out.trim())
}

fn is_time(word: &str) -> bool {
    let mut bytes = word.bytes();
    word.len() >= 11
        && b"dddd-dd-ddT".iter().all(|shape| {
            bytes.next().is_some_and(|b| if *shape == b'd' { b.is_ascii_digit() } else { b == *shape })
        })
}

fn is_id(word: &str) -> bool {
    matches!(word.len(), 12 | 64) && word.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
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
        }
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
                "read tcp 127.0.0.1->127.0.0.1:5000: read: connection reset by peer",
            ),
            ("at 2024-05-01T10:11:12.123Z it failed".to_owned(), "at <time> it failed"),
            ("my-app-1 2024-05-01 12-3".to_owned(), "my-app-1 2024-05-01 12-3"),
        ] {
            assert_eq!(stable(&seen), want);
        }
    }

    #[test]
    fn digests_and_names_are_kept() {
        let text = format!("manifest for localhost:5000/x@sha256:{} not found", "ab".repeat(32));
        assert_eq!(stable(&text), text);
        assert_eq!(stable("Bind for 0.0.0.0:8080 failed"), "Bind for 0.0.0.0:8080 failed");
    }
}
