//! Prints answers, as JSON or as text.

use std::fmt::Write as _;

use evenkeel_common::telemetry::is_harmful;
use serde::Serialize;

use super::terminal::print;
use crate::model::output::clean;

/// Prints an answer as JSON or as text. Returns whether the output is still open.
pub(super) fn show<T: Serialize>(json: bool, answer: &T, as_text: impl FnOnce() -> String) -> bool {
    if json { print(&as_json(answer)) } else { print(&as_text()) }
}

fn as_json<T: Serialize>(answer: &T) -> String {
    let text = serde_json::to_string(answer).expect("the wire types have only text keys and finite numbers");
    // JSON escapes the ASCII control characters only; outside of strings there are none of the others.
    let mut out = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        if is_harmful(c) {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out.push('\n');
    out
}

/// Formats an answer without control characters.
pub(super) fn line(text: &str) -> String {
    format!("{}\n", clean(text).replace('\n', " "))
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_for_a_terminal_has_no_character_that_a_terminal_acts_on() {
        let hostile = "a\u{1b}[2J\u{9b}2J\u{7f}\u{202e}b\u{2066}é";
        let text = as_json(&hostile);
        assert_eq!(text, "\"a\\u001b[2J\\u009b2J\\u007f\\u202eb\\u2066é\"\n");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), hostile);
        assert_eq!(line("a\u{1b}[2J\nb"), "a b\n");
    }
}
