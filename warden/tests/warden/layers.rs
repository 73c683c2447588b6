//! The layers: a module imports only those below it (see the table in `lib.rs`), so there are no cycles.

use std::fs;
use std::path::{Path, PathBuf};

/// The layers from the top. Modules of one layer do not import each other.
const LAYERS: [&[&str]; 9] = [
    &["cli"],
    &["app"],
    &["http", "heartbeat"],
    &["reload"],
    &["collector", "wizard"],
    &["keep"],
    &["fleet"],
    &["auth"],
    &["config"],
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    files
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// Returns the modules that a source file names after `crate::`, in any form.
fn imports(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        let (group, rest) = rest.strip_prefix('{').map_or((false, rest), |rest| (true, rest));
        let end = if group { rest.find('}') } else { rest.find(|c: char| !c.is_alphanumeric() && c != '_') };
        let names = rest[..end.unwrap_or(rest.len())].split(',');
        found.extend(names.filter_map(|name| name.trim().split("::").next()).map(str::to_owned));
    }
    found
}

#[test]
fn no_module_imports_one_above_or_beside_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut checked = 0;
    for path in sources(&root) {
        let relative = path.strip_prefix(&root).unwrap();
        let module =
            relative.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
        if matches!(module, "lib" | "main") {
            continue;
        }
        let from = layer(module).unwrap_or_else(|| panic!("{module} is in no layer"));
        for import in imports(&fs::read_to_string(&path).unwrap()) {
            if import == module || !import.starts_with(|c: char| c.is_ascii_lowercase()) {
                continue;
            }
            let to = layer(&import).unwrap_or_else(|| panic!("{import} is in no layer"));
            assert!(from < to, "{} imports {import}, which is not below {module}", relative.display());
            checked += 1;
        }
    }
    assert!(checked > 20, "only {checked} imports were found");
}

#[test]
fn no_source_has_more_than_800_lines() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for path in [root.join("src"), root.join("tests"), root.join("benches")].iter().flat_map(|at| sources(at))
    {
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 800, "{}: {lines} lines", path.display());
    }
}
