//! Endpoints that make something happen (spec 4.1). They answer at once; what follows shows in status and audit.

use evenkeel_common::http::{Request, Response, StatusCode, json};
use evenkeel_common::wire::{RedeployReply, TriggerReply, UnblockReply};

use super::{Api, refused};
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
        Ok(_) => json(StatusCode::OK, &RedeployReply::Redeploying { service: name.to_owned() }),
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
