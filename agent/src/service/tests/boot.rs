//! Stories of machines and agents that stop and start: what of it is healed, and what was meant.

use super::*;

/// The agent is stopped and started again, in this boot of the machine.
fn comes_back(story: &mut Story, boot: &str) {
    story.service.on_shutdown();
    let written = serde_json::to_vec(story.service.durable()).unwrap();
    let durable = serde_json::from_slice(&written).unwrap();
    let boot = Boot { now: boot.into(), before: story.service.boot.now.clone(), ..Boot::default() };
    story.service =
        Service::new(story.service.config.clone(), durable, boot, StartReason::Start, story.now).0;
}

#[test]
fn what_the_machines_shutdown_ended_is_started_again_and_what_a_person_stopped_is_not() {
    let ended = |story: &Story, name: &str, code: i64, at: i64| Container {
        finished_at: story.seconds(at),
        ..exited(name, code)
    };
    for (boot, restarted) in [("two", &["crashed", "web"][..]), ("one", &["crashed"])] {
        let mut story = Story::of(config());
        let stopped = ended(&story, "stopped", 0, 5);
        story.at(10).look(&[&running("web"), &running("crashed"), &stopped]);
        comes_back(&mut story, boot);
        story.event("id-crashed", EventKind::Die { exit_code: 137 });
        let (web, crashed) = (ended(&story, "web", 0, 20), ended(&story, "crashed", 137, 20));
        let there = [&web, &crashed, &stopped];
        assert_eq!(story.at(60).look(&there).restarts(), [""; 0]);
        let mut names = story.at(66).look(&there).restarts();
        names.sort();
        assert_eq!(names, restarted, "boot {boot}");
    }
}

#[test]
fn what_ended_as_if_stopped_while_the_agent_was_away_and_nobody_tells_of_is_left_alone_in_the_same_boot() {
    let stories = [
        // Exit code, whether it ran out of memory, boot, whether its end is told; whether it is healed.
        (137, false, "one", false, false),
        (143, false, "one", false, false),
        (137, false, "one", true, true),
        (137, true, "one", false, true),
        (1, false, "one", false, true),
        (143, false, "two", false, true),
    ];
    for (code, oom_killed, boot, told, healed) in stories {
        let mut story = Story::of(config());
        story.at(10).look(&[&running("a")]);
        // Killed: it does not say what it left.
        let durable = story.service.durable().clone();
        story.at(60);
        story.service = Service::new(
            story.service.config.clone(),
            durable,
            boot_of(boot, "one"),
            StartReason::Start,
            story.now,
        )
        .0;
        let ended = Container { finished_at: story.seconds(20), oom_killed, ..exited("a", code) };
        assert_eq!(story.look(&[&ended]).restarts(), [""; 0]);
        if told {
            story.event("id-a", EventKind::Die { exit_code: code });
        }
        assert_eq!(story.at(61).look(&[&ended]).restarts(), [""; 0]);
        assert_eq!(
            story.at(63).look(&[&ended]).restarts().len(),
            usize::from(healed),
            "{code} {boot} {told}"
        );
        assert_eq!(story.kinds().is_empty(), !healed);
        // It is treated again from the next run on.
        let again = Container { started_at: story.seconds(70), ..running("a") };
        let crashed = Container { started_at: again.started_at, finished_at: story.seconds(200), ..ended };
        story.at(70).look(&[&again]).at(200).look(&[&again]).look(&[&crashed]);
        assert_eq!(story.at(203).look(&[&crashed]).restarts(), ["a"], "{code} {boot} {told}");
    }
}

#[test]
fn what_only_auto_start_cares_for_is_started_after_a_reboot() {
    for (boot, starts) in [("two", true), ("one", false)] {
        let mut story = Story::of(ServiceConfig { auto_start: true, auto_heal: false, ..config() });
        let one = local("sha256:one", &['a']);
        story.at(0).check(observed('a', std::slice::from_ref(&one), &[&running("web")]));
        comes_back(&mut story, boot);
        let ended = Container { finished_at: story.seconds(20), ..exited("web", 0) };
        story.at(60).check(observed('a', std::slice::from_ref(&one), &[&ended]));
        let begun = matches!(story.act(), Some(Action::Step(Step::Start { .. })));
        assert_eq!(begun, starts, "boot {boot}");
    }
}

#[test]
fn a_shutdown_soon_after_a_restart_is_no_failure_of_the_restart() {
    let mut story = Story::of(config());
    story.at(0).look(&[&running("web")]);
    let down = Container { finished_at: story.seconds(10), ..exited("web", 1) };
    story.at(10).look(&[&down]);
    assert_eq!(story.at(12).look(&[&down]).restarts(), ["web"]);
    let again = Container { started_at: story.seconds(13), ..running("web") };
    story.at(14).look(&[&again]);
    comes_back(&mut story, "two");
    let ended =
        Container { started_at: story.seconds(13), finished_at: story.seconds(20), ..exited("web", 0) };
    story.at(60).look(&[&ended]);
    assert_eq!(story.at(66).look(&[&ended]).restarts(), ["web"]);
    let kinds = story.kinds();
    assert!(!kinds.contains(&Kind::RESTART_FAILED), "{kinds:?}");
}

#[test]
fn a_stop_that_is_told_again_only_after_a_start_of_the_agent_is_still_a_stop() {
    for told_again in [true, false] {
        let mut story = Story::of(config());
        story.at(99).look(&[&running("a")]);
        story.at(100).event("id-a", EventKind::Stop);
        let stopped_at = story.now;
        // The stream broke off, and the agent was killed before it could read on.
        story.at(101).engine_gap();
        story.at(102).look(&[&exited("a", 0)]);
        story.at(130);
        comes_back(&mut story, "one");
        assert_eq!(story.look(&[&exited("a", 0)]).restarts(), [""; 0], "its events are yet to be read");
        if told_again {
            story.input(Input::Event { at: stopped_at, id: "id-a".into(), what: EventKind::Stop });
        }
        let expected: &[&str] = if told_again { &[] } else { &["a"] };
        assert_eq!(story.at(140).look(&[&exited("a", 0)]).restarts(), expected, "{told_again}");
    }
}
