//! User requests.

use evenkeel_common::wire::{AuditEntry, RequestedChecks};
use jiff::Timestamp;

use crate::service::event::{Event, Unblock};
use crate::service::health::restart_state;
use crate::service::input::{ServiceReply, ServiceRequest};
use crate::service::rollout::plan::GoBack;
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
