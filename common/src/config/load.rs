//! Loads and validates a configuration, the same way for every program, at start-up and on reload (SIGHUP).

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::environment::UnitFile;
use super::expand::{self, Env};
use super::shape::Shape;
use super::source::ReadError;
use super::{ConfigErrors, Findings, KeyPath, environment, json, source};

/// What a program does with its configuration, for the last line of `--check`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// For example `watching 2 of 3 services; not watched: blog (…)`.
    pub summary: String,
    /// Whether nothing that the file lists is left out.
    pub is_complete: bool,
}

/// A program's validated configuration.
pub trait Configuration: Sized {
    /// Parses and validates the text of a file; `path` is only used in messages.
    fn parse(text: &str, path: &Path, env: Env<'_>) -> Result<Self, ConfigErrors>;

    /// Problems that are not fatal.
    fn warnings(&self) -> &[String];

    /// Remarks for someone who checks the file. The program does not repeat them.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// What the program would do with the file.
    fn extent(&self) -> Extent;

    /// Reads and validates the file at `path`.
    fn load(path: &Path, env: Env<'_>) -> Result<Self, ConfigErrors> {
        match source::read(path) {
            Ok(text) => Self::parse(&text, path, env),
            Err(error) => Err(ConfigErrors::one(path, error.to_string())),
        }
    }
}

/// Deserializes a file into its type `F`. Values that do not fit are recorded in `findings` and left out. `normalize`
/// first rewrites alternative notations into the canonical one.
pub fn typed<F: JsonSchema + DeserializeOwned + Default>(
    text: &str,
    path: &Path,
    normalize: impl FnOnce(Value, &mut Findings) -> Value,
    findings: &mut Findings,
) -> Result<F, ConfigErrors> {
    let mut tree = json::parse(text, findings)
        .map_err(|error| ConfigErrors::one(path, format!("is not JSON: {error}")))?;
    // `$schema` is for editors and not part of the configuration.
    if let Some(members) = tree.as_object_mut() {
        members.remove("$schema");
    }
    let tree = Shape::of::<F>().check(normalize(tree, findings), findings);
    // The remaining tree should always deserialize. If it does not, report it without serde's message, which would contain
    // the value.
    Ok(serde_json::from_value(tree).unwrap_or_else(|_| {
        findings.fault(&KeyPath::root(), "has a value of the wrong type");
        F::default()
    }))
}

type SharedEnv = dyn Fn(&str) -> Option<String> + Send + Sync;

/// The source of the configuration, kept so that it can be reloaded.
#[derive(Clone)]
pub struct ConfigSource {
    path: PathBuf,
    env: Arc<SharedEnv>,
    environment_file: Option<PathBuf>,
    unit_file: Option<Arc<UnitFile>>,
}

/// Variables that a reload leaves as they are.
#[derive(Debug, PartialEq, Eq)]
pub struct OutdatedVariables {
    /// Their names, with what to do.
    pub text: String,
    /// Whether they are known to have changed.
    pub is_certain: bool,
}

impl ConfigSource {
    /// The file at `path`, with its variables looked up in `env`.
    pub fn new(path: PathBuf, env: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { path, env: Arc::new(env), environment_file: None, unit_file: None }
    }

    /// The file at `path`, with its variables looked up in the process environment and then in the service manager's
    /// credentials.
    pub fn of_process(path: PathBuf) -> Self {
        Self::new(path, |name| std::env::var(name).ok().or_else(|| credential(name)))
    }

    /// The same file, with variables that are not set looked up in the environment file at `path`, which a systemd unit
    /// reads.
    pub fn with_environment_file(&self, path: &Path) -> Result<Self, ReadError> {
        let variables = environment::variables(&source::read(path)?);
        let environment_file = (!variables.is_empty()).then(|| path.to_owned());
        let set = self.env.clone();
        let env = move |name: &str| set(name).or_else(|| variables.get(name).cloned());
        Ok(Self { environment_file, ..Self::new(self.path.clone(), env) })
    }

    /// The same file, for a program that is started now and whose unit reads the environment file `name` at each start.
    #[must_use]
    pub fn with_unit_file(self, name: &str) -> Self {
        let unit_file = Some(Arc::new(UnitFile::read(&self.path, name)));
        Self { unit_file, ..self }
    }

    /// Returns which variables may have been changed since the start: a reload leaves them as they are. If the environment file
    /// can't be read, they are those that the configuration names, and only if it is the `same` as before: otherwise the reload
    /// was for what has changed in it.
    pub fn outdated_variables(&self, same: bool) -> Option<OutdatedVariables> {
        let file = self.unit_file.as_ref()?;
        // What has no variable's name may be the last line of a value.
        let shown =
            |name: String| if expand::is_shown(&name) { format!("${name}") } else { "others".to_owned() };
        let list = |names: Vec<String>| {
            let shown: BTreeSet<String> = names.into_iter().map(shown).collect();
            (!shown.is_empty()).then(|| shown.into_iter().collect::<Vec<_>>().join(", "))
        };
        if let Some(changed) = file.changed() {
            let text =
                format!("changed in {}, which needs a restart: {}", file.path().display(), list(changed)?);
            return Some(OutdatedVariables { text, is_certain: true });
        }
        let text = source::read(&self.path).ok().filter(|_| same)?;
        let named = expand::names(&text).into_iter().filter(|name| (self.env)(name).is_some());
        let names = list(named.collect())?;
        let text =
            format!("variables keep their values from the start; if one was changed, restart: {names}");
        Some(OutdatedVariables { text, is_certain: false })
    }

    /// The environment file whose variables are used if they are not set otherwise.
    pub fn environment_file(&self) -> Option<&Path> {
        self.environment_file.as_deref()
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads and validates the file; `None` if it does not exist or this user may not read it.
    pub fn load_if_readable<C: Configuration>(&self) -> Result<Option<C>, ConfigErrors> {
        match source::read(&self.path) {
            Ok(text) => C::parse(&text, &self.path, &*self.env).map(Some),
            Err(ReadError::Missing | ReadError::Denied) => Ok(None),
            Err(error) => Err(ConfigErrors::one(&self.path, error.to_string())),
        }
    }

    /// Reads and validates the current content of the file.
    pub fn load<C: Configuration>(&self) -> Result<C, ConfigErrors> {
        C::load(&self.path, &*self.env)
    }
}

/// Reads the credential `name` from `$CREDENTIALS_DIRECTORY` (systemd's `LoadCredential=`), without its trailing newline.
/// Variable names contain no slash, so the path cannot leave the directory.
fn credential(name: &str) -> Option<String> {
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY").filter(|folder| !folder.is_empty())?;
    let text = source::read(&Path::new(&folder).join(name)).ok()?;
    Some(text.trim_end_matches(['\n', '\r']).to_owned())
}

impl fmt::Debug for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigSource").field("path", &self.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_reload_names_the_variables_that_it_leaves_as_they_are_and_shows_no_values() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("warden.json"), r#"{"token": "$X", "url": "${UNSET}", "password": "pa$$Y"}"#).unwrap();
        fs::write(path("warden.env"), "X=before\nZ=1\n").unwrap();
        let source =
            ConfigSource::new(path("warden.json"), |name| (name == "X").then(|| "before".to_owned()));
        assert_eq!(source.outdated_variables(true), None, "it has no unit");
        let source = source.with_unit_file("warden.env");
        let outdated = |same: bool| source.outdated_variables(same).map(|one| (one.text, one.is_certain));
        assert_eq!(outdated(true), None);
        // The last line of a value may look like a name.
        fs::write(path("warden.env"), "X=after\nZ=1\nW=2\nMIIe=\n").unwrap();
        let expected =
            format!("changed in {}, which needs a restart: $W, $X, others", path("warden.env").display());
        assert_eq!(outdated(false), Some((expected, true)));

        // It can't be read.
        fs::remove_file(path("warden.env")).unwrap();
        fs::create_dir(path("warden.env")).unwrap();
        assert_eq!(outdated(false), None, "the reload was for something else");
        let expected = "variables keep their values from the start; if one was changed, restart: $X";
        assert_eq!(outdated(true), Some((expected.to_owned(), false)));
    }
}
