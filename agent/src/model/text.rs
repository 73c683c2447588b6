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

/// Returns a word of a command as a person types it in a shell, in quotes if it needs them.
pub fn shell_word(word: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"_./:=@%+-".contains(&b);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
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
    fn a_word_of_a_command_is_quoted_where_a_shell_would_misread_it() {
        for (word, expected) in [
            ("/opt/shop_1/compose.prod.yml", "/opt/shop_1/compose.prod.yml"),
            ("/srv/my shop/compose.yml", "'/srv/my shop/compose.yml'"),
            ("/srv/$(reboot);~", "'/srv/$(reboot);~'"),
            ("/srv/it's", r"'/srv/it'\''s'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(word), expected);
        }
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
