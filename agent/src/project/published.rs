//! Published state of the services: one cell per service, and one shared signal for changes.
//!
//! A watch channel per service would take more memory than its content. Tasks that watch all services need only one signal
//! anyway, and a task that waits for one service checks its cell again after every change.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::service::Service;
use crate::service::view::status::Published;

/// Signals that the published state of any service has changed. Clones share the signal.
pub type Changed = watch::Sender<()>;

/// The service has ended, so its published state no longer changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the service has ended")]
pub struct Ended;

struct Cell {
    state: Mutex<State>,
    changed: Changed,
}

struct State {
    shown: Published,
    has_ended: bool,
}

impl Cell {
    fn with<T>(&self, access: impl FnOnce(&mut State) -> T) -> T {
        access(&mut self.state.lock())
    }
}

/// Creates a cell with the state `first`.
pub fn channel(first: Published, changed: Changed) -> (Sender, Receiver) {
    let state = Mutex::new(State { shown: first, has_ended: false });
    let cell = Arc::new(Cell { state, changed });
    (Sender(cell.clone()), Receiver(cell))
}

/// The writing half, owned by the service. Dropping it marks the service as ended.
pub struct Sender(Arc<Cell>);

impl Sender {
    /// Publishes `now`. The signal is sent only if it differs.
    pub fn send(&self, now: Published) {
        let is_news = self.0.with(|state| {
            let is_news = !state.shown.is_same(&now);
            state.shown = now;
            is_news
        });
        if is_news {
            self.0.changed.send_replace(());
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.with(|state| state.has_ended = true);
        self.0.changed.send_replace(());
    }
}

/// The reading half. Clones share the cell.
#[derive(Clone)]
pub struct Receiver(Arc<Cell>);

impl Receiver {
    /// Returns the published state.
    pub fn get(&self) -> Published {
        self.0.with(|state| state.shown.clone())
    }

    /// Reports whether the service has ended.
    pub fn has_ended(&self) -> bool {
        self.0.with(|state| state.has_ended)
    }

    /// Reports whether both refer to the same service.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Waits for a state that satisfies `is_wanted`. Fails if the service ends first.
    pub async fn wait_for(&self, is_wanted: impl Fn(&Service) -> bool) -> Result<(), Ended> {
        // Subscribed before the first check, so that no change is missed between a check and the following wait.
        let mut changes = self.0.changed.subscribe();
        loop {
            let has_ended = self.has_ended();
            if is_wanted(&self.get().service) {
                return Ok(());
            }
            if has_ended || changes.changed().await.is_err() {
                return Err(Ended);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use futures_util::FutureExt;
    use jiff::Timestamp;

    use super::*;
    use crate::model::image::Digest;
    use crate::ports::PullProgress;
    use crate::service::Durable;
    use crate::service::boot::{Boot, StartReason};
    use crate::service::tests::config;

    /// A service with this blocked digest.
    fn shown(blocked: Option<&[u8]>) -> Published {
        let config = Arc::new(config());
        let mut durable = Durable::default();
        durable.images.of("web:1").blocked = blocked.map(Digest::of);
        let start = Timestamp::UNIX_EPOCH;
        let (service, _) = Service::new(config, durable, Boot::default(), StartReason::Start, start);
        Published::new(Arc::new(service))
    }

    #[test]
    fn only_changes_are_signalled() {
        let changed = Changed::default();
        let mut signal = changed.subscribe();
        let (sender, receiver) = channel(shown(None), changed);
        sender.send(receiver.get());
        assert!(!signal.has_changed().unwrap());
        let other = shown(Some(b"bad"));
        sender.send(other.clone());
        assert!(signal.has_changed().unwrap());
        assert!(Arc::ptr_eq(&receiver.get().service, &other.service), "the previous service is dropped");
        signal.mark_unchanged();
        sender.send(Published { pulled: PullProgress { bytes: 1, total: 2 }, ..other });
        assert!(signal.has_changed().unwrap(), "a pull gets on");
        drop(sender);
        assert!(signal.has_changed().unwrap());
        assert!(receiver.has_ended());
    }

    #[tokio::test]
    async fn a_wait_ends_with_a_matching_state_or_with_the_service() {
        let changed = Changed::default();
        let (sender, receiver) = channel(shown(None), changed.clone());
        let is_wanted = |service: &Service| service.durable().images.blocked().next().is_some();
        let mut wait = Box::pin(receiver.wait_for(is_wanted));
        assert!(wait.as_mut().now_or_never().is_none());
        changed.send_replace(());
        assert!(wait.as_mut().now_or_never().is_none(), "another service's change");
        sender.send(shown(Some(b"bad")));
        wait.await.unwrap();
        drop(sender);
        assert!(receiver.wait_for(is_wanted).await.is_ok(), "the last state counts");
        assert_eq!(receiver.wait_for(|_| false).await.unwrap_err(), Ended);
    }
}
