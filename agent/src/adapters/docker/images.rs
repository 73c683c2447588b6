//! Images that are no longer needed, and the room that they take.

use bollard::errors::Error;
use bytes::Bytes;
use http::Method;

use super::answer;
use super::connection::Connection;
use super::names::checked;
use super::{CHANGE, STATS};
use crate::model::EngineError;
use crate::model::image::ImageId;

/// Removes an image that no tag names and no container uses; whether it is gone.
pub(super) async fn remove(connection: &Connection, id: &ImageId) -> Result<bool, EngineError> {
    let name = checked(&id.0)?;
    let doing = format!("remove image {id}");
    let (path, record) = (format!("/images/{name}"), format!("/images/{name}/json"));
    let (path, record) = (path.as_str(), record.as_str());
    let seen = connection.read(&doing, |client| async move { client.get(record, &[]).await }).await;
    match seen {
        // By its ID the engine would take all tags along.
        Ok(seen) if answer::texts(&seen, "/RepoTags").iter().any(|tag| !tag.starts_with("<none>")) => {
            return Ok(false);
        }
        Ok(_) => {}
        Err(EngineError::NotFound(_)) => return Ok(true),
        Err(error) => return Err(error),
    }
    // Without force the engine refuses where a container, running or not, uses it, or another repository names it.
    let query = [("force", "false"), ("noprune", "true")];
    connection
        .call(&doing, CHANGE, |client| async move {
            match client.send(Method::DELETE, path, &query, Bytes::new()).await {
                Err(Error::DockerResponseServerError { status_code: 409, .. }) => Ok(false),
                Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(true),
                done => done.map(|()| true),
            }
        })
        .await
}

/// Bytes that are free where the engine keeps images; `None` where that can't be seen from here.
pub(super) async fn free_space(connection: &Connection) -> Result<Option<u64>, EngineError> {
    let doing = "read where images are kept";
    let info = connection.call(doing, STATS, |client| async move { client.get("/info", &[]).await });
    let info = info.await?;
    let folder = answer::text(&info, "/DockerRootDir").filter(|_| connection.is_local());
    // From inside a container the folder is not there, or another one.
    let space = folder.and_then(|folder| rustix::fs::statvfs(folder).ok());
    Ok(space.map(|space| space.f_bavail.saturating_mul(space.f_frsize)))
}
