//! JSON Schema helpers for both kinds of pages.

use serde_json::Value;

/// Describes a type, with a link if it has its own section.
pub(crate) fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return format!("[`{name}`](#{})", name.to_lowercase());
    }
    if let Some(constant) = schema["const"].as_str() {
        return format!("`\"{constant}\"`");
    }
    if !constants(schema).is_empty() {
        return "string".to_owned();
    }
    if let Some(choices) = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array()) {
        return either(choices.iter().map(kind));
    }
    let one = |name: &str| match name {
        "array" => format!("array of {}", kind(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("object of {}", kind(&schema["additionalProperties"]))
        }
        name => name.to_owned(),
    };
    match &schema["type"] {
        Value::String(name) => one(name),
        Value::Array(names) => either(names.iter().filter_map(Value::as_str).map(one)),
        _ => "any".to_owned(),
    }
}

/// Omits `null`: the default or the optional field already expresses it.
fn either(kinds: impl Iterator<Item = String>) -> String {
    kinds.filter(|kind| kind != "null").collect::<Vec<_>>().join(" or ")
}

/// The allowed strings, each with its description; empty if the schema is not an enumeration.
pub(crate) fn constants(schema: &Value) -> Vec<(&str, String)> {
    let choices = schema["anyOf"][0]["oneOf"].as_array().or_else(|| schema["oneOf"].as_array());
    let choices = choices.into_iter().flatten().map(|choice| Some((choice["const"].as_str()?, text(choice))));
    choices.collect::<Option<_>>().unwrap_or_default()
}

/// The description as one line of a table, without references to the specification.
pub(crate) fn text(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    match text.split_once(" (spec ") {
        Some((before, rest)) => format!("{before}{}", rest.split_once(')').unwrap().1),
        None => text,
    }
}
