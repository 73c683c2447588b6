//! `services[].update.probe` (DECISIONS 15).

use std::net::IpAddr;
use std::time::Duration;

use evenkeel_common::config::{Findings, KeyPath, quote};
use reqwest::Url;

use super::file::ProbeFile;
use crate::model::probe::{Ask, HttpAsk, Probe, STATUS_FORM, StatusCodes, TlsCheck};

const HTTP_FORM: &str = "a port and a path such as :8080/health";
const HTTP_FROM_FORM: &str = "an absolute URL without a path, such as http://127.0.0.1:8080";
const TCP_FROM_FORM: &str = "a host and a port such as 127.0.0.1:5432";

/// Validates a probe; `None` if it has a fault.
pub(super) fn probe(file: &ProbeFile, at: &KeyPath, findings: &mut Findings) -> Option<Probe> {
    let (from, ask) = match (&file.http, &file.https, file.tcp) {
        (Some(text), None, None) => http(file, text, Scheme::Http, at, findings)?,
        (None, Some(text), None) => http(file, text, Scheme::Https, at, findings)?,
        (None, None, port) => tcp(file, port, at, findings)?,
        _ => {
            findings.fault(at, "has several of http, https and tcp; allowed: one of them");
            return None;
        }
    };
    if let (Some(_), Some(_)) = (&from, &file.service) {
        findings.warn(&at.key("service"), "has no effect with from");
    }
    Some(Probe {
        ask,
        service: file.service.clone().filter(|_| from.is_none()),
        from,
        interval: Duration::from_secs(file.interval),
        timeout: Duration::from_secs(file.timeout),
    })
}

/// Warns of a probe that is hardly tried during the probation, which takes `health_grace` seconds.
pub(super) fn warn(file: &ProbeFile, health_grace: u64, at: &KeyPath, findings: &mut Findings) {
    if file.interval.saturating_mul(3) > health_grace {
        let what = format!("leaves fewer than three requests in health_grace ({health_grace} s)");
        findings.warn(&at.key("interval"), what);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

/// What is asked, and where in place of each container.
type Asked = (Option<String>, Ask);

fn http(
    file: &ProbeFile,
    text: &str,
    scheme: Scheme,
    at: &KeyPath,
    findings: &mut Findings,
) -> Option<Asked> {
    let key = at.key(if scheme == Scheme::Https { "https" } else { "http" });
    let from = match &file.from {
        Some(text) => Some(url_origin(text, &at.key("from"), findings)?),
        None => None,
    };
    let Some((port, path)) = port_and_path(text, from.is_some()) else {
        let form = if from.is_some() { "a path such as /health" } else { HTTP_FORM };
        findings.fault(&key, format!("{}; allowed: {form}", quote(text)));
        return None;
    };
    let Some(status) = StatusCodes::parse(&file.status) else {
        findings.fault(&at.key("status"), format!("{}; allowed: {STATUS_FORM}", quote(&file.status)));
        return None;
    };
    let host = match &file.host {
        Some(name) if !is_host(name) => {
            findings.fault(&at.key("host"), format!("{}; allowed: a host name without a port", quote(name)));
            return None;
        }
        host => host.clone(),
    };
    let scheme = from.as_ref().map_or(scheme, |(scheme, ..)| *scheme);
    if scheme == Scheme::Http && file.insecure_skip_verify {
        findings.warn(&at.key("insecure_skip_verify"), "has no effect without https");
    }
    let check = if file.insecure_skip_verify { TlsCheck::Unverified } else { TlsCheck::Verified };
    let port = from.as_ref().map_or(port, |(.., port)| *port);
    let tls = (scheme == Scheme::Https).then_some(check);
    let ask = Ask::Http(HttpAsk { port, path, status, host, tls });
    Some((from.map(|(_, host, _)| host), ask))
}

/// Splits `:8080/health`. With `from` the port may be omitted, and is 0 then.
fn port_and_path(text: &str, may_omit_port: bool) -> Option<(u16, String)> {
    let (port, path) = match text.strip_prefix(':') {
        Some(rest) => {
            let (port, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            (port.parse().ok().filter(|port| *port > 0 && !rest.starts_with('+'))?, path)
        }
        None if may_omit_port => (0, text),
        None => return None,
    };
    let path = if path.is_empty() { "/" } else { path };
    // A control character or a space would end the request line, and a fragment is never sent.
    let is_path = path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
    is_path.then(|| (port, path.to_owned()))
}

/// Parses `from` of an HTTP probe: scheme, host and port.
fn url_origin(text: &str, at: &KeyPath, findings: &mut Findings) -> Option<(Scheme, String, u16)> {
    let parse = || {
        let url = Url::parse(text).ok()?;
        let scheme = match url.scheme() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return None,
        };
        let is_bare = url.path() == "/"
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none();
        let host = url.host_str()?.trim_matches(['[', ']']).to_owned();
        is_bare.then_some((scheme, host, url.port_or_known_default()?))
    };
    let origin = parse();
    if origin.is_none() {
        findings.fault(at, format!("{}; allowed: {HTTP_FROM_FORM}", quote(text)));
    }
    origin
}

fn tcp(file: &ProbeFile, port: Option<u16>, at: &KeyPath, findings: &mut Findings) -> Option<Asked> {
    let http_only = [
        ("status", file.status != ProbeFile::default().status),
        ("host", file.host.is_some()),
        ("insecure_skip_verify", file.insecure_skip_verify),
    ];
    for (key, _) in http_only.into_iter().filter(|(_, is_set)| *is_set) {
        findings.warn(&at.key(key), "has no effect without http or https");
    }
    let Some(text) = &file.from else {
        if port.is_none() {
            findings.fault(at, "has none of http, https and tcp; allowed: one of them");
        }
        return Some((None, Ask::Tcp(port?)));
    };
    let parse = || {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port > 0)?;
        is_host(host).then(|| (host.to_owned(), port))
    };
    if port.is_none() {
        findings.fault(at, "has none of http, https and tcp; allowed: one of them");
        return None;
    }
    let Some((host, port)) = parse() else {
        findings.fault(&at.key("from"), format!("{}; allowed: {TCP_FROM_FORM}", quote(text)));
        return None;
    };
    Some((Some(host), Ask::Tcp(port)))
}

/// Reports whether this is a host name or an address.
fn is_host(name: &str) -> bool {
    let is_name = !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
    is_name || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::super::UpdateConfig;
    use super::super::testing::good;
    use super::*;

    /// Parses a service with this probe; returns the warnings about it, and what became of the service's `update`.
    fn with(probe: &Value) -> (Vec<String>, Arc<UpdateConfig>) {
        let folder = tempfile::tempdir().unwrap();
        let compose = folder.path().join("compose.yml");
        std::fs::write(&compose, "").unwrap();
        let config = good(&json!({"services": [{
            "name": "web", "images": ["web"], "compose_files": [compose], "compose_project": "web",
            "auto_update": true, "update": {"probe": probe},
        }]}));
        let about = |warning: &String| warning.contains("update.probe");
        let update = config.services[0].update.clone().expect("there is one");
        (config.warnings.into_iter().filter(about).collect(), update)
    }

    fn probe(value: &Value) -> Probe {
        let (warnings, update) = with(value);
        assert_eq!((&warnings[..], &update.fault), (&[][..], &None), "{value}");
        update.probe.clone().expect("it is valid")
    }

    #[test]
    fn every_form_is_read() {
        let shown = |value| probe(&value).to_string();
        assert_eq!(shown(json!({"http": ":8080/health?full=1"})), "GET http://:8080/health?full=1");
        assert_eq!(shown(json!({"https": ":8443"})), "GET https://:8443/");
        assert_eq!(shown(json!({"tcp": 5432})), "TCP :5432");
        assert_eq!(
            shown(json!({"http": "/health", "from": "https://[::1]:8443"})),
            "GET https://[::1]:8443/health"
        );
        assert_eq!(
            shown(json!({"http": ":80/health", "from": "http://app.example.org"})),
            "GET http://app.example.org:80/health"
        );
        assert_eq!(shown(json!({"tcp": 5432, "from": "127.0.0.1:15432"})), "TCP 127.0.0.1:15432");
        assert_eq!(shown(json!({"tcp": 5432, "from": "[::1]:15432"})), "TCP [::1]:15432");
    }

    #[test]
    fn the_defaults_are_those_of_the_manual() {
        let read = probe(&json!({"http": ":8080/"}));
        assert_eq!((read.interval, read.timeout), (Duration::from_secs(2), Duration::from_secs(5)));
        let Ask::Http(http) = read.ask else { panic!("{:?}", read.ask) };
        assert_eq!((http.status.to_string().as_str(), http.host, http.tls), ("200-399", None, None));
        let read = probe(&json!({
            "https": ":8443/", "host": "app.example.org", "insecure_skip_verify": true, "status": "200,401",
            "interval": 10, "timeout": "30s", "service": "front",
        }));
        assert_eq!((read.interval, read.timeout), (Duration::from_secs(10), Duration::from_secs(30)));
        assert_eq!(read.service.as_deref(), Some("front"));
        let Ask::Http(http) = read.ask else { panic!("{:?}", read.ask) };
        assert_eq!(http.tls, Some(TlsCheck::Unverified));
        assert_eq!(
            (http.status.to_string().as_str(), http.host.as_deref()),
            ("200,401", Some("app.example.org"))
        );
    }

    #[test]
    fn a_faulty_probe_holds_updates_and_says_what_is_allowed() {
        for (value, what) in [
            (json!({}), "update.probe: has none of http, https and tcp"),
            (json!({"http": ":80/", "tcp": 80}), "update.probe: has several of http, https and tcp"),
            (
                json!({"http": "/health"}),
                "update.probe.http: \"/health\"; allowed: a port and a path such as :8080/health",
            ),
            (json!({"http": "localhost:8080"}), "update.probe.http: \"localhost:8080\""),
            (json!({"http": ":0/"}), "update.probe.http: \":0/\""),
            (json!({"http": ":80/a b"}), "update.probe.http: \":80/a b\""),
            (json!({"http": ":80/\r\nHost: x"}), "update.probe.http: "),
            (json!({"tcp": 0}), "update.probe.tcp: 0 is out of range"),
            (
                json!({"tcp": 1, "from": "localhost"}),
                "update.probe.from: \"localhost\"; allowed: a host and a port",
            ),
            (
                json!({"http": ":80/", "status": "2xx"}),
                "update.probe.status: \"2xx\"; allowed: codes and ranges",
            ),
            (json!({"http": ":80/", "host": "a b"}), "update.probe.host: \"a b\"; allowed: a host name"),
            (
                json!({"http": ":80/", "from": "app:80"}),
                "update.probe.from: \"app:80\"; allowed: an absolute URL",
            ),
            (
                json!({"http": ":80/", "from": "http://a/b"}),
                "update.probe.from: \"http://a/b\"; allowed: an absolute URL",
            ),
            (json!({"http": ":80/", "interval": 0}), "update.probe.interval: 0 is out of range"),
        ] {
            let (warnings, update) = with(&value);
            let [warning] = &warnings[..] else { panic!("{value}: {warnings:?}") };
            assert!(warning.contains(what) && warning.contains("updates are held"), "{value}: {warning}");
            assert!(
                update.fault.as_ref().is_some_and(|fault| fault.contains("update.probe")),
                "{value}: {update:?}"
            );
        }
    }

    #[test]
    fn keys_without_an_effect_are_told() {
        for (value, what) in [
            (json!({"tcp": 80, "status": "200"}), "update.probe.status: has no effect without http or https"),
            (
                json!({"http": ":80/", "insecure_skip_verify": true}),
                "insecure_skip_verify: has no effect without https",
            ),
            (
                json!({"tcp": 80, "from": "a:80", "service": "web"}),
                "update.probe.service: has no effect with from",
            ),
            (json!({"tcp": 80, "interval": 40}), "update.probe.interval: "),
        ] {
            let (warnings, update) = with(&value);
            let [warning] = &warnings[..] else { panic!("{value}: {warnings:?}") };
            assert!(warning.contains(what), "{value}: {warning}");
            assert!(update.probe.is_some() && update.fault.is_none(), "{value}");
        }
    }
}
