//! Finds other programs that update or restart the same containers.

use std::collections::BTreeSet;

use super::finding::{Finding, Words};
use crate::cli::updaters::{Does, known};
use crate::ports::survey::ListedContainer;

pub(super) const AREA: &str = "other updaters";

/// The label that excludes a container from Watchtower.
const WATCHTOWER_LABEL: &str = "com.centurylinklabs.watchtower.enable";

/// Facts about the machine.
pub(super) struct Facts<'a> {
    pub(super) running: &'a [ListedContainer],
    /// Names of processes outside containers.
    pub(super) processes: &'a BTreeSet<String>,
    /// The compose projects that are configured.
    pub(super) projects: &'a BTreeSet<String>,
    /// Whether any service has `auto_heal`.
    pub(super) heals: bool,
}

/// Returns a finding for each such program.
pub(super) fn check(facts: &Facts<'_>) -> Vec<Finding> {
    let containers = facts.running.iter().filter_map(|one| {
        let (name, does) = known(program(&one.image))?;
        (!is_excluded(facts, name))
            .then(|| finding(name, does, &one.name, &format!("docker stop {}", one.name), facts))
    });
    let processes = facts.processes.iter().filter_map(|process| {
        let (name, does) = known(process)?;
        Some(finding(name, does, name, &format!("systemctl disable --now {name}"), facts))
    });
    containers.chain(processes).flatten().collect()
}

/// Returns the last component of an image's path.
fn program(image: &str) -> &str {
    let path = image.split('@').next().unwrap_or_default();
    let last = path.rsplit('/').next().unwrap_or_default();
    last.split(':').next().unwrap_or_default()
}

/// Reports whether all containers of the configured projects are excluded from this updater.
fn is_excluded(facts: &Facts<'_>, name: &str) -> bool {
    let ours = facts
        .running
        .iter()
        .filter(|one| one.project.as_ref().is_some_and(|project| facts.projects.contains(project)));
    let mut ours = ours.peekable();
    let refuses =
        |one: &ListedContainer| one.labels.get(WATCHTOWER_LABEL).is_some_and(|value| value == "false");
    name == "watchtower" && ours.peek().is_some() && ours.all(refuses)
}

fn finding(name: &str, does: Does, subject: &str, stop: &str, facts: &Facts<'_>) -> Option<Finding> {
    let remedy = match name {
        "watchtower" => format!("`{stop}`, or label the containers {WATCHTOWER_LABEL}=false"),
        _ => format!("`{stop}`"),
    };
    match does {
        Does::Update => {
            let words = Words {
                what: format!("{name} runs on this machine and may update the same containers"),
                why: "it deploys images without a probation, and may interfere with a probation of this agent",
                remedy,
            };
            Some(words.error(AREA, subject))
        }
        Does::Restart if facts.heals => {
            let words = Words {
                what: format!("{name} runs on this machine and restarts the same containers"),
                why: "its restarts ignore cooldowns, and count against an image on probation",
                remedy,
            };
            Some(words.warning(AREA, subject))
        }
        Does::Restart | Does::Neither => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;
    use crate::cli::updaters::KNOWN;

    fn container(name: &str, image: &str, labels: &[(&str, &str)]) -> ListedContainer {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ListedContainer { name: name.to_owned(), image: image.to_owned(), labels, ..Default::default() }
    }

    fn ours(labels: &[(&str, &str)]) -> ListedContainer {
        ListedContainer { project: Some("shop".to_owned()), ..container("shop-web-1", "web:1", labels) }
    }

    fn findings(running: &[ListedContainer], processes: &[&str], heals: bool) -> Vec<Finding> {
        let processes = processes.iter().map(|name| (*name).to_owned()).collect();
        let projects = BTreeSet::from(["shop".to_owned()]);
        check(&Facts { running, processes: &processes, projects: &projects, heals })
    }

    #[test]
    fn another_program_that_updates_or_restarts_is_reported_with_a_remedy() {
        for (image, severity, remedy) in [
            ("containrrr/watchtower", Severity::Error, "docker stop x"),
            ("ghcr.io/nicholas-fedor/watchtower:1.12", Severity::Error, WATCHTOWER_LABEL),
            ("docker.io/pyouroboros/ouroboros:latest", Severity::Error, "docker stop x"),
            ("getwud/wud@sha256:00", Severity::Error, "docker stop x"),
            ("willfarrell/autoheal:1.2", Severity::Warning, "docker stop x"),
        ] {
            let found = findings(&[container("x", image, &[]), ours(&[])], &[], true);
            assert_eq!(found.len(), 1, "{image}");
            assert_eq!(found[0].severity, severity);
            assert!(found[0].remedy.contains(remedy), "{found:#?}");
        }
        let found = findings(&[], &["dockward", "dockerd"], false);
        assert!(
            found.len() == 1 && found[0].remedy.contains("systemctl disable --now dockward"),
            "{found:#?}"
        );
    }

    #[test]
    fn every_known_program_that_interferes_is_reported() {
        for (name, does) in KNOWN {
            let found = findings(&[container("x", &format!("ghcr.io/x/{name}:1"), &[])], &[], true);
            assert_eq!(found.len(), usize::from(does != Does::Neither), "{name}: {found:#?}");
        }
        for name in ["whats-up-docker", "gantry", "dockcheck", "tugtainer", "docker-autoheal"] {
            assert!(known(name).is_some_and(|(_, does)| does != Does::Neither), "{name}");
        }
    }

    #[test]
    fn a_program_that_does_not_touch_the_containers_is_not_reported() {
        let watchtower = || container("x", "containrrr/watchtower", &[]);
        assert_eq!(findings(&[watchtower(), ours(&[(WATCHTOWER_LABEL, "false")])], &[], true), []);
        assert_eq!(findings(&[watchtower(), ours(&[(WATCHTOWER_LABEL, "true")])], &[], true).len(), 1);
        assert_eq!(findings(&[container("x", "willfarrell/autoheal", &[])], &[], false), []);
        assert_eq!(findings(&[container("x", "my/watchtower-dashboard", &[]), ours(&[])], &[], true), []);
    }
}
