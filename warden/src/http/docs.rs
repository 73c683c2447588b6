//! The documentation of each endpoint, in the order of the route table.

use evenkeel_common::http::openapi::{About, Doc};
use evenkeel_common::wire::{
    ErrorBody, FleetAnswer, FleetAsk, FleetDecisions, FleetEntry, FleetImages, FleetUnblockReply,
    FleetUnblockRequest, FreezeReply, FreezeRequest, Health, HistoryPage, IngestReply, Inventory,
    InventoryReply, LogoutReply, MachineRecord, ReleaseReply, ThawReply, ThawRequest,
};
use serde_json::{Value, json};

const EVENT_STREAM: &str = "text/event-stream";
const HTML: &str = "text/html; charset=utf-8";

/// The documentation that applies to all endpoints.
pub(super) const ABOUT: About = About {
    title: "Evenkeel warden",
    version: env!("CARGO_PKG_VERSION"),
    summary: "Monitors a fleet of agents, and shares the results of each agent's updates with the others.",
    description: "Users send api.token as bearer token, or the cookie that a login sets; agents send their own token as \
        bearer token. Without a valid token the response is 401. Requests that change something and come from pages \
        of other sites are refused with 403. HEAD is supported wherever GET is. A body is read only where one is \
        documented, and is an object unless an array is mentioned. While the store is away, requests that need it get \
        503 with Retry-After; the client must keep its data and send it again. Too many concurrent requests get 429 or \
        503 with Retry-After.",
};

fn word() -> Value {
    json!({ "type": "string" })
}

fn number() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

/// An endpoint for agents only.
fn of_agent(summary: &'static str) -> Doc {
    Doc::of(summary).json::<ErrorBody>(401, "The token belongs to no agent.")
}

/// An endpoint for users only.
fn of_user(summary: &'static str) -> Doc {
    Doc::of(summary).json::<ErrorBody>(401, "api.token is missing or wrong.")
}

fn away(doc: Doc) -> Doc {
    doc.json::<ErrorBody>(503, "The store is away.")
}

fn bad(doc: Doc) -> Doc {
    doc.json::<ErrorBody>(400, "The request is invalid; the error says what is allowed.")
}

pub(super) fn ingest() -> Doc {
    let doc = of_agent("Stores an audit entry, or an array of up to 500 entries.")
        .json_body::<FleetEntry>("The entry, or an array of entries; `agent` is determined by the token.")
        .json::<IngestReply>(200, "The entries are stored durably.")
        .json::<ErrorBody>(413, "The body exceeds 1 MiB.");
    away(bad(doc))
}

pub(super) fn events() -> Doc {
    of_user("Streams the entries of the whole fleet, starting with the last 50.")
        .query("token", "api.token, for clients that cannot send headers.", word())
        .query(
            "after",
            "Continues after the entry with this id, for clients that cannot send Last-Event-ID.",
            number(),
        )
        .text(200, "The stream.", EVENT_STREAM)
}

pub(super) fn page() -> Doc {
    Doc::of("The page.").query("token", "api.token.", word()).text(200, "The page.", HTML).text(
        401,
        "The login form.",
        HTML,
    )
}

pub(super) fn login() -> Doc {
    Doc::of("Logs in with the submitted form.")
        .body(&["application/x-www-form-urlencoded"], "The field `token`.")
        .empty(303, "The cookie is set; redirects to the page.")
        .text(401, "The token is wrong.", HTML)
}

pub(super) fn logout() -> Doc {
    Doc::of("Logs out.").json::<LogoutReply>(200, "The session cookie is deleted.")
}

pub(super) fn health() -> Doc {
    Doc::of("Reports the warden's health. Only users can see why its store is away.")
        .json::<Health>(200, "The warden is running, even if its store is away.")
}

pub(super) fn machines() -> Doc {
    of_user("Lists all agents, in configuration order.").json::<Vec<MachineRecord>>(200, "The agents.")
}

pub(super) fn history() -> Doc {
    let doc = of_user("Lists the stored entries, newest first, page by page.")
        .query("machine", "Only entries of this machine: its name, or the id of its agent.", word())
        .query("service", "Only entries of this service.", word())
        .query("image", "Only entries about this image, as configured.", word())
        .query("event", "Only entries of this kind.", word())
        .query("level", "Only entries of this level.", word())
        .query("q", "Only entries with this text in message, reason, output, container or digest.", word())
        .query("since", "Only entries at or after this time.", time())
        .query("until", "Only entries before this time.", time())
        .query(
            "before",
            "Only entries with a lower id: `next` of the previous page, which may have few entries or none.",
            number(),
        )
        .query("limit", "Maximum number of entries, at most 500.", json!({ "type": "integer", "minimum": 1 }))
        .json::<HistoryPage>(200, "One page.");
    away(bad(doc))
}

pub(super) fn decisions() -> Doc {
    let doc = of_agent("Returns the decisions that apply to the agent (long poll).")
        .query("after", "The last received revision: the response waits until it changes.", number())
        .query(
            "verdicts",
            "The last received `verdicts`: the response also waits until this changes.",
            number(),
        )
        .query("wait", "How long the response may wait, in seconds, at most 60.", number())
        .json::<FleetDecisions>(200, "The decisions in force.")
        .json::<ErrorBody>(429, "The agent has too many long polls, or asks too often.");
    bad(doc)
}

pub(super) fn ask() -> Doc {
    let doc = of_agent("Asks whether a deployment may start. This may take a lease; asking again renews it.")
        .json_body::<FleetAsk>("The image to deploy.")
        .json::<FleetAnswer>(200, "Go, wait, or no.");
    bad(doc)
}

pub(super) fn release() -> Doc {
    let doc = of_agent("Releases an unused lease.")
        .json_body::<FleetAsk>("The image of the lease.")
        .json::<ReleaseReply>(200, "The lease was released, or there was none.");
    away(bad(doc))
}

pub(super) fn inventory() -> Doc {
    let doc = of_agent("Reports the images of a machine. Each report replaces the previous one.")
        .json_body::<Inventory>("Up to 1000 images.")
        .json::<InventoryReply>(200, "The report is stored.");
    away(bad(doc))
}

pub(super) fn images() -> Doc {
    let doc = of_user("Lists the images of all machines. As CSV with `Accept: text/csv`.")
        .query("format", "`csv` or `json`.", json!({ "type": "string", "enum": ["csv", "json"] }))
        .json::<FleetImages>(200, "By image and machine.")
        .text(200, "The same as CSV.", "text/csv");
    bad(doc).json::<ErrorBody>(503, "The store has not been read yet.")
}

pub(super) fn freeze() -> Doc {
    let doc = of_user("Freezes updates.")
        .json_body::<FreezeRequest>("The reason, the end and the scope.")
        .json::<FreezeReply>(200, "Updates are frozen.")
        .json::<ErrorBody>(409, "There are too many freezes.");
    away(bad(doc))
}

pub(super) fn thaw() -> Doc {
    let doc = of_user("Ends one freeze, or all.")
        .json_body::<ThawRequest>("Optional: the freeze to end.")
        .json::<ThawReply>(200, "Done, or nothing was frozen.");
    away(bad(doc))
}

pub(super) fn unblock() -> Doc {
    let doc = of_user("Allows a failed digest to be deployed again on all machines.")
        .json_body::<FleetUnblockRequest>("The digest.")
        .json::<FleetUnblockReply>(200, "Done, or the digest was not withheld.");
    away(bad(doc))
}

pub(super) fn metrics() -> Doc {
    of_user("Returns metrics in the Prometheus text format.").text(200, "The metrics.", "text/plain")
}
