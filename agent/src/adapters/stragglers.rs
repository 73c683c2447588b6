//! Processes that a command has left behind outside of its process group, or that an agent which was killed could not end.
//! They are found by a variable that they inherit. A service manager ends them with its unit as well; this covers the others.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest as _, Sha256};

/// The variable that marks the processes of a command.
const NAME: &str = "EK_RUN";

/// The programs that keep a container of podman running, as they begin. They inherit the environment of whoever started it; an
/// engine with a service of its own starts its helpers itself.
const HELPERS: [&[u8]; 9] = [
    b"conmon",
    b"rootlessport",
    b"containers-rootlessport",
    b"pasta",
    b"slirp4netns",
    b"aardvark-dns",
    b"netavark",
    b"catatonit",
    b"fuse-overlayfs",
];

/// How often the processes are gone through at most, and the time in between.
const SWEEPS: usize = 5;
const PAUSE: Duration = Duration::from_millis(20);

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
/// environment unless it replaces it. Looks again while there is something to kill, which may just have forked, and while
/// there are processes that are only being started and have no environment yet.
fn kill_if(passes: impl Fn(&[u8]) -> bool) {
    for _ in 0..SWEEPS {
        if !sweep(&passes) {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Goes through all processes once. Returns whether another time may find more.
fn sweep(passes: &impl Fn(&[u8]) -> bool) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    let mut may_find_more = false;
    for process in processes.filter_map(Result::ok) {
        let Some(id) = id_of(&process.file_name()) else { continue };
        let Ok(environment) = std::fs::read(process.path().join("environ")) else { continue };
        // Threads of the kernel have no executable.
        if environment.is_empty() {
            may_find_more |= std::fs::read_link(process.path().join("exe")).is_ok();
            continue;
        }
        let mut variables = environment.split(|byte| *byte == 0);
        let is_marked = variables.any(|variable| variable.starts_with(NAME.as_bytes()) && passes(variable));
        if is_marked && !is_of_container(&process.path()) {
            // It may have ended by now.
            may_find_more |= kill_process(id, Signal::KILL).is_ok();
        }
    }
    may_find_more
}

/// Whether a process belongs to a container: it keeps one running, or runs inside of it with a variable that was passed on. A
/// container stays, whatever engine the command has started it with.
fn is_of_container(process: &Path) -> bool {
    let command = std::fs::read(process.join("cmdline")).unwrap_or_default();
    let program = command.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = program.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let namespace = |process: &Path| std::fs::read_link(process.join("ns/pid")).ok();
    HELPERS.iter().any(|helper| name.starts_with(helper))
        || namespace(process) != namespace(Path::new("/proc/self"))
}

fn id_of(name: &OsStr) -> Option<Pid> {
    Pid::from_raw(name.to_str()?.parse().ok()?)
}
