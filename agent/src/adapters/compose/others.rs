//! Compose runs of others on the same project: one that outlived a killed agent, or a person's. They are waited
//! for, since two runs at once break each other (DOMAIN finding 3).
//!
//! A command line alone proves nothing: any process can show any words, also one inside a hostile image. Only a process
//! that was started with the agent's own rights counts: all its user IDs are the agent's, it is in
//! the PID namespace of `/proc`, and in the mount namespace of the agent or of the machine's init (a service manager
//! gives the agent one of its own).

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(200);
/// A run that takes longer than this is not waited for any more.
const PATIENCE: Duration = Duration::from_mins(1);
/// An `up` in somebody's terminal starts the containers and then shows what they write until that person ends it,
/// perhaps days later. Nothing tells the two parts apart from outside, and the first rarely takes longer than this;
/// where it does, a conflict is met by the tries that follow one.
const PATIENCE_WITH_A_TERMINAL: Duration = Duration::from_secs(5);

/// Returns when no other compose process works on the project, or has been waited for long enough.
pub(super) async fn wait(project: &str) {
    let begin = Instant::now();
    let mut said = false;
    while patience_now(project).await.is_some_and(|patience| begin.elapsed() < patience) {
        if !said {
            tracing::info!(project, "another compose run works on the project; waiting for it");
            said = true;
        }
        sleep(EVERY).await;
    }
}

/// [`patience`] on a thread that may block: reading about a process can hang.
async fn patience_now(project: &str) -> Option<Duration> {
    let project = project.to_owned();
    let user = rustix::process::geteuid().as_raw();
    let inspected = tokio::task::spawn_blocking(move || patience(Path::new("/proc"), user, &project));
    inspected.await.unwrap_or_default()
}

/// How long the processes in `proc` that were started as `… compose … -p <project> …` with the rights of `user` are
/// to be waited for; `None` where there are none.
fn patience(proc: &Path, user: u32, project: &str) -> Option<Duration> {
    let entries = std::fs::read_dir(proc).ok()?;
    // Read for the first run that is found, which is rare.
    let mut home: Option<HashSet<String>> = None;
    let runs = entries.flatten().filter_map(|entry| {
        let is_process = entry.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit());
        let folder = is_process.then(|| entry.path())?;
        let worth = patience_with(&std::fs::read(folder.join("cmdline")).ok()?, project)?;
        let home = home.get_or_insert_with(|| &mounts(&proc.join("self")) | &mounts(&proc.join("1")));
        (is_of(&folder, user) && !home.is_disjoint(&mounts(&folder))).then_some(worth)
    });
    runs.max()
}

/// Whether all user IDs of a process are `user` (a program with the set-user-ID bit has another real one), and it is in
/// no PID namespace inside that of `/proc`.
fn is_of(process: &Path, user: u32) -> bool {
    let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    let user = user.to_string();
    let same_user = field("Uid:").is_some_and(|ids| ids.len() == 4 && ids.iter().all(|id| *id == user));
    same_user && field("NSpid:").is_some_and(|ids| ids.len() == 1)
}

/// The IDs of the mounts that a process sees. The kernel gives each to one mount of one namespace, and unlike the link
/// in `ns/` they can be read without the right to trace the process.
fn mounts(process: &Path) -> HashSet<String> {
    let table = std::fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
    table.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// The same for one command line (words that end with NUL); `None` where it is no such run.
fn patience_with(line: &[u8], project: &str) -> Option<Duration> {
    let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
    let is_compose = words.iter().take(2).any(|word| word.ends_with(b"compose"));
    let names =
        |pair: &[&[u8]]| matches!(pair[0], b"-p" | b"--project-name") && pair[1] == project.as_bytes();
    let task = words.iter().position(|word| matches!(*word, b"up" | b"down"))?;
    if !is_compose || !words.windows(2).any(names) {
        return None;
    }
    let ends_by_itself = |word: &[u8]| match word {
        b"down" | b"--detach" | b"--wait" | b"--no-start" => true,
        [b'-', short @ ..] => !short.starts_with(b"-") && short.contains(&b'd'),
        _ => false,
    };
    let ends = words[task..].iter().any(|word| ends_by_itself(word));
    Some(if ends { PATIENCE } else { PATIENCE_WITH_A_TERMINAL })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> Vec<u8> {
        words.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect()
    }

    #[test]
    fn a_run_is_known_by_its_words() {
        let with = |words: &[&str]| patience_with(&line(words), "shop");
        let ours = ["docker", "compose", "-p", "shop", "-f", "/srv/a.yml", "up", "-d"];
        assert_eq!(with(&ours), Some(PATIENCE));
        assert_eq!(patience_with(&line(&ours), "sho"), None);
        let plugin = ["/root/.docker/cli-plugins/docker-compose", "compose", "-p", "shop", "down"];
        assert_eq!(with(&plugin), Some(PATIENCE));
        assert_eq!(with(&["docker", "compose", "-p", "shop", "logs", "-f"]), None, "it changes nothing");
        assert_eq!(with(&["vim", "compose.yml", "-p", "shop", "up"]), None);
        assert_eq!(patience_with(b"", "shop"), None);
    }

    #[test]
    fn an_up_in_a_terminal_is_not_waited_for_to_its_end() {
        let with = |options: &[&str]| {
            let words = [&["docker", "compose", "-p", "shop", "-f", "docker.yml", "up"], options].concat();
            patience_with(&line(&words), "shop")
        };
        for options in [&[] as &[&str], &["--build", "web"], &["-V", "--wait-timeout", "5", "db"]] {
            assert_eq!(with(options), Some(PATIENCE_WITH_A_TERMINAL), "{options:?}");
        }
        for options in [&["-d"] as &[&str], &["--build", "--detach"], &["-Vd"], &["--wait", "web"]] {
            assert_eq!(with(options), Some(PATIENCE), "{options:?}");
        }
    }

    const RUN: [&str; 6] = ["docker", "compose", "-p", "shop", "up", "-d"];

    /// A `/proc` with an init in mount namespace 1, and this process in its own one, 2.
    struct Proc(tempfile::TempDir);

    impl Proc {
        fn new() -> Self {
            let proc = Self(tempfile::tempdir().unwrap());
            proc.process("1", &["init"], "0 0 0 0", "1", 1);
            proc.process("self", &RUN, "0 0 0 0", "70", 2);
            proc
        }

        fn process(&self, id: &str, words: &[&str], users: &str, pids: &str, namespace: u32) {
            let folder = self.0.path().join(id);
            std::fs::create_dir_all(&folder).unwrap();
            let users = users.replace(' ', "\t");
            std::fs::write(folder.join("cmdline"), line(words)).unwrap();
            let status = format!("Name:\tx\nUid:\t{users}\nGid:\t0\t0\t0\t0\nNSpid:\t{pids}\nNSpgid:\t7\n");
            std::fs::write(folder.join("status"), status).unwrap();
            let mounts = format!(
                "{namespace}1 {namespace}0 8:1 / / rw - ext4 /dev/sda1 rw\n{namespace}2 {namespace}1 0:5 / /proc rw - proc proc rw\n"
            );
            std::fs::write(folder.join("mountinfo"), mounts).unwrap();
        }

        fn patience(&self, project: &str) -> Option<Duration> {
            patience(self.0.path(), 0, project)
        }
    }

    #[test]
    fn the_run_that_takes_longest_counts() {
        let proc = Proc::new();
        assert_eq!(proc.patience("shop"), None, "a link is no process");
        proc.process("7", &RUN[..5], "0 0 0 0", "7", 1);
        assert_eq!(proc.patience("shop"), Some(PATIENCE_WITH_A_TERMINAL));
        proc.process("8", &RUN, "0 0 0 0", "8", 1);
        assert_eq!(proc.patience("shop"), Some(PATIENCE));
        assert_eq!(proc.patience("other"), None);
    }

    #[test]
    fn only_a_process_of_the_same_user_in_the_machines_namespaces_is_waited_for() {
        for (what, users, pids, namespace, expected) in [
            ("root in the machine's mount namespace", "0 0 0 0", "8", 1, Some(PATIENCE)),
            ("root in the agent's own mount namespace", "0 0 0 0", "8", 2, Some(PATIENCE)),
            ("another user", "1000 1000 1000 1000", "8", 1, None),
            ("a set-user-ID program with the caller's words", "1000 0 0 0", "8", 1, None),
            ("a container", "0 0 0 0", "8 1", 3, None),
            ("a container that sees the machine's processes", "0 0 0 0", "8", 3, None),
            ("a PID namespace with the machine's mounts", "0 0 0 0", "8 1", 1, None),
        ] {
            let proc = Proc::new();
            proc.process("8", &RUN, users, pids, namespace);
            assert_eq!(proc.patience("shop"), expected, "{what}");
        }
    }

    #[test]
    fn a_process_about_which_nothing_can_be_read_is_not_waited_for() {
        for missing in ["cmdline", "status", "mountinfo"] {
            let proc = Proc::new();
            proc.process("8", &RUN, "0 0 0 0", "8", 1);
            std::fs::remove_file(proc.0.path().join("8").join(missing)).unwrap();
            assert_eq!(proc.patience("shop"), None, "{missing}");
        }
        assert_eq!(patience(Path::new("/nonexistent"), 0, "shop"), None);
    }

    /// A real process that shows the words of a compose run; it ends when it is dropped.
    struct Show(std::process::Child);

    impl Show {
        fn start(wrapper: &[&str], project: &str) -> Self {
            let words = format!("exec -a compose sh -c 'read end' -p {project} up -d");
            let command = [wrapper, &["bash", "-c", &words]].concat();
            let mut shell = std::process::Command::new(command[0]);
            let child = shell.args(&command[1..]).stdin(std::process::Stdio::piped()).spawn().unwrap();
            let show = Self(child);
            let end = std::time::Instant::now() + Duration::from_mins(1);
            let cmdline = format!("/proc/{}/cmdline", show.0.id());
            while !std::fs::read(&cmdline).unwrap_or_default().starts_with(b"compose\0") {
                assert!(std::time::Instant::now() < end, "{cmdline} never shows compose");
                std::thread::sleep(Duration::from_millis(10));
            }
            show
        }
    }

    impl Drop for Show {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn patience_here(project: &str) -> Option<Duration> {
        patience(Path::new("/proc"), rustix::process::geteuid().as_raw(), project)
    }

    #[test]
    fn a_real_run_with_our_rights_is_waited_for() {
        let project = format!("ektest-others-{}", std::process::id());
        assert_eq!(patience_here(&project), None);
        let _run = Show::start(&["env"], &project);
        assert_eq!(patience_here(&project), Some(PATIENCE));
    }

    #[test]
    #[ignore = "needs root"]
    fn a_real_process_of_another_user_or_namespace_is_not_waited_for() {
        for wrapper in [
            &["unshare", "--mount", "--"] as &[&str],
            &["setpriv", "--reuid=65534", "--clear-groups"],
            &["setpriv", "--ruid=65534"],
        ] {
            let project = format!("ektest-others-{}-{}", wrapper[1].trim_matches('-'), std::process::id());
            let _run = Show::start(wrapper, &project);
            assert_eq!(patience_here(&project), None, "{wrapper:?}");
        }
    }
}
