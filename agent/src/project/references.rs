//! Which files a compose file makes compose read: `include`, `extends` and `env_file`. Compose has no command that lists
//! them, and rendering the files at every check would cost more than the check.

use yaml_rust2::{Yaml, YamlLoader};

/// The files that a compose file names, as written. Names with variables are left out, because only compose can resolve
/// them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct References {
    /// Compose files.
    pub(super) compose: Vec<String>,
    /// Files with variables.
    pub(super) variables: Vec<String>,
}

/// Returns the files that this compose file names; none if it is not valid YAML, which compose reports.
pub(super) fn of(content: &[u8]) -> References {
    let mut found = References::default();
    let documents = std::str::from_utf8(content).ok().and_then(|text| YamlLoader::load_from_str(text).ok());
    for document in documents.into_iter().flatten() {
        for include in list(&document["include"]) {
            match include {
                Yaml::String(path) => add(&mut found.compose, path),
                include => {
                    texts(&include["path"], &mut found.compose);
                    texts(&include["env_file"], &mut found.variables);
                }
            }
        }
        visit(&document, &mut found);
    }
    found
}

/// Looks at every mapping: services may be merged from anywhere in the file.
fn visit(value: &Yaml, found: &mut References) {
    match value {
        Yaml::Hash(map) => {
            for (key, value) in map {
                match key.as_str() {
                    Some("extends") => texts(&value["file"], &mut found.compose),
                    Some("env_file") => texts(value, &mut found.variables),
                    _ => {}
                }
                visit(value, found);
            }
        }
        Yaml::Array(list) => list.iter().for_each(|value| visit(value, found)),
        _ => {}
    }
}

/// Adds a text, or those of a list of texts and of mappings with a `path`.
fn texts(value: &Yaml, to: &mut Vec<String>) {
    for one in list(value) {
        match one {
            Yaml::String(text) => add(to, text),
            one => {
                if let Some(path) = one["path"].as_str() {
                    add(to, path);
                }
            }
        }
    }
}

fn add(to: &mut Vec<String>, text: &str) {
    if !text.contains('$') {
        to.push(text.to_owned());
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
  - path: [b.yml, c.yml]
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
        let found = of(text.as_bytes());
        assert_eq!(found.compose, ["a.yml", "b.yml", "c.yml", "d.yml", "e.yml"]);
        let mut variables = found.variables.clone();
        variables.sort();
        variables.dedup();
        assert_eq!(variables, ["b.env", "base.env", "one.env", "two.env"]);
        assert_eq!(of(b"services: [broken"), References::default());
        assert_eq!(of(b"\xff"), References::default());
    }
}
