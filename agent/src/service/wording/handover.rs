//! The words for handovers (DECISIONS 12).

use std::collections::BTreeMap;

use crate::model::Obstacle;

/// Adds what went wrong on the way.
pub(super) fn with_problems(reason: Option<String>, problems: &[String]) -> Option<String> {
    joined(reason, (!problems.is_empty()).then(|| problems.join("; ")))
}

pub(super) fn joined(reason: Option<String>, more: Option<String>) -> Option<String> {
    let parts: Vec<String> = reason.into_iter().chain(more).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Names each compose service that is stopped first because it can't hand over, the line of its file that is the reason, and
/// what to change; `None` if there is none.
pub(in crate::service) fn stopped_first(obstacles: &BTreeMap<String, Obstacle>) -> Option<String> {
    let of = |(service, obstacle): (&String, &Obstacle)| {
        format!("{service} has {} ({})", obstacle.line(), obstacle.remedy())
    };
    let all: Vec<String> = obstacles.iter().map(of).collect();
    (!all.is_empty()).then(|| format!("stopped before the update: {}", all.join("; ")))
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
