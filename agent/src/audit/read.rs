//! The newest entries of the audit file, read backwards across its rotated files (DECISIONS 3, `GET /audit`).

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use evenkeel_common::wire::AuditEntry;

use super::archives::{OPEN_FLAGS, archives, name_link};

const BLOCK: usize = 64 * 1024;

/// Returns the last `limit` entries of the audit file at `path`, newest first. Lines that are not entries are skipped; a
/// file that does not exist yet counts as empty.
pub async fn read_latest(path: PathBuf, limit: usize) -> io::Result<Vec<AuditEntry>> {
    tokio::task::spawn_blocking(move || latest(&path, limit)).await.map_err(io::Error::other)?
}

fn latest(path: &Path, limit: usize) -> io::Result<Vec<AuditEntry>> {
    let mut entries = Vec::new();
    // Open the current file before listing the folder. If it is rotated in between, it appears in the list and is
    // recognised; the reverse order could miss it.
    let current = open(path)?;
    let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
    let seen = current.as_ref().map(identity).transpose()?;
    if let Some(file) = current {
        collect(&file, limit, &mut entries)?;
    }
    let from_current = entries.len();
    if entries.len() < limit {
        let archives = match archives(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        for archive in archives {
            // It may have been removed since it was listed.
            let Some(file) = open(&archive)? else { continue };
            if Some(identity(&file)?) == seen {
                // This is the file that was just read as the current one, rotated since. Newer archives were created
                // after it was opened.
                entries.truncate(from_current);
            } else {
                collect(&file, limit, &mut entries)?;
            }
        }
    }
    Ok(entries)
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match OpenOptions::new().read(true).custom_flags(OPEN_FLAGS).open(path).map_err(name_link) {
        Ok(file) if file.metadata()?.is_file() => Ok(Some(file)),
        Ok(file) if file.metadata()?.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(_) => Err(io::Error::other("it is not a regular file")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn collect(file: &File, limit: usize, entries: &mut Vec<AuditEntry>) -> io::Result<()> {
    let mut lines = LinesFromEnd::of(file, BLOCK)?;
    while entries.len() < limit {
        let Some(line) = lines.next()? else { break };
        entries.extend(serde_json::from_slice::<AuditEntry>(&line));
    }
    Ok(())
}

/// Iterates over the lines of a file, last line first.
struct LinesFromEnd<'file> {
    file: &'file File,
    /// Everything from this offset on is in `tail` or was already returned.
    offset: u64,
    /// Text before the lines already returned, in pieces, last piece first.
    tail: Vec<Vec<u8>>,
    block: usize,
}

impl<'file> LinesFromEnd<'file> {
    fn of(file: &'file File, block: usize) -> io::Result<Self> {
        Ok(Self { file, offset: file.metadata()?.len(), tail: Vec::new(), block })
    }

    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            // Only the piece that was read last can contain a line break.
            if let Some(piece) = self.tail.last_mut()
                && let Some(at) = piece.iter().rposition(|&byte| byte == b'\n')
            {
                let end_of_piece = piece.split_off(at + 1);
                piece.pop();
                let before = self.tail.pop();
                self.tail.push(end_of_piece);
                let line = self.join();
                self.tail.extend(before);
                return Ok(Some(line));
            }
            if self.offset == 0 {
                return Ok(if self.tail.is_empty() { None } else { Some(self.join()) });
            }
            let length = self.block.min(usize::try_from(self.offset).unwrap_or(usize::MAX));
            let mut piece = vec![0; length];
            self.offset -= length as u64;
            self.file.read_exact_at(&mut piece, self.offset)?;
            self.tail.push(piece);
        }
    }

    fn join(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.tail).into_iter().rev().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use evenkeel_common::wire::{Kind, Level};
    use jiff::Timestamp;
    use tempfile::tempdir;

    use super::*;

    fn line(message: &str) -> String {
        let entry = AuditEntry::new(Timestamp::UNIX_EPOCH, "web", Kind::UPDATED, Level::Info, message);
        serde_json::to_string(&entry).unwrap() + "\n"
    }

    async fn messages(path: &Path, limit: usize) -> Vec<String> {
        let entries = read_latest(path.to_owned(), limit).await.unwrap();
        entries.into_iter().map(|entry| entry.message).collect()
    }

    #[tokio::test]
    async fn a_directory_in_place_of_the_file_is_reported() {
        let error = read_latest(tempdir().unwrap().path().to_owned(), 1).await.unwrap_err();
        assert_eq!(crate::model::text::describe_io_error(&error), "is a directory");
    }

    #[test]
    fn lines_come_out_backwards_whatever_the_block_size() {
        let text = "first\n\nthird is a longer one\n4\nno end";
        let expected: Vec<&str> = text.split('\n').rev().collect();
        for block in 1..40 {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            let mut lines = LinesFromEnd::of(&file, block).unwrap();
            let mut found = Vec::new();
            while let Some(line) = lines.next().unwrap() {
                found.push(String::from_utf8(line).unwrap());
            }
            assert_eq!(found, expected, "block {block}");
        }
    }

    #[tokio::test]
    async fn newest_first_across_rotated_files() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        assert_eq!(messages(&path, 5).await, [] as [&str; 0]);
        assert_eq!(messages(&dir.path().join("none/audit.jsonl"), 5).await, [] as [&str; 0]);
        fs::write(dir.path().join("audit.20260101T000000.000Z.jsonl"), line("a") + &line("b")).unwrap();
        fs::write(dir.path().join("audit.20260102T000000.000Z.jsonl"), line("c")).unwrap();
        fs::write(dir.path().join("audit.backup.jsonl"), line("not ours")).unwrap();
        assert_eq!(messages(&path, 5).await, ["c", "b", "a"]);
        fs::write(&path, line("d") + &line("e")).unwrap();
        assert_eq!(messages(&path, 4).await, ["e", "d", "c", "b"]);
        assert_eq!(messages(&path, 1).await, ["e"]);
        assert_eq!(messages(&path, 500).await.len(), 5);
    }

    #[tokio::test]
    async fn damaged_lines_are_skipped_and_no_line_is_too_long() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let long = "x".repeat(3 * BLOCK + 17);
        let text = format!(
            "{}garbage\n{{}}\n\n{}{}\u{0}\u{0}\u{0}\n{}{}",
            line("a"),
            line(&long),
            &line("cut")[..20],
            line("b"),
            &line("last, half written")[..40]
        );
        fs::write(&path, text).unwrap();
        assert_eq!(messages(&path, 500).await, ["b", long.as_str(), "a"]);
    }
}
