//! Validates a JSON tree against the schema of its type, and reports every wrong type, range and key, not just the
//! first.
//!
//! serde stops at the first error and cannot be used for this. The schema is generated from the same types
//! (`schemars`), so the published schema, this check and the deserialization cannot diverge. Only the keywords that our
//! own types produce are supported; a test for the schema of each file ensures that.

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};

use super::{Findings, KeyPath, did_you_mean, duration, quote};

/// Keywords that are either checked here or do not restrict the value.
const KEYWORDS: &[&str] = &[
    "$schema",
    "additionalProperties",
    "anyOf",
    "const",
    "default",
    "description",
    "enum",
    "examples",
    "format",
    "items",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "oneOf",
    "pattern",
    "properties",
    "required",
    "title",
    "type",
    "writeOnly",
];

/// The allowed content of a file.
#[derive(Debug, Clone)]
pub struct Shape(Value);

impl Shape {
    /// The shape of a type. All subschemas are inlined, so the schema contains no references.
    pub fn of<T: JsonSchema>() -> Self {
        let settings = SchemaSettings::draft2020_12()
            .with(|settings| settings.inline_subschemas = true)
            .with_transform(RecursiveTransform(drop_defaults_of_required));
        Self(settings.into_generator().into_root_schema_for::<T>().to_value())
    }

    /// The JSON Schema.
    pub fn schema(&self) -> &Value {
        &self.0
    }

    /// Records every fault and every unknown key, and returns the tree without the faulty values: faulty or `null`
    /// members are removed, faulty elements are replaced by `null` so that the others keep their indexes. The rules that
    /// follow can then report further faults.
    pub fn check(&self, tree: Value, findings: &mut Findings) -> Value {
        check(&self.0, &KeyPath::root(), tree, findings).unwrap_or_else(|| Value::Object(Map::new()))
    }

    /// Keywords in the schema that [`Shape::check`] does not support; used in the tests of each file's types.
    pub fn unknown_keywords(&self) -> Vec<String> {
        let mut found = Vec::new();
        collect_unknown_keywords(&self.0, &mut found);
        found
    }
}

/// Removes the defaults of required members. Their types only have one because the check needs it.
fn drop_defaults_of_required(schema: &mut Schema) {
    let required = schema.get("required").cloned().unwrap_or_default();
    let names = required.as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(members) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        for name in names {
            members.get_mut(name).and_then(Value::as_object_mut).map(|member| member.remove("default"));
        }
    }
}

fn check(schema: &Value, at: &KeyPath, value: Value, findings: &mut Findings) -> Option<Value> {
    let schema = without_null(schema);
    match (kind(schema), value) {
        (Some("object"), Value::Object(members)) => Some(check_members(schema, at, members, findings)),
        (Some("array"), Value::Array(items)) if schema["minItems"].as_u64() > Some(items.len() as u64) => {
            findings.fault(at, format!("is an empty array; allowed: {}", allowed(schema)));
            None
        }
        // A single string is accepted without brackets and becomes a list here.
        (Some("array"), Value::String(text)) if takes(schema, "string") => {
            check(schema, at, Value::Array(vec![Value::String(text)]), findings)
        }
        // A list stands for an object with nothing but its member that is a list.
        (Some("object"), Value::Array(items)) if takes(schema, "array") => {
            let mut members = schema["properties"].as_object().into_iter().flatten();
            let member = members.find(|(_, member)| kind(member) == Some("array"));
            let member = member.map(|(name, _)| name.clone()).unwrap_or_default();
            check(schema, at, Value::Object(Map::from_iter([(member, Value::Array(items))])), findings)
        }
        // `true` stands for all words of a list, and `false` for none.
        (Some("array"), Value::Bool(all)) if takes(schema, "boolean") => {
            let words = words(&schema["items"]).filter(|_| all).map(Value::from);
            Some(Value::Array(words.collect()))
        }
        // A duration becomes a number of seconds here.
        (Some("integer"), Value::String(text)) if is_duration(schema) && duration::parse(&text).is_some() => {
            let seconds = Value::from(duration::parse(&text).unwrap_or_default());
            match fault(schema, Some("integer"), &seconds) {
                Some(_) => {
                    findings
                        .fault(at, format!("{} is out of range; allowed: {}", quote(&text), allowed(schema)));
                    None
                }
                None => Some(seconds),
            }
        }
        (Some("array"), Value::Array(items)) => {
            let check_item = |(n, item)| check(&schema["items"], &at.index(n), item, findings);
            Some(items.into_iter().enumerate().map(check_item).map(Option::unwrap_or_default).collect())
        }
        (expected, value) => match fault(schema, expected, &value) {
            Some(what) => {
                findings.fault(at, format!("{what}; allowed: {}", allowed(schema)));
                None
            }
            None => Some(value),
        },
    }
}

fn check_members(
    schema: &Value,
    at: &KeyPath,
    members: Map<String, Value>,
    findings: &mut Findings,
) -> Value {
    let none = Map::new();
    let known = schema["properties"].as_object().unwrap_or(&none);
    let mut kept = Map::new();
    for (name, value) in members {
        let at = at.key(&name);
        let Some(member) = known.get(&name).or_else(|| schema.get("additionalProperties")) else {
            let near = did_you_mean(&name, known.keys().map(String::as_str));
            let hint = if near.is_empty() { format!("; allowed: {}", keys_of(known)) } else { near };
            findings.warn(&at, format!("is not a known key and is ignored{hint}"));
            continue;
        };
        if !value.is_null()
            && let Some(value) = check(member, &at, value, findings)
        {
            kept.insert(name, value);
        }
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !kept.contains_key(name) {
            findings.fault(&at.key(name), format!("is missing; allowed: {}", allowed(&known[name])));
        }
    }
    Value::Object(kept)
}

fn keys_of(known: &Map<String, Value>) -> String {
    known.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Returns the fault of a scalar value, or of a value of the wrong type.
fn fault(schema: &Value, expected: Option<&str>, value: &Value) -> Option<String> {
    let in_range = |number: &serde_json::Number| {
        let number = number.as_f64().unwrap_or(f64::NAN);
        schema["minimum"].as_f64().is_none_or(|least| number >= least)
            && schema["maximum"].as_f64().is_none_or(|most| number <= most)
    };
    match (expected, value) {
        (Some("words"), Value::String(word)) if words(schema).any(|known| known == word) => None,
        (Some("words"), Value::String(_)) => Some(format!("{} is not a valid value", seen(schema, value))),
        (Some("integer"), Value::Number(number)) if number.is_f64() => {
            Some(format!("{number} is not a whole number"))
        }
        (Some("integer" | "number"), Value::Number(number)) if in_range(number) => None,
        (Some("integer" | "number"), Value::Number(number)) => Some(format!("{number} is out of range")),
        (Some("string"), Value::String(text)) => {
            let short =
                schema["minLength"].as_u64().is_some_and(|least| (text.chars().count() as u64) < least);
            short.then(|| "is empty".to_owned())
        }
        (Some("boolean"), Value::Bool(_)) | (None, _) => None,
        (Some(expected), Value::String(text)) if is_quoted(expected, text) => {
            Some(format!("{} is a string, remove the quotes", seen(schema, value)))
        }
        _ => Some(seen(schema, value)),
    }
}

/// Reports whether a string would be a value of the expected type without its quotes.
fn is_quoted(expected: &str, text: &str) -> bool {
    match expected {
        "integer" => text.parse::<i64>().is_ok(),
        "number" => text.parse::<f64>().is_ok(),
        "boolean" => text.parse::<bool>().is_ok(),
        _ => false,
    }
}

/// Describes the value in the file. Secrets are not shown, and neither are strings in place of an object: the string may
/// be a secret member of that object (for example the URL of a webhook in place of the webhook).
fn seen(schema: &Value, value: &Value) -> String {
    let hidden = schema["writeOnly"] == true || matches!(kind(schema), Some("object"));
    match value {
        Value::Null => "null".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::Bool(_) if hidden => "a boolean".to_owned(),
        Value::Number(_) if hidden => "a number".to_owned(),
        Value::String(_) if hidden => "a string".to_owned(),
        Value::String(text) => quote(text),
        plain => plain.to_string(),
    }
}

/// Describes the allowed values.
fn allowed(schema: &Value) -> String {
    let schema = without_null(schema);
    let number = |noun: &str| match (&schema["minimum"], &schema["maximum"]) {
        (Value::Number(least), Value::Number(most)) => format!("{noun} from {least} to {most}"),
        (Value::Number(least), _) => format!("{noun} of at least {least}"),
        _ => noun.to_owned(),
    };
    match kind(schema) {
        Some("words") => words(schema).collect::<Vec<_>>().join(", "),
        Some("integer") if is_duration(schema) => {
            format!("{}, or a duration such as {}", number("a whole number of seconds"), duration::EXAMPLES)
        }
        Some("integer") => number("a whole number"),
        Some("number") => number("a number"),
        Some("boolean") => "true or false".to_owned(),
        Some("string") if schema["minLength"].is_u64() => "a string that is not empty".to_owned(),
        Some("array") => match kind(without_null(&schema["items"])) {
            Some("string") if takes(schema, "string") => "a string or an array of strings".to_owned(),
            Some("string") => "an array of strings".to_owned(),
            Some("words") if takes(schema, "boolean") => {
                format!("true, or an array of: {}", allowed(&schema["items"]))
            }
            Some("words") => format!("an array of: {}", allowed(&schema["items"])),
            _ => "an array of objects".to_owned(),
        },
        Some("object") => "an object".to_owned(),
        _ => "a string".to_owned(),
    }
}

/// The schema of a list of strings that may also be given as a single string.
pub fn one_or_many(_: &mut schemars::SchemaGenerator) -> Schema {
    schemars::json_schema!({"type": ["array", "string"], "items": {"type": "string"}, "minItems": 1})
}

/// The schema of a number of seconds that may also be given as a duration such as `"15m"`.
pub fn seconds<const LEAST: u64, const MOST: u64>(_: &mut schemars::SchemaGenerator) -> Schema {
    schemars::json_schema!({
        "type": ["integer", "string"], "minimum": LEAST, "maximum": MOST, "minLength": 1, "pattern": duration::PATTERN,
    })
}

/// Reports whether the schema comes from [`seconds`].
fn is_duration(schema: &Value) -> bool {
    schema["pattern"] == duration::PATTERN
}

/// Reports whether the schema of a list also takes a single value of this type.
fn takes(schema: &Value, kind: &str) -> bool {
    schema["type"].as_array().is_some_and(|types| types.iter().any(|name| name == kind))
}

/// Returns the type of the schema; `words` for an enumeration of strings.
fn kind(schema: &Value) -> Option<&str> {
    if words(schema).next().is_some() {
        return Some("words");
    }
    match &schema["type"] {
        Value::String(name) => Some(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).find(|name| *name != "null"),
        _ => None,
    }
}

/// Returns the strings of an enumeration: `enum`, or `oneOf` if each value has a description.
fn words(schema: &Value) -> impl Iterator<Item = &str> {
    let plain = schema["enum"].as_array().into_iter().flatten();
    let described = schema["oneOf"].as_array().into_iter().flatten();
    let groups = described
        .flat_map(|one| one["enum"].as_array().into_iter().flatten().chain(std::iter::once(&one["const"])));
    plain.chain(groups).filter_map(Value::as_str)
}

/// Skips the `null` alternative: `null` is the same as an absent member.
fn without_null(schema: &Value) -> &Value {
    let mut branches = schema["anyOf"].as_array().into_iter().flatten();
    branches.find(|branch| branch["type"] != "null").unwrap_or(schema)
}

fn collect_unknown_keywords(schema: &Value, found: &mut Vec<String>) {
    let Some(members) = schema.as_object() else { return };
    found.extend(members.keys().filter(|name| !KEYWORDS.contains(&name.as_str())).cloned());
    for part in members.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::values) {
        collect_unknown_keywords(part, found);
    }
    for name in ["items", "additionalProperties"] {
        collect_unknown_keywords(&schema[name], found);
    }
    for part in ["anyOf", "oneOf"].iter().filter_map(|name| schema[*name].as_array()).flatten() {
        collect_unknown_keywords(part, found);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::secret::Secret;

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    enum Colour {
        /// Described words become `oneOf`.
        #[serde(rename = "red")]
        Red,
        /// Each.
        #[serde(rename = "green")]
        Green,
    }

    #[derive(Default, JsonSchema)]
    #[serde(default)]
    #[schemars(extend("required" = ["name"]))]
    struct Part {
        #[schemars(length(min = 1))]
        name: String,
        #[schemars(range(min = 1, max = 9))]
        size: u8,
    }

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Whole {
        colour: Option<Colour>,
        #[schemars(range(min = 10, max = 20))]
        count: Option<u32>,
        #[schemars(range(min = 0))]
        share: f64,
        on: bool,
        token: Secret,
        headers: BTreeMap<String, Secret>,
        texts: Vec<String>,
        #[schemars(length(min = 1))]
        filled: Vec<String>,
        #[schemars(schema_with = "one_or_many")]
        some: Vec<String>,
        #[schemars(schema_with = "seconds::<10, 3600>")]
        pause: u64,
        part: Option<Part>,
        parts: Vec<Part>,
    }

    /// Returns the remaining tree, the faults and the warnings. Only members of `part` are required here.
    fn checked(tree: Value) -> (Value, Vec<String>, Vec<String>) {
        let mut shape = Shape::of::<Whole>();
        shape.0["required"] = json!([]);
        assert_eq!(shape.unknown_keywords(), Vec::<String>::new());
        let mut findings = Findings::default();
        let rest = shape.check(tree, &mut findings);
        let (faults, warnings) = findings.finish();
        let texts = |list: Vec<super::super::Finding>| list.iter().map(ToString::to_string).collect();
        (rest, texts(faults), texts(warnings))
    }

    #[test]
    fn every_wrong_value_is_reported_with_the_allowed_values() {
        for (tree, expected) in [
            (json!([]), "an array; allowed: an object"),
            (json!({"colour": "blue"}), "colour: \"blue\" is not a valid value; allowed: red, green"),
            (json!({"colour": 3}), "colour: 3; allowed: red, green"),
            (json!({"count": 9}), "count: 9 is out of range; allowed: a whole number from 10 to 20"),
            (json!({"count": -1}), "count: -1 is out of range; allowed: a whole number from 10 to 20"),
            (
                json!({"count": 12.0}),
                "count: 12.0 is not a whole number; allowed: a whole number from 10 to 20",
            ),
            (
                json!({"count": "12"}),
                "count: \"12\" is a string, remove the quotes; allowed: a whole number from 10 to 20",
            ),
            (json!({"count": "x"}), "count: \"x\"; allowed: a whole number from 10 to 20"),
            (json!({"count": true}), "count: true; allowed: a whole number from 10 to 20"),
            (json!({"share": -0.5}), "share: -0.5 is out of range; allowed: a number of at least 0"),
            (json!({"on": "true"}), "on: \"true\" is a string, remove the quotes; allowed: true or false"),
            (json!({"on": 1}), "on: 1; allowed: true or false"),
            (json!({"token": 12345}), "token: a number; allowed: a string"),
            (json!({"headers": "Bearer abc"}), "headers: a string; allowed: an object"),
            (json!({"headers": {"X-Y": 42}}), "headers.X-Y: a number; allowed: a string"),
            (json!({"texts": "a"}), "texts: \"a\"; allowed: an array of strings"),
            (json!({"texts": ["a", null]}), "texts[1]: null; allowed: a string"),
            (json!({"filled": []}), "filled: is an empty array; allowed: an array of strings"),
            (json!({"some": 1}), "some: 1; allowed: a string or an array of strings"),
            (json!({"some": []}), "some: is an empty array; allowed: a string or an array of strings"),
            (json!({"part": "https://secret"}), "part: a string; allowed: an object"),
            (json!({"part": {}}), "part.name: is missing; allowed: a string that is not empty"),
            (json!({"part": {"name": ""}}), "part.name: is empty; allowed: a string that is not empty"),
            (json!({"part": {"name": null}}), "part.name: is missing; allowed: a string that is not empty"),
            (json!({"parts": ["https://secret"]}), "parts[0]: a string; allowed: an object"),
            (json!({"parts": {}}), "parts: an object; allowed: an array of objects"),
        ] {
            assert_eq!(checked(tree.clone()).1, [expected], "{tree}");
        }
    }

    #[test]
    fn all_faults_are_reported_at_once_and_the_rest_keeps_its_place() {
        let tree = json!({
            "count": 5, "on": true, "share": null, "texts": ["a", 1, "c"],
            "parts": [{"name": "x", "size": 0}, 7, {"name": "y", "size": 3, "zzzzzz": 1}], "coulor": "red",
        });
        let (rest, faults, warnings) = checked(tree);
        let places: Vec<_> = faults.iter().filter_map(|text| text.split(':').next()).collect();
        assert_eq!(places, ["count", "parts[0].size", "parts[1]", "texts[1]"]);
        assert_eq!(
            rest,
            json!({
                "on": true, "texts": ["a", null, "c"],
                "parts": [{"name": "x"}, null, {"name": "y", "size": 3}],
            })
        );
        assert_eq!(
            warnings,
            [
                "coulor: is not a known key and is ignored; did you mean \"colour\"?",
                "parts[2].zzzzzz: is not a known key and is ignored; allowed: name, size",
            ]
        );
    }

    #[test]
    fn a_duration_is_accepted_in_place_of_a_number_of_seconds() {
        for (given, seconds) in
            [(json!(90), 90), (json!("90s"), 90), (json!("15m"), 900), (json!("1h"), 3600)]
        {
            assert_eq!(checked(json!({"pause": given})), (json!({"pause": seconds}), vec![], vec![]));
        }
        let allowed = "allowed: a whole number of seconds from 10 to 3600, or a duration such as \"90s\", \"15m\", \"12h\", \"3d\"";
        for (given, seen) in [
            (json!(9), "9 is out of range"),
            (json!("9s"), "\"9s\" is out of range"),
            (json!("3d"), "\"3d\" is out of range"),
            (json!("90"), "\"90\" is a string, remove the quotes"),
            (json!("soon"), "\"soon\""),
            (json!(1.5), "1.5 is not a whole number"),
        ] {
            assert_eq!(checked(json!({"pause": given})).1, [format!("pause: {seen}; {allowed}")]);
        }
        // Elsewhere a number stays a number.
        assert_eq!(checked(json!({"count": "15s"})).1.len(), 1);
    }

    #[test]
    fn a_single_string_is_accepted_in_place_of_a_list() {
        for given in [json!("a"), json!(["a"])] {
            assert_eq!(checked(json!({"some": given})), (json!({"some": ["a"]}), vec![], vec![]));
        }
    }

    #[test]
    fn a_keyword_that_is_not_checked_is_found() {
        let shape = Shape(json!({"properties": {"a": {"items": {"multipleOf": 3}}}, "not": {}}));
        assert_eq!(shape.unknown_keywords(), ["not", "multipleOf"]);
    }
}
