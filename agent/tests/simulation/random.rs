//! Random lives of two services in one compose project.
//!
//! `EVENKEEL_LIVES` sets how many, and `EVENKEEL_SEED` the first of them: alone, it lives that one again and prints it. Of
//! those that fail the first is printed in full, without the steps that it does not need to fail.

use super::life::Life;
use super::life::random::life;

/// What takes half a minute of one processor in the debug build.
const LIVES: u64 = 700;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

/// The same life without the steps that it does not need to violate the same property.
fn shortest(mut life: Life, property: &str) -> Life {
    let mut at = 0;
    while at < life.steps.len() {
        let mut shorter = life.clone();
        shorter.steps.remove(at);
        if shorter.run().violations.iter().any(|violation| violation.starts_with(property)) {
            life = shorter;
        } else {
            at += 1;
        }
    }
    life
}

fn report(seed: u64, life: &Life, violation: &str) -> String {
    let property = violation.split(':').next().unwrap_or_default();
    let life = shortest(life.clone(), property);
    let lived = life.run();
    format!(
        "{violation}\nEVENKEEL_SEED={seed} lives it again. Without the steps that it does not need:\n\n{}\nlife\n{}\n{:#?}\n",
        life.words(),
        lived.transcript.join("\n"),
        lived.violations,
    )
}

#[test]
fn random_lives_of_two_services_in_a_project_keep_every_property() {
    let first = number("EVENKEEL_SEED");
    let count = number("EVENKEEL_LIVES").unwrap_or(if first.is_some() { 1 } else { LIVES });
    let mut failed = Vec::new();
    for seed in (first.unwrap_or_default()..).zip(0..count).map(|(seed, _)| seed) {
        let life = life(seed);
        let lived = life.run();
        if first.is_some() && count == 1 {
            println!("{}", lived.transcript.join("\n"));
        }
        if let Some(violation) = lived.violations.first() {
            failed.push((seed, life, violation.clone()));
        }
    }
    let line = |(seed, _, violation): &(u64, Life, String)| format!("seed {seed}: {violation}\n");
    let list = failed.iter().map(line).collect::<Vec<_>>().concat();
    if let Some((seed, life, violation)) = failed.first() {
        panic!("{} of {count} lives failed\n{list}\n{}", failed.len(), report(*seed, life, violation));
    }
}

#[test]
fn a_life_is_the_same_whenever_it_is_lived() {
    // An env file is read and written on other threads: when these end is not the life's to say.
    for (seed, life) in (0..48).map(|seed| (seed, life(seed))).filter(|(_, life)| !life.has_variable) {
        assert_eq!(life.run().transcript, life.run().transcript, "seed {seed}");
    }
}
