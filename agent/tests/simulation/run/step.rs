//! The steps of a run.

use std::time::Duration;

use evenkeel_agent::service::input::ServiceRequest;

use crate::world::Act;

/// A step of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// An event in the world.
    World(Act),
    /// An operator sends a request to a service.
    Ask(&'static str, ServiceRequest),
    /// An operator requests a check of all services.
    Poll,
    /// The agent is killed after this many further calls, and started again after `away` seconds. Its last write may be
    /// lost.
    Kill {
        calls: usize,
        away: u64,
        loses_write: bool,
    },
    /// The agent is stopped, and started again after `away` seconds.
    StopAgent {
        away: u64,
    },
    /// A reload removes a service, or adds it again.
    Drop(&'static str),
    Add(&'static str),
    /// A reload renames the first service.
    Rename,
    /// A reload toggles a flag of a service.
    Toggle(&'static str, &'static str),
}

impl Step {
    /// Describes it for the transcript.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::World(act) => act.describe(),
            Self::Ask(service, request) => format!("an operator sends to {service}: {request:?}"),
            Self::Poll => "an operator requests a check of all services".to_owned(),
            Self::Kill { calls, away, loses_write } => {
                let loss = if *loses_write { " (its last write is lost)" } else { "" };
                format!("the agent is killed {calls} calls later{loss} and started again after {away} s")
            }
            Self::StopAgent { away } => format!("the agent is stopped and started again after {away} s"),
            Self::Drop(service) => format!("a reload removes {service}"),
            Self::Add(service) => format!("a reload adds {service}"),
            Self::Rename => "a reload renames web".to_owned(),
            Self::Toggle(service, key) => format!("a reload toggles {key} of {service}"),
        }
    }
}

/// A step, and its time since the beginning of the run.
pub(crate) type TimedStep = (Duration, Step);
