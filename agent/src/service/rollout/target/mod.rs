//! Where images are rolled out. A target says which step a phase takes, and what evidence proves an image there; the life
//! of a rollout is the same for all.
//!
//! | file | what it holds |
//! |---|---|
//! | `compose.rs` | the steps on a compose project; the evidence are its containers (`probation.rs`, `probe.rs`) |
//! | `swarm.rs` | the steps on a swarm service |
//! | `watch.rs` | the evidence there: its tasks |

mod compose;
mod swarm;
pub mod watch;

use crate::model::Project;
use crate::service::action::Step;
use crate::service::rollout::deployment::Deployment;

impl Deployment {
    /// Returns the step of the current phase; `None` if the phase only waits. `project`: the compose project, if there is one.
    pub(in crate::service) fn step(&self, project: Option<&Project>) -> Option<Step> {
        match &self.plan().swarm {
            Some(swarm) => self.step_in_swarm(swarm).map(Step::Swarm),
            None => self.step_on_compose(project?),
        }
    }
}
