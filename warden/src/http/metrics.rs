//! `GET /metrics`: for a scraper that has `api.token`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_common::http::{Request, Response, StatusCode, error};
use evenkeel_common::metrics::{self, TEXT_FORMAT, family, flag, single};
use http::header::{CONTENT_TYPE, HeaderValue};
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use tokio::time::timeout;

use super::Api;
use super::fleet_metrics::FleetFigures;
use super::store_metrics::StoreFigures;
use crate::auth::tokens;
use crate::fleet::Machine;
use crate::keep::{Keep, Usage};

/// How long a scrape waits for the size of the store. Prometheus gives up after 10 s by default, and then takes a warden whose
/// store hangs for one that is down.
const USAGE_TIME: Duration = Duration::from_secs(2);

/// Counters of refused requests; everything else is computed from the fleet.
#[derive(Debug, Default)]
pub struct Metrics {
    ingest_refusals: [AtomicU64; 5],
    login_refusals: [AtomicU64; 2],
}

/// Why a request to `/ingest` was refused.
#[derive(Debug, Clone, Copy)]
pub(super) enum IngestRefusal {
    Unauthorized,
    Malformed,
    TooMany,
    Throttled,
    StoreAway,
}

/// Why a login was refused.
#[derive(Debug, Clone, Copy)]
pub(super) enum LoginRefusal {
    Wrong,
    Throttled,
}

impl Metrics {
    pub(super) fn count_login_refusal(&self, why: LoginRefusal) {
        self.login_refusals[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_ingest_refusal(&self, why: IngestRefusal) {
        self.ingest_refusals[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Renders all metrics as text. They are computed from the current state, so they cannot diverge from it.
    fn text(
        &self,
        machines: &[Machine],
        streams: usize,
        store: &StoreFigures,
        fleet: Option<&FleetFigures>,
    ) -> Result<Vec<u8>, prometheus::Error> {
        let refused = ["unauthorised", "malformed", "too_many", "slowed", "store_away"]
            .into_iter()
            .zip(&self.ingest_refusals);
        let logins = ["wrong", "slowed"].into_iter().zip(&self.login_refusals);
        let mut families = ProcessCollector::for_self().collect();
        families.extend([
            family(
                "evenkeel_warden_refused_requests_total",
                "Requests to /ingest that were refused.",
                refused.map(by_reason),
            ),
            family(
                "evenkeel_warden_refused_logins_total",
                "Tokens of users that were refused: wrong, or not checked after too many wrong ones.",
                logins.map(by_reason),
            ),
            single("evenkeel_warden_streams", "Clients that follow the entries.", streams as f64),
            family("evenkeel_warden_entries_total", "Entries stored.", machines.iter().flat_map(by_level)),
            family(
                "evenkeel_warden_repeated_entries_total",
                "Duplicate entries, which were not stored again.",
                machines.iter().map(|machine| (of(machine), machine.duplicates() as f64)),
            ),
            family(
                "evenkeel_warden_agent_online",
                "1 if the last heartbeat was answered, else 0.",
                machines.iter().filter_map(|machine| Some((of(machine), flag(machine.online()?)))),
            ),
            family(
                "evenkeel_warden_missing_entries",
                "Entries that arrived without their number, or never reached the warden.",
                machines.iter().map(|machine| (of(machine), machine.missing() as f64)),
            ),
        ]);
        families.extend(store.families());
        if let Some(fleet) = fleet {
            families.extend(fleet.families());
        }
        metrics::text(families)
    }
}

fn by_reason<'a>((reason, count): (&'a str, &AtomicU64)) -> ([(&'static str, &'a str); 1], f64) {
    ([("reason", reason)], count.load(Ordering::Relaxed) as f64)
}

fn of(machine: &Machine) -> [(&'static str, &str); 1] {
    [("agent", machine.id())]
}

fn by_level(machine: &Machine) -> [([(&'static str, &str); 2], f64); 5] {
    let counts = machine.counts();
    let levels = [
        ("critical", counts.critical),
        ("error", counts.error),
        ("info", counts.info),
        ("other", counts.other),
        ("warning", counts.warning),
    ];
    levels.map(|(level, count)| ([("agent", machine.id()), ("level", level)], count as f64))
}

pub(super) async fn metrics(api: Api, request: Request) -> Response {
    let bearer = tokens::bearer(&request.headers).map(str::to_owned);
    if let Err(refused) =
        api.check_api_token(&api.config(), &request.headers, &request.arrival, bearer.into_iter())
    {
        return refused.reply("api.token is needed as bearer token");
    }
    let state = api.collector.store_state().borrow().clone();
    let is_up = state.error().is_none();
    let store = StoreFigures {
        is_up,
        figures: api.collector.figures(),
        usage: if is_up { usage(api.collector.keep().as_ref()).await } else { None },
        clock_ahead: api.collector.keep().clock_ahead(),
        now: api.clock.now(),
    };
    // Zeros in place of unknown figures would make the stored counters look as if they had just risen.
    let is_known = state.is_read();
    let fleet = is_known.then(|| FleetFigures {
        images: api.collector.fleet_images(),
        withheld: api.collector.withheld_digests(),
        leases: api.collector.live_leases(),
        answers: api.collector.answers(),
        polls: api.polls.taken(),
        now: api.clock.now(),
    });
    let machines = if is_known { api.collector.machines() } else { Vec::new() };
    match api.metrics.text(&machines, api.streams.taken(), &store, fleet.as_ref()) {
        Ok(text) => {
            let mut response = Response::new(text.into());
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT_FORMAT));
            response
        }
        Err(cause) => {
            tracing::error!(%cause, "the metrics cannot be rendered");
            error(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be rendered")
        }
    }
}

/// Returns the size of the store, unless it is slow to tell: it may hang, which is noticed only later.
async fn usage(keep: &dyn Keep) -> Option<Usage> {
    timeout(USAGE_TIME, keep.usage()).await.ok()?.ok()
}
