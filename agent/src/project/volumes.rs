//! The data that a deployment would leave behind in a volume, or begin without.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_common::wire::MountRecord;
use serde_json::Value;

use crate::model::container::is_full_id;
use crate::model::definition::{cleaned, unescaped};
use crate::model::{ComposeError, Container, Model, ModelService};
use crate::ports::snapshot::Volumes;
use crate::ports::{Compose, Image};
use crate::service::action::{BringUp, Keeps};

use super::definition::CompareError;

/// Returns why an update to this image would leave data behind; `None` if it would not, or if that can't be told.
pub(super) fn left_behind(
    keeps: &Keeps,
    containers: &[Container],
    configured: &str,
    new: &Image,
) -> Option<String> {
    let replaced = keeps.replaced.get(configured)?;
    // What such an image declares is not known.
    if !new.is_complete {
        return None;
    }
    // A container that has the image already stays.
    containers.iter().filter(|c| replaced.contains(&c.id) && c.image != new.id).find_map(|c| {
        let service = keeps.definition.service(&c.compose_service)?;
        let mount = undeclared(&anonymous(service, c), &new.config.volumes)?;
        Some(would_lose(service.name, mount))
    })
}

/// The volumes of a container that were made for it alone, and that the compose files do not name: compose passes them on to the
/// new container only at paths that the image declares.
fn anonymous<'c>(service: ModelService<'_>, container: &'c Container) -> Vec<&'c MountRecord> {
    let volumes = service.element().get("volumes").and_then(Value::as_array);
    let targets = volumes.into_iter().flatten().filter_map(|volume| volume.get("target")?.as_str());
    let targets: Vec<PathBuf> = targets.map(|target| cleaned(&unescaped(target))).collect();
    let is_of_others = service.element().get("volumes_from").is_some_and(|from| !from.is_null());
    let is_anonymous = |mount: &&MountRecord| mount.kind == "volume" && is_full_id(&mount.name);
    let is_named = |mount: &MountRecord| targets.contains(&cleaned(&mount.destination));
    let own = container.mounts.iter().filter(is_anonymous).filter(|mount| !is_of_others && !is_named(mount));
    own.filter(|mount| !mount.read_only).collect()
}

/// Returns the first of these mounts at a path that an image with these volumes does not declare.
fn undeclared<'c>(mounts: &[&'c MountRecord], declared: &BTreeSet<String>) -> Option<&'c MountRecord> {
    let declared: Vec<PathBuf> = declared.iter().map(|path| cleaned(path)).collect();
    let is_declared = |mount: &MountRecord| declared.contains(&cleaned(&mount.destination));
    mounts.iter().copied().find(|mount| !is_declared(mount))
}

fn would_lose(service: &str, mount: &MountRecord) -> String {
    let MountRecord { name, destination, .. } = mount;
    format!(
        "the update was ended, because the new image of {service} no longer declares the volume {destination}: the data \
         would stay behind in the volume {name}, and a rollback would not find it either. Name a volume for that path in \
         the compose file (`external: true` with `name: {name}` keeps the data), or redeploy the service if the data is \
         not needed"
    )
}

/// Fails if the engine has none of the volumes of the project, which ran here before and has no containers.
pub(super) async fn are_there(
    compose: &dyn Compose,
    volumes: &dyn Volumes,
    start: &BringUp,
) -> Result<(), CompareError> {
    let model = match &start.definition {
        Some(recorded) => recorded.clone(),
        None => match compose.model(&start.project).await {
            Ok(rendered) => Arc::new(rendered),
            // Compose says why when it is called.
            Err(_) => return Ok(()),
        },
    };
    has_any_volume(volumes, &model).await
}

async fn has_any_volume(volumes: &dyn Volumes, model: &Model) -> Result<(), CompareError> {
    let names: Vec<&str> = model.own_volumes().into_iter().collect();
    for name in &names {
        if volumes.volume(name).await?.is_some() {
            return Ok(());
        }
    }
    if names.is_empty() {
        return Ok(());
    }
    let cause = format!(
        "the project ran here before, but the engine has none of its containers and volumes any more ({}), so it would begin \
         without its data, and was not brought up. Check the engine's data folder (`data-root`) and whether its disk is \
         mounted. If the volumes were removed on purpose, redeploy the service",
        names.join(", ")
    );
    Err(CompareError::Compose(ComposeError::new(cause)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use async_trait::async_trait;

    use super::*;
    use crate::model::EngineError;
    use crate::model::image::ImageId;
    use crate::model::image_config::ImageConfig;
    use crate::ports::snapshot::{Ended, Mounter, Volume};

    fn model() -> Model {
        serde_json::from_value(serde_json::json!({"services": {
            "db": {"image": "db:1", "volumes": [{"type": "volume", "target": "/srv/../backup/"}]},
            "tied": {"image": "db:1", "volumes_from": ["db"]},
        }}))
        .expect("a model")
    }

    fn mount(name: &str, destination: &str) -> MountRecord {
        MountRecord {
            kind: "volume".to_owned(),
            name: name.to_owned(),
            source: String::new(),
            destination: destination.to_owned(),
            read_only: false,
        }
    }

    /// The name of a volume that was made for one container.
    fn anonymous_name() -> String {
        "0123456789abcdef".repeat(4)
    }

    fn declaring(paths: &[&str]) -> Image {
        let volumes = paths.iter().map(|path| (*path).to_owned()).collect();
        Image {
            id: ImageId("sha256:two".into()),
            repo_digests: Vec::new(),
            size: 1,
            config: ImageConfig { volumes, ..ImageConfig::default() },
            platform: None,
            is_complete: true,
        }
    }

    fn container(service: &str) -> Container {
        let id = anonymous_name();
        let mounts = vec![
            mount("shop_conf", "/etc/db"),
            mount(&id, "/backup"),
            mount(&id, "/var/lib/db/data"),
            MountRecord { kind: "bind".to_owned(), ..mount(&id, "/srv") },
        ];
        Container { mounts, ..Container::running(service, "db:1") }
    }

    /// Why an update that replaces this container would leave data behind.
    fn lost(container: &Container, new: &Image) -> Option<String> {
        let keeps = Keeps {
            project: "shop".to_owned(),
            definition: Arc::new(model()),
            replaced: [("db:1".to_owned(), [container.id.clone()].into())].into(),
        };
        left_behind(&keeps, std::slice::from_ref(container), "db:1", new)
    }

    #[test]
    fn an_anonymous_volume_is_lost_if_neither_the_new_image_nor_the_service_declares_its_path() {
        let db = container("db");
        assert!(lost(&db, &declaring(&["/var/lib/db"])).is_some(), "a folder above is another volume");
        assert_eq!(lost(&db, &declaring(&["/var/lib/db/data"])), None);
        let tied = lost(&container("tied"), &declaring(&[]));
        assert_eq!(tied, None, "they are those of another service");
        let why = lost(&db, &declaring(&[])).expect("the data would be lost");
        assert!(why.starts_with("the update was ended, because "), "it is tried again: {why}");
        for part in ["of db no longer declares the volume /var/lib/db/data", "`name: 0123456789abcdef0123"] {
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn only_what_an_update_replaces_can_be_lost_and_only_if_it_is_known_what_the_image_declares() {
        let (db, new) = (container("db"), declaring(&[]));
        assert_eq!(lost(&db, &Image { is_complete: false, ..declaring(&[]) }), None);
        assert_eq!(lost(&Container { image: new.id.clone(), ..container("db") }, &new), None, "it stays");
        let keeps = |image: &str, id: &str| Keeps {
            project: "shop".to_owned(),
            definition: Arc::new(model()),
            replaced: [(image.to_owned(), [id.to_owned()].into())].into(),
        };
        let left = |keeps: &Keeps| left_behind(keeps, std::slice::from_ref(&db), "db:1", &new);
        assert!(left(&keeps("db:1", &db.id)).is_some());
        assert_eq!(left(&keeps("db:1", "another")), None);
        assert_eq!(left(&keeps("web:1", &db.id)), None);
    }

    /// An engine that has this volume only.
    struct OneVolume(&'static str);

    #[async_trait]
    impl Volumes for OneVolume {
        async fn volume(&self, name: &str) -> Result<Option<Volume>, EngineError> {
            let volume =
                Volume { driver: "local".into(), options: BTreeMap::new(), folder: "/engine/data".into() };
            Ok((name == self.0).then_some(volume))
        }

        async fn bind_volume(
            &self,
            _: &str,
            _: &Path,
            _: BTreeMap<String, String>,
        ) -> Result<(), EngineError> {
            Ok(())
        }

        async fn ended(&self, _: &[&Path]) -> Result<Vec<Ended>, EngineError> {
            Ok(Vec::new())
        }

        async fn remove_volume(&self, _: &str) -> Result<(), EngineError> {
            Ok(())
        }

        async fn mounters(&self, _: &[&Path], _: bool) -> Result<Vec<Mounter>, EngineError> {
            Ok(Vec::new())
        }
    }

    #[tokio::test]
    async fn a_project_that_ran_here_is_not_brought_up_without_any_of_its_volumes() {
        let mount = |source: &str| serde_json::json!({"type": "volume", "source": source, "target": "/x"});
        let model: Model = serde_json::from_value(serde_json::json!({
            "services": {
                "web": {"volumes": [mount("shared"), {"type": "bind", "source": "/srv", "target": "/y"}]},
                "db": {"volumes": [mount("data"), mount("logs")]},
            },
            "volumes": {
                "shared": {"name": "shared", "external": true},
                "data": {"name": "shop_data"},
                "logs": {"name": "shop_logs"},
                "unused": {"name": "shop_unused"},
            },
        }))
        .expect("a model");
        for (volume, is_there) in [("shop_logs", true), ("shared", false), ("shop_unused", false)] {
            let result = has_any_volume(&OneVolume(volume), &model).await;
            assert_eq!(result.is_ok(), is_there, "{volume}");
            if let Err(error) = result {
                let text = error.to_string();
                assert!(text.contains("shop_data, shop_logs") && text.contains("redeploy"), "{text}");
            }
        }
        let without_data: Model = serde_json::from_value(
            serde_json::json!({"services": {"web": {"volumes": [mount("shared"), mount("nfs")]}},
            "volumes": {
                "shared": {"name": "shared", "external": true},
                "nfs": {"name": "shop_nfs", "driver_opts": {"type": "nfs", "device": ":/srv/shop"}},
            }}),
        )
        .expect("a model");
        assert!(has_any_volume(&OneVolume("none"), &without_data).await.is_ok(), "it has nothing to lose");
    }
}
