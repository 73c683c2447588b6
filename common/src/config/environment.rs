//! The environment files of systemd units (`EnvironmentFile=`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::Chars;

use super::source::{self, ReadError};

/// Where the packages put configurations and environment files.
const PACKAGED: &str = "/etc/evenkeel";

/// Returns the variables of a file as systemd reads it: quotes count at the beginning of a value and behind a quoted part of it,
/// a backslash takes the next character as it is and joins lines, and quoted text may have several lines.
pub fn variables(text: &str) -> BTreeMap<String, String> {
    let (mut parser, mut place, mut rest) = (Parser::default(), Place::Start, text.chars());
    while let Some(c) = rest.next() {
        place = parser.take(place, c, &mut rest);
    }
    if matches!(place, Place::Gap | Place::Bare | Place::Quoted(_)) {
        parser.end_value();
    }
    parser.variables
}

/// The place of a character in an environment file.
#[derive(Clone, Copy)]
enum Place {
    /// Before a name.
    Start,
    Comment,
    Name,
    /// Before a value, or behind a quoted part of it.
    Gap,
    /// In a value without quotes, in which quotes are nothing special.
    Bare,
    /// In a part of a value between these quotes.
    Quoted(char),
}

/// The variables that were read, and what has been read of the next one.
#[derive(Default)]
struct Parser {
    variables: BTreeMap<String, String>,
    name: String,
    value: String,
    /// Length of the value without the blanks at its end that nothing quotes.
    kept: usize,
}

impl Parser {
    /// Takes a character, and what a backslash escapes from the rest. Returns the place behind it.
    fn take(&mut self, place: Place, c: char, rest: &mut Chars<'_>) -> Place {
        let is_blank = matches!(c, ' ' | '\t');
        match (place, c) {
            (Place::Start | Place::Comment | Place::Name, '\n' | '\r') => {
                self.name.clear();
                Place::Start
            }
            (Place::Start, '#' | ';') | (Place::Comment, _) => Place::Comment,
            (Place::Start, _) if is_blank => Place::Start,
            (Place::Name, '=') => Place::Gap,
            (Place::Start | Place::Name, _) => {
                self.name.push(c);
                Place::Name
            }
            (Place::Gap | Place::Bare, '\n' | '\r') => {
                self.end_value();
                Place::Start
            }
            (Place::Gap | Place::Bare, '\\') => {
                self.value.extend(rest.next().filter(|next| !matches!(next, '\n' | '\r')));
                self.kept = self.value.len();
                Place::Bare
            }
            (Place::Gap, '"' | '\'') => Place::Quoted(c),
            (Place::Gap, _) if is_blank => Place::Gap,
            (Place::Gap | Place::Bare, _) => {
                self.value.push(c);
                if !is_blank {
                    self.kept = self.value.len();
                }
                Place::Bare
            }
            (Place::Quoted(quote), _) if c == quote => Place::Gap,
            (Place::Quoted(quote), _) => {
                self.take_quoted(quote, c, rest);
                place
            }
        }
    }

    fn take_quoted(&mut self, quote: char, c: char, rest: &mut Chars<'_>) {
        match (quote, c) {
            ('"', '\\') => match rest.next() {
                Some(special @ ('"' | '\\' | '$' | '`')) => self.value.push(special),
                Some('\n' | '\r') | None => {}
                Some(other) => self.value.extend([c, other]),
            },
            _ => self.value.push(c),
        }
        self.kept = self.value.len();
    }

    fn end_value(&mut self) {
        let mut value = std::mem::take(&mut self.value);
        value.truncate(std::mem::take(&mut self.kept));
        self.variables.insert(std::mem::take(&mut self.name).trim_end().to_owned(), value);
    }
}

/// The environment file of a program's unit as it was when the program was started. The variables of the process keep the
/// values from then.
pub(super) struct UnitFile {
    path: PathBuf,
    /// `None` if it can't be read.
    at_start: Option<BTreeMap<String, String>>,
}

impl UnitFile {
    /// Reads the file `name` beside the configuration, or else where the packages put it.
    pub(super) fn read(config: &Path, name: &str) -> Self {
        let (beside, packaged) = (config.with_file_name(name), Path::new(PACKAGED).join(name));
        let path = if packaged.exists() && !beside.exists() { packaged } else { beside };
        Self { at_start: read(&path), path }
    }

    /// The path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the variables, by name, of which the file has other values now; `None` if it can't be read.
    pub(super) fn changed(&self) -> Option<Vec<String>> {
        let (before, now) = (self.at_start.as_ref()?, read(&self.path)?);
        let all: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        Some(all.into_iter().filter(|name| before.get(*name) != now.get(*name)).cloned().collect())
    }
}

/// Reads the variables of a file; `None` if it exists and can't be read.
fn read(path: &Path) -> Option<BTreeMap<String, String>> {
    match source::read(path) {
        Ok(text) => Some(variables(&text)),
        Err(ReadError::Missing | ReadError::Empty) => Some(BTreeMap::new()),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_file_is_parsed_like_systemd() {
        let text =
            "# a comment\nA=1\n B = \"two words\" \nC='x'\nnothing\n;D=1\nE=\n  # F=1\nG = a b \t\nH=last";
        let expected = [("A", "1"), ("B", "two words"), ("C", "x"), ("E", ""), ("G", "a b"), ("H", "last")];
        assert_eq!(variables(text), expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn escapes_and_quotes_within_a_value_are_read_like_systemd() {
        for (value, expected) in [
            (r"ab\cd", "abcd"),
            (r"a\\b\ ", r"a\b "),
            (r#""a\"b\\c\d\$e""#, r#"a"b\c\d$e"#),
            (r"'a\b'", r"a\b"),
            (r#""x"y"#, "xy"),
            (r#""x" 'y z' "#, "xy z"),
            (r#"x"y""#, r#"x"y""#),
            ("a\\\nb", "ab"),
            ("\"a\\\nb\nc\"", "ab\nc"),
            ("'a\nB=2'", "a\nB=2"),
            ("pa#ss;word # no comment", "pa#ss;word # no comment"),
            ("x\r", "x"),
            (r"x\", "x"),
            (r#""x\"#, "x"),
        ] {
            let parsed = variables(&format!("A={value}"));
            assert_eq!(parsed, [("A".to_owned(), expected.to_owned())].into(), "{value}");
            let ends_within = value.ends_with('\\') && !value.ends_with(r"\\");
            if !ends_within {
                let parsed = variables(&format!("A={value}\nZ=1"));
                assert_eq!((parsed["A"].as_str(), parsed["Z"].as_str()), (expected, "1"), "{value}");
            }
        }
    }
}
