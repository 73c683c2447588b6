//! A minimal HTTP/1.1 client, one connection per request, that gives tests control over every header.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_mins(2);

/// A response.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Headers in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body, with the chunked encoding removed.
    pub body: Vec<u8>,
}

impl Reply {
    /// Returns the first header with this name (in lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON, or `null` if it is not valid JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or(serde_json::Value::Null)
    }
}

/// Sends a request to `address` (`host:port`). `Host`, `Connection` and `Content-Length` are set unless given.
pub fn request(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Reply> {
    let target = address.to_socket_addrs()?.next().ok_or_else(|| io::Error::other("no such address"))?;
    let stream = TcpStream::connect_timeout(&target, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    exchange(stream, address, method, path, headers, body)
}

/// Sends a request through a unix socket.
pub(crate) fn request_unix(
    socket: &Path,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Reply> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    exchange(stream, "engine", method, path, headers, body)
}

fn exchange(
    mut stream: impl Read + Write,
    host: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Reply> {
    let given = |name: &str| headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    write!(stream, "{method} {path} HTTP/1.1\r\n")?;
    if !given("host") {
        write!(stream, "Host: {host}\r\n")?;
    }
    if !given("connection") {
        write!(stream, "Connection: close\r\n")?;
    }
    if !given("content-length") && (!body.is_empty() || matches!(method, "POST" | "PUT" | "PATCH")) {
        write!(stream, "Content-Length: {}\r\n", body.len())?;
    }
    for (name, value) in headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    write!(stream, "\r\n")?;
    // A server may reject a large body before it has read all of it. Read its response even if writing failed.
    let written = stream.write_all(body).and_then(|()| stream.flush());
    let mut raw = Vec::new();
    match (stream.read_to_end(&mut raw), written) {
        (Ok(_), _) => {}
        (Err(_), _) if !raw.is_empty() => {}
        (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(error),
    }
    parse(&raw, method == "HEAD")
}

fn parse(raw: &[u8], head_only: bool) -> io::Result<Reply> {
    let broken = |what: &str| io::Error::other(format!("{what}: {}", String::from_utf8_lossy(raw)));
    let end = find(raw, b"\r\n\r\n").ok_or_else(|| broken("no end of headers"))?;
    let head = String::from_utf8_lossy(&raw[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let status: u16 = lines
        .next()
        .and_then(|line| line.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| broken("no status line"))?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let rest = &raw[end + 4..];
    if status == 100 {
        return parse(rest, head_only);
    }
    let chunked = headers.iter().any(|(n, v)| n == "transfer-encoding" && v.eq_ignore_ascii_case("chunked"));
    let body = match (head_only, chunked) {
        (true, _) => Vec::new(),
        (false, true) => dechunk(rest).ok_or_else(|| broken("broken chunks"))?,
        (false, false) => rest.to_vec(),
    };
    let length = headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, n)| n.parse().ok());
    if !head_only && status != 304 && length.is_some_and(|length: usize| body.len() < length) {
        return Err(io::Error::other(format!("{} of {length:?} bytes came", body.len())));
    }
    Ok(Reply { status, headers, body })
}

fn dechunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = find(rest, b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
