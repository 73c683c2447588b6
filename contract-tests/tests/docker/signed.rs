//! An image that must be signed is not even fetched before it is.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use contract_tests::{Image, World, wait_for};
use evenkeel_common::wire::Kind;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::json;

fn key() -> Ed25519KeyPair {
    let document =
        Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("the system has random numbers");
    Ed25519KeyPair::from_pkcs8(document.as_ref()).expect("it was just made")
}

/// The public key as a PEM file has it (RFC 8410).
fn pem(key: &Ed25519KeyPair) -> String {
    let mut der = vec![0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
    der.extend_from_slice(key.public_key().as_ref());
    format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der))
}

fn sign(world: &World, digest: &str, key: &Ed25519KeyPair) {
    let payload = json!({
        "critical": {
            "identity": { "docker-reference": world.reference("web") },
            "image": { "docker-manifest-digest": digest },
            "type": "cosign container image signature",
        },
        "optional": null,
    });
    let payload = payload.to_string().into_bytes();
    let signature = STANDARD.encode(key.sign(&payload));
    world.registry.push_signature("web", digest, &payload, &signature);
}

#[test]
fn an_image_goes_live_when_it_is_signed_and_is_not_fetched_before() {
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
            let why = agent.ask("GET", "/why/web").text();
            if why.contains(part) { Ok(()) } else { Err(why) }
        });
    };
    waits("is not signed");
    sign(&world, &v2.digest, &other);
    waits("not with a key of signed_by");
    agent.redeploy("web");
    agent.wait_entry(&Kind::FORCE_REDEPLOY, 1);
    world.assert_runs("web", "v1");
    let reference = format!("{}/web@{}", world.host, v2.digest);
    assert_eq!(world.engine.image_id(&reference), None, "what is not signed is not fetched");

    sign(&world, &v2.digest, &ours);
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
}
