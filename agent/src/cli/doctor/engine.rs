//! Checks the engine: whether it answers, its API version, and whether compose works with it.

use super::finding::{Finding, Severity, Words};
use crate::config::Runtime;
use crate::model::EngineError;
use crate::ports::survey::EngineInfo;

pub(super) const AREA: &str = "engine";

/// Facts about the engine.
pub(super) struct Facts<'a> {
    /// Its address.
    pub(super) endpoint: &'a str,
    /// The configured runtime.
    pub(super) runtime: Runtime,
    /// Information reported by the engine.
    pub(super) about: &'a Result<EngineInfo, EngineError>,
    /// The problem with compose, if any.
    pub(super) compose: Option<&'a str>,
    /// Whether this program runs in a container.
    pub(super) in_container: bool,
}

/// Returns the findings.
pub(super) fn check(facts: &Facts<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    match facts.about {
        Err(error) => found.push(away(facts, &error.to_string())),
        Ok(about) => found.extend(of(facts, about)),
    }
    if let Some(fault) = facts.compose {
        let harms = fault.contains("recreates unchanged containers");
        let severity = if harms { Severity::Warning } else { Severity::Error };
        let words = Words {
            what: fault.to_owned(),
            why: if harms {
                "a redeployment restarts more than it has to"
            } else {
                "no compose project can be updated or started"
            },
            remedy: match facts.runtime {
                Runtime::Docker if harms => "install compose 5.5 or later",
                Runtime::Docker => "install docker-compose-plugin (Docker's packages) or docker-compose-v2",
                Runtime::Podman => "install docker-compose in addition to podman 4.7 or later",
            },
        };
        found.push(words.of(severity, AREA, "compose"));
    }
    found
}

/// Returns the finding for an invalid engine address; nothing else is checked then.
pub(super) fn no_address(cause: &str) -> Finding {
    let remedy = "correct DOCKER_HOST or the docker context, or remove them from the agent's environment";
    Words { what: cause, why: "without an engine the agent can do nothing", remedy }.error(AREA, "address")
}

fn away(facts: &Facts<'_>, text: &str) -> Finding {
    let (service, variable) = match facts.runtime {
        Runtime::Docker => ("docker", "DOCKER_HOST"),
        Runtime::Podman => ("podman.socket", "CONTAINER_HOST"),
    };
    let remedy = match () {
        () if text.contains("permission denied") && facts.in_container => {
            "give the container the group of the socket: set DOCKER_GID in .env to its number, which \
             `stat -c %g /var/run/docker.sock` prints on the machine, then `docker compose up -d`; on a machine with \
             SELinux (`getenforce`), the container also needs `security_opt: [\"label=disable\"]`"
                .to_owned()
        }
        () if text.contains("permission denied") => {
            "run doctor as the user that runs the agent: `sudo evenkeel doctor`".to_owned()
        }
        () if text.contains("no answer") || text.contains("does not answer") => {
            format!("find out what blocks it: `journalctl -u {service} -n 50`")
        }
        () => format!("start it: `systemctl start {service}`; if it listens elsewhere, set {variable}"),
    };
    Words { what: text, why: "without an engine the agent can do nothing", remedy }
        .error(AREA, facts.endpoint)
}

fn of(facts: &Facts<'_>, about: &EngineInfo) -> Vec<Finding> {
    let mut found = Vec::new();
    if !about.is_tested {
        let words = Words {
            what: format!("engine {} uses API version {}", about.version, about.api),
            why: "Evenkeel was not tested with this API version",
            remedy: "use Docker 20.10 to 29 or podman 5, or a newer Evenkeel",
        };
        found.push(words.warning(AREA, facts.endpoint));
    }
    if facts.runtime == Runtime::Podman && !about.is_podman {
        let words = Words {
            what: "\"runtime\" is podman, but another engine answers there",
            why: "`podman compose` and the agent would not see the same containers",
            remedy: "set \"runtime\" to \"docker\", or CONTAINER_HOST to podman's socket",
        };
        found.push(words.error(AREA, facts.endpoint));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn docker() -> EngineInfo {
        EngineInfo { version: "28.5.2".into(), api: "1.51".into(), is_tested: true, ..EngineInfo::default() }
    }

    fn findings(
        runtime: Runtime,
        about: &Result<EngineInfo, EngineError>,
        compose: Option<&str>,
    ) -> Vec<Finding> {
        check(&Facts { endpoint: "unix:///x", runtime, about, compose, in_container: false })
    }

    #[test]
    fn every_fault_of_engine_and_compose_is_reported_with_a_remedy() {
        let away = |text: &str| Err(EngineError::Unavailable(text.to_owned()));
        let harm = "compose 5.4.0 recreates unchanged containers where the engine keeps images in containerd's store";
        for (runtime, about, compose, severity, subject, remedy) in [
            (
                Runtime::Docker,
                away("unix:///x: there is no such socket"),
                None,
                Severity::Error,
                "unix:///x",
                "systemctl start docker",
            ),
            (
                Runtime::Docker,
                away("unix:///x: permission denied"),
                None,
                Severity::Error,
                "unix:///x",
                "sudo evenkeel doctor",
            ),
            (
                Runtime::Docker,
                away("unix:///x: no answer within 10 s"),
                None,
                Severity::Error,
                "unix:///x",
                "journalctl -u docker",
            ),
            (
                Runtime::Podman,
                away("unix:///x: connection refused"),
                None,
                Severity::Error,
                "unix:///x",
                "podman.socket",
            ),
            (
                Runtime::Docker,
                Ok(EngineInfo { is_tested: false, ..docker() }),
                None,
                Severity::Warning,
                "unix:///x",
                "20.10 to 29",
            ),
            (Runtime::Podman, Ok(docker()), None, Severity::Error, "unix:///x", "\"docker\""),
            (
                Runtime::Docker,
                Ok(docker()),
                Some("docker has no compose plugin"),
                Severity::Error,
                "compose",
                "docker-compose-plugin",
            ),
            (
                Runtime::Docker,
                Ok(docker()),
                Some("compose 2.5.0 is too old"),
                Severity::Error,
                "compose",
                "docker-compose-v2",
            ),
            (Runtime::Docker, Ok(docker()), Some(harm), Severity::Warning, "compose", "5.5"),
        ] {
            let found = findings(runtime, &about, compose);
            assert_eq!(found.len(), 1, "{found:#?}");
            assert_eq!((found[0].severity, found[0].subject.as_str()), (severity, subject));
            assert!(found[0].remedy.contains(remedy), "{found:#?}");
        }
    }

    #[test]
    fn in_a_container_it_is_the_group_that_opens_the_socket() {
        let about = Err(EngineError::Unavailable("unix:///x: permission denied".to_owned()));
        let (endpoint, runtime) = ("unix:///x", Runtime::Docker);
        let found = check(&Facts { endpoint, runtime, about: &about, compose: None, in_container: true });
        assert!(found.len() == 1 && found[0].remedy.contains("DOCKER_GID"), "{found:#?}");
        assert!(found[0].remedy.contains("label=disable"), "{found:#?}");
    }

    #[test]
    fn an_engine_that_answers_has_no_finding() {
        assert_eq!(findings(Runtime::Docker, &Ok(docker()), None), []);
        assert_eq!(findings(Runtime::Podman, &Ok(EngineInfo { is_podman: true, ..docker() }), None), []);
    }
}
