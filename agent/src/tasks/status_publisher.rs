//! Builds the status frames of `GET /ui/stream`, computed and serialized once for all clients (DECISIONS 3).
//!
//! Without clients no frames are built. A new client requests a frame, so its first one is always fresh.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::Clock;
use evenkeel_common::sse;
use evenkeel_common::wire::StatusFrame;
use futures_util::{FutureExt, Stream, StreamExt, stream};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::project::services::Services;

/// Interval between frames when nothing changes.
const EVERY: Duration = Duration::from_secs(30);
/// Minimum time between two frames: at most five per second.
const PACE: Duration = Duration::from_millis(200);

/// The clients' handle to the frames. Clones share the same frames.
#[derive(Clone)]
pub struct StatusFrames(Arc<Inner>);

struct Inner {
    latest: watch::Sender<Arc<str>>,
    wanted: Notify,
}

impl StatusFrames {
    /// Streams frames from now on, starting with a fresh one. A client that is too slow gets only the newest.
    pub fn follow(&self) -> impl Stream<Item = Arc<str>> + Send + Sync + 'static {
        // The current frame may be old, so it counts as seen.
        let latest = self.0.latest.subscribe();
        self.0.wanted.notify_one();
        stream::unfold(latest, |mut latest| async move {
            latest.changed().await.ok()?;
            let frame = latest.borrow_and_update().clone();
            Some((frame, latest))
        })
    }
}

/// The task that builds the frames.
pub struct Publisher {
    services: Arc<Services>,
    clock: Arc<dyn Clock>,
    frames: StatusFrames,
}

impl Publisher {
    /// Creates the task and the handle to its frames.
    pub fn new(services: Arc<Services>, clock: Arc<dyn Clock>) -> (Self, StatusFrames) {
        let latest = watch::Sender::new(Arc::from(""));
        let frames = StatusFrames(Arc::new(Inner { latest, wanted: Notify::new() }));
        (Self { services, clock, frames: frames.clone() }, frames)
    }

    /// Builds frames until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.frames.0.wanted.notified() => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.publish() => {}
            }
        }
    }

    /// Builds frames while there are clients.
    async fn publish(&self) {
        let mut changes = self.services.changes().boxed();
        loop {
            // All changes so far go into one frame.
            while let Some(Some(())) = changes.next().now_or_never() {}
            if self.frames.0.latest.receiver_count() == 0 {
                return;
            }
            self.frames.0.latest.send_replace(self.frame());
            tokio::time::sleep(PACE).await;
            tokio::select! {
                () = self.frames.0.wanted.notified() => {}
                Some(()) = changes.next() => {}
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    fn frame(&self) -> Arc<str> {
        let report = self.services.report(self.clock.now());
        sse::json(&StatusFrame {
            uptime_seconds: report.uptime_seconds,
            services: report.services,
            left_out: report.left_out,
        })
    }
}
