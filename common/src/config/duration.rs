//! Durations as text: `"90s"`, `"15m"`, `"12h"`, `"3d"` (DECISIONS 2).

/// The form of a duration, for the JSON Schema.
pub const PATTERN: &str = "^([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$";

/// Examples for messages.
pub const EXAMPLES: &str = "\"90s\", \"15m\", \"12h\", \"3d\"";

/// The units in the order in which they may follow each other, with their seconds.
const UNITS: [(char, u64); 5] = [('w', 604_800), ('d', 86_400), ('h', 3600), ('m', 60), ('s', 1)];

/// Returns the seconds of a duration: whole numbers, each with a unit, the largest unit first. `None` for any other text,
/// also for a number without a unit, whose meaning can only be guessed.
pub fn parse(text: &str) -> Option<u64> {
    let (mut rest, mut units, mut total) = (text, UNITS.iter(), 0_u64);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let unit = after.chars().next()?;
        let (_, seconds) = units.find(|(name, _)| *name == unit)?;
        // A number that is too large is out of every range.
        let number = if number.is_empty() { return None } else { number.parse().unwrap_or(u64::MAX) };
        total = total.saturating_add(seconds.saturating_mul(number));
        rest = &after[unit.len_utf8()..];
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_whole_numbers_with_units_the_largest_first() {
        for (text, seconds) in [
            ("90s", 90),
            ("15m", 900),
            ("12h", 43_200),
            ("3d", 259_200),
            ("2w", 1_209_600),
            ("1d12h", 129_600),
            ("1h30m5s", 5405),
            ("0s", 0),
            ("99999999999999999999d", u64::MAX),
        ] {
            assert_eq!(parse(text), Some(seconds), "{text}");
        }
        for text in [
            "", "90", "s", "3 d", " 3d", "3d ", "-3d", "1.5h", "3D", "3days", "5m1h", "1m1m", "1h30",
            "three", "3µ", "d3", "1e3s", "+3s",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
