//! Capabilities and security options. Engines do not report all of them as they were asked for, and compose rewrites some.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Sides, words};

/// The capabilities that all versions of podman give a container by default.
const PODMANS_CAPABILITIES: [&str; 11] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// The option that compose replaces by empty lists of masked and read-only paths.
const UNMASKED: &str = "systempaths=unconfined";

/// An option in the two forms that mean the same. Podman reports the latter.
const NO_NEW: [&str; 2] = ["no-new-privileges=true", "no-new-privileges"];

/// Options that are not compared: the engine adds labels, compose replaces the name of a seccomp profile by its content, and
/// podman lifts the mask of privileged containers. The last one is the default.
const NOT_COMPARED: [&str; 5] = ["label=", "seccomp=", "mask=", "unmask=", "no-new-privileges=false"];

impl Sides<'_> {
    pub(super) fn capabilities_differ(&self, key: &str, actual: &str) -> bool {
        let set = |value: Option<&Value>| -> BTreeSet<String> {
            let names = words(value).unwrap_or_default().into_iter().map(|name| name.to_uppercase());
            names.map(|name| name.strip_prefix("CAP_").map(str::to_owned).unwrap_or(name)).collect()
        };
        let (wanted, actual) = (set(self.wanted(key)), set(self.actual(actual)));
        if !self.is_podman() {
            return wanted != actual;
        }
        // Podman compares what a container has with its defaults, and reports the single names by which the two differ.
        let is_drop = key == "cap_drop";
        if wanted.contains("ALL") || (!is_drop && self.is_privileged()) {
            return false;
        }
        let is_reported = |name: &String| PODMANS_CAPABILITIES.contains(&name.as_str()) == is_drop;
        !actual.is_subset(&wanted) || wanted.difference(&actual).any(is_reported)
    }

    pub(super) fn security_differs(&self) -> bool {
        let set = |value: Option<&Value>| -> BTreeSet<String> {
            let all = words(value).unwrap_or_default().into_iter();
            let all = all.map(|option| option.replacen(':', "=", 1));
            let all = all.filter(|option| !NOT_COMPARED.iter().any(|start| option.starts_with(start)));
            all.map(|option| if option == NO_NEW[0] { NO_NEW[1].to_owned() } else { option }).collect()
        };
        let (mut wanted, mut actual) =
            (set(self.wanted("security_opt")), set(self.actual("/HostConfig/SecurityOpt")));
        let is_unmasked = wanted.remove(UNMASKED);
        actual.remove(UNMASKED);
        if self.is_podman() {
            // It has a profile by default where the kernel knows any.
            actual.retain(|option| wanted.contains(option) || !option.starts_with("apparmor="));
        }
        // Nothing is masked in a privileged container, and podman does not report it.
        let masked = self.actual("/HostConfig/MaskedPaths").and_then(Value::as_array);
        let masked = masked.filter(|_| !self.is_privileged());
        wanted != actual || masked.is_some_and(|paths| paths.is_empty() != is_unmasked)
    }

    fn is_privileged(&self) -> bool {
        self.actual("/HostConfig/Privileged").and_then(Value::as_bool) == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::compose::Model;

    /// The fields that differ between a service and a container with these settings of its host.
    fn of(service: &Value, host: &Value) -> Vec<String> {
        let container = json!({ "HostConfig": host });
        let (model, image) = (Model::default(), json!({}));
        Sides { service, model: &model, container: &container, image: Some(&image) }.differences()
    }

    #[test]
    fn capabilities_that_podman_gives_by_default_are_compared_by_what_it_reports() {
        let of_podman = |service: Value, added: &[&str], dropped: &[&str]| {
            of(&service, &json!({ "Runtime": "oci", "CapAdd": added, "CapDrop": dropped }))
        };
        let all_but_bind = ["CAP_CHOWN", "CAP_FOWNER", "CAP_KILL"];
        let strict = || json!({ "cap_drop": ["ALL"], "cap_add": ["NET_BIND_SERVICE"] });
        let none: [&str; 0] = [];
        assert_eq!(of_podman(strict(), &[], &all_but_bind), none);
        assert_eq!(of_podman(strict(), &["CAP_SYS_ADMIN"], &all_but_bind), ["cap_add"]);
        assert_eq!(of_podman(json!({ "cap_add": ["ALL"] }), &["CAP_SYS_ADMIN"], &[]), none);
        assert_eq!(of_podman(json!({ "cap_add": ["SYS_ADMIN"] }), &["CAP_SYS_ADMIN"], &[]), none);
        assert_eq!(of_podman(json!({ "cap_add": ["SYS_ADMIN"] }), &[], &[]), ["cap_add"]);
        assert_eq!(of_podman(json!({ "cap_drop": ["NET_RAW", "KILL"] }), &[], &["CAP_KILL"]), none);
        assert_eq!(of_podman(json!({ "cap_drop": ["KILL"] }), &[], &[]), ["cap_drop"]);
        assert_eq!(of_podman(json!({}), &[], &["CAP_KILL"]), ["cap_drop"]);
        let privileged = json!({ "privileged": true, "cap_add": ["SYS_ADMIN"] });
        assert_eq!(of(&privileged, &json!({ "Runtime": "oci", "Privileged": true })), none);
        let docker = json!({ "CapDrop": ["CAP_CHOWN", "CAP_KILL"] });
        assert_eq!(of(&json!({ "cap_drop": ["ALL"] }), &docker), ["cap_drop"]);
    }

    #[test]
    fn security_options_are_compared_in_the_form_that_compose_and_the_engine_give_them() {
        let masked = json!({ "MaskedPaths": ["/proc/keys"] });
        let reported = |options: &[&str]| json!({ "SecurityOpt": options });
        let of_podman = |options: &[&str]| json!({ "Runtime": "oci", "SecurityOpt": options });
        let table: [(&[&str], Value, bool); 15] = [
            (&["systempaths=unconfined"], json!({ "MaskedPaths": [] }), false),
            (&["systempaths=unconfined"], masked.clone(), true),
            (&["systempaths=unconfined"], of_podman(&["unmask=all"]), false),
            (&[], masked, false),
            (&[], json!({ "MaskedPaths": [] }), true),
            (&[], json!({ "MaskedPaths": null }), false),
            (&["no-new-privileges:true"], reported(&["no-new-privileges"]), false),
            (&["no-new-privileges=true"], reported(&["no-new-privileges:true"]), false),
            (&["no-new-privileges:false"], of_podman(&[]), false),
            (&["no-new-privileges:true"], reported(&[]), true),
            (&["apparmor:unconfined"], reported(&["apparmor=unconfined"]), false),
            (&[], reported(&["apparmor=unconfined"]), true),
            (&[], of_podman(&["apparmor=containers-default-0.62.2"]), false),
            (&["apparmor=unconfined"], of_podman(&["apparmor=containers-default-0.62.2"]), true),
            (&["label:disable", "seccomp:unconfined"], reported(&["label=disable"]), false),
        ];
        for (options, host, differs) in table {
            let found = of(&json!({ "security_opt": options }), &host);
            let expected: &[&str] = if differs { &["security_opt"] } else { &[] };
            assert_eq!(found, expected, "{options:?} {host}");
        }
        let privileged = json!({ "Privileged": true, "MaskedPaths": [] });
        assert_eq!(of(&json!({ "privileged": true }), &privileged), [""; 0]);
    }
}
