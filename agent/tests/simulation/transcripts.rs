//! Transcripts of ten typical runs for reviewers: the setup, the steps, and what the agent does and reports. A change of
//! behaviour appears in their diff. `UPDATE_TRANSCRIPTS=1` rewrites them.

use std::path::PathBuf;
use std::time::Duration;

use super::run::step::Step;
use super::run::{Flags, Simulation};
use super::world::{Act, Behaviour, RegistryFault};

const USUAL: Flags = Flags { auto_update: true, auto_heal: true, auto_start: false, compose_watch: false };
const WATCHED: Flags = Flags { compose_watch: true, ..USUAL };

/// File, title, flags of both services, and steps with their times in milliseconds.
type TypicalRun = (&'static str, &'static str, Flags, &'static [(u64, Step)]);

const TYPICAL_RUNS: [TypicalRun; 10] = [
    (
        "good_update",
        "A good image passes its probation and is reported as updated",
        USUAL,
        &[(5_000, Step::World(Act::Push("web", Behaviour::Good)))],
    ),
    (
        "rollback",
        "A bad image is rolled back, blocked, and not deployed again; the next good one is",
        USUAL,
        &[
            (5_000, Step::World(Act::Push("web", Behaviour::Unhealthy))),
            (55_000, Step::World(Act::Push("web", Behaviour::Good))),
        ],
    ),
    (
        "killed_on_probation",
        "An agent that is killed during a probation resumes it",
        USUAL,
        &[
            (5_000, Step::World(Act::Push("web", Behaviour::Good))),
            (13_000, Step::Kill { calls: 3, away: 7, loses_write: false }),
        ],
    ),
    (
        "healed",
        "An unhealthy container is restarted once and recovers",
        USUAL,
        &[(5_000, Step::World(Act::Sicken("api")))],
    ),
    (
        "exhausted",
        "A container that keeps crashing is restarted three times, and then only after an operator acts",
        USUAL,
        &[(5_000, Step::World(Act::Push("web", Behaviour::LateCrash)))],
    ),
    (
        "stopped_by_an_operator",
        "Containers stopped by an operator stay stopped, even if the agent was not running when they were stopped",
        USUAL,
        &[
            (5_000, Step::World(Act::Stop("web"))),
            (20_000, Step::StopAgent { away: 10 }),
            (25_000, Step::World(Act::Stop("api"))),
        ],
    ),
    (
        "compose_file_changed",
        "An edit of the compose file is applied; an invalid file is reported until it is repaired",
        WATCHED,
        &[
            (15_000, Step::World(Act::Edit("api"))),
            (35_000, Step::World(Act::BreakFile)),
            (55_000, Step::World(Act::MendFile)),
        ],
    ),
    (
        "registry_away",
        "An unavailable registry delays only updates, and new images are deployed when it is back",
        USUAL,
        &[
            (5_000, Step::World(Act::Registry(RegistryFault::Errors))),
            (12_000, Step::World(Act::Push("web", Behaviour::Good))),
            (14_000, Step::World(Act::Crash("api"))),
            (35_000, Step::World(Act::Registry(RegistryFault::None))),
        ],
    ),
    (
        "one_of_two_is_bad",
        "One of two new images of a project is bad: they are deployed and judged one after the other",
        USUAL,
        &[
            (5_000, Step::World(Act::Push("web", Behaviour::Crash))),
            (5_500, Step::World(Act::Push("api", Behaviour::Good))),
        ],
    ),
    (
        "engine_restarts",
        "An engine restart stops all containers; the agent starts them again and blocks no image",
        USUAL,
        &[
            (5_000, Step::World(Act::Push("web", Behaviour::Good))),
            (14_000, Step::World(Act::EngineStops)),
            (18_000, Step::World(Act::EngineStarts)),
        ],
    ),
];

fn transcript(title: &str, flags: Flags, steps: &[(u64, Step)]) -> String {
    let steps = steps.iter().map(|(at, step)| (Duration::from_millis(*at), step.clone())).collect();
    let simulation = Simulation { flags: [flags; 2], steps, ..Simulation::default() };
    let outcome = simulation.run();
    assert_eq!(outcome.violations, Vec::<String>::new(), "{title}:\n{}", outcome.transcript.join("\n"));
    format!("{title}\n\n{}\nrun\n{}\n", simulation.describe(), outcome.transcript.join("\n"))
}

#[test]
fn typical_runs_match_their_transcripts() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/simulation/transcripts");
    let is_update = std::env::var_os("UPDATE_TRANSCRIPTS").is_some();
    let mut differ = Vec::new();
    for (name, title, flags, steps) in TYPICAL_RUNS {
        let (path, text) = (folder.join(format!("{name}.txt")), transcript(title, flags, steps));
        if is_update {
            std::fs::write(&path, &text).expect("the folder can be written");
        } else if std::fs::read_to_string(&path).unwrap_or_default() != text {
            differ.push(format!("{name}.txt should be:\n{text}"));
        }
    }
    assert!(
        differ.is_empty(),
        "if the change is intended, rewrite them with UPDATE_TRANSCRIPTS=1\n\n{}",
        differ.join("\n")
    );
}
