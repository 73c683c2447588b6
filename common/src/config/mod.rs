//! Reading a configuration file so that everything that is wrong with it is said at once.
//!
//! | step | module |
//! |---|---|
//! | bytes from the disk, never waiting for a FIFO | [`source`] |
//! | text to a JSON tree, repeated keys noticed | [`json`] |
//! | the tree against the schema of its types: types, ranges, unknown keys | [`shape`] |
//! | `$NAME` in the texts that allow it | [`expand`] |
//! | `host:port` to listen on | [`address`] |
//! | all of it in this order, and once more when asked | [`load`] |
//!
//! Each daemon adds the rules of its own file. Every step puts what it finds into [`Findings`] and goes on.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub mod address;
pub mod expand;
pub mod json;
pub mod load;
pub mod shape;
pub mod source;

pub use load::{ConfigSource, Configuration};

/// Where in the file something stands, for example `services[2].compose_files[0]`. Empty for the file itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct KeyPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Step {
    Index(usize),
    /// Shared: every value below has it in its path.
    Key(Arc<str>),
}

impl KeyPath {
    /// The file itself.
    pub fn root() -> Self {
        Self::default()
    }

    /// The path of keys that are written with dots: `docker_health.timeout`.
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

    /// Whether this path is `other` or inside it.
    pub fn is_under(&self, other: &KeyPath) -> bool {
        self.0.starts_with(&other.0)
    }

    /// For a path inside an element of the array `name`: the element's number and the rest of the path.
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

/// Keys of any other form are quoted, so that a message cannot be forged with a line break or an endless key.
fn is_plain(key: &str) -> bool {
    (1..=64).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-$".contains(&b))
}

/// One thing that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where it stands.
    pub at: KeyPath,
    /// What was seen and what is allowed.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at != KeyPath::root() {
            write!(f, "{}: ", self.at)?;
        }
        f.write_str(&self.what)
    }
}

/// Everything that was found so far.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    faults: BTreeMap<KeyPath, String>,
    warnings: Vec<Finding>,
}

impl Findings {
    /// Notes a fault. The first one at a place, inside it or around it is the cause; later ones would only be its
    /// echo ("is missing" for a list that has a wrong type), so they are left out.
    pub fn fault(&mut self, at: &KeyPath, what: impl Into<String>) {
        let around =
            || (0..at.0.len()).any(|depth| self.faults.contains_key(&KeyPath(at.0[..depth].to_vec())));
        if !self.is_faulty(at) && !around() {
            self.faults.insert(at.clone(), what.into());
        }
    }

    /// Notes something that does not stop anything.
    pub fn warn(&mut self, at: &KeyPath, what: impl Into<String>) {
        self.warnings.push(Finding { at: at.clone(), what: what.into() });
    }

    /// The fault at exactly this place.
    pub fn fault_at(&self, at: &KeyPath) -> Option<&str> {
        self.faults.get(at).map(String::as_str)
    }

    /// Whether there is a fault at this place or inside it.
    pub fn is_faulty(&self, at: &KeyPath) -> bool {
        self.faults.range(at..).next().is_some_and(|(path, _)| path.is_under(at))
    }

    /// Takes the faults at this place and inside it out: whoever calls it leaves that part of the file out
    /// instead of stopping.
    pub fn take_faults(&mut self, at: &KeyPath) -> Vec<Finding> {
        let paths: Vec<KeyPath> = self
            .faults
            .range(at..)
            .map(|(path, _)| path.clone())
            .take_while(|path| path.is_under(at))
            .collect();
        let take = |at: KeyPath| self.faults.remove(&at).map(|what| Finding { at, what });
        paths.into_iter().filter_map(take).collect()
    }

    /// The faults and the warnings, each in the order of their places.
    pub fn finish(mut self) -> (Vec<Finding>, Vec<Finding>) {
        self.warnings.sort_by(|a, b| a.at.cmp(&b.at));
        (self.faults.into_iter().map(|(at, what)| Finding { at, what }).collect(), self.warnings)
    }
}

/// Why a file is refused: all its faults, and its warnings too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFaults {
    path: PathBuf,
    faults: Vec<Finding>,
    warnings: Vec<String>,
}

impl ConfigFaults {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is wrong without being the reason of the refusal.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What is wrong with the file at `path`.
    pub fn new(path: &Path, faults: Vec<Finding>, warnings: Vec<String>) -> Self {
        Self { path: path.to_owned(), faults, warnings }
    }

    /// All faults on one line.
    pub fn in_one_line(&self) -> String {
        self.to_string().lines().collect::<Vec<_>>().join("; ")
    }

    /// A file of which nothing can be used.
    pub fn one(path: &Path, what: impl Into<String>) -> Self {
        Self::new(path, vec![Finding { at: KeyPath::root(), what: what.into() }], Vec::new())
    }
}

/// One line a fault, each with the path of the file.
impl fmt::Display for ConfigFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, fault) in self.faults.iter().enumerate() {
            f.write_str(if n == 0 { "" } else { "\n" })?;
            write!(f, "{}: {fault}", self.path.display())?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigFaults {}

/// A text from outside as it stands in a message: quoted, control characters escaped, at most 80 characters.
pub fn quote(text: &str) -> String {
    let clipped: String = match text.char_indices().nth(80) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    };
    format!("{clipped:?}")
}

/// `; did you mean "…"?` where one of `known` is close to `word`, else nothing.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let word: String = word.to_lowercase().chars().take(80).collect();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&word, name), name))
        .filter(|(distance, name)| *distance <= name.len().div_ceil(3))
        .min()
        .map(|(_, name)| format!("; did you mean \"{name}\"?"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_like_the_documentation_and_cannot_forge_a_line() {
        let path = KeyPath::root().key("services").index(2).key("compose_files").index(0);
        assert_eq!(path.to_string(), "services[2].compose_files[0]");
        assert_eq!(KeyPath::of("docker_health.timeout").to_string(), "docker_health.timeout");
        let odd = KeyPath::root().key("a\nERROR b").key("c");
        assert_eq!(odd.to_string(), "[\"a\\nERROR b\"].c");
        assert!(KeyPath::root().key(&"k".repeat(5000)).to_string().len() < 400);
    }

    #[test]
    fn the_first_fault_of_a_place_is_kept_and_its_echo_is_not() {
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
    fn faults_of_one_part_are_taken_without_those_of_its_neighbours() {
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
    fn only_a_close_word_is_suggested() {
        let known = ["poll_interval", "url", "insecure"];
        assert_eq!(did_you_mean("pol_intervall", known), "; did you mean \"poll_interval\"?");
        assert_eq!(did_you_mean("URL", known), "; did you mean \"url\"?");
        assert_eq!(did_you_mean("zzz", known), "");
        assert_eq!(did_you_mean(&"u".repeat(1_000_000), known), "");
    }
}
