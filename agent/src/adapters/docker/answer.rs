//! An engine's answer, read for what is needed: what is absent, null or of another type is unknown, and never an error.
//!
//! Engines add, rename and drop fields with every version, and leave out what they have lost. The client library's
//! models know one version of them and refuse the whole answer for any field that differs.

use std::collections::HashMap;

use serde_json::Value;

/// The text at `pointer` (RFC 6901); an empty one is as good as none.
pub(super) fn text<'a>(answer: &'a Value, pointer: &str) -> Option<&'a str> {
    answer.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
}

/// The whole number at `pointer`.
pub(super) fn number(answer: &Value, pointer: &str) -> Option<i64> {
    answer.pointer(pointer)?.as_i64()
}

/// The amount at `pointer`: a whole number that is not negative.
pub(super) fn amount(answer: &Value, pointer: &str) -> Option<u64> {
    answer.pointer(pointer)?.as_u64()
}

/// Yes or no at `pointer`.
pub(super) fn flag(answer: &Value, pointer: &str) -> Option<bool> {
    answer.pointer(pointer)?.as_bool()
}

/// The elements of the list at `pointer`.
pub(super) fn list<'a>(answer: &'a Value, pointer: &str) -> &'a [Value] {
    answer.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The texts of the list at `pointer`.
pub(super) fn texts(answer: &Value, pointer: &str) -> Vec<String> {
    list(answer, pointer).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The texts of the map at `pointer`, by name; `None` where there is no map.
pub(super) fn map(answer: &Value, pointer: &str) -> Option<HashMap<String, String>> {
    let map = answer.pointer(pointer)?.as_object()?;
    Some(map.iter().filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_absent_or_of_another_type_is_unknown() {
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
    fn the_good_elements_of_a_list_or_map_are_kept_beside_odd_ones() {
        let answer = json!({ "l": ["a", 5, null, "b"], "m": { "x": "1", "y": null, "z": [2] } });
        assert_eq!(texts(&answer, "/l"), ["a", "b"]);
        assert_eq!(map(&answer, "/m").unwrap(), HashMap::from([("x".to_owned(), "1".to_owned())]));
    }
}
