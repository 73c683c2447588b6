//! Gates: the conditions that hold an update, and how to clear them (DECISIONS 7).
//!
//! Pure functions of state, configuration and time. They are shared by the decision to begin an update, `/why`, the
//! record's `waiting`, the web page and the command line. To add a gate, add a function and a row: to [`GATES`] if it keeps
//! a check from finding an update, to [`DIGEST_GATES`] if it holds a digest that was found.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use evenkeel_common::wire::{DeployPhase, DeployProgress, Gate, ServiceStatus, Waiting, WhyReport};
use jiff::{SignedDuration, Timestamp};

use crate::config::UpdateConfig;
use crate::model::Obstacle;
use crate::model::image::Digest;
use crate::model::image_config::ConfigDifference;
use crate::ports::{GateAnswer, PullProgress};

use super::Service;
use super::candidate::Candidate;
use super::fleet::FleetView;
use super::input::Unsigned;
use super::running::ImageState;
use super::status::StatusContext;
use super::wording::{self, seconds};

mod config;
mod fleet;
mod project;

use config::{config, faulty, probes_nothing};
use fleet::{freeze, immunity, ring};
pub(super) use project::own_hold;
use project::project;

/// The input of a gate.
struct View<'a> {
    record: &'a ServiceStatus,
    service: &'a Service,
    candidates: &'a [Candidate],
    registry_error: Option<&'a str>,
    context: &'a StatusContext<'a>,
}

/// The gates that apply before a digest is found, in evaluation order.
const GATES: [fn(&View<'_>) -> Gate; 7] = [config, engine, registry, deploying, blocked, not_found, fault];

/// Who requested an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// A poll cycle.
    Cycle,
    /// `POST /trigger/<name>`.
    Trigger,
    /// `POST /redeploy/<name>`.
    Redeploy,
}

/// A gate that applies to a digest that was found.
struct DigestGate {
    word: &'static str,
    is_configured: fn(&Rules<'_>) -> bool,
    judge: fn(&Rules<'_>, &Candidate) -> Gate,
    passed_by: &'static [Asker],
}

const CONFIG: &str = "config";
const DEFINITION: &str = "definition";
const SIGNATURE: &str = "signature";
const COMMAND: &str = "command";
const BREAKING: &str = "breaking";
const ORDER: &str = "order";
const SNAPSHOT: &str = "snapshot";

/// The gates of a digest, in the order of DECISIONS 7. `project` is the result of these gates for other services that use
/// the same image (`shared.rs`).
const DIGEST_GATES: [DigestGate; 14] = [
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
        word: "freeze",
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
    // No request passes it: the copy was asked for, and without room there is none.
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

impl DigestGate {
    /// The state of the gate while there is no digest to hold.
    fn idle(&self, view: &View<'_>) -> Gate {
        let frozen = fleet::freeze_in_force(view).filter(|_| self.word == "freeze");
        frozen.unwrap_or_else(|| open(self.word, "there is no update to hold"))
    }
}

/// The input of the digest gates.
#[derive(Clone, Copy)]
pub(super) struct Rules<'a> {
    /// The service's name.
    pub(super) service: &'a str,
    /// The configured gates.
    pub(super) update: &'a UpdateConfig,
    /// The fleet's decisions.
    pub(super) fleet: &'a FleetView,
    /// Whether another service of the project may hold an image of this one.
    is_shared: bool,
    /// Who requested the update.
    asker: Asker,
    /// The current time.
    pub(super) now: Timestamp,
}

/// The configuration of a service without its own gates.
static NO_GATES: LazyLock<UpdateConfig> = LazyLock::new(UpdateConfig::default);

impl<'a> Rules<'a> {
    /// Creates the rules.
    pub(super) fn of(
        service: &'a str,
        update: Option<&'a UpdateConfig>,
        fleet: &'a FleetView,
        is_shared: bool,
        asker: Asker,
        now: Timestamp,
    ) -> Self {
        let update = update.unwrap_or(&NO_GATES);
        Self { service, update, fleet, is_shared, asker, now }
    }

    /// The same rules for another requester.
    pub(super) fn for_asker(self, asker: Asker) -> Self {
        Self { asker, ..self }
    }
}

impl Rules<'_> {
    /// The gates that hold a digest, in order.
    fn holds<'a>(&'a self, candidate: &'a Candidate) -> impl Iterator<Item = (&'static str, Gate)> + 'a {
        let asker =
            if self.asker == Asker::Cycle && candidate.triggered { Asker::Trigger } else { self.asker };
        let rules = self.for_asker(asker);
        let rows = DIGEST_GATES.iter().filter(move |row| (row.is_configured)(self));
        let rows = rows.filter(move |row| !row.passed_by.contains(&asker));
        rows.map(move |row| (row.word, (row.judge)(&rules, candidate))).filter(|(_, gate)| gate.holds)
    }

    /// The first gate that holds a digest.
    pub(super) fn first_hold(&self, candidate: &Candidate) -> Option<Gate> {
        self.holds(candidate).map(|(_, gate)| gate).next()
    }

    /// The first of these digests that a gate holds, and the gate. Status and announcements are based on this.
    pub(super) fn first_held<'a>(&self, candidates: &'a [Candidate]) -> Option<(&'a Candidate, Gate)> {
        candidates.iter().find_map(|candidate| Some((candidate, self.first_hold(candidate)?)))
    }

    /// When the next gate that holds a digest opens by itself.
    pub(super) fn lifts_at(&self, candidate: &Candidate) -> Option<Timestamp> {
        let lifts = self.holds(candidate).filter_map(|(_, gate)| gate.lifts_at);
        lifts.filter(|at| *at > self.now).min()
    }

    /// Whether no gate before the gate command holds a digest.
    pub(super) fn may_ask_command(&self, candidate: &Candidate) -> bool {
        self.holds(candidate).next().is_none_or(|(first, _)| {
            let place = |word: &str| DIGEST_GATES.iter().position(|row| row.word == word);
            place(first) >= place(COMMAND)
        })
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

/// The gate of a digest that an operator has replaced.
pub(super) fn declined(service: &str, image: &str, digest: &Digest) -> Gate {
    let why = wording::swarm::declined(image, digest);
    cleared_by(format!("POST /trigger/{service}"), held("blocked", why))
}

/// Whether the gate's decision is final: the command has answered, or the signatures were read.
pub(super) fn is_decided(gate: &Gate, candidate: &Candidate) -> bool {
    let is_unread = matches!(candidate.unsigned, Some(Unsigned::Unknown(_) | Unsigned::Elsewhere(_)));
    match gate.gate.as_str() {
        COMMAND => candidate.command.is_some(),
        BREAKING => candidate.configs.is_some(),
        SIGNATURE => !is_unread,
        _ => true,
    }
}

/// The state of each digest gate for the first held digest, or else for the first candidate.
fn digest_gates<'a>(view: &'a View<'_>) -> impl Iterator<Item = Gate> + 'a {
    let rules = view.service.rules(view.context.now);
    let held = rules.first_held(view.candidates).map(|(candidate, _)| candidate);
    let candidate = held.or(view.candidates.first());
    // The first gate of all has reported a faulty configuration already.
    let rows = DIGEST_GATES.iter().filter(|row| row.word != CONFIG);
    rows.map(move |row| match (Some(rules).filter(|rules| (row.is_configured)(rules)), candidate) {
        (None, _) => open(row.word, "not configured"),
        (Some(_), None) => row.idle(view),
        (Some(rules), Some(candidate)) => (row.judge)(&rules, candidate),
    })
}

fn definition(rules: &Rules<'_>, candidate: &Candidate) -> Gate {
    let Some(hold) = &candidate.definition else {
        return open(DEFINITION, "nothing but the image would change");
    };
    cleared_by(redeploy(rules), held(DEFINITION, wording::definition_differs(hold, rules.service)))
}

fn order(_: &Rules<'_>, candidate: &Candidate) -> Gate {
    let can = |(_, obstacle): &(&String, &Option<Obstacle>)| obstacle.is_none();
    let (first, rest): (Vec<_>, Vec<_>) = candidate.orders.iter().partition(can);
    let first: Vec<&str> = first.into_iter().map(|(service, _)| service.as_str()).collect();
    let obstacles = rest.into_iter().filter_map(|(service, why)| Some((service.clone(), why.clone()?)));
    let obstacles: BTreeMap<String, Obstacle> = obstacles.collect();
    let starts = (!first.is_empty()).then(|| wording::handover::starts_first(&first));
    let stops = (!obstacles.is_empty())
        .then(|| format!("stopped before the update: {}", wording::handover::stopped_first(&obstacles)));
    let parts: Vec<String> = starts.into_iter().chain(stops).collect();
    let usual = "the old containers are stopped before the new ones start";
    open(ORDER, if parts.is_empty() { usual.to_owned() } else { parts.join("; ") })
}

fn redeploy(rules: &Rules<'_>) -> String {
    format!("POST /redeploy/{}", rules.service)
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
    cleared_by("sign the image with a key of signed_by", held(SIGNATURE, why))
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
        Some(Ok(seen)) => match wording::snapshot::lacks_room(seen, wanted) {
            None => return open(SNAPSHOT, wording::snapshot::will_copy(seen)),
            Some(why) => (why, "make room, or raise update.snapshot.max_mib"),
        },
    };
    cleared_by(clear, held(SNAPSHOT, why))
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

fn trigger(rules: &Rules<'_>) -> String {
    format!("POST /trigger/{}", rules.service)
}

/// The state of every gate of a service, with the first reason in one sentence.
pub fn why(service: &Service, context: &StatusContext<'_>) -> WhyReport {
    let record = service.record(PullProgress::default(), context);
    let candidates = service.seen_candidates();
    let registry_error = service.registry_error();
    let registry_error = registry_error.as_deref();
    let view = View { record: &record, service, candidates: &candidates, registry_error, context };
    let before = GATES.iter().map(|gate| gate(&view));
    let gates: Vec<Gate> = before.chain(digest_gates(&view)).chain([schedule(&view)]).collect();
    let held = gates.iter().find(|gate| gate.holds && gate.gate != SCHEDULE);
    let answer = held.map_or_else(|| nothing_to_do(&view), |gate| gate.why.clone());
    WhyReport { service: record.name.clone(), answer, gates }
}

const SCHEDULE: &str = "schedule";

fn open(gate: &str, why: impl Into<String>) -> Gate {
    Gate {
        gate: gate.to_owned(),
        holds: false,
        why: why.into(),
        lifts_at: None,
        clear: None,
        blocked_by: None,
        output: None,
    }
}

fn held(gate: &str, why: impl Into<String>) -> Gate {
    Gate { holds: true, ..open(gate, why) }
}

fn cleared_by(clear: impl Into<String>, gate: Gate) -> Gate {
    Gate { clear: Some(clear.into()), ..gate }
}

fn engine(view: &View<'_>) -> Gate {
    match (view.context.engine_error, view.context.state_error) {
        (Some(error), _) => held("engine", format!("the container engine does not answer: {error}")),
        (None, Some(error)) => held("engine", error),
        (None, None) => open("engine", "the container engine answers"),
    }
}

fn registry(view: &View<'_>) -> Gate {
    match view.registry_error {
        Some(text) => Gate { lifts_at: view.record.next_check, ..held("registry", text) },
        None => open("registry", "the registry answered the last check"),
    }
}

fn deploying(view: &View<'_>) -> Gate {
    match &view.record.deploy {
        Some(progress) => Gate {
            lifts_at: progress.deadline,
            ..held("deploying", describe(progress, view.service.config().swarm_service.as_deref()))
        },
        None => match view.service.waits_for() {
            Some(other) => held("deploying", wording::waits_for_sibling(&other)),
            None => open("deploying", "no deployment is in progress"),
        },
    }
}

fn describe(progress: &DeployProgress, swarm_service: Option<&str>) -> String {
    let image = &progress.image;
    match progress.phase {
        DeployPhase::Pulling if progress.total_bytes > 0 => {
            let percent = progress.pulled_bytes.saturating_mul(100) / progress.total_bytes;
            format!("{image} is being pulled ({percent} %)")
        }
        DeployPhase::Pulling => format!("{image} is being pulled"),
        DeployPhase::Starting => match swarm_service {
            Some(service) => format!("the swarm is replacing the tasks of {service} with {image}"),
            None => format!("the project is being started with {image}"),
        },
        DeployPhase::Probation => match &progress.probe {
            Some(probe) => format!("{image} is on probation; {}", wording::probed(probe)),
            None => format!("{image} is on probation"),
        },
        DeployPhase::RollingBack => format!("{image} failed and is being rolled back"),
        DeployPhase::Spreading => format!("{image} is being started beside the old containers"),
        DeployPhase::Draining => format!("{image} is proven; the old containers are being drained"),
        DeployPhase::Retiring => format!("{image} is proven; the old containers are being stopped"),
        DeployPhase::Soaking => format!("{image} serves alone and is on probation once more"),
        DeployPhase::Settling => format!("{image} is proven; the old containers are being removed"),
        DeployPhase::Quiescing => {
            format!("what writes to the data is being stopped before {image} is started")
        }
        DeployPhase::Copying => format!("the data is being copied before {image} is started"),
        DeployPhase::Restoring => format!("{image} failed; the data is being put back"),
    }
}

fn blocked(view: &View<'_>) -> Gate {
    let images = &view.service.durable().images;
    let Some((image, digest)) = images.blocked().next() else {
        if let Some((image, digest)) = images.declined().next() {
            return declined(&view.record.name, image, digest);
        }
        return open("blocked", "no digest is blocked");
    };
    let failed = view.record.failed_update.as_ref();
    let because = failed.map(|failed| wording::failed_because(&failed.reason, failed.at)).unwrap_or_default();
    let why = format!("{image}: {}{because}", wording::blocked(digest));
    let output = failed.map(|failed| failed.output.clone()).filter(|output| !output.is_empty());
    let gate = Gate { output, ..held("blocked", why) };
    cleared_by(format!("POST /unblock/{}", view.record.name), gate)
}

fn not_found(view: &View<'_>) -> Gate {
    let Some((image, digest)) = view.service.durable().images.not_found().next() else {
        return open("not_found", "every image has a registry digest on this machine");
    };
    let why = format!(
        "{image} has no registry digest on this machine to compare with {digest}; nothing is deployed until the registry \
         has a new digest"
    );
    cleared_by(format!("POST /redeploy/{}", view.record.name), held("not_found", why))
}

/// A fault that is caused neither by the engine nor by a registry: a failed deployment or unusable files.
fn fault(view: &View<'_>) -> Gate {
    let elsewhere = view.context.state_error.is_some() || view.registry_error.is_some();
    match view.record.errored.as_ref().filter(|_| !elsewhere) {
        Some(text) => cleared_by(
            format!("fix it, then POST /trigger/{}", view.record.name),
            Gate { lifts_at: view.record.next_check, ..held("fault", text.clone()) },
        ),
        None => open("fault", "there is no persistent fault"),
    }
}

fn schedule(view: &View<'_>) -> Gate {
    match view.record.next_check {
        Some(at) if at > view.context.now => cleared_by(
            format!("POST /trigger/{}", view.record.name),
            Gate { lifts_at: Some(at), ..held(SCHEDULE, format!("the next check is at {}", seconds(at))) },
        ),
        Some(_) => open(SCHEDULE, "a check is due"),
        None => held(SCHEDULE, "no poll cycle checks this service"),
    }
}

/// The answer if no gate holds: an update is about to begin, or the service is up to date as of the last check.
fn nothing_to_do(view: &View<'_>) -> String {
    let next = view.record.next_check.map(|at| format!("; the next check is at {}", seconds(at)));
    let next = next.unwrap_or_default();
    let runs = |image: &ImageState| {
        let proven = image.proven_at.map(|at| format!(", proven at {}", seconds(at))).unwrap_or_default();
        image.running.as_ref().map(|digest| format!("; {} runs{proven}", digest.short()))
    };
    let runs: String = view.service.image_states().iter().filter_map(runs).collect();
    let frozen = fleet::freeze_in_force(view).map(|gate| format!("; {}", gate.why)).unwrap_or_default();
    let unlisted: String = view.service.unlisted_tags().map(|why| format!("; {why}")).collect();
    if view.service.wants_update() {
        return format!("an update was found, and begins now{runs}");
    }
    match view.record.last_check {
        Some(at) => format!("up to date as of the check at {}{runs}{next}{frozen}{unlisted}", seconds(at)),
        None => format!("not checked yet{next}{frozen}"),
    }
}

#[cfg(test)]
#[path = "gates_tests.rs"]
mod tests;
