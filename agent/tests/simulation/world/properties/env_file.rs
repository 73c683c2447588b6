//! The properties of the env file that sets the tag of a service.

use evenkeel_agent::service::Durable;
use evenkeel_common::wire::{AuditEntry, Kind};

use super::super::Inner;
use super::{BY_HAND, Baseline};

const LINE: &str = "the env file sets the proven tag or the one that is being deployed";
const ONLY: &str = "only the tag in the env file is changed";

/// Phases in which the file may contain the tag that is being deployed.
const NEW: [&str; 17] = [
    "write_tag",
    "quiesce",
    "copy",
    "resume",
    "restore",
    "start",
    "spread",
    "probation",
    "drain",
    "retire",
    "soak",
    "settle",
    "abort",
    "restore_tags",
    "diagnose",
    "revive",
    "rollback",
];

impl Inner {
    /// The tag that the env file sets now is proven.
    pub(in super::super) fn tag_is_known(&mut self) {
        self.truth.known_tags = self.tag_in_force().into_iter().collect();
    }

    /// Checks the current content of the env file.
    pub(in super::super) fn check_env_file(&mut self) {
        let Some(file) = &self.env_file else { return };
        let tag = match file.tag() {
            Ok(tag) => tag,
            Err(text) => return self.violated(format!("{ONLY}: {text:?}")),
        };
        let deployments = self.durable.values().filter_map(|durable| durable.deployment.as_ref());
        let new = deployments.filter(|d| NEW.contains(&d.phase.name())).filter_map(|d| d.plan().tag.as_ref());
        let is_deployed = new.map(|change| &change.new).any(|new| *new == tag);
        let is_uncertain = self.truth.is_torn || self.truth.is_write_lost;
        let holds = is_uncertain || is_deployed || self.truth.known_tags.contains(&tag);
        self.unless(holds, LINE, |inner| format!("{tag} instead of {:?}", inner.truth.known_tags));
    }

    /// A deployment enters another phase. If operators have touched the containers, it may end without a verdict.
    pub(super) fn note_phase(&mut self, service: &str, durable: &Durable) {
        let Some(deployment) = durable.deployment.as_ref().filter(|d| d.phase.name() == "unpin") else {
            return;
        };
        let Some(change) = &deployment.plan().tag else { return };
        // A stop in progress counts even if the container then ends by itself.
        let is_disturbed = |baseline: &Baseline| baseline.is_disturbed || !baseline.touched.is_empty();
        let is_touched = self.truth.baselines.get(service).is_none_or(is_disturbed);
        if is_touched {
            self.truth.known_tags.insert(change.new.clone());
        }
    }

    /// A verdict was recorded.
    pub(super) fn note_verdict(&mut self, entry: &AuditEntry) {
        let Some(service) = self.services.iter().find(|service| service.has_variable) else { return };
        let runs = self.container(&service.name).and_then(|container| container.reference.tag.clone());
        let baseline = self.truth.baselines.get(&entry.service).and_then(|baseline| baseline.tag.clone());
        let name = entry.new_digest.as_ref().and_then(|digest| self.truth.names.get(digest));
        let is_of_tag = name.is_some_and(|name| name.split(' ').next() == Some(&service.name));
        let is = |kind: Kind| is_of_tag && entry.event == kind;
        let is_by_hand = entry.reason.as_deref() == Some(BY_HAND);
        self.truth.known_tags = if is(Kind::UPDATED) || (is(Kind::ROLLED_BACK) && is_by_hand) {
            // If nothing is running by then, nothing is proven, and the line stays.
            let Some(runs) = runs else { return };
            [runs].into()
        } else if is(Kind::ROLLED_BACK) {
            baseline.into_iter().collect()
        } else if is(Kind::ROLLBACK_FAILED) {
            // The file may then set the running tag.
            baseline.into_iter().chain(runs).collect()
        } else {
            return;
        };
    }
}
