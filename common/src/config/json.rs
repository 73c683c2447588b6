//! Parses text into a JSON tree, with precise positions for syntax errors and warnings for duplicate keys.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{Findings, KeyPath, quote};

/// The text is not valid JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}, found {found}")]
pub struct SyntaxError {
    /// Line number, starting at 1.
    pub line: usize,
    /// Column in bytes, starting at 1.
    pub column: usize,
    /// What the parser expected.
    pub what: String,
    /// What it found instead.
    pub found: String,
}

/// Parses `text`. A duplicate key in an object is a warning; the last value wins, as in most parsers.
pub fn parse(text: &str, findings: &mut Findings) -> Result<Value, SyntaxError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    Node { path: KeyPath::root(), findings }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value))
        .map_err(|error| explain(text, &error))
}

fn explain(text: &str, error: &serde_json::Error) -> SyntaxError {
    let (line, column) = (error.line(), error.column());
    let message = error.to_string();
    let what = message.split(" at line ").next().unwrap_or(&message).to_owned();
    let rest = text
        .lines()
        .nth(line.saturating_sub(1))
        .and_then(|content| content.get(column.saturating_sub(1)..))
        .and_then(|rest| rest.chars().next());
    let found = match rest {
        _ if error.is_eof() => "the end of the file".to_owned(),
        Some('/' | '#') => {
            format!("{} (JSON has no comments)", quote(&rest.map(String::from).unwrap_or_default()))
        }
        Some(character) => quote(&character.to_string()),
        None => "the end of the line".to_owned(),
    };
    SyntaxError { line, column: column.max(1), what, found }
}

/// One node of the tree. serde cannot pass a path or findings along, so they are part of the seed.
struct Node<'a> {
    path: KeyPath,
    findings: &'a mut Findings,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut source: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = source
            .next_element_seed(Node { path: self.path.index(items.len()), findings: &mut *self.findings })?
        {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut source: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = source.next_key::<String>()? {
            let path = self.path.key(&key);
            let value = source.next_value_seed(Node { path: path.clone(), findings: &mut *self.findings })?;
            if let Some(replaced) = map.insert(key, value) {
                self.findings.repeat(path, replaced);
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_the_same_as_serde_jsons() {
        let text =
            r#" {"a":[1,-2,3.5,1e3,"x\u00e9\n",true,null,{}],"b":{"c":[[]]},"d":18446744073709551615} "#;
        let tree = parse(text, &mut Findings::default()).unwrap();
        assert_eq!(tree, serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn duplicate_keys_are_reported_at_every_depth() {
        let mut findings = Findings::default();
        let tree = parse(r#"{"a":{"b":1,"b":2},"c":[{"d":1,"d":1}],"a2":0}"#, &mut findings).unwrap();
        assert_eq!(tree["a"]["b"], 2);
        assert_eq!(findings.replaced(&KeyPath::of("a.b")).collect::<Vec<_>>(), [&Value::from(1)]);
        let texts: Vec<_> = findings.finish().1.iter().map(ToString::to_string).collect();
        let text = "is given more than once; the last one is used";
        assert_eq!(texts, [format!("a.b: {text}"), format!("c[0].d: {text}")]);
    }

    #[test]
    fn syntax_errors_report_position_and_found_text() {
        for (text, expected) in [
            ("{\n  \"a\": 1\n  \"b\": 2\n}", "line 3, column 3: expected `,` or `}`, found \"\\\"\""),
            ("{\"a\": 1,}", "line 1, column 9: trailing comma, found \"}\""),
            ("{\"a\": tru}", "line 1, column 10: expected ident, found \"}\""),
            ("{\"a\": [1, 2", "line 1, column 11: EOF while parsing a list, found the end of the file"),
            ("{\n// note\n}", "line 2, column 1: key must be a string, found \"/\" (JSON has no comments)"),
            ("{} x", "line 1, column 4: trailing characters, found \"x\""),
            ("{'a': 1}", "line 1, column 2: key must be a string, found \"'\""),
            ("{\"a\": 1e999}", "line 1, column 11: number out of range, found \"9\""),
        ] {
            assert_eq!(parse(text, &mut Findings::default()).unwrap_err().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn a_deeply_nested_file_is_an_error_not_a_stack_overflow() {
        let error = parse(&"[".repeat(1_000_000), &mut Findings::default()).unwrap_err();
        assert!(error.what.contains("recursion limit"), "{error}");
    }
}
