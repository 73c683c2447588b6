//! Which files a compose file makes compose read: `include`, `extends`, `env_file` and `label_file`. Compose has no command that lists
//! them, and rendering the files at every check would cost more than the check.

use std::collections::HashMap;
use std::path::Path;

use yaml_rust2::parser::{Event, MarkedEventReceiver, Parser};
use yaml_rust2::{Yaml, YamlLoader};

/// Maximum depth of a tree, which is walked recursively.
const DEEPEST: usize = 200;
/// Maximum size of a file's trees in bytes.
const LARGEST: usize = 32 * 1024 * 1024;
/// About what a node takes besides its text.
const NODE: usize = 128;
/// Maximum length of a path in bytes (`PATH_MAX` of Linux).
const LONGEST_PATH: usize = 4096;

/// What is known of a variable that compose puts in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Variable {
    /// It is set to this value.
    Set(String),
    /// It is not set.
    Unset,
    /// Only compose can tell.
    Unknown,
}

/// Looks up a variable.
type Values<'a> = dyn Fn(&str) -> Variable + 'a;

/// The files that a compose file names, with the values of variables. Names that only compose can resolve are left out.
#[derive(Debug, Default, PartialEq)]
pub(super) struct References {
    /// Compose files.
    pub(super) compose: Vec<ComposeFile>,
    /// Files with variables or labels.
    pub(super) variables: Vec<String>,
}

/// A compose file that another one names.
#[derive(Debug, PartialEq)]
pub(super) struct ComposeFile {
    pub(super) path: String,
    /// The project directory that an `include` gives to it, relative to that of the file which names it; `None`: the same.
    pub(super) folder: Option<String>,
}

/// Returns the files that this compose file names; none if it is not valid YAML, or too large as a tree, which compose reports.
pub(super) fn of(content: &[u8], values: &Values<'_>) -> References {
    let mut found = References::default();
    let (mut extended, mut variables) = (Vec::new(), Vec::new());
    let Some(loaded) = std::str::from_utf8(content).ok().and_then(load) else { return found };
    for document in loaded.documents() {
        for one in list(&document["include"]) {
            include(one, values, &mut found);
        }
        visit(document, &mut extended, &mut variables);
    }
    let extended = extended.iter().filter_map(|path| resolved(path, values));
    found.compose.extend(extended.map(|path| ComposeFile { path, folder: None }));
    found.variables.extend(variables.iter().filter_map(|name| resolved(name, values)));
    found
}

/// Builds the trees of all documents; `None` if the text is not valid YAML, or if they are too large or too deep. The loader
/// copies the tree of an anchor for each alias, so that a few lines can stand for any amount.
fn load(text: &str) -> Option<YamlLoader> {
    let mut parser = Parser::new_from_str(text);
    let (mut loader, mut extents) = (YamlLoader::default(), Extents::default());
    // Event by event, and each is judged before it is loaded: the parser's own loop recurses.
    loop {
        let (event, mark) = parser.next_token().ok()?;
        if event == Event::StreamEnd {
            return Some(loader);
        }
        if !extents.admit(&event) {
            return None;
        }
        loader.on_event(event, mark);
    }
}

/// How large and how deep a tree is.
#[derive(Debug, Clone, Copy, Default)]
struct Extent {
    bytes: usize,
    depth: usize,
}

/// The extents of the trees that are built so far.
#[derive(Debug, Default)]
struct Extents {
    /// The lists and mappings around the next node from the outside, each with its anchor (0: none).
    open: Vec<(usize, Extent)>,
    anchors: HashMap<usize, Extent>,
    /// Of everything, with the copies that are kept for anchors.
    bytes: usize,
}

impl Extents {
    /// Adds what the loader builds for an event; `false` if that is too much.
    fn admit(&mut self, event: &Event) -> bool {
        let (anchor, node, added) = match event {
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                self.open.push((*anchor, Extent::default()));
                return self.open.len() <= DEEPEST;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let (anchor, inner) = self.open.pop().unwrap_or_default();
                (anchor, Extent { bytes: inner.bytes + NODE, depth: inner.depth + 1 }, NODE)
            }
            Event::Scalar(text, _, anchor, _) => {
                let bytes = NODE + text.len();
                (*anchor, Extent { bytes, depth: 0 }, bytes)
            }
            Event::Alias(anchor) => {
                // An anchor that is still open stands for nothing.
                let node = self.anchors.get(anchor).copied().unwrap_or(Extent { bytes: NODE, depth: 0 });
                (0, node, node.bytes)
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart
            | Event::DocumentEnd => return true,
        };
        self.bytes += added;
        if anchor > 0 {
            self.bytes += node.bytes;
            self.anchors.insert(anchor, node);
        }
        if let Some((_, around)) = self.open.last_mut() {
            around.bytes += node.bytes;
            around.depth = around.depth.max(node.depth);
        }
        self.bytes <= LARGEST && self.open.len() + node.depth <= DEEPEST
    }
}

/// Adds the compose files of an `include`, and `.env` in their project directory, which compose reads unless the include names
/// an env file.
fn include(value: &Yaml, values: &Values<'_>, found: &mut References) {
    let mut paths = Vec::new();
    texts(if value.as_str().is_some() { value } else { &value["path"] }, &mut paths);
    let beside = |path: String| Some(Path::new(&path).parent()?.display().to_string());
    let folder = match value["project_directory"].as_str() {
        Some(folder) => resolved(folder, values),
        None => paths.first().and_then(|first| resolved(first, values)).and_then(beside),
    };
    if let Some(folder) = folder.as_ref().filter(|_| list(&value["env_file"]).is_empty()) {
        found.variables.push(Path::new(folder).join(".env").display().to_string());
    }
    let paths = paths.iter().filter_map(|path| resolved(path, values));
    found.compose.extend(paths.map(|path| ComposeFile { path, folder: folder.clone() }));
}

/// Puts in the values of variables, as compose does: `$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME-default}`.
fn resolved(text: &str, values: &Values<'_>) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        if out.len() > LONGEST_PATH {
            return None;
        }
        if let Some(after) = after.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some(braced) = after.strip_prefix('{') {
            let (inner, after) = braced.split_once('}')?;
            out.push_str(&expanded(inner, values)?);
            rest = after;
        } else {
            let name = variable_at(after);
            out.push_str(&expanded(name, values)?);
            rest = &after[name.len()..];
        }
    }
    out.push_str(rest);
    Some(out)
}

/// Returns the value of `NAME`, `NAME:-default` and the like; `None` for what only compose can resolve.
fn expanded(inner: &str, values: &Values<'_>) -> Option<String> {
    let name = variable_at(inner);
    let operation = &inner[name.len()..];
    // A default may itself contain variables, and then ends elsewhere.
    if name.is_empty() || operation.contains('$') {
        return None;
    }
    let value = match values(name) {
        Variable::Set(value) => Some(value),
        Variable::Unset => None,
        Variable::Unknown => return None,
    };
    let (with_colon, operation) = operation.strip_prefix(':').map_or((false, operation), |rest| (true, rest));
    let value = value.filter(|value| !with_colon || !value.is_empty());
    match operation.chars().next() {
        None if with_colon => None,
        None => Some(value.unwrap_or_default()),
        Some('-') => Some(value.unwrap_or_else(|| operation[1..].to_owned())),
        Some('?') => value,
        Some(_) => None,
    }
}

/// The name of a variable at the start of a text.
fn variable_at(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    &text[..end]
}

/// Looks at every mapping: services may be merged from anywhere in the file.
fn visit(value: &Yaml, extended: &mut Vec<String>, variables: &mut Vec<String>) {
    match value {
        Yaml::Hash(map) => {
            for (key, value) in map {
                match key.as_str() {
                    Some("extends") => texts(&value["file"], extended),
                    Some("env_file" | "label_file") => texts(value, variables),
                    _ => {}
                }
                visit(value, extended, variables);
            }
        }
        Yaml::Array(list) => list.iter().for_each(|value| visit(value, extended, variables)),
        _ => {}
    }
}

/// Adds a text, or those of a list of texts and of mappings with a `path`.
fn texts(value: &Yaml, to: &mut Vec<String>) {
    for one in list(value) {
        match one {
            Yaml::String(text) => to.push(text.clone()),
            one => to.extend(one["path"].as_str().map(str::to_owned)),
        }
    }
}

fn list(value: &Yaml) -> &[Yaml] {
    match value {
        Yaml::Array(list) => list,
        Yaml::BadValue | Yaml::Null => &[],
        one => std::slice::from_ref(one),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_are_found() {
        let text = "
include:
  - a.yml
  - path: [sub/b.yml, c.yml]
    env_file: b.env
  - { path: d.yml, project_directory: x }
x-base: &base { env_file: base.env }
services:
  web:
    <<: *base
    extends: { file: e.yml, service: web }
    env_file: [one.env, { path: two.env, required: false }]
  db: { extends: web, env_file: \"${NAME}.env\" }
";
        let of = |content: &[u8]| of(content, &|_| Variable::Unknown);
        let found = of(text.as_bytes());
        let compose: Vec<_> =
            found.compose.iter().map(|file| (&*file.path, file.folder.as_deref())).collect();
        let expected = [
            ("a.yml", Some("")),
            ("sub/b.yml", Some("sub")),
            ("c.yml", Some("sub")),
            ("d.yml", Some("x")),
            ("e.yml", None),
        ];
        assert_eq!(compose, expected);
        let mut variables = found.variables.clone();
        variables.sort();
        variables.dedup();
        assert_eq!(variables, [".env", "b.env", "base.env", "one.env", "two.env", "x/.env"]);
        assert_eq!(of(b"services: [broken"), References::default());
        assert_eq!(of(b"\xff"), References::default());
    }

    #[test]
    fn a_file_that_stands_for_more_than_memory_holds_names_nothing() {
        let of = |text: &str| of(text.as_bytes(), &|_| Variable::Unknown);
        let doubled = |n: usize| format!("a{}: &a{} [*a{n}, *a{n}]\n", n + 1, n + 1);
        let nested =
            |n: usize| format!("a{}: &a{} {}*a{n}{}\n", n + 1, n + 1, "[".repeat(50), "]".repeat(50));
        let chain = |first: &str, link: &dyn Fn(usize) -> String, count: usize| {
            format!("include: [b.yml]\na0: &a0 {first}\n{}", (0..count).map(link).collect::<String>())
        };
        let large = "x".repeat(1024 * 1024);
        for (what, text) in [
            ("30 anchors that double", chain("[x, x]", &doubled, 30)),
            ("a large text 10,000 times", chain(&large, &|n: usize| format!("b{n}: *a0\n"), 10_000)),
            ("lists that nest", "- ".repeat(100_000)),
            ("aliases that nest", chain("x", &nested, 10)),
            ("lists in brackets that nest", format!("include: [b.yml]\na: {}", "[".repeat(100_000))),
            ("many nodes", chain("x", &|n: usize| format!("b{n}:\n"), 200_000)),
        ] {
            assert_eq!(of(&text), References::default(), "{what}");
        }
        let names = |found: References| found.compose.into_iter().map(|file| file.path).collect::<Vec<_>>();
        assert_eq!(names(of(&chain("x", &nested, 3))), ["b.yml"]);
        assert_eq!(names(of(&chain("[x, x]", &doubled, 10))), ["b.yml"]);
        let service = |n: usize| format!("s{n}: {{ <<: *a0, extends: {{ file: e{n}.yml }} }}\n");
        let ordinary = names(of(&chain("{ environment: { A: 1, B: 2 }, env_file: a.env }", &service, 500)));
        assert_eq!((ordinary.len(), &*ordinary[0], &*ordinary[500]), (501, "b.yml", "e499.yml"));
        assert_eq!(names(of("include: [b.yml]\na: &a [*a]")), ["b.yml"]);
    }

    #[test]
    fn names_with_variables_have_their_values() {
        let values = |name: &str| match name {
            "STAGE" => Variable::Set("prod".to_owned()),
            "EMPTY" => Variable::Set(String::new()),
            "UNKNOWN" => Variable::Unknown,
            _ => Variable::Unset,
        };
        let table = [
            ("web.env", Some("web.env")),
            ("${STAGE}.env", Some("prod.env")),
            ("$STAGE/web.env", Some("prod/web.env")),
            ("${STAGE:-test}.env", Some("prod.env")),
            ("${OTHER:-test}.env", Some("test.env")),
            ("${OTHER-test}/${STAGE}.env", Some("test/prod.env")),
            ("${OTHER}.env", Some(".env")),
            ("a$$b", Some("a$b")),
            ("${UNKNOWN}.env", None),
            ("${UNKNOWN:-test}.env", None),
            ("${OTHER:-${STAGE}}.env", None),
            ("${STAGE:-${OTHER}}.env", None),
            ("${EMPTY:-test}.env", Some("test.env")),
            ("${EMPTY-test}.env", Some(".env")),
            ("${STAGE:?it must be set}.env", Some("prod.env")),
            ("${EMPTY:?it must be set}.env", None),
            ("${STAGE:+test}.env", None),
            ("${STAGE", None),
            ("100%$", None),
        ];
        for (text, expected) in table {
            assert_eq!(resolved(text, &values).as_deref(), expected, "{text}");
        }
        let long = |_: &str| Variable::Set("x".repeat(1024));
        assert_eq!(resolved(&"$A".repeat(1_000_000), &long), None);
    }
}
