//! The state of the agents and the fleet's decisions, as pure values: duplicates, missing entries, online state, freezes,
//! withheld digests and leases. No I/O, no clock.

pub mod answer;
pub mod decisions;
pub mod entry;
pub mod inventory;
pub mod lease;
mod machine;
mod machines;
pub mod retention;
mod sequence;
pub mod state;
#[cfg(test)]
pub(crate) mod testing;
pub mod verdict;
pub mod view;

use jiff::{SignedDuration, Timestamp};

pub use machine::Machine;
pub use machines::Machines;

/// How far the clocks of two wardens may differ. It is longer than [`view::NO_POLL`]: an agent that polls a warden whose clock
/// is ahead must not be offline for the others.
pub(crate) const AHEAD: SignedDuration = SignedDuration::from_hours(1);

/// Reports whether something may have happened at this time. If it is later, a warden's clock was wrong: it would count until
/// that time comes.
pub fn is_possible(at: Timestamp, now: Timestamp) -> bool {
    at.duration_since(now) < AHEAD
}

/// Returns an image reference without its tag and digest.
pub fn repository(image: &str) -> &str {
    let image = image.split_once('@').map_or(image, |(name, _)| name);
    let path = image.rfind('/').map_or(0, |slash| slash + 1);
    image[path..].find(':').map_or(image, |colon| &image[..path + colon])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_an_image_without_tag_and_digest() {
        for (image, expected) in [
            ("web", "web"),
            ("web:1", "web"),
            ("localhost:5000/team/web", "localhost:5000/team/web"),
            ("localhost:5000/team/web:1@sha256:aa", "localhost:5000/team/web"),
            ("web@sha256:aa", "web"),
        ] {
            assert_eq!(repository(image), expected, "{image}");
        }
    }
}
