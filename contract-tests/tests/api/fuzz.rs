//! Runs the fuzz targets on their seeds and on many mutations of them. `fuzz/Cargo.toml` describes longer fuzzing.

use std::fs;
use std::path::Path;

#[path = "../../fuzz/targets.rs"]
mod targets;

/// Mutated inputs per seed, unless `EVENKEEL_FUZZ_ROUNDS` is set.
const ROUNDS: usize = 400;

/// A deterministic pseudo-random number generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % end.max(1)
    }

    /// Deletes, doubles, reverses or overwrites a piece of `input`, or replaces it with a piece of another seed.
    fn change(&mut self, input: &mut Vec<u8>, other: &[u8]) {
        const TOKENS: [&[u8]; 10] = [
            b"null",
            b"-1",
            b"18446744073709551615",
            b"1e999",
            b"\"\"",
            b"[]",
            b"{}",
            b"\\ud800",
            b"\xff",
            b"\0",
        ];
        let from = self.below(input.len());
        let to = from + self.below((input.len() - from).min(40) + 1);
        let piece = match self.below(5) {
            0 => Vec::new(),
            1 => input[from..to].repeat(2),
            2 => input[from..to].iter().rev().copied().collect(),
            3 => TOKENS[self.below(TOKENS.len())].to_vec(),
            _ => {
                let start = self.below(other.len());
                let length = self.below((other.len() - start).min(40) + 1);
                other[start..start + length].to_vec()
            }
        };
        input.splice(from..to, piece);
    }
}

fn seeds(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(name);
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|file| file.expect("the folder can be read").path())
        .collect();
    paths.sort();
    paths.into_iter().map(|path| fs::read(path).expect("a seed can be read")).collect()
}

fn feed(name: &str, target: fn(&[u8])) {
    let seeds = seeds(name);
    assert!(!seeds.is_empty(), "{name} has seeds");
    let rounds = std::env::var("EVENKEEL_FUZZ_ROUNDS").ok();
    let rounds = rounds.map_or(ROUNDS, |rounds| rounds.parse().expect("EVENKEEL_FUZZ_ROUNDS is a number"));
    let mut dice = Dice(1);
    for seed in &seeds {
        target(seed);
        for _ in 0..rounds {
            let mut input = seed.clone();
            for _ in 0..=dice.below(4) {
                let other = dice.below(seeds.len());
                dice.change(&mut input, &seeds[other]);
            }
            // Report the input that causes the panic.
            let shown = String::from_utf8_lossy(&input).into_owned();
            let result = std::panic::catch_unwind(|| target(&input));
            assert!(result.is_ok(), "{name} breaks on {shown:?}");
        }
    }
}

#[test]
fn no_ingest_body_breaks_the_warden() {
    feed("ingest", targets::ingest);
}

#[test]
fn no_state_file_breaks_the_warden() {
    feed("warden_state", targets::warden_state);
}

#[test]
fn no_registry_event_breaks_the_agent() {
    feed("registry_events", targets::registry_events);
}

#[test]
fn every_image_reference_has_one_canonical_form() {
    feed("image_reference", targets::image_reference);
}

#[test]
fn no_webhook_template_exceeds_its_limits() {
    feed("template", targets::template);
}

#[test]
fn no_configuration_breaks_the_parser() {
    feed("configuration", targets::configuration);
}
