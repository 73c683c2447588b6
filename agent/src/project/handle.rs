//! How others reach a service: commands in, published state out.

use std::sync::Arc;

use evenkeel_common::store::StoreError;
use tokio::sync::oneshot;

use crate::config::ServiceConfig;
use crate::service::input::{CheckFault, Input, ServiceReply, ServiceRequest};

use super::cycle::Cycle;
use super::{inbox, published};

/// A command to a service.
pub enum Command {
    /// A request by a user. An error means that its effect could not be made durable and nothing was changed.
    Request(ServiceRequest, oneshot::Sender<Result<ServiceReply, StoreError>>),
    /// Check as part of a cycle, and send the result. The sender is dropped if there is nothing to check.
    Check(Arc<Cycle>, oneshot::Sender<CheckEnd>),
    /// A tag was pushed that may be newer than the current one of an image.
    TagPushed,
    /// Inspect the containers.
    Inspect,
    /// An input for the decision core.
    Input(Box<Input>),
    /// Continue under this configuration as soon as no step is in progress, in another project if it has one. Acknowledged
    /// when done; the sender is dropped if the service has ended before.
    Reconfigure(Arc<ServiceConfig>, oneshot::Sender<()>),
    /// The service is no longer configured: end as soon as no deployment is in progress. Returns whether there is one.
    Retire(oneshot::Sender<bool>),
    /// Liveness check by the watchdog.
    Ping(oneshot::Sender<()>),
}

/// Result of a check: success, or why it failed.
pub type CheckEnd = Result<(), CheckFault>;

/// Handle to a service.
#[derive(Clone)]
pub struct Handle {
    /// The service's configuration.
    pub config: Arc<ServiceConfig>,
    /// Queue for commands.
    pub inbox: inbox::Sender<Command>,
    /// Published state.
    pub published: published::Receiver,
}

/// Identifies a worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ProjectKey {
    /// The worker of a compose project.
    Project(String),
    /// The worker of a service without a project.
    Service(String),
}

impl ProjectKey {
    pub(super) fn of(project: Option<&str>, service: &str) -> Self {
        project.map_or_else(|| Self::Service(service.to_owned()), |name| Self::Project(name.to_owned()))
    }
}

impl std::fmt::Display for ProjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Project(name) => write!(f, "project {name}"),
            Self::Service(name) => write!(f, "service {name}"),
        }
    }
}
