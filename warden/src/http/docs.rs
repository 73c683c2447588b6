//! What is said about each endpoint, in the order of the table.

use evenkeel_common::http::openapi::{About, Doc};
use evenkeel_common::wire::{
    ErrorBody, FleetAnswer, FleetAsk, FleetDecisions, FleetEntry, FleetImages, FleetUnblockReply,
    FleetUnblockRequest, FreezeReply, FreezeRequest, Health, HistoryPage, IngestReply, Inventory,
    InventoryReply, MachineRecord, ReleaseReply, ThawReply, ThawRequest,
};
use serde_json::{Value, json};

const EVENT_STREAM: &str = "text/event-stream";
const HTML: &str = "text/html; charset=utf-8";

/// What holds for all endpoints.
pub(super) const ABOUT: About = About {
    title: "Evenkeel warden",
    version: env!("CARGO_PKG_VERSION"),
    summary: "Sees a fleet of agents, and tells each what the others have learned.",
    description: "People send api.token as bearer, or the cookie that a login sets; agents send their own token as \
        bearer. Without one the answer is 401. Requests that change something and come from pages of other sites are \
        refused with 403. What GET serves, HEAD serves too. A body is read only where one is described, and is an \
        object where no array is spoken of. While the store is away, what needs it is answered with 503 and \
        Retry-After, and what is sent is to be kept and sent again. Where too much is under way at once the answer is \
        429 or 503 with Retry-After.",
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

/// It may be asked by an agent only.
fn of_agent(summary: &'static str) -> Doc {
    Doc::of(summary).json::<ErrorBody>(401, "The token belongs to no agent.")
}

/// It may be asked by a person only.
fn of_person(summary: &'static str) -> Doc {
    Doc::of(summary).json::<ErrorBody>(401, "api.token is missing or wrong.")
}

fn away(doc: Doc) -> Doc {
    doc.json::<ErrorBody>(503, "The store is away.")
}

fn bad(doc: Doc) -> Doc {
    doc.json::<ErrorBody>(400, "What is sent is not as expected; the text says what is allowed.")
}

pub(super) fn ingest() -> Doc {
    let doc = of_agent("Takes an audit entry, or an array of up to 500 of them.")
        .json_body::<FleetEntry>("The entry, or an array of entries; `agent` is what the token says.")
        .json::<IngestReply>(200, "They are stored, and would survive a power cut.")
        .json::<ErrorBody>(413, "It is more than 1 MiB.");
    away(bad(doc))
}

pub(super) fn events() -> Doc {
    of_person("Entries of the whole fleet as they come, after the last 50.")
        .query("token", "api.token, where no header can be sent.", word())
        .query(
            "after",
            "Continues after the entry with this id, where no Last-Event-ID can be sent.",
            number(),
        )
        .text(200, "The stream.", EVENT_STREAM)
}

pub(super) fn page() -> Doc {
    Doc::of("The page.").query("token", "api.token.", word()).text(200, "The page.", HTML).text(
        401,
        "The form of a login.",
        HTML,
    )
}

pub(super) fn login() -> Doc {
    Doc::of("Takes the form of a login.")
        .body(&["application/x-www-form-urlencoded"], "The field `token`.")
        .empty(303, "The cookie is set; on to the page.")
        .text(401, "The token is wrong.", HTML)
}

pub(super) fn logout() -> Doc {
    Doc::of("Ends a login.").empty(303, "The cookie is removed.")
}

pub(super) fn health() -> Doc {
    Doc::of("Whether the warden answers. Why its store is away is told to people only.")
        .json::<Health>(200, "It does, also while its store is away.")
}

pub(super) fn machines() -> Doc {
    of_person("All agents, in the order of the configuration.").json::<Vec<MachineRecord>>(200, "The agents.")
}

pub(super) fn history() -> Doc {
    let doc = of_person("What is kept, newest first, page by page.")
        .query("machine", "Only of this machine: its name, or the id of its agent.", word())
        .query("service", "Only of this service.", word())
        .query("image", "Only about this image, as configured.", word())
        .query("event", "Only of this kind.", word())
        .query("level", "Only of this level.", word())
        .query("q", "Only with this text in message, reason, output, container or digest.", word())
        .query("since", "Not before.", time())
        .query("until", "Before.", time())
        .query(
            "before",
            "Only ids less than this: `next` of the page before, which may have few entries or none.",
            number(),
        )
        .query("limit", "How many; more than 500 is 500.", json!({ "type": "integer", "minimum": 1 }))
        .json::<HistoryPage>(200, "One page.");
    away(bad(doc))
}

pub(super) fn decisions() -> Doc {
    let doc = of_agent("The decisions that cover the agent: its long poll.")
        .query("after", "The revision that is known: the answer waits for another one.", number())
        .query(
            "verdicts",
            "`verdicts` as it is known: the answer waits for another one of these, too.",
            number(),
        )
        .query("wait", "How long it may wait, in seconds; more than 60 is 60.", number())
        .json::<FleetDecisions>(200, "The decisions in force.")
        .json::<ErrorBody>(429, "The agent has too many long polls.");
    bad(doc)
}

pub(super) fn ask() -> Doc {
    let doc = of_agent("Whether a deployment may begin. It may take a lease; asking again renews that.")
        .json_body::<FleetAsk>("What is to be deployed.")
        .json::<FleetAnswer>(200, "Go, wait, or no.");
    bad(doc)
}

pub(super) fn release() -> Doc {
    let doc = of_agent("Gives back a lease that was not used.")
        .json_body::<FleetAsk>("What was asked for.")
        .json::<ReleaseReply>(200, "Done, or there was none.");
    away(bad(doc))
}

pub(super) fn inventory() -> Doc {
    let doc = of_agent("What runs on a machine. Each one replaces the one before.")
        .json_body::<Inventory>("Up to 1000 images.")
        .json::<InventoryReply>(200, "It is taken.");
    away(bad(doc))
}

pub(super) fn images() -> Doc {
    let doc = of_person("Which machine runs what. As CSV with `Accept: text/csv`.")
        .query("format", "`csv` or `json`.", json!({ "type": "string", "enum": ["csv", "json"] }))
        .json::<FleetImages>(200, "By image and machine.")
        .text(200, "The same as CSV.", "text/csv");
    bad(doc)
}

pub(super) fn freeze() -> Doc {
    let doc = of_person("Freezes updates.")
        .json_body::<FreezeRequest>("Why, until when, and what.")
        .json::<FreezeReply>(200, "They are.")
        .json::<ErrorBody>(409, "There are too many freezes.");
    away(bad(doc))
}

pub(super) fn thaw() -> Doc {
    let doc = of_person("Ends a freeze, or all.")
        .json_body::<ThawRequest>("Optional: which one.")
        .json::<ThawReply>(200, "Done, or nothing was frozen.");
    away(bad(doc))
}

pub(super) fn unblock() -> Doc {
    let doc = of_person("Lets a digest that failed be tried again everywhere.")
        .json_body::<FleetUnblockRequest>("Which one.")
        .json::<FleetUnblockReply>(200, "Done, or it was not withheld.");
    away(bad(doc))
}

pub(super) fn metrics() -> Doc {
    of_person("Metrics in Prometheus' text form.").text(200, "The metrics.", "text/plain")
}
