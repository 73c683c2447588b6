//! Scenarios with a copy that was not put back, while what has run on the data since was not proven.

use super::*;
use crate::service::images::OldImage;
use crate::service::rollout::plan::Postponed;
use crate::service::rollout::snapshot::{KeptKind, PendingData};

const OTHER: &str = "localhost:5000/db:1";

impl Scenario {
    /// The data is copied, and the container comes up and is proven.
    pub(super) fn is_proven_with_data(&mut self, on: &Container) {
        self.runs(&[]);
        let copied = Copied { bytes: 1, folder: FolderId { device: 1, inode: 1 } };
        let copies = ["/srv/a", "/srv/b"].map(|of| CopyMade { source: source(of), copied });
        self.step_of_snapshot_ends(SnapshotStepped::Copied(copies.to_vec()));
        self.comes_up_with_data(on);
        self.now += SignedDuration::from_secs(20);
        self.look(&[on]).step_ends(StepResult::Unpinned);
    }

    fn has_pending_data(&self) -> bool {
        self.service.durable().snapshots.iter().any(|kept| kept.pending.is_some())
    }
}

/// The same service, which updates another image as well.
fn with_data_and_another_image() -> Scenario {
    let reference = Reference::parse(OTHER).expect("it is one");
    let of_other = ConfiguredImage { configured: OTHER.into(), reference };
    let images = [config().images, vec![of_other]].concat();
    with_data_of(ServiceConfig { images, ..config() })
}

#[test]
fn the_copy_of_an_unproven_image_is_not_put_back_over_data_on_which_another_was_proven() {
    let mut scenario = with_data_and_another_image();
    let old = ImageId("sha256:db-1".into());
    let memory = scenario.service.durable.images.of(OTHER);
    memory.proven = Some(OldImage { id: old.clone(), source: None });
    memory.unproven = Some(ImageId("sha256:db-2".into()));
    let kept = KeptSnapshot {
        id: "web-0".into(),
        at: scenario.now,
        kind: KeptKind::Copy,
        image: OTHER.into(),
        left: vec![(OTHER.into(), digest('6'))],
        bytes: 1,
        folders: Vec::new(),
        dump: None,
        is_expired: false,
        pending: Some(PendingData { old: vec![(OTHER.into(), old)], copies: Vec::new() }),
    };
    scenario.service.durable.snapshots.push(kept.clone());
    scenario.check(update());
    assert!(scenario.has_pending_data(), "nothing was proven since");
    scenario.fetches().is_proven_with_data(&new_container());
    assert_eq!(scenario.told(&Kind::UPDATED).len(), 1, "{:#?}", scenario.entries);
    assert!(!scenario.has_pending_data(), "the data of the image that was proven would be lost");

    // The same if a person goes back to an image, which is proven again.
    scenario.service.durable.snapshots[0] = kept;
    let reply = scenario.person_asks(ServiceRequest::Rollback { to: None, data: false });
    assert_eq!(reply, ServiceReply::RollingBack(digest('1')));
    scenario.check(new_runs());
    assert!(scenario.has_pending_data());
    scenario.step_ends(StepResult::ImagesPinned { missing: Vec::new() });
    let ids = vec![(IMAGE.into(), ImageId(OLD.into()))];
    scenario.step_ends(StepResult::Pulled { ids, labels: BTreeMap::new() });
    scenario.is_proven_with_data(&Container { id: "web-3".into(), ..old_container() });
    assert_eq!(scenario.told(&Kind::ROLLED_BACK).len(), 1, "{:#?}", scenario.entries);
    assert!(!scenario.has_pending_data());
}

#[test]
fn an_update_whose_data_is_not_copied_again_needs_no_room_for_it() {
    let mut scenario = with_data();
    scenario.is_left_unproven_with_data();
    scenario.now += SignedDuration::from_mins(5);
    let mut full = new_runs();
    let Some(Ok(data)) = &mut full.snapshot else { unreachable!() };
    data.rooms = vec![(
        "/srv".into(),
        Room { bytes: 1 << 20, available: 0, is_shared: false, copies: 1, ..Room::default() },
    )];
    scenario.check(full.clone());
    let candidates = scenario.service.seen_candidates(scenario.now);
    let [candidate] = &candidates[..] else { panic!("{candidates:?}") };
    let Some(Ok(seen)) = &candidate.snapshot else { panic!("{candidate:?}") };
    let why = crate::service::wording::snapshot::will_copy(seen);
    assert_eq!(why, "the data was copied for an earlier attempt, and is not copied again");
    scenario.fetches().comes_up_with_data(&new_container());

    // Another digest of an image that is proven has its data copied.
    let mut scenario = with_data();
    let full = Observation { snapshot: full.snapshot, ..update() };
    scenario.check(full);
    assert_eq!(scenario.act(), None, "there is no room");
}

#[test]
fn an_attempt_that_copies_nothing_and_fails_before_it_changes_anything_is_no_outage() {
    let mut scenario = with_data();
    scenario.is_left_unproven_with_data();
    let kept = scenario.service.durable().snapshots.clone();
    scenario.now += SignedDuration::from_mins(5);
    scenario.check(new_runs()).step_ends(StepResult::ImagesPinned { missing: Vec::new() });
    let why = "the registry does not answer".to_owned();
    scenario.step_ends(StepResult::PullFailed {
        image: IMAGE.into(),
        why,
        lacks_platform: false,
        pulled: Vec::new(),
    });
    scenario.step_ends(StepResult::Unpinned);
    assert_eq!(scenario.service.durable().deployment, None);
    assert_eq!(scenario.service.durable().snapshots, kept);
    scenario.now += SignedDuration::from_mins(5);
    scenario.check(new_runs()).fetches().comes_up_with_data(&new_container());
}

#[test]
fn an_unproven_image_whose_update_is_postponed_stays_on_its_data() {
    let mut scenario = with_data();
    scenario.is_left_unproven_with_data();
    scenario.service.durable.postponed.push(Postponed {
        digest: digest('2'),
        others: Vec::new(),
        until: scenario.now + SignedDuration::from_hours(1),
        tries: 3,
        why: "the registry does not answer".into(),
    });
    scenario.now += SignedDuration::from_mins(5);
    scenario.check(new_runs());
    assert_eq!(scenario.act(), None, "it is postponed");
    assert!(scenario.service.begin(Cause::ComposeChanged, scenario.now), "an edit does not wait for it");
    let deployment = scenario.service.durable().deployment.as_ref().expect("it has begun");
    let kept: Vec<_> = deployment.plan().kept_tags.iter().map(|(_, image)| &*image.id.0).collect();
    assert_eq!(kept, [NEW]);
}

#[test]
fn an_unproven_image_that_stays_does_not_find_data_put_back_that_was_copied_before_it() {
    let mut scenario = with_data_and_another_image();
    scenario.is_left_unproven_with_data();
    // Both were updated at once, and the registry has no answer about the other one.
    let old = ImageId("sha256:db-1".into());
    let memory = scenario.service.durable.images.of(OTHER);
    memory.proven = Some(OldImage { id: old.clone(), source: None });
    memory.unproven = Some(ImageId("sha256:db-2".into()));
    let pending = scenario.service.durable.snapshots[0].pending.as_mut().expect("it is not proven");
    pending.old.push((OTHER.into(), old));
    scenario.now += SignedDuration::from_mins(5);
    scenario.check(new_runs());
    assert_eq!(scenario.act(), None, "a rollback would put back the data of both");
    let errored = scenario.record().errored.expect("it says why it waits");
    assert!(errored.contains("`evenkeel rollback web --data`"), "{errored}");
    // It was proven, or started anew by somebody.
    scenario.service.durable.images.of(OTHER).unproven = None;
    scenario.check(new_runs()).fetches().comes_up_with_data(&new_container());
}
