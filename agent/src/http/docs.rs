//! The API documentation of each endpoint, in routing order.

use std::collections::BTreeMap;

use evenkeel_common::http::openapi::{About, Doc};
use evenkeel_common::wire::{
    ApproveReply, ApproveRequest, AuditEntry, ErrorBody, EventsReply, Health, ProvenRecord, RedeployReply,
    RollbackReply, RollbackRequest, ServiceStatus, StatusReport, TriggerReply, UnblockReply, WhyReport,
};
use serde_json::json;

const EVENT_STREAM: &str = "text/event-stream";
/// Accepted content types of a registry's event envelope.
const ENVELOPES: &[&str] = &[
    "application/vnd.docker.distribution.events.v1+json",
    "application/vnd.docker.distribution.events.v2+json",
    "application/json",
];

/// Documentation that applies to all endpoints.
pub(super) const ABOUT: About = About {
    title: "Evenkeel agent",
    version: env!("CARGO_PKG_VERSION"),
    summary: "Keeps container services up to date.",
    description: "There is no authentication. The Host header must be an IP address, localhost, a name of the \
        machine or listed in api.allowed_hosts; other requests are refused with 403, except for /health, /metrics and \
        /registry/events. Cross-site requests are refused with 403 too, except links to the dashboard and requests \
        for /health. HEAD is supported wherever GET is. A request body is read only where one is described. During \
        start-up, endpoints that need the services respond with 503 and Retry-After until the services are loaded. \
        Under overload, the response is 429 or 503 with Retry-After.",
};

type Names = BTreeMap<String, String>;

pub(super) fn trigger_all() -> Doc {
    Doc::of("Checks all services now.").json::<TriggerReply>(200, "A check was started.")
}

pub(super) fn trigger() -> Doc {
    Doc::of("Checks one service now.")
        .query(
            "pass",
            "false: the check does not pass the gates approval, min_age and window.",
            json!({ "type": "boolean", "default": true }),
        )
        .json::<ErrorBody>(400, "pass is neither true nor false.")
        .json::<TriggerReply>(200, "The check was started, or the reason why not.")
        .with_service_name()
}

pub(super) fn blocked() -> Doc {
    Doc::of("Lists blocked digests.").json::<Names>(200, "Digests by service and image.")
}

pub(super) fn unblock() -> Doc {
    Doc::of("Unblocks all digests of a service.")
        .json::<UnblockReply>(200, "Unblocked, or nothing was blocked.")
        .with_service_name()
}

pub(super) fn approve() -> Doc {
    Doc::of("Approves the waiting update.")
        .json_body::<ApproveRequest>("Optional: the digest to approve, {\"digest\": \"sha256:…\"}.")
        .json::<ApproveReply>(200, "Approved, or nothing is waiting.")
        .json::<ErrorBody>(400, "The request body is invalid.")
        .json::<ErrorBody>(409, "A different digest is waiting now.")
        .with_service_name()
}

pub(super) fn rollback() -> Doc {
    Doc::of("Goes back to an image that was proven here.")
        .json_body::<RollbackRequest>("Optional: the digest to go back to, {\"to\": \"sha256:…\"}.")
        .json::<RollbackReply>(200, "Started, or the reason why not.")
        .json::<ErrorBody>(400, "The request body is invalid.")
        .json::<ErrorBody>(409, "The image was not proven here, runs already, or is gone.")
        .with_service_name()
}

pub(super) fn history() -> Doc {
    Doc::of("Lists the images that were proven here, newest first.")
        .json::<Vec<ProvenRecord>>(200, "The images.")
        .with_service_name()
}

pub(super) fn not_found() -> Doc {
    Doc::of("Lists images that are missing on this machine.")
        .json::<Names>(200, "Digests by service and image.")
}

pub(super) fn errored() -> Doc {
    Doc::of("Lists persistent faults.").json::<Names>(200, "Fault descriptions by service.")
}

pub(super) fn status() -> Doc {
    Doc::of("Returns the status of all services.")
        .json::<StatusReport>(200, "The report.")
        .json::<ErrorBody>(503, "The agent is still starting.")
}

pub(super) fn status_of() -> Doc {
    Doc::of("Returns the status of one service.")
        .json::<ServiceStatus>(200, "The service's status.")
        .with_service_name()
}

pub(super) fn why() -> Doc {
    Doc::of("Explains what keeps an update of one service from being deployed now.")
        .json::<WhyReport>(200, "The state of every gate, and a one-sentence summary.")
        .with_service_name()
}

pub(super) fn audit() -> Doc {
    Doc::of("Returns the latest audit entries, newest first.")
        .query(
            "limit",
            "Maximum number of entries; values above 500 count as 500.",
            json!({ "type": "integer", "minimum": 1 }),
        )
        .json::<Vec<AuditEntry>>(200, "The entries.")
        .json::<ErrorBody>(400, "The limit is not a positive integer.")
}

pub(super) fn health() -> Doc {
    Doc::of(
        "Reports whether the agent is healthy: its services are loaded and the container engine responds.",
    )
    .json::<Health>(200, "The agent is healthy.")
    .json::<Health>(503, "The agent is still starting, or the engine does not respond.")
}

pub(super) fn metrics() -> Doc {
    Doc::of("Returns metrics in the Prometheus text format.").text(200, "The metrics.", "text/plain")
}

pub(super) fn redeploy() -> Doc {
    Doc::of("Pulls the images of a service and recreates its containers.")
        .json::<RedeployReply>(
            200,
            "Started, with the images that stay at their current digest; or the reason why not.",
        )
        .with_service_name()
}

fn stream(summary: &'static str) -> Doc {
    let what = "Continues after the entry with this id, for clients that cannot send Last-Event-ID.";
    Doc::of(summary).query("after", what, json!({ "type": "integer", "minimum": 0 })).text(
        200,
        "The stream.",
        EVENT_STREAM,
    )
}

pub(super) fn ui_events() -> Doc {
    stream("Streams audit entries, starting with the last 50.")
}

pub(super) fn ui() -> Doc {
    Doc::of("Serves the dashboard.").text(200, "The page.", "text/html; charset=utf-8")
}

pub(super) fn root() -> Doc {
    Doc::of("Redirects to the dashboard.").empty(302, "See /ui.")
}

pub(super) fn ui_stream() -> Doc {
    stream(
        "Streams audit entries and status changes, after an event `epoch` that identifies the numbering of the entries.",
    )
}

pub(super) fn registry_events() -> Doc {
    Doc::of("Receives notifications from a distribution registry.")
        .body(ENVELOPES, "The registry's event envelope; unusable events are ignored.")
        .json::<EventsReply>(202, "Always accepted, whatever the body contains.")
        .json::<ErrorBody>(503, "Request bodies in progress use all memory reserved for them; retry later.")
}
