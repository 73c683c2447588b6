//! Scenarios of a clock change while an update waits: while the agent runs, while it is stopped, while the machine is down.

use super::*;
use crate::config::UpdateConfig;
use crate::service::rollout::plan::Postponed;
use crate::service::tests::gates::{MIN_AGE, found, old_enough, with};
use crate::service::upkeep::late::LateWatch;

/// Ten times the awaited time.
const LONG: i64 = 10 * MIN_AGE;

#[test]
fn a_clock_change_moves_the_deadlines_with_it() {
    for by in [-LONG, LONG] {
        let mut scenario = Scenario::of(with(old_enough()));
        scenario.at(0).poll(found('2'));
        scenario.service.shift(SignedDuration::from_secs(by));
        scenario.at(by + MIN_AGE - 1).poll(found('2'));
        assert!(!scenario.updates(), "{by}");
        scenario.at(by + MIN_AGE).poll(found('2'));
        assert!(scenario.updates(), "{by}");
    }
}

#[test]
fn how_long_an_image_is_behind_does_not_change_with_the_clock() {
    for by in [-LONG, LONG] {
        let mut scenario = Scenario::of(with(old_enough()));
        scenario.at(0).poll(found('2')).at(60).poll(found('3'));
        scenario.service.shift(SignedDuration::from_secs(by));
        assert_eq!(scenario.service.image_states()[0].behind_since, scenario.seconds(by), "{by}");
    }
}

impl Scenario {
    /// Starts the agent in this boot of the machine, which began at `at_boot` by the current clock.
    fn starts(&mut self, boot: &str, at_boot: i64) -> &mut Self {
        let written = serde_json::to_vec(self.service.durable()).unwrap();
        let durable = serde_json::from_slice(&written).unwrap();
        let at = self.start + SignedDuration::from_secs(at_boot);
        let boot = Boot { at, ..boot_of(boot, "one") };
        let config = self.service.shared_config();
        self.service = Service::new(config, durable, boot, StartReason::Start, self.now).0;
        self.reconnected()
    }

    /// Advances the clock to this second and polls the registry; returns whether the update begins.
    fn updates_at(&mut self, second: i64) -> bool {
        self.at(second).poll(found('2'));
        self.updates()
    }
}

/// The digest is seen at second 0, and the agent is killed then; 600 s later it starts again.
#[test]
fn a_clock_change_while_the_agent_is_down_does_not_change_the_wait() {
    const AWAY: i64 = 600;
    // The boot in which it starts again, the clock change, and the remaining wait.
    let table = [
        ("one", 0, MIN_AGE - AWAY),
        ("one", LONG, MIN_AGE - AWAY),
        ("one", -LONG, MIN_AGE - AWAY),
        ("one", 1, MIN_AGE - AWAY - 1),
        // The downtime of the machine is unknown: the clock is trusted.
        ("two", 0, MIN_AGE - AWAY),
        ("two", 1000, MIN_AGE - AWAY - 1000),
        ("two", LONG, 0),
        // Unless it must be wrong: the digest was seen before now.
        ("two", -LONG, MIN_AGE),
        // If boots can't be distinguished, nothing more is known.
        ("", LONG, 0),
        ("", -LONG, MIN_AGE),
    ];
    for (boot, by, waits) in table {
        let what = format!("boot {boot:?}, set by {by}");
        let mut scenario = Scenario::of(with(UpdateConfig { approve: true, ..old_enough() }));
        scenario.at(0).starts("one", -1000).poll(found('2'));
        scenario.service.approve(None, scenario.now);
        let start = AWAY + by;
        // A different boot began only a moment ago.
        let at_boot = if boot == "one" { by - 1000 } else { start - 5 };
        scenario.at(start).starts(boot, at_boot);
        if waits > 0 {
            assert!(!scenario.updates_at(start), "{what}");
            assert_eq!(
                scenario.record().waiting.unwrap().lifts_at,
                scenario.seconds(start + waits),
                "{what}"
            );
            assert!(!scenario.updates_at(start + waits - 1), "{what}");
        }
        assert!(scenario.updates_at(start + waits), "{what}");
    }
}

/// A machine without a clock battery: it boots with a clock that is far behind, and then again with the right one.
#[test]
fn times_recorded_by_a_clock_that_was_behind_are_reset() {
    for is_set_in_between in [false, true] {
        let mut scenario = Scenario::of(with(old_enough()));
        scenario.at(0).starts("one", -1000).poll(found('2'));
        let behind = -100 * LONG;
        scenario.at(behind).starts("two", behind - 5);
        assert!(!scenario.updates_at(behind));
        let mut since = 600;
        if is_set_in_between {
            // The network is up, so the clock is set.
            scenario.service.shift(SignedDuration::from_secs(300 - behind));
            (since, _) = (300, scenario.at(300));
        }
        scenario.at(600).starts("three", 590);
        assert!(!scenario.updates_at(since + MIN_AGE - 1), "{is_set_in_between}");
        assert!(scenario.updates_at(since + MIN_AGE), "{is_set_in_between}");
    }
}

#[test]
fn after_a_boot_with_a_clock_that_was_behind_nothing_waits_longer_than_it_may() {
    let hour = Duration::from_hours(1);
    let mut scenario = Scenario::of(with(UpdateConfig { watch: hour, ..UpdateConfig::default() }));
    scenario.at(0).starts("one", -1000).at(100).look(&[&with_health("a", HealthState::Unhealthy)]);
    assert_eq!(scenario.restarts(), ["a"]);
    let now = scenario.now;
    scenario.service.durable.restart_states.get_mut("a").expect("it is healed").told_at = Some(now);
    let waits = |until: Timestamp| Postponed {
        digest: digest('2'),
        others: Vec::new(),
        until,
        tries: 9,
        why: String::new(),
    };
    scenario.service.durable.postponed = vec![waits(now + 6 * hour)];
    let (images, exits) = (vec![IMAGE.to_owned()], Vec::new());
    let (clock_set, until) = (Vec::new(), now + hour);
    scenario.service.durable.watch = vec![LateWatch { since: now, until, images, exits, clock_set }];
    let behind = -100 * LONG;
    scenario.at(behind).starts("two", behind - 5);
    // The network is up, so the clock is set.
    scenario.service.shift(SignedDuration::from_secs(300 - behind));
    let now = scenario.at(300).now;
    let durable = scenario.service.durable();
    let restart = &durable.restart_states["a"];
    assert!(restart.last_restart.is_some_and(|at| at <= now), "{restart:?}");
    assert!(restart.told_at.is_some_and(|at| at <= now), "{restart:?}");
    assert!(restart.problem.as_ref().is_none_or(|problem| problem.since <= now), "{restart:?}");
    assert!(durable.postponed[0].until <= now + 24 * hour, "{:?}", durable.postponed);
    let [watch] = &durable.watch[..] else { panic!("{:?}", durable.watch) };
    assert!(watch.since <= now && watch.until <= now + hour, "{watch:?}");
}

#[test]
fn times_ahead_that_are_within_their_delay_stay_after_a_boot() {
    let hour = Duration::from_hours(1);
    let mut scenario = Scenario::of(with(UpdateConfig { watch: hour, ..UpdateConfig::default() }));
    scenario.at(0).starts("one", -1000);
    let (images, exits) = (vec![IMAGE.to_owned()], Vec::new());
    let (since, until, clock_set) = (scenario.now, scenario.now + hour, Vec::new());
    let watch = LateWatch { since, until, images, exits, clock_set };
    scenario.service.durable.watch = vec![watch.clone()];
    scenario.at(600).starts("two", 590);
    assert_eq!(scenario.service.durable().watch, [watch]);
}

#[test]
fn repeated_clock_changes_across_agent_restarts_do_not_change_the_wait() {
    let mut scenario = Scenario::of(with(old_enough()));
    scenario.at(0).starts("one", 0).poll(found('2'));
    let (mut ahead, mut passed) = (0, 0);
    for (step, by) in [LONG, -LONG, 90 * 86_400, -3 * LONG, 30].into_iter().enumerate() {
        passed += 60;
        ahead += by;
        scenario.at(passed + ahead);
        if step % 2 == 0 {
            scenario.starts("one", ahead);
        } else {
            scenario.service.shift(SignedDuration::from_secs(by));
        }
        assert!(!scenario.updates_at(passed + ahead), "step {step}");
    }
    assert!(!scenario.updates_at(ahead + MIN_AGE - 1));
    assert!(scenario.updates_at(ahead + MIN_AGE));
}

#[test]
fn a_clock_change_across_an_agent_restart_does_not_move_a_deferred_restart() {
    for by in [-LONG, 0, LONG] {
        let mut scenario = Scenario::of(config());
        scenario.starts("one", 0);
        let sick = with_health("a", HealthState::Unhealthy);
        scenario.at(1).look(&[&sick]);
        assert_eq!(scenario.restarts(), ["a"]);
        scenario.at(2 + by).starts("one", by).look(&[&sick]);
        assert_eq!(scenario.restarts(), [""; 0], "{by}: the cooldown of a minute");
        assert_eq!(scenario.at(59 + by).look(&[&sick]).restarts(), [""; 0], "{by}");
        assert_eq!(scenario.at(62 + by).look(&[&sick]).restarts(), ["a"], "{by}");
    }
}

/// The engine's times are by the old clock: a run that begins in the future is as old as the time it has been observed.
#[test]
fn a_clock_set_back_does_not_delay_the_recovery_of_a_container() {
    for auto_heal in [true, false] {
        let mut scenario = Scenario::of(ServiceConfig { auto_heal, ..config() });
        scenario.look(&[&exited("a", 1)]).at(2).look(&[&exited("a", 1)]);
        assert_eq!(scenario.restarts().len(), usize::from(auto_heal));
        let again = Container { started_at: scenario.seconds(3), ..running("a") };
        scenario.at(4).look(&[&again]);
        scenario.service.shift(SignedDuration::from_secs(-3600));
        scenario.entries.clear();
        scenario.at(-3600 + 5).look(&[&again]);
        assert_eq!(scenario.kinds(), [], "without a health check only time tells");
        scenario.at(-3600 + 14).look(&[&again]);
        let expected = if auto_heal { Kind::RESTARTED } else { Kind::HEALTHY };
        assert_eq!((scenario.kinds(), scenario.status()), (vec![expected], StatusValue::Ok));
    }
}

/// The events tell the order, whatever the clock says: the container was told to stop, and then started again.
#[test]
fn a_stop_before_the_current_run_does_not_keep_it_from_being_healed() {
    for (events, is_healed) in [
        (vec![EventKind::Kill { signal: Some(15) }, EventKind::Stop, EventKind::Start], true),
        (vec![EventKind::Start, EventKind::Kill { signal: Some(15) }], false),
    ] {
        let mut scenario = Scenario::of(config());
        let sick = with_health("a", HealthState::Unhealthy);
        let ran_on = Container { started_at: scenario.seconds(LONG), ..sick };
        scenario.starts("one", 0);
        for what in events {
            let at = scenario.seconds(LONG).unwrap();
            scenario.input(Input::Event { at, id: "id-a".into(), what });
        }
        scenario.at(2).look(&[&ran_on]);
        assert_eq!(!scenario.restarts().is_empty(), is_healed);
    }
}
