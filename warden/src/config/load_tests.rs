//! Configuration files, and the resulting values, faults and warnings.

use super::*;

const TOKEN: &str = "0123456789abcdef-people";

fn env(name: &str) -> Option<String> {
    match name {
        "TOKEN" => Some("secret-0123456789abcdef".to_owned()),
        "EMPTY" => Some(String::new()),
        "LINES" => Some("secret-1\nsecret-2".to_owned()),
        "SPACE" => Some("secret-0123456789abcdef ".to_owned()),
        _ => None,
    }
}

fn parse(tree: &Value) -> Result<Config, ConfigErrors> {
    Config::parse(&tree.to_string(), Path::new("w.json"), &env)
}

fn faults(tree: &Value) -> Vec<String> {
    let text = parse(tree).unwrap_err().to_string();
    assert!(!text.contains("secret"), "{text}");
    text.lines().map(|line| line.strip_prefix("w.json: ").unwrap_or(line).to_owned()).collect()
}

fn places(findings: &[String]) -> Vec<&str> {
    findings.iter().map(|text| text.split(": ").next().unwrap()).collect()
}

fn agent(id: &str) -> Value {
    json!({"id": id, "url": format!("http://{id}:9090/"), "token": format!("token-of-{id}-0123456789")})
}

#[test]
fn the_check_honours_every_keyword_of_the_schema() {
    assert_eq!(Shape::of::<WardenFile>().unknown_keywords(), Vec::<String>::new());
}

#[test]
fn a_complete_file_is_loaded_with_its_variables_expanded() {
    let config = parse(&json!({
        "$schema": "x", "api": {"port": "9000", "token": "$TOKEN", "state_path": "/var/lib/w.json"},
        "agents": [agent("a"), {"id": "b", "url": "https://b/base", "token": "${TOKEN}-b"}],
    }))
    .unwrap();
    assert_eq!(config.addresses, [":9000"]);
    assert_eq!(config.token.expose(), "secret-0123456789abcdef");
    assert_eq!(config.state_path.as_deref(), Some(Path::new("/var/lib/w.json")));
    assert_eq!(config.agents[0].url.as_ref().unwrap().expose(), "http://a:9090");
    assert_eq!(config.agents[1].token.expose(), "secret-0123456789abcdef-b");
    assert_eq!(config.warnings, Vec::<String>::new());
    assert!(!format!("{config:?}").contains("secret"));
}

#[test]
fn an_agent_needs_no_url_and_the_fleets_rules_have_defaults() {
    let tree = json!({"api": {"token": TOKEN}, "agents": [{"id": "a", "token": "token-of-a-0123456789"}]});
    let config = parse(&tree).unwrap();
    assert_eq!((config.agents[0].url.as_ref(), config.warnings.as_slice()), (None, &[][..]));
    assert_eq!((config.rules, config.fuse), (Rules::default(), FuseRule::default()));
    let mut tree = tree;
    tree["rings"] = json!({"soak": 60});
    tree["max_at_once"] = json!(2);
    tree["fuse"] = json!({"rollbacks": 0});
    let config = parse(&tree).unwrap();
    assert_eq!(config.rules, Rules { soak: 60, need: 1, max_at_once: Some(2) });
    assert_eq!(config.fuse.rollbacks, 0);
    tree["rings"] = json!({"soak": -1});
    tree["max_at_once"] = json!(0);
    tree["fuse"] = json!({"freeze": 2_592_001});
    let config = parse(&tree).unwrap();
    assert_eq!(places(&config.warnings), ["fuse.freeze", "max_at_once", "rings.soak"]);
    assert!(config.warnings.iter().all(|warning| warning.ends_with(" (the default is used)")));
    assert_eq!((config.rules, config.fuse), (Rules::default(), FuseRule::default()));
}

#[test]
fn the_port_is_a_text_or_a_number_or_the_default() {
    for (api, expected) in [
        (json!({"token": TOKEN}), ":8080"),
        (json!({"token": TOKEN, "port": ""}), ":8080"),
        (json!({"token": TOKEN, "port": null}), ":8080"),
        (json!({"token": TOKEN, "port": "1"}), ":1"),
        (json!({"token": TOKEN, "port": 65535}), ":65535"),
        (json!({"token": TOKEN, "address": ["127.0.0.1:80"]}), "127.0.0.1:80"),
    ] {
        assert_eq!(parse(&json!({"api": api, "agents": [agent("a")]})).unwrap().addresses, [expected]);
    }
    for port in
        [json!(0), json!(65536), json!("0"), json!("x"), json!("+1"), json!(-1), json!(80.5), json!(" 80")]
    {
        let found = faults(&json!({"api": {"token": TOKEN, "port": port}, "agents": []}));
        assert!(
            found[0].starts_with("api.port: ") && found[0].ends_with("allowed: a port from 1 to 65535"),
            "{found:?}"
        );
    }
    assert_eq!(
        faults(&json!({"api": {"token": TOKEN, "port": true}})),
        ["api.port: true; allowed: a string"]
    );
    let both =
        parse(&json!({"api": {"token": TOKEN, "port": 80, "address": [":81"]}, "agents": [agent("a")]}));
    let both = both.unwrap();
    assert_eq!(both.addresses, [":81"]);
    assert_eq!(both.warnings, ["api.port: is ignored because api.address is set; remove one of the two"]);
}

#[test]
fn a_missing_token_is_fatal() {
    for (token, why) in [
        (json!(null), "is missing; allowed: a string that is not empty"),
        (json!(""), "is empty; allowed: a string that is not empty"),
        (json!("$NOPE"), "the environment variable NOPE is not set"),
        (json!("${EMPTY}"), "the environment variable EMPTY is empty"),
        (
            json!("$LINES"),
            "has leading or trailing whitespace or a control character (a line break?), which would never match",
        ),
        (
            json!("$SPACE"),
            "has leading or trailing whitespace or a control character (a line break?), which would never match",
        ),
        (json!(12345), "a number; allowed: a string that is not empty"),
    ] {
        assert_eq!(faults(&json!({"api": {"token": token}})), [format!("api.token: {why}")]);
        let mut one = agent("a");
        one["token"] = token;
        let tree = json!({"api": {"token": TOKEN}, "agents": [one, agent("b")]});
        if why.starts_with("the environment variable") {
            assert_eq!(faults(&tree), [format!("agents[0].token: {why}")]);
            continue;
        }
        let config = parse(&tree).unwrap();
        assert_eq!(config.agents.iter().map(|agent| &*agent.id).collect::<Vec<_>>(), ["b"]);
        assert_eq!(config.warnings, [format!("agents[0].token: {why} (the agent is left out)")]);
    }
    assert_eq!(faults(&json!({})), ["api: is missing; allowed: an object"]);
}

#[test]
fn ids_are_unique_and_a_shared_token_is_a_warning_with_its_consequence() {
    let mut same = agent("b");
    same["token"] = agent("a")["token"].clone();
    let mut shared = agent("c");
    shared["token"] = json!(TOKEN);
    let config = parse(&json!({"api": {"token": TOKEN}, "agents": [agent("a"), same, shared]})).unwrap();
    assert_eq!(config.agents.len(), 3);
    assert!(
        config.warnings.len() == 2
            && config.warnings[0]
                .starts_with("agents[1].token: is the same as agents[0].token: the warden can't distinguish")
            && config.warnings[1]
                .starts_with("agents[2].token: is the same as api.token: this agent's machine"),
        "{:?}",
        config.warnings
    );
}

#[test]
fn the_url_of_the_store_is_checked_and_never_shown() {
    let with = |url: Value| json!({"api": {"token": TOKEN}, "agents": [agent("a")], "store": {"url": url}});
    for (url, why) in [
        (json!("$NOPE"), "the environment variable NOPE is not set"),
        (
            json!("postgres://u:$TOKEN@/d"),
            "names no host; allowed: postgres://user:password@host:5432/database, where special characters of the password are percent-encoded",
        ),
        (
            json!("postgres://u:$TOKEN@h/d?sslmode=x"),
            "has an unknown sslmode; allowed: disable, prefer, require, verify-ca, verify-full",
        ),
        (json!(5), "a number; allowed: a string that is not empty"),
        (json!(""), "is empty; allowed: a string that is not empty"),
    ] {
        assert_eq!(faults(&with(url)), [format!("store.url: {why}")]);
    }
    let mut tree = with(json!("postgres://u:$TOKEN@h/d"));
    let config = parse(&tree).unwrap();
    assert!(config.store.url.is_some() && config.warnings.is_empty(), "{:?}", config.warnings);
    assert!(!format!("{config:?}").contains("secret"));
    tree["api"]["state_path"] = json!("/var/lib/w");
    assert!(parse(&tree).unwrap().warnings[0].starts_with("api.state_path: is ignored"));
    assert_eq!(parse(&with(json!(null))).unwrap().store.url, None);
}

#[test]
fn all_faults_are_reported_at_once() {
    let tree = json!({
        "api": {"token": "$NOPE", "port": 0, "state_path": "x"}, "agnts": [],
        "agents": [{"id": "", "url": "ftp://x"}, 5, {"id": " a", "url": "http://u?x=1", "token": "$NOPE"}],
    });
    let fatal = faults(&tree);
    assert_eq!(
        places(&fatal),
        ["agents[2].id", "agents[2].token", "agents[2].url", "api.port", "api.token"],
        "with a missing variable, the other faults of that agent are fatal, too"
    );
    let refused = parse(&tree).unwrap_err();
    assert_eq!(
        places(refused.warnings()),
        ["agents[0].id", "agents[0].token", "agents[0].url", "agents[1]", "agnts", "api.state_path"]
    );
}

#[test]
fn an_invalid_agent_is_left_out_and_the_others_stay() {
    let with = |key: &str, value: Value| {
        let mut one = agent("x");
        one[key] = value;
        one
    };
    let long = "x".repeat(129);
    let tree = json!({"api": {"token": TOKEN}, "agents": [
        agent("a"), 5, with("id", json!(" a")), with("id", json!(long)), with("id", json!(7)), agent("a"),
        with("url", json!("ftp://x")), with("url", json!(9)),
    ]});
    let config = parse(&tree).unwrap();
    let ids: Vec<_> = config.agents.iter().map(|agent| (&*agent.id, agent.url.is_some())).collect();
    assert_eq!(ids, [("a", true), ("x", false)]);
    let expected = [
        ("agents[1]: ", "(the agent is left out)"),
        ("agents[2].id: \" a\"; allowed: ", "(the agent is left out)"),
        ("agents[3].id: ", "(the agent is left out)"),
        ("agents[4].id: ", "(the agent is left out)"),
        ("agents[5].id: \"a\" is also the id of agents[0]; allowed: a unique id", "(the agent is left out)"),
        ("agents[6].url: is not a base URL; allowed: ", "(the agent is not probed)"),
        ("agents[7].id: \"x\" is also the id of agents[6]", "(the agent is left out)"),
        ("agents[7].url: ", "(the agent is not probed)"),
    ];
    assert_eq!(config.warnings.len(), expected.len(), "{:#?}", config.warnings);
    for (warning, (start, end)) in config.warnings.iter().zip(expected) {
        assert!(warning.starts_with(start) && warning.ends_with(end), "{warning}");
    }
    let none = parse(&json!({"api": {"token": TOKEN}, "agents": 5})).unwrap();
    assert!(none.agents.is_empty() && none.warnings[0].ends_with("(no agents are configured)"), "{none:?}");
}

#[test]
fn a_relative_state_path_is_resolved_against_the_working_directory() {
    let of = |path: &str| {
        let tree = json!({"api": {"token": TOKEN, "state_path": path}, "agents": [agent("a")]});
        parse(&tree).unwrap()
    };
    let config = of("state/w.json");
    let place = std::env::current_dir().unwrap().join("state/w.json");
    assert_eq!(config.state_path.as_deref(), Some(&*place));
    assert!(
        config.warnings.len() == 1
            && config.warnings[0].starts_with("api.state_path: \"state/w.json\" is relative"),
        "{:?}",
        config.warnings
    );
    let config = of("/a\0b");
    assert_eq!((config.state_path, config.warnings.len()), (None, 1));
}

#[test]
fn questionable_settings_are_warnings() {
    let config = parse(&json!({"api": {"token": "short"}})).unwrap();
    assert_eq!(
        config.warnings,
        [
            "agents: is empty, so no agent can send entries",
            "api.token: has fewer than 16 characters and can be guessed from any machine that reaches the warden; \
             generate one with `openssl rand -hex 32`",
        ]
    );
}

#[test]
fn the_check_says_how_many_agents_are_left_out() {
    let extent = |agents: Value| {
        let config = parse(&json!({"api": {"token": TOKEN}, "agents": agents})).unwrap();
        (config.extent().summary, config.extent().is_complete)
    };
    assert_eq!(extent(json!([agent("a")])), ("agents: 1".to_owned(), true));
    assert_eq!(
        extent(json!([agent("a"), 5])),
        ("agents: 1 of 2; the warnings say which are left out".to_owned(), false)
    );
    let with = |other: &str, place: &str| {
        let list = |id: &str| json!([agent(id)]);
        let text = format!(
            r#"{{"api": {{"token": "{TOKEN}"}}, "{other}": {}, "agents": {}}}"#,
            list("a"),
            list("b")
        );
        let config = Config::parse(&text, Path::new("w.json"), &env).unwrap();
        assert!(config.warnings.iter().any(|text| text.starts_with(place)), "{:?}", config.warnings);
        assert_eq!((config.agents.len(), config.extent().is_complete), (1, false), "{other}");
    };
    with("agents", "agents: is given more than once");
    with("agent", "agent: is not a known key");
}

#[test]
fn every_key_that_takes_seconds_takes_a_duration() {
    let config = parse(&json!({
        "api": {"token": TOKEN}, "agents": [agent("a")], "rings": {"soak": "30m"},
        "fuse": {"within": "1h", "freeze": "12h"},
    }))
    .unwrap();
    assert_eq!(config.warnings, Vec::<String>::new());
    assert_eq!((config.rules.soak, config.fuse.within, config.fuse.freeze), (1800, 3600, 43_200));
}
