//! Times and durations as people read them.

use jiff::{SignedDuration, Timestamp};

pub(super) fn ago(at: Timestamp, now: Timestamp) -> String {
    format!("{} ago", span(now.duration_since(at)))
}

pub(super) fn until(at: Timestamp, now: Timestamp) -> String {
    if at <= now { "now".to_owned() } else { format!("in {}", span(at.duration_since(now))) }
}

/// Formats a duration in its two largest units.
pub(super) fn span(time: SignedDuration) -> String {
    let seconds = time.as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}
