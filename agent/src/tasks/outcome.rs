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
    use crate::ports::Recreate;
    use crate::service::Totals;
    use crate::service::deploy::Cause;

    use super::*;

    fn state(phase: Option<&Phase>, rollbacks: u64, failures: u64) -> Durable {
        let deployment = phase.map(|phase| Deployment {
            cause: Cause::Update,
            project: None,
            grace: std::time::Duration::ZERO,
            begun: Timestamp::UNIX_EPOCH,
            moves: Vec::new(),
            pins: Vec::new(),
            others: Vec::new(),
            before: Vec::new(),
            recreate: Recreate::Changed,
            phase: phase.clone(),
            since: Timestamp::UNIX_EPOCH,
            attempt: 0,
        });
        Durable {
            deployment,
            totals: Totals { rollbacks, failures, ..Totals::default() },
            ..Durable::default()
        }
    }

    #[test]
    fn a_deployment_ends_once_and_with_one_outcome() {
        type Case<'a> = ((Option<&'a Phase>, u64, u64), (Option<&'a Phase>, u64, u64), Option<DeployOutcome>);
        let table: &[Case<'_>] = &[
            ((None, 0, 0), (Some(&Phase::Hold), 0, 0), None),
            ((Some(&Phase::Hold), 0, 0), (Some(&Phase::Pull), 0, 0), None),
            ((Some(&Phase::Pull), 0, 0), (Some(&Phase::Release), 0, 0), Some(DeployOutcome::Succeeded)),
            ((Some(&Phase::Pull), 0, 3), (Some(&Phase::Release), 0, 4), Some(DeployOutcome::Failed)),
            ((Some(&Phase::Start), 0, 0), (Some(&Phase::TagsBack), 0, 1), Some(DeployOutcome::Failed)),
            ((Some(&Phase::TagsBack), 0, 1), (Some(&Phase::Release), 0, 1), None),
            ((Some(&Phase::Start), 1, 0), (Some(&Phase::Release), 2, 0), Some(DeployOutcome::RolledBack)),
            ((Some(&Phase::Release), 2, 0), (None, 2, 0), None),
            ((Some(&Phase::Start), 0, 0), (None, 0, 0), Some(DeployOutcome::Succeeded)),
        ];
        for (before, after, expected) in table {
            let ended = ended(&state(before.0, before.1, before.2), &state(after.0, after.1, after.2));
            assert_eq!(ended.map(|(outcome, _)| outcome), *expected, "{before:?} to {after:?}");
        }
    }
}
