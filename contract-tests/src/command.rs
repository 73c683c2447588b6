//! The agent's program as a command that ends: `doctor`, `adopt`, `--check`.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::Engine;
use crate::agent::program;

/// What a command said.
#[derive(Debug)]
pub struct Said {
    /// Exit code.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Said {
    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_str(&self.out) {
            Ok(value) => value,
            Err(error) => panic!("{error}: {self:#?}"),
        }
    }
}

/// Runs the agent's program on an engine, with a configuration file, to its end.
pub fn run_agent(engine: &Engine, config: &Path, arguments: &[&str]) -> Said {
    run_agent_at(&engine.host(), config, arguments)
}

/// The same at an address of an engine, whether one is there or not.
pub fn run_agent_at(host: &str, config: &Path, arguments: &[&str]) -> Said {
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
    Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}
