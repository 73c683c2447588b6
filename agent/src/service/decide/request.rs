//! User requests.

use evenkeel_common::wire::{AuditEntry, RequestedChecks};
use jiff::Timestamp;

use crate::service::event::{Event, Unblock};
use crate::service::health::restart_state;
use crate::service::input::{ServiceReply, ServiceRequest};
use crate::service::rollout::plan::{Cause, GoBack, GoBackReason};
use crate::service::{Service, wording};

impl Service {
    /// A user requested a check of all services, including this one.
    pub(in crate::service) fn on_global_trigger(&mut self) {
        if !self.is_deploying() {
            self.on_manual_action();
        }
    }

    /// A user acts on this service: resets the healer's limits (DECISIONS 5) and retries a failed rollback.
    pub(in crate::service) fn on_manual_action(&mut self) {
        restart_state::reset_backoff(&mut self.durable.restart_states);
        self.durable.down.clear();
        self.retry_rollback = self.durable.rollback_failed;
    }

    /// A user requested a redeployment, or these earlier images. The next check begins it, in place of whatever waits to begin:
    /// of two requests the later one counts.
    pub(in crate::service) fn redeploy_next(&mut self, back: Option<GoBack>) {
        self.going_back = back;
        self.wanted = None;
        self.checks.request_redeploy_by_hand();
    }

    /// The deployment that a user has requested and that has not begun. A late failure asks for its way back by itself.
    fn requested_deployment(&self) -> Option<Cause> {
        let back = self.going_back.clone().map(Cause::GoBack);
        let redeploy = || self.checks.wants_redeploy().then_some(Cause::Redeploy);
        let is_late =
            |cause: &Cause| matches!(cause, Cause::GoBack(back) if back.why != GoBackReason::ByHand);
        let wanted = self.wanted.as_ref().filter(|cause| matches!(cause, Cause::GoBack(_) | Cause::Redeploy));
        back.or_else(|| wanted.cloned()).or_else(redeploy).filter(|cause| !is_late(cause))
    }

    /// Takes over what users have requested under the previous configuration: it was accepted.
    pub(in crate::service) fn take_over_requests(&mut self, before: &Self) {
        let requested = before.requested_deployment();
        let is_configured = |name: &str| self.config.images.iter().any(|image| image.configured == *name);
        let why = match &requested {
            Some(_) if !self.config.can_deploy() => Some(wording::NO_COMPOSE_FILES),
            Some(Cause::GoBack(back)) if !back.to.iter().all(|to| is_configured(&to.configured)) => {
                Some(wording::go_back::NOT_CONFIGURED)
            }
            _ => None,
        };
        let continues = requested.is_some() && why.is_none();
        let may_check = self.config.auto_update && !self.config.silent;
        self.checks.take_over(&before.checks, continues, may_check);
        let wanted = before.wanted == Some(Cause::RetryRollback);
        self.retry_rollback = before.retry_rollback || wanted;
        // What is not polled is not checked for a trigger of all services, and the reload is no reason to begin it.
        let was_next = wanted || before.checks.is_due() || before.checks.is_running();
        if self.retry_rollback && was_next {
            self.checks.repeat(false);
        }
        match (requested, why) {
            (Some(requested), Some(why)) => self.request_given_up(requested, why, self.begun),
            (Some(Cause::GoBack(back)), None) => self.going_back = Some(back),
            _ => {}
        }
    }

    /// The service ends: says so if a deployment that a user has requested has not begun.
    pub(in crate::service) fn give_up_requests(&mut self, now: Timestamp) {
        if let Some(requested) = self.requested_deployment() {
            self.request_given_up(requested, wording::ENDED_BEFORE, now);
        }
    }

    fn request_given_up(&mut self, requested: Cause, why: &str, now: Timestamp) {
        if let Cause::GoBack(back) = requested {
            self.not_gone_back(back, why.to_owned(), String::new(), now);
        } else {
            self.redeploy_failed(why.to_owned(), String::new(), now);
        }
    }

    /// How far the checks are that users have requested; `None` before the first.
    pub(in crate::service) fn requested_checks(&self) -> Option<RequestedChecks> {
        let (requested, ended) = self.checks.requests();
        let undecided = self.checks.is_due()
            || self.checks.is_running()
            || self.wanted.is_some()
            || self.awaits_command()
            || self.awaits_tags()
            || self.is_deploying();
        let tags_unknown = self.config.tag_variable().and_then(|_| self.unlisted_tags().next());
        let failed = self.checks.failed().map(str::to_owned);
        (requested > 0).then_some(RequestedChecks { requested, ended, undecided, failed, tags_unknown })
    }

    /// Handles a user request.
    pub(in crate::service) fn handle_request(
        &mut self,
        ask: ServiceRequest,
        now: Timestamp,
    ) -> (ServiceReply, Vec<AuditEntry>) {
        let answer = match ask {
            ServiceRequest::Check | ServiceRequest::CheckGated if self.config.silent => {
                ServiceReply::Skipped(wording::SILENT)
            }
            ServiceRequest::Check | ServiceRequest::CheckGated if !self.config.auto_update => {
                ServiceReply::Skipped(wording::AUTO_UPDATE_OFF)
            }
            ServiceRequest::Check
            | ServiceRequest::CheckGated
            | ServiceRequest::Redeploy
            | ServiceRequest::Rollback { .. }
                if self.is_deploying() =>
            {
                ServiceReply::Skipped(wording::DEPLOYING)
            }
            ServiceRequest::Check | ServiceRequest::CheckGated => {
                self.on_manual_action();
                let passes = ask == ServiceRequest::Check;
                // Join a pending check: it will find everything that this one would.
                if self.checks.request_manual(passes, now) {
                    self.emit(Event::ManualTrigger, now);
                }
                self.gate_command.new_cycle = true;
                self.look_up_tags_now(passes, now);
                self.check_way_back_now(now);
                ServiceReply::Accepted
            }
            ServiceRequest::Approve(digest) => self.approve(digest.as_ref(), now),
            ServiceRequest::Redeploy | ServiceRequest::Rollback { .. } if !self.config.can_deploy() => {
                ServiceReply::Skipped(wording::NO_COMPOSE_FILES)
            }
            ServiceRequest::Rollback { to, data } => self.roll_back_by_hand(to.as_ref(), data),
            ServiceRequest::Redeploy => {
                self.on_manual_action();
                self.redeploy_next(None);
                ServiceReply::Redeploying(self.kept_images())
            }
            ServiceRequest::Unblock
                if !self.durable.images.iter().any(|(_, memory)| memory.is_withheld()) =>
            {
                self.on_manual_action();
                self.durable.rollback_failed = false;
                ServiceReply::NotBlocked
            }
            ServiceRequest::Unblock => {
                self.on_manual_action();
                let images = self.durable.images.iter_mut();
                let released = images.flat_map(|(image, memory)| {
                    memory.release().into_iter().map(move |digest| (image.to_owned(), digest))
                });
                let blocked = released.collect();
                self.durable.rollback_failed = false;
                self.emit(Event::Unblocked(Unblock::Manual { blocked }), now);
                ServiceReply::Unblocked
            }
        };
        (answer, self.take_entries())
    }
}
