//! The two kinds of work that a service has in progress at most once: a step of a deployment, and an inspection.

use jiff::Timestamp;

/// The step in progress, and the delay before the next one.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Steps {
    is_running: bool,
    /// The engine became unavailable during the step: a failure may not be the images' fault.
    pub(super) is_disturbed: bool,
    /// A failed step is not retried before this time.
    pub(super) retry_at: Option<Timestamp>,
}

impl Steps {
    /// Whether a step is running.
    pub(super) fn is_running(&self) -> bool {
        self.is_running
    }

    /// Whether the next step may begin now.
    pub(super) fn may_begin(&self, now: Timestamp) -> bool {
        !self.is_running && self.retry_at.is_none_or(|at| at <= now)
    }

    /// A step begins.
    pub(super) fn begin(&mut self) {
        (self.is_running, self.is_disturbed) = (true, false);
    }

    /// The step has ended.
    pub(super) fn end(&mut self) {
        self.is_running = false;
    }

    /// The engine was unavailable.
    pub(super) fn disturb(&mut self) {
        self.is_disturbed = self.is_running;
    }
}

/// The inspection in progress, and the time of the next one.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Inspections {
    is_running: bool,
    /// When the next one is due.
    pub(super) due_at: Option<Timestamp>,
}

impl Inspections {
    /// An inspection is due at `at`, unless one is due earlier.
    pub(super) fn request_by(&mut self, at: Timestamp) {
        self.due_at = Some(self.due_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// The next inspection is due at `at`, even if one was requested earlier.
    pub(super) fn postpone(&mut self, at: Timestamp) {
        self.due_at = Some(at);
    }

    /// When the next one can begin; `None` while one is running.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        self.due_at.filter(|_| !self.is_running)
    }

    /// Starts the inspection if one is due; returns whether it was.
    pub(super) fn start(&mut self, now: Timestamp) -> bool {
        let starts = self.next_at().is_some_and(|at| at <= now);
        if starts {
            (self.is_running, self.due_at) = (true, None);
        }
        starts
    }

    /// The inspection has ended, or there is nothing to inspect.
    pub(super) fn end(&mut self) {
        self.is_running = false;
    }
}
