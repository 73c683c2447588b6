//! The measured program: its process, its API, its kernel counters.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use contract_tests::{Config, request, unused_port};
use serde_json::{Value, json};

/// Limit of all waits.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Returns the release build: `$EVENKEEL_BIN`, or `target/release/evenkeel`.
pub(crate) fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("EVENKEEL_BIN") {
        return PathBuf::from(path);
    }
    // This program is target/<profile>/deps/<name>.
    let own = std::env::current_exe().expect("a running program has a path");
    let path = own.ancestors().nth(3).expect("it lies in target/<profile>/deps").join("release/evenkeel");
    assert!(path.is_file(), "{} is missing: run 'cargo build --release -p evenkeel' first", path.display());
    path
}

/// A program and its arguments before `--config`.
pub(crate) struct Program(Vec<OsString>);

impl Program {
    /// Returns the measured program.
    pub(crate) fn ours() -> Self {
        Self(vec![program().into_os_string()])
    }

    /// Returns the program for comparison: `$EVENKEEL_OTHER`, its path and arguments separated by spaces.
    pub(crate) fn other() -> Option<Self> {
        let words = std::env::var("EVENKEEL_OTHER").ok()?;
        Some(Self(words.split_whitespace().map(OsString::from).collect())).filter(|other| !other.0.is_empty())
    }

    /// Returns the size of the executable in bytes.
    pub(crate) fn size(&self) -> u64 {
        fs::metadata(&self.0[0]).expect("the program is a file").len()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.0[0]);
        command.args(&self.0[1..]);
        command
    }
}

/// A running agent.
pub(crate) struct Subject {
    child: Child,
    address: String,
    /// Time from the start of the process to its first response.
    pub(crate) first_answer: Duration,
}

impl Subject {
    /// Starts it with `config` on the engine at `docker_host`, with its files in `folder`.
    pub(crate) fn start(folder: &Path, config: &Config, docker_host: &str) -> Self {
        Self::start_as(&Program::ours(), folder, config, docker_host)
    }

    /// Like [`Self::start`], for any program.
    pub(crate) fn start_as(program: &Program, folder: &Path, config: &Config, docker_host: &str) -> Self {
        let address = format!("127.0.0.1:{}", unused_port());
        let config = config
            .clone()
            .set("api.address", json!([address]))
            .set("audit.path", json!(folder.join("audit.jsonl")))
            .set("state.path", json!(folder.join("state")));
        let path = folder.join("config.json");
        fs::write(&path, Value::from(config).to_string()).expect("the configuration can be written");
        let began = Instant::now();
        let child = program
            .command()
            .arg("--config")
            .arg(&path)
            .env("DOCKER_HOST", docker_host)
            .env_remove("DOCKER_CONTEXT")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program can be run");
        let mut subject = Self { child, address, first_answer: Duration::ZERO };
        while request(&subject.address, "GET", "/health", &[], &[]).is_err() {
            assert!(matches!(subject.child.try_wait(), Ok(None)), "the agent exited immediately");
            assert!(began.elapsed() < TIMEOUT, "the agent does not respond");
            std::thread::sleep(Duration::from_millis(1));
        }
        subject.first_answer = began.elapsed();
        subject
    }

    /// Returns `host:port` of its API.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        request(&self.address, "GET", path, &[], &[]).map(|reply| reply.json()).unwrap_or_default()
    }

    pub(crate) fn post(&self, path: &str) {
        let reply = request(&self.address, "POST", path, &[], &[]).expect("the agent answers");
        assert_eq!(reply.status, 200, "POST {path}: {}", reply.text());
    }

    /// Returns the number of poll cycles so far. It is near the beginning of the status: parsing the whole response would
    /// take longer than the measured operation.
    fn poll_count(&self) -> u64 {
        let reply = request(&self.address, "GET", "/status", &[], &[]).expect("the agent answers");
        if reply.status == 503 {
            // The services are not loaded yet.
            return 0;
        }
        let head = String::from_utf8_lossy(&reply.body[..reply.body.len().min(300)]).into_owned();
        let number = head.split_once("\"poll_count\":").map(|(_, rest)| rest);
        let digits = number.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
        digits.and_then(|digits| digits.parse().ok()).expect("a status has poll_count")
    }

    /// Waits until `count` cycles are complete, and checks every `pause`.
    pub(crate) fn wait_polls(&self, count: u64, pause: Duration) {
        self.wait_until(pause, "a poll cycle", || self.poll_count() >= count);
    }

    /// Waits until `done` returns true, and checks every `pause`.
    pub(crate) fn wait_until(&self, pause: Duration, what: &str, done: impl Fn() -> bool) {
        let began = Instant::now();
        while !done() {
            assert!(began.elapsed() < TIMEOUT, "timed out waiting for {what}: {}", self.get("/status"));
            std::thread::sleep(pause);
        }
    }

    /// Returns the page faults of all its child processes that have ended: each compose run adds to them.
    pub(crate) fn faults_of_children(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The program's name, in parentheses, may contain spaces. `cminflt` is the ninth field after it (proc_pid_stat(5)).
        let fields = text.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
        fields.split_whitespace().nth(8).and_then(|field| field.parse().ok()).expect("a process has it")
    }

    /// Returns the time from `POST /trigger` to the end of its cycle. Requested cycles start at least one second apart; that
    /// wait is not included.
    pub(crate) fn time_cycle(&self) -> Duration {
        std::thread::sleep(Duration::from_millis(1100));
        let before = self.poll_count();
        let began = Instant::now();
        self.post("/trigger");
        self.wait_polls(before + 1, Duration::from_millis(10));
        began.elapsed()
    }

    /// Returns the number of audit entries of a kind among the last 500.
    pub(crate) fn count(&self, kind: &str) -> usize {
        let entries = self.get("/audit?limit=500");
        entries.as_array().map_or(0, |all| all.iter().filter(|entry| entry["event"] == kind).count())
    }

    /// Returns a number from `/proc/<pid>/<file>`, without conversion.
    pub(crate) fn proc_number(&self, file: &str, key: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        number.unwrap_or_else(|| panic!("/proc/<pid>/{file} has no {key}"))
    }

    /// Returns its resident memory in bytes, and the anonymous part of it.
    pub(crate) fn resident(&self) -> (u64, u64) {
        (self.proc_number("status", "VmRSS") << 10, self.proc_number("status", "RssAnon") << 10)
    }

    /// Returns the voluntary context switches of each of its threads so far: one per wake-up.
    pub(crate) fn wake_ups(&self) -> HashMap<OsString, u64> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("a process has threads");
        let count = |task: fs::DirEntry| {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            let number = line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or_default();
            (task.file_name(), number)
        };
        tasks.flatten().map(count).collect()
    }

    /// Returns the wake-ups of its threads since `before`, except those of threads that have exited since.
    pub(crate) fn woken_since(&self, before: &HashMap<OsString, u64>) -> u64 {
        let since = |(thread, now)| now - before.get(&thread).copied().unwrap_or_default().min(now);
        self.wake_ups().into_iter().map(since).sum()
    }

    /// Sends SIGKILL and waits for its process to exit.
    pub(crate) fn kill9(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
