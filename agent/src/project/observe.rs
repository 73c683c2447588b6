//! One check: the digests in the registry and the running containers, read side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join_all};
use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::sync::watch;

use crate::config::{ConfiguredImage, ServiceConfig, TagVariable, in_container};
use crate::model::image::{Digest, ImageId, Reference, digests_in};
use crate::model::{
    Container, EngineError, Members, Need, Project, RegistryError, SignatureVerdict, Signers,
};
use crate::ports::{Engine, Registry};
use crate::service::action::{CheckAsked, FilesAsked};
use crate::service::fleet::FleetView;
use crate::service::gates::candidate::{ConfigsCompared, SnapshotSeen, Unsigned};
use crate::service::input::{CheckFault, Input};
use crate::service::observation::{
    Definition, Files, ImageView, LocalImage, Observation, TagInForce, Unanswered,
};

use super::cycle::{Cycle, Pending};
use super::definition::{self, CompareError};
use super::handle::CheckEnd;
use super::world::World;
use super::{files, image_configs, tag_file};

/// Time between two reads of changed compose files.
const SETTLE: Duration = Duration::from_secs(1);
/// How long a check waits for registries before the first part of its result is delivered.
const REGISTRY_PATIENCE: Duration = Duration::from_secs(2);

/// One check.
pub(super) struct Check {
    pub world: Arc<World>,
    pub cycle: Arc<Cycle>,
    pub config: Arc<ServiceConfig>,
    pub asked: CheckAsked,
    /// Registry requests that continue after the first part.
    pub pending: Pending,
}

impl Check {
    /// Runs the check. If a registry is slow, the result without its answers comes first, and the whole result later.
    pub(super) async fn in_parts(
        mut self,
        generation: u64,
        is_manual: bool,
    ) -> (Box<Input>, Option<BoxFuture<'static, Box<Input>>>) {
        let input = move |result| Box::new(Input::Checked { generation, is_manual, result });
        let result = self.observe(Some(REGISTRY_PATIENCE)).await;
        self.pending = self.cycle.pending(&result);
        let is_part = result.as_ref().is_ok_and(Observation::is_pending);
        let rest = is_part.then(|| async move { input(self.observe(None).await) }.boxed());
        (input(result), rest)
    }

    /// Reads everything that a decision needs, without deciding anything. A failed read is an error, never an empty result.
    /// `patience` limits the wait for each registry request.
    pub(super) async fn observe(&self, patience: Option<Duration>) -> Result<Observation, CheckFault> {
        if let Some(service) = self.config.swarm_service.clone() {
            return Box::pin(self.observe_swarm(&service, patience)).await;
        }
        let Self { world, config, .. } = self;
        let (tag, views) = Box::pin(self.views(patience)).await;
        let remote = join_all(views.iter().map(|(view, known)| async {
            known.clone()?;
            if !self.asked.images || view.reference.is_pinned() {
                return Ok(None);
            }
            within(patience, self.cycle.digest(view.target())).await.map(Some)
        }));
        let members = Members::of(config.compose_project.as_deref(), config.container_name.as_deref());
        let engine = world.engine.as_ref();
        let (remote, local) = tokio::join!(remote, self.containers_and_files(members.as_ref()));
        let (containers, files) = local?;

        let mut images = Vec::with_capacity(config.images.len());
        let (mut unanswered, mut judged) = (BTreeMap::new(), Judged::default());
        for ((mut view, _), remote) in views.into_iter().zip(remote) {
            view.from = self.made_from(&view, &containers);
            let ids = running_on(&containers, &view.from);
            view.running = unrecorded(&ids);
            let local = match Box::pin(local_images(engine, &ids, &view.reference)).await {
                Ok((running, tagged)) => {
                    (view.running, view.tagged) = (running, tagged);
                    Ok(())
                }
                // An image that the engine can't inspect delays neither the other images nor a start.
                Err(CheckFault::Failed(why)) => Err(Unanswered::Failed(why)),
                Err(away) => return Err(away),
            };
            let answer = match (local, remote) {
                (Err(why), _) | (Ok(()), Err(why)) => Err(why),
                (Ok(()), Ok(Some(digest))) => Box::pin(self.compare_with(digest, &mut view, patience)).await,
                (Ok(()), Ok(None)) => Ok(()),
            };
            let answer = match (&answer, &view.remote) {
                (Ok(()), Some(digest)) => Box::pin(self.judge(digest, &view, patience, &mut judged)).await,
                _ => answer,
            };
            if let Err(why) = answer {
                view.remote = None;
                unanswered.insert(view.configured.clone(), why);
            }
            view.intern_digests(self.asked.published.get(&view.configured), &ids);
            images.push(view);
        }
        let project = config.project().map(|project| project.as_started_by(&containers));
        let unlisted_files = Box::pin(unlisted_files(world, project.as_ref(), &containers)).await;
        let definition = Box::pin(self.compared(project.as_ref(), &images, &containers)).await?;
        let snapshot = Box::pin(self.look_at_data(project.as_ref(), definition.as_ref(), &images)).await?;
        let needed = Box::pin(self.needed(&images, &containers)).await?;
        // Digests blocked by other services of the project are added by the worker.
        Ok(Observation {
            images,
            is_at_rest: world.data.at_rest.holds_any(&containers),
            containers,
            files,
            unlisted_files,
            needed,
            definition,
            unanswered,
            unsigned: judged.unsigned,
            signed_earlier: judged.signed_earlier,
            configs: judged.configs,
            snapshot,
            key_faults: world.signatures.key_errors(signed_by(config)).await,
            tag,
            ..Observation::default()
        })
    }

    /// Returns the tag set by the env file, and the images with that tag. An image whose tag can't be read has the reason
    /// instead, because the configured tag may be long out of date.
    async fn views(
        &self,
        patience: Option<Duration>,
    ) -> (Option<TagInForce>, Vec<(ImageView, Result<(), Unanswered>)>) {
        let read = match self.config.tag_variable().filter(|_| self.asked.images) {
            Some(TagVariable { name, file, .. }) => {
                Some(tag_file::read(&*self.world.env_files, file, name).await)
            }
            None => None,
        };
        let newer = match &read {
            Some(Ok(in_force)) => self.newer_than(&in_force.setting.tag, patience).await,
            _ => Ok(None),
        };
        let view = |image: &ConfiguredImage| {
            let mut view = ImageView::new(image.configured.clone(), image.reference.clone());
            let known = match read.as_ref().filter(|_| self.config.is_of_variable(&image.configured)) {
                None => Ok(()),
                Some(Err(why)) => Err(Unanswered::Failed(why.clone())),
                Some(Ok(in_force)) => {
                    view.reference.tag = Some(in_force.setting.tag.clone());
                    newer.clone().map(|newer| view.newer = newer.map(|tag| image.reference.with_tag(tag)))
                }
            };
            (view, known)
        };
        let views = self.config.images.iter().map(view).collect();
        (read.and_then(Result::ok), views)
    }

    /// Returns the reference that the containers of an image were created from. It has an earlier tag if the tag in the env
    /// file was changed but not yet applied.
    fn made_from(&self, view: &ImageView, containers: &[Container]) -> Reference {
        let live =
            |reference: &Reference| containers.iter().any(|c| c.is_live() && c.is_made_from(reference));
        let variable = self.config.tag_variable().filter(|_| self.config.is_of_variable(&view.configured));
        let Some(variable) = variable.filter(|_| !live(&view.reference)) else {
            return view.reference.clone();
        };
        let earlier = containers.iter().filter_map(|c| Reference::parse(&c.config_image).ok());
        let has_version = |r: &Reference| {
            r.tag.as_ref().is_some_and(|tag| !r.is_pinned() && variable.pattern.can_compare(tag))
        };
        let mut earlier =
            earlier.filter(|r| r.repository == view.reference.repository && has_version(r) && live(r));
        earlier.next().unwrap_or_else(|| view.reference.clone())
    }

    /// Notes how this digest is signed, if a signature is required, and how its configuration differs from that of what it
    /// replaces, if a gate may hold it.
    pub(super) async fn judge(
        &self,
        digest: &Digest,
        view: &ImageView,
        patience: Option<Duration>,
        judged: &mut Judged,
    ) -> Result<(), Unanswered> {
        let image = || view.configured.clone();
        let is_up_to_date = !view.running.is_empty() && !replaces(view);
        if is_up_to_date && !self.asked.is_asked_for && !self.asked.compares_all {
            // Nothing is decided by it, and a verdict that is not valid would be read again with each check.
            return Ok(());
        }
        match self.signature(digest, view, patience).await? {
            Signature::Accepted => {}
            Signature::Earlier => drop(judged.signed_earlier.insert(image())),
            Signature::Unsigned(why) => drop(judged.unsigned.insert(image(), why)),
        }
        if self.config.update.is_some() && replaces(view) {
            judged.configs.insert(image(), self.compare_configs(view, patience).await?);
        }
        Ok(())
    }

    async fn compare_configs(
        &self,
        view: &ImageView,
        patience: Option<Duration>,
    ) -> Result<ConfigsCompared, Unanswered> {
        let mut local = Vec::with_capacity(view.current().len());
        for image in view.current() {
            // A swarm's nodes have the images, not this engine.
            let is_here = self.config.swarm_service.is_none() && !image.id.0.is_empty();
            let name = Some(&*image.id.0).filter(|_| is_here);
            local.push(match name {
                Some(name) => self.world.engine.image(name).await.ok().flatten(),
                None => None,
            });
        }
        let comparing = Box::pin(image_configs::compare(&*self.world.registry, view, &local));
        in_time(patience, comparing).await
    }

    async fn signature(
        &self,
        digest: &Digest,
        view: &ImageView,
        patience: Option<Duration>,
    ) -> Result<Signature, Unanswered> {
        let update = self.config.update.as_ref().filter(|update| !update.signed_by.is_empty());
        let Some(update) = update else { return Ok(Signature::Accepted) };
        let signers = Signers { keys: update.signed_by.clone(), signed_for: update.signed_for.clone() };
        let repository = &view.reference.repository;
        let asked = self.cycle.signature(&self.world.signatures, repository, digest, &signers);
        let integrated = match in_time(patience, asked).await? {
            Ok(SignatureVerdict::Valid { integrated: Some(time) }) => time,
            Ok(SignatureVerdict::Valid { integrated: None }) => return Ok(Signature::Accepted),
            Ok(SignatureVerdict::Missing) => return Ok(Signature::Unsigned(Unsigned::Missing)),
            Ok(SignatureVerdict::Invalid(flaw)) => return Ok(Signature::Unsigned(Unsigned::Invalid(flaw))),
            Err(error) => return Ok(Signature::Unsigned(Unsigned::Unknown(error.to_string()))),
        };
        // What runs may never have been signed, or its signature may be gone: then there is nothing to compare with.
        let running = view.replaced_by(Some(digest)).and_then(|image| image.digests.first());
        let Some(running) = running.filter(|running| *running != digest) else {
            return Ok(Signature::Accepted);
        };
        let asked = self.cycle.signature(&self.world.signatures, repository, running, &signers);
        let verdict = in_time(patience, asked).await?;
        let is_earlier = matches!(verdict, Ok(SignatureVerdict::Valid { integrated: Some(of_running) }) if integrated < of_running);
        Ok(if is_earlier { Signature::Earlier } else { Signature::Accepted })
    }

    /// Stores the tag's digest in the registry, and determines which local images came from the registry.
    async fn compare_with(
        &self,
        digest: Digest,
        view: &mut ImageView,
        patience: Option<Duration>,
    ) -> Result<(), Unanswered> {
        let registry = self.world.registry.as_ref();
        view.remote = Some(digest.clone());
        let published = self.asked.published.get(&view.configured);
        within(patience, settle_origins(registry, view, published)).await?;
        let is_local =
            view.running.iter().chain(view.tagged.iter()).any(|image| image.digests.contains(&digest));
        if !is_local && !self.asked.settled.contains(&(view.configured.clone(), digest)) {
            // A digest never seen on this machine is about to be acted on: verify the content, not only a header.
            view.remote = Some(within(patience, registry.digest_from_content(view.target())).await?);
        }
        Ok(())
    }

    /// Where the files are is known from the containers.
    async fn containers_and_files(
        &self,
        members: Option<&Members>,
    ) -> Result<(Arc<[Container]>, Files), CheckFault> {
        let mut containers = match members {
            Some(members) => self.world.engine.containers(members).await.map_err(engine_fault)?,
            None => Vec::new(),
        };
        if !in_container() {
            files::follow_moved(self.world.offload, &mut containers, &self.config.compose_files).await;
        }
        let containers: Arc<[Container]> = containers.into();
        let files = match &self.asked.files {
            Some(asked) => Box::pin(read_files(&self.world, &asked.as_started(&containers))).await,
            None => Files::Unread,
        };
        Ok((containers, files))
    }

    /// Returns a container that neither compose nor a swarm may stop, if an update would replace it.
    pub(super) async fn needed(
        &self,
        images: &[ImageView],
        containers: &[Container],
    ) -> Result<Option<(String, Need)>, CheckFault> {
        let is_replaced = |c: &&Container| {
            c.is_live() && images.iter().any(|view| is_stale(view) && c.is_made_from(&view.from))
        };
        let replaced: Vec<&Container> = containers.iter().filter(is_replaced).collect();
        // Of a swarm service, a redeploy has to know it, too.
        if replaced.is_empty() || !(self.config.auto_update || self.config.swarm_service.is_some()) {
            return Ok(None);
        }
        let needs = self.world.engine.needed_containers(containers).await.map_err(engine_fault)?;
        Ok(replaced.into_iter().find_map(|c| Some((c.name.clone(), *needs.get(&c.id)?))))
    }

    /// Measures the data that an update copies first; `None` if none is configured, or if there is no update.
    async fn look_at_data(
        &self,
        project: Option<&Project>,
        definition: Option<&Result<Definition, String>>,
        images: &[ImageView],
    ) -> Result<Option<Result<SnapshotSeen, String>>, CheckFault> {
        let rules = self.config.update.as_ref().and_then(|update| update.snapshot.as_ref());
        // To measure it, all of it is walked through.
        let is_withheld = |view: &ImageView| {
            let mut withheld = self.asked.withheld.iter();
            withheld.any(|(image, digest)| *image == view.configured && view.remote.as_ref() == Some(digest))
        };
        let may_change = |view: &ImageView| {
            (is_stale(view) && !is_withheld(view))
                || self.asked.compares_all
                || (view.running.is_empty() && view.remote.is_some())
        };
        let rules = rules.filter(|_| images.iter().any(may_change));
        let (Some(rules), Some(project)) = (rules, project) else { return Ok(None) };
        let model = match definition {
            Some(Ok(definition)) => definition.model.clone(),
            _ => match self.world.compose.model(project).await {
                Ok(model) => Arc::new(model),
                Err(error) => return Ok(Some(Err(error.to_string()))),
            },
        };
        let CheckAsked { earlier, measured, .. } = &self.asked;
        match self.world.data.look(&self.config.name, rules, &model, earlier.as_ref(), measured).await {
            Ok(seen) => Ok(Some(seen)),
            Err(error @ EngineError::Unavailable(_)) => Err(engine_fault(error)),
            Err(error) => Ok(Some(Err(error.to_string()))),
        }
    }

    /// Compares the definition of what an update would bring up with what runs; `None` if no image looks out of date, so that
    /// a check that finds nothing asks compose nothing.
    async fn compared(
        &self,
        project: Option<&Project>,
        images: &[ImageView],
        containers: &[Container],
    ) -> Result<Option<Result<Definition, String>>, CheckFault> {
        let has_crashed = |view: &ImageView| {
            containers.iter().any(|c| self.asked.crashed.contains(&c.id) && c.is_made_from(&view.from))
        };
        let is_compared = |view: &&ImageView| {
            is_stale(view)
                || (self.asked.compares_all && !view.running.is_empty())
                || (is_tag_behind(view) && has_crashed(view))
        };
        let stale: Vec<&ImageView> = images.iter().filter(is_compared).collect();
        let Some(project) = project.filter(|_| !stale.is_empty()) else { return Ok(None) };
        let asked = (self.world.engine.as_ref(), self.world.compose.as_ref());
        let (offload, crashed) = (self.world.offload, &self.asked.crashed);
        match definition::of_images(asked, offload, project, &stale, containers, crashed).await {
            Ok(definition) => Ok(Some(Ok(definition))),
            Err(CompareError::Engine(error)) => Err(engine_fault(error)),
            Err(CompareError::Compose(error)) => Ok(Some(Err(error.to_string()))),
        }
    }
}

/// How a digest in the registry is signed.
#[derive(Debug)]
enum Signature {
    /// Its signature is accepted, or none is required.
    Accepted,
    /// It was signed before the digest that runs (DECISIONS 7).
    Earlier,
    /// It does not count as signed.
    Unsigned(Unsigned),
}

/// What is found out about the images of a check; see the fields of [`Observation`].
#[derive(Debug, Default)]
pub(super) struct Judged {
    pub(super) unsigned: BTreeMap<String, Unsigned>,
    pub(super) signed_earlier: BTreeSet<String>,
    pub(super) configs: BTreeMap<String, ConfigsCompared>,
}

/// Returns the key files for required signatures; empty if no signature is required.
pub(super) fn signed_by(config: &ServiceConfig) -> &[PathBuf] {
    config.update.as_ref().map_or(&[], |update| &update.signed_by)
}

/// Returns the result of a check for the tasks that wait for it.
pub(super) fn check_end(result: &Result<Observation, CheckFault>) -> CheckEnd {
    let seen = result.as_ref().map_err(Clone::clone)?;
    seen.registry_fault().map_or(Ok(()), |text| Err(CheckFault::Failed(text)))
}

/// Awaits a registry's answer, up to `patience`.
pub(super) async fn within<T>(
    patience: Option<Duration>,
    asked: impl Future<Output = Result<T, RegistryError>>,
) -> Result<T, Unanswered> {
    in_time(patience, asked).await?.map_err(|error| Unanswered::Failed(error.to_string()))
}

/// Awaits an answer, up to `patience`.
async fn in_time<T>(patience: Option<Duration>, asked: impl Future<Output = T>) -> Result<T, Unanswered> {
    match patience {
        Some(patience) => tokio::time::timeout(patience, asked).await.map_err(|_| Unanswered::Pending),
        None => Ok(asked.await),
    }
}

/// Returns files that would be left out, see [`Observation::unlisted_files`]. If compose can't render the files, all unconfigured
/// ones count, because their effect is unknown.
async fn unlisted_files(world: &World, project: Option<&Project>, containers: &[Container]) -> Vec<PathBuf> {
    let Some(project) = project else { return Vec::new() };
    let made_with: BTreeSet<Vec<PathBuf>> =
        containers.iter().map(|container| container.compose_files.clone()).collect();
    let sets = files::supersets(world.offload, made_with, &project.files).await;
    if sets.is_empty() {
        return Vec::new();
    }
    let configured = world.compose.model(project).await;
    let mut unlisted_files = BTreeSet::new();
    for files::Superset { files, extra } in sets {
        let larger = world.compose.model(&Project { files, ..project.clone() }).await;
        let keeps_all = match (&configured, &larger) {
            (Ok(configured), Ok(larger)) => configured.is_part_of(larger),
            _ => false,
        };
        if !keeps_all {
            unlisted_files.extend(extra);
        }
    }
    unlisted_files.into_iter().collect()
}

/// Reports whether a running image is not the one in the registry.
fn is_stale(view: &ImageView) -> bool {
    !view.running.is_empty() && replaces(view)
}

/// Reports whether the image in the registry would replace one that runs, or while none runs, the one that would be started.
fn replaces(view: &ImageView) -> bool {
    let is_current =
        |image: &LocalImage| view.remote.as_ref().is_some_and(|remote| image.digests.contains(remote));
    let is_other = view.newer.is_some() || view.from != view.reference;
    let current = view.current();
    view.remote.is_some() && !current.is_empty() && (is_other || !current.iter().all(is_current))
}

/// Whether the tag names another image on this machine than in the registry.
fn is_tag_behind(view: &ImageView) -> bool {
    let lacks = |remote: &Digest| view.tagged.as_ref().is_none_or(|tagged| !tagged.digests.contains(remote));
    view.remote.as_ref().is_some_and(lacks)
}

/// Hashes the compose files. A change counts only if two reads agree and compose accepts it, because editors write in
/// several steps (DOMAIN 3.2).
async fn read_files(world: &World, asked: &FilesAsked) -> Files {
    let hash = || files::hash(world.offload, &asked.project, &asked.own_variables);
    let first = hash().await;
    if let Ok(hashed) = &first {
        match &asked.known {
            None => return Files::Hash(hashed.hash.clone()),
            Some(known) if *known == hashed.hash => return Files::Hash(hashed.hash.clone()),
            Some(known) if hashed.is_upgrade_of(known) => return Files::Unchanged(hashed.hash.clone()),
            Some(_) => {}
        }
    }
    tokio::time::sleep(SETTLE).await;
    let hashed = match (first, hash().await) {
        (Ok(first), Ok(second)) if first == second => second,
        (Err(first), Err(second)) if first == second => return Files::Unusable(second),
        _ => return Files::Unsettled,
    };
    if let Err(error) = world.compose.validate(&asked.project).await {
        return Files::Unusable(format!("the compose files are not valid: {error}"));
    }
    let missing = asked.known.as_deref().and_then(|known| hashed.missing_since(known)).map(Path::to_owned);
    match missing {
        Some(path) => Files::Missing { hash: hashed.hash, path },
        None => Files::Hash(hashed.hash),
    }
}

/// Returns the image IDs of live containers of this reference, without duplicates.
fn running_on(containers: &[Container], reference: &Reference) -> Vec<ImageId> {
    let mut ids: Vec<ImageId> = Vec::new();
    for container in containers {
        if container.is_live() && container.is_made_from(reference) && !ids.contains(&container.image) {
            ids.push(container.image.clone());
        }
    }
    ids
}

/// Determines whether an image's ID is also its digest in the registry (DECISIONS 9). With the containerd store the ID is
/// the digest of the manifest or index, whether the image was pulled or built locally. With the classic store it is the
/// digest of the image's configuration, which no registry has as a manifest. So an image without digests, or with its own
/// ID as the only one, came from the registry if the registry has that ID.
async fn settle_origins(
    registry: &dyn Registry,
    view: &mut ImageView,
    published: Option<&Digest>,
) -> Result<(), RegistryError> {
    let Some(remote) = &view.remote else { return Ok(()) };
    let mut asked: BTreeMap<Digest, bool> = BTreeMap::new();
    for image in view.running.iter_mut().chain(view.tagged.iter_mut()) {
        let Ok(own) = Digest::parse(&image.id.0) else { continue };
        if image.digests.iter().any(|digest| *digest != own) {
            continue;
        }
        let known = own == *remote || Some(&own) == published;
        let from_registry = match asked.get(&own) {
            _ if known => true,
            Some(answer) => *answer,
            None => {
                let has = registry.has(&view.reference.repository, &own).await?;
                asked.insert(own.clone(), has);
                has
            }
        };
        image.digests = if from_registry { vec![own] } else { Vec::new() };
    }
    Ok(())
}

/// Returns images with nothing known but the ID.
fn unrecorded(ids: &[ImageId]) -> Vec<LocalImage> {
    ids.iter().map(|id| LocalImage { id: id.clone(), digests: Vec::new(), size: 0 }).collect()
}

/// Returns the images that containers of this reference run, and the image that its tag points to.
async fn local_images(
    engine: &dyn Engine,
    ids: &[ImageId],
    reference: &Reference,
) -> Result<(Vec<LocalImage>, Option<LocalImage>), CheckFault> {
    let mut running = unrecorded(ids);
    for image in running.iter_mut().filter(|image| !image.id.0.is_empty()) {
        // The record of a running image may be missing; its ID is still known.
        if let Some(found) = local_image(engine, &image.id.0, reference).await? {
            *image = found;
        }
    }
    let tag = if reference.is_pinned() { reference.to_string() } else { reference.tagged() };
    Ok((running, local_image(engine, &tag, reference).await?))
}

async fn local_image(
    engine: &dyn Engine,
    name: &str,
    reference: &Reference,
) -> Result<Option<LocalImage>, CheckFault> {
    let image = engine.image(name).await.map_err(engine_fault)?;
    Ok(image.map(|image| LocalImage {
        digests: digests_in(&reference.repository, &image.repo_digests).collect(),
        id: image.id,
        size: image.size,
    }))
}

fn engine_fault(error: EngineError) -> CheckFault {
    match error {
        EngineError::Unavailable(_) => CheckFault::EngineAway(error.to_string()),
        other => CheckFault::Failed(format!("container engine: {other}")),
    }
}

/// Streams the fleet view whenever it changes.
pub(super) fn fleet_views(known: watch::Receiver<Arc<FleetView>>) -> BoxStream<'static, Arc<FleetView>> {
    let next = |mut known: watch::Receiver<Arc<FleetView>>| async move {
        known.changed().await.ok()?;
        let view = known.borrow_and_update().clone();
        Some((view, known))
    };
    stream::unfold(known, next).boxed()
}

impl Drop for Check {
    fn drop(&mut self) {
        self.pending.clear();
        self.cycle.drop_abandoned();
    }
}

#[cfg(test)]
mod tests {

    use async_trait::async_trait;
    use parking_lot::Mutex;

    use super::*;
    use crate::model::RegistryError;
    use crate::model::image::Repository;
    use crate::ports::Urgency;

    /// A registry with some digests that records the queried ones.
    #[derive(Default)]
    struct Knows(Vec<Digest>, Mutex<Vec<Digest>>);

    #[async_trait]
    impl Registry for Knows {
        async fn digest(&self, _: &Reference, _: Urgency) -> Result<Digest, RegistryError> {
            unreachable!("the tag was asked for before")
        }

        async fn digest_from_content(&self, _: &Reference) -> Result<Digest, RegistryError> {
            unreachable!("the tag was asked for before")
        }

        async fn has(&self, _: &Repository, digest: &Digest) -> Result<bool, RegistryError> {
            self.1.lock().push(digest.clone());
            Ok(self.0.contains(digest))
        }
    }

    fn digest(n: char) -> Digest {
        Digest::parse(&format!("sha256:{}", n.to_string().repeat(64))).unwrap()
    }

    fn image(id: &str, digests: &[char]) -> LocalImage {
        LocalImage { id: ImageId(id.into()), digests: digests.iter().map(|n| digest(*n)).collect(), size: 1 }
    }

    fn own(n: char, digests: &[char]) -> LocalImage {
        image(digest(n).as_str(), digests)
    }

    /// Returns the digests assigned to a running image, and the number of requests. The registry's tag points to `2`.
    async fn settled(running: LocalImage, known: &[char], published: Option<char>) -> (Vec<Digest>, usize) {
        let registry = Knows(known.iter().map(|n| digest(*n)).collect(), Mutex::default());
        let reference = Reference::parse("localhost:5000/web:1").unwrap();
        let mut view = ImageView {
            remote: Some(digest('2')),
            running: vec![running.clone()],
            tagged: Some(running),
            ..ImageView::new("web".into(), reference)
        };
        settle_origins(&registry, &mut view, published.map(digest).as_ref()).await.unwrap();
        assert_eq!(Some(&view.running[0]), view.tagged.as_ref());
        (view.running.remove(0).digests, registry.1.into_inner().len())
    }

    #[test]
    fn while_nothing_runs_the_image_that_would_be_started_is_the_one_to_replace() {
        let reference = Reference::parse("localhost:5000/web:1").unwrap();
        let view = |running: &[LocalImage], tagged: Option<LocalImage>| ImageView {
            remote: Some(digest('2')),
            running: running.to_vec(),
            tagged,
            ..ImageView::new("web".into(), reference.clone())
        };
        let (old, new) = (|| image("old", &['1']), || image("new", &['2']));
        for (seen, of_running, of_any) in [
            (view(&[], None), false, false),
            (view(&[], Some(old())), false, true),
            (view(&[], Some(new())), false, false),
            (view(&[old()], Some(new())), true, true),
            (view(&[new()], Some(old())), false, false),
            (view(&[new(), old()], None), true, true),
        ] {
            assert_eq!((is_stale(&seen), replaces(&seen)), (of_running, of_any), "{seen:?}");
        }
    }

    #[tokio::test]
    async fn a_running_image_without_a_record_is_identified_by_its_id() {
        // The tag moved, and the registry still has the running image.
        assert_eq!(settled(own('1', &[]), &['1', '2'], None).await, (vec![digest('1')], 1));
        // The running image is the one under the registry's tag.
        assert_eq!(settled(own('2', &[]), &['2'], None).await, (vec![digest('2')], 0));
        // The registry has dropped it, but it was seen there.
        assert_eq!(settled(own('1', &[]), &['2'], Some('1')).await, (vec![digest('1')], 0));
        assert_eq!(settled(own('1', &['1']), &['2'], Some('1')).await, (vec![digest('1')], 0));
    }

    #[tokio::test]
    async fn an_image_that_was_only_built_locally_has_no_digest() {
        // The containerd store gives a local build a digest under its own name.
        assert_eq!(settled(own('1', &['1']), &['2'], None).await, (vec![], 1));
        // The classic store gives it none, and its ID is not a manifest digest.
        assert_eq!(settled(own('1', &[]), &['2'], None).await, (vec![], 1));
        assert_eq!(settled(own('1', &[]), &['2'], Some('3')).await, (vec![], 1));
        // Built locally and pushed.
        assert_eq!(settled(own('1', &['1']), &['1', '2'], None).await, (vec![digest('1')], 1));
    }

    #[tokio::test]
    async fn digests_that_only_a_registry_assigns_need_no_request() {
        assert_eq!(settled(own('9', &['1']), &['2'], None).await, (vec![digest('1')], 0));
        assert_eq!(settled(own('9', &['2']), &['2'], None).await, (vec![digest('2')], 0));
        assert_eq!(settled(own('9', &['1', '2']), &[], None).await, (vec![digest('1'), digest('2')], 0));
        // An unknown image has no digest.
        assert_eq!(settled(image("", &[]), &['1', '2'], None).await, (vec![], 0));
    }
}
