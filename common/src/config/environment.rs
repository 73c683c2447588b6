//! The environment files of systemd units (`EnvironmentFile=`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::source::{self, ReadError};

/// Where the packages put configurations and environment files.
const PACKAGED: &str = "/etc/evenkeel";

/// Returns the variables of a file, parsed like systemd: `NAME=value` lines, quotes removed.
pub fn variables(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    lines
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| {
            let value = value.trim();
            let bare = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
            (name.trim().to_owned(), bare('"').or_else(|| bare('\'')).unwrap_or(value).to_owned())
        })
        .collect()
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
        let parsed = variables("# a comment\nA=1\n B = \"two words\" \nC='x'\nnothing\n;D=1\nE=\n");
        let expected = [("A", "1"), ("B", "two words"), ("C", "x"), ("E", "")];
        assert_eq!(parsed, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }
}
