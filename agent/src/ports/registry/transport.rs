//! One HTTP exchange with a registry or its token service: which client, which redirects, which words on failure.

use std::net::IpAddr;
use std::time::Duration;

use reqwest::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HeaderValue, LOCATION};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Method, Response, StatusCode, Url};

use super::fault::{Fault, status_words, transport_words};
use super::meter::{Meter, RequestOutcome};
use super::tls;
use crate::ports::RegistryError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
const MOST_REDIRECTS: usize = 5;

/// The clients, by what may be trusted.
#[derive(Debug)]
pub(super) struct Transport {
    /// The world: certificates verified, proxies of the environment used.
    remote: Client,
    /// This machine: as Docker does, never through a proxy.
    loopback: Client,
    /// The one host whose certificate is not verified (`registry.insecure`).
    unverified: Option<(String, Client)>,
    /// Who counts.
    pub(super) meter: Meter,
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

impl Transport {
    /// `unverified` is an address whose host may show any certificate.
    pub(super) fn new(unverified: Option<&Url>) -> Result<Self, RegistryError> {
        let verified = tls::client_config();
        let unverified = match unverified {
            None => None,
            Some(url) => {
                let host = url.host_str().unwrap_or_default().to_owned();
                let builder = Client::builder().tls_backend_preconfigured(tls::unverified_client_config());
                Some((host, build(if is_local(url) { builder.no_proxy() } else { builder })?))
            }
        };
        Ok(Self {
            remote: build(Client::builder().tls_backend_preconfigured(verified.clone()))?,
            loopback: build(Client::builder().tls_backend_preconfigured(verified).no_proxy())?,
            unverified,
            meter: Meter::default(),
        })
    }

    fn client(&self, url: &Url) -> &Client {
        match &self.unverified {
            Some((host, client)) if url.host_str() == Some(host) => client,
            _ if is_local(url) => &self.loopback,
            _ => &self.remote,
        }
    }

    /// Sends a request and follows redirects of a `GET` or `HEAD`. The login is for the first address only: it
    /// is dropped for good when a redirect leaves its scheme, host or port. `whose` begins error texts.
    pub(super) async fn send(&self, whose: &str, mut request: Outgoing) -> Result<Response, Fault> {
        for _ in 0..=MOST_REDIRECTS {
            let response = self.exchange(whose, &request).await?;
            let Some(next) = redirect(whose, &request, &response)? else {
                return Ok(response);
            };
            if next.origin() != request.url.origin() {
                request.authorization = None;
            }
            request.url = next;
        }
        Err(Fault::Image(format!("{whose}: more than {MOST_REDIRECTS} redirects")))
    }

    async fn exchange(&self, whose: &str, request: &Outgoing) -> Result<Response, Fault> {
        let send = || {
            let mut builder = self
                .client(&request.url)
                .request(request.method.clone(), request.url.clone())
                .header(ACCEPT, request.accept)
                .header(ACCEPT_ENCODING, "identity");
            if let Some(authorization) = &request.authorization {
                builder = builder.header(AUTHORIZATION, authorization.clone());
            }
            if let Some(form) = &request.form {
                builder =
                    builder.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form.clone());
            }
            builder.send()
        };
        let began = tokio::time::Instant::now();
        let outcome = match send().await {
            // A kept connection may be closed by the other side just as it is used again.
            Err(error) if !error.is_timeout() && !error.is_connect() && request.form.is_none() => {
                send().await
            }
            outcome => outcome,
        };
        let ended = match &outcome {
            Ok(response) => RequestOutcome::of(response.status()),
            Err(_) => RequestOutcome::Unreachable,
        };
        self.meter.tell(ended, began.elapsed());
        outcome.map_err(|error| Fault::Host(format!("{whose}: {}", transport_words(&error))))
    }
}

fn build(builder: ClientBuilder) -> Result<Client, RegistryError> {
    builder
        .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(REQUEST_TIMEOUT)
        .redirect(Policy::none())
        .build()
        .map_err(|error| RegistryError(format!("preparing to talk to registries: {}", error.without_url())))
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
    if leads_inside(&request.url, &next) {
        return Err(refused("to an address of this machine"));
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

/// Whether `to` is on this machine though `from` is not: a registry must not make us talk to our neighbours.
pub(super) fn leads_inside(from: &Url, to: &Url) -> bool {
    is_local(to) && !is_local(from) && from.host_str() != to.host_str()
}

/// Whether an address is on this machine or its link (where clouds keep their metadata services).
pub(super) fn is_local(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let name = host.trim_end_matches('.');
    match host.trim_start_matches('[').trim_end_matches(']').parse() {
        Ok(IpAddr::V4(ip)) => ip.is_loopback() || ip.is_link_local() || ip.is_unspecified(),
        Ok(IpAddr::V6(ip)) => {
            ip.is_loopback()
                || ip.is_unspecified()
                || ip.is_unicast_link_local()
                || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback() || ip.is_link_local())
        }
        Err(_) => name == "localhost" || name.ends_with(".localhost"),
    }
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
        assert!(leads_inside(&url("https://ghcr.io/"), &url("http://127.0.0.1:9090/")));
        assert!(!leads_inside(&url("http://localhost:5000/"), &url("http://127.0.0.1:5001/")));
    }

    #[test]
    fn only_the_configured_host_may_show_any_certificate() {
        let transport = Transport::new(Some(&url("https://registry.lan:5000"))).unwrap();
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
    }
}
