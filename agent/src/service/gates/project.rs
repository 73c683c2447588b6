//! The gate for other services of the compose project that list the same image (`shared.rs`).

use std::sync::LazyLock;

use evenkeel_common::wire::Gate;
use jiff::Timestamp;

use crate::config::UpdateConfig;
use crate::service::candidate::Candidate;
use crate::service::fleet::FleetView;

use super::{Asker, Rules, open};

/// The fleet view used when the fleet does not matter.
static NO_FLEET: LazyLock<FleetView> = LazyLock::new(FleetView::default);

/// Returns the first gate of a service that holds a digest, ignoring the fleet and other services.
pub(in crate::service) fn own_hold(
    service: &str,
    update: &UpdateConfig,
    candidate: &Candidate,
    asker: Asker,
    now: Timestamp,
) -> Option<Gate> {
    Rules::of(service, Some(update), &NO_FLEET, false, asker, now).first_hold(candidate)
}

pub(super) fn project(rules: &Rules<'_>, candidate: &Candidate) -> Gate {
    let word = "project";
    let hold = candidate.others.iter().find_map(|other| other.hold(rules.asker, rules.now));
    match hold {
        Some(gate) => Gate { gate: word.to_owned(), ..gate },
        None => open(word, "no other service of the project that uses the image holds it"),
    }
}
