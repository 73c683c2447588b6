//! Human-readable output of `evenkeel fleet`: freezes, withheld digests, and the images of each machine.

use std::collections::BTreeSet;

use evenkeel_common::wire::{CellVerdict, FailedDigest, FleetCell, FleetImages, Freeze};
use jiff::{SignedDuration, Timestamp};

use super::terminal::{Colour, Terminal};
use super::times::{ago, span, until};

/// Number of hex digits of a digest in a table.
const SHORT: usize = 12;
/// Agents report at least hourly. A report that is older than two intervals may be outdated: the machine may be off.
const OLD: SignedDuration = SignedDuration::from_mins(150);

/// Formats the whole map.
pub(super) fn map(map: &FleetImages, terminal: Terminal, now: Timestamp) -> String {
    let mut out = String::new();
    if map.store.is_some() {
        out.push_str(&terminal.wrap("", "the warden's store is away; this is what it read last"));
    }
    for freeze in &map.freezes {
        out.push_str(&terminal.wrap("frozen: ", &freeze_in_words(freeze, now)));
    }
    for failed in &map.failed {
        out.push_str(&terminal.wrap("withheld: ", &failed_in_words(failed, now)));
    }
    if !out.is_empty() {
        out.push('\n');
    }
    if map.images.is_empty() {
        out.push_str("no machine has reported its images yet\n");
        return out;
    }
    let rows: Vec<Vec<(Colour, String)>> = map
        .images
        .iter()
        .flat_map(|image| image.cells.iter().map(|cell| row(cell, &image.repository, map, now)))
        .collect();
    let table = terminal.wrapped_rows(&["MACHINE", "SERVICE", "DIGEST", "STATE"], &rows);
    // The image names are inserted between the rows.
    let mut shown = table.into_iter();
    out.extend(shown.next());
    for image in &map.images {
        out.push_str(&format!("{}\n", terminal.line(&image.repository)));
        out.extend(shown.by_ref().take(image.cells.len()));
    }
    out.push_str(&omissions(map, terminal));
    out
}

/// Says what the table does not show.
fn omissions(map: &FleetImages, terminal: Terminal) -> String {
    let mut out = String::new();
    let cells = map.images.iter().flat_map(|image| &image.cells);
    let listed: BTreeSet<&str> = cells.map(|cell| cell.machine.as_str()).collect();
    let silent: Vec<&str> =
        map.machines.iter().map(String::as_str).filter(|id| !listed.contains(id)).collect();
    if !silent.is_empty() {
        out.push_str(&terminal.wrap("no images listed for: ", &silent.join(", ")));
    }
    if map.left_out > 0 {
        let noun = if map.left_out == 1 { "image" } else { "images" };
        out.push_str(
            &terminal.wrap("not listed: ", &format!("{} {noun}, since there are too many", map.left_out)),
        );
    }
    if out.is_empty() { out } else { format!("\n{out}") }
}

fn row(cell: &FleetCell, repository: &str, map: &FleetImages, now: Timestamp) -> Vec<(Colour, String)> {
    let (mut colour, mut state) = state(cell, repository, map, now);
    if now.duration_since(cell.reported) > OLD {
        if colour != Colour::Bad {
            colour = Colour::Attention;
        }
        state.push_str(&format!(", reported {}", ago(cell.reported, now)));
    }
    let digest = cell.image.digest.as_deref().map_or("-".to_owned(), short);
    vec![
        (Colour::Plain, format!("  {}", cell.machine)),
        (Colour::Plain, cell.image.service.clone()),
        (Colour::Faint, digest),
        (colour, state),
    ]
}

/// Returns the state of a cell as of its report, the worst condition first.
fn state(cell: &FleetCell, repository: &str, map: &FleetImages, now: Timestamp) -> (Colour, String) {
    let image = &cell.image;
    let available = image.available.as_ref().filter(|available| image.digest.as_ref() != Some(*available));
    let behind = image.behind_since.map(|since| format!("behind {}", span(now.duration_since(since))));
    let failed =
        map.failed.iter().find(|failed| failed.repository == repository && Some(&failed.digest) == available);
    match (cell.verdict, available) {
        (Some(CellVerdict::Trying), _) => (Colour::Attention, "being tried".to_owned()),
        (Some(CellVerdict::Failed), _) => (Colour::Bad, "failed here".to_owned()),
        (_, Some(_)) if failed.is_some() => {
            (Colour::Bad, format!("withheld, failed on {}", failed.map(named).unwrap_or_default()))
        }
        (_, Some(digest)) if image.blocked.as_ref() == Some(digest) => {
            (Colour::Bad, "blocked here".to_owned())
        }
        _ if image.gate.is_some() => {
            let gate = image.gate.clone().unwrap_or_default();
            let why = image.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            let behind = behind.map(|behind| format!("{behind}, ")).unwrap_or_default();
            (Colour::Attention, format!("{behind}waits for {gate}{why}"))
        }
        (_, Some(_)) => (Colour::Attention, behind.unwrap_or_else(|| "behind".to_owned())),
        _ if image.digest.is_none() => (Colour::Faint, "not running".to_owned()),
        _ => {
            let proven = image.proven_at.map(|at| format!("proven {}", ago(at, now)));
            (Colour::Good, proven.unwrap_or_else(|| "up to date".to_owned()))
        }
    }
}

fn freeze_in_words(freeze: &Freeze, now: Timestamp) -> String {
    let machine = freeze.scope.machine.as_ref().map(|id| format!("on {id}, ")).unwrap_or_default();
    let image = freeze.scope.image.as_ref().map(|image| format!("of {image}, ")).unwrap_or_default();
    format!(
        "{} ({image}{machine}by {}, {}, ends {}, id {})",
        freeze.reason,
        freeze.by,
        ago(freeze.since, now),
        until(freeze.until, now),
        freeze.id
    )
}

fn failed_in_words(failed: &FailedDigest, now: Timestamp) -> String {
    let reason = failed.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!(
        "{}@{} failed on {} {}{reason}",
        failed.repository,
        failed.digest,
        named(failed),
        ago(failed.since, now)
    )
}

/// Names the machines on which a digest failed.
fn named(failed: &FailedDigest) -> String {
    let more =
        if failed.more_agents > 0 { format!(" and {} more", failed.more_agents) } else { String::new() };
    format!("{}{more}", failed.agents.join(", "))
}

fn short(digest: &str) -> String {
    digest.strip_prefix("sha256:").unwrap_or(digest).chars().take(SHORT).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn fleet(cells: &Value, failed: &Value, freezes: &Value) -> FleetImages {
        serde_json::from_value(json!({
            "revision": 1, "machines": ["a", "b"], "freezes": freezes, "failed": failed,
            "images": [{ "repository": "r.example/web", "cells": cells }],
        }))
        .unwrap()
    }

    fn cell(machine: &str, more: &Value) -> Value {
        let mut cell = json!({ "machine": machine, "ring": 0, "reported": "2026-01-02T00:00:00Z", "service": "web",
            "image": "r.example/web:1", "digest": "sha256:0123456789abcdef" });
        for (key, value) in more.as_object().unwrap() {
            cell[key] = value.clone();
        }
        cell
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn the_reason_of_a_machine_is_wrapped_below_its_image_and_not_cut() {
        let why = "the registry has another digest for this tag, and nobody at all has approved it so far";
        let held = json!({ "gate": "approval", "why": why });
        let mut both = fleet(&json!([cell("a", &held), cell("b", &json!({}))]), &json!([]), &json!([]));
        both.images.push(both.images[0].clone());
        both.images[1].repository = "r.example/api".to_owned();
        let now = at("2026-01-02T01:00:00Z");
        let text = map(&both, Terminal::with_columns(80), now);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.split_whitespace().collect::<Vec<_>>().join(" ").contains(why), "{text}");
        let order: Vec<&str> = text
            .lines()
            .filter(|line| {
                ["MACHINE", "r.example", "  a ", "  b "].iter().any(|start| line.starts_with(*start))
            })
            .map(|line| line.split_whitespace().next().unwrap())
            .collect();
        assert_eq!(order, ["MACHINE", "r.example/web", "a", "b", "r.example/api", "a", "b"]);
    }

    #[test]
    fn a_map_that_may_be_stale_says_so() {
        let mut known = fleet(&json!([cell("a", &json!({}))]), &json!([]), &json!([]));
        let shown = |known: &FleetImages| map(known, Terminal::plain(), at("2026-01-02T01:00:00Z"));
        assert!(!shown(&known).contains("away"), "{}", shown(&known));
        known.store = Some("away".to_owned());
        assert!(shown(&known).starts_with("the warden's store is away; "), "{}", shown(&known));
    }

    #[test]
    fn a_cell_shows_the_worst_condition() {
        let newer = json!({ "available": "sha256:ff", "behind_since": "2026-01-02T00:00:00Z" });
        let and = |key: &str, text: &str| {
            let mut more = newer.clone();
            more[key] = json!(text);
            more
        };
        let failed = json!([{ "repository": "r.example/web", "digest": "sha256:ff", "agents": ["c"], "since": "2026-01-02T00:00:00Z" }]);
        for (more, failed, expected) in [
            (and("verdict", "trying"), json!([]), "being tried"),
            (and("verdict", "failed"), failed.clone(), "failed here"),
            (newer.clone(), failed, "withheld, failed on c"),
            (and("blocked", "sha256:ff"), json!([]), "blocked here"),
            (and("blocked", "sha256:ee"), json!([]), "behind 1h00m"),
            (and("gate", "window"), json!([]), "behind 1h00m, waits for window"),
            (newer.clone(), json!([]), "behind 1h00m"),
            (json!({ "digest": null }), json!([]), "not running"),
            (json!({ "proven_at": "2026-01-01T01:00:00Z" }), json!([]), "proven 1d0h ago"),
            (json!({}), json!([]), "up to date"),
        ] {
            let map = fleet(&json!([cell("a", &more)]), &failed, &json!([]));
            let image = &map.images[0];
            let (_, said) = state(&image.cells[0], &image.repository, &map, at("2026-01-02T01:00:00Z"));
            assert_eq!(said, expected, "{more}");
        }
    }

    #[test]
    fn an_old_report_is_never_good_news() {
        for (more, expected) in [
            (json!({}), (Colour::Attention, "up to date, reported 20d0h ago")),
            (json!({ "verdict": "failed" }), (Colour::Bad, "failed here, reported 20d0h ago")),
        ] {
            let map = fleet(&json!([cell("a", &more)]), &json!([]), &json!([]));
            let image = &map.images[0];
            let shown = row(&image.cells[0], &image.repository, &map, at("2026-01-22T00:00:00Z"));
            assert_eq!(shown[3], (expected.0, expected.1.to_owned()));
        }
        let map = fleet(&json!([cell("a", &json!({}))]), &json!([]), &json!([]));
        let shown = row(&map.images[0].cells[0], "r.example/web", &map, at("2026-01-02T02:30:00Z"));
        assert_eq!(shown[3], (Colour::Good, "up to date".to_owned()));
    }

    #[test]
    fn what_the_table_does_not_show_is_named() {
        let failed = json!([{ "repository": "r.example/web", "digest": "sha256:ff", "agents": ["c", "d"],
            "more_agents": 5, "since": "2026-01-02T00:00:00Z" }]);
        let now = at("2026-01-02T01:00:00Z");
        let behind = json!({ "available": "sha256:ff" });
        let mut cut = fleet(&json!([cell("a", &behind)]), &failed, &json!([]));
        cut.left_out = 3;
        let text = map(&cut, Terminal::plain(), now);
        assert!(
            text.ends_with("\n\nno images listed for: b\nnot listed: 3 images, since there are too many\n"),
            "{text}"
        );
        assert_eq!(text.matches("failed on c, d and 5 more").count(), 2, "{text}");
        let whole = fleet(&json!([cell("a", &json!({})), cell("b", &json!({}))]), &json!([]), &json!([]));
        assert!(map(&whole, Terminal::plain(), now).ends_with("up to date\n"));
    }
}
