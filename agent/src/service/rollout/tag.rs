//! The tag of a deployment that stands in a line of the env file (`tag_variable`, DECISIONS 7): one more thing that a
//! plan moves. The line is written after the images were fetched and before compose is run, and put back before compose
//! is run for a rollback. A line that somebody has changed meanwhile is never overwritten: compose gets the tag of the
//! deployment as a variable that wins over the file, so that what runs does not depend on it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// From which tag to which.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TagChange {
    /// The variable.
    pub variable: String,
    /// The tag of what ran before.
    pub old: String,
    /// The tag that is deployed.
    pub new: String,
    /// The line to be written; `None` where a person has written it already.
    pub line: Option<LineChange>,
}

/// A line of the env file, before and after, without its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineChange {
    /// The file.
    pub path: PathBuf,
    /// As it was.
    pub old: String,
    /// As it is to be.
    pub new: String,
    /// SHA-256 of the whole file before, in hex.
    pub file_hash: String,
}

/// Whether the line was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineState {
    /// Not yet.
    #[default]
    Untouched,
    /// It was, or may have been.
    Written,
    /// It was put back, or is left as somebody else has written it.
    Settled,
}
