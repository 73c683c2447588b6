//! An image that requires a signature is not even pulled before it is signed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use contract_tests::{Image, Registry, World, wait_for};
use evenkeel_common::wire::Kind;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::json;

pub(crate) fn key() -> Ed25519KeyPair {
    let document =
        Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("the system has random numbers");
    Ed25519KeyPair::from_pkcs8(document.as_ref()).expect("the document is valid")
}

/// Returns the public key in PEM format (RFC 8410).
pub(crate) fn pem(key: &Ed25519KeyPair) -> String {
    let mut der = vec![0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
    der.extend_from_slice(key.public_key().as_ref());
    format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der))
}

fn sign(world: &World, digest: &str, key: &Ed25519KeyPair) {
    sign_for(&world.registry, &world.reference("web"), digest, digest, key);
}

/// Attaches a signature for `digest` to the image `attached_to` of `web`.
pub(crate) fn sign_for(
    registry: &Registry,
    reference: &str,
    attached_to: &str,
    digest: &str,
    key: &Ed25519KeyPair,
) {
    let payload = payload(reference, digest);
    let signature = STANDARD.encode(key.sign(&payload));
    registry.push_signature("web", attached_to, &payload, &signature);
}

fn payload(reference: &str, digest: &str) -> Vec<u8> {
    let payload = json!({
        "critical": {
            "identity": { "docker-reference": reference },
            "image": { "docker-manifest-digest": digest },
            "type": "cosign container image signature",
        },
        "optional": null,
    });
    payload.to_string().into_bytes()
}

#[test]
fn an_image_is_deployed_once_it_is_signed_and_not_pulled_before() {
    let (world, _) = World::with_web("signed");
    let (ours, other) = (key(), key());
    let file = world.folder().join("cosign.pub");
    std::fs::write(&file, pem(&ours)).unwrap();
    let entry = world.entry("web", &["web:latest"]).set("update", json!({ "signed_by": file }));
    let agent = world.agent_for([entry]);
    let v2 = world.push("web", &Image::good("v2"));
    let waits = |part: &str| {
        wait_for(part, || {
            agent.trigger("web");
            let why = agent.request("GET", "/why/web").text();
            if why.contains(part) { Ok(()) } else { Err(why) }
        });
    };
    waits("is not signed");
    let held = agent.service("web").waiting.expect("it waits");
    assert_eq!((held.digest.as_str(), held.gate.as_str()), (&*v2.digest, "signature"));
    let announced = agent.wait_entry(&Kind::UPDATE_AVAILABLE, 1);
    assert_eq!(
        (announced.new_digest.as_deref(), announced.reason.as_deref()),
        (Some(&*v2.digest), Some("signature"))
    );
    sign(&world, &v2.digest, &other);
    waits("not with a key of signed_by");
    let v1 = agent.service("web").images.expect("it runs").remove(0).digest;
    sign_for(&world.registry, &world.reference("web"), &v2.digest, &v1, &ours);
    waits("was made for another image");
    world.registry.push_signature("web", &v2.digest, b"no payload", "no signature");
    waits("in a known format");
    agent.redeploy("web");
    agent.wait_entry(&Kind::FORCE_REDEPLOY, 1);
    world.assert_runs("web", "v1");
    let reference = format!("{}/web@{}", world.host, v2.digest);
    assert_eq!(world.engine.image_id(&reference), None, "an unsigned image is not pulled");

    sign(&world, &v2.digest, &ours);
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    assert_eq!(agent.service("web").waiting, None);
    assert_eq!(agent.entries(&Kind::UPDATE_AVAILABLE).len(), 1, "it was reported once");
}

#[test]
fn one_of_several_keys_is_enough() {
    let (world, _) = World::with_web("signed-two");
    let (first, second) = (key(), key());
    let file = |name: &str, key: &Ed25519KeyPair| {
        let path = world.folder().join(name);
        std::fs::write(&path, pem(key)).unwrap();
        path
    };
    let files = [file("first.pub", &first), file("second.pub", &second)];
    let entry = world.entry("web", &["web:latest"]).set("update", json!({ "signed_by": files }));
    let agent = world.agent_for([entry]);
    let v2 = world.push("web", &Image::good("v2"));
    sign(&world, &v2.digest, &second);
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
}

/// An image of former times, which never ran here and was signed when it was good.
#[test]
fn a_digest_that_was_signed_before_the_one_that_runs_waits_for_an_approval() {
    let (world, v1) = World::with_web("signed-earlier");
    let key = key();
    let file = world.folder().join("cosign.pub");
    std::fs::write(&file, pem(&key)).unwrap();
    let sign_at = |digest: &str, time: i64| {
        let payload = payload(&world.reference("web"), digest);
        let signature = STANDARD.encode(key.sign(&payload));
        world.registry.push_signature_of("web", digest, &payload, &signature, time);
    };
    sign_at(&v1.digest, 1_700_000_000);
    let entry = world.entry("web", &["web:latest"]).set("update", json!({ "signed_by": file }));
    let agent = world.agent_for([entry]);
    let old = world.push("web", &Image::good("v0"));
    sign_at(&old.digest, 1_600_000_000);
    wait_for("it waits", || {
        agent.trigger("web");
        let why = agent.request("GET", "/why/web").text();
        if why.contains("was signed before the image that runs") { Ok(()) } else { Err(why) }
    });
    world.assert_runs("web", "v1");
    let newer = world.push("web", &Image::good("v2"));
    sign_at(&newer.digest, 1_800_000_000);
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
}
