//! The environment of compose (DECISIONS 6): the agent's own, without secrets, variables of the service manager and of the
//! agent's container, and variables that select another engine or project. From an env file, variables that select a program
//! are also dropped.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, RwLock};

/// Variables that the service manager sets for the agent alone. A trailing `*` matches any suffix.
const SERVICE_MANAGER: [&str; 9] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_*",
    "LISTEN_*",
    "CREDENTIALS_DIRECTORY",
    "STATE_DIRECTORY",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "SYSTEMD_EXEC_PID",
    "MEMORY_PRESSURE_*",
];

/// Compose variables that change neither project, engine nor files. All others are dropped, whatever their source: the
/// agent passes these settings as flags.
const COMPOSE_KEPT: [&str; 3] = ["COMPOSE_PROFILES", "COMPOSE_PARALLEL_LIMIT", "COMPOSE_HTTP_TIMEOUT"];

/// Variables that select docker's or podman's engine.
const ENGINE: [&str; 10] = [
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_API_VERSION",
    "DOCKER_CERT_PATH",
    "DOCKER_TLS*",
    "DOCKER_CUSTOM_HEADERS",
    "DOCKER_CLI_*",
    "CONTAINER_HOST",
    "CONTAINER_CONNECTION",
    "CONTAINER_SSHKEY",
];

/// Variables that decide which program or code runs, and where docker and podman find plugins and providers. They are
/// passed on from the agent's own environment, but not from an env file, which other users may write.
const PROGRAMS: [&str; 22] = [
    "PATH",
    "HOME",
    "DOCKER_CONFIG",
    "DOCKER_AUTH_CONFIG",
    "CONTAINERS_*",
    "PODMAN_*",
    "XDG_*",
    "BUILDX_CONFIG",
    "BUILDX_BUILDER",
    "LD_*",
    "GLIBC_TUNABLES",
    "GCONV_PATH",
    "LOCPATH",
    "BASH_ENV",
    "BASH_FUNC_*",
    "PYTHON*",
    "SSH_ASKPASS",
    "GIT_SSH*",
    "GIT_EXEC_PATH",
    "GIT_CONFIG*",
    "GIT_ASKPASS",
    "GIT_PROXY_COMMAND",
];

/// The environment that compose runs in.
pub(super) struct Environment {
    own: Vec<(OsString, OsString)>,
    /// Variables whose values are secret.
    secret: RwLock<BTreeSet<String>>,
    /// Variables of env files that were dropped and already logged.
    logged: Mutex<BTreeSet<(PathBuf, String)>>,
}

impl Environment {
    /// Creates the environment from `own`, the agent's environment. `is_set_by_engine`: whether a variable says something of the
    /// agent's container only.
    pub(super) fn new(
        own: impl IntoIterator<Item = (OsString, OsString)>,
        is_set_by_engine: impl Fn(&str, &OsStr) -> bool,
    ) -> Self {
        let is_dropped = |name: &OsStr, value: &OsStr| {
            let name = name.to_string_lossy();
            is_from_service_manager(&name) || redirects(&name) || is_set_by_engine(&name, value)
        };
        let own = own.into_iter().filter(|(name, value)| !is_dropped(name, value)).collect();
        Self { own, secret: RwLock::default(), logged: Mutex::default() }
    }

    /// Stops passing these variables to compose. Variables withheld under an earlier configuration stay withheld.
    pub(super) fn withhold(&self, names: &BTreeSet<String>) {
        let mut secret = self.secret.write();
        // Nothing runs without these two, and they are not secrets.
        secret.extend(names.iter().filter(|name| !matches!(name.as_str(), "PATH" | "HOME")).cloned());
    }

    /// Returns the variables that come from the agent.
    pub(super) fn own(&self) -> Vec<(OsString, OsString)> {
        let secret = self.secret.read();
        let shown = |name: &OsString| name.to_str().is_none_or(|name| !secret.contains(name));
        self.own.iter().filter(|(name, _)| shown(name)).cloned().collect()
    }

    /// Returns a variable that comes from the agent.
    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        self.own().into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Filters the variables of the env file at `path`. Each dropped variable is logged once.
    pub(super) fn admit(&self, path: &Path, mut variables: Vec<(String, String)>) -> Vec<(String, String)> {
        variables.retain(|(name, _)| {
            let refused = redirects(name) || matches(name, &PROGRAMS);
            if refused {
                let mut logged = self.logged.lock();
                if logged.insert((path.to_owned(), name.clone())) {
                    tracing::warn!(
                        env_file = %path.display(),
                        variable = name,
                        "variable not passed to compose: it could change which program runs, or which engine or project is used"
                    );
                }
            }
            !refused
        });
        variables
    }
}

/// Reports whether the service manager has set this variable for the agent alone.
pub(crate) fn is_from_service_manager(name: &str) -> bool {
    matches(name, &SERVICE_MANAGER)
}

/// Reports whether the variable could make compose use another engine or project than the agent's.
fn redirects(name: &str) -> bool {
    matches(name, &ENGINE) || (name.starts_with("COMPOSE_") && !COMPOSE_KEPT.contains(&name))
}

fn matches(name: &str, patterns: &[&str]) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *pattern,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(variables: &[(OsString, OsString)]) -> Vec<&str> {
        variables.iter().filter_map(|(name, _)| name.to_str()).collect()
    }

    fn environment(names: &[&str]) -> Environment {
        Environment::new(names.iter().map(|name| ((*name).into(), "x".into())), |_, _| false)
    }

    #[test]
    fn compose_gets_the_agents_variables_without_secrets_and_redirections() {
        let environment = environment(&[
            "PATH",
            "HOME",
            "FOO",
            "LANG",
            "LC_ALL",
            "https_proxy",
            "DOCKER_CONFIG",
            "DOCKER_TAG",
            "COMPOSE_PROFILES",
            "NOTIFY_SOCKET",
            "WATCHDOG_USEC",
            "WATCHDOG_PID",
            "LISTEN_FDS",
            "LISTEN_PID",
            "LISTEN_FDNAMES",
            "CREDENTIALS_DIRECTORY",
            "INVOCATION_ID",
            "STATE_DIRECTORY",
            "JOURNAL_STREAM",
            "DOCKER_HOST",
            "DOCKER_CONTEXT",
            "DOCKER_API_VERSION",
            "DOCKER_TLS_VERIFY",
            "DOCKER_CERT_PATH",
            "COMPOSE_FILE",
            "COMPOSE_PROJECT_NAME",
            "COMPOSE_ENV_FILES",
            "WARDEN_TOKEN",
            "NEW_TOKEN",
        ]);
        let usual = [
            "PATH",
            "HOME",
            "FOO",
            "LANG",
            "LC_ALL",
            "https_proxy",
            "DOCKER_CONFIG",
            "DOCKER_TAG",
            "COMPOSE_PROFILES",
        ];
        assert_eq!(names(&environment.own()), [&usual[..], &["WARDEN_TOKEN", "NEW_TOKEN"]].concat());
        environment.withhold(&["WARDEN_TOKEN", "PATH", "HOME"].map(str::to_owned).into());
        assert_eq!(names(&environment.own()), [&usual[..], &["NEW_TOKEN"]].concat());
        // After a reload, variables of the old configuration stay withheld.
        environment.withhold(&["NEW_TOKEN"].map(str::to_owned).into());
        assert_eq!(names(&environment.own()), usual);
    }

    #[test]
    fn what_the_engine_has_set_in_the_agents_container_does_not_override_the_env_of_a_project() {
        let own: [(OsString, OsString); 2] =
            [("HOSTNAME", "3f2a91c0b7de"), ("HOME", "/root")].map(|(n, v)| (n.into(), v.into()));
        let environment = |id: &'static str| {
            Environment::new(own.clone(), move |name, value| name == "HOSTNAME" && value == id)
        };
        assert_eq!(names(&environment("3f2a91c0b7de").own()), ["HOME"]);
        assert_eq!(names(&environment("another").own()), ["HOSTNAME", "HOME"], "a person has set it");
    }

    #[test]
    fn an_env_file_never_selects_a_program_an_engine_or_a_project() {
        let environment = environment(&[]);
        let admitted = |name: &str| {
            let given = vec![(name.to_owned(), "x".to_owned())];
            !environment.admit(Path::new("/srv/.env"), given).is_empty()
        };
        for name in [
            "PATH",
            "HOME",
            "LD_PRELOAD",
            "LD_LIBRARY_PATH",
            "LD_AUDIT",
            "DOCKER_HOST",
            "DOCKER_CONTEXT",
            "DOCKER_CONFIG",
            "DOCKER_TLS",
            "DOCKER_TLS_VERIFY",
            "DOCKER_API_VERSION",
            "DOCKER_CLI_PLUGIN_EXTRA_DIRS",
            "CONTAINER_HOST",
            "CONTAINERS_CONF",
            "PODMAN_COMPOSE_PROVIDER",
            "XDG_CONFIG_HOME",
            "COMPOSE_FILE",
            "COMPOSE_PROJECT_NAME",
            "COMPOSE_ENV_FILES",
            "COMPOSE_REMOVE_ORPHANS",
            "BASH_ENV",
            "BASH_FUNC_docker%%",
            "PYTHONPATH",
            "GIT_SSH_COMMAND",
        ] {
            assert!(!admitted(name), "{name}");
        }
        for name in [
            "TAG",
            "DOCKER_TAG",
            "DOCKER_REGISTRY",
            "GIT_COMMIT",
            "ENV",
            "COMPOSE_PROFILES",
            "DATABASE_URL",
            "MY_PATH",
        ] {
            assert!(admitted(name), "{name}");
        }
    }
}
