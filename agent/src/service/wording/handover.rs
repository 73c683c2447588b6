//! The words for handovers (DECISIONS 12).

use std::collections::BTreeMap;

use crate::model::Obstacle;

/// Adds to a reason why compose services were stopped first that were to hand over.
pub(super) fn with_obstacles(
    reason: Option<String>,
    obstacles: &BTreeMap<String, Obstacle>,
) -> Option<String> {
    let obstacles = Some(obstacles).filter(|obstacles| !obstacles.is_empty());
    joined(
        reason,
        obstacles.map(|obstacles| format!("stopped before the update: {}", stopped_first(obstacles))),
    )
}

/// Adds what went wrong on the way.
pub(super) fn with_problems(reason: Option<String>, problems: &[String]) -> Option<String> {
    joined(reason, (!problems.is_empty()).then(|| problems.join("; ")))
}

pub(super) fn joined(reason: Option<String>, more: Option<String>) -> Option<String> {
    let parts: Vec<String> = reason.into_iter().chain(more).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Names each compose service that can't hand over, the line of its file that is the reason, and what to change.
pub(in crate::service) fn stopped_first(obstacles: &BTreeMap<String, Obstacle>) -> String {
    let of = |(service, obstacle): (&String, &Obstacle)| {
        format!("{service} has {} ({})", obstacle.line(), obstacle.remedy())
    };
    obstacles.iter().map(of).collect::<Vec<_>>().join("; ")
}

/// What to do with old containers that could not be removed.
pub(in crate::service) fn left_in_place(names: &[&str]) -> String {
    format!("could not be removed, and left on the old image: {}; stop and remove by hand", names.join(", "))
}

/// Why an update interrupts nothing.
pub(in crate::service) fn starts_first(services: &[&str]) -> String {
    format!(
        "the new containers of {} start beside the old ones, which serve until those are proven",
        services.join(", ")
    )
}
