//! Maintenance tasks, apart from checks and deployments.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::model::image::Reference;
use crate::model::tags::TagPattern;
use crate::model::{EngineError, Project, RegistryError};
use crate::ports::{Registry, Tags};
use crate::service::upkeep::maintenance::{
    FoundTags, MaintenanceResult, MaintenanceTask, MissingReason, NotNewer, RemovableImage, RollbackRisk,
    RunningImage, TagInUse,
};
use crate::service::upkeep::newer_tags::MAX_NEWER;

use super::world::World;

/// Publishers rebuild all their tags in one run, or an earlier one later than a newer one: only an image that was created more
/// than this before the one in use counts as older.
const REBUILD_MARGIN: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Reports whether an image that was created at this time counts as older than the one in use.
pub(super) fn is_older(created: Timestamp, in_use: Timestamp) -> bool {
    in_use.duration_since(created) > REBUILD_MARGIN
}

/// Performs one task of a service and returns its result.
pub(super) async fn maintain(world: &World, service: &str, task: MaintenanceTask) -> MaintenanceResult {
    match task {
        MaintenanceTask::FindNewerTags { pattern, images, refresh } => {
            find_newer((world.tags.as_ref(), world.registry.as_ref()), &pattern, images, refresh).await
        }
        MaintenanceTask::RemoveImages { images } => {
            let mut gone = Vec::new();
            for RemovableImage { id, tags } in images {
                if let Some(other) = world.needed_images.other_user(service, &id) {
                    tracing::debug!(%id, other, "another service needs the image, and it is kept");
                    continue;
                }
                match world.engine.remove_image(&id, &tags).await {
                    Ok(true) => gone.push(id),
                    Ok(false) => tracing::debug!(%id, "the image is tagged or in use, and is kept"),
                    Err(error) => tracing::debug!(%id, %error, "the image could not be removed"),
                }
            }
            MaintenanceResult::ImagesRemoved(gone)
        }
        MaintenanceTask::CheckWayBack { project, images } => {
            let risks = match project {
                Some(project) => check_way_back(world, &project, &images).await.ok(),
                None => Some(check_way_back_in_swarm(world, &images).await),
            };
            MaintenanceResult::WayBackChecked(risks)
        }
    }
}

async fn find_newer(
    (tags, registry): (&dyn Tags, &dyn Registry),
    pattern: &TagPattern,
    images: Vec<TagInUse>,
    refresh: bool,
) -> MaintenanceResult {
    let (mut lists, mut errors) = (Vec::new(), BTreeMap::new());
    let mut is_complete = true;
    for image in images {
        match tags.tags(&image.repository, refresh).await {
            Ok(tags) => lists.push((image, tags)),
            Err(error) => {
                tracing::warn!(image = image.configured, %error, "can't list tags to look for newer ones");
                is_complete &= !image.is_shared;
                errors.insert(image.configured, error.to_string());
            }
        }
    }
    // If a list is missing, it is unknown which tags exist in all repositories.
    lists.retain(|(image, _)| is_complete || !image.is_shared);
    let shared = lists.iter().filter(|(image, _)| image.is_shared);
    let shared: Vec<BTreeSet<&str>> =
        shared.map(|(_, tags)| tags.iter().map(String::as_str).collect()).collect();
    let mut found = FoundTags::default();
    for (image, tags) in &lists {
        let is_listed = tags.contains(&image.tag);
        let tags = || {
            let tags = tags.iter().map(String::as_str);
            tags.filter(|tag| !image.is_shared || shared.iter().all(|list| list.contains(tag)))
        };
        let mut newer = pattern.newer(&image.tag, tags(), usize::MAX);
        let older = match drop_older(registry, image, is_listed, &mut newer).await {
            Ok(older) => older,
            Err(error) => {
                tracing::warn!(image = image.configured, %error, "can't compare the age of newer tags");
                is_complete &= !image.is_shared;
                errors.insert(image.configured.clone(), error.to_string());
                continue;
            }
        };
        newer.truncate(MAX_NEWER);
        found.newer.insert(image.configured.clone(), newer.into_iter().map(str::to_owned).collect());
        let of_other_scheme = pattern.of_other_scheme(&image.tag, tags());
        let not_newer = of_other_scheme.map(|tag| (tag, NotNewer::OtherScheme));
        if let Some((tag, why)) = not_newer.or(older.map(|tag| (tag, NotNewer::Older))) {
            found.not_newer.insert(image.configured.clone(), (tag.to_owned(), why));
        }
    }
    // Images of the tag variable move together.
    for (image, _) in lists.iter().filter(|(image, _)| image.is_shared && !is_complete) {
        found.newer.remove(&image.configured);
    }
    found.errors = errors;
    MaintenanceResult::NewerTags(found)
}

/// Removes the tags at the top of the list, newest first, whose images were created well before the one in use: such numbers
/// mean something else. Returns the first of them. An image that does not say when it was created counts as newer, and if the tag in
/// use is no longer in the repository (`!is_listed`), there is nothing to compare with. Tags that are listed and do not exist
/// are removed as well.
///
/// Such tags may be many, after a change of the numbering scheme, and each look-up is a request: the end of theirs is found
/// in doubling steps and then halved, as if all other tags were newer. The tag that was the newest at the last look-up, and
/// those below it, are not looked up again: Docker Hub counts such requests as pulls. A check compares them if it passes over
/// a newer one.
async fn drop_older<'a>(
    registry: &dyn Registry,
    image: &TagInUse,
    is_listed: bool,
    newer: &mut Vec<&'a str>,
) -> Result<Option<&'a str>, RegistryError> {
    let of = |tag: &str| Reference {
        repository: image.repository.clone(),
        tag: Some(tag.to_owned()),
        digest: None,
    };
    let compared = newer.iter().position(|tag| image.known.as_deref() == Some(*tag));
    // All tags before `start` are older; the one at `end`, if there is one, is not.
    let (mut start, mut end) = (0, compared.unwrap_or(newer.len()));
    if end == 0 || !is_listed {
        return Ok(None);
    }
    let in_use = of(&image.tag);
    let in_use = match registry.created(&in_use).await {
        Ok(Some(created)) => created,
        Err(error) if !registry.is_gone(&in_use) => return Err(error),
        Ok(None) | Err(_) => return Ok(None),
    };
    while start < end {
        let at = if end < newer.len() {
            start.midpoint(end)
        } else {
            (start + start.saturating_sub(1)).min(end - 1)
        };
        let of_tag = of(newer[at]);
        match registry.created(&of_tag).await {
            Ok(Some(created)) if is_older(created, in_use) => start = at + 1,
            Ok(_) => end = at,
            Err(_) if registry.is_gone(&of_tag) => {
                newer.remove(at);
                end -= 1;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(newer.drain(..start).next())
}

/// Returns the reasons why a rollback to the running images would fail. Fails if the engine does not respond.
///
/// This does not test whether the state can be written: while the worker waits for the store, this future is not polled, so
/// waiting for the store here could deadlock. Write failures are detected by `state_health` and added when the record is
/// built (`service/view/status.rs`).
async fn check_way_back(
    world: &World,
    project: &Project,
    images: &[RunningImage],
) -> Result<Vec<RollbackRisk>, EngineError> {
    let mut risks = Vec::new();
    for image in images {
        if let Some(registry) = gone(world, image).await? {
            let image = image.configured.clone();
            risks.push(RollbackRisk::ImageGone { image, registry });
        }
    }
    if let Err(error) = world.compose.validate(project).await {
        risks.push(RollbackRisk::ComposeFiles { why: error.cause });
    }
    let needed = images.iter().map(|image| image.size).max().unwrap_or(0);
    if world.engine.free_space().await?.is_some_and(|free| free < needed) {
        risks.push(RollbackRisk::Disk);
    }
    Ok(risks)
}

/// The same for swarm tasks: a node may have lost the image, or never had it.
async fn check_way_back_in_swarm(world: &World, images: &[RunningImage]) -> Vec<RollbackRisk> {
    let mut risks = Vec::new();
    for image in images {
        if let Some(registry) = not_served(world, image).await {
            risks.push(RollbackRisk::NotServed { image: image.configured.clone(), registry });
        }
    }
    risks
}

/// Returns why an image is no longer available; `None` if it is present locally or in its registry.
async fn gone(world: &World, image: &RunningImage) -> Result<Option<MissingReason>, EngineError> {
    match world.engine.image(&image.id.0).await {
        Ok(Some(found)) if found.is_complete => return Ok(None),
        Err(error) if error.is_unavailable() => return Err(error),
        _ => {}
    }
    Ok(not_served(world, image).await)
}

/// Returns why a registry does not serve an image; `None` if it does.
async fn not_served(world: &World, image: &RunningImage) -> Option<MissingReason> {
    let Some(Reference { repository, digest: Some(digest), .. }) = &image.source else {
        return Some(MissingReason::NeverPushed);
    };
    match world.registry.has(repository, digest).await {
        Ok(true) => None,
        Ok(false) => Some(MissingReason::Removed),
        Err(error) => Some(MissingReason::Unknown(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;

    use super::*;
    use crate::model::image::{Digest, Repository};
    use crate::ports::Urgency;

    /// A registry that knows when some tags were created, in days.
    struct Created {
        days: BTreeMap<String, i64>,
        failing: Option<String>,
        gone: Vec<&'static str>,
        asked: AtomicUsize,
    }

    impl Created {
        fn of(days: Vec<(&str, i64)>) -> Self {
            let days = days.into_iter().map(|(tag, days)| (tag.to_owned(), days)).collect();
            Self { days, failing: None, gone: Vec::new(), asked: AtomicUsize::new(0) }
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::Relaxed)
        }
    }

    /// The tags of every repository.
    struct Listed(Arc<[String]>);

    #[async_trait]
    impl Tags for Listed {
        async fn tags(&self, _: &Repository, _: bool) -> Result<Arc<[String]>, RegistryError> {
            Ok(self.0.clone())
        }
    }

    fn in_use(is_shared: bool) -> TagInUse {
        let repository = Repository { host: "r.example".into(), path: "media".into() };
        TagInUse { configured: "media".into(), repository, tag: "10.11".into(), is_shared, known: None }
    }

    #[async_trait]
    impl Registry for Created {
        async fn digest(&self, _: &Reference, _: Urgency) -> Result<Digest, RegistryError> {
            unreachable!("only the time of creation is read")
        }

        async fn digest_from_content(&self, _: &Reference) -> Result<Digest, RegistryError> {
            unreachable!("only the time of creation is read")
        }

        async fn has(&self, _: &Repository, _: &Digest) -> Result<bool, RegistryError> {
            unreachable!("only the time of creation is read")
        }

        async fn created(&self, reference: &Reference) -> Result<Option<Timestamp>, RegistryError> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let tag = reference.tag.as_deref().expect("a tag");
            if self.failing.as_deref() == Some(tag) {
                return Err(RegistryError("it answers 500".into()));
            }
            if self.gone.contains(&tag) {
                return Err(RegistryError("tag not found".into()));
            }
            Ok(self.days.get(tag).map(|days| Timestamp::from_second(days * 86_400).expect("a time")))
        }

        fn is_gone(&self, reference: &Reference) -> bool {
            self.gone.iter().any(|tag| reference.tag.as_deref() == Some(*tag))
        }
    }

    #[tokio::test]
    async fn a_tag_whose_image_was_created_before_the_one_in_use_is_not_newer() {
        let image = in_use(false);
        for (created, newer, left, older) in [
            // Unknown times prove nothing.
            (vec![], vec!["12.0", "11.0"], vec!["12.0", "11.0"], None),
            (vec![("10.11", 100)], vec!["12.0"], vec!["12.0"], None),
            (vec![("12.0", 1)], vec!["12.0"], vec!["12.0"], None),
            (vec![("10.11", 100), ("12.0", 200)], vec!["12.0", "11.0"], vec!["12.0", "11.0"], None),
            // All tags were rebuilt in one run, the newest first.
            (vec![("10.11", 100), ("12.0", 99)], vec!["12.0"], vec!["12.0"], None),
            (vec![("10.11", 100), ("12.0", 70)], vec!["12.0"], vec!["12.0"], None),
            (vec![("10.11", 100), ("12.0", 69)], vec!["12.0"], vec![], Some("12.0")),
            (
                vec![("10.11", 100), ("12.0", 60), ("11.0", 120)],
                vec!["12.0", "11.0"],
                vec!["11.0"],
                Some("12.0"),
            ),
            (vec![("10.11", 100), ("12.0", 60), ("11.0", 69)], vec!["12.0", "11.0"], vec![], Some("12.0")),
        ] {
            let registry = Created::of(created);
            let mut tags = newer;
            assert_eq!(drop_older(&registry, &image, true, &mut tags).await, Ok(older), "{left:?}");
            assert_eq!(tags, left);
        }
    }

    #[tokio::test]
    async fn any_number_of_older_tags_does_not_hide_the_newer_ones() {
        let used = |tag: &str| TagInUse { tag: tag.into(), ..in_use(false) };
        for older in [1, 6, 300] {
            let names: Vec<String> = (0..older).map(|n| format!("{}.1.0", 2020 + n)).collect();
            let created = names.iter().map(|name| (name.as_str(), 10));
            let registry = Created::of(created.chain([("1.0.3", 100), ("1.0.4", 160)]).collect());
            let tags = names.iter().map(String::as_str).chain(["1.0.3", "1.0.4"]).map(str::to_owned);
            let tags = Listed(tags.collect());
            // By a pattern, none of them is of another scheme.
            let pattern = TagPattern::parse("*.*.*").unwrap();
            let found = find_newer((&tags, &registry), &pattern, vec![used("1.0.3")], false).await;
            let MaintenanceResult::NewerTags(found) = found else { panic!("tags") };
            assert_eq!(found.newer["media"], ["1.0.4"], "{older}");
            assert_eq!(found.not_newer["media"], (names[older - 1].clone(), NotNewer::Older));
            assert!(registry.asked() <= 20, "{} look-ups for {older}", registry.asked());
        }
    }

    #[tokio::test]
    async fn the_newest_tag_of_the_last_look_up_is_not_compared_again() {
        let after = |known: &str| TagInUse { known: Some(known.into()), ..in_use(false) };
        let days = vec![("10.11", 100), ("14.0", 10), ("13.0", 210), ("12.0", 200)];
        for (known, newer, left, asked) in [
            ("12.0", vec!["12.0", "11.0"], vec!["12.0", "11.0"], 0),
            ("13.0", vec![], vec![], 0),
            // Tags above it are new.
            ("12.0", vec!["13.0", "12.0"], vec!["13.0", "12.0"], 2),
            ("12.0", vec!["14.0", "12.0"], vec!["12.0"], 2),
            // It was withdrawn.
            ("12.1", vec!["12.0", "11.0"], vec!["12.0", "11.0"], 2),
        ] {
            let registry = Created::of(days.clone());
            let mut tags = newer;
            assert!(drop_older(&registry, &after(known), true, &mut tags).await.is_ok());
            assert_eq!((tags, registry.asked()), (left, asked), "{known}");
        }
    }

    #[tokio::test]
    async fn a_listed_tag_that_does_not_exist_is_left_out() {
        let image = in_use(false);
        for (gone, newer, left, older) in [
            (vec!["12.0"], vec!["12.0", "11.0"], vec!["11.0"], None),
            (vec!["12.0", "11.0"], vec!["12.0", "11.0"], vec![], None),
            // Beside one that is older.
            (vec!["13.0"], vec!["13.0", "12.1", "11.0"], vec!["11.0"], Some("12.1")),
            (vec!["13.0"], vec!["12.1", "13.0", "11.0"], vec!["11.0"], Some("12.1")),
            // There is nothing to compare with.
            (vec!["10.11"], vec!["12.0"], vec!["12.0"], None),
        ] {
            let days = vec![("10.11", 100), ("12.1", 10), ("12.0", 200), ("11.0", 200)];
            let registry = Created { gone: gone.clone(), ..Created::of(days) };
            let mut tags = newer;
            assert_eq!(drop_older(&registry, &image, true, &mut tags).await, Ok(older), "{gone:?}");
            assert_eq!(tags, left, "{gone:?}");
        }
    }

    #[tokio::test]
    async fn while_the_age_of_a_tag_is_unknown_the_previous_result_stays() {
        let days = vec![("1.0", 100), ("1.1", 160), ("8.1", 10)];
        let tags = Listed(["1.0", "1.1", "8.1"].map(str::to_owned).into());
        let pattern = TagPattern::parse(">=1").unwrap();
        let twin = |is_shared| TagInUse { configured: "twin".into(), tag: "8.1".into(), ..in_use(is_shared) };
        for (failing, is_shared, newer) in [
            (None, true, vec!["media", "twin"]),
            (Some("1.0"), true, vec![]),
            (Some("8.1"), true, vec![]),
            // The other one has a tag of its own.
            (Some("1.0"), false, vec!["twin"]),
        ] {
            let registry = Created { failing: failing.map(str::to_owned), ..Created::of(days.clone()) };
            let images = vec![TagInUse { tag: "1.0".into(), ..in_use(is_shared) }, twin(is_shared)];
            let found = find_newer((&tags, &registry), &pattern, images, false).await;
            let MaintenanceResult::NewerTags(found) = found else { panic!("tags") };
            assert_eq!(found.newer.keys().collect::<Vec<_>>(), newer, "{failing:?}");
            assert_eq!(found.errors.contains_key("media"), failing.is_some(), "{failing:?}");
        }
        // A tag in use that the registry has removed can't be compared, and does not hold the others for ever.
        let registry = Created { failing: Some("0.9".into()), ..Created::of(days) };
        let images = vec![TagInUse { tag: "0.9".into(), ..in_use(false) }];
        let found = find_newer((&tags, &registry), &pattern, images, false).await;
        let MaintenanceResult::NewerTags(found) = found else { panic!("tags") };
        assert_eq!((found.newer["media"].len(), found.errors.len()), (3, 0));
    }
}
