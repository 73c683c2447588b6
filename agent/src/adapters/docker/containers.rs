//! The containers of a service: a list, and what the engine says about each of them.

use std::collections::HashMap;
use std::future::ready;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};

use super::connection::AT_ONCE;
use super::names::{checked, escaped};
use super::{DockerEngine, PING, answer, convert};
use crate::model::output::stable;
use crate::model::{Container, CurrentOwner, EngineError, Members, NetworkOwner};
use crate::ports::HOLD_LABEL;

impl DockerEngine {
    /// The containers of a service, by name.
    pub(super) async fn members(&self, members: &Members) -> Result<Vec<Container>, EngineError> {
        match members {
            Members::Project(project) => self.of_project(project).await,
            Members::Name(name) => self.of_name(name).await,
            Members::ProjectOrName(project, name) => match self.of_project(project).await? {
                none if none.is_empty() => self.of_name(name).await,
                containers => Ok(containers),
            },
        }
    }

    async fn of_project(&self, project: &str) -> Result<Vec<Container>, EngineError> {
        let listed = self.list("label", format!("{}={project}", convert::PROJECT_LABEL)).await?;
        self.looked_at(listed, |_| true).await
    }

    async fn of_name(&self, name: &str) -> Result<Vec<Container>, EngineError> {
        // Podman's names have no slash.
        let listed = self.list("name", format!("^/?{}$", escaped(name))).await?;
        self.looked_at(listed, |container| container.name == *name).await
    }

    /// What is listed in full, by name; neither what compose runs once nor what holds an image.
    async fn looked_at(
        &self,
        listed: Vec<Value>,
        is_wanted: impl Fn(&Container) -> bool,
    ) -> Result<Vec<Container>, EngineError> {
        let wanted = listed.into_iter().filter_map(|listed| {
            let labels = answer::map(&listed, "/Labels").unwrap_or_default();
            let one_off = labels.get(convert::ONE_OFF_LABEL).is_some_and(|value| value == "True");
            let id = answer::text(&listed, "/Id").and_then(|id| checked(id).ok()).map(str::to_owned);
            Some((id.filter(|_| !one_off && !labels.contains_key(HOLD_LABEL))?, listed))
        });
        let looks = stream::iter(wanted)
            .map(|(id, listed)| async move { self.look(&listed, &id).await })
            .buffer_unordered(AT_ONCE)
            // One that went away in between is not there.
            .try_filter_map(|container| ready(Ok(container)));
        let mut containers: Vec<Container> = looks.try_collect().await?;
        containers.retain(is_wanted);
        containers.sort_by(|a, b| a.name.cmp(&b.name));
        Box::pin(self.find_network_owners(&mut containers)).await?;
        Ok(containers)
    }

    /// Looks up the containers whose networks these use: among themselves, else at the engine.
    async fn find_network_owners(&self, containers: &mut [Container]) -> Result<(), EngineError> {
        let mut found: HashMap<String, Option<CurrentOwner>> = HashMap::new();
        for given in containers.iter().filter_map(|container| Some(&container.network_of.as_ref()?.given)) {
            if found.contains_key(given) {
                continue;
            }
            let own = containers.iter().find(|one| one.id == *given || one.name == *given);
            let owner = if let Some(container) = own {
                Some(CurrentOwner::of(container))
            } else {
                let Ok(name) = checked(given) else { continue };
                match Box::pin(self.inspect(name)).await {
                    Ok(owner) => owner.as_ref().map(CurrentOwner::of),
                    Err(error) if error.is_unavailable() => return Err(error),
                    // Nothing can be known of it, which hides none of the others.
                    Err(_) => continue,
                }
            };
            found.insert(given.clone(), owner);
        }
        for container in containers {
            container.network_of = container.network_of.take().and_then(|owner| {
                let found = found.get(&owner.given)?.clone();
                Some(NetworkOwner { found, ..owner })
            });
        }
        Ok(())
    }

    /// Lists containers in any state, as the engine describes them.
    pub(super) async fn list(&self, filter: &str, value: String) -> Result<Vec<Value>, EngineError> {
        let filters = json!({ filter: [value] }).to_string();
        let query = [("all", "true"), ("filters", filters.as_str())];
        let doing = "list containers";
        let listed = self
            .connection
            .read(doing, |client| async move { client.get("/containers/json", &query).await })
            .await?;
        match listed {
            Value::Array(listed) => Ok(listed),
            Value::Null => Ok(Vec::new()),
            _ => Err(EngineError::Refused(format!("{doing}: the answer is no list"))),
        }
    }

    /// A container of a listing. One that can't be described hides none of the others: it is what the listing says.
    async fn look(&self, listed: &Value, id: &str) -> Result<Option<Container>, EngineError> {
        let doing = format!("inspect container {}", stable(id));
        let (seen, podman) = match self.seen(&doing, id).await {
            Ok(Some(seen)) => seen,
            Ok(None) => return Ok(None),
            Err(error) if error.is_unavailable() && self.connection.ping(PING).await.is_err() => {
                return Err(error);
            }
            Err(error) => {
                tracing::warn!("{error}; only what the listing says of it is known");
                (Value::Null, self.connection.is_podman().await)
            }
        };
        Ok(convert::container(listed, &seen, podman))
    }
}
