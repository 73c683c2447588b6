//! One check: what the registry has and what runs here, read side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join_all};
use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::sync::watch;

use crate::config::{ConfiguredImage, ServiceConfig, TagVariable};
use crate::model::few::FewMap;
use crate::model::image::{Digest, ImageId, Reference, digests_in};
use crate::model::{Container, EngineError, Members, Project, RegistryError, SignatureVerdict};
use crate::ports::{Engine, Registry};
use crate::service::action::FilesAsked;
use crate::service::fleet::FleetView;
use crate::service::input::{
    CheckFault, Files, ImageView, Input, LocalImage, Observation, TagInForce, Unanswered, Unsigned,
};
use crate::service::newer_tags::NewerTags;

use super::cycle::{Cycle, Pending};
use super::worker::{CheckEnd, World};
use super::{files, tag_file};

/// Time between two reads of changed compose files.
const SETTLE: Duration = Duration::from_secs(1);
/// How long what does not depend on a registry waits for it.
const REGISTRY_PATIENCE: Duration = Duration::from_secs(2);

/// One check.
pub(super) struct Check {
    pub world: Arc<World>,
    pub cycle: Arc<Cycle>,
    pub config: Arc<ServiceConfig>,
    /// Compare the images with the registry.
    pub images: bool,
    /// Read the compose files.
    pub files: Option<FilesAsked>,
    /// Images as configured, with digests whose case is settled.
    pub settled: BTreeSet<(String, Digest)>,
    /// Digests that are known to have come from the registry, per image as configured.
    pub published: FewMap<String, Digest>,
    /// Newer tags of the images whose tag the env file sets.
    pub newer: NewerTags,
    /// Its questions that are asked on when the first part was given.
    pub pending: Pending,
}

impl Check {
    /// Reads everything. Where a registry keeps its answer to itself, the rest is given first, and all of it later.
    pub(super) async fn in_parts(
        mut self,
        generation: u64,
        asked: bool,
    ) -> (Box<Input>, Option<BoxFuture<'static, Box<Input>>>) {
        let input = move |result| Box::new(Input::Checked { generation, asked, result });
        let result = self.observe(Some(REGISTRY_PATIENCE)).await;
        self.pending = self.cycle.pending(&result);
        let is_part = result.as_ref().is_ok_and(Observation::is_pending);
        let rest = is_part.then(|| async move { input(self.observe(None).await) }.boxed());
        (input(result), rest)
    }

    /// Reads everything that a decision needs. Nothing is decided here, and a read that failed is a fault, never an
    /// empty answer. A registry gets so long for an answer, where that is limited.
    pub(super) async fn observe(&self, patience: Option<Duration>) -> Result<Observation, CheckFault> {
        if let Some(service) = self.config.swarm_service.clone() {
            return Box::pin(self.observe_swarm(&service, patience)).await;
        }
        let Self { world, config, .. } = self;
        let (tag, views) = Box::pin(self.views(patience)).await;
        let remote = join_all(views.iter().map(|(view, known)| async {
            known.as_ref().map_err(|why| Unanswered::Failed(why.clone()))?;
            if !self.images || view.reference.is_pinned() {
                return Ok(None);
            }
            within(patience, self.cycle.digest(view.target())).await.map(Some)
        }));
        let members = Members::of(config.compose_project.as_deref(), config.container_name.as_deref());
        let engine = world.engine.as_ref();
        let containers = async {
            match &members {
                Some(members) => engine.containers(members).await,
                None => Ok(Vec::new()),
            }
        };
        let files = async {
            match &self.files {
                Some(asked) => Box::pin(read_files(world, asked)).await,
                None => Files::Unread,
            }
        };
        let (remote, containers, files) = tokio::join!(remote, containers, files);
        let containers: Arc<[Container]> = containers.map_err(engine_fault)?.into();

        let mut images = Vec::with_capacity(config.images.len());
        let (mut unanswered, mut unsigned) = (BTreeMap::new(), BTreeMap::new());
        for ((mut view, _), remote) in views.into_iter().zip(remote) {
            view.from = self.made_from(&view, &containers);
            let ids = running_on(&containers, &view.from);
            view.running = unrecorded(&ids);
            let local = match Box::pin(local_images(engine, &ids, &view.reference)).await {
                Ok((running, tagged)) => {
                    (view.running, view.tagged) = (running, tagged);
                    Ok(())
                }
                // One image that the engine can't describe holds up neither the other images nor a start.
                Err(CheckFault::Failed(why)) => Err(Unanswered::Failed(why)),
                Err(away) => return Err(away),
            };
            let answer = match (local, remote) {
                (Err(why), _) | (Ok(()), Err(why)) => Err(why),
                (Ok(()), Ok(Some(digest))) => Box::pin(self.compare_with(digest, &mut view, patience)).await,
                (Ok(()), Ok(None)) => Ok(()),
            };
            let answer = match (&answer, &view.remote) {
                (Ok(()), Some(digest)) => Box::pin(self.unsigned(digest, &view, patience)).await.map(|why| {
                    unsigned.extend(why.map(|why| (view.configured.clone(), why)));
                }),
                _ => answer,
            };
            if let Err(why) = answer {
                view.remote = None;
                unanswered.insert(view.configured.clone(), why);
            }
            view.share_texts(self.published.get(&view.configured), &ids);
            images.push(view);
        }
        let left_out = Box::pin(left_out(world, config, &containers)).await;
        // What other services of the project have blocked is added by the worker, which has them.
        Ok(Observation {
            images,
            containers,
            files,
            left_out,
            unanswered,
            unsigned,
            key_faults: world.signatures.unusable_keys(signed_by(config)).await,
            tag,
            ..Observation::default()
        })
    }

    /// The tag that the env file sets, and the images with it. One whose tag can't be known has the reason beside it:
    /// the tag that is configured may be long out of date.
    async fn views(
        &self,
        patience: Option<Duration>,
    ) -> (Option<TagInForce>, Vec<(ImageView, Result<(), String>)>) {
        let read = match self.config.tag_variable().filter(|_| self.images) {
            Some(TagVariable { name, file, .. }) => {
                Some(tag_file::read(file.to_owned(), name.to_owned()).await)
            }
            None => None,
        };
        let newer = match &read {
            Some(Ok(in_force)) => self.newer_than(&in_force.setting.tag, patience).await,
            _ => None,
        };
        let view = |image: &ConfiguredImage| {
            let mut view = ImageView::new(image.configured.clone(), image.reference.clone());
            let known = match read.as_ref().filter(|_| self.config.is_of_variable(&image.configured)) {
                None => Ok(()),
                Some(Err(why)) => Err(why.clone()),
                Some(Ok(in_force)) => {
                    let tag = &in_force.setting.tag;
                    let with = |tag: &str| image.reference.with_tag(tag);
                    view.newer = newer.map(with);
                    view.reference.tag = Some(tag.clone());
                    Ok(())
                }
            };
            (view, known)
        };
        let views = self.config.images.iter().map(view).collect();
        (read.and_then(Result::ok), views)
    }

    /// What the containers of an image were made from. Where its tag in the env file was changed and not applied yet, that
    /// is an earlier one.
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

    /// Why the image under this digest does not count as signed, where it must be.
    pub(super) async fn unsigned(
        &self,
        digest: &Digest,
        view: &ImageView,
        patience: Option<Duration>,
    ) -> Result<Option<Unsigned>, Unanswered> {
        let keys = signed_by(&self.config);
        if keys.is_empty() {
            return Ok(None);
        }
        let asked = self.cycle.signature(&self.world.signatures, &view.reference.repository, digest, keys);
        let verdict = match patience {
            Some(patience) => tokio::time::timeout(patience, asked).await.map_err(|_| Unanswered::Pending)?,
            None => asked.await,
        };
        Ok(match verdict {
            Ok(SignatureVerdict::Valid) => None,
            Ok(SignatureVerdict::Missing) => Some(Unsigned::Missing),
            Ok(SignatureVerdict::Invalid(flaw)) => Some(Unsigned::Invalid(flaw)),
            Err(error) => Some(Unsigned::Unknown(error.to_string())),
        })
    }

    /// Notes what the tag names in the registry now, and what of the local images came from there.
    async fn compare_with(
        &self,
        digest: Digest,
        view: &mut ImageView,
        patience: Option<Duration>,
    ) -> Result<(), Unanswered> {
        let registry = self.world.registry.as_ref();
        view.remote = Some(digest.clone());
        let published = self.published.get(&view.configured);
        within(patience, settle_origins(registry, view, published)).await?;
        let is_here =
            view.running.iter().chain(view.tagged.iter()).any(|image| image.digests.contains(&digest));
        if !is_here && !self.settled.contains(&(view.configured.clone(), digest)) {
            // A digest never seen here is about to be acted on: look at the content, not only at a header.
            view.remote = Some(within(patience, registry.confirm(view.target())).await?);
        }
        Ok(())
    }
}

/// Files with the keys that images must be signed with; none where they need not be.
pub(super) fn signed_by(config: &ServiceConfig) -> &[PathBuf] {
    config.update.as_ref().map_or(&[], |update| &update.signed_by)
}

/// How a check ended, for those who wait for it.
pub(super) fn check_end(result: &Result<Observation, CheckFault>) -> CheckEnd {
    let seen = result.as_ref().map_err(Clone::clone)?;
    seen.registry_fault().map_or(Ok(()), |text| Err(CheckFault::Failed(text)))
}

/// A registry's answer, if it comes in time.
pub(super) async fn within<T>(
    patience: Option<Duration>,
    asked: impl Future<Output = Result<T, RegistryError>>,
) -> Result<T, Unanswered> {
    let answer = match patience {
        Some(patience) => tokio::time::timeout(patience, asked).await.map_err(|_| Unanswered::Pending)?,
        None => asked.await,
    };
    answer.map_err(|error| Unanswered::Failed(error.to_string()))
}

/// Files that would be left out, see [`Observation::left_out`]. Where compose can't say what the files come to, they
/// all count: what they set is not known.
async fn left_out(world: &World, config: &ServiceConfig, containers: &[Container]) -> Vec<PathBuf> {
    let Some(project) = config.project() else { return Vec::new() };
    let made_with: BTreeSet<Vec<PathBuf>> =
        containers.iter().map(|container| container.compose_files.clone()).collect();
    let sets = files::larger(made_with, &project.files).await;
    if sets.is_empty() {
        return Vec::new();
    }
    let configured = world.compose.model(&project).await;
    let mut left_out = BTreeSet::new();
    for files::TooLarge { files, unnamed } in sets {
        let larger = world.compose.model(&Project { files, ..project.clone() }).await;
        let keeps_all = match (&configured, &larger) {
            (Ok(configured), Ok(larger)) => configured.is_part_of(larger),
            _ => false,
        };
        if !keeps_all {
            left_out.extend(unnamed);
        }
    }
    left_out.into_iter().collect()
}

/// Hashes the compose files. A change counts only when two reads agree and compose accepts it: editors write in
/// steps (DOMAIN 3.2).
async fn read_files(world: &World, asked: &FilesAsked) -> Files {
    let first = files::hash(&asked.project.files).await;
    if let Ok(hash) = &first
        && asked.known.as_ref().is_none_or(|known| known == hash)
    {
        return Files::Hash(hash.clone());
    }
    tokio::time::sleep(SETTLE).await;
    let hash = match (first, files::hash(&asked.project.files).await) {
        (Ok(first), Ok(second)) if first == second => second,
        (Err(first), Err(second)) if first == second => return Files::Unusable(second),
        _ => return Files::Unsettled,
    };
    match world.compose.validate(&asked.project).await {
        Ok(()) => Files::Hash(hash),
        Err(error) => Files::Unusable(format!("the compose files are not valid: {error}")),
    }
}

/// IDs of the images that live containers of this reference run on, without repeats.
fn running_on(containers: &[Container], reference: &Reference) -> Vec<ImageId> {
    let mut ids: Vec<ImageId> = Vec::new();
    for container in containers {
        if container.is_live() && container.is_made_from(reference) && !ids.contains(&container.image) {
            ids.push(container.image.clone());
        }
    }
    ids
}

/// Takes the ID of an image for a digest where it is one (DECISIONS 9). With the containerd store the ID is the digest of
/// the manifest or index, be it pulled or only built here; with the classic store it is that of the image's
/// configuration, which no registry knows as a manifest. So an image of which nothing else is known, or nothing but its
/// own ID, came from the registry if the registry has that ID.
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
        let from_there = match asked.get(&own) {
            _ if known => true,
            Some(answer) => *answer,
            None => {
                let has = registry.has(&view.reference.repository, &own).await?;
                asked.insert(own.clone(), has);
                has
            }
        };
        image.digests = if from_there { vec![own] } else { Vec::new() };
    }
    Ok(())
}

/// Images of which only the ID is known.
fn unrecorded(ids: &[ImageId]) -> Vec<LocalImage> {
    ids.iter().map(|id| LocalImage { id: id.clone(), digests: Vec::new(), size: 0 }).collect()
}

/// The images that containers of this reference run on, and the one that its tag names.
async fn local_images(
    engine: &dyn Engine,
    ids: &[ImageId],
    reference: &Reference,
) -> Result<(Vec<LocalImage>, Option<LocalImage>), CheckFault> {
    let mut running = unrecorded(ids);
    for image in running.iter_mut().filter(|image| !image.id.0.is_empty()) {
        // The record of a running image may be gone: it is known by its ID.
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

/// What is known of the fleet, whenever that changes.
pub(super) fn fleet_views(known: watch::Receiver<Arc<FleetView>>) -> BoxStream<'static, Arc<FleetView>> {
    let next = |mut known: watch::Receiver<Arc<FleetView>>| async move {
        known.changed().await.ok()?;
        let view = known.borrow_and_update().clone();
        Some((view, known))
    };
    stream::unfold(known, next).boxed()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;

    use super::*;
    use crate::model::RegistryError;
    use crate::model::image::{ImageLabels, Repository};
    use crate::ports::Urgency;

    /// Knows some digests, and notes what it is asked for.
    #[derive(Default)]
    struct Knows(Vec<Digest>, Mutex<Vec<Digest>>);

    #[async_trait]
    impl Registry for Knows {
        async fn digest(&self, _: &Reference, _: Urgency) -> Result<Digest, RegistryError> {
            unreachable!("the tag was asked for before")
        }

        async fn confirm(&self, _: &Reference) -> Result<Digest, RegistryError> {
            unreachable!("the tag was asked for before")
        }

        async fn has(&self, _: &Repository, digest: &Digest) -> Result<bool, RegistryError> {
            self.1.lock().unwrap().push(digest.clone());
            Ok(self.0.contains(digest))
        }

        async fn labels(&self, _: &Repository, _: &Digest) -> ImageLabels {
            unreachable!("nothing is updated")
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

    /// The digests that what runs has in the end, and the questions to the registry. It has `2` under the tag.
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
        (view.running.remove(0).digests, registry.1.into_inner().unwrap().len())
    }

    #[tokio::test]
    async fn what_runs_is_known_by_its_id_where_its_record_is_gone() {
        // The tag moved, and the registry has what runs yet.
        assert_eq!(settled(own('1', &[]), &['1', '2'], None).await, (vec![digest('1')], 1));
        // It runs what the registry has under the tag.
        assert_eq!(settled(own('2', &[]), &['2'], None).await, (vec![digest('2')], 0));
        // The registry has dropped it, but it was seen there.
        assert_eq!(settled(own('1', &[]), &['2'], Some('1')).await, (vec![digest('1')], 0));
        assert_eq!(settled(own('1', &['1']), &['2'], Some('1')).await, (vec![digest('1')], 0));
    }

    #[tokio::test]
    async fn what_was_only_built_here_has_no_digest_whatever_the_engine_calls_it() {
        // Containerd's store gives what was built here a digest under its own name.
        assert_eq!(settled(own('1', &['1']), &['2'], None).await, (vec![], 1));
        // The classic store has none, and an ID that is no manifest anywhere.
        assert_eq!(settled(own('1', &[]), &['2'], None).await, (vec![], 1));
        assert_eq!(settled(own('1', &[]), &['2'], Some('3')).await, (vec![], 1));
        // Built here and pushed.
        assert_eq!(settled(own('1', &['1']), &['1', '2'], None).await, (vec![digest('1')], 1));
    }

    #[tokio::test]
    async fn digests_that_only_a_registry_gives_need_no_question() {
        assert_eq!(settled(own('9', &['1']), &['2'], None).await, (vec![digest('1')], 0));
        assert_eq!(settled(own('9', &['2']), &['2'], None).await, (vec![digest('2')], 0));
        assert_eq!(settled(own('9', &['1', '2']), &[], None).await, (vec![digest('1'), digest('2')], 0));
        // What is not known has no digest.
        assert_eq!(settled(image("", &[]), &['1', '2'], None).await, (vec![], 0));
    }
}
