//! Services that continue under another name. The name is the key of what is remembered of a service: which digests are blocked,
//! and which copies of its data are kept.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::store::Store;
use evenkeel_common::wire::LeftOutService;
use tokio::time::{sleep, timeout};

use crate::config::ServiceConfig;
use crate::model::text;
use crate::project::handle::Handle;
use crate::project::world::state_key;
use crate::service::Durable;

/// How long a reload waits until a service has left. Without a deployment, only a lease of the warden can delay it.
const LEAVE: Duration = Duration::from_secs(5);
/// Interval between looks at whether it has left.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Returns the removed services that are certainly the same as an added one, each with its new name: they have the same project,
/// container or swarm service and the same images, and no other service of either configuration has.
pub(super) fn renamed(before: &[&ServiceConfig], after: &[Arc<ServiceConfig>]) -> Vec<(String, String)> {
    let removed = before.iter().copied().filter(|old| after.iter().all(|new| new.name != old.name));
    let pair = |old: &ServiceConfig| {
        let is_alone = before.iter().filter(|other| is_same(other, old)).count() == 1;
        let mut like = after.iter().filter(|new| is_same(new, old));
        match (like.next(), like.next()) {
            (Some(new), None) if is_alone && before.iter().all(|other| other.name != new.name) => {
                Some((old.name.clone(), new.name.clone()))
            }
            _ => None,
        }
    };
    removed.filter_map(pair).collect()
}

/// Gives services that are renamed while they deploy their former names: what comes of the deployment, such as a block, is
/// remembered by the name. Returns them with their new names.
pub(super) fn postponed(
    before: &[&ServiceConfig],
    after: &mut [Arc<ServiceConfig>],
    is_deploying: impl Fn(&str) -> bool,
) -> Vec<(String, String)> {
    let mut waiting = renamed(before, after);
    waiting.retain(|(old, _)| is_deploying(old));
    for (old, new) in &waiting {
        for service in after.iter_mut().filter(|service| service.name == *new) {
            *service = Arc::new(ServiceConfig { name: old.clone(), ..(**service).clone() });
        }
    }
    waiting
}

fn is_same(a: &ServiceConfig, b: &ServiceConfig) -> bool {
    a.compose_project == b.compose_project
        && a.container_name == b.container_name
        && a.swarm_service == b.swarm_service
        && (a.compose_project.is_some() || a.container_name.is_some() || a.swarm_service.is_some())
        && a.images == b.images
}

/// Gives a service what is remembered of a removed one, once that has written its last state. Returns whether it has.
pub(super) async fn take_over(store: &dyn Store, old: &Handle, name: &str) -> bool {
    let has_left = async {
        while !old.published.has_ended() {
            sleep(LOOK_EVERY).await;
        }
    };
    timeout(LEAVE, has_left).await.is_ok() && move_state(store, &old.config.name, name).await
}

/// Moves the state of a service to another name, unless there is a state with that name.
async fn move_state(store: &dyn Store, from: &str, to: &str) -> bool {
    let (from, to) = (state_key(from), state_key(to));
    let (Ok(Some(row)), Ok(None)) = (store.get(&from).await, store.get(&to).await) else { return false };
    store.put_all(vec![(from, None), (to, Some(row))]).await.is_ok()
}

/// Returns what a service that is removed leaves behind; `None` if there is nothing, or the service is only left out because of a
/// fault.
pub(super) fn left_behind(name: &str, durable: &Durable, left_out: &[LeftOutService]) -> Option<String> {
    if left_out.iter().any(|one| one.name == name) {
        return None;
    }
    let blocked = durable.images.blocked().count();
    let kept = durable.snapshots.len();
    (blocked + kept > 0).then(|| {
        format!(
            "{name} is removed with {} and {}: no other service heeds these, and a service named {name} does again",
            text::count(blocked, "blocked digest"),
            text::count(kept, "kept snapshot")
        )
    })
}

#[cfg(test)]
mod tests {
    use evenkeel_common::store::MemoryStore;

    use super::*;
    use crate::config::ConfiguredImage;
    use crate::model::Reference;
    use crate::model::image::Digest;

    fn service(name: &str, project: Option<&str>, image: &str) -> Arc<ServiceConfig> {
        Arc::new(ServiceConfig {
            name: name.to_owned(),
            compose_project: project.map(str::to_owned),
            images: vec![ConfiguredImage {
                configured: image.to_owned(),
                reference: Reference::parse(image).unwrap(),
            }],
            ..ServiceConfig::default()
        })
    }

    fn renames(before: &[Arc<ServiceConfig>], after: &[Arc<ServiceConfig>]) -> Vec<(String, String)> {
        renamed(&before.iter().map(Arc::as_ref).collect::<Vec<_>>(), after)
    }

    #[test]
    fn a_service_continues_another_one_only_if_both_are_certainly_the_same() {
        let web = || service("web", Some("shop"), "shop:1");
        let shop = || service("shop", Some("shop"), "shop:1");
        assert_eq!(renames(&[web()], &[shop()]), [("web".to_owned(), "shop".to_owned())]);
        for (before, after) in [
            (vec![web()], vec![web(), shop()]),
            (vec![web(), shop()], vec![shop()]),
            (vec![web()], vec![shop(), service("other", Some("shop"), "shop:1")]),
            (vec![web(), service("other", Some("shop"), "shop:1")], vec![shop()]),
            (vec![web()], vec![service("shop", Some("shop"), "shop:2")]),
            (vec![web()], vec![service("shop", Some("blog"), "shop:1")]),
            (vec![service("web", None, "shop:1")], vec![service("shop", None, "shop:1")]),
            (vec![web()], vec![]),
        ] {
            assert_eq!(renames(&before, &after), [], "{before:?} {after:?}");
        }
    }

    #[test]
    fn a_service_keeps_its_name_until_its_deployment_has_ended() {
        let before = service("web", Some("shop"), "shop:1");
        for is_deploying in [true, false] {
            let mut after =
                [service("shop", Some("shop"), "shop:1"), service("blog", Some("blog"), "blog:1")];
            let waiting = postponed(&[before.as_ref()], &mut after, |name| is_deploying && name == "web");
            assert_eq!(waiting.len(), usize::from(is_deploying));
            let expected = if is_deploying { "web" } else { "shop" };
            assert_eq!((after[0].name.as_str(), after[1].name.as_str()), (expected, "blog"));
        }
    }

    #[tokio::test]
    async fn the_state_of_a_renamed_service_moves_to_its_new_name_and_replaces_none() {
        let store = MemoryStore::new();
        store.put(&state_key("web"), b"1".to_vec()).await.unwrap();
        assert!(move_state(&store, "web", "shop").await);
        assert_eq!(store.get(&state_key("web")).await.unwrap(), None);
        assert_eq!(store.get(&state_key("shop")).await.unwrap(), Some(b"1".to_vec()));
        store.put(&state_key("blog"), b"2".to_vec()).await.unwrap();
        assert!(!move_state(&store, "blog", "shop").await, "it has a state of its own");
        assert!(!move_state(&store, "web", "new").await, "there is nothing to move");
        assert_eq!(store.get(&state_key("shop")).await.unwrap(), Some(b"1".to_vec()));
    }

    #[test]
    fn what_a_removed_service_has_blocked_is_told() {
        let mut durable = Durable::default();
        assert_eq!(left_behind("web", &durable, &[]), None);
        durable.images.of("shop:1").blocked = Some(Digest::of(b"bad"));
        let text = left_behind("web", &durable, &[]).unwrap();
        assert!(text.starts_with("web is removed with 1 blocked digest and 0 kept snapshots: "), "{text}");
        let left_out =
            LeftOutService { name: "web".to_owned(), reason: "env_file: does not exist".to_owned() };
        assert_eq!(left_behind("web", &durable, &[left_out]), None, "it comes back");
    }
}
