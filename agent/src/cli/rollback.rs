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
use super::wait::{Progress, patiently, requested};

/// Time between two looks at the record.
const PAUSE: Duration = Duration::from_secs(1);
/// `timeout(1)`: not decided in time.
const EXIT_UNDECIDED: u8 = 124;

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
                if !record.deploying && record.rollbacks_total > before.rollbacks_total {
                    return Ok(ExitCode::SUCCESS);
                }
                if !record.deploying && record.failures_total > before.failures_total {
                    eprint_line(format_args!("evenkeel: {name} was not rolled back: see `evenkeel audit`"));
                    return Ok(ExitCode::FAILURE);
                }
                // Requests are kept in memory only; a deployment that has begun survives a restart.
                is_forgotten |= requested(&record) < requests;
                requests = requests.max(requested(&record));
                if is_forgotten && !record.deploying {
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
            return Ok(ExitCode::from(EXIT_UNDECIDED));
        }
        sleep(PAUSE).await;
    }
}
