//! A stub warden with a small fleet.

use contract_tests::StubServer;
use serde_json::{Value, json};

use super::{ago, ahead};

pub(crate) const DIGEST: &str = "sha256:6c3c624b58dbbcd3c0dd82b4c53f04194d1247c6eebdaab7c610cf7d66709b3b";
pub(crate) const BAD: &str = "sha256:b5b2b2c507a0944348e0303114d8d93aaaa081732b86451d9bce1f432a537bc7";

fn machines() -> Value {
    json!([
        { "id": "harbour", "online": true, "since": ago(180_000), "last_entry": ago(60), "last_seq": 812, "missing": 0,
          "counts_by_level": { "info": 790, "warning": 20, "error": 2, "critical": 0, "other": 0 } },
        { "id": "lighthouse", "online": false, "since": ago(540), "reason": "connection refused", "last_entry": ago(600),
          "last_seq": 97, "missing": 3, "counts_by_level": { "info": 88, "warning": 5, "error": 0, "critical": 1, "other": 0 } },
        { "id": "quay", "missing": 0, "counts_by_level": { "info": 0, "warning": 0, "error": 0, "critical": 0, "other": 0 } },
    ])
}

pub(crate) fn entry(
    seq: u32,
    seconds: u32,
    agent: &str,
    service: &str,
    event: &str,
    level: &str,
    message: &str,
) -> Value {
    json!({ "timestamp": ago(seconds), "machine": agent, "service": service, "event": event, "message": message,
            "level": level, "seq": seq, "agent": agent })
}

/// Starts a stub warden with three machines, one of which is offline.
pub(crate) fn busy_warden() -> StubServer {
    let stub = StubServer::warden();
    stub.answer("GET /machines", 200, &machines());
    let mut updated =
        entry(1, 4000, "harbour", "shop", "updated", "info", "the new image passed its probation");
    updated["new_digest"] = json!(DIGEST);
    stub.entry(&updated);
    let mut back = entry(
        90,
        3000,
        "lighthouse",
        "shop",
        "rolled_back",
        "warning",
        "the new image failed; the old one runs again",
    );
    back["old_digest"] = json!(DIGEST);
    back["new_digest"] = json!(BAD);
    back["reason"] = json!("container shop-1 exited with code 1");
    stub.entry(&back);
    stub.entry(&entry(97, 600, "lighthouse", "cache", "exhausted", "critical", "3 restarts did not help"));
    stub.entry(&entry(
        0,
        540,
        "lighthouse",
        "warden",
        "agent_offline",
        "warning",
        "lighthouse does not answer",
    ));
    stub.entry(&entry(812, 60, "harbour", "queue", "restarted", "info", "queue-1 is healthy again"));
    stub
}

/// The images of that fleet: one digest failed on `lighthouse`, one is waiting for approval, and `quay` is frozen.
pub(crate) fn images() -> Value {
    let cell = |machine: &str, service: &str, more: Value| {
        let mut cell = json!({ "machine": machine, "ring": 0, "reported": ago(30), "service": service,
            "image": format!("registry.example/{service}:latest"), "digest": DIGEST, "verdict": "proven",
            "proven_at": ago(4 * 86_400) });
        for (key, value) in more.as_object().expect("an object") {
            cell[key] = value.clone();
        }
        cell
    };
    let behind = json!({ "available": BAD, "behind_since": ago(7300) });
    let with = |mut value: Value, key: &str, text: &str| {
        value[key] = json!(text);
        value
    };
    let failed = with(with(behind.clone(), "verdict", "failed"), "blocked", BAD);
    let approval = with(with(behind.clone(), "gate", "approval"), "why", "nobody has approved it yet");
    json!({
        "revision": 7,
        "machines": ["harbour", "lighthouse", "quay"],
        "freezes": [{ "id": "f1", "reason": "trade fair", "by": "operator", "since": ago(600), "until": ahead(5400),
            "seconds_left": 7200, "scope": { "machine": "quay" } }],
        "failed": [{ "repository": "registry.example/shop", "digest": BAD, "agents": ["lighthouse"], "since": ago(3000),
            "reason": "container shop-1 exited with code 1", "output": "shop-1 | no such column: price" }],
        "images": [
            { "repository": "registry.example/db", "cells": [cell("harbour", "db", json!({})),
                cell("harbour", "db-replica", approval)] },
            { "repository": "registry.example/shop", "cells": [cell("harbour", "shop", behind), cell("lighthouse", "shop", failed)] },
        ],
    })
}

/// Starts a stub warden with three machines and their images.
pub(crate) fn fleet_warden() -> StubServer {
    let stub = busy_warden();
    stub.answer("GET /fleet/images", 200, &images());
    stub
}
