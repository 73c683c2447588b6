//! Classifies addresses by network scope, and limits name resolution accordingly: a registry outside of this host, its link
//! or its network must not make us connect to them (server-side request forgery).
//!
//! The check applies to the connected address, not to the name: the owner of a name controls its addresses, and a second
//! lookup may return another one. If a proxy is used, the proxy connects and resolves names.

use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use tower_service::Service;
use url::Url;

/// Scope of an address. Narrower scopes are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    /// The internet.
    Public,
    /// A private network.
    Private,
    /// The link, where clouds keep their metadata services.
    Link,
    /// This host.
    Here,
}

impl Reach {
    /// Classifies an address, including IPv4 addresses embedded in IPv6.
    pub(super) fn of(ip: IpAddr) -> Self {
        let plain = match ip {
            IpAddr::V4(ip) => of_v4(ip),
            IpAddr::V6(ip) => embedded(ip).map_or(Self::Public, of_v4).max(of_v6(ip)),
        };
        if plain < Self::Here && is_own(ip) { Self::Here } else { plain }
    }

    /// Classifies the host of a URL if it is an address or a name of the local host. `Url` has already normalized other
    /// forms of IPv4 addresses (`0x7f.1`, `2130706433`, `0177.1`).
    pub(super) fn of_literal(url: &Url) -> Option<Self> {
        let host = url.host_str().unwrap_or_default();
        let name = host.trim_end_matches('.');
        match host.trim_start_matches('[').trim_end_matches(']').parse() {
            Ok(ip) => Some(Self::of(ip)),
            Err(_) => (name == "localhost" || name.ends_with(".localhost")).then_some(Self::Here),
        }
    }

    /// Describes such an address, for use at the end of a sentence.
    pub(super) fn description(self) -> &'static str {
        match self {
            Self::Public => "a public address",
            Self::Private => "an address in a private network",
            Self::Link | Self::Here => "an address of this host",
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
        // Unique local, the deprecated site local, local-use NAT64.
        [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] | [0x64, 0xff9b, 1, ..] => Reach::Private,
        _ => Reach::Public,
    }
}

/// Returns the IPv4 address embedded in an IPv6 address: mapped, compatible, NAT64, 6to4.
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

/// Reports whether an address is one of this host's own. The source address of a connection to it is then the same
/// address. Sends no packet.
fn is_own(ip: IpAddr) -> bool {
    let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let from = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((ip, 9))?;
        Ok::<_, io::Error>(socket.local_addr()?.ip())
    };
    from().is_ok_and(|from| from == ip)
}

/// Resolves a name to addresses.
pub(super) type Lookup = Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// The system's resolver.
pub(super) fn system_lookup() -> Lookup {
    Arc::new(|name| {
        Box::pin(async move {
            Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
        })
    })
}

/// Name resolution with an optional limit.
#[derive(Clone)]
pub(super) struct Resolver {
    /// The underlying resolver.
    pub(super) lookup: Lookup,
    /// This host must not resolve to an address of narrower scope than this. Any other name is that of a proxy, which the
    /// user has configured.
    pub(super) limit: Option<(String, Reach)>,
}

/// A name resolved to an address of narrower scope than allowed.
#[derive(Debug, thiserror::Error)]
#[error("its name resolves to {}", .0.description())]
pub(super) struct ScopeError(Reach);

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
                Some(refused) if allowed.is_empty() => Err(ScopeError(Reach::of(*refused)).into()),
                _ => Ok(allowed.into_iter()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_address_is_classified_the_same() {
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
    fn an_address_of_an_interface_is_this_host() {
        let Ok(socket) = UdpSocket::bind("0.0.0.0:0") else { return };
        if socket.connect("192.0.2.1:9").is_ok() {
            let own = socket.local_addr().unwrap().ip();
            assert_eq!(Reach::of(own), Reach::Here, "{own}");
        }
    }
}
