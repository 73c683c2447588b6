//! The decision core: one pure value per service. Facts go in, audit entries and the next action come out.
//!
//! No I/O, no `await`, no clock: time comes in as a value. [`Service::next`] looks at what is known, not at the
//! event that woke it, so that a lost or doubled event changes nothing.
//!
//! | file | what it decides |
//! |---|---|
//! | `deploy.rs` | the life of one deployment, and which step comes next |
//! | `judge.rs` | whether new containers are proven |
//! | `compare.rs` | whether an image is up to date |
//! | `status.rs` | how all this looks from outside |

pub mod action;
mod compare;
pub mod deploy;
pub mod fact;
pub mod judge;
pub mod status;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::wire::{AuditEntry, Kind, Level};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::ServiceConfig;
use crate::image::Digest;
use crate::ports::{Container, Happening, Members, Project, Recreate, State};

use action::{Action, OldImage};
use compare::Verdict as Compared;
use deploy::{Cause, Deployment, Move, Phase};
use fact::{Answer, Ask, CheckFault, Fact, Observation, StepResult, StopTimes};
use judge::{Failure, Rules, Trial, Verdict, Was};

/// Time between two looks at containers on probation.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Events come in bursts: one look after the last of them is enough.
const SETTLE: Duration = Duration::from_millis(300);
/// Wait before a step is taken again because the engine was away.
const ENGINE_RETRY: Duration = Duration::from_secs(1);
/// Wait before the way back is tried again.
const UNDO_RETRY: Duration = Duration::from_secs(2);
/// How often the way back is tried.
const UNDO_ATTEMPTS: u32 = 3;
/// How often a probation may begin anew because the engine broke it off.
const MAX_INTERRUPTIONS: u32 = 10;
/// How many of the last entries are kept with the state, to say again what a crash kept from being written.
const KEEP_SAID: usize = 8;

/// What must last: written before every step and after every change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Durable {
    /// Blocked digest per image as configured (spec 2.6).
    pub blocked: BTreeMap<String, Digest>,
    /// Remote digest per image that could not be resolved locally (spec 2.6).
    pub not_found: BTreeMap<String, Digest>,
    /// Counters (spec 2.1).
    pub totals: Totals,
    /// A way back failed; nothing is done here until someone acts or a new digest arrives.
    pub given_up: bool,
    /// The deployment under way.
    pub deployment: Option<Deployment>,
    /// The last entries: they are recorded after this is written, so a crash in between must not lose them.
    pub said: Vec<AuditEntry>,
}

/// Counters of a service (spec 2.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// New images that passed probation.
    pub updates: u64,
    /// Deployments that were undone.
    pub rollbacks: u64,
    /// Restarts by the healer.
    pub restarts: u64,
    /// Deployments, ways back and restarts that failed.
    pub failures: u64,
}

/// A persistent fault (spec 2.6, errored map).
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fault {
    text: String,
    /// A check that succeeds proves that a fault of an earlier check is over, but not that a deploy works.
    from_check: bool,
}

/// One service: what is configured, what is known, what is under way.
#[derive(Debug)]
pub struct Service {
    config: Arc<ServiceConfig>,
    durable: Durable,
    /// Raised when an action begins or ends: what was read before is stale then.
    generation: u64,
    seen: Option<Observation>,
    containers: Option<Vec<Container>>,
    /// When containers were told to stop through the engine's API.
    stops: StopTimes,
    fault: Option<Fault>,
    wanted: Option<Cause>,
    check_asked: bool,
    check_due: bool,
    checking: bool,
    redeploy_asked: bool,
    stepping: bool,
    /// The engine broke off while a step was being done: its failure may not be the images'.
    gap: bool,
    looking: bool,
    look_at: Option<Timestamp>,
    retry_at: Option<Timestamp>,
    last_check: Option<Timestamp>,
}

impl Service {
    /// A service as it was left, or a fresh one. Says what was taken up again, if anything was.
    pub fn new(config: Arc<ServiceConfig>, durable: Durable, now: Timestamp) -> (Self, Vec<AuditEntry>) {
        let mut service = Self {
            config,
            durable,
            generation: 0,
            seen: None,
            containers: None,
            stops: StopTimes::new(),
            fault: None,
            wanted: None,
            check_asked: false,
            check_due: false,
            checking: false,
            redeploy_asked: false,
            stepping: false,
            gap: false,
            looking: false,
            look_at: Some(now),
            retry_at: None,
            last_check: None,
        };
        let mut entries = Vec::new();
        if let Some(deployment) = &service.durable.deployment {
            let images = names(&deployment.moves);
            let message = format!("taking up the deployment of {images} at step {}", deployment.phase.name());
            let mut entry = service.entry(now, Kind::RESUMED, Level::Info, message);
            if let [only] = &deployment.moves[..] {
                entry.old_digest = only.old_digest.as_ref().map(ToString::to_string);
                entry.new_digest = Some(only.digest.to_string());
            }
            entry.reason = Some("the agent was stopped in the middle of it".into());
            entries.push(entry);
            // Machine and engine may have been restarted too: bring the project up again, then judge anew.
            service.interrupted(now);
        }
        if service.project().is_none() && service.durable.deployment.take().is_some() {
            tracing::warn!(
                service = service.config.name,
                "the deployment under way is dropped: its compose project is no longer configured"
            );
        }
        service.remember(&entries);
        (service, entries)
    }

    /// Its configuration.
    pub fn config(&self) -> &ServiceConfig {
        &self.config
    }

    /// What must last.
    pub fn durable(&self) -> &Durable {
        &self.durable
    }

    /// What compose is given; `None` where the service has no project or no files.
    pub fn project(&self) -> Option<Project> {
        let name = self.config.compose_project.clone()?;
        (!self.config.compose_files.is_empty()).then(|| Project {
            name,
            files: self.config.compose_files.clone(),
            env_file: self.config.env_file.clone(),
        })
    }

    fn members(&self) -> Option<Members> {
        let project = self.config.compose_project.clone().map(Members::Project);
        project.or_else(|| self.config.container_name.clone().map(Members::Name))
    }

    /// Whether a deployment is under way. One that is decided and only tidies up does not count.
    pub fn is_deploying(&self) -> bool {
        self.durable.deployment.as_ref().is_some_and(|d| !matches!(d.phase, Phase::Release))
    }

    /// Whether it needs the compose project for itself, now or as soon as it can have it.
    pub fn wants_project(&self) -> bool {
        self.durable.deployment.is_some() || self.wanted.is_some()
    }

    /// The project had to be waited for: what was planned before is out of date.
    pub fn plan_anew(&mut self) {
        if let Some(cause) = self.wanted.take() {
            self.check_due = true;
            self.redeploy_asked |= cause == Cause::Redeploy;
        }
    }

    /// A check is due (a poll cycle, or somebody asked). Whether one will follow.
    pub fn check(&mut self) -> bool {
        if self.is_deploying() || self.wanted.is_some() || !self.can_check() {
            return false;
        }
        self.check_due = true;
        true
    }

    fn can_check(&self) -> bool {
        self.config.auto_update && !self.config.silent
    }

    /// Look at the containers soon.
    pub fn look(&mut self, now: Timestamp) {
        self.look_at = Some(self.look_at.map_or(now, |at| at.min(now)));
    }

    /// A person asks.
    pub fn ask(&mut self, ask: Ask, now: Timestamp) -> (Answer, Vec<AuditEntry>) {
        let mut entries = Vec::new();
        let answer = match ask {
            Ask::Check if !self.config.auto_update => Answer::Skipped("auto_update is false"),
            Ask::Check | Ask::Redeploy if self.is_deploying() => Answer::Skipped("deploy in progress"),
            Ask::Check => {
                self.check_asked = true;
                self.check_due = true;
                entries.push(self.entry(now, Kind::MANUAL_TRIGGER, Level::Info, "a check was asked for"));
                Answer::Accepted
            }
            Ask::Redeploy if self.project().is_none() => Answer::Skipped("no compose files configured"),
            Ask::Redeploy => {
                self.redeploy_asked = true;
                self.check_due = true;
                Answer::Accepted
            }
            Ask::Unblock if self.durable.blocked.is_empty() => {
                self.durable.given_up = false;
                Answer::NotBlocked
            }
            Ask::Unblock => {
                let blocked = std::mem::take(&mut self.durable.blocked);
                self.durable.given_up = false;
                let images: Vec<String> =
                    blocked.iter().map(|(image, digest)| format!("{image} ({digest})")).collect();
                let message =
                    format!("the block of {} was lifted; the next check may deploy it", images.join(", "));
                let mut entry = self.entry(now, Kind::UNBLOCKED, Level::Info, message);
                entry.old_digest = blocked.values().next().map(ToString::to_string);
                entry.reason = Some("asked for by a person".into());
                entries.push(entry);
                Answer::Unblocked
            }
        };
        self.remember(&entries);
        (answer, entries)
    }

    /// Takes a fact in; says what is worth an audit entry.
    pub fn apply(&mut self, fact: Fact, now: Timestamp) -> Vec<AuditEntry> {
        let mut entries = Vec::new();
        match fact {
            Fact::Checked { generation, asked, result } => {
                self.checking = false;
                if generation == self.generation {
                    self.checked(asked, result, now, &mut entries);
                } else {
                    // An action began or ended while the world was read: read it again.
                    self.check_due = self.can_check() || self.redeploy_asked;
                    self.check_asked |= asked;
                }
            }
            Fact::Looked { generation, result } => {
                self.looking = false;
                if generation == self.generation {
                    self.looked(result, now, &mut entries);
                } else {
                    self.look_at = Some(now);
                }
            }
            Fact::Stepped(result) => {
                self.stepping = false;
                self.generation += 1;
                self.stepped(result, now, &mut entries);
            }
            Fact::Event { at, id, what } => self.event(at, id, &what, now),
            Fact::EngineGap => {
                self.gap = self.stepping;
                self.look_at = Some(now);
                self.interrupted(now);
            }
        }
        self.remember(&entries);
        entries
    }

    /// The next thing to do, if there is one; marks it as begun. `leased`: whether the compose project is ours.
    pub fn next(&mut self, now: Timestamp, leased: bool) -> Option<Action> {
        if let (Some(project), Some(deployment)) = (self.project(), &self.durable.deployment) {
            let waiting = self.retry_at.is_some_and(|at| at > now);
            if self.stepping || waiting || !leased {
                return None;
            }
            self.retry_at = None;
            if let Some(step) = deployment.step(&project) {
                self.stepping = true;
                self.gap = false;
                self.generation += 1;
                return Some(Action::Step(step));
            }
            return self.next_look(now);
        }
        if let (Some(cause), true) = (self.wanted, leased) {
            self.wanted = None;
            if self.begin(cause, now) {
                return self.next(now, leased);
            }
        }
        if self.check_due && !self.checking && self.wanted.is_none() {
            self.check_due = false;
            self.checking = true;
            let mut settled = self.durable.blocked.clone();
            settled.extend(self.durable.not_found.clone());
            let asked = std::mem::take(&mut self.check_asked);
            return Some(Action::Check { generation: self.generation, asked, settled });
        }
        self.next_look(now)
    }

    /// An action could not be begun after all (its journal could not be written): it is due as before.
    pub fn take_back(&mut self, action: Action) {
        match action {
            Action::Check { asked, .. } => {
                self.checking = false;
                self.check_due = true;
                self.check_asked |= asked;
            }
            Action::Look { .. } => {
                self.looking = false;
                self.look_at = Some(Timestamp::MIN);
            }
            Action::Step(_) => self.stepping = false,
        }
    }

    /// Whether images are being fetched right now.
    pub fn is_pulling(&self) -> bool {
        self.stepping && self.durable.deployment.as_ref().is_some_and(|d| matches!(d.phase, Phase::Pull))
    }

    /// Whether a step is being done right now.
    pub fn is_stepping(&self) -> bool {
        self.stepping
    }

    fn next_look(&mut self, now: Timestamp) -> Option<Action> {
        if self.looking || self.look_at.is_none_or(|at| at > now) {
            return None;
        }
        self.look_at = None;
        let members = self.members()?;
        self.looking = true;
        Some(Action::Look { generation: self.generation, members })
    }

    /// When it wants to be asked again without any new fact.
    pub fn wake_at(&self, leased: bool) -> Option<Timestamp> {
        let look_at = self.look_at.filter(|_| !self.looking);
        match &self.durable.deployment {
            None => look_at,
            Some(_) if self.stepping || !leased => None,
            Some(_) => self.retry_at.or(look_at),
        }
    }

    // ---- checks -----------------------------------------------------------------------------------------------

    fn checked(
        &mut self,
        asked: bool,
        result: Result<Observation, CheckFault>,
        now: Timestamp,
        entries: &mut Vec<AuditEntry>,
    ) {
        self.last_check = Some(now);
        let observation = match result {
            Ok(observation) => observation,
            Err(fault) => {
                let text = match fault {
                    CheckFault::Failed(text) => {
                        self.set_fault(Some(Fault { text: text.clone(), from_check: true }), now, entries);
                        text
                    }
                    // Nothing is known, and the engine's own health says so for all services at once.
                    CheckFault::EngineAway(text) => text,
                };
                if std::mem::take(&mut self.redeploy_asked) {
                    entries.push(self.failed_redeploy(now, &text));
                } else if asked {
                    let message = "the check that was asked for could not be made";
                    let mut entry = self.entry(now, Kind::TRIGGER_FAILED, Level::Error, message);
                    entry.reason = Some(text);
                    entries.push(entry);
                }
                return;
            }
        };

        let mut stale = false;
        for view in &observation.images {
            match compare::compare(view, &self.durable) {
                Compared::Pinned | Compared::Blocked => {}
                Compared::UpToDate => {
                    self.durable.not_found.remove(&view.text);
                    self.durable.blocked.remove(&view.text);
                }
                Compared::NotFound { remote, new } => {
                    if new {
                        self.durable.not_found.insert(view.text.clone(), remote.clone());
                        let message = format!(
                            "{} has no digest on this machine that it could be compared by; nothing is deployed until the registry has another digest",
                            view.text
                        );
                        let mut entry = self.entry(now, Kind::NOT_FOUND, Level::Warning, message);
                        entry.new_digest = Some(remote.to_string());
                        entry.reason = Some(if view.running.is_empty() && view.tagged.is_none() {
                            "the image is not on this machine; a redeploy fetches it".into()
                        } else {
                            "the image was built or loaded here and never pushed; a redeploy replaces it"
                                .into()
                        });
                        entries.push(entry);
                    }
                }
                Compared::Stale { remote } => {
                    stale = true;
                    if let Some(blocked) = self.durable.blocked.remove(&view.text) {
                        self.durable.given_up = false;
                        let message =
                            format!("the registry has another digest of {} than the blocked one", view.text);
                        let mut entry = self.entry(now, Kind::UNBLOCKED, Level::Info, message);
                        entry.old_digest = Some(blocked.to_string());
                        entry.new_digest = Some(remote.to_string());
                        entry.reason = Some("the remote digest changed".into());
                        entries.push(entry);
                    }
                }
            }
        }
        self.containers = Some(observation.containers.clone());
        self.seen = Some(observation);

        if std::mem::take(&mut self.redeploy_asked) {
            self.wanted = Some(Cause::Redeploy);
        } else if stale && self.config.auto_update {
            self.wanted = Some(Cause::Update);
        }
        let over = self.fault.as_ref().is_some_and(|fault| fault.from_check || self.wanted.is_none());
        if over {
            self.set_fault(None, now, entries);
        }
        if asked && self.wanted.is_none() {
            let message = match (self.durable.blocked.is_empty(), self.durable.not_found.is_empty()) {
                (true, true) => "checked: everything is up to date",
                (false, _) => "checked: the registry still has a blocked digest",
                (true, false) => "checked: the local image is still not found",
            };
            entries.push(self.entry(now, Kind::CHECKED, Level::Info, message));
        }
    }

    fn looked(
        &mut self,
        result: Result<Vec<Container>, crate::ports::EngineError>,
        now: Timestamp,
        entries: &mut Vec<AuditEntry>,
    ) {
        let containers = match result {
            Ok(containers) => containers,
            Err(error) => {
                if self.durable.deployment.is_some() {
                    if error.is_unavailable() {
                        self.interrupted(now);
                    }
                    self.look_at = Some(now + ENGINE_RETRY);
                }
                return;
            }
        };
        let rules_grace = self.config.health_grace;
        if let Some(deployment) = &mut self.durable.deployment {
            let way_back = matches!(deployment.phase, Phase::Proof { .. });
            let before = std::mem::take(&mut deployment.before);
            let verdict = deployment.phase.trial_mut().map(|trial| {
                let rules = Rules { grace: rules_grace, before: &before, stops: &self.stops, way_back };
                trial.look(&containers, rules, now)
            });
            deployment.before = before;
            match verdict {
                None => {}
                Some(Verdict::Wait { deadline }) => self.look_at = Some((now + LOOK_EVERY).min(deadline)),
                Some(Verdict::Passed) if way_back => self.came_back(now, entries),
                Some(Verdict::Passed) => self.passed(now, entries),
                Some(Verdict::Failed(failure)) if way_back => self.stuck(&failure, now, entries),
                Some(Verdict::Failed(failure)) => self.failed(failure, String::new(), now),
            }
        }
        self.containers = Some(containers);
    }

    fn event(&mut self, at: Timestamp, id: String, what: &Happening, now: Timestamp) {
        match what {
            // Signals that are not meant to end a process (HUP, USR1, USR2, WINCH) are no stop (DOMAIN 4.3).
            Happening::Kill { signal: Some(1 | 10 | 12 | 28) } => {}
            Happening::Kill { .. } | Happening::Stop => {
                self.stops.insert(id, at);
            }
            Happening::Destroy => {
                self.stops.remove(&id);
            }
            Happening::Start
            | Happening::Die { .. }
            | Happening::Oom
            | Happening::Health(_)
            | Happening::Other(_) => {}
        }
        let soon = now + SETTLE;
        self.look_at = Some(self.look_at.map_or(soon, |at| at.min(soon)));
    }

    /// The engine broke off. On probation the containers may have been stopped by it, which is not theirs to
    /// answer for: the project is brought up again and judged from the beginning.
    fn interrupted(&mut self, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let attempt = deployment.attempt + 1;
        let again = match &deployment.phase {
            Phase::Probation { .. } => Phase::Start,
            Phase::Proof { failure, output, .. } => {
                Phase::Undo { failure: failure.clone(), output: output.clone() }
            }
            _ => return,
        };
        if attempt > MAX_INTERRUPTIONS {
            return;
        }
        deployment.enter(again, now);
        deployment.attempt = attempt;
        self.retry_at = Some(now + ENGINE_RETRY);
    }

    // ---- the deployment ---------------------------------------------------------------------------------------

    /// Plans a deployment from what was seen. Whether there is one to do.
    fn begin(&mut self, cause: Cause, now: Timestamp) -> bool {
        let Some(observation) = &self.seen else { return false };
        let mut moves = Vec::new();
        let mut pins = Vec::new();
        for view in &observation.images {
            let old = view.running.first().or(view.tagged.as_ref());
            let verdict = compare::compare(view, &self.durable);
            let digest = match (&verdict, cause) {
                (Compared::Stale { remote }, _) => remote,
                (Compared::UpToDate | Compared::NotFound { .. }, Cause::Redeploy) => {
                    let Some(remote) = &view.remote else { continue };
                    remote
                }
                (Compared::Blocked, _) => {
                    pins.extend(old.map(|old| (view.reference.clone(), compare::old_image(view, old))));
                    continue;
                }
                _ => continue,
            };
            moves.push(Move {
                text: view.text.clone(),
                reference: view.reference.clone(),
                old_digest: old.and_then(|old| compare::shown_digest(old, view.remote.as_ref())),
                old: old.map(|old| compare::old_image(view, old)),
                digest: digest.clone(),
                new_id: None,
            });
        }
        for (reference, digest) in &observation.blocked_elsewhere {
            let running = observation.containers.iter().find(|c| {
                c.state == State::Running
                    && crate::image::Reference::parse(&c.config_image).is_ok_and(|r| r == *reference)
            });
            let own = moves.iter().any(|m| m.reference == *reference);
            if let (Some(container), false) = (running, own) {
                tracing::debug!(%reference, %digest, "the tag of a blocked image is kept where it is");
                pins.push((reference.clone(), OldImage { id: container.image.clone(), source: None }));
            }
        }
        if moves.is_empty() && cause == Cause::Update {
            return false;
        }
        self.durable.given_up = false;
        self.durable.deployment = Some(Deployment {
            cause,
            begun: now,
            moves,
            pins,
            before: observation.containers.iter().map(Was::of).collect(),
            recreate: if cause == Cause::Redeploy { Recreate::All } else { Recreate::Changed },
            phase: Phase::Hold,
            since: now,
            attempt: 0,
        });
        true
    }

    fn stepped(&mut self, result: StepResult, now: Timestamp, entries: &mut Vec<AuditEntry>) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        match (&mut deployment.phase, result) {
            (Phase::Start | Phase::Undo { .. }, StepResult::Started { up: Err(error), .. }) if self.gap => {
                tracing::warn!(
                    service = self.config.name,
                    "compose was cut off by the engine: {error}; trying again"
                );
                self.retry_at = Some(now + ENGINE_RETRY);
            }
            (_, StepResult::EngineAway(text)) => {
                tracing::warn!(
                    service = self.config.name,
                    step = deployment.phase.name(),
                    "{text}; trying again"
                );
                self.retry_at = Some(now + ENGINE_RETRY);
            }
            (Phase::Hold, StepResult::Held { missing }) => {
                if missing.is_empty() || deployment.cause == Cause::Redeploy {
                    deployment.enter(Phase::Pull, now);
                } else {
                    let text = format!(
                        "there would be no way back: the image that {} runs on is gone from this machine and can't be fetched again; a redeploy goes ahead all the same",
                        missing.join(", ")
                    );
                    self.abandon(text, String::new(), now, entries);
                }
            }
            (Phase::Pull, StepResult::Pulled { ids }) => {
                for m in &mut deployment.moves {
                    m.new_id = ids.iter().find(|(text, _)| *text == m.text).map(|(_, id)| id.clone());
                }
                // The same content under another digest: nothing to recreate (DOMAIN finding 12).
                if deployment.cause == Cause::Update && !deployment.changes() {
                    self.passed(now, entries);
                } else {
                    deployment.enter(Phase::Start, now);
                }
            }
            (Phase::Start, StepResult::Started { up: Ok(_), containers }) => {
                deployment.recreate = Recreate::Changed;
                let trial = Trial::new(now, deployment.expected_new());
                let attempt = deployment.attempt;
                deployment.enter(Phase::Probation { trial }, now);
                deployment.attempt = attempt;
                self.containers = Some(containers);
                self.look_at = Some(now);
            }
            (Phase::Start, StepResult::Started { up: Err(error), containers }) => {
                if deployment.is_untouched(&containers) {
                    self.abandon(format!("compose up failed: {}", error.cause), error.output, now, entries);
                } else {
                    let culprit = containers.iter().find(|c| {
                        deployment.before.iter().all(|was| was.id != c.id)
                            && (c.state != State::Running
                                || c.health == Some(crate::ports::HealthState::Unhealthy)
                                || c.restart_count > 0)
                    });
                    let failure = match culprit {
                        Some(container) => {
                            let cause = Failure::general(format!("compose up failed: {}", error.cause));
                            Failure { reason: cause.reason, ..Failure::of(container, "") }
                        }
                        None => Failure::general(format!("compose up failed: {}", error.cause)),
                    };
                    self.failed(failure, error.output, now);
                }
                self.containers = Some(containers);
            }
            (Phase::TagsBack, StepResult::TagsBack | StepResult::Failed(_)) => {
                deployment.enter(Phase::Release, now);
            }
            (Phase::Evidence { failure, output }, StepResult::Evidence { log }) => {
                let output = black_box(failure, output, &log);
                let failure = failure.clone();
                if !deployment.changes() {
                    // The same images as before: nothing to block, nowhere to go back to.
                    deployment.enter(Phase::Release, now);
                    self.durable.totals.failures += 1;
                    let mut entry = self.failed_redeploy(now, &failure.reason);
                    entry.output = output;
                    entry.container = some(&failure.container);
                    entries.push(entry);
                } else if deployment.has_way_back() {
                    deployment.enter(Phase::Undo { failure, output }, now);
                } else {
                    let why = format!("{}; there is no earlier image to go back to", failure.reason);
                    self.end_badly(&failure, output, &why, now, entries);
                }
            }
            (Phase::Undo { failure, output }, StepResult::Started { up, containers }) => {
                let (failure, output) = (failure.clone(), output.clone());
                match up {
                    Ok(_) => {
                        let trial = Trial::new(now, deployment.expected_old());
                        let attempt = deployment.attempt;
                        deployment.enter(Phase::Proof { failure, output, trial }, now);
                        deployment.attempt = attempt;
                        self.look_at = Some(now);
                    }
                    Err(error) => self.undo_failed(&error.cause, now, entries),
                }
                self.containers = Some(containers);
            }
            (Phase::Undo { .. }, StepResult::Failed(text)) => self.undo_failed(&text, now, entries),
            (Phase::Release, StepResult::Released | StepResult::Failed(_)) => {
                self.durable.deployment = None;
                self.look_at = Some(now);
                // What runs has changed; but a deploy that could not be made waits for the next cycle.
                self.check_due |= self.can_check() && self.fault.is_none();
            }
            (Phase::Hold | Phase::Pull | Phase::Start, StepResult::Failed(text)) => {
                self.abandon(text, String::new(), now, entries);
            }
            (Phase::Evidence { .. }, StepResult::Failed(text)) => {
                self.stepped(StepResult::Evidence { log: format!("({text})") }, now, entries);
            }
            (phase, result) => {
                tracing::error!(
                    service = self.config.name,
                    step = phase.name(),
                    ?result,
                    "unexpected end of a step"
                );
            }
        }
    }

    /// Gives up before anything was changed: the tags go back, the fault is shown, the next check tries again.
    fn abandon(&mut self, text: String, output: String, now: Timestamp, entries: &mut Vec<AuditEntry>) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        let redeploy = deployment.cause == Cause::Redeploy;
        let next = if matches!(deployment.phase, Phase::Start) { Phase::TagsBack } else { Phase::Release };
        deployment.enter(next, now);
        self.durable.totals.failures += 1;
        if redeploy {
            let mut entry = self.failed_redeploy(now, &text);
            entry.output = output;
            entries.push(entry);
        } else {
            let before = entries.len();
            self.set_fault(Some(Fault { text, from_check: false }), now, entries);
            if let Some(entry) = entries.get_mut(before) {
                entry.output = output;
            }
        }
    }

    /// The new images failed: block them, in the same write as the decision to go back.
    fn failed(&mut self, failure: Failure, output: String, now: Timestamp) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        if deployment.changes() {
            for m in deployment.moves.iter().filter(|m| m.changes()) {
                self.durable.blocked.insert(m.text.clone(), m.digest.clone());
            }
        }
        deployment.enter(Phase::Evidence { failure, output }, now);
    }

    /// The new images are proven.
    fn passed(&mut self, now: Timestamp, entries: &mut Vec<AuditEntry>) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.enter(Phase::Release, now);
        let moves = deployment.moves.clone();
        let cause = deployment.cause;
        let took = now.duration_since(deployment.begun).as_secs();
        let mut updated = false;
        for m in &moves {
            self.durable.not_found.remove(&m.text);
            self.durable.blocked.remove(&m.text);
            if m.old_digest.as_ref() == Some(&m.digest) {
                continue;
            }
            updated = true;
            let same = m.old.as_ref().map(|old| &old.id) == m.new_id.as_ref();
            let message = if same {
                format!("{} has a new digest for the same image; nothing had to be recreated", m.text)
            } else {
                format!("{} is updated and passed its probation, {took} s after it was found", m.text)
            };
            let mut entry = self.entry(now, Kind::UPDATED, Level::Info, message);
            entry.old_digest = m.old_digest.as_ref().map(ToString::to_string);
            entry.new_digest = Some(m.digest.to_string());
            entries.push(entry);
        }
        if cause == Cause::Redeploy {
            let message = "the project was pulled and recreated, and passed its probation";
            entries.push(self.entry(now, Kind::FORCE_REDEPLOY, Level::Info, message));
        }
        self.durable.totals.updates += u64::from(updated);
        self.durable.given_up = false;
        self.set_fault(None, now, entries);
    }

    /// The way back led home.
    fn came_back(&mut self, now: Timestamp, entries: &mut Vec<AuditEntry>) {
        let Some((failure, output)) = self.decided(now) else { return };
        self.durable.totals.rollbacks += 1;
        self.set_fault(None, now, entries);
        let images = self.names_of_changed();
        let message =
            format!("{images} failed its probation; the images that ran before are back and healthy");
        let entry = self.ending(Kind::ROLLED_BACK, Level::Warning, message, &failure, output, now);
        entries.push(entry);
    }

    /// The way back failed its own probation.
    fn stuck(&mut self, again: &Failure, now: Timestamp, entries: &mut Vec<AuditEntry>) {
        let Some((failure, mut output)) = self.decided(now) else { return };
        output.push_str(&format!("\n--- after going back ---\n{}\n{}", again.reason, again.facts));
        let why = format!("{}; after going back {}", failure.reason, again.reason);
        self.end_badly(&failure, output, &why, now, entries);
    }

    fn undo_failed(&mut self, text: &str, now: Timestamp, entries: &mut Vec<AuditEntry>) {
        let Some(deployment) = &mut self.durable.deployment else { return };
        deployment.attempt += 1;
        if deployment.attempt < UNDO_ATTEMPTS {
            self.retry_at = Some(now + UNDO_RETRY);
            return;
        }
        let Some((failure, output)) = self.decided(now) else { return };
        let why = format!("{}; going back failed: {text}", failure.reason);
        self.end_badly(&failure, output, &why, now, entries);
    }

    /// Takes failure and black box out of the phase and goes on to the release.
    fn decided(&mut self, now: Timestamp) -> Option<(Failure, String)> {
        let deployment = self.durable.deployment.as_mut()?;
        let taken = match &deployment.phase {
            Phase::Undo { failure, output } | Phase::Proof { failure, output, .. } => {
                Some((failure.clone(), output.clone()))
            }
            _ => None,
        };
        deployment.enter(Phase::Release, now);
        taken
    }

    fn end_badly(
        &mut self,
        failure: &Failure,
        output: String,
        why: &str,
        now: Timestamp,
        entries: &mut Vec<AuditEntry>,
    ) {
        if let Some(deployment) = &mut self.durable.deployment {
            deployment.enter(Phase::Release, now);
        }
        self.durable.totals.failures += 1;
        self.durable.given_up = true;
        self.set_fault(None, now, entries);
        let images = self.names_of_changed();
        let message =
            format!("{images} failed its probation and the way back failed too; someone must look at it");
        let mut entry = self.ending(Kind::ROLLBACK_FAILED, Level::Critical, message, failure, output, now);
        entry.reason = Some(why.to_owned());
        entries.push(entry);
    }

    /// The entry that ends a failed deployment, with the digests of the image that is to blame.
    fn ending(
        &self,
        kind: Kind,
        level: Level,
        message: String,
        failure: &Failure,
        output: String,
        now: Timestamp,
    ) -> AuditEntry {
        let mut entry = self.entry(now, kind, level, message);
        if let Some(deployment) = &self.durable.deployment {
            let blamed = crate::image::Reference::parse(&failure.image).ok();
            let changed = || deployment.moves.iter().filter(|m| m.changes());
            let of = changed().find(|m| Some(&m.reference) == blamed.as_ref()).or_else(|| changed().next());
            if let Some(m) = of {
                entry.old_digest = m.old_digest.as_ref().map(ToString::to_string);
                entry.new_digest = Some(m.digest.to_string());
            }
        }
        entry.container = some(&failure.container);
        entry.reason = Some(failure.reason.clone());
        entry.output = output;
        entry
    }

    fn names_of_changed(&self) -> String {
        let changed = |d: &Deployment| d.moves.iter().filter(|m| m.changes()).cloned().collect::<Vec<_>>();
        self.durable.deployment.as_ref().map(|d| names(&changed(d))).unwrap_or_default()
    }

    fn failed_redeploy(&self, now: Timestamp, why: &str) -> AuditEntry {
        let message = "the redeployment that was asked for failed";
        let mut entry = self.entry(now, Kind::FORCE_REDEPLOY_FAILED, Level::Error, message);
        entry.reason = Some(why.to_owned());
        entry
    }

    // ---- what is said -----------------------------------------------------------------------------------------

    /// Shows, changes or clears the persistent fault; the same text again says nothing (spec 2.6).
    fn set_fault(&mut self, fault: Option<Fault>, now: Timestamp, entries: &mut Vec<AuditEntry>) {
        let text = |fault: &Option<Fault>| fault.as_ref().map(|fault| fault.text.clone());
        if text(&fault) != text(&self.fault) {
            entries.push(match (&fault, &self.fault) {
                (Some(new), _) => {
                    let mut entry = self.entry(now, Kind::ERROR, Level::Error, new.text.clone());
                    entry.reason =
                        Some(if new.from_check { "the check failed" } else { "the deploy failed" }.into());
                    entry
                }
                (None, old) => {
                    let mut entry = self.entry(now, Kind::RECOVERED, Level::Info, "the fault is over");
                    entry.reason = old.as_ref().map(|old| old.text.clone());
                    entry
                }
            });
        }
        self.fault = fault;
    }

    fn entry(&self, now: Timestamp, kind: Kind, level: Level, message: impl Into<String>) -> AuditEntry {
        AuditEntry::new(now, &self.config.name, kind, level, message)
    }

    fn remember(&mut self, entries: &[AuditEntry]) {
        self.durable.said.extend(entries.iter().cloned());
        let surplus = self.durable.said.len().saturating_sub(KEEP_SAID);
        self.durable.said.drain(..surplus);
    }
}

/// Entries that were decided and made durable, but that a crash kept from being written: those among the last
/// `said` that are not among the last `written`.
pub fn unsaid(said: &[AuditEntry], written: &[AuditEntry]) -> Vec<AuditEntry> {
    let same = |a: &AuditEntry, b: &AuditEntry| {
        (a.timestamp, &a.service, &a.event, &a.message) == (b.timestamp, &b.service, &b.event, &b.message)
    };
    said.iter().filter(|entry| !written.iter().any(|other| same(entry, other))).cloned().collect()
}

fn names(moves: &[Move]) -> String {
    if moves.is_empty() {
        return "the project".to_owned();
    }
    moves.iter().map(|m| m.text.as_str()).collect::<Vec<_>>().join(", ")
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// What a person needs to see of a container that failed, at most 8 KiB (the end counts).
fn black_box(failure: &Failure, compose: &str, log: &str) -> String {
    let mut text = failure.facts.clone();
    for (title, part) in [("compose", compose), ("last log lines", log)] {
        if !part.trim().is_empty() {
            text.push_str(&format!("--- {title} ---\n{}\n", part.trim_end()));
        }
    }
    crate::text::tail(&text, 8 * 1024).to_owned()
}
