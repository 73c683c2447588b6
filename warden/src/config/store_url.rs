//! `store.url`: parses and validates a PostgreSQL URL. Its content is never shown, since it may contain a password.

use std::fmt;
use std::path::PathBuf;

use tokio_postgres::config::{ChannelBinding, Host, SslMode, TargetSessionAttrs};

/// Options of libpq that would silently have no effect.
const UNSUPPORTED: [&str; 12] = [
    "gssencmode",
    "krbsrvname",
    "passfile",
    "require_auth",
    "service",
    "sslcert",
    "sslcertmode",
    "sslcrl",
    "sslkey",
    "sslpassword",
    "ssl_min_protocol_version",
    "requirepeer",
];
/// The form of a valid URL.
const ALLOWED: &str = "postgres://user:password@host:5432/database, where special characters of the password are percent-encoded";
/// Connect timeout if the URL does not set one.
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// How the server's certificate is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verify {
    /// Not at all: this protects against passive eavesdroppers only.
    Nothing,
    /// It must be signed by one of the authorities.
    Chain,
    /// It must also match the host name.
    ChainAndName,
}

/// A valid URL.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    /// Hosts, user, password and options for the client.
    pub config: tokio_postgres::Config,
    /// What TLS verifies; [`SslMode`] in `config` determines whether TLS is used.
    pub verify: Verify,
    /// File with the certificate authorities; `None` for those of the system.
    pub authorities: Option<PathBuf>,
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreUrl(***)")
    }
}

impl StoreUrl {
    /// Parses a URL. The error says what is wrong and what is allowed. It repeats nothing of the text except the name of a
    /// known option.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !(text.starts_with("postgres://") || text.starts_with("postgresql://")) {
            return Err(format!("is not a PostgreSQL URL; allowed: {ALLOWED}"));
        }
        let (base, query) = text.split_once('?').unwrap_or((text, ""));
        let (mut mode, mut authorities) = (None, None);
        let mut rest = form_urlencoded::Serializer::new(String::new());
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*key {
                "sslmode" => mode = Some(value.into_owned()),
                "sslrootcert" => authorities = Some(value.into_owned()),
                name if UNSUPPORTED.contains(&name) => {
                    return Err(format!("has the option {name}, which is not supported; remove it"));
                }
                _ => {
                    rest.append_pair(&key, &value);
                }
            }
        }
        // The client's parser does not decode `+` as a space.
        let rest = rest.finish().replace('+', "%20");
        let text = if rest.is_empty() { base.to_owned() } else { format!("{base}?{rest}") };
        let mut config: tokio_postgres::Config = text
            .parse()
            .map_err(|_| format!("is not a PostgreSQL URL, or has an unknown option; allowed: {ALLOWED}"))?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(format!("names no host; allowed: {ALLOWED}"));
        }
        if config.get_user().is_none() {
            return Err(format!("names no user; allowed: {ALLOWED}"));
        }
        if config.get_channel_binding() == ChannelBinding::Require {
            return Err(
                "has channel_binding=require, which is not supported; use sslmode=verify-full".to_owned()
            );
        }
        let authorities = authorities.filter(|path| !path.is_empty() && path != "system");
        let (tls, verify) = tls(mode.as_deref(), authorities.is_some())?;
        let addresses = config.get_hostaddrs().to_vec();
        let is_socket = |host: &Host| matches!(host, Host::Unix(_));
        // As in libpq: there is no TLS on a Unix socket, whatever `sslmode` says.
        let is_local = addresses.is_empty() && config.get_hosts().iter().all(is_socket);
        config.ssl_mode(if is_local { SslMode::Disable } else { tls });
        // TLS needs a name, which may be an address.
        if config.get_hosts().is_empty() {
            for address in addresses {
                config.host(address.to_string());
            }
        }
        // If there are several hosts, use the one that accepts writes.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("evenkeel-warden");
        }
        Ok(Self { config, verify, authorities: authorities.map(PathBuf::from) })
    }
}

/// Maps `sslmode` as libpq does: without one, TLS is used if the server offers it, and with a file of authorities,
/// `require` verifies the chain.
fn tls(mode: Option<&str>, has_authorities: bool) -> Result<(SslMode, Verify), String> {
    Ok(match mode {
        Some("disable") => (SslMode::Disable, Verify::Nothing),
        None | Some("" | "prefer") => (SslMode::Prefer, Verify::Nothing),
        Some("require") if has_authorities => (SslMode::Require, Verify::Chain),
        Some("require") => (SslMode::Require, Verify::Nothing),
        Some("verify-ca") => (SslMode::Require, Verify::Chain),
        Some("verify-full") => (SslMode::Require, Verify::ChainAndName),
        Some(_) => {
            return Err("has an unknown sslmode; allowed: disable, prefer, require, verify-ca, verify-full"
                .to_owned());
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sslmode_and_its_authorities_are_honoured() {
        for (query, mode, verify, authorities) in [
            ("", SslMode::Prefer, Verify::Nothing, None),
            ("?sslmode=disable", SslMode::Disable, Verify::Nothing, None),
            ("?sslmode=prefer&application_name=a%20b", SslMode::Prefer, Verify::Nothing, None),
            ("?sslmode=require", SslMode::Require, Verify::Nothing, None),
            ("?sslmode=require&sslrootcert=/ca.pem", SslMode::Require, Verify::Chain, Some("/ca.pem")),
            ("?sslmode=verify-ca", SslMode::Require, Verify::Chain, None),
            ("?sslmode=verify-full&sslrootcert=system", SslMode::Require, Verify::ChainAndName, None),
            (
                "?sslrootcert=%2Fa%20b&sslmode=verify-full",
                SslMode::Require,
                Verify::ChainAndName,
                Some("/a b"),
            ),
        ] {
            let url = StoreUrl::parse(&format!("postgres://u:secret@h1:1,h2:2/d{query}")).unwrap();
            assert_eq!(url.config.get_ssl_mode(), mode, "{query}");
            assert_eq!(url.verify, verify, "{query}");
            assert_eq!(url.authorities, authorities.map(PathBuf::from), "{query}");
            assert!(!format!("{url:?}").contains("secret"));
        }
    }

    #[test]
    fn a_unix_socket_has_no_tls_and_an_address_alone_is_a_host() {
        let socket = "postgres://u@%2Fvar%2Frun%2Fpostgresql";
        for (text, mode) in [
            (format!("{socket}/d"), SslMode::Disable),
            (format!("{socket}/d?sslmode=require"), SslMode::Disable),
            ("postgres:///d?user=u&host=%2Frun".to_owned(), SslMode::Disable),
            (format!("{socket},h:5432/d?sslmode=require"), SslMode::Require),
            (format!("{socket}/d?sslmode=require&hostaddr=10.0.0.1"), SslMode::Require),
            ("postgres:///d?user=u&hostaddr=10.0.0.1".to_owned(), SslMode::Prefer),
        ] {
            assert_eq!(StoreUrl::parse(&text).unwrap().config.get_ssl_mode(), mode, "{text}");
        }
        let url = StoreUrl::parse("postgres:///d?user=u&hostaddr=10.0.0.1").unwrap();
        assert_eq!(url.config.get_hosts(), [Host::Tcp("10.0.0.1".to_owned())]);
    }

    #[test]
    fn errors_name_the_fault_and_do_not_repeat_the_url() {
        for (text, why) in [
            ("", "is not a PostgreSQL URL"),
            ("mysql://u:secret@h/d", "is not a PostgreSQL URL"),
            ("host=h user=u password=secret", "is not a PostgreSQL URL"),
            ("postgres://u:secret@h:99999/d", "is not a PostgreSQL URL"),
            ("postgres://u:se?secret@h/d", "is not a PostgreSQL URL"),
            ("postgres://u:secret@h/d?secret=1", "is not a PostgreSQL URL, or has an unknown option"),
            ("postgres:///d?user=u", "names no host"),
            ("postgres://h/d", "names no user"),
            ("postgres://u:secret@h/d?sslmode=secret", "has an unknown sslmode"),
            ("postgres://u:secret@h/d?sslkey=secret", "has the option sslkey, which is not supported"),
            ("postgres://u:secret@h/d?channel_binding=require", "has channel_binding=require"),
        ] {
            let error = StoreUrl::parse(text).unwrap_err();
            assert!(error.starts_with(why) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
