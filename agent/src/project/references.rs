//! Which files a compose file makes compose read: `include`, `extends`, `env_file` and `label_file`. Compose has no command that lists
//! them, and rendering the files at every check would cost more than the check.

use std::path::Path;

use yaml_rust2::{Yaml, YamlLoader};

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

/// Returns the files that this compose file names; none if it is not valid YAML, which compose reports.
pub(super) fn of(content: &[u8], values: &Values<'_>) -> References {
    let mut found = References::default();
    let (mut extended, mut variables) = (Vec::new(), Vec::new());
    let documents = std::str::from_utf8(content).ok().and_then(|text| YamlLoader::load_from_str(text).ok());
    for document in documents.into_iter().flatten() {
        for one in list(&document["include"]) {
            include(one, values, &mut found);
        }
        visit(&document, &mut extended, &mut variables);
    }
    let extended = extended.iter().filter_map(|path| resolved(path, values));
    found.compose.extend(extended.map(|path| ComposeFile { path, folder: None }));
    found.variables.extend(variables.iter().filter_map(|name| resolved(name, values)));
    found
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
    }
}
