//! Random runs, determined by their seed.

use std::time::Duration;

use evenkeel_agent::service::input::ServiceRequest;

use crate::world::{
    Act, Behaviour, CommandFault, EventFault, ProbeFault, RegistryFault, StoreFault, UpFault,
};

use super::gates::Gates;
use super::step::{Step, TimedStep};
use super::{Flags, Simulation};

/// A seeded pseudo-random number generator (`SplitMix64`).
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

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).expect("a slice is that long")]
    }
}

/// Returns the run of a seed.
pub(crate) fn simulation(seed: u64) -> Simulation {
    let mut dice = Dice::new(seed);
    let mut flags = || Flags {
        auto_update: !dice.one_in(8),
        auto_heal: !dice.one_in(3),
        auto_start: dice.one_in(2),
        compose_watch: dice.one_in(3),
    };
    let flags = [flags(), flags()];
    let gates = [gates(&mut dice), gates(&mut dice)];
    let (restarts_itself, has_third) = (dice.one_in(3), dice.one_in(3));
    let mut simulation = Simulation { flags, gates, restarts_itself, has_third, ..Simulation::default() };
    let count = 1 + dice.below(6);
    let mut at = Duration::from_millis(dice.below(12_000));
    for _ in 0..count {
        steps(&mut dice, at, &mut simulation.steps);
        // Often before the effects of the last step are over.
        let pause = dice.pick(&[300, 2_000, 8_000, 20_000]);
        at += Duration::from_millis(1 + dice.below(pause));
    }
    if dice.one_in(3) {
        set_clock(&mut dice, at, &mut simulation.steps);
    }
    simulation.shares_image = dice.one_in(4);
    if dice.one_in(6) {
        newer_tags(&mut dice, at, &mut simulation);
    }
    if dice.one_in(4) {
        probes(&mut dice, at, &mut simulation);
    }
    if dice.one_in(4) {
        moved_volumes(&mut dice, at, &mut simulation);
    }
    if dice.one_in(4) {
        for _ in 0..=dice.below(2) {
            let at = at + Duration::from_millis(dice.below(60_000));
            let service = dice.pick(&["web", "api"]);
            let data = at.as_millis().is_multiple_of(2);
            simulation.steps.push((at, Step::Ask(service, ServiceRequest::Rollback { to: None, data })));
        }
    }
    if dice.one_in(3) {
        simulation.starts_first = true;
        simulation.drains = dice.one_in(2);
    }
    // What another service deploys under the same name has its own rules.
    let is_own = simulation.flags[0].auto_update && !simulation.shares_image && !simulation.starts_first;
    simulation.has_data = is_own && dice.one_in(2);
    simulation.steps.sort_by_key(|(at, _)| *at);
    simulation
}

/// Has services probe their new containers, pushes images that never answer, and sometimes lets the probes lie.
fn probes(dice: &mut Dice, end: Duration, simulation: &mut Simulation) {
    for gates in &mut simulation.gates {
        gates.probe = !dice.one_in(3);
    }
    let end = u64::try_from(end.as_millis()).unwrap_or(1) + 20_000;
    for _ in 0..=dice.below(2) {
        let at = Duration::from_millis(dice.below(end));
        let behaviour = dice.pick(&[Behaviour::Mute, Behaviour::Mute, Behaviour::Unchecked]);
        simulation.steps.push((at, Step::World(Act::Push(dice.pick(&["web", "api"]), behaviour))));
        if dice.one_in(3) {
            let fault = dice.pick(&[ProbeFault::Fails, ProbeFault::Passes]);
            simulation.steps.push((at, Step::World(Act::Probe(fault))));
            until(dice, at, &mut simulation.steps, Act::Probe(ProbeFault::None));
        }
    }
}

/// Has services ask before the configuration of an image changes, and pushes images that declare another volume: also
/// shortly after others, so that the difference appears between the check and the pull.
fn moved_volumes(dice: &mut Dice, end: Duration, simulation: &mut Simulation) {
    for gates in &mut simulation.gates {
        gates.ask_on = !dice.one_in(4);
    }
    let end = u64::try_from(end.as_millis()).unwrap_or(1) + 20_000;
    for _ in 0..=dice.below(2) {
        let service = dice.pick(&["web", "api"]);
        let at = Duration::from_millis(dice.below(end));
        if dice.one_in(2) {
            simulation.steps.push((at, Step::World(Act::Push(service, Behaviour::Good))));
            simulation.steps.push((at, Step::Poll));
        }
        let later = at + Duration::from_millis(dice.below(3_000));
        simulation.steps.push((later, Step::World(Act::PushMoved(service))));
        if dice.one_in(2) {
            let later = later + Duration::from_millis(dice.below(30_000));
            let request = if dice.one_in(3) { ServiceRequest::Check } else { ServiceRequest::Approve(None) };
            simulation.steps.push((later, Step::Ask(service, request)));
        }
    }
}

/// Has an env file set the tag of `web`, and pushes newer tags; the agent may be killed while it deploys one.
fn newer_tags(dice: &mut Dice, end: Duration, simulation: &mut Simulation) {
    (simulation.has_variable, simulation.shares_image) = (true, false);
    for _ in 0..=dice.below(3) {
        let at = Duration::from_millis(dice.below(u64::try_from(end.as_millis()).unwrap_or(1) + 30_000));
        let later = |millis| at + Duration::from_millis(millis);
        match dice.below(8) {
            0 => simulation.steps.push((at, Step::World(Act::PushSameNewer))),
            1 => simulation.steps.push((at, Step::World(Act::EditEnvFile))),
            _ => push(dice, at, &mut simulation.steps, "web", Act::PushNewer),
        }
        if dice.one_in(2) {
            let calls = 1 + usize::try_from(dice.below(140)).expect("small");
            simulation
                .steps
                .push((later(1), Step::Kill { calls, away: 1 + dice.below(10), loses_write: false }));
        }
        if dice.one_in(4) {
            simulation.steps.push((later(dice.below(20_000)), Step::World(Act::EditEnvFile)));
        }
    }
}

/// An operator sets the clock while updates may be waiting, forward or back, by half a minute to three days.
fn set_clock(dice: &mut Dice, end: Duration, steps: &mut Vec<TimedStep>) {
    let service = dice.pick(&["web", "api"]);
    let times = 1 + dice.below(3);
    for _ in 0..times {
        let at = Duration::from_millis(dice.below(u64::try_from(end.as_millis()).unwrap_or(1) + 20_000));
        let by = dice.pick(&[30, 600, 7_200, 86_400, 259_200]) * dice.pick(&[1, -1]);
        steps.push((at, Step::World(Act::SetClock(by))));
    }
    if dice.one_in(2) {
        push(dice, end, steps, service, |behaviour| Act::Push(service, behaviour));
    }
}

fn gates(dice: &mut Dice) -> Gates {
    if dice.one_in(2) {
        return Gates::default();
    }
    Gates {
        min_age: dice.one_in(3).then(|| 5 + dice.below(40)),
        window: dice.one_in(4).then(|| dice.pick(&["00:01-24:00", "00:02-24:00", "00:00-00:01"])),
        approve: dice.one_in(3),
        command: dice.one_in(3),
        signed: dice.one_in(3),
        probe: false,
        ask_on: false,
    }
}

/// Pushes a new image, and sometimes adds the signature or the request that it waits for.
fn push(
    dice: &mut Dice,
    at: Duration,
    steps: &mut Vec<TimedStep>,
    service: &'static str,
    act: impl Fn(Behaviour) -> Act,
) {
    let behaviour = dice.pick(&[
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
    steps.push((at, Step::World(act(behaviour))));
    // Without signature or approval it waits for ever.
    if dice.one_in(3) {
        until(dice, at, steps, Act::Sign(service));
    }
    if dice.one_in(3) {
        let later = at + Duration::from_millis(dice.below(40_000));
        let request =
            dice.pick(&[None, Some(())]).map_or(ServiceRequest::Check, |()| ServiceRequest::Approve(None));
        steps.push((later, Step::Ask(service, request)));
    }
}

/// Adds an event, and the event that ends it.
#[allow(clippy::too_many_lines)] // one line per kind of step
fn steps(dice: &mut Dice, at: Duration, steps: &mut Vec<TimedStep>) {
    let service = dice.pick(&["web", "web", "api"]);
    let mut add = |act: Act| steps.push((at, Step::World(act)));
    match dice.below(37) {
        28 => add(Act::Ruin(service)),
        29 => stop_before_a_gap(dice, at, steps),
        30 => kill_while_a_tag_is_moved(dice, at, steps),
        31 => {
            add(Act::Command(dice.pick(&[CommandFault::Waits, CommandFault::Fails])));
            if !dice.one_in(4) {
                until(dice, at, steps, Act::Command(CommandFault::None));
            }
        }
        33 => {
            add(Act::Cut(true));
            if dice.one_in(2) {
                // Somebody stops a container meanwhile.
                let later = at + Duration::from_millis(dice.below(5_000));
                steps.push((later, Step::World(Act::Stop(service))));
            }
            until(dice, at, steps, Act::Cut(false));
        }
        34 => {
            add(Act::Pause(service));
            until(dice, at, steps, Act::Unpause(service));
        }
        35 => add(Act::Commit(service)),
        36 => {
            let seconds = dice.pick(&[3, 12, 40]);
            steps.push((at, Step::World(Act::StopSlowly(service, seconds))));
        }
        32 => steps.push((at, Step::Ask(service, ServiceRequest::Approve(None)))),
        0..=6 => push(dice, at, steps, service, |behaviour| Act::Push(service, behaviour)),
        7 => add(Act::MoveBack(service)),
        8 => {
            add(Act::Registry(dice.pick(&[
                RegistryFault::Errors,
                RegistryFault::Hangs,
                RegistryFault::Slow,
            ])));
            until(dice, at, steps, Act::Registry(RegistryFault::None));
        }
        9 => {
            add(Act::PullsFail(true));
            until(dice, at, steps, Act::PullsFail(false));
        }
        10 => {
            add(Act::UpFails(dice.pick(&[UpFault::AtOnce, UpFault::Halfway])));
            until(dice, at, steps, Act::UpFails(UpFault::None));
        }
        11 => {
            add(Act::Store(dice.pick(&[StoreFault::Refuses, StoreFault::Torn])));
            until(dice, at, steps, Act::Store(StoreFault::None));
        }
        12 => {
            add(Act::Events(dice.pick(&[EventFault::Lost, EventFault::Doubled, EventFault::Late])));
            until(dice, at, steps, Act::Events(EventFault::None));
        }
        13 | 14 => add(Act::Crash(service)),
        15 => add(Act::Sicken(service)),
        16 => {
            add(Act::EngineStops);
            until(dice, at, steps, Act::EngineStarts);
        }
        17 => add(Act::StreamBreaks),
        18 | 19 => add(dice.pick(&[
            Act::Stop(service),
            Act::Stop(service),
            Act::Start(service),
            Act::Restart(service),
            Act::Remove(service),
            Act::Pull(service),
            Act::Up,
            Act::Down,
            Act::Prune,
            Act::Build(service),
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

/// Adds a stop that the agent can distinguish from one of the engine's own only by reading the events again.
fn stop_before_a_gap(dice: &mut Dice, at: Duration, steps: &mut Vec<TimedStep>) {
    let gap = at + Duration::from_millis(1_200 + dice.below(8_000));
    steps.push((at, Step::World(Act::Stop("web"))));
    steps.push((gap, Step::World(Act::StreamBreaks)));
}

/// Adds an update next to a service whose tag does not name its running image, and a kill while that tag is moved.
fn kill_while_a_tag_is_moved(dice: &mut Dice, at: Duration, steps: &mut Vec<TimedStep>) {
    let later = |millis| at + Duration::from_millis(millis);
    let behaviour = dice.pick(&[Behaviour::Good, Behaviour::Unhealthy]);
    steps.push((at, Step::World(Act::Build("api"))));
    steps.push((later(1), Step::World(Act::Push("web", behaviour))));
    steps.push((later(2), Step::Poll));
    let calls = 10 + usize::try_from(dice.below(70)).expect("small");
    steps.push((later(3), Step::Kill { calls, away: 1 + dice.below(10), loses_write: false }));
}

fn until(dice: &mut Dice, at: Duration, steps: &mut Vec<TimedStep>, end: Act) {
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
        _ => Step::Toggle(service, dice.pick(&["auto_update", "auto_heal", "auto_start", "compose_watch"])),
    }
}
