//! The advisory locks of the wardens that share a database. Their keys are pairs of numbers, and all share the first one.

use crate::keep::Duty;

/// First number of all locks.
const CLASS: i32 = 0x0065_766b;
/// Second numbers of the locks that transactions take.
pub(super) const SCHEMA: i32 = 1;
pub(super) const APPEND: i32 = 2;
/// How long the holder of a duty may be silent, in seconds (DECISIONS 8).
const SILENCE: u32 = 15;

/// Returns SQL that waits for a lock and holds it until the transaction ends.
pub(super) fn transaction(lock: i32) -> String {
    format!("SELECT pg_advisory_xact_lock({CLASS}, {lock})")
}

/// Second number of a duty's lock.
fn of(duty: Duty) -> i32 {
    match duty {
        Duty::Heartbeat => 3,
        Duty::Retention => 4,
    }
}

/// Returns SQL that takes a duty's lock if it is free, and holds it until the session ends.
pub(super) fn try_session(duty: Duty) -> String {
    format!("pg_try_advisory_lock({CLASS}, {})", of(duty))
}

/// Returns SQL that ends the session that holds a duty if it has been silent for too long. The kernel of a warden that hangs
/// keeps its connection alive, but a warden that works uses it every few seconds.
pub(super) fn end_silent_session(duty: Duty) -> String {
    format!(
        "SELECT pg_terminate_backend(activity.pid) FROM pg_locks JOIN pg_stat_activity activity USING (pid) \
         WHERE locktype = 'advisory' AND classid = {CLASS} AND objid = {} AND objsubid = 2 AND granted \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
         AND activity.usename = current_user AND activity.pid <> pg_backend_pid() AND activity.state = 'idle' \
         AND activity.state_change < clock_timestamp() - interval '{SILENCE} seconds'",
        of(duty)
    )
}
