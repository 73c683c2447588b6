//! The warden under test: its process and its API.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::agent::{built, free_address, resident};
use crate::{Reply, request, wait_for};

/// A running (or killed) warden.
pub struct Warden {
    folder: PathBuf,
    child: Child,
    address: String,
}

impl Warden {
    /// Token of the operator.
    pub const TOKEN: &str = "0123456789abcdef people";

    /// Returns the token of an agent.
    pub fn agent_token(id: &str) -> String {
        format!("0123456789abcdef-{id}")
    }

    /// Starts a warden with these agents, each with its ID and API address, and its files in `folder`.
    pub fn start(folder: &Path, agents: &[(&str, &str)]) -> Self {
        let agent = |(id, api): &(&str, &str)| json!({ "id": id, "url": format!("http://{api}"), "token": Self::agent_token(id) });
        Self::of(folder, agents.iter().map(agent).collect(), &Value::Null)
    }

    /// Starts a warden with agents that it can't poll: they have no `url` and only push to it.
    pub fn of_fleet(folder: &Path, ids: &[&str]) -> Self {
        Self::with_rings(folder, ids, &Value::Null)
    }

    /// Like [`Self::of_fleet`], with these `rings`; `null` for none.
    pub fn with_rings(folder: &Path, ids: &[&str], rings: &Value) -> Self {
        let agent = |id: &&str| json!({ "id": id, "token": Self::agent_token(id) });
        Self::of(folder, ids.iter().map(agent).collect(), rings)
    }

    /// Starts a warden below this path, for agents that only push to it.
    pub fn below(folder: &Path, base_path: &str, ids: &[&str]) -> Self {
        let agent = |id: &&str| json!({ "id": id, "token": Self::agent_token(id) });
        Self::start_at(folder, ids.iter().map(agent).collect(), &Value::Null, base_path)
    }

    fn of(folder: &Path, agents: Vec<Value>, rings: &Value) -> Self {
        Self::start_at(folder, agents, rings, "")
    }

    fn start_at(folder: &Path, agents: Vec<Value>, rings: &Value, base_path: &str) -> Self {
        let address = free_address();
        let mut config = json!({
            "api": { "address": [address], "token": Self::TOKEN, "state_path": folder.join("warden"),
                     "base_path": base_path },
            "agents": Value::from(agents),
        });
        if !rings.is_null() {
            config["rings"] = rings.clone();
        }
        std::fs::write(folder.join("warden.json"), config.to_string()).expect("the configuration is written");
        let child = run(folder);
        let warden = Self { folder: folder.to_owned(), child, address };
        warden.wait_ready();
        warden
    }

    /// Returns `host:port` of its API.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the URL of its page.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Returns its resident memory in bytes (`VmRSS`).
    pub fn resident(&self) -> u64 {
        resident(self.child.id())
    }

    /// Sends an audit entry as the agent with this ID.
    #[track_caller]
    pub fn ingest(&self, id: &str, entry: &Value) {
        let token = format!("Bearer {}", Self::agent_token(id));
        let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
        let reply = request(&self.address, "POST", "/ingest", &headers, entry.to_string().as_bytes());
        let reply = reply.expect("the warden answers");
        assert_eq!(reply.status, 200, "{}", reply.text());
    }

    /// Sends a request with a JSON body as the operator.
    #[track_caller]
    pub fn as_operator(&self, method: &str, path: &str, body: &Value) -> Reply {
        let token = format!("Bearer {}", Self::TOKEN);
        let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
        let reply = request(&self.address, method, path, &headers, body.to_string().as_bytes());
        reply.expect("the warden answers")
    }

    /// Returns `push` for the configuration of the agent with this ID.
    pub fn push(&self, id: &str) -> Value {
        json!({ "warden_url": format!("http://{}", self.address), "token": Self::agent_token(id), "machine_id": id })
    }

    /// Sends SIGKILL and waits for its process to exit.
    pub fn kill9(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again after its exit, with the same files and at the same address.
    pub fn restart(&mut self) {
        self.child = run(&self.folder);
        self.wait_ready();
    }

    fn wait_ready(&self) {
        wait_for("the warden to respond", || match request(&self.address, "GET", "/health", &[], &[]) {
            Ok(reply) if reply.status == 200 && !reply.text().contains(r#""store":"away""#) => Ok(()),
            other => Err(format!("{other:?}; its log: {}", log(&self.folder))),
        });
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            eprintln!("--- the warden's log\n{}---", log(&self.folder));
        }
    }
}

fn run(folder: &Path) -> Child {
    let log = File::options().create(true).append(true).open(folder.join("warden.log"));
    Command::new(built("evenkeel-warden"))
        .arg("--config")
        .arg(folder.join("warden.json"))
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.expect("the log can be opened"))
        .spawn()
        .expect("the warden's program can be run")
}

fn log(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("warden.log")).unwrap_or_default()
}
