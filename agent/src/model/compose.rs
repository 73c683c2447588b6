//! The resolved compose model, as rendered by compose itself (`compose config --format json`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use crate::model::image::Reference;
use crate::model::platform::Platform;

/// The resolved compose files, reduced to the sections that affect containers. Services of inactive profiles are not
/// included.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Model {
    #[serde(skip_serializing_if = "Option::is_none")]
    services: Section,
    #[serde(skip_serializing_if = "Option::is_none")]
    networks: Section,
    #[serde(skip_serializing_if = "Option::is_none")]
    volumes: Section,
    #[serde(skip_serializing_if = "Option::is_none")]
    configs: Section,
    #[serde(skip_serializing_if = "Option::is_none")]
    secrets: Section,
    /// Sections of other versions of compose, such as `models`: a recorded definition is the whole file.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// Elements by name; a section may be present but null.
type Section = Option<BTreeMap<String, Value>>;

impl Model {
    /// Reports whether `other` contains every element of this model unchanged.
    pub fn is_part_of(&self, other: &Self) -> bool {
        let is_known = self.sections().into_iter().zip(other.sections()).all(|(ours, theirs)| {
            let theirs = |name| theirs.as_ref()?.get(name);
            ours.iter().flatten().all(|(name, element)| theirs(name) == Some(element))
        });
        // The name is given on the command line, and extensions have been resolved.
        let mut others = self.others.iter().filter(|(key, _)| *key != "name" && !key.starts_with("x-"));
        is_known
            && others.all(|(key, ours)| match (ours, other.others.get(key)) {
                (Value::Object(ours), Some(Value::Object(theirs))) => {
                    ours.iter().all(|(name, element)| theirs.get(name) == Some(element))
                }
                (ours, theirs) => theirs == Some(ours),
            })
    }

    /// Iterates over the services.
    pub fn services(&self) -> impl Iterator<Item = ModelService<'_>> {
        self.services.iter().flatten().map(|(name, element)| ModelService { name, element })
    }

    /// Returns the service with this name.
    pub fn service(&self, name: &str) -> Option<ModelService<'_>> {
        let (name, element) = self.services.as_ref()?.get_key_value(name)?;
        Some(ModelService { name, element })
    }

    /// Reports whether compose starts a service without this dependency, as far as the services that have containers tell:
    /// it is optional, and none of its profiles is on.
    pub fn lacks(&self, service: ModelService<'_>, on: &str, has_containers: impl Fn(&str) -> bool) -> bool {
        let Some(other) = self.service(on) else { return false };
        let is_shared = |profile: &str| {
            let mut all = self.services().filter(|one| one.profiles().any(|own| own == profile));
            all.any(|one| has_containers(one.name))
        };
        other.has_profiles() && !service.requires().any(|name| name == on) && !other.profiles().any(is_shared)
    }

    /// Returns the definition of a network.
    pub fn network(&self, key: &str) -> Option<&Value> {
        self.networks.as_ref()?.get(key)
    }

    /// Returns the definition of a volume.
    pub fn volume(&self, key: &str) -> Option<&Value> {
        self.volumes.as_ref()?.get(key)
    }

    /// The names of the volumes that the services use, that compose creates, and whose data is in the engine's data folder.
    pub fn own_volumes(&self) -> BTreeSet<&str> {
        let mounts = self.services().filter_map(|service| service.element.get("volumes")?.as_array());
        let of_volumes =
            mounts.flatten().filter(|mount| mount.get("type").is_some_and(|kind| kind == "volume"));
        let keys = of_volumes.filter_map(|mount| mount.get("source")?.as_str());
        let is_external = |volume: &&Value| {
            volume
                .get("external")
                .is_some_and(|external| !matches!(external, Value::Null | Value::Bool(false)))
        };
        let is_elsewhere = |volume: &&Value| {
            let driver = volume.get("driver").and_then(Value::as_str).unwrap_or("local");
            volume.pointer("/driver_opts/device").is_some() || driver != "local"
        };
        let volumes = keys.filter_map(|key| self.volume(key));
        let own = volumes.filter(|volume| !is_external(volume) && !is_elsewhere(volume));
        own.filter_map(|volume| volume.get("name")?.as_str()).collect()
    }

    /// Returns the definition of a config or secret.
    pub fn file(&self, section: &str, key: &str) -> Option<&Value> {
        let section = if section == "secrets" { &self.secrets } else { &self.configs };
        section.as_ref()?.get(key)
    }

    /// Changes the images of services; a service that `image` returns `None` for keeps its own.
    #[must_use]
    pub fn with_images(self, image: impl Fn(ModelService<'_>) -> Option<String>) -> Self {
        self.with_fields(|service| image(service).map(|image| ("image", image)).into_iter().collect())
    }

    /// Sets fields of services to these texts.
    #[must_use]
    pub fn with_fields<'k>(mut self, fields: impl Fn(ModelService<'_>) -> Vec<(&'k str, String)>) -> Self {
        for (name, element) in self.services.iter_mut().flatten() {
            let new = fields(ModelService { name, element });
            let Some(element) = element.as_object_mut() else { continue };
            element.extend(new.into_iter().map(|(key, text)| (key.to_owned(), Value::String(text))));
        }
        self
    }

    /// Removes all dependencies of one service on another that `is_kept` does not name.
    #[must_use]
    pub fn with_dependencies(mut self, is_kept: impl Fn(&str, &str) -> bool) -> Self {
        for (name, element) in self.services.iter_mut().flatten() {
            let Some(element) = element.as_object_mut() else { continue };
            let Some(all) = element.get_mut("depends_on").and_then(Value::as_object_mut) else { continue };
            all.retain(|on, _| is_kept(name, on));
            if all.is_empty() {
                element.remove("depends_on");
            }
        }
        self
    }

    /// Reports whether these services, with the networks, volumes, configs and secrets that they use, are defined in
    /// `other` as they are here.
    pub fn defines_alike(&self, services: &[String], other: &Self) -> bool {
        services.iter().all(|name| {
            let (here, there) = (self.service(name), other.service(name));
            let (Some(here), Some(there)) = (here, there) else { return here.is_none() && there.is_none() };
            let used = |key: &str| -> Vec<&str> {
                match here.element.get(key) {
                    Some(Value::Object(map)) => map.keys().map(String::as_str).collect(),
                    Some(Value::Array(list)) => {
                        list.iter().filter_map(|one| one.get("source")?.as_str()).collect()
                    }
                    _ => Vec::new(),
                }
            };
            let model =
                |model: &Self, key: &str| model.others.get("models").and_then(|all| all.get(key)).cloned();
            here.element == there.element
                && used("models").into_iter().all(|key| model(self, key) == model(other, key))
                && used("networks").into_iter().all(|key| self.network(key) == other.network(key))
                && used("volumes").into_iter().all(|key| self.volume(key) == other.volume(key))
                && ["configs", "secrets"].into_iter().all(|section| {
                    used(section).into_iter().all(|key| self.file(section, key) == other.file(section, key))
                })
        })
    }

    fn sections(&self) -> [&Section; 5] {
        [&self.services, &self.networks, &self.volumes, &self.configs, &self.secrets]
    }
}

/// One service of the compose files.
#[derive(Debug, Clone, Copy)]
pub struct ModelService<'a> {
    /// Its name.
    pub name: &'a str,
    element: &'a Value,
}

impl<'a> ModelService<'a> {
    /// Returns its definition.
    pub fn element(self) -> &'a Value {
        self.element
    }

    /// Returns the compose services that it depends on.
    pub fn depends_on(self) -> impl Iterator<Item = &'a str> {
        self.dependencies().map(|(name, _)| name)
    }

    /// Returns those of them without which compose does not start it: all but those with `required: false`.
    pub fn requires(self) -> impl Iterator<Item = &'a str> {
        let is_optional = |value: &Value| value.get("required").and_then(Value::as_bool) == Some(false);
        self.dependencies().filter(move |(_, value)| !is_optional(value)).map(|(name, _)| name)
    }

    /// Returns how long its containers get to stop; `None` if the files do not say.
    pub fn stop_grace_period(self) -> Option<Duration> {
        duration(self.element.get("stop_grace_period")?.as_str()?)
    }

    /// Returns the image of its containers; `None` for a service that is only built.
    pub fn image(self) -> Option<Reference> {
        Reference::parse(self.element.get("image")?.as_str()?).ok()
    }

    /// Returns the images that its containers mount (`type: image`).
    pub fn mounted_images(self) -> impl Iterator<Item = Reference> {
        let volumes = self.element.get("volumes").and_then(Value::as_array).into_iter().flatten();
        let of_images = volumes.filter(|volume| volume.get("type").is_some_and(|kind| kind == "image"));
        of_images.filter_map(|volume| Reference::parse(volume.get("source")?.as_str()?).ok())
    }

    /// Returns the requested platform of its image; `None` if the engine decides.
    pub fn platform(self) -> Option<Platform> {
        Platform::parse(self.element.get("platform")?.as_str()?)
    }

    /// Reports whether it is of profiles, so that compose leaves it out unless one of them or the service itself is named.
    pub fn has_profiles(self) -> bool {
        self.profiles().next().is_some()
    }

    /// Returns its profiles.
    pub fn profiles(self) -> impl Iterator<Item = &'a str> {
        let all = self.element.get("profiles").and_then(Value::as_array);
        all.into_iter().flatten().filter_map(Value::as_str)
    }

    /// Returns the jobs that must complete before it is started.
    pub fn waits_for(self) -> impl Iterator<Item = &'a str> {
        self.depends_on_as("service_completed_successfully")
    }

    /// Returns the services that must be healthy before it is started.
    pub fn waits_for_health_of(self) -> impl Iterator<Item = &'a str> {
        self.depends_on_as("service_healthy")
    }

    /// Reports whether compose runs commands when it starts or stops its containers, and waits for these.
    pub fn has_hooks(self) -> bool {
        ["pre_start", "post_start", "pre_stop"].into_iter().any(|key| self.has_hook(key))
    }

    /// Reports whether it has commands for one of these occasions.
    pub fn has_hook(self, key: &str) -> bool {
        self.element.get(key).and_then(Value::as_array).is_some_and(|all| !all.is_empty())
    }

    fn depends_on_as(self, condition: &'static str) -> impl Iterator<Item = &'a str> {
        let has = move |value: &Value| value.get("condition").and_then(Value::as_str) == Some(condition);
        self.dependencies().filter(move |(_, value)| has(value)).map(|(name, _)| name)
    }

    /// Returns the services that it is restarted with: it depends on them with `restart: true`, or joins one of their
    /// namespaces. For a joined namespace compose adds such a dependency by itself, unless the file already declares one.
    pub fn restarts_with(self) -> impl Iterator<Item = &'a str> {
        let restart = |value: &Value| value.get("restart").and_then(Value::as_bool) == Some(true);
        let named = self.dependencies().filter(move |(_, value)| restart(value)).map(|(name, _)| name);
        named.chain(self.namespace_owners())
    }

    /// Reports whether it joins a namespace of this service.
    pub fn shares_namespace_of(self, service: &str) -> bool {
        self.namespace_owners().any(|owner| owner == service)
    }

    /// Returns the containers whose namespaces it joins, by their names. Compose does not know that these may be its own.
    pub fn joined_containers(self) -> impl Iterator<Item = &'a str> {
        self.joined("container:")
    }

    /// Reports whether it mounts the volumes of this service, or of a container that is one of its own by its name.
    pub fn mounts_volumes_of(self, service: &str, is_own: impl Fn(&str) -> bool) -> bool {
        let all = self.element.get("volumes_from").and_then(Value::as_array);
        all.into_iter().flatten().filter_map(Value::as_str).any(|from| {
            // `service`, `service:ro`, `container:name` or `container:name:ro`.
            let mut parts = from.split(':');
            match (parts.next(), parts.next()) {
                (Some("container"), Some(name)) => is_own(name),
                (owner, _) => owner == Some(service),
            }
        })
    }

    fn namespace_owners(self) -> impl Iterator<Item = &'a str> {
        self.joined("service:")
    }

    fn joined(self, kind: &'static str) -> impl Iterator<Item = &'a str> {
        let element = self.element;
        let owner = move |key| element.get(key)?.as_str()?.strip_prefix(kind);
        ["network_mode", "ipc", "pid", "uts"].into_iter().filter_map(owner)
    }

    /// Returns the configured number of containers.
    pub fn replicas(self) -> usize {
        let count = |value: Option<&Value>| usize::try_from(value?.as_u64()?).ok();
        let deployed = || count(self.element.get("deploy")?.get("replicas"));
        count(self.element.get("scale")).or_else(deployed).unwrap_or(1)
    }

    fn dependencies(self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let map = self.element.get("depends_on").and_then(Value::as_object);
        map.into_iter().flatten().map(|(name, value)| (name.as_str(), value))
    }
}

/// Parses a duration as compose prints it: `1h2m3.5s`.
pub fn duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        let seconds = match &rest[digits..unit] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
        rest = &rest[unit..];
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_that_are_not_known_here_stay_in_a_recorded_definition() {
        let text = r#"{"name": "shop", "models": {"llm": {"model": "ai/smollm2"}}, "services": {"web": {"image": "web:1"}}}"#;
        let read: Value = serde_json::from_str(text).unwrap();
        let model: Model = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(&model).unwrap(), read);
    }

    #[test]
    fn another_model_of_a_service_is_another_definition() {
        let model = |name: &str| -> Model {
            let models = serde_json::json!({ "llm": { "model": name } });
            let web = serde_json::json!({ "image": "web:1", "models": { "llm": null } });
            serde_json::from_value(serde_json::json!({ "models": models, "services": { "web": web } }))
                .unwrap()
        };
        let web = ["web".to_owned()];
        assert!(model("a").defines_alike(&web, &model("a")) && model("a").is_part_of(&model("a")));
        assert!(!model("a").defines_alike(&web, &model("b")) && !model("a").is_part_of(&model("b")));
    }

    #[test]
    fn durations_are_read_as_compose_prints_them() {
        let table = [
            ("14m0s", Some(840.0)),
            ("10s", Some(10.0)),
            ("1h0m0.5s", Some(3600.5)),
            ("", Some(0.0)),
            ("x", None),
        ];
        for (text, seconds) in table {
            assert_eq!(duration(text), seconds.map(Duration::from_secs_f64), "{text}");
        }
    }
}
