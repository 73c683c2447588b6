//! `trigger NAME --wait`: follows a check and what comes of it until it is decided (DECISIONS 15, for CI).
//!
//! What the record said before does not count: the agent numbers the checks that were requested by name, and says which of
//! them have ended and whether anything is still to come of what they found.

use std::process::ExitCode;
use std::time::Duration;

use evenkeel_common::cli::eprint_line;
use evenkeel_common::wire::{
    ContainerRecord, DeployOutcome, DeployProgress, FailedUpdate, LastDeployment, ServiceStatus, StatusValue,
    TriggerReply,
};
use jiff::Timestamp;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::answer::show;
use super::client::{Client, ClientError};
use super::views::probe_in_words;
use crate::model::output::clean;
use crate::model::text::seconds;
use crate::service::wording;

/// Pause between two looks at the record.
const PAUSE: Duration = Duration::from_millis(500);
/// How long an agent may take to start, and one that answered before may be unreachable: it may be restarted, and finishes what
/// it began.
const PATIENCE: Duration = Duration::from_mins(1);
/// How many times an agent that has been restarted, or a deployment that was joined, is asked to check again.
const MAX_REQUESTS: u32 = 5;

/// What to follow.
#[derive(Debug, Clone)]
pub(super) struct Wait {
    /// The service.
    pub(super) name: String,
    /// How long at most.
    pub(super) limit: Duration,
    /// The digest that must run in the end.
    pub(super) digest: Option<String>,
    /// Whether the check passes the gates that a trigger passes.
    pub(super) passes: bool,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// A new image passed its probation.
    Proven,
    /// There was nothing to deploy.
    UpToDate,
    /// Rolled back, blocked, failed, not the digest that was asked for, or a service that is down or not well.
    Failed,
    /// A gate holds the update.
    Held,
    /// Not decided in time; what was begun goes on.
    Undecided,
}

impl Outcome {
    /// Its exit code: `EX_TEMPFAIL` of sysexits.h for a gate, and that of timeout(1).
    pub(super) fn code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Proven | Self::UpToDate => 0,
            Self::Failed => 1,
            Self::Held => 75,
            Self::Undecided => 124,
        })
    }
}

/// The end, as JSON output shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct End {
    outcome: Outcome,
    service: String,
    /// Why, or what was found.
    reason: String,
    /// The running digests.
    digests: Vec<String>,
    /// The gate that holds the update.
    #[serde(skip_serializing_if = "Option::is_none")]
    gate: Option<String>,
}

/// What the record said before.
#[derive(Debug, Clone, Copy)]
struct Before {
    /// When the wait, or the deployment that it joined, began.
    updates: u64,
    /// When the check was requested: a deployment that was joined may have been that of an earlier image.
    rollbacks: u64,
    /// At the same time: when the last deployment had ended.
    deployed: Option<Timestamp>,
}

/// Requests a check and waits for its end. A deployment that is in progress is followed first.
pub(super) async fn run(wait: &Wait, client: &Client, json: bool) -> Result<Outcome, ClientError> {
    let deadline = Instant::now() + wait.limit;
    let mut progress = Progress::default();
    let mut record = look(wait, client, false).await?;
    let mut before = Before {
        updates: record.updates_total,
        rollbacks: record.rollbacks_total,
        deployed: deployed_at(&record),
    };
    // The number of the check that decides; `None` until it is requested.
    let mut number = None;
    let mut requests = 0;
    let end = loop {
        progress.show(&record);
        if let Some(end) = ended(wait, &record, before, number) {
            break end;
        }
        let is_forgotten = number.is_some_and(|number| requested(&record) < number);
        if !record.deploying && (number.is_none() || is_forgotten) && requests < MAX_REQUESTS {
            requests += 1;
            match request(wait, client).await? {
                TriggerReply::Triggered { .. } => {
                    if number.is_none() {
                        (before.rollbacks, before.deployed) = (record.rollbacks_total, deployed_at(&record));
                    }
                    record = look(wait, client, true).await?;
                    number = Some(requested(&record).max(1));
                    continue;
                }
                // It has begun in the meantime.
                TriggerReply::Skipped { .. } if look(wait, client, true).await?.deploying => {}
                TriggerReply::Skipped { reason } => {
                    break end(wait, &record, Outcome::Failed, format!("nothing was started: {reason}"));
                }
            }
        }
        if Instant::now() >= deadline {
            let what = record.deploy.as_ref().map_or_else(
                || "the check has not ended".to_owned(),
                |deploy| format!("the deployment goes on ({})", wording::phase(deploy)),
            );
            let text = format!("not decided within {} s: {what}", wait.limit.as_secs());
            break end(wait, &record, Outcome::Undecided, text);
        }
        sleep(PAUSE.min(deadline.saturating_duration_since(Instant::now()))).await;
        record = look(wait, client, true).await?;
    };
    show(json, &end, || {
        let how = match end.outcome {
            Outcome::Proven => "proven",
            Outcome::UpToDate => "up to date",
            Outcome::Failed => "failed",
            Outcome::Held => "held",
            Outcome::Undecided => "undecided",
        };
        format!("{}: {how}: {}\n", end.service, clean(&end.reason).replace('\n', " "))
    });
    if end.outcome == Outcome::Held {
        let gate = end.gate.as_deref().unwrap_or_default();
        eprint_line(format_args!("evenkeel: the gate {gate} holds the update; evenkeel why {}", end.service));
    }
    Ok(end.outcome)
}

async fn request(wait: &Wait, client: &Client) -> Result<TriggerReply, ClientError> {
    let query: &[_] = if wait.passes { &[] } else { &[("pass", "false")] };
    // If it was carried out and its answer was lost, the agent only checks once more.
    patiently(true, async || client.post_with(&["trigger", &wait.name], query).await).await
}

/// Reads the record. An agent that has answered before (`is_known`) may be restarted.
async fn look(wait: &Wait, client: &Client, is_known: bool) -> Result<ServiceStatus, ClientError> {
    patiently(is_known, async || client.get(&["status", &wait.name]).await).await
}

/// Repeats a request while the agent starts, for some time. If `may_be_away`, also while it does not answer: it may be
/// restarted.
pub(super) async fn patiently<T>(
    may_be_away: bool,
    ask: impl AsyncFn() -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = ask().await;
        let is_repeated = match &answer {
            Err(ClientError::Unreachable { .. }) => may_be_away,
            Err(ClientError::Busy(_)) => true,
            _ => false,
        };
        if !is_repeated || Instant::now() >= end {
            return answer;
        }
        sleep(PAUSE).await;
    }
}

/// The number of requests by name since the agent was started, or since a reload changed the service and had none to take over.
pub(super) fn requested(record: &ServiceStatus) -> u64 {
    record.requested_checks.as_ref().map_or(0, |checks| checks.requested)
}

/// When the last deployment ended.
pub(super) fn deployed_at(record: &ServiceStatus) -> Option<Timestamp> {
    record.last_deployment.as_ref().map(|last| last.at)
}

/// Returns the end if the record decides it. `number`: the check that decides.
fn ended(wait: &Wait, record: &ServiceStatus, before: Before, number: Option<u64>) -> Option<End> {
    if record.deploying {
        return None;
    }
    let failed = |reason: String| Some(end(wait, record, Outcome::Failed, reason));
    // What else fails leaves `errored`, a block, or the gate `snapshot`; the failures of the record include the healer's.
    if number.is_some() && record.rollbacks_total > before.rollbacks {
        // A rollback of another image that has failed earlier stays known.
        let is_new = |update: &&FailedUpdate| before.deployed.is_none_or(|at| update.at > at);
        let update = record.failed_update.as_ref().filter(is_new);
        let reason = update.map(|update| format!("{}: {}", update.image, update.reason));
        let reason = reason.or_else(|| restored(record, before)).or_else(|| record.errored.clone());
        return failed(reason.unwrap_or_else(|| "the deployment failed; see evenkeel audit".to_owned()));
    }
    // Only the check that was requested here counts from now on.
    let checks = record.requested_checks.as_ref()?;
    if checks.undecided || checks.ended < number? {
        return None;
    }
    let digests = digests(record);
    let is_new = record.updates_total > before.updates;
    let good = if is_new { Outcome::Proven } else { Outcome::UpToDate };
    // Whatever is wrong with another image of the service. After a check that compared nothing, what runs is old news, unless
    // it was proven just now.
    let is_current = is_new || checks.failed.is_none();
    let runs_well = |wanted: &String| digests.contains(wanted) && is_well_on(record, wanted);
    if is_current && wait.digest.as_ref().is_some_and(runs_well) {
        return Some(end(wait, record, good, digests.join(", ")));
    }
    if let Some(why) = &checks.failed {
        return failed(why.clone());
    }
    if let Some(errored) = record.errored.as_ref().filter(|_| !is_held_since(record, before)) {
        return failed(errored.clone());
    }
    if let Some(waiting) = &record.waiting {
        let has_failed = match waiting.gate.as_str() {
            "blocked" => true,
            // It may wait because the data could not be copied just now.
            "snapshot" => has_failed_since(record, before),
            _ => false,
        };
        let outcome = if has_failed { Outcome::Failed } else { Outcome::Held };
        let held = end(wait, record, outcome, format!("{}: {}", waiting.gate, waiting.why));
        return Some(End { gate: Some(waiting.gate.clone()), ..held });
    }
    if let Some(blocked) = &record.blocked {
        let is_left = |update: &FailedUpdate| update.by_hand && update.digest.as_ref() == Some(blocked);
        let is_left = record.failed_update.as_ref().is_some_and(is_left);
        let why = if is_left { "it was left by hand" } else { "it failed here" };
        return failed(format!("{blocked} is blocked: {why}; see evenkeel status {}", wait.name));
    }
    if let Some(digest) = &record.not_found {
        return failed(format!("the image that runs is not in the registry, which has {digest}"));
    }
    if let Some(wanted) = wait.digest.as_ref().filter(|wanted| !digests.contains(wanted)) {
        let runs = if digests.is_empty() { "nothing".to_owned() } else { digests.join(", ") };
        return failed(format!("{wanted} does not run; what runs: {runs}"));
    }
    if let Some(why) = checks.tags_unknown.clone().filter(|_| !is_new && wait.digest.is_none()) {
        return failed(why);
    }
    // A new image is judged by its probation, whatever has become of it since.
    if let Some(why) = not_well(record).filter(|_| !is_new) {
        return failed(why);
    }
    Some(end(wait, record, good, digests.join(", ")))
}

/// What a rollback that had failed and was tried again has brought back: that is counted as a rollback, and nothing failed.
fn restored(record: &ServiceStatus, before: Before) -> Option<String> {
    let last = record.last_deployment.as_ref()?;
    let has_succeeded = last.outcome == DeployOutcome::Succeeded && Some(last.at) != before.deployed;
    let failed = record.failed_update.as_ref().map(|update| &update.image);
    let blocked = record.blocked.as_ref().map(|digest| failed.unwrap_or(digest));
    let blocked = blocked.map(|image| format!("; {image} is still blocked")).unwrap_or_default();
    has_succeeded.then(|| format!("the last proven image runs again{blocked}"))
}

/// Whether a deployment has failed since the check was requested.
fn has_failed_since(record: &ServiceStatus, before: Before) -> bool {
    let last = record.last_deployment.as_ref();
    last.is_some_and(|last| last.outcome == DeployOutcome::Failed && Some(last.at) != before.deployed)
}

/// Whether the error is that of an update which has failed before the check was requested, and which a gate holds: it is not
/// this check that has failed.
fn is_held_since(record: &ServiceStatus, before: Before) -> bool {
    let has_failed = |last: &LastDeployment| {
        Some(last.at) == before.deployed
            && matches!(last.outcome, DeployOutcome::Failed | DeployOutcome::RolledBack)
            && record.since.is_some_and(|since| since <= last.at)
    };
    let is_held = record.waiting.is_some() && record.status == StatusValue::Errored;
    is_held && record.last_deployment.as_ref().is_some_and(has_failed)
}

/// Why an image that ran already can't be said to be good: the service is not well, or nothing of it runs.
fn not_well(record: &ServiceStatus) -> Option<String> {
    let runs = |container: &ContainerRecord| matches!(container.state.as_str(), "running" | "paused");
    let is_down = record.containers.as_ref().is_some_and(|all| !all.iter().any(runs));
    // Jobs that are done are well.
    if record.healthy == Some(true) || (record.healthy.is_none() && !is_down) {
        return None;
    }
    let reason = record.unhealthy_reason.as_deref().unwrap_or("no container of it is running");
    Some(if is_down {
        format!("it is down: {reason}; no image was proven")
    } else {
        format!("it is not well: {reason}")
    })
}

/// Whether nothing speaks against a digest that runs.
fn is_well_on(record: &ServiceStatus, digest: &str) -> bool {
    let has_failed_rollback = record.failed_update.as_ref().is_some_and(|failed| !failed.rolled_back);
    // It may run without having been proven: its own probation waits, or has ended without a verdict.
    let waits = record.waiting.as_ref().is_some_and(|waiting| waiting.digest == digest);
    let is_open = record.errored.is_some()
        && record
            .last_deployment
            .as_ref()
            .is_some_and(|last| matches!(last.outcome, DeployOutcome::Failed | DeployOutcome::Inconclusive));
    record.blocked.as_deref() != Some(digest)
        && !has_failed_rollback
        && !waits
        && !is_open
        && not_well(record).is_none()
}

fn digests(record: &ServiceStatus) -> Vec<String> {
    record.images.iter().flatten().map(|image| image.digest.clone()).collect()
}

fn end(wait: &Wait, record: &ServiceStatus, outcome: Outcome, reason: String) -> End {
    End { outcome, service: wait.name.clone(), reason, digests: digests(record), gate: None }
}

/// The phases shown so far.
#[derive(Debug, Default)]
pub(super) struct Progress {
    last: String,
}

impl Progress {
    /// Prints what has changed, on stderr.
    pub(super) fn show(&mut self, record: &ServiceStatus) {
        let text = match &record.deploy {
            Some(deploy @ DeployProgress { image, deadline, probe, .. }) => {
                let until = deadline.map(|at| format!(", until {}", seconds(at))).unwrap_or_default();
                let probe = probe.as_ref().map(probe_in_words).unwrap_or_default();
                format!("{}: {}{until}{probe}", wording::phase(deploy), clean(image))
            }
            None => return,
        };
        if text != self.last {
            eprint_line(format_args!("{} {text}", seconds(Timestamp::now())));
            self.last = text;
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_common::testing::service_status;
    use evenkeel_common::wire::{ImageRecord, RequestedChecks, Waiting};

    use super::*;

    const DIGEST: &str = "sha256:aa";

    fn wait() -> Wait {
        Wait { name: "web".to_owned(), limit: Duration::from_secs(1), digest: None, passes: true }
    }

    fn record(requested: u64, ended: u64, undecided: bool) -> ServiceStatus {
        let image = ImageRecord {
            image: "localhost:5000/web:latest".to_owned(),
            digest: DIGEST.to_owned(),
            short: String::new(),
            size_mb: 0.0,
            newer: None,
        };
        ServiceStatus {
            requested_checks: Some(RequestedChecks {
                requested,
                ended,
                undecided,
                ..RequestedChecks::default()
            }),
            images: Some(vec![image]),
            ..service_status("web")
        }
    }

    fn outcome(wait: &Wait, record: &ServiceStatus, number: Option<u64>) -> Option<(Outcome, String)> {
        let before = Before { updates: 0, rollbacks: 0, deployed: None };
        ended(wait, record, before, number).map(|end| (end.outcome, end.reason))
    }

    fn deployment(outcome: DeployOutcome) -> LastDeployment {
        LastDeployment { at: Timestamp::UNIX_EPOCH, outcome, outage_seconds: None }
    }

    fn waiting(gate: &str) -> Waiting {
        Waiting {
            differences: Vec::new(),
            image: "web:latest".to_owned(),
            digest: "sha256:bb".to_owned(),
            gate: gate.to_owned(),
            why: "because".to_owned(),
            lifts_at: None,
            clear: String::new(),
            blocked_by: None,
            output: None,
        }
    }

    #[test]
    fn only_the_requested_check_and_what_comes_of_it_decide() {
        let stale = ServiceStatus { waiting: Some(waiting("freeze")), ..record(2, 1, false) };
        assert_eq!(outcome(&wait(), &stale, Some(2)), None, "the record of the check before");
        assert_eq!(outcome(&wait(), &stale, None), None, "none was requested yet");
        let asking = ServiceStatus { waiting: Some(waiting("command")), ..record(2, 2, true) };
        assert_eq!(outcome(&wait(), &asking, Some(2)), None, "the command has not answered yet");
        let deploying = ServiceStatus { deploying: true, ..record(2, 2, false) };
        assert_eq!(outcome(&wait(), &deploying, Some(2)), None);
        let held = ServiceStatus { waiting: Some(waiting("freeze")), ..record(2, 2, false) };
        assert_eq!(outcome(&wait(), &held, Some(2)), Some((Outcome::Held, "freeze: because".to_owned())));
    }

    #[test]
    fn the_end_is_that_of_the_deployment() {
        let done = |updates_total, rollbacks_total| ServiceStatus {
            updates_total,
            rollbacks_total,
            ..record(1, 1, false)
        };
        let of = |record: &ServiceStatus| outcome(&wait(), record, Some(1)).map(|(outcome, _)| outcome);
        assert_eq!(of(&done(0, 0)), Some(Outcome::UpToDate));
        assert_eq!(of(&done(1, 0)), Some(Outcome::Proven));
        assert_eq!(of(&done(0, 1)), Some(Outcome::Failed));
        let restarted = ServiceStatus { failures_total: 1, ..done(1, 0) };
        assert_eq!(of(&restarted), Some(Outcome::Proven), "a container could not be restarted before");
        let errored = ServiceStatus { errored: Some("401".to_owned()), ..done(0, 0) };
        assert_eq!(outcome(&wait(), &errored, Some(1)), Some((Outcome::Failed, "401".to_owned())));
        let blocked = ServiceStatus { blocked: Some("sha256:bb".to_owned()), ..done(0, 0) };
        assert_eq!(of(&blocked), Some(Outcome::Failed));
        let refused = ServiceStatus { waiting: Some(waiting("blocked")), ..done(0, 0) };
        assert_eq!(of(&refused), Some(Outcome::Failed));
    }

    #[test]
    fn an_update_that_has_failed_before_the_check_and_is_held_since_is_held() {
        let at = |second| Timestamp::from_second(second).ok();
        for (since, deployed, expected) in
            [(at(0), at(0), Outcome::Held), (at(1), at(0), Outcome::Failed), (at(0), None, Outcome::Failed)]
        {
            let record = ServiceStatus {
                status: StatusValue::Errored,
                errored: Some("the hook before failed".to_owned()),
                since,
                waiting: Some(waiting("command")),
                last_deployment: Some(deployment(DeployOutcome::Failed)),
                ..record(1, 1, false)
            };
            let before = Before { updates: 0, rollbacks: 0, deployed };
            let end = ended(&wait(), &record, before, Some(1)).expect("it is decided");
            assert_eq!(end.outcome, expected, "{since:?}, {deployed:?}");
        }
    }

    #[test]
    fn a_copy_of_the_data_that_failed_is_no_gate_that_holds_the_update() {
        let after = |gate: &str, how: DeployOutcome, before: Option<Timestamp>| {
            let record = ServiceStatus {
                waiting: Some(waiting(gate)),
                last_deployment: Some(deployment(how)),
                ..record(1, 1, false)
            };
            let before = Before { updates: 0, rollbacks: 0, deployed: before };
            ended(&wait(), &record, before, Some(1)).map(|end| end.outcome)
        };
        assert_eq!(after("snapshot", DeployOutcome::Failed, None), Some(Outcome::Failed));
        let known = Some(Timestamp::UNIX_EPOCH);
        assert_eq!(after("snapshot", DeployOutcome::Failed, known), Some(Outcome::Held), "it failed before");
        assert_eq!(
            after("snapshot", DeployOutcome::Succeeded, None),
            Some(Outcome::Held),
            "there is no room"
        );
        assert_eq!(after("freeze", DeployOutcome::Failed, None), Some(Outcome::Held), "the healer's");
    }

    fn failed_update(image: &str) -> FailedUpdate {
        FailedUpdate {
            at: Timestamp::UNIX_EPOCH,
            image: image.to_owned(),
            digest: Some("sha256:bb".to_owned()),
            reason: "exited with code 1".to_owned(),
            container: None,
            output: String::new(),
            rolled_back: false,
            by_hand: false,
        }
    }

    #[test]
    fn a_digest_that_a_person_has_left_is_not_said_to_have_failed() {
        let left = FailedUpdate {
            reason: "rolled back by hand".to_owned(),
            rolled_back: true,
            by_hand: true,
            ..failed_update("web:latest")
        };
        let blocked = Some("sha256:bb".to_owned());
        let record = ServiceStatus { blocked, failed_update: Some(left), ..record(1, 1, false) };
        let (outcome, reason) = outcome(&wait(), &record, Some(1)).unwrap();
        assert_eq!(outcome, Outcome::Failed);
        assert!(reason.starts_with("sha256:bb is blocked: it was left by hand; "), "{reason}");
    }

    #[test]
    fn a_rollback_is_not_told_with_the_reason_of_an_earlier_one() {
        let earlier = failed_update("api:latest");
        let record =
            ServiceStatus { rollbacks_total: 1, failed_update: Some(earlier), ..record(1, 1, false) };
        let told = |deployed| {
            let before = Before { updates: 0, rollbacks: 0, deployed };
            ended(&wait(), &record, before, Some(1)).map(|end| end.reason).unwrap_or_default()
        };
        assert!(told(None).starts_with("api:latest: "), "{}", told(None));
        let known = Some(Timestamp::UNIX_EPOCH);
        assert!(!told(known).contains("api:latest"), "{}", told(known));
    }

    #[test]
    fn a_service_whose_failed_rollback_was_made_up_for_is_not_said_to_have_failed() {
        let failed = FailedUpdate { rolled_back: true, ..failed_update("web:latest") };
        let again = LastDeployment {
            at: Timestamp::from_second(60).unwrap(),
            ..deployment(DeployOutcome::Succeeded)
        };
        let record = ServiceStatus {
            blocked: Some("sha256:bb".to_owned()),
            rollbacks_total: 1,
            failed_update: Some(failed),
            last_deployment: Some(again),
            ..record(1, 1, false)
        };
        let before = Before { updates: 0, rollbacks: 0, deployed: Some(Timestamp::UNIX_EPOCH) };
        let end = ended(&wait(), &record, before, Some(1)).unwrap();
        assert_eq!(end.outcome, Outcome::Failed);
        assert_eq!(end.reason, "the last proven image runs again; web:latest is still blocked");
    }

    #[test]
    fn a_rollback_that_was_joined_decides_nothing() {
        let joined = ServiceStatus { rollbacks_total: 1, ..record(0, 0, false) };
        assert_eq!(outcome(&wait(), &joined, None), None, "no check was requested yet");
    }

    #[test]
    fn another_image_of_the_service_does_not_decide_about_the_digest_that_was_asked_for() {
        let asked = Wait { digest: Some(DIGEST.to_owned()), ..wait() };
        let of = |record: &ServiceStatus| outcome(&asked, record, Some(1)).map(|(outcome, _)| outcome);
        let runs = || record(1, 1, false);
        for other in [
            ServiceStatus { errored: Some("401".to_owned()), ..runs() },
            ServiceStatus { waiting: Some(waiting("freeze")), ..runs() },
            ServiceStatus { blocked: Some("sha256:bb".to_owned()), ..runs() },
            ServiceStatus { not_found: Some("sha256:bb".to_owned()), ..runs() },
        ] {
            assert_eq!(of(&other), Some(Outcome::UpToDate), "{other:?}");
            let updated = ServiceStatus { updates_total: 1, ..other.clone() };
            assert_eq!(of(&updated), Some(Outcome::Proven), "{other:?}");
            assert_ne!(
                outcome(&wait(), &other, Some(1)).map(|(outcome, _)| outcome),
                Some(Outcome::UpToDate)
            );
        }
        let blocked = ServiceStatus { blocked: Some(DIGEST.to_owned()), ..runs() };
        assert_eq!(of(&blocked), Some(Outcome::Failed), "it runs because its rollback has failed");
        let down = ServiceStatus { healthy: Some(false), errored: Some("it fails".to_owned()), ..runs() };
        assert_eq!(of(&down), Some(Outcome::Failed));
    }

    #[test]
    fn the_digest_that_was_asked_for_must_not_run_unproven() {
        let asked = Wait { digest: Some(DIGEST.to_owned()), ..wait() };
        let of = |record: &ServiceStatus| outcome(&asked, record, Some(1)).map(|(outcome, _)| outcome);
        let own = Waiting { digest: DIGEST.to_owned(), ..waiting("freeze") };
        let waits = ServiceStatus { waiting: Some(own), ..record(1, 1, false) };
        assert_eq!(of(&waits), Some(Outcome::Held), "its probation waits");
        let errored = |how: DeployOutcome| ServiceStatus {
            errored: Some("its containers were stopped".to_owned()),
            last_deployment: Some(deployment(how)),
            ..record(1, 1, false)
        };
        assert_eq!(of(&errored(DeployOutcome::Inconclusive)), Some(Outcome::Failed), "without a verdict");
        assert_eq!(of(&errored(DeployOutcome::Failed)), Some(Outcome::Failed), "its probation failed");
        assert_eq!(of(&errored(DeployOutcome::Succeeded)), Some(Outcome::UpToDate), "of another image");
    }

    #[test]
    fn the_digest_that_was_asked_for_must_run() {
        let asked = |digest: &str| Wait { digest: Some(digest.to_owned()), ..wait() };
        let record = record(1, 1, false);
        let of = |digest: &str| outcome(&asked(digest), &record, Some(1)).map(|(outcome, _)| outcome);
        assert_eq!(of(DIGEST), Some(Outcome::UpToDate));
        assert_eq!(of("sha256:bb"), Some(Outcome::Failed));
    }

    #[test]
    fn without_a_list_of_the_tags_nothing_is_said_to_be_up_to_date() {
        let mut record = record(1, 1, false);
        let why = "the tags of web could not be listed";
        record.requested_checks.as_mut().unwrap().tags_unknown = Some(why.to_owned());
        assert_eq!(outcome(&wait(), &record, Some(1)), Some((Outcome::Failed, why.to_owned())));
        let asked = Wait { digest: Some(DIGEST.to_owned()), ..wait() };
        assert_eq!(outcome(&asked, &record, Some(1)).unwrap().0, Outcome::UpToDate, "it is known to run");
    }

    #[test]
    fn after_a_check_that_compared_nothing_only_what_was_proven_meanwhile_is_good() {
        let mut record = record(1, 1, false);
        let why = "the container engine does not answer: refused";
        record.requested_checks.as_mut().unwrap().failed = Some(why.to_owned());
        let asked = Wait { digest: Some(DIGEST.to_owned()), ..wait() };
        let failed = Some((Outcome::Failed, why.to_owned()));
        assert_eq!(outcome(&wait(), &record, Some(1)), failed);
        assert_eq!(outcome(&asked, &record, Some(1)), failed, "it ran when it was last seen");
        let other = Wait { digest: Some("sha256:bb".to_owned()), ..wait() };
        assert_eq!(outcome(&other, &record, Some(1)), failed, "it may have been started since");
        // The deployment that was joined.
        record.updates_total = 1;
        assert_eq!(outcome(&asked, &record, Some(1)).unwrap().0, Outcome::Proven);
        assert_eq!(outcome(&wait(), &record, Some(1)), failed, "another one may have been pushed since");
    }

    #[test]
    fn a_service_that_is_down_or_not_well_is_not_up_to_date() {
        let container = |state: &str| ContainerRecord {
            id: "id-web".to_owned(),
            name: "web-1".to_owned(),
            state: state.to_owned(),
            status: String::new(),
            started_at: None,
            image: "localhost:5000/web:latest".to_owned(),
            mounts: Vec::new(),
            cpu_percent: None,
            memory_percent: None,
            memory_usage_mb: None,
            memory_limit_mb: None,
        };
        let asked = Wait { digest: Some(DIGEST.to_owned()), ..wait() };
        for (healthy, state, expected) in [
            (Some(false), Some("running"), Some("it is not well: why; ")),
            (Some(false), Some("exited"), Some("it is down: why; ")),
            (None, None, Some("it is down: no container of it is running; ")),
            (None, Some("running"), None),
            (Some(true), Some("exited"), None),
        ] {
            let record = ServiceStatus {
                healthy,
                unhealthy_reason: healthy.filter(|healthy| !healthy).map(|_| "why".to_owned()),
                containers: Some(state.into_iter().map(container).collect()),
                ..record(1, 1, false)
            };
            let good = if expected.is_some() { Outcome::Failed } else { Outcome::UpToDate };
            for wait in [wait(), asked.clone()] {
                let (outcome, reason) = outcome(&wait, &record, Some(1)).unwrap();
                assert_eq!(outcome, good, "{state:?}: {reason}");
                let told = format!("{reason}; ");
                assert!(expected.is_none_or(|expected| told.starts_with(expected)), "{state:?}: {reason}");
            }
            let updated = ServiceStatus { updates_total: 1, ..record.clone() };
            let is_new = outcome(&wait(), &updated, Some(1)).map(|(outcome, _)| outcome);
            assert_eq!(is_new, Some(Outcome::Proven), "its probation says all");
        }
    }
}
