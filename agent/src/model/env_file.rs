//! Parses env files by compose's rules and replaces one value without changing any other byte.

use super::image::tag_is_valid;

/// An assignment in an env file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting<'a> {
    /// Name of the variable.
    pub name: &'a str,
    /// The value as written, without its quotes.
    pub raw: &'a str,
    /// The quote character around the value.
    pub quote: Option<char>,
    /// Byte offset of `raw` in the file.
    pub at: usize,
    /// Line number of the assignment, starting at 1.
    pub line: usize,
}

/// A syntax error with its line number. The message never contains values, because they are often secrets.
pub type Fault = (usize, String);

/// Iterates over all assignments in file order. Supports `KEY=value`, `KEY: value`, `export`, comments, and both kinds of
/// quotes (also over several lines). A bare key imports a variable from the environment, so it assigns nothing.
pub fn settings(text: &str) -> impl Iterator<Item = Result<Setting<'_>, Fault>> {
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    // Lines are counted incrementally, so that a file with many assignments is scanned only once.
    let (mut counted, mut line) = (0, 1);
    let mut is_over = false;
    std::iter::from_fn(move || {
        while !is_over {
            rest = rest.trim_start();
            if rest.is_empty() {
                return None;
            }
            if rest.starts_with('#') {
                rest = rest.split_once('\n').map_or("", |(_, next)| next);
                continue;
            }
            let begin = text.len() - rest.len();
            line += text[counted..begin].matches('\n').count();
            counted = begin;
            match next_setting(rest) {
                Ok((setting, after)) => {
                    let at = |raw: &str| {
                        text.len() - rest.len() + (raw.as_ptr() as usize - rest.as_ptr() as usize)
                    };
                    let setting = setting.map(|setting| Setting { at: at(setting.raw), line, ..setting });
                    rest = after;
                    if let Some(setting) = setting {
                        return Some(Ok(setting));
                    }
                }
                Err(reason) => {
                    is_over = true;
                    return Some(Err((line, reason.to_owned())));
                }
            }
        }
        None
    })
}

/// Parses the assignment at the start of `text` (`None` for a bare key) and returns the remaining text.
fn next_setting(text: &str) -> Result<(Option<Setting<'_>>, &str), &'static str> {
    let statement = match text.strip_prefix("export") {
        Some(after) if after.starts_with([' ', '\t']) => after.trim_start_matches([' ', '\t']),
        _ => text,
    };
    let end = statement.find(['=', ':', '\n']).unwrap_or(statement.len());
    let name = statement[..end].trim();
    if name.is_empty() {
        return Err("a variable name is missing before = or :");
    }
    if !name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '[' | ']')) {
        return Err("a variable name may contain only letters, digits, _ . and - (is the = missing?)");
    }
    if !statement[end..].starts_with(['=', ':']) {
        return Ok((None, &statement[end..]));
    }
    let value = statement[end + 1..].trim_start_matches([' ', '\t', '\r']);
    let (raw, quote, after) = if let Some(quote @ ('"' | '\'')) = value.chars().next() {
        let inner = &value[1..];
        let end = closing_quote(inner, quote).ok_or("the quote is not closed")?;
        (&inner[..end], Some(quote), &inner[end + 1..])
    } else {
        let (value, after) = value.split_once('\n').unwrap_or((value, &value[value.len()..]));
        let end = value.find(" #").unwrap_or(value.len());
        (value[..end].trim_end(), None, after)
    };
    Ok((Some(Setting { name, raw, quote, at: 0, line: 0 }), after))
}

/// Returns the position of the closing quote. A backslash escapes the next character.
fn closing_quote(text: &str, quote: char) -> Option<usize> {
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        if c == quote {
            return Some(at);
        }
        if c == '\\' {
            chars.next()?;
        }
    }
    None
}

/// The assignment of a variable that holds a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagSetting {
    /// The tag.
    pub tag: String,
    /// The line without its terminator.
    pub line: String,
    at: usize,
    at_in_line: usize,
}

/// Finds the assignment of a tag to `variable`. The last assignment wins, as in compose. Error messages contain no values.
pub fn find_tag(text: &str, variable: &str) -> Result<TagSetting, String> {
    let mut found = None;
    for setting in settings(text) {
        let setting = setting.map_err(|(line, reason)| format!("line {line}: {reason}"))?;
        if setting.name == variable {
            found = Some(setting);
        }
    }
    let setting = found.ok_or_else(|| format!("{variable} is not set"))?;
    if !tag_is_valid(setting.raw) {
        return Err(format!("line {}: {variable} is not a plain tag", setting.line));
    }
    let begin = text[..setting.at].rfind('\n').map_or(0, |at| at + 1);
    let end = text[setting.at..].find('\n').map_or(text.len(), |at| setting.at + at);
    let line = text[begin..end].to_owned();
    Ok(TagSetting { tag: setting.raw.to_owned(), line, at: setting.at, at_in_line: setting.at - begin })
}

impl TagSetting {
    /// Returns the line with another tag.
    pub fn line_with(&self, tag: &str) -> String {
        let (before, after) = self.line.split_at(self.at_in_line);
        format!("{before}{tag}{}", &after[self.tag.len()..])
    }

    /// Returns the file's text with another tag; nothing else is changed.
    pub fn with(&self, text: &str, tag: &str) -> String {
        let after = &text[self.at + self.tag.len()..];
        format!("{}{tag}{after}", &text[..self.at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tag_is_replaced_and_every_other_byte_stays() {
        for (before, after) in [
            ("WEB_TAG=1.27.0", "WEB_TAG=1.27.4"),
            ("WEB_TAG=1.27.0\n", "WEB_TAG=1.27.4\n"),
            ("A=1\r\nWEB_TAG=1.27.0\r\nB=2\r\n", "A=1\r\nWEB_TAG=1.27.4\r\nB=2\r\n"),
            ("WEB_TAG=\"1.27.0\" # pinned\n", "WEB_TAG=\"1.27.4\" # pinned\n"),
            ("  export\tWEB_TAG = '1.27.0'  \n", "  export\tWEB_TAG = '1.27.4'  \n"),
            ("WEB_TAG: 1.27.0 #x\n", "WEB_TAG: 1.27.4 #x\n"),
            ("\u{feff}WEB_TAG=1.27.0\n", "\u{feff}WEB_TAG=1.27.4\n"),
            // The last one counts.
            ("WEB_TAG=1.27.0\nWEB_TAG=1.27.0\n", "WEB_TAG=1.27.0\nWEB_TAG=1.27.4\n"),
            ("WEB_TAG=1.26\nexport WEB_TAG=1.27.0", "WEB_TAG=1.26\nexport WEB_TAG=1.27.4"),
            // A longer name, a comment, and a quoted text that looks like an assignment.
            (
                "# WEB_TAG=1\nMY_WEB_TAG=2\nWEB_TAG=1.27.0\nWEB_TAGS=3\n",
                "# WEB_TAG=1\nMY_WEB_TAG=2\nWEB_TAG=1.27.4\nWEB_TAGS=3\n",
            ),
            ("WEB_TAG=1.27.0\nNOTE='\nWEB_TAG=1.0\n'\n", "WEB_TAG=1.27.4\nNOTE='\nWEB_TAG=1.0\n'\n"),
            ("WEB_TAG=1.27.0\nWEB_TAG\n", "WEB_TAG=1.27.4\nWEB_TAG\n"),
            ("ü=1\nWEB_TAG=1.27.0\nPASSWORD=ä$x\"\n", "ü=1\nWEB_TAG=1.27.4\nPASSWORD=ä$x\"\n"),
        ] {
            let found = find_tag(before, "WEB_TAG").unwrap();
            assert_eq!(found.tag, "1.27.0", "{before:?}");
            let changed = found.with(before, "1.27.4");
            assert_eq!(changed, after);
            assert_eq!(find_tag(&changed, "WEB_TAG").unwrap().line, found.line_with("1.27.4"));
            assert_eq!(find_tag(&changed, "WEB_TAG").unwrap().with(&changed, "1.27.0"), before, "and back");
        }
    }

    #[test]
    fn the_line_is_noted_without_its_end() {
        let line = |text: &str| find_tag(text, "T").unwrap().line;
        assert_eq!(line("A=1\n  export T='1' # x\r\nB=2"), "  export T='1' # x\r");
        assert_eq!(line("T=1"), "T=1");
    }

    #[test]
    fn values_that_are_not_plain_tags_are_rejected_and_not_shown() {
        for (text, part) in [
            ("", "T is not set"),
            ("T\n", "T is not set"),
            ("T=\n", "line 1: T is not a plain tag"),
            ("A=1\nT=${A}\n", "line 2: T is not a plain tag"),
            ("T=\"secret word\"", "not a plain tag"),
            ("T=-1", "not a plain tag"),
            ("T=a/b:1", "not a plain tag"),
            ("T=\"1\n2\"", "not a plain tag"),
            ("T=1\nB=\"secret", "line 2: the quote is not closed"),
        ] {
            let error = find_tag(text, "T").unwrap_err();
            assert!(error.contains(part) && !error.contains("secret"), "{text:?}: {error}");
        }
    }
}
