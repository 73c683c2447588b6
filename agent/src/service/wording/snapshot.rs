//! The words for snapshots (DECISIONS 13).

use std::path::PathBuf;

use evenkeel_common::wire::{AuditEntry, Kind, Level};

use super::{New, because, seconds};
use crate::model::snapshot::{KeptFolder, Room, SnapshotRules};
use crate::service::gates::candidate::SnapshotSeen;
use crate::service::images::NotCopied;
use crate::service::input::NotStarted;
use crate::service::rollout::snapshot::{DataBack, KeptSnapshot};

/// A number of bytes, as people write it.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let (mut amount, mut unit) = (bytes as f64 / 1024.0, 0);
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        (amount, unit) = (amount / 1024.0, unit + 1);
    }
    format!("{amount:.1} {}", UNITS[unit])
}

/// Why there is no room for a copy, and with `spares` for what a new image writes; `None` if there is. Who goes back has no
/// image that migrates data, and may go back because the new one has filled the disk.
pub(crate) fn lacks_room(seen: &SnapshotSeen, rules: &SnapshotRules, spares: bool) -> Option<String> {
    let bytes = copied_bytes(&seen.rooms);
    if bytes > rules.max_bytes {
        let most = size(rules.max_bytes);
        return Some(format!(
            "the copy of the data takes {}, more than max_mib allows ({most})",
            size(bytes)
        ));
    }
    lacks_free(&seen.rooms, spares)
}

/// A number, as people write it.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// How much of the data the copies write anew.
fn copied_bytes(rooms: &[(PathBuf, Room)]) -> u64 {
    rooms.iter().map(|(_, room)| room.written()).sum()
}

/// How much must stay free beside the copies: an image that finds no room to migrate its data would be rejected for it. A
/// migration may write small data anew as a whole.
fn spare(bytes: u64) -> u64 {
    const MIB: u64 = 1024 * 1024;
    bytes.min(512 * MIB).max(bytes / 10)
}

/// What is missing of the room for copies and, with `spares`, for the update that follows; `None` if nothing is.
pub(crate) fn lacks_free(rooms: &[(PathBuf, Room)], spares: bool) -> Option<String> {
    lacks_bytes(rooms, spares).or_else(|| lacks_entries(rooms, spares))
}

/// The same of the inodes: a file system may run out of them while there is room for bytes, and a copy that shares its blocks
/// takes as many.
fn lacks_entries(rooms: &[(PathBuf, Room)], spares: bool) -> Option<String> {
    let needed_by = |room: &Room| room.entries.saturating_mul(room.copies);
    let needed = rooms.iter().fold(0, |sum: u64, (_, room)| sum.saturating_add(needed_by(room)));
    let spare = if spares { needed / 10 } else { 0 };
    let most = needed.saturating_add(spare);
    let lacking = rooms.iter().filter(|(_, room)| room.entries > 0);
    let mut lacking = lacking.filter_map(|(folder, room)| Some((folder, room.free_entries?)));
    let (folder, free) = lacking.find(|(_, free)| *free < most)?;
    let and_spare = if spare > 0 { format!(", and {} to spare", grouped(spare)) } else { String::new() };
    let (needed, free, folder) = (grouped(needed), grouped(free), folder.display());
    Some(format!("the copy of the data needs {needed} inodes{and_spare}, {free} free in {folder}"))
}

fn lacks_bytes(rooms: &[(PathBuf, Room)], spares: bool) -> Option<String> {
    let spare_of = |room: &Room| if spares { spare(room.bytes) } else { 0 };
    // Several may go to the same file system: none of them has more room than all need together.
    let needed: u64 = rooms.iter().map(|(_, room)| room.needed()).sum();
    let lacks = |room: &Room| {
        let needed = if room.needed() == 0 { 0 } else { needed };
        room.available < needed.saturating_add(spare_of(room))
    };
    let (folder, room) = rooms.iter().find(|(_, room)| lacks(room))?;
    let spare = spare_of(room);
    let (folder, available, spare_size) = (folder.display(), size(room.available), size(spare));
    if room.needed() == 0 {
        return Some(format!("the update needs {spare_size} to spare, {available} free in {folder}"));
    }
    let twice =
        if needed > copied_bytes(rooms) { ", since what it takes the place of is copied, too" } else { "" };
    let and_spare = if spare > 0 { format!(", and {spare_size} to spare") } else { String::new() };
    Some(format!(
        "the copy of the data needs {}{twice}{and_spare}, {available} free in {folder}",
        size(needed)
    ))
}

/// What will be copied.
pub(in crate::service) fn will_copy(seen: &SnapshotSeen) -> String {
    if seen.sources.is_empty() {
        return "no data is copied; what the hook before leaves in EK_SNAPSHOT is kept".to_owned();
    }
    if seen.rooms.is_empty() {
        return "the data was copied for an earlier attempt, and is not copied again".to_owned();
    }
    let bytes: u64 = seen.rooms.iter().map(|(_, room)| room.bytes).sum();
    let is_shared = seen.rooms.iter().all(|(_, room)| room.is_shared && room.unshared == 0);
    let how = if is_shared { ", sharing its blocks with the data" } else { "" };
    let names: Vec<&str> = seen.sources.iter().map(|source| source.of.as_str()).collect();
    format!("{} of data is copied before the update{how} ({})", size(bytes), names.join(", "))
}

/// Why a copy is not begun anew.
pub(in crate::service) const CUT_SHORT: &str =
    "each copy was cut short, because the agent or the machine stopped, or the configuration was reloaded";

/// Why an update was not begun.
pub(in crate::service) fn not_copied(why: &str) -> String {
    format!("the data could not be copied, so nothing was deployed: {why}")
}

/// Why a deployment was given up when the agent was stopped.
pub(in crate::service) fn stopped_before_copied() -> String {
    "the agent was stopped before the data was copied, so nothing was deployed; what was stopped for the copy is started again"
        .to_owned()
}

/// Why an update waits whose data could not be copied.
pub(in crate::service) fn copied_again(failed: &NotCopied) -> String {
    let times = if failed.tries > 1 { format!(" {} times", failed.tries) } else { String::new() };
    let (why, again) = (&failed.why, seconds(failed.until));
    format!(
        "the data could not be copied{times}: {why}; the service is stopped for the next attempt at {again}"
    )
}

/// Why data that has to be at rest is not.
pub(in crate::service) fn not_staying_stopped(names: &[&str]) -> String {
    let verb = if names.len() == 1 { "does" } else { "do" };
    format!("{} {verb} not stay stopped", names.join(", "))
}

/// Why nothing was started on data of which only a part was put back.
pub(in crate::service) fn left_stopped(why: &str, left: &[(String, bool)]) -> String {
    let left = stay_stopped(left);
    format!("{why}; no image may run on data of two times, so these stay stopped: {left}")
}

/// Which containers stay stopped because the data of before was put back, and their image has failed on its own.
pub(super) fn left_off_old_data(left: &[(String, bool)]) -> Option<String> {
    let why = "since no image that failed may run on data that was put back";
    (!left.is_empty()).then(|| format!("these stay stopped, {why}: {}", stay_stopped(left)))
}

/// Names containers, and those of them that may not stay stopped for good.
fn stay_stopped(left: &[(String, bool)]) -> String {
    let names: Vec<&str> = left.iter().map(|(name, _)| name.as_str()).collect();
    let started: Vec<&str> =
        left.iter().filter(|(_, starts)| *starts).map(|(name, _)| name.as_str()).collect();
    let mut text = names.join(", ");
    if !started.is_empty() {
        let why = "the next start of the engine may start these by their restart policy, so act before that";
        text.push_str(&format!("; {why}: {}", started.join(", ")));
    }
    text
}

/// The entry of containers that were stopped for a snapshot and don't run again.
pub(super) fn not_started(containers: &[NotStarted], new: New<'_>) -> AuditEntry {
    let names: Vec<&str> = containers.iter().map(|one| one.name.as_str()).collect();
    let message = format!("not started again after the data was at rest: {}", names.join(", "));
    let reasons: Vec<String> = containers.iter().map(|one| format!("{}: {}", one.name, one.why)).collect();
    let container = containers.first().map(|one| one.name.clone()).filter(|_| containers.len() == 1);
    AuditEntry { container, ..because(reasons.join("; "), new(Kind::ERROR, Level::Warning, message)) }
}

/// The entry of copies that are no longer kept, and still there.
pub(super) fn not_removed(why: &str, new: New<'_>) -> AuditEntry {
    let message = "copies of the data that are no longer kept can't be removed".to_owned();
    let reason = format!("{why}; they take up room, and are removed after the next update, or by hand");
    because(reason, new(Kind::ERROR, Level::Warning, message))
}

/// Why a rollback ended without its data.
pub(in crate::service) fn not_restored(why: &str, copies: &[KeptFolder]) -> String {
    format!("the data could not be put back: {why}; as it was before, it is in {}", places(copies))
}

/// Why an earlier image is not restored on data that another one may have changed.
pub(in crate::service) fn without_its_data(name: &str, kept: &KeptSnapshot) -> String {
    let (at, places) = (seconds(kept.at), places(&kept.folders));
    format!(
        "an image that is not proven may have changed the data, and the earlier image may not run on that; nothing was \
         changed; `evenkeel rollback {name} --data` goes back together with the data of {at}, which is in {places}; \
         `evenkeel rollback {name}` goes back and leaves the data as it is"
    )
}

/// Why a rollback ended although its data is in place.
pub(in crate::service) fn disturbed(why: &str) -> String {
    format!("the data was put back, and something may have written to it meanwhile: {why}")
}

/// Which data was put back.
pub(super) fn put_back(data: &DataBack) -> String {
    let at = seconds(data.at);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_can_not_be_exchanged_needs_room_for_two_copies() {
        let rules = SnapshotRules { of: Vec::new(), keep: 1, max_bytes: 100 << 20 };
        let lacks = |copies: u64, is_shared: bool, mib: u64| {
            let room = Room { bytes: 60 << 20, available: mib << 20, is_shared, copies, ..Room::default() };
            let rooms = vec![("/v".into(), room)];
            let seen = SnapshotSeen { sources: Vec::new(), rooms, dumps: "/s".into(), earlier: None };
            lacks_room(&seen, &rules, true)
        };
        assert_eq!(lacks(1, false, 120), None);
        assert_eq!(lacks(2, true, 60), None);
        assert_eq!(lacks(2, false, 180), None, "max_mib is about the copy that is kept");
        let why = lacks(2, false, 179).unwrap();
        assert!(
            why.contains(
                "needs 120.0 MiB, since what it takes the place of is copied, too, and 60.0 MiB to spare, 179"
            ),
            "{why}"
        );
        let why = lacks(1, false, 119).unwrap();
        assert_eq!(why, "the copy of the data needs 60.0 MiB, and 60.0 MiB to spare, 119.0 MiB free in /v");
        let why = lacks(1, true, 59).unwrap();
        assert_eq!(why, "the update needs 60.0 MiB to spare, 59.0 MiB free in /v");
    }

    #[test]
    fn a_copy_needs_inodes_even_if_it_shares_its_blocks() {
        let lacks = |free: Option<u64>, is_shared: bool, spares: bool| {
            let room = Room {
                bytes: 1 << 20,
                available: 1 << 30,
                is_shared,
                entries: 1_050_000,
                free_entries: free,
                copies: 2,
                ..Room::default()
            };
            lacks_free(&[("/v".into(), room)], spares)
        };
        for is_shared in [true, false] {
            let why = lacks(Some(900_000), is_shared, true).unwrap();
            assert_eq!(
                why,
                "the copy of the data needs 2,100,000 inodes, and 210,000 to spare, 900,000 free in /v"
            );
            assert_eq!(lacks(Some(2_310_000), is_shared, true), None);
            assert!(lacks(Some(2_309_999), is_shared, true).is_some());
            assert_eq!(lacks(Some(2_100_000), is_shared, false), None, "who goes back spares none");
            assert_eq!(lacks(None, is_shared, true), None, "btrfs has no limit");
        }
        assert_eq!([0, 999, 1000, 12_345_678].map(grouped), ["0", "999", "1,000", "12,345,678"]);
    }

    #[test]
    fn room_is_left_for_what_the_new_image_writes() {
        for (data, spared) in [(0, 0), (100 << 20, 100 << 20), (2 << 30, 512 << 20), (100 << 30, 10 << 30)] {
            assert_eq!(spare(data), spared, "{data}");
        }
        let room =
            Room { bytes: 2 << 30, available: 2 << 30, is_shared: false, copies: 1, ..Room::default() };
        let rooms = [(PathBuf::from("/v"), room)];
        assert_eq!(lacks_free(&rooms, false), None, "a person goes back, and no image migrates anything");
        let why = lacks_free(&rooms, true).unwrap();
        assert_eq!(why, "the copy of the data needs 2.0 GiB, and 512.0 MiB to spare, 2.0 GiB free in /v");
        // A large one that shares its blocks asks nothing of the disk of a small one.
        let large =
            Room { bytes: 2 << 40, available: 300 << 30, is_shared: true, copies: 1, ..Room::default() };
        let small =
            Room { bytes: 100 << 20, available: 40 << 30, is_shared: false, copies: 1, ..Room::default() };
        assert_eq!(lacks_free(&[("/media".into(), large), ("/v".into(), small)], true), None);
        // A part of it can't share them.
        let mixed = |gib: u64| [("/media".into(), Room { available: gib << 30, unshared: 5 << 30, ..large })];
        assert_eq!(lacks_free(&mixed(210), true), None);
        let why = lacks_free(&mixed(207), true).unwrap();
        assert_eq!(
            why,
            "the copy of the data needs 5.0 GiB, and 204.8 GiB to spare, 207.0 GiB free in /media"
        );
    }
}
