//! Lives in which a newer tag is written into the env file, with the agent killed at every call meanwhile.

use std::time::Duration;

use super::life::step::Step;
use super::life::{Flags, Life};
use super::world::{Act, Behaviour};

#[test]
fn an_agent_killed_at_any_call_leaves_the_tag_that_is_proven_in_the_env_file() {
    let flags = Flags { auto_update: true, ..Flags::default() };
    for (behaviour, told) in [(Behaviour::Good, ": updated"), (Behaviour::Unhealthy, ": rolled_back")] {
        for calls in (2..400).step_by(12) {
            let steps = [
                (5_000, Step::World(Act::PushNewer(behaviour))),
                (5_001, Step::Kill { calls, away: 2, loses_write: false }),
                (40_000, Step::Poll),
            ];
            let steps = steps.map(|(at, step)| (Duration::from_millis(at), step)).to_vec();
            let life =
                Life { flags: [flags, Flags::default()], has_variable: true, steps, ..Life::default() };
            let lived = life.run();
            let transcript = lived.transcript.join("\n");
            let what = format!("{behaviour:?}, killed at call {calls}:\n{transcript}");
            assert_eq!(lived.violations, Vec::<String>::new(), "{what}");
            assert_eq!(transcript.matches(told).count(), 1, "{what}");
            if !lived.transcript.iter().any(|line| line.ends_with(" is killed")) {
                assert!(calls > 100, "the kills did not reach the deployment: {what}");
                break;
            }
        }
    }
}
