//! `POST /registry/events`: notifications from registries (DECISIONS 4, push events).

use std::collections::HashSet;

use evenkeel_common::http::{Request, Response, StatusCode, json};
use evenkeel_common::wire::{EventsReply, RegistryEvent};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Api;
use crate::tasks::registry_events::PublishedImage;

/// Media types of manifests that an image tag can point to.
const MANIFESTS: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// Always responds with 202: a registry retries a rejected notification forever and withholds all later ones.
pub(super) async fn events(api: Api, request: Request) -> Response {
    for image in published(&request.body) {
        api.pushes.send(&image);
    }
    json(StatusCode::ACCEPTED, &EventsReply { status: "accepted".to_owned() })
}

/// The event envelope. Events are parsed one by one, so that a malformed event does not affect the others. Until then an
/// event is a slice of the body: the endpoint is unauthenticated, and a fully parsed body can take a hundred times its size.
#[derive(Default, Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    events: Vec<&'a RawValue>,
}

/// Returns the pushed tags of a request body. The agent's own reads cause `pull` events, and parts of an image are
/// pushed without a tag; both are ignored.
pub fn published(body: &[u8]) -> Vec<PublishedImage> {
    let envelope: Envelope = serde_json::from_slice(body).unwrap_or_default();
    // A set, because the endpoint is unauthenticated: a linear search would make large bodies expensive.
    let (mut images, mut seen) = (Vec::new(), HashSet::new());
    for event in envelope.events {
        let Ok(RegistryEvent { action, target }) = serde_json::from_str(event.get()) else { continue };
        let kind = target.media_type.split(';').next().unwrap_or_default().trim();
        if action != "push" || target.tag.is_empty() || !MANIFESTS.contains(&kind) {
            continue;
        }
        let image = PublishedImage { repository: target.repository, tag: target.tag };
        if seen.insert(image.clone()) {
            images.push(image);
        }
    }
    images
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(action: &str, kind: &str, tag: &str) -> serde_json::Value {
        json!({
            "id": "x", "timestamp": "2026-01-02T03:04:05Z", "action": action,
            "target": { "mediaType": kind, "size": 1, "repository": "shop/web", "tag": tag },
            "request": { "host": "evil.test" },
        })
    }

    #[test]
    fn only_a_pushed_manifest_with_a_tag_counts_and_counts_once() {
        let manifest = MANIFESTS[3];
        let untagged =
            json!({ "action": "push", "target": { "mediaType": manifest, "repository": "shop/web" } });
        let body = json!({ "events": [
            event("pull", manifest, "1"),
            event("delete", manifest, "1"),
            event("push", "application/octet-stream", "1"),
            event("push", "", "1"),
            event("push", manifest, ""),
            untagged,
            17,
            { "action": "push" },
            { "action": 7, "target": [] },
            event("push", manifest, "2"),
            event("push", MANIFESTS[0], "2"),
            event("push", "application/vnd.oci.image.manifest.v1+json; charset=utf-8", "3"),
        ]});
        let tags: Vec<String> =
            published(body.to_string().as_bytes()).into_iter().map(|image| image.tag).collect();
        assert_eq!(tags, ["2", "3"]);
    }

    #[test]
    fn malformed_bodies_are_ignored() {
        for body in ["", "{", "null", "[]", "{}", r#"{"events": 1}"#, r#"{"events": null}"#, "\u{0}\u{1}"] {
            assert_eq!(published(body.as_bytes()), [], "{body}");
        }
        assert_eq!(published(&[0xff, 0xfe]), []);
    }
}
