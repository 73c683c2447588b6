//! Renders the JSON Schema of a configuration file as a page with a table for each object.

use std::fmt::Write as _;

use serde_json::Value;

use crate::GENERATED;
use crate::schema::{constants, kind, text};

/// Renders the page, with keys in alphabetical order.
pub(crate) fn render(title: &str, about: &str, schema: &Value) -> String {
    let mut page = format!("# {title}\n\n{GENERATED}\n\n{about}\n");
    object(&mut page, "", schema);
    page
}

/// Renders the table of an object's keys, followed by a section for each nested object.
fn object(page: &mut String, path: &str, schema: &Value) {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().unwrap();
    let (objects, keys): (Vec<_>, Vec<_>) = properties.iter().partition(|(_, value)| inner(value).is_some());
    if !path.is_empty() {
        write!(page, "\n## `{path}`\n\n{}\n", text(schema)).unwrap();
    }
    if !keys.is_empty() {
        page.push_str("\n| key | type | default | |\n|---|---|---|---|\n");
    }
    for (key, value) in keys {
        let default = if required.contains(&key.as_str()) { "*required*".to_owned() } else { default(value) };
        let about = [text(value), choices(value), limits(value)].into_iter().filter(|part| !part.is_empty());
        let about = about.collect::<Vec<_>>().join(" ").replace('|', "\\|");
        writeln!(page, "| `{key}` | {} | {default} | {about} |", kind(value)).unwrap();
    }
    for (key, value) in objects {
        let (suffix, inner) = inner(value).unwrap();
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let mut inner = inner.clone();
        inner["description"] = value["description"].clone();
        object(page, &format!("{path}{suffix}"), &inner);
    }
}

/// The object, or array of objects, that is the value of a key.
fn inner(value: &Value) -> Option<(&'static str, &Value)> {
    let places = [("", value), ("", &value["anyOf"][0]), ("[]", &value["items"])];
    places.into_iter().find(|(_, place)| place["properties"].is_object())
}

/// The allowed values, each with its description if it has one.
fn choices(value: &Value) -> String {
    let choices = constants(value);
    if choices.iter().all(|(choice, about)| *about == format!("`{choice}`")) {
        let names: Vec<_> = choices.into_iter().map(|(_, about)| about).collect();
        return names.join(" or ");
    }
    choices.iter().map(|(choice, about)| format!("`{choice}`: {about}")).collect::<Vec<_>>().join(" ")
}

/// The restrictions beyond the type.
fn limits(value: &Value) -> String {
    let number = |key: &str| value[key].as_f64().map(|number| number.to_string());
    let is_duration = value["pattern"] == evenkeel_common::config::duration::PATTERN;
    match (number("minimum"), number("maximum"), value["pattern"].as_str()) {
        (Some(least), Some(most), Some(_)) if is_duration => {
            format!("Range: {least} to {most}, or a duration such as `\"15m\"`.")
        }
        (_, _, Some(pattern)) => format!("Pattern: `{pattern}`."),
        (Some(least), Some(most), _) => format!("Range: {least} to {most}."),
        (Some(least), None, _) => format!("At least {least}."),
        _ => String::new(),
    }
}

fn default(value: &Value) -> String {
    match &value["default"] {
        Value::Null => "none".to_owned(),
        Value::Number(number) => number.as_f64().unwrap().to_string(),
        other => format!("`{other}`"),
    }
}
