//! The configuration file while it is edited. Keys that the wizard does not ask about stay unchanged.

use evenkeel_common::config::{Findings, json};
use serde_json::{Map, Value, json};

/// Keys in reading order; others follow.
const ORDER: [&str; 9] = ["$schema", "api", "agents", "id", "url", "address", "port", "token", "state_path"];

/// The file as a tree.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Draft(Value);

impl Default for Draft {
    fn default() -> Self {
        Self(json!({"api": {}, "agents": []}))
    }
}

impl Draft {
    /// Parses an existing file. The error says why it cannot be edited.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut findings = Findings::default();
        let mut tree = json::parse(text, &mut findings).map_err(|error| format!("is not JSON: {error}"))?;
        // Only the last value would be saved.
        if let Some(repeated) = findings.repeated().first() {
            return Err(format!("has \"{repeated}\" more than once; fix it manually"));
        }
        let Some(members) = tree.as_object_mut() else { return Err("is not a JSON object".to_owned()) };
        for (key, empty) in [("api", json!({})), ("agents", json!([]))] {
            let value = members.entry(key).or_insert(empty.clone());
            if value.is_null() {
                *value = empty.clone();
            }
            if value.is_object() != empty.is_object() || value.is_array() != empty.is_array() {
                return Err(format!("has an unexpected value under \"{key}\"; fix it manually"));
            }
        }
        if !tree["agents"].as_array().is_some_and(|agents| agents.iter().all(Value::is_object)) {
            return Err("has elements other than objects under \"agents\"; fix it manually".to_owned());
        }
        Ok(Self(tree))
    }

    /// Returns a text under `api`; empty if the key is absent.
    pub(super) fn api(&self, key: &str) -> String {
        shown(&self.0["api"][key])
    }

    /// Sets a text under `api`; an empty one removes the key.
    pub(super) fn set_api(&mut self, key: &str, value: Value) {
        if let Some(api) = self.0["api"].as_object_mut() {
            if value == json!("") || value.is_null() {
                api.remove(key);
            } else {
                api.insert(key.to_owned(), value);
            }
        }
    }

    /// Returns the addresses of `api.address`.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.0["api"]["address"].as_array().into_iter().flatten().map(shown).collect()
    }

    /// Returns the agents.
    pub(super) fn agents(&self) -> &[Value] {
        self.0["agents"].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns a text of an agent.
    pub(super) fn agent(&self, index: usize, key: &str) -> String {
        self.agents().get(index).map(|agent| shown(&agent[key])).unwrap_or_default()
    }

    /// Sets a text of an agent; the index after the last one adds an agent, and an empty text removes the key.
    pub(super) fn set_agent(&mut self, index: usize, key: &str, value: &str) {
        let Some(agents) = self.0["agents"].as_array_mut() else { return };
        if index == agents.len() {
            agents.push(json!({}));
        }
        if let Some(agent) = agents.get_mut(index).and_then(Value::as_object_mut) {
            if value.is_empty() {
                agent.remove(key);
            } else {
                agent.insert(key.to_owned(), json!(value));
            }
        }
    }

    /// Removes an agent.
    pub(super) fn remove_agent(&mut self, index: usize) {
        if let Some(agents) = self.0["agents"].as_array_mut()
            && index < agents.len()
        {
            agents.remove(index);
        }
    }

    /// Renders the text of the file.
    pub(super) fn render(&self) -> String {
        let mut out = String::new();
        write(&self.0, 0, &mut out);
        out.push('\n');
        out
    }
}

/// Returns a string as it is, and a number as its digits.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Writes JSON with an indentation of two spaces and the keys in [`ORDER`]; arrays of plain values go on one line.
fn write(value: &Value, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth + 1);
    let close = "  ".repeat(depth);
    match value {
        Value::Object(members) if !members.is_empty() => {
            out.push('{');
            for (n, (key, value)) in in_order(members).into_iter().enumerate() {
                let comma = if n > 0 { "," } else { "" };
                out.push_str(&format!("{comma}\n{indent}{}: ", Value::from(key.as_str())));
                write(value, depth + 1, out);
            }
            out.push_str(&format!("\n{close}}}"));
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            out.push('[');
            for (n, item) in items.iter().enumerate() {
                let comma = if n > 0 { "," } else { "" };
                out.push_str(&format!("{comma}\n{indent}"));
                write(item, depth + 1, out);
            }
            out.push_str(&format!("\n{close}]"));
        }
        plain => out.push_str(&plain.to_string()),
    }
}

fn in_order(members: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let rank = |key: &str| ORDER.iter().position(|known| *known == key).unwrap_or(ORDER.len());
    let mut members: Vec<_> = members.iter().collect();
    members.sort_by(|(a, _), (b, _)| (rank(a), a).cmp(&(rank(b), b)));
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_not_asked_about_stay() {
        let text = r#"{"x": {"deep": [1, {"y": null}]}, "agents": [{"token": "$A", "note": "n", "id": "a"}], "api": {"token": "$T", "extra": 1.50}}"#;
        let mut draft = Draft::parse(text).unwrap();
        draft.set_agent(1, "id", "b");
        draft.set_api("state_path", json!("/s"));
        assert_eq!(
            draft.render(),
            r#"{
  "api": {
    "token": "$T",
    "state_path": "/s",
    "extra": 1.5
  },
  "agents": [
    {
      "id": "a",
      "token": "$A",
      "note": "n"
    },
    {
      "id": "b"
    }
  ],
  "x": {
    "deep": [
      1,
      {
        "y": null
      }
    ]
  }
}
"#
        );
        let again: Value = serde_json::from_str(&draft.render()).unwrap();
        assert_eq!(again, draft.0);
        draft.remove_agent(0);
        draft.remove_agent(9);
        draft.set_api("state_path", json!(""));
        assert_eq!(
            (draft.agent(0, "id").as_str(), draft.agents().len(), draft.api("state_path").as_str()),
            ("b", 1, "")
        );
    }

    #[test]
    fn a_file_that_cannot_be_edited_is_refused_with_the_reason() {
        for (text, why) in [
            ("[]", "is not a JSON object"),
            ("{", "is not JSON: line 1"),
            (r#"{"api": []}"#, "has an unexpected value under \"api\""),
            (r#"{"agents": {}}"#, "has an unexpected value under \"agents\""),
            (r#"{"agents": [{"id": "a"}], "agents": []}"#, "has \"agents\" more than once"),
            (r#"{"api": {"token": "a", "token": "b"}}"#, "has \"api.token\" more than once"),
            (r#"{"agents": [1]}"#, "has elements other than objects under \"agents\""),
        ] {
            let error = Draft::parse(text).unwrap_err();
            assert!(error.starts_with(why), "{text}: {error}");
        }
        assert_eq!(Draft::parse(r#"{"api": null}"#).unwrap(), Draft::default());
    }
}
