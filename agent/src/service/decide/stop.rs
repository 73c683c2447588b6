//! The agent is stopping. It may be removed for good, and its journal with it: nobody would start again what it has stopped for
//! a copy of data. As long as nothing new was brought up, such a deployment is given up, on the way that it takes if the copy
//! fails, and the next check finds the update again. If the time is not enough, the journal has the rest.

use jiff::Timestamp;

use crate::service::action::Action;
use crate::service::rollout::deployment::Deployment;
use crate::service::rollout::step::Phase;
use crate::service::{Service, wording};

impl Service {
    /// Whether steps are left that the agent takes before it ends.
    pub fn winds_up(&self) -> bool {
        self.winding_up().is_some()
    }

    /// When the next of these steps may begin; `None` if there is none, or a step is running that is waited for.
    pub fn winds_up_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self.winding_up()?.phase {
            // It may take much longer than the stop.
            Phase::Copy => Some(now),
            _ if self.steps.is_running() => None,
            Phase::Quiesce => Some(now),
            _ => Some(self.steps.retry_at.unwrap_or(now)),
        }
    }

    /// Returns the next of these steps. One that copies data is no longer waited for.
    pub(in crate::service) fn wind_up(&mut self, now: Timestamp) -> Option<Action> {
        if self.winds_up_at(now)? > now {
            return None;
        }
        if matches!(self.winding_up()?.phase, Phase::Quiesce | Phase::Copy) {
            if self.steps.is_running() {
                self.end_step();
            }
            let text = wording::snapshot::stopped_before_copied();
            // Each outage is told as such, even if the reason is that of the last one.
            if self.durable.fault.as_ref().is_some_and(|fault| fault.text == text) {
                self.durable.fault = None;
            }
            self.abandon(text, String::new(), now);
        }
        let step = self.durable.deployment.as_ref()?.step(self.current_project().as_ref())?;
        self.steps.retry_at = None;
        self.begin_step();
        Some(Action::Step(step))
    }

    /// The deployment with a snapshot that is given up now, or was before and has steps left. What fails is tried again only
    /// while containers are stopped.
    fn winding_up(&self) -> Option<&Deployment> {
        let deployment = self.durable.deployment.as_deref()?;
        deployment.plan().snapshot.as_ref()?;
        let is_left = match deployment.phase {
            // Earlier data may be in place already.
            Phase::Quiesce | Phase::Copy => deployment.must_resume() && !deployment.has_earlier_data(),
            Phase::RestoreTags | Phase::Unpin | Phase::Expire { .. } => {
                deployment.must_resume() || self.steps.retry_at.is_none()
            }
            _ => false,
        };
        let may_begin = !self.project.is_busy() || deployment.phase.is_aftermath();
        Some(deployment).filter(|_| is_left && may_begin)
    }
}
