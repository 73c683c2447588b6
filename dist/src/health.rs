//! `evenkeel health`: asks a running agent or warden how it is. The container images' health check (DECISIONS 11).
//!
//! It speaks just enough HTTP for one request of its own program, so that an image needs no other client.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::process::ExitCode;
use std::time::Duration;

/// `EX_UNAVAILABLE` of sysexits.h.
const EXIT_UNREACHABLE: u8 = 69;
/// Connecting, writing and reading, each.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Far more than either program answers.
const MAX_ANSWER: u64 = 1 << 20;

/// Flags of `evenkeel health`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Address of its API [default: that of the mode, on 127.0.0.1]
    #[arg(long, value_name = "URL")]
    api: Option<String>,
}

/// Prints the answer's body: 0 for a 2xx, 1 for any other answer, 69 where none comes, 2 for an address that is none.
pub(crate) fn run(args: &Args, default: &str) -> ExitCode {
    let url = args.api.as_deref().unwrap_or(default);
    let Some(authority) = authority(url) else {
        evenkeel_common::cli::say(format_args!("evenkeel: --api {url}: expected http://HOST:PORT"));
        return ExitCode::from(2);
    };
    let answer = match ask(authority) {
        Ok(answer) => answer,
        Err(error) => return unreachable(url, &error.to_string()),
    };
    let Some((status, body)) = split(&answer) else {
        return unreachable(url, "what answers there does not speak HTTP");
    };
    // Nobody may be reading any more.
    let _ = writeln!(io::stdout(), "{}", body.trim_end());
    if (200..300).contains(&status) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn unreachable(url: &str, why: &str) -> ExitCode {
    evenkeel_common::cli::say(format_args!("evenkeel: {url}: {why}"));
    ExitCode::from(EXIT_UNREACHABLE)
}

/// `HOST:PORT` of `http://HOST:PORT`, with or without the scheme and a slash at the end.
fn authority(url: &str) -> Option<&str> {
    let authority = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
    let (host, port) = authority.rsplit_once(':')?;
    let is_plain =
        !host.is_empty() && !host.contains(['/', '@', '?', '#']) && !host.contains(char::is_whitespace);
    (is_plain && port.parse::<u16>().is_ok()).then_some(authority)
}

fn ask(authority: &str) -> io::Result<String> {
    let mut stream = connect(authority)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(stream, "GET /health HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// To the first of the name's addresses that answers.
fn connect(authority: &str) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = authority.to_socket_addrs()?.collect();
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Status code and body of an answer that was read whole.
fn split(answer: &str) -> Option<(u16, &str)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port_with_or_without_its_scheme() {
        for (url, want) in [
            ("http://127.0.0.1:9090", Some("127.0.0.1:9090")),
            ("http://127.0.0.1:9090/", Some("127.0.0.1:9090")),
            ("localhost:8080", Some("localhost:8080")),
            ("http://[::1]:9090", Some("[::1]:9090")),
            ("https://127.0.0.1:9090", None),
            ("http://127.0.0.1", None),
            ("http://:9090", None),
            ("http://127.0.0.1:90900", None),
            ("http://a b:1", None),
        ] {
            assert_eq!(authority(url), want, "{url}");
        }
    }

    #[test]
    fn an_answer_is_split_into_status_and_body() {
        assert_eq!(split("HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\n{}\n"), Some((503, "{}\n")));
        assert_eq!(split("HTTP/1.1 200 OK\r\n\r\n"), Some((200, "")));
        assert_eq!(split("SSH-2.0-OpenSSH\r\n\r\n"), None);
        assert_eq!(split(""), None);
    }
}
