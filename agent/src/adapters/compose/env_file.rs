//! Reads variables from an env file by compose's rules. They are for the child only, never for our process.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use tokio::io::AsyncReadExt as _;

use crate::model::env_file::{Fault, Setting, settings};
use crate::model::text::describe_io_error;

/// Maximum file size. Real env files are smaller.
const LIMIT: u64 = 1024 * 1024;
/// Maximum nesting of `${…}`.
const MAX_DEPTH: u32 = 20;
/// Maximum size of all values together, as the system allows no more for a child. Lines that double an earlier value
/// reach it quickly.
const MAX_VALUES: usize = 2 * 1024 * 1024;

/// Why an env file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum EnvFileError {
    #[error("env_file {path}: {reason}")]
    File { path: PathBuf, reason: String },
    #[error("env_file {path}, line {line}: {reason}")]
    Line { path: PathBuf, line: usize, reason: String },
}

/// Reads and parses the file at `path`. As in compose, a reference to a variable prefers `environment` over the file.
pub(super) async fn read(
    path: &Path,
    environment: &[(OsString, OsString)],
) -> Result<Vec<(String, String)>, EnvFileError> {
    let fault = |reason: String| EnvFileError::File { path: path.to_owned(), reason };
    let failed = |error: std::io::Error| fault(describe_io_error(&error));
    // Opening a FIFO would block until a writer opens it.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file =
        tokio::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).await.map_err(failed)?;
    let meta = file.metadata().await.map_err(failed)?;
    if !meta.is_file() {
        return Err(fault(if meta.is_dir() { "is a directory" } else { "is not a regular file" }.to_owned()));
    }
    if meta.len() > LIMIT {
        return Err(fault(format!("is larger than {LIMIT} bytes")));
    }
    let mut text = Vec::new();
    file.take(LIMIT).read_to_end(&mut text).await.map_err(failed)?;
    let text = String::from_utf8(text).map_err(|_| fault("is not UTF-8 text".to_owned()))?;
    let outside = |name: &str| {
        let (_, value) = environment.iter().find(|(known, _)| known == name)?;
        value.to_str().map(str::to_owned)
    };
    parse(&text, &outside).map_err(|(line, reason)| EnvFileError::Line {
        path: path.to_owned(),
        line,
        reason,
    })
}

/// Parses the variables, ordered by first occurrence. Expands `$NAME` and `${NAME}`, with defaults.
fn parse(text: &str, outside: &Outside<'_>) -> Result<Vec<(String, String)>, Fault> {
    let mut found = Found { outside, in_order: Vec::new(), place: HashMap::new(), size: 0 };
    for setting in settings(text) {
        let Setting { name, raw, quote, line, .. } = setting?;
        let value = match quote {
            Some('\'') => Ok(unquote(raw, '\'')),
            Some(quote) => found.substitute(&unescape(&unquote(raw, quote)), 0),
            None => found.substitute(raw, 0),
        };
        let value = value.map_err(|reason| (line, reason))?;
        if value.contains('\0') {
            return Err((line, "a value has a NUL byte".to_owned()));
        }
        found.add(name, value);
    }
    Ok(found.in_order)
}

/// Returns the text between quotes. A backslash escapes the quote.
fn unquote(raw: &str, quote: char) -> String {
    let mut inner = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            inner.push(c);
            continue;
        }
        match chars.next() {
            Some(next) if next == quote => inner.push(next),
            next => inner.extend(['\\'].into_iter().chain(next)),
        }
    }
    inner
}

/// Expands backslash escapes. An escaped dollar sign is protected from substitution.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('a') => out.push('\u{7}'),
            Some('b') => out.push('\u{8}'),
            Some('f') => out.push('\u{c}'),
            Some('v') => out.push('\u{b}'),
            Some('"') => out.push('"'),
            Some('\\') | None => out.push('\\'),
            Some('$') => out.push_str("$$"),
            Some(other) => out.extend(['\\', other]),
        }
    }
    out
}

/// Looks up a variable of the environment.
type Outside<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The variables parsed so far.
struct Found<'a> {
    outside: &'a Outside<'a>,
    in_order: Vec<(String, String)>,
    place: HashMap<String, usize>,
    size: usize,
}

impl Found<'_> {
    fn add(&mut self, key: &str, value: String) {
        self.size += value.len();
        if let Some(at) = self.place.get(key) {
            self.in_order[*at].1 = value;
        } else {
            self.place.insert(key.to_owned(), self.in_order.len());
            self.in_order.push((key.to_owned(), value));
        }
    }

    fn get(&self, key: &str) -> Option<String> {
        (self.outside)(key).or_else(|| self.place.get(key).map(|at| self.in_order[*at].1.clone()))
    }

    /// Expands variables of the environment and of earlier lines. A dollar sign without a name is kept.
    fn substitute(&self, text: &str, depth: u32) -> Result<String, String> {
        if depth > MAX_DEPTH {
            return Err("${…} nested too deeply".to_owned());
        }
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            if self.size + out.len() > MAX_VALUES {
                return Err(format!("the values up to here are longer than {MAX_VALUES} bytes"));
            }
            out.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('$') {
                out.push('$');
                rest = after;
            } else if let Some(inner) = rest.strip_prefix('{') {
                let end = closing_brace(inner).ok_or("a ${ is not closed")?;
                out.push_str(&self.braced(&inner[..end], depth)?);
                rest = &inner[end + 1..];
            } else {
                let name = name_at(rest);
                if name.is_empty() {
                    out.push('$');
                }
                out.push_str(&self.get(name).unwrap_or_default());
                rest = &rest[name.len()..];
            }
        }
        out.push_str(rest);
        Ok(out)
    }

    /// Expands the text between braces: a name, alone or with a default, a replacement or an error message.
    fn braced(&self, inner: &str, depth: u32) -> Result<String, String> {
        let name = name_at(inner);
        if name.is_empty() {
            return Err("a ${ must be followed by a name".to_owned());
        }
        let operator = &inner[name.len()..];
        let (strict, operator) = match operator.strip_prefix(':') {
            Some(operator) => (true, operator),
            None => (false, operator),
        };
        // With a colon, an empty value counts as unset.
        let value = self.get(name).filter(|value| !(strict && value.is_empty()));
        if operator.is_empty() && !strict {
            return Ok(value.unwrap_or_default());
        }
        let (sign, word) = operator.split_at_checked(1).ok_or("a ${…} is not complete")?;
        match (sign, value) {
            ("-", None) | ("+", Some(_)) => self.substitute(word, depth + 1),
            ("-" | "?", Some(value)) => Ok(value),
            ("+", None) => Ok(String::new()),
            ("?", None) => Err(format!("{name} has no value: {}", self.substitute(word, depth + 1)?)),
            _ => {
                Err("a ${…} has an unknown operator (supported: - + ? and the same after a colon)".to_owned())
            }
        }
    }
}

fn name_at(text: &str) -> &str {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return "";
    }
    &text[..text.find(|c| !word(c)).unwrap_or(text.len())]
}

/// Position of the brace that closes the `${` before the text.
fn closing_brace(text: &str) -> Option<usize> {
    let mut open = 1;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '{' if before == '$' => open += 1,
            '}' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some(at);
        }
        before = c;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        parse(text, &|_| None).unwrap()
    }

    fn one(text: &str) -> String {
        parsed(text).pop().unwrap().1
    }

    fn fault(text: &str) -> Fault {
        parse(text, &|_| None).unwrap_err()
    }

    #[test]
    fn plain_lines_comments_and_export_are_parsed() {
        let text =
            "\u{feff}# comment\n\nA=1\r\n  export B = two words \nC: yaml\nD=\nE=x#y #z\nF\nG=http://h/#a\n";
        let pairs: Vec<_> = parsed(text).into_iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(pairs, ["A=1", "B=two words", "C=yaml", "D=", "E=x#y", "G=http://h/#a"]);
    }

    #[test]
    fn quotes_keep_spaces_comment_signs_and_lines() {
        assert_eq!(one("A=\" a # b \" # c"), " a # b ");
        assert_eq!(one("A='a $B \\n'"), "a $B \\n");
        assert_eq!(one("A='it\\'s'"), "it's");
        assert_eq!(one("A=\"say \\\"x\\\"\\tend\\\\\""), "say \"x\"\tend\\");
        assert_eq!(one("A=\"one\ntwo\"\n"), "one\ntwo");
        assert_eq!(parsed("A='1\n2'\nB=3").len(), 2);
    }

    #[test]
    fn variables_of_earlier_lines_are_expanded() {
        assert_eq!(one("A=x\nB=$A-${A}_$$A"), "x-x_$A");
        assert_eq!(one("A=x\nB=\"\\$A ${A}\""), "$A x");
        assert_eq!(one("B=[$NONE]"), "[]");
        assert_eq!(one("E=\nB=${E:-d}${E-d}${N-${E:-deep}}"), "ddeep");
        assert_eq!(one("A=x\nB=${A:+set}${N+unset}"), "set");
        assert_eq!(one("A=x\nA=${A}y"), "xy");
        assert_eq!(one("A=p$!w$1$"), "p$!w$1$", "a password");
        let outside = |name: &str| (name == "HOME").then(|| "/root".to_owned());
        assert_eq!(parse("HOME=/x\nA=$HOME", &outside).unwrap()[1].1, "/root", "as compose does");
    }

    #[test]
    fn a_faulty_line_is_named_without_its_value() {
        for (text, line, part) in [
            ("A=1\nB C=2", 2, "a variable name may contain only"),
            ("A=1\n\n=2", 3, "name is missing"),
            ("A=1\nB=\"secret\nC=3", 2, "not closed"),
            ("A='1' secret x", 1, "a variable name may contain only"),
            ("A=${secret", 1, "not closed"),
            ("A=${B:?needed}", 1, "B has no value: needed"),
            ("A=${B!x}", 1, "unknown operator"),
            ("A=${}", 1, "followed by a name"),
            ("A=${B:}", 1, "not complete"),
        ] {
            let (at, reason) = fault(text);
            assert_eq!(at, line, "{text}: {reason}");
            assert!(reason.contains(part), "{text}: {reason}");
            assert!(!reason.contains("secret"), "{reason}");
        }
    }

    #[test]
    fn deep_nesting_is_refused() {
        let text = format!("A={}x{}", "${B:-".repeat(5000), "}".repeat(5000));
        assert!(fault(&text).1.contains("nested too deeply"));
    }

    #[test]
    fn exponentially_growing_values_are_refused() {
        let text = format!("A=xxxxxxxx\n{}", "A=$A$A\n".repeat(100_000));
        assert!(fault(&text).1.contains("longer than"));
        assert_eq!(parsed(&"A=1\n".repeat(250_000)).len(), 1);
    }

    #[tokio::test]
    async fn a_path_that_is_not_a_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = read(folder.path(), &[]).await.unwrap_err().to_string();
        assert!(error.ends_with(": is a directory"), "{error}");
        let error = read(&folder.path().join("none"), &[]).await.unwrap_err().to_string();
        assert!(error.ends_with("none: does not exist"), "{error}");
    }
}
