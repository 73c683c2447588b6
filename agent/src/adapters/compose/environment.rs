//! What compose finds in its environment (DECISIONS 6): the agent's own one less what is secret, what is for the agent
//! alone, and what would lead it to another engine or project; and of an env file all but what would choose a program.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};

/// What the service manager tells the agent, and nobody else. The last letters stand for all that begins so.
const FOR_THE_AGENT_ALONE: [&str; 5] =
    ["NOTIFY_SOCKET", "WATCHDOG_*", "LISTEN_*", "CREDENTIALS_DIRECTORY", "INVOCATION_ID"];

/// Of compose's own variables those that change neither project, engine nor files. All others are dropped, wherever
/// they come from: what is meant is said by flags.
const COMPOSE_KEPT: [&str; 3] = ["COMPOSE_PROFILES", "COMPOSE_PARALLEL_LIMIT", "COMPOSE_HTTP_TIMEOUT"];

/// What makes docker or podman talk to another engine than the agent does.
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

/// What decides which program runs, or which code in it, and where docker and podman find plugins and providers. The
/// agent's own environment may hold these; a file that others write may not.
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
    /// What was left out of env files and told already.
    told: Mutex<BTreeSet<(PathBuf, String)>>,
}

impl Environment {
    /// The environment that follows from `own`, the agent's.
    pub(super) fn new(own: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let dropped = |name: &OsString| {
            let name = name.to_string_lossy();
            is_for_the_agent_alone(&name) || misleads(&name)
        };
        let own = own.into_iter().filter(|(name, _)| !dropped(name)).collect();
        Self { own, secret: RwLock::default(), told: Mutex::default() }
    }

    /// Keeps these variables from compose from now on. What was secret under an earlier configuration stays so.
    pub(super) fn withhold(&self, names: &BTreeSet<String>) {
        let mut secret = self.secret.write().unwrap_or_else(PoisonError::into_inner);
        // Nothing runs without these, and they hold no secrets.
        secret.extend(names.iter().filter(|name| !matches!(name.as_str(), "PATH" | "HOME")).cloned());
    }

    /// The agent's part.
    pub(super) fn own(&self) -> Vec<(OsString, OsString)> {
        let secret = self.secret.read().unwrap_or_else(PoisonError::into_inner);
        let shown = |name: &OsString| name.to_str().is_none_or(|name| !secret.contains(name));
        self.own.iter().filter(|(name, _)| shown(name)).cloned().collect()
    }

    /// One variable of the agent's part.
    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        self.own().into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// The variables of the env file at `path` less those that it may not set, which is told once.
    pub(super) fn admit(&self, path: &Path, mut variables: Vec<(String, String)>) -> Vec<(String, String)> {
        variables.retain(|(name, _)| {
            let refused = misleads(name) || matches(name, &PROGRAMS);
            if refused {
                let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
                if told.insert((path.to_owned(), name.clone())) {
                    tracing::warn!(
                        env_file = %path.display(),
                        variable = name,
                        "compose does not get this variable: it could choose which program runs, or which engine or project is meant"
                    );
                }
            }
            !refused
        });
        variables
    }
}

/// Whether the variable is one by which the service manager speaks to the agent.
pub(crate) fn is_for_the_agent_alone(name: &str) -> bool {
    matches(name, &FOR_THE_AGENT_ALONE)
}

/// Whether the variable would lead compose to another engine or project than the agent means.
fn misleads(name: &str) -> bool {
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
        Environment::new(names.iter().map(|name| ((*name).into(), "x".into())))
    }

    #[test]
    fn compose_sees_the_agents_variables_less_what_is_secret_or_misleading() {
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
        // After a reload, what the old file named stays withheld.
        environment.withhold(&["NEW_TOKEN"].map(str::to_owned).into());
        assert_eq!(names(&environment.own()), usual);
    }

    #[test]
    fn an_env_file_never_chooses_a_program_an_engine_or_a_project() {
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
