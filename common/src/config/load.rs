//! From a path or a text to checked values, the same way for every program; and once more, when asked (SIGHUP).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::expand::Env;
use super::shape::Shape;
use super::source::ReadError;
use super::{ConfigFaults, Findings, KeyPath, json, source};

/// A program's configuration as checked values.
pub trait Configuration: Sized {
    /// Checks a file's text; `path` only stands in the messages.
    fn parse(text: &str, path: &Path, env: Env<'_>) -> Result<Self, ConfigFaults>;

    /// What is wrong without being fatal.
    fn warnings(&self) -> &[String];

    /// How much is configured, for people: `services: 3`.
    fn extent(&self) -> String;

    /// Reads and checks the file at `path`.
    fn load(path: &Path, env: Env<'_>) -> Result<Self, ConfigFaults> {
        match source::read(path) {
            Ok(text) => Self::parse(&text, path, env),
            Err(error) => Err(ConfigFaults::one(path, error.to_string())),
        }
    }
}

/// A file's text in the shape of its type `F`; what does not fit is in `findings` and left out. `usual_form` puts
/// into that shape what may stand in the file in another.
pub fn typed<F: JsonSchema + DeserializeOwned + Default>(
    text: &str,
    path: &Path,
    usual_form: impl FnOnce(Value, &mut Findings) -> Value,
    findings: &mut Findings,
) -> Result<F, ConfigFaults> {
    let mut tree = json::parse(text, findings)
        .map_err(|error| ConfigFaults::one(path, format!("is not JSON: {error}")))?;
    // The schema that a file names for its editor is no part of its shape.
    if let Some(members) = tree.as_object_mut() {
        members.remove("$schema");
    }
    let tree = Shape::of::<F>().check(usual_form(tree, findings), findings);
    // The tree has nothing left in it that the types refuse; should that ever be wrong, it is a fault too
    // (without serde's words, which would show the value).
    Ok(serde_json::from_value(tree).unwrap_or_else(|_| {
        findings.fault(&KeyPath::root(), "has a value that does not fit its key");
        F::default()
    }))
}

type SharedEnv = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Where the configuration comes from, so that it can be read again.
#[derive(Clone)]
pub struct ConfigSource {
    path: PathBuf,
    env: Arc<SharedEnv>,
}

impl ConfigSource {
    /// The file at `path`, with `env` as the environment that its variables are taken from.
    pub fn new(path: PathBuf, env: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { path, env: Arc::new(env) }
    }

    /// The file at `path`, with the variables of this process; one that is not set may be a credential of the service
    /// manager.
    pub fn of_process(path: PathBuf) -> Self {
        Self::new(path, |name| std::env::var(name).ok().or_else(|| credential(name)))
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads and checks the file; `None` where there is none, or none that this user may read.
    pub fn load_if_readable<C: Configuration>(&self) -> Result<Option<C>, ConfigFaults> {
        match source::read(&self.path) {
            Ok(text) => C::parse(&text, &self.path, &*self.env).map(Some),
            Err(ReadError::Missing | ReadError::Denied) => Ok(None),
            Err(error) => Err(ConfigFaults::one(&self.path, error.to_string())),
        }
    }

    /// Reads and checks the file as it is now.
    pub fn load<C: Configuration>(&self) -> Result<C, ConfigFaults> {
        C::load(&self.path, &*self.env)
    }
}

/// The content of the file `name` in `$CREDENTIALS_DIRECTORY` (systemd's `LoadCredential=`), without the line break at its
/// end. Names of variables have no slash, so none leads out of the folder.
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
