//! Keys of `update` in the wrong place, misspelt, or given more than once. They were meant to hold updates back, so they do, until the file is
//! corrected (DECISIONS 2).

use std::collections::BTreeMap;
use std::sync::LazyLock;

use evenkeel_common::config::shape::Shape;
use evenkeel_common::config::{Findings, KeyPath, did_you_mean, is_spelling};
use serde_json::{Map, Value};

use super::file::{AgentFile, UpdateFile};

/// The consequence, for the end of a message.
pub(crate) const HELD: &str = "updates are held until this is corrected";

static FILE: LazyLock<Value> = LazyLock::new(|| Shape::of::<AgentFile>().schema().clone());
static GATES: LazyLock<Vec<String>> =
    LazyLock::new(|| keys(Shape::of::<UpdateFile>().schema()).map(str::to_owned).collect());

/// The faults that were found.
#[derive(Debug, Default)]
pub(super) struct Misplaced {
    /// Outside of the services, so it is unknown which one was meant.
    everywhere: Vec<String>,
    /// By the index of the service.
    services: BTreeMap<usize, Vec<String>>,
}

impl Misplaced {
    /// The faults that hold the updates of a service.
    pub(super) fn of(&self, service: usize) -> impl Iterator<Item = &String> {
        self.services.get(&service).into_iter().flatten().chain(&self.everywhere)
    }
}

/// Removes such keys from the tree, with a warning for each.
pub(super) fn take(tree: &mut Value, findings: &mut Findings) -> Misplaced {
    let mut found = Misplaced::default();
    let Some(members) = tree.as_object_mut() else { return found };
    let mut note = |at: &KeyPath, what: &str, whose: &str| {
        findings.warn(at, format!("{what} ({whose} {HELD})"));
        found.everywhere.push(format!("{at}: {what}"));
    };
    for name in strays(members, &FILE) {
        note(&KeyPath::root().key(&name), &belongs(&name), "all");
    }
    for section in ["registry", "api", "audit", "state", "monitor", "docker_health", "push"] {
        let Some(inside) = members.get_mut(section).and_then(Value::as_object_mut) else { continue };
        for name in strays(inside, &FILE["properties"][section]) {
            note(&KeyPath::of(section).key(&name), &belongs(&name), "all");
        }
    }
    let repeated: Vec<(usize, KeyPath)> =
        findings.repeated().iter().filter_map(|at| at.element_of("services")).collect();
    let services = members.get_mut("services").and_then(Value::as_array_mut);
    for (n, service) in services.into_iter().flatten().enumerate() {
        let Some(service) = service.as_object_mut() else { continue };
        let at = KeyPath::of("services").index(n);
        let mut own = Vec::new();
        for name in strays(service, &FILE["properties"]["services"]["items"]) {
            own.push((KeyPath::root().key(&name), belongs(&name)));
        }
        if let Some(update) = service.get_mut("update").and_then(Value::as_object_mut) {
            let unknown: Vec<String> = update.keys().filter(|name| is_unknown_gate(name)).cloned().collect();
            for name in unknown {
                update.remove(&name);
                let near = did_you_mean(&name, GATES.iter().map(String::as_str));
                let hint = if near.is_empty() { format!("; allowed: {}", GATES.join(", ")) } else { near };
                own.push((KeyPath::of("update").key(&name), format!("is not a known key{hint}")));
            }
        }
        let of_this = repeated.iter().filter(|(service, _)| *service == n).map(|(_, inside)| inside);
        for inside in of_this.filter(|inside| inside.is_under(&KeyPath::of("update"))) {
            let what = "is given more than once, so that what holds updates, such as signed_by, is unclear";
            own.push((inside.clone(), what.to_owned()));
        }
        for (inside, what) in own {
            findings.warn(&at.join(&inside), format!("{what} ({HELD})"));
            found.services.entry(n).or_default().push(format!("{inside}: {what}"));
        }
    }
    found
}

/// Removes the keys that this object does not have, and that are those of a gate or of `update` itself.
fn strays(members: &mut Map<String, Value>, schema: &Value) -> Vec<String> {
    let is_stray = |name: &String| {
        !keys(schema).any(|known| known == name)
            && GATES.iter().map(String::as_str).chain(["update", "gates"]).any(|gate| is_spelling(name, gate))
            && !keys(schema).any(|known| known != "update" && is_spelling(name, known))
    };
    let names: Vec<String> = members.keys().filter(|name| is_stray(name)).cloned().collect();
    for name in &names {
        members.remove(name);
    }
    names
}

fn keys(schema: &Value) -> impl Iterator<Item = &str> {
    schema["properties"].as_object().into_iter().flat_map(Map::keys).map(String::as_str)
}

fn belongs(name: &str) -> String {
    match GATES.iter().find(|gate| is_spelling(name, gate)) {
        Some(gate) => format!("belongs inside \"update\" of a service, as \"{gate}\""),
        None => "is not a known key; did you mean \"update\" of a service?".to_owned(),
    }
}

/// Reports whether a key of `update` is unknown and not a remark.
fn is_unknown_gate(name: &str) -> bool {
    let is_remark = !name.starts_with(|c: char| c.is_ascii_alphanumeric())
        || ["comment", "description", "note"].contains(&name.to_ascii_lowercase().as_str());
    !is_remark && !GATES.iter().any(|gate| gate == name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::good;
    use super::*;

    /// A service that is watched, with these members beside its name; the file's other members; the resulting hold.
    fn held(service: &Value, file: &Value) -> (Option<String>, Vec<String>) {
        let mut one = json!({"name": "web", "container_name": "web"});
        one.as_object_mut().unwrap().extend(service.as_object().unwrap().clone());
        let mut tree = json!({"services": [one]});
        tree.as_object_mut().unwrap().extend(file.as_object().unwrap().clone());
        let config = good(&tree);
        let warnings = config.warnings.iter().filter(|text| text.contains(HELD)).cloned().collect();
        let update = config.services.first().and_then(|service| service.update.clone());
        (update.and_then(|update| update.fault.clone()), warnings)
    }

    #[test]
    fn a_gates_key_in_the_wrong_place_holds_the_updates() {
        let inside = |gate: &str| format!("belongs inside \"update\" of a service, as \"{gate}\"");
        for (service, what) in [
            (json!({"min_age": "3d"}), format!("min_age: {}", inside("min_age"))),
            (
                json!({"min_age": "3d", "update": {"approve": true}}),
                format!("min_age: {}", inside("min_age")),
            ),
            (json!({"minAge": 5}), format!("minAge: {}", inside("min_age"))),
            (json!({"window": "02:00-05:00"}), format!("window: {}", inside("window"))),
            (json!({"signed-by": "/k"}), format!("signed-by: {}", inside("signed_by"))),
            (
                json!({"updates": {"approve": true}}),
                "updates: is not a known key; did you mean \"update\" of a service?".into(),
            ),
            (
                json!({"Update": {"approve": true}}),
                "Update: is not a known key; did you mean \"update\" of a service?".into(),
            ),
            (
                json!({"gates": {"approve": true}}),
                "gates: is not a known key; did you mean \"update\" of a service?".into(),
            ),
            (
                json!({"update": {"min_agee": 5}}),
                "update.min_agee: is not a known key; did you mean \"min_age\"?".into(),
            ),
        ] {
            let (fault, warnings) = held(&service, &json!({}));
            assert_eq!(fault.as_deref(), Some(what.as_str()), "{service}");
            assert_eq!(warnings, [format!("web: {what} ({HELD})")], "{service}");
        }
        for (file, at) in [
            (json!({"min_age": "3d"}), "min_age"),
            (json!({"registry": {"min_age": "3d"}}), "registry.min_age"),
            (json!({"update": {"min_age": "3d"}}), "update"),
        ] {
            let (fault, warnings) = held(&json!({}), &file);
            assert!(fault.is_some_and(|fault| fault.starts_with(&format!("{at}: "))), "{file}");
            assert!(warnings.len() == 1 && warnings[0].contains(&format!("(all {HELD})")), "{warnings:?}");
        }
    }

    #[test]
    fn remarks_and_other_unknown_keys_hold_nothing() {
        for (service, file) in [
            (json!({"note": "x", "date": "x", "imagse": [], "compose_file": "x"}), json!({"timestamp": 1})),
            (
                json!({"update": {"_min_age": 5, "//": "x", "comment": "x", "approve": true}}),
                json!({"$schema": "x"}),
            ),
        ] {
            assert_eq!(held(&service, &file), (None, vec![]), "{service}");
        }
    }
}
