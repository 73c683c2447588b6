//! Inspects what the definition of a compose project is compared with.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::names::checked;
use super::{DockerEngine, answer, convert, listed};
use crate::model::output::stable;
use crate::model::{EngineError, Running};

impl DockerEngine {
    pub(super) async fn definitions(
        &self,
        project: &str,
        containers: &[String],
    ) -> Result<Running, EngineError> {
        let mut running = Running::default();
        for id in containers {
            let id = checked(id)?;
            let doing = format!("inspect container {}", stable(id));
            running.containers.extend(self.inspection(&doing, id).await?.map(|(seen, _)| seen));
        }
        let mut images = BTreeMap::new();
        for container in &running.containers {
            let Some(id) = answer::text(container, "/Image").filter(|id| !images.contains_key(*id)) else {
                continue;
            };
            let path = format!("/images/{}/json", checked(id)?);
            match self.connection.get(&format!("inspect image {id}"), &path, &[]).await {
                Ok(seen) => {
                    // Without it, the image's part of the container's configuration is unknown.
                    let config = seen.get("Config").filter(|config| config.is_object()).cloned();
                    images.extend(config.map(|config| (id.to_owned(), config)));
                }
                Err(error) if error.is_unavailable() => return Err(error),
                Err(_) => {}
            }
        }
        running.images = images;
        let of_project = json!({ "label": [format!("{}={project}", convert::PROJECT_LABEL)] });
        running.networks = self.networks(&of_project).await?;
        Ok(running)
    }

    /// Lists the networks that match these filters, as returned by the engine.
    pub(super) async fn networks(&self, filters: &Value) -> Result<Vec<Value>, EngineError> {
        let filters = filters.to_string();
        let query = [("filters", filters.as_str())];
        let doing = "list networks";
        listed(doing, self.connection.get(doing, "/networks", &query).await?)
    }
}
