//! Endpoints that make something happen (spec 4.1). They answer at once; what follows shows in status and audit.

use evenkeel_common::config::quote;
use evenkeel_common::http::{Request, Response, StatusCode, error, json};
use evenkeel_common::wire::{ApproveReply, ApproveRequest, RedeployReply, TriggerReply, UnblockReply};

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
    match api.services.ask(name, ServiceRequest::Check).await {
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

/// Approves the digest that waits. One that names another digest than waits by now is refused: it was not looked at.
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
            error(StatusCode::CONFLICT, format!("another digest waits by now: {digest}"))
        }
        Ok(_) => json(StatusCode::OK, &ApproveReply::NothingWaiting),
        Err(fault) => refused(&fault),
    }
}

/// The digest that a body names; an empty body names none.
fn named_digest(body: &[u8]) -> Result<Option<Digest>, String> {
    if body.trim_ascii().is_empty() {
        return Ok(None);
    }
    // By way of an object: an array would be taken for the fields in their order.
    let fields: Result<serde_json::Map<_, _>, _> = serde_json::from_slice(body);
    let request: Result<ApproveRequest, _> =
        fields.and_then(|fields| serde_json::from_value(serde_json::Value::Object(fields)));
    let request = request.map_err(|fault| format!("the body is not as expected: {fault}"))?;
    let Some(text) = request.digest else { return Ok(None) };
    let expected = |_| format!("digest: {}; allowed: sha256: and 64 hexadecimal digits", quote(&text));
    Digest::parse(&text).map(Some).map_err(expected)
}
