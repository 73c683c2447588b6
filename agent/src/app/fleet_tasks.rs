//! Builds and spawns the fleet tasks.

use std::sync::Arc;

use evenkeel_common::store::Store;
use evenkeel_common::supervisor::Supervisor;

use super::Parts;
use crate::project::world::Record;
use crate::tasks::fleet::{FleetListener, ReplaceWardens, Saving};
use crate::tasks::fleet_report::{FleetReporter, PushProgress};

/// Spawns the tasks.
pub(super) fn spawn(parts: &Parts, store: &Arc<dyn Store>, record: &Record, supervisor: &mut Supervisor) {
    let wardens = parts.wardens.clone();
    let replace: ReplaceWardens = Box::new(move |push| wardens.replace(push));
    let listener = FleetListener {
        fleet: parts.wardens.clone(),
        replace,
        view: parts.watches.fleet.clone(),
        store: store.clone(),
        active: parts.watches.active.subscribe(),
        clock: parts.clock.clone(),
        record: record.clone(),
        saving: Saving::default(),
    };
    let (marked, delivered) = (parts.recording.clone(), parts.recording.clone());
    let push = PushProgress {
        mark: Arc::new(move || marked.get().map_or(0, |recording| recording.audit.next_seq())),
        is_delivered: Arc::new(move |mark| {
            delivered.get().is_some_and(|recording| recording.audit.is_delivered("push", mark))
        }),
    };
    let reporter = FleetReporter {
        services: parts.services.clone(),
        fleet: parts.wardens.clone(),
        view: parts.watches.fleet.subscribe(),
        push,
        clock: parts.clock.clone(),
    };
    supervisor.spawn("fleet", listener.run(supervisor.token()));
    supervisor.spawn("fleet report", reporter.run(supervisor.token()));
}
