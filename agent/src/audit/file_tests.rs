//! Tests of the audit file's content after rotation, crashes, full disks and shutdown.

use std::time::Instant;

use evenkeel_common::clock::SystemClock;
use evenkeel_common::queue::Outbox;
use evenkeel_common::store::{MemoryStore, Store};
use evenkeel_common::wire::{Kind, Level};
use tempfile::{TempDir, tempdir};

use super::super::{Audit, read_latest};
use super::*;

const SMALL: Limits = Limits { lines: 3, bytes: 1_000_000, archives: 2 };

fn entry(message: &str) -> AuditEntry {
    AuditEntry::new(SystemClock.now(), "web", Kind::UPDATED, Level::Info, message)
}

fn entries(messages: impl IntoIterator<Item = impl AsRef<str>>) -> Vec<Arc<AuditEntry>> {
    messages.into_iter().map(|message| Arc::new(entry(message.as_ref()))).collect()
}

fn writer(path: &Path, limits: Limits) -> Writer {
    Writer { path: path.to_owned(), limits, counted: None, rotation_failed: false }
}

fn write(writer: &mut Writer, messages: &[&str]) {
    let (count, outcome) = writer.append(&entries(messages), SystemClock.now());
    outcome.unwrap();
    assert_eq!(count, messages.len());
}

/// The messages of a file in order; a line that is not an entry is returned verbatim.
fn content(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).map_or(line.to_owned(), |entry: AuditEntry| entry.message))
        .collect()
}

async fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed().as_secs() < 20, "still waiting for: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A running sink with its audit and the token that stops it.
struct Running {
    audit: Audit,
    stop: CancellationToken,
    tasks: evenkeel_common::supervisor::TaskSet,
}

impl Running {
    async fn start(path: &Path, limits: Limits) -> Self {
        Self::start_on(Arc::new(MemoryStore::new()), path, limits).await
    }

    async fn start_on(store: Arc<dyn Store>, path: &Path, limits: Limits) -> Self {
        let clock = Arc::new(SystemClock);
        let names = [FileSink::NAME.to_owned()];
        let outbox = Outbox::open(store, clock.clone(), "evenkeel", &names).await.unwrap().outbox;
        let destination = outbox.destination(FileSink::NAME).unwrap();
        let sink = FileSink::with_limits(path.to_owned(), destination, clock, limits);
        let stop = CancellationToken::new();
        let tasks = evenkeel_common::supervisor::TaskSet::new();
        tasks.spawn("audit file", sink.run(stop.clone()));
        tasks.spawn("outbox", outbox.clone().run(stop.clone()));
        Self { audit: Audit::new(outbox), stop, tasks }
    }

    async fn finish(self) {
        self.stop.cancel();
        assert!(self.tasks.finish(Duration::from_secs(20)).await, "the sink did not stop");
    }
}

fn folder() -> (TempDir, PathBuf) {
    let dir = tempdir().unwrap();
    let path = dir.path().join("log/audit.jsonl");
    (dir, path)
}

#[tokio::test]
async fn entries_are_in_the_file_within_moments_and_in_order() {
    let (_dir, path) = folder();
    let running = Running::start(&path, LIMITS).await;
    for n in 0..2000 {
        running.audit.record(entry(&n.to_string()));
    }
    wait_for("2000 lines", || path.exists() && content(&path).len() == 2000).await;
    assert_eq!(content(&path), (0..2000).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    running.finish().await;
}

#[tokio::test]
async fn shutdown_writes_what_is_queued() {
    let (_dir, path) = folder();
    let running = Running::start(&path, LIMITS).await;
    for n in 0..1700 {
        running.audit.record(entry(&n.to_string()));
    }
    running.finish().await;
    assert_eq!(content(&path).len(), 1700);
}

#[tokio::test]
async fn nothing_recorded_means_nothing_written() {
    let (dir, path) = folder();
    Running::start(&path, LIMITS).await.finish().await;
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_full_file_is_rotated_and_only_the_newest_archives_are_kept() {
    let (_dir, path) = folder();
    let mut writer = writer(&path, SMALL);
    write(&mut writer, &["1", "2"]);
    write(&mut writer, &["3", "4", "5", "6", "7", "8", "9", "10", "11"]);
    write(&mut writer, &["12", "13"]);
    assert_eq!(content(&path), ["13"]);
    let archives = archives(&path).unwrap();
    assert_eq!(archives.len(), 2);
    assert_eq!(content(&archives[0]), ["10", "11", "12"]);
    assert_eq!(content(&archives[1]), ["7", "8", "9"]);
    for file in archives {
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn size_rotates_too_and_an_entry_larger_than_the_limit_has_its_own_file() {
    let (_dir, path) = folder();
    let mut writer = writer(&path, Limits { lines: 100, bytes: 400, archives: 5 });
    let large = "x".repeat(2000);
    write(&mut writer, &["a", "b", &large, "c"]);
    assert_eq!(content(&path), ["c"]);
    let archives = archives(&path).unwrap();
    assert_eq!(content(&archives[0]), [large]);
    assert_eq!(content(&archives[1]), ["a", "b"]);
}

#[test]
fn a_new_writer_counts_what_an_earlier_one_wrote() {
    let (_dir, path) = folder();
    write(&mut writer(&path, SMALL), &["1", "2"]);
    write(&mut writer(&path, SMALL), &["3", "4"]);
    assert_eq!(content(&path), ["4"]);
}

#[test]
fn files_that_only_look_like_archives_are_left_alone() {
    let (_dir, path) = folder();
    let mut writer = writer(&path, SMALL);
    write(&mut writer, &["1"]);
    let others = ["audit.2020.jsonl", "audit.old.jsonl", "other.20200101T000000.000Z.jsonl", "audit.jsonl.1"];
    for name in others {
        fs::write(path.with_file_name(name), "").unwrap();
    }
    for _ in 0..5 {
        write(&mut writer, &["x", "y", "z"]);
    }
    for name in others {
        assert!(path.with_file_name(name).exists(), "{name}");
    }
    assert_eq!(base(Path::new("/var/log/audit.log")), "audit.log");
}

#[test]
fn a_line_cut_by_a_crash_ends_before_the_next_entry() {
    let (_dir, path) = folder();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "{\"timestamp\":\"20").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    write(&mut writer(&path, LIMITS), &["a", "b"]);
    assert_eq!(content(&path), ["{\"timestamp\":\"20", "a", "b"]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_file_that_was_moved_away_is_recreated() {
    let (_dir, path) = folder();
    let mut writer = writer(&path, SMALL);
    write(&mut writer, &["1", "2", "3"]);
    fs::rename(&path, path.with_file_name("elsewhere")).unwrap();
    write(&mut writer, &["4"]);
    assert_eq!(content(&path), ["4"]);
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
    write(&mut writer, &["5"]);
    assert_eq!(content(&path), ["5"]);
}

#[tokio::test]
async fn the_file_catches_up_when_its_folder_is_usable_again_even_after_a_restart() {
    let (dir, path) = folder();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    // There is a file in place of the folder.
    fs::write(dir.path().join("log"), "").unwrap();
    let running = Running::start_on(store.clone(), &path, LIMITS).await;
    for n in 0..6 {
        running.audit.record(entry(&n.to_string()));
    }
    wait_for("the streams", || running.audit.journal().recent(500).len() == 6).await;
    running.finish().await;
    let running = Running::start_on(store.clone(), &path, LIMITS).await;
    running.audit.record(entry("6"));
    wait_for("the streams", || running.audit.journal().recent(500).len() == 7).await;
    fs::remove_file(dir.path().join("log")).unwrap();
    wait_for("the file", || path.exists() && content(&path).len() == 7).await;
    running.finish().await;
    assert_eq!(content(&path), ["0", "1", "2", "3", "4", "5", "6"]);
}

#[tokio::test]
async fn entries_written_by_an_earlier_process_are_not_written_again() {
    let (_dir, path) = folder();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let names = [FileSink::NAME.to_owned()];
    {
        let opened = Outbox::open(store.clone(), Arc::new(SystemClock), "evenkeel", &names).await.unwrap();
        let stop = CancellationToken::new();
        stop.cancel();
        let all: Vec<_> = ["1", "2", "3", "4"].map(|message| Arc::new(entry(message))).into();
        for entry in &all {
            opened.outbox.put(entry.clone());
        }
        opened.outbox.run(stop).await;
        // Killed with two entries in the file that were not yet removed from the queue.
        writer(&path, LIMITS).append(&all[..2], SystemClock.now()).1.unwrap();
    }
    let running = Running::start_on(store, &path, LIMITS).await;
    wait_for("four lines", || content(&path).len() == 4).await;
    running.finish().await;
    assert_eq!(content(&path), ["1", "2", "3", "4"]);
}

#[tokio::test]
async fn an_unusable_path_does_not_block_shutdown() {
    let dir = tempdir().unwrap();
    let running = Running::start(dir.path(), LIMITS).await;
    running.audit.record(entry("a"));
    running.finish().await;
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let running = Running::start(&pipe, LIMITS).await;
    running.audit.record(entry("a"));
    running.finish().await;
}

#[tokio::test]
async fn reading_during_a_rotation_returns_every_entry_once() {
    let (_dir, path) = folder();
    let limits = Limits { lines: 50, bytes: 1_000_000, archives: 100 };
    let running = Running::start(&path, limits).await;
    for n in 0..3000 {
        running.audit.record(entry(&n.to_string()));
        if n % 100 == 0 {
            let found = read_latest(path.clone(), 500).await.unwrap();
            let numbers: Vec<i32> = found.iter().map(|entry| entry.message.parse().unwrap()).collect();
            assert!(numbers.windows(2).all(|pair| pair[0] == pair[1] + 1), "{numbers:?}");
        }
    }
    running.finish().await;
    assert_eq!(read_latest(path, 5000).await.unwrap().len(), 3000);
}

#[tokio::test]
#[ignore = "mounts a small file system, which needs root"]
async fn the_file_catches_up_after_a_full_disk_without_damaged_or_duplicate_lines() {
    let dir = tempdir().unwrap();
    let mount = |args: &[&str]| {
        std::process::Command::new(args[0]).args(&args[1..]).arg(dir.path()).status().unwrap()
    };
    assert!(mount(&["mount", "-t", "tmpfs", "-o", "size=256k", "none"]).success(), "run this test as root");
    let path = dir.path().join("audit.jsonl");
    let running = Running::start(&path, LIMITS).await;
    let ballast = path.with_file_name("ballast");
    fs::write(&ballast, vec![0; 200 * 1024]).unwrap();
    for n in 0..1000 {
        running.audit.record(entry(&n.to_string()));
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    assert!(content(&path).len() < 1000, "the disk is full now");
    fs::remove_file(ballast).unwrap();
    wait_for("1000 lines", || content(&path).len() == 1000).await;
    assert_eq!(content(&path), (0..1000).map(|n| n.to_string()).collect::<Vec<_>>());
    running.finish().await;
    mount(&["umount", "-l"]);
}

#[tokio::test]
async fn a_clock_that_was_in_the_future_removes_no_newer_archive() {
    let (_dir, path) = folder();
    let mut writer = writer(&path, SMALL);
    let future: Timestamp = "2099-01-02T03:04:05.678Z".parse().unwrap();
    let (_, outcome) = writer.append(&entries(["1", "2", "3", "4"]), future);
    outcome.unwrap();
    write(&mut writer, &["5", "6", "7", "8", "9", "10"]);
    assert_eq!(content(&path), ["10"]);
    let found = archives(&path).unwrap();
    assert_eq!(content(&found[0]), ["7", "8", "9"], "{found:?}");
    assert_eq!(content(&found[1]), ["4", "5", "6"], "{found:?}");
    let latest = read_latest(path, 4).await.unwrap();
    let latest: Vec<_> = latest.into_iter().map(|entry| entry.message).collect();
    assert_eq!(latest, ["10", "9", "8", "7"]);
}

#[tokio::test]
async fn a_symbolic_link_in_place_of_the_file_is_neither_written_nor_read() {
    let dir = tempdir().unwrap();
    let (path, target) = (dir.path().join("a.jsonl"), dir.path().join("target"));
    fs::write(&target, serde_json::to_string(&entry("another file")).unwrap()).unwrap();
    let before = fs::read(&target).unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    let (count, outcome) = writer(&path, SMALL).append(&entries(["x"]), SystemClock.now());
    assert_eq!(
        (count, outcome.unwrap_err().to_string()),
        (0, "it is a symbolic link, which is not followed".into())
    );
    assert_eq!(fs::read(&target).unwrap(), before);
    assert!(read_latest(path, 5).await.unwrap_err().to_string().contains("symbolic link"));
}
