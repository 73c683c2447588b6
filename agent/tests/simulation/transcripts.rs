//! Ten typical lives as files that a reviewer reads: what is set up, what happens, what the agent does and says. A change
//! of behaviour shows in them. `UPDATE_TRANSCRIPTS=1` writes them anew.

use std::path::PathBuf;
use std::time::Duration;

use super::life::step::Step;
use super::life::{Flags, Life};
use super::world::{Act, Behaviour, RegistryFault};

const USUAL: Flags = Flags { auto_update: true, auto_heal: true, auto_start: false, compose_watch: false };
const WATCHED: Flags = Flags { compose_watch: true, ..USUAL };

/// File, title, flags of both services, and what happens after how many milliseconds.
type Typical = (&'static str, &'static str, Flags, &'static [(u64, Step)]);

const LIVES: [Typical; 10] = [
    (
        "good_update",
        "A good image is proven, and told as updated after its probation",
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
        "An agent that is killed in the middle of a probation takes it up again",
        USUAL,
        &[
            (5_000, Step::World(Act::Push("web", Behaviour::Good))),
            (13_000, Step::Kill { calls: 3, away: 7, loses_write: false }),
        ],
    ),
    (
        "healed",
        "An unhealthy container is restarted once, and is well again",
        USUAL,
        &[(5_000, Step::World(Act::Sicken("api")))],
    ),
    (
        "exhausted",
        "A container that always falls over again is given up after three restarts, until a person acts",
        USUAL,
        &[(5_000, Step::World(Act::Push("web", Behaviour::LateCrash)))],
    ),
    (
        "stopped_by_a_person",
        "What a person stops is left alone, also by an agent that was away when it was stopped",
        USUAL,
        &[
            (5_000, Step::World(Act::Stop("web"))),
            (20_000, Step::StopAgent { away: 10 }),
            (25_000, Step::World(Act::Stop("api"))),
        ],
    ),
    (
        "compose_file_changed",
        "An edit of the compose file is applied; one that compose refuses is shown until it is mended",
        WATCHED,
        &[
            (15_000, Step::World(Act::Edit("api"))),
            (35_000, Step::World(Act::BreakFile)),
            (55_000, Step::World(Act::MendFile)),
        ],
    ),
    (
        "registry_away",
        "A registry that is away holds up nothing but updates, and what it has new is deployed when it is back",
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
        "Of two images of a project one is bad: each is judged by itself, one after the other",
        USUAL,
        &[
            (5_000, Step::World(Act::Push("web", Behaviour::Crash))),
            (5_500, Step::World(Act::Push("api", Behaviour::Good))),
        ],
    ),
    (
        "engine_restarts",
        "An engine that is restarted stops all containers; the agent starts them again, and blames no image",
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
    let life = Life { flags: [flags; 2], steps, ..Life::default() };
    let lived = life.run();
    assert_eq!(lived.violations, Vec::<String>::new(), "{title}:\n{}", lived.transcript.join("\n"));
    format!("{title}\n\n{}\nlife\n{}\n", life.words(), lived.transcript.join("\n"))
}

#[test]
fn typical_lives_are_as_they_were_written_down() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/simulation/transcripts");
    let is_update = std::env::var_os("UPDATE_TRANSCRIPTS").is_some();
    let mut differ = Vec::new();
    for (name, title, flags, steps) in LIVES {
        let (path, text) = (folder.join(format!("{name}.txt")), transcript(title, flags, steps));
        if is_update {
            std::fs::write(&path, &text).expect("the folder can be written");
        } else if std::fs::read_to_string(&path).unwrap_or_default() != text {
            differ.push(format!("{name}.txt should be:\n{text}"));
        }
    }
    assert!(
        differ.is_empty(),
        "where that is meant, UPDATE_TRANSCRIPTS=1 writes them anew\n\n{}",
        differ.join("\n")
    );
}
