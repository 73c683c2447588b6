//! Rules of the global sections (spec 2.9). Only violations of the rules that the spec lists as "global validation failures"
//! are fatal; for any other one, the setting is ignored with a warning and the rest runs (DECISIONS 6).

use std::time::Duration;

use evenkeel_common::config::{Finding, Findings, KeyPath, quote};

use super::file::{DockerHealthFile, MonitorFile, RegistryFile};
use super::{DockerHealthConfig, MonitorConfig, RegistryConfig};
use crate::model::image::{HUB, Reference};

/// Default of `docker_health.timeout` in seconds, if `check_interval` is longer.
const DEFAULT_TIMEOUT: u64 = 5;

/// Hosts of Docker Hub's website and APIs, which people take for its registry.
const HOSTS_OF_HUB: [&str; 6] = [
    HUB,
    "index.docker.io",
    "registry-1.docker.io",
    "hub.docker.com",
    "registry.hub.docker.com",
    "www.docker.com",
];

/// The keys whose faults are fatal: those that the spec lists, and those that leave no address to listen on.
const FATAL: [&str; 6] = [
    "runtime",
    "registry.poll_interval",
    "docker_health.check_interval",
    "docker_health.timeout",
    "api.address",
    "api.port",
];

/// Turns non-fatal faults into warnings; the key is treated as absent.
pub(super) fn keep_only_fatal(findings: &mut Findings) {
    for Finding { at, message } in findings.take_faults(&KeyPath::root()) {
        if at == KeyPath::root() || FATAL.iter().any(|key| at.is_under(&KeyPath::of(key))) {
            findings.fault(&at, message);
        } else if at.is_under(&KeyPath::of("services")) {
            findings.warn(&at, format!("{message} (no service is watched)"));
        } else if at.is_under(&KeyPath::of("notifications")) {
            findings.warn(&at, format!("{message} (all channels are off)"));
        } else {
            findings.warn(&at, format!("{message} (the default is used)"));
        }
    }
}

/// `registry`: the host of the URL must be valid in an image reference.
pub(super) fn registry(file: &RegistryFile, findings: &mut Findings) -> RegistryConfig {
    let (mut url, mut host) = (file.url.trim_end_matches('/').to_owned(), registry_host(&file.url));
    if host.is_none() {
        let at = KeyPath::of("registry.url");
        // A user name in a URL usually comes with a password, so the URL is not shown.
        let seen =
            if file.url.contains('@') { "a URL with a user name".to_owned() } else { quote(&file.url) };
        findings.fault(&at, format!("{seen}; allowed: http://host:port or https://host:port and nothing after it (credentials come from ~/.docker/config.json)"));
        url = RegistryFile::default().url;
        host = registry_host(&url);
    }
    if host.as_deref().is_some_and(is_hub) {
        (url, host) = ("https://registry-1.docker.io".to_owned(), Some(HUB.to_owned()));
    }
    RegistryConfig {
        url,
        host: host.unwrap_or_default(),
        poll_interval: Duration::from_secs(file.poll_interval),
        insecure: file.insecure,
        concurrency: usize::try_from(file.concurrency).unwrap_or(1),
    }
}

/// Returns host and port as they appear in image references.
fn registry_host(url: &str) -> Option<String> {
    let (rest, default_port) = match url.split_once("://")? {
        ("http", rest) => (rest, 80),
        ("https", rest) => (rest, 443),
        _ => return None,
    };
    let host = rest.strip_suffix('/').unwrap_or(rest);
    // The engine takes a first component without dot or colon for a path on Docker Hub; a port makes it a host.
    let host = if host.contains(['.', ':']) || host == "localhost" {
        host.to_owned()
    } else {
        format!("{host}:{default_port}")
    };
    let is_host = !host.contains(['/', '@']) && Reference::parse_in("x", &host).is_ok();
    is_host.then_some(host)
}

/// Reports whether a URL names Docker Hub, in whatever way: its images have one name, and its registry has one address.
fn is_hub(host: &str) -> bool {
    let name = host.strip_suffix(":443").or_else(|| host.strip_suffix(":80")).unwrap_or(host);
    HOSTS_OF_HUB.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// `monitor`: the interval defaults to the poll interval.
pub(super) fn monitor(
    file: &MonitorFile,
    registry: &RegistryConfig,
    findings: &mut Findings,
) -> MonitorConfig {
    let at = KeyPath::of("monitor.stats_interval");
    // In files of the predecessor, 0 means "same as the poll interval" (DECISIONS 3).
    for fault in findings.take_faults(&at) {
        let seconds = registry.poll_interval.as_secs();
        let cost =
            format!("CPU and memory are measured every {seconds} s, as often as the registry is polled");
        findings.warn(&at, format!("{} ({cost})", fault.message));
    }
    MonitorConfig { stats_interval: file.stats_interval.map_or(registry.poll_interval, Duration::from_secs) }
}

/// `docker_health`: a check must time out before the next one begins.
pub(super) fn docker_health(file: &DockerHealthFile, findings: &mut Findings) -> DockerHealthConfig {
    let timeout = file.timeout.unwrap_or_else(|| DEFAULT_TIMEOUT.min(file.check_interval - 1));
    if timeout >= file.check_interval && !findings.is_faulty(&KeyPath::of("docker_health.check_interval")) {
        let what = format!(
            "{timeout} is not less than docker_health.check_interval ({}); allowed: a whole number from 1 to 30 that is less than it",
            file.check_interval
        );
        findings.fault(&KeyPath::of("docker_health.timeout"), what);
    }
    DockerHealthConfig {
        check_interval: Duration::from_secs(file.check_interval),
        timeout: Duration::from_secs(timeout),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::super::Config;
    use super::super::testing::{faults, good, parse};

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
        let absent = good(&json!({}));
        assert_eq!(Config { text_hash: absent.text_hash, ..good(&tree) }, absent);
    }

    #[test]
    fn every_range_is_checked_at_both_ends_and_only_those_of_the_specification_are_fatal() {
        let measured = "CPU and memory are measured every 300 s, as often as the registry is polled";
        for (key, name, least, most, otherwise) in [
            ("registry", "poll_interval", 10, 86400, None),
            ("registry", "concurrency", 1, 256, Some("the default is used")),
            ("monitor", "stats_interval", 1, 86400, Some(measured)),
            ("docker_health", "check_interval", 5, 3600, None),
            ("docker_health", "timeout", 1, 30, None),
        ] {
            let with = |value: i64| {
                // Keep the other value of the pair valid.
                let mut tree = json!({"docker_health": {"check_interval": 3600, "timeout": 1}});
                tree[key][name] = value.into();
                tree
            };
            for value in [least, most] {
                good(&with(value));
            }
            for value in [least - 1, most + 1, 0, -1, i64::MIN, i64::MAX] {
                let range = match name {
                    "concurrency" => format!("a whole number from {least} to {most}"),
                    _ => format!(
                        "a whole number of seconds from {least} to {most}, or a duration such as \"90s\", \"15m\", \"12h\", \"3d\""
                    ),
                };
                let expected = format!("{key}.{name}: {value} is out of range; allowed: {range}");
                match otherwise {
                    None => assert_eq!(faults(&with(value)), [expected]),
                    Some(otherwise) => {
                        let config = good(&with(value));
                        assert_eq!(config.warnings, [format!("{expected} ({otherwise})")]);
                        assert_eq!(config.registry, good(&json!({})).registry);
                        assert_eq!(config.monitor, good(&json!({})).monitor);
                    }
                }
            }
        }
    }

    #[test]
    fn a_check_must_time_out_before_the_next_one_begins() {
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
        // The default is less than the interval.
        for (interval, timeout) in [(5, 4), (6, 5), (3600, 5)] {
            let config = good(&json!({"docker_health": {"check_interval": interval}}));
            assert_eq!(config.docker_health.timeout.as_secs(), timeout);
        }
        assert_eq!(faults(&json!({"docker_health": {"check_interval": "x", "timeout": 30}})).len(), 1);
    }

    #[test]
    fn all_faults_are_reported_together_and_only_those_of_the_specification_are_fatal() {
        let mut tree = json!({
            "runtime": "lxc", "registry": {"url": "ftp://x", "poll_interval": 1.5, "insecure": "no"},
            "api": {"address": ["127.0.0.1:0", 5, "a:1"], "allowed_hosts": ["http://x"]},
            "audit": {"path": "log"}, "state": {"path": "state"}, "monitor": 5,
            "docker_health": {"check_interval": 5, "timeout": 5}, "services": {},
        });
        let places = |texts: &[String]| -> Vec<String> {
            texts.iter().map(|text| text.split(':').next().unwrap_or_default().to_owned()).collect()
        };
        assert_eq!(
            places(&faults(&tree)),
            [
                "api.address[0]",
                "api.address[1]",
                "api.address[2]",
                "docker_health.timeout",
                "registry.poll_interval",
                "runtime",
            ]
        );
        let others = [
            "api.allowed_hosts[0]",
            "audit.path",
            "monitor",
            "registry.insecure",
            "registry.url",
            "services",
            "state.path",
        ];
        assert_eq!(places(parse(&tree, &|_| None).unwrap_err().warnings()), others);
        tree["runtime"] = json!("podman");
        tree["registry"]["poll_interval"] = json!(60);
        tree["api"]["address"] = json!(["127.0.0.1:1"]);
        tree["docker_health"]["check_interval"] = json!(6);
        let config = good(&tree);
        assert_eq!(places(&config.warnings), others);
        assert_eq!(config.registry.url, "http://localhost:5000");
        assert_eq!(config.registry.poll_interval.as_secs(), 60);
        assert_eq!((config.audit_path, config.state_path), (None, "/var/lib/evenkeel".into()));
        assert!(config.api.allowed_hosts.is_empty() && config.services.is_empty());
    }

    #[test]
    fn a_section_of_a_wrong_type_is_ignored_with_a_warning() {
        for (tree, expected) in [
            (json!({"services": 5}), "services: 5; allowed: an array of objects (no service is watched)"),
            (
                json!({"notifications": 5}),
                "notifications: a number; allowed: an object (all channels are off)",
            ),
            (json!({"registry": 5}), "registry: a number; allowed: an object (the default is used)"),
            (json!({"api": true}), "api: a boolean; allowed: an object (the default is used)"),
        ] {
            assert_eq!(good(&tree).warnings, [expected]);
        }
    }

    #[test]
    fn the_registry_host_is_the_one_in_image_references() {
        for (url, host) in [
            ("http://localhost:5000", "localhost:5000"),
            ("http://localhost:5000/", "localhost:5000"),
            ("https://registry.example.com", "registry.example.com"),
            ("http://[::1]:5000", "[::1]:5000"),
            ("http://127.0.0.1", "127.0.0.1"),
            ("http://localhost", "localhost"),
            // Without dot or port the engine would look for it on Docker Hub.
            ("http://registry", "registry:80"),
            ("https://registry", "registry:443"),
        ] {
            let registry = good(&json!({"registry": {"url": url}})).registry;
            assert_eq!(registry.host, host);
            assert_eq!(registry.url, url.trim_end_matches('/'));
        }
        for hub in [
            "https://docker.io",
            "https://index.docker.io/",
            "https://registry-1.docker.io",
            "https://registry-1.docker.io:443",
            "http://docker.io",
            "https://Hub.Docker.com",
            "https://registry.hub.docker.com",
        ] {
            let registry = good(&json!({"registry": {"url": hub}})).registry;
            let expected = ("docker.io", "https://registry-1.docker.io");
            assert_eq!((registry.host.as_str(), registry.url.as_str()), expected, "{hub}");
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
            let config = good(&json!({"registry": {"url": url}}));
            assert_eq!(
                config.warnings,
                [format!(
                    "registry.url: {url:?}; allowed: http://host:port or https://host:port and nothing after it (credentials come from ~/.docker/config.json) (the default is used)"
                )]
            );
            assert_eq!(
                (config.registry.url.as_str(), config.registry.host.as_str()),
                ("http://localhost:5000", "localhost:5000")
            );
        }
        let text = good(&json!({"registry": {"url": "https://me:hunter2@registry.example.com"}})).warnings;
        assert!(text[0].starts_with("registry.url: a URL with a user name; allowed"), "{text:?}");
    }
}
