//! `GET /status`: requests within the same second share one response as long as nothing changes, since with hundreds of
//! services it takes milliseconds to render.

use bytes::Bytes;
use evenkeel_common::wire::StatusReport;
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::project::services::{Seen, Services};

/// The last response.
#[derive(Default)]
pub struct StatusAnswers(Mutex<Option<Answer>>);

struct Answer {
    /// The agent's uptime, which does not jump when the clock is set.
    second: u64,
    seen: Seen,
    body: Bytes,
}

impl StatusAnswers {
    /// Returns the report as JSON. Fails if it can't be serialized. `undelivered`: channels that deliver nothing.
    pub(super) fn get(
        &self,
        services: &Services,
        undelivered: Vec<String>,
        now: Timestamp,
    ) -> Result<Bytes, serde_json::Error> {
        let mut last = self.0.lock();
        let second = services.uptime_seconds();
        if let Some(last) = last.as_ref().filter(|last| last.second == second && !last.seen.has_changed()) {
            return Ok(last.body.clone());
        }
        // Before the services are read: what changes meanwhile is rendered again.
        let seen = services.seen();
        let body = Bytes::from(render(services, undelivered, now)?);
        *last = Some(Answer { second, seen, body: body.clone() });
        Ok(body)
    }
}

/// Serializes one record after the other: all of them take several times the memory of their text.
fn render(
    services: &Services,
    undelivered: Vec<String>,
    now: Timestamp,
) -> Result<Vec<u8>, serde_json::Error> {
    let mut body = serde_json::to_vec(&StatusReport { undelivered, ..services.head() })?;
    debug_assert!(body.ends_with(b"\"services\":[]}"), "the records are the last field");
    body.truncate(body.len() - b"]}".len());
    for (n, record) in services.records(now).enumerate() {
        if n > 0 {
            body.push(b',');
        }
        serde_json::to_writer(&mut body, &record)?;
    }
    body.extend_from_slice(b"]}");
    Ok(body)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use evenkeel_common::clock::Uptime;
    use tokio::sync::{mpsc, watch};

    use super::*;
    use crate::project::services::{Dependencies, EngineHealth, PollState, Workers};

    static SECONDS: AtomicU64 = AtomicU64::new(1000);

    #[test]
    fn requests_share_a_response_until_a_second_passes_or_something_changes() {
        let (polls, _) = mpsc::unbounded_channel();
        let (poll, poll_state) = watch::channel(PollState::default());
        let (loaded, workers) = watch::channel(Some(Workers::default()));
        let (health, engine) = watch::channel(EngineHealth::default());
        let (changed, shown) = watch::channel(());
        let (_state, state) = watch::channel(None);
        let dependencies = Dependencies { workers, poll_state, engine, services: shown, state, active: None };
        let uptime = Uptime::by(|| Duration::from_secs(SECONDS.load(Ordering::Relaxed)));
        let services = Services::new(polls, dependencies, uptime);
        let answers = StatusAnswers::default();
        let undelivered = || vec!["notifications.ntfy: no".to_owned()];
        let get = || answers.get(&services, undelivered(), Timestamp::UNIX_EPOCH).unwrap();

        let mut last = get();
        assert_eq!(get().as_ptr(), last.as_ptr(), "one response in memory");
        let changes: [(&str, &dyn Fn()); 5] = [
            ("a second has passed", &|| _ = SECONDS.fetch_add(1, Ordering::Relaxed)),
            ("a cycle has ended", &|| poll.send_modify(|state| state.poll_count += 1)),
            ("the engine is gone", &|| health.send_modify(|health| health.error = Some("gone".to_owned()))),
            ("a service has changed", &|| changed.send_replace(())),
            ("the configuration has changed", &|| _ = loaded.send_replace(Some(Workers::default()))),
        ];
        for (what, change) in changes {
            change();
            let next = get();
            assert_ne!(next.as_ptr(), last.as_ptr(), "{what}");
            assert_eq!(get().as_ptr(), next.as_ptr(), "{what}");
            last = next;
        }
        let report: StatusReport = serde_json::from_slice(&last).unwrap();
        assert_eq!((report.poll_count, report.engine_error.as_deref()), (1, Some("gone")));
        assert_eq!(report.uptime_seconds, 1);
        assert_eq!(report.undelivered, undelivered());
    }
}
