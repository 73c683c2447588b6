//! The container engine over its HTTP interface, Docker's or podman's (DECISIONS 2).

mod connection;
mod convert;
mod endpoint;
mod podman;
mod pull;
mod stats;

use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bollard::auth::DockerCredentials;
use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, ContainerInspectResponse, ContainerSummary, HostConfig};
use bollard::query_parameters as query;
use futures_util::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use tokio::sync::watch;
use tokio::time::timeout;

use self::connection::{AT_ONCE, Connection, READ};
pub use self::endpoint::{Endpoint, EndpointError, Surroundings};
use super::text::{Tail, stable};
use super::{
    Container, ContainerEvent, Engine, EngineError, FoundLender, HOLD_LABEL, Image, Members, Pulled, Usage,
};
use crate::image::{ImageId, Reference, Repository};

const PING: Duration = Duration::from_secs(5);
/// Old engines make a one-shot reading wait for the next tick of their collector: about a second.
const STATS: Duration = Duration::from_secs(5);
const CHANGE: Duration = Duration::from_secs(15);
/// A container may have a long stop time of its own before it is started again.
const RESTART: Duration = Duration::from_secs(150);
/// A pull may take hours, but not without a sign of life.
const PULL_SILENCE: Duration = Duration::from_mins(2);

/// Logins for pulls.
#[async_trait]
pub trait PullAuth: Send + Sync + 'static {
    /// What the engine shall log in with at the registry `host`; `None` to go without. The error says why the
    /// credentials that are there can't be had.
    async fn login(&self, host: &str) -> Result<Option<DockerCredentials>, String>;
}

/// An engine behind a socket. Making one connects to nothing.
pub struct DockerEngine {
    connection: Connection,
    auth: Arc<dyn PullAuth>,
}

impl DockerEngine {
    /// The engine at `endpoint`; pulls log in with what `auth` has.
    pub fn new(endpoint: Endpoint, auth: Arc<dyn PullAuth>) -> Self {
        Self { connection: Connection::new(endpoint), auth }
    }

    /// Lists containers in any state.
    async fn list(&self, filter: &str, value: String) -> Result<Vec<ContainerSummary>, EngineError> {
        let filters = HashMap::from([(filter, vec![value])]);
        let options = query::ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        self.connection
            .read("list containers", |docker| {
                let options = options.clone();
                async move { podman::in_known_words(docker.list_containers(Some(options)).await) }
            })
            .await
    }

    /// What the engine says about a container, which is a lot; `None` when it is gone.
    async fn seen(
        &self,
        doing: &str,
        name: &str,
    ) -> Result<Option<Box<ContainerInspectResponse>>, EngineError> {
        let seen = self
            .connection
            .read(doing, |docker| async move {
                podman::in_known_words(docker.inspect_container(name, None).await).map(Box::new)
            })
            .await;
        match seen {
            Ok(seen) => Ok(Some(seen)),
            Err(EngineError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same in our terms.
    async fn inspect(&self, name: &str, status: String) -> Result<Option<Container>, EngineError> {
        let doing = format!("inspect container {}", stable(name));
        let Some(seen) = self.seen(&doing, name).await? else { return Ok(None) };
        convert::container(*seen, status)
            .map(Some)
            .map_err(|field| EngineError::Refused(format!("{doing}: the answer has no {field}")))
    }

    /// Looks up the containers whose networks these use: among themselves, else at the engine.
    async fn find_lenders(&self, containers: &mut [Container]) -> Result<(), EngineError> {
        let mut found: HashMap<String, Option<FoundLender>> = HashMap::new();
        for given in containers.iter().filter_map(|container| Some(&container.network_of.as_ref()?.given)) {
            if found.contains_key(given) {
                continue;
            }
            let lender = match containers.iter().find(|one| one.id == *given || one.name == *given) {
                Some(container) => Some(FoundLender::of(container)),
                None => self.inspect(given, String::new()).await?.as_ref().map(FoundLender::of),
            };
            found.insert(given.clone(), lender);
        }
        for lender in containers.iter_mut().filter_map(|container| container.network_of.as_mut()) {
            lender.found = found.get(&lender.given).cloned().flatten();
        }
        Ok(())
    }

    /// Value of the hold label of a container; the outer `None` when there is no such container.
    async fn hold(&self, name: &str) -> Result<Option<Hold>, EngineError> {
        let seen = self.seen(&format!("inspect container {name}"), name).await?;
        Ok(seen.map(|seen| Hold {
            image: seen.image.map(ImageId),
            ours: seen.config.and_then(|config| config.labels).is_some_and(|l| l.contains_key(HOLD_LABEL)),
        }))
    }

    async fn create_anchor(&self, name: &str, id: &ImageId, project: &str) -> Result<(), EngineError> {
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let body = ContainerCreateBody {
            image: Some(id.0.clone()),
            // It is never started; the engine only wants a command.
            entrypoint: Some(vec![String::new()]),
            cmd: Some(vec!["true".to_owned()]),
            // An image that compose built carries compose's labels; inherited, they would make the anchor a
            // container of that project.
            labels: Some(HashMap::from([
                label(HOLD_LABEL, project),
                label(convert::PROJECT_LABEL, ""),
                label(convert::SERVICE_LABEL, ""),
            ])),
            host_config: Some(HostConfig { network_mode: Some("none".to_owned()), ..HostConfig::default() }),
            ..ContainerCreateBody::default()
        };
        let options = query::CreateContainerOptionsBuilder::new().name(name).build();
        self.connection
            .call(&format!("hold image {id}"), CHANGE, |docker| {
                let (options, body) = (options.clone(), body.clone());
                async move { docker.create_container(Some(options), body).await }
            })
            .await
            .map(|_| ())
            .map_err(|error| match error {
                // It was not there a moment ago.
                EngineError::Refused(text) if text.contains("already in use") => {
                    EngineError::Refused(format!("{text} (another agent may be at work on this project)"))
                }
                error => error,
            })
    }
}

/// What stands in the way under an anchor's name.
struct Hold {
    image: Option<ImageId>,
    ours: bool,
}

#[async_trait]
impl Engine for DockerEngine {
    async fn ping(&self) -> Result<(), EngineError> {
        self.connection.call("ping", PING, |docker| async move { docker.ping().await }).await.map(|_| ())
    }

    async fn containers(&self, members: &Members) -> Result<Vec<Container>, EngineError> {
        let listed = match members {
            Members::Project(project) => {
                self.list("label", format!("{}={project}", convert::PROJECT_LABEL)).await?
            }
            // Podman's names have no slash.
            Members::Name(name) => self.list("name", format!("^/?{}$", escaped(name))).await?,
        };
        let wanted = listed.into_iter().filter_map(|summary| {
            let labels = summary.labels.unwrap_or_default();
            let one_off = labels.get(convert::ONE_OFF_LABEL).is_some_and(|value| value == "True");
            let skip = one_off || labels.contains_key(HOLD_LABEL);
            Some((summary.id.filter(|_| !skip)?, summary.status.unwrap_or_default()))
        });
        let mut containers: Vec<Container> = stream::iter(wanted)
            .map(|(id, status)| async move { self.inspect(&id, status).await })
            .buffer_unordered(AT_ONCE)
            // One that went away in between is not there.
            .try_filter_map(|container| ready(Ok(container)))
            .try_collect()
            .await?;
        if let Members::Name(name) = members {
            containers.retain(|container| container.name == *name);
        }
        containers.sort_by(|a, b| a.name.cmp(&b.name));
        self.find_lenders(&mut containers).await?;
        Ok(containers)
    }

    async fn image(&self, name: &str) -> Result<Option<Image>, EngineError> {
        let name = checked(name)?;
        let doing = format!("inspect image {name}");
        let seen = self
            .connection
            .read(&doing, |docker| async move { docker.inspect_image(name).await.map(Box::new) })
            .await;
        match seen {
            Ok(seen) => convert::image(*seen)
                .map(Some)
                .ok_or_else(|| EngineError::Refused(format!("{doing}: the answer has no Id"))),
            Err(EngineError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn pull(&self, reference: &Reference, progress: &watch::Sender<Pulled>) -> Result<(), EngineError> {
        let doing = format!("pull {reference}");
        let host = &reference.repository.host;
        let login = self.auth.login(host).await.map_err(|reason| {
            EngineError::Refused(format!("{doing}: no credentials for {host}: {}", stable(&reason)))
        })?;
        let which = match (&reference.digest, &reference.tag) {
            (Some(digest), _) => digest.as_str(),
            (None, tag) => tag.as_deref().unwrap_or("latest"),
        };
        let options = query::CreateImageOptionsBuilder::new()
            .from_image(&reference.repository.to_string())
            .tag(which)
            .build();
        let docker = self.connection.call(&doing, READ, |docker| ready(Ok(docker))).await?;
        let mut messages = docker.create_image(Some(options), None, login);
        let mut layers = pull::Layers::default();
        progress.send_replace(Pulled::default());
        loop {
            let Ok(message) = timeout(PULL_SILENCE, messages.next()).await else {
                let silence = PULL_SILENCE.as_secs();
                return Err(EngineError::Refused(format!("{doing}: no progress for {silence} s")));
            };
            match message {
                None => return Ok(()),
                Some(Ok(message)) => layers.note(&message),
                Some(Err(error)) => {
                    let error = self.connection.explain(&doing, &error);
                    if error.is_unavailable() {
                        self.connection.forget().await;
                    }
                    return Err(error);
                }
            }
            let pulled = layers.pulled();
            progress.send_if_modified(|seen| std::mem::replace(seen, pulled) != pulled);
        }
    }

    async fn tag(&self, id: &ImageId, reference: &Reference) -> Result<(), EngineError> {
        let image = checked(&id.0)?;
        let options = query::TagImageOptionsBuilder::new()
            .repo(&reference.repository.to_string())
            .tag(reference.tag.as_deref().unwrap_or("latest"))
            .build();
        self.connection
            .call(&format!("tag {id} as {}", reference.tagged()), CHANGE, |docker| {
                let options = options.clone();
                async move { docker.tag_image(image, Some(options)).await }
            })
            .await
    }

    async fn untag(&self, reference: &Reference) -> Result<(), EngineError> {
        let name = reference.tagged();
        let name = name.as_str();
        // Without force the engine refuses where a container, running or not, has no other name for its image.
        let options = query::RemoveImageOptionsBuilder::new().force(false).noprune(true).build();
        let done = self
            .connection
            .call(&format!("remove tag {name}"), CHANGE, |docker| {
                let options = options.clone();
                async move {
                    match docker.remove_image(name, Some(options), None).await {
                        Err(Error::DockerResponseServerError { status_code: 409, .. }) => Ok(()),
                        done => done.map(|_| ()),
                    }
                }
            })
            .await;
        absent_is_fine(done)
    }

    async fn tags(&self, repository: &Repository) -> Result<Vec<Reference>, EngineError> {
        let filters = HashMap::from([("reference", vec![format!("{repository}:*")])]);
        let options = query::ListImagesOptionsBuilder::new().filters(&filters).build();
        let listed = self
            .connection
            .read(&format!("list the tags of {repository}"), |docker| {
                let options = options.clone();
                async move { docker.list_images(Some(options)).await }
            })
            .await?;
        // An image is listed with all its names.
        let names = listed.into_iter().flat_map(|image| image.repo_tags);
        let mut tags: Vec<Reference> = names.filter_map(|name| Reference::parse(&name).ok()).collect();
        tags.retain(|tag| tag.repository == *repository);
        tags.sort();
        Ok(tags)
    }

    async fn anchor(&self, name: &str, id: &ImageId, project: &str) -> Result<(), EngineError> {
        let name = checked(name)?;
        match self.hold(name).await? {
            Some(hold) if !hold.ours => Err(EngineError::Refused(format!(
                "hold image {id}: the name {name} belongs to a container that is not ours"
            ))),
            Some(hold) if hold.image.as_ref() == Some(id) => Ok(()),
            there => {
                if there.is_some() {
                    self.remove_anchor(name).await?;
                }
                self.create_anchor(name, id, project).await
            }
        }
    }

    async fn anchors(&self, project: &str) -> Result<Vec<String>, EngineError> {
        let listed = self.list("label", format!("{HOLD_LABEL}={project}")).await?;
        let mut names: Vec<String> = listed
            .into_iter()
            .filter_map(|summary| summary.names?.into_iter().next())
            .map(|name| name.trim_start_matches('/').to_owned())
            .collect();
        names.sort();
        Ok(names)
    }

    async fn remove_anchor(&self, name: &str) -> Result<(), EngineError> {
        let name = checked(name)?;
        let doing = format!("remove container {name}");
        match self.hold(name).await? {
            None => return Ok(()),
            Some(hold) if !hold.ours => {
                return Err(EngineError::Refused(format!("{doing}: it is not ours")));
            }
            Some(_) => {}
        }
        // The image's own volumes were made with it and go with it.
        let options = query::RemoveContainerOptionsBuilder::new().force(false).v(true).build();
        let done = self
            .connection
            .call(&doing, CHANGE, |docker| {
                let options = options.clone();
                async move {
                    match docker.remove_container(name, Some(options)).await {
                        Err(Error::DockerResponseServerError { status_code: 409, message })
                            if message.contains("already in progress") =>
                        {
                            Ok(())
                        }
                        done => done,
                    }
                }
            })
            .await;
        absent_is_fine(done)
    }

    async fn log_tail(&self, container: &str, lines: u32) -> Result<String, EngineError> {
        let container = checked(container)?;
        let options =
            query::LogsOptionsBuilder::new().stdout(true).stderr(true).tail(&lines.to_string()).build();
        self.connection
            .read(&format!("read the log of {}", stable(container)), |docker| {
                let mut pieces = docker.logs(container, Some(options.clone()));
                async move {
                    let mut tail = Tail::default();
                    while let Some(piece) = pieces.next().await {
                        tail.push(&piece?.into_bytes());
                    }
                    Ok(tail.text())
                }
            })
            .await
    }

    async fn rename(&self, container: &str, name: &str) -> Result<(), EngineError> {
        let (container, name) = (checked(container)?, checked(name)?);
        let doing = format!("rename container {}", stable(container));
        self.connection
            .call(&doing, CHANGE, |docker| async move {
                let options = query::RenameContainerOptionsBuilder::new().name(name).build();
                docker.rename_container(container, options).await
            })
            .await
    }

    async fn restart(&self, container: &str) -> Result<(), EngineError> {
        let container = checked(container)?;
        let doing = format!("restart container {}", stable(container));
        let Some(seen) = self.inspect(container, String::new()).await? else {
            return Err(EngineError::NotFound(format!("{doing}: it is gone")));
        };
        // Podman takes a time that is not given for none at all, and kills.
        let grace = i32::try_from(seen.stop_timeout.as_secs()).unwrap_or(i32::MAX);
        let options = query::RestartContainerOptionsBuilder::new().t(grace).build();
        self.connection
            .call(&doing, RESTART, |docker| {
                let options = options.clone();
                async move { docker.restart_container(container, Some(options)).await }
            })
            .await
    }

    async fn events(&self, since_nano: i64) -> Result<BoxStream<'static, ContainerEvent>, EngineError> {
        // The request goes out when the stream is first read; what happens until then comes from the buffer.
        let docker = self
            .connection
            .call("connect", PING, |docker| async move {
                docker.ping().await?;
                Ok(docker)
            })
            .await?;
        let since = format!("{}.{:09}", since_nano / 1_000_000_000, since_nano % 1_000_000_000);
        let filters = HashMap::from([("type", vec!["container"]), ("event", convert::EVENTS.to_vec())]);
        let options = query::EventsOptionsBuilder::new().filters(&filters).since(&since);
        let events = docker
            .events(Some(options.build()))
            .scan((), |(), seen| {
                ready(seen.inspect_err(|error| tracing::debug!(%error, "event stream broke")).ok())
            })
            .filter_map(|seen| ready(convert::event(seen)));
        Ok(events.boxed())
    }

    async fn stats(&self, container: &str) -> Result<Option<Usage>, EngineError> {
        let name = checked(container)?;
        // Without one-shot the engine reads twice, a second apart, to compute what we compute ourselves.
        let options = query::StatsOptionsBuilder::new().stream(false).one_shot(true).build();
        let seen = self
            .connection
            .call(&format!("read the stats of {name}"), STATS, |docker| {
                let mut stats = docker.stats(name, Some(options.clone()));
                async move { stats.next().await.transpose() }
            })
            .await;
        match seen {
            Ok(seen) => Ok(seen.as_ref().and_then(stats::usage)),
            Err(EngineError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn machine_memory(&self) -> Result<u64, EngineError> {
        let doing = "read the machine's memory";
        let info = self.connection.call(doing, STATS, |docker| async move { docker.info().await }).await?;
        let memory = info.mem_total.and_then(|bytes| u64::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
        memory.ok_or_else(|| EngineError::Refused(format!("{doing}: the answer has no MemTotal")))
    }
}

/// A name that can stand in a request's path without meaning another path.
fn checked(name: &str) -> Result<&str, EngineError> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"_.-/:@[]".contains(&b);
    let climbs = name.split('/').any(|part| matches!(part, "" | "." | ".."));
    if climbs || !name.bytes().all(legal) {
        return Err(EngineError::NotFound(format!("no engine object can be called {name:?}")));
    }
    Ok(name)
}

/// A name as a regular expression that matches it alone.
fn escaped(name: &str) -> String {
    name.chars().fold(String::new(), |mut text, c| {
        if !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-') {
            text.push('\\');
        }
        text.push(c);
        text
    })
}

fn absent_is_fine(done: Result<(), EngineError>) -> Result<(), EngineError> {
    match done {
        Err(EngineError::NotFound(_)) => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests;
