//! A child with a process group of its own, which ends as a whole: by itself, at a deadline, or when nobody
//! waits for it any more.

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

/// Time between asking a group to end and killing it.
const GRACE: Duration = Duration::from_secs(5);
/// How long output is waited for after the child itself has ended.
const LINGER: Duration = Duration::from_secs(2);

/// How a child ended.
#[derive(Debug)]
pub(super) enum End {
    /// By itself.
    Exited(ExitStatus),
    /// It was stopped at the deadline.
    TooLong,
}

/// What becomes of processes that a command has left behind and that do not hold its output any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leftovers {
    /// They go on: compose's helpers may keep a connection for the next command.
    Keep,
    /// They are killed.
    Kill,
}

/// A process group that is killed when this is dropped: killing the child alone would leave its children, and
/// compose is a child of `docker`.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(id) = self.0 {
            // It may be gone already, which is what is wanted.
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

/// Runs a command to its end or to the deadline. Output of both kinds goes through one pipe, so that it stays in
/// order, and is always read, so that a child can't block on it; with `answer`, its standard output goes there.
pub(super) async fn run(
    mut command: Command,
    answer: Option<File>,
    deadline: Instant,
    leftovers: Leftovers,
    tail: &mut Tail,
) -> io::Result<End> {
    let (reader, writer) = io::pipe()?;
    let stdout = match answer {
        Some(file) => Stdio::from(file),
        None => Stdio::from(writer.try_clone()?),
    };
    command.stdin(Stdio::null()).stdout(stdout).stderr(writer);
    command.process_group(0).kill_on_drop(true);
    let mut child = command.spawn()?;
    // Declared after the child, so that it is dropped first, while the child's ID can't be another's yet.
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    // It holds our copies of the pipe's writing end.
    drop(command);
    let mut output = Receiver::from_owned_fd(reader.into())?;

    if let Ok(ended) = timeout_at(deadline, follow(&mut child, &mut output, tail)).await {
        let (status, complete) = ended?;
        // A group that is left has its number to itself. One that is empty could only be mistaken for another if all
        // numbers were given out since the child's end.
        if complete && leftovers == Leftovers::Keep {
            group.0 = None;
        }
        return Ok(End::Exited(status));
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
    Ok(End::TooLong)
}

/// Reads until the child has ended and nobody holds the pipe any more. The flag is false where somebody still
/// does after a while.
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
