//! How a deployment ended and how long it took, read off the states before and after.

use jiff::Timestamp;

use crate::service::Durable;
use crate::service::deploy::{Deployment, Phase};

/// How a deployment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeployOutcome {
    /// What it brought is proven.
    Succeeded,
    /// It was undone, and what ran before is proven again.
    RolledBack,
    /// It could not be made, or the way back failed.
    Failed,
}

impl DeployOutcome {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Succeeded, Self::RolledBack, Self::Failed];

    /// Its word in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::RolledBack => "rolled_back",
            Self::Failed => "failed",
        }
    }
}

/// The end of a deployment between two states of a service, and when it had begun. What is left to tidy up then does
/// not count.
pub(super) fn ended(before: &Durable, after: &Durable) -> Option<(DeployOutcome, Timestamp)> {
    let under_way = |deployment: &&Deployment| !matches!(deployment.phase, Phase::TagsBack | Phase::Release);
    let was = before.deployment.as_ref().filter(under_way)?;
    if after.deployment.as_ref().is_some_and(|deployment| under_way(&deployment)) {
        return None;
    }
    let outcome = if after.totals.rollbacks > before.totals.rollbacks {
        DeployOutcome::RolledBack
    } else if after.totals.failures > before.totals.failures {
        DeployOutcome::Failed
    } else {
        DeployOutcome::Succeeded
    };
    Some((outcome, was.begun))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(phase: Option<&str>, rollbacks: u64, failures: u64) -> Durable {
        let deployment = phase.map(|step| {
            serde_json::json!({
                "cause": "update", "moves": [], "before": [], "begun": "2026-01-02T03:04:05Z",
                "since": "2026-01-02T03:04:05Z", "attempt": 0, "recreate": "changed", "phase": { "step": step },
            })
        });
        let value = serde_json::json!({
            "deployment": deployment,
            "totals": { "rollbacks": rollbacks, "failures": failures },
        });
        serde_json::from_value(value).expect("a state")
    }

    #[test]
    fn a_deployment_ends_once_and_with_one_outcome() {
        type Case<'a> = ((Option<&'a str>, u64, u64), (Option<&'a str>, u64, u64), Option<DeployOutcome>);
        let table: &[Case<'_>] = &[
            ((None, 0, 0), (Some("hold"), 0, 0), None),
            ((Some("hold"), 0, 0), (Some("pull"), 0, 0), None),
            ((Some("pull"), 0, 0), (Some("release"), 0, 0), Some(DeployOutcome::Succeeded)),
            ((Some("pull"), 0, 3), (Some("release"), 0, 4), Some(DeployOutcome::Failed)),
            ((Some("start"), 0, 0), (Some("tags_back"), 0, 1), Some(DeployOutcome::Failed)),
            ((Some("tags_back"), 0, 1), (Some("release"), 0, 1), None),
            ((Some("start"), 1, 0), (Some("release"), 2, 0), Some(DeployOutcome::RolledBack)),
            ((Some("release"), 2, 0), (None, 2, 0), None),
            ((Some("start"), 0, 0), (None, 0, 0), Some(DeployOutcome::Succeeded)),
        ];
        for (before, after, expected) in table {
            let ended = ended(&state(before.0, before.1, before.2), &state(after.0, after.1, after.2));
            assert_eq!(ended.map(|(outcome, _)| outcome), *expected, "{before:?} to {after:?}");
        }
    }
}
