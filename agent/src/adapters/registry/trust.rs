//! What the engine trusts of a registry: the certificates in its `certs.d` folder, and whether it uses it without TLS. The agent
//! reaches a registry wherever the engine does, with the same settings.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_common::tls;
use futures_util::future::BoxFuture;
use http::Method;
use url::Url;

use super::RegistryClient;
use super::connect::Tls;
use super::transport::Outgoing;
use crate::model::RegistryError;
use crate::model::text::describe_io_error;

/// Where engines look for certificates, by registry.
const FOLDERS: [&str; 2] = ["/etc/docker/certs.d", "/etc/containers/certs.d"];

/// The registries that an engine uses without TLS, or with any certificate (`insecure-registries` of Docker).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Insecure {
    /// `host[:port]`, as in image references.
    pub names: Vec<String>,
    /// Networks as `address/bits`.
    pub networks: Vec<String>,
}

impl Insecure {
    /// Reports whether it includes a registry with this name, or at one of these addresses.
    fn includes(&self, name: &str, addresses: &[IpAddr]) -> bool {
        let is_inside = |network: &String| addresses.iter().any(|address| is_in(*address, network));
        self.names.iter().any(|known| known == name) || self.networks.iter().any(is_inside)
    }
}

/// Reports whether an address is in a network such as `10.0.0.0/8`.
fn is_in(address: IpAddr, network: &str) -> bool {
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
        (IpAddr::V6(address), IpAddr::V6(base)) => prefix(address.to_bits(), 128) == prefix(base.to_bits(), 128),
        _ => false,
    }
}

/// Asks the engine; `None` while it can't be reached.
pub type AskInsecure = Arc<dyn Fn() -> BoxFuture<'static, Option<Insecure>> + Send + Sync>;

/// Where the settings of the engine are.
#[derive(Clone)]
pub(super) struct Trust {
    folders: Vec<PathBuf>,
    insecure: Option<AskInsecure>,
}

impl Default for Trust {
    fn default() -> Self {
        Self { folders: FOLDERS.map(PathBuf::from).to_vec(), insecure: None }
    }
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Trust")
    }
}

impl RegistryClient {
    /// Uses the engine's list of registries without TLS.
    #[must_use]
    pub fn with_engine(mut self, insecure: AskInsecure) -> Self {
        self.trust.insecure = Some(insecure);
        self
    }

    /// Looks for certificates in this folder instead of the engines' own.
    #[must_use]
    pub fn with_certificates_in(mut self, folder: PathBuf) -> Self {
        self.trust.folders = vec![folder];
        self
    }

    /// Prepares the connections to a registry as the engine trusts it. Returns the base URL of its API, and whether that is known
    /// for good.
    pub(super) async fn trusted(&self, name: &str, base: Url) -> Result<(Url, bool), RegistryError> {
        if base.scheme() != "https" {
            return Ok((base, true));
        }
        if let Some(folder) = self.trust.folders.iter().map(|folder| folder.join(name)).find(|at| at.is_dir()) {
            let tls = of_folder(&folder).map_err(|why| RegistryError(format!("registry {name}: {why}")))?;
            self.transport.trust(&base, tls);
        }
        let is_configured = name.eq_ignore_ascii_case(&self.home_host);
        let Some(ask) = self.trust.insecure.as_ref().filter(|_| !is_configured) else {
            return Ok((base, true));
        };
        let Some(insecure) = ask().await else { return Ok((base, false)) };
        let host = base.host_str().unwrap_or_default();
        let addresses = match host.trim_matches(['[', ']']).parse() {
            Ok(address) => vec![address],
            Err(_) if insecure.networks.is_empty() => Vec::new(),
            Err(_) => self.transport.resolve(host).await,
        };
        if !insecure.includes(name, &addresses) {
            return Ok((base, true));
        }
        self.transport.trust(&base, Tls::unverified());
        // The engine tries TLS first, with any certificate.
        let mut plain = base.clone();
        let is_plain = plain.set_scheme("http").is_ok();
        if self.answers(&base).await {
            Ok((base, true))
        } else if is_plain && self.answers(&plain).await {
            Ok((plain, true))
        } else {
            Ok((base, false))
        }
    }

    async fn answers(&self, base: &Url) -> bool {
        let Ok(url) = base.join("/v2/") else { return false };
        let ask = Outgoing { method: Method::GET, url, accept: "*/*", authorization: None, form: None };
        self.transport.send("registry", ask).await.is_ok()
    }
}

/// The TLS settings of a folder: CA certificates in `*.crt`, in addition to the system's, and a client certificate in `*.cert`
/// with its key in the `*.key` of the same name.
fn of_folder(folder: &Path) -> Result<Tls, String> {
    let failed = |path: &Path, error: &std::io::Error| format!("{}: {}", path.display(), describe_io_error(error));
    let entries = std::fs::read_dir(folder).map_err(|error| failed(folder, &error))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let of_kind = |kind: &'static str| files.iter().filter(move |path| path.extension().is_some_and(|end| end == kind));
    let read = |path: &Path| std::fs::read(path).map_err(|error| failed(path, &error));
    let mut authorities = Vec::new();
    for path in of_kind("crt") {
        authorities.extend(read(path)?);
        authorities.push(b'\n');
    }
    let client = match of_kind("cert").next() {
        Some(path) => Some((read(path)?, read(&path.with_extension("key"))?)),
        None => None,
    };
    let client = client.as_ref().map(|(chain, key)| (chain.as_slice(), key.as_slice()));
    let config = tls::client_config_with_files(&authorities, client);
    config.map(Tls::with).map_err(|why| format!("{}: {why}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
