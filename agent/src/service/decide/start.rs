//! Whether a project is started, forced up, or brought up for changed compose files.

use jiff::{SignedDuration, Timestamp};

use crate::model::{Container, State};
use crate::service::event::FaultCause;
use crate::service::health::assess::{Condition, Inactive};
use crate::service::observation::{Files, FilesApplied, ImageView, Observation};
use crate::service::rollout::plan::Cause;
use crate::service::{Service, wording};

/// A container must be stuck for this long before the project is forced up: it may be part of a manual deployment.
const STUCK_FOR: SignedDuration = SignedDuration::from_secs(10);
/// An event this recent means that the project is being changed from outside.
const QUIET_PERIOD: SignedDuration = SignedDuration::from_secs(5);

impl Service {
    /// Decides whether the compose files must be applied. Stores the hash of the first read without deploying (spec 1.6), and
    /// that of files which another service of the project has applied.
    pub(in crate::service) fn follow_files(
        &mut self,
        files: &Files,
        elsewhere: Option<&FilesApplied>,
    ) -> Result<Option<Cause>, String> {
        let hash = match files {
            Files::Unread | Files::Unsettled => return Ok(None),
            Files::Unusable(text) => return Err(text.clone()),
            Files::Missing { hash, .. } if self.is_applied(hash, elsewhere) => hash,
            // What it brings up counts as deployed.
            Files::Missing { hash, .. } if self.checks.wants_redeploy() && self.going_back.is_none() => {
                self.known.files_hash = Some(hash.clone());
                return Ok(None);
            }
            Files::Missing { path, .. } => {
                self.known.files_hash.clone_from(&self.durable.files_hash);
                return Err(wording::fault(&FaultCause::FileMissing { path }));
            }
            Files::Unchanged(hash) => {
                self.durable.files_hash = Some(hash.clone());
                hash
            }
            Files::Hash(hash) => hash,
        };
        self.known.files_hash = Some(hash.clone());
        match &self.durable.files_hash {
            None => {
                self.durable.files_hash = Some(hash.clone());
                Ok(None)
            }
            Some(known) if known == hash && !self.durable.files_pending => Ok(None),
            Some(_) if self.is_applied(hash, elsewhere) => {
                self.durable.files_hash = Some(hash.clone());
                self.durable.files_pending = false;
                if let Some(applied) = elsewhere {
                    self.try_postponed(applied.at);
                }
                Ok(None)
            }
            Some(_) => Ok(Some(Cause::ComposeChanged)),
        }
    }

    /// Whether another service has applied the files of this hash after this one has applied its own.
    fn is_applied(&self, hash: &str, elsewhere: Option<&FilesApplied>) -> bool {
        let own = self.durable.files_applied.as_ref();
        let is_later = |elsewhere: &FilesApplied| own.is_none_or(|own| elsewhere.at > own.at);
        elsewhere.is_some_and(|elsewhere| elsewhere.hash == hash && is_later(elsewhere))
    }

    /// Forces up stuck containers, at most once per cooldown. `compose up` starts containers that were only created; if
    /// containers keep restarting, the project is taken down first (spec 1.4).
    fn force(&mut self, containers: &[Container], now: Timestamp) -> Option<Cause> {
        if self.starter.forced_at.is_some_and(|at| now <= at + self.config.heal_cooldown) {
            return None;
        }
        self.starter.forced_at = Some(now);
        let loops = |c: &Container| c.state == State::Restarting && self.starter.stuck.contains_key(&c.id);
        Some(Cause::ForceUp { down: containers.iter().any(loops) })
    }

    /// Whether `auto_start` may pull this image: nothing of the project runs, and the machine has neither the image nor a
    /// container of it, as after a recovery from a backup.
    pub(in crate::service) fn is_first_start(&self, view: &ImageView, seen: &Observation) -> bool {
        let is_of_image = |c: &Container| c.is_live() || c.is_made_from(&view.from);
        self.config.auto_start
            && self.config.project().is_some()
            && view.running.is_empty()
            && view.tagged.is_none()
            && !seen.containers.iter().any(is_of_image)
    }

    /// Decides whether `auto_start` brings the project up. `matching`: the digests match, as far as they are compared.
    pub(in crate::service) fn start_wanted(
        &mut self,
        observation: &Observation,
        matching: bool,
        now: Timestamp,
    ) -> Option<Cause> {
        let containers: &[Container] = &observation.containers;
        if observation.is_at_rest {
            return None;
        }
        if !self.config.auto_start || self.config.project().is_none() || self.durable.rollback_failed {
            return None;
        }
        // Compose would compete with the tool that manages the container (DECISIONS 9).
        if containers.iter().any(|c| c.manager.is_some()) {
            return None;
        }
        let with_loops = !self.config.auto_heal;
        let stuck = self.starter.stuck_since(containers, with_loops, now);
        if !matching {
            return None;
        }
        // Below, a check is requested because the next poll cycle may be hours away.
        let quiet_at = self.known.external_change_at.map_or(now, |at| at + QUIET_PERIOD);
        if let Some(since) = stuck {
            let due = quiet_at.max(since + STUCK_FOR);
            if now < due {
                self.checks.request_by(due);
                return None;
            }
            return self.force(containers, now);
        }
        let all_stopped = containers.iter().all(|c| matches!(c.state, State::Exited | State::Dead));
        // A one-shot container that has finished must not be started again at every check.
        let is_done =
            |c: &Container| self.condition(c) == Condition::Inactive(Inactive::Finished) && c.is_one_shot();
        let done = !containers.is_empty() && containers.iter().all(is_done);
        let is_mixed = containers.iter().any(|c| self.is_left_on_mixed_data(c));
        if !all_stopped || done || is_mixed || self.is_left_failing(containers, now) {
            return None;
        }
        if now < quiet_at {
            self.checks.request_by(quiet_at);
            return None;
        }
        Some(Cause::Start)
    }
}
