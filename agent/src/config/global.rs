//! Rules of the parts that are no service and no channel (spec 2.9). Only those that the spec lists as "global validation
//! failures" stop the program; what breaks another one is left out with a warning, and the rest runs (DECISIONS 6).

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_common::config::expand::Env;
use evenkeel_common::config::{Finding, Findings, KeyPath, address, quote};
use evenkeel_common::permissions::weaknesses;

use super::file::{ApiFile, AuditFile, DockerHealthFile, MonitorFile, RegistryFile, StateFile};
use super::{ApiConfig, DockerHealthConfig, MonitorConfig, RegistryConfig};
use crate::model::image::Reference;

const DEFAULT_STATE_PATH: &str = "/var/lib/evenkeel";

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

/// `api`: addresses are `host:port`, the port is 1-65535 (the rule that the spec words as api.port).
pub(super) fn api(file: &ApiFile, findings: &mut Findings) -> ApiConfig {
    let addresses = KeyPath::of("api.address");
    let good = address::check(&file.address, &addresses, findings);
    let has_port = |text: &str| text.rsplit_once(':').is_some_and(|(_, port)| address::port(port).is_some());
    // The spec's rule is about ports. An entry that is wrong in another way leaves the others.
    if !good.is_empty() {
        for (n, text) in file.address.iter().enumerate() {
            if text.as_deref().is_none_or(|text| has_port(text) && address::parse(text).is_err()) {
                for fault in findings.take_faults(&addresses.index(n)) {
                    findings.warn(&fault.at, format!("{} (not listened on)", fault.what));
                }
            }
        }
    }
    for (n, address) in &good {
        if !address.is_loopback() {
            let text = quote(file.address[*n].as_deref().unwrap_or_default());
            findings.warn(&addresses, format!("{text} can be reached from other machines, and the API has no login; put a proxy that asks for one in front, or use 127.0.0.1"));
        }
    }
    let hosts = KeyPath::of("api.allowed_hosts");
    for (n, text) in file.allowed_hosts.iter().enumerate().filter_map(|(n, text)| Some((n, text.as_deref()?)))
    {
        if !is_host_name(text) {
            findings.warn(
                &hosts.index(n),
                format!("{}; allowed: a host name without scheme, port and wildcard (left out)", quote(text)),
            );
        }
    }
    let hosts = file.allowed_hosts.iter().flatten().filter(|host| is_host_name(host));
    ApiConfig {
        addresses: good.iter().filter_map(|(n, _)| file.address[*n].clone()).collect(),
        allowed_hosts: hosts.map(|host| host.to_ascii_lowercase()).collect(),
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
    let at = KeyPath::of("audit.path");
    let path = absolute(&at, &file.path, "empty to have no audit file", "there is no audit file", findings)?;
    if path.is_dir() {
        let what = format!(
            "{} is a folder; allowed: the absolute path of a file (there is no audit file)",
            quote(&file.path)
        );
        findings.warn(&at, what);
        return None;
    }
    if path.is_symlink() {
        findings.warn(
            &at,
            format!(
                "{} is a symbolic link and is not written to; name the file that it leads to",
                quote(&file.path)
            ),
        );
    }
    warn_of_weaknesses(&at, &path, "who can change it can forge or remove entries", findings);
    Some(path)
}

/// `state.path`: absolute; without it what systemd gives (the first of a list), else the usual place.
pub(super) fn state_path(file: &StateFile, env: Env<'_>, findings: &mut Findings) -> PathBuf {
    let at = KeyPath::of("state.path");
    let path = absolute(&at, &file.path, "empty for the default", "the default is used", findings);
    let path = path.unwrap_or_else(|| {
        let given = env("STATE_DIRECTORY").unwrap_or_default();
        let first = Path::new(given.split(':').next().unwrap_or_default());
        if first.is_absolute() { first.to_owned() } else { PathBuf::from(DEFAULT_STATE_PATH) }
    });
    warn_of_weaknesses(
        &at,
        &path,
        "who can change it decides what the agent believes to have deployed",
        findings,
    );
    path
}

/// Says who besides root can change the configuration file itself.
pub(super) fn check_file(path: &Path, findings: &mut Findings) {
    if let Ok(path) = std::path::absolute(path) {
        let consequence = "who can change it controls this machine";
        warn_of_weaknesses(&KeyPath::root(), &path, consequence, findings);
    }
}

fn warn_of_weaknesses(at: &KeyPath, path: &Path, consequence: &str, findings: &mut Findings) {
    for weakness in weaknesses(path) {
        findings.warn(at, format!("{weakness}; {consequence}"));
    }
}

/// The path, where it is one that can be used.
fn absolute(
    at: &KeyPath,
    text: &str,
    or: &str,
    consequence: &str,
    findings: &mut Findings,
) -> Option<PathBuf> {
    if text.is_empty() {
        return None;
    }
    if !text.starts_with('/') || text.contains('\0') {
        findings.warn(at, format!("{}; allowed: an absolute path, or {or} ({consequence})", quote(text)));
        return None;
    }
    Some(PathBuf::from(text))
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
    use evenkeel_common::config::Configuration as _;
    use serde_json::json;

    use super::super::testing::{faults, good, parse};
    use super::*;
    use crate::config::Config;

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
        assert_eq!((config.audit_path, config.state_path), (None, PathBuf::from(DEFAULT_STATE_PATH)));
        assert!(config.api.allowed_hosts.is_empty() && config.services.is_empty());
    }

    #[test]
    fn an_address_that_is_none_is_left_out_while_another_one_is_there() {
        let config = good(&json!({"api": {"address": ["127.0.0.1:1", "example.com:80", 5]}}));
        assert_eq!(config.api.addresses, ["127.0.0.1:1"]);
        assert!(
            config.warnings.len() == 2
                && config.warnings.iter().all(|text| text.ends_with("(not listened on)")),
            "{:?}",
            config.warnings
        );
        // The specification's rule is about ports.
        for port in ["0", "65536", "http", ""] {
            let found = faults(&json!({"api": {"address": ["127.0.0.1:1", format!("127.0.0.1:{port}")]}}));
            assert_eq!(found.len(), 1, "{found:?}");
        }
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
    fn of_two_addresses_that_mean_the_same_the_first_stays_and_the_other_is_named() {
        for pair in [
            ["localhost:9090", "localhost:9090"],
            ["LocalHost:1", "localhost:01"],
            ["localhost:1", "127.0.0.1:1"],
            ["127.0.0.1:1", "localhost:1"],
            ["[::1]:1", "localhost:1"],
            ["[::1]:1", "[0:0::1]:1"],
            ["127.0.0.1:1", "[::ffff:127.0.0.1]:1"],
            [":1", ":1"],
            [":1", "0.0.0.0:1"],
            ["[::]:1", ":1"],
            ["0.0.0.0:1", "127.0.0.1:1"],
            ["192.168.1.5:1", ":1"],
            ["[::]:1", "127.0.0.1:1"],
        ] {
            let config = good(&json!({"api": {"address": pair}}));
            assert_eq!(config.api.addresses, [pair[0]], "{pair:?}");
            let warning = format!(
                "api.address[1]: {:?} is left out, since {:?} listens there already; allowed: each address once",
                pair[1], pair[0]
            );
            assert!(config.warnings.contains(&warning), "{pair:?}: {:?}", config.warnings);
        }
        for apart in [
            vec!["127.0.0.1:1", "[::1]:1", "127.0.0.1:2"],
            vec!["0.0.0.0:1", "[::]:1"],
            vec!["0.0.0.0:1", "[::1]:1"],
            vec!["localhost:1", "192.168.1.5:1"],
        ] {
            assert_eq!(good(&json!({"api": {"address": apart}})).api.addresses, apart);
        }
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
            let config = good(&json!({"api": {"allowed_hosts": [text, "box"]}}));
            assert_eq!(
                config.warnings,
                [format!(
                    "api.allowed_hosts[0]: {text:?}; allowed: a host name without scheme, port and wildcard (left out)"
                )]
            );
            assert_eq!(config.api.allowed_hosts, ["box"]);
        }
    }

    #[test]
    fn paths_of_files_that_we_write_are_absolute() {
        let config = good(&json!({"audit": {"path": "/var/log/a.jsonl"}, "state": {"path": "/srv/s"}}));
        assert_eq!(config.audit_path.as_deref(), Some(Path::new("/var/log/a.jsonl")));
        assert_eq!(config.state_path, Path::new("/srv/s"));
        assert_eq!(
            good(&json!({"audit": {"path": "a"}})).warnings,
            [
                "audit.path: \"a\"; allowed: an absolute path, or empty to have no audit file (there is no audit file)"
            ]
        );
        assert_eq!(
            good(&json!({"audit": {"path": "/tmp"}})).warnings,
            [
                "audit.path: \"/tmp\" is a folder; allowed: the absolute path of a file (there is no audit file)"
            ]
        );
        assert_eq!(
            good(&json!({"state": {"path": "./s"}})).warnings,
            [
                "state.path: \"./s\"; allowed: an absolute path, or empty for the default (the default is used)"
            ]
        );
    }

    #[test]
    fn whoever_can_write_state_audit_or_configuration_is_warned_of_with_the_path() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::write(open.join("c.json"), "").unwrap();
        std::fs::set_permissions(open.join("c.json"), std::fs::Permissions::from_mode(0o644)).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        let weak = format!("the folder {open:?} can be changed by anybody (mode 0777)");
        let tree = json!({"audit": {"path": open.join("a.jsonl")}, "state": {"path": open.join("s")}});
        assert_eq!(
            good(&tree).warnings,
            [
                format!("audit.path: {weak}; who can change it can forge or remove entries"),
                format!(
                    "state.path: {weak}; who can change it decides what the agent believes to have deployed"
                ),
            ]
        );
        let config = Config::parse("{}", &open.join("c.json"), &|_| None).unwrap();
        assert_eq!(config.warnings, [format!("{weak}; who can change it controls this machine")]);
        let link = folder.path().join("link.jsonl");
        symlink(folder.path().join("real.jsonl"), &link).unwrap();
        assert_eq!(
            good(&json!({"audit": {"path": link}})).warnings,
            [format!(
                "audit.path: {link:?} is a symbolic link and is not written to; name the file that it leads to"
            )]
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
