//! `GET /why/<name>`: the state of every gate of a service, with the first reason in one sentence (DECISIONS 7).

use evenkeel_common::wire::{DeployPhase, DeployProgress, Gate, ServiceStatus, WhyReport};

use crate::ports::PullProgress;
use crate::service::decide::image::{ImageDecision, shown_hold};
use crate::service::decide::running::ImageState;
use crate::service::gates::candidate::Candidate;
use crate::service::gates::config::{faulty, probes_nothing};
use crate::service::gates::fleet::with_freeze;
use crate::service::gates::rules::{CONFIG, FREEZE, cleared_by, held, open};
use crate::service::gates::{DIGEST_GATES, declined, declined_tag};
use crate::service::view::status::StatusContext;
use crate::service::wording::seconds;
use crate::service::{Service, wording};

const SCHEDULE: &str = "schedule";

/// The input of a gate.
struct View<'a> {
    record: &'a ServiceStatus,
    service: &'a Service,
    decisions: &'a [ImageDecision<'a>],
    registry_error: Option<&'a str>,
    context: &'a StatusContext,
}

impl View<'_> {
    /// The digests that are subject to gates.
    fn candidates(&self) -> impl Iterator<Item = &Candidate> {
        self.decisions.iter().filter_map(|decision| decision.candidate.as_ref())
    }
}

/// The gates that apply before a digest is found, in evaluation order.
const GATES: [fn(&View<'_>) -> Gate; 7] = [config, engine, registry, deploying, blocked, not_found, fault];

/// The state of every gate of a service, with the first reason in one sentence.
pub fn why(service: &Service, context: &StatusContext) -> WhyReport {
    let record = service.record(PullProgress::default(), context);
    let decisions = service.seen_decisions(context.now);
    let registry_error = service.registry_error();
    let registry_error = registry_error.as_deref();
    let view = View { record: &record, service, decisions: &decisions, registry_error, context };
    let before = GATES.iter().map(|gate| gate(&view));
    let gates: Vec<Gate> = before.chain(digest_gates(&view)).chain([schedule(&view)]).collect();
    let held = gates.iter().find(|gate| gate.holds && gate.gate != SCHEDULE);
    let answer = held.map_or_else(|| nothing_to_do(&view), |gate| gate.why.clone());
    WhyReport { service: record.name.clone(), answer, gates }
}

/// The state of each digest gate for the held digest that is shown, or else for the first candidate.
fn digest_gates<'a>(view: &'a View<'_>) -> impl Iterator<Item = Gate> + 'a {
    let rules = view.service.rules(view.context.now);
    let held = shown_hold(view.decisions).map(|(candidate, _)| candidate);
    let candidate = held.or_else(|| view.candidates().next());
    // The first gate of all has reported a faulty configuration already.
    let rows = DIGEST_GATES.iter().filter(|row| row.word != CONFIG);
    rows.map(move |row| match (Some(rules).filter(|rules| (row.is_configured)(rules)), candidate) {
        (None, _) => open(row.word, "not configured"),
        (Some(_), None) => idle(view, row.word),
        (Some(rules), Some(candidate)) => rules.judge(row, candidate),
    })
}

fn engine(view: &View<'_>) -> Gate {
    match (&view.context.engine_error, &view.context.state_error) {
        (Some(error), _) => held("engine", format!("the container engine does not answer: {error}")),
        (None, Some(error)) => held("engine", error.clone()),
        (None, None) => open("engine", "the container engine answers"),
    }
}

fn registry(view: &View<'_>) -> Gate {
    match view.registry_error {
        Some(text) => Gate { lifts_at: view.record.next_check, ..held("registry", text) },
        None => open("registry", "the registry answered the last check"),
    }
}

fn deploying(view: &View<'_>) -> Gate {
    match &view.record.deploy {
        Some(progress) => Gate {
            lifts_at: progress.deadline,
            ..held("deploying", describe(progress, view.service.config().swarm_service.as_deref()))
        },
        None => match view.service.waits_for() {
            Some(other) => held("deploying", wording::waits_for_sibling(&other)),
            None => open("deploying", "no deployment is in progress"),
        },
    }
}

fn describe(progress: &DeployProgress, swarm_service: Option<&str>) -> String {
    let image = &progress.image;
    if let Some(hook) = &progress.hook {
        return format!("the hook {hook} is running, and {image} is pulled once it has ended");
    }
    match progress.phase {
        DeployPhase::Pulling if progress.total_bytes > 0 => {
            let percent = progress.pulled_bytes.saturating_mul(100) / progress.total_bytes;
            format!("{image} is being pulled ({percent} %)")
        }
        DeployPhase::Pulling => format!("{image} is being pulled"),
        DeployPhase::Starting => match swarm_service {
            Some(service) => format!("the swarm is replacing the tasks of {service} with {image}"),
            None => format!("the project is being started with {image}"),
        },
        DeployPhase::Probation => match &progress.probe {
            Some(probe) => format!("{image} is on probation; {}", wording::probed(probe)),
            None => format!("{image} is on probation"),
        },
        DeployPhase::RollingBack => format!("{image} failed and is being rolled back"),
        DeployPhase::Spreading => format!("{image} is being started beside the old containers"),
        DeployPhase::Draining => format!("{image} is proven; the old containers are being drained"),
        DeployPhase::Retiring => format!("{image} is proven; the old containers are being stopped"),
        DeployPhase::Soaking => format!("{image} serves alone and is on probation once more"),
        DeployPhase::Settling => format!("{image} is proven; the old containers are being removed"),
        DeployPhase::Quiescing => {
            format!("what writes to the data is being stopped before {image} is started")
        }
        DeployPhase::Copying => format!("the data is being copied before {image} is started"),
        DeployPhase::Restoring => format!("{image} failed; the data is being put back"),
    }
}

fn blocked(view: &View<'_>) -> Gate {
    let images = &view.service.durable().images;
    let Some((image, digest)) = images.blocked().next() else {
        if let Some((image, digest)) = images.declined().next() {
            return declined(&view.record.name, image, digest);
        }
        let mut of_images = images.iter();
        if let Some((image, tag)) =
            of_images.find_map(|(image, memory)| Some((image, memory.declined_tag.as_ref()?)))
        {
            return declined_tag(&view.record.name, image, tag);
        }
        if let Some((_, _, gate)) = view.service.held_by_block_elsewhere() {
            return gate;
        }
        return open("blocked", "no digest is blocked");
    };
    let failed = view.service.failed_update_of(image, digest);
    let because = failed.filter(|failed| !failed.by_hand);
    let because =
        because.map(|failed| wording::failed_because(&failed.reason, failed.at)).unwrap_or_default();
    let why = format!("{image}: {}{because}", view.service.why_blocked(image, digest));
    let output = failed.map(|failed| failed.output.clone()).filter(|output| !output.is_empty());
    let gate = Gate { output, ..held("blocked", why) };
    cleared_by(format!("POST /unblock/{}", view.record.name), gate)
}

fn not_found(view: &View<'_>) -> Gate {
    let Some((image, digest)) = view.service.durable().images.not_found().next() else {
        return open("not_found", "every image has a registry digest on this machine");
    };
    let why = format!(
        "{image} has no registry digest on this machine to compare with {digest}; nothing is deployed until the registry \
         has a new digest"
    );
    cleared_by(format!("POST /redeploy/{}", view.record.name), held("not_found", why))
}

/// A fault that is caused neither by the engine nor by a registry: a failed deployment or unusable files.
fn fault(view: &View<'_>) -> Gate {
    let elsewhere = view.context.state_error.is_some() || view.registry_error.is_some();
    match view.record.errored.as_ref().filter(|_| !elsewhere) {
        Some(text) => {
            let postponed = view.service.durable().postponed.iter();
            let postponed = postponed.filter(|one| !one.why.is_empty() && text.contains(&one.why));
            let until = postponed.map(|one| one.until).filter(|until| *until > view.context.now).min();
            let (text, next) = match until {
                Some(until) => (format!("{text}; the next attempt is at {}", seconds(until)), Some(until)),
                None if view.service.holds_failed(view.decisions) => {
                    (format!("{text}; the next attempt waits for a gate"), None)
                }
                None => (text.clone(), view.record.next_check),
            };
            cleared_by(
                format!("fix it, then {}", check(view)),
                Gate { lifts_at: next, ..held("fault", text) },
            )
        }
        None => open("fault", "there is no persistent fault"),
    }
}

/// The request of a check that passes no gate: another image may wait for an approval.
fn check(view: &View<'_>) -> String {
    format!("POST /trigger/{}?pass=false", view.record.name)
}

fn schedule(view: &View<'_>) -> Gate {
    match view.record.next_check {
        Some(at) if at > view.context.now => cleared_by(
            check(view),
            Gate { lifts_at: Some(at), ..held(SCHEDULE, format!("the next check is at {}", seconds(at))) },
        ),
        Some(_) => open(SCHEDULE, "a check is due"),
        None => held(SCHEDULE, "no poll cycle checks this service"),
    }
}

/// The answer if no gate holds: an update is about to begin, or the service is up to date as of the last check.
fn nothing_to_do(view: &View<'_>) -> String {
    let next = view.record.next_check.map(|at| format!("; the next check is at {}", seconds(at)));
    let next = next.unwrap_or_default();
    let runs = |image: &ImageState| {
        let proven = image.proven_at.map(|at| format!(", proven at {}", seconds(at))).unwrap_or_default();
        image.running.as_ref().map(|digest| format!("; {} runs{proven}", digest.short()))
    };
    let runs: String = view.service.image_states().iter().filter_map(runs).collect();
    let frozen = freeze_in_force(view).map(|gate| format!("; {}", gate.why)).unwrap_or_default();
    let unlisted: Vec<String> = view.service.unlisted_tags().map(|why| format!("; {why}")).collect();
    let unlisted = unlisted.concat();
    if view.service.wants_update() {
        return format!("an update was found, and begins now{runs}");
    }
    match view.record.last_check {
        Some(at) => format!("up to date as of the check at {}{runs}{next}{frozen}{unlisted}", seconds(at)),
        None => format!("not checked yet{next}{frozen}"),
    }
}

fn config(view: &View<'_>) -> Gate {
    let (word, config) = (CONFIG, view.service.config());
    if !config.auto_update {
        return cleared_by(
            "set auto_update to true in the configuration",
            held(word, "auto_update is false: the agent does not check for new images"),
        );
    }
    if config.images.is_empty() {
        return cleared_by("name images in the configuration", held(word, "no image is configured"));
    }
    if !config.can_deploy() {
        return cleared_by(
            "configure compose_files and compose_project, or swarm_service",
            held(word, "no compose project is configured, so new images can't be deployed"),
        );
    }
    if config.images.iter().all(|image| image.reference.is_pinned()) {
        return cleared_by(
            "configure an image by its tag",
            held(word, "every image is pinned to a digest, which never changes"),
        );
    }
    if let Some(why) = view.service.undeployable() {
        return held(word, why);
    }
    let faulty = config.update.as_deref().and_then(faulty);
    let faulty = faulty.or_else(|| view.candidates().find_map(probes_nothing));
    faulty.unwrap_or_else(|| open(word, "auto_update is on"))
}

/// Returns the freeze that would hold an update of the service, as an open gate while there is no update.
fn freeze_in_force(view: &View<'_>) -> Option<Gate> {
    let (config, fleet) = (view.service.config(), view.service.fleet());
    let images = config.images.iter().filter(|_| config.auto_update);
    let freezes = images.filter_map(|image| fleet.freeze(&image.reference, view.context.now));
    let longest = freezes.max_by_key(|freeze| freeze.until)?;
    Some(with_freeze(fleet, longest, open(FREEZE, String::new())))
}

/// The state of a gate while there is no digest to hold.
fn idle(view: &View<'_>, word: &str) -> Gate {
    let frozen = freeze_in_force(view).filter(|_| word == FREEZE);
    frozen.unwrap_or_else(|| open(word, "there is no update to hold"))
}

#[cfg(test)]
#[path = "why_tests.rs"]
mod tests;
