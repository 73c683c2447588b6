//! A child process in its own process group. The group ends as a whole: by itself, at a deadline, or when the
//! future that runs it is dropped.

use std::fs::File;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::model::output::Tail;

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How long to keep reading output after the child has exited.
const LINGER: Duration = Duration::from_secs(2);

/// How a child run ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The child exited by itself.
    Exited(ExitStatus),
    /// The child was stopped at the deadline.
    TimedOut,
}

/// What happens to processes that a command leaves behind and that no longer hold its output open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leftovers {
    /// They keep running: compose's helpers may keep a connection for the next command.
    Keep,
    /// They are killed.
    Kill,
}

/// A process group, killed on drop. Killing only the child would leave its children running, and compose is a
/// child of `docker`.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(id) = self.0 {
            // Fails if the group is already gone, which is fine.
            let _ = kill_process_group(id, signal);
        }
    }

    fn is_alive(&self) -> bool {
        self.0.is_some_and(|id| test_kill_process_group(id).is_ok())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Runs a command until it exits or the deadline passes. Standard output and standard error share one pipe, which keeps
/// them in order, and the pipe is always drained, so that the child cannot block on it. With `answer`, standard output
/// goes to that file instead.
pub(super) async fn run(
    mut command: Command,
    answer: Option<File>,
    deadline: Instant,
    leftovers: Leftovers,
    tail: &mut Tail,
) -> io::Result<Outcome> {
    let (reader, writer) = io::pipe()?;
    let stdout = match answer {
        Some(file) => Stdio::from(file),
        None => Stdio::from(writer.try_clone()?),
    };
    command.stdin(Stdio::null()).stdout(stdout).stderr(writer);
    command.process_group(0).kill_on_drop(true);
    let mut child = command.spawn()?;
    // Declared after the child, so that it is dropped first, before the child's ID can be reused.
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    // The command holds our copies of the pipe's write end.
    drop(command);
    let mut output = Receiver::from_owned_fd(reader.into())?;

    if let Ok(ended) = timeout_at(deadline, follow(&mut child, &mut output, tail)).await {
        let (status, complete) = ended?;
        // While a process of the group remains, its ID cannot be reused. The ID of an empty group could only belong to
        // another group if all process IDs had been handed out since the child exited.
        if complete && leftovers == Leftovers::Keep {
            group.0 = None;
        }
        return Ok(Outcome::Exited(status));
    }
    group.signal(Signal::TERM);
    let _ = timeout(GRACE, async {
        let _ = follow(&mut child, &mut output, tail).await;
        while group.is_alive() {
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    if group.is_alive() {
        group.signal(Signal::KILL);
        let _ = timeout(LINGER, child.wait()).await;
    }
    group.0 = None;
    Ok(Outcome::TimedOut)
}

/// Reads until the child has exited and the pipe is closed. The flag is false if a process still holds the pipe open
/// [`LINGER`] after the exit.
async fn follow(child: &mut Child, output: &mut Receiver, tail: &mut Tail) -> io::Result<(ExitStatus, bool)> {
    let mut buffer = vec![0; 16 * 1024];
    let mut open = true;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            read = output.read(&mut buffer), if open => match read {
                Ok(n) if n > 0 => tail.push(&buffer[..n]),
                _ => open = false,
            },
        }
    };
    let rest = timeout(LINGER, async {
        while open {
            match output.read(&mut buffer).await {
                Ok(n) if n > 0 => tail.push(&buffer[..n]),
                _ => open = false,
            }
        }
    });
    Ok((status, rest.await.is_ok()))
}
