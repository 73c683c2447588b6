//! The input of the gates, and their results.

use std::sync::LazyLock;

use evenkeel_common::wire::Gate;
use jiff::Timestamp;

use crate::config::UpdateConfig;
use crate::service::fleet::FleetView;

/// The gate for a configuration with which nothing can be deployed.
pub(in crate::service) const CONFIG: &str = "config";
/// The gate for a freeze of the fleet.
pub(in crate::service) const FREEZE: &str = "freeze";

/// The configuration of a service without its own gates.
static NO_GATES: LazyLock<UpdateConfig> = LazyLock::new(UpdateConfig::default);

/// Who requested an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// A poll cycle.
    Cycle,
    /// `POST /trigger/<name>`.
    Trigger,
    /// `POST /redeploy/<name>`.
    Redeploy,
}

/// The input of the digest gates.
#[derive(Clone, Copy)]
pub(in crate::service) struct Rules<'a> {
    /// The service's name.
    pub(in crate::service) service: &'a str,
    /// The configured gates.
    pub(in crate::service) update: &'a UpdateConfig,
    /// The fleet's decisions.
    pub(in crate::service) fleet: &'a FleetView,
    /// Whether another service of the project may hold an image of this one.
    pub(super) is_shared: bool,
    /// Who requested the update.
    pub(super) asker: Asker,
    /// The current time.
    pub(in crate::service) now: Timestamp,
}

impl<'a> Rules<'a> {
    /// Creates the rules.
    pub(in crate::service) fn of(
        service: &'a str,
        update: Option<&'a UpdateConfig>,
        fleet: &'a FleetView,
        is_shared: bool,
        asker: Asker,
        now: Timestamp,
    ) -> Self {
        let update = update.unwrap_or(&NO_GATES);
        Self { service, update, fleet, is_shared, asker, now }
    }

    /// The same rules for another requester.
    pub(in crate::service) fn for_asker(self, asker: Asker) -> Self {
        Self { asker, ..self }
    }
}

pub(in crate::service) fn open(gate: &str, why: impl Into<String>) -> Gate {
    Gate {
        gate: gate.to_owned(),
        holds: false,
        why: why.into(),
        lifts_at: None,
        clear: None,
        blocked_by: None,
        output: None,
    }
}

pub(in crate::service) fn held(gate: &str, why: impl Into<String>) -> Gate {
    Gate { holds: true, ..open(gate, why) }
}

pub(in crate::service) fn cleared_by(clear: impl Into<String>, gate: Gate) -> Gate {
    Gate { clear: Some(clear.into()), ..gate }
}

pub(in crate::service) fn redeploy(rules: &Rules<'_>) -> String {
    format!("POST /redeploy/{}", rules.service)
}

pub(in crate::service) fn trigger(rules: &Rules<'_>) -> String {
    format!("POST /trigger/{}", rules.service)
}
