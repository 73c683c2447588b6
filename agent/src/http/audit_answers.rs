//! `GET /audit`: responses can be megabytes large, so identical requests share one while nothing has changed.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use bytes::Bytes;
use evenkeel_common::wire::AuditEntry;
use tokio::sync::Mutex;

use crate::audit;

/// The responses being sent. They are held by weak references, so a response is freed once all clients have it.
///
/// Only one request reads the file at a time; concurrent requests wait for it and share the response if it is the same.
#[derive(Default)]
pub struct AuditAnswers(Mutex<HashMap<usize, Shared>>);

struct Shared {
    of: Version,
    body: Weak<Vec<u8>>,
}

/// Identifies what a response was made from.
#[derive(PartialEq, Eq)]
struct Version {
    /// `None` while there is no file.
    file: Option<FileVersion>,
    /// The entries that are not in the file yet, oldest first.
    waiting: Vec<Arc<AuditEntry>>,
}

/// Identifies the file's content: every entry appends to the file, and rotation replaces it.
#[derive(PartialEq, Eq)]
struct FileVersion {
    inode: u64,
    length: u64,
    modified: Option<SystemTime>,
}

impl FileVersion {
    async fn of(path: &Path) -> Option<Self> {
        let about = tokio::fs::symlink_metadata(path).await.ok()?;
        Some(Self { inode: about.ino(), length: about.len(), modified: about.modified().ok() })
    }
}

/// The bytes of a response, shared by the clients that receive it.
struct Body(Arc<Vec<u8>>);

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AuditAnswers {
    /// Returns the latest `limit` entries of the audit file at `path` as a JSON array, newest first, and before them those
    /// that are `waiting` for it, oldest first: the file may not be writable. Fails if the file can't be read.
    pub(super) async fn get(
        &self,
        path: &Path,
        limit: usize,
        waiting: impl FnOnce() -> Vec<Arc<AuditEntry>>,
    ) -> std::io::Result<Bytes> {
        let mut answers = self.0.lock().await;
        answers.retain(|_, shared| shared.body.strong_count() > 0);
        // Taken before the read: an entry written meanwhile is either in the response or changes the version.
        let version = Version { file: FileVersion::of(path).await, waiting: waiting() };
        let known = answers.get(&limit).filter(|shared| shared.of == version);
        if let Some(body) = known.and_then(|shared| shared.body.upgrade()) {
            return Ok(Bytes::from_owner(Body(body)));
        }
        // Those that are written, and not yet removed from the queue, are in both.
        let count = limit.max(version.waiting.len());
        let written = audit::read_latest(path.to_owned(), count).await?;
        let unwritten =
            version.waiting.iter().rev().map(|entry| &**entry).filter(|entry| !written.contains(entry));
        let entries: Vec<&AuditEntry> = unwritten.chain(&written).take(limit).collect();
        let body = Arc::new(serde_json::to_vec(&entries)?);
        answers.insert(limit, Shared { of: version, body: Arc::downgrade(&body) });
        Ok(Bytes::from_owner(Body(body)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write as _;

    use evenkeel_common::wire::{Kind, Level};

    use super::*;

    fn entry(message: &str) -> AuditEntry {
        let at = "2026-01-02T03:04:05Z".parse().unwrap();
        AuditEntry::new(at, "web", Kind::UPDATED, Level::Info, message)
    }

    fn line(message: &str) -> String {
        serde_json::to_string(&entry(message)).unwrap() + "\n"
    }

    #[tokio::test]
    async fn identical_requests_share_one_response_until_the_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        fs::write(&path, line("one") + &line("two")).unwrap();
        let answers = AuditAnswers::default();
        let first = answers.get(&path, 5, Vec::new).await.unwrap();
        let second = answers.get(&path, 5, Vec::new).await.unwrap();
        assert_eq!(first.as_ptr(), second.as_ptr(), "one answer in memory");
        let one = answers.get(&path, 1, Vec::new).await.unwrap();
        assert!(one.len() < first.len());
        OpenOptions::new().append(true).open(&path).unwrap().write_all(line("three").as_bytes()).unwrap();
        let third = answers.get(&path, 5, Vec::new).await.unwrap();
        assert!(String::from_utf8_lossy(&third).contains("three"));
        drop((first, second, one, third));
        assert!(answers.get(&path, 5, Vec::new).await.is_ok());
        assert_eq!(answers.0.lock().await.len(), 1, "unused responses are dropped");
    }

    #[tokio::test]
    async fn a_rotated_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let answers = AuditAnswers::default();
        assert_eq!(&*answers.get(&path, 5, Vec::new).await.unwrap(), b"[]", "no file yet");
        fs::write(&path, line("old")).unwrap();
        let held = answers.get(&path, 5, Vec::new).await.unwrap();
        fs::rename(&path, folder.path().join("elsewhere")).unwrap();
        fs::write(&path, line("new")).unwrap();
        let answer = answers.get(&path, 5, Vec::new).await.unwrap();
        assert!(String::from_utf8_lossy(&answer).contains("new"), "{answer:?} after {held:?}");
    }

    #[tokio::test]
    async fn entries_that_are_not_in_the_file_yet_come_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let waiting = |messages: &[&str]| -> Vec<Arc<AuditEntry>> {
            messages.iter().map(|message| Arc::new(entry(message))).collect()
        };
        let messages = |answer: &[u8]| -> Vec<String> {
            let entries: Vec<AuditEntry> = serde_json::from_slice(answer).unwrap();
            entries.into_iter().map(|entry| entry.message).collect()
        };
        let answers = AuditAnswers::default();
        let without_file = answers.get(&path, 5, || waiting(&["a", "b"])).await.unwrap();
        assert_eq!(messages(&without_file), ["b", "a"]);
        // The first of them was written, but is still in the queue.
        fs::write(&path, line("old") + &line("a")).unwrap();
        let first = answers.get(&path, 5, || waiting(&["a", "b"])).await.unwrap();
        assert_eq!(messages(&first), ["b", "a", "old"]);
        let same = answers.get(&path, 5, || waiting(&["a", "b"])).await.unwrap();
        assert_eq!(first.as_ptr(), same.as_ptr(), "one answer in memory");
        let more = answers.get(&path, 5, || waiting(&["a", "b", "c"])).await.unwrap();
        assert_eq!(messages(&more), ["c", "b", "a", "old"]);
        let limited = answers.get(&path, 1, || waiting(&["a", "b"])).await.unwrap();
        assert_eq!(messages(&limited), ["b"]);
        fs::write(&path, line("old") + &line("a") + &line("b")).unwrap();
        let limited = answers.get(&path, 1, || waiting(&["a", "b"])).await.unwrap();
        assert_eq!(messages(&limited), ["b"], "both are written");
    }
}
