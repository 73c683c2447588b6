//! Request origin checks: the API has no login, so web pages in a user's browser must not be able to use it (DECISIONS 6).

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Method, StatusCode, Version};

use super::authority::{Authority, Host, machine_names, name_of};
use super::{Response, error};
use crate::config::address::any_port;

/// Header that our own pages add to their requests. A page of another origin can send it only with the consent of the server,
/// which never gives it (no CORS headers). Unlike `Sec-Fetch-Site`, it is also sent over plain HTTP.
const OWN_PAGE: &str = "x-evenkeel-page";

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
    /// Allows IP literals, `localhost`, the machine's own names, and `allowed_hosts`. The Host rule does not apply to
    /// `/health` and `/metrics`.
    pub fn new(allowed_hosts: &[String]) -> Self {
        let mut names = vec!["localhost".to_owned()];
        names.extend(machine_names());
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
            self.check_origin(host, headers)
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
            Some(text) => Authority::parse(text).is_some_and(|at| self.is_allowed(&at.host)),
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

    /// Reports whether the Host rule accepts this host.
    fn is_allowed(&self, host: &Host) -> bool {
        match host {
            Host::Ip(_) => true,
            Host::Name(name) => self.any_host || self.names.contains(name),
        }
    }

    /// Rejects requests that change something and come from a page of another site or origin.
    ///
    /// A browser says so itself in `Sec-Fetch-Site`, which no script can set, but only over HTTPS and on localhost. Otherwise
    /// the `Origin` has to be the requested one. A proxy may have replaced the requested host, or its port, by its own.
    fn check_origin(&self, host: Option<&str>, headers: &HeaderMap) -> Result<(), Response> {
        let refuse = |what: &str| {
            Err(error(StatusCode::FORBIDDEN, format!("requests that change something are rejected {what}")))
        };
        if is_of_other_site(headers) {
            return refuse("if they come from another site (Sec-Fetch-Site)");
        }
        let mut origins = headers.get_all(ORIGIN).iter();
        let Some(origin) = origins.next() else { return Ok(()) };
        if origins.next().is_some() {
            return refuse("if they have more than one Origin");
        }
        // With `Referrer-Policy: no-referrer`, forms on our own pages are sent with `Origin: null`.
        if is_from_own_page(headers) {
            return Ok(());
        }
        let origin = origin.to_str().ok().and_then(Origin::parse);
        if origin.is_some_and(|origin| self.is_requested(&origin, host, headers)) {
            return Ok(());
        }
        refuse(
            "if their Origin differs from the requested host; behind a proxy, forward the Host header with its port, and \
             add the name to api.allowed_hosts of an agent",
        )
    }

    /// Reports whether a request from a page of this origin was sent to the same origin. The scheme only supplies the default
    /// port, since TLS may be terminated by a proxy.
    ///
    /// A page of another origin can't send any of the headers that are read here in addition to `Host`. A page whose name was
    /// rebound to this machine can; its own name is then what has to be allowed.
    fn is_requested(&self, origin: &Origin, host: Option<&str>, headers: &HeaderMap) -> bool {
        let is_same = |host: &Host, port: Option<u16>| {
            *host == origin.host && port.unwrap_or(origin.default_port) == origin.port
        };
        let forwarded_port = first(headers, "x-forwarded-port").and_then(any_port);
        let matches = |text: Option<&str>| {
            text.and_then(Authority::parse).is_some_and(|at| {
                is_same(&at.host, at.port) || forwarded_port.is_some() && is_same(&at.host, forwarded_port)
            })
        };
        if matches(host) {
            return true;
        }
        let is_forwarded = matches(first(headers, "x-forwarded-host"));
        (is_forwarded || headers.contains_key(OWN_PAGE)) && self.is_allowed(&origin.host)
    }
}

/// Returns the first value of a header that proxies add. If there are several proxies, the browser connects to the first one.
fn first<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()?.split(',').next().map(str::trim)
}

/// The origin of a page: `scheme://host[:port]`.
struct Origin {
    host: Host,
    port: u16,
    default_port: u16,
}

impl Origin {
    fn parse(text: &str) -> Option<Self> {
        let (scheme, authority) = text.split_once("://")?;
        let default_port = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let Authority { host, port } = Authority::parse(authority)?;
        Some(Self { host, port: port.unwrap_or(default_port), default_port })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    /// The header that our own pages send.
    const OWN: (&str, &str) = (OWN_PAGE, "1");

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
            ("localhost:9090", &[("origin", "null"), OWN], 403),
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
            ("localhost:9090", &[("sec-fetch-site", "none"), ("origin", "http://evil.test")], 403),
            ("localhost:9090", &[("sec-fetch-site", "same-site"), ("origin", "http://localhost:9090")], 403),
            ("localhost:9090", &[("sec-fetch-site", "cross-site"), OWN], 403),
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
    fn a_page_behind_a_proxy_may_change_something_and_no_other_page_may() {
        type Case<'a> = (&'a str, &'a str, &'a [(&'static str, &'a str)], u16);
        // Host, Origin, further headers.
        let table: &[Case<'_>] = &[
            // The proxy forwards the name without the port.
            ("agent.example.com", "http://agent.example.com:8080", &[], 403),
            ("agent.example.com", "http://agent.example.com:8080", &[("sec-fetch-site", "same-origin")], 200),
            ("agent.example.com", "http://agent.example.com:8080", &[("x-forwarded-port", "8080")], 200),
            ("agent.example.com", "http://agent.example.com:3000", &[("x-forwarded-port", "8080")], 403),
            ("agent.example.com", "http://agent.example.com:8080", &[OWN], 200),
            (
                "agent.example.com",
                "http://agent.example.com:8080",
                &[("sec-fetch-site", "same-site"), OWN],
                403,
            ),
            ("10.1.2.3", "http://10.1.2.3:8080", &[OWN], 200),
            (
                "agent.example.com:80",
                "http://agent.example.com:8080",
                &[("x-forwarded-port", "8080, 80")],
                200,
            ),
            ("agent.example.com", "https://agent.example.com:8443", &[("x-forwarded-port", "x")], 403),
            // The proxy sends its own idea of the host.
            ("127.0.0.1:9090", "https://agent.example.com", &[], 403),
            ("127.0.0.1:9090", "https://agent.example.com", &[("sec-fetch-site", "same-origin")], 200),
            (
                "127.0.0.1:9090",
                "https://agent.example.com",
                &[("x-forwarded-host", "agent.example.com")],
                200,
            ),
            (
                "127.0.0.1:9090",
                "http://agent.example.com:81",
                &[("x-forwarded-host", "agent.example.com:81, x")],
                200,
            ),
            (
                "127.0.0.1:9090",
                "http://agent.example.com:82",
                &[("x-forwarded-host", "agent.example.com:81")],
                403,
            ),
            (
                "127.0.0.1:9090",
                "http://agent.example.com:81",
                &[("x-forwarded-host", "agent.example.com")],
                403,
            ),
            (
                "127.0.0.1:9090",
                "http://agent.example.com:81",
                &[("x-forwarded-host", "agent.example.com"), ("x-forwarded-port", "81")],
                200,
            ),
            ("127.0.0.1:9090", "http://agent.example.com:81", &[OWN], 200),
            ("127.0.0.1:9090", "http://10.1.2.3:81", &[OWN], 200),
            // A name that was rebound to the proxy: its page can send any header, but not another Origin.
            ("127.0.0.1:9090", "http://evil.test:8080", &[OWN], 403),
            ("127.0.0.1:9090", "http://evil.test:8080", &[("x-forwarded-host", "evil.test:8080")], 403),
            ("127.0.0.1:9090", "http://evil.test:8080", &[("x-forwarded-port", "8080")], 403),
            (
                "127.0.0.1:9090",
                "http://evil.test:8080",
                &[("x-forwarded-host", "agent.example.com:8080"), OWN],
                403,
            ),
            (
                "evil.test:8080",
                "http://evil.test:8080",
                &[("x-forwarded-host", "agent.example.com:8080"), OWN],
                403,
            ),
        ];
        for (host, origin, more, expected) in table {
            let mut pairs = vec![("host", *host), ("origin", *origin)];
            pairs.extend_from_slice(more);
            assert_eq!(verdict(&Method::POST, "/trigger", &pairs), *expected, "{pairs:?}");
        }
    }

    #[test]
    fn a_program_with_a_login_accepts_its_own_page_under_any_name() {
        let guard = Guard::any_host();
        let verdict = |pairs: &[(&'static str, &str)]| {
            let checked = guard.check(&Method::POST, "/login", Version::HTTP_11, &headers(pairs));
            checked.map_or_else(|refusal| refusal.status().as_u16(), |()| 200)
        };
        let (host, origin) = (("host", "127.0.0.1:8080"), ("origin", "https://warden.test"));
        assert_eq!(verdict(&[host, origin]), 403);
        for more in [OWN, ("sec-fetch-site", "same-origin"), ("x-forwarded-host", "warden.test")] {
            assert_eq!(verdict(&[host, origin, more]), 200, "{more:?}");
        }
        for more in [("sec-fetch-site", "same-site"), ("sec-fetch-site", "cross-site")] {
            assert_eq!(verdict(&[host, origin, OWN, more]), 403, "{more:?}");
        }
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
