//! Names of engine objects in requests.

use crate::model::EngineError;

/// Checks that a name can be used in a request path without changing its meaning.
pub(super) fn checked(name: &str) -> Result<&str, EngineError> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"_.-/:@[]".contains(&b);
    let climbs = name.split('/').any(|part| matches!(part, "" | "." | ".."));
    if climbs || !name.bytes().all(legal) {
        return Err(EngineError::NotFound(format!("{name:?} is not a valid name of an engine object")));
    }
    Ok(name)
}

/// Escapes a name for use in a regular expression.
pub(super) fn escaped(name: &str) -> String {
    name.chars().fold(String::new(), |mut text, c| {
        if !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-') {
            text.push('\\');
        }
        text.push(c);
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_as_a_pattern_matches_only_itself() {
        assert_eq!(escaped("a-b_1.c+"), "a-b_1\\.c\\+");
    }
}
