//! `api.address`: texts `host:port` to listen on (DECISIONS 2).

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Findings, KeyPath, quote};

/// What an entry means; texts that mean the same are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    host: Host,
    port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Host {
    All,
    Localhost,
    Ip(IpAddr),
}

impl Address {
    /// Whether only this machine can reach it.
    pub fn is_loopback(self) -> bool {
        match self.host {
            Host::All => false,
            Host::Localhost => true,
            // ::ffff:127.0.0.1 is loopback too.
            Host::Ip(ip) => ip.to_canonical().is_loopback(),
        }
    }

    fn parse(text: &str) -> Result<Self, &'static str> {
        let (host, port) = text.rsplit_once(':').ok_or("has no port")?;
        let host = if host.is_empty() {
            Host::All
        } else if host.eq_ignore_ascii_case("localhost") {
            Host::Localhost
        } else if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Host::Ip(inner.parse::<Ipv6Addr>().map_err(|_| "has no IPv6 address in the brackets")?.into())
        } else if host.contains(':') {
            return Err("has an IPv6 address without brackets");
        } else {
            Host::Ip(host.parse::<Ipv4Addr>().map_err(|_| "has another kind of host")?.into())
        };
        let port = self::port(port).ok_or("has no port from 1 to 65535")?;
        Ok(Self { host, port })
    }
}

/// A port from 1 to 65535, in digits alone.
pub fn port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let port = if digits { text.parse::<u16>().ok() } else { None };
    port.filter(|port| *port > 0)
}

/// The entries of the array at `at` that are addresses, with their places; faults for the others and for repeats.
pub fn check(texts: &[Option<String>], at: &KeyPath, findings: &mut Findings) -> Vec<(usize, Address)> {
    let mut taken = HashSet::new();
    let mut good = Vec::new();
    for (n, text) in texts.iter().enumerate().filter_map(|(n, text)| Some((n, text.as_deref()?))) {
        match Address::parse(text) {
            Err(why) => findings.fault(&at.index(n), format!("{} {why}; allowed: host:port, where host is an IP address (v6 in brackets), localhost, or empty for all interfaces, and port is 1 to 65535", quote(text))),
            Ok(address) if !taken.insert(address) => {
                findings.fault(&at.index(n), format!("{} stands there more than once; allowed: each address once", quote(text)));
            }
            Ok(address) => good.push((n, address)),
        }
    }
    good
}
