//! Builds and spawns the fleet tasks.

use std::sync::{Arc, OnceLock};

use evenkeel_common::clock::Clock;
use evenkeel_common::store::Store;
use evenkeel_common::supervisor::Supervisor;
use tokio::sync::watch;

use crate::adapters::warden::{CurrentWardens, Wardens};
use crate::config::active;
use crate::http::Recording;
use crate::project::services::Services;
use crate::project::world::Record;
use crate::service::fleet::FleetView;
use crate::tasks::fleet::{FleetListener, ReplaceWardens, Saving};
use crate::tasks::fleet_report::{FleetReporter, PushProgress};

/// Dependencies of the fleet tasks.
pub(super) struct FleetParts {
    pub(super) wardens: Arc<CurrentWardens>,
    pub(super) view: watch::Sender<Arc<FleetView>>,
    pub(super) active: active::Watch,
    pub(super) services: Arc<Services>,
    pub(super) recording: Arc<OnceLock<Recording>>,
    pub(super) store: Arc<dyn Store>,
    pub(super) record: Record,
    pub(super) clock: Arc<dyn Clock>,
}

impl FleetParts {
    /// Spawns the tasks.
    pub(super) fn spawn(&self, supervisor: &mut Supervisor) {
        let parts = self;
        let wardens = parts.wardens.clone();
        let replace: ReplaceWardens = Box::new(move |push| {
            wardens.replace(push.map(Wardens::new).transpose()?);
            Ok(())
        });
        let listener = FleetListener {
            fleet: parts.wardens.clone(),
            replace,
            view: parts.view.clone(),
            store: parts.store.clone(),
            active: parts.active.clone(),
            clock: parts.clock.clone(),
            record: parts.record.clone(),
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
            view: parts.view.subscribe(),
            push,
            clock: parts.clock.clone(),
        };
        supervisor.spawn("fleet", listener.run(supervisor.token()));
        supervisor.spawn("fleet report", reporter.run(supervisor.token()));
    }
}
