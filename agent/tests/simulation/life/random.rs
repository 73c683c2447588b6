//! Lives at random: the same ones for the same seed.

use std::time::Duration;

use evenkeel_agent::service::input::ServiceRequest;

use crate::world::{Act, Behaviour, EventFault, RegistryFault, StoreFault, UpFault};

use super::step::{At, Step};
use super::{Flags, Life};

/// Numbers that look random and are the same in every run (`SplitMix64`).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).expect("a slice is that long")]
    }
}

/// The life of a seed.
pub(crate) fn life(seed: u64) -> Life {
    let mut dice = Dice::new(seed);
    let mut flags = || Flags {
        auto_update: !dice.one_in(8),
        auto_heal: !dice.one_in(3),
        auto_start: dice.one_in(2),
        compose_watch: dice.one_in(3),
    };
    let flags = [flags(), flags()];
    let mut life =
        Life { flags, restarts_itself: dice.one_in(3), has_third: dice.one_in(3), steps: Vec::new() };
    let count = 1 + dice.below(6);
    let mut at = Duration::from_millis(dice.below(12_000));
    for _ in 0..count {
        steps(&mut dice, at, &mut life.steps);
        // Often in the middle of what the last one has begun.
        let pause = dice.of(&[300, 2_000, 8_000, 20_000]);
        at += Duration::from_millis(1 + dice.below(pause));
    }
    life.steps.sort_by_key(|(at, _)| *at);
    life
}

/// One thing that happens, and what ends it.
fn steps(dice: &mut Dice, at: Duration, steps: &mut Vec<At>) {
    let service = dice.of(&["web", "web", "api"]);
    let mut add = |act: Act| steps.push((at, Step::World(act)));
    match dice.below(28) {
        0..=6 => {
            let behaviour = dice.of(&[
                Behaviour::Good,
                Behaviour::Good,
                Behaviour::Good,
                Behaviour::Unchecked,
                Behaviour::Unhealthy,
                Behaviour::Crash,
                Behaviour::LateCrash,
                Behaviour::CrashLoop,
                Behaviour::Flapping,
                Behaviour::Oom,
                Behaviour::BadEntrypoint,
            ]);
            add(Act::Push(service, behaviour));
        }
        7 => add(Act::MoveBack(service)),
        8 => {
            add(Act::Registry(dice.of(&[RegistryFault::Errors, RegistryFault::Hangs, RegistryFault::Slow])));
            until(dice, at, steps, Act::Registry(RegistryFault::None));
        }
        9 => {
            add(Act::PullsFail(true));
            until(dice, at, steps, Act::PullsFail(false));
        }
        10 => {
            add(Act::UpFails(dice.of(&[UpFault::AtOnce, UpFault::Halfway])));
            until(dice, at, steps, Act::UpFails(UpFault::None));
        }
        11 => {
            add(Act::Store(dice.of(&[StoreFault::Refuses, StoreFault::Torn])));
            until(dice, at, steps, Act::Store(StoreFault::None));
        }
        12 => {
            add(Act::Events(dice.of(&[EventFault::Lost, EventFault::Doubled, EventFault::Late])));
            until(dice, at, steps, Act::Events(EventFault::None));
        }
        13 | 14 => add(Act::Crash(service)),
        15 => add(Act::Sicken(service)),
        16 => {
            add(Act::EngineStops);
            until(dice, at, steps, Act::EngineStarts);
        }
        17 => add(Act::StreamBreaks),
        18 | 19 => add(dice.of(&[
            Act::Stop(service),
            Act::Stop(service),
            Act::Start(service),
            Act::Restart(service),
            Act::Remove(service),
            Act::Pull(service),
            Act::Up,
            Act::Down,
            Act::Prune,
        ])),
        20 => add(Act::Edit(service)),
        21 => {
            add(Act::BreakFile);
            until(dice, at, steps, Act::MendFile);
        }
        22 => steps.push((at, asked(dice, service))),
        23 => steps.push((at, reload(dice, service))),
        24 => steps.push((at, Step::StopAgent { away: 1 + dice.below(20) })),
        _ => {
            let (calls, away) = (1 + usize::try_from(dice.below(60)).expect("small"), 1 + dice.below(20));
            steps.push((at, Step::Kill { calls, away, loses_write: dice.one_in(10) }));
        }
    }
}

fn until(dice: &mut Dice, at: Duration, steps: &mut Vec<At>, end: Act) {
    steps.push((at + Duration::from_millis(500 + dice.below(30_000)), Step::World(end)));
}

fn asked(dice: &mut Dice, service: &'static str) -> Step {
    match dice.below(5) {
        0 => Step::Poll,
        1 => Step::Ask(service, ServiceRequest::Unblock),
        2 => Step::Ask(service, ServiceRequest::Check),
        _ => Step::Ask(service, ServiceRequest::Redeploy),
    }
}

fn reload(dice: &mut Dice, service: &'static str) -> Step {
    match dice.below(6) {
        0 => Step::Drop(service),
        1 => Step::Add(service),
        2 => Step::Rename,
        _ => Step::Toggle(service, dice.of(&["auto_update", "auto_heal", "auto_start", "compose_watch"])),
    }
}
