//! What was changed of a container itself since compose made it: its networks, and its name. Neither is part of the hash of its
//! definition.

use serde_json::Value;

use super::{Sides, plain};
use crate::model::definition::{PROJECT_LABEL, SERVICE_LABEL, VERSION_LABEL, label};

/// Compose before this version at times leaves a container unconnected to one of its networks, at random
/// (<https://github.com/docker/compose/issues/11533>).
const CONNECTS_TO_ALL: [u32; 3] = [2, 24, 7];

impl Sides<'_> {
    /// Reports whether the files give the container a name.
    pub(in crate::model::definition) fn has_own_name(&self) -> bool {
        self.wanted("container_name").is_some()
    }

    /// Reports whether the container has another name than that of the files, or without one, that compose makes. While compose
    /// replaces a container, its name begins with an ID.
    pub(in crate::model::definition) fn is_renamed(&self) -> bool {
        const ID_LENGTH: usize = 12;
        let (project, service) = (label(self.container, PROJECT_LABEL), label(self.container, SERVICE_LABEL));
        let own = self.wanted("container_name").map(plain);
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let is_expected = |name: &str| match &own {
            Some(own) => name == own,
            None => ["-", "_"].into_iter().any(|separator| {
                let start = [project, service, ""].join(separator);
                name.strip_prefix(start.as_str()).is_some_and(is_number)
            }),
        };
        let name = self.name();
        let is_temporary =
            || name.split_once('_').is_some_and(|(id, rest)| id.len() == ID_LENGTH && is_expected(rest));
        !name.is_empty() && !project.is_empty() && !is_expected(name) && !is_temporary()
    }

    /// Returns the networks that the container is connected to and that its definition does not name: compose connects it to
    /// no others, so that somebody did later.
    pub(in crate::model::definition) fn other_networks(&self) -> Vec<String> {
        let Some((wanted, mut actual)) = self.networks() else { return Vec::new() };
        actual.retain(|name| !wanted.contains(name));
        actual
    }

    /// Returns the networks that the definition of the container names and that it is not connected to: somebody has taken it
    /// from them, compose has not connected it, or they have another name since.
    pub(in crate::model::definition) fn lacking_networks(&self) -> Vec<String> {
        let Some((mut wanted, actual)) = self.networks() else { return Vec::new() };
        wanted.retain(|name| !actual.contains(name));
        wanted
    }

    /// Returns those of the lacking networks that somebody has taken the container from. One that does not run may be half made,
    /// by a compose that was interrupted.
    pub(in crate::model::definition) fn disconnected(&self) -> Vec<String> {
        let mut lacking = self.lacking_networks();
        if !self.is_running() || (lacking.len() == 1 && self.may_be_left_unconnected()) {
            lacking.clear();
        }
        lacking
    }

    /// Reports whether it runs, as far as the engine tells, and is not connected to all of its networks.
    pub(in crate::model::definition) fn lacks_network(&self) -> bool {
        self.is_running() && !self.lacking_networks().is_empty()
    }

    fn is_running(&self) -> bool {
        self.actual("/State/Running").and_then(Value::as_bool).unwrap_or(true)
    }

    /// Reports whether the compose that made the container may have forgotten one of its networks.
    fn may_be_left_unconnected(&self) -> bool {
        let version = label(self.container, VERSION_LABEL);
        let parts = version.trim_start_matches('v').split(['.', '-', '+', '~']);
        let numbers: Result<Vec<u32>, _> = parts.take(CONNECTS_TO_ALL.len()).map(str::parse::<u32>).collect();
        let has_several = self.networks().is_some_and(|(wanted, _)| wanted.len() > 1);
        has_several && numbers.is_ok_and(|numbers| numbers.as_slice() < CONNECTS_TO_ALL.as_slice())
    }
}
