//! The proxies that the environment names, read as Docker reads it: what the engine reaches without one, such as a registry in
//! the own network, is reached without one here, too.

use std::net::IpAddr;

use http::Uri;

use crate::config::address::{any_port, is_in, is_this_machine};

/// The proxies, and what is reached without them. Not printable: their addresses may contain a login.
pub struct Proxies {
    http: Option<String>,
    https: Option<String>,
    direct: Vec<Direct>,
}

impl Proxies {
    /// Reads the variables of this process.
    pub fn from_env() -> Self {
        Self::new(|name| std::env::var(name).ok())
    }

    /// Reads `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, or those in small letters.
    pub fn new(variable: impl Fn(&str) -> Option<String>) -> Self {
        let named = |name: &str| variable(name).filter(|value| !value.is_empty());
        let set = |name: &str| named(name).or_else(|| named(&name.to_ascii_lowercase()));
        let proxy = |name: &str| set(name).or_else(|| set("ALL_PROXY")).map(|address| complete(&address));
        let direct = set("NO_PROXY").unwrap_or_default();
        Self {
            http: proxy("HTTP_PROXY"),
            https: proxy("HTTPS_PROXY"),
            direct: direct.split(',').filter_map(Direct::parse).collect(),
        }
    }

    /// Returns the address of the proxy for a URL, with its login; `None` if it is reached without one, as this machine always is.
    pub fn of(&self, url: &str) -> Option<String> {
        let url: Uri = url.parse().ok()?;
        let (proxy, default_port) = match url.scheme_str()? {
            "http" => (&self.http, 80),
            "https" => (&self.https, 443),
            _ => return None,
        };
        let host = url.host()?.trim_matches(['[', ']']).to_ascii_lowercase();
        let port = url.port_u16().unwrap_or(default_port);
        let is_direct =
            is_this_machine(&host) || self.direct.iter().any(|direct| direct.includes(&host, port));
        proxy.clone().filter(|_| !is_direct)
    }
}

/// Completes the address of a proxy, which may lack its scheme. A SOCKS proxy resolves the names, as it does for Docker.
fn complete(address: &str) -> String {
    match address.split_once("://") {
        None => format!("http://{address}"),
        Some(("socks5", rest)) => format!("socks5h://{rest}"),
        Some(_) => address.to_owned(),
    }
}

/// An entry of `NO_PROXY`: `*`, a domain with all below it, an address or a network, and which port of it.
struct Direct {
    host: String,
    port: Option<u16>,
}

impl Direct {
    /// Reads `example.com`, `.example.com` or `*.example.com`, `10.0.0.0/8`, and `registry.lan:5000` or `[fd00::1]:5000`.
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        let (host, port) = match text.rsplit_once(':').map(|(host, port)| (host, any_port(port))) {
            // The end of an IPv6 address without brackets is no port.
            Some((host, Some(port))) if host.ends_with(']') || !host.contains(':') => (host, Some(port)),
            _ => (text.as_str(), None),
        };
        let host = host.trim_matches(['[', ']']);
        let host = host.strip_prefix("*.").or_else(|| host.strip_prefix('.')).unwrap_or(host);
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port })
    }

    fn includes(&self, host: &str, port: u16) -> bool {
        if self.port.is_some_and(|own| own != port) {
            return false;
        }
        match host.parse::<IpAddr>() {
            _ if self.host == "*" => true,
            Ok(address) => self.host.parse::<IpAddr>() == Ok(address) || is_in(address, &self.host),
            Err(_) => {
                host.strip_suffix(&self.host).is_some_and(|below| below.is_empty() || below.ends_with('.'))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Proxies {
        Proxies::new(|name| {
            let (_, value) = variables.iter().find(|(known, _)| *known == name)?;
            Some((*value).to_owned())
        })
    }

    #[test]
    fn what_is_reached_without_a_proxy_is_written_as_for_docker() {
        let no = "*.corp.example, .dot.example,Plain.example,registry.lan:5000,10.0.0.5:5000,[fd00::1]:5000,\
                  10.0.0.6,fd00::2,192.168.0.0/16,fd01::/16,";
        let proxies = of(&[("ALL_PROXY", "http://proxy.example:3128"), ("NO_PROXY", no)]);
        for (url, is_direct) in [
            ("https://reg.corp.example/v2/", true),
            ("https://a.reg.corp.example/", true),
            ("https://notcorp.example/", false),
            ("https://reg.dot.example/", true),
            ("https://plain.example:5000/", true),
            ("https://reg.PLAIN.example/", true),
            ("https://notplain.example/", false),
            ("https://registry.lan:5000/", true),
            ("https://registry.lan:8443/", false),
            ("https://registry.lan/", false),
            ("http://10.0.0.5:5000/", true),
            ("http://10.0.0.5/", false),
            ("http://[fd00::1]:5000/", true),
            ("http://[fd00::1]:5001/", false),
            ("http://10.0.0.6:80/", true),
            ("http://10.0.0.7/", false),
            ("http://[fd00::2]/", true),
            ("http://192.168.9.9/", true),
            ("http://[fd01::9]/", true),
            ("http://[fd02::9]/", false),
        ] {
            assert_eq!(proxies.of(url).is_none(), is_direct, "{url}");
        }
        for (entry, is_direct) in
            [("registry.lan:443", true), ("registry.lan:80", false), ("*", true), ("", false)]
        {
            let proxies = of(&[("HTTPS_PROXY", "proxy"), ("no_proxy", entry)]);
            assert_eq!(proxies.of("https://registry.lan/").is_none(), is_direct, "{entry}");
        }
        let none = of(&[("HTTP_PROXY", "proxy"), ("NO_PROXY", "*")]);
        assert_eq!(none.of("http://10.0.0.1/"), None, "of addresses, too");
        let proxies = of(&[("HTTP_PROXY", "proxy")]);
        for url in ["http://localhost:9090/", "http://127.0.0.1/", "http://[::1]:1/"] {
            assert_eq!(proxies.of(url), None, "{url}");
        }
    }

    #[test]
    fn each_scheme_has_its_proxy() {
        let proxies =
            of(&[("HTTP_PROXY", ""), ("http_proxy", "ann:pw@one:1"), ("ALL_PROXY", "socks5://two:2")]);
        assert_eq!(proxies.of("http://a.example/").as_deref(), Some("http://ann:pw@one:1"));
        assert_eq!(proxies.of("https://a.example/").as_deref(), Some("socks5h://two:2"));
        assert_eq!(of(&[]).of("https://a.example/"), None);
    }
}
