//! A fake registry and a fake engine with negligible cost, so that the benchmark measures only the agent.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use percent_encoding::percent_decode_str;
use serde_json::json;
use sha2::{Digest, Sha256};

/// An image of the fake engine, with one running container.
pub(crate) struct FakeImage {
    /// Repository without host.
    pub(crate) repository: String,
    /// Tag.
    pub(crate) tag: String,
    /// Digest of the tag, both in the registry and on the engine.
    pub(crate) digest: String,
}

/// A compose project on the fake engine.
pub(crate) struct FakeProject {
    /// Its name.
    pub(crate) name: String,
    /// Its images, with one running container each.
    pub(crate) images: Vec<FakeImage>,
}

/// Returns the digest of a text as `sha256:<hex>`.
pub(crate) fn digest_of(text: &str) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(text)))
}

/// Starts a registry that has every tag of every repository. Returns its address and the number of its responses.
pub(crate) fn registry() -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let host = listener.local_addr().expect("it is bound").to_string();
    let heads = Arc::new(AtomicU64::new(0));
    let counter = heads.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = stream.set_nodelay(true);
            let counter = counter.clone();
            std::thread::spawn(move || {
                let reader = stream.try_clone().expect("a socket can be shared");
                answer_all(reader, stream, |path| {
                    counter.fetch_add(1, Ordering::Relaxed);
                    let digest = digest_of(path);
                    Some(format!(
                        "Content-Type: application/vnd.oci.image.manifest.v1+json\r\nDocker-Content-Digest: {digest}\r\n\
                         Content-Length: 500\r\n\r\n"
                    ))
                });
            });
        }
    });
    (host, heads)
}

/// Returns the digest of a tag in [`registry`].
pub(crate) fn digest_in_registry(repository: &str, tag: &str) -> String {
    digest_of(&format!("/v2/{repository}/manifests/{tag}"))
}

/// Starts an engine on a unix socket with these projects. Returns the number of connections opened to it.
pub(crate) fn engine(socket: &Path, host: &str, projects: &[FakeProject]) -> Arc<AtomicU64> {
    let answers = Arc::new(engine_answers(host, projects));
    let listener = UnixListener::bind(socket).expect("the socket can be created");
    let connections = Arc::new(AtomicU64::new(0));
    let counter = connections.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            counter.fetch_add(1, Ordering::Relaxed);
            let answers = answers.clone();
            std::thread::spawn(move || {
                let reader = stream.try_clone().expect("a socket can be shared");
                answer_all(reader, stream, |path| engine_answer(&answers, path));
            });
        }
    });
    connections
}

/// Returns headers and body by path, without version and query. Container lists have the key `list/<project>`.
fn engine_answers(host: &str, projects: &[FakeProject]) -> HashMap<String, String> {
    let mut answers = HashMap::new();
    let version = json!({"Version": "27.0.0", "ApiVersion": "1.46", "MinAPIVersion": "1.24"});
    answers.insert("/version".to_owned(), body(&version));
    answers.insert("/_ping".to_owned(), body(&json!("OK")));
    answers.insert("/info".to_owned(), body(&json!({"MemTotal": 16_u64 << 30})));
    // Without a length: the stream starts but has no events.
    answers.insert("/events".to_owned(), "Content-Type: application/json\r\n\r\n".to_owned());
    for project in projects {
        let mut listed = Vec::new();
        for FakeImage { repository, tag, digest } in &project.images {
            let container = digest_of(&format!("container {}/{repository}:{tag}", project.name));
            let image = digest_of(&format!("image {repository}:{tag}"));
            let labels =
                json!({"com.docker.compose.project": project.name, "com.docker.compose.service": tag});
            listed.push(json!({"Id": container, "Status": "Up 3 hours", "Labels": labels}));
            let reference = format!("{host}/{repository}:{tag}");
            answers.insert(
                format!("/containers/{container}/json"),
                body(&json!({
                    "Id": container,
                    "Name": format!("/{}-{tag}-1", project.name),
                    "Image": image,
                    "RestartCount": 0,
                    "State": {"Status": "running", "Running": true, "StartedAt": "2026-01-01T00:00:00Z", "ExitCode": 0},
                    "Config": {"Image": reference, "Labels": labels},
                    "Mounts": [],
                })),
            );
            let shown = body(&json!({
                "Id": image,
                "RepoTags": [reference],
                "RepoDigests": [format!("{host}/{repository}@{digest}")],
                "Size": 50_000_000,
            }));
            answers.insert(format!("/images/{image}/json"), shown.clone());
            answers.insert(format!("/images/{reference}/json"), shown);
        }
        answers.insert(format!("list/{}", project.name), body(&json!(listed)));
    }
    answers
}

fn engine_answer(answers: &HashMap<String, String>, target: &str) -> Option<String> {
    let decoded = percent_decode_str(target).decode_utf8_lossy();
    let (path, query) = decoded.split_once('?').unwrap_or((&decoded, ""));
    let path = match path.strip_prefix("/v1.").and_then(|rest| rest.find('/').map(|at| &rest[at..])) {
        Some(rest) => rest,
        None => path,
    };
    if path == "/containers/json" {
        let project = query.split_once("compose.project=")?.1.split('"').next()?;
        return answers.get(&format!("list/{project}")).cloned();
    }
    if path.strip_suffix("/stats").is_some_and(|container| answers.contains_key(&format!("{container}/json")))
    {
        return Some(body(&usage()));
    }
    answers.get(path).cloned()
}

/// Returns the stats of a container that has used a tenth of a core since the epoch.
fn usage() -> serde_json::Value {
    let now = jiff::Timestamp::now();
    json!({
        "read": now.to_string(),
        "cpu_stats": {"cpu_usage": {"total_usage": u64::try_from(now.as_nanosecond() / 10).unwrap_or_default()}, "online_cpus": 2},
        "memory_stats": {"usage": 50_000_000, "limit": 100_000_000, "stats": {"inactive_file": 1_000_000}},
    })
}

fn body(value: &serde_json::Value) -> String {
    let text = value.to_string();
    format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}", text.len())
}

/// Responds to requests, which must have no body, until the client closes the connection.
fn answer_all(reader: impl Read, mut writer: impl Write, answer: impl Fn(&str) -> Option<String>) {
    let mut reader = BufReader::new(reader);
    let mut line = String::new();
    let mut path = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        if path.is_empty() {
            path.push_str(line.split(' ').nth(1).unwrap_or_default());
        } else if line == "\r\n" {
            let answer = match answer(&path) {
                Some(rest) => format!("HTTP/1.1 200 OK\r\n{rest}"),
                None => "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 27\r\n\r\n{\"message\":\"no such thing\"}".to_owned(),
            };
            if writer.write_all(answer.as_bytes()).is_err() {
                return;
            }
            path.clear();
        }
    }
}
