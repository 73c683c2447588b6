//! Checks the services as they are running now: containers, health checks, files and mounts, and the way back of each.

use super::facts::{AREA, Facts, Running, WAY_BACK, judged, live};
use super::finding::{Finding, Words};
use super::{handover, snapshot};
use crate::config::ServiceConfig;
use crate::model::image::digests_in;
use crate::model::probe::{Answer, Probe};
use crate::model::{Container, Difference, Reference, State};
use crate::service::wording;

/// Returns the findings for a service.
pub(super) fn check(facts: &Facts<'_>) -> Vec<Finding> {
    let managed =
        facts.containers.iter().find_map(|one| one.container.manager.as_ref().map(|who| (one, who)));
    if let Some((one, manager)) = managed {
        let words = Words {
            what: format!("{} is managed by {manager}", one.container.name),
            why: "the agent neither updates nor heals containers that are managed by another program",
            remedy: "remove the service from \"services\", or the unit or label from the container",
        };
        return vec![words.warning(AREA, facts.config.name.as_str())];
    }
    let mut found = Vec::new();
    found.extend(nothing_runs(facts));
    found.extend(unused_images(facts));
    found.extend(health(facts));
    found.extend(probes(facts));
    found.extend(files(facts));
    found.extend(rendered(facts));
    found.extend(differences(facts));
    found.extend(handover::check(facts));
    found.extend(snapshot::check(facts));
    found
}

/// A compose command of a person for the project as it was started, or for these services of it.
fn compose(facts: &Facts<'_>, task: &str, services: &[&str]) -> Option<String> {
    let containers: Vec<Container> = facts.containers.iter().map(|one| one.container.clone()).collect();
    let project = facts.config.project()?.as_started_by(&containers);
    Some(wording::compose_command(&project, task, services))
}

fn nothing_runs(facts: &Facts<'_>) -> Option<Finding> {
    let config = facts.config;
    let ended_well = |one: &Running| one.container.state == State::Exited && one.container.exit_code == 0;
    if live(facts).next().is_some() || facts.containers.iter().any(ended_well) || config.auto_start {
        return None;
    }
    let remedy = match (compose(facts, "up -d", &[]), &config.container_name) {
        (Some(command), _) => format!("start it: `{command}`"),
        (None, Some(name)) => format!("start it: `docker start {name}`, or correct container_name"),
        (None, None) => return None,
    };
    let words = Words {
        what: "none of its containers is running",
        why: "there is nothing to update or heal, and auto_start is off",
        remedy,
    };
    Some(words.warning(AREA, config.name.as_str()))
}

fn unused_images(facts: &Facts<'_>) -> Vec<Finding> {
    if live(facts).next().is_none() {
        return Vec::new();
    }
    // When a tag has moved, the engine shows an image ID instead of the reference.
    let is_used = |reference: &Reference| {
        facts.containers.iter().any(|one| {
            one.container.is_made_from(reference) || Reference::parse(&one.container.config_image).is_err()
        })
    };
    let of_files = |reference: &Reference| match &facts.model {
        Some(Ok(model)) => model.services().any(|service| service.image().as_ref() == Some(reference)),
        _ => false,
    };
    let is_mounted = |reference: &Reference| match &facts.model {
        Some(Ok(model)) => {
            model.services().any(|service| service.mounted_images().any(|one| one == *reference))
        }
        _ => false,
    };
    let images = facts.config.images.iter().filter_map(|image| Some((image, facts.in_force(image)?)));
    images
        .filter(|(_, reference)| !is_used(reference) && !of_files(reference))
        .map(|(image, reference)| {
            let service = &facts.config.name;
            let (what, why, remedy) = if is_mounted(&reference) {
                (
                    format!("{reference} is only mounted (type: image)"),
                    "a new one is pulled, but only containers that are made from it are recreated",
                    format!(
                        "take it out of \"images\" of {service}, and recreate the containers that mount it by hand"
                    ),
                )
            } else {
                (
                    format!("no container uses {reference}"),
                    "its updates have no effect, and the running image may not be watched",
                    format!("write the image in \"images\" of {service} exactly as in the compose file"),
                )
            };
            Words { what, why, remedy }.warning(AREA, image.configured.as_str())
        })
        .collect()
}

fn health(facts: &Facts<'_>) -> Vec<Finding> {
    let (grace, mut found) = (facts.config.health_grace, Vec::new());
    // A task is running only after its health check has passed, and a manager does not see health checks of images.
    if facts.config.swarm_service.is_some() {
        return found;
    }
    let probe = facts.config.update.as_ref().and_then(|update| update.probe.as_ref());
    for Running { container, .. } in judged(facts) {
        let subject = format!("{}: {}", facts.config.name, container.name);
        match container.health_timing.map(|timing| timing.budget()) {
            None if probe.is_some_and(|probe| is_asked(facts.config, probe, container)) => {}
            None => {
                let words = Words {
                    what: "it has no health check",
                    why: "a new image that runs but does not work passes its probation",
                    remedy: format!(
                        "add a \"healthcheck\" to {} in the compose file",
                        container.compose_service
                    ),
                };
                found.push(words.warning(AREA, subject));
            }
            Some(budget) if budget > grace => {
                let needed = budget.as_secs() + u64::from(budget.subsec_nanos() > 0);
                let words = Words {
                    what: format!(
                        "its health check may take {needed} s, but health_grace is {} s",
                        grace.as_secs()
                    ),
                    why: "the longer time applies: an update takes longer than configured",
                    remedy: format!(
                        "set \"health_grace\": {needed}, or a shorter interval, retries or start_period"
                    ),
                };
                found.push(words.warning(AREA, subject));
            }
            Some(_) => {}
        }
    }
    found
}

/// Reports whether a probe asks this container.
pub(super) fn is_asked(config: &ServiceConfig, probe: &Probe, container: &Container) -> bool {
    let is_configured =
        |of: &Reference| config.images.iter().any(|image| image.reference.repository == of.repository);
    container.state == State::Running
        && match (&probe.from, &probe.service) {
            (Some(_), _) => true,
            (None, Some(service)) => container.compose_service == *service,
            (None, None) => Reference::parse(&container.config_image).is_ok_and(|of| is_configured(&of)),
        }
}

/// What the probe is answered now. Whatever fails here fails on probation.
fn probes(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(probe) = facts.config.update.as_ref().and_then(|update| update.probe.as_ref()) else {
        return Vec::new();
    };
    let finding = |(container, answer): &(String, Answer)| {
        let name = &facts.config.name;
        let subject = if container.is_empty() { name.clone() } else { format!("{name}: {container}") };
        match answer {
            Ok(answer) => {
                Words { what: format!("{probe}: {answer}"), why: "", remedy: "" }.note(AREA, subject)
            }
            Err(answer) => {
                let words = Words {
                    what: format!("{probe} fails for what runs now: {answer}"),
                    why: "every new image that does not answer is rolled back and blocked",
                    remedy: "correct \"update.probe\"; if this machine does not reach the container, publish its port and \
                             set \"from\"",
                };
                words.warning(AREA, subject)
            }
        }
    };
    facts.probed.iter().map(finding).collect()
}

fn files(facts: &Facts<'_>) -> Vec<Finding> {
    let (files, subject) = (&facts.files, facts.config.name.as_str());
    let others = [&files.unnamed[..], &files.unseen[..]].concat();
    let mut found = Vec::new();
    if !facts.config.compose_files.is_empty() && !files.share && !others.is_empty() {
        let remedy = if files.unseen.is_empty() {
            format!("set \"compose_files\" to {}", wording::paths(&others))
        } else if files.in_container {
            "mount the folder of the compose files into the agent's container at the same path".to_owned()
        } else {
            "start the project from the configured files once: `docker compose -f … up -d`".to_owned()
        };
        let words = Words {
            what: format!(
                "its containers were created from other compose files: {}",
                wording::paths(&others)
            ),
            why: "a deployment would recreate them from different files",
            remedy,
        };
        found.push(words.error(AREA, subject));
    } else if files.share && !files.unnamed.is_empty() {
        let words = Words {
            what: format!("its containers were also created from {}", wording::paths(&files.unnamed)),
            why: "starts keep the settings of that file, but \"compose_files\" does not include it",
            remedy: format!("add {} to \"compose_files\"", wording::paths(&files.unnamed)),
        };
        found.push(words.warning(AREA, subject));
    }
    if let Some(path) = &files.by_hand {
        let words = Words {
            what: format!("compose uses {} when run manually, but the agent does not", path.display()),
            why: "the two would create different containers",
            remedy: format!("add {} to \"compose_files\", or remove it", path.display()),
        };
        found.push(words.warning(AREA, subject));
    }
    found
}

fn rendered(facts: &Facts<'_>) -> Option<Finding> {
    let Some(Err(error)) = &facts.model else { return None };
    let command = compose(facts, "config", &[])?;
    let words = Words {
        what: format!("its compose files can't be used: {error}"),
        why: "the service can't be updated or started",
        remedy: format!("see `{command}`"),
    };
    Some(words.error(AREA, facts.config.name.as_str()))
}

/// Finds definitions that differ from what runs, with the comparison that holds updates.
fn differences(facts: &Facts<'_>) -> Vec<Finding> {
    let finding = |difference: &Difference| {
        let command = |task: &str| compose(facts, task, &[&difference.service]).unwrap_or_default();
        let words = Words {
            what: if difference.lacks_folder() {
                format!("a running container has a folder that a new one would not have: {difference}")
            } else if difference.is_of_providers() {
                format!("compose sets something that the files don't contain: {difference}")
            } else {
                format!("the compose files no longer define what runs: {difference}")
            },
            why: "an update would change more than the image, so that it waits",
            remedy: if difference.lacks_folder() {
                wording::MOUNT_AGAIN.to_owned()
            } else if difference.is_of_connections() {
                wording::add_networks(std::slice::from_ref(difference))
            } else if difference.is_of_providers() {
                format!(
                    "update it with `{} && {}`: an update brings up no dependencies, and so runs no provider",
                    command("pull"),
                    command("up -d")
                )
            } else if difference.is_of_changes_since() {
                wording::keep_or_drop(
                    &command("up -d"),
                    &format!("`evenkeel redeploy {}`", facts.config.name),
                )
            } else if facts.files.are_others() {
                format!(
                    "set \"compose_files\" to {}, or, if the configured files are what is to run, apply them with `{}`",
                    wording::paths(&facts.files.unnamed),
                    command("up -d --force-recreate")
                )
            } else if let Some(advice) = wording::write_down(std::slice::from_ref(difference)) {
                format!(
                    "{advice}. If the files were edited, apply them with `{}`, or undo the edit",
                    command("up -d --force-recreate")
                )
            } else {
                format!(
                    "apply the files with `{}` or `evenkeel redeploy {}`, or undo the edit; if a path or a variable differs \
                     only for the agent, write it into the files or an env file",
                    command("up -d --force-recreate"),
                    facts.config.name
                )
            },
        };
        words.error(AREA, facts.config.name.as_str())
    };
    facts.differences.iter().map(finding).collect()
}

/// Returns the findings for images that a failed update could not be rolled back to, or that have no digest to compare.
pub(super) fn way_back(facts: &Facts<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for one in judged(facts) {
        let subject = format!("{}: {}", facts.config.name, one.container.name);
        let reference = Reference::parse(&one.container.config_image).ok();
        let is_here = one.image.as_ref().is_some_and(|image| image.is_complete);
        if !is_here && one.served != Some(true) {
            let words = Words {
                what: "its image is no longer on this machine, and no registry has it",
                why: "a failed update could not be rolled back",
                remedy: format!(
                    "redeploy from the registry while the service works: `evenkeel redeploy {}`",
                    facts.config.name
                ),
            };
            found.push(words.error(WAY_BACK, subject));
        } else if let (Some(image), Some(reference)) = (&one.image, reference)
            && digests_in(&reference.repository, &image.repo_digests).next().is_none()
            && one.served != Some(true)
        {
            let words = Words {
                what: format!(
                    "its image was not pulled from {}: it was built or loaded on this machine",
                    reference.repository.host
                ),
                why: "there is no digest to compare, so it is never updated (not_found)",
                remedy: format!(
                    "push it, or pull it once: `docker pull {reference}`, then `evenkeel redeploy {}`",
                    facts.config.name
                ),
            };
            found.push(words.warning(WAY_BACK, subject));
        }
    }
    found
}

#[cfg(test)]
#[path = "services_tests.rs"]
mod tests;
