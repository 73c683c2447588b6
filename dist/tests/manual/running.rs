//! The `OpenAPI` documents of a running agent and a running warden.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::{fs, io};

use evenkeel_common::testing::{WAIT_LIMIT, unused_port, wait_for};
use serde_json::{Value, json};

/// A program that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The document at the agent's `/openapi.json`.
pub(crate) fn agent_document() -> Value {
    let folder = tempfile::tempdir().unwrap();
    let port = unused_port();
    let file = folder.path().join("config.json");
    let state = folder.path().join("state");
    let config = json!({ "api": { "address": [format!("127.0.0.1:{port}")] }, "state": { "path": state } });
    fs::write(&file, config.to_string()).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .arg("--config")
        .arg(&file)
        .env_clear()
        .env("DOCKER_HOST", format!("unix://{}/no-engine.sock", folder.path().display()))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _running = Running(child);
    wait_for("the OpenAPI document", || get(port, "/openapi.json").map_err(|error| error.to_string()))
}

/// The document at the warden's `/openapi.json`.
pub(crate) fn warden_document() -> Value {
    let folder = tempfile::tempdir().unwrap();
    let port = unused_port();
    let file = folder.path().join("warden.json");
    let api = json!({ "address": [format!("127.0.0.1:{port}")], "token": "0123456789abcdef" });
    fs::write(&file, json!({ "api": api, "agents": [] }).to_string()).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(["--mode", "warden", "--config"])
        .arg(&file)
        .env_clear()
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _running = Running(child);
    wait_for("the OpenAPI document", || get(port, "/openapi.json").map_err(|error| error.to_string()))
}

fn get(port: u16, path: &str) -> io::Result<Value> {
    let mut socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_read_timeout(Some(WAIT_LIMIT))?;
    write!(socket, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    socket.read_to_string(&mut text)?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok(serde_json::from_str(body)?)
}
