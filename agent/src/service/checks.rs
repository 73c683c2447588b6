//! The state of a service's checks: which one is due, which one is running, and which requests it answers.

use jiff::{SignedDuration, Timestamp};

use crate::service::input::CheckFault;

/// The least time between two checks that users request.
const MANUAL_INTERVAL: SignedDuration = SignedDuration::from_secs(1);

/// Checks that are due, and the one that is running.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Checks {
    is_due: bool,
    /// Whether users have requested the check that is due.
    asked: Asked,
    /// The same of the running check, or the one that has just ended.
    running_asked: Asked,
    /// Requests by users, those that the running check answers, and those that are answered.
    requested: u64,
    answering: u64,
    answered: u64,
    /// Why the last check that users had requested compared nothing; `None` once any check has.
    failed: Option<String>,
    running: Running,
    redeploy: Redeploy,
    /// When to check again outside of the poll cycle.
    pub(super) again_at: Option<Timestamp>,
    /// When the last check began that a user had requested.
    pub(super) manual_at: Option<Timestamp>,
    /// When the last complete check ended.
    pub(super) last: Option<Timestamp>,
}

/// Whether users have requested a check, and what it may do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Asked {
    /// It belongs to a poll cycle.
    #[default]
    No,
    /// It passes no gate.
    Gated,
    /// It passes the gates that a trigger passes.
    Passing,
}

/// Progress of the running check. Its result may come in two parts: the rest follows when a slow registry has answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Running {
    #[default]
    No,
    Yes,
    /// Its first part was applied.
    Partly,
}

/// A requested redeployment. It begins with the result of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Redeploy {
    #[default]
    None,
    /// The next result of a check begins it.
    Requested,
    /// The running check began before the request, and may not have queried the registry. The next check begins it.
    AfterRunningCheck,
}

impl Checks {
    /// Makes a check due.
    pub(super) fn request(&mut self) {
        self.is_due = true;
    }

    /// Makes a check due that a user requested; returns `false` if it joins one that was requested before. `passes`: it opens
    /// the gates that a trigger passes.
    pub(super) fn request_manual(&mut self, passes: bool, now: Timestamp) -> bool {
        self.requested += 1;
        let is_first = self.asked == Asked::No;
        self.asked = self.asked.max(if passes { Asked::Passing } else { Asked::Gated });
        match self.manual_at.filter(|at| now.duration_since(*at).abs() < MANUAL_INTERVAL) {
            // A flood of requests is worth one check a second.
            Some(at) => self.request_by(at + MANUAL_INTERVAL),
            None => self.is_due = true,
        }
        is_first
    }

    /// Makes a check due for what was found meanwhile for a request by a user: it is not a further request.
    pub(super) fn continue_manual(&mut self, passes: bool) {
        self.asked = self.asked.max(if passes { Asked::Passing } else { Asked::Gated });
        self.is_due = true;
    }

    /// Makes a check due that is followed by a redeployment.
    pub(super) fn request_redeploy(&mut self) {
        self.is_due = true;
        if self.redeploy == Redeploy::None {
            self.redeploy = if self.is_running() { Redeploy::AfterRunningCheck } else { Redeploy::Requested };
        }
    }

    /// The same for a user, who may follow what becomes of it.
    pub(super) fn request_redeploy_by_hand(&mut self) {
        self.requested += 1;
        self.request_redeploy();
    }

    /// Makes a check due because a deployment did not begin; `redeploys`: a redeployment, which is still requested.
    pub(super) fn repeat(&mut self, redeploys: bool) {
        self.is_due = true;
        if redeploys && self.redeploy == Redeploy::None {
            self.redeploy = Redeploy::Requested;
        }
    }

    /// Takes over what users have requested under an earlier configuration and what was not answered, or has not begun.
    /// `redeploys`: a redeployment is still requested; `may_check`: so is the check of a trigger.
    pub(super) fn take_over(&mut self, before: &Self, redeploys: bool, may_check: bool) {
        let running = if before.is_running() { before.running_asked } else { Asked::No };
        let asked = if may_check { before.asked.max(running) } else { Asked::No };
        // Who follows a request that is not taken over learns that it is forgotten.
        if !redeploys && asked == Asked::No {
            return;
        }
        (self.requested, self.answering, self.answered) =
            (before.requested, before.answered, before.answered);
        (self.asked, self.manual_at) = (asked, before.manual_at);
        self.repeat(redeploys);
    }

    /// Makes a check due at `at`, unless one is due earlier.
    pub(super) fn request_by(&mut self, at: Timestamp) {
        self.again_at = Some(self.again_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Whether a check is running.
    pub(super) fn is_running(&self) -> bool {
        self.running != Running::No
    }

    /// Whether a check is due.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Whether a redeployment is requested.
    pub(super) fn wants_redeploy(&self) -> bool {
        self.redeploy != Redeploy::None
    }

    /// Takes the request of a redeployment that the result of the running check begins.
    pub(super) fn take_redeploy(&mut self) -> bool {
        let is_answered = self.redeploy == Redeploy::Requested;
        if is_answered {
            self.redeploy = Redeploy::None;
        }
        is_answered
    }

    /// Takes the time of a check outside of the poll cycle, if it has come.
    pub(super) fn take_again(&mut self, now: Timestamp) -> bool {
        self.again_at.take_if(|at| *at <= now).is_some()
    }

    /// Starts the check that is due, if none is running; returns whether a user requested it.
    pub(super) fn start(&mut self, now: Timestamp) -> Option<bool> {
        if !self.is_due || self.is_running() {
            return None;
        }
        (self.is_due, self.running) = (false, Running::Yes);
        if self.redeploy == Redeploy::AfterRunningCheck {
            self.redeploy = Redeploy::Requested;
        }
        self.running_asked = std::mem::take(&mut self.asked);
        let is_manual = self.running_asked != Asked::No;
        if is_manual {
            self.manual_at = Some(now);
        }
        if is_manual || self.wants_redeploy() {
            self.answering = self.requested;
        }
        Some(is_manual)
    }

    /// Whether the running check, or the one that has just ended, passes the gates that a trigger passes.
    pub(super) fn passes_gates(&self) -> bool {
        self.running_asked != Asked::Gated
    }

    /// Records that the running check has ended with a result that counts: an observation, or `fault`.
    pub(super) fn answered(&mut self, fault: Option<&CheckFault>) {
        self.answered = self.answering;
        if let Some(CheckFault::Failed(text) | CheckFault::EngineAway(text)) = fault {
            if self.running_asked != Asked::No {
                self.failed = Some(text.clone());
            }
        } else {
            self.failed = None;
        }
    }

    /// The requests by users so far, and how many of them are answered.
    pub(super) fn requests(&self) -> (u64, u64) {
        (self.requested, self.answered)
    }

    /// Why the last check that users had requested compared nothing.
    pub(super) fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Records a result of the running check; `is_pending`: the rest of it follows. Returns whether it is the rest.
    pub(super) fn returned(&mut self, is_pending: bool) -> bool {
        let is_rest = self.running == Running::Partly;
        self.running = if is_pending { Running::Partly } else { Running::No };
        is_rest
    }

    /// Repeats the check whose result was stale; `is_wanted`: even if nobody requests it.
    pub(super) fn returned_stale(&mut self, was_manual: bool, is_wanted: bool) {
        self.is_due = is_wanted || self.wants_redeploy() || was_manual;
        if was_manual {
            self.asked = self.asked.max(self.running_asked);
        }
    }

    /// Forgets the running check.
    #[cfg(test)]
    pub(super) fn drop_running(&mut self) {
        self.running = Running::No;
    }
}
