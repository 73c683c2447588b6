//! Outgoing notifications and pushes, tested with the real program and with receivers: wiremock, aiosmtpd, an unreachable
//! warden.

// Everything here is a test.
#![allow(clippy::unwrap_used)]

mod mail;
mod receiver;
mod refusals;
mod smtp_stub;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use evenkeel_common::testing::{unused_port, wait_for};
use evenkeel_common::wire::{AuditEntry, Kind};
use receiver::{Answer, Receiver};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_evenkeel-agent");

fn write_config(folder: &Path, config: &Value) -> String {
    let path = folder.join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    path.display().to_string()
}

fn test_notify(config: &Value, only: Option<&str>, environment: &[(&str, &str)]) -> Output {
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["test-notify", "--config", &write_config(folder.path(), config)]).args(only);
    command.envs(environment.iter().copied()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn test_notify_prints_the_response_of_each_channel() {
    let receiver = Receiver::start();
    let base = receiver.url();
    let config = json!({
        "notifications": {
            "discord": { "webhook_url": format!("{base}/discord"), "min_level": "critical" },
            "webhooks": [
                { "name": "form", "url": format!("{base}/form"), "method": "PUT",
                  "headers": { "X-Key": "$KEY", "Content-Type": "application/x-www-form-urlencoded" },
                  "body": "text={{ .Message }}&new={{.NewDigest}}" },
                { "name": "plain", "url": format!("{base}/plain"), "method": "POST" },
            ],
        },
        "push": { "warden_url": base, "token": "$TOKEN", "machine_id": "m1" },
    });
    let environment = [("KEY", "key-of-the-hook"), ("TOKEN", "token-of-the-agent")];
    let output = test_notify(&config, None, &environment);
    assert!(output.status.success(), "{output:?}");
    let text = stdout(&output);
    for line in [
        "push: sent; the answer was: 204 No Content",
        "discord: sent",
        "webhook/form: sent",
        "webhook/plain: sent",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    let received = receiver.received();
    let of = |path: &str| received.iter().find(|received| received.path() == path).unwrap();
    assert_eq!(of("/ingest").header("authorization"), Some("Bearer token-of-the-agent"));
    let pushed: AuditEntry = serde_json::from_slice(of("/ingest").body()).unwrap();
    assert_eq!((pushed.machine.as_str(), pushed.service.as_str()), ("m1", "evenkeel"));
    let embed: Value = serde_json::from_slice(of("/discord").body()).unwrap();
    assert_eq!(embed["embeds"][0]["title"], "[info] updated: evenkeel on m1");
    let form = of("/form");
    assert_eq!((form.request.method.as_str(), form.header("x-key")), ("PUT", Some("key-of-the-hook")));
    let body = String::from_utf8(form.body().to_vec()).unwrap();
    assert!(
        body.starts_with("text=this%20is%20a%20test%3A%20nothing%20has%20changed&new=sha256%3A1111"),
        "{body}"
    );
    assert_eq!(of("/plain").header("content-type"), Some("application/json"));
    serde_json::from_slice::<AuditEntry>(of("/plain").body()).unwrap();

    for (only, secret, line) in [
        ("push", "token-of-the-agent", "push: FAILED: 401"),
        ("form", "key-of-the-hook", "webhook/form: FAILED: 401"),
    ] {
        receiver.answer(Answer::status(401, &format!("who is {secret}?")));
        let output = test_notify(&config, Some(only), &environment);
        assert_eq!(output.status.code(), Some(1));
        let text = stdout(&output);
        assert!(text.starts_with(line) && text.lines().count() == 1, "{text}");
        assert!(!text.contains("of-the-"), "a secret in {text}");
    }
    let output = test_notify(&config, Some("nobody"), &environment);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && text.contains("there are: push, discord, webhook/form, webhook/plain"),
        "{text}"
    );
}

#[test]
fn test_notify_reads_the_variables_of_the_unit() {
    let receiver = Receiver::start();
    let config = json!({ "push": { "warden_url": receiver.url(), "token": "$TOKEN_OF_THE_UNIT" } });
    let folder = TempDir::new().unwrap();
    let path = write_config(folder.path(), &config);
    let run = || Command::new(PROGRAM).args(["test-notify", "--config", &path]).output().unwrap();
    assert_eq!(run().status.code(), Some(1), "the variable is not set");
    std::fs::write(folder.path().join("agent.env"), "# secrets\nTOKEN_OF_THE_UNIT=\"from the file\"\n")
        .unwrap();
    let output = run();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(receiver.received()[0].header("authorization"), Some("Bearer from the file"));
}

#[test]
fn a_redirect_is_not_followed() {
    let (receiver, elsewhere) = (Receiver::start(), Receiver::start());
    receiver.answer(Answer::redirects(307, &format!("{}/x", elsewhere.url())));
    let config = json!({ "push": { "warden_url": receiver.url(), "token": "t" } });
    let output = test_notify(&config, None, &[]);
    assert!(stdout(&output).contains("redirects are not followed"), "{output:?}");
    assert!(elsewhere.received().is_empty());
}

/// An agent without services: it records only entries about itself.
struct Agent {
    child: Child,
    port: u16,
}

impl Agent {
    /// Starts an agent that pushes to `warden`.
    fn pushing(folder: &Path, warden: &str) -> Self {
        Self::start(folder, json!({ "push": { "warden_url": warden, "token": "token", "machine_id": "m1" } }))
    }

    fn start(folder: &Path, config: Value) -> Self {
        let port = unused_port();
        write_agent_config(folder, port, config);
        let child = Command::new(PROGRAM)
            .args(["--config", &folder.join("config.json").display().to_string()])
            .env("DOCKER_HOST", "unix:///nowhere/docker.sock")
            .stderr(std::fs::File::options().create(true).append(true).open(folder.join("log")).unwrap())
            .spawn()
            .unwrap();
        Self { child, port }
    }

    /// Reloads this configuration, and waits for the entry about the reload.
    fn reload(&self, folder: &Path, config: Value) -> AuditEntry {
        write_agent_config(folder, self.port, config);
        let reloads = || {
            let entries = file_entries(folder);
            entries.into_iter().filter(|entry| entry.event.as_str() == "config_reloaded").collect::<Vec<_>>()
        };
        let before = reloads().len();
        self.signal(Signal::HUP);
        wait_for("the reload is in the file", || {
            if reloads().len() > before { Ok(()) } else { Err(format!("{:?}", file_entries(folder))) }
        });
        reloads().pop().unwrap()
    }

    /// Waits until the entries about its start are recorded and on the disk.
    fn wait_until_durable(&self, folder: &Path, run: usize) {
        wait_for("the entries about this start are on the disk", || {
            let entries = file_entries(folder);
            let count = |kind: &str| entries.iter().filter(|entry| entry.event.as_str() == kind).count();
            let counts = (count("started"), count("daemon_down"));
            if counts != (run + 1, run + 1) {
                return Err(format!("{entries:?}"));
            }
            let metrics = self.metrics();
            let waiting = metrics.lines().find(|line| line.contains("destination=\"outbox\""));
            match waiting {
                Some(line) if line.ends_with(" 0") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        let asked = TcpStream::connect(("127.0.0.1", self.port)).and_then(|mut stream| {
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
            stream.read_to_string(&mut text)
        });
        // It may not be listening yet; the caller retries.
        asked.map_or_else(|error| error.to_string(), |_| text)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().cast_signed()).unwrap(), signal).unwrap();
    }

    fn end(mut self, signal: Signal) {
        self.signal(signal);
        self.child.wait().unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write_agent_config(folder: &Path, port: u16, mut config: Value) {
    config["api"] = json!({ "address": [format!("127.0.0.1:{port}")] });
    config["audit"] = json!({ "path": folder.join("audit.jsonl") });
    config["state"] = json!({ "path": folder.join("state") });
    write_config(folder, &config);
}

fn file_entries(folder: &Path) -> Vec<AuditEntry> {
    let text = std::fs::read_to_string(folder.join("audit.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns what a warden would store: each number once, in the order of first arrival.
fn stored(receiver: &Receiver) -> Vec<(u64, AuditEntry)> {
    let mut stored: Vec<(u64, AuditEntry)> = Vec::new();
    let mut epochs = BTreeSet::new();
    for received in receiver.received().iter().filter(|received| received.was_accepted) {
        let body: Value = serde_json::from_slice(received.body()).unwrap();
        let bodies = body.as_array().cloned().unwrap_or_else(|| vec![body.clone()]);
        for body in bodies {
            let mut entry: AuditEntry = serde_json::from_value(body).unwrap();
            assert_eq!(std::mem::take(&mut entry.machine), "m1");
            let seq = entry.seq.take().expect("each entry has a number");
            epochs.insert(entry.epoch.take().expect("each entry has an epoch"));
            match stored.iter().find(|(known, _)| *known == seq) {
                Some((_, same)) => assert_eq!(same, &entry, "one number for two entries"),
                None => stored.push((seq, entry)),
            }
        }
    }
    assert!(epochs.len() <= 1, "one epoch across all restarts: {epochs:?}");
    stored
}

#[test]
fn a_warden_that_was_unavailable_gets_every_entry_once_although_the_agent_was_killed() {
    let folder = TempDir::new().unwrap();
    let receiver = Receiver::start();
    let warden = receiver.url();
    receiver.answer(Answer::status(500, "not now"));
    for run in 0..4 {
        let agent = Agent::pushing(folder.path(), &warden);
        agent.wait_until_durable(folder.path(), run);
        match run {
            0 => receiver.answer(Answer::status(429, "slowly").with("retry-after", "1")),
            1 => receiver.answer(Answer::hangs()),
            // Accepted without a response: these entries arrive twice.
            2 => receiver.answer(Answer::accepts_and_hangs()),
            _ => receiver.answer(Answer::status(204, "")),
        }
        if run < 3 {
            let before = receiver.received().len();
            wait_for("the warden was asked and gave its new answer", || {
                if receiver.received().len() > before { Ok(()) } else { Err(format!("{before} requests")) }
            });
            agent.end(Signal::KILL);
        } else {
            wait_for("the warden has all entries of the file", || {
                let (sent, kept) = (stored(&receiver).len(), file_entries(folder.path()).len());
                if sent >= kept { Ok(()) } else { Err(format!("{sent} of {kept}")) }
            });
            agent.end(Signal::TERM);
        }
    }
    let stored = stored(&receiver);
    let numbers: Vec<_> = stored.iter().map(|(seq, _)| *seq).collect();
    let expected: Vec<_> = (numbers[0]..).take(numbers.len()).collect();
    assert_eq!(numbers, expected, "in order and without a gap");
    let entries: Vec<_> = stored.into_iter().map(|(_, entry)| entry).collect();
    assert_eq!(entries, file_entries(folder.path()));
    assert_eq!(
        entries.last().unwrap().event.as_str(),
        "shutdown",
        "the last entry is delivered before the agent ends"
    );
}

#[test]
fn a_refused_entry_delays_no_other() {
    let folder = TempDir::new().unwrap();
    let receiver = Receiver::start();
    receiver.answer(Answer::status(400, "not an entry"));
    let agent = Agent::pushing(folder.path(), &receiver.url());
    let events = || -> Vec<_> {
        let received = receiver.received();
        // The entries of a refused array are sent again one by one.
        let single =
            received.iter().filter_map(|received| serde_json::from_slice::<AuditEntry>(received.body()).ok());
        single.map(|entry| entry.event.to_string()).collect()
    };
    let log = || std::fs::read_to_string(folder.path().join("log")).unwrap();
    // The receiver's response is not enough: an agent that is stopping may not have read it and would retry.
    wait_for("the agent logs that an entry was refused", || {
        if log().contains("an entry was refused") { Ok(()) } else { Err(log()) }
    });
    receiver.answer(Answer::status(204, ""));
    agent.end(Signal::TERM);
    let events = events();
    assert_eq!(events.iter().filter(|event| *event == "started").count(), 1, "{events:?}");
    // By now arrays are accepted, too.
    let entries = |body: &[u8]| {
        let array = serde_json::from_slice::<Vec<AuditEntry>>(body);
        array.or_else(|_| serde_json::from_slice(body).map(|entry| vec![entry])).unwrap_or_default()
    };
    let last = receiver.received().iter().flat_map(|received| entries(received.body())).next_back();
    assert_eq!(last.unwrap().event.as_str(), "shutdown");
    assert!(!log().contains("Bearer"), "{}", log());
}

#[test]
fn an_unreachable_warden_does_not_delay_the_shutdown() {
    let folder = TempDir::new().unwrap();
    let agent = Agent::pushing(folder.path(), &format!("http://127.0.0.1:{}", unused_port()));
    wait_for("the first entry", || file_entries(folder.path()).first().map(drop).ok_or_else(String::new));
    let begin = Instant::now();
    agent.end(Signal::TERM);
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
}

/// Returns the entries that a webhook accepted, without what is added to them on sending.
fn accepted(receiver: &Receiver) -> Vec<AuditEntry> {
    let received = receiver.received();
    let accepted = received.iter().filter(|received| received.was_accepted);
    let entry = |body: &[u8]| {
        let entry: AuditEntry = serde_json::from_slice(body).unwrap();
        assert!(entry.seq.is_some() && entry.epoch.is_some(), "{entry:?}");
        AuditEntry { machine: String::new(), seq: None, epoch: None, ..entry }
    };
    accepted.map(|received| entry(received.body())).collect()
}

#[test]
fn a_reload_moves_queued_entries_to_the_new_address_and_affects_no_other_channel() {
    let folder = TempDir::new().unwrap();
    let [old, new, other, fresh] = [(); 4].map(|()| Receiver::start());
    old.answer(Answer::status(503, "moved away"));
    let channels = |hooks: &[(&str, &Receiver)]| {
        let hook = |(name, receiver): &(&str, &Receiver)| json!({ "name": name, "url": format!("{}/{name}", receiver.url()), "method": "POST" });
        json!({ "notifications": { "webhooks": hooks.iter().map(hook).collect::<Vec<_>>() } })
    };
    let before = channels(&[("moving", &old), ("staying", &other)]);
    let agent = Agent::start(folder.path(), before.clone());
    wait_for("the old address was tried", || {
        if old.received().is_empty() { Err("no request".to_owned()) } else { Ok(()) }
    });
    for _ in 0..3 {
        agent.reload(folder.path(), before.clone());
    }
    let entry =
        agent.reload(folder.path(), channels(&[("moving", &new), ("staying", &other), ("fresh", &fresh)]));
    let expected = "channels added: webhook/fresh; channels changed: webhook/moving";
    assert_eq!(entry.reason.as_deref(), Some(expected), "{entry:?}");

    let have_all = |what: &str, receivers: &[&Receiver]| {
        wait_for(what, || {
            let counts: Vec<_> = receivers.iter().map(|receiver| accepted(receiver).len()).collect();
            let kept = file_entries(folder.path()).len();
            if counts.iter().all(|count| *count >= kept) {
                Ok(())
            } else {
                Err(format!("{counts:?} of {kept}"))
            }
        });
    };
    have_all("the queued entries are at the new address", &[&new, &other]);
    let kept = file_entries(folder.path());
    assert_eq!(accepted(&new), kept);
    assert_eq!(accepted(&other), kept);
    assert_eq!(accepted(&old), []);
    let first_of_fresh = accepted(&fresh).first().map(|entry| entry.event.to_string());
    assert_eq!(first_of_fresh.as_deref(), Some("config_reloaded"), "a new channel gets only new entries");

    new.answer(Answer::status(503, "not now"));
    agent.reload(folder.path(), channels(&[("moving", &new), ("staying", &other)]));
    let entry = agent.reload(folder.path(), channels(&[("staying", &other)]));
    let expected = "channels removed: webhook/moving; undelivered entries dropped for webhook/moving: 1";
    assert_eq!(entry.reason.as_deref(), Some(expected), "{entry:?}");
    have_all("the other channel has all entries", &[&other]);
    assert_eq!(accepted(&other), file_entries(folder.path()));
    // A channel that is added again is a new one.
    new.answer(Answer::status(204, ""));
    let seen = accepted(&new).len();
    agent.reload(folder.path(), channels(&[("moving", &new), ("staying", &other)]));
    wait_for("the channel that was added again", || {
        if accepted(&new).len() > seen { Ok(()) } else { Err(format!("{seen}")) }
    });
    assert_eq!(accepted(&new)[seen..], file_entries(folder.path())[kept.len() + 2..]);
    agent.end(Signal::TERM);
}

#[test]
fn a_channel_disabled_by_a_fault_keeps_its_queue_across_reloads_and_restarts() {
    let folder = TempDir::new().unwrap();
    let receiver = Receiver::start();
    receiver.answer(Answer::status(503, "not now"));
    let at = |url: &str| json!({ "notifications": { "webhooks": [{ "name": "hook", "url": url, "method": "POST" }] } });
    let (good, broken) = (at(&receiver.url()), at("htp://typo"));
    let agent = Agent::start(folder.path(), good.clone());
    wait_for("the channel was tried", || {
        if receiver.received().is_empty() { Err("no request".to_owned()) } else { Ok(()) }
    });
    let entry = agent.reload(folder.path(), broken.clone());
    let reason = entry.reason.as_deref().unwrap_or_default();
    assert!(reason.starts_with("webhook/hook is off: "), "{entry:?}");
    agent.end(Signal::TERM);
    let agent = Agent::start(folder.path(), broken);
    wait_for("the second start", || {
        let starts = file_entries(folder.path()).iter().filter(|entry| entry.event == Kind::STARTED).count();
        if starts == 2 { Ok(()) } else { Err(format!("{starts}")) }
    });
    receiver.answer(Answer::status(204, ""));
    let entry = agent.reload(folder.path(), good);
    assert_eq!(entry.reason.as_deref(), Some("channels changed: webhook/hook"), "{entry:?}");
    agent.end(Signal::TERM);
    // An entry whose response was not read before the agent ended is sent again.
    let mut got = accepted(&receiver);
    got.dedup();
    assert_eq!(got, file_entries(folder.path()));
}

#[test]
fn a_test_fails_if_a_channel_is_disabled_by_a_fault_unless_another_one_is_tested() {
    let receiver = Receiver::start();
    let config = json!({
        "notifications": { "webhooks": [{ "name": "hook", "url": receiver.url(), "method": "POST" }] },
        "push": { "warden_url": receiver.url(), "token": "$NOT_SET" },
    });
    let output = test_notify(&config, None, &[]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("push: FAILED: it is off") && text.contains("webhook/hook: sent"), "{text}");
    assert_eq!(test_notify(&config, Some("push"), &[]).status.code(), Some(1));
    assert!(test_notify(&config, Some("hook"), &[]).status.success());
}
