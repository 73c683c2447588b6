//! Runs a gate command (DECISIONS 7): no shell, a process group of its own, nearly no environment, bounded output, a
//! deadline.

use std::env;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use async_trait::async_trait;
use tokio::process::Command;
use tokio::time::Instant;

use super::child::{End, Leftovers, run};
use crate::model::output::{Tail, clip_end};
use crate::model::text::plainly;
use crate::ports::{GateAnswer, GateCommand, GateQuestion};

/// How long a command may take.
const LIMIT: Duration = Duration::from_mins(1);
/// What a command exits with to let an update wait (`EX_TEMPFAIL`).
const WAIT: i32 = 75;
/// Of the agent's own environment.
const INHERITED: [&str; 3] = ["PATH", "HOME", "LANG"];
/// Most characters of a reason.
const REASON: usize = 200;

/// Gate commands as child processes.
pub struct GatePrograms {
    limit: Duration,
}

impl Default for GatePrograms {
    fn default() -> Self {
        Self { limit: LIMIT }
    }
}

#[async_trait]
impl GateCommand for GatePrograms {
    async fn ask(&self, argv: &[String], question: &GateQuestion) -> GateAnswer {
        let Some((program, arguments)) = argv.split_first() else {
            return GateAnswer::Go { reason: String::new() };
        };
        let mut command = Command::new(program);
        command.args(arguments).env_clear().current_dir("/");
        command.envs(INHERITED.iter().filter_map(|name| Some((name, env::var_os(name)?))));
        command.envs([
            ("EK_SERVICE", question.service.clone()),
            ("EK_IMAGE", question.image.to_string()),
            ("EK_DIGEST", question.digest.to_string()),
            ("EK_OLD_DIGEST", question.old_digest.as_ref().map(ToString::to_string).unwrap_or_default()),
        ]);
        let mut tail = Tail::default();
        let end = run(command, None, Instant::now() + self.limit, Leftovers::Kill, &mut tail).await;
        let reason = last_line(&tail.text());
        let failed = |what: String| format!("{program} {what}");
        match end {
            Ok(End::Exited(status)) => match status.code() {
                Some(0) => GateAnswer::Go { reason },
                Some(WAIT) => GateAnswer::Wait { reason },
                _ => GateAnswer::Failed { fault: failed(in_words(status)), reason },
            },
            Ok(End::TooLong) => {
                let fault = failed(format!("did not end within {} s", self.limit.as_secs()));
                GateAnswer::Failed { fault, reason }
            }
            Err(error) => {
                let fault = failed(format!("can't be run: {}", plainly(&error)));
                GateAnswer::Failed { fault, reason }
            }
        }
    }
}

/// The last line that says something.
fn last_line(output: &str) -> String {
    let line = output.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    clip_end(&line.replace('\t', " "), REASON)
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}, which is neither 0 (go) nor {WAIT} (wait)"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

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

    /// What a shell script answers that has so long.
    async fn answer(script: &str, limit: Duration) -> GateAnswer {
        let argv = ["/bin/sh", "-c", script, "name", "first argument"].map(str::to_owned);
        GatePrograms { limit }.ask(&argv, &question()).await
    }

    async fn soon(script: &str) -> GateAnswer {
        answer(script, Duration::from_secs(20)).await
    }

    #[tokio::test]
    async fn the_exit_status_is_the_answer_and_the_last_line_the_reason() {
        let reason = |text: &str| text.to_owned();
        assert_eq!(soon("echo first; echo fine; echo").await, GateAnswer::Go { reason: reason("fine") });
        assert_eq!(soon("exit 0").await, GateAnswer::Go { reason: String::new() });
        assert_eq!(
            soon("echo out; echo 'not \x1b[31mnow\x1b[0m' >&2; exit 75").await,
            GateAnswer::Wait { reason: reason("not now") }
        );
        let fault = reason("/bin/sh exited with status 1, which is neither 0 (go) nor 75 (wait)");
        assert_eq!(soon("echo broken; exit 1").await, GateAnswer::Failed { fault, reason: reason("broken") });
        let fault = reason("/bin/sh was ended by signal 9");
        assert_eq!(soon("kill -9 $$").await, GateAnswer::Failed { fault, reason: String::new() });
    }

    #[tokio::test]
    async fn it_knows_what_is_asked_and_little_else() {
        let asked = format!(
            "web localhost:5000/web:1 {} {} first argument /",
            Digest::of(b"new"),
            Digest::of(b"old")
        );
        let script = "echo \"$EK_SERVICE $EK_IMAGE $EK_DIGEST $EK_OLD_DIGEST $1 $(pwd)\"";
        let GateAnswer::Go { reason } = soon(script).await else { panic!("it goes") };
        assert_eq!(reason, clip_end(&asked, REASON));
        let names = "env | sed 's/=.*//' | grep -vE '^(PATH|HOME|LANG|PWD|OLDPWD|SHLVL|_|EK_.*)$'; exit 0";
        assert_eq!(soon(names).await, GateAnswer::Go { reason: String::new() });
    }

    #[tokio::test]
    async fn what_floods_its_output_or_leaves_children_is_read_to_its_end_and_no_further() {
        let flood = "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo enough; exit 75";
        assert_eq!(soon(flood).await, GateAnswer::Wait { reason: "enough".into() });
        // One endless line without a break.
        let GateAnswer::Go { reason } = soon("head -c 3000000 /dev/zero | tr '\\0' x").await else {
            panic!("it goes");
        };
        assert!(reason.chars().count() <= REASON + 1);
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        // Also one that does not hold the output.
        for to in ["", ">/dev/null 2>&1"] {
            let forks = format!("sleep 600 {to} & echo $! > {}; echo forked", pid.display());
            assert_eq!(soon(&forks).await, GateAnswer::Go { reason: "forked".into() });
            ends(&pid).await;
        }
    }

    #[tokio::test]
    async fn what_hangs_is_ended_with_all_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let hangs = format!("sleep 600 & echo $! > {}; echo waiting; wait", pid.display());
        let fault = "/bin/sh did not end within 1 s".to_owned();
        assert_eq!(
            answer(&hangs, Duration::from_secs(1)).await,
            GateAnswer::Failed { fault, reason: "waiting".into() }
        );
        ends(&pid).await;
    }

    /// Waits until the process whose number stands in the file is gone.
    async fn ends(pid: &Path) {
        let pid = fs::read_to_string(pid).unwrap();
        let stat = Path::new("/proc").join(pid.trim()).join("stat");
        let probe = async || match fs::read_to_string(&stat) {
            Ok(text) if !text.contains(") Z ") => Err(text),
            _ => Ok(()),
        };
        evenkeel_common::testing::wait_for_async("the child of the command to end", probe).await;
    }

    #[tokio::test]
    async fn what_cannot_be_run_lets_nothing_go() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("plain");
        fs::write(&plain, "exit 0\n").unwrap();
        fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
        let none = folder.path().join("none");
        for (program, why) in [(&none, "does not exist"), (&plain, "permission denied")] {
            let program = program.to_str().unwrap().to_owned();
            let fault = format!("{program} can't be run: {why}");
            let answer = GatePrograms::default().ask(&[program], &question()).await;
            assert_eq!(answer, GateAnswer::Failed { fault, reason: String::new() });
        }
    }
}
