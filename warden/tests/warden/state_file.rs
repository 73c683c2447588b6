//! The state file over restarts, crashes, damage and a disk that fails.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_common::clock::SystemClock;
use evenkeel_common::supervisor::TaskSet;
use evenkeel_warden::fleet::{Fleet, SavedState, entry};
use evenkeel_warden::state_file::{self, StateFile};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::support::{self, eventually, new_fleet};

struct Run {
    fleet: Arc<Fleet>,
    stop: CancellationToken,
    tasks: TaskSet,
}

impl Run {
    fn start(path: &Path) -> (Self, Option<String>) {
        let (state, warning) = state_file::load(path, &SystemClock);
        let fleet = new_fleet(&["a", "b"], state);
        let (stop, tasks) = (CancellationToken::new(), TaskSet::new());
        let file = StateFile::new(path.to_owned(), fleet.clone());
        tasks.spawn("state file", file.run(stop.clone()));
        (Self { fleet, stop, tasks }, warning)
    }

    fn store(&self, agent: usize, seq: u64) -> bool {
        self.fleet.store(&entry::parse(support::entry(seq).as_bytes(), ["a", "b"][agent]).unwrap())
    }

    async fn stop(self) {
        self.stop.cancel();
        assert!(self.tasks.finish(Duration::from_secs(5)).await);
    }

    async fn crash(self) {
        self.tasks.finish(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn a_restart_continues_where_the_run_before_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let (run, warning) = Run::start(&path);
    assert_eq!(warning, None);
    for seq in 1..=250 {
        assert!(run.store(0, seq));
    }
    run.fleet.record_heartbeat("b", Err("gone".to_owned()));
    let (lines, next_id, machines) = run.fleet.snapshot();
    run.stop().await;
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let (run, warning) = Run::start(&path);
    assert_eq!(warning, None);
    assert_eq!(run.fleet.snapshot(), (lines.clone(), next_id, machines));
    assert_eq!(lines.len(), 200);
    assert!(!run.store(0, 250), "a repeat is known over a restart");
    assert!(run.store(0, 251));
    run.fleet.record_heartbeat("b", Err("gone".to_owned()));
    assert_eq!(run.fleet.snapshot().1, next_id + 1, "still offline is no change");
    run.stop().await;
}

#[tokio::test]
async fn a_crash_loses_no_more_than_the_last_second_and_no_id_is_reused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let (run, _) = Run::start(&path);
    for seq in 1..=10 {
        run.store(0, seq);
    }
    let kept = || fs::read_to_string(&path).is_ok_and(|text| text.contains("entry 10"));
    eventually("the last entry in the file", kept).await;
    let next_id = run.fleet.snapshot().1;
    run.crash().await;
    let (run, warning) = Run::start(&path);
    assert_eq!(warning, None);
    assert_eq!(run.fleet.machine_records()[0].last_seq, Some(10));
    assert!(!run.store(0, 10));
    let (lines, next, _) = run.fleet.snapshot();
    assert_eq!(lines.len(), 10);
    assert!(next > next_id + 10, "{next} {next_id}");
    run.crash().await;
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_retried() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none/state.json");
    let (run, warning) = Run::start(&path);
    assert_eq!(warning, None);
    assert!(run.store(0, 1));
    sleep(Duration::from_millis(100)).await;
    // The disk is back: what waited is written.
    fs::create_dir(folder.path().join("none")).unwrap();
    eventually("the file", || path.exists()).await;
    run.stop().await;
}

/// Cut off or changed anywhere, a state file costs the lines that it hits and no more; it never brings the warden down.
#[tokio::test]
async fn a_damaged_line_costs_itself_and_the_rest_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let (run, _) = Run::start(&path);
    for seq in [1, 2, 5, 9] {
        run.store(0, seq);
    }
    run.fleet.record_heartbeat("b", Err("gone".to_owned()));
    run.stop().await;
    let good = fs::read(&path).unwrap();
    let lines = good.split(|byte| *byte == b'\n').count() - 1;
    assert_eq!(lines, 1 + 2 + 5 + 1, "version, machines, entries, end");
    let mut noted = 0;
    for at in 0..good.len() {
        // A crash in the middle of a line: what was whole before it is taken.
        fs::write(&path, &good[..at]).unwrap();
        let whole = good[..at].split(|byte| *byte == b'\n').count() - 1;
        let (state, warning) = state_file::load(&path, &SystemClock);
        assert_eq!(warning.is_none(), whole > 0, "{at}: {warning:?}");
        assert_eq!(state.entries.len(), whole.saturating_sub(3).min(5));
        assert!(!state.is_complete);
        for byte in [b'0', b'"', b'}', b'-', 0xff] {
            let mut text = good.clone();
            text[at] = byte;
            fs::write(&path, &text).unwrap();
            let (state, warning) = state_file::load(&path, &SystemClock);
            assert!(state.entries.len() >= 3, "a lost line break costs the two lines beside it");
            let entries = state.entries.len();
            let fleet = new_fleet(&["a", "b"], state);
            fleet.store(&entry::parse(support::entry(10).as_bytes(), "a").unwrap());
            // Without its own end the last line is one that a crash cut off.
            if text != good && at + 1 < good.len() {
                let warning = warning.expect("a changed byte is found, whichever it is");
                assert!(
                    warning.starts_with("STATE DAMAGED: ") && warning.contains("was moved to"),
                    "{warning}"
                );
                assert!(!path.exists());
                noted += usize::from(entries == 5);
            }
        }
    }
    assert!(noted > 0);
    for (content, why) in
        [(&b"\x00\x01\n"[..], "no line"), (b"{\"version\":3}", "missing field"), (b"", "no line")]
    {
        fs::write(&path, content).unwrap();
        let (_, warning) = state_file::load(&path, &SystemClock);
        let warning = warning.unwrap();
        assert!(warning.starts_with("STATE LOST: ") && warning.contains(why), "{warning}");
    }
    fs::create_dir(folder.path().join("folder")).unwrap();
    let (_, warning) = state_file::load(&folder.path().join("folder"), &SystemClock);
    assert!(warning.unwrap().contains("it is not a regular file"));
}

#[tokio::test]
async fn the_first_file_format_can_still_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let old = r#"{"version":1,"is_complete":true,"next_id":8,"entries":[{"timestamp":"2026-01-02T03:04:05Z","machine":"a","service":"web","event":"updated","message":"old","level":"info","seq":7,"agent":"a"}],"machines":[{"id":"a","online":true,"since":null,"reason":null,"last_entry":null,"seen":[[7,7]],"youngest":"2026-01-02T03:04:05Z","counts":{"info":1,"warning":0,"error":0,"critical":0,"other":0},"repeats":0}]}"#;
    fs::write(&path, old).unwrap();
    let (run, warning) = Run::start(&path);
    assert_eq!(warning, None);
    assert_eq!((run.fleet.machine_records()[0].last_seq, run.fleet.snapshot().1), (Some(7), 8));
    run.store(0, 8);
    run.stop().await;
    let (run, warning) = Run::start(&path);
    assert_eq!((warning, run.fleet.machine_records()[0].last_seq), (None, Some(8)));
    run.stop().await;
}

/// Ten thousand agents, one of which sends: what is written is what it changed.
#[tokio::test]
async fn only_what_has_changed_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let ids: Vec<String> = (0..10_000).map(|n| format!("agent-{n}")).collect();
    let fleet = Arc::new(Fleet::new(ids.clone(), SavedState::default(), Arc::new(SystemClock)));
    let file = StateFile::new(folder.path().join("state.json"), fleet.clone());
    let (stop, tasks, written) = (CancellationToken::new(), TaskSet::new(), file.written());
    let take = |seq: u64| {
        let body = support::entry(seq).replace("entry ", &"x".repeat(4000));
        assert!(fleet.store(&entry::parse(body.as_bytes(), "agent-7").unwrap()));
    };
    tasks.spawn("state file", file.run(stop.clone()));
    for seq in 1..=200 {
        take(seq * 2);
    }
    eventually("the first write", || *written.borrow() > 1_000_000).await;
    for seq in 300..305 {
        let before = *written.borrow();
        take(seq * 2);
        eventually("a write", || *written.borrow() > before).await;
        let more = *written.borrow() - before;
        assert!(more < 16 * 1024, "{more} bytes for one entry");
    }
    stop.cancel();
    assert!(tasks.finish(Duration::from_secs(5)).await);
}
