//! Reads a configuration file and reports all of its errors at once.
//!
//! | step | module |
//! |---|---|
//! | read the bytes, without blocking on a FIFO | [`source`] |
//! | parse the JSON, with warnings for duplicate keys | [`json`] |
//! | check types, ranges and unknown keys against the schema | [`shape`] |
//! | read durations such as `"15m"` | [`duration`] |
//! | expand `$NAME` in the strings that allow it | [`expand`] |
//! | parse the environment files of systemd units | [`environment`] |
//! | parse `host:port` listen addresses | [`address`] |
//! | run these steps in order, at start-up and on reload | [`load`] |
//!
//! Each daemon adds the rules for its own file. Every step records its findings in [`Findings`] and continues.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

pub mod address;
pub mod duration;
pub mod environment;
pub mod expand;
pub mod json;
pub mod load;
pub mod shape;
pub mod source;

pub use load::{ConfigSource, Configuration, Extent, OutdatedVariables};

/// A location in the file, for example `services[2].compose_files[0]`. Empty for the file itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct KeyPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Step {
    Index(usize),
    /// Shared, since the path of every nested value contains it.
    Key(Arc<str>),
}

impl KeyPath {
    /// The file itself.
    pub fn root() -> Self {
        Self::default()
    }

    /// Parses dotted keys such as `docker_health.timeout`.
    pub fn of(dotted: &str) -> Self {
        Self(dotted.split('.').map(|key| Step::Key(key.into())).collect())
    }

    /// The member `name` of the object at this path.
    #[must_use]
    pub fn key(&self, name: &str) -> Self {
        self.then(Step::Key(name.into()))
    }

    /// The element `at` of the array at this path.
    #[must_use]
    pub fn index(&self, at: usize) -> Self {
        self.then(Step::Index(at))
    }

    /// The location `inside` this one.
    #[must_use]
    pub fn join(&self, inside: &KeyPath) -> Self {
        Self(self.0.iter().chain(&inside.0).cloned().collect())
    }

    /// The rest of this path inside `other`; the whole path if it is elsewhere.
    #[must_use]
    pub fn inside(&self, other: &KeyPath) -> Self {
        Self(self.0.strip_prefix(&other.0[..]).unwrap_or(&self.0).to_vec())
    }

    /// Reports whether this path is `other` or inside it.
    pub fn is_under(&self, other: &KeyPath) -> bool {
        self.0.starts_with(&other.0)
    }

    /// For a path inside an element of the array `name`, returns the index of the element and the rest of the path.
    pub fn element_of(&self, name: &str) -> Option<(usize, KeyPath)> {
        match self.0.as_slice() {
            [Step::Key(key), Step::Index(at), rest @ ..] if **key == *name => {
                Some((*at, Self(rest.to_vec())))
            }
            _ => None,
        }
    }

    fn then(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(at) => write!(f, "[{at}]")?,
                Step::Key(key) if is_plain(key) => {
                    f.write_str(if n == 0 { "" } else { "." })?;
                    f.write_str(key)?;
                }
                Step::Key(key) => write!(f, "[{}]", quote(key))?,
            }
        }
        Ok(())
    }
}

/// All other keys are quoted, so that a line break or an overlong key cannot forge a message.
fn is_plain(key: &str) -> bool {
    (1..=64).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-$".contains(&b))
}

/// One problem and its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The location in the file.
    pub at: KeyPath,
    /// The value found and the allowed values.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at != KeyPath::root() {
            write!(f, "{}: ", self.at)?;
        }
        f.write_str(&self.message)
    }
}

/// The faults and warnings found so far.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    faults: BTreeMap<KeyPath, String>,
    warnings: Vec<Finding>,
    repeated: Vec<KeyPath>,
    /// What each of these had before.
    replaced: Vec<Value>,
}

impl Findings {
    /// Records a fault, unless there is already one at this location, inside it or around it. Such a later fault would
    /// only be a consequence ("is missing" for a list of the wrong type).
    pub fn fault(&mut self, at: &KeyPath, message: impl Into<String>) {
        let around =
            || (0..at.0.len()).any(|depth| self.faults.contains_key(&KeyPath(at.0[..depth].to_vec())));
        if !self.is_faulty(at) && !around() {
            self.faults.insert(at.clone(), message.into());
        }
    }

    /// Records a warning.
    pub fn warn(&mut self, at: &KeyPath, message: impl Into<String>) {
        self.warnings.push(Finding { at: at.clone(), message: message.into() });
    }

    /// Records that a key is given once more, and what it had before: the last one counts.
    pub(super) fn repeat(&mut self, at: KeyPath, replaced: Value) {
        self.warn(&at, "is given more than once; the last one is used");
        self.repeated.push(at);
        self.replaced.push(replaced);
    }

    /// The keys that are given more than once.
    pub fn repeated(&self) -> &[KeyPath] {
        &self.repeated
    }

    /// The values of a key that do not count, because it is given once more.
    pub fn replaced(&self, at: &KeyPath) -> impl Iterator<Item = &Value> {
        let all = self.repeated.iter().zip(&self.replaced);
        all.filter(move |(repeated, _)| *repeated == at).map(|(_, value)| value)
    }

    /// The fault at exactly this location.
    pub fn fault_at(&self, at: &KeyPath) -> Option<&str> {
        self.faults.get(at).map(String::as_str)
    }

    /// Reports whether there is a fault at this location or inside it.
    pub fn is_faulty(&self, at: &KeyPath) -> bool {
        self.faults.range(at..).next().is_some_and(|(path, _)| path.is_under(at))
    }

    /// Removes and returns the faults at this location and inside it, for callers that ignore that part of the file
    /// instead of failing.
    pub fn take_faults(&mut self, at: &KeyPath) -> Vec<Finding> {
        let paths: Vec<KeyPath> = self
            .faults
            .range(at..)
            .map(|(path, _)| path.clone())
            .take_while(|path| path.is_under(at))
            .collect();
        let take = |at: KeyPath| self.faults.remove(&at).map(|message| Finding { at, message });
        paths.into_iter().filter_map(take).collect()
    }

    /// Returns the faults and the warnings, each sorted by location.
    pub fn finish(mut self) -> (Vec<Finding>, Vec<Finding>) {
        self.warnings.sort_by(|a, b| a.at.cmp(&b.at));
        (self.faults.into_iter().map(|(at, message)| Finding { at, message }).collect(), self.warnings)
    }
}

/// The reasons why a file is rejected: all its faults, along with its warnings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    path: PathBuf,
    faults: Vec<Finding>,
    warnings: Vec<String>,
}

impl ConfigErrors {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Problems that did not cause the rejection.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The faults and warnings of the file at `path`.
    pub fn new(path: &Path, faults: Vec<Finding>, warnings: Vec<String>) -> Self {
        Self { path: path.to_owned(), faults, warnings }
    }

    /// All faults on one line.
    pub fn in_one_line(&self) -> String {
        self.to_string().lines().collect::<Vec<_>>().join("; ")
    }

    /// A single fault that makes the whole file unusable.
    pub fn one(path: &Path, message: impl Into<String>) -> Self {
        Self::new(path, vec![Finding { at: KeyPath::root(), message: message.into() }], Vec::new())
    }
}

/// One line per fault, each with the path of the file.
impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, fault) in self.faults.iter().enumerate() {
            f.write_str(if n == 0 { "" } else { "\n" })?;
            write!(f, "{}: {fault}", self.path.display())?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Quotes untrusted text for a message: control characters are escaped, and at most 80 characters are kept.
pub fn quote(text: &str) -> String {
    let clipped: String = match text.char_indices().nth(80) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    };
    format!("{clipped:?}")
}

/// Returns `; did you mean "…"?` if one of `known` is close to `word`, otherwise an empty string.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map(|name| format!("; did you mean \"{name}\"?")).unwrap_or_default()
}

/// Returns the one of `known` that is closest to `word`, if it is close enough to be a spelling of it.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: String = word.to_lowercase().chars().take(80).collect();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&word, name), name))
        .filter(|(distance, name)| *distance <= name.len().div_ceil(3))
        .min()
        .map(|(_, name)| name)
}

/// Returns why elements of the list `name` at the root of the file may not have been read: it is given more than once, of
/// which the last counts, or there is a list with elements under a key that looks like a misspelling of it. An element that
/// is not read must not count as one that was removed.
pub fn unread_list(tree: &Value, name: &str, findings: &Findings) -> Option<String> {
    if findings.repeated().contains(&KeyPath::of(name)) {
        return Some(format!("{name}: is given more than once"));
    }
    let lists = tree.as_object()?.iter().filter(|(_, value)| value.get(0).is_some());
    // Whoever puts a mark in front of a key leaves it out on purpose.
    let is_misspelt = |key: &&String| {
        key.as_str() != name && key.starts_with(|c: char| c.is_ascii_alphanumeric()) && is_slip_of(key, name)
    };
    let key = lists.map(|(key, _)| key).find(is_misspelt)?;
    Some(format!("{}: is not a known key; did you mean \"{name}\"?", KeyPath::root().key(key)))
}

/// Reports whether a word is a spelling of a key: `minAge`, `min-age` or `min_agee` of `min_age`. It is stricter than
/// [`nearest`], for where the answer has a consequence.
pub fn is_spelling(word: &str, key: &str) -> bool {
    let plain = |text: &str| -> String {
        text.chars().filter(char::is_ascii_alphanumeric).take(80).collect::<String>().to_ascii_lowercase()
    };
    let (word, key) = (plain(word), plain(key));
    word == key || (key.len() >= 6 && word.len() >= 6 && strsim::damerau_levenshtein(&word, &key) <= 1)
}

/// Reports whether a word is a spelling of a key, or differs from it by one letter or two that are exchanged, however short it
/// is: `smpt` of `smtp`.
pub fn is_slip_of(word: &str, key: &str) -> bool {
    let lower: String = word.to_lowercase().chars().take(80).collect();
    is_spelling(word, key) || strsim::damerau_levenshtein(&lower, key) <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_the_documentation_and_cannot_forge_a_line() {
        let path = KeyPath::root().key("services").index(2).key("compose_files").index(0);
        assert_eq!(path.to_string(), "services[2].compose_files[0]");
        assert_eq!(KeyPath::of("docker_health.timeout").to_string(), "docker_health.timeout");
        let odd = KeyPath::root().key("a\nERROR b").key("c");
        assert_eq!(odd.to_string(), "[\"a\\nERROR b\"].c");
        assert!(KeyPath::root().key(&"k".repeat(5000)).to_string().len() < 400);
    }

    #[test]
    fn the_first_fault_at_a_location_is_kept_and_its_consequences_are_not() {
        let mut findings = Findings::default();
        let files = KeyPath::of("files");
        findings.fault(&files.index(3), "3 is a number");
        findings.fault(&files, "is missing");
        findings.fault(&files.index(3).key("name"), "is missing");
        findings.fault(&KeyPath::of("files2"), "another place");
        let (faults, _) = findings.finish();
        let texts: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["files[3]: 3 is a number", "files2: another place"]);
    }

    #[test]
    fn taking_the_faults_of_one_element_leaves_those_of_others() {
        let mut findings = Findings::default();
        let services = KeyPath::of("services");
        for n in [1, 10, 2] {
            findings.fault(&services.index(n).key("name"), format!("{n}"));
        }
        let taken = findings.take_faults(&services.index(1));
        assert_eq!(taken.len(), 1);
        let (faults, _) = findings.finish();
        let texts: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["services[2].name: 2", "services[10].name: 10"]);
    }

    #[test]
    fn a_list_that_is_repeated_or_misspelt_is_not_read_completely() {
        let unread = |text: &str| {
            let mut findings = Findings::default();
            let tree = json::parse(text, &mut findings).unwrap();
            unread_list(&tree, "agents", &findings)
        };
        for (text, reason) in [
            (r#"{"agents": [1], "agents": [2]}"#, "agents: is given more than once"),
            (r#"{"agens": [1]}"#, "agens: is not a known key; did you mean \"agents\"?"),
            (r#"{"agent": [1]}"#, "agent: is not a known key; did you mean \"agents\"?"),
            (r#"{"Agents": [1], "agents": [2]}"#, "Agents: is not a known key; did you mean \"agents\"?"),
        ] {
            assert_eq!(unread(text).as_deref(), Some(reason), "{text}");
        }
        for text in [
            r#"{"agents": [{"a": 1, "a": 2}], "agent": [], "rings": [1]}"#,
            r#"{"agents": [], "_agents": [1], "agent": {"0": 1}}"#,
            "[1]",
        ] {
            assert_eq!(unread(text), None, "{text}");
        }
    }

    #[test]
    fn only_a_close_word_is_suggested() {
        let known = ["poll_interval", "url", "insecure"];
        assert_eq!(did_you_mean("pol_intervall", known), "; did you mean \"poll_interval\"?");
        assert_eq!(did_you_mean("URL", known), "; did you mean \"url\"?");
        assert_eq!(did_you_mean("zzz", known), "");
        assert_eq!(did_you_mean(&"u".repeat(1_000_000), known), "");
    }
}
