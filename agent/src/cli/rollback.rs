//! `rollback`: asks before it acts, and may follow what it has started (DECISIONS 14).

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use evenkeel_common::cli::eprint_line;
use evenkeel_common::wire::{RollbackReply, RollbackRequest, ServiceStatus};
use jiff::Timestamp;
use tokio::time::{Instant, sleep};

use super::answer::{line, show};
use super::client::{Client, ClientError};
use super::views;
use super::wait::{Outcome, Progress, deployed_at, patiently, requested};

/// Time between two looks at the record.
const PAUSE: Duration = Duration::from_secs(1);

/// Asks on the terminal. Without one nothing is done.
pub(super) fn confirmed(name: &str, to: Option<&str>) -> bool {
    if !io::stdin().is_terminal() {
        eprint_line(format_args!("evenkeel: a rollback asks first; without a terminal, add --yes"));
        return false;
    }
    let to = to.unwrap_or("the image that was proven before");
    let _ = write!(io::stderr(), "Roll {name} back to {to}, and block what runs now? [y/N] ");
    let mut answer = String::new();
    let _ = io::stdin().lock().read_line(&mut answer);
    let is_yes = matches!(answer.trim(), "y" | "Y" | "yes");
    if !is_yes {
        eprint_line(format_args!("evenkeel: nothing was done"));
    }
    is_yes
}

/// Sends the request. With `limit` it is followed to its end.
pub(super) async fn run(
    name: &str,
    asked: &RollbackRequest,
    limit: Option<Duration>,
    client: &Client,
    json: bool,
) -> Result<ExitCode, ClientError> {
    let look = async || client.get::<ServiceStatus>(&["status", name]).await;
    // Not if there is no answer: the first request may have been carried out, and another one would go back further.
    let ask = async || client.post_json::<RollbackReply>(&["rollback", name], asked).await;
    let (before, reply) = if limit.is_some() {
        (patiently(false, look).await?, patiently(false, ask).await?)
    } else {
        (look().await?, ask().await?)
    };
    show(json, &reply, || match &reply {
        RollbackReply::RollingBack { service, to } => line(&format!("{service}: rolling back to {to}")),
        RollbackReply::Skipped { reason } => line(&format!("nothing was started: {reason}")),
        RollbackReply::Planned(plan) => views::rollback_plan(plan, Timestamp::now()),
    });
    match (reply, limit) {
        (RollbackReply::Skipped { .. }, _) => Ok(ExitCode::FAILURE),
        (RollbackReply::RollingBack { .. } | RollbackReply::Planned(_), None) => Ok(ExitCode::SUCCESS),
        (RollbackReply::RollingBack { .. } | RollbackReply::Planned(_), Some(limit)) => {
            follow(name, &before, limit, client).await
        }
    }
}

async fn follow(
    name: &str,
    before: &ServiceStatus,
    limit: Duration,
    client: &Client,
) -> Result<ExitCode, ClientError> {
    let deadline = Instant::now() + limit;
    let mut progress = Progress::default();
    let (mut requests, mut is_forgotten) = (requested(before), false);
    loop {
        match client.get::<ServiceStatus>(&["status", name]).await {
            Ok(record) => {
                progress.show(&record);
                let is_rolled_back = decided(&record, before);
                if is_rolled_back == Some(true) {
                    return Ok(ExitCode::SUCCESS);
                }
                // Requests are kept in memory only; a deployment that has begun survives a restart.
                is_forgotten |= requested(&record) < requests;
                requests = requests.max(requested(&record));
                let is_over = is_forgotten && !record.deploying;
                let has_begun = deployed_at(&record) != deployed_at(before);
                if is_rolled_back == Some(false) || (is_over && has_begun) {
                    eprint_line(format_args!("evenkeel: {name} was not rolled back: see `evenkeel audit`"));
                    return Ok(ExitCode::FAILURE);
                }
                if is_over {
                    eprint_line(format_args!(
                        "evenkeel: the agent was restarted, or {name} was changed by a reload, before the rollback \
                         began; nothing was done, so ask again"
                    ));
                    return Ok(ExitCode::FAILURE);
                }
            }
            // The agent may be restarting.
            Err(ClientError::Unreachable { .. } | ClientError::Busy(_)) => {}
            Err(error) => return Err(error),
        }
        if Instant::now() >= deadline {
            eprint_line(format_args!("evenkeel: not decided in time; the rollback goes on"));
            return Ok(Outcome::Undecided.code());
        }
        sleep(PAUSE).await;
    }
}

/// Whether the service was rolled back, once that is decided. What the healer can't restart meanwhile does not count.
fn decided(record: &ServiceStatus, before: &ServiceStatus) -> Option<bool> {
    if record.deploying {
        return None;
    }
    if record.rollbacks_total > before.rollbacks_total {
        return Some(true);
    }
    let checks = record.requested_checks.as_ref().filter(|checks| checks.requested > requested(before))?;
    (!checks.undecided).then_some(false)
}

#[cfg(test)]
mod tests {
    use evenkeel_common::testing::service_status;
    use evenkeel_common::wire::RequestedChecks;

    use super::*;

    #[test]
    fn only_the_check_that_the_rollback_has_requested_decides_that_it_failed() {
        let record = |requested: u64, undecided: bool| ServiceStatus {
            requested_checks: Some(RequestedChecks { requested, undecided, ..RequestedChecks::default() }),
            ..service_status("web")
        };
        let before = record(1, false);
        assert_eq!(decided(&record(1, false), &before), None, "a restarted agent has forgotten it");
        assert_eq!(decided(&service_status("web"), &before), None);
        let restarted = ServiceStatus { failures_total: 1, ..record(2, true) };
        assert_eq!(decided(&restarted, &before), None, "the healer could not restart a container");
        assert_eq!(decided(&record(2, false), &before), Some(false));
        let rolled_back = ServiceStatus { rollbacks_total: 1, ..record(2, false) };
        assert_eq!(decided(&rolled_back, &before), Some(true));
        let deploying = ServiceStatus { deploying: true, ..record(2, true) };
        assert_eq!(decided(&deploying, &before), None);
    }
}
