//! Lists and inspects the containers of a service.

use std::collections::HashMap;
use std::future::ready;
use std::mem;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::names::{checked, escaped};
use super::transport::AT_ONCE;
use super::{DockerEngine, PING, answer, convert, events, listed};
use crate::model::image::ImageId;
use crate::model::output::stable;
use crate::model::{Container, EngineError, Members, NetworkOwner, NetworkOwnerState, State};

/// How many containers are inspected at most to find one that has been running for long; the oldest first.
const MAX_WITNESSES: usize = 8;

impl DockerEngine {
    /// Returns the containers of a service, sorted by name.
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
        let mut listed = self.list("label", format!("{}={project}", convert::PROJECT_LABEL)).await?;
        listed.retain(|one| {
            let labels = answer::map(one, "/Labels").unwrap_or_default();
            let is_one_off = labels.get(convert::ONE_OFF_LABEL).is_some_and(|value| value == "True");
            !is_one_off && !convert::are_of_image(&labels)
        });
        self.inspect_all(listed, |_| true).await
    }

    /// Compose's labels don't count here: its image can have them, also that of a one-off container.
    async fn of_name(&self, name: &str) -> Result<Vec<Container>, EngineError> {
        // Podman's names have no leading slash.
        let listed = self.list("name", format!("^/?{}$", escaped(name))).await?;
        self.inspect_all(listed, |container| container.name == *name).await
    }

    /// Inspects the listed containers and sorts them by name. Anchors are left out.
    async fn inspect_all(
        &self,
        listed: Vec<Value>,
        is_wanted: impl Fn(&Container) -> bool,
    ) -> Result<Vec<Container>, EngineError> {
        let wanted = listed.into_iter().filter_map(|listed| {
            let labels = answer::map(&listed, "/Labels").unwrap_or_default();
            let id = answer::text(&listed, "/Id").and_then(|id| checked(id).ok()).map(str::to_owned);
            let is_anchor = convert::is_anchor(answer::container_name(&listed), &labels);
            Some((id.filter(|_| !is_anchor)?, listed))
        });
        let inspected = stream::iter(wanted)
            .map(|(id, listed)| async move { self.inspect_listed(&listed, &id).await })
            .buffer_unordered(AT_ONCE)
            // Skip containers that were removed in the meantime.
            .try_filter_map(|container| ready(Ok(container)));
        let mut inspected: Vec<(Container, Vec<String>)> = inspected.try_collect().await?;
        inspected.retain(|(container, _)| is_wanted(container));
        inspected.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        let mut containers = Box::pin(self.with_lost_networks(inspected)).await?;
        Box::pin(self.find_network_owners(&mut containers)).await?;
        Ok(containers)
    }

    /// Finds out whether the engine still has the networks, by ID, that these containers are to be connected to.
    async fn with_lost_networks(
        &self,
        inspected: Vec<(Container, Vec<String>)>,
    ) -> Result<Vec<Container>, EngineError> {
        let mut existing = None;
        if inspected.iter().any(|(_, networks)| !networks.is_empty()) {
            existing = match self.networks(&json!({})).await {
                // Docker always has some.
                Ok(networks) => Some(networks).filter(|all| !all.is_empty()),
                Err(error) if self.is_away(&error).await => return Err(error),
                // They are not known to be gone.
                Err(_) => None,
            };
        }
        let is_there = |id: &String| {
            let has_id = |network: &Value| answer::text(network, "/Id") == Some(id.as_str());
            existing.as_ref().is_none_or(|all| all.iter().any(has_id))
        };
        let completed = inspected.into_iter().map(|(container, networks)| Container {
            lost_networks: networks.into_iter().filter(|id| !is_there(id)).collect(),
            ..container
        });
        Ok(completed.collect())
    }

    /// Finds the containers whose network namespaces these use, first among themselves, then at the engine.
    async fn find_network_owners(&self, containers: &mut [Container]) -> Result<(), EngineError> {
        let mut found: HashMap<String, Option<NetworkOwnerState>> = HashMap::new();
        for id_or_name in
            containers.iter().filter_map(|container| Some(&container.network_of.as_ref()?.id_or_name))
        {
            if found.contains_key(id_or_name) {
                continue;
            }
            let own = containers.iter().find(|one| one.id == *id_or_name || one.name == *id_or_name);
            let owner = if let Some(container) = own {
                Some(NetworkOwnerState::of(container))
            } else {
                let Ok(name) = checked(id_or_name) else { continue };
                match Box::pin(self.inspect(name)).await {
                    Ok(owner) => owner.as_ref().map(NetworkOwnerState::of),
                    Err(error) if self.is_away(&error).await => return Err(error),
                    // An owner that cannot be inspected must not hide the others.
                    Err(_) => continue,
                }
            };
            found.insert(id_or_name.clone(), owner);
        }
        for container in containers {
            container.network_of = container.network_of.take().and_then(|owner| {
                let found = found.get(&owner.id_or_name)?.clone();
                Some(NetworkOwner { resolved: found, ..owner })
            });
        }
        Ok(())
    }

    /// Returns a time since when the engine has been running without stopping the containers, see
    /// [`Engine::running_since`](crate::ports::Engine::running_since).
    pub(super) async fn has_run_since(&self, wanted: Timestamp) -> Result<Option<Timestamp>, EngineError> {
        let client = self.connection.fresh().await?;
        // Podman has no daemon that containers depend on, and its events are in a file.
        if client.podman {
            return Ok(Some(Timestamp::UNIX_EPOCH));
        }
        // Docker's events are in memory: the oldest one is from this run of the engine. With health checks they reach back
        // only a few minutes, but then containers are running.
        let oldest = events::oldest(&client).await;
        if oldest.is_some_and(|oldest| oldest <= wanted) {
            return Ok(oldest);
        }
        let mut listed = self.list("status", "running".to_owned()).await?;
        listed.sort_by_key(|listed| answer::number(listed, "/Created"));
        let ids = listed.iter().filter_map(|listed| checked(answer::text(listed, "/Id")?).ok());
        let mut earliest = oldest;
        for id in ids.take(MAX_WITNESSES) {
            let seen = match self.inspect(id).await {
                Err(error) if self.is_away(&error).await => return Err(error),
                // A container that can't be inspected says nothing.
                seen => seen.ok().flatten().filter(|seen| seen.state == State::Running),
            };
            let Some(started_at) = seen.and_then(|seen| seen.started_at) else { continue };
            earliest = Some(earliest.map_or(started_at, |earliest| earliest.min(started_at)));
            if started_at <= wanted {
                break;
            }
        }
        Ok(earliest)
    }

    /// Returns the address at which a container is reached: that on its first network by name, that of the container whose
    /// network it shares, or the loopback address on the machine's network. `None` if it has none, or is gone.
    pub async fn address(&self, container: &str) -> Result<Option<IpAddr>, EngineError> {
        let mut name = checked(container)?.to_owned();
        // A container whose network is shared does not share another one's.
        for _ in 0..2 {
            let doing = format!("inspect container {}", stable(&name));
            let Some((seen, _)) = self.inspection(&doing, &name).await? else { return Ok(None) };
            let mode = answer::text(&seen, "/HostConfig/NetworkMode").unwrap_or_default();
            match mode.strip_prefix("container:") {
                Some(owner) => checked(owner)?.clone_into(&mut name),
                None if mode == "host" => return Ok(Some(IpAddr::V4(Ipv4Addr::LOCALHOST))),
                None => return Ok(convert::address(&seen)),
            }
        }
        Ok(None)
    }

    /// Lists the containers that match a filter, in any state, as returned by the engine.
    pub(super) async fn list(&self, filter: &str, value: String) -> Result<Vec<Value>, EngineError> {
        self.list_filtered(&json!({ filter: [value] })).await
    }

    /// Lists all containers, in any state, as returned by the engine.
    pub(super) async fn list_all(&self) -> Result<Vec<Value>, EngineError> {
        self.list_filtered(&json!({})).await
    }

    async fn list_filtered(&self, filters: &Value) -> Result<Vec<Value>, EngineError> {
        let filters = filters.to_string();
        let query = [("all", "true"), ("filters", filters.as_str())];
        let doing = "list containers";
        listed(doing, self.connection.get(doing, "/containers/json", &query).await?)
    }

    /// Reports whether a container could not be inspected because the engine is away, and not because of the container.
    async fn is_away(&self, error: &EngineError) -> bool {
        error.is_unavailable() && self.connection.ping(PING).await.is_err()
    }

    /// Inspects a listed container. One that cannot be inspected must not hide the others: the fields of the list are
    /// used instead. They say nothing of its health and its restarts, so the state of one that may run is unknown. With one
    /// that is down, the networks are returned, by ID, that it is to be connected to.
    async fn inspect_listed(
        &self,
        listed: &Value,
        id: &str,
    ) -> Result<Option<(Container, Vec<String>)>, EngineError> {
        let doing = format!("inspect container {}", stable(id));
        let inspected = self.inspection(&doing, id).await;
        if inspected.is_ok() {
            self.unseen.lock().remove(id);
        }
        let (seen, podman) = match inspected {
            Ok(Some(seen)) => seen,
            Ok(None) => return Ok(None),
            Err(error) if self.is_away(&error).await => return Err(error),
            Err(error) => {
                // It may never answer.
                if self.unseen.lock().insert(id.to_owned()) {
                    tracing::warn!("{error}; using only the fields of the container list");
                } else {
                    tracing::debug!("{error}; using only the fields of the container list");
                }
                (Value::Null, self.connection.is_podman().await)
            }
        };
        let is_inspected = seen["State"].is_object();
        let Some(mut known) = convert::container(listed, &seen, podman) else { return Ok(None) };
        let labelled = mem::take(&mut known.origin.env_files);
        known.origin.env_files = self.env_files_of_compose(&known.image, labelled.clone()).await?;
        if known.origin.env_files.is_empty() {
            known.env_files_of_image = labelled;
        }
        // Podman looks networks up by name.
        let is_by_id = !podman && !known.is_live();
        let networks = if is_by_id { convert::networks_at_start(&seen) } else { Vec::new() };
        let state = if is_inspected || !known.is_live() { known.state } else { State::Unknown };
        Ok(Some((Container { state, ..known }, networks)))
    }

    /// Returns the env files that a container is labelled with, unless it has the label from its image. Compose sets this label
    /// only if it has read env files; otherwise an image could name those of the whole project.
    pub(super) async fn env_files_of_compose(
        &self,
        image: &ImageId,
        labelled: Vec<PathBuf>,
    ) -> Result<Vec<PathBuf>, EngineError> {
        if labelled.is_empty() {
            return Ok(labelled);
        }
        let known = self.env_files_of_images.lock().get(image).cloned();
        let of_image = if let Some(known) = known {
            known
        } else {
            let Ok(id) = checked(&image.0) else { return Ok(labelled) };
            let doing = format!("inspect image {image}");
            let seen = match self.connection.get(&doing, &format!("/images/{id}/json"), &[]).await {
                Ok(seen) => seen,
                Err(error) if self.is_away(&error).await => return Err(error),
                // It may have been removed.
                Err(_) => return Ok(labelled),
            };
            let found = convert::env_files(&answer::map(&seen, "/Config/Labels").unwrap_or_default());
            self.env_files_of_images.lock().insert(image.clone(), found.clone());
            found
        };
        Ok(if labelled == of_image { Vec::new() } else { labelled })
    }
}
