//! Random runs of two services in one compose project.
//!
//! `EVENKEEL_LIVES` sets the number of runs, and `EVENKEEL_SEED` the first seed; a seed alone repeats and prints that run.
//! The first failed run is printed in full, reduced to the steps that are needed to reproduce the failure.

use super::run::Simulation;
use super::run::random::simulation;

/// The default number of runs. `dist/test.sh --all` runs thousands.
const DEFAULT_RUNS: u64 = 200;

/// The runs are shared between this many tests, which run in parallel.
const PARTS: u64 = 4;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

/// Removes the steps that are not needed to violate the same property.
fn shortest(mut simulation: Simulation, property: &str) -> Simulation {
    let mut at = 0;
    while at < simulation.steps.len() {
        let mut shorter = simulation.clone();
        shorter.steps.remove(at);
        if shorter.run().violations.iter().any(|violation| violation.starts_with(property)) {
            simulation = shorter;
        } else {
            at += 1;
        }
    }
    simulation
}

fn report(seed: u64, simulation: &Simulation, violation: &str) -> String {
    let property = violation.split(':').next().unwrap_or_default();
    let simulation = shortest(simulation.clone(), property);
    let outcome = simulation.run();
    format!(
        "{violation}\nEVENKEEL_SEED={seed} repeats the run. The steps needed to reproduce it:\n\n{}\nrun\n{}\n{:#?}\n",
        simulation.describe(),
        outcome.transcript.join("\n"),
        outcome.violations,
    )
}

/// Runs those whose seed is `part` modulo the number of parts.
fn run_part(part: u64) {
    let first = number("EVENKEEL_SEED");
    let count = number("EVENKEEL_LIVES").unwrap_or(if first.is_some() { 1 } else { DEFAULT_RUNS });
    let mut failed = Vec::new();
    let seeds = (first.unwrap_or_default()..).zip(0..count).map(|(seed, _)| seed);
    for seed in seeds.filter(|seed| seed % PARTS == part) {
        let simulation = simulation(seed);
        let outcome = simulation.run();
        if first.is_some() && count == 1 {
            println!("{}", outcome.transcript.join("\n"));
        }
        if let Some(violation) = outcome.violations.first() {
            failed.push((seed, simulation, violation.clone()));
        }
    }
    let line = |(seed, _, violation): &(u64, Simulation, String)| format!("seed {seed}: {violation}\n");
    let list = failed.iter().map(line).collect::<Vec<_>>().concat();
    if let Some((seed, simulation, violation)) = failed.first() {
        panic!("{} runs failed\n{list}\n{}", failed.len(), report(*seed, simulation, violation));
    }
}

mod random_runs_of_two_services_in_a_project_keep_every_property {
    #[test]
    fn part_1() {
        super::run_part(0);
    }

    #[test]
    fn part_2() {
        super::run_part(1);
    }

    #[test]
    fn part_3() {
        super::run_part(2);
    }

    #[test]
    fn part_4() {
        super::run_part(3);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for (seed, simulation) in (0..12).map(|seed| (seed, simulation(seed))) {
        let run = || simulation.run().transcript.iter().map(|line| without_folder(line)).collect::<Vec<_>>();
        assert_eq!(run(), run(), "seed {seed}");
    }
}

/// Removes the name of the run's folder, which differs each time.
fn without_folder(line: &str) -> String {
    match line.split_once("/.tmp") {
        Some((before, after)) => {
            let rest = after.split_once('/').map_or("", |(_, rest)| rest);
            format!("{before}/{}", without_folder(rest))
        }
        None => line.to_owned(),
    }
}
