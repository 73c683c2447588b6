//! Rules of `api`: the listen addresses and the allowed host names.

use evenkeel_common::config::{Findings, KeyPath, address, quote};
use evenkeel_common::http::BasePath;

use super::ApiConfig;
use super::file::ApiFile;

/// `api`: addresses are `host:port`, the port is 1-65535 (the rule that the spec words as api.port).
pub(super) fn api(file: &ApiFile, findings: &mut Findings) -> ApiConfig {
    let addresses = KeyPath::of("api.address");
    let good = address::check(&file.address, &addresses, findings);
    let has_port = |text: &str| text.rsplit_once(':').is_some_and(|(_, port)| address::port(port).is_some());
    // The spec's rule covers only ports. An entry with another fault does not affect the others.
    if !good.is_empty() {
        for (n, text) in file.address.iter().enumerate() {
            if text.as_deref().is_none_or(|text| has_port(text) && address::parse(text).is_err()) {
                for fault in findings.take_faults(&addresses.index(n)) {
                    findings.warn(&fault.at, format!("{} (address ignored)", fault.message));
                }
            }
        }
    }
    for (n, address) in &good {
        if !address.is_loopback() {
            let text = quote(file.address[*n].as_deref().unwrap_or_default());
            findings.warn(&addresses, format!("{text} can be reached from other machines, and the API has no authentication; put an authenticating proxy in front, or use 127.0.0.1"));
        }
    }
    let hosts = KeyPath::of("api.allowed_hosts");
    for (n, text) in file.allowed_hosts.iter().enumerate().filter_map(|(n, text)| Some((n, text.as_deref()?)))
    {
        if !is_host_name(text) {
            findings.warn(
                &hosts.index(n),
                format!("{}; allowed: a host name without scheme, port or wildcard (ignored)", quote(text)),
            );
        }
    }
    let hosts = file.allowed_hosts.iter().flatten().filter(|host| is_host_name(host));
    ApiConfig {
        addresses: good.iter().filter_map(|(n, _)| file.address[*n].clone()).collect(),
        allowed_hosts: hosts.map(|host| host.to_ascii_lowercase()).collect(),
        base_path: base_path(&file.base_path, findings),
    }
}

fn base_path(text: &str, findings: &mut Findings) -> BasePath {
    BasePath::parse(text).unwrap_or_else(|allowed| {
        let at = KeyPath::of("api.base_path");
        findings.warn(&at, format!("{}; allowed: {allowed} (ignored)", quote(text)));
        BasePath::default()
    })
}

fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    text.len() <= 253 && text.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{faults, good};

    #[test]
    fn an_invalid_address_is_ignored_if_another_one_is_valid() {
        let config = good(&json!({"api": {"address": ["127.0.0.1:1", "example.com:80", 5]}}));
        assert_eq!(config.api.addresses, ["127.0.0.1:1"]);
        assert!(
            config.warnings.len() == 2
                && config.warnings.iter().all(|text| text.ends_with("(address ignored)")),
            "{:?}",
            config.warnings
        );
        // The specification's rule covers only ports.
        for port in ["0", "65536", "http", ""] {
            let found = faults(&json!({"api": {"address": ["127.0.0.1:1", format!("127.0.0.1:{port}")]}}));
            assert_eq!(found.len(), 1, "{found:?}");
        }
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
                "api.address: {text:?} can be reached from other machines, and the API has no authentication; put an authenticating proxy in front, or use 127.0.0.1"
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
            ("example.com:80", "has an invalid host"),
            ("*:80", "has an invalid host"),
            ("127.0.0.1.5:80", "has an invalid host"),
            (" :80", "has an invalid host"),
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
    fn of_two_equivalent_addresses_the_first_is_used_and_the_other_is_reported() {
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
                "api.address[1]: {:?} is ignored because it overlaps with {:?}; allowed: each address once",
                pair[1], pair[0]
            );
            assert!(config.warnings.contains(&warning), "{pair:?}: {:?}", config.warnings);
        }
        for distinct in [
            vec!["127.0.0.1:1", "[::1]:1", "127.0.0.1:2"],
            vec!["0.0.0.0:1", "[::]:1"],
            vec!["0.0.0.0:1", "[::1]:1"],
            vec!["localhost:1", "192.168.1.5:1"],
        ] {
            assert_eq!(good(&json!({"api": {"address": distinct}})).api.addresses, distinct);
        }
    }

    #[test]
    fn a_fault_in_the_shape_of_address_says_what_is_allowed() {
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
    fn a_base_path_is_a_plain_path() {
        let config = good(&json!({"api": {"base_path": "/tools/evenkeel/"}}));
        assert_eq!((config.api.base_path.as_str(), config.warnings.len()), ("/tools/evenkeel", 0));
        assert_eq!(good(&json!({"api": {}})).api.base_path.as_str(), "");
        let config = good(&json!({"api": {"base_path": "evenkeel"}}));
        assert_eq!(config.api.base_path.as_str(), "");
        let warning = config
            .warnings
            .iter()
            .find(|warning| warning.starts_with("api.base_path: \"evenkeel\"; allowed: "));
        assert!(warning.is_some_and(|warning| warning.ends_with("(ignored)")), "{:?}", config.warnings);
    }

    #[test]
    fn allowed_hosts_are_host_names() {
        let config = good(&json!({"api": {"allowed_hosts": ["Updates.Example.com", "box"]}}));
        assert_eq!(config.api.allowed_hosts, ["updates.example.com", "box"]);
        for text in ["", "a:80", "http://a", "*.example.com", "a..b", "a b"] {
            let config = good(&json!({"api": {"allowed_hosts": [text, "box"]}}));
            assert_eq!(
                config.warnings,
                [format!(
                    "api.allowed_hosts[0]: {text:?}; allowed: a host name without scheme, port or wildcard (ignored)"
                )]
            );
            assert_eq!(config.api.allowed_hosts, ["box"]);
        }
    }
}
