//! What compose would make of its files, compared with what runs (DECISIONS 4a). The only such comparison: updates,
//! `doctor` and `adopt` use it.
//!
//! Compose labels each container with a hash of the definition that it was created from. As long as the same compose
//! prints the same hash for its files, they define what runs. Where the hashes differ, the files may have been edited or
//! rendered in other surroundings; but another version of compose may also have created the container, so that the
//! definition is compared field by field with what the engine reports.

pub mod copied;
mod fields;
mod images;
mod networks;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use evenkeel_common::config::expand::is_shown;
use evenkeel_common::wire::MountRecord;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::fields::Sides;
pub(crate) use self::fields::{cleaned, unescaped};
use super::compose::{Model, ModelService};
use super::container::Container;

/// The end of the name of a file with a recorded definition, which compose reads in place of the project's files.
pub const RECORDED_SUFFIX: &str = ".evenkeel-recorded.json";

/// The variable with the home directory that compose puts in the place of `~`. It is that of the user who runs compose.
pub const HOME: &str = "HOME";

/// What is said of variables that are not set and whose names may be the rest of a password (DECISIONS 2).
pub const UNNAMED_VARIABLE: &str = "A $ in the compose files or in an env file is followed by something that is no variable \
                                    set here, and is not shown since it may be part of a password; a literal $ is written $$";

/// The end of what differs because a provider has set it.
const OF_PROVIDER: &str = " (set by a provider)";

/// The end of a setting that is no longer the one that a container was made with.
const CHANGED_SINCE: &str = " (changed since)";

/// The end of a network that a container was taken from.
const DISCONNECTED_SINCE: &str = " (disconnected since)";

/// The end of a variable that docker's configuration has compose set.
const OF_PROXIES: &str = " (set by docker's proxies)";

/// The end of a folder of a running container that the machine does not have any more.
const NOT_THERE: &str = " (not there any more)";

/// Label with the hash of the definition that a container or a network was created from.
const HASH_LABEL: &str = "com.docker.compose.config-hash";
/// Label with the version of the compose that created a container.
const VERSION_LABEL: &str = "com.docker.compose.version";
/// Label with the dependencies that a container was created with, as `service:condition:restart`, separated by commas.
const DEPENDS_ON_LABEL: &str = "com.docker.compose.depends_on";
/// Label with the ID of the image that compose has created a container from.
const IMAGE_LABEL: &str = "com.docker.compose.image";
/// Label with the compose project.
const PROJECT_LABEL: &str = "com.docker.compose.project";
/// Label with the compose service.
const SERVICE_LABEL: &str = "com.docker.compose.service";

/// The compose files of a project, as compose renders them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rendered {
    /// The resolved model, including services of inactive profiles.
    pub model: Model,
    /// The hash of each compose service's definition.
    pub hashes: BTreeMap<String, String>,
    /// The same hashes, computed from the model. `config --hash` leaves the variables of a service's env files out, which are
    /// in the label of a container and in the model. Only computed if the hashes of the files do not explain what runs.
    pub resolved: BTreeMap<String, String>,
    /// Hashes that count as equal: those of [`Running::applied_to`].
    pub accepted: BTreeMap<String, String>,
    /// The version of compose, such as `2.26.1`; empty if it is not known.
    pub version: String,
    /// Variables that compose reports as not set.
    pub unset: Vec<String>,
    /// The home directory of compose, see [`HOME`]; empty if it is not known.
    pub home: String,
    /// The variables that docker's `proxies` have compose set in new containers; `None` if they are not known.
    pub proxies: Option<BTreeMap<String, String>>,
    /// The configs and secrets that are copied into containers and use such a variable, by their names in [`copied`].
    pub incomplete: BTreeSet<String>,
}

/// What runs, as the engine reports it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Running {
    /// The inspected containers.
    pub containers: Vec<Value>,
    /// The configurations (`Config`) of their images, by image ID; an image that is gone is missing.
    pub images: BTreeMap<String, Value>,
    /// The networks of the project.
    pub networks: Vec<Value>,
}

/// How the definition of one compose service differs from what runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Difference {
    /// The compose service.
    pub service: String,
    /// What differs, such as `environment SECRET` or `volume /data`. Values are never named: they may be secret.
    pub what: Vec<String>,
    /// Variables that compose reports as not set, which may be the reason, and [`HOME`] if it may be another one here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unset: Vec<String>,
    /// Networks that a container was connected to after compose had made it, among what differs. A new container would not
    /// be connected to them, whatever the files say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connected: Vec<String>,
}

impl Difference {
    /// A folder that a running container of a compose service has mounted, and that the machine does not have any more.
    pub(crate) fn of_absent(service: &str, folder: &str) -> Self {
        let what = vec![format!("folder {folder}{NOT_THERE}")];
        Self { service: service.to_owned(), what, unset: Vec::new(), connected: Vec::new() }
    }

    /// Reports whether such a folder is among what differs. A new container would begin without what is in it.
    pub fn lacks_folder(&self) -> bool {
        self.what.iter().any(|what| what.ends_with(NOT_THERE))
    }

    /// Reports whether the files define what runs but for networks that were connected since.
    pub fn is_of_connections(&self) -> bool {
        !self.connected.is_empty() && self.what.len() == self.connected.len()
    }

    /// Reports whether nothing differs but variables of providers: compose gets their values when it brings up the
    /// dependencies of a service, so that they are in no file.
    pub fn is_of_providers(&self) -> bool {
        !self.what.is_empty() && self.what.iter().all(|what| what.ends_with(OF_PROVIDER))
    }

    /// Reports whether nothing in the files differs: only settings that were changed since, or variables of docker's proxies. A
    /// network that a container was taken from is not beside them: whoever did that wants it cut off.
    pub fn is_beside_files(&self) -> bool {
        let is_beside = |what: &String| what.ends_with(CHANGED_SINCE) || what.ends_with(OF_PROXIES);
        !self.what.is_empty() && self.what.iter().all(is_beside)
    }

    /// Reports whether variables of docker's proxies are among what differs, which are in no file and no hash: compose takes them
    /// from the docker configuration of whoever runs it.
    pub fn has_proxies(&self) -> bool {
        self.what.iter().any(|what| what.ends_with(OF_PROXIES))
    }

    /// Reports whether the files define what runs but for what was changed of a container since, as with `docker update`,
    /// `docker rename` or `docker network disconnect`.
    pub fn is_of_changes_since(&self) -> bool {
        let is_since = |what: &String| what.ends_with(CHANGED_SINCE) || what.ends_with(DISCONNECTED_SINCE);
        !self.what.is_empty() && self.what.iter().all(is_since)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 6;
        write!(f, "{}: {}", self.service, self.what[..self.what.len().min(SHOWN)].join(", "))?;
        if self.what.len() > SHOWN {
            write!(f, " and {} more", self.what.len() - SHOWN)?;
        }
        let is_named = |name: &&str| *name != HOME && is_shown(name);
        let named: Vec<&str> = self.unset.iter().map(String::as_str).filter(is_named).collect();
        if !named.is_empty() {
            write!(f, " (not set here: {})", named.join(", "))?;
        }
        if self.unset.iter().any(|name| name == HOME) {
            write!(f, " ({HOME} may be another one here)")?;
        }
        Ok(())
    }
}

impl Rendered {
    /// Compares the definitions of these compose services with what runs. The image is not compared. Services without a
    /// container are skipped.
    pub fn differences(&self, services: &[String], running: &Running) -> Vec<Difference> {
        let mut all: Vec<Difference> = Vec::new();
        for name in services {
            let (mut what, mut connected): (Vec<String>, BTreeSet<String>) = Default::default();
            let mut is_of_another_home = false;
            for container in running.of_service(name) {
                let is_known = self.is_known_hash(name, label(container, HASH_LABEL));
                let Some(service) = self.model.service(name) else {
                    what.extend((!is_known).then(|| "it is not in the compose files".to_owned()));
                    continue;
                };
                let image = running.image(container);
                let sides = Sides { service: service.element(), model: &self.model, container, image };
                if is_known {
                    what.extend(sides.moved_mounts());
                    let changed = sides.changed_since().into_iter();
                    what.extend(changed.map(|what| format!("{what}{CHANGED_SINCE}")));
                    let (others, lacking) = (sides.other_networks(), sides.lacking_networks());
                    if lacking.is_empty() {
                        connected.extend(others);
                    } else if !others.is_empty() {
                        what.push("networks".to_owned());
                    } else {
                        let disconnected = sides.disconnected().into_iter();
                        what.extend(
                            disconnected.map(|network| format!("network {network}{DISCONNECTED_SINCE}")),
                        );
                    }
                } else {
                    what.extend(self.difference(service, &sides));
                }
                // Where the name in the files may have been edited, it was compared above.
                if (is_known || !sides.has_own_name()) && sides.is_renamed() {
                    what.push(format!("name{CHANGED_SINCE}"));
                }
                if let Some(set) = &self.proxies {
                    let variables = sides.proxies(set).into_iter();
                    what.extend(variables.map(|variable| format!("environment {variable}{OF_PROXIES}")));
                }
                is_of_another_home |= sides.binds_below_another(Path::new(&self.home));
            }
            what.extend(connected.iter().map(|network| format!("network {network} (connected since)")));
            if running.of_service(name).next().is_some() && !self.incomplete.is_empty() {
                let copied = copied::used_by(&self.model, std::slice::from_ref(name));
                what.extend(copied.into_keys().filter(|file| self.incomplete.contains(file)));
            }
            what.sort();
            what.dedup();
            if !what.is_empty() {
                let connected = connected.into_iter().collect();
                let mut unset = self.unset.clone();
                if is_of_another_home && !unset.iter().any(|name| name == HOME) {
                    unset.push(HOME.to_owned());
                }
                all.push(Difference { service: name.clone(), what, unset, connected });
            }
        }
        all.extend(networks::differences(&self.model, services, &running.networks));
        all
    }

    fn difference(&self, service: ModelService<'_>, sides: &Sides<'_>) -> Vec<String> {
        let found = sides.differences();
        let is_same_compose =
            !self.version.is_empty() && label(sides.container, VERSION_LABEL) == self.version;
        if found.is_empty()
            && is_same_compose
            && !self.hashes.is_empty()
            && !fields::is_completed_by_up(service.element())
        {
            return vec!["a setting that the engine does not report".to_owned()];
        }
        found.into_iter().map(|what| self.with_provider(service, what)).collect()
    }

    /// Marks a variable that is not in the files, and is named after a provider that the service depends on.
    fn with_provider(&self, service: ModelService<'_>, what: String) -> String {
        let is_in_files =
            |name: &str| service.element().get("environment").is_some_and(|all| all.get(name).is_some());
        let is_provider = |on: &str| {
            self.model.service(on).is_some_and(|service| service.element().get("provider").is_some())
        };
        let is_named_after = |name: &str, on: &str| {
            name.strip_prefix(on.to_uppercase().as_str()).is_some_and(|rest| rest.starts_with('_'))
        };
        let is_set_by_provider = what.strip_prefix("environment ").is_some_and(|name| {
            !is_in_files(name) && service.depends_on().any(|on| is_provider(on) && is_named_after(name, on))
        });
        if is_set_by_provider { format!("{what}{OF_PROVIDER}") } else { what }
    }

    /// Reports whether the containers of a compose service were created from exactly this definition, so that compose
    /// would not recreate them.
    pub fn is_exact(&self, name: &str, running: &Running) -> bool {
        let of_definition = [&self.hashes, &self.resolved];
        running.of_service(name).all(|container| is_one_of(of_definition, name, label(container, HASH_LABEL)))
    }

    /// Reports whether a running container of a compose service is not connected to one of its networks: some versions of compose
    /// make it anew for that, although its hash is the same.
    pub fn lacks_network(&self, name: &str, running: &Running) -> bool {
        let Some(service) = self.model.service(name) else { return false };
        running.of_service(name).any(|container| {
            Sides { service: service.element(), model: &self.model, container, image: None }.lacks_network()
        })
    }

    fn is_known_hash(&self, name: &str, hash: &str) -> bool {
        is_one_of([&self.hashes, &self.resolved, &self.accepted], name, hash)
    }

    /// Returns the compose services whose containers have a label with another hash.
    pub fn unexplained(&self, services: &[String], running: &Running) -> Vec<String> {
        let differs = |name: &&String| {
            running.of_service(name).any(|container| !self.is_known_hash(name, label(container, HASH_LABEL)))
        };
        services.iter().filter(differs).cloned().collect()
    }
}

fn is_one_of<const N: usize>(known: [&BTreeMap<String, String>; N], service: &str, hash: &str) -> bool {
    !hash.is_empty() && known.iter().any(|hashes| hashes.get(service).is_some_and(|known| known == hash))
}

impl Running {
    /// Returns the configuration of the image of a container; `None` if the image is gone.
    fn image(&self, container: &Value) -> Option<&Value> {
        self.images.get(container.get("Image")?.as_str()?)
    }

    /// Iterates over the containers of a compose service.
    pub fn of_service<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Value> {
        self.containers.iter().filter(move |container| label(container, SERVICE_LABEL) == name)
    }

    /// Returns the model with what its services' containers were created with in place of what is part of the hash but not
    /// compared field by field. The files may name another image (which [`other_images`](Self::other_images) tells), compose
    /// looks up the containers whose namespaces others share, and with `--no-deps` some versions leave out dependencies that
    /// they are not called for.
    pub fn applied_to(&self, model: Model) -> Model {
        let shared = [
            ("network_mode", "/HostConfig/NetworkMode"),
            ("ipc", "/HostConfig/IpcMode"),
            ("pid", "/HostConfig/PidMode"),
        ];
        let depends_on = |service: &str, on: &str| {
            let container = self.of_service(service).next();
            let listed = container.map(|container| label(container, DEPENDS_ON_LABEL)).unwrap_or_default();
            listed.split(',').any(|entry| entry.split(':').next() == Some(on))
        };
        model.with_dependencies(depends_on).with_fields(|service| {
            let mut fields: Vec<(&str, String)> = Vec::new();
            fields.extend(self.image_of(service.name).map(|image| ("image", image.to_owned())));
            let container = self.of_service(service.name).next();
            for (key, pointer) in shared {
                let named = service.element().get(key).and_then(Value::as_str);
                let actual = container.and_then(|container| container.pointer(pointer)?.as_str());
                if let (Some(named), Some(actual)) = (named, actual)
                    && named.starts_with("service:")
                    && actual.starts_with("container:")
                {
                    fields.push((key, actual.to_owned()));
                }
            }
            fields
        })
    }

    /// Reports whether another tool has made a container of a compose service anew, from another image and with the labels of
    /// the old one: compose would recreate it, although its definition is the same.
    pub fn is_relabelled(&self, name: &str) -> bool {
        let mut labelled =
            self.of_service(name).filter(|container| !label(container, IMAGE_LABEL).is_empty());
        labelled.any(|container| {
            // With the containerd store, some versions write the digest of the manifest for the platform.
            let ids = ["/Image", "/ImageManifestDescriptor/digest"].into_iter();
            let mut ids = ids.filter_map(|id| container.pointer(id)?.as_str()).peekable();
            // An older podman gives the ID without `sha256:`.
            ids.peek().is_some() && !ids.any(|id| label(container, IMAGE_LABEL).ends_with(id))
        })
    }

    /// Returns the image that the containers of a compose service were created from, as text; `None` if they differ.
    pub fn image_of<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        let mut images = self.of_service(name).map(|container| container.pointer("/Config/Image"));
        let first = images.next()??.as_str()?;
        images.all(|image| image.and_then(Value::as_str) == Some(first)).then_some(first)
    }
}

/// Returns the compose services of these containers that mount another volume, or another file of a secret or config, than
/// this model names. The hash of their definition may be the same.
pub fn moved_services(model: &Model, containers: &[Container]) -> Vec<String> {
    let is_moved = |c: &&Container| {
        let Some(service) = model.service(&c.compose_service) else { return false };
        let mount =
            |m: &MountRecord| json!({ "Name": m.name, "Source": m.source, "Destination": m.destination });
        let mounts: Vec<Value> = c.mounts.iter().map(mount).collect();
        let container = json!({ "Mounts": mounts });
        let sides = Sides { service: service.element(), model, container: &container, image: None };
        !sides.moved_mounts().is_empty()
    };
    let moved: BTreeSet<&str> =
        containers.iter().filter(is_moved).map(|c| c.compose_service.as_str()).collect();
    moved.into_iter().map(str::to_owned).collect()
}

fn label<'a>(container: &'a Value, name: &str) -> &'a str {
    let labels = container.pointer("/Config/Labels").or_else(|| container.get("Labels"));
    labels.and_then(|labels| labels.get(name)).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests;
