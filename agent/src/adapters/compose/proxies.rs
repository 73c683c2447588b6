//! The proxies that docker's configuration has compose set in new containers (`proxies` in `config.json`).

use std::collections::BTreeMap;

use serde_json::Value;

/// The keys of the configuration, and the variables, which are set in lower case as well.
const VARIABLES: [(&str, &str); 5] = [
    ("httpProxy", "HTTP_PROXY"),
    ("httpsProxy", "HTTPS_PROXY"),
    ("noProxy", "NO_PROXY"),
    ("ftpProxy", "FTP_PROXY"),
    ("allProxy", "ALL_PROXY"),
];

/// Returns the variables that this configuration sets in new containers of the engine at this address.
pub(super) fn of_config(config: &Value, endpoint: &str) -> BTreeMap<String, String> {
    let all = config.get("proxies");
    let of_engine = |name: &str| all.and_then(|all| all.get(name));
    let chosen = of_engine(endpoint).or_else(|| of_engine("default"));
    let mut variables = BTreeMap::new();
    for (key, name) in VARIABLES {
        let value = chosen.and_then(|chosen| chosen.get(key)?.as_str()).unwrap_or_default();
        if !value.is_empty() {
            variables.insert(name.to_owned(), value.to_owned());
            variables.insert(name.to_lowercase(), value.to_owned());
        }
    }
    variables
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_proxies_of_an_engine_take_the_place_of_the_default_ones() {
        let config = json!({ "auths": {}, "proxies": {
            "default": { "httpProxy": "http://proxy:1", "noProxy": "" },
            "tcp://build:2375": { "allProxy": "socks5://proxy:2" },
        } });
        let of = |endpoint: &str| of_config(&config, endpoint).into_iter().collect::<Vec<_>>();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let default = [pair("HTTP_PROXY", "http://proxy:1"), pair("http_proxy", "http://proxy:1")];
        assert_eq!(of("unix:///run/docker.sock"), default);
        let of_engine = [pair("ALL_PROXY", "socks5://proxy:2"), pair("all_proxy", "socks5://proxy:2")];
        assert_eq!(of("tcp://build:2375"), of_engine);
        assert!(of_config(&json!({}), "unix:///run/docker.sock").is_empty());
    }
}
