//! Valid and invalid channels.

use std::path::Path;

use evenkeel_common::config::Configuration as _;
use serde_json::json;

use super::*;
use crate::config::testing::parse;

fn config(tree: &Value) -> Config {
    let env = |name: &str| match name {
        "HOOK" => Some("https://chat.example/secret-hook".to_owned()),
        "TOKEN" => Some("secret-token".to_owned()),
        "LINES" => Some("secret-1\nsecret-2".to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    };
    let config = parse(tree, &env).unwrap();
    let printed = format!("{config:?} {:?}", config.warnings);
    assert!(!printed.contains("secret"), "{printed}");
    config
}

fn hook(changes: &Value) -> Value {
    let mut hook = json!({"name": "h", "url": "http://hook.example/x", "method": "POST"});
    for (key, value) in changes.as_object().unwrap() {
        hook[key] = value.clone();
    }
    json!({"notifications": {"webhooks": [hook]}})
}

#[test]
fn complete_channels_are_on_with_their_variables_replaced() {
    let config = config(&json!({"notifications": {
        "discord": {"webhook_url": "$HOOK", "min_level": "error", "events": ["updated"]},
        "smtp": {"host": "m", "port": 465, "from": "a@b", "to": "c@d", "username": "u", "password": "${TOKEN}$$", "tls": "implicit"},
        "webhooks": [{"name": "h", "url": "$HOOK/$TOKEN", "method": "put", "headers": {"Authorization": "Bearer $TOKEN"}, "body": "{{ .Service }} $HOOK"}],
    }, "push": {"warden_url": "https://warden.example/base/", "token": "$TOKEN", "machine_id": "m1"}}));
    assert_eq!(config.warnings, Vec::<String>::new());
    let discord = config.notifications.discord.unwrap();
    assert_eq!(discord.webhook_url.expose(), "https://chat.example/secret-hook");
    assert_eq!(discord.filter, EntryFilter { min_level: Level::Error, events: Some(vec![Kind::UPDATED]) });
    let smtp = config.notifications.smtp.unwrap();
    assert_eq!((smtp.port, smtp.tls, smtp.username.as_deref()), (465, SmtpTls::Implicit, Some("u")));
    assert_eq!(smtp.password.unwrap().expose(), "secret-token$");
    assert_eq!(smtp.filter, EntryFilter { min_level: Level::Info, events: None });
    let hook = &config.notifications.webhooks[0];
    assert_eq!((hook.method.as_str(), hook.headers[0].1.expose()), ("PUT", "Bearer secret-token"));
    // The body is a template, not a place for variables (spec 2.9).
    assert_eq!(hook.body.as_deref(), Some("{{ .Service }} $HOOK"));
    let push = config.push.unwrap();
    assert_eq!(
        (push.warden_urls[0].as_str(), push.token.expose(), config.machine_id.as_str()),
        ("https://warden.example/base", "secret-token", "m1")
    );
}

/// Each configuration has exactly one warning, and no channel is on.
fn assert_off<const N: usize>(table: [(Value, &str); N]) {
    for (tree, expected) in table {
        let config = config(&tree);
        assert_eq!(config.warnings, [expected], "{tree}");
        assert_eq!((config.notifications, config.push), (NotificationsConfig::default(), None), "{tree}");
    }
}

#[test]
fn an_invalid_discord_or_mail_channel_is_off_with_a_reason() {
    assert_off([
        (
            json!({"notifications": {"discord": {"webhook_url": "$NOPE"}}}),
            "notifications.discord.webhook_url: the environment variable NOPE is not set (discord is off)",
        ),
        (
            json!({"notifications": {"discord": {"webhook_url": "$EMPTY"}}}),
            "notifications.discord.webhook_url: the environment variable EMPTY is empty (discord is off)",
        ),
        (
            json!({"notifications": {"discord": {}}}),
            "notifications.discord.webhook_url: is missing; allowed: a string that is not empty (discord is off)",
        ),
        (
            json!({"notifications": {"discord": {"webhook_url": ""}}}),
            "notifications.discord.webhook_url: is empty; allowed: a string that is not empty (discord is off)",
        ),
        (
            json!({"notifications": {"discord": "https://secret"}}),
            "notifications.discord: a string; allowed: an object (discord is off)",
        ),
        (
            json!({"notifications": {"discord": {"webhook_url": "secret"}}}),
            "notifications.discord.webhook_url: is not a URL; allowed: http://… or https://… (discord is off)",
        ),
        (
            json!({"notifications": {"discord": {"webhook_url": "$HOOK", "min_level": "warn"}}}),
            "notifications.discord.min_level: \"warn\" is not a valid value; allowed: info, warning, error, critical (discord is off)",
        ),
        (
            json!({"notifications": {"smtp": {"host": "m", "port": 0, "from": "a@b.example", "to": "c@d.example"}}}),
            "notifications.smtp.port: 0 is out of range; allowed: a whole number from 1 to 65535 (smtp is off)",
        ),
        (
            json!({"notifications": {"smtp": {"host": "m", "port": 25, "from": "a@b.example", "to": "c@d.example", "password": 5}}}),
            "notifications.smtp.password: a number; allowed: a string (smtp is off)",
        ),
        (
            json!({"notifications": {"smtp": {"host": "m", "port": 25, "from": "a@b.example", "to": "c@d.example", "username": "$NOPE"}}}),
            "notifications.smtp.username: the environment variable NOPE is not set (smtp is off)",
        ),
        (
            json!({"notifications": {"smtp": {"host": "m", "port": 25, "from": "a", "to": "c@d.example"}}}),
            "notifications.smtp.from: is not a mail address (Invalid input); allowed: a@b.example or Name <a@b.example> (smtp is off)",
        ),
    ]);
}

#[test]
fn an_invalid_webhook_or_push_is_off_with_a_reason() {
    assert_off([
        (
            json!({"notifications": {"webhooks": {}}}),
            "notifications.webhooks: an object; allowed: an array of objects (all webhooks are off)",
        ),
        (
            json!({"notifications": {"webhooks": ["https://secret"]}}),
            "notifications.webhooks[0]: a string; allowed: an object (this webhook is off)",
        ),
        (
            hook(&json!({"url": "ftp://secret"})),
            "notifications.webhooks[0].url: is not a URL; allowed: http://… or https://… (this webhook is off)",
        ),
        (
            hook(&json!({"url": "${HOOK"})),
            "notifications.webhooks[0].url: has a \"${\" without a name and \"}\" after it; allowed: $NAME, ${NAME}, and $$ for a dollar (this webhook is off)",
        ),
        (
            hook(&json!({"url": "http://secret.example/{{ machine }}"})),
            "notifications.webhooks[0].url: has a template; allowed: {{ id }}, in the path or the query (this webhook is off)",
        ),
        (
            hook(&json!({"url": "http://{{id}}.secret.example/x"})),
            "notifications.webhooks[0].url: has a template; allowed: {{ id }}, in the path or the query (this webhook is off)",
        ),
        (
            hook(&json!({"method": "P T"})),
            "notifications.webhooks[0].method: \"P T\"; allowed: an HTTP method, for example POST (this webhook is off)",
        ),
        (
            hook(&json!({"headers": {"X Y": "a"}})),
            "notifications.webhooks[0].headers[\"X Y\"]: is not a valid HTTP header name (this webhook is off)",
        ),
        (
            hook(&json!({"headers": {"X": "$LINES"}})),
            "notifications.webhooks[0].headers.X: has a value with control characters (a line break?), which HTTP headers can't contain (this webhook is off)",
        ),
        (
            hook(&json!({"headers": {"X": "$NOPE"}})),
            "notifications.webhooks[0].headers.X: the environment variable NOPE is not set (this webhook is off)",
        ),
        (
            json!({"push": {"warden_url": "http://w", "token": "$NOPE"}}),
            "push.token: the environment variable NOPE is not set (the push is off)",
        ),
        (
            json!({"push": {"warden_url": "http://w"}}),
            "push.token: is empty; allowed: this agent's token at the warden (the push is off)",
        ),
        (
            json!({"push": {"warden_url": "w:8080", "token": "t"}}),
            "push.warden_url: is not a base URL; allowed: http://host:port or https://host:port, optionally with a path, without login and query (the push is off)",
        ),
        (
            json!({"push": {"warden_url": "http://u:secret@w", "token": "t"}}),
            "push.warden_url: is not a base URL; allowed: http://host:port or https://host:port, optionally with a path, without login and query (the push is off)",
        ),
        (
            hook(&json!({"body": "{{ servce }}"})),
            "notifications.webhooks[0].body: the template cannot be used: undefined value (in <string>:1) (known names: service, event, message, reason, old_digest, new_digest, image, container, output, timestamp, level, machine, id) (this webhook is off)",
        ),
        (json!({"push": "secret"}), "push: a string; allowed: an object (the push is off)"),
    ]);
}

#[test]
fn an_invalid_channel_does_not_affect_the_others() {
    let config = config(&json!({"notifications": {
        "discord": {"webhook_url": "$HOOK"}, "smtp": {},
        "webhooks": [{"name": "a", "url": "http://a", "method": "POST"}, {"name": "b"}, {"name": "a", "url": "http://c", "method": "POST"}],
    }}));
    assert!(config.notifications.discord.is_some() && config.notifications.smtp.is_none());
    assert_eq!(config.notifications.webhooks.len(), 1);
    assert_eq!(
        config.warnings.last().map(String::as_str),
        Some("notifications.webhooks[2].name: \"a\" is the name of an earlier webhook (this webhook is off)")
    );
}

#[test]
fn doubtful_filters_are_reported_and_the_channel_stays_on() {
    let config = config(&hook(&json!({"events": ["updatd", "rolled_back"]})));
    assert_eq!(
        config.warnings,
        ["notifications.webhooks[0].events[0]: \"updatd\" is not a kind of entry; did you mean \"updated\"?"]
    );
    assert_eq!(config.notifications.webhooks.len(), 1);
}

#[test]
fn every_section_of_which_there_is_one_has_a_row() {
    let schema = crate::config::schema();
    let sections = schema["properties"]["notifications"]["properties"].as_object().expect("it has sections");
    let single: Vec<&str> = sections.keys().map(String::as_str).filter(|name| *name != "webhooks").collect();
    assert_eq!(single, SINGLE.map(|(name, _)| name));
}

#[test]
fn a_channel_under_a_misspelt_key_is_known_and_off_with_a_reason() {
    let hook = json!([{"name": "h", "url": "http://hook.example/x", "method": "POST"}]);
    let discord = json!({"webhook_url": "$HOOK"});
    for (tree, name, expected) in [
        (
            json!({"notifications": {"webhook": hook}}),
            "webhook/h",
            "notifications.webhooks: is written \"webhook\"; allowed: \"webhooks\" in \"notifications\" (all webhooks are off)",
        ),
        (
            json!({"notifications": {"discrod": discord, "discord": null}}),
            "discord",
            "notifications.discord: is written \"discrod\"; allowed: \"discord\" in \"notifications\" (discord is off)",
        ),
        (
            json!({"notifications": {"smpt": {"host": "m"}}}),
            "smtp",
            "notifications.smtp: is written \"smpt\"; allowed: \"smtp\" in \"notifications\" (smtp is off)",
        ),
        (
            json!({"discord": discord}),
            "discord",
            "notifications.discord: is written \"discord\" beside \"notifications\"; allowed: \"discord\" in \"notifications\" \
             (discord is off)",
        ),
        (
            json!({"notification": {"discord": discord}}),
            "discord",
            "notifications: is written \"notification\"; allowed: \"notifications\" (all channels are off)",
        ),
    ] {
        let config = config(&tree);
        assert_eq!(config.warnings, [expected], "{tree}");
        assert!(says_it_is_off(expected), "{tree}");
        assert_eq!(config.faulty_channels, [name], "{tree}: it keeps its queue");
        assert_eq!(config.notifications, NotificationsConfig::default(), "{tree}");
    }
    // A remark, and what there is under the right key as well.
    let config = config(&json!({"notifications": {"_smtp": {}, "webhooks": hook, "webhook": hook}}));
    assert_eq!((config.notifications.webhooks.len(), config.faulty_channels), (1, Vec::new()));
}

#[test]
fn a_channel_that_only_the_first_of_two_equal_keys_has_is_known_and_off() {
    let hook = r#"[{"name": "h", "url": "http://hook.example/x", "method": "POST"}]"#;
    let smtp = r#""smtp": {"host": "m", "port": 25, "from": "a@b.example", "to": "c@d.example"}"#;
    let first = format!(r#"{{"webhooks": {hook}, {smtp}}}"#);
    for (text, off, on) in [
        (format!(r#"{{"notifications": {first}, "notifications": {{{smtp}}}}}"#), "webhook/h", true),
        (
            format!(r#"{{"notifications": {{{smtp}, "webhooks": {hook}, "webhooks": []}}}}"#),
            "webhook/h",
            true,
        ),
        (format!(r#"{{"notifications": {{{smtp}, "smtp": null}}}}"#), "smtp", false),
        (r#"{"push": {"warden_url": "http://w", "token": "t"}, "push": {}}"#.to_owned(), "push", false),
    ] {
        let config = Config::parse(&text, Path::new("c.json"), &|_| None).unwrap();
        assert_eq!(config.faulty_channels, [off], "{text}");
        assert_eq!(config.notifications.smtp.is_some(), on, "{text}: the last one counts");
        assert!(config.warnings.iter().any(|warning| says_it_is_off(warning)), "{:?}", config.warnings);
    }
    let text = format!(r#"{{"notifications": {first}, "notifications": {first}}}"#);
    let config = Config::parse(&text, Path::new("c.json"), &|_| None).unwrap();
    assert_eq!(config.faulty_channels, Vec::<String>::new());
    assert!(!config.warnings.iter().any(|warning| says_it_is_off(warning)), "{:?}", config.warnings);
}
