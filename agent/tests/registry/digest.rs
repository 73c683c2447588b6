//! Resolving a tag to its digest: `HEAD`, `GET` with hashing, false headers, garbage.

use std::io::Write;

use evenkeel_agent::model::image::Digest;
use evenkeel_agent::ports::{Registry, Urgency};

use crate::world::{
    ALL_TYPES, MANIFEST, World, errors, manifest, manifest_digest, ok, other_digest, reference, script,
    status,
};

#[tokio::test]
async fn one_head_with_the_complete_accept_list_gives_the_digest() {
    for kind in ALL_TYPES {
        let world = World::new().await;
        world.on("HEAD", ok(&manifest_digest()).insert_header("Content-Type", kind)).await;
        assert_eq!(world.digest().await, Ok(manifest_digest()), "{kind}");
        let requests = world.requests().await;
        assert_eq!(requests.len(), 1);
        let accept = requests[0].headers["accept"].to_str().expect("ASCII");
        assert!(ALL_TYPES.iter().all(|kind| accept.contains(kind)), "{accept}");
        assert!(!accept.contains('*'));
        assert!(requests[0].headers.get("authorization").is_none());
    }
}

#[tokio::test]
async fn without_a_valid_digest_header_the_manifest_is_hashed() {
    for head in [
        status(200),
        status(200).insert_header("Docker-Content-Digest", "sha256:abc"),
        status(405),
        status(501),
        status(404),
    ] {
        let world = World::new().await;
        world.on("HEAD", head).await.on("GET", manifest()).await;
        assert_eq!(world.digest().await, Ok(manifest_digest()));
        let requests = world.requests().await;
        assert_eq!(world.verbs().await, "HEAD GET");
        assert_eq!(requests[1].headers["accept-encoding"], "identity");
        assert_eq!(requests[0].headers["accept"], requests[1].headers["accept"]);
    }
}

#[tokio::test]
async fn a_missing_tag_is_an_error_with_the_registrys_message() {
    let world = World::new().await;
    world.on("HEAD", status(404)).await;
    world.on("GET", errors(404, "MANIFEST_UNKNOWN", "manifest \u{1b}[31munknown")).await;
    assert_eq!(world.fault().await, "image HOST/web:1: tag not found in the registry");
    assert_eq!(world.fault().await, "image HOST/web:1: tag not found in the registry");
    assert!(world.client.is_gone(&world.web()));

    let world = World::new().await;
    world.on("HEAD", status(404)).await.on("GET", errors(404, "NAME_UNKNOWN", "")).await;
    assert_eq!(world.fault().await, "image HOST/web:1: repository not found in the registry");
    assert!(!world.client.is_gone(&world.web()), "it may be hidden from this login");
}

#[tokio::test]
async fn only_the_last_answer_says_that_there_is_no_such_tag() {
    let world = World::new().await;
    world.on("HEAD", status(404)).await;
    world.on("GET", script([errors(404, "NOT_FOUND", ""), manifest(), status(500)])).await;
    assert!(!world.client.is_gone(&world.web()), "nobody has asked");
    for is_gone in [true, false, false] {
        let _ = world.digest().await;
        assert_eq!(world.client.is_gone(&world.web()), is_gone);
    }
}

fn gzipped(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).expect("in memory");
    encoder.finish().expect("in memory")
}

#[tokio::test]
async fn a_gzipped_manifest_has_the_digest_of_its_content() {
    let world = World::new().await;
    let body = manifest().set_body_raw(gzipped(MANIFEST.as_bytes()), ALL_TYPES[0]);
    world.on("HEAD", status(200)).await.on("GET", body.insert_header("Content-Encoding", "gzip")).await;
    assert_eq!(world.digest().await, Ok(manifest_digest()));
}

#[tokio::test]
async fn garbage_gives_a_clear_error_and_never_a_digest() {
    let bomb = gzipped(&vec![b' '; 5 * 1024 * 1024]);
    let html = "<html>Please log in</html>";
    let cases = [
        (
            status(200).set_body_raw(html, "text/html"),
            "image HOST/web:1: the answer is not an image manifest",
        ),
        (status(200), "image HOST/web:1: the answer is not an image manifest"),
        (
            status(200).set_body_string(r#"{"schemaVersion":1}"#),
            "image HOST/web:1: manifests of schema version 1 have no comparable digest (version 2 is required)",
        ),
        (
            status(200).set_body_bytes(vec![b'x'; 5 * 1024 * 1024]),
            "image HOST/web:1: the manifest is over 4 MiB",
        ),
        (
            status(200).set_body_bytes(bomb).insert_header("Content-Encoding", "gzip"),
            "image HOST/web:1: the manifest is over 4 MiB",
        ),
        (
            manifest().insert_header("Content-Encoding", "gzip"),
            "image HOST/web:1: the manifest is broken (gzip)",
        ),
        (
            manifest().insert_header("Content-Encoding", "br"),
            "image HOST/web:1: the manifest has content encoding br, although none was requested",
        ),
        (status(418), "registry HOST: 418 i'm a teapot for web"),
        (status(403), "registry HOST: 403 forbidden for web"),
    ];
    for (answer, text) in cases {
        let world = World::new().await;
        world.on("HEAD", status(405)).await.on("GET", answer).await;
        assert_eq!(world.fault().await, text);
        assert_eq!(world.fault().await, text, "the same message again, without a backoff");
    }
}

#[tokio::test]
async fn a_pinned_reference_is_answered_without_a_request() {
    let world = World::new().await;
    let pinned = reference(&world.server.uri(), &format!("web:1@{}", other_digest()));
    assert_eq!(world.client.digest(&pinned, Urgency::Routine).await, Ok(other_digest()));
    assert_eq!(world.client.digest_from_content(&pinned).await, Ok(other_digest()));
    assert!(world.requests().await.is_empty());
}

#[tokio::test]
async fn after_a_false_digest_header_only_the_content_is_trusted() {
    let world = World::new().await;
    world.on("HEAD", ok(&other_digest())).await.on("GET", manifest()).await;
    assert_eq!(world.digest().await, Ok(other_digest()), "the claim has not been checked yet");
    assert_eq!(world.client.digest_from_content(&world.web()).await, Ok(manifest_digest()));
    assert_eq!(world.digest().await, Ok(manifest_digest()), "the claim is known to be false");
    world.server.reset().await;
    let later = r#"{"schemaVersion":2,"annotations":{"pushed":"later"}}"#;
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let pushed = wiremock::ResponseTemplate::new(200).set_body_raw(later, kind);
    world.on("HEAD", ok(&other_digest())).await.on("GET", pushed).await;
    assert_eq!(world.digest().await, Ok(Digest::of(later.as_bytes())), "the same false claim hides no push");
}

#[tokio::test]
async fn a_digest_header_that_is_right_again_is_trusted_again() {
    let world = World::new().await;
    let heads = [other_digest(), other_digest(), other_digest(), manifest_digest(), manifest_digest()];
    world.on("HEAD", script(heads.iter().map(ok))).await.on("GET", manifest()).await;
    assert_eq!(world.client.digest_from_content(&world.web()).await, Ok(manifest_digest()));
    for _ in 0..3 {
        assert_eq!(world.digest().await, Ok(manifest_digest()));
    }
    assert_eq!(world.verbs().await, "HEAD GET HEAD HEAD GET HEAD GET HEAD", "the last one needs no manifest");
}

#[tokio::test]
async fn a_push_between_two_requests_is_not_mistaken_for_a_false_header() {
    let world = World::new().await;
    let heads = [other_digest(), manifest_digest(), other_digest()];
    world.on("HEAD", script(heads.iter().map(ok))).await.on("GET", manifest()).await;
    assert_eq!(world.client.digest_from_content(&world.web()).await, Ok(manifest_digest()));
    assert_eq!(world.digest().await, Ok(other_digest()), "a tag that is moved back is detected");
}

#[tokio::test]
async fn the_existence_of_a_digest_is_checked_independently_of_tags() {
    let ours = other_digest();
    for (head, get, want) in [
        (status(200), None, true),
        (status(404), Some(errors(404, "MANIFEST_UNKNOWN", "")), false),
        (status(404), Some(errors(404, "NAME_UNKNOWN", "")), false),
        // HEAD fails, but the manifest exists.
        (status(405), Some(manifest()), true),
        (status(404), Some(manifest()), true),
    ] {
        let world = World::new().await;
        world.on_digest("HEAD", &ours, head).await;
        if let Some(get) = get {
            world.on_digest("GET", &ours, get).await;
        }
        assert_eq!(world.has(&ours).await, Ok(want));
    }
    // A failed request is an error, not "missing".
    let world = World::new().await;
    world.on_digest("HEAD", &ours, status(500)).await;
    assert!(world.has(&ours).await.is_err());
}
