//! Runs in which a newer tag is written to the env file while the agent is killed at any call.

use std::time::Duration;

use super::run::step::Step;
use super::run::{Flags, Simulation};
use super::world::{Act, Behaviour};

#[test]
fn an_agent_killed_at_any_call_leaves_the_proven_tag_in_the_env_file() {
    let flags = Flags { auto_update: true, ..Flags::default() };
    for (behaviour, verdict) in [(Behaviour::Good, ": updated"), (Behaviour::Unhealthy, ": rolled_back")] {
        for calls in (2..400).step_by(12) {
            let steps = [
                (5_000, Step::World(Act::PushNewer(behaviour))),
                (5_001, Step::Kill { calls, away: 2, loses_write: false }),
                (40_000, Step::Poll),
            ];
            let steps = steps.map(|(at, step)| (Duration::from_millis(at), step)).to_vec();
            let simulation = Simulation {
                flags: [flags, Flags::default()],
                has_variable: true,
                steps,
                ..Simulation::default()
            };
            let outcome = simulation.run();
            let transcript = outcome.transcript.join("\n");
            let what = format!("{behaviour:?}, killed at call {calls}:\n{transcript}");
            assert_eq!(outcome.violations, Vec::<String>::new(), "{what}");
            assert_eq!(transcript.matches(verdict).count(), 1, "{what}");
            if !outcome.transcript.iter().any(|line| line.ends_with(" is killed")) {
                assert!(calls > 100, "the kills did not reach the deployment: {what}");
                break;
            }
        }
    }
}
