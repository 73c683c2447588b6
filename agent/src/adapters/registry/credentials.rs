//! Registry logins from Docker's configuration: `config.json`, including credential helpers.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use docker_credential::{CredentialRetrievalError, DockerCredential};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::fault::plain;
use crate::adapters::compose::environment::is_from_service_manager;
use crate::config::Runtime;
use crate::model::RegistryError;
use crate::model::image::HUB;
use crate::model::output::says;

/// The name under which Docker stores Docker Hub's login.
const HUB_KEY: &str = "https://index.docker.io/v1/";
/// How long a result is cached. Short, so that `docker login` takes effect without a restart.
const CACHE_TIME: Duration = Duration::from_secs(30);
/// Timeout of a lookup, including the helper.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a helper's output in bytes.
const HELPER_OUTPUT: u64 = 64 * 1024;

/// A registry login. Its `Debug` form shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    /// A user name and a password (or access token).
    UsernamePassword {
        /// User name.
        username: String,
        /// Password.
        password: String,
    },
    /// A refresh token, to be exchanged for an access token at the registry's token service.
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
    /// Files that count if Docker's has no login.
    auth_files: Vec<PathBuf>,
    search_path: OsString,
    /// By registry host, or with podman also by `host/namespace`.
    known: Mutex<HashMap<String, Arc<Entry>>>,
    timeout: Duration,
}

/// The cached result for one name. Locked during the lookup, so that a helper runs once for all concurrent calls.
type Entry = tokio::sync::Mutex<Option<Known>>;

#[derive(Debug)]
struct Known {
    at: Instant,
    answer: Result<Option<Login>, RegistryError>,
}

impl Credentials {
    /// Uses `config.json` in `config_dir`, if any, and helpers in the directories of `search_path` (in the form of
    /// `$PATH`).
    pub fn new(config_dir: Option<PathBuf>, search_path: OsString) -> Self {
        Self { config_dir, auth_files: Vec::new(), search_path, known: Mutex::default(), timeout: TIMEOUT }
    }

    /// Uses Docker's own directory: `$DOCKER_CONFIG`, or else `~/.docker`; and with podman also the files in which `podman
    /// login` keeps its logins (containers-auth.json(5)).
    pub fn from_env(runtime: Runtime) -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let path = |name| set(name).map(PathBuf::from);
        let home = std::env::home_dir();
        let config_dir = path("DOCKER_CONFIG").or_else(|| home.as_ref().map(|home| home.join(".docker")));
        let of_podman = [
            path("REGISTRY_AUTH_FILE"),
            path("XDG_RUNTIME_DIR").map(|folder| folder.join("containers/auth.json")),
            Some(format!("/run/containers/{}/auth.json", rustix::process::geteuid().as_raw()).into()),
            path("XDG_CONFIG_HOME")
                .or_else(|| Some(home?.join(".config")))
                .map(|config| config.join("containers/auth.json")),
        ];
        let auth_files = match runtime {
            Runtime::Podman => of_podman.into_iter().flatten().collect(),
            Runtime::Docker => Vec::new(),
        };
        Self { auth_files, ..Self::new(config_dir, set("PATH").unwrap_or_default()) }
    }

    /// Returns the login for a repository of a registry, or `None` if none is configured. With podman, one for the repository or
    /// for a namespace above it counts before that for the registry.
    pub async fn for_repository(&self, host: &str, path: &str) -> Result<Option<Login>, RegistryError> {
        if !self.auth_files.is_empty() {
            let name = format!("{host}/{path}");
            let mut names = vec![name.as_str()];
            names.extend(name.rmatch_indices('/').map(|(end, _)| &name[..end]));
            names.retain(|name| *name != host);
            for name in names {
                // A file that can't be read is reported below, unless Docker's has a login.
                if let Ok(Some(login)) = self.for_name(name).await {
                    return Ok(Some(login));
                }
            }
        }
        self.for_name(host).await
    }

    /// Returns the login that is stored for a registry host as named in image references, or with podman for `host/namespace`, or
    /// `None` if none is.
    pub async fn for_name(&self, name: &str) -> Result<Option<Login>, RegistryError> {
        let entry = {
            let mut known = self.known.lock();
            known.entry(name.to_owned()).or_default().clone()
        };
        let mut known = entry.lock().await;
        if let Some(known) = known.as_ref().filter(|known| known.at.elapsed() < CACHE_TIME) {
            return known.answer.clone();
        }
        let answer = self.look_up(name).await;
        *known = Some(Known { at: Instant::now(), answer: answer.clone() });
        answer
    }

    async fn look_up(&self, name: &str) -> Result<Option<Login>, RegistryError> {
        let docker = self.config_dir.as_ref().map(|dir| dir.join("config.json"));
        // Docker has logins for registries only.
        let docker = docker.iter().filter(|_| !name.contains('/')).map(|path| (path, Runtime::Docker));
        let podman = self.auth_files.iter().map(|path| (path, Runtime::Podman));
        let files: Vec<(&PathBuf, Runtime)> = docker.chain(podman).collect();
        let mut answer = Ok(None);
        for (path, runtime) in files {
            match self.of_file(path, name, runtime).await {
                Ok(None) => {}
                Ok(login) => return Ok(login),
                // Another file may have the login: podman does not need that of Docker, nor its helpers.
                Err(error) => answer = answer.and(Err(error)),
            }
        }
        answer
    }

    /// Reads a file; `None` if there is none.
    async fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, RegistryError> {
        match tokio::time::timeout(self.timeout, tokio::fs::read(path)).await {
            Ok(Ok(text)) => Ok(Some(text)),
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Ok(Err(error)) => Err(unreadable(path, &plain(&error.to_string()))),
            Err(_) => Err(unreadable(path, "no answer in time")),
        }
    }

    /// Returns the login in a file of Docker's or podman's: that of the helper, if it names one, or else its own.
    async fn of_file(
        &self,
        path: &Path,
        name: &str,
        runtime: Runtime,
    ) -> Result<Option<Login>, RegistryError> {
        let is_dockers_hub = runtime == Runtime::Docker && name == HUB;
        let server = if is_dockers_hub { HUB_KEY } else { name };
        let aliases: &[&str] = if is_dockers_hub { &[HUB_KEY, "index.docker.io", HUB] } else { &[name] };
        let fault = |why: &str| unreadable(path, why);
        let Some(text) = self.read(path).await? else { return Ok(None) };
        let helpers: Helpers =
            serde_json::from_slice(&text).map_err(|_| fault("it is not a Docker configuration (JSON)"))?;
        let in_file = || in_file(&text, server, runtime).map_err(|why| fault(&why));
        let Some(helper) = helpers.of(aliases, runtime) else { return in_file() };
        match self.ask(helper, server).await {
            // As in Docker, the file counts only if the helper does not work, and not if it has no login.
            Err(error) => in_file().ok().flatten().map(Some).ok_or(error),
            answer => answer,
        }
    }

    /// Runs a credential helper. `docker_credential` is not used for this: it blocks a thread while the helper hangs,
    /// which would also delay shutdown.
    async fn ask(&self, helper: &str, server: &str) -> Result<Option<Login>, RegistryError> {
        let name = format!("docker-credential-{helper}");
        let fault =
            |why: &str| RegistryError(format!("credential helper {} for {server}: {why}", plain(&name)));
        // With a slash, it would be a path and not a name to look up.
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
        // Variables of the service manager are not for children.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(is_from_service_manager) {
                command.env_remove(name);
            }
        }
        let mut child = command.spawn().map(Running).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => fault("not found in PATH"),
            _ => fault(&plain(&error.to_string())),
        })?;
        let (status, output) = tokio::time::timeout(self.timeout, child.talk(server))
            .await
            .map_err(|_| fault("no answer in time"))?
            .map_err(|error| fault(&plain(&error.to_string())))?;

        let output = String::from_utf8_lossy(&output);
        if !status.success() {
            // The protocol's message for "nothing stored".
            if says(&output, "credentials not found") {
                return Ok(None);
            }
            // Helpers print errors to stdout, where the secret is printed on success.
            let said = if output.contains('{') { String::new() } else { plain(&output) };
            return Err(fault(if said.is_empty() { "it failed" } else { &said }));
        }
        let HelperAnswer { username, secret } =
            serde_json::from_str(&output).map_err(|_| fault("its output is not a login in JSON"))?;
        Ok(Some(if username == "<token>" {
            Login::IdentityToken(secret)
        } else {
            Login::UsernamePassword { username, password: secret }
        }))
    }
}

fn unreadable(path: &Path, why: &str) -> RegistryError {
    RegistryError(format!("reading registry logins from {}: {why}", path.display()))
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
    /// Returns the helper that is asked: the registry's own, or else, by Docker only, the default one. An empty name means the
    /// file.
    fn of(&self, aliases: &[&str], runtime: Runtime) -> Option<&str> {
        let own = self.cred_helpers.as_ref();
        let own = own.and_then(|helpers| aliases.iter().find_map(|alias| helpers.get(*alias)));
        let default = self.creds_store.as_ref().filter(|_| runtime == Runtime::Docker);
        own.or(default).map(String::as_str).filter(|helper| !helper.is_empty())
    }
}

/// Returns the login that is in `config.json` itself.
fn in_file(text: &[u8], server: &str, runtime: Runtime) -> Result<Option<Login>, String> {
    let no_json = || "it is not a Docker configuration (JSON)".to_owned();
    let text = only_logins(text, server, runtime).map_err(|_| no_json())?;
    match docker_credential::get_credential_from_reader(text.as_slice(), server) {
        Ok(DockerCredential::IdentityToken(token)) => Ok(Some(Login::IdentityToken(token))),
        Ok(DockerCredential::UsernamePassword(username, password)) => {
            Ok(Some(Login::UsernamePassword { username, password }))
        }
        Err(CredentialRetrievalError::NoCredentialConfigured) => Ok(None),
        Err(CredentialRetrievalError::CredentialDecodingError) => {
            Err(format!("the \"auth\" of {server} is not base64 of name:password"))
        }
        Err(CredentialRetrievalError::CredentialMismatchError) => {
            Err(format!("the \"auth\" of {server} contradicts its username and password"))
        }
        Err(_) => Err(no_json()),
    }
}

/// Leaves out helpers, and names the login for `server` exactly so, if Docker finds it by the host in its key only.
fn only_logins(text: &[u8], server: &str, runtime: Runtime) -> serde_json::Result<Vec<u8>> {
    let mut config: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(text)?;
    config.retain(|key, _| key == "auths");
    if let Some(auths) = config.get_mut("auths").and_then(serde_json::Value::as_object_mut) {
        for auth in auths.values_mut().filter_map(serde_json::Value::as_object_mut) {
            // Some tools write an empty text for none.
            auth.retain(|_, value| value != "");
        }
        // A URL is a key that Docker itself has written.
        let of_host = auths.keys().filter(|key| host_of(key) == server).max_by_key(|key| key.contains("://"));
        let of_host = of_host.cloned();
        if let Some(key) = of_host.filter(|_| runtime == Runtime::Docker && !auths.contains_key(server))
            && let Some(auth) = auths.remove(&key)
        {
            auths.insert(server.to_owned(), auth);
        }
    }
    serde_json::to_vec(&config)
}

/// The host in a key of Docker's logins, which may be a URL or have a path.
fn host_of(key: &str) -> &str {
    let rest = key.split_once("://").map_or(key, |(_, rest)| rest);
    rest.split_once('/').map_or(rest, |(host, _)| host)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

/// A running helper, killed on drop with all its child processes.
struct Running(Child);

impl Running {
    async fn talk(&mut self, server: &str) -> io::Result<(ExitStatus, Vec<u8>)> {
        let mut stdin = self.0.stdin.take().expect("stdin is piped");
        let stdout = self.0.stdout.take().expect("stdout is piped");
        // If a helper exits before reading its input, its exit status counts, not the broken pipe.
        let _ = stdin.write_all(server.as_bytes()).await;
        drop(stdin);
        let mut output = Vec::new();
        stdout.take(HELPER_OUTPUT).read_to_end(&mut output).await?;
        Ok((self.0.wait().await?, output))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The ID is `None` once the child has exited and was waited for.
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
            timeout: Duration::from_millis(300),
            ..Credentials::new(Some(folder.path().to_owned()), search)
        };
        let error = credentials.for_name("a.example").await.unwrap_err().to_string();
        assert_eq!(error, "credential helper docker-credential-hangs for a.example: no answer in time");
    }

    #[tokio::test]
    async fn the_logins_of_podman_count_where_dockers_file_has_none() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, host: &str, auth: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, format!(r#"{{"auths":{{"{host}":{{"auth":"{auth}"}}}}}}"#)).unwrap();
            path
        };
        // docker:one, podman:two
        write("config.json", "a.example", "ZG9ja2VyOm9uZQ==");
        let files =
            ["a.example", "b.example"].map(|host| write(&format!("{host}.json"), host, "cG9kbWFuOnR3bw=="));
        let helper = folder.path().join("docker-credential-x");
        std::fs::write(&helper, "#!/bin/sh\necho '{\"Username\": \"helper\", \"Secret\": \"three\"}'\n")
            .unwrap();
        std::fs::set_permissions(&helper, PermissionsExt::from_mode(0o755)).unwrap();
        let with_helper = folder.path().join("d.example.json");
        let text = r#"{"auths": {}, "credHelpers": {"d.example": "x"}, "credsStore": "not-used-by-podman"}"#;
        std::fs::write(&with_helper, text).unwrap();
        let files = [folder.path().join("none.json")].into_iter().chain(files).chain([with_helper]);
        let credentials = Credentials {
            auth_files: files.collect(),
            ..Credentials::new(Some(folder.path().to_owned()), folder.path().into())
        };
        let user = async |host: &str| match credentials.for_name(host).await.unwrap() {
            Some(Login::UsernamePassword { username, .. }) => Some(username),
            _ => None,
        };
        assert_eq!(user("a.example").await.as_deref(), Some("docker"));
        assert_eq!(user("b.example").await.as_deref(), Some("podman"));
        assert_eq!(user("c.example").await, None);
        assert_eq!(user("d.example").await.as_deref(), Some("helper"));
    }

    #[tokio::test]
    async fn podmans_login_for_a_namespace_counts_before_that_for_the_registry() {
        let folder = tempfile::tempdir().unwrap();
        let login = |name: &str| serde_json::json!({"username": name, "password": "secret"});
        let logins = serde_json::json!({"auths": {
            "quay.io": login("all"), "quay.io/org": login("org"), "quay.io/org/app": login("app"),
        }});
        for file in ["config.json", "auth.json"] {
            std::fs::write(folder.path().join(file), logins.to_string()).unwrap();
        }
        let podman = Credentials {
            auth_files: vec![folder.path().join("auth.json")],
            ..Credentials::new(None, OsString::new())
        };
        let docker = Credentials::new(Some(folder.path().to_owned()), OsString::new());
        for (host, path, of_podman, of_docker) in [
            ("quay.io", "org/app", Some("app"), Some("all")),
            ("quay.io", "org/other", Some("org"), Some("all")),
            ("quay.io", "org/app2/web", Some("org"), Some("all")),
            ("quay.io", "organism/app", Some("all"), Some("all")),
            ("other.example", "org/app", None, None),
        ] {
            for (credentials, expected) in [(&podman, of_podman), (&docker, of_docker)] {
                let found = credentials.for_repository(host, path).await.unwrap();
                let user = found.map(|login| match login {
                    Login::UsernamePassword { username, .. } => username,
                    Login::IdentityToken(token) => token,
                });
                assert_eq!(user.as_deref(), expected, "{host}/{path}");
            }
        }
    }

    #[tokio::test]
    async fn a_file_of_docker_that_is_broken_matters_only_where_podmans_has_no_login() {
        let folder = tempfile::tempdir().unwrap();
        let login = r#"{"auths":{"quay.io":{"username":"podman","password":"secret"}}}"#;
        std::fs::write(folder.path().join("auth.json"), login).unwrap();
        for broken in [r#"{"credsStore":"gone"}"#, "{"] {
            std::fs::write(folder.path().join("config.json"), broken).unwrap();
            let credentials = Credentials {
                auth_files: vec![folder.path().join("none.json"), folder.path().join("auth.json")],
                ..Credentials::new(Some(folder.path().to_owned()), folder.path().into())
            };
            let login = credentials.for_repository("quay.io", "org/app").await.unwrap();
            let expected = Login::UsernamePassword { username: "podman".into(), password: "secret".into() };
            assert_eq!(login, Some(expected), "{broken}");
            let error = credentials.for_repository("other.example", "org/app").await.unwrap_err().to_string();
            assert!(error.contains("config.json") || error.contains("docker-credential-gone"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_file_of_podman_that_is_broken_matters_only_where_dockers_file_has_no_login() {
        let folder = tempfile::tempdir().unwrap();
        let logins = r#"{"auths":{"quay.io":{"username":"docker","password":"secret"}}}"#;
        std::fs::write(folder.path().join("config.json"), logins).unwrap();
        std::fs::write(folder.path().join("auth.json"), r#"{"auths":"#).unwrap();
        let credentials = Credentials {
            auth_files: vec![folder.path().join("auth.json")],
            ..Credentials::new(Some(folder.path().to_owned()), OsString::new())
        };
        let login = credentials.for_repository("quay.io", "org/app").await.unwrap();
        let expected = Login::UsernamePassword { username: "docker".into(), password: "secret".into() };
        assert_eq!(login, Some(expected));
        let error = credentials.for_repository("other.example", "org/app").await.unwrap_err().to_string();
        assert!(error.contains("auth.json"), "{error}");
    }
}
