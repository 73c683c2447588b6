//! Configs and secrets whose content compose copies into a container. It is part of no hash and of no inspection, so that
//! what can be known is whether the variables that it consists of are set.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::model::compose::Model;

/// Configs and secrets by what they are called in a [`Difference`](super::Difference), such as `secret db`.
pub type Copied<'a> = BTreeMap<String, &'a Value>;

/// Returns the copied configs and secrets that these compose services use.
pub fn used_by<'a>(model: &'a Model, services: &[String]) -> Copied<'a> {
    let mut found = Copied::new();
    for service in services.iter().filter_map(|name| model.service(name)) {
        for (section, noun) in [("secrets", "secret"), ("configs", "config")] {
            let used = service.element().get(section).and_then(Value::as_array).into_iter().flatten();
            for key in used.filter_map(|file| file.get("source")?.as_str()) {
                if let Some(file) = model.file(section, key)
                    && (text(file, "content").is_some() || text(file, "environment").is_some())
                {
                    found.insert(format!("{noun} {key}"), file);
                }
            }
        }
    }
    found
}

/// Returns the variables that are copied as a whole. Compose looks them up when it has already made the container, and fails
/// then if one is not set.
pub fn variables(copied: &Copied<'_>) -> BTreeSet<String> {
    let is_name = |name: &&str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        !name.is_empty() && name.chars().all(is_part) && !name.starts_with(|c: char| c.is_ascii_digit())
    };
    copied.values().filter_map(|file| text(file, "environment")).filter(is_name).map(str::to_owned).collect()
}

/// Returns a model that uses these variables, so that compose reports those that are not set.
pub fn probe(variables: &BTreeSet<String>) -> Model {
    let used: BTreeMap<&String, String> =
        variables.iter().map(|name| (name, format!("${{{name}}}"))).collect();
    let model = json!({ "services": { "probe": { "image": "probe", "environment": used } } });
    serde_json::from_value(model).unwrap_or_default()
}

/// Returns what is copied from one of these variables as a whole.
pub fn from_variables(copied: &Copied<'_>, unset: &[String]) -> BTreeSet<String> {
    let is_unset =
        |file: &Value| text(file, "environment").is_some_and(|name| unset.iter().any(|one| one == name));
    copied.iter().filter(|(_, file)| is_unset(file)).map(|(name, _)| name.clone()).collect()
}

/// Reports whether a text is copied, which may contain variables.
pub fn has_content(copied: &Copied<'_>) -> bool {
    copied.values().any(|file| text(file, "content").is_some())
}

/// Returns what has another content in `other`: with other values of variables. Without it, all content counts.
pub fn changed(copied: &Copied<'_>, other: Option<&Copied<'_>>) -> BTreeSet<String> {
    let differs = |name: &String, file: &Value| {
        let content = text(file, "content");
        content.is_some()
            && other.is_none_or(|other| other.get(name).and_then(|f| text(f, "content")) != content)
    };
    copied.iter().filter(|(name, file)| differs(name, file)).map(|(name, _)| name.clone()).collect()
}

fn text<'a>(file: &'a Value, key: &str) -> Option<&'a str> {
    file.get(key)?.as_str()
}
