//! The fleet gates (DECISIONS 8): they hold a digest while a decision of the wardens is in force.

use evenkeel_common::wire::{FleetUnblockRequest, Freeze, Gate, ThawRequest};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::service::fleet::{FleetView, Link};
use crate::service::gates::candidate::Candidate;
use crate::service::gates::rules::{FREEZE, Rules, cleared_by, held, open, redeploy};
use crate::service::wording::seconds;

pub(in crate::service) fn freeze(rules: &Rules<'_>, candidate: &Candidate) -> Gate {
    let Some(freeze) = rules.fleet.freeze(&candidate.reference, rules.now) else {
        return open(FREEZE, "no fleet freeze covers it");
    };
    with_freeze(rules.fleet, freeze, held(FREEZE, String::new()))
}

/// Adds to a gate who froze the fleet, why, and until when.
pub(in crate::service) fn with_freeze(fleet: &FleetView, freeze: &Freeze, gate: Gate) -> Gate {
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

pub(in crate::service) fn immunity(rules: &Rules<'_>, candidate: &Candidate) -> Gate {
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

pub(in crate::service) fn ring(rules: &Rules<'_>, candidate: &Candidate) -> Gate {
    if let Some(hold) = candidate.fleet.as_ref().filter(|hold| hold.until > rules.now) {
        let gate = held("ring", hold.why.clone());
        return cleared_by(
            redeploy(rules),
            Gate { lifts_at: Some(hold.until), blocked_by: hold.agent.clone(), ..gate },
        );
    }
    match ring_waits_until(rules, candidate) {
        Some(until) => {
            let why = match rules.fleet.link {
                Link::Away { .. } => {
                    let why =
                        rules.fleet.why_away.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
                    format!("no warden can be asked{why}, and this machine is in ring {}", rules.fleet.ring)
                }
                _ => "the warden's store is away, so no machine can be told that it is its turn".to_owned(),
            };
            cleared_by(redeploy(rules), Gate { lifts_at: Some(until), ..held("ring", why) })
        }
        None => open("ring", "the fleet is asked when no other gate holds it"),
    }
}

/// When the ring gate releases a digest while no warden answers, or none has its store; `None` if it does not hold it.
pub(in crate::service) fn ring_waits_until(rules: &Rules<'_>, candidate: &Candidate) -> Option<Timestamp> {
    let fleet = rules.fleet;
    let since = match fleet.link {
        Link::Away { since } if fleet.ring > 0 => since,
        // The warden is there, and another machine may be trying the digest: ring 0 waits as well.
        Link::Unknown | Link::Present => fleet.store_away?,
        Link::Away { .. } | Link::None => return None,
    };
    let patience = SignedDuration::try_from(fleet.patience).unwrap_or(SignedDuration::MAX);
    // A digest that was first seen during the outage waits for the full time, too.
    let begun = since.max(candidate.first_seen);
    let until = begun.checked_add(patience).unwrap_or(Timestamp::MAX);
    (until > rules.now).then_some(until)
}
