//! Host names: parsing `host[:port]`, and the names of this machine.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::config::address::any_port;

/// `host[:port]`, as in `Host`, and in `Origin` after the scheme.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) host: Host,
    pub(super) port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    Ip(IpAddr),
    /// Lower-case, without trailing dot.
    Name(String),
}

impl Authority {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']')?;
            let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) };
            (Host::Ip(host.parse::<Ipv6Addr>().ok()?.into()), port)
        } else {
            let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
            let name = name_of(host);
            let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            if name.is_empty() || name.ends_with('.') || !name.bytes().all(is_name_byte) {
                return None;
            }
            (name.parse::<Ipv4Addr>().map_or(Host::Name(name), |ip| Host::Ip(ip.into())), port)
        };
        let port = match port {
            None | Some("") => None,
            Some(port) => Some(any_port(port)?),
        };
        Some(Self { host, port })
    }
}

/// Normalizes a host name.
pub(super) fn name_of(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// Returns the names under which this machine is known: its host name, with and without domain, and with `.local` (mDNS).
pub(super) fn machine_names() -> BTreeSet<String> {
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    names(&node, &read("/etc/hosts"), &read("/etc/resolv.conf"))
}

/// The domain is that of the host name itself, of the names beside it in `/etc/hosts`, and the search domains, by which this
/// machine's own network completes the short name.
fn names(node: &str, hosts: &str, resolv: &str) -> BTreeSet<String> {
    let node = name_of(node);
    let short = node.split('.').next().unwrap_or_default().to_owned();
    if short.is_empty() || short == "localhost" {
        return BTreeSet::new();
    }
    let mut names = BTreeSet::from([format!("{short}.local"), short.clone(), node]);
    let fields = |line: &str| -> Vec<String> {
        line.split('#').next().unwrap_or_default().split_whitespace().map(name_of).collect()
    };
    for line in hosts.lines() {
        let listed = fields(line);
        let of_machine = listed.iter().skip(1).filter(|name| name.split('.').next() == Some(&short));
        names.extend(of_machine.cloned());
    }
    for line in resolv.lines() {
        if let [key, domains @ ..] = fields(line).as_slice()
            && (key == "search" || key == "domain")
        {
            // `search .` has no domain.
            names.extend(
                domains.iter().filter(|one| !one.is_empty()).map(|domain| format!("{short}.{domain}")),
            );
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_known_by_its_short_name_its_domain_and_mdns() {
        let of = |node, hosts, resolv| names(node, hosts, resolv).into_iter().collect::<Vec<_>>();
        assert_eq!(of("Box", "", ""), ["box", "box.local"]);
        assert_eq!(of("box.lan", "", ""), ["box", "box.lan", "box.local"]);
        assert_eq!(
            of(
                "box",
                "127.0.0.1 localhost\n127.0.1.1\tBox.fritz.box box # box.not\n10.0.0.9 boxer boxer.lan\n",
                ""
            ),
            ["box", "box.fritz.box", "box.local"]
        );
        assert_eq!(
            of(
                "box",
                "",
                "nameserver 1.1.1.1\nsearch lan. tail1.ts.net\noptions x\ndomain home\n# search evil\nsearch .\n"
            ),
            ["box", "box.home", "box.lan", "box.local", "box.tail1.ts.net"]
        );
        assert_eq!(of("localhost", "", "search evil.test"), [""; 0]);
        assert_eq!(of("", "", "search evil.test"), [""; 0]);
    }
}
