//! Formatting of external text and errors.

use std::io::{self, ErrorKind};

use jiff::Timestamp;

/// Formats a time for users, in UTC.
pub fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// Returns the end of `text`, at most `max` bytes, cut at a character boundary.
pub fn tail(text: &str, max: usize) -> &str {
    let mut start = text.len().saturating_sub(max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// Describes a file error for users: the names of [`ErrorKind`] are for programmers, and the system's messages end in an
/// error number.
pub fn describe_io_error(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "does not exist".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        ErrorKind::IsADirectory => "is a directory".to_owned(),
        ErrorKind::NotADirectory => "a part of its path is not a directory".to_owned(),
        _ => {
            let text = error.to_string();
            text.split_once(" (os error").map_or(text.as_str(), |(words, _)| words).to_owned()
        }
    }
}

/// Formats a count with its noun: `1 service`, `2 services`.
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_plural() {
        assert_eq!([0, 1, 2].map(|n| count(n, "service")), ["0 services", "1 service", "2 services"]);
    }

    #[test]
    fn file_errors_are_described_in_words() {
        use rustix::io::Errno;
        for (error, words) in [
            (Errno::NOENT.into(), "does not exist"),
            (Errno::ACCESS.into(), "permission denied"),
            (Errno::ISDIR.into(), "is a directory"),
            (Errno::NOTDIR.into(), "a part of its path is not a directory"),
            (Errno::MFILE.into(), "Too many open files"),
            (io::Error::other("it is not a regular file"), "it is not a regular file"),
        ] {
            assert_eq!(describe_io_error(&error), words);
        }
    }

    #[test]
    fn the_tail_is_kept_and_no_character_is_split() {
        assert_eq!(tail("abc", 5), "abc");
        assert_eq!(tail("abc", 2), "bc");
        assert_eq!(tail("aéz", 2), "z");
    }
}
