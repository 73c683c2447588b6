//! The agent under test: a process, its log, its API.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::wire::{AuditEntry, Kind, RedeployReply, ServiceStatus, StatusReport, TriggerReply};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Config, PREFIX, Reply, request, unused_port, wait_for};

/// Where to kill the agent.
#[derive(Debug, Clone)]
pub struct Kill {
    /// At the log line about this journal step; `None` for any step.
    pub step: Option<String>,
    /// Delay after the log line.
    pub after: Duration,
    /// Whether to kill its compose processes, too.
    pub compose_too: bool,
}

/// One line of the agent's log.
#[derive(Debug, Clone)]
pub struct LogLine(pub String);

impl LogLine {
    /// Returns the journal step that this line reports, if any.
    pub fn step(&self) -> Option<&str> {
        let rest = self.0.split_once("journaled")?.1.split_once("step=")?.1;
        rest.split_whitespace().next().map(|word| word.trim_matches('"'))
    }
}

#[derive(Default)]
struct Log {
    lines: Mutex<Vec<LogLine>>,
    kill: Mutex<Option<Kill>>,
    /// The process that was killed last.
    killed: Mutex<Option<u32>>,
}

impl Log {
    /// Waits for the kill that was armed and has found its line; returns the process.
    #[track_caller]
    fn killed(&self) -> u32 {
        wait_for("the kill", || self.killed.lock().ok_or_else(|| "not yet".to_owned()))
    }

    fn lines(&self) -> Vec<LogLine> {
        self.lines.lock().clone()
    }
}

/// A running (or killed) agent.
pub struct Agent {
    folder: Folder,
    config: Value,
    environment: Vec<(String, String)>,
    child: Child,
    address: String,
    log: Arc<Log>,
}

/// The folder of the agent's files.
enum Folder {
    /// Created for the agent and removed with it.
    Own(TempDir),
    /// Owned by the test.
    Given(PathBuf),
}

impl Folder {
    fn path(&self) -> &Path {
        match self {
            Self::Own(folder) => folder.path(),
            Self::Given(path) => path,
        }
    }
}

impl Agent {
    /// Starts the agent with this configuration and its files in `folder`. Missing keys `audit` and `state` are added;
    /// `api.address` is always set.
    pub fn start(folder: &Path, config: Config, environment: &[(&str, &str)]) -> Self {
        Self::start_in(Folder::Given(folder.to_owned()), config, environment)
    }

    fn start_in(folder: Folder, config: Config, environment: &[(&str, &str)]) -> Self {
        let mut config = Value::from(config);
        let keys = config.as_object_mut().expect("the configuration is an object");
        keys.entry("audit").or_insert_with(|| json!({ "path": folder.path().join("audit.jsonl") }));
        keys.entry("state").or_insert_with(|| json!({ "path": folder.path().join("state") }));
        let environment: Vec<(String, String)> =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let log = Arc::new(Log::default());
        let (child, address) = spawn(folder.path(), &config, &environment, &log, None);
        Self { folder, config, environment, child, address, log }
    }

    /// Starts the agent in its own temporary folder, which `config` receives, and without a reachable engine.
    pub fn without_engine(about: &str, config: impl FnOnce(&Path) -> Config) -> Self {
        let folder = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{about}-"))
            .tempdir()
            .expect("a temporary folder can be created");
        let socket = format!("unix://{}", folder.path().join("no-engine.sock").display());
        let config = config(folder.path());
        Self::start_in(Folder::Own(folder), config, &[("DOCKER_HOST", &socket)])
    }

    /// Returns `host:port` of its API.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns its resident memory in bytes (`VmRSS`).
    pub fn resident(&self) -> u64 {
        resident(self.child.id())
    }

    /// Returns its log so far, across restarts.
    pub fn log(&self) -> Vec<LogLine> {
        self.log.lines()
    }

    /// Returns its journal steps so far, across restarts.
    pub fn steps(&self) -> Vec<String> {
        self.log().iter().filter_map(|line| line.step().map(str::to_owned)).collect()
    }

    // --- API ---------------------------------------------------------------------------------------------

    /// Sends a request to its API.
    pub fn try_request(&self, method: &str, path: &str) -> Result<Reply, String> {
        request(&self.address, method, path, &[], &[]).map_err(|error| error.to_string())
    }

    /// Sends a request to its API, which must respond.
    #[track_caller]
    pub fn request(&self, method: &str, path: &str) -> Reply {
        match self.try_request(method, path) {
            Ok(reply) => reply,
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    /// Sends a request to its API, and reads the body of the answer.
    #[track_caller]
    pub fn read<T: for<'de> serde::Deserialize<'de>>(&self, method: &str, path: &str) -> T {
        let reply = self.request(method, path);
        assert_eq!(reply.status, 200, "{method} {path}: {}", reply.text());
        match serde_json::from_slice(&reply.body) {
            Ok(value) => value,
            Err(error) => panic!("{method} {path}: {error} in {}", reply.text()),
        }
    }

    /// `GET /status`
    #[track_caller]
    pub fn status(&self) -> StatusReport {
        self.read("GET", "/status")
    }

    /// `GET /status/<name>`
    #[track_caller]
    pub fn service(&self, name: &str) -> ServiceStatus {
        self.read("GET", &format!("/status/{name}"))
    }

    /// `GET /blocked`, `/not-found` or `/errored`
    #[track_caller]
    pub fn map(&self, path: &str) -> BTreeMap<String, String> {
        self.read("GET", path)
    }

    /// `GET /blocked`
    #[track_caller]
    pub fn blocked(&self) -> BTreeMap<String, String> {
        self.map("/blocked")
    }

    /// `GET /errored`
    #[track_caller]
    pub fn errored(&self) -> BTreeMap<String, String> {
        self.map("/errored")
    }

    /// `GET /audit`, oldest first.
    #[track_caller]
    pub fn audit(&self) -> Vec<AuditEntry> {
        let mut entries: Vec<AuditEntry> = self.read("GET", "/audit?limit=500");
        entries.reverse();
        entries
    }

    /// Returns the audit entries of one kind, oldest first.
    #[track_caller]
    pub fn entries(&self, kind: &Kind) -> Vec<AuditEntry> {
        self.audit().into_iter().filter(|entry| entry.event == *kind).collect()
    }

    /// `POST /trigger/<name>`, and waits for the audit entry of the check. Only for checks that deploy nothing.
    #[track_caller]
    pub fn check(&self, name: &str) -> AuditEntry {
        let ends = |entry: &AuditEntry| {
            entry.service == name && [Kind::CHECKED, Kind::TRIGGER_FAILED].contains(&entry.event)
        };
        let before = self.audit().into_iter().filter(ends).count();
        assert_eq!(self.trigger(name), TriggerReply::Triggered { scope: name.to_owned() });
        wait_for("the triggered check to end without a deployment", || {
            match self.audit().into_iter().filter(ends).nth(before) {
                Some(entry) => Ok(entry),
                None => Err(format!("audit {:#?}\nstatus {:#?}", self.audit(), self.status())),
            }
        })
    }

    /// `POST /trigger/<name>`, without waiting.
    #[track_caller]
    pub fn trigger(&self, name: &str) -> TriggerReply {
        self.read("POST", &format!("/trigger/{name}"))
    }

    /// `POST /redeploy/<name>`
    #[track_caller]
    pub fn redeploy(&self, name: &str) -> RedeployReply {
        self.read("POST", &format!("/redeploy/{name}"))
    }

    /// `POST /unblock/<name>`; returns `status` of the response.
    #[track_caller]
    pub fn unblock(&self, name: &str) -> String {
        let reply: Value = self.read("POST", &format!("/unblock/{name}"));
        reply["status"].as_str().unwrap_or_default().to_owned()
    }

    // --- waiting -----------------------------------------------------------------------------------------

    /// Waits until it has completed its first poll.
    #[track_caller]
    pub fn wait_first_poll(&self) {
        wait_for("the first poll", || match self.try_request("GET", "/status") {
            Ok(reply) if reply.json()["poll_count"].as_u64() > Some(0) => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    /// Waits for the `nth` audit entry of a kind (counted from 1).
    #[track_caller]
    pub fn wait_entry(&self, kind: &Kind, nth: usize) -> AuditEntry {
        wait_for(&format!("audit entry {nth} of kind {kind}"), || {
            match self.entries(kind).into_iter().nth(nth - 1) {
                Some(entry) => Ok(entry),
                None => Err(format!("audit {:#?}\nstatus {:#?}", self.audit(), self.status())),
            }
        })
    }

    /// Waits until the log reports this journal step for the `nth` time (counted from 1).
    #[track_caller]
    pub fn wait_step(&self, step: &str, nth: usize) {
        wait_for(&format!("journal step {step}"), || {
            let steps = self.steps();
            if steps.iter().filter(|one| *one == step).count() >= nth {
                Ok(())
            } else {
                Err(format!("{steps:?}"))
            }
        });
    }

    /// Waits until the `nth` deployment is complete, including the release of held images.
    #[track_caller]
    pub fn wait_done(&self, nth: usize) {
        self.wait_step("done", nth);
    }

    /// Applies `change` to its configuration and sends SIGHUP.
    pub fn reload(&mut self, change: impl FnOnce(&mut Value)) {
        change(&mut self.config);
        let mut config = self.config.clone();
        config["api"]["address"] = json!([self.address]);
        std::fs::write(self.folder.path().join("config.json"), config.to_string())
            .expect("the configuration can be written");
        let pid = pid_of(self.child.id()).expect("a running process has an ID");
        kill_process(pid, Signal::HUP).expect("the agent runs");
    }

    // --- process -----------------------------------------------------------------------------------------

    /// Kills it at the next log line that matches `kill`.
    pub fn kill_at(&self, kill: Kill) {
        *self.log.kill.lock() = Some(kill);
    }

    /// Waits for its process to exit.
    #[track_caller]
    pub fn wait_end(&mut self) -> ExitStatus {
        let log = self.log.clone();
        wait_for("the agent to exit", || match self.child.try_wait() {
            Ok(Some(status)) => Ok(status),
            other => Err(format!("{other:?}; steps {:?}", steps_of(&log))),
        })
    }

    /// Sends SIGKILL. With `compose_too` it also kills its compose processes.
    pub fn kill9(&mut self, compose_too: bool) {
        kill_now(self.child.id(), compose_too);
        let _ = self.child.wait();
    }

    /// Sends SIGTERM and waits for its process to exit.
    #[track_caller]
    pub fn terminate(&mut self) -> ExitStatus {
        if let Some(pid) = pid_of(self.child.id()) {
            let _ = kill_process(pid, Signal::TERM);
        }
        self.wait_end()
    }

    /// Starts it again after its exit, with the same files.
    pub fn restart(&mut self) {
        self.start_again(None, None);
    }

    /// Like [`Self::restart`], to be killed at the next log line that matches `kill`.
    pub fn restart_until(&mut self, kill: Kill) {
        self.start_again(None, Some(kill));
    }

    /// Like [`Self::restart`], with the same API address.
    pub fn restart_in_place(&mut self) {
        let address = self.address.clone();
        self.start_again(Some(&address), None);
    }

    /// Triggers a deployment of the service, and kills it at each of these steps, one after the other, with its compose
    /// processes. It is started again after each. A step may be over before the kill: returns the steps that were hit.
    #[track_caller]
    pub fn kill_at_each<'a>(&mut self, service: &str, steps: &[&'a str], after: Duration) -> Vec<&'a str> {
        let before = self.steps().len();
        let kill = |step: &str| Kill { step: Some(step.to_owned()), after, compose_too: true };
        let (mut hit, mut runs) = (Vec::new(), true);
        for (nth, step) in steps.iter().enumerate() {
            if self.steps()[before..].iter().any(|passed| passed == step) {
                continue;
            }
            if runs {
                self.kill_at(kill(step));
                if nth == 0 {
                    self.trigger(service);
                }
            } else {
                self.restart_until(kill(step));
                // It may have been killed before it was ready, and started again.
                let is_taken = self.log.kill.lock().is_none();
                if is_taken && self.log.killed() != self.child.id() {
                    hit.push(*step);
                    runs = true;
                    continue;
                }
            }
            if self.wait_killed_or_done(before) {
                hit.push(*step);
            } else {
                self.kill9(true);
            }
            runs = false;
        }
        if !runs {
            self.restart();
        }
        hit
    }

    /// Waits for the kill that was armed, or for the end of the deployment, after this many steps of earlier ones. Returns
    /// whether it was killed.
    #[track_caller]
    pub fn wait_killed_or_done(&mut self, before: usize) -> bool {
        let is_killed = wait_for("the agent to be killed or to complete", || {
            let steps = &self.steps()[before..];
            let is_done = steps.last().is_some_and(|last| last == "done");
            match self.try_request("GET", "/health") {
                Err(_) => Ok(true),
                Ok(_) if is_done && self.log.kill.lock().is_some() => Ok(false),
                Ok(_) => Err(format!("{steps:?}")),
            }
        });
        if is_killed {
            self.wait_end();
        }
        is_killed
    }

    /// Suspends its process (SIGSTOP), or resumes it (SIGCONT).
    pub fn freeze(&self, frozen: bool) {
        let pid = pid_of(self.child.id()).expect("a process has an ID");
        kill_process(pid, if frozen { Signal::STOP } else { Signal::CONT }).expect("the agent runs");
    }

    fn start_again(&mut self, address: Option<&str>, kill: Option<Kill>) {
        *self.log.killed.lock() = None;
        *self.log.kill.lock() = kill;
        let (child, address) = spawn(self.folder.path(), &self.config, &self.environment, &self.log, address);
        self.child = child;
        self.address = address;
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill9(true);
        }
        if std::thread::panicking() {
            let lines = self.log();
            eprintln!("--- the agent's last lines");
            for LogLine(line) in &lines[lines.len().saturating_sub(60)..] {
                eprintln!("{line}");
            }
            eprintln!("---");
        }
    }
}

fn steps_of(log: &Log) -> Vec<String> {
    log.lines().iter().filter_map(|line| line.step().map(str::to_owned)).collect()
}

/// Returns the agent's program: `$EVENKEEL_AGENT_BIN`, or the one built in the same profile as this test.
pub(crate) fn program() -> PathBuf {
    match std::env::var_os("EVENKEEL_AGENT_BIN") {
        Some(path) => PathBuf::from(path),
        None => built("evenkeel-agent"),
    }
}

/// Returns the path of a program that was built in the same profile as this test.
pub(crate) fn built(name: &str) -> PathBuf {
    // The test's own program is target/<profile>/deps/<name>.
    let own = std::env::current_exe().expect("a running program has a path");
    let path = own.ancestors().nth(2).expect("it lies in target/<profile>/deps").join(name);
    assert!(
        path.is_file(),
        "{} is missing: run 'cargo build --workspace --bins --tests' first",
        path.display()
    );
    path
}

/// Starts the agent with its API at `fixed`, or at a free address, and waits until it is ready.
fn spawn(
    folder: &Path,
    config: &Value,
    environment: &[(String, String)],
    log: &Arc<Log>,
    fixed: Option<&str>,
) -> (Child, String) {
    for _ in 0..5 {
        // Another test may take the free port first. The agent then exits, and the next attempt uses another port.
        let address = fixed.map_or_else(free_address, str::to_owned);
        let mut config = config.clone();
        config["api"]["address"] = json!([address]);
        let path = folder.join("config.json");
        std::fs::write(&path, config.to_string()).expect("the configuration can be written");
        let mut child = Command::new(program())
            .arg("--config")
            .arg(&path)
            .env_remove("DOCKER_CONTEXT")
            .env("RUST_LOG", "info")
            .env("NO_COLOR", "1")
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the agent's program can be run");
        let stderr = child.stderr.take().expect("stderr is piped");
        let (pid, log) = (child.id(), log.clone());
        std::thread::spawn(move || read_log(stderr, pid, &log));
        let answers = wait_for("the agent to be ready or to exit", || {
            match (request(&address, "GET", "/health", &[], &[]), child.try_wait()) {
                (Ok(reply), _) if reply.json()["status"] != "starting" => Ok(true),
                (_, Ok(Some(_))) => Ok(false),
                (reply, _) => Err(format!("{reply:?}")),
            }
        });
        if answers {
            return (child, address);
        }
    }
    // Give the log reader time to read the last lines.
    std::thread::sleep(Duration::from_millis(200));
    panic!("the agent does not start; its log: {:#?}", log.lines());
}

/// Returns a loopback address with an unused port.
pub(crate) fn free_address() -> String {
    format!("127.0.0.1:{}", unused_port())
}

fn read_log(stderr: ChildStderr, pid: u32, log: &Log) {
    for line in BufReader::new(stderr).lines() {
        let Ok(line) = line else { return };
        let line = LogLine(line);
        let kill = {
            let mut armed = log.kill.lock();
            armed.take_if(|kill| match (&kill.step, line.step()) {
                (Some(wanted), Some(step)) => wanted == step,
                (None, step) => step.is_some(),
                (Some(_), None) => false,
            })
        };
        log.lines.lock().push(line);
        if let Some(kill) = kill {
            std::thread::sleep(kill.after);
            kill_now(pid, kill.compose_too);
            *log.killed.lock() = Some(pid);
        }
    }
}

fn pid_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

fn kill_now(pid: u32, compose_too: bool) {
    let children = if compose_too { descendants(pid) } else { Vec::new() };
    for pid in std::iter::once(pid).chain(children) {
        if let Some(pid) = pid_of(pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Returns all direct and indirect child processes of `pid`.
fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return found };
    for task in tasks.flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|word| word.parse().ok()) {
            found.push(child);
            found.extend(descendants(child));
        }
    }
    found
}

/// Returns the resident memory of a process in bytes (`VmRSS`).
pub(crate) fn resident(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("a running process has a VmRSS") << 10
}
