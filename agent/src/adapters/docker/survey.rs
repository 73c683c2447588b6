//! The whole host: engine information and all containers.

use std::mem;
use std::path::PathBuf;

use async_trait::async_trait;
use bollard::errors::Error;
use http::Method;
use serde_json::Value;

use super::client::Client;
use super::{DockerEngine, answer, convert, images};
use crate::model::image::ImageId;
use crate::model::{EngineError, Origin, State};
use crate::ports::survey::{EngineInfo, ListedContainer, Survey};

#[async_trait]
impl Survey for DockerEngine {
    async fn about(&self) -> Result<EngineInfo, EngineError> {
        let doing = "read the engine's information";
        let (info, version, is_podman) = self
            .connection
            .read(doing, |client| async move {
                Ok((client.get("/info", &[], None).await?, client.version, client.podman))
            })
            .await?;
        let text = |pointer| answer::text(&info, pointer).unwrap_or_default().to_owned();
        Ok(EngineInfo {
            version: text("/ServerVersion"),
            api: version.to_string(),
            is_tested: version.is_tested(),
            is_podman,
            data_folder: images::data_folder(&info),
            insecure_registries: insecure(&info),
            insecure_networks: answer::texts(&info, "/RegistryConfig/InsecureRegistryCIDRs"),
            mirrors: mirrors(&info),
            proxy: proxy(&info),
        })
    }

    async fn all_containers(&self) -> Result<Vec<ListedContainer>, EngineError> {
        let mut listed = self.list_all().await?;
        listed.retain(|one| {
            let labels = answer::map(one, "/Labels").unwrap_or_default();
            !convert::is_anchor(answer::container_name(one), &labels)
        });
        let mut found: Vec<ListedContainer> = listed.iter().map(listed_container).collect();
        for (one, listed) in found.iter_mut().zip(&listed) {
            let image = ImageId(answer::text(listed, "/ImageID").unwrap_or_default().into());
            let labelled = mem::take(&mut one.origin.env_files);
            one.origin.env_files = self.env_files_of_compose(&image, labelled).await?;
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    async fn try_call(&self, method: &str, path: &str, body: &str) -> Result<u16, EngineError> {
        let doing = format!("{method} {path}");
        let refused = || EngineError::Refused(format!("{doing}: no such method"));
        let method = &Method::from_bytes(method.as_bytes()).map_err(|_| refused())?;
        let ask = |client: Client| async move {
            match client.send(method.clone(), path, &[], body.to_owned().into(), None).await {
                Ok(()) => Ok(200),
                Err(Error::DockerResponseServerError { status_code, .. }) => Ok(status_code),
                Err(error) => Err(error),
            }
        };
        self.connection.read(&doing, ask).await
    }
}

/// Returns the registries that the engine is configured to use without TLS.
fn insecure(info: &Value) -> Vec<String> {
    let known = info.pointer("/RegistryConfig/IndexConfigs").and_then(Value::as_object);
    let plain = |entry: &&Value| answer::flag(entry, "/Secure") == Some(false);
    known.into_iter().flatten().filter(|(_, entry)| plain(entry)).map(|(name, _)| name.clone()).collect()
}

/// Returns the URLs of the mirrors of Docker Hub. Podman names each by its location, which is a host or a path below which it has
/// the repositories; those with a path are left out.
fn mirrors(info: &Value) -> Vec<String> {
    let urls = answer::texts(info, "/RegistryConfig/Mirrors");
    if !urls.is_empty() {
        return urls;
    }
    let locations = answer::texts(info, "/RegistryConfig/IndexConfigs/docker.io/Mirrors").into_iter();
    let hosts = locations.filter(|location| !location.contains('/'));
    hosts.map(|host| format!("https://{host}")).collect()
}

/// Returns the URL of the engine's proxy, without the login that it may contain.
fn proxy(info: &Value) -> Option<String> {
    let url = answer::text(info, "/HttpsProxy").or_else(|| answer::text(info, "/HttpProxy"))?;
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let address = rest.rsplit_once('@').map_or(rest, |(_, address)| address);
    Some(format!("{scheme}://{address}"))
}

fn listed_container(listed: &Value) -> ListedContainer {
    let labels = answer::map(listed, "/Labels").unwrap_or_default();
    let label = |name: &str| labels.get(name).filter(|value| !value.is_empty());
    let project = label(convert::PROJECT_LABEL).filter(|_| !convert::are_of_image(&labels));
    let origin = Origin {
        folder: label(convert::FOLDER_LABEL).map(PathBuf::from),
        env_files: convert::env_files(&labels),
    };
    let name = answer::container_name(listed).or_else(|| answer::text(listed, "/Id")).unwrap_or_default();
    ListedContainer {
        name: name.to_owned(),
        is_running: convert::state(listed, &Value::Null) == State::Running,
        image: answer::text(listed, "/Image").unwrap_or_default().to_owned(),
        project: project.cloned(),
        origin,
        labels: labels.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_listed_container_has_its_compose_origin() {
        let one = listed_container(&json!({
            "Names": ["/shop-web-1"], "Image": "web:1",
            "Labels": {
                "com.docker.compose.project": "shop",
                "com.docker.compose.project.working_dir": "/srv/shop",
                "com.docker.compose.project.environment_file": "/srv/a, b/.env,/srv/b.env",
            },
        }));
        assert_eq!((one.name.as_str(), one.image.as_str()), ("shop-web-1", "web:1"));
        assert_eq!((one.project.as_deref(), one.origin.folder), (Some("shop"), Some("/srv/shop".into())));
        assert_eq!(one.origin.env_files, [PathBuf::from("/srv/a, b/.env"), PathBuf::from("/srv/b.env")]);
        assert_eq!(listed_container(&json!({"Id": "ab", "Labels": null})).project, None);
        let of_image = json!({"com.docker.compose.project": "shop", "com.docker.compose.version": "2.40.0"});
        assert_eq!(listed_container(&json!({"Id": "ab", "Labels": of_image})).project, None);
    }

    #[test]
    fn a_container_that_others_link_to_has_its_own_name() {
        for names in [json!(["/app/db", "/app/postgres", "/postgres"]), json!(["postgres", "app/db"])] {
            assert_eq!(listed_container(&json!({"Id": "ab", "Names": names})).name, "postgres");
        }
        for none in [json!([]), json!(null), json!(["/"]), json!(["/app/db"])] {
            assert_eq!(listed_container(&json!({"Id": "ab", "Names": none})).name, "ab");
        }
    }

    #[test]
    fn only_registries_without_tls_are_returned() {
        let info = json!({"RegistryConfig": {"IndexConfigs": {
            "docker.io": {"Secure": true}, "registry.lan:5000": {"Secure": false}, "odd": null,
        }}});
        assert_eq!(insecure(&info), ["registry.lan:5000"]);
        assert!(insecure(&Value::Null).is_empty());
    }

    #[test]
    fn the_proxy_of_the_engine_is_known_without_its_login() {
        for (info, expected) in [
            (json!({"HttpProxy": "", "HttpsProxy": ""}), None),
            (json!({"HttpProxy": "http://a.lan:3128"}), Some("http://a.lan:3128")),
            (
                json!({"HttpProxy": "http://a.lan:3128", "HttpsProxy": "https://ann:s@cret@b.lan/"}),
                Some("https://b.lan/"),
            ),
            (json!({"HttpsProxy": "ann:secret@b.lan:3128"}), Some("http://b.lan:3128")),
        ] {
            assert_eq!(proxy(&info).as_deref(), expected);
        }
    }

    #[test]
    fn mirrors_are_urls_with_docker_and_locations_with_podman() {
        let url = "https://mirror.lan/";
        let docker = json!({"RegistryConfig": {
            "Mirrors": [url], "IndexConfigs": {"docker.io": {"Mirrors": [url], "Secure": true}},
        }});
        assert_eq!(mirrors(&docker), [url]);
        let podman = json!({"RegistryConfig": {"Mirrors": [], "IndexConfigs": {
            "docker.io": {"Mirrors": ["mirror.lan:5000", "cache.lan/hub", "mirror.gcr.io"], "Secure": true},
            "quay.io": {"Mirrors": ["quay.lan"], "Secure": true},
        }}});
        assert_eq!(mirrors(&podman), ["https://mirror.lan:5000", "https://mirror.gcr.io"]);
        assert!(mirrors(&Value::Null).is_empty());
    }
}
