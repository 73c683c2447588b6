//! What a decision has emitted: events, rendered as entries, with their effect on totals.

use std::time::Duration;

use evenkeel_common::wire::{AuditEntry, DeployOutcome, Kind, Tenths};
use jiff::Timestamp;

use crate::service::event::{Event, Fault};
use crate::service::outcome::Ended;
use crate::service::state::StandingFault;
use crate::service::{Service, wording};

impl Service {
    /// Records an event: it is counted now, and reported once the decision is durable.
    pub(in crate::service) fn emit(&mut self, event: Event, now: Timestamp) {
        self.durable.totals.fold(&event);
        let outage = self.outage(now);
        if let Some(ended) = Ended::of(&event, outage) {
            self.durable.last_deployment = Some(ended.record(now));
            self.emitted.ended = Some(ended);
        }
        self.note_verdict(&event);
        self.note_failed_update(&event, now);
        self.emitted.events.push((now, event, outage));
    }

    /// Sets, changes or clears the persistent fault; an unchanged text is not reported again (spec 2.6).
    pub(in crate::service) fn set_fault(&mut self, fault: Option<Fault>, now: Timestamp) {
        self.raise_fault(fault, String::new(), now);
    }

    /// Like [`Self::set_fault`], with the output of the program that failed. For a service that is not polled the fault is
    /// reported but not kept beyond the deployment, because no check would ever clear it.
    pub(in crate::service) fn raise_fault(&mut self, fault: Option<Fault>, output: String, now: Timestamp) {
        if let (Some(fault), false) = (&fault, self.can_check() || self.durable.is_deploying()) {
            self.emit(Event::Faulted { fault: fault.clone(), output }, now);
            return;
        }
        let before = self.durable.fault.take();
        let known =
            before.as_ref().filter(|before| fault.as_ref().is_some_and(|fault| fault.text == before.text));
        let since = known.map_or(now, |known| known.since);
        let is_same = known.is_some() || (before.is_none() && fault.is_none());
        self.durable.fault = fault.as_ref().map(|fault| StandingFault {
            text: fault.text.clone(),
            from_check: fault.from_check,
            since,
        });
        if is_same {
            return;
        }
        let event = match fault {
            Some(fault) => Event::Faulted { fault, output },
            None => Event::Recovered { fault: before.as_ref().map(Fault::from) },
        };
        self.emit(event, now);
    }

    /// Forgets the fault of a service that is not polled and does not deploy: no check would ever clear it.
    pub(in crate::service) fn forget_unchecked_fault(&mut self) {
        if !(self.can_check() || self.durable.is_deploying()) {
            self.durable.fault = None;
        }
    }

    /// Records the outcome of the deployment. The remaining clean-up does not affect it.
    pub(in crate::service) fn end(&mut self, outcome: DeployOutcome, updated: bool, now: Timestamp) {
        let Some(deployment) = &self.durable.deployment else { return };
        let (cause, begun) = (deployment.plan().cause.clone(), deployment.begun);
        self.emit(Event::DeployEnded { outcome, cause, begun, updated }, now);
    }

    /// Takes the audit entries of all events since the last call, to be recorded once the decision is durable.
    pub(in crate::service) fn take_entries(&mut self) -> Vec<AuditEntry> {
        let events = std::mem::take(&mut self.emitted.events);
        let Self { config, .. } = self;
        let reference = |name: &str| {
            let image = config.images.iter().find(|image| image.configured == name)?;
            Some(image.reference.clone())
        };
        let entry = |(at, event, outage): (Timestamp, Event, Option<Duration>)| {
            let image = event.image(reference).map(|image| image.to_string());
            let entry = wording::entry(config, at, event)?;
            let is_outcome = [Kind::UPDATED, Kind::ROLLED_BACK, Kind::ROLLBACK_FAILED].contains(&entry.event);
            let outage_seconds = outage.filter(|_| is_outcome).map(Tenths::from);
            Some(AuditEntry { image, outage_seconds, ..entry })
        };
        events.into_iter().filter_map(entry).collect()
    }

    /// How long the deployment in progress has interrupted its services so far.
    fn outage(&self, now: Timestamp) -> Option<Duration> {
        let deployment = self.durable.deployment.as_ref()?;
        deployment.outage.longest(deployment.begun, now)
    }

    /// Takes the log lines since the last call.
    pub(in crate::service) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.emitted.notes).iter().map(wording::note).collect()
    }

    /// Takes the deployment that ended since the last call, to be counted once the decision is durable.
    pub(in crate::service) fn take_ended(&mut self) -> Option<Ended> {
        self.emitted.ended.take()
    }
}
