//! One HTTP exchange with a registry or its token service: which client, which redirects, which words on failure.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, DATE, LOCATION};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use hyper_util::client::proxy::matcher::Matcher;
use jiff::fmt::rfc2822;
use url::Url;

use super::client::{Client, ExchangeError, Response};
use super::connect::{CONNECT_TIMEOUT, Connector, Tls};
use super::fault::{Fault, status_words, transport_words};
use super::reach::{Lookup, Reach, Resolver, system_lookup};
use crate::ports::meter::{DateSink, Meter, RequestOutcome};

const MOST_REDIRECTS: usize = 5;

/// The clients, by what may be trusted.
pub(super) struct Transport {
    /// The world: certificates verified, proxies of the environment used.
    remote: Client,
    /// This machine: as Docker does, never through a proxy.
    loopback: Client,
    /// The one host whose certificate is not verified (`registry.insecure`).
    unverified: Option<(String, Client)>,
    verified_config: Tls,
    proxies: Arc<Matcher>,
    lookup: Lookup,
    /// Who counts.
    pub(super) meter: Meter,
    /// Who compares clocks.
    pub(super) dates: Option<DateSink>,
    /// Ports of this machine to which nobody leads us.
    pub(super) own_ports: Vec<u16>,
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Transport")
    }
}

/// A request as it goes to its first address.
#[derive(Debug, Clone)]
pub(super) struct Outgoing {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) accept: &'static str,
    pub(super) authorization: Option<HeaderValue>,
    pub(super) form: Option<String>,
}

impl Outgoing {
    fn message(&self, whose: &str) -> Result<Request<Full<Bytes>>, Fault> {
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
        message.body(body).map_err(|_| Fault::Image(format!("{whose}: its address cannot be asked")))
    }
}

impl Transport {
    /// `unverified` is an address whose host may show any certificate.
    pub(super) fn new(unverified: Option<&Url>) -> Self {
        let verified = Tls::verified();
        let proxies = Arc::new(Matcher::from_env());
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
            proxies,
            lookup,
            meter: Meter::default(),
            dates: None,
            own_ports: Vec::new(),
        }
    }

    fn client(&self, url: &Url) -> &Client {
        match &self.unverified {
            Some((host, client)) if url.host_str() == Some(host) => client,
            _ if is_local(url) => &self.loopback,
            _ => &self.remote,
        }
    }

    /// A client for a request to which somebody else has led us: it connects to nothing further inside than `limit`. It
    /// serves that one request, for its name resolution is its own.
    fn guarded(&self, whose: &str, url: &Url, limit: Reach) -> Result<Client, Fault> {
        if let Some(reach) = Reach::of_literal(url).filter(|reach| *reach > limit) {
            return Err(Fault::Image(format!("{whose}: it leads to {}", reach.words())));
        }
        let host = url.host_str().unwrap_or_default();
        let config = match &self.unverified {
            Some((unverified, _)) if unverified == host => Tls::unverified(),
            _ => self.verified_config.clone(),
        };
        let resolver = Resolver { lookup: self.lookup.clone(), limit: Some((host.to_owned(), limit)) };
        let proxies = (!is_local(url)).then(|| self.proxies.clone());
        Ok(Client::new(Connector::new(config, resolver, proxies)))
    }

    /// How far inside the registry at `url` is that sent `response`. Where a proxy has connected, its own address tells
    /// nothing about the registry, so the name must lead as far inside, too.
    pub(super) async fn reach(&self, url: &Url, response: &Response) -> Reach {
        if let Some(reach) = Reach::of_literal(url) {
            return reach;
        }
        let connected = response.remote_addr().map_or(Reach::Public, |address| Reach::of(address.ip()));
        if connected == Reach::Public {
            return connected;
        }
        let found = (self.lookup)(url.host_str().unwrap_or_default().to_owned());
        let found = tokio::time::timeout(CONNECT_TIMEOUT, found).await;
        let named = found.ok().and_then(Result::ok).unwrap_or_default().into_iter().map(Reach::of).max();
        connected.min(named.unwrap_or(Reach::Public))
    }

    /// Sends a request of our own and follows redirects; see [`send_within`](Self::send_within).
    pub(super) async fn send(&self, whose: &str, request: Outgoing) -> Result<Response, Fault> {
        self.send_within(whose, request, None).await
    }

    /// Sends a request and follows redirects of a `GET` or `HEAD`. The login is for the first address only: it
    /// is dropped for good when a redirect leaves its scheme, host or port. Nothing is asked that lies further inside
    /// than `limit`, or than who redirects. `whose` begins error texts.
    pub(super) async fn send_within(
        &self,
        whose: &str,
        mut request: Outgoing,
        mut limit: Option<Reach>,
    ) -> Result<Response, Fault> {
        for _ in 0..=MOST_REDIRECTS {
            let response = self.exchange(whose, &request, limit).await?;
            let Some(next) = redirect(whose, &request, &response)? else {
                return Ok(response);
            };
            let reach = self.reach(&request.url, &response).await;
            limit = Some(limit.map_or(reach, |limit| limit.min(reach)));
            if next.origin() != request.url.origin() {
                request.authorization = None;
            }
            request.url = next;
        }
        Err(Fault::Image(format!("{whose}: more than {MOST_REDIRECTS} redirects")))
    }

    async fn exchange(
        &self,
        whose: &str,
        request: &Outgoing,
        limit: Option<Reach>,
    ) -> Result<Response, Fault> {
        let is_own = request.url.port_or_known_default().is_some_and(|port| self.own_ports.contains(&port));
        // What is on this machine may lead to what is on this machine, but not to the agent's own API.
        let limit = limit.map(|limit| if is_own { limit.min(Reach::Link) } else { limit });
        let client = match limit {
            None | Some(Reach::Here) => self.client(&request.url).clone(),
            Some(limit) => self.guarded(whose, &request.url, limit)?,
        };
        let message = request.message(whose)?;
        let send = || client.send(&request.url, message.clone());
        let began = tokio::time::Instant::now();
        let outcome = match send().await {
            // A kept connection may be closed by the other side just as it is used again.
            Err(error @ ExchangeError::Request(_)) if !error.is_connect() && request.form.is_none() => {
                send().await
            }
            outcome => outcome,
        };
        let ended = match &outcome {
            Ok(response) => RequestOutcome::of(response.status()),
            Err(_) => RequestOutcome::Unreachable,
        };
        self.meter.tell(ended, began.elapsed());
        if let (Some(tell), Ok(response)) = (&self.dates, &outcome)
            && let Some(date) = response.headers().get(DATE).and_then(|date| date.to_str().ok())
            && let Ok(date) = rfc2822::parse(date)
        {
            tell(date.timestamp());
        }
        outcome.map_err(|error| Fault::Host(format!("{whose}: {}", transport_words(&error))))
    }
}

/// Where a response sends us on to; `None` when it is the final one.
fn redirect(whose: &str, request: &Outgoing, response: &Response) -> Result<Option<Url>, Fault> {
    let status = response.status();
    let moved = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
    if !moved || !matches!(request.method, Method::GET | Method::HEAD) {
        return Ok(None);
    }
    let refused = |why: &str| Fault::Image(format!("{whose}: {} {why}", status_words(status)));
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

/// The address without user name, password and fragment; `None` unless it is http or https with a host.
pub(super) fn without_login(mut url: Url) -> Option<Url> {
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return None;
    }
    url.set_username("").ok()?;
    url.set_password(None).ok()?;
    url.set_fragment(None);
    Some(url)
}

/// Whether an address is on this machine or its link: such are never asked through a proxy.
pub(super) fn is_local(url: &Url) -> bool {
    Reach::of_literal(url).is_some_and(|reach| reach >= Reach::Link)
}

/// Whether the response came from another origin than the one that was asked.
pub(super) fn is_foreign(asked: &Url, response: &Response) -> bool {
    response.url().origin() != asked.origin()
}

/// Whether a status says that the `HEAD` method, not the image, is the trouble.
pub(super) fn dislikes_head(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn addresses_of_this_machine_are_known_as_such() {
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

    /// A transport for which some names lead to this machine.
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
        Outgoing { method: Method::GET, url: url(to), accept: "*/*", authorization: None, form: None }
    }

    #[tokio::test]
    async fn who_is_led_to_a_place_connects_to_nothing_further_inside_than_who_leads() {
        let server = wiremock::MockServer::start().await;
        let port = server.address().port();
        let transport = with_names();
        let here = "an address of this machine";
        for (host, limit, why) in [
            ("127.0.0.1", Reach::Public, here),
            ("[::ffff:127.0.0.1]", Reach::Private, here),
            ("[::ffff:0.0.0.0]", Reach::Private, here),
            ("localhost", Reach::Private, here),
            ("inward.example", Reach::Public, here),
            ("inward.example", Reach::Private, here),
            ("mapped.example", Reach::Private, here),
            ("lan.example", Reach::Public, "an address of a private network"),
        ] {
            let request = get(&format!("http://{host}:{port}/trigger"));
            let outcome = transport.send_within("registry r", request, Some(limit)).await;
            let text = match outcome {
                Err(Fault::Image(text) | Fault::Host(text)) => text,
                other => panic!("{host}: {other:?}"),
            };
            assert!(
                text.starts_with("registry r: it") && text.ends_with(&format!("to {why}")),
                "{host}: {text}"
            );
        }
        assert_eq!(server.received_requests().await.unwrap().len(), 0, "nothing was asked");
        // What is here may lead to what is here.
        let near = transport.send_within("r", get(&server.uri()), Some(Reach::Here)).await.unwrap();
        assert_eq!(near.status(), StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn a_registry_on_this_machine_does_not_lead_to_the_agents_own_api() {
        let api = wiremock::MockServer::start().await;
        let mut transport = with_names();
        transport.own_ports = vec![api.address().port()];
        for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "inward.example"] {
            let request = get(&format!("http://{host}:{}/trigger", api.address().port()));
            let outcome = transport.send_within("registry r", request, Some(Reach::Here)).await;
            assert!(matches!(outcome, Err(Fault::Image(_) | Fault::Host(_))), "{host}: {outcome:?}");
        }
        assert_eq!(api.received_requests().await.unwrap().len(), 0, "nothing was asked");
        // A registry may have been configured there.
        transport.send("r", get(&api.uri())).await.unwrap();
    }

    #[tokio::test]
    async fn a_registry_is_as_far_inside_as_the_address_that_was_connected_to() {
        let server = wiremock::MockServer::start().await;
        let transport = with_names();
        let response = transport.send("r", get(&server.uri())).await.unwrap();
        for (name, reach) in [
            ("http://inward.example", Reach::Here),
            // The connection was to this machine: to a proxy on it.
            ("http://lan.example", Reach::Private),
            ("http://unknown.example", Reach::Public),
            ("http://8.8.8.8", Reach::Public),
        ] {
            assert_eq!(transport.reach(&url(name), &response).await, reach, "{name}");
        }
    }

    #[test]
    fn only_the_configured_host_may_show_any_certificate() {
        let transport = Transport::new(Some(&url("https://registry.lan:5000")));
        let unverified = |text| {
            let (_, client) = transport.unverified.as_ref().unwrap();
            std::ptr::eq(transport.client(&url(text)), client)
        };
        assert!(unverified("https://registry.lan:5000/v2/"));
        assert!(unverified("https://registry.lan:5001/token"));
        assert!(!unverified("https://other.lan:5000/v2/"));
        assert!(!unverified("https://registry.lan.evil.example/"));
        assert!(std::ptr::eq(
            transport.client(&url("http://localhost:5000/")),
            &raw const transport.loopback
        ));
        assert!(!transport.loopback.connector().has_proxies());
    }
}
