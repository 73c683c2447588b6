//! Configurations of images, and how that of a new image differs from the running one (DECISIONS 15).

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::image::ImageLabels;
use super::output::{clean, clip_end};

/// Maximum length of a value that is shown.
const SHOWN: usize = 120;
/// The value of `org.opencontainers.image.ref.name` of a base image that hands down its labels to all images built on it.
const LABELLED_BASE: &str = "ubuntu";

/// What an image's configuration says about its containers. Engines and registries write it with the same keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// Its OCI labels.
    pub labels: ImageLabels,
    /// Whether the version label may be that of the image that it was built on.
    pub has_labels_of_base: bool,
    /// Paths that it declares as volumes (`VOLUME`).
    pub volumes: BTreeSet<String>,
    /// User that its processes run as; empty for root.
    pub user: String,
    /// Its `ENTRYPOINT`.
    pub entrypoint: Vec<String>,
    /// Its `CMD`.
    pub command: Vec<String>,
    /// Ports that it exposes, with their protocol (`EXPOSE`).
    pub ports: BTreeSet<String>,
}

impl ImageConfig {
    /// Reads the `Config` of an engine's answer, or the `config` of a blob in a registry. What is missing is empty.
    pub fn read(config: &Value) -> Self {
        let keys =
            |name: &str| config.get(name).and_then(Value::as_object).into_iter().flat_map(|map| map.keys());
        let words = |name: &str| match config.get(name) {
            Some(Value::Array(words)) => words.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            Some(Value::String(line)) => vec![line.clone()],
            _ => Vec::new(),
        };
        let with_protocol =
            |port: &String| if port.contains('/') { port.clone() } else { format!("{port}/tcp") };
        let trimmed = |path: &String| match path.trim_end_matches('/') {
            "" => "/".to_owned(),
            path => path.to_owned(),
        };
        let label = |name: &str| config.get("Labels")?.get(name)?.as_str();
        let user = match config.get("User").and_then(Value::as_str).unwrap_or_default() {
            "root" | "0" | "0:0" | "root:root" => "",
            user => user,
        };
        Self {
            labels: ImageLabels::read(label),
            has_labels_of_base: label("org.opencontainers.image.ref.name") == Some(LABELLED_BASE),
            volumes: keys("Volumes").map(trimmed).collect(),
            user: user.to_owned(),
            entrypoint: words("Entrypoint"),
            command: words("Cmd"),
            ports: keys("ExposedPorts").map(with_protocol).collect(),
        }
    }
}

/// A part of an image's configuration whose change may break a service (`ask_on`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aspect {
    /// The first number of the version grows.
    Major,
    /// The declared volumes.
    Volumes,
    /// The user.
    User,
    /// Entrypoint and command.
    Entrypoint,
    /// The exposed ports.
    Ports,
}

impl Aspect {
    /// All of them, in the order in which they are named.
    pub const ALL: [Self; 5] = [Self::Major, Self::Volumes, Self::User, Self::Entrypoint, Self::Ports];

    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Major => "major",
            Self::Volumes => "volumes",
            Self::User => "user",
            Self::Entrypoint => "entrypoint",
            Self::Ports => "ports",
        }
    }

    /// What a change of it may mean for the person.
    fn meaning(self) -> &'static str {
        match self {
            Self::Major => "a new major version may need steps by hand",
            Self::Volumes => "data may no longer be where the volume is mounted",
            Self::User => "it may not be allowed to read or write the data",
            Self::Entrypoint => "a command in the compose file may no longer fit",
            Self::Ports => "it may listen elsewhere",
        }
    }
}

/// How the configuration of a new image differs from that of the running one in one aspect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigDifference {
    /// What differs.
    pub aspect: Aspect,
    /// What the new image says, as the predicate of a sentence: `declares VOLUME /data`.
    pub after: String,
    /// What the other one says instead.
    pub before: String,
}

impl ConfigDifference {
    /// Says in one line, as the predicate of a sentence about the new image, what both say and what that may mean. `other`
    /// names the other image.
    pub fn told(&self, other: &str) -> String {
        let Self { aspect, after, before } = self;
        format!("{after}, {other} {before}: {}", aspect.meaning())
    }
}

/// Before the update.
impl fmt::Display for ConfigDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told("the running image"))
    }
}

/// What the configurations of the old and the new image of an update say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigChange {
    /// Labels of the old image.
    pub old: ImageLabels,
    /// Labels of the new image.
    pub new: ImageLabels,
    /// What differs, and may break the service.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<ConfigDifference>,
}

/// An image with the tag under which it is known here, for a comparison.
#[derive(Debug, Clone, Copy)]
pub struct Tagged<'a> {
    /// Its configuration.
    pub config: &'a ImageConfig,
    /// Its tag; `None` if it has none.
    pub tag: Option<&'a str>,
}

impl ConfigChange {
    /// Reads what changes between two images with their tags; `None` for one whose configuration is not known.
    pub fn between(
        old: Option<(&ImageConfig, Option<&str>)>,
        new: Option<(&ImageConfig, Option<&str>)>,
    ) -> Self {
        let labels = |image: Option<(&ImageConfig, _)>| image.map(|(config, _)| config.labels.clone());
        let tagged = |(config, tag)| Tagged { config, tag };
        Self {
            old: labels(old).unwrap_or_default(),
            new: labels(new).unwrap_or_default(),
            differences: match (old.map(tagged), new.map(tagged)) {
                (Some(old), Some(new)) => differences(old, new),
                _ => Vec::new(),
            },
        }
    }
}

/// Compares the configuration of a new image with that of the running one.
pub fn differences(old: Tagged<'_>, new: Tagged<'_>) -> Vec<ConfigDifference> {
    let mut found = Vec::new();
    let mut note =
        |aspect, after: String, before: String| found.push(ConfigDifference { aspect, after, before });
    if let Some((before, after)) = new_major(old, new) {
        note(Aspect::Major, format!("is version {after}"), before);
    }
    let (before, after) = (old.config, new.config);
    if before.volumes != after.volumes {
        let declared = listed("VOLUME ", "no VOLUME", &after.volumes);
        note(Aspect::Volumes, format!("declares {declared}"), listed("", "none", &before.volumes));
    }
    if before.user != after.user {
        let name = |user: &str| if user.is_empty() { "root".to_owned() } else { shown(user) };
        note(
            Aspect::User,
            format!("runs as user {}", name(&after.user)),
            format!("as {}", name(&before.user)),
        );
    }
    if (&before.entrypoint, &before.command) != (&after.entrypoint, &after.command) {
        note(Aspect::Entrypoint, format!("starts {}", started(after)), started(before));
    }
    if before.ports != after.ports {
        let exposed = listed("", "no port", &after.ports);
        note(Aspect::Ports, format!("exposes {exposed}"), listed("", "none", &before.ports));
    }
    found
}

/// Returns both versions if the first number grows, in the labels or in the tags. Labels that a base image may have left
/// behind count only where the tags do not tell.
fn new_major<'a>(old: Tagged<'a>, new: Tagged<'a>) -> Option<(String, String)> {
    let label = |image: Tagged<'a>| image.config.labels.version.as_deref();
    let grows = |before: Option<&str>, after: Option<&str>| {
        let (before, after) = (before?, after?);
        let grows = first_number(before)? < first_number(after)?;
        Some(grows.then(|| (shown(before), shown(after))))
    };
    let by_tag = grows(old.tag, new.tag);
    if by_tag.is_some() && (old.config.has_labels_of_base || new.config.has_labels_of_base) {
        return by_tag.flatten();
    }
    grows(label(old), label(new)).flatten().or_else(|| by_tag.flatten())
}

/// Returns the first number of a version: `17` of `v17.2-alpine`; `None` for text such as `latest`.
fn first_number(version: &str) -> Option<u64> {
    let version = version.trim().trim_start_matches(['v', 'V']);
    let digits = version.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

fn shown(text: &str) -> String {
    clip_end(&clean(text).split_whitespace().collect::<Vec<_>>().join(" "), SHOWN)
}

fn listed(noun: &str, none: &str, items: &BTreeSet<String>) -> String {
    if items.is_empty() {
        return none.to_owned();
    }
    let items: Vec<&str> = items.iter().map(String::as_str).collect();
    format!("{noun}{}", shown(&items.join(", ")))
}

fn started(config: &ImageConfig) -> String {
    let words: Vec<&str> = config.entrypoint.iter().chain(&config.command).map(String::as_str).collect();
    if words.is_empty() { "nothing".to_owned() } else { format!("\"{}\"", shown(&words.join(" "))) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn compare(old: (&Value, Option<&str>), new: (&Value, Option<&str>)) -> Vec<String> {
        let (before, after) = (ImageConfig::read(old.0), ImageConfig::read(new.0));
        let found =
            differences(Tagged { config: &before, tag: old.1 }, Tagged { config: &after, tag: new.1 });
        found.into_iter().map(|one| format!("{}: {one}", one.aspect.name())).collect()
    }

    #[test]
    fn differences_say_what_they_may_mean() {
        let old = json!({
            "Volumes": {"/var/lib/postgresql/data": {}}, "User": "", "Entrypoint": ["docker-entrypoint.sh"],
            "Cmd": ["postgres"], "ExposedPorts": {"5432/tcp": {}},
        });
        let new = json!({
            "Volumes": {"/var/lib/postgresql": {}}, "User": "999", "Entrypoint": ["/entry.sh"], "Cmd": ["postgres"],
            "ExposedPorts": {"5433/tcp": {}},
        });
        assert_eq!(
            compare((&old, Some("17")), (&new, Some("18"))),
            [
                "major: is version 18, the running image 17: a new major version may need steps by hand",
                "volumes: declares VOLUME /var/lib/postgresql, the running image /var/lib/postgresql/data: data may no longer be \
                 where the volume is mounted",
                "user: runs as user 999, the running image as root: it may not be allowed to read or write the data",
                "entrypoint: starts \"/entry.sh postgres\", the running image \"docker-entrypoint.sh postgres\": a command in the \
                 compose file may no longer fit",
                "ports: exposes 5433/tcp, the running image 5432/tcp: it may listen elsewhere",
            ]
        );
        let none = json!({});
        let emptied = compare((&old, None), (&none, None));
        assert!(
            emptied[0].contains("declares no VOLUME, the running image /var/lib/postgresql/data"),
            "{emptied:?}"
        );
        assert!(emptied[2].starts_with("ports: exposes no port"), "{emptied:?}");
    }

    #[test]
    fn other_spellings_of_the_same_are_no_difference() {
        let one = json!({
            "Volumes": {"/data/": {}}, "User": "root", "Entrypoint": "/run", "Cmd": null, "ExposedPorts": {"80": {}},
        });
        let other = json!({
            "Volumes": {"/data": {}}, "User": "0:0", "Entrypoint": ["/run"], "ExposedPorts": {"80/tcp": {}},
        });
        assert_eq!(compare((&one, Some("1")), (&other, Some("1"))), [""; 0]);
        assert_eq!(compare((&json!(null), None), (&json!({"Volumes": null}), None)), [""; 0]);
    }

    #[test]
    fn a_major_version_is_that_of_the_label_or_else_of_the_tag() {
        let labelled = |version: &str| json!({"Labels": {"org.opencontainers.image.version": version}});
        let on_ubuntu = |version: &str| {
            let name = "org.opencontainers.image.ref.name";
            json!({"Labels": {name: "ubuntu", "org.opencontainers.image.version": version}})
        };
        let bare = json!({});
        for (old, new, grows) in [
            ((labelled("16.4"), "latest"), (labelled("17.0"), "latest"), true),
            ((labelled("v1.9"), "1"), (labelled("v2.0"), "1"), true),
            ((labelled("17"), "17"), (labelled("16"), "16"), false),
            // Any image may have the label from the one that it was built on.
            ((labelled("16.4"), "16"), (labelled("16.5"), "17"), true),
            ((labelled("12"), "6.0.9"), (labelled("12"), "7.0.1"), true),
            ((on_ubuntu("22.04"), "6.0.9"), (on_ubuntu("22.04"), "7.0.1"), true),
            ((on_ubuntu("22.04"), "7.0.14"), (on_ubuntu("24.04"), "7.0.15"), false),
            ((labelled("12"), "7.0.14"), (on_ubuntu("24.04"), "7.0.15"), false),
            ((on_ubuntu("22.04"), "latest"), (on_ubuntu("24.04"), "latest"), true),
            // Only one side has the label, or one can't be read.
            ((bare.clone(), "16-alpine"), (labelled("17.0"), "17-alpine"), true),
            ((bare.clone(), "latest"), (labelled("17.0"), "latest"), false),
            ((labelled("noble"), "16"), (labelled("17"), "17"), true),
            ((bare.clone(), "latest"), (bare.clone(), "latest"), false),
            ((bare.clone(), "9"), (bare.clone(), "10"), true),
        ] {
            let found = compare((&old.0, Some(old.1)), (&new.0, Some(new.1)));
            assert_eq!(!found.is_empty(), grows, "{old:?} {new:?}: {found:?}");
        }
    }

    #[test]
    fn texts_from_outside_stay_one_short_line() {
        let new = json!({"Cmd": ["sh", "-c", "a\nb\u{1b}[31m".to_owned() + &"x".repeat(500)]});
        let found = compare((&json!({}), None), (&new, None));
        assert!(found[0].len() < 400 && !found[0].contains(['\n', '\u{1b}']), "{found:?}");
    }
}
