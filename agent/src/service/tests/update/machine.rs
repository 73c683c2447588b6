//! Scenarios of updates that fail for want of what the machine has to give.

use super::*;

#[test]
fn what_the_machine_could_not_give_a_container_is_no_fault_of_its_image() {
    let update = |scenario: &mut Scenario, at, left: Container| {
        scenario.at(at).check(observed('2', &[v1()], &[&on("web", IMAGE, "v1", 1)]));
        scenario.takes_step(StepResult::ImagesPinned { missing: Vec::new() });
        let ids = vec![(IMAGE.into(), ImageId("sha256:v2".into()))];
        scenario.takes_step(StepResult::Pulled { ids, labels: BTreeMap::new() });
        let error = ComposeError { is_of_machine: true, ..ComposeError::new("port is already allocated") };
        scenario.takes_step(StepResult::Started {
            up: Err(error),
            named: vec!["web".into()],
            containers: vec![left],
        });
    };
    let half_made = || Container { state: State::Created, started_at: None, ..on("web", IMAGE, "v2", 2) };
    let mut scenario = Scenario::of(config());
    update(&mut scenario, 0, half_made());
    let old = Container { started_at: scenario.seconds(1), ..on("web", IMAGE, "v1", 3) };
    assert!(matches!(scenario.rolls_back(&[&old]), Step::Start(_)));
    scenario.at(2).look(&[&old]).at(100).look(&[&old]);
    scenario.takes_step(StepResult::Unpinned);
    let [waits, told] = &scenario.entries[..] else { panic!("{:?}", scenario.entries) };
    assert!(
        told.message.contains("could not be brought up by this machine; rolled back"),
        "{}",
        told.message
    );
    assert_eq!((told.image.as_deref(), told.new_digest.as_deref()), (None, None), "it is no verdict");
    assert!(
        waits.message.contains("tried again later: ") && waits.message.contains("port"),
        "{}",
        waits.message
    );
    assert!(!scenario.is_blocked());
    // It waits, and then comes in.
    scenario.at(200).check(observed('2', &[v1()], &[&old]));
    assert!(!matches!(scenario.act(), Some(Action::Step(_))));
    scenario.at(900).check(observed('2', &[v1()], &[&old]));
    assert!(matches!(scenario.act(), Some(Action::Step(Step::PinImages { .. }))));
    // One that was started, and has failed, has itself to blame.
    let mut scenario = Scenario::of(config());
    let crashed = Container { state: State::Exited, exit_code: 1, ..on("web", IMAGE, "v2", 2) };
    update(&mut scenario, 0, crashed);
    assert!(scenario.is_blocked());
}
