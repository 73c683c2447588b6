//! Human-readable output of the subcommands.

use std::fmt::Write as _;

use evenkeel_common::wire::{
    AuditEntry, DeployPhase, DeployProgress, Gate, HandoverContainer, HandoverProgress, Health, KeptImage,
    LastDeployment, Level, PlannedImage, ProbeProgress, ProvenRecord, RollbackPlan, ServiceStatus,
    SnapshotKind, SnapshotRecord, StatusReport, ThawRequest, UnblockReply, Waiting, WayBackValue, WhyReport,
};
use jiff::Timestamp;

use crate::config::says_it_is_off;
use crate::model::output::clean;
use crate::service::wording;

use super::answer::line;
use super::attention;
use super::terminal::{Colour, Terminal};
use super::times::{ago, until};

/// Width of a progress bar in columns.
const BAR: usize = 20;

/// A terminal that is narrower shows fewer columns.
const ALL_COLUMNS: usize = 72;
/// Number of log lines that explain one service or one entry.
const LOG_LINES: usize = 20;
const ENTRY_LOG_LINES: usize = 8;
/// Indent of the lines below an entry: the width of its time.
const ENTRY_INDENT: usize = 22;

/// Says that the container engine does not answer, what that means, and what to do.
pub(super) fn engine_away(error: &str, terminal: Terminal) -> String {
    let text = format!("{error}; what runs now is unknown, and nothing is updated or healed");
    let steps = "systemctl status docker; journalctl -u docker -n 50; evenkeel doctor";
    let what = terminal.wrap("the container engine does not answer: ", &text);
    format!("{what}{}\n", terminal.wrap("  do    ", steps))
}

/// Formats all services, one per row, and below them what is wrong and what to do.
pub(super) fn report(report: &StatusReport, terminal: Terminal, now: Timestamp) -> String {
    if report.starting {
        return "the agent is starting and has not loaded its services yet\n".to_owned();
    }
    let mut out = String::new();
    if let Some(error) = &report.engine_error {
        out.push_str(&engine_away(error, terminal));
    }
    for channel in &report.undelivered {
        out.push_str(&terminal.wrap("", channel));
    }
    if !report.undelivered.is_empty() {
        out.push_str(&terminal.wrap("  do    ", "correct the channel, then: evenkeel test-notify"));
        if report.undelivered.iter().any(|channel| says_it_is_off(channel)) {
            let new = "if only its variable was missing: systemctl restart evenkeel-agent";
            out.push_str(&terminal.wrap("        ", new));
        }
        out.push('\n');
    }
    if report.services.is_empty() && report.left_out.is_empty() {
        out.push_str("no services are configured\n");
        return out;
    }
    let is_wide = terminal.columns().is_none_or(|columns| columns >= ALL_COLUMNS);
    let row =
        |name: &str, (colour, state): (Colour, String), digest: &str, checked: String, remark: String| {
            let mut row = vec![(Colour::Plain, name.to_owned()), (colour, state)];
            if is_wide {
                row.extend([(Colour::Faint, digest.to_owned()), (Colour::Faint, checked)]);
            }
            row.push((Colour::Plain, remark));
            row
        };
    let mut rows: Vec<Vec<(Colour, String)>> = report
        .services
        .iter()
        .map(|service| {
            let digest = service.images.iter().flatten().next().map_or("-", |image| &*image.short);
            let checked = service.last_check.map_or("never".to_owned(), |at| ago(at, now));
            row(&service.name, attention::state(service), digest, checked, remark(service, now))
        })
        .collect();
    rows.extend(report.left_out.iter().map(|one| {
        row(&one.name, (Colour::Bad, "not watched".to_owned()), "-", "never".to_owned(), one.reason.clone())
    }));
    let head: &[&str] = if is_wide {
        &["NAME", "STATUS", "DIGEST", "CHECKED", "REMARK"]
    } else {
        &["NAME", "STATUS", "REMARK"]
    };
    out.push_str(&terminal.wrapped_table(head, &rows));
    for service in report.services.iter().filter(|service| !attention::is_fine(service)) {
        out.push('\n');
        out.push_str(&attention::details(service, terminal, now));
    }
    if !report.left_out.is_empty() {
        let names: Vec<&str> = report.left_out.iter().map(|one| one.name.as_str()).collect();
        out.push('\n');
        let text = "correct the configuration file; check it: evenkeel --check; apply it: systemctl reload evenkeel-agent";
        out.push_str(&terminal.wrap("", &format!("not watched: {}", names.join(", "))));
        out.push_str(&terminal.wrap("  do    ", text));
    }
    out
}

/// Formats one service in full.
pub(super) fn service(record: &ServiceStatus, terminal: Terminal, now: Timestamp) -> String {
    let (colour, state) = attention::state(record);
    let mut out = if attention::is_fine(record) {
        format!("{}: {}\n", record.name, terminal.paint(colour, &state))
    } else {
        attention::details_with(record, LOG_LINES, terminal, now) + "\n"
    };
    let mut line = |key: &str, text: &str| out.push_str(&terminal.wrap(&format!("  {key:<12}"), text));
    if let Some(progress) = &record.deploy {
        line("deployment", &progress_in_words(progress, now));
    }
    if let Some(waiting) = &record.waiting {
        line("waiting", &format!("{} {}: {}", waiting.image, waiting.digest, waiting_in_words(waiting, now)));
    }
    for (key, text) in [("blocked", &record.blocked), ("not found", &record.not_found)] {
        if let Some(text) = text {
            line(key, text);
        }
    }
    if attention::is_fine(record) {
        for (key, text) in [("fault", &record.errored), ("unhealthy", &record.unhealthy_reason)] {
            if let Some(text) = text {
                line(key, text);
            }
        }
    }
    for image in record.images.iter().flatten() {
        line("image", &format!("{} {}", image.image, image.digest));
        if let Some(newer) = &image.newer {
            line("newer tag", &format!("{newer}, instead of {}", image.image));
        }
    }
    if record.way_back == Some(WayBackValue::AtRisk) {
        line("rollback", &not_possible(record));
    }
    for container in record.containers.iter().flatten() {
        line("container", &format!("{}: {}", container.name, container.status));
    }
    if record.has_stats {
        let (cpu, used) = (record.cpu_percent, record.memory_usage_mb);
        line("use", &format!("{cpu:.1} % of a core, {used:.1} MiB ({:.1} %)", record.memory_percent));
    }
    line(
        "totals",
        &format!(
            "{} updated, {} rolled back, {} restarted, {} failed",
            record.updates_total, record.rollbacks_total, record.restarts_total, record.failures_total
        ),
    );
    for kept in &record.snapshots {
        let what = match kept.kind {
            SnapshotKind::Copy => "before the update to",
            SnapshotKind::SetAside => "set aside, as left by",
        };
        let places = kept.places.iter().map(|place| place.volume.as_ref().unwrap_or(&place.path).as_str());
        let places: Vec<&str> = places.chain(kept.dump.as_deref()).collect();
        let text =
            format!("{} MiB, {what} {}, {}: {}", kept.mib, kept.image, ago(kept.at, now), places.join(", "));
        line("data", &clean(&text));
    }
    if let Some(last) = &record.last_deployment {
        line("last deploy", &last_deployment_in_words(last, now));
    }
    line("last check", &record.last_check.map_or("never".to_owned(), |at| ago(at, now)));
    line("next check", &record.next_check.map_or("none".to_owned(), |at| until(at, now)));
    out
}

/// Formats the reasons why a service is not updated now.
pub(super) fn why(report: &WhyReport, terminal: Terminal, now: Timestamp) -> String {
    let rows: Vec<Vec<(Colour, String)>> = report
        .gates
        .iter()
        .map(|gate| {
            let (colour, state) =
                if gate.holds { (Colour::Attention, "holds") } else { (Colour::Good, "open") };
            vec![
                (Colour::Plain, gate.gate.clone()),
                (colour, state.to_owned()),
                (Colour::Plain, reason(gate, now)),
            ]
        })
        .collect();
    let answer = terminal.wrap("", &format!("{}: {}", report.service, report.answer));
    let held = report.gates.iter().filter(|gate| gate.holds).filter_map(|gate| gate.output.as_deref());
    let log: String = held.map(|output| attention::log(output, LOG_LINES, "  log   ", terminal)).collect();
    let table = terminal.wrapped_table(&["GATE", "STATE", "WHY"], &rows);
    format!("{answer}{log}\n{table}")
}

/// Formats the confirmation of a redeployment, with the images that it does not change.
pub(super) fn redeploying(service: &str, kept: &[KeptImage]) -> String {
    let line = |one: &KeptImage| {
        clean(&format!("{} keeps what it runs ({}): {}", one.image, one.gate, one.why)) + "\n"
    };
    let kept: String = kept.iter().map(line).collect();
    format!("redeploying {service}\n{kept}")
}

/// Formats the response to a request that lifts blocks. Without a block, it lets the healer try again.
pub(super) fn unblocked(reply: &UnblockReply) -> String {
    let status = match reply.status.as_str() {
        "not_blocked" => "no image is blocked; failed restarts no longer count",
        status => status,
    };
    line(&format!("{}: {status}", reply.service))
}

fn reason(gate: &Gate, now: Timestamp) -> String {
    let lifts = gate.lifts_at.filter(|_| gate.holds).map(|at| format!("; lifts {}", until(at, now)));
    let clear =
        gate.clear.as_ref().filter(|_| gate.holds).map(|how| format!("; to end it: {}", as_command(how)));
    let by = blocked_by(gate.blocked_by.as_deref().filter(|_| gate.holds));
    format!("{}{by}{}{}", gate.why, lifts.unwrap_or_default(), clear.unwrap_or_default())
}

/// Translates an API request into the equivalent command.
fn as_command(how: &str) -> String {
    if let Some(thaw) = thaw_command(how) {
        return thaw;
    }
    let command = ["trigger", "redeploy", "unblock", "approve"].iter().fold(how.to_owned(), |how, verb| {
        how.replace(&format!("POST /{verb}/"), &format!("evenkeel {verb} "))
    });
    command.replace("?pass=false", " --no-pass")
}

/// The same for ending a freeze, which is a request to a warden. The id comes from the warden and is not trusted.
fn thaw_command(how: &str) -> Option<String> {
    let (warden, body) = how.strip_prefix("POST ")?.split_once("/thaw ")?;
    let id = serde_json::from_str::<ThawRequest>(body).ok()?.id?;
    id.chars().all(|c| c.is_ascii_alphanumeric()).then(|| format!("evenkeel thaw {id} --warden {warden}"))
}

/// Formats the health of the agent and the warnings of its configuration.
pub(super) fn health(health: &Health, terminal: Terminal) -> String {
    let colour = if health.status == "ok" { Colour::Good } else { Colour::Bad };
    let mut out = format!("{}\n", terminal.paint(colour, &terminal.line(&health.status)));
    for (key, text) in [("engine", &health.error), ("state", &health.state)] {
        if let Some(text) = text {
            out.push_str(&terminal.wrap("", &format!("{key}: {text}")));
        }
    }
    for warning in &health.config_warnings {
        out.push_str(&terminal.wrap("", &format!("configuration: {warning}")));
    }
    out
}

/// Formats one entry with its reason and, if it is bad news, the last log lines. It is one line if that fits.
pub(super) fn entry(entry: &AuditEntry, terminal: Terminal) -> String {
    let at = entry.timestamp.strftime("%Y-%m-%d %H:%M:%SZ");
    let reason = entry.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let head = format!("{at}  {:<14} {:<16} ", entry.service, entry.event.as_str());
    let text = terminal.hanging(&head, ENTRY_INDENT, &format!("{}{reason}", entry.message));
    let indent = " ".repeat(ENTRY_INDENT);
    let is_bad = entry.level >= Level::Warning;
    let log = if is_bad { entry.output.as_str() } else { "" };
    let log = attention::log(log, ENTRY_LOG_LINES, &format!("{indent}| "), terminal);
    let paint = |line: &str| format!("{}\n", terminal.paint(entry.level.into(), line));
    text.lines().map(paint).chain([log]).collect()
}

/// Formats the progress of all deployments on one line, without a line break; `None` if none is in progress.
pub(super) fn deployments(services: &[ServiceStatus], terminal: Terminal, now: Timestamp) -> Option<String> {
    let all: Vec<String> = services
        .iter()
        .filter_map(|service| {
            let progress = service.deploy.as_ref()?;
            Some(format!("{}: {}", service.name, progress_in_words(progress, now)))
        })
        .collect();
    (!all.is_empty()).then(|| terminal.line(&all.join("; ")))
}

fn remark(service: &ServiceStatus, now: Timestamp) -> String {
    if let Some(progress) = &service.deploy {
        return progress_in_words(progress, now);
    }
    if let Some(verdict) = attention::verdict(service) {
        return verdict;
    }
    if let Some(waiting) = &service.waiting {
        return format!("an update waits: {}", waiting_in_words(waiting, now));
    }
    if service.way_back == Some(WayBackValue::AtRisk) {
        return format!("rollback: {}", not_possible(service));
    }
    newer(service)
        .unwrap_or_else(|| if service.auto_update { String::new() } else { "auto_update is off".to_owned() })
}

/// Why a rollback would fail now.
fn not_possible(service: &ServiceStatus) -> String {
    let reason = service.way_back_reason.as_ref().map(|reason| format!(": {reason}"));
    format!("not possible{}", reason.unwrap_or_default())
}

/// Formats the available newer tags.
fn newer(service: &ServiceStatus) -> Option<String> {
    let tags: Vec<String> = service
        .images
        .iter()
        .flatten()
        .filter_map(|image| Some(format!("{} for {}", image.newer.as_ref()?, image.image)))
        .collect();
    (!tags.is_empty()).then(|| format!("newer tag {}", tags.join(", ")))
}

/// Lists the images that were proven here.
pub(super) fn history(records: &[ProvenRecord], terminal: Terminal, now: Timestamp) -> String {
    if records.is_empty() {
        return "no image was proven here yet\n".to_owned();
    }
    // The digest is on a line of its own, to be copied as a whole.
    let block = |record: &ProvenRecord| {
        let version = record.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
        // What runs may be unknown, for example before the first check.
        let left = match record.left_at {
            _ if record.runs => ", runs".to_owned(),
            Some(at) => format!(", left {}", ago(at, now)),
            None => String::new(),
        };
        let disk = if record.on_disk { "on disk" } else { "not on disk" };
        let data = if record.snapshot.is_some() { ", with its data" } else { "" };
        let proven = ago(record.proven_at, now);
        let what = format!("{}{version}: proven {proven}{left}, {disk}{data}", record.image);
        terminal.wrap("", &what) + &terminal.wrap("  ", &record.digest)
    };
    records.iter().map(block).collect()
}

/// Formats what a rollback by hand would do.
pub(super) fn rollback_plan(plan: &RollbackPlan, now: Timestamp) -> String {
    let mut out = format!("{}: nothing was done; a rollback would\n", clean(&plan.service));
    let mut line = |text: &str| {
        let _ = writeln!(out, "  {}", clean(text));
    };
    for PlannedImage { leaves, to } in &plan.images {
        let version = to.version.as_ref().map(|version| format!("version {version}, ")).unwrap_or_default();
        let left = to.left_at.map(|at| format!(", left {}", ago(at, now))).unwrap_or_default();
        let disk = if to.on_disk { "on this machine" } else { "to be pulled" };
        let proven = ago(to.proven_at, now);
        line(&format!("deploy {} {} ({version}proven {proven}{left}, {disk})", to.image, to.digest));
        if let Some(leaves) = leaves {
            line(&format!("block {leaves} until the registry has another digest"));
        }
    }
    let describe = |kept: &SnapshotRecord| {
        format!("the data of {} ({}, {} MiB: {})", kept.at, ago(kept.at, now), kept.mib, kept.of.join(", "))
    };
    line(&match (&plan.snapshot, plan.puts_data_back) {
        (Some(kept), true) => format!("put back {}, and set the data of now aside", describe(kept)),
        (Some(kept), false) => format!("leave the data as it is; --data would put back {}", describe(kept)),
        (None, _) => "leave the data as it is; there is no snapshot of that image".to_owned(),
    });
    if let Some(seconds) = plan.last_outage_seconds {
        line(&format!("interrupt the service; the last deployment did for {:.1} s", f64::from(seconds)));
    }
    out
}

/// Formats what an update is waiting for.
fn waiting_in_words(waiting: &Waiting, now: Timestamp) -> String {
    let by = blocked_by(waiting.blocked_by.as_deref());
    let lifts = waiting.lifts_at.map(|at| format!("; lifts {}", until(at, now))).unwrap_or_default();
    // The gate that asks about a difference names it already.
    let others = waiting.differences.iter().filter(|text| !waiting.why.contains(text.as_str()));
    let differs = others.fold(String::new(), |all, text| format!("{all}; the new image {text}"));
    format!("{}{by}{lifts}{differs}; to proceed: {}", waiting.why, as_command(&waiting.clear))
}

/// Formats the agent of the fleet that blocks the update.
fn blocked_by(agent: Option<&str>) -> String {
    agent.map(|agent| format!("; blocked by {agent}")).unwrap_or_default()
}

fn progress_in_words(progress: &DeployProgress, now: Timestamp) -> String {
    let is_probation = progress.phase == DeployPhase::Probation;
    let phase = if is_probation { "probation" } else { wording::phase(progress) };
    let share = match (progress.phase, progress.deadline) {
        (DeployPhase::Pulling | DeployPhase::Copying, _) if progress.total_bytes > 0 => {
            Some(progress.pulled_bytes as f64 / progress.total_bytes as f64)
        }
        (_, Some(deadline)) => {
            let whole = deadline.duration_since(progress.since).as_secs_f64();
            Some(now.duration_since(progress.since).as_secs_f64() / whole.max(1.0))
        }
        _ => None,
    };
    let bar =
        share.map(|share| format!("{} {:>3.0} % ", Terminal::bar(BAR, share), share.clamp(0.0, 1.0) * 100.0));
    let end = progress.deadline.map(|at| format!(", ends {} at the latest", until(at, now)));
    let probe = progress.probe.as_ref().map(probe_in_words).unwrap_or_default();
    let sides = progress.handover.as_ref().map(handover_in_words).unwrap_or_default();
    format!("{phase} {}{}{}{probe}{sides}", bar.unwrap_or_default(), progress.image, end.unwrap_or_default())
}

/// How the last deployment ended, and how long it interrupted the service.
fn last_deployment_in_words(last: &LastDeployment, now: Timestamp) -> String {
    let outcome = last.outcome.as_str().replace('_', " ");
    let outage = match last.outage_seconds {
        Some(seconds) if f64::from(seconds) == 0.0 => ", no interruption".to_owned(),
        Some(seconds) => format!(", down for {seconds} s"),
        None => String::new(),
    };
    format!("{outcome} {}{outage}", ago(last.at, now))
}

/// Both sides of a handover.
fn handover_in_words(sides: &HandoverProgress) -> String {
    let side = |containers: &[HandoverContainer]| {
        let one = |c: &HandoverContainer| format!("{} {}", c.name, c.health.as_ref().unwrap_or(&c.state));
        let all: Vec<String> = containers.iter().map(one).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    };
    clean(&format!("; old: {}; new: {}", side(&sides.old), side(&sides.new)))
}

/// What the probe of a probation has shown so far.
pub(super) fn probe_in_words(probe: &ProbeProgress) -> String {
    let ProbeProgress { probe, passed, answer } = probe;
    let state = if *passed { "succeeded" } else { "waiting" };
    let answer = answer.as_ref().map(|answer| format!(", {answer}")).unwrap_or_default();
    clean(&format!("; probe {probe}: {state}{answer}"))
}

#[cfg(test)]
mod tests {
    use evenkeel_common::wire::{DeployOutcome, Kind, StatusValue};

    use jiff::SignedDuration;

    use super::super::times::span;
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn the_history_has_whole_digests_and_every_fact_on_a_terminal() {
        let digest = |n: char| format!("sha256:{}", n.to_string().repeat(64));
        let record = |n: char, runs: bool, left_at: Option<Timestamp>| ProvenRecord {
            image: "registry.example/team/web:stable".to_owned(),
            digest: digest(n),
            id: "sha256:aa".to_owned(),
            proven_at: at(0),
            left_at,
            runs,
            on_disk: left_at.is_none(),
            version: Some("1.28.3".to_owned()),
            snapshot: left_at.map(|_| "s1".to_owned()),
        };
        let records = [record('b', true, None), record('a', false, Some(at(60)))];
        let text = history(&records, Terminal::with_columns(80), at(120));
        let first = "registry.example/team/web:stable 1.28.3: proven 2m00s ago, runs, on disk";
        let second = "registry.example/team/web:stable 1.28.3: proven 2m00s ago, left 1m00s ago, not\non disk, with its data";
        assert_eq!(text, format!("{first}\n  {}\n{second}\n  {}\n", digest('b'), digest('a')));
        // Somebody has put another image in its place, or it is not known what runs.
        let text = history(&[record('b', false, None)], Terminal::with_columns(80), at(120));
        assert!(text.contains(": proven 2m00s ago, on disk\n"), "{text}");
    }

    #[test]
    fn the_status_tells_of_channels_that_deliver_nothing() {
        let channel = "notifications.ntfy: nothing has been delivered since 2027-01-15 08:00:00 UTC: 403";
        let told = serde_json::json!({
            "uptime_seconds": 1, "poll_count": 0, "services": [record(&serde_json::json!({}))], "undelivered": [channel],
        });
        let text = report(&serde_json::from_value(told).unwrap(), Terminal::plain(), at(0));
        let head = format!("{channel}\n  do    correct the channel, then: evenkeel test-notify\n\n");
        assert!(text.starts_with(&head) && text.contains("web"), "{text}");
        let off = "push.token: the environment variable T is not set (the push is off)";
        let told =
            serde_json::json!({"uptime_seconds": 1, "poll_count": 0, "services": [], "undelivered": [off]});
        let text = report(&serde_json::from_value(told).unwrap(), Terminal::plain(), at(0));
        assert!(text.contains("\n        if only its variable was missing: systemctl restart"), "{text}");
    }

    #[test]
    fn unblocking_a_service_without_a_block_says_what_it_does() {
        let said =
            |status: &str| unblocked(&UnblockReply { status: status.to_owned(), service: "web".to_owned() });
        assert_eq!(said("unblocked"), "web: unblocked\n");
        assert_eq!(said("not_blocked"), "web: no image is blocked; failed restarts no longer count\n");
    }

    #[test]
    fn durations_are_written_in_two_units() {
        for (seconds, text) in [(-4, "0s"), (59, "59s"), (60, "1m00s"), (3660, "1h01m"), (90_000, "1d1h")] {
            assert_eq!(span(SignedDuration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn the_last_deployment_tells_how_long_it_interrupted() {
        let outage = |seconds: Option<f64>| {
            let outage_seconds = seconds.map(Into::into);
            last_deployment_in_words(
                &LastDeployment { at: at(0), outcome: DeployOutcome::RolledBack, outage_seconds },
                at(60),
            )
        };
        assert_eq!(outage(Some(0.0)), "rolled back 1m00s ago, no interruption");
        assert_eq!(outage(Some(3.24)), "rolled back 1m00s ago, down for 3.2 s");
        assert_eq!(outage(None), "rolled back 1m00s ago");
    }

    #[test]
    fn a_probation_shows_its_progress() {
        let progress = DeployProgress {
            phase: DeployPhase::Probation,
            image: "web:1".into(),
            since: at(0),
            deadline: Some(at(20)),
            pulled_bytes: 0,
            total_bytes: 0,
            probe: None,
            handover: None,
            hook: None,
        };
        assert_eq!(
            progress_in_words(&progress, at(5)),
            "probation [#####---------------]  25 % web:1, ends in 15s at the latest"
        );
        let probe = |passed, answer: Option<&str>| DeployProgress {
            probe: Some(ProbeProgress {
                probe: "GET http://:8080/".into(),
                passed,
                answer: answer.map(str::to_owned),
            }),
            ..progress.clone()
        };
        let shown = progress_in_words(&probe(false, Some("connection refused")), at(5));
        assert!(shown.ends_with("; probe GET http://:8080/: waiting, connection refused"), "{shown}");
        assert!(progress_in_words(&probe(false, None), at(5)).ends_with(": waiting"));
        assert!(
            progress_in_words(&probe(true, Some("status 200 OK")), at(5))
                .ends_with(": succeeded, status 200 OK")
        );
        let pull = DeployProgress {
            phase: DeployPhase::Pulling,
            pulled_bytes: 1,
            total_bytes: 4,
            deadline: None,
            ..progress
        };
        assert!(progress_in_words(&pull, at(5)).contains(" 25 % "));
    }

    #[test]
    fn a_gate_shows_when_it_lifts_and_what_ends_it() {
        let gate = Gate {
            gate: "schedule".into(),
            holds: true,
            why: "the next check is later".into(),
            lifts_at: Some(at(60)),
            clear: Some("POST /trigger/web?pass=false".into()),
            blocked_by: None,
            output: None,
        };
        let report = WhyReport { service: "web".into(), answer: "up to date".into(), gates: vec![gate] };
        assert_eq!(
            why(&report, Terminal::plain(), at(0)),
            "web: up to date\n\nGATE      STATE  WHY\nschedule  holds  the next check is later; lifts in 1m00s; \
             to end it: evenkeel trigger web --no-pass\n"
        );
    }

    #[test]
    fn an_entry_is_one_line_with_its_reason() {
        let mut said = AuditEntry::new(at(0), "web", Kind::ERROR, Level::Error, "it\nfailed");
        said.reason = Some("why".into());
        assert_eq!(
            entry(&said, Terminal::plain()),
            "2027-01-15 08:00:00Z  web            error            it failed (why)\n"
        );
    }

    #[test]
    fn an_entry_of_a_failure_shows_its_last_log_lines_and_nothing_is_cut() {
        let mut said =
            AuditEntry::new(at(0), "web", Kind::ROLLED_BACK, Level::Warning, "web:1 failed its probation");
        said.reason = Some("container web-1 exited with code 3".into());
        said.output = "state: exited\n--- last log lines ---\nconnecting\npanic: no data\n".into();
        let narrow = Terminal::with_columns(60);
        assert_eq!(
            entry(&said, narrow),
            "2027-01-15 08:00:00Z  web            rolled_back      web:1\n                      \
             failed its probation (container web-1\n                      \
             exited with code 3)\n                      \
             | connecting\n                      | panic: no data\n"
        );
        said.level = Level::Info;
        assert_eq!(entry(&said, Terminal::plain()).lines().count(), 1);
    }

    fn record(more: &serde_json::Value) -> ServiceStatus {
        let mut record = serde_json::json!({
            "name": "web", "status": "ok", "auto_update": true, "auto_start": false, "auto_heal": false,
            "deploying": false, "degraded": false, "exhausted": false, "restart_failures": 0, "updates_total": 0,
            "rollbacks_total": 0, "restarts_total": 0, "failures_total": 0, "has_stats": false, "cpu_percent": 0.0,
            "memory_percent": 0.0, "memory_usage_mb": 0.0, "memory_limit_mb": 0.0, "check_status": "idle",
            "images": [{ "image": "web:1", "digest": "sha256:aa", "short": "sha256:aa" }],
        });
        for (key, value) in more.as_object().unwrap() {
            record[key] = value.clone();
        }
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn a_waiting_update_shows_the_reason_the_end_and_how_to_proceed() {
        let waiting = serde_json::json!({ "waiting": {
            "image": "web:1", "digest": "sha256:bb", "gate": "min_age", "why": "it is 1 h old, of 3 h",
            "lifts_at": at(7200), "clear": "POST /trigger/web",
        }});
        let record = record(&waiting);
        let words = "it is 1 h old, of 3 h; lifts in 2h00m; to proceed: evenkeel trigger web";
        assert_eq!(remark(&record, at(0)), format!("an update waits: {words}"));
        let shown = service(&record, Terminal::plain(), at(0));
        assert!(shown.contains(&format!("  waiting     web:1 sha256:bb: {words}\n")), "{shown}");
        // Without a time it lifts only by an operator's action.
        let mut record = record;
        let waiting = record.waiting.as_mut().unwrap();
        (waiting.lifts_at, waiting.clear) = (None, "POST /approve/web".to_owned());
        assert!(!remark(&record, at(0)).contains("lifts"));
        assert!(remark(&record, at(0)).ends_with("to proceed: evenkeel approve web"));
        // An update held by the fleet names the machine that is the reason.
        let unblock = r#"POST http://w/unblock {"image":"r/web","digest":"sha256:bb"}"#;
        let waiting = record.waiting.as_mut().unwrap();
        (waiting.blocked_by, waiting.clear) = (Some("box-2".to_owned()), unblock.to_owned());
        let words = format!("it is 1 h old, of 3 h; blocked by box-2; to proceed: {unblock}");
        assert_eq!(remark(&record, at(0)), format!("an update waits: {words}"));
        assert!(service(&record, Terminal::plain(), at(0)).contains(&words));
        // A freeze is ended by a command. An id from the warden that a shell could misinterpret is not put into one.
        let waiting = record.waiting.as_mut().unwrap();
        waiting.clear = r#"POST http://w:8080/base/thaw {"id":"12"}"#.to_owned();
        assert!(remark(&record, at(0)).ends_with(": evenkeel thaw 12 --warden http://w:8080/base"));
        let odd = r#"POST http://w/thaw {"id":"1; reboot"}"#;
        record.waiting.as_mut().unwrap().clear = odd.to_owned();
        assert!(remark(&record, at(0)).ends_with(&format!(": {odd}")));
        // A fault that needs attention comes first.
        record.errored = Some("the registry is away".to_owned());
        record.status = StatusValue::Errored;
        assert_eq!(remark(&record, at(0)), "the registry is away");
    }

    #[test]
    fn a_newer_tag_and_a_rollback_that_is_not_possible_are_shown() {
        let newer = serde_json::json!({
            "images": [{ "image": "web:1.27", "digest": "sha256:aa", "short": "sha256:aa", "newer": "1.28" }],
        });
        assert_eq!(remark(&record(&newer), at(0)), "newer tag 1.28 for web:1.27");
        let shown = service(&record(&newer), Terminal::plain(), at(0));
        assert!(shown.contains("  newer tag   1.28, instead of web:1.27\n"), "{shown}");
        let risk = serde_json::json!({ "way_back": "at_risk", "way_back_reason": "the image is gone" });
        assert_eq!(remark(&record(&risk), at(0)), "rollback: not possible: the image is gone");
        let shown = service(&record(&risk), Terminal::plain(), at(0));
        assert!(shown.contains("  rollback    not possible: the image is gone\n"), "{shown}");
        assert_eq!(remark(&record(&serde_json::json!({ "way_back": "ok" })), at(0)), "");
    }
}
