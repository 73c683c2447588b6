//! Tests of the runs' turns, and of runs that something else has ended.

use futures_util::FutureExt as _;

use super::*;

#[tokio::test]
async fn only_a_few_change_containers_at_a_time_and_what_reads_does_not_wait_for_them() {
    let stage = Stage::new("echo web");
    let (compose, project) = (scripted(), stage.project());
    let turn = |priority| compose.turn(priority).now_or_never().map(|turn| turn.expect("it is not stopping"));
    let mut turns: Vec<Turn> = (0..CHANGES_AT_ONCE).filter_map(|_| turn(Priority::Routine)).collect();
    assert_eq!(turns.len(), CHANGES_AT_ONCE);
    assert!(turn(Priority::Routine).is_none());
    compose.active_services(&project).await.unwrap();
    turns.pop();
    assert!(turn(Priority::Routine).is_some());
}

#[tokio::test]
async fn what_is_urgent_does_not_wait_for_updates() {
    let compose = scripted();
    let turn = |priority| compose.turn(priority).now_or_never().map(|turn| turn.expect("it is not stopping"));
    let updates: Vec<Turn> = (0..CHANGES_AT_ONCE).filter_map(|_| turn(Priority::Routine)).collect();
    let mut urgent: Vec<Turn> = (0..URGENT_AT_ONCE).filter_map(|_| turn(Priority::Urgent)).collect();
    assert_eq!((updates.len(), urgent.len()), (CHANGES_AT_ONCE, URGENT_AT_ONCE));
    assert!(turn(Priority::Urgent).is_none());
    urgent.pop();
    assert!(turn(Priority::Routine).is_none(), "it is not for updates");
    assert!(turn(Priority::Urgent).is_some());
    drop(updates);
    let urgent: Vec<Turn> =
        (0..CHANGES_AT_ONCE + URGENT_AT_ONCE - 1).filter_map(|_| turn(Priority::Urgent)).collect();
    assert_eq!(urgent.len(), CHANGES_AT_ONCE + URGENT_AT_ONCE - 1, "whichever is free");
}

#[tokio::test]
async fn who_waits_for_a_turn_gets_none_once_the_agent_is_stopping() {
    let compose = scripted();
    let updates = (0..CHANGES_AT_ONCE).map(|_| compose.turn(Priority::Routine));
    let updates = futures_util::future::join_all(updates).await;
    assert!(updates.iter().all(Option::is_some));
    let stopped = async { compose.close() };
    let (waits, ()) = tokio::join!(compose.turn(Priority::Routine), stopped);
    assert!(waits.is_none());
    assert!(compose.turn(Priority::Urgent).await.is_none());
}

#[tokio::test]
async fn a_run_that_is_given_up_gives_its_turn_back() {
    let stage = Stage::new("echo x > begun; sleep 1000");
    let (compose, project) = (scripted(), stage.project());
    let up = async {
        let _turn = compose.turn(Priority::Routine).await;
        compose.up(&project, &UpMode::Changed, PullPolicy::Never).await
    };
    tokio::select! {
        _ = up => panic!("it ended by itself"),
        () = async {
            stage.written("begun").await;
            assert_eq!(compose.changes.available_permits(), CHANGES_AT_ONCE - 1);
        } => {}
    }
    assert_eq!(compose.changes.available_permits(), CHANGES_AT_ONCE);
}

#[tokio::test]
async fn a_failed_run_that_asks_for_the_version_does_not_wait_for_its_own_turn() {
    let words = "client version 1.43 is too old. Minimum supported API version is 1.44, please upgrade";
    let stage = Stage::new(&format!("echo '{words}' >&2; exit 1"));
    let (compose, project) = (scripted(), stage.project());
    let all = (0..READS_AT_ONCE).map(|_| compose.validate(&project));
    let all = timeout(Duration::from_mins(1), futures_util::future::join_all(all));
    assert!(all.await.expect("none waits for another").iter().all(Result::is_err));
}

#[tokio::test]
async fn an_env_file_is_read_before_the_turn_to_read_so_that_one_that_hangs_holds_up_no_other_project() {
    let stage = Stage::new("echo web");
    let compose = scripted();
    let project = Project { env_file: Some(stage.path("missing.env")), ..stage.project() };
    let all: Vec<_> = (0..READS_AT_ONCE).filter_map(|_| compose.reads.try_acquire().ok()).collect();
    assert_eq!(all.len(), READS_AT_ONCE);
    let read = timeout(Duration::from_mins(1), compose.validate(&project));
    let error = read.await.expect("it waits for no turn").unwrap_err();
    assert!(error.cause.contains("missing.env"), "{error:?}");
}

#[tokio::test]
async fn a_run_that_was_ended_from_outside_is_told_from_one_that_failed() {
    let failed = async |script: &str, limit: Duration| {
        let stage = Stage::new(script);
        let compose = scripted().with_limit(limit);
        compose.up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap_err()
    };
    for (script, cause) in [
        ("kill -9 $$", "`up` was ended from outside (signal: 9 (SIGKILL))"),
        // The plugin was killed, and not the program that runs it.
        ("echo ' web  Recreate' >&2; exit 255", "`up` was ended from outside (exit status: 255)"),
        (
            "echo 'runtime: failed to create new OS thread (have 9 already; errno=11)' >&2; echo goroutine >&2; exit 2",
            "runtime: failed to create new OS thread (have 9 already; errno=11)",
        ),
        (
            "echo 'fork/exec /x: resource temporarily unavailable' >&2; exit 1",
            "fork/exec /x: resource temporarily unavailable",
        ),
        ("echo 'fork/exec /x: cannot allocate memory' >&2; exit 1", "fork/exec /x: cannot allocate memory"),
    ] {
        let error = failed(script, LIMIT).await;
        assert!(error.was_killed, "{error:?}");
        assert_eq!(error.cause, cause);
    }
    for (script, limit) in [
        ("exit 1", LIMIT),
        // The engine's words about what it was to start.
        (
            "echo 'Error response from daemon: runc: runtime/cgo: pthread_create failed: EAGAIN' >&2; exit 1",
            LIMIT,
        ),
        // It will not be otherwise the next time.
        ("echo 'fork/exec /x: permission denied' >&2; exit 1", LIMIT),
        // Killed at its own time limit.
        ("sleep 1000", Duration::from_secs(1)),
    ] {
        let error = failed(script, limit).await;
        assert!(!error.was_killed, "{error:?}");
    }
}

#[test]
fn a_program_for_which_the_machine_has_no_process_left_says_nothing_about_the_image() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, expected) in [
        (std::io::ErrorKind::WouldBlock, true),
        (std::io::ErrorKind::OutOfMemory, true),
        (std::io::ErrorKind::NotFound, false),
        (std::io::ErrorKind::PermissionDenied, false),
    ] {
        let error = scripted().not_started(&kind.into(), folder.path());
        assert_eq!(error.was_killed, expected, "{error:?}");
    }
}
