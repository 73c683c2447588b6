//! The state on a full or read-only disk, and one that can't be read.

use std::os::unix::fs::chown;

use super::*;

/// A small file system that can be filled. Only root can mount one.
struct SmallDisk {
    at: PathBuf,
    /// Removed after unmounting.
    _folder: TempDir,
}

impl SmallDisk {
    /// Mounts a file system at `at`, which is in `folder`.
    fn mount(folder: TempDir, at: PathBuf) -> Self {
        fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        let done = mount.args(["-t", "tmpfs", "-o", "size=6m", "evenkeel.test"]).arg(&at).status().unwrap();
        assert!(done.success(), "mount: {done}");
        Self { at, _folder: folder }
    }

    fn filler(&self) -> PathBuf {
        self.at.join("filler")
    }

    /// Fills the disk completely.
    fn fill(&self) {
        let mut file = fs::File::create(self.filler()).unwrap();
        for size in [4096, 512, 1] {
            while file.write_all(&vec![b'x'; size]).is_ok() {}
        }
    }

    fn free(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

#[test]
fn a_full_state_disk_is_shown_and_reported_once_until_there_is_free_space() {
    if !rustix::process::geteuid().is_root() {
        println!("NOT RUN: only root can mount a file system");
        return;
    }
    let outer = tempfile::tempdir().unwrap();
    let folder = TempDir::new_in(outer.path()).unwrap();
    let disk = SmallDisk::mount(outer, folder.path().join("state"));
    let mut daemon = Daemon::start_in(folder, &json!([service("a")]), &[]);
    let reported = |d: &Daemon, event: &str, words: &str| {
        let entries = d.get("/audit?limit=500").unwrap_or_default();
        let is_it = |entry: &&Value| {
            entry["event"] == event && entry["message"].as_str().is_some_and(|text| text.contains(words))
        };
        entries.as_array().map_or(0, |all| all.iter().filter(is_it).count())
    };
    assert_eq!(daemon.get("/health").unwrap()["state"], Value::Null);
    disk.fill();
    let reloads = std::cell::Cell::new(0);
    daemon.wait("the full disk shows", |d| {
        // Every reload records an entry, which must be written to disk.
        d.signal(Signal::HUP);
        reloads.set(reloads.get() + 1);
        sleep(Duration::from_millis(200));
        d.get("/health").is_some_and(|health| health["state"].is_string())
    });
    let record = daemon.get("/status/a").unwrap();
    assert_eq!(record["status"], "errored", "after {} reloads: {record}", reloads.get());
    let text = record["errored"].as_str().unwrap();
    assert!(text.contains("No space left") && text.contains("nothing is deployed or healed"), "{text}");
    daemon.wait("it is reported", |d| reported(d, "error", "the state can't be written") == 1);
    disk.free();
    daemon.wait("it is over", |d| d.get("/health").is_some_and(|health| health["state"].is_null()));
    daemon.wait("the recovery is reported", |d| {
        reported(d, "recovered", "the state can be written again") == 1
    });
    assert_ne!(daemon.get("/status/a").unwrap()["status"], "errored");
    assert_eq!(reported(&daemon, "error", "the state can't be written"), 1, "once");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait_for_end().code(), Some(0));
}

#[test]
fn a_state_on_a_read_only_file_system_stays_in_force() {
    if !rustix::process::geteuid().is_root() {
        println!("NOT RUN: only root can mount a file system");
        return;
    }
    let outer = tempfile::tempdir().unwrap();
    let folder = TempDir::new_in(outer.path()).unwrap();
    let state = folder.path().join("state");
    let disk = SmallDisk::mount(outer, state.clone());
    let mut daemon = Daemon::start_in(folder, &json!([service("a")]), &[]);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait_for_end().code(), Some(0));
    let done = Command::new("mount").args(["-o", "remount,ro"]).arg(&disk.at).status().unwrap();
    assert!(done.success(), "mount: {done}");
    let before = fs::read(state.join("state.redb")).unwrap();

    let mut again = Daemon::start_in(daemon.into_folder(), &json!([service("a")]), &[]);
    let warnings = again.get("/health").unwrap()["config_warnings"].to_string();
    assert!(warnings.contains("what was stored before is in force"), "{warnings}");
    again.signal(Signal::TERM);
    assert_eq!(again.wait_for_end().code(), Some(0));
    assert_eq!(fs::read(state.join("state.redb")).unwrap(), before);
}

#[test]
fn an_agent_that_may_not_read_its_state_waits_until_it_may() {
    if !rustix::process::geteuid().is_root() {
        println!("NOT RUN: only root can give a file to another user");
        return;
    }
    let mut daemon = Daemon::start(&json!([service("a")]), &[]);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait_for_end().code(), Some(0));
    let file = daemon.path("state/state.redb");
    chown(&file, Some(1), Some(1)).unwrap();

    // Root without the capabilities that let it read the files of others.
    let mut command = Command::new("/usr/bin/setpriv");
    command.arg("--bounding-set=-dac_override,-dac_read_search").arg(AGENT);
    let mut waiting = Daemon::begin_as(command, daemon.into_folder(), &json!([service("a")]), &[]);
    waiting.wait("the fault shows", |d| d.get("/health").is_some_and(|health| health["state"].is_string()));
    let health = waiting.get("/health").unwrap();
    assert_eq!(health["status"], "starting");
    let text = health["state"].as_str().unwrap();
    assert!(text.contains("cannot read state") && text.contains("Permission denied"), "{text}");
    chown(&file, Some(0), Some(0)).unwrap();
    waiting.wait_loaded();
    assert_eq!(waiting.get("/health").unwrap()["state"], Value::Null);
}
