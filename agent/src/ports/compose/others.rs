//! Compose runs of others on the same project: one that outlived a killed agent, or a person's. They are waited
//! for, since two runs at once break each other (DOMAIN finding 3).

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

/// [`patience`] on a thread that may wait: a process can hold up who reads about it.
async fn patience_now(project: &str) -> Option<Duration> {
    let project = project.to_owned();
    let looked = tokio::task::spawn_blocking(move || patience(Path::new("/proc"), &project));
    looked.await.unwrap_or_default()
}

/// How long the processes in `proc` that were started as `… compose … -p <project> …` are worth to wait for; `None`
/// where there are none.
fn patience(proc: &Path, project: &str) -> Option<Duration> {
    let entries = std::fs::read_dir(proc).ok()?;
    let runs = entries.flatten().filter_map(|entry| {
        let is_process = entry.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit());
        is_process.then(|| std::fs::read(entry.path().join("cmdline")).ok()).flatten()
    });
    runs.filter_map(|line| patience_with(&line, project)).max()
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

    #[test]
    fn the_run_that_takes_longest_counts() {
        let proc = tempfile::tempdir().unwrap();
        let process = |id: &str, words: &[&str]| {
            std::fs::create_dir(proc.path().join(id)).unwrap();
            std::fs::write(proc.path().join(id).join("cmdline"), line(words)).unwrap();
        };
        process("self", &["docker", "compose", "-p", "shop", "down"]);
        process("7", &["docker", "compose", "-p", "shop", "up"]);
        assert_eq!(patience(proc.path(), "shop"), Some(PATIENCE_WITH_A_TERMINAL));
        process("8", &["docker", "compose", "-p", "shop", "up", "-d"]);
        assert_eq!(patience(proc.path(), "shop"), Some(PATIENCE));
        assert_eq!(patience(proc.path(), "other"), None);
    }

    #[test]
    fn processes_that_cannot_be_read_are_no_runs() {
        assert_eq!(patience(Path::new("/nonexistent"), "shop"), None);
        assert_eq!(patience(Path::new("/proc"), "no such project"), None);
    }
}
