//! Lenient access to the engine's JSON responses. A field that is absent, null or of another type is treated as unknown,
//! never as an error.
//!
//! Engines add, rename and drop fields with every version, and omit data that they have lost. The client library's
//! models describe one version and reject a whole response if any field differs.

use std::collections::HashMap;

use serde_json::Value;

/// Returns the non-empty string at `pointer` (RFC 6901).
pub(super) fn text<'a>(answer: &'a Value, pointer: &str) -> Option<&'a str> {
    answer.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
}

/// Returns the integer at `pointer`.
pub(super) fn number(answer: &Value, pointer: &str) -> Option<i64> {
    answer.pointer(pointer)?.as_i64()
}

/// Returns the non-negative integer at `pointer`.
pub(super) fn amount(answer: &Value, pointer: &str) -> Option<u64> {
    answer.pointer(pointer)?.as_u64()
}

/// Returns the boolean at `pointer`.
pub(super) fn flag(answer: &Value, pointer: &str) -> Option<bool> {
    answer.pointer(pointer)?.as_bool()
}

/// Returns the elements of the array at `pointer`.
pub(super) fn list<'a>(answer: &'a Value, pointer: &str) -> &'a [Value] {
    answer.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the strings of the array at `pointer`.
pub(super) fn texts(answer: &Value, pointer: &str) -> Vec<String> {
    list(answer, pointer).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns the string values of the object at `pointer`, or `None` if there is no object.
pub(super) fn map(answer: &Value, pointer: &str) -> Option<HashMap<String, String>> {
    let map = answer.pointer(pointer)?.as_object()?;
    Some(map.iter().filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect())
}

/// Returns the name of a listed container. The list also has `/consumer/alias` for each container that links to it
/// (`--link`), often before its own name. Podman's names have no leading slash.
pub(super) fn container_name(listed: &Value) -> Option<&str> {
    let names = list(listed, "/Names").iter().filter_map(Value::as_str);
    let mut names = names.map(|name| name.trim_start_matches('/'));
    names.find(|name| !name.is_empty() && !name.contains('/'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_that_is_absent_or_of_another_type_is_unknown() {
        for odd in [
            json!(null),
            json!([]),
            json!("x"),
            json!({"a": null}),
            json!({"a": [{}]}),
            json!({"a": {"b": []}}),
        ] {
            assert_eq!(text(&odd, "/a/b"), None, "{odd}");
            assert_eq!(number(&odd, "/a/b"), None, "{odd}");
            assert_eq!(amount(&odd, "/a/b"), None, "{odd}");
            assert_eq!(flag(&odd, "/a/b"), None, "{odd}");
            assert_eq!(list(&odd, "/a/b").len(), 0, "{odd}");
            assert_eq!(texts(&odd, "/a/b").len(), 0, "{odd}");
            assert_eq!(map(&odd, "/a/b"), None, "{odd}");
        }
    }

    #[test]
    fn valid_elements_of_a_list_or_map_are_kept_and_others_skipped() {
        let answer = json!({ "l": ["a", 5, null, "b"], "m": { "x": "1", "y": null, "z": [2] } });
        assert_eq!(texts(&answer, "/l"), ["a", "b"]);
        assert_eq!(map(&answer, "/m").unwrap(), HashMap::from([("x".to_owned(), "1".to_owned())]));
    }
}
