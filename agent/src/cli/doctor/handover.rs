//! Which compose services of a service could be updated without an interruption, and which line of the compose file keeps the
//! others from it.

use std::collections::BTreeSet;

use super::facts::{AREA, Facts, judged};
use super::finding::{Finding, Words};
use crate::model::handover::{asked, hinder_by_probe};
use crate::model::{Container, Obstacle, Order};

/// Returns the findings for a service.
pub(super) fn check(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(Ok(model)) = &facts.model else { return Vec::new() };
    let key = facts.config.update.as_ref().and_then(|update| update.order);
    let is_copied = facts.config.update.as_ref().is_some_and(|update| update.snapshot.is_some());
    if key == Some(Order::StopFirst) || is_copied {
        return Vec::new();
    }
    let containers: Vec<Container> = facts.containers.iter().map(|one| one.container.clone()).collect();
    let updated: BTreeSet<&str> = judged(facts).map(|one| one.container.compose_service.as_str()).collect();
    let probe = facts.config.update.as_ref().and_then(|update| update.probe.as_ref());
    let mut wanted = asked(model, &containers, key, &facts.bound_files);
    hinder_by_probe(&mut wanted, probe);
    let mut found = Vec::new();
    for (service, obstacle) in wanted.iter().filter(|(service, _)| updated.contains(service.as_str())) {
        if let Some(obstacle) = obstacle {
            let words = Words {
                what: format!("it is to start first and can't: it has {}", obstacle.line()),
                why: "its updates stop the old containers before the new ones start",
                remedy: obstacle.remedy(),
            };
            found.push(words.warning(AREA, format!("{}: {service}", facts.config.name)));
        }
    }
    let mut possible = asked(model, &containers, Some(Order::StartFirst), &facts.bound_files);
    hinder_by_probe(&mut possible, probe);
    let possible = possible
        .into_iter()
        .filter(|(service, _)| updated.contains(service.as_str()) && !wanted.contains_key(service.as_str()));
    let (can, cannot): (Vec<_>, Vec<_>) = possible.partition(|(_, obstacle)| obstacle.is_none());
    let cannot = cannot.into_iter().filter_map(|(service, obstacle)| Some((service, obstacle?)));
    let cannot: Vec<(String, Obstacle)> = cannot.collect();
    found.extend(could(facts, &can.into_iter().map(|(service, _)| service).collect::<Vec<_>>(), &cannot));
    found
}

fn could(facts: &Facts<'_>, can: &[String], cannot: &[(String, Obstacle)]) -> Option<Finding> {
    let lines: Vec<String> =
        cannot.iter().map(|(service, obstacle)| format!("{service} has {}", obstacle.line())).collect();
    let but =
        if lines.is_empty() { String::new() } else { format!("; others could not: {}", lines.join("; ")) };
    let words = Words {
        what: format!("the updates of {} could be without an interruption{but}", can.join(", ")),
        why: "an update stops the old containers before the new ones start",
        remedy: "set deploy.update_config.order: start-first in the compose file if the service copes with two containers, and \
                 see \"Handover\" in the manual",
    };
    (!can.is_empty()).then(|| words.note(AREA, facts.config.name.as_str()))
}
