//! Tags that are newer than the one in force and may be written into the env file (`tag_variable`, DECISIONS 7): which is
//! next, and which have failed.
//!
//! The newest tag whose digest has not failed here is deployed. A failed tag is queried with every check, and retried when
//! it points to a different digest.

use std::collections::BTreeMap;

use crate::service::images::FailedTags;

/// Maximum number of newer tags per image; this many may fail one after the other.
pub const MAX_NEWER: usize = 5;

/// The newer tags as input of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewerTags {
    /// Newer tags of the images whose tag is written into the env file, newest first.
    pub tags: Vec<String>,
    /// The failed tags, by image as configured.
    pub failed: BTreeMap<String, FailedTags>,
    /// The last rollback failed.
    pub is_stuck: bool,
}
