//! A changed view of the fleet.

use jiff::Timestamp;

use crate::service::Service;
use crate::service::fleet::FleetView;

impl Service {
    /// Applies a changed fleet view.
    pub(in crate::service) fn fleet_changed(&mut self, view: std::sync::Arc<FleetView>, now: Timestamp) {
        let holds = |service: &Self| {
            let decisions = service.seen_decisions(now).into_iter();
            decisions.map(|decision| decision.gate.map(|gate| gate.gate)).collect::<Vec<_>>()
        };
        let said = |fleet: &FleetView| (fleet.revision, fleet.verdicts, std::mem::discriminant(&fleet.link));
        let said_before = said(&self.fleet);
        let was_gating = self.fleet.is_gating();
        let before = holds(self);
        self.fleet = view;
        if said(&self.fleet) != said_before {
            self.permits.ask_again();
        }
        self.apply_fleet_sightings();
        self.recheck_when_lifted(now);
        let is_other = holds(self) != before || self.fleet.is_gating() != was_gating;
        if is_other && self.known.observation.is_some() && self.can_check() && !self.is_deploying() {
            // The check compares again: the update is announced as waiting, or begins if no gate holds it.
            self.checks.request();
        }
    }

    /// The fleet's decisions.
    pub(in crate::service) fn fleet(&self) -> &FleetView {
        &self.fleet
    }
}
