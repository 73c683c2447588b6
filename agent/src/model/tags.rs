//! Determines which tags of a repository are newer than the current one (DECISIONS 7).
//!
//! A tag is parsed as `[v]NUMBERS[PRE-RELEASE][SUFFIX]`:
//!
//! | part | examples | rule |
//! |---|---|---|
//! | `v` | `v1.2.3` | a newer tag has it if and only if the current tag has it |
//! | numbers | `1`, `1.27`, `1.27.3`, `4.0.15.2941` | a newer tag has as many: `1.27.3` is not moved to `1.28`, which is a moving tag |
//! | pre-release | `-rc.1`, `-beta`, `rc1`, `b2` | offered only if the current tag is a pre-release of the same version, of an earlier stage or with the same word |
//! | suffix | `-alpine`, `-alpine3.20`, `_amd64` | a newer tag has exactly the same |
//! | builds | `-ls289`, `-r3`, `-build7`, `-r2-ls281` | of the same version, greater builds are newer, compared from left to right; a newer tag has the same kinds |
//!
//! A range is matched against the numbers only; missing ones count as 0. With a glob, the pattern itself defines which tags
//! are comparable: among the matching tags, one is newer if its numbers, compared from left to right, are greater.
//!
//! Repositories keep tags of numbering schemes that they have given up, such as `2021.12.16` beside `10.11.4`. With a range,
//! tags whose first number is an order of magnitude above that of all others are not newer as long as they are few.

use std::cmp::Ordering;

use semver::{Version, VersionReq};

/// Words that mark a pre-release.
const PRE_RELEASES: [&str; 14] = [
    "alpha",
    "beta",
    "canary",
    "cr",
    "dev",
    "edge",
    "insider",
    "milestone",
    "next",
    "nightly",
    "pre",
    "preview",
    "rc",
    "snapshot",
];
/// The stages of a version before its release. The other words that mark a pre-release say nothing about when it was made.
const STAGES: [&[&str]; 5] =
    [&["alpha", "a"], &["milestone", "m"], &["beta", "b"], &["preview", "pre"], &["rc", "cr"]];
/// Words that mark the number of a build of the same version.
const BUILDS: [&str; 4] = ["ls", "r", "rev", "build"];
/// A first number of at least this, and of ten times the next lower one of the repository, belongs to another scheme.
const OTHER_SCHEME: u64 = 100;
/// Words that mark a pre-release only if a number follows: `3.14.0a1`, `6.0.0-M2`.
const NUMBERED_PRE_RELEASES: [&str; 3] = ["a", "b", "m"];

/// `tags`: which tags are considered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TagPattern {
    /// A version range in Cargo's syntax: `~1.27`, `^2`, `>=1.4, <2`.
    Range(VersionReq),
    /// A pattern in which `*` matches digits and dots: `1.27.*-alpine`.
    Glob(String),
}

impl TagPattern {
    /// Parses a pattern: a glob if it contains a `*`, otherwise a range. Returns the reason if it is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if !text.contains('*') {
            return VersionReq::parse(text).map(Self::Range).map_err(|error| error.to_string());
        }
        let is_of_tag = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '*');
        if text.contains("**") {
            return Err("two * in a row".to_owned());
        }
        match text.chars().find(|c| !is_of_tag(*c)) {
            Some(c) => Err(format!("{c:?} is not allowed in a tag")),
            None => Ok(Self::Glob(text.to_owned())),
        }
    }

    /// Returns the newest of `tags`, if it is newer than `current`.
    pub fn newest<'a>(&self, current: &str, tags: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        self.newer(current, tags, 1).pop()
    }

    /// Returns the `most` newest of the tags that are newer than `current`, newest first.
    pub fn newer<'a>(
        &self,
        current: &str,
        tags: impl IntoIterator<Item = &'a str>,
        most: usize,
    ) -> Vec<&'a str> {
        match self {
            Self::Range(range) => {
                let Some(current) = VersionTag::parse(current) else { return Vec::new() };
                let candidates = tags.into_iter().filter_map(|tag| Some((VersionTag::parse(tag)?, tag)));
                let alike: Vec<_> = candidates.filter(|(version, _)| version.is_like(&current)).collect();
                let limit = first_of_other_scheme(&alike, current.numbers[0]);
                let is_of_scheme =
                    |version: &VersionTag<'_>| limit.is_none_or(|limit| version.numbers[0] < limit);
                let mut newer: Vec<_> = alike
                    .into_iter()
                    .filter(|(version, _)| is_of_scheme(version))
                    .filter(|(version, _)| range.matches(&version.version()) && version.follows(&current))
                    .collect();
                newer.sort_by(|(one, _), (other, _)| one.compare(other));
                newer.into_iter().rev().take(most).map(|(_, tag)| tag).collect()
            }
            Self::Glob(pattern) => {
                let current = numbers_in(current);
                if current.is_empty() {
                    return Vec::new();
                }
                let matching = tags.into_iter().filter(|tag| matches(pattern.as_bytes(), tag.as_bytes()));
                let candidates = matching.map(|tag| (numbers_in(tag), tag));
                let mut newer: Vec<_> = candidates.filter(|(numbers, _)| *numbers > current).collect();
                newer.sort_unstable();
                newer.into_iter().rev().take(most).map(|(_, tag)| tag).collect()
            }
        }
    }

    /// Returns the newest tag that would be newer than `current` if it were not of another numbering scheme.
    pub fn of_other_scheme<'a>(
        &self,
        current: &str,
        tags: impl IntoIterator<Item = &'a str>,
    ) -> Option<&'a str> {
        let Self::Range(range) = self else { return None };
        let current = VersionTag::parse(current)?;
        let candidates = tags.into_iter().filter_map(|tag| Some((VersionTag::parse(tag)?, tag)));
        let alike: Vec<_> = candidates.filter(|(version, _)| version.is_like(&current)).collect();
        let limit = first_of_other_scheme(&alike, current.numbers[0])?;
        let others = alike.into_iter().filter(|(version, _)| version.numbers[0] >= limit);
        let newer =
            others.filter(|(version, _)| range.matches(&version.version()) && version.follows(&current));
        newer.max_by(|(one, _), (other, _)| one.compare(other)).map(|(_, tag)| tag)
    }

    /// Reports whether tags can be compared with `current`: it has a version or, for a glob, a number.
    pub fn can_compare(&self, current: &str) -> bool {
        match self {
            Self::Range(_) => VersionTag::parse(current).is_some(),
            Self::Glob(_) => !numbers_in(current).is_empty(),
        }
    }
}

/// A tag that contains a version.
#[derive(Debug, PartialEq, Eq)]
struct VersionTag<'a> {
    has_v: bool,
    /// One to four numbers.
    numbers: Vec<u64>,
    pre_release: Option<PreRelease>,
    suffix: &'a str,
    /// The words and the numbers of its builds.
    builds: Vec<(&'a str, u64)>,
}

/// `rc.2`
#[derive(Debug, PartialEq, Eq)]
struct PreRelease {
    word: String,
    numbers: Vec<u64>,
}

impl<'a> VersionTag<'a> {
    fn parse(tag: &'a str) -> Option<Self> {
        let rest = tag.strip_prefix('v');
        let has_v = rest.is_some();
        let (numbers, rest) = leading_numbers(rest.unwrap_or(tag))?;
        if numbers.len() > 4 {
            return None;
        }
        let (pre_release, suffix) = match PreRelease::parse(rest) {
            Some((pre_release, suffix)) => (Some(pre_release), suffix),
            None => (None, rest),
        };
        let (suffix, builds) = split_builds(suffix);
        Some(Self { has_v, numbers, pre_release, suffix, builds })
    }

    fn version(&self) -> Version {
        let number = |at: usize| self.numbers.get(at).copied().unwrap_or(0);
        Version::new(number(0), number(1), number(2))
    }

    /// Compares versions only; a release is newer than its pre-releases.
    fn compare(&self, other: &Self) -> Ordering {
        let is_release = |tag: &Self| tag.pre_release.is_none();
        self.numbers
            .cmp(&other.numbers)
            .then_with(|| is_release(self).cmp(&is_release(other)))
            .then_with(|| {
                self.pre_release
                    .as_ref()
                    .map(PreRelease::rank)
                    .cmp(&other.pre_release.as_ref().map(PreRelease::rank))
            })
            .then_with(|| self.builds.cmp(&other.builds))
    }

    /// Reports whether it is of the same kind, whatever its version.
    fn is_like(&self, current: &Self) -> bool {
        let words = |tag: &Self| tag.builds.iter().map(|(word, _)| *word).collect::<Vec<_>>();
        self.has_v == current.has_v
            && self.suffix == current.suffix
            && words(self) == words(current)
            && self.numbers.len() == current.numbers.len()
    }

    /// Reports whether it is newer than `current` and of the same kind.
    fn follows(&self, current: &Self) -> bool {
        let is_offered =
            self.pre_release.is_none() || (current.pre_release.is_some() && self.numbers == current.numbers);
        let has_order = match (&self.pre_release, &current.pre_release) {
            (Some(one), Some(other)) => one.has_order_with(other),
            _ => true,
        };
        self.is_like(current) && is_offered && has_order && self.compare(current) == Ordering::Greater
    }
}

impl PreRelease {
    /// What it is ordered by: its stage, or its word if that is no stage, and its numbers.
    fn rank(&self) -> (Option<usize>, &str, &[u64]) {
        let stage = self.stage();
        (stage, if stage.is_some() { "" } else { &self.word }, &self.numbers)
    }

    fn stage(&self) -> Option<usize> {
        STAGES.iter().position(|words| words.contains(&self.word.as_str()))
    }

    /// Reports whether one of them is known to come before the other: a nightly build may be older than a beta.
    fn has_order_with(&self, other: &Self) -> bool {
        self.word == other.word || (self.stage().is_some() && other.stage().is_some())
    }

    /// Parses a pre-release at the start of `text` and returns the remaining text.
    fn parse(text: &str) -> Option<(Self, &str)> {
        let body = text.strip_prefix(['-', '.', '_']).unwrap_or(text);
        let end = body.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(body.len());
        let (word, rest) = body.split_at(end);
        let word = word.to_ascii_lowercase();
        let after_sign = rest.strip_prefix(['.', '-']).unwrap_or(rest);
        let (numbers, rest) = match leading_numbers(after_sign) {
            Some(found) => found,
            None => (Vec::new(), rest),
        };
        let is_known = PRE_RELEASES.contains(&word.as_str())
            || (NUMBERED_PRE_RELEASES.contains(&word.as_str()) && !numbers.is_empty());
        is_known.then_some((Self { word, numbers }, rest))
    }
}

/// Splits the builds off the end of a suffix: `-alpine-r3` has the build `r3`.
fn split_builds(suffix: &str) -> (&str, Vec<(&str, u64)>) {
    let (mut rest, mut builds) = (suffix, Vec::new());
    while let Some((before, build)) = last_build(rest) {
        rest = before;
        builds.insert(0, build);
    }
    (rest, builds)
}

/// Splits the last part of a suffix into the word and the number of a build, if it is one.
fn last_build(suffix: &str) -> Option<(&str, (&str, u64))> {
    let (before, last) = suffix.rsplit_once('-')?;
    let (word, number) = last.split_at(last.find(|c: char| c.is_ascii_digit())?);
    let number = number.parse().ok()?;
    BUILDS.contains(&word).then_some((before, (word, number)))
}

/// Returns the least first number that belongs to another numbering scheme than the first number of the current tag, if the
/// tags of other schemes are few.
fn first_of_other_scheme(alike: &[(VersionTag<'_>, &str)], current: u64) -> Option<u64> {
    let mut firsts: Vec<u64> = alike.iter().map(|(version, _)| version.numbers[0]).chain([current]).collect();
    firsts.sort_unstable();
    let above = firsts.iter().position(|first| *first == current)?;
    let steps = firsts[above..].windows(2);
    let limit = steps
        .map(|step| (step[0], step[1]))
        .find_map(|(lower, next)| (next >= OTHER_SCHEME && next / 10 >= lower.max(1)).then_some(next))?;
    let others = firsts.iter().filter(|first| **first >= limit).count();
    (others * 2 < firsts.len()).then_some(limit)
}

/// Parses dot-separated numbers at the start of `text` and returns the remaining text.
fn leading_numbers(text: &str) -> Option<(Vec<u64>, &str)> {
    let mut numbers = Vec::new();
    let mut rest = text;
    loop {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        numbers.push(rest[..end].parse().ok()?);
        rest = &rest[end..];
        match rest.strip_prefix('.') {
            Some(next) if next.starts_with(|c: char| c.is_ascii_digit()) => rest = next,
            _ => return Some((numbers, rest)),
        }
    }
}

/// Returns all numbers of a tag; numbers that overflow count as the maximum.
fn numbers_in(tag: &str) -> Vec<u64> {
    let numbers = tag.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty());
    numbers.map(|number| number.parse().unwrap_or(u64::MAX)).collect()
}

/// Reports whether `tag` matches `pattern`, in which `*` matches one or more digits and dots.
fn matches(pattern: &[u8], tag: &[u8]) -> bool {
    // The end positions of all prefixes of the tag that match the pattern so far.
    let mut ends = vec![false; tag.len() + 1];
    ends[0] = true;
    for p in pattern {
        let mut next = vec![false; tag.len() + 1];
        for (at, c) in tag.iter().enumerate() {
            next[at + 1] = match p {
                b'*' => (ends[at] || next[at]) && (c.is_ascii_digit() || *c == b'.'),
                _ => ends[at] && p == c,
            };
        }
        ends = next;
    }
    ends[tag.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest<'a>(pattern: &str, current: &str, tags: &[&'a str]) -> Option<&'a str> {
        TagPattern::parse(pattern).unwrap().newest(current, tags.iter().copied())
    }

    #[test]
    fn the_greatest_version_in_the_range_wins() {
        let tags = ["1.27.2", "1.27.10", "1.27.9", "1.28.0", "2.0.0", "latest", "stable", "1.27", "1"];
        for (range, current, expected) in [
            ("~1.27", "1.27.2", Some("1.27.10")),
            ("^1", "1.27.2", Some("1.28.0")),
            (">=1.4, <2", "1.27.2", Some("1.28.0")),
            (">1.28", "1.27.2", Some("2.0.0")),
            ("~1.27", "1.27.10", None),
            ("~1.27", "1.28.0", None),
            // Below the range: moves into it.
            ("~1.27", "1.26.4", Some("1.27.10")),
            ("^3", "1.27.2", None),
            ("^1", "latest", None),
        ] {
            assert_eq!(newest(range, current, &tags), expected, "{range} from {current}");
        }
    }

    #[test]
    fn a_newer_tag_has_the_same_prefix_suffix_and_number_count() {
        let tags = [
            "1.28.0",
            "v1.28.0",
            "1.28.0-alpine",
            "1.28.0-alpine3.20",
            "1.28.0-alpine3.21",
            "1.28",
            "1.28-alpine",
            "1.28.0.1",
            "v1.29",
            "1.28.0_amd64",
            "2",
            "1.28.0-alpine-slim",
        ];
        for (current, expected) in [
            ("1.27.3", Some("1.28.0")),
            ("v1.27.3", Some("v1.28.0")),
            ("1.27.3-alpine", Some("1.28.0-alpine")),
            ("1.27.3-alpine3.20", Some("1.28.0-alpine3.20")),
            ("1.27.3-alpine3.19", None),
            ("1.27", Some("1.28")),
            ("1.27-alpine", Some("1.28-alpine")),
            ("v1.27", Some("v1.29")),
            ("1.27.3_amd64", Some("1.28.0_amd64")),
            ("1", Some("2")),
            ("1.27.3-debian", None),
        ] {
            assert_eq!(newest(">=1", current, &tags), expected, "from {current}");
        }
    }

    #[test]
    fn a_pre_release_is_offered_only_to_pre_releases_of_the_same_version() {
        let tags = [
            "1.28.0-rc.1",
            "1.28.0-rc.2",
            "1.28.0-rc.10",
            "1.28.0-beta.9",
            "1.29.0-rc.1",
            "1.28.0-rc.2-alpine",
            "1.28.0-rc-alpine",
            "1.28.0rc11",
            "1.28.0b3",
            "1.30.0-SNAPSHOT",
            "1.30.0-M2",
            "1.30.0-dev",
        ];
        for (current, expected) in [
            ("1.27.0", None),
            ("1.28.0-rc.1", Some("1.28.0rc11")),
            ("1.28.0-beta.1", Some("1.28.0rc11")),
            ("1.28.0-rc.1-alpine", Some("1.28.0-rc.2-alpine")),
            ("1.29.0-rc.1", None),
        ] {
            assert_eq!(newest(">=1", current, &tags), expected, "from {current}");
        }
        assert_eq!(newest("^1", "1.28.0-rc.2", &["1.28.0-rc.3", "1.28.0"]), Some("1.28.0"));
        assert_eq!(newest("<2", "1.28.0", &["2.0.0-rc.1"]), None);
        // Other letters are a suffix.
        assert_eq!(newest("^1", "1.0.0-b", &["1.0.1-b", "1.0.1-b2"]), Some("1.0.1-b"));
        assert_eq!(newest("^1", "1.0.0-management", &["1.0.1-management"]), Some("1.0.1-management"));
    }

    #[test]
    fn pre_releases_follow_in_the_order_of_their_stages_and_others_only_their_own_word() {
        let stages =
            ["1.0.0-alpha.9", "1.0.0-M9", "1.0.0-beta.9", "1.0.0-preview.9", "1.0.0-rc.9", "1.0.0-CR10"];
        for pair in stages.windows(2) {
            assert_eq!(newest("^1", pair[0], &[pair[1]]), Some(pair[1]), "{pair:?}");
            assert_eq!(newest("^1", pair[1], &[pair[0]]), None, "{pair:?}");
        }
        let others = ["canary.9", "dev.9", "edge.9", "insider.9", "next.9", "nightly.9", "snapshot.9"];
        let others = others.map(|word| format!("1.0.0-{word}"));
        let others = others.each_ref().map(String::as_str);
        for stage in stages {
            assert_eq!(newest("^1", stage, &others), None, "{stage}");
        }
        for other in others {
            let older = other.replace('9', "8");
            assert_eq!(newest("^1", &older, &others), Some(other));
            assert_eq!(newest("^1", other, &stages), None, "{other}");
            assert_eq!(newest("^1", other, &["1.0.0"]), Some("1.0.0"), "the release follows all of them");
        }
        assert_eq!(newest("^1", "1.0.0rc1", &["1.0.0-cr.1", "1.0.0-pre.2"]), None);
    }

    #[test]
    fn a_star_in_a_glob_matches_digits_and_dots() {
        let tags = [
            "1.27.4-alpine",
            "1.27.12-alpine",
            "1.27.12-alpine3.20",
            "1.27.-alpine",
            "1.28.0-alpine",
            "1.27.4",
        ];
        for (glob, current, expected) in [
            ("1.27.*-alpine", "1.27.3-alpine", Some("1.27.12-alpine")),
            ("1.27.*-alpine", "1.27.12-alpine", None),
            ("1.27.*-alpine*", "1.27.3-alpine3.19", Some("1.27.12-alpine3.20")),
            ("*-alpine", "1.27.3-alpine", Some("1.28.0-alpine")),
            ("1.27.*", "1.27.3", Some("1.27.4")),
            // Never downgrades, and never moves from a tag without numbers.
            ("1.27.*-alpine", "1.28.0-alpine", None),
            ("1.27.*-alpine", "alpine", None),
        ] {
            assert_eq!(newest(glob, current, &tags), expected, "{glob} from {current}");
        }
        let dated = ["2026.01.5", "2026.1.10", "2025.12.31", "RELEASE.2026-01-02T03-04-05Z"];
        assert_eq!(newest("202*", "2025.12.31", &dated), Some("2026.1.10"));
        let minio = "RELEASE.*-*-*T*-*-*Z";
        assert_eq!(newest(minio, "RELEASE.2025-11-02T00-00-00Z", &dated), Some(dated[3]));
    }

    #[test]
    fn four_numbers_and_builds_are_versions() {
        let tags =
            ["4.0.15.2941-ls289", "4.0.15.2941-ls290", "4.0.16.2944-ls291", "4.0.16.2944", "5.0.0.1-ls1"];
        for (range, current, expected) in [
            (">=4", "4.0.15.2941-ls289", Some("5.0.0.1-ls1")),
            ("~4.0", "4.0.15.2941-ls289", Some("4.0.16.2944-ls291")),
            ("=4.0.15", "4.0.15.2941-ls289", Some("4.0.15.2941-ls290")),
            ("~4.0", "4.0.15.2941", Some("4.0.16.2944")),
            (">=6", "4.0.15.2941-ls289", None),
        ] {
            assert_eq!(newest(range, current, &tags), expected, "{range} from {current}");
        }
        let bitnami =
            ["1.27.3-debian-12-r0", "1.27.3-debian-12-r4", "1.27.4-debian-12-r0", "1.27.5-debian-11-r9"];
        assert_eq!(newest("~1.27", "1.27.3-debian-12-r0", &bitnami), Some("1.27.4-debian-12-r0"));
        assert_eq!(newest("=1.27.3", "1.27.3-debian-12-r0", &bitnami), Some("1.27.3-debian-12-r4"));
        let linuxserver = [
            "4.0.6-r0-ls272",
            "4.0.6-r2-ls281",
            "4.0.6-r10-ls280",
            "4.0.6-ls300",
            "4.0.5-r9-ls290",
            "4.0.6-r11",
        ];
        assert_eq!(newest("~4.0", "4.0.6-r0-ls272", &linuxserver), Some("4.0.6-r10-ls280"));
        assert_eq!(newest("~4.0", "4.0.6-r0-ls271", &linuxserver[..1]), Some("4.0.6-r0-ls272"));
        assert_eq!(newest("~4.0", "4.0.5-r9-ls290", &linuxserver), Some("4.0.6-r10-ls280"));
        assert_eq!(newest("~4.0", "4.0.6-r10-ls280", &linuxserver), None);
    }

    #[test]
    fn a_few_tags_of_a_numbering_scheme_that_was_given_up_are_not_newer() {
        let tags = ["10.10.7", "10.11.3", "10.11.4", "10.11.5", "2021.12.16", "2020.1.1", "latest"];
        let range = TagPattern::parse(">=10.11").unwrap();
        assert_eq!(range.newest("10.11.4", tags), Some("10.11.5"));
        assert_eq!(range.newest("10.11.5", tags), None);
        assert_eq!(range.of_other_scheme("10.11.4", tags), Some("2021.12.16"));
        // A repository that has changed its scheme for good has more of the new tags, in the end.
        let changed = ["0.118.0", "0.118.1", "2021.12.0", "2022.1.0", "2022.2.0", "2022.3.0"];
        assert_eq!(newest(">=0", "0.118.1", &changed), Some("2022.3.0"));
        // Numbers that grow are one scheme.
        let grown: Vec<String> = (1..150).map(|n| format!("{n}.0.0")).collect();
        assert_eq!(
            newest(">=1", "9.0.0", &grown.iter().map(String::as_str).collect::<Vec<_>>()),
            Some("149.0.0")
        );
        assert_eq!(newest(">=8", "8.0.0", &["8.0.0", "12.0.0"]), Some("12.0.0"));
        // Within the old scheme nothing is held back.
        assert_eq!(range.newest("2020.1.1", tags), Some("2021.12.16"));
    }

    #[test]
    fn an_invalid_pattern_is_rejected_with_a_reason() {
        for (text, why) in [
            ("", "unexpected end of input"),
            ("latest", "unexpected character"),
            (">=1 <2", "expected comma"),
            ("1.27.*/x", "'/' is not allowed in a tag"),
            ("1.**", "two *"),
        ] {
            let error = TagPattern::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(TagPattern::parse(" ~1.27 ").is_ok());
    }

    #[test]
    fn strange_tags_are_never_newer() {
        let long = format!("1.{}", "9".repeat(40));
        let tags = ["", "v", "vv1.2.3", "1..2", "1.2.", "-1.2.3", "sha-1234567", long.as_str(), "1.2.3.4.5"];
        for current in ["1.2.3", "1.2"] {
            assert_eq!(newest(">=0", current, &tags), None);
        }
        assert_eq!(newest("*", "1.2.3", &[&"9".repeat(5000)]), Some("9".repeat(5000).as_str()));
    }

    #[test]
    fn two_thousand_tags_are_compared_at_once() {
        let tags: Vec<String> = (0..2000).map(|n| format!("1.{}.{}", n / 50, n % 50)).collect();
        let found = TagPattern::parse("^1").unwrap().newest("1.0.0", tags.iter().map(String::as_str));
        assert_eq!(found, Some("1.39.49"));
    }
}
