//! The files that are shipped with the program.

use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::Value;

/// The path of a shipped file.
pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The content of a shipped file.
pub(crate) fn text(name: &str) -> String {
    fs::read_to_string(path(name)).expect("a shipped file")
}

/// Asserts that the shipped schema `name` is the generated one.
pub(crate) fn check_schema(name: &str, generated: &Value) {
    let path = path(name);
    if env::var_os("UPDATE").is_some() {
        fs::write(&path, format!("{generated:#}\n")).expect("the shipped schema can be written");
    }
    let kept: Value = serde_json::from_str(&text(name)).expect("a shipped schema is JSON");
    assert_eq!(kept, *generated, "run the test with UPDATE=1 to write {}", path.display());
}
