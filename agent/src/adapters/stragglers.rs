//! Processes that a command has left behind outside of its process group, or that an agent which was killed could not end.
//! They are found by a variable that they inherit. A service manager ends them with its unit as well; this covers the others.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest as _, Sha256};

/// The variable that marks the processes of a command.
const NAME: &str = "EK_RUN";

/// The marks of one agent's commands.
#[derive(Debug)]
pub(super) struct Marks {
    /// Which agent: several may run on a machine.
    owner: String,
    count: AtomicU64,
}

impl Marks {
    /// The marks of the agent with this state.
    pub(super) fn of(state: &Path) -> Self {
        let owner = hex::encode(&Sha256::digest(state.as_os_str().as_bytes())[..8]);
        Self { owner, count: AtomicU64::new(0) }
    }

    /// Returns the variable and the value for the next command. It differs from those of earlier runs of this agent.
    pub(super) fn next(&self) -> (&'static str, String) {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        (NAME, format!("{}-{}-{count}", self.owner, std::process::id()))
    }

    /// Kills what commands of earlier runs of this agent have left behind.
    pub(super) fn kill_of_earlier_runs(&self) {
        let (all, own) = (format!("{NAME}={}-", self.owner), format!("-{}-", std::process::id()));
        kill_if(|mark| mark.starts_with(all.as_bytes()) && !contains(mark, own.as_bytes()));
    }
}

/// Kills the processes of one command.
pub(super) fn kill((name, value): &(&str, String)) {
    let mark = format!("{name}={value}");
    kill_if(|of_process| of_process == mark.as_bytes());
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Kills the processes whose mark passes. A process of another user can't be read, and none that runs as this one can hide its
/// environment unless it replaces it.
fn kill_if(passes: impl Fn(&[u8]) -> bool) {
    let Ok(processes) = std::fs::read_dir("/proc") else { return };
    for process in processes.filter_map(Result::ok) {
        let Some(id) = id_of(&process.file_name()) else { continue };
        let Ok(environment) = std::fs::read(process.path().join("environ")) else { continue };
        let mut variables = environment.split(|byte| *byte == 0);
        if variables.any(|variable| variable.starts_with(NAME.as_bytes()) && passes(variable)) {
            // It may have ended by now.
            let _ = kill_process(id, Signal::KILL);
        }
    }
}

fn id_of(name: &OsStr) -> Option<Pid> {
    Pid::from_raw(name.to_str()?.parse().ok()?)
}
