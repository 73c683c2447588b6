//! Scenarios of a swarm service whose tasks run different images, because the swarm has paused in the middle.

use super::*;

/// The swarm has paused a rollback: one task runs 1 again, the other one still 2.
fn halfway() -> SwarmService {
    let update = Some(UpdateStatus { state: UpdateState::RollbackPaused, message: "as it is told".into() });
    let left = Task { name: "shop_web.2".into(), ..task("left", &image('2'), TaskState::Running) };
    let tasks = vec![task("back", &image('1'), TaskState::Running), left];
    SwarmService { update, mode: SwarmMode::Replicated(2), tasks, ..service(&image('1')) }
}

/// Two tasks that run this image, the second of which has this ID, after a change that is over.
fn over(n: char, second: &str) -> SwarmService {
    let second = Task { name: "shop_web.2".into(), ..task(second, &image(n), TaskState::Running) };
    let tasks = vec![task("first", &image(n), TaskState::Running), second];
    let update = Some(UpdateStatus { state: UpdateState::Completed, message: String::new() });
    SwarmService { update, mode: SwarmMode::Replicated(2), tasks, ..service(&image(n)) }
}

#[test]
fn a_trigger_lets_the_swarm_go_on_with_a_rollback_that_was_given_up() {
    let mut scenario = rollback_given_up();
    scenario.at(60).trigger(seen('2', '1', halfway()));
    let set = scenario.step();
    let Some(SwarmStep::Set(SetImage { from, to, force, back, .. })) = set else { panic!("{set:?}") };
    assert_eq!((from, to, force, back), (image('1'), image('1'), Some(5), false));
    scenario.input(stepped(SwarmResult::Set));
    for second in [70, 90] {
        scenario.at(second).observes(Ok(over('1', "second")));
    }
    let durable = &scenario.service.durable;
    assert!(durable.deployment.is_none(), "it is over");
    assert!(!durable.rollback_failed && durable.images.get(IMAGE).unproven.is_none());
    assert_eq!(scenario.record().blocked, Some(digest('2').to_string()));
}

#[test]
fn a_rollback_that_was_given_up_is_an_error_as_long_as_the_swarm_has_paused_it() {
    let mut scenario = rollback_given_up();
    assert_eq!(scenario.at(60).check(seen('2', '1', halfway())).step(), None);
    let told = scenario.record().errored.expect("not all tasks run the old image");
    assert!(told.contains("has paused a rollback of the swarm service shop_web"), "{told}");
    assert_eq!(scenario.at(80).check(seen('2', '1', over('1', "second"))).step(), None);
    assert_eq!(scenario.record().errored, None);
}

/// The swarm replaces only tasks whose specification is another one.
#[test]
fn tasks_that_a_paused_rollback_has_left_on_the_image_prove_it_when_it_is_set_again() {
    for state in [TaskState::Running, TaskState::Preparing] {
        let mut scenario = Scenario::of(in_swarm());
        let mut swarm = halfway();
        (swarm.tasks[1].state, swarm.tasks[1].should_run) = (state, true);
        assert!(matches!(scenario.check(seen('2', '1', swarm)).step(), Some(SwarmStep::Admit { .. })));
        let plan = scenario.plan();
        assert_eq!((&plan.to, &plan.back, plan.force), (&image('2'), &image('1'), None));
        assert_eq!(plan.known.iter().collect::<Vec<_>>(), ["back"], "{state:?}");
        let labels = crate::model::image_config::ConfigChange::default();
        scenario.input(stepped(SwarmResult::Admitted { labels }));
        assert!(scenario.step().is_some());
        scenario.input(stepped(SwarmResult::Set));
        for second in [10, 30] {
            scenario.at(second).observes(Ok(over('2', "left")));
        }
        assert!(scenario.service.durable.deployment.is_none(), "{state:?}: it is over");
        assert!(scenario.kinds().contains(&Kind::UPDATED), "{state:?}");
    }
}
