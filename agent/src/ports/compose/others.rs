//! Compose runs of others on the same project: one that outlived a killed agent, or a person's. They are waited
//! for, since two runs at once break each other (DOMAIN finding 3).

use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(200);
/// A run that takes longer than this is not waited for any more.
const PATIENCE: Duration = Duration::from_mins(1);

/// Returns when no other compose process works on the project, or after [`PATIENCE`].
pub(super) async fn wait(project: &str) {
    let end = Instant::now() + PATIENCE;
    let mut said = false;
    while Instant::now() < end && any(Path::new("/proc"), project) {
        if !said {
            tracing::info!(project, "another compose run works on the project; waiting for it");
            said = true;
        }
        sleep(EVERY).await;
    }
}

/// Whether a process in `proc` was started as `… compose … -p <project> …`.
fn any(proc: &Path, project: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(proc) else { return false };
    entries.flatten().any(|entry| {
        let is_process = entry.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit());
        is_process && std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| is_run(&line, project))
    })
}

/// Whether a command line (words that end with NUL) is such a run.
fn is_run(line: &[u8], project: &str) -> bool {
    let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
    let is_compose = words.iter().take(2).any(|word| word.ends_with(b"compose"));
    let is_task = words.iter().any(|word| matches!(*word, b"up" | b"down"));
    let names =
        |pair: &[&[u8]]| matches!(pair[0], b"-p" | b"--project-name") && pair[1] == project.as_bytes();
    is_compose && is_task && words.windows(2).any(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_known_by_its_words() {
        let line = |words: &[&str]| {
            words.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect::<Vec<_>>()
        };
        let ours = line(&["docker", "compose", "-p", "shop", "-f", "/srv/a.yml", "up", "-d"]);
        assert!(is_run(&ours, "shop"));
        assert!(!is_run(&ours, "sho"));
        let plugin = ["/root/.docker/cli-plugins/docker-compose", "compose", "-p", "shop", "down"];
        assert!(is_run(&line(&plugin), "shop"));
        assert!(
            !is_run(&line(&["docker", "compose", "-p", "shop", "logs", "-f"]), "shop"),
            "it changes nothing"
        );
        assert!(!is_run(&line(&["vim", "compose.yml", "-p", "shop", "up"]), "shop"));
        assert!(!is_run(b"", "shop"));
    }

    #[test]
    fn processes_that_cannot_be_read_are_no_runs() {
        assert!(!any(Path::new("/nonexistent"), "shop"));
        assert!(!any(Path::new("/proc"), "no such project"));
    }
}
