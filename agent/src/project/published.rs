//! What services show, each in a cell of its own, and one signal for the changes of all.
//!
//! A watch channel for each service would take more memory than what it carries. Whoever watches all services needs one
//! signal anyway, and whoever waits for one of them looks again whenever something has changed.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use crate::service::status::{Published, Snapshot};

/// The signal that something is shown that was not shown before. Clones are the same.
pub type Changed = watch::Sender<()>;

/// The service has ended: what it shows does not change any more.
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
        access(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A cell that shows `first`: where changes are written, and where they are read.
pub fn channel(first: Published, changed: Changed) -> (Sender, Receiver) {
    let state = Mutex::new(State { shown: first, has_ended: false });
    let cell = Arc::new(Cell { state, changed });
    (Sender(cell.clone()), Receiver(cell))
}

/// The service's end. Dropping it tells the others that the service has ended.
pub struct Sender(Arc<Cell>);

impl Sender {
    /// Shows `now`. The signal is given only where that looks different.
    pub fn send(&self, now: Published) {
        let before = self.0.with(|state| state.shown.clone());
        let is_news = !before.looks_like(&now);
        self.0.with(|state| state.shown = now);
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

/// The end of the others. Clones are the same.
#[derive(Clone)]
pub struct Receiver(Arc<Cell>);

impl Receiver {
    /// What is shown now.
    pub fn get(&self) -> Published {
        self.0.with(|state| state.shown.clone())
    }

    /// What is shown now, as a snapshot.
    pub fn snapshot(&self) -> Snapshot {
        self.get().snapshot()
    }

    /// Whether the service has ended.
    pub fn has_ended(&self) -> bool {
        self.0.with(|state| state.has_ended)
    }

    /// Whether both show the same service.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The first snapshot for which `is_wanted` holds; an error when the service ends before.
    pub async fn wait_for(&self, is_wanted: impl Fn(&Snapshot) -> bool) -> Result<Snapshot, Ended> {
        // Before the first look, so that no change is missed between a look and the wait after it.
        let mut changes = self.0.changed.subscribe();
        loop {
            let has_ended = self.has_ended();
            let snapshot = self.snapshot();
            if is_wanted(&snapshot) {
                return Ok(snapshot);
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
    use crate::service::boot::{Boot, StartReason};
    use crate::service::tests::config;
    use crate::service::{Durable, Service};

    /// A service on whose images this digest is blocked.
    fn shown(blocked: Option<&[u8]>) -> Published {
        let config = Arc::new(config());
        let blocked = blocked.map(|digest| ("web:1".to_owned(), Digest::of(digest)));
        let durable = Durable { blocked: blocked.into_iter().collect(), ..Durable::default() };
        let start = Timestamp::UNIX_EPOCH;
        let (service, _) = Service::new(config, durable, Boot::default(), StartReason::Start, start);
        Published::new(Arc::new(service))
    }

    #[test]
    fn only_what_looks_different_is_signalled() {
        let changed = Changed::default();
        let mut signal = changed.subscribe();
        let (sender, receiver) = channel(shown(None), changed);
        let same = shown(None);
        sender.send(same.clone());
        assert!(!signal.has_changed().unwrap());
        assert!(Arc::ptr_eq(&receiver.get().service, &same.service), "the former service is not kept");
        sender.send(shown(Some(b"bad")));
        assert!(signal.has_changed().unwrap());
        signal.mark_unchanged();
        sender.send(Published { pulled: PullProgress { bytes: 1, total: 2 }, ..shown(Some(b"bad")) });
        assert!(!signal.has_changed().unwrap(), "nothing is being pulled");
        drop(sender);
        assert!(signal.has_changed().unwrap());
        assert!(receiver.has_ended());
    }

    #[tokio::test]
    async fn a_wait_ends_with_what_is_wanted_or_with_the_service() {
        let changed = Changed::default();
        let (sender, receiver) = channel(shown(None), changed.clone());
        let is_wanted = |snapshot: &Snapshot| !snapshot.blocked.is_empty();
        let mut wait = Box::pin(receiver.wait_for(is_wanted));
        assert!(wait.as_mut().now_or_never().is_none());
        changed.send_replace(());
        assert!(wait.as_mut().now_or_never().is_none(), "another service's change");
        sender.send(shown(Some(b"bad")));
        assert!(is_wanted(&wait.await.unwrap()));
        drop(sender);
        assert!(receiver.wait_for(is_wanted).await.is_ok(), "what was shown last counts");
        assert_eq!(receiver.wait_for(|_| false).await.unwrap_err(), Ended);
    }
}
