//! Removal of images that are no longer needed, and free disk space.

use std::path::PathBuf;

use bollard::errors::Error;
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::answer;
use super::connection::Connection;
use super::names::checked;
use super::{CHANGE, STATS};
use crate::model::image::{ImageId, Reference};
use crate::model::{EngineError, IfFound};

/// Removes an image and its `tags` if no container uses it and it has no other tags. Returns whether the image is gone.
pub(super) async fn remove(
    connection: &Connection,
    id: &ImageId,
    tags: &[Reference],
) -> Result<bool, EngineError> {
    let name = checked(&id.0)?;
    let doing = format!("remove image {id}");
    let seen = connection.get(&doing, &format!("/images/{name}/json"), &[]).await.found()?;
    let Some(seen) = seen else { return Ok(true) };
    let named = answer::texts(&seen, "/RepoTags");
    let mut names = Vec::new();
    for tag in named.iter().filter(|tag| !tag.starts_with("<none>")) {
        match Reference::parse(tag) {
            Ok(reference) if tags.contains(&reference) => names.push(reference.tagged()),
            // Removing the image by its ID would remove its other tags, too.
            _ => return Ok(false),
        }
    }
    if !names.is_empty() && is_used(connection, &doing, name).await? {
        return Ok(false);
    }
    // The engine usually removes the image with its last tag. The ID covers all other cases.
    names.push(name.to_owned());
    for name in names {
        if !delete(connection, &doing, &name).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reports whether a container, running or not, uses the image. The engine would remove all but the last tag even then.
async fn is_used(connection: &Connection, doing: &str, id: &str) -> Result<bool, EngineError> {
    let filters = json!({"ancestor": [id]}).to_string();
    let query = [("all", "true"), ("filters", filters.as_str())];
    let users = connection.get(doing, "/containers/json", &query).await?;
    Ok(users.as_array().is_none_or(|users| !users.is_empty()))
}

/// Removes a tag or an image ID without force: the engine refuses if a container uses the image or another repository
/// refers to it. Returns false if it refuses.
pub(super) async fn delete(connection: &Connection, doing: &str, name: &str) -> Result<bool, EngineError> {
    let path = format!("/images/{name}");
    let path = path.as_str();
    let query = [("force", "false"), ("noprune", "true")];
    connection
        .call(doing, CHANGE, |client| async move {
            match client.send(Method::DELETE, path, &query, Bytes::new(), None).await {
                Err(Error::DockerResponseServerError { status_code: 409, .. }) => Ok(false),
                Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(true),
                done => done.map(|()| true),
            }
        })
        .await
}

/// Returns where an engine keeps its images, on its own host, according to its information. With the containerd store that is
/// containerd's folder, which is the engine's own only if the engine starts containerd itself.
pub(super) fn data_folder(info: &Value) -> Option<PathBuf> {
    let root = PathBuf::from(answer::text(info, "/DockerRootDir")?);
    let status = info.get("DriverStatus").and_then(Value::as_array);
    let has_snapshotter = status.into_iter().flatten().any(|row| row[1] == "io.containerd.snapshotter.v1");
    if !has_snapshotter {
        return Some(root);
    }
    let own = answer::text(info, "/Containerd/Address")
        .is_some_and(|socket| socket.starts_with("/run/docker/") || socket.starts_with("/var/run/docker/"));
    Some(if own { root.join("containerd/daemon") } else { PathBuf::from("/var/lib/containerd") })
}

/// Returns the free bytes on the engine's image storage, or `None` if this process cannot access it.
pub(super) async fn free_space(connection: &Connection) -> Result<Option<u64>, EngineError> {
    let doing = "read the engine's data directory";
    let info = connection.call(doing, STATS, |client| async move { client.get("/info", &[], None).await });
    let info = info.await?;
    let folder = data_folder(&info).filter(|_| connection.is_local());
    // Inside a container, the directory is missing or a different one.
    let Some(folder) = folder else { return Ok(None) };
    // A network file system may hang.
    let space = tokio::task::spawn_blocking(move || rustix::fs::statvfs(folder).ok()).await.ok().flatten();
    Ok(space.map(|space| space.f_bavail.saturating_mul(space.f_frsize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_the_containerd_store_are_in_the_folder_of_its_containerd() {
        let info = |driver_type: &str, socket: &str| {
            let status = json!([["Backing Filesystem", "extfs"], ["driver-type", driver_type]]);
            json!({"DockerRootDir": "/data/docker", "DriverStatus": status, "Containerd": {"Address": socket}})
        };
        let snapshotter = "io.containerd.snapshotter.v1";
        for (info, expected) in [
            (info(snapshotter, "/run/containerd/containerd.sock"), "/var/lib/containerd"),
            (
                info(snapshotter, "/var/run/docker/containerd/containerd.sock"),
                "/data/docker/containerd/daemon",
            ),
            (info("", "/run/containerd/containerd.sock"), "/data/docker"),
            (json!({"DockerRootDir": "/var/lib/docker", "DriverStatus": null}), "/var/lib/docker"),
            (json!({"DockerRootDir": "/var/lib/docker", "DriverStatus": [[], "x"]}), "/var/lib/docker"),
        ] {
            assert_eq!(data_folder(&info), Some(expected.into()), "{info}");
        }
        assert_eq!(data_folder(&json!({})), None);
    }
}
