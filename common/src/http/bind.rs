//! Listeners for the `host:port` strings of the configuration (DECISIONS 2).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpSocket};

use crate::config::address::{Host, split};

const BACKLOG: u32 = 1024;

/// Why a listener could not be created.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Not a valid address.
    #[error(
        "\"{0}\" is not a listen address (host:port; the host is an IP address, v6 in brackets, localhost, or empty)"
    )]
    Address(String),
    /// The system refused to bind or listen.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// The address as configured.
        address: String,
        /// The error of the system.
        cause: io::Error,
    },
}

/// Listens on all addresses, or fails without listening on any. An empty host (and `[::]`) means all interfaces, v4 and
/// v6; `localhost` means both loopback addresses, if they exist. One that the machine does not have yet, such as that of a VPN,
/// is answered as soon as it has it, unless it has none of them. Must be called inside the runtime.
pub fn bind(addresses: &[String]) -> Result<Vec<TcpListener>, BindError> {
    let mut listeners = Vec::new();
    let mut absent = Vec::new();
    for address in addresses {
        let fail = |cause| BindError::Listen { address: address.clone(), cause };
        let (host, port) = split(address).map_err(|_| BindError::Address(address.clone()))?;
        // If the v4 wildcard is configured separately, `[::]` must not cover v4 as well.
        let is_v4_separate = || {
            addresses.iter().any(|other| split(other) == Ok((Host::Ip(Ipv4Addr::UNSPECIFIED.into()), port)))
        };
        match host {
            Host::Localhost => {
                let four = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), true);
                // For port 0, use the port that the system chose for v4.
                let port =
                    four.as_ref().ok().and_then(|four| four.local_addr().ok()).map_or(port, |at| at.port());
                let six = listen(SocketAddr::from((Ipv6Addr::LOCALHOST, port)), true);
                match (four, six) {
                    (Ok(four), Ok(six)) => listeners.extend([four, six]),
                    (Ok(one), Err(error)) | (Err(error), Ok(one)) if is_absent(&error) => listeners.push(one),
                    (Err(cause), _) | (_, Err(cause)) => return Err(fail(cause)),
                }
            }
            Host::All => match listen(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), false) {
                Err(error) if is_absent(&error) => {
                    listeners
                        .push(listen(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), true).map_err(fail)?);
                }
                other => listeners.push(other.map_err(fail)?),
            },
            Host::Ip(ip) => {
                let only = ip != IpAddr::V6(Ipv6Addr::UNSPECIFIED) || is_v4_separate();
                match listen(SocketAddr::new(ip, port), only) {
                    Err(error) if is(&error, Errno::ADDRNOTAVAIL) => {
                        absent.push((SocketAddr::new(ip, port), fail(error)));
                    }
                    other => listeners.push(other.map_err(fail)?),
                }
            }
        }
    }
    for (address, error) in absent {
        let ahead = (!listeners.is_empty()).then(|| listen_ahead(address).ok()).flatten();
        let Some(ahead) = ahead else { return Err(error) };
        tracing::warn!("this machine does not have the address {address} yet: it is answered once it has");
        listeners.push(ahead);
    }
    Ok(listeners)
}

fn listen(address: SocketAddr, v6_only: bool) -> io::Result<TcpListener> {
    begin(socket(address, v6_only)?, address)
}

/// Listens on an address that the machine may get later.
fn listen_ahead(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket(address, true)?;
    if address.is_ipv4() {
        sockopt::set_ip_freebind(&socket, true)?;
    } else {
        sockopt::set_ipv6_freebind(&socket, true)?;
    }
    begin(socket, address)
}

fn socket(address: SocketAddr, v6_only: bool) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        let socket = TcpSocket::new_v6()?;
        sockopt::set_ipv6_v6only(&socket, v6_only)?;
        socket
    };
    // A restart must not have to wait for old connections in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    Ok(socket)
}

fn begin(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpListener> {
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Reports whether the machine lacks this protocol or address.
fn is_absent(error: &io::Error) -> bool {
    is(error, Errno::AFNOSUPPORT) || is(error, Errno::ADDRNOTAVAIL)
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    fn bind_one(address: &str) -> Result<Vec<TcpListener>, BindError> {
        bind(&[address.to_owned()])
    }

    #[tokio::test]
    async fn a_taken_port_is_an_error_that_names_the_address() {
        let first = bind_one("127.0.0.1:0").unwrap();
        let address = first[0].local_addr().unwrap().to_string();
        let error = bind_one(&address).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot listen on {address}: ")), "{error}");
        assert!(bind_one("example.org:80").unwrap_err().to_string().contains("\"example.org:80\""));
    }

    #[tokio::test]
    async fn an_address_that_the_machine_does_not_have_keeps_no_other_from_listening() {
        // Reserved for documentation (RFC 5737), and by RFC 3849.
        for absent in ["192.0.2.1:0", "[2001:db8::1]:0"] {
            let refused = bind_one(absent).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("cannot listen on {absent}: ")), "{refused}");
            let found = bind(&["127.0.0.1:0".to_owned(), absent.to_owned()]);
            if absent.starts_with('[') && bind_one("[::1]:0").is_err() {
                continue;
            }
            assert_eq!(found.unwrap().len(), 2, "{absent}");
        }
    }

    #[tokio::test]
    async fn all_interfaces_means_v4_and_v6() {
        for address in [":0", "[::]:0"] {
            let listeners = bind_one(address).unwrap();
            let port = listeners[0].local_addr().unwrap().port();
            TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            if listeners[0].local_addr().unwrap().is_ipv6() {
                TcpStream::connect(("::1", port)).await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn the_two_wildcards_can_stand_side_by_side() {
        let probe = bind_one("127.0.0.1:0").unwrap();
        let port = probe[0].local_addr().unwrap().port();
        drop(probe);
        let both = bind(&[format!("0.0.0.0:{port}"), format!("[::]:{port}")]);
        if let Err(BindError::Listen { cause, .. }) = &both {
            assert!(is_absent(cause), "{cause}");
        }
    }

    #[tokio::test]
    async fn localhost_means_the_loopbacks_that_exist_on_one_port() {
        let listeners = bind_one("localhost:0").unwrap();
        let ports: Vec<u16> =
            listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        assert!(ports.iter().all(|port| *port == ports[0]));
        assert!(listeners.iter().all(|listener| listener.local_addr().unwrap().ip().is_loopback()));
    }
}
