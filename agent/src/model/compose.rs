//! The resolved compose model, as rendered by compose itself (`compose config --format json`).

use std::collections::BTreeMap;

use serde_json::Value;

use crate::model::image::Reference;
use crate::model::platform::Platform;

/// The resolved compose files, reduced to the sections that affect containers. Services of inactive profiles are not
/// included.
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
#[serde(default)]
pub struct Model {
    services: Section,
    networks: Section,
    volumes: Section,
    configs: Section,
    secrets: Section,
}

/// Elements by name; a section may be present but null.
type Section = Option<BTreeMap<String, Value>>;

impl Model {
    /// Reports whether `other` contains every element of this model unchanged.
    pub fn is_part_of(&self, other: &Self) -> bool {
        self.sections().into_iter().zip(other.sections()).all(|(ours, theirs)| {
            let theirs = |name| theirs.as_ref()?.get(name);
            ours.iter().flatten().all(|(name, element)| theirs(name) == Some(element))
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
    /// Returns the image of its containers; `None` for a service that is only built.
    pub fn image(self) -> Option<Reference> {
        Reference::parse(self.element.get("image")?.as_str()?).ok()
    }

    /// Returns the requested platform of its image; `None` if the engine decides.
    pub fn platform(self) -> Option<Platform> {
        Platform::parse(self.element.get("platform")?.as_str()?)
    }

    /// Returns the jobs that must complete before it is started.
    pub fn waits_for(self) -> impl Iterator<Item = &'a str> {
        let condition = |value: &'a Value| value.get("condition").and_then(Value::as_str);
        let is_job = move |value| condition(value) == Some("service_completed_successfully");
        self.dependencies().filter(move |(_, value)| is_job(value)).map(|(name, _)| name)
    }

    /// Returns the services that it is restarted with: it depends on them with `restart: true`, or joins one of their
    /// namespaces. For a joined namespace compose adds such a dependency by itself, unless the file already declares one.
    pub fn restarts_with(self) -> impl Iterator<Item = &'a str> {
        let restart = |value: &Value| value.get("restart").and_then(Value::as_bool) == Some(true);
        let named = self.dependencies().filter(move |(_, value)| restart(value)).map(|(name, _)| name);
        let element = self.element;
        let owner = |key| element.get(key)?.as_str()?.strip_prefix("service:");
        named.chain(["network_mode", "ipc", "pid", "uts"].into_iter().filter_map(owner))
    }

    /// Returns its bind mounts: the target in the container and the source on the machine.
    pub fn binds(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let mounts = self.element.get("volumes").and_then(Value::as_array);
        mounts.into_iter().flatten().filter_map(|mount| {
            let text = |key| mount.get(key)?.as_str();
            (text("type") == Some("bind")).then_some(())?;
            Some((text("target")?, text("source")?))
        })
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
