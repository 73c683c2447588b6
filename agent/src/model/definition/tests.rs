use serde_json::{Value, json};

use super::*;

const COMPOSE: &str = "2.40.0";

/// The fields that differ between a service and a container that another version of compose has created.
fn of(service: Value, container: Value, image: Option<Value>) -> Vec<String> {
    in_model(json!({ "services": { "web": service } }), container, image)
}

fn in_model(model: Value, mut container: Value, image: Option<Value>) -> Vec<String> {
    let rendered = Rendered {
        model: serde_json::from_value(model).unwrap(),
        hashes: BTreeMap::from([("web".to_owned(), "new".to_owned())]),
        version: COMPOSE.to_owned(),
        ..Rendered::default()
    };
    let labels = json!({ SERVICE_LABEL: "web", HASH_LABEL: "old", VERSION_LABEL: "2.20.0" });
    container["Config"]["Labels"] = labels;
    container["Image"] = "sha256:1".into();
    let running = Running {
        containers: vec![container],
        images: image.map(|config| ("sha256:1".to_owned(), config)).into_iter().collect(),
        networks: Vec::new(),
    };
    let differences = rendered.differences(&["web".to_owned()], &running);
    differences.into_iter().flat_map(|difference| difference.what).collect()
}

#[test]
fn a_variable_that_is_passed_through_but_not_set_here_is_a_difference_if_the_container_has_it() {
    let service = || json!({ "environment": { "SECRET": null, "MODE": "one" } });
    let container = |variables: &[&str]| json!({ "Config": { "Env": variables } });
    let image = |variables: &[&str]| Some(json!({ "Env": variables }));
    let set = ["SECRET=abc", "MODE=one", "PATH=/bin"];
    assert_eq!(of(service(), container(&set), image(&["PATH=/bin"])), ["environment SECRET"]);
    assert_eq!(
        of(service(), container(&set), image(&["PATH=/bin", "SECRET=of the image"])),
        ["environment SECRET"]
    );
    let none: [&str; 0] = [];
    assert_eq!(
        of(service(), container(&set), image(&["PATH=/bin", "SECRET=abc"])),
        none,
        "it is the image's"
    );
    assert_eq!(of(service(), container(&["SECRET", "MODE=one"]), image(&[])), none, "compose has unset it");
    assert_eq!(of(service(), container(&["MODE=one"]), image(&[])), none);
    let proxy = || container(&["HTTP_PROXY=http://proxy"]);
    assert_eq!(
        of(json!({ "environment": { "HTTP_PROXY": null } }), proxy(), image(&[])),
        ["environment HTTP_PROXY"]
    );
    assert_eq!(of(json!({}), proxy(), image(&[])), none, "compose adds the client's proxies by itself");
}

/// The networks that differ, for one whose definition and state are these.
fn of_network(defined: Value, mut existing: Value) -> Vec<String> {
    let model = json!({
        "services": { "web": { "networks": { "net": null } } },
        "networks": { "net": defined },
    });
    existing["Name"] = "p_net".into();
    existing["Labels"] = json!({ HASH_LABEL: "old" });
    let rendered = Rendered { model: serde_json::from_value(model).unwrap(), ..Rendered::default() };
    let running = Running { networks: vec![existing], ..Running::default() };
    let differences = rendered.differences(&["web".to_owned()], &running);
    differences.into_iter().flat_map(|difference| difference.what).collect()
}

#[test]
fn a_network_whose_driver_the_file_no_longer_names_differs() {
    let driver = |name: &str| json!({ "Driver": name, "IPAM": { "Driver": "default", "Config": [] } });
    let plain = || json!({ "name": "p_net", "ipam": {} });
    let none: [&str; 0] = [];
    assert_eq!(of_network(plain(), driver("macvlan")), ["network net (driver)"]);
    assert_eq!(of_network(plain(), driver("bridge")), none);
    let named = json!({ "name": "p_net", "driver": "bridge" });
    assert_eq!(of_network(named.clone(), driver("bridge")), none);
    assert_eq!(of_network(named, driver("ipvlan")), ["network net (driver)"]);
}

#[test]
fn addresses_of_a_network_differ_only_where_the_engine_has_not_chosen_them() {
    let pools = |driver: &str, pool: Value| json!({ "Driver": "bridge", "IPAM": { "Driver": driver, "Options": null, "Config": [pool] } });
    let wanted = |ipam: Value| json!({ "name": "p_net", "ipam": ipam });
    let chosen = json!({ "Subnet": "172.18.0.0/16", "Gateway": "172.18.0.1" });
    let empty = json!({ "Subnet": "172.18.0.0/16", "IPRange": "", "Gateway": "172.18.0.1" });
    let ranged = json!({ "Subnet": "10.5.0.0/16", "IPRange": "10.5.1.0/24", "Gateway": "10.5.0.1",
        "AuxiliaryAddresses": { "host": "10.5.0.9" } });
    let range = |range: &str, host: &str| json!({ "config": [{ "subnet": "10.5.0.0/16", "ip_range": range, "aux_addresses": { "host": host } }] });
    let table = [
        (json!({}), pools("default", chosen.clone()), false),
        (Value::Null, pools("default", empty.clone()), false),
        (json!({}), pools("host-local", chosen.clone()), false),
        (json!({ "driver": "default" }), pools("host-local", chosen.clone()), false),
        (json!({ "config": [{ "subnet": "172.18.0.0/16" }] }), pools("default", empty), false),
        (json!({ "config": [{ "subnet": "172.19.0.0/16" }] }), pools("default", chosen.clone()), true),
        (
            json!({ "config": [{ "subnet": "10.5.0.0/16" }] }),
            json!({ "Driver": "bridge", "IPAM": { "Driver": "default", "Config": [
                { "Subnet": "10.5.0.0/16", "Gateway": "10.5.0.1" },
                { "Subnet": "fdd3::/64", "Gateway": "fdd3::1" },
            ] } }),
            false,
        ),
        (json!({}), pools("custom", chosen.clone()), true),
        (json!({ "driver": "custom" }), pools("default", chosen), true),
        (json!({}), pools("default", ranged.clone()), true),
        (range("10.5.1.0/24", "10.5.0.9"), pools("default", ranged.clone()), false),
        (range("10.5.2.0/24", "10.5.0.9"), pools("default", ranged.clone()), true),
        (range("10.5.1.0/24", "10.5.0.8"), pools("default", ranged), true),
        (
            range("10.5.1.0/24", "10.5.0.9"),
            pools("host-local", json!({ "Subnet": "10.5.0.0/16", "Gateway": "10.5.0.1" })),
            false,
        ),
    ];
    for (ipam, existing, differs) in table {
        let found = of_network(wanted(ipam.clone()), existing.clone());
        let expected: &[&str] = if differs { &["network net (ipam)"] } else { &[] };
        assert_eq!(found, expected, "{ipam} {existing}");
    }
}
