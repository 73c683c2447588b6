//! What was changed of a container itself since compose made it: its networks, and its name.

use super::*;

#[test]
fn a_network_that_was_connected_later_differs_although_the_hash_is_equal() {
    let service = || json!({ "networks": { "default": null } });
    let connected = |networks: Value| json!({ "NetworkSettings": { "Networks": networks } });
    let more = || connected(json!({ "p_default": {}, "shop_default": {} }));
    let [difference] = &made_with("new", service(), more())[..] else { panic!("no difference") };
    assert_eq!(difference.what, ["network shop_default (connected since)"]);
    assert!(difference.is_of_connections());
    for (service, container) in [
        (service(), connected(json!({ "p_default": {} }))),
        (service(), json!({})),
        (json!({ "network_mode": "host" }), connected(json!({ "host": {} }))),
        (json!({}), more()),
    ] {
        assert_eq!(made_with("new", service.clone(), container), [], "{service}");
    }
    let renamed = made_with("new", service(), connected(json!({ "former_default": {} })));
    assert_eq!(renamed.iter().map(|one| one.what.join(", ")).collect::<Vec<_>>(), ["networks"]);
    let [edited] = &made_with("old", service(), more())[..] else { panic!("no difference") };
    assert_eq!((edited.what.clone(), edited.is_of_connections()), (vec!["networks".to_owned()], false));
}

#[test]
fn a_network_that_a_running_container_was_taken_from_differs_although_the_hash_is_equal() {
    let service = || json!({ "networks": { "default": null, "front": null } });
    let with = |networks: Value, is_running: bool| {
        let container =
            json!({ "NetworkSettings": { "Networks": networks }, "State": { "Running": is_running } });
        made_with("new", service(), container)
    };
    for (networks, expected) in [
        (json!({ "front": {} }), vec!["network p_default (disconnected since)"]),
        (json!({}), vec!["network front (disconnected since)", "network p_default (disconnected since)"]),
        (json!({ "front": {}, "other": {} }), vec!["networks"]),
    ] {
        let [difference] = &with(networks.clone(), true)[..] else { panic!("no difference: {networks}") };
        assert_eq!(difference.what, expected, "{networks}");
        assert!(!difference.is_of_connections() && !difference.is_beside_files(), "{networks}");
        assert_eq!(difference.is_of_changes_since(), expected != ["networks"], "{networks}");
    }
    assert_eq!(with(json!({ "front": {}, "p_default": {} }), true), []);
    assert_eq!(with(json!({ "front": {} }), false), [], "compose may have been interrupted");
}

#[test]
fn a_network_that_compose_may_have_forgotten_is_no_difference_and_lacks_all_the_same() {
    let of = |version: &str, networks: Value| {
        let model = json!({ "services": { "web": { "networks": { "back": null, "front": null } } } });
        let rendered = Rendered {
            model: serde_json::from_value(model).expect("a model"),
            hashes: BTreeMap::from([("web".to_owned(), "new".to_owned())]),
            ..Rendered::default()
        };
        let labels = json!({ SERVICE_LABEL: "web", HASH_LABEL: "new", VERSION_LABEL: version });
        let container =
            json!({ "Config": { "Labels": labels }, "NetworkSettings": { "Networks": networks } });
        let running = Running { containers: vec![container], ..Running::default() };
        let differences = rendered.differences(&["web".to_owned()], &running);
        (differences.is_empty(), rendered.lacks_network("web", &running))
    };
    for version in ["2.20.0", "2.24.6", "v2.24.6", "2.24.6+ds1-0ubuntu2"] {
        assert_eq!(of(version, json!({ "front": {} })), (true, true), "{version}");
        assert_eq!(of(version, json!({})), (false, true), "it forgets no more than one: {version}");
    }
    for version in ["2.24.7", "2.26.1-4", "v5.0.0", "dev", ""] {
        assert_eq!(of(version, json!({ "front": {} })), (false, true), "{version}");
        assert_eq!(of(version, json!({ "back": {}, "front": {} })), (true, false), "{version}");
    }
}

#[test]
fn a_container_that_was_renamed_differs_although_the_hash_is_equal() {
    let named = |service: &Value, hash: &str, name: &str| -> Vec<String> {
        let found = made_with(hash, service.clone(), json!({ "Name": format!("/{name}") }));
        assert!(hash != "new" || found.iter().all(Difference::is_beside_files), "{found:?}");
        found.into_iter().flat_map(|difference| difference.what).collect()
    };
    let (plain, own) = (json!({}), json!({ "container_name": "front" }));
    let none: [&str; 0] = [];
    for name in ["p-web-1", "p_web_12", "0123456789ab_p-web-1", ""] {
        assert_eq!(named(&plain, "new", name), none, "{name}");
    }
    for name in ["front", "0123456789ab_front"] {
        assert_eq!(named(&own, "new", name), none, "{name}");
    }
    for (service, name) in [(&plain, "web"), (&plain, "p-web-old"), (&plain, "q-web-1"), (&own, "p-web-1")] {
        assert_eq!(named(service, "new", name), ["name (changed since)"], "{name}");
    }
    // Where the files were edited, the name may have been in them before.
    assert!(named(&plain, "old", "front").contains(&"name (changed since)".to_owned()));
    assert_eq!(named(&own, "old", "web"), ["container_name"]);
}
