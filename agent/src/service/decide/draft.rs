//! How a service changes: by a draft, which the worker writes before it counts, or by a notice, which changes nothing that
//! is written. Nothing else outside the core changes a service.

use std::sync::Arc;

use evenkeel_common::wire::AuditEntry;
use jiff::{SignedDuration, Timestamp};

use crate::service::Service;
use crate::service::action::Action;
use crate::service::fleet::FleetView;
use crate::service::input::{Input, Notice, ServiceReply, ServiceRequest};
use crate::service::known::Known;
use crate::service::outcome::Ended;

/// What a service becomes by a decision, and what follows from it. It counts once the durable state and the entries have been
/// written together. A draft that can't be written is dropped, and nothing has changed.
#[derive(Debug)]
pub struct Draft {
    /// The service. Boxed, because otherwise the worker's future would reserve space for it.
    pub service: Box<Service>,
    /// Audit entries.
    pub entries: Vec<AuditEntry>,
    /// Log lines.
    pub notes: Vec<String>,
    /// The deployment that has ended.
    pub ended: Option<Ended>,
}

impl Service {
    fn draft<T>(&self, change: impl FnOnce(&mut Self) -> T) -> (Draft, T) {
        let mut service = Box::new(self.clone());
        let answer = change(&mut service);
        let (entries, notes, ended) = (service.take_entries(), service.take_notes(), service.take_ended());
        (Draft { service, entries, notes, ended }, answer)
    }

    /// Decides nothing; what has been emitted before is written.
    pub fn unchanged(&self) -> Draft {
        self.draft(|_| ()).0
    }

    /// Decides on an input.
    pub fn decide(&self, input: Input, now: Timestamp) -> Draft {
        let (mut draft, entries) = self.draft(|service| service.apply(input, now));
        draft.entries.extend(entries);
        draft
    }

    /// Decides on a request of a user.
    pub fn answer(&self, request: ServiceRequest, now: Timestamp) -> (Draft, ServiceReply) {
        let (mut draft, (reply, entries)) = self.draft(|service| service.handle_request(request, now));
        draft.entries.extend(entries);
        (draft, reply)
    }

    /// Returns the next action, if there is one, and the service that performs it. A service that is no longer configured only
    /// finishes its deployment and returns its leases.
    pub fn act(&self, now: Timestamp) -> (Draft, Option<Action>) {
        self.draft(
            |service| {
                if service.is_retired() { service.lease_to_return(now) } else { service.next(now) }
            },
        )
    }

    /// The agent is stopping: returns the next step that it takes before it ends, if there is one.
    pub fn act_at_stop(&self, now: Timestamp) -> (Draft, Option<Action>) {
        self.draft(|service| service.wind_up(now))
    }

    /// A user has requested a check of all services, including this one.
    pub fn triggered_with_all(&self) -> Draft {
        self.draft(Self::on_global_trigger).0
    }

    /// The service ends: the agent is stopping, or it is no longer configured.
    pub fn shut_down(&self, now: Timestamp) -> Draft {
        let end = |service: &mut Self| {
            service.give_up_requests(now);
            service.on_shutdown();
        };
        self.draft(end).0
    }

    /// Takes notice of something that makes nothing durable different.
    pub fn notice(&mut self, notice: Notice<'_>, now: Timestamp) {
        match notice {
            Notice::Check { is_new } => self.check(is_new),
            Notice::Inspect => self.inspections.request_by(now),
            Notice::StopsLost => self.healer.events_unseen_before(now),
            Notice::TagPushed => self.tag_was_pushed(now),
            Notice::Siblings(services) => self.project.services = services,
            Notice::SiblingBegins(name) => self.sibling_begins(name),
            Notice::SiblingEnds => self.sibling_ends(now),
            Notice::Retired => self.permits.is_retired = true,
        }
    }

    /// Returns the service with all deadlines shifted, after the clock was set by `by`.
    #[must_use]
    pub fn shifted(&self, by: SignedDuration) -> Self {
        let mut service = self.clone();
        service.shift(by);
        service
    }

    /// Returns the service with the fleet's decisions as they are known so far.
    #[must_use]
    pub fn with_fleet(self, fleet: Arc<FleetView>) -> Self {
        Self { fleet, ..self }
    }

    /// Returns the service as the continuation of the same one under its previous configuration: with its possible leases, with
    /// the measurements of its containers, with what the engine has told, and does not repeat, and with what users have requested.
    #[must_use]
    pub fn continuing(self, before: &Self) -> Self {
        let (healer, events) = (before.healer.clone(), before.known.clone());
        let known = Known {
            exit_codes: events.exit_codes,
            served: events.served,
            signals: events.signals,
            told_to_stop: events.told_to_stop,
            resumed: events.resumed,
            ..self.known
        };
        // It has not received the events of other containers.
        let is_of_same = self.config.compose_project == before.config.compose_project
            && self.config.container_name == before.config.container_name;
        let healer = self.healer.continuing(healer, is_of_same);
        // An alert is not repeated before its cooldown is over.
        let gauges = if is_of_same { before.gauges.clone() } else { self.gauges };
        let mut service = Self { permits: before.permits.inherited(), known, healer, gauges, ..self };
        service.take_over_requests(before);
        service
    }
}
