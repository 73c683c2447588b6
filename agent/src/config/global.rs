//! Rules whose breach stops the program (spec 2.9, "global validation failures").

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_common::config::expand::Env;
use evenkeel_common::config::{Findings, KeyPath, quote};

use super::file::{ApiFile, AuditFile, DockerHealthFile, MonitorFile, RegistryFile, StateFile};
use super::{ApiConfig, DockerHealthConfig, MonitorConfig, RegistryConfig};
use crate::image::Reference;

const DEFAULT_STATE_PATH: &str = "/var/lib/evenkeel";

/// `registry`: the URL must be one whose host can stand in an image reference.
pub(super) fn registry(file: &RegistryFile, findings: &mut Findings) -> RegistryConfig {
    let host = registry_host(&file.url).unwrap_or_else(|| {
        let at = KeyPath::of("registry.url");
        // A user name in a URL comes with a password: the text is not shown.
        let seen = if file.url.contains('@') { "a URL with a user name".to_owned() } else { quote(&file.url) };
        findings.fault(&at, format!("{seen}; allowed: http://host:port or https://host:port and nothing after it (logins come from ~/.docker/config.json)"));
        String::from("localhost:5000")
    });
    RegistryConfig {
        url: file.url.trim_end_matches('/').to_owned(),
        host,
        poll_interval: Duration::from_secs(file.poll_interval),
        insecure: file.insecure,
        concurrency: usize::try_from(file.concurrency).unwrap_or(1),
    }
}

/// Host and port as an image reference names them.
fn registry_host(url: &str) -> Option<String> {
    let (rest, default_port) = match url.split_once("://")? {
        ("http", rest) => (rest, 80),
        ("https", rest) => (rest, 443),
        _ => return None,
    };
    let host = rest.strip_suffix('/').unwrap_or(rest);
    // The engine takes a first part without dot and colon for a path at Docker Hub; a port makes it a host.
    let host = if host.contains(['.', ':']) || host == "localhost" {
        host.to_owned()
    } else {
        format!("{host}:{default_port}")
    };
    let is_host = !host.contains(['/', '@']) && Reference::parse_in("x", &host).is_ok();
    is_host.then_some(host)
}

/// `api`: addresses are `host:port`, the port is 1-65535 (the rule that the spec words as api.port).
pub(super) fn api(file: &ApiFile, findings: &mut Findings) -> ApiConfig {
    let addresses = KeyPath::of("api.address");
    let mut taken = HashSet::new();
    for (n, text) in file.address.iter().enumerate().filter_map(|(n, text)| Some((n, text.as_deref()?))) {
        let at = addresses.index(n);
        match listen_address(text) {
            Err(why) => findings.fault(&at, format!("{} {why}; allowed: host:port, where host is an IP address (v6 in brackets), localhost, or empty for all interfaces, and port is 1 to 65535", quote(text))),
            Ok(address) if !taken.insert(address) => {
                findings.fault(&at, format!("{} stands there more than once; allowed: each address once", quote(text)));
            }
            Ok((host, _)) if !host.is_loopback() => findings.warn(&addresses, format!("{} can be reached from other machines, and the API has no login; put a proxy that asks for one in front, or use 127.0.0.1", quote(text))),
            Ok(_) => {}
        }
    }
    let hosts = KeyPath::of("api.allowed_hosts");
    for (n, text) in file.allowed_hosts.iter().enumerate().filter_map(|(n, text)| Some((n, text.as_deref()?)))
    {
        if !is_host_name(text) {
            findings.fault(
                &hosts.index(n),
                format!("{}; allowed: a host name without scheme, port and wildcard", quote(text)),
            );
        }
    }
    ApiConfig {
        addresses: file.address.iter().flatten().cloned().collect(),
        allowed_hosts: file.allowed_hosts.iter().flatten().map(|host| host.to_ascii_lowercase()).collect(),
    }
}

/// What an address entry's host means; texts that mean the same are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ListenHost {
    All,
    Localhost,
    Ip(IpAddr),
}

impl ListenHost {
    fn is_loopback(self) -> bool {
        match self {
            Self::All => false,
            Self::Localhost => true,
            // ::ffff:127.0.0.1 is loopback too.
            Self::Ip(ip) => ip.to_canonical().is_loopback(),
        }
    }
}

fn listen_address(text: &str) -> Result<(ListenHost, u16), &'static str> {
    let (host, port) = text.rsplit_once(':').ok_or("has no port")?;
    let host = if host.is_empty() {
        ListenHost::All
    } else if host.eq_ignore_ascii_case("localhost") {
        ListenHost::Localhost
    } else if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        ListenHost::Ip(inner.parse::<Ipv6Addr>().map_err(|_| "has no IPv6 address in the brackets")?.into())
    } else if host.contains(':') {
        return Err("has an IPv6 address without brackets");
    } else {
        ListenHost::Ip(host.parse::<Ipv4Addr>().map_err(|_| "has another kind of host")?.into())
    };
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let port = if digits { port.parse::<u16>().ok() } else { None };
    port.filter(|port| *port > 0).map(|port| (host, port)).ok_or("has no port from 1 to 65535")
}

fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    text.len() <= 253 && text.split('.').all(label)
}

/// `audit.path`: absolute, or empty.
pub(super) fn audit_path(file: &AuditFile, findings: &mut Findings) -> Option<PathBuf> {
    let path = absolute(&KeyPath::of("audit.path"), &file.path, "empty to have no audit file", findings)?;
    if path.is_dir() {
        let what = format!("{} is a folder; allowed: the absolute path of a file", quote(&file.path));
        findings.fault(&KeyPath::of("audit.path"), what);
    }
    Some(path)
}

/// `state.path`: absolute; without it what systemd gives (the first of a list), else the usual place.
pub(super) fn state_path(file: &StateFile, env: Env<'_>, findings: &mut Findings) -> PathBuf {
    let at = KeyPath::of("state.path");
    if let Some(path) = absolute(&at, &file.path, "empty for the default", findings) {
        return path;
    }
    let given = env("STATE_DIRECTORY").unwrap_or_default();
    let first = Path::new(given.split(':').next().unwrap_or_default());
    if first.is_absolute() { first.to_owned() } else { PathBuf::from(DEFAULT_STATE_PATH) }
}

fn absolute(at: &KeyPath, text: &str, or: &str, findings: &mut Findings) -> Option<PathBuf> {
    if text.is_empty() {
        return None;
    }
    if !text.starts_with('/') || text.contains('\0') {
        findings.fault(at, format!("{}; allowed: an absolute path, or {or}", quote(text)));
    }
    Some(PathBuf::from(text))
}

/// `monitor`: as often as the poll unless it is given.
pub(super) fn monitor(file: &MonitorFile, registry: &RegistryConfig) -> MonitorConfig {
    MonitorConfig { stats_interval: file.stats_interval.map_or(registry.poll_interval, Duration::from_secs) }
}

/// `docker_health`: a check must be over before the next begins.
pub(super) fn docker_health(file: &DockerHealthFile, findings: &mut Findings) -> DockerHealthConfig {
    if file.timeout >= file.check_interval
        && !findings.is_faulty(&KeyPath::of("docker_health.check_interval"))
    {
        let what = format!(
            "{} is not less than docker_health.check_interval ({}); allowed: a whole number from 1 to 30 that is less than it",
            file.timeout, file.check_interval
        );
        findings.fault(&KeyPath::of("docker_health.timeout"), what);
    }
    DockerHealthConfig {
        check_interval: Duration::from_secs(file.check_interval),
        timeout: Duration::from_secs(file.timeout),
    }
}
