//! The pages of the manual that are made of the program itself: they are what the types, the running program and the
//! list of event kinds say today. `UPDATE=1 cargo nextest run --workspace -E 'binary(manual)'` writes them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod api_page;
mod config_page;
mod running;
mod schema;

use std::path::{Path, PathBuf};
use std::{env, fs};

use evenkeel_common::wire::Kind;

/// What a generated page begins with, after its title.
const GENERATED: &str =
    "<!-- Made by dist/tests/manual. Change the program's doc comments, then run the test with UPDATE=1. -->";

fn path(page: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page)
}

/// The page is the one that was just made.
fn check_page(name: &str, made: &str) {
    if env::var_os("UPDATE").is_some() {
        fs::write(path(name), made).unwrap();
    }
    let kept = fs::read_to_string(path(name)).unwrap_or_default();
    let first = kept.lines().zip(made.lines()).find(|(kept, made)| kept != made);
    assert!(
        kept == made,
        "dist/docs/{name} is stale; run the test with UPDATE=1. First difference: {first:#?}"
    );
}

#[test]
fn the_reference_of_the_agents_file_is_made_of_the_types() {
    let title = "Agent configuration reference";
    let about = "Every key of `/etc/evenkeel/config.json`. [Configuration](configuration.md) explains how they work together.";
    check_page("reference-agent.md", &config_page::render(title, about, &evenkeel_agent::config::schema()));
}

#[test]
fn the_reference_of_the_wardens_file_is_made_of_the_types() {
    let title = "Warden configuration reference";
    let about =
        "Every key of `/etc/evenkeel/warden.json`. [The warden](warden.md) explains how they work together.";
    check_page("reference-warden.md", &config_page::render(title, about, &evenkeel_warden::config::schema()));
}

#[test]
fn the_reference_of_the_api_is_made_of_the_openapi_document() {
    let about = "The agent's HTTP API, as it describes itself at `GET /openapi.json`.";
    check_page("reference-api.md", &api_page::render("API reference", about, &running::agent_document()));
}

#[test]
fn the_reference_of_the_wardens_api_is_made_of_its_openapi_document() {
    let about = "The warden's HTTP API, as it describes itself at `GET /openapi.json`.";
    let page = api_page::render("Warden API reference", about, &running::warden_document());
    check_page("reference-warden-api.md", &page);
}

/// A row of the page is ``| `kind` | level | meaning | what to do |``.
#[test]
fn the_manual_explains_every_kind_of_event_once() {
    let page = fs::read_to_string(path("events.md")).unwrap();
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    let mut explained: Vec<&str> = rows.iter().map(|row| row[0].trim_matches('`')).collect();
    explained.sort_unstable();
    let mut kinds: Vec<&str> = Kind::ALL.iter().map(Kind::as_str).collect();
    kinds.sort_unstable();
    assert_eq!(explained, kinds);
    for row in &rows {
        assert_eq!(row.len(), 4, "kind, level, meaning, what to do: {row:?}");
        for level in row[1].split(" or ") {
            assert!(["info", "warning", "error", "critical"].contains(&level), "{row:?}");
        }
    }
}
