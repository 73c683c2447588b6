//! Waits for other compose runs on the same project: one that outlived a killed agent, or an operator's. Concurrent runs
//! break each other (DOMAIN finding 3).
//!
//! The command line alone is not trusted: any process can set it, including one in a hostile container. Only a process
//! with the agent's privileges counts: all its user IDs are the agent's, it is in the PID namespace of `/proc`, and it is
//! in the mount namespace of the agent or of the host's init (a service manager may give the agent its own).

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Poll interval.
const POLL: Duration = Duration::from_millis(200);
/// Maximum wait for a run that exits by itself.
const LIMIT: Duration = Duration::from_mins(1);
/// Maximum wait for an attached `up`. It starts the containers and then shows their logs until the operator ends it,
/// perhaps days later. The two phases cannot be distinguished from outside, and the first rarely takes longer than this.
/// If it does, the retries after a conflict handle it.
const ATTACHED_LIMIT: Duration = Duration::from_secs(5);

/// The commands that change containers.
const CHANGES: [&[u8]; 9] =
    [b"up", b"down", b"stop", b"rm", b"create", b"start", b"restart", b"kill", b"scale"];
/// Commands that are followed by words of others, or by names of services, which may be such words as well.
const OTHER_COMMANDS: [&[u8]; 5] = [b"exec", b"run", b"logs", b"ps", b"config"];

/// Returns when no other compose process works on the project in this folder, or when the maximum wait has passed.
pub(super) async fn wait(project: &str, folder: Option<&Path>) {
    let begin = Instant::now();
    let mut logged = false;
    while current_limit(project, folder).await.is_some_and(|limit| begin.elapsed() < limit) {
        if !logged {
            tracing::info!(project, "waiting for another compose run on the project");
            logged = true;
        }
        sleep(POLL).await;
    }
}

/// Reports whether another compose process that exits by itself works on the project in this folder.
pub(super) async fn are_at_work(project: &str, folder: Option<&Path>) -> bool {
    current_limit(project, folder).await == Some(LIMIT)
}

/// Calls [`limit`] on a blocking thread: reading from `/proc` can hang.
async fn current_limit(project: &str, folder: Option<&Path>) -> Option<Duration> {
    let (project, folder) = (project.to_owned(), folder.map(Path::to_owned));
    let user = rustix::process::geteuid().as_raw();
    let inspected = tokio::task::spawn_blocking(move || {
        // The working directory of a process has no links.
        let folder = folder.and_then(|folder| folder.canonicalize().ok());
        limit(Path::new("/proc"), user, &project, folder.as_deref())
    });
    inspected.await.unwrap_or_default()
}

/// Returns the maximum wait for the processes in `proc` that run `… compose … -p <project> …`, or compose without a project
/// name in this folder, with the privileges of `user`; `None` if there are none.
fn limit(proc: &Path, user: u32, project: &str, in_folder: Option<&Path>) -> Option<Duration> {
    let entries = std::fs::read_dir(proc).ok()?;
    // Read only once a run is found, which is rare.
    let mut home: Option<HashSet<String>> = None;
    let runs = entries.flatten().filter_map(|entry| {
        let is_process = entry.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit());
        let folder = is_process.then(|| entry.path())?;
        let is_there =
            || in_folder.is_some() && std::fs::read_link(folder.join("cwd")).ok().as_deref() == in_folder;
        let worth = limit_of(&std::fs::read(folder.join("cmdline")).ok()?, project, is_there)?;
        let home = home.get_or_insert_with(|| &mounts(&proc.join("self")) | &mounts(&proc.join("1")));
        (is_of(&folder, user) && !home.is_disjoint(&mounts(&folder))).then_some(worth)
    });
    runs.max()
}

/// Reports whether all user IDs of a process are `user` (in a set-user-ID program, the real one differs) and it is not in
/// a nested PID namespace.
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

/// Returns the mount IDs of a process. Each is unique to one mount in one namespace. Unlike the link in `ns/`, they are
/// readable without permission to trace the process.
fn mounts(process: &Path) -> HashSet<String> {
    let table = std::fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
    table.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Returns the maximum wait for a process with this command line (NUL-terminated arguments), or `None` if it is not a
/// compose run on the project. `is_there`: whether it runs in the project's folder.
fn limit_of(line: &[u8], project: &str, is_there: impl FnOnce() -> bool) -> Option<Duration> {
    let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
    let is_compose = words.iter().take(2).any(|word| word.ends_with(b"compose"));
    let is_name = |at: usize| at > 0 && matches!(words[at - 1], b"-p" | b"--project-name" | b"--profile");
    let is_command = |at: &usize| {
        let word = words[*at];
        !is_name(*at) && (CHANGES.contains(&word) || OTHER_COMMANDS.contains(&word))
    };
    let task = (0..words.len()).find(is_command).filter(|at| CHANGES.contains(&words[*at]))?;
    let given = |pair: &[&[u8]]| matches!(pair[0], b"-p" | b"--project-name").then(|| pair[1].to_vec());
    let assigned = || words.iter().find_map(|word| Some(word.strip_prefix(b"--project-name=")?.to_vec()));
    let name = words.windows(2).find_map(given).or_else(assigned);
    if !is_compose || !name.map_or_else(is_there, |name| name == project.as_bytes()) {
        return None;
    }
    let ends_by_itself = |word: &[u8]| match word {
        b"--detach" | b"--wait" | b"--no-start" => true,
        [b'-', short @ ..] => !short.starts_with(b"-") && short.contains(&b'd'),
        _ => false,
    };
    let ends = words[task] != b"up" || words[task..].iter().any(|word| ends_by_itself(word));
    Some(if ends { LIMIT } else { ATTACHED_LIMIT })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> Vec<u8> {
        words.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect()
    }

    #[test]
    fn a_run_is_recognized_by_its_command_line() {
        let with = |words: &[&str]| limit_of(&line(words), "shop", || false);
        let ours = ["docker", "compose", "-p", "shop", "-f", "/srv/a.yml", "up", "-d"];
        assert_eq!(with(&ours), Some(LIMIT));
        assert_eq!(limit_of(&line(&ours), "sho", || true), None, "another project is named");
        assert_eq!(with(&["docker", "compose", "--project-name=shop", "up", "-d"]), Some(LIMIT));
        let plugin = ["/root/.docker/cli-plugins/docker-compose", "compose", "-p", "shop", "down"];
        assert_eq!(with(&plugin), Some(LIMIT));
        for command in ["stop", "rm", "create", "start", "restart", "kill", "scale"] {
            assert_eq!(with(&["docker", "compose", "-p", "shop", command, "web"]), Some(LIMIT), "{command}");
        }
        assert_eq!(with(&["docker", "compose", "-p", "shop", "logs", "-f"]), None, "it changes nothing");
        assert_eq!(with(&["docker", "compose", "-p", "shop", "exec", "web", "yarn", "start"]), None);
        let of_logs = ["docker", "compose", "-p", "logs", "up", "-d"];
        assert_eq!(limit_of(&line(&of_logs), "logs", || false), Some(LIMIT), "the name of a project");
        assert_eq!(with(&["vim", "compose.yml", "-p", "shop", "up"]), None);
        assert_eq!(limit_of(b"", "shop", || true), None);
    }

    #[test]
    fn an_attached_up_is_not_waited_for_until_it_exits() {
        let with = |options: &[&str]| {
            let words = [&["docker", "compose", "-p", "shop", "-f", "docker.yml", "up"], options].concat();
            limit_of(&line(&words), "shop", || false)
        };
        for options in [&[] as &[&str], &["--build", "web"], &["-V", "--wait-timeout", "5", "db"]] {
            assert_eq!(with(options), Some(ATTACHED_LIMIT), "{options:?}");
        }
        for options in [&["-d"] as &[&str], &["--build", "--detach"], &["-Vd"], &["--wait", "web"]] {
            assert_eq!(with(options), Some(LIMIT), "{options:?}");
        }
    }

    const RUN: [&str; 6] = ["docker", "compose", "-p", "shop", "up", "-d"];

    /// A `/proc` with init in mount namespace 1 and this process in mount namespace 2.
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

        fn limit(&self, project: &str) -> Option<Duration> {
            limit(self.0.path(), 0, project, Some(Path::new("/srv/shop")))
        }
    }

    #[test]
    fn the_longest_wait_counts() {
        let proc = Proc::new();
        assert_eq!(proc.limit("shop"), None, "a link is no process");
        proc.process("7", &RUN[..5], "0 0 0 0", "7", 1);
        assert_eq!(proc.limit("shop"), Some(ATTACHED_LIMIT));
        proc.process("8", &RUN, "0 0 0 0", "8", 1);
        assert_eq!(proc.limit("shop"), Some(LIMIT));
        assert_eq!(proc.limit("other"), None);
    }

    #[test]
    fn a_run_without_a_project_name_is_waited_for_in_the_folder_of_the_project() {
        let words = ["docker", "compose", "up", "-d"];
        for (folder, expected) in [("/srv/shop", Some(LIMIT)), ("/srv/other", None)] {
            let proc = Proc::new();
            proc.process("8", &words, "0 0 0 0", "8", 1);
            assert_eq!(proc.limit("shop"), None, "its folder is unknown");
            std::os::unix::fs::symlink(folder, proc.0.path().join("8").join("cwd")).unwrap();
            assert_eq!(proc.limit("shop"), expected, "{folder}");
        }
    }

    #[test]
    fn only_a_process_of_the_same_user_in_the_hosts_namespaces_is_waited_for() {
        for (what, users, pids, namespace, expected) in [
            ("root in the machine's mount namespace", "0 0 0 0", "8", 1, Some(LIMIT)),
            ("root in the agent's own mount namespace", "0 0 0 0", "8", 2, Some(LIMIT)),
            ("another user", "1000 1000 1000 1000", "8", 1, None),
            ("a set-user-ID program with the caller's words", "1000 0 0 0", "8", 1, None),
            ("a container", "0 0 0 0", "8 1", 3, None),
            ("a container that sees the machine's processes", "0 0 0 0", "8", 3, None),
            ("a PID namespace with the machine's mounts", "0 0 0 0", "8 1", 1, None),
        ] {
            let proc = Proc::new();
            proc.process("8", &RUN, users, pids, namespace);
            assert_eq!(proc.limit("shop"), expected, "{what}");
        }
    }

    #[test]
    fn an_unreadable_process_is_not_waited_for() {
        for missing in ["cmdline", "status", "mountinfo"] {
            let proc = Proc::new();
            proc.process("8", &RUN, "0 0 0 0", "8", 1);
            std::fs::remove_file(proc.0.path().join("8").join(missing)).unwrap();
            assert_eq!(proc.limit("shop"), None, "{missing}");
        }
        assert_eq!(limit(Path::new("/nonexistent"), 0, "shop", None), None);
    }

    /// A real process with the command line of a compose run; killed on drop.
    struct FakeRun(std::process::Child);

    impl FakeRun {
        fn start(wrapper: &[&str], project: &str) -> Self {
            let words = format!("exec -a compose sh -c 'read end' -p {project} up -d");
            let command = [wrapper, &["bash", "-c", &words]].concat();
            let mut shell = std::process::Command::new(command[0]);
            let child = shell.args(&command[1..]).stdin(std::process::Stdio::piped()).spawn().unwrap();
            let run = Self(child);
            let end = std::time::Instant::now() + Duration::from_mins(1);
            let cmdline = format!("/proc/{}/cmdline", run.0.id());
            while !std::fs::read(&cmdline).unwrap_or_default().starts_with(b"compose\0") {
                assert!(std::time::Instant::now() < end, "{cmdline} never shows compose");
                std::thread::sleep(Duration::from_millis(10));
            }
            run
        }
    }

    impl Drop for FakeRun {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn limit_here(project: &str) -> Option<Duration> {
        limit(Path::new("/proc"), rustix::process::geteuid().as_raw(), project, None)
    }

    #[test]
    fn a_real_run_with_our_privileges_is_waited_for() {
        let project = format!("ektest-others-{}", std::process::id());
        assert_eq!(limit_here(&project), None);
        let _run = FakeRun::start(&["env"], &project);
        assert_eq!(limit_here(&project), Some(LIMIT));
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
            let _run = FakeRun::start(wrapper, &project);
            assert_eq!(limit_here(&project), None, "{wrapper:?}");
        }
    }
}
