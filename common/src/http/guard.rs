//! Request origin checks: the API has no login, so web pages in a user's browser must not be able to use it (DECISIONS 6).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Method, StatusCode, Version};

use super::{Response, error};

/// The Host rule, the Origin rule, and the rule that other sites may only link to pages.
#[derive(Debug, Clone)]
pub struct Guard {
    /// Allowed host names, lower-case, without trailing dot.
    names: Vec<String>,
    /// Paths that are exempt from the Host rule.
    open: Vec<String>,
    /// Whether all paths are exempt.
    any_host: bool,
    /// Paths of pages that other sites may link to.
    pages: Vec<String>,
}

impl Guard {
    /// Allows IP literals, `localhost`, the machine's own name, and `allowed_hosts`. The Host rule does not apply to
    /// `/health` and `/metrics`.
    pub fn new(allowed_hosts: &[String]) -> Self {
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut names = vec!["localhost".to_owned()];
        names.extend(machine.split('.').next().map(name_of));
        names.push(name_of(&machine));
        names.extend(allowed_hosts.iter().map(|host| match Authority::parse(host) {
            Some(Authority { host: Host::Name(name), .. }) => name,
            _ => name_of(host),
        }));
        names.retain(|name| !name.is_empty());
        let open = ["/health", "/metrics"].map(str::to_owned).into();
        Self { names, open, any_host: false, pages: Vec::new() }
    }

    /// For a program with a login: pages of other sites have no token, so any host name is allowed. Only the Origin rule
    /// applies.
    pub fn any_host() -> Self {
        Self { names: Vec::new(), open: Vec::new(), any_host: true, pages: Vec::new() }
    }

    /// Exempts these paths from the Host rule.
    #[must_use]
    pub fn open(mut self, paths: &[&str]) -> Self {
        self.open.extend(paths.iter().map(|path| (*path).to_owned()));
        self
    }

    /// Declares these paths as pages that other sites may link to.
    #[must_use]
    pub fn pages(mut self, paths: &[&str]) -> Self {
        self.pages.extend(paths.iter().map(|path| (*path).to_owned()));
        self
    }

    /// Rejects a request that violates a rule.
    pub(super) fn check(
        &self,
        method: &Method,
        path: &str,
        version: Version,
        headers: &HeaderMap,
    ) -> Result<(), Response> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = hosts.next();
        if hosts.next().is_some() {
            return Err(error(StatusCode::BAD_REQUEST, "the request has more than one Host header"));
        }
        let host = host.map(|host| host.to_str().unwrap_or_default());
        if !self.any_host && !self.open.iter().any(|open| open == path) {
            self.check_host(version, host)?;
        }
        if *method == Method::GET || *method == Method::HEAD || *method == Method::OPTIONS {
            self.check_site(path, headers)
        } else {
            check_origin(host, headers)
        }
    }

    /// A page of another site cannot read a response, but it can cause load and hold streams open.
    fn check_site(&self, path: &str, headers: &HeaderMap) -> Result<(), Response> {
        let is_link = headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate")
            && headers.get("sec-fetch-dest").is_none_or(|target| target == "document");
        if path == "/health"
            || !is_of_other_site(headers)
            || is_link && self.pages.iter().any(|page| page == path)
        {
            return Ok(());
        }
        let text = "cross-site requests for this path are not allowed (Sec-Fetch-Site)";
        Err(error(StatusCode::FORBIDDEN, text))
    }

    fn check_host(&self, version: Version, host: Option<&str>) -> Result<(), Response> {
        let allowed = match host {
            // Browsers do not use HTTP/1.0.
            None => version == Version::HTTP_10,
            Some(text) => match Authority::parse(text) {
                Some(Authority { host: Host::Ip(_), .. }) => true,
                Some(Authority { host: Host::Name(name), .. }) => self.names.contains(&name),
                None => false,
            },
        };
        if allowed {
            return Ok(());
        }
        let host: String = host.unwrap_or_default().chars().take(100).collect();
        Err(error(
            StatusCode::FORBIDDEN,
            format!(
                "requests for the host \"{host}\" are rejected, because a web page could have sent them; if it is a \
                 name of this machine, add it to api.allowed_hosts"
            ),
        ))
    }
}

/// Rejects requests that change something and come from a page of another site.
fn check_origin(host: Option<&str>, headers: &HeaderMap) -> Result<(), Response> {
    let refuse = |what: &str| {
        Err(error(StatusCode::FORBIDDEN, format!("requests that change something are rejected {what}")))
    };
    if is_of_other_site(headers) {
        return refuse("if they come from another site (Sec-Fetch-Site)");
    }
    // With `Referrer-Policy: no-referrer`, forms on our own pages are sent with `Origin: null`. So are forms in a sandboxed
    // frame, which only Sec-Fetch-Site distinguishes from ours; scripts cannot set that header.
    let is_own_form = |origin: &str| origin == "null" && is_from_own_page(headers);
    for origin in headers.get_all(ORIGIN) {
        if !origin.to_str().is_ok_and(|origin| is_same_origin(origin, host) || is_own_form(origin)) {
            return refuse("if their Origin differs from the requested host");
        }
    }
    Ok(())
}

/// Reports whether the request comes from a page of the same origin, according to the browser.
fn is_from_own_page(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all("sec-fetch-site").iter();
    sites.next().is_some_and(|site| site == "same-origin") && sites.next().is_none()
}

/// Reports whether the request comes from a page of another site or origin, according to the browser.
fn is_of_other_site(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all("sec-fetch-site").iter();
    sites.any(|site| matches!(site.as_bytes(), b"cross-site" | b"same-site"))
}

/// Reports whether an `Origin` matches the requested host. The scheme only supplies the default port, since TLS may be
/// terminated by a proxy.
fn is_same_origin(origin: &str, host: Option<&str>) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let default = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let with_port = |text| Authority::parse(text).map(|at| (at.host, at.port.unwrap_or(default)));
    let origin = with_port(authority);
    origin.is_some() && origin == host.and_then(with_port)
}

/// `host[:port]`, as in `Host`, and in `Origin` after the scheme.
#[derive(Debug, PartialEq, Eq)]
struct Authority {
    host: Host,
    port: Option<u16>,
}

#[derive(Debug, PartialEq, Eq)]
enum Host {
    Ip(IpAddr),
    /// Lower-case, without trailing dot.
    Name(String),
}

impl Authority {
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']')?;
            let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) };
            (Host::Ip(host.parse::<Ipv6Addr>().ok()?.into()), port)
        } else {
            let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
            let name = name_of(host);
            let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            if name.is_empty() || name.ends_with('.') || !name.bytes().all(is_name_byte) {
                return None;
            }
            (name.parse::<Ipv4Addr>().map_or(Host::Name(name), |ip| Host::Ip(ip.into())), port)
        };
        let port = match port {
            None | Some("") => None,
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => Some(port.parse().ok()?),
            Some(_) => return None,
        };
        Some(Self { host, port })
    }
}

fn name_of(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn verdict(method: &Method, path: &str, pairs: &[(&'static str, &str)]) -> u16 {
        let guard =
            Guard::new(&["Agent.Example.com".into(), "tunnel.test:8443".into()]).open(&["/registry/events"]);
        let checked = guard.check(method, path, Version::HTTP_11, &headers(pairs));
        checked.map_or_else(|refusal| refusal.status().as_u16(), |()| 200)
    }

    #[test]
    fn only_allowed_hosts_are_served() {
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        for host in [
            "127.0.0.1:9090",
            "10.1.2.3",
            "[::1]",
            "[::1]:9090",
            "localhost",
            "LOCALHOST:1",
            "localhost.",
            "agent.example.com",
            "AGENT.example.COM.:4444",
            "tunnel.test",
            "tunnel.test:1",
            &machine,
        ] {
            assert_eq!(verdict(&Method::GET, "/status", &[("host", host)]), 200, "{host}");
        }
        for host in [
            "evil.test",
            "evil.test:9090",
            "localhost.evil.test",
            "127.0.0.1.evil.test",
            "",
            ":9090",
            "[::1",
            "[::1]x",
            "x[::1]",
            "127.0.0.1@evil.test",
            "localhost:80:80",
            "localhost:x",
            "0x7f.1",
            "sub.agent.example.com",
            "localhost/",
            "localhost..",
        ] {
            assert_eq!(verdict(&Method::GET, "/status", &[("host", host)]), 403, "{host}");
            for open in ["/health", "/metrics", "/registry/events"] {
                assert_eq!(verdict(&Method::GET, open, &[("host", host)]), 200, "{host} {open}");
            }
            assert_eq!(verdict(&Method::GET, "/health/", &[("host", host)]), 403, "{host}");
        }
        assert_eq!(verdict(&Method::GET, "/status", &[]), 403);
        assert_eq!(verdict(&Method::GET, "/status", &[("host", "localhost"), ("host", "localhost")]), 400);
        let guard = Guard::new(&[]);
        assert!(guard.check(&Method::GET, "/status", Version::HTTP_10, &HeaderMap::new()).is_ok());
    }

    #[test]
    fn a_page_of_another_site_may_not_change_anything() {
        type Case<'a> = (&'a str, &'a [(&'static str, &'a str)], u16);
        let table: &[Case<'_>] = &[
            ("localhost:9090", &[], 200),
            ("localhost:9090", &[("origin", "http://localhost:9090")], 200),
            ("localhost:9090", &[("origin", "http://LOCALHOST:9090")], 200),
            ("localhost:9090", &[("origin", "http://localhost")], 403),
            ("localhost:9090", &[("origin", "http://127.0.0.1:9090")], 403),
            ("localhost:9090", &[("origin", "http://evil.test")], 403),
            ("localhost:9090", &[("origin", "http://evil.test:9090")], 403),
            ("localhost:9090", &[("origin", "null")], 403),
            ("localhost:9090", &[("origin", "null"), ("sec-fetch-site", "same-origin")], 200),
            ("localhost:9090", &[("origin", "null"), ("sec-fetch-site", "none")], 403),
            ("localhost:9090", &[("origin", "null"), ("sec-fetch-site", "same-site")], 403),
            ("localhost:9090", &[("origin", "null"), ("sec-fetch-site", "cross-site")], 403),
            ("localhost:9090", &[("origin", "null"), ("sec-fetch-site", "Same-Origin")], 403),
            (
                "localhost:9090",
                &[("origin", "null"), ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "same-origin")],
                403,
            ),
            (
                "localhost:9090",
                &[("origin", "null"), ("origin", "http://evil.test"), ("sec-fetch-site", "same-origin")],
                403,
            ),
            ("localhost:9090", &[("origin", "")], 403),
            ("localhost:9090", &[("origin", "localhost:9090")], 403),
            ("localhost:9090", &[("origin", "file://")], 403),
            ("localhost", &[("origin", "http://localhost:80")], 200),
            ("localhost:80", &[("origin", "http://localhost")], 200),
            ("agent.example.com", &[("origin", "https://agent.example.com")], 200),
            ("agent.example.com:443", &[("origin", "https://agent.example.com")], 200),
            ("agent.example.com:443", &[("origin", "http://agent.example.com")], 403),
            ("[::1]:9090", &[("origin", "http://[0:0::1]:9090")], 200),
            ("[::1]:9090", &[("origin", "http://[::2]:9090")], 403),
            ("localhost:9090", &[("sec-fetch-site", "same-origin")], 200),
            ("localhost:9090", &[("sec-fetch-site", "none")], 200),
            ("localhost:9090", &[("sec-fetch-site", "cross-site")], 403),
            ("localhost:9090", &[("sec-fetch-site", "same-site")], 403),
            ("localhost:9090", &[("sec-fetch-site", "same-origin"), ("origin", "http://evil.test")], 403),
            ("localhost:9090", &[("sec-fetch-site", "cross-site"), ("origin", "http://localhost:9090")], 403),
        ];
        for (host, more, expected) in table {
            let mut pairs = vec![("host", *host)];
            pairs.extend_from_slice(more);
            for method in [Method::POST, Method::DELETE, Method::PUT, Method::PATCH] {
                for path in ["/trigger", "/registry/events", "/health"] {
                    assert_eq!(verdict(&method, path, &pairs), *expected, "{method} {path} {pairs:?}");
                }
            }
            let of_other_site = more.iter().any(|(_, value)| matches!(*value, "cross-site" | "same-site"));
            for method in [Method::GET, Method::HEAD] {
                let expected = if of_other_site { 403 } else { 200 };
                assert_eq!(verdict(&method, "/status", &pairs), expected, "{method} {pairs:?}");
                assert_eq!(verdict(&method, "/health", &pairs), 200, "{method} {pairs:?}");
            }
        }
        assert_eq!(verdict(&Method::POST, "/registry/events", &[("host", "registry.test")]), 200);
        assert_eq!(
            verdict(
                &Method::POST,
                "/registry/events",
                &[("host", "evil.test"), ("origin", "http://evil.test")]
            ),
            200,
            "an open path accepts any host, even as an origin"
        );
    }

    #[test]
    fn another_site_may_only_link_to_a_page() {
        let guard = Guard::new(&[]).pages(&["/ui"]);
        let verdict = |path: &str, pairs: &[(&'static str, &str)]| {
            let mut all = vec![("host", "localhost")];
            all.extend_from_slice(pairs);
            let checked = guard.check(&Method::GET, path, Version::HTTP_11, &headers(&all));
            checked.map_or_else(|refusal| refusal.status().as_u16(), |()| 200)
        };
        for site in ["cross-site", "same-site"] {
            let link =
                [("sec-fetch-site", site), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
            assert_eq!(verdict("/ui", &link), 200);
            for path in ["/ui/stream", "/ui/events", "/audit", "/status", "/metrics"] {
                assert_eq!(verdict(path, &link), 403, "{path}");
            }
            let frame =
                [("sec-fetch-site", site), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
            let picture =
                [("sec-fetch-site", site), ("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "image")];
            for headers in [&frame[..], &picture, &[("sec-fetch-site", site)]] {
                assert_eq!(verdict("/ui", headers), 403, "{headers:?}");
            }
        }
        for site in ["same-origin", "none"] {
            assert_eq!(verdict("/ui/stream", &[("sec-fetch-site", site)]), 200);
        }
    }

    #[test]
    fn a_rejection_is_json() {
        let guard = Guard::new(&[]);
        let headers = headers(&[("host", "agent.test")]);
        let refusal = guard.check(&Method::GET, "/", Version::HTTP_11, &headers).unwrap_err();
        assert_eq!(refusal.headers()["content-type"], "application/json");
    }
}
