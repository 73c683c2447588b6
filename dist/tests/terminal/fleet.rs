//! `evenkeel fleet`, `freeze` and `thaw` against a scripted warden (DECISIONS 11).

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{assert_shown, at_terminal, in_pipe};

const TOKEN: &str = "0123456789abcdef-people";
const DIGEST: &str = "sha256:6c3c624b58dbbcd3c0dd82b4c53f04194d1247c6eebdaab7c610cf7d66709b3b";
const BAD: &str = "sha256:b5b2b2c507a0944348e0303114d8d93aaaa081732b86451d9bce1f432a537bc7";

/// A scripted warden that records the requests.
struct Warden {
    url: String,
    bodies: Receiver<(String, Value)>,
    folder: TempDir,
}

impl Warden {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, bodies) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &sender);
            }
        });
        Self { url, bodies, folder: tempfile::tempdir().unwrap() }
    }

    fn token_file(&self, token: &str) -> PathBuf {
        let path = self.folder.path().join("token");
        std::fs::write(&path, format!("{token}\n")).unwrap();
        path
    }

    /// A command with this warden and the right token, in a pipe.
    fn run(&self, arguments: &[&str]) -> (String, i32) {
        let file = self.token_file(TOKEN);
        in_pipe(&[arguments, &["--warden", &self.url, "--token-file", file.to_str().unwrap()]].concat())
    }
}

fn answer(mut stream: TcpStream, bodies: &Sender<(String, Value)>) {
    let (mut text, mut part) = (String::new(), [0; 4096]);
    let length = |head: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        line.map_or(0, |text| text.parse().unwrap())
    };
    let body = loop {
        match stream.read(&mut part) {
            Ok(n) if n > 0 => text.push_str(std::str::from_utf8(&part[..n]).unwrap()),
            _ => return,
        }
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && body.len() >= length(head)
        {
            break body.to_owned();
        }
    };
    let request: Vec<&str> = text.split_whitespace().take(2).collect();
    let (status, reply) = if text.contains(&format!("authorization: Bearer {TOKEN}\r\n")) {
        match (request[0], request[1]) {
            ("GET", "/fleet/images") => (200, images()),
            ("POST", "/freeze") if body.contains("too long") => {
                (400, json!({ "error": "reason has more than 500 characters" }))
            }
            ("POST", "/freeze") => (
                200,
                json!({ "status": "frozen", "id": "f7", "until": "2026-01-03T00:00:00Z", "revision": 3 }),
            ),
            ("POST", "/thaw") if body.contains("f9") => {
                (200, json!({ "status": "nothing_frozen", "revision": 3 }))
            }
            ("POST", "/thaw") => (200, json!({ "status": "thawed", "revision": 4 })),
            other => panic!("{other:?}"),
        }
    } else {
        (401, json!({ "error": "api.token is needed" }))
    };
    if request[0] == "POST" {
        let _ = bodies.send((request[1].to_owned(), serde_json::from_str(&body).unwrap()));
    }
    let reply = reply.to_string();
    let _ = write!(
        stream,
        "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{reply}",
        reply.len()
    );
}

/// Contains nothing that depends on the current time.
fn images() -> Value {
    let cell = |machine: &str, more: Value| {
        let mut cell = json!({ "machine": machine, "ring": 0, "reported": "2999-01-01T00:00:00Z", "service": "shop",
            "image": "r.example/shop:1", "digest": DIGEST, "available": BAD });
        cell.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        cell
    };
    json!({
        "revision": 2, "machines": ["harbour", "quay", "pier"],
        "freezes": [{ "id": "f1", "reason": "trade fair", "by": "operator", "since": "2999-01-01T00:00:00Z",
            "until": "2026-01-02T00:00:00Z", "scope": { "machine": "quay" } }],
        "failed": [{ "repository": "r.example/shop", "digest": BAD, "agents": ["pier"], "since": "2999-01-01T00:00:00Z",
            "reason": "container shop-1 exited with code 1" }],
        "images": [
            { "repository": "r.example/db", "cells": [cell("quay", json!({ "available": "sha256:aa", "gate": "approval",
                "why": "nobody has approved this digest yet, and it is not old enough either" }))] },
            { "repository": "r.example/shop", "cells": [cell("harbour", json!({})), cell("pier", json!({ "verdict": "failed" }))] },
        ],
    })
}

#[test]
fn the_fleet_is_a_table_that_fits_the_terminal() {
    let warden = Warden::start();
    let arguments = ["fleet", "--warden", &warden.url];
    assert_shown(
        at_terminal(80, &[("EVENKEEL_TOKEN", TOKEN)], &arguments),
        "frozen: trade fair (on quay, by operator, 0s ago, ends now, id f1)
withheld: r.example/shop@sha256:b5b2b2c507a0944348e0303114d8d93aaaa081732b86451d9bce1f432a537bc7
          failed on pier 0s ago: container shop-1 exited with code 1

<faint>MACHINE</>    <faint>SERVICE</>  <faint>DIGEST</>        <faint>STATE</>
r.example/db
  quay     shop     <faint>6c3c624b58db</>  <yellow>waits for approval: nobody has approved this</>
                                  <yellow>digest yet, and it is not old enough either</>
r.example/shop
  harbour  shop     <faint>6c3c624b58db</>  <red>withheld, failed on pier</>
  pier     shop     <faint>6c3c624b58db</>  <red>failed here</>
",
        1,
    );
    let (json, code) = warden.run(&["fleet", "--json"]);
    let map: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&map["revision"], code), (&json!(2), 1));
}

#[test]
fn a_freeze_is_created_with_its_scope_and_ended_by_its_id() {
    let warden = Warden::start();
    let frozen = warden.run(&[
        "freeze",
        "inventory day",
        "--until",
        "2026-01-03T00:00:00Z",
        "--machine",
        "quay",
        "--image",
        "r.example/db",
    ]);
    assert_shown(frozen, "frozen until 2026-01-03T00:00:00Z, id f7\n", 0);
    let (path, body) = warden.bodies.recv().unwrap();
    assert_eq!(path, "/freeze");
    assert_eq!(
        body,
        json!({ "reason": "inventory day", "until": "2026-01-03T00:00:00Z", "scope": { "machine": "quay", "image": "r.example/db" } })
    );
    assert_shown(
        warden.run(&["freeze", "all", "--for", "2h"]),
        "frozen until 2026-01-03T00:00:00Z, id f7\n",
        0,
    );
    let (_, body) = warden.bodies.recv().unwrap();
    let until: jiff::Timestamp = body["until"].as_str().unwrap().parse().unwrap();
    let left = until.duration_since(jiff::Timestamp::now()).as_secs();
    assert!((7100..=7200).contains(&left), "{body}");

    assert_shown(warden.run(&["thaw", "f7"]), "thawed\n", 0);
    assert_eq!(warden.bodies.recv().unwrap(), ("/thaw".to_owned(), json!({ "id": "f7" })));
    assert_shown(warden.run(&["thaw"]), "thawed\n", 0);
    assert_eq!(warden.bodies.recv().unwrap(), ("/thaw".to_owned(), json!({})));
    // An unknown freeze is reported.
    assert_shown(warden.run(&["thaw", "f9"]), "nothing frozen\n", 1);
}

#[test]
fn failed_requests_have_their_own_exit_codes() {
    let warden = Warden::start();
    let file = warden.token_file("wrong");
    let file = file.to_str().unwrap();
    let url = warden.url.as_str();
    for (arguments, expected) in [
        (vec!["fleet", "--warden", url, "--token-file", file], 1),
        (vec!["fleet", "--warden", url], 78),
        (vec!["fleet", "--warden", url, "--token-file", "/nonexistent/token"], 78),
        (vec!["fleet", "--token-file", file, "--config", "/nonexistent/config.json"], 78),
        (vec!["fleet", "--warden", "http://127.0.0.1:9", "--token-file", file], 69),
        (vec!["fleet", "--warden", "somewhere", "--token-file", file], 2),
        (vec!["freeze", "why", "--warden", url], 2),
        (vec!["freeze", "why", "--for", "31d", "--warden", url], 2),
        (vec!["freeze", "why", "--for", "1h", "--until", "2026-01-03T00:00:00Z", "--warden", url], 2),
    ] {
        let (shown, code) = in_pipe(&arguments);
        assert_eq!((shown.as_str(), code), ("", expected), "{arguments:?}");
    }
    assert_shown(warden.run(&["freeze", "too long", "--for", "1h"]), "", 1);
}
