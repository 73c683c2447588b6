//! HTTP exchanges with a registry or its token service: client selection, redirects, error texts.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_common::proxy::Proxies;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, LOCATION};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use url::Url;

use super::client::{Client, ExchangeError, Response};
use super::connect::{CONNECT_TIMEOUT, Connector, Tls};
use super::fault::{Fault, status_text};
use super::reach::{Lookup, Reach, Resolver, system_lookup};
use crate::ports::meter::{DateSink, Meter, RequestOutcome, server_time};

const MAX_REDIRECTS: usize = 5;

/// The HTTP clients by trust.
pub(super) struct Transport {
    /// For remote hosts: verifies certificates and uses the environment's proxies.
    remote: Client,
    /// For this host: never through a proxy, as in Docker.
    loopback: Client,
    /// For the host whose certificate is not verified (`registry.insecure`).
    unverified: Option<(String, Client)>,
    verified_config: Tls,
    /// Other settings for the origins that the engine trusts otherwise.
    special: Mutex<HashMap<(String, u16), (Tls, Client)>>,
    proxies: Arc<Proxies>,
    lookup: Lookup,
    /// Records requests.
    pub(super) meter: Meter,
    /// Receives `Date` headers.
    pub(super) dates: Option<DateSink>,
    /// Ports of this host to which no redirect or realm may point.
    pub(super) own_ports: Vec<u16>,
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Transport")
    }
}

/// A request before any redirect.
#[derive(Debug, Clone)]
pub(super) struct Outgoing {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) accept: &'static str,
    pub(super) authorization: Option<HeaderValue>,
    pub(super) form: Option<String>,
}

impl Outgoing {
    /// A `GET` without authorization.
    pub(super) fn get(url: Url, accept: &'static str) -> Self {
        Self { method: Method::GET, url, accept, authorization: None, form: None }
    }

    fn message(&self, subject: &str) -> Result<Request<Full<Bytes>>, Fault> {
        let mut message = Request::builder()
            .method(self.method.clone())
            .uri(self.url.as_str())
            .header(ACCEPT, self.accept)
            .header(ACCEPT_ENCODING, "identity");
        if let Some(authorization) = &self.authorization {
            message = message.header(AUTHORIZATION, authorization.clone());
        }
        if self.form.is_some() {
            message = message.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        }
        let body = Full::from(self.form.clone().unwrap_or_default());
        message
            .body(body)
            .map_err(|_| Fault::Image(format!("{subject}: its address is not valid for a request")))
    }
}

impl Transport {
    /// Creates the clients. The host of `unverified` may present any certificate.
    pub(super) fn new(unverified: Option<&Url>) -> Self {
        let verified = Tls::verified();
        let proxies = Arc::new(Proxies::from_env());
        let lookup = system_lookup();
        let client = |tls: &Tls, with_proxies: bool| {
            let resolver = Resolver { lookup: lookup.clone(), limit: None };
            Client::new(Connector::new(tls.clone(), resolver, with_proxies.then(|| proxies.clone())))
        };
        let unverified = unverified.map(|url| {
            let host = url.host_str().unwrap_or_default().to_owned();
            (host, client(&Tls::unverified(), !is_local(url)))
        });
        Self {
            remote: client(&verified, true),
            loopback: client(&verified, false),
            unverified,
            verified_config: verified,
            special: Mutex::default(),
            proxies,
            lookup,
            meter: Meter::default(),
            dates: None,
            own_ports: Vec::new(),
        }
    }

    /// Returns the client for a server that the registry has named, or for the registry itself.
    fn client(&self, registry: &Url, url: &Url) -> Client {
        if let Some((host, client)) = &self.unverified
            && url.host_str() == Some(host)
        {
            return client.clone();
        }
        match (self.special(url), self.special(registry)) {
            (Some((_, client)), _) => client,
            (None, Some((tls, _))) => self.new_client(tls, url, None),
            (None, None) if is_local(url) => self.loopback.clone(),
            (None, None) => self.remote.clone(),
        }
    }

    /// The settings for the origin of a URL, if the engine trusts it otherwise.
    fn special(&self, url: &Url) -> Option<(Tls, Client)> {
        let origin = origin(url)?;
        self.special.lock().get(&origin).cloned()
    }

    fn new_client(&self, tls: Tls, url: &Url, limit: Option<(String, Reach)>) -> Client {
        let resolver = Resolver { lookup: self.lookup.clone(), limit };
        let proxies = (!is_local(url)).then(|| self.proxies.clone());
        Client::new(Connector::new(tls, resolver, proxies))
    }

    /// Uses these settings for the origin of a URL.
    pub(super) fn trust(&self, url: &Url, tls: Tls) {
        let Some(origin) = origin(url) else { return };
        let client = self.new_client(tls.clone(), url, None);
        self.special.lock().insert(origin, (tls, client));
    }

    /// Returns the addresses of a host; none if its name does not resolve.
    pub(super) async fn resolve(&self, host: &str) -> Vec<IpAddr> {
        let found = tokio::time::timeout(CONNECT_TIMEOUT, (self.lookup)(host.to_owned())).await;
        found.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Creates a client for a URL that the registry or another server chose: it connects to no address of narrower scope than
    /// `limit`. It is used for a single request, as it has its own name resolution.
    fn guarded(&self, registry: &Url, subject: &str, url: &Url, limit: Reach) -> Result<Client, Fault> {
        if let Some(reach) = Reach::of_literal(url).filter(|reach| *reach > limit) {
            return Err(Fault::Image(format!("{subject}: it is at {}", reach.description())));
        }
        let host = url.host_str().unwrap_or_default();
        let config = match &self.unverified {
            Some((unverified, _)) if unverified == host => Tls::unverified(),
            _ => {
                let special = self.special(url).or_else(|| self.special(registry));
                special.map_or_else(|| self.verified_config.clone(), |(tls, _)| tls)
            }
        };
        Ok(self.new_client(config, url, Some((host.to_owned(), limit))))
    }

    /// Returns the scope of the registry at `url` that sent `response`. The connected address may be that of a proxy, which
    /// says nothing about the registry, so the name must also resolve to that scope.
    pub(super) async fn reach(&self, url: &Url, response: &Response) -> Reach {
        if let Some(reach) = Reach::of_literal(url) {
            return reach;
        }
        let connected = response.remote_addr().map_or(Reach::Public, |address| Reach::of(address.ip()));
        if connected == Reach::Public {
            return connected;
        }
        let found = self.resolve(url.host_str().unwrap_or_default()).await;
        let named = found.into_iter().map(Reach::of).max();
        connected.min(named.unwrap_or(Reach::Public))
    }

    /// Sends a request to a configured host and follows redirects; see [`send_within`](Self::send_within).
    pub(super) async fn send(&self, subject: &str, request: Outgoing) -> Result<Response, Fault> {
        self.send_within(subject, request, None).await
    }

    /// Sends a request and follows redirects of a `GET` or `HEAD`. The login is only for the first origin: it is dropped
    /// for good when a redirect leaves its scheme, host or port. No address of narrower scope than `limit`, or than the
    /// redirecting server, is contacted. Error texts start with `subject`.
    pub(super) async fn send_within(
        &self,
        subject: &str,
        request: Outgoing,
        limit: Option<Reach>,
    ) -> Result<Response, Fault> {
        let registry = request.url.clone();
        self.send_for(&registry, subject, request, limit).await
    }

    /// The same on behalf of a registry. As in the engine, its certificates also apply to its token service and to what it
    /// redirects to, including its client certificate.
    pub(super) async fn send_for(
        &self,
        registry: &Url,
        subject: &str,
        mut request: Outgoing,
        mut limit: Option<Reach>,
    ) -> Result<Response, Fault> {
        let first = request.url.origin();
        for _ in 0..=MAX_REDIRECTS {
            let exchanged = self.exchange(registry, subject, &request, limit).await;
            let is_elsewhere = request.url.origin() != first;
            let response = exchanged.map_err(|fault| if is_elsewhere { fault.elsewhere() } else { fault })?;
            let Some(next) = redirect(subject, &request, &response)? else {
                return Ok(response);
            };
            let reach = self.reach(&request.url, &response).await;
            limit = Some(limit.map_or(reach, |limit| limit.min(reach)));
            if next.origin() != request.url.origin() {
                request.authorization = None;
            }
            request.url = next;
        }
        Err(Fault::Image(format!("{subject}: more than {MAX_REDIRECTS} redirects")))
    }

    async fn exchange(
        &self,
        registry: &Url,
        subject: &str,
        request: &Outgoing,
        limit: Option<Reach>,
    ) -> Result<Response, Fault> {
        let is_own = request.url.port_or_known_default().is_some_and(|port| self.own_ports.contains(&port));
        // A server on this host may redirect to this host, but not to the agent's own API.
        let limit = limit.map(|limit| if is_own { limit.min(Reach::Link) } else { limit });
        let client = match limit {
            None | Some(Reach::Here) => self.client(registry, &request.url),
            Some(limit) => self.guarded(registry, subject, &request.url, limit)?,
        };
        let message = request.message(subject)?;
        let send = || client.send(&request.url, message.clone());
        let began = tokio::time::Instant::now();
        let outcome = match send().await {
            // The server may close a pooled connection just as it is reused.
            Err(error @ ExchangeError::Request(_)) if !error.is_connect() && request.form.is_none() => {
                send().await
            }
            outcome => outcome,
        };
        let ended = match &outcome {
            Ok(response) => RequestOutcome::of(response.status()),
            Err(_) => RequestOutcome::Unreachable,
        };
        self.meter.record(ended, began.elapsed());
        if let (Some(tell), Ok(response)) = (&self.dates, &outcome)
            && let Some(at) = server_time(response.headers())
        {
            tell(at);
        }
        outcome.map_err(|error| Fault::of(subject, &error))
    }
}

/// The host and port of a URL.
fn origin(url: &Url) -> Option<(String, u16)> {
    Some((url.host_str()?.to_owned(), url.port_or_known_default()?))
}

/// Returns the target of a redirect, or `None` for a final response.
fn redirect(subject: &str, request: &Outgoing, response: &Response) -> Result<Option<Url>, Fault> {
    let status = response.status();
    let moved = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
    if !moved || !matches!(request.method, Method::GET | Method::HEAD) {
        return Ok(None);
    }
    let refused = |why: &str| Fault::Image(format!("{subject}: {} {why}", status_text(status)));
    let next = response
        .headers()
        .get(LOCATION)
        .and_then(|location| location.to_str().ok())
        .and_then(|location| response.url().join(location).ok())
        .and_then(without_login)
        .ok_or_else(|| refused("without a usable Location"))?;
    if request.url.scheme() == "https" && next.scheme() != "https" {
        return Err(refused("to an address without TLS"));
    }
    Ok(Some(next))
}

/// Removes user name, password and fragment. Returns `None` unless the URL is http or https with a host.
pub(super) fn without_login(mut url: Url) -> Option<Url> {
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return None;
    }
    url.set_username("").ok()?;
    url.set_password(None).ok()?;
    url.set_fragment(None);
    Some(url)
}

/// Reports whether a URL is on this host or its link. Such hosts are never contacted through a proxy.
pub(super) fn is_local(url: &Url) -> bool {
    Reach::of_literal(url).is_some_and(|reach| reach >= Reach::Link)
}

/// Reports whether the response came from another origin than the requested one.
pub(super) fn is_other_origin(asked: &Url, response: &Response) -> bool {
    response.url().origin() != asked.origin()
}

/// Reports whether a status may be about the `HEAD` method and not about the image.
pub(super) fn may_reject_head(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn local_addresses_are_recognized() {
        for text in
            ["http://localhost:1/", "http://127.9.9.9/", "http://[::1]:5/", "http://[::ffff:127.0.0.1]/"]
        {
            assert!(is_local(&url(text)), "{text}");
        }
        for text in
            ["http://169.254.169.254/", "http://0.0.0.0/", "http://a.localhost./", "http://[fe80::1]/"]
        {
            assert!(is_local(&url(text)), "{text}");
        }
        for text in ["http://10.0.0.1/", "http://localhost.example/", "http://[2001:db8::1]/"] {
            assert!(!is_local(&url(text)), "{text}");
        }
    }

    /// A transport for which some names resolve to local addresses.
    fn with_names() -> Transport {
        let mut transport = Transport::new(None);
        transport.lookup = Arc::new(|name| {
            Box::pin(async move {
                Ok(match name.as_str() {
                    "inward.example" => vec!["127.0.0.1".parse().unwrap()],
                    "lan.example" => vec!["10.9.8.7".parse().unwrap()],
                    "mapped.example" => vec!["::ffff:127.0.0.1".parse().unwrap(), "::".parse().unwrap()],
                    _ => Vec::new(),
                })
            })
        });
        transport
    }

    fn get(to: &str) -> Outgoing {
        Outgoing::get(url(to), "*/*")
    }

    #[tokio::test]
    async fn a_redirect_reaches_no_address_of_narrower_scope_than_its_source() {
        let server = wiremock::MockServer::start().await;
        let port = server.address().port();
        let transport = with_names();
        let here = "an address of this host";
        for (host, limit, why) in [
            ("127.0.0.1", Reach::Public, here),
            ("[::ffff:127.0.0.1]", Reach::Private, here),
            ("[::ffff:0.0.0.0]", Reach::Private, here),
            ("localhost", Reach::Private, here),
            ("inward.example", Reach::Public, here),
            ("inward.example", Reach::Private, here),
            ("mapped.example", Reach::Private, here),
            ("lan.example", Reach::Public, "an address in a private network"),
        ] {
            let request = get(&format!("http://{host}:{port}/trigger"));
            let outcome = transport.send_within("registry r", request, Some(limit)).await;
            let text = match outcome {
                Err(Fault::Image(text) | Fault::Repository(text) | Fault::Host(text)) => text,
                other => panic!("{host}: {other:?}"),
            };
            assert!(text.starts_with("registry r: it") && text.ends_with(why), "{host}: {text}");
        }
        assert_eq!(server.received_requests().await.unwrap().len(), 0, "nothing was sent");
        // This host may redirect to itself.
        let near = transport.send_within("r", get(&server.uri()), Some(Reach::Here)).await.unwrap();
        assert_eq!(near.status(), StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn a_registry_on_this_host_cannot_redirect_to_the_agents_own_api() {
        let api = wiremock::MockServer::start().await;
        let mut transport = with_names();
        transport.own_ports = vec![api.address().port()];
        for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "inward.example"] {
            let request = get(&format!("http://{host}:{}/trigger", api.address().port()));
            let outcome = transport.send_within("registry r", request, Some(Reach::Here)).await;
            assert!(
                matches!(outcome, Err(Fault::Image(_) | Fault::Repository(_) | Fault::Host(_))),
                "{host}: {outcome:?}"
            );
        }
        assert_eq!(api.received_requests().await.unwrap().len(), 0, "nothing was sent");
        // But a registry may be configured there.
        transport.send("r", get(&api.uri())).await.unwrap();
    }

    #[tokio::test]
    async fn the_scope_of_a_registry_is_that_of_the_connected_address() {
        let server = wiremock::MockServer::start().await;
        let transport = with_names();
        let response = transport.send("r", get(&server.uri())).await.unwrap();
        for (name, reach) in [
            ("http://inward.example", Reach::Here),
            // The connection was to this host, so to a proxy on it.
            ("http://lan.example", Reach::Private),
            ("http://unknown.example", Reach::Public),
            ("http://8.8.8.8", Reach::Public),
        ] {
            assert_eq!(transport.reach(&url(name), &response).await, reach, "{name}");
        }
    }

    #[test]
    fn only_the_configured_host_may_present_any_certificate() {
        let transport = Transport::new(Some(&url("https://registry.lan:5000")));
        let unverified = |text| {
            let (_, client) = transport.unverified.as_ref().unwrap();
            transport.client(&url("https://other.lan"), &url(text)).is_same(client)
        };
        assert!(unverified("https://registry.lan:5000/v2/"));
        assert!(unverified("https://registry.lan:5001/token"));
        assert!(!unverified("https://other.lan:5000/v2/"));
        assert!(!unverified("https://registry.lan.evil.example/"));
        let local = url("http://localhost:5000/");
        assert!(transport.client(&local, &local).is_same(&transport.loopback));
        assert!(!transport.loopback.connector().has_proxies());
    }

    #[test]
    fn the_servers_that_a_registry_names_are_trusted_like_it_unless_they_have_settings_of_their_own() {
        let transport = Transport::new(None);
        let (registry, token) = (url("https://gitlab.lan:5050/"), url("https://gitlab.lan/jwt/auth"));
        transport.trust(&registry, Tls::unverified());
        let of_registry = transport.client(&registry, &registry);
        let guarded =
            |registry: &Url| transport.guarded(registry, "registry r", &token, Reach::Private).unwrap();
        assert!(transport.client(&registry, &token).is_same(&of_registry));
        assert!(guarded(&registry).is_same(&of_registry));
        let other = url("https://other.lan/");
        assert!(transport.client(&other, &token).is_same(&transport.remote));
        assert!(guarded(&other).is_same(&transport.remote));
        transport.trust(&token, Tls::unverified());
        assert!(!transport.client(&registry, &token).is_same(&of_registry));
        assert!(!guarded(&registry).is_same(&of_registry));
    }
}
