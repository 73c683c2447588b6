//! What is said about each endpoint, in the order of the table.

use std::collections::BTreeMap;

use evenkeel_common::http::openapi::{About, Doc};
use evenkeel_common::wire::{
    ApproveReply, ApproveRequest, AuditEntry, ErrorBody, EventsReply, Health, RedeployReply, ServiceStatus,
    StatusReport, TriggerReply, UnblockReply, WhyReport,
};
use serde_json::json;

const EVENT_STREAM: &str = "text/event-stream";
/// What a registry's envelope may be sent as.
const ENVELOPES: &[&str] = &[
    "application/vnd.docker.distribution.events.v1+json",
    "application/vnd.docker.distribution.events.v2+json",
    "application/json",
];

/// What holds for all endpoints.
pub(super) const ABOUT: About = About {
    title: "Evenkeel agent",
    version: env!("CARGO_PKG_VERSION"),
    summary: "Keeps container services up to date.",
    description: "There is no login. Requests whose Host is no IP address, localhost, the machine's name \
        or in api.allowed_hosts are refused with 403, and so are those from pages of other sites, except that a \
        link may lead to the page and anybody may ask for /health. What GET serves, HEAD serves too. A body is \
        read only where one is described. While the agent starts, what needs its services is answered with 503 \
        and Retry-After until they are loaded. Where too much is under way at once the answer is 429 or 503 with \
        Retry-After.",
};

type Names = BTreeMap<String, String>;

pub(super) fn trigger_all() -> Doc {
    Doc::of("Checks all services now.").json::<TriggerReply>(200, "A check was started.")
}

pub(super) fn trigger() -> Doc {
    Doc::of("Checks one service now.").json::<TriggerReply>(200, "Started, or why not.").named()
}

pub(super) fn blocked() -> Doc {
    Doc::of("Blocked digests.").json::<Names>(200, "Digest by service and image.")
}

pub(super) fn unblock() -> Doc {
    Doc::of("Lifts the blocks of a service.").json::<UnblockReply>(200, "Done, or there was none.").named()
}

pub(super) fn approve() -> Doc {
    Doc::of("Approves the update that waits.")
        .json_body::<ApproveRequest>("Optional: the digest that is meant, {\"digest\": \"sha256:…\"}.")
        .json::<ApproveReply>(200, "Done, or nothing waits.")
        .json::<ErrorBody>(400, "The body is not as expected.")
        .json::<ErrorBody>(409, "Another digest waits by now.")
        .named()
}

pub(super) fn not_found() -> Doc {
    Doc::of("Images that are missing on this machine.").json::<Names>(200, "Digest by service and image.")
}

pub(super) fn errored() -> Doc {
    Doc::of("Faults that persist.").json::<Names>(200, "Text by service.")
}

pub(super) fn status() -> Doc {
    Doc::of("How all services are.").json::<StatusReport>(200, "The report.")
}

pub(super) fn status_of() -> Doc {
    Doc::of("How one service is.").json::<ServiceStatus>(200, "Its record.").named()
}

pub(super) fn why() -> Doc {
    Doc::of("What keeps an update of one service from going live now.")
        .json::<WhyReport>(200, "Every gate, and one sentence.")
        .named()
}

pub(super) fn audit() -> Doc {
    Doc::of("The last audit entries, newest first.")
        .query("limit", "How many; more than 500 is 500.", json!({ "type": "integer", "minimum": 1 }))
        .json::<Vec<AuditEntry>>(200, "The entries.")
        .json::<ErrorBody>(400, "The limit is no positive integer.")
}

pub(super) fn health() -> Doc {
    Doc::of("Whether the agent works: its services are loaded, and the container engine answers.")
        .json::<Health>(200, "It does.")
        .json::<Health>(503, "It is still starting, or the engine does not answer.")
}

pub(super) fn metrics() -> Doc {
    Doc::of("Metrics in Prometheus' text form.").text(200, "The metrics.", "text/plain")
}

pub(super) fn redeploy() -> Doc {
    Doc::of("Pulls and recreates a service.")
        .json::<RedeployReply>(200, "Started, with the images that keep what they run; or why not.")
        .named()
}

pub(super) fn ui_events() -> Doc {
    Doc::of("Audit entries as they come, after the last 50.").text(200, "The stream.", EVENT_STREAM)
}

pub(super) fn ui() -> Doc {
    Doc::of("The dashboard.").text(200, "The page.", "text/html; charset=utf-8")
}

pub(super) fn root() -> Doc {
    Doc::of("Leads to the dashboard.").empty(302, "See /ui.")
}

pub(super) fn ui_stream() -> Doc {
    Doc::of("Audit entries and status as they change.").text(200, "The stream.", EVENT_STREAM)
}

pub(super) fn registry_events() -> Doc {
    Doc::of("Takes the notifications of a distribution registry.")
        .body(ENVELOPES, "The registry's envelope; what can't be used is ignored.")
        .json::<EventsReply>(202, "Whatever it says.")
        .json::<ErrorBody>(503, "The bodies under way hold all memory that is set aside; to be sent again.")
}
