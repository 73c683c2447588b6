//! What the engine trusts of a registry: the certificates in its `certs.d` folder, and whether it uses it without TLS. The agent
//! reaches a registry wherever the engine does, with the same settings.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_common::config::address::{is_in, is_this_machine};
use evenkeel_common::tls;
use futures_util::future::BoxFuture;
use url::Url;

use super::RegistryClient;
use super::connect::Tls;
use super::host::Host;
use super::transport::{Outgoing, is_other_origin, without_login};
use crate::model::RegistryError;
use crate::model::image::HUB;
use crate::model::text::describe_io_error;

/// Where engines look for certificates, by registry.
const FOLDERS: [&str; 2] = ["/etc/docker/certs.d", "/etc/containers/certs.d"];
/// Where those of a user look first, below the user's configuration.
const FOLDERS_OF_USER: [&str; 2] = ["docker/certs.d", "containers/certs.d"];

/// The registries that an engine uses without TLS, or with any certificate (`insecure-registries` of Docker).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Insecure {
    /// `host[:port]`, as in image references.
    pub names: Vec<String>,
    /// Networks as `address/bits`.
    pub networks: Vec<String>,
    /// URLs of the mirrors of Docker Hub that the engine asks first (`registry-mirrors` of Docker).
    pub mirrors: Vec<String>,
}

impl Insecure {
    /// Reports whether it includes a registry with this name, or at one of these addresses.
    fn includes(&self, name: &str, addresses: &[IpAddr]) -> bool {
        let is_inside = |network: &String| addresses.iter().any(|address| is_in(*address, network));
        self.names.iter().any(|known| known == name) || self.networks.iter().any(is_inside)
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
        let is_root = rustix::process::geteuid().is_root();
        let set = std::env::var_os("XDG_CONFIG_HOME").filter(|value| !value.is_empty());
        let of_home = || Some(std::env::home_dir()?.join(".config"));
        let of_user = set.map(PathBuf::from).or_else(of_home).filter(|_| !is_root);
        Self { folders: folders(of_user.as_deref()), insecure: None }
    }
}

/// Returns the folders in the order in which they are looked at. An agent that is not root has an engine of its user.
fn folders(of_user: Option<&Path>) -> Vec<PathBuf> {
    let own = of_user.into_iter().flat_map(|config| FOLDERS_OF_USER.map(|folder| config.join(folder)));
    own.chain(FOLDERS.map(PathBuf::from)).collect()
}

impl Trust {
    /// Returns the folder with the certificates for a registry, if there is one.
    fn folder(&self, name: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join(name)).find(|at| at.is_dir())
    }

    /// Returns when these certificates were last changed.
    pub(super) fn changed(&self, name: &str) -> Option<SystemTime> {
        let folder = self.folder(name)?;
        let files = std::fs::read_dir(&folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        files.chain([folder]).filter_map(|path| std::fs::metadata(path).ok()?.modified().ok()).max()
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

    /// Prepares the connections to a registry as the engine trusts it. Returns the base URL of its API, and whether that is known
    /// for good.
    pub(super) async fn trusted(&self, name: &str, base: Url) -> Result<(Url, bool), RegistryError> {
        if base.scheme() != "https" {
            return Ok((base, true));
        }
        // What was trusted stays so until a restart, if it is read again and can't be read now.
        let folder = self.trust.folder(name);
        if let Some(folder) = &folder {
            let tls = of_folder(folder).map_err(|why| RegistryError(format!("registry {name}: {why}")))?;
            self.transport.trust(&base, tls);
        }
        let is_insecure = self.is_insecure(name, &base).await;
        let Some(true) = is_insecure else { return Ok((base, is_insecure.is_some())) };
        // It may require the client certificate.
        if folder.is_some() && self.answers(&base).await {
            return Ok((base, true));
        }
        self.transport.trust(&base, Tls::unverified());
        // The engine tries TLS first, with any certificate.
        let mut plain = base.clone();
        let is_plain = plain.set_scheme("http").is_ok();
        if self.answers(&base).await {
            Ok((base, true))
        } else if is_plain && self.answers(&plain).await {
            // Its token service may have TLS, with any certificate.
            self.transport.trust(&plain, Tls::unverified());
            Ok((plain, true))
        } else {
            // With TLS, the error of a plain registry that hangs would be that it does not speak TLS.
            Ok((plain, false))
        }
    }

    /// Reports whether the engine uses a registry without TLS, or with any certificate; `None` while it can't be asked.
    async fn is_insecure(&self, name: &str, base: &Url) -> Option<bool> {
        if name.eq_ignore_ascii_case(&self.home_host) {
            return Some(false);
        }
        let host = base.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let literal = host.parse::<IpAddr>().ok();
        // As in Docker, whatever its list says.
        if is_this_machine(host) {
            return Some(true);
        }
        let Some(ask) = &self.trust.insecure else { return Some(false) };
        let insecure = ask().await?;
        let addresses = match literal {
            Some(address) => vec![address],
            None if insecure.networks.is_empty() => Vec::new(),
            None => self.transport.resolve(host).await,
        };
        Some(insecure.includes(name, &addresses))
    }

    /// Reads the certificates for a registry again after their files have changed: a client certificate may be renewed each day,
    /// and the registry answers all the same if it has expired.
    pub(super) async fn renew_certificates(&self, name: &str, host: &Host) {
        if !host.must_look_at_certificates() {
            return;
        }
        let changed = self.trust.changed(name);
        if host.has_certificates_of(changed) {
            return;
        }
        match Box::pin(self.trusted(name, host.base.clone())).await {
            Ok(_) => host.certificates_read(changed),
            // They may be incomplete at this moment.
            Err(error) => {
                tracing::warn!(%error, "the changed certificates can't be used, the earlier ones stay");
            }
        }
    }

    /// Returns the mirrors that the engine asks before this registry: there are some of Docker Hub only.
    pub(super) async fn mirrors(&self, name: &str) -> Vec<Arc<Host>> {
        let Some(ask) = self.trust.insecure.as_ref().filter(|_| name == HUB) else { return Vec::new() };
        let known = self.mirrors.lock().clone();
        if let Some(known) = known {
            for mirror in &known {
                let name = mirror.base.authority();
                if mirror.must_read_settings() {
                    // Its certificates at least; another address needs a restart.
                    let _ = Box::pin(self.trusted(name, mirror.base.clone())).await;
                } else {
                    self.renew_certificates(name, mirror).await;
                }
            }
            return known;
        }
        let Some(settings) = ask().await else { return Vec::new() };
        let mut hosts = Vec::new();
        for url in &settings.mirrors {
            let Some(url) = Url::parse(url).ok().and_then(without_login) else { continue };
            let name = url.authority().to_owned();
            let changed = self.trust.changed(&name);
            let base = match Box::pin(self.trusted(&name, url.clone())).await {
                Ok((base, true)) => base,
                Ok((_, false)) => url,
                Err(_) => continue,
            };
            let mirror = Host::of_mirror(base, self.concurrency);
            mirror.certificates_read(changed);
            hosts.push(Arc::new(mirror));
        }
        // Another request may have been faster; its back-off counts.
        self.mirrors.lock().get_or_insert(hosts).clone()
    }

    /// Reports whether a registry answers at this address. Without TLS, a server that has TLS, a proxy or a portal would answer as
    /// well, so only what a registry says counts.
    pub(super) async fn answers(&self, base: &Url) -> bool {
        let Ok(url) = base.join("/v2/") else { return false };
        let ask = Outgoing::get(url.clone(), "*/*");
        match self.transport.send("registry", ask).await {
            Ok(response) if base.scheme() == "http" => {
                matches!(response.status().as_u16(), 200 | 401 | 403 | 404)
                    && !is_other_origin(&url, &response)
            }
            outcome => outcome.is_ok(),
        }
    }
}

/// The TLS settings of a folder: CA certificates in `*.crt`, in addition to the system's, and a client certificate in `*.cert`
/// with its key in the `*.key` of the same name.
fn of_folder(folder: &Path) -> Result<Tls, String> {
    let failed =
        |path: &Path, error: &std::io::Error| format!("{}: {}", path.display(), describe_io_error(error));
    let entries = std::fs::read_dir(folder).map_err(|error| failed(folder, &error))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let of_kind =
        |kind: &'static str| files.iter().filter(move |path| path.extension().is_some_and(|end| end == kind));
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::server::WebPkiClientVerifier;
    use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
    use tokio_rustls::TlsAcceptor;

    use super::super::Credentials;
    use super::*;
    use crate::config::RegistryConfig;
    use crate::model::image::{Digest, Reference};
    use crate::ports::{Registry as _, Tags as _, Urgency};

    fn client() -> RegistryClient {
        let config = RegistryConfig {
            url: "http://registry.example".to_owned(),
            host: "registry.example".to_owned(),
            concurrency: 2,
            ..Default::default()
        };
        RegistryClient::new(&config, Arc::new(Credentials::new(None, String::new().into()))).unwrap()
    }

    /// A client of a registry with TLS that trusts what it finds in this folder.
    fn trusting(name: &str, certificates: &Path) -> RegistryClient {
        let config = RegistryConfig {
            url: format!("https://{name}"),
            host: name.to_owned(),
            concurrency: 2,
            ..Default::default()
        };
        let credentials = Arc::new(Credentials::new(None, String::new().into()));
        let mut client = RegistryClient::new(&config, credentials).unwrap();
        client.trust.folders = vec![certificates.to_owned()];
        client
    }

    fn pem(what: &str, der: &[u8]) -> String {
        let text = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, der);
        let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
        format!("-----BEGIN {what}-----\n{}\n-----END {what}-----\n", lines.join("\n"))
    }

    /// Accepts clients with this certificate only, which is also the server's own.
    fn demanding(own: &CertificateDer<'static>, key: Vec<u8>) -> TlsAcceptor {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(own.clone()).unwrap();
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build().unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![own.clone()], PrivateKeyDer::Pkcs8(key.into()))
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    fn found(digest: &Digest) -> String {
        format!("HTTP/1.1 200 OK\r\ndocker-content-digest: {digest}\r\ncontent-length: 0\r\n\r\n")
    }

    /// Answers requests at a port of this host until it is dropped.
    async fn serve(
        listener: tokio::net::TcpListener,
        acceptor: TlsAcceptor,
        answer: impl Fn(&str) -> String,
    ) {
        loop {
            let Ok((stream, _)) = listener.accept().await else { return };
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut head = [0; 4096];
            while let Ok(read @ 1..) = stream.read(&mut head).await {
                let answer = answer(&String::from_utf8_lossy(&head[..read]));
                if stream.write_all(answer.as_bytes()).await.is_err() || stream.flush().await.is_err() {
                    break;
                }
            }
        }
    }

    #[test]
    fn a_users_engine_has_the_certificates_in_the_users_configuration_first() {
        let config = tempfile::TempDir::new().unwrap();
        let trust = Trust { folders: folders(Some(config.path())), insecure: None };
        assert_eq!(trust.folder("registry.invalid"), None);
        for place in ["containers/certs.d/registry.invalid", "docker/certs.d/registry.invalid"] {
            let folder = config.path().join(place);
            std::fs::create_dir_all(&folder).unwrap();
            assert_eq!(trust.folder("registry.invalid"), Some(folder));
        }
        assert_eq!(folders(None), FOLDERS.map(PathBuf::from));
    }

    #[tokio::test]
    async fn certificates_in_the_engines_folder_are_used() {
        let folder = tempfile::TempDir::new().unwrap();
        // The server's own certificate is the CA of both sides.
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let acceptor = demanding(made.cert.der(), made.signing_key.serialize_der());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let digest = Digest::of(b"a manifest");
        let server = serve(listener, acceptor, |_| found(&digest));
        let asks = async {
            // A registry on this host that has TLS all the same.
            let name = format!("localhost:{port}");
            let client = || trusting(&name, folder.path());
            let image = Reference::parse(&format!("{name}/web:1")).unwrap();
            let earlier = client();
            let error = earlier.digest(&image, Urgency::Manual).await.unwrap_err().to_string();
            assert!(error.contains("certificate"), "{error}");

            let own = folder.path().join(&name);
            std::fs::create_dir(&own).unwrap();
            std::fs::write(own.join("ca.crt"), pem("CERTIFICATE", made.cert.der())).unwrap();
            std::fs::write(own.join("client.cert"), pem("CERTIFICATE", made.cert.der())).unwrap();
            let error = client().digest(&image, Urgency::Manual).await.unwrap_err().to_string();
            assert!(error.contains("client.key: does not exist"), "{error}");

            std::fs::write(own.join("client.key"), pem("PRIVATE KEY", &made.signing_key.serialize_der()))
                .unwrap();
            assert_eq!(client().digest(&image, Urgency::Manual).await.unwrap(), digest);
            // A client that could not reach the registry before looks at the folder again after a while.
            tokio::time::pause();
            tokio::time::advance(std::time::Duration::from_mins(1)).await;
            tokio::time::resume();
            assert_eq!(earlier.digest(&image, Urgency::Manual).await.unwrap(), digest);
            drop(earlier);
            std::fs::write(own.join("ca.crt"), "-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n")
                .unwrap();
            let error = client().digest(&image, Urgency::Manual).await.unwrap_err().to_string();
            assert!(error.contains(&name) && error.contains("a CA certificate"), "{error}");
        };
        tokio::select! {
            () = server => panic!("the server ended"),
            () = asks => {}
        }
    }

    #[tokio::test]
    async fn the_token_service_of_a_registry_and_what_it_redirects_to_are_trusted_like_it() {
        let folder = tempfile::TempDir::new().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let acceptor = || demanding(made.cert.der(), made.signing_key.serialize_der());
        let registry = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let other = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = format!("localhost:{}", registry.local_addr().unwrap().port());
        let elsewhere = format!("https://localhost:{}", other.local_addr().unwrap().port());
        let own = folder.path().join(&name);
        std::fs::create_dir(&own).unwrap();
        for (file, what, der) in [
            ("ca.crt", "CERTIFICATE", made.cert.der().to_vec()),
            ("client.cert", "CERTIFICATE", made.cert.der().to_vec()),
            ("client.key", "PRIVATE KEY", made.signing_key.serialize_der()),
        ] {
            std::fs::write(own.join(file), pem(what, &der)).unwrap();
        }
        let digest = Digest::of(b"a manifest");
        let end = "connection: close\r\ncontent-length:";
        let of_registry = |request: &str| {
            if request.contains("Bearer good") {
                return format!(
                    "HTTP/1.1 307 Temporary Redirect\r\nlocation: {elsewhere}/manifest\r\n{end} 0\r\n\r\n"
                );
            }
            let challenge = format!("www-authenticate: Bearer realm=\"{elsewhere}/token\",service=\"s\"");
            format!("HTTP/1.1 401 Unauthorized\r\n{challenge}\r\n{end} 0\r\n\r\n")
        };
        let of_other = |request: &str| {
            let token = r#"{"token":"good"}"#;
            if request.starts_with("GET /token") {
                return format!("HTTP/1.1 200 OK\r\n{end} {}\r\n\r\n{token}", token.len());
            }
            found(&digest)
        };
        let client = trusting(&name, folder.path());
        let image = Reference::parse(&format!("{name}/web:1")).unwrap();
        tokio::select! {
            () = serve(registry, acceptor(), of_registry) => panic!("the registry ended"),
            () = serve(other, acceptor(), of_other) => panic!("the other server ended"),
            found = client.digest(&image, Urgency::Manual) => assert_eq!(found.unwrap(), digest),
        }
    }

    #[tokio::test]
    async fn a_renewed_client_certificate_is_used_while_the_registry_answers() {
        let folder = tempfile::TempDir::new().unwrap();
        let certificate = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (made, other) = (certificate(), certificate());
        let acceptor = demanding(made.cert.der(), made.signing_key.serialize_der());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = format!("localhost:{}", listener.local_addr().unwrap().port());
        let digest = Digest::of(b"a manifest");
        let server = serve(listener, acceptor, |_| found(&digest));
        let own = folder.path().join(&name);
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("ca.crt"), pem("CERTIFICATE", made.cert.der())).unwrap();
        let renew = |cert: &[u8], key: &[u8], hour: u64| {
            let path = own.join("client.cert");
            std::fs::write(&path, pem("CERTIFICATE", cert)).unwrap();
            std::fs::write(own.join("client.key"), pem("PRIVATE KEY", key)).unwrap();
            // Later than the other files, in 2036.
            let later = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(2_100_000_000 + hour * 3600);
            std::fs::File::options().write(true).open(path).unwrap().set_modified(later).unwrap();
        };
        let client = trusting(&name, folder.path());
        let image = Reference::parse(&format!("{name}/web:1")).unwrap();
        let asks = async {
            for (hour, certified, is_accepted) in [(1, &made, true), (2, &other, false), (3, &made, true)] {
                renew(certified.cert.der(), &certified.signing_key.serialize_der(), hour);
                tokio::time::pause();
                tokio::time::advance(std::time::Duration::from_mins(1)).await;
                tokio::time::resume();
                let answer = client.digest(&image, Urgency::Manual).await;
                assert_eq!(answer.as_ref().ok(), Some(&digest).filter(|_| is_accepted), "{answer:?}");
            }
            // Files that can't be used change nothing.
            let broken = "-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n";
            std::fs::write(own.join("client.cert"), broken).unwrap();
            tokio::time::pause();
            tokio::time::advance(std::time::Duration::from_mins(1)).await;
            tokio::time::resume();
            assert_eq!(client.digest(&image, Urgency::Manual).await.unwrap(), digest);
        };
        tokio::select! {
            () = server => panic!("the server ended"),
            () = asks => {}
        }
    }

    #[tokio::test]
    async fn a_registry_that_the_engine_uses_without_tls_is_asked_without() {
        let server = wiremock::MockServer::start().await;
        let digest = Digest::of(b"a manifest");
        let answer =
            wiremock::ResponseTemplate::new(200).insert_header("docker-content-digest", digest.as_str());
        wiremock::Mock::given(wiremock::matchers::any()).respond_with(answer).mount(&server).await;
        // Connects to this host, and is no loopback address.
        let name = format!("0.0.0.0:{}", server.address().port());
        let image = Reference::parse(&format!("{name}/web:1")).unwrap();
        let error = client().digest(&image, Urgency::Manual).await;
        assert!(error.is_err(), "the engine would not reach it either: {error:?}");
        for (names, networks) in [(vec![name.clone()], vec![]), (vec![], vec!["0.0.0.0/32".to_owned()])] {
            let insecure = Insecure { names, networks, ..Insecure::default() };
            let ask: AskInsecure = Arc::new(move || {
                let insecure = insecure.clone();
                Box::pin(async move { Some(insecure) })
            });
            let client = client().with_engine(ask);
            assert_eq!(client.digest(&image, Urgency::Manual).await.unwrap(), digest);
        }
        let away: AskInsecure = Arc::new(|| Box::pin(async { None }));
        assert!(client().with_engine(away).digest(&image, Urgency::Manual).await.is_err());
    }

    /// Answers one request of each connection: `plain` before it has TLS, and then `good` with TLS and `refusal` without.
    async fn serve_either(
        listener: tokio::net::TcpListener,
        has_tls: &AtomicBool,
        (plain, good, refusal): (&str, &str, &str),
    ) {
        async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, text: &str) {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(text.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
        let acceptor = evenkeel_common::testing::self_signed("registry.example");
        while let Ok((stream, _)) = listener.accept().await {
            let mut first = [0];
            let _ = stream.peek(&mut first).await;
            // The first byte of a handshake.
            match (has_tls.load(Ordering::Relaxed), first == [0x16]) {
                (true, true) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        answer(stream, good).await;
                    }
                }
                (true, false) => answer(stream, refusal).await,
                (false, true) => {}
                (false, false) => answer(stream, plain).await,
            }
        }
    }

    #[tokio::test]
    async fn a_registry_that_gets_tls_is_asked_with_it() {
        let digest = Digest::of(b"a manifest");
        let good = found(&digest).replace("content-length", "connection: close\r\ncontent-length");
        let good = good.as_str();
        let unavailable = "HTTP/1.0 503 Service Unavailable\r\n\r\n";
        let (bad, unknown) = ("HTTP/1.0 400 Bad Request\r\n\r\n", "HTTP/1.0 404 Not Found\r\n\r\n");
        for (plain, refusal, is_registry) in
            [(good, bad, true), (good, unknown, true), (unavailable, bad, false)]
        {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let name = format!("0.0.0.0:{}", listener.local_addr().unwrap().port());
            let image = Reference::parse(&format!("{name}/web:1")).unwrap();
            let insecure = Insecure { names: vec![name], ..Insecure::default() };
            let client = client().with_engine(Arc::new(move || {
                let insecure = insecure.clone();
                Box::pin(async move { Some(insecure) })
            }));
            let has_tls = AtomicBool::new(false);
            let asks = async {
                let answer = client.digest(&image, Urgency::Manual).await;
                assert_eq!(answer.ok(), is_registry.then(|| digest.clone()));
                has_tls.store(true, Ordering::Relaxed);
                if is_registry {
                    client.digest(&image, Urgency::Manual).await.expect_err(refusal);
                    tokio::time::pause();
                    tokio::time::advance(std::time::Duration::from_mins(1)).await;
                    tokio::time::resume();
                }
                assert_eq!(client.digest(&image, Urgency::Manual).await.unwrap(), digest, "{plain}{refusal}");
            };
            tokio::select! {
                () = serve_either(listener, &has_tls, (plain, good, refusal)) => panic!("the server ended"),
                () = asks => {}
            }
        }
    }

    #[tokio::test]
    async fn a_registry_on_this_host_is_reached_with_and_without_tls() {
        let digest = Digest::of(b"a manifest");
        let plain = wiremock::MockServer::start().await;
        let answer =
            wiremock::ResponseTemplate::new(200).insert_header("docker-content-digest", digest.as_str());
        wiremock::Mock::given(wiremock::matchers::any()).respond_with(answer).mount(&plain).await;
        let image = |name: &str| Reference::parse(&format!("{name}/web:1")).unwrap();
        let address = plain.address().to_string();
        assert_eq!(client().digest(&image(&address), Urgency::Manual).await.unwrap(), digest);

        // One has a certificate that nobody knows, the other one requires a client certificate.
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let folder = tempfile::TempDir::new().unwrap();
        for (acceptor, has_folder) in [
            (evenkeel_common::testing::self_signed("localhost"), false),
            (demanding(made.cert.der(), made.signing_key.serialize_der()), true),
        ] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let name = format!("localhost:{}", listener.local_addr().unwrap().port());
            if has_folder {
                let own = folder.path().join(&name);
                std::fs::create_dir(&own).unwrap();
                let key = made.signing_key.serialize_der();
                std::fs::write(own.join("ca.crt"), pem("CERTIFICATE", made.cert.der())).unwrap();
                std::fs::write(own.join("client.cert"), pem("CERTIFICATE", made.cert.der())).unwrap();
                std::fs::write(own.join("client.key"), pem("PRIVATE KEY", &key)).unwrap();
            }
            let mut client = client();
            client.trust.folders = vec![folder.path().to_owned()];
            let image = image(&name);
            tokio::select! {
                () = serve(listener, acceptor, |_| found(&digest)) => panic!("the server ended"),
                found = client.digest(&image, Urgency::Manual) => assert_eq!(found.unwrap(), digest),
            }
        }
    }

    fn of_mirrors(mirrors: &[String], credentials: Credentials) -> RegistryClient {
        of_mirrors_and(("http://registry.example", "registry.example"), mirrors, credentials)
    }

    /// With this registry, at this address.
    fn of_mirrors_and(
        (home, home_host): (&str, &str),
        mirrors: &[String],
        credentials: Credentials,
    ) -> RegistryClient {
        let config = RegistryConfig {
            url: home.to_owned(),
            host: home_host.to_owned(),
            concurrency: 2,
            ..Default::default()
        };
        let client = RegistryClient::new(&config, Arc::new(credentials)).unwrap();
        let insecure = Insecure { mirrors: mirrors.to_vec(), ..Insecure::default() };
        client.with_engine(Arc::new(move || {
            let insecure = insecure.clone();
            Box::pin(async move { Some(insecure) })
        }))
    }

    /// Docker Hub itself can't be reached from a test.
    #[tokio::test]
    async fn images_of_docker_hub_are_asked_of_the_engines_mirrors_first() {
        use wiremock::matchers::{any, path};
        use wiremock::{Mock, MockServer, ResponseTemplate};
        let digest = Digest::of(b"a manifest");
        let found = || ResponseTemplate::new(200).insert_header("docker-content-digest", digest.as_str());
        let (empty, full) = (MockServer::start().await, MockServer::start().await);
        Mock::given(any()).respond_with(ResponseTemplate::new(404)).mount(&empty).await;
        Mock::given(path("/v2/library/nginx/manifests/1.27")).respond_with(found()).mount(&full).await;
        let client = of_mirrors(
            &[empty.uri(), format!("{}/", full.uri())],
            Credentials::new(None, String::new().into()),
        );
        let image = Reference::parse("docker.io/library/nginx:1.27").unwrap();
        assert_eq!(client.digest(&image, Urgency::Manual).await.unwrap(), digest);
        let asked = empty.received_requests().await.unwrap_or_default();
        assert!(
            asked.iter().any(|request| request.url.path().ends_with("/manifests/1.27")),
            "in their order"
        );
        // Other registries have no mirrors.
        let other = Reference::parse("127.0.0.1:1/nginx:1.27").unwrap();
        assert!(client.digest(&other, Urgency::Manual).await.is_err());
    }

    #[tokio::test]
    async fn before_a_mirrors_digest_is_acted_on_docker_hub_itself_is_asked() {
        use wiremock::matchers::any;
        use wiremock::{Mock, MockServer, ResponseTemplate};
        let (old, new) = (r#"{"schemaVersion":2,"was":"yesterday"}"#, r#"{"schemaVersion":2}"#);
        let (mirror, hub) = (MockServer::start().await, MockServer::start().await);
        for (server, manifest) in [(&mirror, old), (&hub, new)] {
            let found = ResponseTemplate::new(200).set_body_string(manifest);
            Mock::given(any()).respond_with(found).mount(server).await;
        }
        let none = || Credentials::new(None, String::new().into());
        let image = Reference::parse("docker.io/library/nginx:1.27").unwrap();
        let client = of_mirrors_and((&hub.uri(), HUB), &[mirror.uri()], none());
        assert_eq!(client.digest(&image, Urgency::Routine).await.unwrap(), Digest::of(old.as_bytes()));
        assert_eq!(client.digest_from_content(&image).await.unwrap(), Digest::of(new.as_bytes()));
        // Where only the mirror can be reached, its answer is all there is.
        let client = of_mirrors_and(("http://127.0.0.1:1", HUB), &[mirror.uri()], none());
        assert_eq!(client.digest_from_content(&image).await.unwrap(), Digest::of(old.as_bytes()));
    }

    #[tokio::test]
    async fn a_mirror_that_is_behind_costs_one_pull_and_docker_hub_counts_even_if_it_refuses_to_answer() {
        use wiremock::matchers::any;
        use wiremock::{Mock, MockServer, ResponseTemplate};
        let (old, new) = (r#"{"schemaVersion":2,"was":"yesterday"}"#, r#"{"schemaVersion":2}"#);
        let found = |manifest: &str| {
            let digest = Digest::of(manifest.as_bytes());
            let answer = ResponseTemplate::new(200).set_body_string(manifest);
            answer.insert_header("docker-content-digest", digest.as_str())
        };
        let (mirror, hub) = (MockServer::start().await, MockServer::start().await);
        Mock::given(any()).respond_with(found(old)).mount(&mirror).await;
        Mock::given(any()).respond_with(found(new)).mount(&hub).await;
        let none = Credentials::new(None, String::new().into());
        let client = of_mirrors_and((&hub.uri(), HUB), &[mirror.uri()], none);
        let image = Reference::parse("docker.io/library/nginx:1.27").unwrap();
        let (behind, current) = (Digest::of(old.as_bytes()), Digest::of(new.as_bytes()));
        assert_eq!(client.digest(&image, Urgency::Routine).await.unwrap(), behind);
        assert_eq!(client.digest_from_content(&image).await.unwrap(), current);
        for check in 2..4 {
            let answer = client.digest(&image, Urgency::Routine).await.unwrap();
            assert_eq!(answer, current, "check {check}, which confirms nothing that is known");
        }
        let asked = hub.received_requests().await.unwrap_or_default();
        assert_eq!(asked.iter().filter(|request| request.method.as_str() == "GET").count(), 1);

        hub.reset().await;
        let refuses = ResponseTemplate::new(429).insert_header("retry-after", "600");
        Mock::given(any()).respond_with(refuses).mount(&hub).await;
        for urgency in [Urgency::Routine, Urgency::Routine, Urgency::Manual] {
            assert_eq!(client.digest(&image, urgency).await.unwrap(), current);
            assert_eq!(client.digest_from_content(&image).await.unwrap(), current);
        }
        mirror.reset().await;
        Mock::given(any()).respond_with(found(new)).mount(&mirror).await;
        assert_eq!(client.digest(&image, Urgency::Routine).await.unwrap(), current);
        assert!(client.corrections.lock().is_empty(), "the mirror has caught up");
    }

    #[tokio::test]
    async fn a_mirrors_digest_is_not_acted_on_while_docker_hub_refuses_to_answer() {
        use wiremock::matchers::any;
        use wiremock::{Mock, MockServer, ResponseTemplate};
        let (mirror, hub) = (MockServer::start().await, MockServer::start().await);
        let found = ResponseTemplate::new(200).set_body_string(r#"{"schemaVersion":2}"#);
        Mock::given(any()).respond_with(found).mount(&mirror).await;
        let refuses = ResponseTemplate::new(429).insert_header("retry-after", "600");
        Mock::given(any()).respond_with(refuses).mount(&hub).await;
        let none = Credentials::new(None, String::new().into());
        let client = of_mirrors_and((&hub.uri(), HUB), &[mirror.uri()], none);
        let image = Reference::parse("docker.io/library/nginx:1.27").unwrap();
        for _ in 0..2 {
            let error = client.digest_from_content(&image).await.unwrap_err().to_string();
            assert!(error.contains("429"), "{error}");
        }
    }

    #[tokio::test]
    async fn where_only_a_mirror_can_be_reached_it_has_tags_and_configurations_as_well() {
        use serde_json::json;
        use wiremock::matchers::path;
        use wiremock::{Mock, MockServer, ResponseTemplate};
        let mirror = MockServer::start().await;
        let config = json!({"config": {"User": "999"}}).to_string();
        let blob = Digest::of(config.as_bytes());
        let manifest = json!({"schemaVersion": 2, "config": {"digest": blob}}).to_string();
        let digest = Digest::of(manifest.as_bytes());
        for (place, body) in [
            (format!("blobs/{blob}"), config),
            (format!("manifests/{digest}"), manifest),
            ("tags/list".to_owned(), json!({"tags": ["1.27", "1.28"]}).to_string()),
        ] {
            let found = ResponseTemplate::new(200).set_body_string(body);
            let place = path(format!("/v2/library/nginx/{place}"));
            Mock::given(place).respond_with(found).mount(&mirror).await;
        }
        let none = || Credentials::new(None, String::new().into());
        let repository = Reference::parse("docker.io/library/nginx:1.27").unwrap().repository;
        let client = of_mirrors_and(("http://127.0.0.1:1", HUB), &[mirror.uri()], none());
        let config = client.config(&repository, &digest, None).await.unwrap();
        assert_eq!(config.expect("it has one").user, "999");
        assert_eq!(client.tags(&repository, false).await.unwrap().len(), 2);
        let error = client.config(&repository, &Digest::of(b"another"), None).await.unwrap_err().to_string();
        assert!(error.contains("connection refused"), "{error}");
        // An answer of Docker Hub counts.
        let hub = MockServer::start().await;
        let client = of_mirrors_and((&hub.uri(), HUB), &[mirror.uri()], none());
        assert_eq!(client.config(&repository, &digest, None).await.unwrap(), None);
        assert!(client.tags(&repository, false).await.is_err());
    }

    #[tokio::test]
    async fn a_mirror_does_not_get_the_login_of_docker_hub() {
        use wiremock::matchers::any;
        use wiremock::{Mock, MockServer, ResponseTemplate};
        let mirror = MockServer::start().await;
        let asks = ResponseTemplate::new(401).insert_header("www-authenticate", "Basic realm=\"mirror\"");
        Mock::given(any()).respond_with(asks).mount(&mirror).await;
        let folder = tempfile::TempDir::new().unwrap();
        let logins = r#"{"auths": {"https://index.docker.io/v1/": {"auth": "aHViOnNlY3JldA=="}}}"#;
        std::fs::write(folder.path().join("config.json"), logins).unwrap();
        let credentials = Credentials::new(Some(folder.path().to_owned()), String::new().into());
        let client = of_mirrors(&[mirror.uri()], credentials);
        let repository = Reference::parse("docker.io/library/nginx:1").unwrap().repository;
        let host = client.mirrors(HUB).await.remove(0);
        assert_eq!(host.login(&repository), mirror.address().to_string());
        let image = Reference::parse("docker.io/library/nginx:1").unwrap();
        assert!(client.digest(&image, Urgency::Manual).await.is_err());
        let asked = mirror.received_requests().await.unwrap_or_default();
        assert!(!asked.is_empty() && asked.iter().all(|r| !r.headers.contains_key("authorization")));
    }
}
