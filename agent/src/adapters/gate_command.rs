//! Runs a gate command (DECISIONS 7): no shell, own process group, minimal environment, bounded output, a deadline.

use std::env;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::process::Command;
use tokio::time::Instant;

use super::child::{Leftovers, Outcome, run};
use super::stragglers::{self, Marks};
use crate::model::HookEvent;
use crate::model::output::{Tail, clip_end};
use crate::model::text::describe_io_error;
use crate::ports::{DrainCall, GateAnswer, GateCommand, GateQuestion, HookCall, HookError};

/// How long a command may run.
const LIMIT: Duration = Duration::from_mins(1);
/// Exit status that lets an update wait (`EX_TEMPFAIL`).
const WAIT: i32 = 75;
/// Variables inherited from the agent's environment.
const INHERITED: [&str; 3] = ["PATH", "HOME", "LANG"];
/// Maximum length of a reason in characters.
const REASON_LIMIT: usize = 200;

/// Runs gate commands as child processes.
pub struct GateCommandRunner {
    limit: Duration,
    marks: Arc<Marks>,
}

impl GateCommandRunner {
    /// Runs the commands of the agent with this state.
    pub fn new(state: &Path) -> Self {
        Self { limit: LIMIT, marks: Arc::new(Marks::of(state)) }
    }

    /// Kills what the commands of an earlier run have left behind: an agent that is killed can't.
    pub fn kill_stragglers(&self) {
        self.marks.kill_of_earlier_runs();
    }
}

impl GateCommandRunner {
    async fn run(
        &self,
        program: &str,
        arguments: &[String],
        question: &GateQuestion,
        more: &[(&'static str, String)],
        limit: Duration,
        tail: &mut Tail,
    ) -> std::io::Result<Outcome> {
        let mut command = Command::new(program);
        command.args(arguments).env_clear().current_dir("/");
        command.envs(INHERITED.iter().filter_map(|name| Some((name, env::var_os(name)?))));
        command.envs([
            ("EK_SERVICE", question.service.clone()),
            ("EK_IMAGE", question.image.to_string()),
            ("EK_DIGEST", question.digest.to_string()),
            ("EK_OLD_DIGEST", question.old_digest.as_ref().map(ToString::to_string).unwrap_or_default()),
        ]);
        command.envs(more.iter().map(|(name, value)| (name, value)));
        let mark = self.marks.next();
        command.env(mark.0, &mark.1);
        let end = run(command, None, Instant::now() + limit, Leftovers::Kill, tail).await;
        // A child may have left the process group. One that goes on would pile up with every run.
        let _ = tokio::task::spawn_blocking(move || stragglers::kill(&mark)).await;
        end
    }
}

#[async_trait]
impl GateCommand for GateCommandRunner {
    async fn ask(&self, argv: &[String], question: &GateQuestion) -> GateAnswer {
        let Some((program, arguments)) = argv.split_first() else {
            return GateAnswer::Go { reason: String::new() };
        };
        let mut tail = Tail::default();
        let end = self.run(program, arguments, question, &[], self.limit, &mut tail).await;
        let reason = last_line(&tail.text());
        let failed = |what: String| format!("{program} {what}");
        match end {
            Ok(Outcome::Exited(status)) => match status.code() {
                Some(0) => GateAnswer::Go { reason },
                Some(WAIT) => GateAnswer::Wait { reason },
                _ => GateAnswer::Failed { fault: failed(describe(status)), reason },
            },
            Ok(Outcome::TimedOut) => {
                let fault = failed(format!("did not exit within {} s", self.limit.as_secs()));
                GateAnswer::Failed { fault, reason }
            }
            Err(error) => {
                let fault = failed(format!("can't be run: {}", describe_io_error(&error)));
                GateAnswer::Failed { fault, reason }
            }
        }
    }

    async fn run_hook(&self, call: &HookCall) -> Result<(), HookError> {
        let Some((program, arguments)) = call.argv.split_first() else { return Ok(()) };
        let mut tail = Tail::default();
        let mut event = vec![("EK_EVENT", call.event.name().to_owned())];
        if let Some(folder) = &call.snapshot {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|error| HookError {
                why: format!(
                    "{program} can't be run: can't create {}: {}",
                    folder.display(),
                    describe_io_error(&error)
                ),
                output: String::new(),
            })?;
            event.push(("EK_SNAPSHOT", folder.display().to_string()));
        }
        let end = self.run(program, arguments, &call.question, &event, call.timeout, &mut tail).await;
        let ended = ended(program, end, call.timeout, &tail);
        if let (Err(_), HookEvent::Before, Some(folder)) = (&ended, call.event, &call.snapshot) {
            remove_dump(folder.clone()).await;
        }
        ended
    }

    async fn run_drain(&self, call: &DrainCall) -> Result<(), HookError> {
        let Some((program, arguments)) = call.drain.command.split_first() else { return Ok(()) };
        let mut tail = Tail::default();
        let containers = [("EK_OLD", call.leaving.join(" ")), ("EK_NEW", call.staying.join(" "))];
        let limit = call.drain.timeout;
        let end = self.run(program, arguments, &call.question, &containers, limit, &mut tail).await;
        ended(program, end, limit, &tail)
    }
}

/// Removes what a hook that failed has left. It may have filled the disk that the journal is on, and nothing else could be
/// done before the journal can be written again.
async fn remove_dump(folder: PathBuf) {
    let removed = tokio::task::spawn_blocking(move || match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            let (folder, error) = (folder.display(), describe_io_error(&error));
            tracing::warn!(%folder, %error, "what the hook has left can't be removed yet");
        }
        _ => {}
    });
    let _ = removed.await;
}

fn ended(
    program: &str,
    end: std::io::Result<Outcome>,
    limit: Duration,
    tail: &Tail,
) -> Result<(), HookError> {
    match failure_of_hook(end, limit) {
        None => Ok(()),
        Some(how) => {
            Err(HookError { why: format!("{program} {how}"), output: tail.text().trim_end().to_owned() })
        }
    }
}

/// How a hook failed, in words.
fn failure_of_hook(end: std::io::Result<Outcome>, limit: Duration) -> Option<String> {
    Some(match end {
        Ok(Outcome::Exited(status)) => match (status.code(), status.signal()) {
            (Some(0), _) => return None,
            (Some(code), _) => format!("exited with status {code}"),
            (None, Some(signal)) => format!("was killed by signal {signal}"),
            (None, None) => "ended without an exit status".to_owned(),
        },
        Ok(Outcome::TimedOut) => format!("did not exit within {} s", limit.as_secs()),
        Err(error) => format!("can't be run: {}", describe_io_error(&error)),
    })
}

/// Returns the last non-blank line.
fn last_line(output: &str) -> String {
    let line = output.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    clip_end(&line.replace('\t', " "), REASON_LIMIT)
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}, which is neither 0 (go) nor {WAIT} (wait)"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended without an exit status".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;
    use crate::model::image::{Digest, Reference};

    fn question() -> GateQuestion {
        GateQuestion {
            service: "web".into(),
            image: Reference::parse("localhost:5000/web:1").unwrap(),
            digest: Digest::of(b"new"),
            old_digest: Some(Digest::of(b"old")),
        }
    }

    fn runner() -> GateCommandRunner {
        GateCommandRunner::new(Path::new("/nowhere/of-this-test"))
    }

    /// Runs a shell script with this time limit.
    async fn answer(script: &str, limit: Duration) -> GateAnswer {
        let argv = ["/bin/sh", "-c", script, "name", "first argument"].map(str::to_owned);
        GateCommandRunner { limit, ..runner() }.ask(&argv, &question()).await
    }

    async fn run_script(script: &str) -> GateAnswer {
        answer(script, Duration::from_secs(20)).await
    }

    #[tokio::test]
    async fn the_exit_status_is_the_answer_and_the_last_line_the_reason() {
        let reason = |text: &str| text.to_owned();
        assert_eq!(
            run_script("echo first; echo fine; echo").await,
            GateAnswer::Go { reason: reason("fine") }
        );
        assert_eq!(run_script("exit 0").await, GateAnswer::Go { reason: String::new() });
        assert_eq!(
            run_script("echo out; echo 'not \x1b[31mnow\x1b[0m' >&2; exit 75").await,
            GateAnswer::Wait { reason: reason("not now") }
        );
        let fault = reason("/bin/sh exited with status 1, which is neither 0 (go) nor 75 (wait)");
        assert_eq!(
            run_script("echo broken; exit 1").await,
            GateAnswer::Failed { fault, reason: reason("broken") }
        );
        let fault = reason("/bin/sh was killed by signal 9");
        assert_eq!(run_script("kill -9 $$").await, GateAnswer::Failed { fault, reason: String::new() });
    }

    #[tokio::test]
    async fn the_command_gets_the_question_and_a_minimal_environment() {
        let asked = format!(
            "web localhost:5000/web:1 {} {} first argument /",
            Digest::of(b"new"),
            Digest::of(b"old")
        );
        let script = "echo \"$EK_SERVICE $EK_IMAGE $EK_DIGEST $EK_OLD_DIGEST $1 $(pwd)\"";
        let GateAnswer::Go { reason } = run_script(script).await else { panic!("not go") };
        assert_eq!(reason, clip_end(&asked, REASON_LIMIT));
        let names = "env | sed 's/=.*//' | grep -vE '^(PATH|HOME|LANG|PWD|OLDPWD|SHLVL|_|EK_.*)$'; exit 0";
        assert_eq!(run_script(names).await, GateAnswer::Go { reason: String::new() });
    }

    #[tokio::test]
    async fn a_flood_of_output_and_leftover_children_do_not_delay_the_answer() {
        let flood = "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo enough; exit 75";
        assert_eq!(run_script(flood).await, GateAnswer::Wait { reason: "enough".into() });
        // One long line without a line break.
        let GateAnswer::Go { reason } = run_script("head -c 3000000 /dev/zero | tr '\\0' x").await else {
            panic!("not go");
        };
        assert!(reason.chars().count() <= REASON_LIMIT + 1);
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        // The second child does not hold the output open, the third one leaves the process group.
        for (run, to) in [("", ""), ("", ">/dev/null 2>&1"), ("setsid", ">/dev/null 2>&1")] {
            let forks = format!("{run} sleep 600 {to} & echo $! > {}; echo forked", pid.display());
            assert_eq!(run_script(&forks).await, GateAnswer::Go { reason: "forked".into() });
            wait_for_exit(&pid).await;
        }
    }

    #[tokio::test]
    async fn what_an_agent_that_was_killed_has_left_behind_is_killed_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let marks = Marks::of(folder.path());
        let spawn = |mark: &str| {
            let mut command = std::process::Command::new("sleep");
            command.arg("600").env("EK_RUN", mark).spawn().unwrap()
        };
        let (name, own) = marks.next();
        assert_eq!(name, "EK_RUN");
        // Of an earlier process, of another agent, and of this one.
        let earlier = own.replace(&format!("-{}-", std::process::id()), "-1-");
        let (mut earlier, mut other, mut own) = (spawn(&earlier), spawn("0123456789abcdef-1-0"), spawn(&own));
        marks.kill_of_earlier_runs();
        earlier.wait().unwrap();
        for kept in [&mut other, &mut own] {
            assert_eq!(kept.try_wait().unwrap(), None);
            kept.kill().unwrap();
            kept.wait().unwrap();
        }
    }

    #[tokio::test]
    async fn a_command_that_hangs_is_killed_with_all_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let hangs = format!("sleep 600 & echo $! > {}; echo waiting; wait", pid.display());
        let fault = "/bin/sh did not exit within 1 s".to_owned();
        assert_eq!(
            answer(&hangs, Duration::from_secs(1)).await,
            GateAnswer::Failed { fault, reason: "waiting".into() }
        );
        wait_for_exit(&pid).await;
    }

    /// Waits until the process whose ID is in the file is gone.
    async fn wait_for_exit(pid: &Path) {
        let pid = fs::read_to_string(pid).unwrap();
        let stat = Path::new("/proc").join(pid.trim()).join("stat");
        let probe = async || match fs::read_to_string(&stat) {
            Ok(text) if !text.contains(") Z ") => Err(text),
            _ => Ok(()),
        };
        evenkeel_common::testing::wait_for_async("the child of the command to end", probe).await;
    }

    #[tokio::test]
    async fn a_command_that_cannot_be_run_fails() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("plain");
        fs::write(&plain, "exit 0\n").unwrap();
        fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
        let none = folder.path().join("none");
        for (program, why) in [(&none, "does not exist"), (&plain, "permission denied")] {
            let program = program.to_str().unwrap().to_owned();
            let fault = format!("{program} can't be run: {why}");
            let answer = runner().ask(&[program], &question()).await;
            assert_eq!(answer, GateAnswer::Failed { fault, reason: String::new() });
        }
    }

    fn hook(script: &str, timeout: Duration) -> HookCall {
        let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        HookCall { argv, event: HookEvent::RolledBack, timeout, question: question(), snapshot: None }
    }

    #[tokio::test]
    async fn a_hook_gets_the_event_and_fails_with_its_last_lines() {
        let limit = Duration::from_secs(20);
        let script =
            "test \"$EK_EVENT-$EK_SERVICE\" = rolled_back-web && test \"$EK_DIGEST\" != \"$EK_OLD_DIGEST\"";
        assert_eq!(runner().run_hook(&hook(script, limit)).await, Ok(()));
        // 75 means nothing here.
        let error = runner().run_hook(&hook("echo one; echo two >&2; exit 75", limit)).await.unwrap_err();
        assert_eq!(
            (error.why.as_str(), error.output.as_str()),
            ("/bin/sh exited with status 75", "one\ntwo")
        );
        let error = runner().run_hook(&hook("kill -9 $$", limit)).await.unwrap_err();
        assert_eq!(error.why, "/bin/sh was killed by signal 9");
        let missing = HookCall { argv: vec!["/nowhere/hook".into()], ..hook("", limit) };
        let error = runner().run_hook(&missing).await.unwrap_err();
        assert!(error.why.starts_with("/nowhere/hook can't be run"), "{error}");
    }

    #[tokio::test]
    async fn what_a_failed_dump_has_left_is_removed_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let dump = folder.path().join("snapshots/web-7");
        let call = |script: &str, event: HookEvent, timeout: Duration| HookCall {
            event,
            snapshot: Some(dump.clone()),
            ..hook(script, timeout)
        };
        let limit = Duration::from_secs(20);
        let fails = "mkdir \"$EK_SNAPSHOT/a\" && echo x > \"$EK_SNAPSHOT/a/part\"; exit 1";
        let error = runner().run_hook(&call(fails, HookEvent::Before, limit)).await.unwrap_err();
        assert_eq!(error.why, "/bin/sh exited with status 1");
        assert!(!dump.exists(), "it takes up the room of the journal");
        let hangs = "echo x > \"$EK_SNAPSHOT/part\"; sleep 600";
        assert!(runner().run_hook(&call(hangs, HookEvent::Before, Duration::from_secs(1))).await.is_err());
        assert!(!dump.exists(), "it did not end in time");
        let removes = "rmdir \"$EK_SNAPSHOT\"; exit 1";
        assert!(runner().run_hook(&call(removes, HookEvent::Before, limit)).await.is_err());

        let saves = "echo x > \"$EK_SNAPSHOT/all\"";
        assert_eq!(runner().run_hook(&call(saves, HookEvent::Before, limit)).await, Ok(()));
        assert!(runner().run_hook(&call("exit 1", HookEvent::RolledBack, limit)).await.is_err());
        assert!(dump.join("all").exists(), "it is needed by whoever looks after the failed hook");
    }

    #[tokio::test]
    async fn a_hook_that_takes_too_long_is_stopped_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let alive = folder.path().join("alive");
        let script = format!(
            "setsid sh -c 'while :; do : > {0}; sleep 0.1; done' & while ! test -e {0}; do sleep 0.1; done; sleep 600",
            alive.display()
        );
        let error = runner().run_hook(&hook(&script, Duration::from_secs(3))).await.unwrap_err();
        assert_eq!(error.why, "/bin/sh did not exit within 3 s");
        fs::remove_file(&alive).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!alive.exists(), "a child in a session of its own goes on");
    }

    #[tokio::test]
    async fn the_helpers_of_a_container_that_a_hook_has_started_live_on() {
        let folder = tempfile::tempdir().unwrap();
        let (helper, pid) = (folder.path().join("conmon"), folder.path().join("pid"));
        // It leaves the process group of the hook, as the real one does.
        let starts = format!(
            "mkfifo {0}.fifo; ln -s \"$(readlink -f /bin/sh)\" {0}; \
             setsid {0} -c 'read line < {0}.fifo' >/dev/null 2>&1 & echo $! > {1}; \
             until test \"$(cat /proc/$!/comm)\" = conmon; do sleep 0.1; done",
            helper.display(),
            pid.display()
        );
        assert_eq!(runner().run_hook(&hook(&starts, Duration::from_secs(20))).await, Ok(()));
        let id: i32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        assert!(stat.contains("(conmon) S "), "it is killed: {stat}");
        kill_process(Pid::from_raw(id).unwrap(), Signal::KILL).unwrap();
    }
}
