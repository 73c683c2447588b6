//! A stub agent with services in every state.

use contract_tests::StubServer;
use serde_json::{Value, json};

use super::{ago, ahead};

pub(crate) const OLD: &str = "sha256:6c3c624b58dbbcd3c0dd82b4c53f04194d1247c6eebdaab7c610cf7d66709b3b";
pub(crate) const NEW: &str = "sha256:b5b2b2c507a0944348e0303114d8d93aaaa081732b86451d9bce1f432a537bc7";

/// A status record with all required fields.
pub(crate) fn service(name: &str, status: &str) -> Value {
    json!({
        "name": name, "status": status, "auto_update": true, "auto_start": true, "auto_heal": true,
        "healthy": status == "ok", "deploying": false, "degraded": false, "exhausted": false,
        "restart_failures": 0, "updates_total": 0, "rollbacks_total": 0, "restarts_total": 0, "failures_total": 0,
        "has_stats": true, "cpu_percent": 3.4, "memory_percent": 21.0, "memory_usage_mb": 107.5,
        "memory_limit_mb": 512.0, "check_status": "idle", "last_check": ago(63), "next_check": ahead(200),
        "images": [{ "image": format!("localhost:5000/{name}:latest"), "digest": OLD, "short": &OLD[..19], "size_mb": 84.25 }],
        "containers": [{
            "id": format!("{name}-1"), "name": format!("{name}-1"), "state": "running",
            "status": "Up 3 hours (healthy)", "image": format!("localhost:5000/{name}:latest"),
            "cpu_percent": 3.4, "memory_percent": 21.0, "memory_usage_mb": 107.5, "memory_limit_mb": 512.0,
        }],
    })
}

pub(crate) fn with(mut record: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().expect("an object") {
        record[key] = value.clone();
    }
    record
}

/// The status of a machine with services in every state.
pub(crate) fn busy_machine() -> Value {
    let shop = with(
        service("shop", "ok"),
        &json!({
            "updates_total": 41, "restarts_total": 2, "cpu_percent": 38.2,
            "containers": [
                { "id": "a1", "name": "shop-web-1", "state": "running", "status": "Up 3 hours (healthy)",
                  "image": "localhost:5000/shop:latest", "cpu_percent": 36.0, "memory_percent": 20.0,
                  "memory_usage_mb": 300.25, "memory_limit_mb": 1536.0,
                  "mounts": [
                    { "type": "volume", "name": "shop_media", "source": "", "destination": "/srv/media", "read_only": false },
                    { "type": "bind", "name": "", "source": "/etc/shop/settings.toml", "destination": "/app/settings.toml", "read_only": true },
                    { "type": "tmpfs", "name": "", "source": "", "destination": "/tmp", "read_only": false } ] },
                { "id": "a2", "name": "shop-worker-1", "state": "running", "status": "Up 3 hours",
                  "image": "localhost:5000/shop:latest" },
            ],
        }),
    );
    let api = with(
        service("api", "blocked"),
        &json!({
        "blocked": NEW, "rollbacks_total": 1, "failures_total": 1, "updates_total": 12 }),
    );
    let search = with(
        service("search", "deploying"),
        &json!({
        "deploying": true, "has_stats": false, "next_check": null,
        "deploy": { "phase": "pulling", "image": "localhost:5000/search:latest", "since": ago(12),
                    "pulled_bytes": 44_040_192, "total_bytes": 102_760_448 } }),
    );
    let mail = with(
        service("mail", "deploying"),
        &json!({
        "deploying": true, "memory_percent": 83.0, "memory_usage_mb": 424.9,
        "deploy": { "phase": "probation", "image": "localhost:5000/mail:latest", "since": ago(22),
                    "deadline": ahead(38), "pulled_bytes": 1, "total_bytes": 1,
                    "probe": { "probe": "GET http://:8025/health", "passed": false, "answer": "Connection refused" },
                    "handover": { "old": [{ "name": "mail-1", "state": "running", "health": "healthy" }],
                                  "new": [{ "name": "mail-2", "state": "running", "health": "starting" }] } } }),
    );
    let ledger = with(
        service("ledger", "errored"),
        &json!({
        "errored": "cannot ask the registry localhost:5000 for ledger:latest: connection refused",
        "failures_total": 3, "auto_heal": false }),
    );
    let queue = with(
        service("queue", "degraded"),
        &json!({
        "degraded": true, "healthy": false, "restart_failures": 1, "restarts_total": 5, "cpu_percent": 97.0 }),
    );
    let cache = with(
        service("cache", "exhausted"),
        &json!({
        "exhausted": true, "healthy": false, "restart_failures": 3, "restarts_total": 9, "failures_total": 3 }),
    );
    let docs = with(service("docs", "not_found"), &json!({ "not_found": NEW, "auto_start": false }));
    let mut legacy = with(
        service("legacy", "unknown"),
        &json!({
        "auto_update": false, "auto_heal": false, "auto_start": false, "has_stats": false }),
    );
    for key in ["images", "containers", "next_check", "last_check", "healthy"] {
        legacy.as_object_mut().expect("an object").remove(key);
    }
    json!({ "uptime_seconds": 86_400, "services": [shop, api, search, mail, ledger, queue, cache, docs, legacy] })
}

fn rollback() -> Value {
    json!({
        "timestamp": ago(300), "service": "api", "event": "rolled_back", "level": "warning",
        "message": "the new image failed its probation; the old one runs again and is healthy",
        "old_digest": OLD, "new_digest": NEW, "container": "api-1",
        "reason": "container api-1 exited with code 1 after 4 seconds", "outage_seconds": 12,
        "output": "api-1  | 2026-05-04T10:11:12Z starting\napi-1  | \u{1b}[31merror\u{1b}[0m: no such column: price\napi-1  | exit 1",
    })
}

fn history(stub: &StubServer) {
    let plain = |seconds, service: &str, event: &str, level: &str, message: &str| json!({ "timestamp": ago(seconds), "service": service, "event": event, "level": level, "message": message });
    stub.entry(&plain(86_000, "evenkeel", "started", "info", "watching 9 services"));
    stub.entry(&with(
        plain(7200, "shop", "updated", "info", "the new image passed its probation"),
        &json!({ "old_digest": NEW, "new_digest": OLD }),
    ));
    stub.entry(&plain(
        1900,
        "ledger",
        "error",
        "error",
        "cannot ask the registry localhost:5000 for ledger:latest: connection refused",
    ));
    stub.entry(&plain(
        900,
        "cache",
        "exhausted",
        "critical",
        "3 restarts did not help; given up until someone acts",
    ));
    stub.entry(&rollback());
    stub.entry(&plain(95, "queue", "restarting", "warning", "queue-1 is unhealthy; restarting it"));
}

/// Starts a stub agent with that machine.
pub(crate) fn busy_agent() -> StubServer {
    let stub = StubServer::agent();
    stub.status(&busy_machine());
    history(&stub);
    stub
}
