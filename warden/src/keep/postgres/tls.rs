//! Adapts the program's TLS to the PostgreSQL client.

use std::fs;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use evenkeel_common::tls;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::{InvalidDnsNameError, ServerName};

use super::fault::Fault;
use crate::config::{StoreUrl, Verify};

/// Maximum size of a file of certificate authorities, in bytes.
const MAX_AUTHORITIES: u64 = 4 * 1024 * 1024;

/// Creates TLS connectors for hosts.
#[derive(Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Creates the TLS configuration for the URL. It reads files each time, because an authority may have been replaced, so
    /// this blocks.
    pub(super) fn of(url: &StoreUrl) -> Result<Self, Fault> {
        if url.config.get_ssl_mode() == SslMode::Disable {
            return Ok(Self(Arc::new(tls::client_config_without_roots())));
        }
        let roots = || match &url.authorities {
            None => Ok(tls::system_roots()),
            Some(path) => {
                let unusable = |why: &str| Fault::Refused(format!("the sslrootcert of store.url {why}"));
                let size =
                    fs::metadata(path).map_err(|error| unusable(&format!("cannot be read: {error}")))?;
                if size.len() > MAX_AUTHORITIES {
                    return Err(unusable("is too large"));
                }
                let pem = fs::read(path).map_err(|error| unusable(&format!("cannot be read: {error}")))?;
                tls::roots_of_pem(&pem).ok_or_else(|| unusable("contains no certificate in PEM format"))
            }
        };
        let config = match url.verify {
            Verify::Nothing => tls::unverified_client_config(),
            Verify::Chain => tls::client_config_for_any_name(roots()?).map_err(|error| {
                Fault::Refused(format!("the sslrootcert of store.url cannot be used: {error}"))
            })?,
            Verify::ChainAndName => tls::client_config_with_roots(roots()?),
        };
        Ok(Self(Arc::new(config)))
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Stream;
    type TlsConnect = Connect;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Connect> {
        // The client asks for this for every connection, also without a host name or TLS.
        Ok(Connect { config: self.0.clone(), name: ServerName::try_from(host.to_owned()) })
    }
}

/// A pending handshake.
pub(super) struct Connect {
    config: Arc<ClientConfig>,
    name: Result<ServerName<'static>, InvalidDnsNameError>,
}

impl TlsConnect<Socket> for Connect {
    type Stream = Stream;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Stream>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let name = self.name.map_err(io::Error::other)?;
            let stream = TlsConnector::from(self.config).connect(name, socket).await?;
            Ok(Stream(Box::new(stream)))
        })
    }
}

/// A connection with TLS.
pub(super) struct Stream(Box<tokio_rustls::client::TlsStream<Socket>>);

impl TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_without_a_host_name_is_prepared() {
        let mut tls = Tls(Arc::new(tls::client_config_without_roots()));
        for (host, is_name) in [("", false), ("db.example", true), ("10.0.0.1", true)] {
            let connect = tls.make_tls_connect(host).expect("it is only needed if there is TLS");
            assert_eq!(connect.name.is_ok(), is_name, "{host}");
        }
    }
}
