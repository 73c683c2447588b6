//! The images that were proven here, and the way back to them (DECISIONS 14).

use evenkeel_common::http::{Request, Response, StatusCode, error, json};
use evenkeel_common::wire::{PlannedImage, ProvenRecord, RollbackPlan, RollbackReply, RollbackRequest};
use futures_util::future::join_all;

use super::control::{digest, object};
use super::{Api, refused};
use crate::service::decide::history::NoWayBack;
use crate::service::images::ProvenImage;
use crate::service::input::{ServiceReply, ServiceRequest};
use crate::service::rollout::plan::Earlier;
use crate::service::{KeptSnapshot, Service, wording};

/// Lists the images, newest first.
pub(super) async fn history(api: Api, request: Request) -> Response {
    let service = match api.services.service(request.param("name")) {
        Ok(service) => service,
        Err(fault) => return refused(&fault),
    };
    let mut records: Vec<ProvenRecord> =
        join_all(service.history().map(|(image, proven)| record(&api, &service, image, proven))).await;
    records.sort_by_key(|record| std::cmp::Reverse(record.proven_at));
    json(StatusCode::OK, &records)
}

async fn record(api: &Api, service: &Service, image: &str, proven: &ProvenImage) -> ProvenRecord {
    ProvenRecord {
        image: image.to_owned(),
        digest: proven.digest.to_string(),
        id: proven.id.to_string(),
        proven_at: proven.proven_at,
        left_at: proven.left_at,
        runs: service.runs_proven(image, proven),
        on_disk: matches!(api.images.image(&proven.id.0).await, Ok(Some(image)) if image.is_complete),
        version: proven.version.clone(),
        snapshot: service.data_of(&[(image, &proven.digest)]).map(|kept| kept.id.clone()),
    }
}

/// Goes back to an earlier image, if there is one that can be had.
pub(super) async fn rollback(api: Api, request: Request) -> Response {
    let name = request.param("name");
    let RollbackRequest { to, data, dry_run } = match object(&request.body) {
        Ok(asked) => asked,
        Err(what) => return error(StatusCode::BAD_REQUEST, what),
    };
    let to = match digest("to", to) {
        Ok(to) => to,
        Err(what) => return error(StatusCode::BAD_REQUEST, what),
    };
    let service = match api.services.service(name) {
        Ok(service) => service,
        Err(fault) => return refused(&fault),
    };
    let way = service.way_back(to.as_ref(), data);
    if let Ok((targets, _)) = &way {
        for target in targets {
            if let Some(why) = gone(&api, target).await {
                return error(StatusCode::CONFLICT, why);
            }
        }
    }
    if dry_run {
        return match way {
            Ok((targets, snapshot)) => {
                let plan = plan(&api, &service, &targets, snapshot, data).await;
                json(StatusCode::OK, &RollbackReply::Planned(plan))
            }
            Err(NoWayBack::NoEarlier) => skipped(wording::NO_EARLIER_IMAGE),
            Err(NoWayBack::Refused(why)) => error(StatusCode::CONFLICT, why),
        };
    }
    match api.services.ask(name, ServiceRequest::Rollback { to, data }).await {
        Ok(ServiceReply::RollingBack(to)) => {
            let reply = RollbackReply::RollingBack { service: name.to_owned(), to: to.to_string() };
            json(StatusCode::OK, &reply)
        }
        Ok(ServiceReply::Skipped(reason)) => skipped(reason),
        Ok(ServiceReply::Refused(why)) => error(StatusCode::CONFLICT, why),
        Ok(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "the service gave another answer"),
        Err(fault) => refused(&fault),
    }
}

fn skipped(reason: &str) -> Response {
    json(StatusCode::OK, &RollbackReply::Skipped { reason: reason.to_owned() })
}

/// Says what going back to these images would do.
async fn plan(
    api: &Api,
    service: &Service,
    targets: &[Earlier],
    snapshot: Option<&KeptSnapshot>,
    puts_data_back: bool,
) -> RollbackPlan {
    let mut images = Vec::new();
    for target in targets {
        let mut history = service.history();
        let Some((image, proven)) =
            history.find(|(image, proven)| *image == target.configured && proven.digest == target.digest)
        else {
            continue;
        };
        let leaves = service.running_digest(image).map(|digest| digest.to_string());
        images.push(PlannedImage { leaves, to: record(api, service, image, proven).await });
    }
    RollbackPlan {
        service: service.config().name.clone(),
        images,
        snapshot: snapshot.map(KeptSnapshot::record),
        puts_data_back,
        last_outage_seconds: service.durable().last_deployment.as_ref().and_then(|last| last.outage_seconds),
    }
}

/// Returns why an image can't be had: it is neither on the disk nor in its registry. If the engine does not answer, the
/// deployment will tell.
async fn gone(api: &Api, target: &Earlier) -> Option<String> {
    match api.images.image(&target.id.0).await {
        Ok(None) => {}
        Ok(Some(image)) if !image.is_complete => {}
        Ok(Some(_)) | Err(_) => return None,
    }
    let digest = &target.digest;
    match api.registry.has(&target.reference.repository, digest).await {
        Ok(true) => None,
        Ok(false) => Some(format!("{digest} is neither on this machine nor in its registry any more")),
        Err(why) => Some(format!("{digest} is not on this machine, and its registry does not answer: {why}")),
    }
}
