//! The words for snapshots (DECISIONS 13).

use crate::model::snapshot::{KeptFolder, SnapshotRules};
use crate::service::gates::candidate::SnapshotSeen;
use crate::service::rollout::snapshot::DataBack;

/// A number of bytes, as people write it.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let (mut amount, mut unit) = (bytes as f64 / 1024.0, 0);
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        (amount, unit) = (amount / 1024.0, unit + 1);
    }
    format!("{amount:.1} {}", UNITS[unit])
}

/// Why there is no room for a copy; `None` if there is.
pub(crate) fn lacks_room(seen: &SnapshotSeen, rules: &SnapshotRules) -> Option<String> {
    let copied: Vec<_> = seen.rooms.iter().filter(|(_, room)| !room.is_shared).collect();
    let bytes: u64 = copied.iter().map(|(_, room)| room.bytes).sum();
    if bytes > rules.max_bytes {
        let most = size(rules.max_bytes);
        return Some(format!(
            "the copy of the data takes {}, more than max_mib allows ({most})",
            size(bytes)
        ));
    }
    // Several may go to the same file system: none of them has more room than all need together.
    let (folder, room) = copied.into_iter().find(|(_, room)| room.available < bytes)?;
    let (needed, available) = (size(bytes), size(room.available));
    Some(format!("the copy of the data needs {needed}, {available} free in {}", folder.display()))
}

/// What will be copied.
pub(in crate::service) fn will_copy(seen: &SnapshotSeen) -> String {
    if seen.sources.is_empty() {
        return "no data is copied; what the hook before leaves in EK_SNAPSHOT is kept".to_owned();
    }
    let bytes: u64 = seen.rooms.iter().map(|(_, room)| room.bytes).sum();
    let is_shared = seen.rooms.iter().all(|(_, room)| room.is_shared);
    let how = if is_shared { ", sharing its blocks with the data" } else { "" };
    let names: Vec<&str> = seen.sources.iter().map(|source| source.of.as_str()).collect();
    format!("{} of data is copied before the update{how} ({})", size(bytes), names.join(", "))
}

/// Why an update was not begun.
pub(in crate::service) fn not_copied(why: &str) -> String {
    format!("the data could not be copied, so nothing was deployed: {why}")
}

/// Why a rollback ended without its data.
pub(in crate::service) fn not_restored(why: &str, copies: &[KeptFolder]) -> String {
    format!("the data could not be put back: {why}; as it was before, it is in {}", places(copies))
}

/// Which data was put back.
pub(super) fn put_back(data: &DataBack) -> String {
    let at = data.at.strftime("%Y-%m-%d %H:%M:%S UTC");
    if data.set_aside.is_empty() {
        return format!("the data of {at} was put back");
    }
    format!("the data of {at} was put back; what was in its place is kept in {}", places(&data.set_aside))
}

fn places(folders: &[KeptFolder]) -> String {
    let place = |kept: &KeptFolder| match &kept.volume {
        Some(volume) => format!("volume {volume} ({})", kept.folder.display()),
        None => kept.folder.display().to_string(),
    };
    folders.iter().map(place).collect::<Vec<_>>().join(", ")
}
