//! Subcommands for a running agent (DECISIONS 11).

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use evenkeel_common::cli::{eprint_line, report_errors};
use evenkeel_common::wire::{
    ApproveReply, ApproveRequest, AuditEntry, Health, ProvenRecord, RedeployReply, RollbackRequest,
    ServiceStatus, StatusReport, StatusValue, TriggerReply, UnblockReply, WhyReport,
};
use jiff::Timestamp;
use serde::Serialize;

use super::answer::{line, show};
use super::client::{self, AuditPath, Client, ClientError};
use super::terminal::Terminal;
use super::wait::{self, Wait};
use super::{attention, block_on, follow, rollback, views};
use crate::model::image::Digest;

/// What to say where `GET /audit` has no entries, after the reason.
const IN_MEMORY: &str = "these are the last entries in the agent's memory, up to 50";
/// What to do about it.
const KEEP_MORE: &str =
    "set \"audit\": {\"path\": \"/var/log/evenkeel/audit.jsonl\"} in the configuration and restart the agent";
/// `EX_UNAVAILABLE` of sysexits.h.
const EXIT_UNREACHABLE: u8 = 69;
const EXIT_USAGE: u8 = 2;
/// `EX_CONFIG` of sysexits.h.
const EXIT_CONFIG: u8 = 78;

/// The address of the agent, and the output format.
#[derive(Debug, Clone, clap::Args)]
pub struct Target {
    /// URL of the agent's API [default: the address in the configuration file, or else port 9090 of this machine]
    #[arg(long, value_name = "URL")]
    api: Option<String>,
    /// Print the API's JSON
    #[arg(long)]
    json: bool,
}

/// Requests to a running agent.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum RemoteTask {
    /// Show the status of the services; exits with 1 if one needs attention
    Status {
        /// Only this service, in full
        name: Option<String>,
        /// Agent and output format
        #[command(flatten)]
        target: Target,
    },
    /// Show what prevents a service from being updated now
    Why {
        /// The service
        name: String,
        /// Agent and output format
        #[command(flatten)]
        target: Target,
    },
    /// Check for new images now
    Trigger {
        /// Only this service
        name: Option<String>,
        /// Wait until the image is proven or rejected, at most this long; exits with 0 if it is proven or up to date, 1 if it
        /// failed, 75 if a gate holds it, 124 if that is not decided in time
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1800", requires = "name",
            value_parser = clap::value_parser!(u64).range(1..=86_400))]
        wait: Option<u64>,
        /// With --wait: this digest must run in the end
        #[arg(long, value_name = "DIGEST", requires = "wait", value_parser = a_digest)]
        digest: Option<String>,
        /// Do not pass the gates approval, `min_age` and window
        #[arg(long, requires = "name")]
        no_pass: bool,
        /// Agent and output format
        #[command(flatten)]
        target: Target,
    },
    /// Pull and recreate a service, even if no digest has changed
    Redeploy {
        /// The service
        name: String,
        /// Agent and output format
        #[command(flatten)]
        target: Target,
    },
    /// Clear the blocked digests of a service
    Unblock {
        /// The service
        name: String,
        /// Agent and output format
        #[command(flatten)]
        target: Target,
    },
    /// Go back to an image that was proven here; what is left is blocked
    Rollback {
        /// The service
        name: String,
        /// The digest to go back to, as shown by `history` [default: the one that was proven before]
        #[arg(long, value_name = "DIGEST", value_parser = a_digest)]
        to: Option<String>,
        /// Put back the data of that image, too
        #[arg(long)]
        data: bool,
        /// Only say what would be done, with sizes and times
        #[arg(long, conflicts_with = "wait")]
        dry_run: bool,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        /// Wait until the earlier image is proven, at most this long; exits with 0 if it is, 1 if not, 124 if that is not
        /// decided in time
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1800",
            value_parser = clap::value_parser!(u64).range(1..=86_400))]
        wait: Option<u64>,
        /// Agent and output format
        #[command(flatten)]
        target: Target,
    },
    /// List the images that were proven here, newest first
    History {
        /// The service
        name: String,
        /// Agent and output format
        #[command(flatten)]
        target: Target,
    },
    /// Approve the pending update of a service
    Approve {
        /// The service
        name: String,
        /// Only this digest, as shown by `why` or `status`
        #[arg(long, value_name = "DIGEST")]
        digest: Option<String>,
        /// Agent and output format
        #[command(flatten)]
        target: Target,
    },
    /// Show the latest audit entries, newest last
    Audit {
        /// Keep showing new entries as they arrive
        #[arg(short, long)]
        follow: bool,
        /// Number of entries
        #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=500))]
        limit: u32,
        /// Agent and output format
        #[command(flatten)]
        target: Target,
    },
    /// Show whether the container engine answers; exits with 1 if it does not
    Health {
        /// Agent and output format
        #[command(flatten)]
        target: Target,
    },
}

fn a_digest(text: &str) -> Result<String, String> {
    Digest::parse(text)
        .map(|digest| digest.to_string())
        .map_err(|_| "expected sha256: and 64 hexadecimal digits".to_owned())
}

/// Sends the request and prints the answer. Exit codes: 0: fine; 1: bad news, or rejected; 2: usage; 69: no agent answers.
pub(super) fn perform(task: &RemoteTask, config: &Path) -> ExitCode {
    if let RemoteTask::Trigger { name: Some(name), wait: Some(limit), digest, no_pass, target } = task {
        let wait = Wait {
            name: name.clone(),
            limit: Duration::from_secs(*limit),
            digest: digest.clone(),
            passes: !no_pass,
        };
        let following = async { wait::run(&wait, &target.client(config)?, target.json).await };
        return finished(following, wait::Outcome::code);
    }
    if let RemoteTask::Rollback { name, to, data, dry_run, yes, wait, target } = task {
        if !yes && !dry_run && !rollback::confirmed(name, to.as_deref()) {
            return ExitCode::from(EXIT_USAGE);
        }
        let asked = RollbackRequest { to: to.clone(), data: *data, dry_run: *dry_run };
        let limit = wait.map(Duration::from_secs);
        let going = async { rollback::run(name, &asked, limit, &target.client(config)?, target.json).await };
        return finished(going, |code| code);
    }
    answered(ask(task, config))
}

/// Runs a request and maps its outcome, good or bad news or an error, to an exit code (DECISIONS 11).
pub(super) fn answered(asking: impl Future<Output = Result<bool, ClientError>>) -> ExitCode {
    finished(asking, |is_good| if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a request and maps its outcome with `code`, or an error, to an exit code.
fn finished<T>(
    asking: impl Future<Output = Result<T, ClientError>>,
    code: impl FnOnce(T) -> ExitCode,
) -> ExitCode {
    let outcome = match block_on(asking) {
        Ok(outcome) => outcome,
        Err(code) => return code,
    };
    match outcome {
        Ok(answer) => code(answer),
        Err(ClientError::Config(faults)) => report_errors(&faults),
        Err(error) => {
            eprint_line(format_args!("evenkeel: {error}"));
            match error {
                ClientError::Address { .. } => ExitCode::from(EXIT_USAGE),
                ClientError::Setup(_) | ClientError::Config(_) => ExitCode::from(EXIT_CONFIG),
                ClientError::Unreachable { .. } => ExitCode::from(EXIT_UNREACHABLE),
                ClientError::Refused(_) | ClientError::Busy(_) | ClientError::Unexpected { .. } => {
                    ExitCode::FAILURE
                }
            }
        }
    }
}

/// Shows one service. Its record does not say whether the engine answers, without which what runs is unknown.
async fn show_service(name: &str, target: &Target, config: &Path) -> Result<bool, ClientError> {
    let (terminal, now) = (Terminal::of_process(), Timestamp::now());
    let client = target.client(config)?;
    let record: ServiceStatus = client.get(&["status", name]).await?;
    let is_known = record.status == StatusValue::Ok;
    let engine_error = if is_known { None } else { client.get::<Health>(&["health"]).await?.error };
    target.show(&record, || {
        let engine = engine_error.as_deref().map(|error| views::engine_away(error, terminal));
        engine.unwrap_or_default() + &views::service(&record, terminal, now)
    });
    Ok(engine_error.is_none() && attention::is_fine(&record))
}

/// Returns whether the answer is good news.
async fn ask(task: &RemoteTask, config: &Path) -> Result<bool, ClientError> {
    let (terminal, now) = (Terminal::of_process(), Timestamp::now());
    match task {
        RemoteTask::Status { name: None, target } => {
            let report: StatusReport = target.client(config)?.get(&["status"]).await?;
            target.show(&report, || views::report(&report, terminal, now));
            Ok(attention::is_all_fine(&report))
        }
        RemoteTask::Status { name: Some(name), target } => show_service(name, target, config).await,
        RemoteTask::Why { name, target } => {
            let report: WhyReport = target.client(config)?.get(&["why", name]).await?;
            target.show(&report, || views::why(&report, terminal, now));
            Ok(true)
        }
        RemoteTask::Trigger { name, no_pass, target, .. } => {
            let path: Vec<&str> = std::iter::once("trigger").chain(name.as_deref()).collect();
            let client = target.client(config)?;
            let query: &[_] = if *no_pass { &[("pass", "false")] } else { &[] };
            let reply: TriggerReply = client.post_with(&path, query).await?;
            target.show(&reply, || match &reply {
                TriggerReply::Triggered { scope } => line(&format!("checking {scope}")),
                TriggerReply::Skipped { reason } => line(&format!("nothing was started: {reason}")),
            });
            Ok(matches!(reply, TriggerReply::Triggered { .. }))
        }
        RemoteTask::Redeploy { name, target } => {
            let reply: RedeployReply = target.client(config)?.post(&["redeploy", name]).await?;
            target.show(&reply, || match &reply {
                RedeployReply::Redeploying { service, kept } => views::redeploying(service, kept),
                RedeployReply::Skipped { reason } => line(&format!("nothing was started: {reason}")),
            });
            Ok(matches!(reply, RedeployReply::Redeploying { .. }))
        }
        RemoteTask::Unblock { name, target } => {
            let reply: UnblockReply = target.client(config)?.post(&["unblock", name]).await?;
            target.show(&reply, || views::unblocked(&reply));
            Ok(true)
        }
        // Handled before, because it may wait.
        RemoteTask::Rollback { .. } => Ok(false),
        RemoteTask::History { name, target } => {
            let records: Vec<ProvenRecord> = target.client(config)?.get(&["history", name]).await?;
            target.show(&records, || views::history(&records, terminal, now));
            Ok(true)
        }
        RemoteTask::Approve { name, digest, target } => {
            let body = ApproveRequest { digest: digest.clone() };
            let reply: ApproveReply = target.client(config)?.post_json(&["approve", name], &body).await?;
            target.show(&reply, || approved(&reply));
            Ok(true)
        }
        RemoteTask::Audit { follow, limit, target } => {
            let client = target.client(config)?;
            let show_entry = |entry: &AuditEntry| show(target.json, entry, || views::entry(entry, terminal));
            if *follow {
                // With JSON output, print only entries.
                let line = if target.json { terminal.without_cursor() } else { terminal };
                follow::follow(&client, *limit, line, show_entry).await?;
            } else {
                let mut entries: Vec<AuditEntry> = client.audit(*limit).await?;
                if entries.is_empty() {
                    // Without an audit file, the agent keeps the entries that it replays to streams.
                    entries = follow::replayed(&client).await?;
                    entries.truncate(usize::try_from(*limit).unwrap_or(usize::MAX));
                    eprint_line(format_args!("evenkeel: {}", why_no_file(target, config)));
                }
                let _ = entries.iter().rev().all(show_entry);
            }
            Ok(true)
        }
        RemoteTask::Health { target } => {
            let health: Health = target.client(config)?.get(&["health"]).await?;
            target.show(&health, || views::health(&health, terminal));
            Ok(health.status == "ok" && health.state.is_none())
        }
    }
}

/// Says why there are no entries in the audit file, whose path is configured, and what to do about it.
fn why_no_file(target: &Target, config: &Path) -> String {
    // Another agent's configuration is not known.
    let own = target.api.is_none().then(|| client::audit_path(config));
    match own.unwrap_or(AuditPath::Unknown) {
        AuditPath::Unknown => {
            format!(
                "there is no audit file, it is empty, or it can't be written: {IN_MEMORY}; unless it is set, {KEEP_MORE}"
            )
        }
        AuditPath::Unset => format!("there is no audit file: {IN_MEMORY}; to keep more, {KEEP_MORE}"),
        AuditPath::Set(path) => format!(
            "{} has no entries yet, or can't be written: {IN_MEMORY}; `evenkeel doctor` says whether it can; if audit.path \
             was set after the agent was started, restart the agent",
            path.display()
        ),
    }
}

fn approved(reply: &ApproveReply) -> String {
    match reply {
        ApproveReply::Approved { service, digest } => line(&format!("{service}: {digest} is approved")),
        ApproveReply::NothingWaiting => "no update waits for an approval\n".to_owned(),
    }
}

impl Target {
    fn client(&self, config: &Path) -> Result<Client, ClientError> {
        Client::new(self.api.as_deref(), config)
    }

    fn show<T: Serialize>(&self, answer: &T, as_text: impl FnOnce() -> String) {
        show(self.json, answer, as_text);
    }
}
