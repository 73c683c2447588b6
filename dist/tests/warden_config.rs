//! The warden's shipped schema and sample are consistent with each other, with the program, and with an independent
//! validator.

#![allow(clippy::unwrap_used)]

mod shipped;

use std::path::Path;

use evenkeel_warden::config::{self, Config, Configuration};
use serde_json::{Value, json};
use shipped::{check_schema, text};

fn sample() -> Value {
    serde_json::from_str(&text("samples/warden.json")).unwrap()
}

fn parse(text: &str) -> Result<Config, config::ConfigErrors> {
    let env = |name: &str| name.ends_with("_TOKEN").then(|| format!("secret-0123456789-{name}"));
    Config::parse(text, Path::new("sample.json"), &env)
}

#[test]
fn the_shipped_schema_matches_the_types() {
    check_schema("schema/warden-config.schema.json", &config::schema());
}

#[test]
fn the_sample_passes_the_schema_and_the_program() {
    let validator = jsonschema::validator_for(&config::schema()).unwrap();
    let errors: Vec<_> = validator.iter_errors(&sample()).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    let mut number = sample();
    number["api"]["port"] = json!(9000);
    assert!(validator.is_valid(&number), "a number is a port too");
    let config = parse(&sample().to_string()).unwrap();
    assert_eq!(config.warnings, Vec::<String>::new());
    assert_eq!(config.agents.len(), 2);
    assert!(!format!("{config:?}").contains("secret"));
}

/// Replaces every value of the sample by values of other types in turn. If the validator rejects the file, the program must
/// reject it or warn.
#[test]
fn the_program_reports_everything_that_the_schema_rejects() {
    let validator = jsonschema::validator_for(&config::schema()).unwrap();
    let mut refused = 0;
    for pointer in [
        "/api",
        "/agents",
        "/api/port",
        "/api/token",
        "/api/state_path",
        "/agents/0",
        "/agents/0/id",
        "/agents/1/url",
        "/agents/1/token",
    ] {
        for value in
            [json!("x"), json!(-1), json!(1.5), json!(true), json!([]), json!({}), json!([1]), json!("")]
        {
            let mut changed = sample();
            *changed.pointer_mut(pointer).unwrap() = value.clone();
            if !validator.is_valid(&changed) {
                refused += 1;
                let noticed = parse(&changed.to_string()).map_or(true, |config| !config.warnings.is_empty());
                assert!(noticed, "{pointer} = {value} passed unnoticed");
            }
        }
    }
    assert!(refused > 40, "{refused}");
}

#[test]
fn the_program_never_panics_on_a_broken_file() {
    let text = sample().to_string();
    for at in 0..text.len() {
        assert!(parse(&text[..at]).is_err(), "cut at {at}");
        for replacement in ["\"", "{", "]", "9", "-", "\\", "$", "\0", "é", "null"] {
            let changed = format!("{}{replacement}{}", &text[..at], &text[at + 1..]);
            if let Err(faults) = parse(&changed) {
                assert!(!faults.to_string().contains("secret"), "{faults}");
            }
        }
    }
}
