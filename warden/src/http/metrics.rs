//! `GET /metrics`: for a scraper that has `api.token`.

use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_common::http::{Request, Response, StatusCode, error};
use http::header::{CONTENT_TYPE, HeaderValue};
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{Encoder, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

use super::Api;
use crate::auth::tokens;
use crate::fleet::Machine;

/// Counters of refused requests; everything else is computed from the fleet.
#[derive(Debug, Default)]
pub struct Metrics {
    ingest_refusals: [AtomicU64; 4],
    login_refusals: [AtomicU64; 3],
}

/// Why a request to `/ingest` was refused.
#[derive(Debug, Clone, Copy)]
pub(super) enum IngestRefusal {
    Unauthorized,
    Malformed,
    TooMany,
    Throttled,
}

/// Why a login was refused.
#[derive(Debug, Clone, Copy)]
pub(super) enum LoginRefusal {
    Wrong,
    Throttled,
    TooShort,
}

impl Metrics {
    pub(super) fn count_login_refusal(&self, why: LoginRefusal) {
        self.login_refusals[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_ingest_refusal(&self, why: IngestRefusal) {
        self.ingest_refusals[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Renders all metrics. They are computed here from the current state, so they cannot disagree with it.
    fn text(&self, machines: &[Machine], streams: usize) -> Result<Vec<u8>, prometheus::Error> {
        let registry = Registry::new();
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let counter = |name: &str, help: &str, labels: &[&str]| {
            add(&registry, IntCounterVec::new(Opts::new(format!("evenkeel_warden_{name}"), help), labels)?)
        };
        let gauge = |name: &str, help: &str| {
            add(&registry, IntGaugeVec::new(Opts::new(format!("evenkeel_warden_{name}"), help), &["agent"])?)
        };
        let entries = counter("entries_total", "Entries stored.", &["agent", "level"])?;
        let repeats = counter(
            "repeated_entries_total",
            "Entries that came again and were not stored again.",
            &["agent"],
        )?;
        let refused =
            counter("refused_requests_total", "Requests to /ingest that were refused.", &["reason"])?;
        let logins = counter(
            "refused_logins_total",
            "Tokens of people that were refused: wrong, not looked at after too many wrong ones, or too short.",
            &["reason"],
        )?;
        let online = gauge("agent_online", "1 when the last heartbeat was answered, else 0.")?;
        let missing = gauge("missing_entries", "Entries that were skipped and have not come.")?;
        let open = IntGauge::new("evenkeel_warden_streams", "Clients that follow the entries.")?;
        registry.register(Box::new(open.clone()))?;

        open.set(i64::try_from(streams).unwrap_or(i64::MAX));
        for (reason, count) in
            ["unauthorised", "malformed", "too_many", "slowed"].into_iter().zip(&self.ingest_refusals)
        {
            refused.with_label_values(&[reason]).inc_by(count.load(Ordering::Relaxed));
        }
        for (reason, count) in ["wrong", "slowed", "short"].into_iter().zip(&self.login_refusals) {
            logins.with_label_values(&[reason]).inc_by(count.load(Ordering::Relaxed));
        }
        for machine in machines {
            let id = machine.id();
            let counts = machine.counts();
            for (level, count) in [
                ("info", counts.info),
                ("warning", counts.warning),
                ("error", counts.error),
                ("critical", counts.critical),
                ("other", counts.other),
            ] {
                entries.with_label_values(&[id, level]).inc_by(count);
            }
            repeats.with_label_values(&[id]).inc_by(machine.duplicates());
            missing.with_label_values(&[id]).set(i64::try_from(machine.missing()).unwrap_or(i64::MAX));
            if let Some(is_online) = machine.online() {
                online.with_label_values(&[id]).set(i64::from(is_online));
            }
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text)?;
        Ok(text)
    }
}

fn add<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

pub(super) async fn metrics(api: Api, request: Request) -> Response {
    let bearer = tokens::bearer(&request.headers).map(str::to_owned);
    if let Err(refused) =
        api.check_api_token(&api.config(), &request.headers, &request.arrival, bearer.into_iter())
    {
        return refused.reply("api.token is needed as bearer");
    }
    match api.metrics.text(&api.fleet.machines(), api.streams.taken()) {
        Ok(text) => {
            let mut response = Response::new(text.into());
            let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        Err(cause) => {
            tracing::error!(%cause, "the metrics cannot be rendered");
            error(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be rendered")
        }
    }
}
