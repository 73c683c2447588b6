//! The tag that a deployment writes to a line of the env file (`tag_variable`, DECISIONS 7). The line is written after
//! the pull and before compose runs, and restored before compose runs for a rollback. A line that was edited in the
//! meantime is never overwritten: compose gets the tag of the deployment as a variable that takes precedence over the
//! file, so the deployed images do not depend on the line. It is written once more after earlier data was put in place, which
//! the file may be a part of.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A change of the tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TagChange {
    /// The variable.
    pub variable: String,
    /// Tag of the previous images.
    pub old: String,
    /// Tag to deploy.
    pub new: String,
    /// The line to write; `None` if it already has the tag.
    pub line: Option<LineChange>,
}

/// A line of the env file before and after the change, without its line ending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineChange {
    /// The env file.
    pub path: PathBuf,
    /// The line before the change.
    pub old: String,
    /// The line after the change.
    pub new: String,
    /// SHA-256 of the whole file before the change, in hex.
    pub file_hash: String,
}

/// State of the env file line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineState {
    /// Not written yet.
    #[default]
    Untouched,
    /// Written, or possibly written.
    Written,
    /// Restored, or left as edited by someone else.
    Settled,
}
