//! Gates: the conditions that hold an update, and how to clear them (DECISIONS 7).
//!
//! Pure functions of state, configuration and time. They are shared by the decision to begin an update, `/why`, the
//! record's `waiting`, the web page and the command line. To add a gate that holds a digest, add a
//! function and a row to [`DIGEST_GATES`]. Those that keep a check from finding a digest are in `view/why.rs`.

pub mod candidate;
pub mod command;
pub mod config;
pub mod fleet;
pub mod permit;
pub mod rules;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use evenkeel_common::wire::{Gate, Waiting};
use jiff::{SignedDuration, Timestamp};

use crate::model::Obstacle;
use crate::model::image::Digest;
use crate::model::image_config::ConfigDifference;
use crate::ports::GateAnswer;
use crate::service::fleet::FleetView;
use crate::service::gates::candidate::{Candidate, SharedCandidate, SnapshotSeen, Unsigned};
use crate::service::gates::config::{faulty, probes_nothing};
use crate::service::gates::fleet::{freeze, immunity, ring};
use crate::service::gates::rules::{Asker, CONFIG, FREEZE, Rules, cleared_by, held, open, redeploy, trigger};
use crate::service::wording;
use crate::service::wording::seconds;

/// The fleet view used when the fleet does not matter.
pub(in crate::service) static NO_FLEET: LazyLock<FleetView> = LazyLock::new(FleetView::default);

/// A gate that applies to a digest that was found.
pub(in crate::service) struct DigestGate {
    /// Its name.
    pub(in crate::service) word: &'static str,
    /// Whether the service has it.
    pub(in crate::service) is_configured: fn(&Rules<'_>) -> bool,
    /// Its state for a digest, whoever asks for the update.
    judge: fn(&Rules<'_>, &Candidate) -> Gate,
    passed_by: &'static [Asker],
}

const DEFINITION: &str = "definition";
const SIGNATURE: &str = "signature";
const COMMAND: &str = "command";
const BREAKING: &str = "breaking";
const ORDER: &str = "order";
const SNAPSHOT: &str = "snapshot";

/// How an unsigned image becomes deployable.
pub(in crate::service) const SIGN: &str = "sign the image with a key of signed_by";

/// The gates of a digest, in the order of DECISIONS 7. `project` is the result of these gates for other services that use
/// the same image (`decide/shared.rs`).
pub(in crate::service) const DIGEST_GATES: [DigestGate; 14] = [
    // A gate that is configured wrongly was meant to hold something back.
    DigestGate {
        word: CONFIG,
        is_configured: |rules| rules.update.fault.is_some() || rules.update.probe.is_some(),
        judge: |rules, candidate| {
            let fault = faulty(rules.update).or_else(|| probes_nothing(candidate));
            fault.unwrap_or_else(|| open(CONFIG, "the gates are valid"))
        },
        passed_by: &[Asker::Redeploy],
    },
    // The image changes and nothing else: only a person may bring up what the files define by now.
    DigestGate {
        word: DEFINITION,
        is_configured: |_| true,
        judge: definition,
        passed_by: &[Asker::Redeploy],
    },
    DigestGate {
        word: FREEZE,
        is_configured: |rules| rules.fleet.is_gating(),
        judge: freeze,
        passed_by: &[Asker::Redeploy],
    },
    DigestGate {
        word: "immunity",
        is_configured: |rules| rules.fleet.is_gating(),
        judge: immunity,
        passed_by: &[Asker::Redeploy],
    },
    DigestGate {
        word: "ring",
        is_configured: |rules| rules.fleet.is_gating(),
        judge: ring,
        passed_by: &[Asker::Redeploy],
    },
    // Covers signatures that another service of the project requires; no request bypasses those either.
    DigestGate {
        word: SIGNATURE,
        is_configured: |rules| !rules.update.signed_by.is_empty() || rules.is_shared,
        judge: signature,
        passed_by: &[],
    },
    DigestGate {
        word: COMMAND,
        is_configured: |rules| !rules.update.gate.is_empty(),
        judge: command,
        passed_by: &[Asker::Redeploy],
    },
    DigestGate {
        word: "approval",
        is_configured: |rules| rules.update.approve,
        judge: approval,
        passed_by: &[Asker::Trigger, Asker::Redeploy],
    },
    // A change that only a person can judge; a trigger says nothing about it.
    DigestGate { word: BREAKING, is_configured: |_| true, judge: breaking, passed_by: &[Asker::Redeploy] },
    // No request passes it: the copy was asked for, and without room there is none. That it waits after a failure, it knows
    // by itself who asks.
    DigestGate {
        word: SNAPSHOT,
        is_configured: |rules| rules.update.snapshot.is_some(),
        judge: snapshot,
        passed_by: &[],
    },
    DigestGate {
        word: "min_age",
        is_configured: |rules| rules.update.min_age.is_some(),
        judge: min_age,
        passed_by: &[Asker::Trigger, Asker::Redeploy],
    },
    DigestGate {
        word: "window",
        is_configured: |rules| rules.update.window.is_some(),
        judge: window,
        passed_by: &[Asker::Trigger, Asker::Redeploy],
    },
    // Never holds: it says whether the update interrupts the service, and why.
    DigestGate { word: ORDER, is_configured: |_| true, judge: order, passed_by: &[] },
    // A request that bypasses one of the service's own gates bypasses the same gate of the other services.
    DigestGate {
        word: "project",
        is_configured: |rules| rules.is_shared,
        judge: project,
        passed_by: &[Asker::Redeploy],
    },
];

/// The place of a gate in [`DIGEST_GATES`].
pub(super) fn place(word: &str) -> Option<usize> {
    DIGEST_GATES.iter().position(|row| row.word == word)
}

impl Rules<'_> {
    /// The state of a gate for a digest: a request that passes the gate opens it.
    pub(super) fn judge(&self, row: &DigestGate, candidate: &Candidate) -> Gate {
        let asker =
            if self.asker == Asker::Cycle && candidate.triggered { Asker::Trigger } else { self.asker };
        let gate = (row.judge)(&self.for_asker(asker), candidate);
        let is_passed = gate.holds && row.passed_by.contains(&asker);
        if is_passed { open(row.word, "a request has passed it") } else { gate }
    }

    /// The gates that hold a digest, in order.
    fn holds<'a>(&'a self, candidate: &'a Candidate) -> impl Iterator<Item = (&'static str, Gate)> + 'a {
        let rows = DIGEST_GATES.iter().filter(move |row| (row.is_configured)(self));
        rows.map(move |row| (row.word, self.judge(row, candidate))).filter(|(_, gate)| gate.holds)
    }

    /// The first gate that holds a digest.
    pub(super) fn first_hold(&self, candidate: &Candidate) -> Option<Gate> {
        self.holds(candidate).map(|(_, gate)| gate).next()
    }

    /// When the next gate that holds a digest opens by itself.
    pub(super) fn lifts_at(&self, candidate: &Candidate) -> Option<Timestamp> {
        let lifts = self.holds(candidate).filter_map(|(_, gate)| gate.lifts_at);
        lifts.filter(|at| *at > self.now).min()
    }

    /// Whether a gate after the gate command has opened by itself since then.
    pub(super) fn has_lifted_since(&self, candidate: &Candidate, then: Timestamp) -> bool {
        let earlier = Self { now: then, ..*self };
        let later = earlier.holds(candidate).filter(|(word, _)| place(word) > place(COMMAND));
        let mut lifted = later.filter_map(|(_, gate)| gate.lifts_at);
        lifted.any(|at| at > then && at <= self.now)
    }

    /// Whether no gate before the gate command holds a digest.
    pub(super) fn may_ask_command(&self, candidate: &Candidate) -> bool {
        self.holds(candidate).next().is_none_or(|(first, _)| place(first) >= place(COMMAND))
    }

    /// Whether a digest waits for an approval, possibly along with other gates.
    pub(super) fn awaits_approval(&self, candidate: &Candidate) -> bool {
        let is_asked = self.update.approve || candidate.played_back.is_some();
        (is_asked || breaking(self, candidate).holds) && !candidate.approved
    }
}

/// The status record of a digest that waits for this gate.
pub(super) fn waiting(image: &str, digest: &Digest, gate: Gate, differences: &[ConfigDifference]) -> Waiting {
    Waiting {
        differences: differences.iter().map(ToString::to_string).collect(),
        image: image.to_owned(),
        digest: digest.to_string(),
        gate: gate.gate,
        why: gate.why,
        lifts_at: gate.lifts_at,
        clear: gate.clear.unwrap_or_default(),
        blocked_by: gate.blocked_by,
        output: gate.output,
    }
}

/// The gate of a digest that failed here before, and that the tag points to again.
pub(super) fn failed_before(service: &str, image: &str, digest: &Digest) -> Gate {
    let why = format!("{} of {image} has failed here before, and is blocked again", digest.short());
    cleared_by(format!("POST /unblock/{service}"), held("blocked", why))
}

/// The gate of a digest that another service of the project has blocked.
pub(super) fn blocked_elsewhere(image: &str, digest: &Digest, service: &str) -> Gate {
    let why = format!("{image}: {}", wording::blocked_elsewhere(digest, service));
    cleared_by(format!("POST /unblock/{service}"), held("blocked", why))
}

/// The gate of a digest that an operator has replaced.
pub(super) fn declined(service: &str, image: &str, digest: &Digest) -> Gate {
    let why = wording::declined(image, digest);
    cleared_by(format!("POST /trigger/{service}"), held("blocked", why))
}

/// The gate of a tag that a person has replaced with an older one.
pub(super) fn declined_tag(service: &str, image: &str, tag: &str) -> Gate {
    let (why, _) = wording::tag_declined(image, tag);
    cleared_by(format!("POST /trigger/{service}"), held("blocked", why))
}

/// Whether the gate's decision is final: the command has answered, or the signatures were read.
pub(super) fn is_decided(gate: &Gate, candidate: &Candidate) -> bool {
    let is_unread = matches!(candidate.unsigned, Some(Unsigned::Unknown(_) | Unsigned::Elsewhere { .. }));
    match gate.gate.as_str() {
        COMMAND => candidate.command.is_some(),
        BREAKING => candidate.configs.is_some(),
        SIGNATURE => !is_unread,
        _ => true,
    }
}

fn definition(rules: &Rules<'_>, candidate: &Candidate) -> Gate {
    let Some(hold) = &candidate.definition else {
        return open(DEFINITION, "nothing but the image would change");
    };
    let clear = wording::definition_cleared_by(hold, rules.service);
    cleared_by(clear, held(DEFINITION, wording::definition_differs(hold, rules.service)))
}

fn order(_: &Rules<'_>, candidate: &Candidate) -> Gate {
    let can = |(_, obstacle): &(&String, &Option<Obstacle>)| obstacle.is_none();
    let (first, rest): (Vec<_>, Vec<_>) = candidate.orders.iter().partition(can);
    let first: Vec<&str> = first.into_iter().map(|(service, _)| service.as_str()).collect();
    let obstacles = rest.into_iter().filter_map(|(service, why)| Some((service.clone(), why.clone()?)));
    let obstacles: BTreeMap<String, Obstacle> = obstacles.collect();
    let starts = (!first.is_empty()).then(|| wording::handover::starts_first(&first));
    let stops = wording::handover::stopped_first(&obstacles);
    let parts: Vec<String> = starts.into_iter().chain(stops).collect();
    let usual = "the old containers are stopped before the new ones start";
    open(ORDER, if parts.is_empty() { usual.to_owned() } else { parts.join("; ") })
}

/// Only a valid signature opens this gate, and for a digest of former times a person's approval as well (DECISIONS 7).
fn signature(rules: &Rules<'_>, candidate: &Candidate) -> Gate {
    let Some(unsigned) = &candidate.unsigned else {
        if let Some(played_back) = candidate.played_back.filter(|_| !candidate.approved) {
            let why = wording::played_back(&candidate.image, &candidate.digest, played_back);
            return cleared_by(format!("POST /approve/{}", rules.service), held(SIGNATURE, why));
        }
        return open(SIGNATURE, "its signature is accepted");
    };
    let why = wording::unsigned(&candidate.image, &candidate.digest, unsigned);
    let clear = match unsigned {
        Unsigned::Elsewhere { clear, .. } => clear.as_str(),
        _ => SIGN,
    };
    cleared_by(clear, held(SIGNATURE, why))
}

fn command(rules: &Rules<'_>, candidate: &Candidate) -> Gate {
    let program = rules.update.gate.first().map_or("", String::as_str);
    let because = |reason: &str| if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let why = match &candidate.command {
        Some(GateAnswer::Go { reason }) => {
            return open(COMMAND, format!("{program} allows it{}", because(reason)));
        }
        Some(GateAnswer::Wait { reason }) => format!("{program} holds it back{}", because(reason)),
        Some(GateAnswer::Failed { fault, reason }) => {
            format!("{program} gave no answer ({fault}){}", because(reason))
        }
        None => format!("{program} has not answered yet"),
    };
    cleared_by(redeploy(rules), held(COMMAND, why))
}

fn approval(rules: &Rules<'_>, candidate: &Candidate) -> Gate {
    if candidate.approved {
        return open("approval", "it was approved");
    }
    let why = format!("nobody has approved {} of {} yet", candidate.digest.short(), candidate.image);
    cleared_by(format!("POST /approve/{}", rules.service), held("approval", why))
}

/// Whether the data can be copied before the update, judged before anything is pulled.
fn snapshot(rules: &Rules<'_>, candidate: &Candidate) -> Gate {
    let Some(wanted) = &rules.update.snapshot else { return open(SNAPSHOT, "not configured") };
    let (why, clear) = match &candidate.snapshot {
        None => ("the data has not been looked at yet".to_owned(), "wait for the next check"),
        Some(Err(why)) => (why.clone(), "correct the configuration, or make the data visible to the agent"),
        Some(Ok(seen)) => match wording::snapshot::lacks_room(seen, wanted, true) {
            None => return copied_again(rules, candidate, seen),
            Some(why) => (why, "make room, or raise update.snapshot.max_mib"),
        },
    };
    cleared_by(clear, held(SNAPSHOT, why))
}

/// Holds an update whose data could not be copied: each attempt is an outage, so the next one waits, unless a person asks.
fn copied_again(rules: &Rules<'_>, candidate: &Candidate, seen: &SnapshotSeen) -> Gate {
    let waits = candidate.not_copied.as_ref().filter(|failed| failed.until > rules.now);
    let Some(failed) = waits.filter(|_| rules.asker == Asker::Cycle) else {
        return open(SNAPSHOT, wording::snapshot::will_copy(seen));
    };
    let gate = held(SNAPSHOT, wording::snapshot::copied_again(failed));
    cleared_by(trigger(rules), Gate { lifts_at: Some(failed.until), ..gate })
}

/// Holds an update whose image differs in what `ask_on` names, and one that can't be compared.
fn breaking(rules: &Rules<'_>, candidate: &Candidate) -> Gate {
    let asks_on = &rules.update.ask_on;
    let differences = candidate.config_differences();
    if asks_on.is_empty() {
        return match differences {
            [] => open(BREAKING, "not configured"),
            all => open(
                BREAKING,
                format!(
                    "not configured; the new image {}",
                    wording::one_sentence(all.iter().map(ToString::to_string))
                ),
            ),
        };
    }
    if candidate.approved {
        return open(BREAKING, "it was approved");
    }
    let subject = format!("{} of {}", candidate.digest.short(), candidate.image);
    let why = match &candidate.configs {
        None => format!("{subject} has not been compared with the running image yet"),
        Some(Err(why)) => format!("{subject} can't be compared with the running image: {why}"),
        Some(Ok(_)) => {
            let asked = differences.iter().filter(|one| asks_on.contains(&one.aspect));
            let asked = wording::one_sentence(asked.map(ToString::to_string));
            if asked.is_empty() {
                return open(BREAKING, "the new image differs in nothing that ask_on names");
            }
            format!("{subject} {asked}")
        }
    };
    cleared_by(format!("POST /approve/{}", rules.service), held(BREAKING, why))
}

fn min_age(rules: &Rules<'_>, candidate: &Candidate) -> Gate {
    let age = SignedDuration::try_from(rules.update.min_age.unwrap_or_default());
    let age = age.unwrap_or(SignedDuration::MAX);
    let lifts_at = candidate.first_seen.checked_add(age).unwrap_or(Timestamp::MAX);
    let why = format!("first seen at {}", seconds(candidate.first_seen));
    if lifts_at <= rules.now {
        return open("min_age", format!("{why}, which is long enough ago"));
    }
    let gate = held("min_age", format!("{why}; it must be {} s old", age.as_secs()));
    cleared_by(trigger(rules), Gate { lifts_at: Some(lifts_at), ..gate })
}

fn window(rules: &Rules<'_>, _: &Candidate) -> Gate {
    let Some(window) = &rules.update.window else { return open("window", "not configured") };
    if window.is_open(rules.now) {
        return open("window", "updates may begin at this hour");
    }
    let gate = held("window", format!("updates may not begin at this hour ({})", window.zone()));
    cleared_by(trigger(rules), Gate { lifts_at: window.next_opening(rules.now), ..gate })
}

impl SharedCandidate {
    /// The first gate of that service that holds the digest. Fleet decisions are the same for all services of a machine.
    fn hold(&self, asker: Asker, now: Timestamp) -> Option<Gate> {
        let Self { service, update, candidate } = self;
        let gate = Rules::of(service, Some(update), &NO_FLEET, false, asker, now).first_hold(candidate)?;
        let why = wording::held_elsewhere(service, &gate);
        Some(Gate { why, ..gate })
    }
}

pub(super) fn project(rules: &Rules<'_>, candidate: &Candidate) -> Gate {
    let word = "project";
    let hold = candidate.others.iter().find_map(|other| other.hold(rules.asker, rules.now));
    match hold {
        Some(gate) => Gate { gate: word.to_owned(), ..gate },
        None => open(word, "no other service of the project that uses the image holds it"),
    }
}
