//! Stories of a clock that is set while an update waits: with the agent at work, while it is away, while the machine is down.

use super::gates::{MIN_AGE, found, old_enough, with};
use super::*;
use crate::config::UpdateConfig;

/// Ten times what is waited for.
const LONG: i64 = 10 * MIN_AGE;

#[test]
fn a_clock_that_is_set_moves_what_is_waited_for_with_it() {
    for by in [-LONG, LONG] {
        let mut story = Story::of(with(old_enough()));
        story.at(0).poll(found('2'));
        story.service.shift(SignedDuration::from_secs(by));
        story.at(by + MIN_AGE - 1).poll(found('2'));
        assert!(!story.updates(), "{by}");
        story.at(by + MIN_AGE).poll(found('2'));
        assert!(story.updates(), "{by}");
    }
}

impl Story {
    /// The agent starts in this boot of the machine, at which the clock would have shown this by what it shows now.
    fn starts(&mut self, boot: &str, at_boot: i64) -> &mut Self {
        let written = serde_json::to_vec(self.service.durable()).unwrap();
        let durable = serde_json::from_slice(&written).unwrap();
        let at = self.start + SignedDuration::from_secs(at_boot);
        let boot = Boot { at, ..boot_of(boot, "one") };
        let config = self.service.shared_config();
        self.service = Service::new(config, durable, boot, StartReason::Start, self.now).0;
        self
    }

    /// Runs up to this second of the clock, and looks at the registry then.
    fn updates_at(&mut self, second: i64) -> bool {
        self.at(second).poll(found('2'));
        self.updates()
    }
}

/// The digest is seen at second 0, and the agent is killed then; 600 s later it starts again.
#[test]
fn an_update_waits_as_long_as_it_must_whatever_happened_to_the_clock_while_the_agent_was_away() {
    const AWAY: i64 = 600;
    // The boot in which it starts again, by how much the clock was set, and how long it still waits.
    let table = [
        ("one", 0, MIN_AGE - AWAY),
        ("one", LONG, MIN_AGE - AWAY),
        ("one", -LONG, MIN_AGE - AWAY),
        ("one", 1, MIN_AGE - AWAY - 1),
        // Nobody knows how long the machine was down: what the clock shows counts.
        ("two", 0, MIN_AGE - AWAY),
        ("two", 1000, MIN_AGE - AWAY - 1000),
        ("two", LONG, 0),
        // Unless it can't be: the digest was seen before now.
        ("two", -LONG, MIN_AGE),
        // Where no boot can be told from another, nothing else is known either.
        ("", LONG, 0),
        ("", -LONG, MIN_AGE),
    ];
    for (boot, by, waits) in table {
        let what = format!("boot {boot:?}, set by {by}");
        let mut story = Story::of(with(UpdateConfig { approve: true, ..old_enough() }));
        story.at(0).starts("one", -1000).poll(found('2'));
        story.service.approve(None, story.now);
        let start = AWAY + by;
        // The time since another boot is a short one.
        let at_boot = if boot == "one" { by - 1000 } else { start - 5 };
        story.at(start).starts(boot, at_boot);
        if waits > 0 {
            assert!(!story.updates_at(start), "{what}");
            assert_eq!(story.record().waiting.unwrap().lifts_at, story.seconds(start + waits), "{what}");
            assert!(!story.updates_at(start + waits - 1), "{what}");
        }
        assert!(story.updates_at(start + waits), "{what}");
    }
}

/// A machine without a battery for its clock: it starts with a clock that is far behind, and once more with the right one.
#[test]
fn what_was_noted_by_a_clock_that_is_known_to_have_been_behind_counts_anew() {
    for is_set_in_between in [false, true] {
        let mut story = Story::of(with(old_enough()));
        story.at(0).starts("one", -1000).poll(found('2'));
        let behind = -100 * LONG;
        story.at(behind).starts("two", behind - 5);
        assert!(!story.updates_at(behind));
        let mut since = 600;
        if is_set_in_between {
            // The network is there at last.
            story.service.shift(SignedDuration::from_secs(300 - behind));
            (since, _) = (300, story.at(300));
        }
        story.at(600).starts("three", 590);
        assert!(!story.updates_at(since + MIN_AGE - 1), "{is_set_in_between}");
        assert!(story.updates_at(since + MIN_AGE), "{is_set_in_between}");
    }
}

#[test]
fn a_clock_that_is_set_again_and_again_while_the_agent_starts_and_stops_changes_no_wait() {
    let mut story = Story::of(with(old_enough()));
    story.at(0).starts("one", 0).poll(found('2'));
    let (mut ahead, mut passed) = (0, 0);
    for (step, by) in [LONG, -LONG, 90 * 86_400, -3 * LONG, 30].into_iter().enumerate() {
        passed += 60;
        ahead += by;
        story.at(passed + ahead);
        if step % 2 == 0 {
            story.starts("one", ahead);
        } else {
            story.service.shift(SignedDuration::from_secs(by));
        }
        assert!(!story.updates_at(passed + ahead), "step {step}");
    }
    assert!(!story.updates_at(ahead + MIN_AGE - 1));
    assert!(story.updates_at(ahead + MIN_AGE));
}

#[test]
fn a_restart_that_is_put_off_is_as_far_away_as_before() {
    for by in [-LONG, 0, LONG] {
        let mut story = Story::of(config());
        story.starts("one", 0);
        let sick = with_health("a", HealthState::Unhealthy);
        story.at(1).look(&[&sick]);
        assert_eq!(story.restarts(), ["a"]);
        story.at(2 + by).starts("one", by).look(&[&sick]);
        assert_eq!(story.restarts(), [""; 0], "{by}: the cooldown of a minute");
        assert_eq!(story.at(59 + by).look(&[&sick]).restarts(), [""; 0], "{by}");
        assert_eq!(story.at(62 + by).look(&[&sick]).restarts(), ["a"], "{by}");
    }
}

/// The engine's times are by the clock as it was: a run that begins in the future lasts as long as anybody has watched it.
#[test]
fn a_container_that_is_well_again_is_not_waited_for_by_a_clock_that_was_set_back() {
    for auto_heal in [true, false] {
        let mut story = Story::of(ServiceConfig { auto_heal, ..config() });
        story.look(&[&exited("a", 1)]).at(2).look(&[&exited("a", 1)]);
        assert_eq!(story.restarts().len(), usize::from(auto_heal));
        let again = Container { started_at: story.seconds(3), ..running("a") };
        story.at(4).look(&[&again]);
        story.service.shift(SignedDuration::from_secs(-3600));
        story.said.clear();
        story.at(-3600 + 5).look(&[&again]);
        assert_eq!(story.kinds(), [], "without a health check only time tells");
        story.at(-3600 + 14).look(&[&again]);
        let expected = if auto_heal { Kind::RESTARTED } else { Kind::HEALTHY };
        assert_eq!((story.kinds(), story.status()), (vec![expected], StatusValue::Ok));
    }
}
