//! Resolves the container engine's address once, as the engine's own CLI does (DECISIONS 2).

use std::fmt;
use std::path::{Path, PathBuf};

use sha2::Digest as _;

use crate::config::Runtime;
use crate::model::text::describe_io_error;

/// Default port of a `tcp://` address.
const DEFAULT_PORT: u16 = 2375;

/// Address of an engine. Compose gets its `Display` form as `DOCKER_HOST`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket.
    Unix(PathBuf),
    /// Plain HTTP at `host:port`.
    Tcp(String),
    /// No supported address. Every call fails with this reason.
    Unusable(String),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "unix://{}", path.display()),
            Endpoint::Tcp(address) => write!(f, "tcp://{address}"),
            // Deliberately invalid, so that compose does not use another engine.
            Endpoint::Unusable(_) => f.write_str("none://"),
        }
    }
}

/// Why there is no engine address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Not a valid address.
    #[error("{from}: \"{value}\" is not an engine address (unix:///path/to.sock or tcp://host:port)")]
    Malformed {
        /// Variable or file that named it.
        from: String,
        /// Its value.
        value: String,
    },
    /// An unsupported kind of address.
    #[error("{from}: \"{value}\": {what} is not supported (use unix:///path/to.sock or tcp://host:port)")]
    Unsupported {
        /// Variable or file that named it.
        from: String,
        /// Its value.
        value: String,
        /// The unsupported feature.
        what: &'static str,
    },
    /// The configured context cannot be read.
    #[error("{from}: docker context \"{name}\": {reason}")]
    Context {
        /// Variable or file that named it.
        from: String,
        /// Its name.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The CLI's configuration file is invalid.
    #[error("{path}: {reason}")]
    ConfigFile {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
}

/// The environment and file system in which the address is looked up.
pub struct HostEnvironment<'a> {
    /// Looks up a variable.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// Root of the file system for well-known sockets.
    pub root: &'a Path,
}

impl HostEnvironment<'_> {
    fn set(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    fn exists(&self, path: &Path) -> bool {
        self.root.join(path.strip_prefix("/").unwrap_or(path)).exists()
    }

    /// The CLI's configuration directory.
    fn docker_config(&self) -> Option<PathBuf> {
        let folder = self.set("DOCKER_CONFIG").map(PathBuf::from);
        folder.or_else(|| self.set("HOME").map(|home| Path::new(&home).join(".docker")))
    }

    fn under_runtime_dir(&self, rest: &str) -> Option<PathBuf> {
        self.set("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join(rest))
    }
}

impl Endpoint {
    /// Returns the address to use, even if its configuration is faulty, and a warning in that case (DECISIONS 6).
    pub fn find(runtime: Runtime, world: &HostEnvironment<'_>) -> (Self, Option<String>) {
        match Self::resolve(runtime, world) {
            Ok(endpoint) => (endpoint, None),
            // The file could select a context, but rarely does.
            Err(error @ EndpointError::ConfigFile { .. }) => {
                let usual = Self::usual_docker(world);
                let warning = format!("{error}; {usual} is used");
                (usual, Some(warning))
            }
            Err(error) => {
                let warning = format!(
                    "{error}; nothing is checked or healed until this is fixed and the agent is restarted"
                );
                (Self::Unusable(error.to_string()), Some(warning))
            }
        }
    }

    /// Returns the address of this runtime's engine, without connecting to it.
    pub fn resolve(runtime: Runtime, world: &HostEnvironment<'_>) -> Result<Self, EndpointError> {
        match runtime {
            Runtime::Docker => Self::docker(world),
            Runtime::Podman => Self::podman(world),
        }
    }

    fn docker(world: &HostEnvironment<'_>) -> Result<Self, EndpointError> {
        if let Some(host) = world.set("DOCKER_HOST") {
            return Self::parse("DOCKER_HOST", &host, wants_tls(world));
        }
        if let Some((from, name)) = context_name(world)? {
            return in_context(world, &from, &name);
        }
        Ok(Self::usual_docker(world))
    }

    fn usual_docker(world: &HostEnvironment<'_>) -> Self {
        let rootful = PathBuf::from("/var/run/docker.sock");
        let rootless = world.under_runtime_dir("docker.sock");
        Self::Unix(first_existing(world, rootful, rootless))
    }

    fn podman(world: &HostEnvironment<'_>) -> Result<Self, EndpointError> {
        for name in ["CONTAINER_HOST", "DOCKER_HOST"] {
            if let Some(host) = world.set(name) {
                return Self::parse(name, &host, wants_tls(world));
            }
        }
        let rootful = PathBuf::from("/run/podman/podman.sock");
        let rootless = world.under_runtime_dir("podman/podman.sock");
        Ok(Self::Unix(first_existing(world, rootful, rootless)))
    }

    fn parse(from: &str, value: &str, tls: bool) -> Result<Self, EndpointError> {
        let malformed = || EndpointError::Malformed { from: from.to_owned(), value: value.to_owned() };
        let unsupported =
            |what| Err(EndpointError::Unsupported { from: from.to_owned(), value: value.to_owned(), what });
        match value.split_once("://").ok_or_else(malformed)? {
            // A relative path would be a different file for a child with another working directory.
            ("unix", path) if path.starts_with('/') => Ok(Self::Unix(PathBuf::from(path))),
            ("tcp" | "http", _) if tls => {
                unsupported("TLS (DOCKER_TLS_VERIFY or a context with certificates)")
            }
            ("tcp" | "http", address) => Ok(Self::Tcp(host_and_port(address).ok_or_else(malformed)?)),
            ("https", _) => unsupported("TLS"),
            ("ssh", _) => unsupported("ssh"),
            ("npipe" | "fd", _) => unsupported("this kind of socket"),
            _ => Err(malformed()),
        }
    }
}

fn wants_tls(world: &HostEnvironment<'_>) -> bool {
    world.set("DOCKER_TLS_VERIFY").is_some() || world.set("DOCKER_TLS").is_some()
}

/// Returns the usual socket, or the other one if only that exists.
fn first_existing(world: &HostEnvironment<'_>, usual: PathBuf, other: Option<PathBuf>) -> PathBuf {
    match other {
        Some(other) if !world.exists(&usual) && world.exists(&other) => other,
        _ => usual,
    }
}

fn host_and_port(address: &str) -> Option<String> {
    let address = address.strip_suffix('/').unwrap_or(address);
    if address.is_empty() || address.contains(['/', '@', '?', '#', ' ']) {
        return None;
    }
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse::<u16>().ok().filter(|p| *p > 0)?),
        _ => (address, DEFAULT_PORT),
    };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    (!host.is_empty() && (bracketed || !host.contains(':'))).then(|| format!("{host}:{port}"))
}

/// The relevant part of the CLI's configuration file.
#[derive(serde::Deserialize)]
struct ConfigFile {
    #[serde(rename = "currentContext")]
    current_context: Option<String>,
}

/// The relevant part of a context's metadata.
#[derive(serde::Deserialize)]
struct Meta {
    #[serde(rename = "Endpoints")]
    endpoints: MetaEndpoints,
}

#[derive(serde::Deserialize)]
struct MetaEndpoints {
    docker: MetaDocker,
}

#[derive(serde::Deserialize)]
struct MetaDocker {
    #[serde(rename = "Host", default)]
    host: String,
}

/// Returns where the user selected a context and its name, or `None` for the default context.
fn context_name(world: &HostEnvironment<'_>) -> Result<Option<(String, String)>, EndpointError> {
    if let Some(name) = world.set("DOCKER_CONTEXT") {
        return Ok(selected("DOCKER_CONTEXT".to_owned(), name));
    }
    let Some(path) = world.docker_config().map(|folder| folder.join("config.json")) else { return Ok(None) };
    let fault = |reason: String| EndpointError::ConfigFile { path: path.display().to_string(), reason };
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        // An agent with its own user may not be able to read the file. It then has no context.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(fault(describe_io_error(&error))),
    };
    let file: ConfigFile = serde_json::from_slice(&text).map_err(|error| fault(error.to_string()))?;
    Ok(file.current_context.and_then(|name| selected(path.display().to_string(), name)))
}

fn selected(from: String, name: String) -> Option<(String, String)> {
    (!name.is_empty() && name != "default").then_some((from, name))
}

fn in_context(world: &HostEnvironment<'_>, from: &str, name: &str) -> Result<Endpoint, EndpointError> {
    let fault = |reason: &str| EndpointError::Context {
        from: from.to_owned(),
        name: name.to_owned(),
        reason: reason.to_owned(),
    };
    let folder = world.docker_config().ok_or_else(|| fault("neither DOCKER_CONFIG nor HOME is set"))?;
    let contexts = folder.join("contexts");
    let id = hex::encode(sha2::Sha256::digest(name.as_bytes()));
    let meta = contexts.join("meta").join(&id).join("meta.json");
    let text = std::fs::read(&meta).map_err(|error| {
        fault(&format!("{} can't be read: {}", meta.display(), describe_io_error(&error)))
    })?;
    let meta: Meta =
        serde_json::from_slice(&text).map_err(|error| fault(&format!("{}: {error}", meta.display())))?;
    let certificates = contexts.join("tls").join(&id).join("docker").exists();
    Endpoint::parse(&format!("docker context \"{name}\""), &meta.endpoints.docker.host, certificates)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs;

    use super::*;

    struct World {
        root: tempfile::TempDir,
        variables: HashMap<String, String>,
    }

    impl World {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let home = root.path().join("home").display().to_string();
            Self { root, variables: HashMap::from([("HOME".to_owned(), home)]) }
        }

        fn with(mut self, name: &str, value: &str) -> Self {
            self.variables.insert(name.to_owned(), value.to_owned());
            self
        }

        fn file(self, path: &str, text: &str) -> Self {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        fn context(self, name: &str, host: &str) -> Self {
            let id = hex::encode(sha2::Sha256::digest(name.as_bytes()));
            let text = format!(r#"{{"Name":"{name}","Endpoints":{{"docker":{{"Host":"{host}"}}}}}}"#);
            self.file(&format!("home/.docker/contexts/meta/{id}/meta.json"), &text)
        }

        fn resolve(&self, runtime: Runtime) -> Result<String, String> {
            let variable = |name: &str| self.variables.get(name).cloned();
            let world = HostEnvironment { variable: &variable, root: self.root.path() };
            Endpoint::resolve(runtime, &world).map(|e| e.to_string()).map_err(|e| e.to_string())
        }

        fn docker(&self) -> String {
            self.resolve(Runtime::Docker).unwrap()
        }
    }

    #[test]
    fn without_configuration_the_well_known_socket_is_used_even_if_absent() {
        assert_eq!(World::new().docker(), "unix:///var/run/docker.sock");
        assert_eq!(World::new().resolve(Runtime::Podman).unwrap(), "unix:///run/podman/podman.sock");
    }

    #[test]
    fn the_rootless_socket_is_used_only_if_the_usual_one_is_absent() {
        let rootless = World::new().with("XDG_RUNTIME_DIR", "/run/user/7").file("run/user/7/docker.sock", "");
        assert_eq!(rootless.docker(), "unix:///run/user/7/docker.sock");
        assert_eq!(rootless.file("var/run/docker.sock", "").docker(), "unix:///var/run/docker.sock");
        let podman =
            World::new().with("XDG_RUNTIME_DIR", "/run/user/7").file("run/user/7/podman/podman.sock", "");
        assert_eq!(podman.resolve(Runtime::Podman).unwrap(), "unix:///run/user/7/podman/podman.sock");
    }

    #[test]
    fn docker_host_beats_the_context_and_the_variable_beats_the_file() {
        let world = World::new()
            .file("home/.docker/config.json", r#"{"auths":{},"currentContext":"filed"}"#)
            .context("filed", "unix:///filed.sock")
            .context("named", "tcp://10.0.0.1:2375");
        assert_eq!(world.docker(), "unix:///filed.sock");
        let world = world.with("DOCKER_CONTEXT", "named");
        assert_eq!(world.docker(), "tcp://10.0.0.1:2375");
        let world = world.with("DOCKER_CONTEXT", "default");
        assert_eq!(world.docker(), "unix:///var/run/docker.sock");
        let world = world.with("DOCKER_CONTEXT", "nowhere").with("DOCKER_HOST", "unix:///host.sock");
        assert_eq!(world.docker(), "unix:///host.sock");
    }

    #[test]
    fn a_missing_context_is_an_error_that_names_it() {
        let error = World::new().with("DOCKER_CONTEXT", "gone").resolve(Runtime::Docker).unwrap_err();
        assert!(error.starts_with("DOCKER_CONTEXT: docker context \"gone\": "), "{error}");
    }

    #[test]
    fn an_invalid_configuration_file_is_an_error() {
        let error = World::new().file("home/.docker/config.json", "{").resolve(Runtime::Docker).unwrap_err();
        assert!(error.contains("config.json: "), "{error}");
    }

    #[test]
    fn the_agent_uses_the_fallback_address_with_a_warning() {
        let find = |world: &World| {
            let variable = |name: &str| world.variables.get(name).cloned();
            Endpoint::find(Runtime::Docker, &HostEnvironment { variable: &variable, root: world.root.path() })
        };
        let usual = Endpoint::Unix("/var/run/docker.sock".into());
        assert_eq!(find(&World::new()), (usual.clone(), None));
        let (endpoint, warning) = find(&World::new().file("home/.docker/config.json", "{"));
        assert_eq!(endpoint, usual);
        let warning = warning.unwrap();
        assert!(
            warning.contains("config.json: ") && warning.ends_with("; unix:///var/run/docker.sock is used"),
            "{warning}"
        );
        let tls = World::new().with("DOCKER_HOST", "tcp://host:2376").with("DOCKER_TLS_VERIFY", "1");
        for (world, part) in
            [(World::new().with("DOCKER_CONTEXT", "gone"), "docker context \"gone\""), (tls, "TLS")]
        {
            let (endpoint, warning) = find(&world);
            assert!(matches!(&endpoint, Endpoint::Unusable(why) if why.contains(part)), "{endpoint:?}");
            assert!(warning.unwrap().contains(part));
        }
    }

    #[test]
    fn podman_prefers_its_own_variable() {
        let world = World::new().with("DOCKER_HOST", "unix:///d.sock");
        assert_eq!(world.resolve(Runtime::Podman).unwrap(), "unix:///d.sock");
        let world = world.with("CONTAINER_HOST", "unix:///c.sock");
        assert_eq!(world.resolve(Runtime::Podman).unwrap(), "unix:///c.sock");
        assert_eq!(world.docker(), "unix:///d.sock");
    }

    #[test]
    fn tcp_addresses_get_a_port() {
        for (given, want) in [
            ("tcp://10.0.0.1", "tcp://10.0.0.1:2375"),
            ("tcp://engine:1234/", "tcp://engine:1234"),
            ("http://engine:1234", "tcp://engine:1234"),
            ("tcp://[::1]:1234", "tcp://[::1]:1234"),
            ("tcp://[::1]", "tcp://[::1]:2375"),
        ] {
            assert_eq!(World::new().with("DOCKER_HOST", given).docker(), want);
        }
    }

    #[test]
    fn unsupported_addresses_are_named_in_the_error() {
        for (given, part) in [
            ("ssh://me@host", "ssh is not supported"),
            ("https://host:2376", "TLS is not supported"),
            ("unix://docker.sock", "is not an engine address"),
            ("unix://", "is not an engine address"),
            ("10.0.0.1:2375", "is not an engine address"),
            ("tcp://", "is not an engine address"),
            ("tcp://host:0", "is not an engine address"),
            ("tcp://::1:2375", "is not an engine address"),
        ] {
            let error = World::new().with("DOCKER_HOST", given).resolve(Runtime::Docker).unwrap_err();
            assert!(error.contains(part) && error.contains(given), "{error}");
            assert!(error.starts_with("DOCKER_HOST: "), "{error}");
        }
        let tls = World::new().with("DOCKER_HOST", "tcp://host:2376").with("DOCKER_TLS_VERIFY", "1");
        assert!(tls.resolve(Runtime::Docker).unwrap_err().contains("TLS"));
        assert_eq!(tls.with("DOCKER_HOST", "unix:///x.sock").docker(), "unix:///x.sock");
    }
}
