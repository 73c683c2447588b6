//! A fleet of the size that the benchmarks name: 200 agents with 256 images each.
//!
//! Prints sizes and memory (`--no-capture`) for `dist/docs/benchmarks.md`.

use contract_tests::{Warden, request};
use serde_json::{Value, json};

const AGENTS: usize = 200;
const IMAGES: usize = 256;
/// What agents read of `GET /fleet`.
const READ_BY_AGENTS: usize = 1024 * 1024;
/// What clients of the command line read.
const READ_BY_CLIENTS: usize = 16 * 1024 * 1024;
/// The warden's unit allows 1 GiB.
const MEMORY: u64 = 512 * 1024 * 1024;

fn as_agent(warden: &Warden, id: &str, method: &str, path: &str, body: &Value) -> contract_tests::Reply {
    let token = format!("Bearer {}", Warden::agent_token(id));
    let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
    let reply = request(warden.address(), method, path, &headers, body.to_string().as_bytes());
    reply.expect("the warden answers")
}

/// Minutes with a program that is not optimised.
mod nightly {
    use super::*;

    #[test]
    fn two_hundred_agents_with_256_images_each_stay_within_what_readers_and_units_allow() {
        let folder = tempfile::tempdir().expect("a folder");
        let ids: Vec<String> = (0..AGENTS).map(|n| format!("machine-{n:03}")).collect();
        let mut warden = Warden::of_fleet(folder.path(), &ids.iter().map(String::as_str).collect::<Vec<_>>());
        for (n, id) in ids.iter().enumerate() {
            let image = |at: usize| {
                // Every agent has another digest of every image, as after a bad day.
                let digest = format!("sha256:{:064x}", at * AGENTS + n);
                json!({
                    "image": format!("registry.example.com:5000/team-{at}/application-{at}:1.{at}"), "digest": digest,
                    "service": format!("service-{at}"), "proven_at": "2026-01-01T00:00:00Z",
                    "available": format!("sha256:{:064x}", 2_000_000 + at), "behind_since": "2026-01-01T00:00:00Z",
                    "gate": "window", "why": "outside of the hours in which updates may start", "probation": 60,
                })
            };
            let images: Vec<Value> = (0..IMAGES).map(image).collect();
            let reply = as_agent(&warden, id, "POST", "/inventory", &json!({ "ring": 0, "images": images }));
            assert_eq!(reply.status, 200, "{}", reply.text());
            // Each of them reports failures, too.
            for at in 0..4 {
                let entry = json!({
                    "timestamp": "2026-01-01T00:00:00Z", "service": "web", "event": "rolled_back", "level": "warning",
                    "message": "rolled back", "reason": "x".repeat(4000), "seq": at + 1, "epoch": "e",
                    "image": format!("registry.example.com:5000/team-{at}/application-{at}:1.{at}"),
                    "new_digest": format!("sha256:{:064x}", 1_000_000 + at * AGENTS + n),
                });
                warden.ingest(id, &entry);
            }
        }
        let until = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
        let freeze = json!({ "reason": "audit", "until": until.to_string() });
        let frozen = warden.as_operator("POST", "/freeze", &freeze);
        assert_eq!(frozen.status, 200, "{}", frozen.text());

        let check = |warden: &Warden, when: &str| {
            let decisions = as_agent(warden, "machine-100", "GET", "/fleet", &Value::Null);
            assert_eq!(decisions.status, 200);
            assert!(decisions.text().contains("audit"), "the freeze is in force {when}");
            let length = decisions.text().len();
            assert!(length <= READ_BY_AGENTS, "{length} bytes of decisions {when}");
            let images = warden.as_operator("GET", "/fleet/images", &Value::Null);
            assert_eq!(images.status, 200);
            let map = images.text().len();
            assert!(map <= READ_BY_CLIENTS, "{map} bytes of the map {when}");
            let json: Value = images.json();
            let cells = json["images"].as_array().map_or(0, Vec::len);
            assert!(cells > 0, "{json:.300}");
            let resident = warden.resident();
            assert!(resident <= MEMORY, "{resident} bytes resident {when}");
            println!(
                "{when}: decisions {length} B, map {map} B with {cells} rows, {} MiB resident",
                resident >> 20
            );
        };
        check(&warden, "at once");
        warden.kill9();
        warden.restart();
        check(&warden, "after a restart");
    }
}
