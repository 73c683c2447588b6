//! How far inside an address lies, and a name resolution that goes no further than is allowed: a registry must not make us
//! talk to this machine, its link or its network when it is outside of them itself.
//!
//! What is judged is the address that is connected to, not the name: names lead wherever their owner wants, and a second
//! look-up may lead elsewhere than the first. Behind a proxy the proxy connects, and it decides about names.

use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use tower_service::Service;
use url::Url;

/// How far inside an address lies; what is further inside is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    /// The internet.
    Public,
    /// A private network.
    Private,
    /// The link, where clouds keep their metadata services.
    Link,
    /// This machine.
    Here,
}

impl Reach {
    /// Of an address, whatever it is wrapped in.
    pub(super) fn of(ip: IpAddr) -> Self {
        let plain = match ip {
            IpAddr::V4(ip) => of_v4(ip),
            IpAddr::V6(ip) => embedded(ip).map_or(Self::Public, of_v4).max(of_v6(ip)),
        };
        if plain < Self::Here && is_own(ip) { Self::Here } else { plain }
    }

    /// Of the host of a URL, where it is an address or a name that means this machine. `Url` has turned all other
    /// spellings of an IPv4 address (`0x7f.1`, `2130706433`, `0177.1`) into the usual one.
    pub(super) fn of_literal(url: &Url) -> Option<Self> {
        let host = url.host_str().unwrap_or_default();
        let name = host.trim_end_matches('.');
        match host.trim_start_matches('[').trim_end_matches(']').parse() {
            Ok(ip) => Some(Self::of(ip)),
            Err(_) => (name == "localhost" || name.ends_with(".localhost")).then_some(Self::Here),
        }
    }

    /// Where such an address is, as the end of a sentence.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Public => "an address of the internet",
            Self::Private => "an address of a private network",
            Self::Link | Self::Here => "an address of this machine",
        }
    }
}

fn of_v4(ip: Ipv4Addr) -> Reach {
    match ip.octets() {
        [0 | 127, ..] => Reach::Here,
        [169, 254, ..] | [224..=239 | 255, ..] => Reach::Link,
        [10, ..]
        | [172, 16..=31, ..]
        | [192, 168, ..]
        | [100, 64..=127, ..]
        | [192, 0, 0, _]
        | [198, 18..=19, ..] => Reach::Private,
        _ => Reach::Public,
    }
}

fn of_v6(ip: Ipv6Addr) -> Reach {
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Reach::Here,
        [0xfe80..=0xfebf | 0xff00..=0xffff, ..] => Reach::Link,
        // Unique local, the site local of old, NAT64 of a network's own.
        [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] | [0x64, 0xff9b, 1, ..] => Reach::Private,
        _ => Reach::Public,
    }
}

/// The IPv4 address that an IPv6 address stands for: mapped, compatible, NAT64, 6to4.
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let two = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match ip.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => Some(two(high, low)),
        _ => None,
    }
}

/// Whether an address is one of this machine's own: then it is also where a connection to it comes from. No packet is
/// sent.
fn is_own(ip: IpAddr) -> bool {
    let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let from = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((ip, 9))?;
        Ok::<_, io::Error>(socket.local_addr()?.ip())
    };
    from().is_ok_and(|from| from == ip)
}

/// How names become addresses.
pub(super) type Lookup = Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// As the system does it.
pub(super) fn system_lookup() -> Lookup {
    Arc::new(|name| {
        Box::pin(async move {
            Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
        })
    })
}

/// Name resolution for connections.
#[derive(Clone)]
pub(super) struct Resolver {
    /// Who resolves.
    pub(super) lookup: Lookup,
    /// What this host leads to must not lie further inside than that. Another name is that of a proxy, which the user has
    /// chosen.
    pub(super) limit: Option<(String, Reach)>,
}

/// A name led further inside than its user may lead us.
#[derive(Debug, thiserror::Error)]
#[error("its name leads to {}", .0.words())]
pub(super) struct LeadsInside(Reach);

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let limit = match &self.limit {
            Some((host, limit)) if name.as_str().eq_ignore_ascii_case(host) => Some(*limit),
            _ => None,
        };
        let found = (self.lookup)(name.as_str().to_owned());
        Box::pin(async move {
            let found = found.await?;
            let is_allowed = |ip: &IpAddr| limit.is_none_or(|limit| Reach::of(*ip) <= limit);
            let allowed: Vec<SocketAddr> =
                found.iter().copied().filter(is_allowed).map(|ip| SocketAddr::new(ip, 0)).collect();
            match found.first() {
                Some(refused) if allowed.is_empty() => Err(LeadsInside(Reach::of(*refused)).into()),
                _ => Ok(allowed.into_iter()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_an_address_is_judged_by_what_it_means() {
        for (reach, hosts) in [
            (
                Reach::Here,
                "127.0.0.1 127.9.9.9 0.0.0.0 0 0x7f.1 2130706433 0177.0.0.1 127.1 [::1] [::] [::ffff:127.0.0.1] \
                 [::ffff:0.0.0.0] [::ffff:7f00:1] [::127.0.0.1] [64:ff9b::127.0.0.1] [64:ff9b::7f00:1] [2002:7f00:1::] \
                 [::ffff:0:127.0.0.1] localhost LOCALHOST localhost. a.localhost",
            ),
            (
                Reach::Link,
                "169.254.169.254 0xa9fea9fe [fe80::1] [::ffff:169.254.169.254] 224.0.0.1 255.255.255.255 [ff02::1]",
            ),
            (
                Reach::Private,
                "10.9.8.7 172.16.9.9 172.31.9.9 192.168.99.9 100.64.9.9 [fd12::9] [fec0::9] [::ffff:10.9.8.7] \
                 [64:ff9b::10.9.8.7] [64:ff9b:1::9] [2002:a09:807::]",
            ),
            (
                Reach::Public,
                "8.8.8.8 172.32.0.9 100.128.0.9 [2001:4860::8] [::ffff:8.8.8.8] [64:ff9b::8.8.8.8]",
            ),
        ] {
            for host in hosts.split_whitespace() {
                let url = Url::parse(&format!("http://{host}:9090/")).unwrap();
                assert_eq!(Reach::of_literal(&url), Some(reach), "{host}");
            }
        }
        for name in ["registry.example", "localhost.example", "notlocalhost"] {
            assert_eq!(Reach::of_literal(&Url::parse(&format!("http://{name}/")).unwrap()), None, "{name}");
        }
    }

    #[test]
    fn an_address_of_an_interface_is_this_machine() {
        let Ok(socket) = UdpSocket::bind("0.0.0.0:0") else { return };
        if socket.connect("192.0.2.1:9").is_ok() {
            let own = socket.local_addr().unwrap().ip();
            assert_eq!(Reach::of(own), Reach::Here, "{own}");
        }
    }
}
