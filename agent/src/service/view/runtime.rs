//! The status text of a container in the format of `docker ps`. It is computed for each request, because "Up 3 seconds" is
//! wrong a second later.

use jiff::{SignedDuration, Timestamp};

use crate::model::{Container, HealthState, State};

/// The text at this time, for example `Up 3 minutes (healthy)` or `Exited (1) 2 hours ago`.
pub(super) fn text(container: &Container, now: Timestamp) -> String {
    let since = |at: Option<Timestamp>| at.map(|at| human(now.duration_since(at)));
    let ago = |at: Option<Timestamp>| since(at).map(|text| format!(" {text} ago")).unwrap_or_default();
    let up = || since(container.started_at).map_or_else(|| "Up".to_owned(), |text| format!("Up {text}"));
    let ended = || format!("({}){}", container.exit_code, ago(container.finished_at));
    match container.state {
        State::Running => match container.health {
            Some(HealthState::Healthy) => format!("{} (healthy)", up()),
            Some(HealthState::Unhealthy) => format!("{} (unhealthy)", up()),
            Some(HealthState::Starting) => format!("{} (health: starting)", up()),
            Some(HealthState::Unmeasured) => format!("{} (health: not probed since it was paused)", up()),
            None => up(),
        },
        State::Paused => format!("{} (Paused)", up()),
        State::Restarting => format!("Restarting {}", ended()),
        State::Exited => format!("Exited {}", ended()),
        State::Created => "Created".to_owned(),
        State::Removing => "Removal In Progress".to_owned(),
        State::Dead => "Dead".to_owned(),
        State::Unknown => "Unknown".to_owned(),
    }
}

/// The text while the engine is unavailable.
pub(super) fn last_seen(state: State) -> String {
    format!("Unknown: the container engine does not answer (last seen {})", state.as_str())
}

/// Formats a duration like the Docker CLI. A negative duration, from a wrong clock, counts as zero.
fn human(time: SignedDuration) -> String {
    let seconds = time.as_secs().max(0);
    let (minutes, hours) = (seconds / 60, (seconds + 1800) / 3600);
    match seconds {
        0 => "Less than a second".to_owned(),
        1 => "1 second".to_owned(),
        2..60 => format!("{seconds} seconds"),
        60..120 => "About a minute".to_owned(),
        120..3600 => format!("{minutes} minutes"),
        _ if hours == 1 => "About an hour".to_owned(),
        _ if hours < 48 => format!("{hours} hours"),
        _ if hours < 24 * 7 * 2 => format!("{} days", hours / 24),
        _ if hours < 24 * 30 * 2 => format!("{} weeks", hours / 24 / 7),
        _ if hours < 24 * 365 * 2 => format!("{} months", hours / 24 / 30),
        _ => format!("{} years", hours / 24 / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted_like_the_docker_cli() {
        for (seconds, expected) in [
            (-5, "Less than a second"),
            (0, "Less than a second"),
            (1, "1 second"),
            (59, "59 seconds"),
            (60, "About a minute"),
            (120, "2 minutes"),
            (3599, "59 minutes"),
            (3600, "About an hour"),
            (2 * 3600, "2 hours"),
            (48 * 3600, "2 days"),
            (14 * 86_400, "2 weeks"),
            (60 * 86_400, "2 months"),
            (3 * 365 * 86_400, "3 years"),
        ] {
            assert_eq!(human(SignedDuration::from_secs(seconds)), expected, "{seconds} s");
        }
    }

    #[test]
    fn the_age_in_a_text_is_computed_for_each_answer() {
        let start = Timestamp::from_second(1_800_000_000).unwrap();
        let up = Container {
            health: Some(HealthState::Healthy),
            started_at: Some(start),
            ..Container::running("web", "web:1")
        };
        let at = |container: &Container, seconds| text(container, start + SignedDuration::from_secs(seconds));
        assert_eq!(at(&up, 3), "Up 3 seconds (healthy)");
        assert_eq!(at(&up, 300), "Up 5 minutes (healthy)");
        assert_eq!(at(&Container { state: State::Paused, ..up.clone() }, 3), "Up 3 seconds (Paused)");
        let exited = Container { state: State::Exited, exit_code: 1, finished_at: Some(start), ..up };
        assert_eq!(at(&exited, 7200), "Exited (1) 2 hours ago");
        assert!(!last_seen(State::Running).contains("Up"), "{}", last_seen(State::Running));
    }
}
