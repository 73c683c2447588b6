//! Logins for registries from Docker's own configuration: `config.json`, credential helpers included.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use docker_credential::{CredentialRetrievalError, DockerCredential};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::fault::plain;
use crate::adapters::compose::environment::is_for_the_agent_alone;
use crate::model::RegistryError;
use crate::model::image::HUB;

/// Under which name Docker keeps Docker Hub's login.
const HUB_KEY: &str = "https://index.docker.io/v1/";
/// How long an answer is kept, so that `docker login` is noticed without a restart.
const KEPT: Duration = Duration::from_secs(30);
/// How long a lookup may take, helper included.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most that is read from a helper.
const HELPER_OUTPUT: u64 = 64 * 1024;

/// A registry login. Its `Debug` form shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    /// A name and a password (or access token).
    UsernamePassword {
        /// Name.
        username: String,
        /// Password.
        password: String,
    },
    /// A refresh token, to be changed for an access token at the registry's token service.
    IdentityToken(String),
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UsernamePassword { .. } => f.write_str("UsernamePassword(redacted)"),
            Self::IdentityToken(_) => f.write_str("IdentityToken(redacted)"),
        }
    }
}

/// Looks up logins by registry host.
#[derive(Debug)]
pub struct Credentials {
    config_dir: Option<PathBuf>,
    search_path: OsString,
    known: Mutex<HashMap<String, Arc<Entry>>>,
    patience: Duration,
}

/// What is known about one host. Held while looking, so that a helper runs once for all who wait.
type Entry = tokio::sync::Mutex<Option<Known>>;

#[derive(Debug)]
struct Known {
    at: Instant,
    answer: Result<Option<Login>, RegistryError>,
}

impl Credentials {
    /// Reads `config.json` in `config_dir` (`None`: there is none) and finds helpers in the folders of
    /// `search_path` (in the form of `$PATH`).
    pub fn new(config_dir: Option<PathBuf>, search_path: OsString) -> Self {
        Self { config_dir, search_path, known: Mutex::default(), patience: PATIENCE }
    }

    /// Docker's own places: `$DOCKER_CONFIG`, else `~/.docker`.
    pub fn from_env() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let config_dir = set("DOCKER_CONFIG")
            .map(PathBuf::from)
            .or_else(|| std::env::home_dir().map(|home| home.join(".docker")));
        Self::new(config_dir, set("PATH").unwrap_or_default())
    }

    /// The login for a registry host as it stands in image references; `None` where nothing is configured.
    pub async fn for_host(&self, host: &str) -> Result<Option<Login>, RegistryError> {
        let entry = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.entry(host.to_owned()).or_default().clone()
        };
        let mut known = entry.lock().await;
        if let Some(known) = known.as_ref().filter(|known| known.at.elapsed() < KEPT) {
            return known.answer.clone();
        }
        let answer = self.look_up(host).await;
        *known = Some(Known { at: Instant::now(), answer: answer.clone() });
        answer
    }

    async fn look_up(&self, host: &str) -> Result<Option<Login>, RegistryError> {
        let Some(path) = self.config_dir.as_ref().map(|dir| dir.join("config.json")) else {
            return Ok(None);
        };
        let fault =
            |why: &str| RegistryError(format!("reading registry logins from {}: {why}", path.display()));
        let text = match tokio::time::timeout(self.patience, tokio::fs::read(&path)).await {
            Ok(Ok(text)) => text,
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Ok(Err(error)) => return Err(fault(&plain(&error.to_string()))),
            Err(_) => return Err(fault("no answer in time")),
        };
        let helpers: Helpers =
            serde_json::from_slice(&text).map_err(|_| fault("it is not a Docker configuration (JSON)"))?;

        // Docker's order: the host's own helper, what the file itself holds, the helper for all others.
        let server = if host == HUB { HUB_KEY } else { host };
        let aliases: &[&str] = if host == HUB { &[HUB_KEY, "index.docker.io", HUB] } else { &[host] };
        if let Some(helper) = aliases.iter().find_map(|alias| helpers.for_server(alias)) {
            return self.ask(helper, server).await;
        }
        let plain_file =
            text_without_helpers(&text).map_err(|_| fault("it is not a Docker configuration (JSON)"))?;
        match docker_credential::get_credential_from_reader(plain_file.as_slice(), server) {
            Ok(DockerCredential::IdentityToken(token)) => return Ok(Some(Login::IdentityToken(token))),
            Ok(DockerCredential::UsernamePassword(username, password)) => {
                return Ok(Some(Login::UsernamePassword { username, password }));
            }
            Err(CredentialRetrievalError::NoCredentialConfigured) => {}
            Err(CredentialRetrievalError::CredentialDecodingError) => {
                return Err(fault(&format!("the \"auth\" of {server} is not base64 of name:password")));
            }
            Err(CredentialRetrievalError::CredentialMismatchError) => {
                return Err(fault(&format!(
                    "the \"auth\" of {server} contradicts its username and password"
                )));
            }
            Err(_) => return Err(fault("it is not a Docker configuration (JSON)")),
        }
        match helpers.store() {
            Some(helper) => self.ask(helper, server).await,
            None => Ok(None),
        }
    }

    /// Runs a credential helper. Here, not in `docker_credential`: that one blocks a thread for as long as the
    /// helper hangs, and with it the program's end.
    async fn ask(&self, helper: &str, server: &str) -> Result<Option<Login>, RegistryError> {
        let name = format!("docker-credential-{helper}");
        let fault =
            |why: &str| RegistryError(format!("credential helper {} for {server}: {why}", plain(&name)));
        // A slash would make it a path instead of a name to look for.
        if name.contains('/') {
            return Err(fault("not a helper's name"));
        }
        let mut command = Command::new(&name);
        command
            .arg("get")
            .env("PATH", &self.search_path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true);
        // Messages of the service manager are not for children.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(is_for_the_agent_alone) {
                command.env_remove(name);
            }
        }
        let mut child = command.spawn().map(Running).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => fault("not found in PATH"),
            _ => fault(&plain(&error.to_string())),
        })?;
        let (status, output) = tokio::time::timeout(self.patience, child.talk(server))
            .await
            .map_err(|_| fault("no answer in time"))?
            .map_err(|error| fault(&plain(&error.to_string())))?;

        let output = String::from_utf8_lossy(&output);
        if !status.success() {
            // The protocol's word for "nothing stored".
            if output.contains("credentials not found") {
                return Ok(None);
            }
            // Helpers put their error on stdout, where otherwise the secret is.
            let said = if output.contains('{') { String::new() } else { plain(&output) };
            return Err(fault(if said.is_empty() { "it failed" } else { &said }));
        }
        let HelperAnswer { username, secret } =
            serde_json::from_str(&output).map_err(|_| fault("its answer is not the JSON of a login"))?;
        Ok(Some(if username == "<token>" {
            Login::IdentityToken(secret)
        } else {
            Login::UsernamePassword { username, password: secret }
        }))
    }
}

/// The part of `config.json` that names helpers.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Helpers {
    #[serde(default)]
    creds_store: Option<String>,
    #[serde(default)]
    cred_helpers: Option<HashMap<String, String>>,
}

impl Helpers {
    fn for_server(&self, server: &str) -> Option<&str> {
        let helpers = self.cred_helpers.as_ref()?;
        helpers.get(server).map(String::as_str).filter(|helper| !helper.is_empty())
    }

    fn store(&self) -> Option<&str> {
        self.creds_store.as_deref().filter(|helper| !helper.is_empty())
    }
}

fn text_without_helpers(text: &[u8]) -> serde_json::Result<Vec<u8>> {
    let mut config: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(text)?;
    config.retain(|key, _| key == "auths");
    // An empty "auth" is how some tools write "none".
    let auths = config.get_mut("auths").and_then(serde_json::Value::as_object_mut);
    for auth in auths.into_iter().flatten().filter_map(|(_, auth)| auth.as_object_mut()) {
        auth.retain(|key, value| key != "auth" || value != "");
    }
    serde_json::to_vec(&config)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

/// A running helper; dropped early, it is killed with everything that it started.
struct Running(Child);

impl Running {
    async fn talk(&mut self, server: &str) -> io::Result<(ExitStatus, Vec<u8>)> {
        let mut stdin = self.0.stdin.take().expect("stdin is piped");
        let stdout = self.0.stdout.take().expect("stdout is piped");
        // A helper that fails before it has read is judged by its exit, not by the broken pipe.
        let _ = stdin.write_all(server.as_bytes()).await;
        drop(stdin);
        let mut output = Vec::new();
        stdout.take(HELPER_OUTPUT).read_to_end(&mut output).await?;
        Ok((self.0.wait().await?, output))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // No ID any more once it has ended and was waited for.
        let group =
            self.0.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_helper_that_hangs_is_an_error_that_names_it() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let helper = folder.path().join("docker-credential-hangs");
        std::fs::write(&helper, "#!/bin/sh\nexec sleep 60\n").unwrap();
        std::fs::set_permissions(&helper, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(folder.path().join("config.json"), r#"{"credsStore":"hangs"}"#).unwrap();
        let search = std::env::join_paths([folder.path(), "/usr/bin".as_ref(), "/bin".as_ref()]).unwrap();
        let credentials = Credentials {
            patience: Duration::from_millis(300),
            ..Credentials::new(Some(folder.path().to_owned()), search)
        };
        let error = credentials.for_host("a.example").await.unwrap_err().to_string();
        assert_eq!(error, "credential helper docker-credential-hangs for a.example: no answer in time");
    }
}
