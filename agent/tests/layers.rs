//! The layers of the agent: each imports only those below it, so there are no cycles. Decisions are pure, and no file of the
//! project is too long (design.md).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
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

/// Returns a file's module path below the crate, such as `service::gates::rules`.
fn module_path(root: &Path, file: &Path) -> String {
    let parts = file.strip_prefix(root).unwrap().with_extension("");
    let parts: Vec<_> = parts.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    let is_folder = parts.len() > 1 && parts.last().is_some_and(|last| last == "mod");
    parts[..parts.len() - usize::from(is_folder)].join("::")
}

/// Returns the code of a file without comments and unit tests.
fn code(file: &Path) -> String {
    let source = fs::read_to_string(file).unwrap();
    let is_tests = |at: &usize| {
        let mut after = source[*at..].lines().skip_while(|line| line.starts_with("#["));
        after.next().is_some_and(|line| line.starts_with("mod "))
    };
    let tests = source.match_indices("#[cfg(test)]\n").map(|(at, _)| at).find(is_tests);
    let lines =
        source[..tests.unwrap_or(source.len())].lines().filter(|line| !line.trim_start().starts_with("//"));
    // A visibility is no reference.
    let without_visibility = |line: &str| match line.split_once("pub(in ") {
        Some((before, after)) => format!("{before}{}", after.split_once(')').unwrap().1),
        None => line.to_owned(),
    };
    lines.map(without_visibility).collect::<Vec<_>>().join("\n")
}

/// Expands a tree of imports: `a::{b, c::d}` to `a::b` and `a::c::d`.
fn expand(tree: &str) -> Vec<String> {
    let Some((before, rest)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap().trim().to_owned()];
    };
    let inside = rest.strip_suffix('}').unwrap_or(rest);
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for c in inside.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if c == ',' && depth == 0 {
            parts.push(String::new());
        } else {
            parts.last_mut().unwrap().push(c);
        }
    }
    let parts = parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty());
    parts.flat_map(|part| expand(&format!("{}{part}", before.trim()))).collect()
}

/// Returns the paths below the crate that a file refers to. `own`: its module.
fn paths(code: &str, own: &str) -> Vec<String> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
    let mut found = Vec::new();
    for part in code.split(';') {
        let import = part.rfind("use ").filter(|at| !part[*at..].contains('(')).map(|at| &part[at + 4..]);
        let inline = part.split(|c| !is_path(c)).filter(|word| word.contains("::")).map(str::to_owned);
        found.extend(import.map_or_else(|| inline.collect(), expand));
    }
    let absolute = |path: &String| {
        if let Some(rest) = path.strip_prefix("crate::") {
            return Some(rest.to_owned());
        }
        let (mut base, mut rest) = (own, path.strip_prefix("super::")?);
        loop {
            base = base.rsplit_once("::").map_or("", |(parent, _)| parent);
            let Some(more) = rest.strip_prefix("super::") else { break };
            rest = more;
        }
        Some(if base.is_empty() { rest.to_owned() } else { format!("{base}::{rest}") })
    };
    // A folder's own file names its children without a prefix.
    let child = |path: &String| Some(format!("{own}::{path}"));
    found.iter().flat_map(|path| [absolute(path), child(path)]).flatten().collect()
}

/// Returns which file imports which, by module path.
fn imports(root: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let files = sources(root).into_iter().filter(|file| !is_test(file.strip_prefix(root).unwrap()));
    let files: BTreeMap<String, PathBuf> = files.map(|file| (module_path(root, &file), file)).collect();
    let file_of = |path: &str| {
        let mut path = path;
        while !files.contains_key(path) {
            path = path.rsplit_once("::")?.0;
        }
        Some(path.to_owned())
    };
    let of_one = |(own, file): (&String, &PathBuf)| {
        let paths = paths(&code(file), own);
        // The file of a folder may name what is in it.
        let is_inside = |to: &String| to.starts_with(&format!("{own}::"));
        let to =
            paths.iter().filter_map(|path| file_of(path)).filter(|to| to != own && !is_inside(to)).collect();
        (own.clone(), to)
    };
    files.iter().map(of_one).collect()
}

/// Returns the files that import each other in a circle: each reaches itself.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let reaches_itself = |start: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(to) = next.pop().and_then(|one| imports.get(one)) {
            if to.contains(start) {
                return true;
            }
            next.extend(to.iter().filter(|one| seen.insert(*one)));
        }
        false
    };
    imports.keys().filter(|start| reaches_itself(start)).cloned().collect()
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let circle = ["a", "b", "c"].map(str::to_owned);
    let [a, b, c] = circle.clone();
    let to = |one: &String| BTreeSet::from([one.clone()]);
    let known = BTreeMap::from([(a.clone(), to(&b)), (b, to(&a)), (c, to(&a))]);
    assert_eq!(circles(&known), circle[..2], "a circle is found");
    for (member, least) in [("agent", 500), ("warden", 50), ("common", 20)] {
        let imports = imports(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(member).join("src"));
        let arrows: usize = imports.values().map(BTreeSet::len).sum();
        assert!(arrows > least, "the sources of {member} were read: {arrows}");
        assert_eq!(circles(&imports), Vec::<String>::new(), "in {member}");
    }
}

/// The rooms of the decision core: values know nothing of [`Service`], decisions change it, and views only read it.
#[test]
fn only_decisions_and_views_know_the_service() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let core = |path: &str| path.strip_prefix("service::").map(str::to_owned);
    let room = |path: &str| path.split("::").next().unwrap().to_owned();
    let mut wrong = Vec::new();
    for (from, to) in imports(&root) {
        let Some(own) = core(&from) else { continue };
        let own = room(&own);
        for to in &to {
            let is_allowed = match core(to).map(|to| room(&to)).as_deref() {
                // Views read everything, and nothing reads them.
                Some("view") => own == "view",
                Some("decide") => ["decide", "view"].contains(&own.as_str()),
                None if to == "service" => ["decide", "view"].contains(&own.as_str()),
                _ => true,
            };
            let is_value_of = |room_of: &str, others: &[&str]| {
                own == room_of && core(to).is_some_and(|to| others.contains(&room(&to).as_str()))
            };
            let is_unknown = is_value_of("rollout", &["gates"])
                || is_value_of("health", &["rollout", "gates"])
                || is_value_of("upkeep", &["rollout", "gates"]);
            if !is_allowed || is_unknown {
                wrong.push(format!("{from} imports {to}"));
            }
        }
    }
    for file in sources(&root.join("service")) {
        let path = module_path(&root, &file);
        let is_own = path == "service"
            || ["service::decide", "service::view"].iter().any(|room| path.starts_with(room));
        if !is_own && !is_test(file.strip_prefix(&root).unwrap()) && code(&file).contains("\nimpl Service") {
            wrong.push(format!("{path} has methods of Service"));
        }
    }
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
