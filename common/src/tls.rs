//! TLS client configuration that works on every host: ring, and the CA certificates of the system or, if there are none,
//! Mozilla's.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{VerifierBuilderError, WantsClientCert, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme,
    WantsVerifier,
};
use tokio::time::Instant;

/// How often the system's CA certificates are loaded again at most.
const RELOAD: Duration = Duration::from_mins(1);

/// TLS settings for `reqwest::ClientBuilder::tls_backend_preconfigured`.
///
/// reqwest's own defaults refuse to build a client on a host without CA files, even for plain HTTP.
///
/// A client that was built earlier also trusts the CA certificates that the system has now.
pub fn client_config() -> ClientConfig {
    verified_by(System::new(system_roots)).with_no_client_auth()
}

/// The CA certificates of the system, or Mozilla's if there are none.
pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

/// The CA certificates in a PEM text; `None` if there are none.
pub fn roots_of_pem(pem: &[u8]) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).filter_map(Result::ok));
    (!roots.is_empty()).then_some(roots)
}

/// TLS settings that trust these CA certificates.
pub fn client_config_with_roots(roots: RootCertStore) -> ClientConfig {
    builder().with_root_certificates(roots).with_no_client_auth()
}

/// TLS settings that trust the certificates in a PEM text in addition to the system's CAs, with a client certificate and its key
/// in PEM, if any. Returns what is wrong with them otherwise.
pub fn client_config_with_files(
    authorities: &[u8],
    client: Option<(&[u8], &[u8])>,
) -> Result<ClientConfig, String> {
    let mut roots = system_roots();
    for certificate in CertificateDer::pem_slice_iter(authorities) {
        let certificate = certificate.map_err(|error| format!("a CA certificate can't be read: {error}"))?;
        roots.add(certificate).map_err(|error| format!("a CA certificate is not valid: {error}"))?;
    }
    let verifier =
        Lenient::of_roots(roots).map_err(|error| format!("the CA certificates can't be used: {error}"))?;
    let builder = verified_by(verifier);
    let Some((chain, key)) = client else { return Ok(builder.with_no_client_auth()) };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
    let chain = chain.map_err(|error| format!("the client certificate can't be read: {error}"))?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| format!("the client key can't be read: {error}"))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| format!("the client certificate is not valid: {error}"))
}

/// TLS settings that trust these CA certificates without verifying the host name (`sslmode=verify-ca`).
pub fn client_config_for_any_name(roots: RootCertStore) -> Result<ClientConfig, VerifierBuilderError> {
    let inner = verifier_of(roots.into())?;
    Ok(verified_by(Lenient { inner, exception: Exception::AnyName }).with_no_client_auth())
}

/// TLS settings that trust no certificate, for a client that only needs plain HTTP so far. Loading the CA certificates takes
/// time and memory.
pub fn client_config_without_roots() -> ClientConfig {
    builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth()
}

/// Returns why a server's certificate was refused, in words, if that is the cause of an error.
pub fn certificate_error(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let tls = error
            .downcast_ref::<rustls::Error>()
            .or_else(|| inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()));
        if let Some(rustls::Error::InvalidCertificate(refused)) = tls {
            return Some(describe(refused));
        }
        // `io::Error` does not return what it wraps as its source.
        cause = match inner {
            Some(inner) => Some(inner as &(dyn std::error::Error + 'static)),
            None => error.source(),
        };
    }
    None
}

/// Describes in words why a certificate was refused.
pub fn describe(refused: &CertificateError) -> String {
    let what = match refused {
        CertificateError::UnknownIssuer => {
            "it is not signed by an authority that this machine trusts (self-signed, or a private CA)"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet; is this machine's clock right?"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it was issued for another host name"
        }
        CertificateError::Revoked => "it was revoked",
        // ring has fewer algorithms than Go's TLS, and with it the engine.
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "its signature algorithm is not supported (SHA-1, or ECDSA with P-521 or SHA-512, for example); P-256 and \
             P-384 with SHA-256 or SHA-384, Ed25519, and RSA with SHA-2 are"
        }
        other if is_ca_of_a_server(other) => {
            "it is a CA's own certificate, which is not valid for a server (a self-signed one made without \
             basicConstraints=CA:FALSE)"
        }
        other => return other.to_string(),
    };
    what.to_owned()
}

/// Reports whether a server presented a CA's certificate. It has been verified up to this point: it is valid now.
fn is_ca_of_a_server(refused: &CertificateError) -> bool {
    refused.to_string().contains("CaUsedAsEndEntity")
}

/// TLS settings that accept any certificate, for `registry.insecure` (spec 2.9).
pub fn unverified_client_config() -> ClientConfig {
    verified_by(AnyCertificate(provider())).with_no_client_auth()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn builder() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions")
}

fn verified_by(verifier: impl ServerCertVerifier + 'static) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    builder().dangerous().with_custom_certificate_verifier(Arc::new(verifier))
}

fn verifier_of(roots: Arc<RootCertStore>) -> Result<Arc<WebPkiServerVerifier>, VerifierBuilderError> {
    WebPkiServerVerifier::builder_with_provider(roots, provider()).build()
}

/// Verifies with the system's CA certificates. They are loaded again when a certificate is refused: clients live for months,
/// and the system may trust another CA since.
#[derive(Debug)]
struct System {
    load: fn() -> RootCertStore,
    /// The verifier, and when its CA certificates were loaded.
    current: Mutex<(Arc<Lenient>, Instant)>,
}

impl System {
    fn new(load: fn() -> RootCertStore) -> Self {
        let verifier = Lenient::of_roots(load()).expect("there are Mozilla's CA certificates at least");
        Self { load, current: Mutex::new((Arc::new(verifier), Instant::now())) }
    }

    fn current(&self) -> Arc<Lenient> {
        self.current.lock().0.clone()
    }

    /// Loads the CA certificates again, unless they were loaded within the last minute.
    fn reloaded(&self) -> Option<Arc<Lenient>> {
        let mut current = self.current.lock();
        if current.1.elapsed() < RELOAD {
            return None;
        }
        current.1 = Instant::now();
        current.0 = Arc::new(Lenient::of_roots((self.load)()).ok()?);
        Some(current.0.clone())
    }
}

impl ServerCertVerifier for System {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verify =
            |verifier: &Lenient| verifier.verify_server_cert(certificate, intermediates, name, ocsp, now);
        let verified = verify(&self.current());
        if !matches!(verified, Err(rustls::Error::InvalidCertificate(_))) {
            return verified;
        }
        match self.reloaded() {
            Some(verifier) => verify(&verifier),
            None => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current().verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current().verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current().supported_verify_schemes()
    }
}

/// Verifies the certificate chain and the name, with an exception.
#[derive(Debug)]
struct Lenient {
    inner: Arc<WebPkiServerVerifier>,
    exception: Exception,
}

/// What is accepted although it is refused as a rule.
#[derive(Debug)]
enum Exception {
    /// A certificate that was issued for another name.
    AnyName,
    /// One of these, although it is a CA's certificate, if it was issued for the name: Docker's manual creates such a
    /// certificate for a registry, and engines, which are written in Go, accept it.
    Root(Arc<RootCertStore>),
}

impl Lenient {
    /// Trusts these CA certificates, which a server may also present itself.
    fn of_roots(roots: RootCertStore) -> Result<Self, VerifierBuilderError> {
        let roots = Arc::new(roots);
        Ok(Self { inner: verifier_of(roots.clone())?, exception: Exception::Root(roots) })
    }
}

/// Reports whether a certificate is one of the roots. One that constrains names is not: the name is not checked against them.
fn is_one_of(roots: &RootCertStore, certificate: &CertificateDer<'_>) -> bool {
    let mut own = RootCertStore::empty();
    let is_read = own.add(certificate.clone()).is_ok();
    is_read && own.roots.iter().all(|root| root.name_constraints.is_none() && roots.roots.contains(root))
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.inner.verify_server_cert(certificate, intermediates, name, ocsp, now);
        let Err(rustls::Error::InvalidCertificate(refused)) = &verified else { return verified };
        let is_other_name = matches!(
            refused,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        );
        match &self.exception {
            // The name is checked last, after the chain has been verified.
            Exception::AnyName if is_other_name => Ok(ServerCertVerified::assertion()),
            // Its dates have been verified, nothing after them.
            Exception::Root(roots) if is_ca_of_a_server(refused) => {
                if !is_one_of(roots, certificate) {
                    return Err(CertificateError::UnknownIssuer.into());
                }
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            _ => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mozillas() -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        roots
    }

    #[test]
    fn an_unsupported_algorithm_is_named_in_words() {
        for refused in [
            CertificateError::UnsupportedSignatureAlgorithmContext {
                signature_algorithm_id: vec![6, 8],
                supported_algorithms: Vec::new(),
            },
            CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
                signature_algorithm_id: vec![6, 8],
                public_key_algorithm_id: vec![6, 7],
            },
        ] {
            let text = describe(&refused);
            assert!(text.starts_with("its signature algorithm is not supported (SHA-1, or ECDSA"), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_ca_that_the_system_trusts_later_counts() {
        static TRUSTED: Mutex<Vec<CertificateDer<'static>>> = Mutex::new(Vec::new());
        fn load() -> RootCertStore {
            let mut roots = mozillas();
            roots.add_parsable_certificates(TRUSTED.lock().iter().cloned());
            roots
        }
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let name = ServerName::try_from("localhost").unwrap();
        let system = System::new(load);
        let is_trusted = || system.verify_server_cert(&certificate, &[], &name, &[], UnixTime::now()).is_ok();
        tokio::time::advance(RELOAD).await;
        assert!(!is_trusted());
        TRUSTED.lock().push(certificate.clone());
        assert!(!is_trusted(), "they are loaded at most once a minute");
        tokio::time::advance(RELOAD).await;
        assert!(is_trusted());
    }

    #[test]
    fn a_trusted_root_may_be_the_servers_own_certificate() {
        let made = || {
            let mut parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
            parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            parameters.not_after = rcgen::date_time_ymd(2090, 1, 1);
            let key = rcgen::KeyPair::generate().unwrap();
            parameters.self_signed(&key).unwrap().der().clone()
        };
        let (trusted, other) = (made(), made());
        let mut roots = mozillas();
        roots.add(trusted.clone()).unwrap();
        let verifier = Lenient::of_roots(roots).unwrap();
        let in_year =
            |year: u64| UnixTime::since_unix_epoch(Duration::from_secs((year - 1970) * 365 * 86_400));
        let refusal = |certificate: &CertificateDer<'_>, name: &str, year: u64| {
            let name = ServerName::try_from(name).unwrap();
            match verifier.verify_server_cert(certificate, &[], &name, &[], in_year(year)) {
                Ok(_) => None,
                Err(rustls::Error::InvalidCertificate(refused)) => Some(describe(&refused)),
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(refusal(&trusted, "localhost", 2030), None);
        for (certificate, name, year, why) in [
            (&other, "localhost", 2030, "not signed by an authority"),
            (&trusted, "other.example", 2030, "another host name"),
            (&trusted, "localhost", 2100, "expired"),
        ] {
            let refused = refusal(certificate, name, year).unwrap();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
