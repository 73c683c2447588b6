//! A string that must stay secret: it can be deserialized and used, but is never printed.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

/// A token, a password, or a URL that grants access.
///
/// It deliberately does not implement `Serialize`, so that nothing containing one can end up in an API response.
#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "String")]
pub struct Secret {
    text: String,
    parts: Vec<String>,
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl Secret {
    /// Wraps a string.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), parts: Vec::new() }
    }

    /// A string that contains `parts`, the values of its expanded variables. Each of them is a secret too.
    pub fn of_parts(text: impl Into<String>, parts: impl IntoIterator<Item = String>) -> Self {
        Self { text: text.into(), parts: parts.into_iter().collect() }
    }

    /// The secrets that it contains.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(String::as_str)
    }

    /// The string itself, for the code that sends or compares it.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// Reports whether the string is empty. An empty secret never authorizes a request (DECISIONS 2).
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(redacted)")
    }
}

impl JsonSchema for Secret {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    /// `writeOnly` is the JSON Schema keyword for a value that is accepted but never shown.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "writeOnly": true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_printed() {
        let secret = Secret::new("hunter2");
        for text in [format!("{secret}"), format!("{secret:?}"), format!("{:?}", Some(vec![&secret]))] {
            assert!(!text.contains("hunter2"), "{text}");
        }
        assert_eq!(secret.expose(), "hunter2");
    }
}
