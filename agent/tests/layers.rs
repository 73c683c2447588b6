//! The layers of the agent: each imports only those below it, so there are no cycles. Decisions are pure, and no file of the
//! project is too long (design.md).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

/// From top to bottom. `adapters` implement `ports` and are used only in `app`.
const LAYERS: [&str; 12] = [
    "main", "cli", "app", "http", "tasks", "project", "audit", "adapters", "service", "ports", "config",
    "model",
];

/// Modules that only the composition root may use.
const ROOT_ONLY: [(&str, &str); 1] = [("adapters", "app")];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the top-level module that a file belongs to.
fn module(root: &Path, file: &Path) -> String {
    let first = file.strip_prefix(root).unwrap().components().next().unwrap();
    first.as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned()
}

/// Returns the modules that a source file refers to by `crate::`.
fn named(source: &str) -> Vec<String> {
    let name =
        |rest: &str| rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>();
    source.split("crate::").skip(1).map(name).filter(|name| !name.is_empty()).collect()
}

#[test]
fn every_import_points_to_a_lower_layer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let height = |module: &str| LAYERS.iter().position(|layer| *layer == module);
    let mut wrong = Vec::new();
    let mut arrows = 0;
    for file in sources(&root) {
        let from = module(&root, &file);
        if from == "lib" {
            continue;
        }
        let Some(own) = height(&from) else {
            wrong.push(format!("{from} is in no layer"));
            continue;
        };
        let source = fs::read_to_string(&file).unwrap();
        assert!(!source.contains("crate::{"), "{}: import one module at a time", file.display());
        for to in named(&source) {
            let Some(other) = height(&to) else { continue };
            arrows += 1;
            let outside_root =
                ROOT_ONLY.iter().any(|(only, root)| to == *only && from != *only && from != *root);
            if other < own || outside_root {
                wrong.push(format!("{} imports {to}", file.strip_prefix(&root).unwrap().display()));
            }
        }
    }
    assert!(arrows > 100, "the sources were read: {arrows}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Reports whether a file contains unit tests.
fn is_test(file: &Path) -> bool {
    let name = file.file_stem().unwrap().to_string_lossy();
    name.ends_with("tests") || file.components().any(|part| part.as_os_str() == "tests")
}

#[test]
fn decisions_do_not_await_read_the_clock_or_log() {
    let impure = ["tokio::", "tracing::", "async ", "::now()", "std::fs", "std::env", "std::process"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let folders = ["model", "service"].map(|folder| sources(&root.join(folder)));
    let files: Vec<PathBuf> =
        folders.concat().into_iter().filter(|file| !is_test(file.strip_prefix(&root).unwrap())).collect();
    assert!(files.len() > 40, "the sources were read: {files:?}");
    let mut wrong = Vec::new();
    for file in files {
        let source = fs::read_to_string(&file).unwrap();
        let code = source.split("#[cfg(test)]").next().unwrap().lines();
        for line in code.filter(|line| !line.trim_start().starts_with("//")) {
            if impure.iter().any(|word| line.contains(word)) {
                wrong.push(format!("{}: {}", file.strip_prefix(&root).unwrap().display(), line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_source_file_has_more_than_800_lines() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let members = ["agent", "common", "contract-tests", "dist", "warden"];
    let files: Vec<PathBuf> = members.iter().flat_map(|member| sources(&root.join(member))).collect();
    assert!(files.len() > 300, "the sources were read: {}", files.len());
    let lines = |file: &PathBuf| fs::read_to_string(file).unwrap().lines().count();
    let long: Vec<_> =
        files.iter().map(|file| (file, lines(file))).filter(|(_, lines)| *lines > 800).collect();
    assert!(long.is_empty(), "{long:#?}");
}
