//! A text that must not be seen: it reads from a file and is used, but never printed.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

/// A token, a password, or a URL that gives access to whoever knows it.
///
/// It is not `Serialize` on purpose: nothing that holds one can get into an API answer by accident.
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
    /// Takes the text over.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), parts: Vec::new() }
    }

    /// A text into which `parts`, each a secret of its own, were put: the values of its variables.
    pub fn of_parts(text: impl Into<String>, parts: impl IntoIterator<Item = String>) -> Self {
        Self { text: text.into(), parts: parts.into_iter().collect() }
    }

    /// The secrets that were put into it.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(String::as_str)
    }

    /// The text itself, for the one place that sends or compares it.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// Whether there is no text. An empty secret never authorises anyone (DECISIONS 2).
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

    /// `writeOnly` is JSON Schema's word for a value that is given but never shown.
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
