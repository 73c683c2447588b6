//! The shipped schema and samples are consistent with each other, with the program, and with an independent validator.

mod shipped;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use evenkeel_agent::config::template::render_template;
use evenkeel_agent::config::{self, Config, Configuration};
use evenkeel_common::wire::{AuditEntry, Kind, Level};
use serde_json::{Value, json};
use shipped::{check_schema, text};

/// The environment variables of the full sample.
fn environment(name: &str) -> Option<String> {
    match name {
        "DISCORD_WEBHOOK_URL" => Some("https://discord.example/api/webhooks/1/token-d".into()),
        "SMTP_PASSWORD" => Some("token-s".into()),
        "CHAT_HOOK" => Some("token-h".into()),
        "CHAT_TOKEN" => Some("token-c".into()),
        "PUSH_TOKEN" => Some("token-w".into()),
        _ => None,
    }
}

fn parse(text: &str) -> Result<Config, config::ConfigErrors> {
    Config::parse(text, Path::new("sample.json"), &environment)
}

#[test]
fn the_shipped_schema_matches_the_types() {
    check_schema("schema/agent-config.schema.json", &config::schema());
}

#[test]
fn the_samples_pass_the_schema() {
    let validator = jsonschema::validator_for(&config::schema()).unwrap();
    for name in ["samples/minimal.json", "samples/full.json"] {
        let sample: Value = serde_json::from_str(&text(name)).unwrap();
        let errors: Vec<_> = validator.iter_errors(&sample).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {errors:?}");
    }
}

/// The compose files of the samples do not exist on this machine; there must be no other warning.
#[test]
fn the_samples_load_with_warnings_about_missing_files_only() {
    let missing = |path: &str| {
        format!(
            "{path:?} does not exist; allowed: the absolute path of a regular file, not of a link to one (service skipped)"
        )
    };
    let minimal = parse(&text("samples/minimal.json")).unwrap();
    assert_eq!(minimal.warnings, [format!("web: compose_files[0]: {}", missing("/opt/web/compose.yml"))]);

    let full = parse(&text("samples/full.json")).unwrap();
    assert_eq!(
        full.warnings,
        [
            format!("web: compose_files[0]: {}", missing("/opt/web/compose.yml")),
            format!("web: compose_files[1]: {}", missing("/opt/web/compose.prod.yml")),
            "web: env_file: \"/opt/web/.env\" does not exist; allowed: the absolute path of a file that exists (service skipped)".into(),
        ]
    );
    let names: Vec<_> = full.services.iter().map(|service| service.name.as_str()).collect();
    assert_eq!(names, ["cache", "legacy"]);
    assert!(full.notifications.discord.is_some() && full.notifications.smtp.is_some() && full.push.is_some());
    assert_eq!(full.notifications.webhooks.len(), 1);
    let printed = format!("{full:?}");
    assert!(!printed.contains("token-"), "a secret is printed: {printed}");
}

/// A file of the predecessor, with the keys that SPEC 2.9 lists and no other, loads unchanged (DECISIONS 3).
#[test]
fn a_configuration_of_the_predecessor_loads_without_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let path = folder.path().join(name);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        path
    };
    let (compose, env_file) = (file("compose.yml"), file(".env"));
    let mut tree: Value = serde_json::from_str(&text("samples/full.json")).unwrap();
    for (part, key) in [
        ("", "$schema"),
        ("", "state"),
        ("/registry", "concurrency"),
        ("/api", "allowed_hosts"),
        ("/notifications/discord", "min_level"),
        ("/notifications/smtp", "min_level"),
        ("/notifications/smtp", "tls"),
        ("/notifications/webhooks/0", "events"),
        ("/services/0", "update"),
    ] {
        assert!(
            tree.pointer_mut(part).unwrap().as_object_mut().unwrap().remove(key).is_some(),
            "{part}/{key}"
        );
    }
    // The predecessor writes unset values as the zero values of its language.
    tree["notifications"]["webhooks"][0]["body"] = json!("{\"text\": \"{{ .Service }}: {{ .Message }}\"}");
    tree["services"][0]["compose_files"] = json!([compose]);
    tree["services"][0]["env_file"] = json!(env_file);
    tree["services"][1]["images"] = json!(null);
    tree["services"][1]["compose_project"] = json!("");
    tree["services"][1]["env_file"] = json!("");
    let config = parse(&tree.to_string()).unwrap();
    assert_eq!(config.warnings, Vec::<String>::new());
    assert_eq!(config.services.len(), 3);
}

/// Values that the predecessor accepts but this program advises against (DECISIONS 3): a warning about the consequences.
#[test]
fn values_accepted_by_the_predecessor_are_warnings_at_most() {
    let mut tree: Value = serde_json::from_str(&text("samples/full.json")).unwrap();
    let usual = parse(&tree.to_string()).unwrap().warnings;
    tree["monitor"]["stats_interval"] = json!(0);
    let mut warnings = parse(&tree.to_string()).unwrap().warnings;
    warnings.retain(|warning| !usual.contains(warning));
    assert_eq!(
        warnings,
        [
            "monitor.stats_interval: 0 is out of range; allowed: a whole number of seconds from 1 to 86400, or a duration such as \"90s\", \"15m\", \"12h\", \"3d\" (CPU and memory are measured every 300 s, as often as the registry is polled)"
        ]
    );
    // All of its keys with their zero values, as it writes them.
    let zero = json!({
        "runtime": "docker",
        "registry": {"url": "http://localhost:5000", "poll_interval": 300, "insecure": false},
        "api": {"address": ["127.0.0.1:9090"]},
        "audit": {"path": ""},
        "monitor": {"stats_interval": 300},
        "docker_health": {"check_interval": 30, "timeout": 5},
        "notifications": {"discord": null, "smtp": null, "webhooks": null},
        "push": {"warden_url": "", "token": "", "machine_id": ""},
        "services": [{
            "name": "web", "images": null, "silent": false, "compose_files": null, "compose_project": "",
            "container_name": "web", "env_file": "", "auto_update": false, "auto_start": false, "auto_heal": true,
            "compose_watch": false, "cpu_threshold": 0, "memory_threshold": 0, "health_grace": 60,
            "heal_cooldown": 300, "heal_max_restarts": 3,
        }],
    });
    let config = parse(&zero.to_string()).unwrap();
    assert_eq!((config.warnings, config.services.len()), (vec![], 1));
}

/// Replaces every value of the full sample by values of other types in turn. If the validator rejects the file, the program
/// must reject it too, or ignore the part with a warning.
#[test]
fn the_program_reports_everything_that_the_schema_rejects() {
    let validator = jsonschema::validator_for(&config::schema()).unwrap();
    let sample: Value = serde_json::from_str(&text("samples/full.json")).unwrap();
    let usual = parse(&sample.to_string()).unwrap().warnings;
    let mut refused = 0;
    for pointer in pointers(&sample, "") {
        for value in [json!("x"), json!(-1), json!(1.5), json!(true), json!([]), json!({}), json!([1])] {
            let mut changed = sample.clone();
            *changed.pointer_mut(&pointer).unwrap() = value.clone();
            if validator.is_valid(&changed) {
                continue;
            }
            refused += 1;
            let noticed = match parse(&changed.to_string()) {
                Err(_) => true,
                Ok(config) => config.warnings.iter().any(|warning| !usual.contains(warning)),
            };
            assert!(noticed, "{pointer} = {value} passed unnoticed");
        }
    }
    assert!(refused > 200, "{refused}");
}

fn pointers(value: &Value, at: &str) -> Vec<String> {
    let members: Vec<(String, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(key, value)| (format!("{at}/{key}"), value)).collect(),
        Value::Array(items) => {
            items.iter().enumerate().map(|(n, value)| (format!("{at}/{n}"), value)).collect()
        }
        _ => Vec::new(),
    };
    // `$schema` is for editors and may have any value.
    let members = members.into_iter().filter(|(at, _)| at != "/$schema");
    members.flat_map(|(at, value)| [vec![at.clone()], pointers(value, &at)].concat()).collect()
}

/// A file that is truncated or changed anywhere is rejected or loads, but never crashes the program.
#[test]
fn the_program_never_panics_on_a_broken_file() {
    let sample = text("samples/full.json");
    for end in (0..sample.len()).filter(|end| sample.is_char_boundary(*end)) {
        let cut = &sample[..end];
        // Only the trailing newline is optional.
        assert_eq!(parse(cut).is_ok(), end >= sample.trim_end().len(), "cut at {end}");
    }
    for at in (0..sample.len()).step_by(3) {
        for replacement in ["\"", "{", "]", "9", "-", "\\", "$", "\0", "é", "null"] {
            let changed = format!("{}{replacement}{}", &sample[..at], &sample[at + 1..]);
            let _ = parse(&changed);
        }
    }
}

/// The JSON blocks of a manual page, each with its line number.
fn blocks(page: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut is_inside = false;
    for (at, line) in page.lines().enumerate() {
        match (line, is_inside) {
            ("```json", false) => {
                is_inside = true;
                found.push((at + 1, String::new()));
            }
            ("```", true) => is_inside = false,
            (line, true) => {
                if let Some((_, block)) = found.last_mut() {
                    block.push_str(line);
                    block.push('\n');
                }
            }
            _ => {}
        }
    }
    found
}

/// The paths of the samples do not exist on this machine; there must be no other warning and no misspelt key.
#[test]
fn every_sample_of_the_pages_about_gates_and_swarms_is_accepted() {
    let validator = jsonschema::validator_for(&config::schema()).unwrap();
    let of_gates = blocks(&text("docs/gates.md"));
    assert!(of_gates.len() >= 2, "{of_gates:?}");
    let page = text("docs/swarm.md");
    let of_swarms = blocks(&page);
    assert_eq!(of_swarms.len(), 1, "{of_swarms:?}");
    let sample: Value = serde_json::from_str(&of_swarms[0].1).unwrap();
    let name = sample["services"][0]["swarm_service"].as_str().unwrap();
    assert!(
        page.contains(&format!("docker service create --name {name} ")),
        "{name} is what the page creates"
    );
    for (line, block) in of_gates.into_iter().chain(of_swarms) {
        let sample: Value = serde_json::from_str(&block).unwrap();
        let errors: Vec<_> = validator.iter_errors(&sample).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "line {line}: {errors:?}");
        let config = parse(&block).unwrap_or_else(|faults| panic!("line {line}: {faults}"));
        let other: Vec<_> = config.warnings.iter().filter(|said| !said.contains("does not exist")).collect();
        assert!(other.is_empty(), "line {line}: {other:?}");
    }
}

#[test]
fn the_longest_entry_is_within_what_the_receivers_of_the_recipes_accept() {
    let page = text("docs/notifications.md");
    let samples = blocks(&page);
    let samples: Vec<Value> =
        samples.iter().filter_map(|(_, block)| serde_json::from_str(block).ok()).collect();
    let webhooks = samples.iter().filter_map(|sample| sample["notifications"]["webhooks"].as_array());
    let recipe = |name: &str| webhooks.clone().flatten().find(|webhook| webhook["name"] == name).unwrap();
    let at = "2026-01-02T03:04:05Z".parse().unwrap();
    for filler in ["x", "\n", "\"", "é", "😀"] {
        let long = filler.repeat(9000);
        let mut entry = AuditEntry::new(at, "web", Kind::ROLLBACK_FAILED, Level::Critical, long.clone());
        (entry.reason, entry.output, entry.machine) = (Some(long.clone()), long, "m".repeat(64));
        let sent = |name: &str| -> Value {
            let body = recipe(name)["body"].as_str().unwrap();
            serde_json::from_str(&render_template(body, &entry).unwrap()).unwrap()
        };
        let telegram = sent("telegram");
        let units = telegram["text"].as_str().unwrap().encode_utf16().count();
        assert!(units > 700 && units <= 4096, "{filler:?}: {units}");
        // Longer ones become attachments, or are refused if the server has none.
        let ntfy = sent("ntfy");
        let bytes = ntfy["message"].as_str().unwrap().len();
        assert!(bytes > 700 && bytes <= 4096, "{filler:?}: {bytes}");
        assert!(sent("slack").to_string().len() <= 40_000 && sent("teams").to_string().len() <= 28_000);
    }
}

/// The file systems of compose files may be remote ones.
#[test]
fn the_shipped_unit_starts_the_agent_after_remote_file_systems() {
    let unit = text("systemd/evenkeel-agent.service");
    let after = unit.lines().find_map(|line| line.strip_prefix("After=")).unwrap();
    assert!(after.split(' ').any(|target| target == "remote-fs.target"), "{after}");
}

#[test]
fn the_shipped_unit_does_not_end_an_agent_whose_compose_run_the_kernel_has_killed() {
    let unit = text("systemd/evenkeel-agent.service");
    assert!(unit.lines().any(|line| line == "OOMPolicy=continue"), "{unit}");
}

/// What a registry or a container can put into a message, against what chat services interpret.
#[test]
fn recipes_of_the_manual_escape_for_their_receiver_and_carry_time_machine_and_reason() {
    let hostile = "<!channel> & \"quoted\"\n\u{1b}[31m <https://evil.example|click> @all [x](y)";
    let at = "2026-01-02T03:04:05Z".parse().unwrap();
    let mut entry = AuditEntry::new(at, "web", Kind::ROLLED_BACK, Level::Warning, hostile);
    entry.reason = Some(format!("because {hostile}"));
    entry.container = Some(hostile.to_owned());
    entry.machine = "nas-1".to_owned();
    let mut names = Vec::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let page = path.file_name().unwrap().to_str().unwrap();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        for (line, block) in blocks(&text(&format!("docs/{page}"))) {
            let Ok(sample) = serde_json::from_str::<Value>(&block) else { continue };
            for webhook in sample["notifications"]["webhooks"].as_array().into_iter().flatten() {
                let Some(body) = webhook["body"].as_str() else { continue };
                let name = webhook["name"].as_str().unwrap();
                let rendered =
                    render_template(body, &entry).unwrap_or_else(|why| panic!("{page}:{line}: {why}"));
                let sent: Value = serde_json::from_str(&rendered)
                    .unwrap_or_else(|why| panic!("{page}:{line}: {why}: {rendered}"));
                for needed in ["2026-01-02T03:04:05Z", "nas-1", "quoted", "because "] {
                    assert!(rendered.contains(needed), "{page}:{line} ({name}) lacks {needed}: {rendered}");
                }
                if name == "slack" {
                    let shown = sent["text"].as_str().unwrap();
                    assert!(!shown.contains('<'), "{page}:{line}: {shown}");
                    assert!(shown.contains("&lt;!channel&gt; &amp; "), "{page}:{line}: {shown}");
                } else if name == "mattermost" {
                    let shown = sent["text"].as_str().unwrap();
                    assert!(!shown.contains(['<', '@', '[', ']']), "{page}:{line}: {shown}");
                    assert!(shown.contains("(!channel) &amp; "), "{page}:{line}: {shown}");
                } else {
                    assert_eq!(rendered.matches("<!channel>").count(), rendered.matches('&').count());
                }
                if name == "teams" {
                    assert!(!rendered.contains("[x]"), "{page}:{line}: {rendered}");
                }
                names.push(name.to_owned());
            }
        }
    }
    for name in ["slack", "mattermost", "telegram", "ntfy", "gotify", "matrix", "teams"] {
        assert!(names.iter().any(|found| found == name), "no recipe for {name}: {names:?}");
    }
}
