//! Parses the environment files of systemd units (`EnvironmentFile=`).

use std::collections::BTreeMap;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_file_is_parsed_like_systemd() {
        let read = variables("# a comment\nA=1\n B = \"two words\" \nC='x'\nnothing\n;D=1\nE=\n");
        let expected = [("A", "1"), ("B", "two words"), ("C", "x"), ("E", "")];
        assert_eq!(read, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }
}
