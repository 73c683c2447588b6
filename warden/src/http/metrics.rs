//! `GET /metrics`: for a scraper that has `api.token`.

use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_common::http::{Request, Response, StatusCode, error};
use http::header::{CONTENT_TYPE, HeaderValue};
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{Encoder, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

use super::Api;
use crate::access;
use crate::machines::Machine;

/// What is not in the ring: how many requests were refused.
#[derive(Debug, Default)]
pub struct Metrics {
    refused: [AtomicU64; 4],
    logins: [AtomicU64; 3],
}

/// Why a request to /ingest was refused.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refusal {
    Unauthorised,
    Malformed,
    TooMany,
    Slowed,
}

/// Why a person's token was refused.
#[derive(Debug, Clone, Copy)]
pub(super) enum Login {
    Wrong,
    Slowed,
    Short,
}

impl Metrics {
    pub(super) fn refused_login(&self, why: Login) {
        self.logins[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused(&self, why: Refusal) {
        self.refused[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The text for the scraper. All of it is computed here from what is known, so nothing can disagree.
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
            ["unauthorised", "malformed", "too_many", "slowed"].into_iter().zip(&self.refused)
        {
            refused.with_label_values(&[reason]).inc_by(count.load(Ordering::Relaxed));
        }
        for (reason, count) in ["wrong", "slowed", "short"].into_iter().zip(&self.logins) {
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
            repeats.with_label_values(&[id]).inc_by(machine.repeats());
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
    let bearer = access::bearer(&request.headers).map(str::to_owned);
    if let Err(refused) =
        api.check_people(&api.live(), &request.headers, &request.arrival, bearer.into_iter())
    {
        return refused.reply("api.token is needed as bearer");
    }
    match api.metrics.text(&api.ring.machines_now(), api.limiter.taken()) {
        Ok(text) => {
            let mut response = Response::new(text.into());
            let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        Err(cause) => {
            tracing::error!(%cause, "the metrics cannot be made");
            error(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be made")
        }
    }
}
