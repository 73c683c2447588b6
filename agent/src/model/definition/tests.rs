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
