//! A proxy in front of an engine that rejects requests and omits fields like Docker 29 (API 1.52, minimum 1.44).
//!
//! It is stricter than Docker 29 in one respect: it rejects paths without a version, except `/_ping` and `/version`. It
//! omits the fields that the version history of the Engine API lists for 1.52, for every requested version.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::PREFIX;
use crate::engine_proxy::read_chunk;
use crate::head::Head;

/// Oldest and newest API version 1.x that it accepts.
const MIN: u32 = 44;
const MAX: u32 = 52;

/// Omitted from every event.
const EVENT: [&str; 3] = ["status", "id", "from"];
/// Omitted from an image if empty.
const IMAGE: [&str; 4] = ["Parent", "Comment", "DockerVersion", "Author"];
/// Omitted from a container's network settings.
const NETWORK: [&str; 14] = [
    "Bridge",
    "HairpinMode",
    "LinkLocalIPv6Address",
    "LinkLocalIPv6PrefixLen",
    "SecondaryIPAddresses",
    "SecondaryIPv6Addresses",
    "EndpointID",
    "Gateway",
    "GlobalIPv6Address",
    "GlobalIPv6PrefixLen",
    "IPAddress",
    "IPPrefixLen",
    "IPv6Gateway",
    "MacAddress",
];

/// Handle of the proxy. Its thread runs until the test process exits; its socket is removed on drop.
#[derive(Debug)]
pub(crate) struct ModernEngine {
    folder: TempDir,
}

impl ModernEngine {
    /// Starts the proxy in front of the engine at `target`.
    pub(crate) fn start(target: &Path) -> Self {
        let folder = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}modern-"))
            .tempdir()
            .expect("a temporary folder can be created");
        let modern = Self { folder };
        let listener = UnixListener::bind(modern.socket()).expect("the socket can be created");
        let target = target.to_owned();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let target = target.clone();
                // When either side closes the connection, the other one is closed, too.
                std::thread::spawn(move || serve(client, &target));
            }
        });
        modern
    }

    /// Returns the path of its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("docker.sock")
    }
}

/// Handles one request and closes its connection after the response.
fn serve(client: UnixStream, target: &Path) -> io::Result<()> {
    let mut requests = BufReader::new(client.try_clone()?);
    let mut responses = client;
    let Some(mut head) = Head::read(&mut requests)? else { return Ok(()) };
    let mut words = head.first.split(' ');
    let (method, target_path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (method, path) = (method.to_owned(), target_path.to_owned());
    let newest = newest_of(target)?;
    let forwarded = match upstream_path(&path, newest) {
        Ok(forwarded) => forwarded,
        Err(message) => {
            let body = json!({ "message": message }).to_string();
            write!(
                responses,
                "HTTP/1.1 400 Bad Request\r\nApi-Version: 1.{MAX}\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            )?;
            return responses.shutdown(Shutdown::Both);
        }
    };
    let mut engine = UnixStream::connect(target)?;
    head.first = format!("{method} {forwarded} HTTP/1.1");
    if head.get("upgrade").is_none() {
        head.set("Connection", Some("close"));
    }
    head.write(&mut engine)?;
    let back = engine.try_clone()?;
    std::thread::spawn(move || {
        let _ = io::copy(&mut requests, &mut engine);
        let _ = engine.shutdown(Shutdown::Write);
    });
    answer(&mut BufReader::new(back), &mut responses, &method, &forwarded)?;
    responses.shutdown(Shutdown::Both)
}

/// Returns the path to request from the upstream engine, or the reason for which the request is rejected.
fn upstream_path(path: &str, newest: u32) -> Result<String, String> {
    let bare = path.split('?').next().unwrap_or_default();
    if matches!(bare, "/_ping" | "/version") {
        return Ok(path.to_owned());
    }
    let versioned = path.strip_prefix("/v1.").and_then(|rest| rest.split_once('/'));
    let Some((minor, rest)) = versioned.and_then(|(minor, rest)| Some((minor.parse::<u32>().ok()?, rest)))
    else {
        return Err(format!("{bare}: a request must name the version of the API"));
    };
    if minor < MIN {
        let advice = "please upgrade your client to a newer version";
        return Err(format!(
            "client version 1.{minor} is too old. Minimum supported API version is 1.{MIN}, {advice}"
        ));
    }
    if minor > MAX {
        return Err(format!("client version 1.{minor} is too new. Maximum supported API version is 1.{MAX}"));
    }
    Ok(format!("/v1.{}/{rest}", minor.min(newest)))
}

/// Returns the newest API version 1.x of the upstream engine.
fn newest_of(target: &Path) -> io::Result<u32> {
    let reply = crate::http::request_unix(target, "GET", "/_ping", &[], &[])?;
    let version = reply.header("api-version").and_then(|version| version.strip_prefix("1."));
    version
        .and_then(|minor| minor.parse().ok())
        .ok_or_else(|| io::Error::other("an engine without Api-Version"))
}

/// Forwards a response without the fields that API 1.52 omits.
fn answer(from: &mut impl BufRead, to: &mut impl Write, method: &str, path: &str) -> io::Result<()> {
    let Some(mut head) = Head::read(from)? else { return Ok(()) };
    if head.get("api-version").is_some() {
        head.set("Api-Version", Some(&format!("1.{MAX}")));
    }
    let code: u16 = head.first.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
    let bare = path.split('?').next().unwrap_or_default();
    let rest = bare.strip_prefix("/v1.").and_then(|rest| rest.split_once('/')).map_or(bare, |(_, rest)| rest);
    if code != 101 {
        head.set("Connection", Some("close"));
    }
    if code == 200 && method == "GET" && rest == "events" {
        head.set("Content-Type", Some("application/x-ndjson"));
        head.write(to)?;
        return events(from, to);
    }
    let Some(change) = change_of(rest).filter(|_| code == 200 && method == "GET") else {
        head.write(to)?;
        to.flush()?;
        return io::copy(from, to).map(|_| ());
    };
    let mut body = body(&head, from)?;
    if let Ok(mut value) = serde_json::from_slice::<Value>(&body) {
        change(&mut value);
        body = crate::image::to_bytes(&value);
    }
    head.set("Transfer-Encoding", None);
    head.set("Content-Length", Some(&body.len().to_string()));
    head.write(to)?;
    to.write_all(&body)
}

/// Returns the function that changes the response for this path, if any.
fn change_of(path: &str) -> Option<fn(&mut Value)> {
    let of = |kind: &str| path.strip_prefix(kind).and_then(|rest| rest.strip_suffix("/json"));
    if path == "version" || path == "/version" {
        Some(versions)
    } else if of("images/").is_some() {
        Some(without_empty)
    } else if of("containers/").is_some_and(|id| !id.contains('/')) {
        Some(without_network)
    } else {
        None
    }
}

fn versions(value: &mut Value) {
    let minimum = format!("1.{MIN}");
    value["ApiVersion"] = format!("1.{MAX}").into();
    value["MinAPIVersion"] = minimum.clone().into();
    for component in value["Components"].as_array_mut().into_iter().flatten() {
        if component["Details"]["ApiVersion"].is_string() {
            component["Details"]["ApiVersion"] = format!("1.{MAX}").into();
            component["Details"]["MinAPIVersion"] = minimum.clone().into();
        }
    }
}

fn without_empty(image: &mut Value) {
    let Some(fields) = image.as_object_mut() else { return };
    fields.retain(|name, value| !IMAGE.contains(&name.as_str()) || !is_empty(value));
    if let Some(config) = fields.get_mut("Config").and_then(Value::as_object_mut) {
        config.retain(|_, value| !is_empty(value));
    }
}

fn without_network(container: &mut Value) {
    if let Some(network) = container.get_mut("NetworkSettings").and_then(Value::as_object_mut) {
        network.retain(|name, _| !NETWORK.contains(&name.as_str()));
    }
    if let Some(host) = container.get_mut("HostConfig").and_then(Value::as_object_mut) {
        host.remove("KernelMemoryTCP");
    }
    if let Some(config) = container.get_mut("Config").and_then(Value::as_object_mut) {
        config.retain(|name, value| name != "OnBuild" || !is_empty(value));
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Forwards an event stream. Each chunk is one event.
fn events(from: &mut impl BufRead, to: &mut impl Write) -> io::Result<()> {
    while let Some(chunk) = read_chunk(from)? {
        let text = match serde_json::from_slice::<Value>(&chunk) {
            Ok(mut event) => {
                if let Some(fields) = event.as_object_mut() {
                    fields.retain(|name, _| !EVENT.contains(&name.as_str()));
                }
                format!("{event}\n").into_bytes()
            }
            Err(_) => chunk,
        };
        write!(to, "{:x}\r\n", text.len())?;
        to.write_all(&text)?;
        to.write_all(b"\r\n")?;
    }
    to.write_all(b"0\r\n\r\n")
}

fn body(head: &Head, from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    if head.get("transfer-encoding").is_some() {
        while let Some(chunk) = read_chunk(from)? {
            body.extend(chunk);
        }
    } else {
        let length = head.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(u64::MAX);
        from.take(length).read_to_end(&mut body)?;
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_docker_29_does_not_support_and_paths_without_a_version_are_rejected() {
        for path in ["/containers/json", "/info?x=/v1.44/", "/v1.43/info", "/v1.53/info", "/v1.x/info"] {
            assert!(upstream_path(path, 51).is_err(), "{path}");
        }
        assert!(
            upstream_path("/v1.41/info", 51)
                .is_err_and(|why| why.contains("Minimum supported API version is 1.44"))
        );
        assert_eq!(upstream_path("/_ping", 51).as_deref(), Ok("/_ping"));
        assert_eq!(upstream_path("/v1.44/events?since=1", 51).as_deref(), Ok("/v1.44/events?since=1"));
        // The upstream engine does not support 1.52.
        assert_eq!(upstream_path("/v1.52/info", 51).as_deref(), Ok("/v1.51/info"));
    }

    #[test]
    fn fields_that_api_1_52_omits_are_removed() {
        let mut out = Vec::new();
        let event = "{\"status\":\"die\",\"id\":\"1\",\"from\":\"web\",\"Type\":\"container\",\"time\":1}\n";
        let chunk = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{event}\r\n0\r\n\r\n",
            event.len()
        );
        answer(&mut chunk.as_bytes(), &mut out, "GET", "/v1.44/events?filters=x").unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\"Type\":\"container\"") && !text.contains("\"status\""), "{text}");

        let image = json!({ "Id": "1", "Parent": "", "Comment": "imported", "Config": { "Cmd": null, "User": "", "Env": ["A=1"] } });
        let got = changed("/v1.44/images/web:latest/json", &image);
        assert_eq!(got, json!({ "Id": "1", "Comment": "imported", "Config": { "Env": ["A=1"] } }));
        let container = json!({ "NetworkSettings": { "IPAddress": "1.2.3.4", "Networks": {} } });
        assert_eq!(
            changed("/v1.44/containers/web/json", &container),
            json!({ "NetworkSettings": { "Networks": {} } })
        );
        let listed = json!([{ "NetworkSettings": { "IPAddress": "1.2.3.4" } }]);
        assert_eq!(changed("/v1.44/containers/json?all=1", &listed), listed);
        let version = changed("/version", &json!({ "ApiVersion": "1.51", "MinAPIVersion": "1.24" }));
        assert_eq!(version["MinAPIVersion"], "1.44");
    }

    fn changed(path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let raw = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let mut out = Vec::new();
        answer(&mut raw.as_bytes(), &mut out, "GET", path).unwrap();
        let text = String::from_utf8(out).unwrap();
        serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}
