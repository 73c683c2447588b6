//! Compares what compose makes of its files with what runs, before anything is brought up (DECISIONS 4a).

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::model::definition::{copied, moved_services};
use crate::model::{
    ComposeError, Container, Difference, EngineError, Model, Project, Reference, Rendered, Running,
};
use crate::ports::{Compose, Engine};
use crate::service::observation::{Definition, ImageView};
use crate::service::rollout::baseline::Baseline;
use crate::service::scope::{Part, Scope};
use crate::service::wording;

use super::absent::absent;
use super::files::Offload;

/// How long a comparison may take.
const LIMIT: Duration = Duration::from_mins(1);

/// Why a definition could not be compared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompareError {
    /// The engine did not answer, or refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Compose can't render the files.
    #[error("{0}")]
    Compose(#[from] ComposeError),
}

/// A project's files, rendered, and what runs.
pub(crate) struct Comparison {
    rendered: Rendered,
    running: Running,
    /// Folders of running containers that are not there any more, each with its compose service.
    absent: Vec<(String, String)>,
}

impl Comparison {
    /// Renders the definitions of these compose services, with `model` as the resolved model of the project, and inspects
    /// `containers`.
    pub(crate) async fn read(
        (engine, compose): (&dyn Engine, &dyn Compose),
        project: &Project,
        model: &Model,
        services: &[String],
        containers: &[Container],
    ) -> Result<Self, CompareError> {
        let of_services = containers.iter().filter(|c| services.contains(&c.compose_service));
        let ids: Vec<String> = of_services.map(|container| container.id.clone()).collect();
        let running = engine.running(&project.name, &ids).await?;
        let hashes = compose.hashes(project).await?;
        let mut rendered = Rendered {
            model: model.clone(),
            hashes: hashes.by_service,
            version: hashes.version,
            unset: hashes.unset,
            home: hashes.home,
            proxies: hashes.proxies,
            ..Rendered::default()
        };
        find_incomplete(compose, project, services, &mut rendered).await?;
        let by_model = |model: Model| project.clone().defined_by(Arc::new(model));
        if !rendered.unexplained(services, &running).is_empty() {
            rendered.resolved = compose.hashes(&by_model(model.clone())).await?.by_service;
        }
        if !rendered.unexplained(services, &running).is_empty() {
            rendered.accepted =
                compose.hashes(&by_model(running.applied_to(model.clone()))).await?.by_service;
        }
        Ok(Self { rendered, running, absent: Vec::new() })
    }

    /// Looks for folders that the running containers of these compose services have mounted, and that new ones would not have.
    pub(crate) async fn with_absent(mut self, services: &[String]) -> Self {
        self.absent = absent(&self.running, services).await;
        self
    }

    /// Returns how the definitions of these compose services differ from what runs. `is_own_change`: whether the agent itself
    /// moves containers from the first reference to the second, so that this image is no edit.
    pub(crate) fn differences(
        &self,
        services: &[String],
        is_own_change: impl Fn(&Reference, &Reference) -> bool,
    ) -> Vec<Difference> {
        let Self { rendered, running, absent } = self;
        let mut all = rendered.differences(services, running);
        for service in running.other_images(&rendered.model, services, is_own_change) {
            let what = "image".to_owned();
            // The hash covers the text of the image, however the engine has resolved it.
            if rendered.is_exact(&service, running) {
                continue;
            }
            let unset = rendered.unset.clone();
            add(&mut all, Difference { service, what: vec![what], unset, connected: Vec::new() });
        }
        for (service, folder) in absent.iter().filter(|(service, _)| services.contains(service)) {
            add(&mut all, Difference::of_absent(service, folder));
        }
        all
    }

    /// Reports whether compose would leave the containers of this compose service alone.
    pub(crate) fn is_exact(&self, service: &str) -> bool {
        let differences = self.rendered.differences(&[service.to_owned()], &self.running);
        self.rendered.is_exact(service, &self.running)
            && !self.running.is_relabelled(service)
            && !self.rendered.lacks_network(service, &self.running)
            && differences.iter().all(|one| one.is_of_connections() || one.is_beside_files())
    }
}

/// Adds what differs to what is known of the same compose service.
fn add(all: &mut Vec<Difference>, one: Difference) {
    match all.iter_mut().find(|known| known.service == one.service) {
        Some(known) => known.what.splice(..0, one.what).for_each(drop),
        None => all.push(one),
    }
}

/// Finds the configs and secrets of these compose services that are copied into their containers, and for which a variable
/// is not set.
async fn find_incomplete(
    compose: &dyn Compose,
    project: &Project,
    services: &[String],
    rendered: &mut Rendered,
) -> Result<(), ComposeError> {
    // Compose accepts it almost wherever it accepts nothing.
    const ANYTHING: &str = "1";
    let used = copied::used_by(&rendered.model, services);
    let variables = copied::variables(&used);
    let mut unset = Vec::new();
    if !variables.is_empty() {
        let probe = project.clone().defined_by(Arc::new(copied::probe(&variables)));
        unset = compose.hashes(&probe).await?.unset;
    }
    let mut incomplete = copied::from_variables(&used, &unset);
    if copied::has_content(&used) && !rendered.unset.is_empty() {
        let mut project = project.clone();
        project.set.extend(rendered.unset.iter().map(|name| (name.clone(), ANYTHING.to_owned())));
        let other = compose.model(&project).await.ok();
        let other = other.as_ref().map(|model| copied::used_by(model, services));
        incomplete.extend(copied::changed(&used, other.as_ref()));
    }
    rendered.unset.extend(unset);
    rendered.unset.sort();
    rendered.unset.dedup();
    rendered.incomplete = incomplete;
    Ok(())
}

/// Returns why a project that has no containers is not brought up: the `.env` that it was started with is gone. Compose would
/// leave its variables empty, and there is nothing to compare the result with.
pub(super) async fn missing_env_file(project: &Project) -> Option<ComposeError> {
    let file = project.default_env_file().filter(|file| project.env_files.contains(file))?;
    let is_there = tokio::fs::try_exists(&file).await.unwrap_or(true);
    (!is_there).then(|| ComposeError::new(wording::file_missing(&file)))
}

/// Compares the definitions of the compose services that updates of these images would bring up.
pub(super) async fn of_images(
    world: (&dyn Engine, &dyn Compose),
    offload: Offload,
    project: &Project,
    images: &[&ImageView],
    containers: &[Container],
    crashed: &BTreeSet<String>,
) -> Result<Definition, CompareError> {
    let compared = async {
        let model = world.1.model(project).await?;
        let before = Baseline::all_with(containers, crashed);
        let references = |view: &ImageView| -> Vec<Reference> {
            [&view.from, &view.reference].into_iter().chain(&view.newer).cloned().collect()
        };
        let services_of = |view: &ImageView| {
            let scope = Scope { images: references(view), before: before.clone(), part: Part::All };
            scope.services(Some(&model)).services().to_vec()
        };
        // The tag variable is set for all its images at once.
        let is_own_change = |from: &Reference, to: &Reference| {
            let mut all = images.iter().map(|view| references(view));
            all.any(|references| references.contains(from) && references.contains(to))
        };
        let by_image: Vec<(String, Vec<String>)> =
            images.iter().map(|view| (view.configured.clone(), services_of(view))).collect();
        let mut all: Vec<String> = by_image.iter().flat_map(|(_, services)| services.clone()).collect();
        all.sort();
        all.dedup();
        let is_replaced = |c: &&Container| c.is_live() || crashed.contains(&c.id);
        let live: Vec<Container> = containers.iter().filter(is_replaced).cloned().collect();
        let comparison = Comparison::read(world, project, &model, &all, &live).await?.with_absent(&all).await;
        let differences = by_image
            .into_iter()
            .map(|(image, services)| (image, comparison.differences(&services, is_own_change)))
            .filter(|(_, differences)| !differences.is_empty())
            .collect();
        let bound_files = bound_files(&live).await;
        let configured = project.files.clone();
        let other_files = offload.run(move || other_files(&configured, &live)).await;
        let other_files = other_files.unwrap_or_default();
        Ok(Definition { model: Arc::new(model), differences, bound_files, other_files })
    };
    timeout(LIMIT, compared).await.unwrap_or_else(|_| {
        let cause =
            format!("the compose files could not be compared with what runs within {} s", LIMIT.as_secs());
        Err(CompareError::Compose(ComposeError::new(cause)))
    })
}

/// Returns the compose services that compose would leave alone although a volume of theirs, or the file of a secret or config,
/// is another one by now.
pub(super) async fn moved(
    world: (&dyn Engine, &dyn Compose),
    project: &Project,
    model: &Model,
    containers: &[Container],
) -> Result<Vec<String>, CompareError> {
    let active: Vec<Container> = containers.iter().filter(|c| c.is_active()).cloned().collect();
    let mut moved = moved_services(model, &active);
    if !moved.is_empty() {
        // Compose recreates the others by itself, after their dependencies.
        let Comparison { rendered, running, .. } =
            Comparison::read(world, project, model, &moved, &active).await?;
        moved.retain(|name| rendered.is_exact(name, &running));
    }
    Ok(moved)
}

/// The host paths of bind mounts that are no directories, such as sockets. One that this process can't see counts as a
/// directory.
pub(crate) async fn bound_files(containers: &[Container]) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    for mount in containers.iter().flat_map(|c| &c.mounts).filter(|mount| mount.kind == "bind") {
        if tokio::fs::metadata(&mount.source).await.is_ok_and(|found| !found.is_dir()) {
            files.insert(mount.source.clone());
        }
    }
    files
}

/// The compose files that these containers were made from, if none of them is configured, and all are there and none is a
/// configured one by another path. Compose keeps the labels of a container that it need not make anew when a project has moved.
fn other_files(configured: &[PathBuf], containers: &[Container]) -> Vec<PathBuf> {
    let named: BTreeSet<&PathBuf> = containers.iter().flat_map(|c| &c.compose_files).collect();
    if configured.iter().any(|file| named.contains(file)) {
        return Vec::new();
    }
    let mut own = BTreeSet::new();
    for file in configured {
        own.extend(identity(file));
    }
    for file in &named {
        if identity(file).is_none_or(|found| own.contains(&found)) {
            return Vec::new();
        }
    }
    named.into_iter().cloned().collect()
}

/// What tells a file from others, whatever its path is; `None` if it is not there.
fn identity(file: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(file).ok().filter(Metadata::is_file)?;
    Some((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use serde_json::{Value, json};

    use super::*;
    use crate::model::{PullPolicy, UpMode};
    use crate::ports::Hashes;

    /// Renders `${TOKEN}` of a config with the values of the project, and of a probe reports what is not set.
    struct Renders {
        /// Whether the files are not valid with other values.
        is_picky: bool,
    }

    #[async_trait]
    impl Compose for Renders {
        async fn up(&self, _: &Project, _: &UpMode, _: PullPolicy) -> Result<String, ComposeError> {
            unreachable!("nothing is brought up")
        }

        async fn validate(&self, _: &Project) -> Result<(), ComposeError> {
            Ok(())
        }

        async fn model(&self, project: &Project) -> Result<Model, ComposeError> {
            if self.is_picky && !project.set.is_empty() {
                return Err(ComposeError::new("not valid"));
            }
            let value = |name: &str| project.set.get(name).cloned().unwrap_or_default();
            Ok(serde_json::from_value(json!({
                "services": {
                    "web": { "configs": [{ "source": "app" }], "secrets": [{ "source": "db" }, { "source": "key" }] },
                    "job": { "configs": [{ "source": "plain" }], "secrets": [{ "source": "file" }] },
                },
                "configs": {
                    "app": { "content": format!("token={}", value("TOKEN")) },
                    "plain": { "content": "text" },
                },
                "secrets": {
                    "db": { "environment": "DB_PASS" },
                    "key": { "environment": "KEY" },
                    "file": { "file": "/srv/file" },
                },
            }))
            .expect("a model"))
        }

        async fn hashes(&self, project: &Project) -> Result<Hashes, ComposeError> {
            let probe = project.definition.as_ref().expect("only the probe is hashed");
            let used = probe.services().next().expect("a service").element()["environment"].clone();
            let is_unset = |name: &&String| *name != "KEY" && used[*name] == format!("${{{name}}}");
            let unset = used.as_object().expect("variables").keys().filter(is_unset).cloned().collect();
            Ok(Hashes { unset, ..Hashes::default() })
        }
    }

    async fn differences(compose: &Renders, unset: &[&str]) -> Vec<Difference> {
        let model = compose.model(&Project::default()).await.expect("it renders");
        let label = |service: &str| {
            let labels =
                json!({ "com.docker.compose.service": service, "com.docker.compose.config-hash": service });
            json!({ "Config": { "Labels": labels } })
        };
        let containers: Vec<Value> = vec![label("web"), label("job")];
        let hashes = ["web", "job"].map(|name| (name.to_owned(), name.to_owned()));
        let services: Vec<String> = vec!["web".to_owned(), "job".to_owned()];
        let mut rendered = Rendered {
            model,
            hashes: hashes.into(),
            unset: unset.iter().map(|name| (*name).to_owned()).collect(),
            ..Rendered::default()
        };
        find_incomplete(compose, &Project::default(), &services, &mut rendered).await.expect("it renders");
        rendered.differences(&services, &Running { containers, ..Running::default() })
    }

    #[tokio::test]
    async fn a_project_without_containers_misses_the_env_file_that_it_was_started_with() {
        let dir = tempfile::tempdir().expect("a folder can be made");
        let (folder, env_file) = (dir.path().to_owned(), dir.path().join(".env"));
        let project =
            Project { folder: Some(folder), env_files: vec![env_file.clone()], ..Project::default() };
        let error = missing_env_file(&project).await.expect("it is gone");
        assert!(error.cause.starts_with(&format!("{} was there", env_file.display())), "{error}");
        let without = Project { env_files: Vec::new(), ..project.clone() };
        assert_eq!(missing_env_file(&without).await, None, "it was started without one");
        std::fs::write(&env_file, "A=1\n").expect("the file can be written");
        assert_eq!(missing_env_file(&project).await, None);
    }

    #[test]
    fn files_that_a_project_was_copied_to_are_others_and_those_that_it_was_moved_from_are_not() {
        let dir = tempfile::tempdir().expect("a folder can be made");
        let file = |name: &str| dir.path().join(name);
        let (configured, copied, linked) = (file("compose.yml"), file("copied.yml"), file("linked.yml"));
        for path in [&configured, &copied] {
            std::fs::write(path, "services: {}").expect("the file can be written");
        }
        std::os::unix::fs::symlink(&configured, &linked).expect("a link can be made");
        let made_from = |files: &[&PathBuf]| Container {
            compose_files: files.iter().map(|path| (*path).clone()).collect(),
            ..Container::running("web", "localhost:5000/web:1")
        };
        for (files, expected) in [
            (&[&copied][..], true),
            (&[&configured, &copied], false),
            (&[&linked], false),
            (&[&file("gone.yml")], false),
            (&[], false),
        ] {
            let found = other_files(std::slice::from_ref(&configured), &[made_from(files)]);
            assert_eq!(found, if expected { vec![copied.clone()] } else { Vec::new() }, "{files:?}");
        }
    }

    #[test]
    fn a_dependency_whose_volume_is_another_one_by_now_is_not_left_alone_although_the_hash_is_equal() {
        let is_exact = |name: &str| {
            let service = json!({ "volumes": [{ "type": "volume", "source": "db", "target": "/data" }] });
            let model = json!({ "services": { "db": service }, "volumes": { "db": { "name": name } } });
            let rendered = Rendered {
                model: serde_json::from_value(model).expect("a model"),
                hashes: [("db".to_owned(), "same".to_owned())].into(),
                ..Rendered::default()
            };
            let labels =
                json!({ "com.docker.compose.service": "db", "com.docker.compose.config-hash": "same" });
            let mount = json!({ "Type": "volume", "Name": "shop_db", "Destination": "/data" });
            let container = json!({ "Config": { "Labels": labels }, "Mounts": [mount] });
            let running = Running { containers: vec![container], ..Running::default() };
            Comparison { rendered, running, absent: Vec::new() }.is_exact("db")
        };
        assert!(is_exact("shop_db"));
        assert!(!is_exact("shop_db_2"));
    }

    #[test]
    fn a_dependency_that_was_taken_from_a_network_is_not_left_alone_although_the_hash_is_equal() {
        let is_exact = |version: &str, networks: Value| {
            let model = json!({ "services": { "db": { "networks": { "back": null, "default": null } } } });
            let rendered = Rendered {
                model: serde_json::from_value(model).expect("a model"),
                hashes: [("db".to_owned(), "same".to_owned())].into(),
                ..Rendered::default()
            };
            let labels = json!({
                "com.docker.compose.service": "db",
                "com.docker.compose.config-hash": "same",
                "com.docker.compose.version": version,
            });
            let container =
                json!({ "Config": { "Labels": labels }, "NetworkSettings": { "Networks": networks } });
            let running = Running { containers: vec![container], ..Running::default() };
            Comparison { rendered, running, absent: Vec::new() }.is_exact("db")
        };
        // An older one may have forgotten a network, for which another one makes the container anew.
        for version in ["2.24.6", "2.40.0"] {
            assert!(is_exact(version, json!({ "back": {}, "default": {} })), "{version}");
            assert!(!is_exact(version, json!({ "default": {} })), "{version}");
        }
    }

    #[test]
    fn a_folder_that_is_not_there_any_more_differs_and_compose_leaves_the_container_alone() {
        let rendered = Rendered {
            model: serde_json::from_value(json!({ "services": { "db": {} } })).expect("a model"),
            hashes: [("db".to_owned(), "same".to_owned())].into(),
            ..Rendered::default()
        };
        let labels = json!({ "com.docker.compose.service": "db", "com.docker.compose.config-hash": "same" });
        let container = json!({ "Config": { "Labels": labels } });
        let running = Running { containers: vec![container], ..Running::default() };
        let absent = vec![("db".to_owned(), "/mnt/usb/db".to_owned())];
        let comparison = Comparison { rendered, running, absent };
        let differences = |name: &str| comparison.differences(&[name.to_owned()], |_, _| false);
        assert_eq!(differences("db"), [Difference::of_absent("db", "/mnt/usb/db")]);
        assert_eq!(differences("web"), []);
        assert!(comparison.is_exact("db"));
    }

    #[test]
    fn a_dependency_that_docker_update_has_changed_is_left_alone() {
        let is_exact = |hash: &str| {
            let rendered = Rendered {
                model: serde_json::from_value(json!({ "services": { "db": {} } })).expect("a model"),
                hashes: [("db".to_owned(), "same".to_owned())].into(),
                ..Rendered::default()
            };
            let labels =
                json!({ "com.docker.compose.service": "db", "com.docker.compose.config-hash": hash });
            let host = json!({ "RestartPolicy": { "Name": "always" } });
            let container = json!({ "Config": { "Labels": labels }, "HostConfig": host });
            let running = Running { containers: vec![container], ..Running::default() };
            let comparison = Comparison { rendered, running, absent: Vec::new() };
            assert_eq!(comparison.differences(&["db".to_owned()], |_, _| false).len(), 1, "{hash}");
            comparison.is_exact("db")
        };
        assert!(is_exact("same"), "compose does not notice it");
        assert!(!is_exact("other"), "it was edited, too");
    }

    #[test]
    fn a_dependency_that_another_tool_has_made_anew_with_its_old_labels_is_not_left_alone() {
        let is_exact = |label: &str, image: Value| {
            let rendered = Rendered {
                model: serde_json::from_value(json!({ "services": { "db": {} } })).expect("a model"),
                hashes: [("db".to_owned(), "same".to_owned())].into(),
                ..Rendered::default()
            };
            let labels = json!({
                "com.docker.compose.service": "db",
                "com.docker.compose.config-hash": "same",
                "com.docker.compose.image": label,
            });
            let mut container = json!({ "Config": { "Labels": labels } });
            for (key, value) in image.as_object().expect("fields") {
                container[key] = value.clone();
            }
            let running = Running { containers: vec![container], ..Running::default() };
            Comparison { rendered, running, absent: Vec::new() }.is_exact("db")
        };
        assert!(is_exact("sha256:one", json!({ "Image": "sha256:one" })));
        assert!(!is_exact("sha256:one", json!({ "Image": "sha256:two" })));
        let of_platform =
            json!({ "Image": "sha256:index", "ImageManifestDescriptor": { "digest": "sha256:one" } });
        assert!(is_exact("sha256:one", of_platform.clone()));
        assert!(!is_exact("sha256:two", of_platform));
        assert!(is_exact("sha256:one", json!({ "Image": "one" })));
        assert!(is_exact("", json!({ "Image": "sha256:two" })), "older versions have no such label");
    }

    #[tokio::test]
    async fn a_copied_secret_or_config_whose_variable_is_not_set_is_a_difference() {
        let renders = Renders { is_picky: false };
        let of = |service: &str, what: &[&str], unset: &[&str]| {
            let all = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
            Difference {
                service: service.to_owned(),
                what: all(what),
                unset: all(unset),
                connected: Vec::new(),
            }
        };
        assert_eq!(differences(&renders, &[]).await, [of("web", &["secret db"], &["DB_PASS"])]);
        let found = differences(&renders, &["TOKEN"]).await;
        assert_eq!(found, [of("web", &["config app", "secret db"], &["DB_PASS", "TOKEN"])]);
        // The other variable is used elsewhere.
        let found = differences(&renders, &["ELSEWHERE"]).await;
        assert_eq!(found, [of("web", &["secret db"], &["DB_PASS", "ELSEWHERE"])]);
        let found = differences(&Renders { is_picky: true }, &["TOKEN"]).await;
        let of_web = of("web", &["config app", "secret db"], &["DB_PASS", "TOKEN"]);
        let of_job = of("job", &["config plain"], &["DB_PASS", "TOKEN"]);
        assert_eq!(found, [of_web, of_job], "what compose can't render otherwise is held");
    }
}
