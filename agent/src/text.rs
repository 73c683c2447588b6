//! Text from outside, made fit to be stored and shown.

/// The end of `text`, at most `max` bytes, cut at a character.
pub fn tail(text: &str, max: usize) -> &str {
    let mut start = text.len().saturating_sub(max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// A number and what it counts: `1 service`, `2 services`.
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
    fn the_end_is_kept_and_no_character_is_cut() {
        assert_eq!(tail("abc", 5), "abc");
        assert_eq!(tail("abc", 2), "bc");
        assert_eq!(tail("aéz", 2), "z");
    }
}
