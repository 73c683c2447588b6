//! Sentences about a single container: its condition, its problems, external interference; and log lines.

use evenkeel_common::wire::ProbeProgress;

use crate::model::{Container, Manager};
use crate::service::event::{NoRemedy, Note};
use crate::service::health::assess::{Condition, Inactive, Symptom, Trouble};
use crate::service::rollout::probation::{Flaw, Interference, Reason, TaskFault};

/// Why a manually stopped project is not healthy.
pub(in crate::service) const STOPPED_BY_HAND: &str = "stopped by hand";

/// Describes external interference with a container on probation.
pub(in crate::service) fn interference(how: &Interference) -> String {
    match how {
        Interference::Stopped { container } => format!("container {container} was stopped by someone"),
        Interference::Paused { container } => format!("container {container} was paused by someone"),
        Interference::Replaced { container, image } => {
            format!("container {container} was moved to another image ({image}) by someone")
        }
        Interference::Removed { compose_service } => {
            format!("the container of compose service {compose_service} was removed by someone")
        }
        Interference::Unknown { container, unprobed: true } => {
            format!("the engine ran no health check of container {container}")
        }
        Interference::Unknown { container, unprobed: false } => {
            format!("the engine answers no inspection of container {container}")
        }
        Interference::Words(words) => words.clone(),
    }
}

/// Describes why a container fails its probation.
fn flaw(container: &str, flaw: &Flaw) -> String {
    let what = match flaw {
        Flaw::OutOfMemory => "was OOM-killed (out of memory)".to_owned(),
        Flaw::CrashLoop { restarts, exit_code } => {
            format!("keeps crashing: restarted {restarts} times, exit code {exit_code}")
        }
        Flaw::BecameUnhealthy => "turned unhealthy after it had been healthy".to_owned(),
        Flaw::Exited { exit_code } => format!("exited with code {exit_code}"),
        Flaw::Unhealthy => "is unhealthy".to_owned(),
        Flaw::NotHealthyInTime => "was not healthy by the end of its probation".to_owned(),
        Flaw::Crashed { exit_code } => {
            format!("crashed and was restarted during its probation, exit code {exit_code}")
        }
        Flaw::StartedAgain => "was started again during its probation".to_owned(),
        Flaw::EndedUnexpectedly => "exited with code 0 although it used to keep running".to_owned(),
        Flaw::NotStarted => "could not be started".to_owned(),
        Flaw::EndState(state) => format!("was {} at the end of its probation", state.as_str()),
        Flaw::ProbeFailed { probe, answer } if container.is_empty() => {
            return format!("{probe} did not succeed by the end of the probation: {answer}");
        }
        Flaw::ProbeLost { probe, answer } if container.is_empty() => {
            return format!("{probe} failed after it had succeeded: {answer}");
        }
        Flaw::ProbeFailed { probe, answer } => {
            format!("did not answer its probe by the end of its probation ({probe}): {answer}")
        }
        Flaw::ProbeLost { probe, answer } => format!("stopped answering its probe ({probe}): {answer}"),
        Flaw::NotUpdated => {
            return format!("compose did not update container {container}: it still has its previous image");
        }
    };
    format!("container {container} {what}")
}

/// The failure of a deployment after which the containers that the probe names are gone.
fn probed_service_is_gone(service: &str) -> String {
    format!("no container of {service}, which the probe asks, was running at the end of the probation")
}

/// The hold of an update whose probe names a compose service that does not exist.
pub(in crate::service) fn probe_names_no_service(service: &str) -> String {
    format!("update.probe.service: the compose files have no service {service}")
}

/// What a probe has shown so far.
pub(in crate::service) fn probed(probe: &ProbeProgress) -> String {
    let ProbeProgress { probe, passed, answer } = probe;
    match (answer, passed) {
        (None, _) => format!("its probe ({probe}) has not been answered yet"),
        (Some(answer), true) => format!("its probe ({probe}) has succeeded: {answer}"),
        (Some(answer), false) => format!("its probe ({probe}) has not succeeded yet: {answer}"),
    }
}

/// Describes what is wrong with a container.
pub(in crate::service) fn trouble(what: &Trouble) -> String {
    match what {
        Trouble::Symptom(found) => symptom(found),
        Trouble::Words(words) => words.clone(),
    }
}

/// Adds to a problem why the healer can do nothing about it, if it can't.
pub(in crate::service) fn with_remedy(problem: String, no_remedy: Option<NoRemedy>) -> String {
    match no_remedy {
        None => problem,
        Some(NoRemedy::CutOff) => format!("{problem}; recreate it: a restart does not help"),
        Some(NoRemedy::Removed) => {
            format!("{problem}; it was removed when it ended (--rm), so it can't be restarted")
        }
    }
}

/// Describes why new containers are rejected.
pub(in crate::service) fn rejection(reason: &Reason) -> String {
    match reason {
        Reason::Flaw { container, flaw: found } => flaw(container, found),
        Reason::ProbedServiceGone { probed_service } => probed_service_is_gone(probed_service),
        Reason::Task { task, node, fault } => format!("{task} on {node}: {}", task_fault(fault)),
        Reason::Swarm { swarm_message } => format!("the swarm reports: {swarm_message}"),
        Reason::Interfered { interference: how } => interference(how),
        Reason::Words(words) => words.clone(),
    }
}

/// Describes how a task of a swarm service failed.
fn task_fault(fault: &TaskFault) -> &str {
    match fault {
        TaskFault::Error(error) => error,
        // An unhealthy task is told to stop, and may exit with code 0.
        TaskFault::Complete => "it ended with exit code 0, by itself or because its health check failed",
        TaskFault::Stopped => "the swarm stopped it during the update",
        TaskFault::State(state) => state.as_str(),
    }
}

/// Describes a symptom of a container.
fn symptom(symptom: &Symptom) -> String {
    let with_output = |what: &str, output: &str| match output {
        "" => what.to_owned(),
        output => format!("{what}: {output}"),
    };
    match symptom {
        Symptom::CrashLoop { restarts, exit_code } => {
            format!("keeps crashing: restarted {restarts} times, exit code {exit_code}")
        }
        Symptom::StuckRestarting { exit_code } => {
            format!("is not started again after it exited with code {exit_code}: stuck in state restarting")
        }
        Symptom::Exited { exit_code } => format!("exited with code {exit_code}"),
        Symptom::OutOfMemory => "OOM-killed (out of memory)".to_owned(),
        Symptom::NotStarted { error } => format!("could not be started: {error}"),
        Symptom::Dead => "dead: the engine could not remove it".to_owned(),
        Symptom::EngineStopped => "stopped by the engine when it went away".to_owned(),
        Symptom::Unhealthy { output } => with_output("unhealthy", output),
        Symptom::NotHealthyInTime { output } => {
            with_output("not healthy within its own health-check time", output)
        }
        Symptom::NetworkGone => {
            "disconnected: the container whose network it uses was removed or recreated".to_owned()
        }
        Symptom::NetworkMissing { owner } => {
            format!("disconnected: it uses the network of {owner}, which does not exist")
        }
        Symptom::NetworkRestarted { owner } => {
            format!("disconnected: it uses the network of {owner}, which was started after it")
        }
    }
}

/// Describes why a container is unhealthy, for the status of its service; `None` if it is well or inactive on purpose.
pub(in crate::service) fn unhealthy_reason(container: &Container, condition: &Condition) -> Option<String> {
    let how = match condition {
        Condition::Failing(found) => match found {
            Symptom::Unhealthy { .. } | Symptom::NotHealthyInTime { .. } => "is unhealthy".to_owned(),
            Symptom::Dead => "is dead".to_owned(),
            Symptom::OutOfMemory => "was OOM-killed (out of memory)".to_owned(),
            Symptom::EngineStopped => format!("was {}", symptom(found)),
            Symptom::NetworkGone | Symptom::NetworkMissing { .. } | Symptom::NetworkRestarted { .. } => {
                format!("is {}", symptom(found))
            }
            Symptom::CrashLoop { .. }
            | Symptom::StuckRestarting { .. }
            | Symptom::Exited { .. }
            | Symptom::NotStarted { .. } => symptom(found),
        },
        Condition::Restarting => "is restarting".to_owned(),
        Condition::Inactive(Inactive::Paused) => "is paused".to_owned(),
        Condition::Inactive(Inactive::Stopping) => "is being stopped".to_owned(),
        Condition::Inactive(Inactive::Created) => "was created, but never started".to_owned(),
        Condition::Inactive(Inactive::Stopped) if container.exit_code != 0 => {
            format!("was {STOPPED_BY_HAND}")
        }
        Condition::Healthy | Condition::Starting | Condition::Unmeasured | Condition::Inactive(_) => {
            return None;
        }
    };
    Some(format!("{} {how}", container.name))
}

/// Why a compose service without a container is unhealthy.
pub(in crate::service) fn removed_while_down(container: &str, compose_service: &str) -> String {
    format!(
        "{container} was down when it was removed: bring up compose service {compose_service}, or unblock the service if it is \
         not wanted any more"
    )
}

/// Why nothing is known of a container that is watched by its name.
pub(in crate::service) fn no_container(name: &str) -> String {
    format!("there is no container named {name}")
}

/// Warning about a container that is managed elsewhere (DECISIONS 9).
pub(in crate::service) fn managed(container: &str, manager: &Manager) -> String {
    format!("container {container} is managed by {manager}: it is neither updated nor healed here")
}

/// A log line.
pub(in crate::service) fn note(note: &Note) -> String {
    match note {
        Note::StepRetried { step, failure } => format!("step {step}: {failure}; trying again"),
        Note::DeploymentDropped => {
            "dropping the deployment in progress: its compose project is no longer configured".to_owned()
        }
        Note::Managed { container, manager } => managed(container, manager),
        Note::UnknownCause { container, exit_code } => format!(
            "container {container} exited with code {exit_code} while the agent was not running; it may have \
             been stopped on purpose, so it is not restarted"
        ),
    }
}
