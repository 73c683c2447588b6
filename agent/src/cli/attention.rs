//! What needs attention, for someone who has just been woken: what is wrong, since when, why, what runs now, and what to type.

use evenkeel_common::wire::{FailedUpdate, ServiceStatus, StatusReport, StatusValue};
use jiff::Timestamp;

use crate::service::wording;

use super::terminal::{Colour, Terminal};
use super::times::span;

/// Number of log lines in the list of all services.
const LOG_LINES: usize = 5;
/// Number of containers named on one line.
const CONTAINERS: usize = 4;
/// What brings back the containers of a project.
const START_PROJECT: &str = "start its project with docker compose, or scale its swarm service up";
/// Where the log begins in the output of a failure.
const LOG_TITLE: &str = "--- last log lines ---";

/// The state of a service in two words. The wire has one word, `blocked`, for an image that was rolled back and runs fine, for
/// a service that is down after a failed rollback, and for a new image on probation.
pub(super) fn state(record: &ServiceStatus) -> (Colour, String) {
    let colour = record.status.into();
    if let (Some(deploy), StatusValue::Deploying | StatusValue::Blocked | StatusValue::NotFound) =
        (&record.deploy, record.status)
    {
        return (Colour::Attention, wording::phase(deploy).to_owned());
    }
    let is_down = record.healthy == Some(false);
    let text = match (record.status, &record.failed_update) {
        (StatusValue::Blocked, Some(failed)) if !failed.rolled_back => "rollback failed",
        (StatusValue::Blocked | StatusValue::NotFound, _) if is_down => "down",
        (StatusValue::Blocked, Some(_)) => return (Colour::Attention, "rolled back".to_owned()),
        (StatusValue::Unknown, _) if has_no_containers(record) => "no containers",
        _ => return (colour, in_words(record.status)),
    };
    (Colour::Bad, text.to_owned())
}

fn in_words(status: StatusValue) -> String {
    let text = serde_json::to_value(status).unwrap_or_default();
    text.as_str().unwrap_or("unknown").replace('_', " ")
}

/// Reports whether nothing of the service exists. The containers of one that is watched by its name are not in the record.
fn has_no_containers(record: &ServiceStatus) -> bool {
    let is_gone = || record.healthy.is_none() && record.unhealthy_reason.is_some();
    record.containers.as_ref().map_or_else(is_gone, Vec::is_empty)
}

/// Reports whether everything is fine: nothing is down, blocked or left out, the engine answers, and notifications arrive.
pub(super) fn is_all_fine(report: &StatusReport) -> bool {
    !report.starting
        && report.engine_error.is_none()
        && report.left_out.is_empty()
        && report.undelivered.is_empty()
        && report.services.iter().all(is_fine)
}

/// Reports whether a service needs no attention.
pub(super) fn is_fine(record: &ServiceStatus) -> bool {
    match record.status {
        StatusValue::Exhausted
        | StatusValue::Degraded
        | StatusValue::Errored
        | StatusValue::Blocked
        | StatusValue::Unhealthy => false,
        StatusValue::Deploying | StatusValue::Ok => true,
        StatusValue::NotFound | StatusValue::Unknown => {
            record.healthy != Some(false) && !has_no_containers(record)
        }
    }
}

/// What is wrong with a service, in one short sentence; `None` if nothing is.
pub(super) fn verdict(record: &ServiceStatus) -> Option<String> {
    if is_fine(record) {
        return None;
    }
    let failed = record.failed_update.as_ref();
    Some(match record.status {
        StatusValue::Exhausted => {
            format!("still failing after {} restarts; no more are tried", record.restart_failures)
        }
        StatusValue::Degraded => "a container fails and is being restarted".to_owned(),
        StatusValue::Errored => record.errored.clone().unwrap_or_default(),
        StatusValue::Blocked => match failed {
            Some(failed) if record.deploy.is_some() => {
                let what = if failed.by_hand { "was left by hand" } else { "failed" };
                format!("{} {what}; another deployment is in progress", failed.image)
            }
            Some(failed) if !failed.rolled_back => {
                format!("{} failed, and so did the rollback; nothing more is tried", failed.image)
            }
            Some(failed) if failed.by_hand => {
                format!("{} was rolled back by hand to an earlier image", failed.image)
            }
            Some(failed) if record.healthy == Some(true) => {
                format!("{} failed; the previous image runs", failed.image)
            }
            Some(failed) => format!("{} failed and was rolled back", failed.image),
            None => format!("{} is blocked", record.blocked.as_deref().unwrap_or("an image")),
        },
        _ if has_no_containers(record) => {
            record.unhealthy_reason.clone().unwrap_or_else(|| "it has no containers".to_owned())
        }
        _ => record.unhealthy_reason.clone().unwrap_or_else(|| "it is not healthy".to_owned()),
    })
}

/// The lines below the list for a service that needs attention.
pub(super) fn details(record: &ServiceStatus, terminal: Terminal, now: Timestamp) -> String {
    details_with(record, LOG_LINES, terminal, now)
}

/// The same with another number of log lines.
pub(super) fn details_with(
    record: &ServiceStatus,
    log_lines: usize,
    terminal: Terminal,
    now: Timestamp,
) -> String {
    let (colour, state) = state(record);
    let since = record.since.map(|at| format!(", {}", since(at, now))).unwrap_or_default();
    let title = terminal.line(&format!("{}: {state}{since}", record.name));
    format!("{}\n{}", terminal.paint(colour, &title), explanation(record, log_lines, terminal))
}

/// Why, the last log lines, what runs now, and what to do.
fn explanation(record: &ServiceStatus, log_lines: usize, terminal: Terminal) -> String {
    let Some(verdict) = verdict(record) else { return String::new() };
    let mut out = terminal.wrap("  what  ", &verdict);
    let failed = record.failed_update.as_ref();
    let of_update = failed.filter(|_| record.status == StatusValue::Blocked);
    let now = record.unhealthy_reason.as_ref().filter(|reason| **reason != verdict);
    for why in of_update.map(|failed| &failed.reason).into_iter().chain(now) {
        out.push_str(&terminal.wrap("  why   ", why));
    }
    if let Some(failed) = of_update {
        out.push_str(&log(&failed.output, log_lines, "  log   ", terminal));
    }
    let runs = runs(record);
    if !runs.is_empty() {
        out.push_str(&terminal.wrap("  runs  ", &runs));
    }
    for (head, step) in
        std::iter::once("  do    ").chain(std::iter::repeat("        ")).zip(remedy(record, failed))
    {
        out.push_str(&terminal.wrap(head, &step));
    }
    out
}

/// The last lines of a log, each cut to the width of the terminal.
pub(super) fn log(output: &str, count: usize, head: &str, terminal: Terminal) -> String {
    let log = output.split_once(LOG_TITLE).map_or(output, |(_, log)| log);
    let lines: Vec<&str> = log.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let last = lines.iter().skip(lines.len().saturating_sub(count));
    last.flat_map(|line| [terminal.line(&format!("{head}{line}")), "\n".to_owned()]).collect()
}

/// The images and containers that run now.
fn runs(record: &ServiceStatus) -> String {
    let images = record.images.iter().flatten().map(|image| format!("{} {}", image.image, image.short));
    let containers: Vec<String> = record
        .containers
        .iter()
        .flatten()
        .map(|container| format!("{}: {}", container.name, container.status))
        .collect();
    let more = containers.len().saturating_sub(CONTAINERS);
    let more = (more > 0).then(|| format!("and {more} more"));
    images.chain(containers.into_iter().take(CONTAINERS)).chain(more).collect::<Vec<_>>().join("; ")
}

/// What to do, one step per line, each with the command to type.
fn remedy(record: &ServiceStatus, failed: Option<&FailedUpdate>) -> Vec<String> {
    let name = &record.name;
    let containers = || record.containers.iter().flatten();
    let sick = sick(record);
    let first = containers().find(|one| one.state != "running").or(containers().next());
    let bad = sick.first().copied().or(first.map(|one| one.name.as_str()));
    let container = failed.and_then(|failed| failed.container.as_deref()).or(bad);
    let logs = container.filter(|name| is_plain(name)).map(|name| format!("docker logs --tail 50 {name}"));
    let look = format!("look: {}", logs.unwrap_or_else(|| "evenkeel audit".to_owned()));
    // Without auto_update, a trigger is refused, and only a redeployment pulls.
    let is_checked = record.auto_update;
    // An update may wait for an approval, and whoever types this has not been asked about it.
    let check = format!("evenkeel trigger {name} --no-pass");
    let redeploy = format!("which recreates all containers of the project: evenkeel redeploy {name}");
    match record.status {
        StatusValue::Exhausted => {
            let again = if is_checked { check } else { format!("evenkeel unblock {name}") };
            vec![look, format!("fix the cause, then: {again}")]
        }
        StatusValue::Degraded => vec![look, "or wait: it is being restarted".to_owned()],
        StatusValue::Errored if !is_checked => {
            vec!["fix the cause; what failed is tried again by itself".to_owned()]
        }
        StatusValue::Errored => vec![format!("fix the cause; to check again now: {check}")],
        StatusValue::Blocked => match failed {
            Some(failed) if !failed.rolled_back && is_checked => {
                vec![look, format!("then restore the last proven image: {check}")]
            }
            Some(failed) if !failed.rolled_back => {
                vec![look, format!("then restore the last proven image, {redeploy}")]
            }
            _ if !is_checked => vec![
                format!("push a corrected image, or allow this one again: evenkeel unblock {name}"),
                format!("then pull it, {redeploy}"),
            ],
            _ => vec![
                "push a corrected image, which is deployed by itself".to_owned(),
                format!("or try this one again: evenkeel unblock {name}"),
            ],
        },
        _ if has_no_containers(record) => {
            let make = if record.containers.is_some() {
                START_PROJECT
            } else {
                "make it again, or correct its name"
            };
            vec![make.to_owned(), "or remove the service from the configuration".to_owned()]
        }
        _ => {
            let off = (!record.auto_heal).then(|| "auto_heal is off, so nothing restarts it".to_owned());
            let again =
                (!sick.is_empty()).then(|| format!("or try again: docker restart {}", sick.join(" ")));
            off.into_iter().chain([look]).chain(again).collect()
        }
    }
}

/// The containers that make the service unhealthy. The reason begins with the name of each, with a comma between them.
fn sick(record: &ServiceStatus) -> Vec<&str> {
    let reasons = format!(", {}", record.unhealthy_reason.as_deref().unwrap_or_default());
    let names = record.containers.iter().flatten().map(|one| one.name.as_str());
    names.filter(|name| is_plain(name) && reasons.contains(&format!(", {name} "))).collect()
}

/// Reports whether a name can be put into a command.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

fn since(at: Timestamp, now: Timestamp) -> String {
    format!("for {} (since {})", span(now.duration_since(at)), at.strftime("%Y-%m-%d %H:%M:%S UTC"))
}

#[cfg(test)]
mod tests {
    use evenkeel_common::testing::service_status;
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn record(more: &serde_json::Value) -> ServiceStatus {
        let mut record = serde_json::to_value(service_status("web")).unwrap();
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(record).unwrap()
    }

    fn failed(rolled_back: bool) -> serde_json::Value {
        json!({
            "at": at(0), "image": "web:1", "reason": "container web-1 exited with code 3", "container": "web-1",
            "output": "state: exited\n--- last log lines ---\nconnecting\npanic: no \u{1b}[31mdata", "rolled_back": rolled_back,
        })
    }

    #[test]
    fn the_three_meanings_of_blocked_have_different_words() {
        let blocked = |more: serde_json::Value| {
            let mut all = json!({"status": "blocked", "blocked": "sha256:bb"});
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            state(&record(&all))
        };
        let progress = json!({"phase": "probation", "image": "web:1", "since": at(0), "pulled_bytes": 0, "total_bytes": 0});
        for (more, colour, text) in [
            (json!({"healthy": true, "failed_update": failed(true)}), Colour::Attention, "rolled back"),
            (json!({"healthy": false, "failed_update": failed(true)}), Colour::Bad, "down"),
            (json!({"healthy": false, "failed_update": failed(false)}), Colour::Bad, "rollback failed"),
            (
                json!({"healthy": true, "failed_update": failed(true), "deploy": progress}),
                Colour::Attention,
                "on probation",
            ),
            // Written by an earlier version.
            (json!({"healthy": true}), Colour::Bad, "blocked"),
        ] {
            assert_eq!(blocked(more.clone()), (colour, text.to_owned()), "{more}");
        }
    }

    #[test]
    fn a_rollback_is_explained_with_reason_log_what_runs_and_what_to_type() {
        let record = record(&json!({
            "status": "blocked", "blocked": "sha256:bb", "healthy": true, "since": at(0), "failed_update": failed(true),
            "auto_update": true,
            "images": [{"image": "web:1", "digest": "sha256:aa", "short": "sha256:aa"}],
            "containers": [{"id": "x", "name": "web-1", "state": "running", "status": "Up 2 hours", "image": "web:1"}],
        }));
        assert_eq!(
            details(&record, Terminal::plain(), at(7380)),
            "web: rolled back, for 2h03m (since 2027-01-15 08:00:00 UTC)\n  \
               what  web:1 failed; the previous image runs\n  \
               why   container web-1 exited with code 3\n  \
               log   connecting\n  \
               log   panic: no data\n  \
               runs  web:1 sha256:aa; web-1: Up 2 hours\n  \
               do    push a corrected image, which is deployed by itself\n        \
               or try this one again: evenkeel unblock web\n"
        );
    }

    #[test]
    fn what_a_person_went_back_from_has_not_failed() {
        let mut left = failed(true);
        left["by_hand"] = json!(true);
        let record = record(
            &json!({"status": "blocked", "blocked": "sha256:bb", "healthy": true, "failed_update": left}),
        );
        assert_eq!(verdict(&record).as_deref(), Some("web:1 was rolled back by hand to an earlier image"));
    }

    #[test]
    fn whatever_is_down_is_bad_news() {
        let none = json!([]);
        for (more, is_good) in [
            (json!({"status": "ok", "healthy": true}), true),
            (json!({"status": "deploying", "healthy": false}), true),
            (json!({"status": "unknown"}), true),
            (json!({"status": "unknown", "containers": none}), false),
            (json!({"status": "unknown", "unhealthy_reason": "there is no container named dns"}), false),
            (json!({"status": "not_found", "healthy": true}), true),
            (json!({"status": "not_found", "healthy": false, "unhealthy_reason": "stopped by hand"}), false),
            (json!({"status": "degraded", "healthy": false}), false),
            (json!({"status": "unhealthy", "healthy": false}), false),
            (json!({"status": "blocked", "healthy": true}), false),
            (json!({"status": "errored"}), false),
            (json!({"status": "exhausted"}), false),
        ] {
            let record = record(&more);
            assert_eq!(is_fine(&record), is_good, "{more}");
            assert_eq!(verdict(&record).is_none(), is_good, "{more}");
            let text = details(&record, Terminal::plain(), at(0));
            assert_eq!(text.contains("\n  do    "), !is_good, "{text}");
        }
        let report = |more: serde_json::Value| -> bool {
            let mut report = json!({"uptime_seconds": 1, "poll_count": 0, "services": []});
            report.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            is_all_fine(&serde_json::from_value(report).unwrap())
        };
        assert!(report(json!({})));
        assert!(!report(json!({"starting": true})));
        assert!(!report(json!({"engine_error": "connection refused"})));
        assert!(!report(json!({"left_out": [{"name": "blog", "reason": "x"}]})));
        assert!(!report(json!({"undelivered": ["notifications.ntfy: nothing has been delivered"]})));
    }

    #[test]
    fn a_container_name_that_a_shell_could_misread_is_not_put_into_a_command() {
        let hostile =
            json!([{"id": "x", "name": "web;reboot", "state": "exited", "status": "", "image": "web"}]);
        let record = record(&json!({
            "status": "unhealthy", "healthy": false, "unhealthy_reason": "web;reboot exited with code 1",
            "containers": hostile,
        }));
        assert!(!remedy(&record, None).join(" ").contains("reboot"));
    }

    #[test]
    fn without_auto_update_no_command_is_suggested_that_the_agent_refuses() {
        for more in [
            json!({"status": "exhausted", "exhausted": true}),
            json!({"status": "errored", "errored": "x"}),
            json!({"status": "blocked", "failed_update": failed(false)}),
            json!({"status": "blocked", "failed_update": failed(true)}),
            json!({"status": "unhealthy", "healthy": false}),
            json!({"status": "unknown", "containers": []}),
        ] {
            let mut record = record(&more);
            let steps = |record: &ServiceStatus| remedy(record, record.failed_update.as_ref()).join("\n");
            assert!(!steps(&record).contains("trigger"), "{more}: {}", steps(&record));
            let is_exhausted = record.status == StatusValue::Exhausted;
            assert_eq!(steps(&record).contains("fix the cause, then: evenkeel unblock web"), is_exhausted);
            record.auto_update = true;
            assert_eq!(steps(&record).contains("fix the cause, then: evenkeel trigger web"), is_exhausted);
        }
    }

    #[test]
    fn no_step_approves_an_update_that_waits() {
        let waiting =
            json!({"image": "web:1", "digest": "sha256:bb", "gate": "approval", "why": "x", "clear": "x"});
        for more in [
            json!({"status": "exhausted", "exhausted": true}),
            json!({"status": "errored", "errored": "x"}),
            json!({"status": "blocked", "failed_update": failed(false)}),
        ] {
            let mut record = record(&more);
            record.auto_update = true;
            record.waiting = serde_json::from_value(waiting.clone()).unwrap();
            let steps = remedy(&record, record.failed_update.as_ref()).join("\n");
            assert!(steps.ends_with(": evenkeel trigger web --no-pass"), "{more}: {steps}");
        }
    }

    #[test]
    fn only_the_containers_that_fail_are_restarted_and_no_update_is_deployed_for_them() {
        let one = |name: &str, state: &str| json!({"id": name, "name": name, "state": state, "status": "", "image": "web:1"});
        let waiting =
            json!({"image": "web:1", "digest": "sha256:bb", "gate": "approval", "why": "x", "clear": "x"});
        let mut more = json!({
            "status": "unhealthy", "healthy": false, "auto_heal": true, "waiting": waiting,
            "unhealthy_reason": "web-1 is unhealthy, cache-1 exited with code 1",
            "containers": [
                one("migrate-1", "exited"), one("web-1", "running"), one("web-10", "running"), one("cache-1", "exited"),
            ],
        });
        let steps = ["look: docker logs --tail 50 web-1", "or try again: docker restart web-1 cache-1"];
        assert_eq!(remedy(&record(&more), None), steps);
        more["auto_heal"] = json!(false);
        assert_eq!(remedy(&record(&more), None)[0], "auto_heal is off, so nothing restarts it");
        more["containers"] = json!([]);
        let steps = [START_PROJECT, "or remove the service from the configuration"];
        assert_eq!(remedy(&record(&more), None), steps);
    }
}
