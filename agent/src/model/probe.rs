//! Probes: what the containers of a new image must answer before it counts as proven (DECISIONS 15).

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A probe. On probation it must succeed at least once, and then not fail three times in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// What is asked.
    pub ask: Ask,
    /// The compose service whose containers are asked; `None` for all whose image has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Host name or address that is asked in place of each container, for example that of a published port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Time between the beginnings of two tries.
    pub interval: Duration,
    /// How long one try may take.
    pub timeout: Duration,
}

/// What a probe asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// A `GET` request.
    Http(HttpAsk),
    /// A TCP connection to this port.
    Tcp(u16),
}

/// A `GET` request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpAsk {
    /// Port.
    pub port: u16,
    /// Path with query, beginning with `/`.
    pub path: String,
    /// Status codes that count as a success.
    pub status: StatusCodes,
    /// Name in the `Host` header, and in TLS; `None` for the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// TLS; `None` for plain HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsCheck>,
}

/// Whether a server's certificate must be valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TlsCheck {
    /// It must be valid.
    Verified,
    /// Any certificate is accepted.
    Unverified,
}

/// Ranges of HTTP status codes, first and last included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusCodes(Vec<(u16, u16)>);

/// The form of [`StatusCodes`], for messages.
pub const STATUS_FORM: &str =
    "codes and ranges from 100 to 599, separated by commas, such as 200-399 or 200,401";

impl StatusCodes {
    /// Parses codes and ranges that are separated by commas, such as `200-399` or `200, 401`.
    pub fn parse(text: &str) -> Option<Self> {
        let code = |text: &str| {
            let text = text.trim();
            let is_code = text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit());
            text.parse().ok().filter(|code| is_code && (100..=599).contains(code))
        };
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u16, u16) = (code(first)?, code(last)?);
            (first <= last).then_some((first, last))
        };
        text.split(',').map(range).collect::<Option<Vec<_>>>().map(Self)
    }

    /// Reports whether they contain a code.
    pub fn contain(&self, code: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&code))
    }
}

impl fmt::Display for StatusCodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (first, last)) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            write!(f, "{comma}{first}")?;
            if first != last {
                write!(f, "-{last}")?;
            }
        }
        Ok(())
    }
}

impl Probe {
    /// The port that is asked.
    pub fn port(&self) -> u16 {
        match &self.ask {
            Ask::Http(http) => http.port,
            Ask::Tcp(port) => *port,
        }
    }
}

/// The URL or address, without a host if each container is asked: `GET https://:8443/health`, `TCP db.example.org:5432`.
impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = match self.from.as_deref() {
            Some(host) if host.contains(':') => format!("[{host}]"),
            host => host.unwrap_or_default().to_owned(),
        };
        match &self.ask {
            Ask::Http(HttpAsk { port, path, tls, .. }) => {
                let scheme = if tls.is_some() { "https" } else { "http" };
                write!(f, "GET {scheme}://{host}:{port}{path}")
            }
            Ask::Tcp(port) => write!(f, "TCP {host}:{port}"),
        }
    }
}

/// The answer to one try: a description of the success, or of the failure.
pub type Answer = Result<String, String>;

/// A target of a probe.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Target(
    /// Full ID of a container; empty for the probe's own address (`from`).
    pub String,
);

impl Target {
    /// The probe's own address.
    pub fn own_address() -> Self {
        Self(String::new())
    }

    /// The container's ID; `None` for the probe's own address.
    pub fn container(&self) -> Option<&str> {
        Some(self.0.as_str()).filter(|id| !id.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_codes_are_codes_and_ranges() {
        let codes = |text: &str| StatusCodes::parse(text).map(|codes| codes.to_string());
        assert_eq!(codes("200-399").as_deref(), Some("200-399"));
        assert_eq!(codes("200, 401 ,500 - 599").as_deref(), Some("200,401,500-599"));
        for bad in
            ["", "2xx", "200-", "-200", "300-200", "99", "600", "200,,201", "+20", "0200", "200-399-500"]
        {
            assert_eq!(codes(bad), None, "{bad}");
        }
        let codes = StatusCodes::parse("200-299,401").expect("valid");
        let contained: Vec<u16> =
            [199, 200, 299, 300, 401, 402].into_iter().filter(|c| codes.contain(*c)).collect();
        assert_eq!(contained, [200, 299, 401]);
    }

    #[test]
    fn a_probe_is_shown_as_what_it_asks() {
        let http = |tls, from: Option<&str>| Probe {
            ask: Ask::Http(HttpAsk {
                port: 8080,
                path: "/health?x=1".into(),
                status: StatusCodes(vec![(200, 200)]),
                host: None,
                tls,
            }),
            service: None,
            from: from.map(str::to_owned),
            interval: Duration::ZERO,
            timeout: Duration::ZERO,
        };
        assert_eq!(http(None, None).to_string(), "GET http://:8080/health?x=1");
        let tls = Some(TlsCheck::Verified);
        assert_eq!(http(tls, Some("::1")).to_string(), "GET https://[::1]:8080/health?x=1");
        let tcp = Probe { ask: Ask::Tcp(5432), ..http(None, Some("db")) };
        assert_eq!(tcp.to_string(), "TCP db:5432");
    }
}
