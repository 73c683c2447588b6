//! Rules of the parts that are no service and no channel (spec 2.9). Only those that the spec lists as "global validation
//! failures" stop the program; what breaks another one is left out with a warning, and the rest runs (DECISIONS 6).

use std::time::Duration;

use evenkeel_common::config::{Finding, Findings, KeyPath, quote};

use super::file::{DockerHealthFile, MonitorFile, RegistryFile};
use super::{DockerHealthConfig, MonitorConfig, RegistryConfig};
use crate::model::image::Reference;

/// The keys whose faults stop the program: the rules that the spec lists, and what leaves nothing to listen on.
const FATAL: [&str; 6] = [
    "runtime",
    "registry.poll_interval",
    "docker_health.check_interval",
    "docker_health.timeout",
    "api.address",
    "api.port",
];

/// Makes warnings of the faults that stop nothing: the key counts as if it were not there.
pub(super) fn keep_only_fatal(findings: &mut Findings) {
    for Finding { at, what } in findings.take_faults(&KeyPath::root()) {
        if at == KeyPath::root() || FATAL.iter().any(|key| at.is_under(&KeyPath::of(key))) {
            findings.fault(&at, what);
        } else if at.is_under(&KeyPath::of("services")) {
            findings.warn(&at, format!("{what} (no service is watched)"));
        } else if at.is_under(&KeyPath::of("notifications")) {
            findings.warn(&at, format!("{what} (all channels are off)"));
        } else {
            findings.warn(&at, format!("{what} (the default is used)"));
        }
    }
}

/// `registry`: the URL must be one whose host can stand in an image reference.
pub(super) fn registry(file: &RegistryFile, findings: &mut Findings) -> RegistryConfig {
    let (mut url, mut host) = (file.url.trim_end_matches('/').to_owned(), registry_host(&file.url));
    if host.is_none() {
        let at = KeyPath::of("registry.url");
        // A user name in a URL comes with a password: the text is not shown.
        let seen =
            if file.url.contains('@') { "a URL with a user name".to_owned() } else { quote(&file.url) };
        findings.fault(&at, format!("{seen}; allowed: http://host:port or https://host:port and nothing after it (logins come from ~/.docker/config.json)"));
        url = RegistryFile::default().url;
        host = registry_host(&url);
    }
    RegistryConfig {
        url,
        host: host.unwrap_or_default(),
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

/// `monitor`: as often as the poll unless it is given.
pub(super) fn monitor(
    file: &MonitorFile,
    registry: &RegistryConfig,
    findings: &mut Findings,
) -> MonitorConfig {
    let at = KeyPath::of("monitor.stats_interval");
    // Files of the predecessor have a 0 there for "as often as the poll" (DECISIONS 3).
    for fault in findings.take_faults(&at) {
        let seconds = registry.poll_interval.as_secs();
        let cost =
            format!("CPU and memory are measured every {seconds} s, as often as the registry is polled");
        findings.warn(&at, format!("{} ({cost})", fault.what));
    }
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
    use std::path::Path;

    use serde_json::json;

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
        assert_eq!(good(&tree), good(&json!({})));
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
    fn all_that_is_wrong_is_reported_at_once_and_only_what_the_specification_names_is_fatal() {
        let mut tree = json!({
            "runtime": "lxc", "registry": {"url": "ftp://x", "poll_interval": 1.5, "insecure": "no"},
            "api": {"address": ["127.0.0.1:0", 5, "a:1"], "allowed_hosts": ["http://x"]},
            "audit": {"path": "log"}, "state": {"path": "state"}, "monitor": 5,
            "docker_health": {"check_interval": 5}, "services": {},
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
    fn a_part_of_another_type_is_left_out_with_what_that_means() {
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
            let config = good(&json!({"registry": {"url": url}}));
            assert_eq!(
                config.warnings,
                [format!(
                    "registry.url: {url:?}; allowed: http://host:port or https://host:port and nothing after it (logins come from ~/.docker/config.json) (the default is used)"
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
