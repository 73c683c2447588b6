//! Human-readable output of the subcommands.

use evenkeel_common::wire::{
    AuditEntry, DeployPhase, DeployProgress, Gate, Health, KeptImage, ServiceStatus, StatusReport,
    StatusValue, ThawRequest, Waiting, WayBackValue, WhyReport,
};
use jiff::{SignedDuration, Timestamp};

use super::terminal::{Colour, Terminal};

/// Width of a progress bar in columns.
const BAR: usize = 20;

/// Formats all services, one per line.
pub(super) fn report(report: &StatusReport, terminal: Terminal, now: Timestamp) -> String {
    if report.starting {
        return "the agent is starting and has not loaded its services yet\n".to_owned();
    }
    if report.services.is_empty() {
        return "no services are configured\n".to_owned();
    }
    let rows: Vec<Vec<(Colour, String)>> = report
        .services
        .iter()
        .map(|service| {
            let images: Vec<&str> = service.images.iter().flatten().map(|image| &*image.short).collect();
            let checked = service.last_check.map_or("never".to_owned(), |at| ago(at, now));
            vec![
                (Colour::Plain, service.name.clone()),
                (service.status.into(), word(service.status)),
                (Colour::Faint, images.first().map_or("-", |digest| digest).to_owned()),
                (Colour::Faint, checked),
                (Colour::Plain, remark(service, now)),
            ]
        })
        .collect();
    terminal.table(&["NAME", "STATUS", "DIGEST", "CHECKED", "REMARK"], &rows)
}

/// Formats one service in full.
pub(super) fn service(record: &ServiceStatus, terminal: Terminal, now: Timestamp) -> String {
    let mut out =
        format!("{}: {}\n", record.name, terminal.paint(record.status.into(), &word(record.status)));
    let mut line = |key: &str, text: &str| {
        out.push_str(&terminal.line(&format!("  {key:<12}{text}")));
        out.push('\n');
    };
    if let Some(progress) = &record.deploy {
        line("deployment", &progress_in_words(progress, now));
    }
    if let Some(waiting) = &record.waiting {
        line("waiting", &format!("{} {}: {}", waiting.image, waiting.digest, waiting_in_words(waiting, now)));
    }
    for (key, text) in [
        ("fault", &record.errored),
        ("blocked", &record.blocked),
        ("not found", &record.not_found),
        ("unhealthy", &record.unhealthy_reason),
    ] {
        if let Some(text) = text {
            line(key, text);
        }
    }
    for image in record.images.iter().flatten() {
        line("image", &format!("{} {}", image.image, image.digest));
        if let Some(newer) = &image.newer {
            line("newer tag", &format!("{newer}, instead of {}", image.image));
        }
    }
    if record.way_back == Some(WayBackValue::AtRisk) {
        line("way back", &way_back_in_words(record));
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
    let answer = terminal.line(&format!("{}: {}", report.service, report.answer));
    format!("{answer}\n\n{}", terminal.wrapped_table(&["GATE", "STATE", "WHY"], &rows))
}

/// Formats the confirmation of a redeployment, with the images that it does not change.
pub(super) fn redeploying(service: &str, kept: &[KeptImage]) -> String {
    let line = |one: &KeptImage| format!("{} keeps what it runs ({}): {}\n", one.image, one.gate, one.why);
    let kept: String = kept.iter().map(line).collect();
    format!("redeploying {service}\n{kept}")
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
    ["trigger", "redeploy", "unblock", "approve"].iter().fold(how.to_owned(), |how, verb| {
        how.replace(&format!("POST /{verb}/"), &format!("evenkeel {verb} "))
    })
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
            out.push_str(&format!("{}\n", terminal.line(&format!("{key}: {text}"))));
        }
    }
    for warning in &health.config_warnings {
        out.push_str(&format!("{}\n", terminal.line(&format!("configuration: {warning}"))));
    }
    out
}

/// Formats one entry on one line, with its reason.
pub(super) fn entry(entry: &AuditEntry, terminal: Terminal) -> String {
    let at = entry.timestamp.strftime("%Y-%m-%d %H:%M:%S");
    let reason = entry.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let text = format!("{at}  {:<14} {:<16} {}{reason}", entry.service, entry.event.as_str(), entry.message);
    format!("{}\n", terminal.paint(entry.level.into(), &terminal.line(&text)))
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
    let first = [&service.errored, &service.unhealthy_reason].into_iter().flatten().next().cloned();
    match (first, &service.blocked, &service.waiting) {
        (Some(text), ..) => text,
        (None, Some(digest), _) => format!("{digest} is blocked"),
        (None, None, Some(waiting)) => format!("an update waits: {}", waiting_in_words(waiting, now)),
        (None, None, None) if service.way_back == Some(WayBackValue::AtRisk) => {
            format!("the way back is {}", way_back_in_words(service))
        }
        (None, None, None) => newer(service).unwrap_or_else(|| {
            if service.auto_update { String::new() } else { "auto_update is off".to_owned() }
        }),
    }
}

/// Why a rollback would fail now.
fn way_back_in_words(service: &ServiceStatus) -> String {
    let reason = service.way_back_reason.as_ref().map(|reason| format!(": {reason}"));
    format!("at risk{}", reason.unwrap_or_default())
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

/// Formats what an update is waiting for.
fn waiting_in_words(waiting: &Waiting, now: Timestamp) -> String {
    let by = blocked_by(waiting.blocked_by.as_deref());
    let lifts = waiting.lifts_at.map(|at| format!("; lifts {}", until(at, now))).unwrap_or_default();
    format!("{}{by}{lifts}; to proceed: {}", waiting.why, as_command(&waiting.clear))
}

/// Formats the agent of the fleet that blocks the update.
fn blocked_by(agent: Option<&str>) -> String {
    agent.map(|agent| format!("; blocked by {agent}")).unwrap_or_default()
}

fn progress_in_words(progress: &DeployProgress, now: Timestamp) -> String {
    let phase = match progress.phase {
        DeployPhase::Pulling => "pulling",
        DeployPhase::Starting => "starting",
        DeployPhase::Probation => "probation",
        DeployPhase::RollingBack => "rolling back",
    };
    let share = match (progress.phase, progress.deadline) {
        (DeployPhase::Pulling, _) if progress.total_bytes > 0 => {
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
    format!("{phase} {}{}{}", bar.unwrap_or_default(), progress.image, end.unwrap_or_default())
}

fn word(status: StatusValue) -> String {
    let text = serde_json::to_value(status).unwrap_or_default();
    text.as_str().unwrap_or("unknown").replace('_', " ")
}

pub(super) fn ago(at: Timestamp, now: Timestamp) -> String {
    format!("{} ago", span(now.duration_since(at)))
}

pub(super) fn until(at: Timestamp, now: Timestamp) -> String {
    if at <= now { "now".to_owned() } else { format!("in {}", span(at.duration_since(now))) }
}

/// Formats a duration in its two largest units.
pub(super) fn span(time: SignedDuration) -> String {
    let seconds = time.as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_common::wire::{Kind, Level};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn durations_are_written_in_two_units() {
        for (seconds, text) in [(-4, "0s"), (59, "59s"), (60, "1m00s"), (3660, "1h01m"), (90_000, "1d1h")] {
            assert_eq!(span(SignedDuration::from_secs(seconds)), text);
        }
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
        };
        assert_eq!(
            progress_in_words(&progress, at(5)),
            "probation [#####---------------]  25 % web:1, ends in 15s at the latest"
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
            clear: Some("POST /trigger/web".into()),
            blocked_by: None,
            output: None,
        };
        let report = WhyReport { service: "web".into(), answer: "up to date".into(), gates: vec![gate] };
        assert_eq!(
            why(&report, Terminal::plain(), at(0)),
            "web: up to date\n\nGATE      STATE  WHY\nschedule  holds  the next check is later; lifts in 1m00s; \
             to end it: evenkeel trigger web\n"
        );
    }

    #[test]
    fn an_entry_is_one_line_with_its_reason() {
        let mut said = AuditEntry::new(at(0), "web", Kind::ERROR, Level::Error, "it\nfailed");
        said.reason = Some("why".into());
        assert_eq!(
            entry(&said, Terminal::plain()),
            "2027-01-15 08:00:00  web            error            it failed (why)\n"
        );
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
        assert_eq!(remark(&record, at(0)), "the registry is away");
    }

    #[test]
    fn a_newer_tag_and_a_way_back_at_risk_are_shown() {
        let newer = serde_json::json!({
            "images": [{ "image": "web:1.27", "digest": "sha256:aa", "short": "sha256:aa", "newer": "1.28" }],
        });
        assert_eq!(remark(&record(&newer), at(0)), "newer tag 1.28 for web:1.27");
        let shown = service(&record(&newer), Terminal::plain(), at(0));
        assert!(shown.contains("  newer tag   1.28, instead of web:1.27\n"), "{shown}");
        let risk = serde_json::json!({ "way_back": "at_risk", "way_back_reason": "the image is gone" });
        assert_eq!(remark(&record(&risk), at(0)), "the way back is at risk: the image is gone");
        let shown = service(&record(&risk), Terminal::plain(), at(0));
        assert!(shown.contains("  way back    at risk: the image is gone\n"), "{shown}");
        assert_eq!(remark(&record(&serde_json::json!({ "way_back": "ok" })), at(0)), "");
    }
}
