//! Renders an `OpenAPI` document as a page: the endpoints in one table, then the fields of the objects.

use std::fmt::Write as _;

use serde_json::Value;

use crate::GENERATED;
use crate::schema::{constants, kind, text};

/// Renders the page, with paths and objects in alphabetical order.
pub(crate) fn render(title: &str, first: &str, document: &Value) -> String {
    let about = document["info"]["description"].as_str().unwrap();
    let mut page = format!(
        "# {title}\n\n{GENERATED}\n\n{first} {about}\n\n\
         ## Endpoints\n\n| endpoint | | responses |\n|---|---|---|\n"
    );
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            endpoint(&mut page, path, &method.to_uppercase(), operation);
        }
    }
    page.push_str("\nAll other responses are errors: [`ErrorBody`](#errorbody) with a status code.\n");
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        section(&mut page, name, schema);
    }
    page
}

fn endpoint(page: &mut String, path: &str, method: &str, operation: &Value) {
    let mut about = operation["summary"].as_str().unwrap().to_owned();
    for parameter in
        operation["parameters"].as_array().into_iter().flatten().filter(|one| one["in"] == "query")
    {
        write!(about, " `{}`: {}", parameter["name"].as_str().unwrap(), text(parameter)).unwrap();
    }
    if operation["requestBody"].is_object() {
        write!(about, " Body: {}", text(&operation["requestBody"])).unwrap();
    }
    let answers =
        operation["responses"].as_object().unwrap().iter().filter(|(status, _)| *status != "default");
    let answers = answers.map(|(status, answer)| {
        match answer["content"].as_object().and_then(|content| content.iter().next()) {
            None => format!("{status}: {}", text(answer)),
            Some((media_type, content)) if media_type == "application/json" => {
                format!("{status} {}: {}", kind(&content["schema"]), text(answer))
            }
            Some((media_type, _)) => format!("{status} `{media_type}`: {}", text(answer)),
        }
    });
    let answers = answers.collect::<Vec<_>>().join("<br>");
    writeln!(page, "| `{method} {path}` | {about} | {answers} |").unwrap();
}

fn section(page: &mut String, name: &str, schema: &Value) {
    write!(page, "\n## `{name}`\n\n{}\n", text(schema)).unwrap();
    let constants = constants(schema);
    if !constants.is_empty() {
        page.push_str("\n| value | |\n|---|---|\n");
        for (value, about) in constants {
            writeln!(page, "| `{value}` | {about} |").unwrap();
        }
    } else if let Some(variants) = schema["oneOf"].as_array() {
        for variant in variants {
            write!(page, "\n{}\n", text(variant)).unwrap();
            fields(page, variant);
        }
    } else {
        fields(page, schema);
    }
}

fn fields(page: &mut String, schema: &Value) {
    let Some(properties) = schema["properties"].as_object() else { return };
    page.push_str("\n| field | type | |\n|---|---|---|\n");
    let required = schema["required"].as_array();
    for (name, field) in properties {
        let always = required.is_some_and(|required| required.iter().any(|one| one == name));
        let always = if always { "" } else { ", optional" };
        writeln!(page, "| `{name}` | {}{always} | {} |", kind(field), text(field)).unwrap();
    }
}
