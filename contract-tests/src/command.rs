//! Runs one-shot commands of the agent's program: `doctor`, `adopt`, `--check`.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::Engine;
use crate::agent::program;

/// Output and exit code of a command.
#[derive(Debug)]
pub struct CommandOutput {
    /// Exit code.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl CommandOutput {
    /// Parses standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_str(&self.stdout) {
            Ok(value) => value,
            Err(error) => panic!("{error}: {self:#?}"),
        }
    }
}

/// Runs the agent's program with a configuration file against an engine and waits for it to exit.
pub fn run_agent(engine: &Engine, config: &Path, arguments: &[&str]) -> CommandOutput {
    run_agent_at(&engine.host(), config, arguments)
}

/// Like [`run_agent`], with any `DOCKER_HOST`, even one without an engine.
pub fn run_agent_at(host: &str, config: &Path, arguments: &[&str]) -> CommandOutput {
    let output: Output = Command::new(program())
        .arg("--config")
        .arg(config)
        .args(arguments)
        .env("DOCKER_HOST", host)
        .env_remove("DOCKER_CONTEXT")
        .stdin(Stdio::null())
        .output()
        .expect("the agent's program can be run");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    CommandOutput { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}
