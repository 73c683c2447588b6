//! Scenarios with an env file that may be a part of the data.

use super::*;
use crate::model::env_file::find_tag;
use crate::model::snapshot::EarlierData;
use crate::service::observation::TagInForce;
use crate::service::rollout::plan::Earlier;
use crate::service::tests::tag_variable::{tagged, with_variable};

#[test]
fn the_tag_is_written_once_more_after_earlier_data_was_put_in_place() {
    let rules = SnapshotRules { of: vec!["/srv/web".into()], keep: 2, max_bytes: 1 << 30 };
    let update = UpdateConfig { snapshot: Some(rules), ..UpdateConfig::default() };
    for written in [StepResult::TagWritten, StepResult::TagLineChanged] {
        let mut scenario = Scenario::of(with_variable(update.clone()));
        let folder =
            KeptFolder { of: "/srv/web".into(), folder: "/srv/.web.evenkeel-1".into(), volume: None };
        let earlier = EarlierData { id: "web-1".into(), at: scenario.now, folders: vec![folder] };
        let to = Earlier {
            configured: IMAGE.into(),
            reference: tagged("1"),
            digest: digest('1'),
            id: ImageId(OLD.into()),
        };
        let back = GoBack { to: vec![to], data: Some(earlier.clone()), why: GoBackReason::ByHand };
        scenario.service.going_back = Some(back);
        scenario.service.checks.request_redeploy_by_hand();

        let on_newer = Container { config_image: tagged("2").to_string(), ..new_container() };
        let mut seen = observed('2', &[local(NEW, &['2'])], &[&on_newer]);
        (seen.images[0].reference, seen.images[0].from) = (tagged("2"), tagged("2"));
        let setting = find_tag("WEB_TAG=2\n", "WEB_TAG").unwrap();
        seen.tag = Some(TagInForce { setting, file_hash: "hash".into() });
        let data = SnapshotSeen {
            sources: vec![source("/srv/web")],
            rooms: Vec::new(),
            dumps: "/state".into(),
            earlier: Some((earlier, vec![FolderId { device: 1, inode: 1 }])),
        };
        seen.snapshot = Some(Ok(data));
        scenario.check(seen).step_ends(StepResult::ImagesPinned { missing: Vec::new() });
        let ids = vec![(IMAGE.into(), ImageId(OLD.into()))];
        scenario.step_ends(StepResult::Pulled { ids, labels: BTreeMap::new() });
        scenario.step_ends(StepResult::TagWritten).runs(&[]);
        let step = scenario.step_of_snapshot_ends(SnapshotStepped::Done);
        assert!(matches!(step, SnapshotStep::Restore { .. }), "{step:?}");

        let Some(Action::Step(Step::WriteTag { tag, back, .. })) = scenario.act() else {
            panic!("the data has the tag of its time")
        };
        assert_eq!((tag.as_str(), back), ("1", false));
        let is_written = written == StepResult::TagWritten;
        scenario.input(Input::Stepped(written));
        let Some(Action::Step(Step::Start(BringUp { project, .. }))) = scenario.act() else {
            panic!("the image is brought up, whatever the file says")
        };
        assert_eq!(project.set["WEB_TAG"], "1");
        let told = scenario.told(&Kind::ERROR);
        assert_eq!(told.is_empty(), is_written, "{told:?}");
        assert!(told.iter().all(|entry| entry.message.contains("was not restored to 1")), "{told:?}");
    }
}
