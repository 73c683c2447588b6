//! Registry client: resolves tags with one `HEAD` per image, or with `GET` and a hash if a registry requires it.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | requests: `HEAD`, login on demand, `GET` as fallback, wrong digest headers |
//! | [`transport`] | HTTP clients by trust, redirects |
//! | [`client`], [`connect`] | one HTTP exchange within its limits; connections, proxies |
//! | [`reach`] | which addresses a registry may redirect us to |
//! | [`challenge`], [`auth`], [`credentials`] | 401 challenges, tokens, logins |
//! | [`answer`] | parsing of responses |
//! | [`content`] | manifests, blobs and paginated lists |
//! | [`image_config`] | configurations of images |
//! | [`signature`] | signature verification with public keys |
//! | [`tags`] | the tags of a repository |
//! | [`host`] | one registry: its address, backoff and caches |
//! | [`backoff`] | backoff and concurrency per registry, backoff per image |
//! | [`fault`] | failures with stable texts |
//! | [`current`] | the client in use, replaced on reload |
//!
//! Every registry host has its own concurrency limit, backoff and caches, so that none can block another.

mod answer;
mod auth;
mod backoff;
mod challenge;
mod client;
mod connect;
mod content;
mod credentials;
mod current;
mod fault;
mod host;
mod image_config;
mod reach;
mod signature;
mod tags;
mod transport;
mod trust;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{Method, StatusCode};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;
use url::Url;

use self::auth::Access;
use self::challenge::Challenge;
use self::client::Response;
pub use self::credentials::{Credentials, Login};
pub use self::current::CurrentRegistry;
use self::fault::Fault;
use self::host::{Host, key};
use self::reach::Reach;
use self::transport::{Outgoing, Transport};
use self::trust::Trust;
pub use self::trust::{AskInsecure, Insecure};
use crate::config::RegistryConfig;
use crate::model::errors::NOT_IN_REGISTRY;
use crate::model::image::{Digest, HUB, Reference, Repository};
use crate::model::image_config::ImageConfig;
use crate::model::{Platform, RegistryError};
use crate::ports::meter::{DateSink, Meter};
use crate::ports::{Registry, Urgency};

/// All media types that a tag may point to. With a shorter list, registries convert the manifest, which changes its
/// digest, or return 404 (DOMAIN: seen with distribution 2.8).
const MANIFEST_TYPES: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json";

/// How long an image whose last request got no answer in time lets the others of its registry go first: longer than a cycle takes
/// to start all checks. Some repositories that hang would otherwise hold all slots first, each time.
const BEHIND: Duration = Duration::from_secs(2);

/// HTTP client for registries.
#[derive(Debug)]
pub struct RegistryClient {
    home: Url,
    home_host: String,
    concurrency: usize,
    transport: Transport,
    credentials: Arc<Credentials>,
    hosts: Mutex<HashMap<String, Arc<Host>>>,
    signed: signature::Remembered,
    configs: image_config::Configs,
    tag_lists: tags::Lists,
    trust: Trust,
    /// Mirrors of Docker Hub; `None` before the engine was asked.
    mirrors: Mutex<Option<Vec<Arc<Host>>>>,
    /// What a mirror said of an image ([`key`]), and what Docker Hub said instead.
    corrections: Mutex<HashMap<String, (Digest, Digest)>>,
}

impl RegistryClient {
    /// Creates a client without sending requests. Fails if `config.url` is not an http or https URL.
    pub fn new(config: &RegistryConfig, credentials: Arc<Credentials>) -> Result<Self, RegistryError> {
        let home = Url::parse(&config.url).ok().and_then(transport::without_login).ok_or_else(|| {
            RegistryError("registry.url is not an address of the form http://host:port".to_owned())
        })?;
        let transport = Transport::new(config.insecure.then_some(&home));
        Ok(Self {
            home,
            home_host: config.host.clone(),
            concurrency: config.concurrency,
            transport,
            credentials,
            hosts: Mutex::default(),
            signed: Mutex::default(),
            configs: image_config::Configs::default(),
            tag_lists: Mutex::default(),
            trust: Trust::default(),
            mirrors: Mutex::default(),
            corrections: Mutex::default(),
        })
    }

    /// Reports every request to `meter`.
    #[must_use]
    pub fn with_meter(mut self, meter: Meter) -> Self {
        self.transport.meter = meter;
        self
    }

    /// Passes the `Date` header of every response to `sink`.
    #[must_use]
    pub fn with_date_sink(mut self, sink: DateSink) -> Self {
        self.transport.dates = Some(sink);
        self
    }

    /// Follows no redirect or token request to these ports of this host: the agent's own API listens there.
    #[must_use]
    pub fn with_own_ports(mut self, own_ports: Vec<u16>) -> Self {
        self.transport.own_ports = own_ports;
        self
    }

    async fn host(&self, name: &str) -> Result<Arc<Host>, RegistryError> {
        let known = self.hosts.lock().get(name).cloned();
        if let Some(known) = known {
            if known.must_read_settings() {
                return self.read_again(name, known).await;
            }
            self.renew_certificates(name, &known).await;
            return Ok(known);
        }
        let changed = self.trust.changed(name);
        let (base, is_final) = Box::pin(self.trusted(name, self.base(name)?)).await?;
        let host = Arc::new(Host::new(base, self.concurrency));
        host.certificates_read(changed);
        if is_final {
            // Another request may have been faster; its back-off counts.
            return Ok(self.hosts.lock().entry(name.to_owned()).or_insert(host).clone());
        }
        Ok(host)
    }

    /// Reads again how the engine reaches a registry. Back-off and results stay unless it has another address now.
    async fn read_again(&self, name: &str, known: Arc<Host>) -> Result<Arc<Host>, RegistryError> {
        match Box::pin(self.trusted(name, self.base(name)?)).await {
            Ok((base, true)) if base != known.base => {
                // The names of a network that can't be resolved now look like others.
                if !self.answers(&base).await {
                    return Ok(known);
                }
                let host = Arc::new(Host::new(base, self.concurrency));
                self.hosts.lock().insert(name.to_owned(), host.clone());
                Ok(host)
            }
            Ok(_) => Ok(known),
            Err(error) => {
                known.settings_unread();
                Err(error)
            }
        }
    }

    /// Returns the API's base URL for a registry's name in references, with TLS unless `registry.url` says otherwise; see
    /// [`RegistryClient::trusted`].
    fn base(&self, name: &str) -> Result<Url, RegistryError> {
        if name.eq_ignore_ascii_case(&self.home_host) {
            return Ok(self.home.clone());
        }
        let authority = if name == HUB { "registry-1.docker.io" } else { name };
        Url::parse(&format!("https://{authority}"))
            .map_err(|_| RegistryError(format!("registry {name}: not a host name")))
    }

    /// Asks a registry, and if it gives no answer, its mirrors, which may be all that this network reaches.
    async fn ask_with_mirrors<T, F>(
        &self,
        repository: &Repository,
        ask: impl Fn(Arc<Host>) -> F,
    ) -> Result<T, RegistryError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let error = match self.host(&repository.host).await {
            Ok(host) => match host.gate.send(Urgency::Routine, || Box::pin(ask(host.clone()))).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(answer @ (Fault::Image(_) | Fault::Gone(_)))) => return Err(answer.into()),
                Ok(Err(fault)) => RegistryError::from(fault),
                Err(refusal) => refusal.error,
            },
            Err(error) => error,
        };
        for mirror in self.mirrors(&repository.host).await {
            let sent = mirror.gate.send(Urgency::Routine, || Box::pin(ask(mirror.clone())));
            if let Ok(Ok(answer)) = sent.await {
                return Ok(answer);
            }
        }
        Err(error)
    }

    async fn ask(&self, host: &Host, reference: &Reference) -> Result<Digest, Fault> {
        match self.head(host, reference).await? {
            Some(claimed) if !host.is_doubtful(reference) => Ok(claimed),
            claimed => {
                let manifest = self.get(host, reference).await?;
                // The header was wrong for a moment only, for example because of a push or a stale cache.
                if claimed.is_some_and(|claimed| claimed.is_of(&manifest)) {
                    host.doubtful.lock().remove(&key(reference));
                }
                Ok(Digest::of(&manifest))
            }
        }
    }

    /// Returns the digest header, or `None` if only the manifest itself can tell.
    async fn head(&self, host: &Host, reference: &Reference) -> Result<Option<Digest>, Fault> {
        let response = self.fetch(host, reference, Method::HEAD).await?;
        let status = response.status();
        if status == StatusCode::OK {
            return Ok(answer::claimed_digest(response.headers()));
        }
        if transport::may_reject_head(status) {
            return Ok(None);
        }
        Err(answer::refused(&reference.repository, &response))
    }

    /// Reports whether the manifest of this pinned reference exists.
    async fn serves(&self, host: &Host, pinned: &Reference) -> Result<bool, Fault> {
        let mut response = self.fetch(host, pinned, Method::HEAD).await?;
        // The status may be about the HEAD method, so ask again with GET.
        if transport::may_reject_head(response.status()) {
            response = self.fetch(host, pinned, Method::GET).await?;
        }
        match response.status() {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(answer::refused(&pinned.repository, &response)),
        }
    }

    async fn get(&self, host: &Host, reference: &Reference) -> Result<Vec<u8>, Fault> {
        let response = self.fetch(host, reference, Method::GET).await?;
        match response.status() {
            StatusCode::OK => answer::manifest(&format!("image {reference}"), response).await,
            StatusCode::NOT_FOUND => {
                let said = answer::message(&subject(&reference.repository), response).await;
                let what = match said.code.as_str() {
                    "MANIFEST_UNKNOWN" => "tag ",
                    "NAME_UNKNOWN" => "repository ",
                    _ => "",
                };
                if !said.text.is_empty() {
                    tracing::debug!(%reference, "the registry says: {}", said.text);
                }
                let text = format!("image {reference}: {what}{NOT_IN_REGISTRY}");
                // A repository that is hidden from this login looks the same.
                Err(if said.code == "NAME_UNKNOWN" { Fault::Image(text) } else { Fault::Gone(text) })
            }
            _ => Err(answer::refused(&reference.repository, &response)),
        }
    }

    /// Sends a manifest request.
    async fn fetch(&self, host: &Host, reference: &Reference, method: Method) -> Result<Response, Fault> {
        let wanted = Outgoing { method, ..Outgoing::get(host.manifest_url(reference)?, MANIFEST_TYPES) };
        self.exchange(host, &reference.repository, &wanted).await
    }

    /// Sends a request for a repository and logs in if the registry asks for it. A known authorization is sent right away,
    /// so that the steady state is a single request.
    async fn exchange(
        &self,
        host: &Host,
        repository: &Repository,
        wanted: &Outgoing,
    ) -> Result<Response, Fault> {
        let subject = subject(repository);
        let request = |access: Option<&Access>| Outgoing {
            authorization: access.map(|access| access.authorization.clone()),
            ..wanted.clone()
        };
        let (access, fresh) = match host.access(repository) {
            Some(access) if access.is_valid() => (Some(access), false),
            Some(stale) => (Some(self.reopen(host, repository, stale).await?), true),
            None => (None, false),
        };
        let response = self.transport.send(&subject, request(access.as_ref())).await;
        host.note_protocol(&response);
        let response = response?;
        let is_basic = |access: &&Access| access.challenge == Challenge::Basic;
        if response.status() == StatusCode::FORBIDDEN
            && let Some(access) = access.as_ref().filter(is_basic)
        {
            // Some registries (Amazon's) return 403 for an expired password. There may be a new one by now.
            let renewed = self.reopen(host, repository, access.clone()).await?;
            if renewed.authorization != access.authorization {
                return self.transport.send(&subject, request(Some(&renewed))).await;
            }
        }
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        if transport::is_other_origin(&wanted.url, &response) {
            return self.exchange_elsewhere(repository, wanted, &response).await;
        }
        host.forget(repository);
        let with_login = access.as_ref().is_some_and(|access| access.with_login);
        let Some(challenge) = Challenge::choose(response.headers()) else {
            return Err(Fault::Repository(format!(
                "{subject}: 401 unauthorized for {} (it asks for neither a Basic nor a Bearer login)",
                repository.path
            )));
        };
        // A fresh token for the same challenge was refused, so another one would be refused, too.
        if fresh && access.is_some_and(|access| access.challenge == challenge) {
            return Err(auth::unauthorized(repository, with_login));
        }
        let reach = self.transport.reach(&wanted.url, &response).await;
        let access = self.open(host, repository, challenge, reach).await?;
        let response = self.transport.send(&subject, request(Some(&access))).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            if transport::is_other_origin(&wanted.url, &response) {
                return self.exchange_elsewhere(repository, wanted, &response).await;
            }
            host.forget(repository);
            return Err(auth::unauthorized(repository, access.with_login));
        }
        Ok(response)
    }

    /// Sends a request to the other registry to which this one redirects, with a token that needs no login. The logins of this
    /// one are not for the other, and the other one's token is not for this one.
    async fn exchange_elsewhere(
        &self,
        repository: &Repository,
        wanted: &Outgoing,
        refusal: &Response,
    ) -> Result<Response, Fault> {
        let subject = subject(repository);
        let needs_login = || {
            Fault::Repository(format!(
                "{subject}: it redirects {} to another server, which requires a login",
                repository.path
            ))
        };
        let Some(challenge @ Challenge::Bearer { .. }) = Challenge::choose(refusal.headers()) else {
            return Err(needs_login());
        };
        let url = refusal.url();
        let reach = self.transport.reach(url, refusal).await;
        let target = auth::Target { base: url, registry: &wanted.url, reach, repository, login: None };
        let opened = auth::open(&self.transport, &self.credentials, &target, challenge).await;
        let opened = opened.map_err(|fault| match fault {
            Fault::Repository(_) => needs_login(),
            other => other.elsewhere(),
        })?;
        let request =
            Outgoing { url: url.clone(), authorization: Some(opened.authorization), ..wanted.clone() };
        let response = self.transport.send_for(&wanted.url, &subject, request, Some(reach)).await;
        let response = response.map_err(Fault::elsewhere)?;
        if response.status() == StatusCode::UNAUTHORIZED { Err(needs_login()) } else { Ok(response) }
    }

    /// Answers the same challenge again. If that fails, forgets it, as the registry may send another one next time.
    async fn reopen(&self, host: &Host, repository: &Repository, stale: Access) -> Result<Access, Fault> {
        let opened = self.open(host, repository, stale.challenge, stale.reach).await;
        if matches!(&opened, Err(Fault::Host(_) | Fault::Timeout(_) | Fault::Repository(_) | Fault::Image(_)))
        {
            host.forget(repository);
        }
        opened
    }

    async fn open(
        &self,
        host: &Host,
        repository: &Repository,
        challenge: Challenge,
        reach: Reach,
    ) -> Result<Access, Fault> {
        let login = Some(host.login(repository));
        let target = auth::Target { base: &host.base, registry: &host.base, reach, repository, login };
        let access = auth::open(&self.transport, &self.credentials, &target, challenge).await?;
        host.access.lock().insert(repository.path.clone(), access.clone());
        Ok(access)
    }

    /// Returns what Docker Hub says if a mirror repeats a digest that Docker Hub has contradicted. Otherwise each check would
    /// confirm the mirror's digest anew with `GET`, which counts as a pull, until Docker Hub refuses to answer.
    async fn corrected(&self, reference: &Reference, of_mirror: Digest, urgency: Urgency) -> Digest {
        let Some(last) = self.correction(reference, &of_mirror) else { return of_mirror };
        let said = Box::pin(self.digest_of_registry(reference, urgency)).await.unwrap_or(last);
        if said == of_mirror {
            self.corrections.lock().remove(&key(reference));
        }
        said
    }

    /// Returns what Docker Hub last said instead of this digest of a mirror, and forgets what concerns another one.
    fn correction(&self, reference: &Reference, of_mirror: &Digest) -> Option<Digest> {
        let image = key(reference);
        let mut corrections = self.corrections.lock();
        let (wrong, right) = corrections.get(&image)?;
        if wrong == of_mirror {
            return Some(right.clone());
        }
        corrections.remove(&image);
        None
    }

    fn note_correction(&self, reference: &Reference, of_mirror: Digest, of_registry: &Digest) {
        let mut corrections = self.corrections.lock();
        if of_mirror == *of_registry {
            corrections.remove(&key(reference));
        } else {
            corrections.insert(key(reference), (of_mirror, of_registry.clone()));
        }
    }

    /// Asks the registry itself, even if it has mirrors.
    async fn digest_of_registry(
        &self,
        reference: &Reference,
        urgency: Urgency,
    ) -> Result<Digest, RegistryError> {
        let host = self.host(&reference.repository.host).await?;
        let image = key(reference);
        if let Some(error) = host.results.backed_off(&image, urgency) {
            return Err(error);
        }
        if host.results.has_hung(&image) {
            tokio::time::sleep(BEHIND).await;
        }
        let asked_at = Instant::now();
        // Boxed only during the request: the future is large, and hundreds may wait for a slot.
        match host.gate.send(urgency, || Box::pin(self.ask(&host, reference))).await {
            Ok(outcome) => {
                host.results.record(image, asked_at, &outcome);
                Ok(outcome?)
            }
            Err(refusal) => {
                // If the registry was not asked about this image, its last answer still stands.
                let stands = !refusal.is_answer && urgency == Urgency::Routine;
                if let Some(last) = host.results.last(&image).filter(|_| stands) {
                    return last;
                }
                host.results.refused(image, &refusal.error);
                Err(refusal.error)
            }
        }
    }

    /// Reports whether a registry has asked for fewer requests, and has given no other answer since.
    fn is_limited(&self, name: &str) -> bool {
        let host = self.hosts.lock().get(name).cloned();
        host.is_some_and(|host| host.gate.is_limited())
    }

    /// Asks the registry itself, even if it has mirrors.
    async fn hashed_by_registry(&self, reference: &Reference) -> Result<Digest, RegistryError> {
        let host = self.host(&reference.repository.host).await?;
        Ok(host.gate.send(Urgency::Manual, || Box::pin(self.hash(&host, reference))).await??)
    }

    /// Returns the digest of the manifest's content, and remembers a wrong digest header.
    async fn hash(&self, host: &Host, reference: &Reference) -> Result<Digest, Fault> {
        let claimed = self.head(host, reference).await?;
        let manifest = self.get(host, reference).await?;
        let Some(claimed) = claimed.filter(|claimed| !claimed.is_of(&manifest)) else {
            return Ok(Digest::of(&manifest));
        };
        let digest = Digest::of(&manifest);
        // The tag may have moved between the two requests, so check that the header still has the wrong digest.
        if self.head(host, reference).await?.as_ref() == Some(&claimed) {
            host.doubtful.lock().insert(key(reference));
        }
        Ok(digest)
    }
}

#[async_trait]
impl Registry for RegistryClient {
    async fn digest(&self, reference: &Reference, urgency: Urgency) -> Result<Digest, RegistryError> {
        // A pinned reference names its content, so there is nothing to resolve.
        if let Some(pinned) = &reference.digest {
            return Ok(pinned.clone());
        }
        for mirror in self.mirrors(&reference.repository.host).await {
            let sent = mirror.gate.send(urgency, || Box::pin(self.ask(&mirror, reference)));
            if let Ok(Ok(digest)) = sent.await {
                return Ok(self.corrected(reference, digest, urgency).await);
            }
        }
        self.digest_of_registry(reference, urgency).await
    }

    async fn digest_from_content(&self, reference: &Reference) -> Result<Digest, RegistryError> {
        if let Some(pinned) = &reference.digest {
            return Ok(pinned.clone());
        }
        for mirror in self.mirrors(&reference.repository.host).await {
            let sent = mirror.gate.send(Urgency::Manual, || Box::pin(self.hash(&mirror, reference)));
            if let Ok(Ok(digest)) = sent.await {
                // A mirror may say what the tag was a day ago, and be older than what runs.
                let of_registry = match self.hashed_by_registry(reference).await {
                    Ok(of_registry) => of_registry,
                    Err(error) => {
                        return match self.correction(reference, &digest) {
                            Some(right) => Ok(right),
                            // It can be reached, and says later whether the mirror is right.
                            None if self.is_limited(&reference.repository.host) => Err(error),
                            None => Ok(digest),
                        };
                    }
                };
                self.note_correction(reference, digest, &of_registry);
                return Ok(of_registry);
            }
        }
        self.hashed_by_registry(reference).await
    }

    async fn has(&self, repository: &Repository, digest: &Digest) -> Result<bool, RegistryError> {
        let pinned = repository.pinned(digest);
        for mirror in self.mirrors(&repository.host).await {
            let sent = mirror.gate.send(Urgency::Routine, || Box::pin(self.serves(&mirror, &pinned)));
            if let Ok(Ok(true)) = sent.await {
                return Ok(true);
            }
        }
        let host = self.host(&repository.host).await?;
        Ok(host.gate.send(Urgency::Routine, || Box::pin(self.serves(&host, &pinned))).await??)
    }

    async fn config(
        &self,
        repository: &Repository,
        digest: &Digest,
        platform: Option<&Platform>,
    ) -> Result<Option<ImageConfig>, RegistryError> {
        Ok(self.image_config(repository, digest, platform).await?.map(|image| image.config))
    }

    async fn created(&self, reference: &Reference) -> Result<Option<Timestamp>, RegistryError> {
        let digest = self.digest(reference, Urgency::Routine).await?;
        let image = self.image_config(&reference.repository, &digest, None).await?;
        Ok(image.and_then(|image| image.created))
    }

    fn is_gone(&self, reference: &Reference) -> bool {
        let host = self.hosts.lock().get(&reference.repository.host).cloned();
        host.is_some_and(|host| host.results.is_gone(&key(reference)))
    }
}

/// The prefix of error texts about a registry.
fn subject(repository: &Repository) -> String {
    format!("registry {}", repository.host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(home: &str, home_host: &str) -> RegistryClient {
        let config =
            RegistryConfig { url: home.into(), host: home_host.into(), concurrency: 8, ..Default::default() };
        RegistryClient::new(&config, Arc::new(Credentials::new(None, String::new().into()))).unwrap()
    }

    #[test]
    fn every_registry_has_its_own_address() {
        let client = client("https://registry.lan:5000/mirror/", "registry.lan:5000");
        let address = |text: &str| {
            let reference = Reference::parse(text).unwrap();
            let base = client.base(&reference.repository.host).unwrap();
            let host = Host::new(base, 1);
            host.manifest_url(&reference).unwrap().to_string()
        };
        assert_eq!(address("registry.lan:5000/a/b:1"), "https://registry.lan:5000/mirror/v2/a/b/manifests/1");
        assert_eq!(address("nginx"), "https://registry-1.docker.io/v2/library/nginx/manifests/latest");
        assert_eq!(address("ghcr.io/a/b:1"), "https://ghcr.io/v2/a/b/manifests/1");
        assert_eq!(address("localhost:5001/x"), "https://localhost:5001/v2/x/manifests/latest");
        assert_eq!(address("127.1.2.3:80/x"), "https://127.1.2.3:80/v2/x/manifests/latest");
        assert_eq!(address("[::1]:5000/x"), "https://[::1]:5000/v2/x/manifests/latest");
        assert_eq!(address("registry.lan:5001/x"), "https://registry.lan:5001/v2/x/manifests/latest");
        assert_eq!(address("10.0.0.1:5000/x"), "https://10.0.0.1:5000/v2/x/manifests/latest");
    }

    #[test]
    fn an_invalid_registry_url_is_refused_without_being_shown() {
        for home in ["", "localhost:5000", "ftp://x", "u:secret@host"] {
            let config =
                RegistryConfig { url: home.into(), host: "x".into(), concurrency: 8, ..Default::default() };
            let credentials = Arc::new(Credentials::new(None, String::new().into()));
            let error = RegistryClient::new(&config, credentials).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
