//! The fleet gates (DECISIONS 8): they hold a digest while a decision of the wardens is in force.

use evenkeel_common::wire::{FleetUnblockRequest, Freeze, Gate, ThawRequest};
use serde::Serialize;

use crate::service::candidate::Candidate;
use crate::service::fleet::{FleetView, ring_waits_until};
use crate::service::wording::seconds;

use super::{Rules, View, cleared_by, held, open, redeploy};

pub(super) fn freeze(rules: &Rules<'_>, candidate: &Candidate) -> Gate {
    let Some(freeze) = rules.fleet.freeze(&candidate.reference, rules.now) else {
        return open("freeze", "no fleet freeze covers it");
    };
    with_freeze(rules.fleet, freeze, held("freeze", String::new()))
}

/// Returns the freeze that would hold an update of the service, as an open gate while there is no update.
pub(super) fn freeze_in_force(view: &View<'_>) -> Option<Gate> {
    let (config, fleet) = (view.service.config(), view.service.fleet());
    let images = config.images.iter().filter(|_| config.auto_update);
    let freezes = images.filter_map(|image| fleet.freeze(&image.reference, view.context.now));
    let longest = freezes.max_by_key(|freeze| freeze.until)?;
    Some(with_freeze(fleet, longest, open("freeze", String::new())))
}

/// Adds to a gate who froze the fleet, why, and until when.
fn with_freeze(fleet: &FleetView, freeze: &Freeze, gate: Gate) -> Gate {
    let why =
        format!("the fleet is frozen until {} ({}): {}", seconds(freeze.until), freeze.by, freeze.reason);
    let clear = warden_request(fleet, "thaw", &ThawRequest { id: Some(freeze.id.clone()) });
    cleared_by(clear, Gate { why, lifts_at: Some(freeze.until), ..gate })
}

/// Formats a request to the warden.
fn warden_request(fleet: &FleetView, path: &str, body: &impl Serialize) -> String {
    let body = serde_json::to_string(body).unwrap_or_default();
    format!("POST {}/{path} {body}", fleet.warden)
}

pub(super) fn immunity(rules: &Rules<'_>, candidate: &Candidate) -> Gate {
    let Some(failed) = rules.fleet.failed(&candidate.reference, &candidate.digest) else {
        return open("immunity", "it is not known to have failed on another machine");
    };
    let agent = failed.agents.first().map_or("another machine", String::as_str);
    let because = failed.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let why = format!("{} failed on {agent} at {}{because}", candidate.digest.short(), seconds(failed.since));
    let gate = Gate {
        blocked_by: failed.agents.first().cloned(),
        output: failed.output.clone(),
        ..held("immunity", why)
    };
    let image = failed.repository.clone();
    let request = FleetUnblockRequest { image, digest: candidate.digest.to_string() };
    cleared_by(warden_request(rules.fleet, "unblock", &request), gate)
}

pub(super) fn ring(rules: &Rules<'_>, candidate: &Candidate) -> Gate {
    if let Some(hold) = candidate.fleet.as_ref().filter(|hold| hold.until > rules.now) {
        let gate = held("ring", hold.why.clone());
        return cleared_by(
            redeploy(rules),
            Gate { lifts_at: Some(hold.until), blocked_by: hold.agent.clone(), ..gate },
        );
    }
    match ring_waits_until(rules, candidate) {
        Some(until) => {
            let why = format!("no warden answers, and this machine is in ring {}", rules.fleet.ring);
            cleared_by(redeploy(rules), Gate { lifts_at: Some(until), ..held("ring", why) })
        }
        None => open("ring", "the fleet is asked when no other gate holds it"),
    }
}
