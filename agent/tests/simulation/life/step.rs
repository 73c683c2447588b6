//! What happens in a life, and when.

use std::time::Duration;

use evenkeel_agent::service::input::ServiceRequest;

use crate::world::Act;

/// Something that happens in a life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// In the world.
    World(Act),
    /// A person asks the agent.
    Ask(&'static str, ServiceRequest),
    /// A person asks for a check of all services.
    Poll,
    /// The agent is killed at the call so many from now, and started again after so many seconds. Its last write may be
    /// lost.
    Kill {
        calls: usize,
        away: u64,
        loses_write: bool,
    },
    /// The agent is stopped, and started again after so many seconds.
    StopAgent {
        away: u64,
    },
    /// A service is configured no more; or again.
    Drop(&'static str),
    Add(&'static str),
    /// The first service gets another name.
    Rename,
    /// A key of a service has another value.
    Toggle(&'static str, &'static str),
}

impl Step {
    /// In words.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::World(act) => act.words(),
            Self::Ask(service, request) => format!("a person asks {service}: {request:?}"),
            Self::Poll => "a person asks for a check of all services".to_owned(),
            Self::Kill { calls, away, loses_write } => {
                let loss = if *loses_write { ", its last write is lost," } else { "" };
                format!("the agent is killed at call {calls} from here{loss} and started after {away} s")
            }
            Self::StopAgent { away } => format!("the agent is stopped, and started after {away} s"),
            Self::Drop(service) => format!("a reload drops {service}"),
            Self::Add(service) => format!("a reload adds {service}"),
            Self::Rename => "a reload renames web".to_owned(),
            Self::Toggle(service, key) => format!("a reload toggles {key} of {service}"),
        }
    }
}

/// A step, and how long after the begin of the life.
pub(crate) type At = (Duration, Step);
