//! Endpoints that trigger actions (spec 4.1). They respond at once; the results appear in the status and the audit.

use evenkeel_common::config::quote;
use evenkeel_common::http::{Request, Response, StatusCode, error, json};
use evenkeel_common::wire::{ApproveReply, ApproveRequest, RedeployReply, TriggerReply, UnblockReply};

use serde::de::DeserializeOwned;

use super::{Api, refused};
use crate::model::image::Digest;
use crate::service::input::{ServiceReply, ServiceRequest};

pub(super) async fn trigger_all(api: Api, _: Request) -> Response {
    match api.services.poll_now() {
        Ok(()) => json(StatusCode::OK, &TriggerReply::Triggered { scope: "all".to_owned() }),
        Err(fault) => refused(&fault),
    }
}

pub(super) async fn trigger(api: Api, request: Request) -> Response {
    let name = request.param("name");
    let ask = match request.query.get("pass").map(String::as_str) {
        None | Some("true") => ServiceRequest::Check,
        Some("false") => ServiceRequest::CheckGated,
        Some(other) => {
            return error(StatusCode::BAD_REQUEST, format!("pass: {}; allowed: true, false", quote(other)));
        }
    };
    match api.services.ask(name, ask).await {
        Ok(ServiceReply::Skipped(reason)) => {
            json(StatusCode::OK, &TriggerReply::Skipped { reason: reason.to_owned() })
        }
        Ok(_) => json(StatusCode::OK, &TriggerReply::Triggered { scope: name.to_owned() }),
        Err(fault) => refused(&fault),
    }
}

pub(super) async fn redeploy(api: Api, request: Request) -> Response {
    let name = request.param("name");
    match api.services.ask(name, ServiceRequest::Redeploy).await {
        Ok(ServiceReply::Skipped(reason)) => {
            json(StatusCode::OK, &RedeployReply::Skipped { reason: reason.to_owned() })
        }
        Ok(answer) => {
            let kept = if let ServiceReply::Redeploying(kept) = answer { kept } else { Vec::new() };
            json(StatusCode::OK, &RedeployReply::Redeploying { service: name.to_owned(), kept })
        }
        Err(fault) => refused(&fault),
    }
}

pub(super) async fn unblock(api: Api, request: Request) -> Response {
    let name = request.param("name");
    match api.services.ask(name, ServiceRequest::Unblock).await {
        Ok(answer) => {
            let status = if answer == ServiceReply::Unblocked { "unblocked" } else { "not_blocked" };
            json(StatusCode::OK, &UnblockReply { status: status.to_owned(), service: name.to_owned() })
        }
        Err(fault) => refused(&fault),
    }
}

/// Approves the waiting digest. A request that names a different digest is refused, because that one was not reviewed.
pub(super) async fn approve(api: Api, request: Request) -> Response {
    let name = request.param("name");
    let digest = match named_digest(&request.body) {
        Ok(digest) => digest,
        Err(what) => return error(StatusCode::BAD_REQUEST, what),
    };
    match api.services.ask(name, ServiceRequest::Approve(digest)).await {
        Ok(ServiceReply::Approved(digest)) => {
            let reply = ApproveReply::Approved { service: name.to_owned(), digest: digest.to_string() };
            json(StatusCode::OK, &reply)
        }
        Ok(ServiceReply::OtherWaiting(digest)) => {
            error(StatusCode::CONFLICT, format!("a different digest is waiting now: {digest}"))
        }
        Ok(_) => json(StatusCode::OK, &ApproveReply::NothingWaiting),
        Err(fault) => refused(&fault),
    }
}

/// Parses the digest from a request body; an empty body has none.
fn named_digest(body: &[u8]) -> Result<Option<Digest>, String> {
    digest("digest", object::<ApproveRequest>(body)?.digest)
}

/// Parses the optional digest of a field of a request.
pub(super) fn digest(field: &str, text: Option<String>) -> Result<Option<Digest>, String> {
    let Some(text) = text else { return Ok(None) };
    let expected = |_| format!("{field}: {}; allowed: sha256: and 64 hexadecimal digits", quote(&text));
    Digest::parse(&text).map(Some).map_err(expected)
}

/// Parses an optional JSON object from a request body.
pub(super) fn object<T: Default + DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    if body.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    // Parsed as an object first, because serde would accept an array as the fields in order.
    let fields: Result<serde_json::Map<_, _>, _> = serde_json::from_slice(body);
    let request = fields.and_then(|fields| serde_json::from_value(serde_json::Value::Object(fields)));
    request.map_err(|fault| format!("invalid request body: {fault}"))
}
