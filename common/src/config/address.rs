//! `api.address`: the `host:port` strings to listen on (DECISIONS 2).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Findings, KeyPath, quote};

const NO_PORT: &str = "has no port from 1 to 65535";

/// Reports whether the host of a URL is this machine, which no proxy reaches.
pub fn is_this_machine(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Reports whether an address is in a network such as `10.0.0.0/8`.
pub fn is_in(address: IpAddr, network: &str) -> bool {
    let Some((base, bits)) = network.split_once('/') else { return false };
    let (Ok(base), Ok(bits)) = (base.parse::<IpAddr>(), bits.parse::<u32>()) else { return false };
    let prefix = |number: u128, width: u32| match width.checked_sub(bits) {
        // Shifting out all bits would overflow.
        Some(rest) if rest < 128 => number >> rest,
        Some(_) => 0,
        None => number,
    };
    match (address, base) {
        (IpAddr::V4(address), IpAddr::V4(base)) => {
            prefix(address.to_bits().into(), 32) == prefix(base.to_bits().into(), 32)
        }
        (IpAddr::V6(address), IpAddr::V6(base)) => {
            prefix(address.to_bits(), 128) == prefix(base.to_bits(), 128)
        }
        _ => false,
    }
}

/// A parsed listen address; different spellings of the same address compare equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    host: Host,
    port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Host {
    /// All interfaces, v4 and v6.
    All,
    /// Both loopback addresses.
    Localhost,
    /// One address.
    Ip(IpAddr),
}

impl Address {
    /// Reports whether the address is reachable from this machine only.
    pub fn is_loopback(self) -> bool {
        match self.host {
            Host::All => false,
            Host::Localhost => true,
            // ::ffff:127.0.0.1 is loopback too.
            Host::Ip(ip) => ip.to_canonical().is_loopback(),
        }
    }

    /// Reports whether binding one address conflicts with binding the other. `localhost` means both loopback addresses,
    /// and all interfaces means every address. Only the IPv4 and IPv6 wildcards can coexist.
    fn overlaps(self, other: Self) -> bool {
        let is_wildcard = |host: Host| match host {
            Host::All => true,
            Host::Localhost => false,
            Host::Ip(ip) => ip.is_unspecified(),
        };
        let ips = |host: Host| match host {
            Host::All => vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
            Host::Localhost => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            Host::Ip(ip) => vec![ip.to_canonical()],
        };
        let (ours, theirs) = (ips(self.host), ips(other.host));
        let covers = |wildcard: &[IpAddr], ips: &[IpAddr]| {
            wildcard.iter().any(|all| ips.iter().any(|ip| all.is_ipv6() || ip.is_ipv4()))
        };
        self.port == other.port
            && match (is_wildcard(self.host), is_wildcard(other.host)) {
                (true, false) => covers(&ours, &theirs),
                (false, true) => covers(&theirs, &ours),
                _ => ours.iter().any(|ip| theirs.contains(ip)),
            }
    }
}

/// Parses an entry, or returns why it is invalid.
pub fn parse(text: &str) -> Result<Address, &'static str> {
    match split(text)? {
        (_, 0) => Err(NO_PORT),
        (host, port) => Ok(Address { host, port }),
    }
}

/// Splits an address into its host and its port, which may be 0, or returns why it is invalid.
pub(crate) fn split(text: &str) -> Result<(Host, u16), &'static str> {
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
        Host::Ip(host.parse::<Ipv4Addr>().map_err(|_| "has an invalid host")?.into())
    };
    Ok((host, any_port(port).ok_or(NO_PORT)?))
}

/// Parses a port from 1 to 65535, written in digits only.
pub fn port(text: &str) -> Option<u16> {
    any_port(text).filter(|port| *port > 0)
}

/// The same, with 0 as well.
pub(crate) fn any_port(text: &str) -> Option<u16> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Returns the valid addresses of the array at `at`, with their indexes, and records a fault for each invalid entry.
/// If an address conflicts with an earlier one, it is dropped with a warning (DECISIONS 6).
pub fn check(texts: &[Option<String>], at: &KeyPath, findings: &mut Findings) -> Vec<(usize, Address)> {
    let mut good: Vec<(usize, Address)> = Vec::new();
    for (n, text) in texts.iter().enumerate().filter_map(|(n, text)| Some((n, text.as_deref()?))) {
        match parse(text) {
            Err(why) => findings.fault(&at.index(n), format!("{} {why}; allowed: host:port, where host is an IP address (v6 in brackets), localhost, or empty for all interfaces, and port is 1 to 65535", quote(text))),
            Ok(address) => match good.iter().find(|(_, other)| address.overlaps(*other)) {
                Some((first, _)) => {
                    let other = quote(texts[*first].as_deref().unwrap_or_default());
                    findings.warn(&at.index(n), format!("{} is ignored because it overlaps with {other}; allowed: each address once", quote(text)));
                }
                None => good.push((n, address)),
            },
        }
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_split_as_documented() {
        assert_eq!(split(":9090"), Ok((Host::All, 9090)));
        assert_eq!(split("LocalHost:1"), Ok((Host::Localhost, 1)));
        assert_eq!(split("127.0.0.1:65535").unwrap().1, 65535);
        assert!(matches!(split("[::1]:80"), Ok((Host::Ip(IpAddr::V6(_)), 80))));
        for bad in [
            "",
            "9090",
            "::1:80",
            "host:80",
            "1.2.3.4:",
            "1.2.3.4:+80",
            "1.2.3.4:65536",
            "[::1]",
            "[1.2.3.4]:1",
        ] {
            assert!(split(bad).is_err(), "{bad}");
        }
        assert_eq!(parse(":0"), Err(NO_PORT));
    }

    #[test]
    fn networks_include_addresses_by_their_prefix() {
        for (address, network, expected) in [
            ("10.1.2.3", "10.0.0.0/8", true),
            ("11.1.2.3", "10.0.0.0/8", false),
            ("10.0.0.1", "10.0.0.1/32", true),
            ("10.0.0.2", "10.0.0.1/32", false),
            ("8.8.8.8", "0.0.0.0/0", true),
            ("fd00::1", "fd00::/8", true),
            ("fe80::1", "fd00::/8", false),
            ("::1", "::/0", true),
            ("10.0.0.1", "fd00::/8", false),
            ("10.0.0.1", "10.0.0.0", false),
            ("10.0.0.1", "10.0.0.0/x", false),
        ] {
            assert_eq!(is_in(address.parse().unwrap(), network), expected, "{address} in {network}");
        }
    }
}
