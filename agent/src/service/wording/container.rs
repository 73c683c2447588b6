//! What is said of one container: how it is, what is wrong with it, what somebody did to it; and lines of the log.

use crate::model::{Container, Manager};
use crate::service::assess::{Condition, Inactive, Symptom};
use crate::service::event::Note;
use crate::service::rollout::probation::{Flaw, Interference};

use super::STOPPED_BY_HAND;

/// What somebody did to containers on probation.
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
    }
}

/// What is wrong with a container on probation.
pub(in crate::service) fn flaw(container: &str, flaw: &Flaw) -> String {
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
        Flaw::NotUpdated => {
            return format!(
                "compose did not update container {container}: it has the image that it had before"
            );
        }
    };
    format!("container {container} {what}")
}

/// What is to be known of a container that failed, one fact a line.
pub(in crate::service) fn facts(container: &Container) -> String {
    let mut facts = format!(
        "state: {}\nexit code: {}\nOOM-killed: {}\nrestart count: {}\n",
        container.state.as_str(),
        container.exit_code,
        if container.oom_killed { "yes" } else { "no" },
        container.restart_count
    );
    if !container.error.is_empty() {
        facts.push_str(&format!("engine: {}\n", container.error));
    }
    if !container.health_output.is_empty() {
        facts.push_str(&format!("last health check: {}\n", container.health_output));
    }
    facts
}

/// What is wrong with a container.
pub(in crate::service) fn symptom(symptom: &Symptom) -> String {
    let with_output = |what: &str, output: &str| match output {
        "" => what.to_owned(),
        output => format!("{what}: {output}"),
    };
    match symptom {
        Symptom::CrashLoop { restarts, exit_code } => {
            format!("keeps crashing: restarted {restarts} times, exit code {exit_code}")
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
            "cut off: the container whose network it uses was removed or recreated".to_owned()
        }
        Symptom::NetworkMissing { owner } => {
            format!("cut off: it uses the network of {owner}, which is not there")
        }
        Symptom::NetworkRestarted { owner } => {
            format!("cut off: it uses the network of {owner}, which was started after it")
        }
    }
}

/// Why a container is not well, for the status of its service; `None` where it is, or rests.
pub(in crate::service) fn unwell(container: &Container, condition: &Condition) -> Option<String> {
    let how = match condition {
        Condition::Failing(found) => match found {
            Symptom::Unhealthy { .. } | Symptom::NotHealthyInTime { .. } => "is unhealthy".to_owned(),
            Symptom::Dead => "is dead".to_owned(),
            Symptom::OutOfMemory => "was OOM-killed (out of memory)".to_owned(),
            Symptom::EngineStopped => format!("was {}", symptom(found)),
            Symptom::NetworkGone | Symptom::NetworkMissing { .. } | Symptom::NetworkRestarted { .. } => {
                format!("is {}", symptom(found))
            }
            Symptom::CrashLoop { .. } | Symptom::Exited { .. } | Symptom::NotStarted { .. } => symptom(found),
        },
        Condition::Restarting => "is restarting".to_owned(),
        Condition::Inactive(Inactive::Paused) => "is paused".to_owned(),
        Condition::Inactive(Inactive::Stopped) if container.exit_code != 0 => {
            format!("was {STOPPED_BY_HAND}")
        }
        Condition::Healthy | Condition::Starting | Condition::Inactive(_) => return None,
    };
    Some(format!("{} {how}", container.name))
}

/// The warning about a container that somebody else manages (DECISIONS 9).
pub(in crate::service) fn managed(container: &str, manager: &Manager) -> String {
    format!("container {container} is managed by {manager}: it is neither updated nor healed here")
}

/// A line of the log.
pub(in crate::service) fn note(note: &Note) -> String {
    match note {
        Note::StepRetried { step, failure } => format!("step {step}: {failure}; trying again"),
        Note::DeploymentDropped => {
            "the deployment under way is dropped: its compose project is no longer configured".to_owned()
        }
        Note::Managed { container, manager } => managed(container, manager),
        Note::UnknownCause { container, exit_code } => format!(
            "container {container} exited with code {exit_code} while the agent was not running; whether somebody \
             stopped it is not known, so it is not restarted"
        ),
    }
}
