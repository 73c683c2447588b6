//! Whether the data of a service can be copied before an update, and what that takes.

use super::facts::{AREA, Facts};
use super::finding::{Finding, Words};
use crate::model::Container;
use crate::service::gates::candidate::SnapshotSeen;
use crate::service::wording::snapshot::{lacks_room, size};

/// What a plain copy is assumed to write in a second: a disk that turns.
const BYTES_A_SECOND: u64 = 100 * 1024 * 1024;

/// Returns the findings for a service.
pub(super) fn check(facts: &Facts<'_>) -> Option<Finding> {
    let rules = facts.config.update.as_ref()?.snapshot.as_ref()?;
    let subject = facts.config.name.as_str();
    let seen = match facts.data.as_ref()? {
        // A hook saves the data.
        Ok(seen) if seen.sources.is_empty() => return None,
        Ok(seen) => seen,
        Err(why) => {
            let words = Words {
                what: why.clone(),
                why: "an update waits as long as the data can't be copied",
                remedy: "correct update.snapshot, or see \"What the agent needs\" under \"Snapshots\" in the manual",
            };
            return Some(words.error(AREA, subject));
        }
    };
    if let Some(why) = lacks_room(seen, rules, true) {
        let words = Words {
            what: why,
            why: "an update waits as long as there is no room for the copy",
            remedy: "make room, or raise update.snapshot.max_mib",
        };
        return Some(words.error(AREA, subject));
    }
    let words = Words {
        what: cost(seen, &facts.containers.iter().map(|one| &one.container).collect::<Vec<_>>()),
        why: "nothing may write to the data while it is copied",
        remedy: "nothing to do; a file system with reflinks (xfs, btrfs) makes the copy short",
    };
    Some(words.note(AREA, subject))
}

/// What a copy takes, and who is down meanwhile.
fn cost(seen: &SnapshotSeen, containers: &[&Container]) -> String {
    let total: u64 = seen.rooms.iter().map(|(_, room)| room.bytes).sum();
    let copied: u64 = seen.rooms.iter().map(|(_, room)| room.written()).sum();
    let time = if seen.rooms.iter().all(|(_, room)| room.is_shared && room.unshared == 0) {
        "next to no time, since it shares its blocks".to_owned()
    } else {
        format!("about {} s at {}/s", copied.div_ceil(BYTES_A_SECOND), size(BYTES_A_SECOND))
    };
    let writes = |container: &&&Container| {
        container.mounts.iter().any(|mount| {
            let source = std::path::Path::new(&mount.source);
            let is_of = seen.sources.iter().any(|one| crate::model::snapshot::overlap(&one.folder, source));
            source.is_absolute() && is_of && !mount.read_only
        })
    };
    let names: Vec<&str> = containers.iter().filter(writes).map(|c| c.name.as_str()).collect();
    let down =
        if names.is_empty() { String::new() } else { format!("; down meanwhile: {}", names.join(", ")) };
    format!("an update copies {} of data, which takes {time}{down}", size(total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::snapshot::{Room, Source};

    #[test]
    fn the_cost_of_a_copy_names_size_time_and_who_is_down() {
        let seen = |is_shared: bool| SnapshotSeen {
            sources: vec![Source {
                of: "db".into(),
                volume: Some("p_db".into()),
                folder: "/v/p_db/_data".into(),
            }],
            rooms: vec![(
                "/v".into(),
                Room { bytes: 3 << 30, available: 1 << 40, is_shared, copies: 1, ..Room::default() },
            )],
            dumps: "/state/snapshots".into(),
            earlier: None,
        };
        let mut container = Container::running("db", "db");
        container.mounts.push(evenkeel_common::wire::MountRecord {
            kind: "volume".into(),
            name: "p_db".into(),
            source: "/v/p_db/_data".into(),
            destination: "/data".into(),
            read_only: false,
        });
        let text = cost(&seen(false), &[&container]);
        assert_eq!(
            text,
            "an update copies 3.0 GiB of data, which takes about 31 s at 100.0 MiB/s; down meanwhile: db"
        );
        let other = Container::running("web", "web");
        let text = cost(&seen(true), &[&other]);
        assert_eq!(
            text,
            "an update copies 3.0 GiB of data, which takes next to no time, since it shares its blocks"
        );
    }
}
