//! The advisory locks of the wardens that share a database. Their keys are pairs of numbers, and all share the first one.

use crate::keep::Duty;

/// First number of all locks.
const CLASS: i32 = 0x0065_766b;
/// Second numbers of the locks that transactions take.
pub(super) const SCHEMA: i32 = 1;
pub(super) const APPEND: i32 = 2;

/// Returns SQL that waits for a lock and holds it until the transaction ends.
pub(super) fn transaction(lock: i32) -> String {
    format!("SELECT pg_advisory_xact_lock({CLASS}, {lock})")
}

/// Returns SQL that takes a duty's lock if it is free, and holds it until the session ends.
pub(super) fn try_session(duty: Duty) -> String {
    let lock = match duty {
        Duty::Heartbeat => 3,
        Duty::Retention => 4,
    };
    format!("pg_try_advisory_lock({CLASS}, {lock})")
}
