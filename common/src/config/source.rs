//! Reads a configuration file without blocking, and checks that it is text.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Far more than any configuration needs; a wrong path (a disk image, a log file) must not exhaust the memory.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file does not exist.
    #[error("there is no such file")]
    Missing,
    /// This user may not read it.
    #[error("permission denied: the user running this program may not read it")]
    Denied,
    /// Not a regular file.
    #[error("is {0}; allowed: a regular file")]
    NotAFile(&'static str),
    /// Larger than any configuration needs to be.
    #[error("is larger than 4 MiB; is this the right file?")]
    TooLarge,
    /// The file has no content.
    #[error("is empty; a configuration is a JSON object, at least {{}}")]
    Empty,
    /// The file begins with a byte order mark.
    #[error("begins with a byte order mark ({0}); save it as UTF-8 without a byte order mark")]
    ByteOrderMark(&'static str),
    /// The file is not UTF-8 text.
    #[error("is not UTF-8 text (first invalid byte at offset {0})")]
    NotUtf8(usize),
    /// Any other I/O error.
    #[error("cannot be read: {0}")]
    Io(io::Error),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            io::ErrorKind::PermissionDenied => Self::Denied,
            _ => Self::Io(error),
        }
    }
}

/// Reads the text of the file at `path`.
pub fn read(path: &Path) -> Result<String, ReadError> {
    // NONBLOCK: opening a FIFO would otherwise block until it has a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::NXIO) => {
            return Err(ReadError::NotAFile("a socket or a device without a driver"));
        }
        Err(errno) => return Err(io::Error::from(errno).into()),
    };
    let kind = file.metadata()?.file_type();
    if !kind.is_file() {
        return Err(ReadError::NotAFile(match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_fifo() => "a FIFO",
            () => "a device",
        }));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(ReadError::TooLarge);
    }
    text(bytes)
}

fn text(bytes: Vec<u8>) -> Result<String, ReadError> {
    match bytes.as_slice() {
        [0xef, 0xbb, 0xbf, ..] => return Err(ReadError::ByteOrderMark("UTF-8")),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => return Err(ReadError::ByteOrderMark("UTF-16")),
        _ => {}
    }
    let text = String::from_utf8(bytes).map_err(|e| ReadError::NotUtf8(e.utf8_error().valid_up_to()))?;
    if text.trim().is_empty() { Err(ReadError::Empty) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn error_of(path: &Path) -> String {
        read(path).unwrap_err().to_string()
    }

    #[test]
    fn every_kind_of_unusable_file_has_its_own_message() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, content).unwrap();
            path
        };
        assert_eq!(error_of(&folder.path().join("none")), "there is no such file");
        assert_eq!(error_of(folder.path()), "is a directory; allowed: a regular file");
        assert_eq!(error_of(Path::new("/dev/null")), "is a device; allowed: a regular file");
        assert!(error_of(&file("empty", b"")).starts_with("is empty"));
        assert!(error_of(&file("blank", b" \n\t")).starts_with("is empty"));
        assert!(error_of(&file("bom8", b"\xef\xbb\xbf{}")).contains("byte order mark (UTF-8)"));
        assert!(error_of(&file("bom16", b"\xff\xfe{\0")).contains("byte order mark (UTF-16)"));
        assert_eq!(
            error_of(&file("latin1", b"{\"a\":\"\xe4\"}")),
            "is not UTF-8 text (first invalid byte at offset 6)"
        );
        assert!(error_of(&file("x", b"").join("child")).starts_with("cannot be read"));
        assert_eq!(read(&file("good", b"{}")).unwrap(), "{}");
    }

    #[test]
    fn a_fifo_without_writer_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(error_of(&path), "is a FIFO; allowed: a regular file");
    }

    #[test]
    fn a_socket_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(error_of(&path).contains("socket"));
    }

    #[test]
    fn a_huge_file_is_refused_and_the_largest_allowed_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("huge");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(error_of(&path).starts_with("is larger than 4 MiB"));
        fs::write(&path, vec![b' '; 4 * 1024 * 1024]).unwrap();
        assert!(error_of(&path).starts_with("is empty"));
    }

    #[test]
    fn os_errors_have_readable_messages() {
        let of = |kind: io::ErrorKind| ReadError::from(io::Error::from(kind)).to_string();
        assert!(of(io::ErrorKind::PermissionDenied).starts_with("permission denied"));
        assert_eq!(of(io::ErrorKind::NotFound), "there is no such file");
    }
}
