//! Client of the container engine's HTTP API, Docker's or podman's (DECISIONS 2).

mod answer;
mod client;
mod connection;
mod containers;
mod convert;
mod definition;
mod endpoint;
mod events;
mod images;
mod lifecycle;
mod names;
mod own;
mod pull;
mod stats;
mod survey;
mod swarm;
mod transport;
mod version;
mod volumes;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bollard::auth::DockerCredentials;
use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters as query;
use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt as _};
use http::Method;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::{sleep, timeout};

use self::client::Client;
use self::connection::Connection;
pub use self::endpoint::{Endpoint, EndpointError, HostEnvironment};
use self::names::checked;
use self::volumes::Looks;
use crate::model::image::{ImageId, Reference, Repository};
use crate::model::output::{Tail, says, stable};
use crate::model::{
    Container, ContainerEvent, EngineError, IfFound, Members, Need, Platform, Running, Usage,
};
use crate::ports::{Engine, ExecEnd, HOLD_LABEL, HOLD_PREFIX, Image, PullProgress};

const PING: Duration = Duration::from_secs(5);
/// On old engines, a one-shot request waits for the next run of the stats collector: about a second.
const STATS: Duration = Duration::from_secs(5);
const CHANGE: Duration = Duration::from_secs(15);
/// Storage drivers without layers, such as vfs, copy the whole image for a container.
const CREATE: Duration = Duration::from_mins(5);
/// Minimum timeout of a restart: stopping may take long. A container's own stop timeout can extend it.
const RESTART: Duration = Duration::from_secs(150);
/// Pause before a container that was killed just now is inspected again.
const OOM_PAUSE: Duration = Duration::from_millis(100);
/// Attempts to move a tag that is concurrently moved elsewhere.
const TAG_TRIES: u32 = 5;
/// How many images are downloaded at a time. The engine fetches three layers at a time (`max-concurrent-downloads`) and tells
/// nothing about those that wait, so that more pulls would be taken for silent ones.
const PULLS_AT_ONCE: usize = 3;
/// Maximum time between progress messages. The pull itself may take hours.
const PULL_SILENCE: Duration = Duration::from_secs(100);
/// The same while layers are unpacked. Before Docker 28, an engine with the containerd store sends no messages then
/// (moby#47108), and unpacking is slow on slow disks.
const UNPACK_SILENCE: Duration = Duration::from_mins(30);

/// Registry credentials for pulls.
#[async_trait]
pub trait PullCredentials: Send + Sync + 'static {
    /// Returns the credentials for a repository, or `None` for an anonymous pull. The error says why the configured credentials
    /// cannot be read.
    async fn login(&self, repository: &Repository) -> Result<Option<DockerCredentials>, String>;
}

/// An engine client. Creating one does not connect.
pub struct DockerEngine {
    connection: Connection,
    auth: Arc<dyn PullCredentials>,
    looks: Looks,
    /// Turns of the pulls.
    pulls: Semaphore,
    /// Listed containers that could not be inspected, already logged, by ID.
    unseen: Mutex<HashSet<String>>,
    /// The env files that labels of images name, as far as they were asked for.
    env_files_of_images: Mutex<HashMap<ImageId, Vec<PathBuf>>>,
}

impl DockerEngine {
    /// Creates a client for the engine at `endpoint`. Pulls use the credentials of `auth`.
    pub fn new(endpoint: Endpoint, auth: Arc<dyn PullCredentials>) -> Self {
        Self {
            connection: Connection::new(endpoint),
            auth,
            looks: Looks::default(),
            pulls: Semaphore::new(PULLS_AT_ONCE),
            unseen: Mutex::default(),
            env_files_of_images: Mutex::default(),
        }
    }

    /// Returns a container's inspection and whether the engine is podman, or `None` if the container is gone.
    async fn inspection(&self, doing: &str, name: &str) -> Result<Option<(Value, bool)>, EngineError> {
        let path = format!("/containers/{name}/json");
        let ask = |client: Client| {
            let path = path.as_str();
            async move { Ok((client.get(path, &[], None).await?, client.podman)) }
        };
        loop {
            match self.connection.read_one(doing, ask).await.found()? {
                Some((seen, _)) if convert::may_be_oom_killed(&seen, Timestamp::now()) => {
                    sleep(OOM_PAUSE).await;
                }
                seen => return Ok(seen),
            }
        }
    }

    /// Inspects a container.
    async fn inspect(&self, name: &str) -> Result<Option<Container>, EngineError> {
        let doing = format!("inspect container {}", stable(name));
        let Some((seen, podman)) = self.inspection(&doing, name).await? else { return Ok(None) };
        let container = convert::container(&Value::Null, &seen, podman);
        container.map(Some).ok_or_else(|| EngineError::Refused(format!("{doing}: the answer has no Id")))
    }

    /// Returns the image and ownership of the container under an anchor's name, or `None` if there is no such container.
    async fn hold(&self, name: &str) -> Result<Option<Hold>, EngineError> {
        let seen = self.inspection(&format!("inspect container {name}"), name).await?;
        Ok(seen.map(|(seen, _)| Hold {
            image: answer::text(&seen, "/Image").map(|id| ImageId(id.into())),
            ours: answer::map(&seen, "/Config/Labels")
                .is_some_and(|labels| convert::is_anchor(Some(name), &labels)),
        }))
    }

    /// Pulls once, and gives the turn back when all is downloaded: others may download while the engine unpacks.
    async fn pull_once(
        &self,
        reference: &Reference,
        platform: Option<&Platform>,
        progress: &watch::Sender<PullProgress>,
        turn: &mut Option<SemaphorePermit<'_>>,
    ) -> Result<(), EngineError> {
        let doing = format!("pull {reference}");
        let host = &reference.repository.host;
        let login = self.auth.login(&reference.repository).await.map_err(|reason| {
            EngineError::Refused(format!("{doing}: no credentials for {host}: {}", stable(&reason)))
        })?;
        let which = match (&reference.digest, &reference.tag) {
            (Some(digest), _) => digest.as_str(),
            (None, tag) => tag.as_deref().unwrap_or("latest"),
        };
        let options = query::CreateImageOptionsBuilder::new()
            .from_image(&reference.repository.to_string())
            .tag(which)
            .platform(&platform.map(ToString::to_string).unwrap_or_default())
            .build();
        let client = self.connection.fresh().await?;
        let mut messages = client.docker.create_image(Some(options), None, login);
        let mut layers = pull::Layers::default();
        progress.send_replace(PullProgress::default());
        loop {
            let patience = if layers.are_fetched() { UNPACK_SILENCE } else { PULL_SILENCE };
            let Ok(message) = timeout(patience, messages.next()).await else {
                let silence = patience.as_secs();
                return Err(EngineError::Refused(format!("{doing}: no progress for {silence} s")));
            };
            match message {
                None => return Ok(()),
                Some(Ok(message)) => {
                    layers.note(&message);
                    if layers.is_download_over() {
                        *turn = None;
                    }
                }
                // The engine is up, but waits for the registry before it sends a response.
                Some(Err(bollard::errors::Error::RequestTimeoutError)) => {
                    return Err(EngineError::Refused(format!("{doing}: no progress")));
                }
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

    /// Removes a tag or digest reference. The image stays while another name or a container refers to it.
    async fn remove_name(&self, name: &str) -> Result<(), EngineError> {
        images::delete(&self.connection, &format!("remove tag {name}"), name).await.map(drop)
    }

    async fn create_anchor(&self, name: &str, id: &ImageId, project: &str) -> Result<(), EngineError> {
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let body = ContainerCreateBody {
            image: Some(id.to_string()),
            // The container is never started, but the engine requires a command.
            entrypoint: Some(vec![String::new()]),
            cmd: Some(vec!["true".to_owned()]),
            // Override compose's labels, which an image built by compose carries. Inherited, they would make the anchor
            // a container of that project.
            labels: Some(HashMap::from([
                label(HOLD_LABEL, project),
                label(convert::PROJECT_LABEL, ""),
                label(convert::SERVICE_LABEL, ""),
            ])),
            host_config: Some(HostConfig { network_mode: Some("none".to_owned()), ..HostConfig::default() }),
            ..ContainerCreateBody::default()
        };
        let doing = format!("hold image {id}");
        let body = serde_json::to_vec(&body)
            .map(Bytes::from)
            .map_err(|error| EngineError::Refused(format!("{doing}: {error}")))?;
        self.connection
            .call_for_one(&doing, CREATE, |client| {
                let body = body.clone();
                async move { client.send(Method::POST, "/containers/create", &[("name", name)], body, None).await }
            })
            .await
            .map_err(|error| match error {
                // It did not exist a moment ago.
                EngineError::Refused(text) if says(&text, "already in use") => {
                    EngineError::Refused(format!(
                        "{text} (another agent may be managing this project, or the engine is still creating it)"
                    ))
                }
                error => error,
            })
    }
}

/// Returns the containers whose network another one of them shares.
fn network_owners(containers: &[Container]) -> Vec<&Container> {
    let owners = containers.iter().filter_map(|c| c.network_of.as_ref()?.resolved.as_ref());
    owners.filter_map(|owner| containers.iter().find(|c| c.name == owner.name)).collect()
}

/// The existing container under an anchor's name.
struct Hold {
    image: Option<ImageId>,
    ours: bool,
}

#[async_trait]
impl Engine for DockerEngine {
    async fn ping(&self) -> Result<(), EngineError> {
        self.connection.ping(PING).await
    }

    async fn check_reads(&self) -> Result<(), EngineError> {
        self.connection.get("list containers", "/containers/json", &[("limit", "1")]).await.map(drop)
    }

    async fn containers(&self, members: &Members) -> Result<Vec<Container>, EngineError> {
        let _permit = self.connection.service_permit().await;
        // Boxed only now, to keep the futures of hundreds of waiting services small.
        Box::pin(self.members(members)).await
    }

    async fn needed_containers(
        &self,
        containers: &[Container],
    ) -> Result<BTreeMap<String, Need>, EngineError> {
        let mut needed = own::Traces::read().needed(self.connection.endpoint(), &self.list_all().await?);
        let owners = network_owners(containers);
        let is_podman =
            self.connection.read("read the engine's version", |client| async move { Ok(client.podman) });
        if !owners.is_empty() && is_podman.await? {
            for owner in owners {
                needed.entry(owner.id.clone()).or_insert(Need::ForOthers);
            }
        }
        Ok(needed)
    }

    async fn image(&self, name: &str) -> Result<Option<Image>, EngineError> {
        let name = checked(name)?;
        let doing = format!("inspect image {name}");
        let path = format!("/images/{name}/json");
        let Some(seen) = self.connection.get(&doing, &path, &[]).await.found()? else { return Ok(None) };
        let image = convert::image(&seen);
        image.map(Some).ok_or_else(|| EngineError::Refused(format!("{doing}: the answer has no Id")))
    }

    async fn pull(
        &self,
        reference: &Reference,
        platform: Option<&Platform>,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<(), EngineError> {
        if self.pulls.available_permits() == 0 {
            tracing::info!(image = %reference, "the pull waits until another download has ended");
        }
        let mut turn = self.pulls.acquire().await.ok();
        match self.pull_once(reference, platform, progress, &mut turn).await {
            // The classic store keeps one image per digest, even for an index: here it is that of another platform.
            Err(EngineError::Refused(text)) if says(&text, "cannot overwrite digest") => {
                self.remove_name(&reference.to_string()).await?;
                self.pull_once(reference, platform, progress, &mut turn).await
            }
            done => done,
        }
    }

    async fn tag(&self, id: &ImageId, reference: &Reference) -> Result<(), EngineError> {
        let image = checked(&id.0)?;
        let options = query::TagImageOptionsBuilder::new()
            .repo(&reference.repository.to_string())
            .tag(reference.tag.as_deref().unwrap_or("latest"))
            .build();
        let doing = format!("tag {id} as {}", reference.tagged());
        let mut tries = TAG_TRIES;
        loop {
            let done = self.connection.call(&doing, CHANGE, |client| {
                let options = options.clone();
                async move { client.docker.tag_image(image, Some(options)).await }
            });
            tries -= 1;
            match done.await {
                // The containerd store moves a tag by deleting and creating it. Of two concurrent moves, one fails.
                Err(EngineError::Refused(text)) if tries > 0 && says(&text, "already exists") => {}
                done => return done,
            }
        }
    }

    async fn untag(&self, reference: &Reference) -> Result<(), EngineError> {
        self.remove_name(&reference.tagged()).await
    }

    async fn remove_image(&self, id: &ImageId, tags: &[Reference]) -> Result<bool, EngineError> {
        images::remove(&self.connection, id, tags).await
    }

    async fn free_space(&self) -> Result<Option<u64>, EngineError> {
        images::free_space(&self.connection).await
    }

    async fn tags(&self, repository: &Repository) -> Result<Vec<Reference>, EngineError> {
        let filters = json!({ "reference": [format!("{repository}:*")] }).to_string();
        let query = [("filters", filters.as_str())];
        let doing = format!("list the tags of {repository}");
        let listed = self.connection.get(&doing, "/images/json", &query).await?;
        // Images are listed with all their names, including those in other repositories.
        let names = answer::list(&listed, "").iter().flat_map(|image| answer::texts(image, "/RepoTags"));
        let mut tags: Vec<Reference> = names.filter_map(|name| Reference::parse(&name).ok()).collect();
        tags.retain(|tag| tag.repository == *repository);
        tags.sort();
        Ok(tags)
    }

    async fn anchor(&self, name: &str, id: &ImageId, project: &str) -> Result<(), EngineError> {
        let name = checked(name)?;
        match self.hold(name).await? {
            Some(hold) if !hold.ours => Err(EngineError::Refused(format!(
                "hold image {id}: the name {name} is taken by a container that Evenkeel did not create"
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
        let names = listed.iter().filter_map(answer::container_name);
        let mut names: Vec<String> =
            names.filter(|name| name.starts_with(HOLD_PREFIX)).map(str::to_owned).collect();
        names.sort();
        Ok(names)
    }

    async fn remove_anchor(&self, name: &str) -> Result<(), EngineError> {
        let name = checked(name)?;
        let doing = format!("remove container {name}");
        match self.hold(name).await? {
            None => return Ok(()),
            Some(hold) if !hold.ours => {
                return Err(EngineError::Refused(format!("{doing}: Evenkeel did not create it")));
            }
            Some(_) => {}
        }
        // Also removes the anonymous volumes that were created with the container.
        let options = query::RemoveContainerOptionsBuilder::new().force(false).v(true).build();
        let done = self
            .connection
            .call(&doing, CHANGE, |client| {
                let options = options.clone();
                async move {
                    match client.docker.remove_container(name, Some(options)).await {
                        Err(Error::DockerResponseServerError { status_code: 409, message })
                            if says(&message, "already in progress") =>
                        {
                            Ok(())
                        }
                        done => done,
                    }
                }
            })
            .await;
        done.found().map(drop)
    }

    async fn running(&self, project: &str, containers: &[String]) -> Result<Running, EngineError> {
        let _permit = self.connection.service_permit().await;
        Box::pin(self.definitions(project, containers)).await
    }

    async fn log_tail(&self, container: &str, lines: u32) -> Result<String, EngineError> {
        let container = checked(container)?;
        let options =
            query::LogsOptionsBuilder::new().stdout(true).stderr(true).tail(&lines.to_string()).build();
        self.connection
            .read(&format!("read the log of {}", stable(container)), |client| {
                let mut pieces = client.docker.logs(container, Some(options.clone()));
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
            .call(&doing, CHANGE, |client| async move {
                let options = query::RenameContainerOptionsBuilder::new().name(name).build();
                client.docker.rename_container(container, options).await
            })
            .await
    }

    async fn restart(&self, container: &str) -> Result<(), EngineError> {
        let container = checked(container)?;
        let doing = format!("restart container {}", stable(container));
        let (grace, limit) = self.stop_grace(container, &doing).await?;
        let options = query::RestartContainerOptionsBuilder::new().t(grace).build();
        self.connection
            .call_for_one(&doing, limit, |client| {
                let options = options.clone();
                // The library's default timeout is shorter.
                let docker = client.docker.clone().with_timeout(limit);
                async move { docker.restart_container(container, Some(options)).await }
            })
            .await
    }

    async fn start(&self, container: &str) -> Result<(), EngineError> {
        self.start_container(container).await
    }

    async fn stop(&self, container: &str) -> Result<(), EngineError> {
        self.stop_container(container).await
    }

    async fn remove(&self, container: &str, volumes: bool) -> Result<(), EngineError> {
        self.delete_container(container, volumes).await
    }

    async fn exec(&self, container: &str, argv: &[String], limit: Duration) -> Result<ExecEnd, EngineError> {
        self.exec_in(container, argv, limit).await
    }

    async fn events(
        &self,
        since_nano: i64,
        until_nano: Option<i64>,
    ) -> Result<BoxStream<'static, ContainerEvent>, EngineError> {
        let time = |nano: i64| format!("{}.{:09}", nano / 1_000_000_000, nano % 1_000_000_000);
        // Podman remembers the result of each probe.
        let wanted =
            convert::EVENTS.iter().filter(|event| until_nano.is_none() || **event != convert::HEALTH);
        let filters = json!({ "type": ["container"], "event": wanted.collect::<Vec<_>>() }).to_string();
        let client = self.connection.fresh().await?;
        Ok(events::of(client, filters, time(since_nano), until_nano.map(time)))
    }

    async fn running_since(&self, wanted: Timestamp) -> Result<Option<Timestamp>, EngineError> {
        self.has_run_since(wanted).await
    }

    async fn stats(&self, container: &str) -> Result<Option<Usage>, EngineError> {
        let name = checked(container)?;
        let path = format!("/containers/{name}/stats");
        let path = path.as_str();
        // Without one-shot, the engine takes two readings a second apart to compute rates, which we compute ourselves.
        let query = [("stream", "false"), ("one-shot", "true")];
        let doing = format!("read the stats of {name}");
        let ask = |client: Client| async move { client.get(path, &query, None).await };
        let seen = self.connection.read_stats(&doing, STATS, ask).await.found()?;
        Ok(seen.as_ref().and_then(stats::usage))
    }

    async fn machine_memory(&self) -> Result<u64, EngineError> {
        let doing = "read the machine's memory";
        let info =
            self.connection.call(doing, STATS, |client| async move { client.get("/info", &[], None).await });
        let memory = answer::amount(&info.await?, "/MemTotal").filter(|bytes| *bytes > 0);
        memory.ok_or_else(|| EngineError::Refused(format!("{doing}: the answer has no MemTotal")))
    }
}

/// Returns the elements of an answer that must be a list.
fn listed(doing: &str, answer: Value) -> Result<Vec<Value>, EngineError> {
    match answer {
        Value::Array(elements) => Ok(elements),
        Value::Null => Ok(Vec::new()),
        _ => Err(EngineError::Refused(format!("{doing}: the answer is not a list"))),
    }
}

#[cfg(test)]
mod modern_tests;
#[cfg(test)]
mod swarm_tests;
#[cfg(test)]
mod tests;
