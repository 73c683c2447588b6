//! Rules whose breach stops the program (spec 2.9, "global validation failures").

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_common::config::expand::Env;
use evenkeel_common::config::{Findings, KeyPath, address, quote};

use super::file::{ApiFile, AuditFile, DockerHealthFile, MonitorFile, RegistryFile, StateFile};
use super::{ApiConfig, DockerHealthConfig, MonitorConfig, RegistryConfig};
use crate::image::Reference;

const DEFAULT_STATE_PATH: &str = "/var/lib/evenkeel";

/// `registry`: the URL must be one whose host can stand in an image reference.
pub(super) fn registry(file: &RegistryFile, findings: &mut Findings) -> RegistryConfig {
    let host = registry_host(&file.url).unwrap_or_else(|| {
        let at = KeyPath::of("registry.url");
        // A user name in a URL comes with a password: the text is not shown.
        let seen = if file.url.contains('@') { "a URL with a user name".to_owned() } else { quote(&file.url) };
        findings.fault(&at, format!("{seen}; allowed: http://host:port or https://host:port and nothing after it (logins come from ~/.docker/config.json)"));
        String::from("localhost:5000")
    });
    RegistryConfig {
        url: file.url.trim_end_matches('/').to_owned(),
        host,
        poll_interval: Duration::from_secs(file.poll_interval),
        insecure: file.insecure,
        concurrency: usize::try_from(file.concurrency).unwrap_or(1),
    }
}

/// Host and port as an image reference names them.
fn registry_host(url: &str) -> Option<String> {
    let (rest, default_port) = match url.split_once("://")? {
        ("http", rest) => (rest, 80),
        ("https", rest) => (rest, 443),
        _ => return None,
    };
    let host = rest.strip_suffix('/').unwrap_or(rest);
    // The engine takes a first part without dot and colon for a path at Docker Hub; a port makes it a host.
    let host = if host.contains(['.', ':']) || host == "localhost" {
        host.to_owned()
    } else {
        format!("{host}:{default_port}")
    };
    let is_host = !host.contains(['/', '@']) && Reference::parse_in("x", &host).is_ok();
    is_host.then_some(host)
}

/// `api`: addresses are `host:port`, the port is 1-65535 (the rule that the spec words as api.port).
pub(super) fn api(file: &ApiFile, findings: &mut Findings) -> ApiConfig {
    let addresses = KeyPath::of("api.address");
    for (n, address) in address::check(&file.address, &addresses, findings) {
        if !address.is_loopback() {
            let text = quote(file.address[n].as_deref().unwrap_or_default());
            findings.warn(&addresses, format!("{text} can be reached from other machines, and the API has no login; put a proxy that asks for one in front, or use 127.0.0.1"));
        }
    }
    let hosts = KeyPath::of("api.allowed_hosts");
    for (n, text) in file.allowed_hosts.iter().enumerate().filter_map(|(n, text)| Some((n, text.as_deref()?)))
    {
        if !is_host_name(text) {
            findings.fault(
                &hosts.index(n),
                format!("{}; allowed: a host name without scheme, port and wildcard", quote(text)),
            );
        }
    }
    ApiConfig {
        addresses: file.address.iter().flatten().cloned().collect(),
        allowed_hosts: file.allowed_hosts.iter().flatten().map(|host| host.to_ascii_lowercase()).collect(),
    }
}

fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    text.len() <= 253 && text.split('.').all(label)
}

/// `audit.path`: absolute, or empty.
pub(super) fn audit_path(file: &AuditFile, findings: &mut Findings) -> Option<PathBuf> {
    let path = absolute(&KeyPath::of("audit.path"), &file.path, "empty to have no audit file", findings)?;
    if path.is_dir() {
        let what = format!("{} is a folder; allowed: the absolute path of a file", quote(&file.path));
        findings.fault(&KeyPath::of("audit.path"), what);
    }
    Some(path)
}

/// `state.path`: absolute; without it what systemd gives (the first of a list), else the usual place.
pub(super) fn state_path(file: &StateFile, env: Env<'_>, findings: &mut Findings) -> PathBuf {
    let at = KeyPath::of("state.path");
    if let Some(path) = absolute(&at, &file.path, "empty for the default", findings) {
        return path;
    }
    let given = env("STATE_DIRECTORY").unwrap_or_default();
    let first = Path::new(given.split(':').next().unwrap_or_default());
    if first.is_absolute() { first.to_owned() } else { PathBuf::from(DEFAULT_STATE_PATH) }
}

fn absolute(at: &KeyPath, text: &str, or: &str, findings: &mut Findings) -> Option<PathBuf> {
    if text.is_empty() {
        return None;
    }
    if !text.starts_with('/') || text.contains('\0') {
        findings.fault(at, format!("{}; allowed: an absolute path, or {or}", quote(text)));
    }
    Some(PathBuf::from(text))
}

/// `monitor`: as often as the poll unless it is given.
pub(super) fn monitor(file: &MonitorFile, registry: &RegistryConfig) -> MonitorConfig {
    MonitorConfig { stats_interval: file.stats_interval.map_or(registry.poll_interval, Duration::from_secs) }
}

/// `docker_health`: a check must be over before the next begins.
pub(super) fn docker_health(file: &DockerHealthFile, findings: &mut Findings) -> DockerHealthConfig {
    if file.timeout >= file.check_interval
        && !findings.is_faulty(&KeyPath::of("docker_health.check_interval"))
    {
        let what = format!(
            "{} is not less than docker_health.check_interval ({}); allowed: a whole number from 1 to 30 that is less than it",
            file.timeout, file.check_interval
        );
        findings.fault(&KeyPath::of("docker_health.timeout"), what);
    }
    DockerHealthConfig {
        check_interval: Duration::from_secs(file.check_interval),
        timeout: Duration::from_secs(file.timeout),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{faults, good, parse};
    use super::*;

    #[test]
    fn an_empty_configuration_has_the_documented_defaults() {
        let config = good(&json!({}));
        assert_eq!(config.runtime, crate::config::Runtime::Docker);
        assert_eq!(
            (config.registry.url.as_str(), config.registry.host.as_str()),
            ("http://localhost:5000", "localhost:5000")
        );
        assert_eq!(config.registry.poll_interval.as_secs(), 300);
        assert_eq!((config.registry.insecure, config.registry.concurrency), (false, 8));
        assert_eq!(config.monitor.stats_interval.as_secs(), 300);
        assert_eq!(
            (config.docker_health.check_interval.as_secs(), config.docker_health.timeout.as_secs()),
            (30, 5)
        );
        assert_eq!(config.api.addresses, ["127.0.0.1:9090"]);
        assert_eq!(config.audit_path, None);
        assert_eq!(config.state_path, Path::new("/var/lib/evenkeel"));
        assert_eq!(config.notifications, crate::config::NotificationsConfig::default());
        assert_eq!(config.push, None);
        assert!(config.services.is_empty() && config.warnings.is_empty());
    }

    #[test]
    fn null_is_the_same_as_absent() {
        let tree = json!({"runtime": null, "registry": {"poll_interval": null}, "audit": null, "services": null, "notifications": {"smtp": null}});
        assert_eq!(good(&tree), good(&json!({})));
    }

    #[test]
    fn every_fatal_range_is_checked_at_both_ends() {
        for (key, name, least, most) in [
            ("registry", "poll_interval", 10, 86400),
            ("registry", "concurrency", 1, 256),
            ("monitor", "stats_interval", 1, 86400),
            ("docker_health", "check_interval", 5, 3600),
            ("docker_health", "timeout", 1, 30),
        ] {
            let with = |value: i64| {
                // The other of the pair is out of the way.
                let mut tree = json!({"docker_health": {"check_interval": 3600, "timeout": 1}});
                tree[key][name] = value.into();
                tree
            };
            for value in [least, most] {
                good(&with(value));
            }
            for value in [least - 1, most + 1, 0, -1, i64::MIN, i64::MAX] {
                let expected = format!(
                    "{key}.{name}: {value} is out of range; allowed: a whole number from {least} to {most}"
                );
                assert_eq!(faults(&with(value)), [expected]);
            }
        }
    }

    #[test]
    fn a_check_must_be_over_before_the_next_begins() {
        let of = |interval: u32, timeout: u32| json!({"docker_health": {"check_interval": interval, "timeout": timeout}});
        good(&of(6, 5));
        for (interval, timeout) in [(5, 5), (10, 30)] {
            assert_eq!(
                faults(&of(interval, timeout)),
                [format!(
                    "docker_health.timeout: {timeout} is not less than docker_health.check_interval ({interval}); allowed: a whole number from 1 to 30 that is less than it"
                )]
            );
        }
        // The default of the one is compared with the other, but not with a value that is at fault itself.
        assert_eq!(faults(&json!({"docker_health": {"check_interval": 5}})).len(), 1);
        assert_eq!(faults(&json!({"docker_health": {"check_interval": "x", "timeout": 30}})).len(), 1);
    }

    #[test]
    fn all_faults_of_a_file_are_reported_at_once() {
        let tree = json!({
            "runtime": "lxc", "registry": {"url": "ftp://x", "poll_interval": 1.5, "insecure": "no"},
            "api": {"address": ["127.0.0.1:0", 5, "a:1"], "allowed_hosts": ["http://x"]},
            "audit": {"path": "log"}, "state": {"path": "state"}, "monitor": 5,
            "docker_health": {"check_interval": 5}, "services": {},
        });
        let places: Vec<_> =
            faults(&tree).iter().map(|text| text.split(':').next().unwrap_or_default().to_owned()).collect();
        assert_eq!(
            places,
            [
                "api.address[0]",
                "api.address[1]",
                "api.address[2]",
                "api.allowed_hosts[0]",
                "audit.path",
                "docker_health.timeout",
                "monitor",
                "registry.insecure",
                "registry.poll_interval",
                "registry.url",
                "runtime",
                "services",
                "state.path",
            ]
        );
    }

    #[test]
    fn the_registry_gets_the_host_that_image_references_use() {
        for (url, host) in [
            ("http://localhost:5000", "localhost:5000"),
            ("http://localhost:5000/", "localhost:5000"),
            ("https://registry.example.com", "registry.example.com"),
            ("http://[::1]:5000", "[::1]:5000"),
            ("http://127.0.0.1", "127.0.0.1"),
            ("http://localhost", "localhost"),
            // Without dot or port the engine would look for it at Docker Hub.
            ("http://registry", "registry:80"),
            ("https://registry", "registry:443"),
        ] {
            let registry = good(&json!({"registry": {"url": url}})).registry;
            assert_eq!(registry.host, host);
            assert_eq!(registry.url, url.trim_end_matches('/'));
        }
        for url in [
            "",
            "localhost:5000",
            "ftp://x:1",
            "http://",
            "http://x:0",
            "http://x:99999",
            "http://x:1/v2/",
            "http://x:1?a",
            "http://x y",
            "http://x:1//",
        ] {
            assert_eq!(
                faults(&json!({"registry": {"url": url}})),
                [format!(
                    "registry.url: {url:?}; allowed: http://host:port or https://host:port and nothing after it (logins come from ~/.docker/config.json)"
                )]
            );
        }
        let text = faults(&json!({"registry": {"url": "https://me:hunter2@registry.example.com"}}));
        assert!(text[0].starts_with("registry.url: a URL with a user name; allowed"), "{text:?}");
    }

    #[test]
    fn listen_addresses_are_host_and_port() {
        for (text, loopback) in [
            ("127.0.0.1:9090", true),
            ("localhost:1", true),
            ("LOCALHOST:1", true),
            ("[::1]:65535", true),
            ("[::ffff:127.0.0.1]:80", true),
            ("127.9.9.9:80", true),
            ("0.0.0.0:80", false),
            (":80", false),
            ("[::]:80", false),
            ("192.168.1.5:80", false),
        ] {
            let config = good(&json!({"api": {"address": [text]}}));
            assert_eq!(config.api.addresses, [text]);
            let warning = format!(
                "api.address: {text:?} can be reached from other machines, and the API has no login; put a proxy that asks for one in front, or use 127.0.0.1"
            );
            assert_eq!(config.warnings, if loopback { vec![] } else { vec![warning] });
        }
        for (text, why) in [
            ("", "has no port"),
            ("127.0.0.1", "has no port"),
            ("9090", "has no port"),
            ("127.0.0.1:", "has no port from 1 to 65535"),
            ("127.0.0.1:0", "has no port from 1 to 65535"),
            ("127.0.0.1:65536", "has no port from 1 to 65535"),
            ("127.0.0.1:+80", "has no port from 1 to 65535"),
            ("127.0.0.1:-1", "has no port from 1 to 65535"),
            ("127.0.0.1:http", "has no port from 1 to 65535"),
            ("example.com:80", "has another kind of host"),
            ("*:80", "has another kind of host"),
            ("127.0.0.1.5:80", "has another kind of host"),
            (" :80", "has another kind of host"),
            ("::1:80", "has an IPv6 address without brackets"),
            ("http://localhost:80", "has an IPv6 address without brackets"),
            ("[::1]", "has an IPv6 address without brackets"),
            ("[127.0.0.1]:80", "has no IPv6 address in the brackets"),
            ("[fe80::1%eth0]:80", "has no IPv6 address in the brackets"),
        ] {
            let fault = faults(&json!({"api": {"address": [text]}}));
            assert!(
                fault.len() == 1
                    && fault[0].starts_with(&format!("api.address[0]: {text:?} {why}; allowed: host:port")),
                "{fault:?}"
            );
        }
    }

    #[test]
    fn an_address_stands_only_once_however_it_is_written() {
        for pair in [
            ["localhost:9090", "localhost:9090"],
            ["LocalHost:1", "localhost:01"],
            ["[::1]:1", "[0:0::1]:1"],
            [":1", ":1"],
        ] {
            assert_eq!(
                faults(&json!({"api": {"address": pair}})),
                [format!(
                    "api.address[1]: {:?} stands there more than once; allowed: each address once",
                    pair[1]
                )]
            );
        }
        good(&json!({"api": {"address": ["127.0.0.1:1", "[::1]:1", "127.0.0.1:2"]}}));
    }

    #[test]
    fn another_shape_of_the_address_says_what_is_allowed() {
        let of = |api: serde_json::Value| faults(&json!({"api": api}));
        assert_eq!(
            of(json!({"address": "127.0.0.1:9090"})),
            ["api.address: \"127.0.0.1:9090\"; allowed: an array of strings"]
        );
        assert_eq!(
            of(json!({"address": []})),
            ["api.address: is an empty array; allowed: an array of strings"]
        );
        let migrate = of(json!({"port": "9090", "address": "0.0.0.0"}));
        assert_eq!(migrate.len(), 2);
        assert!(
            migrate[1]
                .starts_with("api.port: was replaced by api.address; write \"address\": [\"<host>:<port>\"]"),
            "{migrate:?}"
        );
    }

    #[test]
    fn allowed_hosts_are_names() {
        let config = good(&json!({"api": {"allowed_hosts": ["Updates.Example.com", "box"]}}));
        assert_eq!(config.api.allowed_hosts, ["updates.example.com", "box"]);
        for text in ["", "a:80", "http://a", "*.example.com", "a..b", "a b"] {
            assert_eq!(
                faults(&json!({"api": {"allowed_hosts": [text]}})),
                [format!(
                    "api.allowed_hosts[0]: {text:?}; allowed: a host name without scheme, port and wildcard"
                )]
            );
        }
    }

    #[test]
    fn paths_of_files_that_we_write_are_absolute() {
        let config = good(&json!({"audit": {"path": "/var/log/a.jsonl"}, "state": {"path": "/srv/s"}}));
        assert_eq!(config.audit_path.as_deref(), Some(Path::new("/var/log/a.jsonl")));
        assert_eq!(config.state_path, Path::new("/srv/s"));
        assert_eq!(
            faults(&json!({"audit": {"path": "a"}})),
            ["audit.path: \"a\"; allowed: an absolute path, or empty to have no audit file"]
        );
        assert_eq!(
            faults(&json!({"audit": {"path": "/tmp"}})),
            ["audit.path: \"/tmp\" is a folder; allowed: the absolute path of a file"]
        );
        assert_eq!(
            faults(&json!({"state": {"path": "./s"}})),
            ["state.path: \"./s\"; allowed: an absolute path, or empty for the default"]
        );
    }

    #[test]
    fn the_state_folder_is_the_first_that_the_service_manager_gives() {
        for (given, expected) in [
            ("/run/a:/run/b", "/run/a"),
            ("/run/a", "/run/a"),
            ("", "/var/lib/evenkeel"),
            ("relative", "/var/lib/evenkeel"),
        ] {
            let env = |name: &str| (name == "STATE_DIRECTORY").then(|| given.to_owned());
            assert_eq!(parse(&json!({}), &env).unwrap().state_path, Path::new(expected));
            assert_eq!(
                parse(&json!({"state": {"path": "/srv/s"}}), &env).unwrap().state_path,
                Path::new("/srv/s")
            );
        }
    }
}
