//! Names of the engine's objects in requests.

use crate::model::EngineError;

/// A name that can stand in a request's path without meaning another path.
pub(super) fn checked(name: &str) -> Result<&str, EngineError> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"_.-/:@[]".contains(&b);
    let climbs = name.split('/').any(|part| matches!(part, "" | "." | ".."));
    if climbs || !name.bytes().all(legal) {
        return Err(EngineError::NotFound(format!("no engine object can be called {name:?}")));
    }
    Ok(name)
}

/// A name as a regular expression that matches it alone.
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
