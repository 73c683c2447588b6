//! Tests of the store: durability, and damaged, locked and unwritable state.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::Instant;

use tempfile::{TempDir, tempdir};

use super::*;

const FILE: &str = OPTIONS.file;

fn open_at(dir: &Path) -> Opened {
    open(dir).expect("the folder of this test is not in use")
}

fn text(found: Vec<(String, Vec<u8>)>) -> Vec<(String, String)> {
    found.into_iter().map(|(key, value)| (key, String::from_utf8(value).unwrap())).collect()
}

async fn exercise(store: &dyn Store) {
    assert_eq!(store.get("none").await.unwrap(), None);
    assert_eq!(store.scan("").await.unwrap(), []);
    store.put("service/web", b"1".to_vec()).await.unwrap();
    store
        .put_all(vec![
            ("service/api".into(), Some(b"2".to_vec())),
            ("servicf".into(), Some(b"3".to_vec())),
            ("service/web".into(), Some(b"4".to_vec())),
        ])
        .await
        .unwrap();
    assert_eq!(store.get("service/web").await.unwrap().unwrap(), b"4");
    assert_eq!(store.get("service/we").await.unwrap(), None);
    assert_eq!(
        text(store.scan("service/").await.unwrap()),
        [("service/api".into(), "2".into()), ("service/web".into(), "4".into())]
    );
    store.put_all(vec![("service/api".into(), None), ("never was".into(), None)]).await.unwrap();
    assert_eq!(store.scan("").await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_file_and_memory_behave_the_same() {
    let dir = tempdir().unwrap();
    exercise(&*open_at(dir.path()).store).await;
    exercise(&MemoryStore::new()).await;
}

#[tokio::test]
async fn clones_of_a_memory_store_share_their_content() {
    let store = MemoryStore::new();
    store.clone().put("a", vec![1]).await.unwrap();
    assert_eq!(store.get("a").await.unwrap(), Some(vec![1]));
}

#[tokio::test]
async fn values_survive_reopening_and_only_the_owner_can_read_the_file() {
    let dir = tempdir().unwrap();
    let state = dir.path().join("deep/state");
    let opened = open_at(&state);
    assert_eq!(opened.warning, None);
    opened.store.put("k", b"v".to_vec()).await.unwrap();
    drop(opened);
    let opened = open_at(&state);
    assert_eq!(opened.warning, None);
    assert_eq!(opened.store.get("k").await.unwrap().unwrap(), b"v");
    assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(state.join(FILE)).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_second_process_on_the_same_state_is_rejected_with_the_path() {
    let dir = tempdir().unwrap();
    let first = open_at(dir.path());
    let error = open(dir.path()).err().expect("it is in use").to_string();
    assert!(error.contains(&dir.path().join(FILE).display().to_string()), "{error}");
    drop(first);
    open_at(dir.path());
}

/// Creates a state with some content and closes it properly. Returns its folder and the bytes of the file.
async fn filled() -> (TempDir, Vec<u8>) {
    let dir = tempdir().unwrap();
    let opened = open_at(dir.path());
    for n in 0..40u8 {
        opened.store.put(&format!("key/{n:02}"), vec![n; 100 + usize::from(n) * 20]).await.unwrap();
    }
    drop(opened);
    let bytes = fs::read(dir.path().join(FILE)).unwrap();
    (dir, bytes)
}

async fn intact(store: &dyn Store) -> bool {
    let found = store.scan("key/").await.unwrap();
    found.len() == 40
        && found.iter().enumerate().all(|(n, (key, value))| {
            let byte = u8::try_from(n).unwrap();
            *key == format!("key/{n:02}") && *value == vec![byte; 100 + n * 20]
        })
}

/// Opens damaged bytes: either no content is lost, or the loss is reported, the file is kept aside and the store works.
async fn opens_honestly(bytes: &[u8], what: &str) -> bool {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join(FILE), bytes).unwrap();
    let opened = open_at(dir.path());
    let Some(warning) = &opened.warning else {
        assert!(intact(&*opened.store).await, "{what}: content changed silently");
        return true;
    };
    assert!(warning.contains("STATE LOST"), "{what}: {warning}");
    let aside = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().contains("state.redb.damaged-"))
        .expect("the damaged file is kept");
    assert!(warning.contains(&aside.display().to_string()), "{warning}");
    opened.store.put("new", vec![1]).await.unwrap();
    drop(opened);
    let opened = open_at(dir.path());
    assert_eq!(opened.warning, None, "{what}: the new file is intact");
    assert_eq!(opened.store.scan("").await.unwrap(), [("new".to_owned(), vec![1])]);
    false
}

#[tokio::test]
async fn an_invalid_file_is_moved_aside_with_a_warning() {
    for (bytes, what) in [
        (Vec::new(), "empty"),
        (b"not a database".to_vec(), "short garbage"),
        (vec![0u8; 8192], "zeros"),
        ((0..100_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect(), "long garbage"),
    ] {
        assert!(!opens_honestly(&bytes, what).await, "{what} was accepted as a valid state");
    }
}

#[tokio::test]
async fn a_truncated_file_is_never_accepted_as_intact() {
    let (_dir, bytes) = filled().await;
    assert!(opens_honestly(&bytes, "whole").await);
    let step = bytes.len() / 40;
    for length in (1..bytes.len()).step_by(step).chain([1, 8, 63, 64, 320, 4095, 4096, bytes.len() - 1]) {
        opens_honestly(&bytes[..length], &format!("cut at {length} of {}", bytes.len())).await;
    }
}

#[tokio::test]
async fn a_flipped_byte_never_changes_content_silently() {
    let (_dir, bytes) = filled().await;
    let mut noticed = 0;
    for at in (0..320).step_by(5).chain((4096..bytes.len()).step_by(1021)) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x55;
        if !opens_honestly(&bytes, &format!("byte {at}")).await {
            noticed += 1;
        }
    }
    assert!(noticed > 10, "only {noticed}");
}

#[tokio::test]
async fn an_unusable_folder_means_state_in_memory_with_a_warning() {
    let dir = tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for unusable in [file.join("below"), file.clone(), PathBuf::from("/proc/none/state")] {
        let opened = open_at(&unusable);
        let warning = opened.warning.expect("it cannot be kept");
        assert!(warning.contains("in memory only"), "{warning}");
        assert!(warning.contains(&unusable.display().to_string()), "{warning}");
        exercise(&*opened.store).await;
    }
    let folder = dir.path().join("folder");
    fs::create_dir_all(folder.join(FILE)).unwrap();
    assert!(open_at(&folder).warning.unwrap().contains("in memory only"));
}

fn refused() -> OpenError {
    OpenError::Io(ErrorKind::ReadOnlyFilesystem.into())
}

#[tokio::test]
async fn a_file_that_can_only_be_read_stays_in_force_and_is_not_changed() {
    let (dir, bytes) = filled().await;
    let opened = in_memory(dir.path(), &refused()).unwrap();
    let warning = opened.warning.unwrap();
    assert!(warning.contains("what was stored before is in force"), "{warning}");
    assert!(intact(&*opened.store).await);
    opened.store.put("new", vec![1]).await.unwrap();
    assert_eq!(opened.store.get("new").await.unwrap(), Some(vec![1]));
    drop(opened.store);
    assert_eq!(fs::read(dir.path().join(FILE)).unwrap(), bytes);
}

#[tokio::test]
async fn a_file_that_was_not_closed_and_can_only_be_read_loses_nothing() {
    let (dir, _) = filled().await;
    let first = open_at(dir.path());
    first.store.put("last", vec![1]).await.unwrap();
    let opened = in_memory(dir.path(), &refused()).unwrap();
    assert!(intact(&*opened.store).await);
    assert_eq!(opened.store.get("last").await.unwrap(), Some(vec![1]));
}

#[test]
fn a_damaged_file_that_can_not_be_replaced_is_reported_as_lost() {
    let dir = tempdir().unwrap();
    for bytes in [&b"not a database"[..], b""] {
        fs::write(dir.path().join(FILE), bytes).unwrap();
        let warning = in_memory(dir.path(), &refused()).unwrap().warning.unwrap();
        assert!(warning.contains("STATE LOST") && warning.contains("in memory only"), "{warning}");
    }
}

#[test]
fn a_file_that_can_not_be_read_is_not_taken_for_an_empty_state() {
    // Reading the first page of this file fails, whoever reads it.
    let Err(error) = stored(Path::new("/proc/self/mem")) else { panic!("it was read") };
    assert_eq!(error.doing, "read");
    assert_eq!(Unopened::Unreadable(error.clone()).to_string(), error.to_string());
}

#[test]
fn a_folder_that_can_not_be_searched_is_not_taken_for_an_empty_state() {
    let dir = tempdir().unwrap();
    let (there, missing) = (dir.path().join(FILE), dir.path().join("none").join(FILE));
    assert!(!is_absence(ErrorKind::PermissionDenied, &there));
    assert!(is_absence(ErrorKind::PermissionDenied, &missing) && is_absence(ErrorKind::NotFound, &there));
    fs::write(&there, "").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o000)).unwrap();
    let opened = open(dir.path());
    // Root may search every folder.
    let is_searched = fs::metadata(&there).is_ok();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(is_searched || matches!(opened, Err(Unopened::Unreadable(_))));
}

#[tokio::test]
async fn the_store_is_usable_again_after_an_error() {
    let dir = tempdir().unwrap();
    let opened = open_at(dir.path());
    opened.store.put("before", vec![1]).await.unwrap();
    let path = dir.path().join(FILE);
    let good = fs::read(&path).unwrap();
    // Truncate the file while it is open: a transaction notices when it reads a page that is not cached.
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4096).unwrap();
    // Large values evict the cached pages; the lookup of the last key needs a missing page.
    let keys = (0..50).map(|n| format!("during/{n}")).chain(["after".to_owned()]);
    let mut error = None;
    for key in keys {
        if let Err(found) = opened.store.put(&key, vec![1; 50_000]).await {
            error = Some(found);
            break;
        }
    }
    assert!(error.is_some(), "the damage is detected");
    file.write_all_at(&good, 0).unwrap();
    file.set_len(good.len() as u64).unwrap();
    assert_eq!(opened.store.get("before").await.unwrap(), Some(vec![1]));
    opened.store.put("after", vec![2]).await.unwrap();
    assert_eq!(opened.store.get("after").await.unwrap(), Some(vec![2]));
}

/// Prints timings for DESIGN; run with `--nocapture`.
#[tokio::test]
async fn opening_and_five_hundred_durable_puts_are_fast() {
    let dir = tempdir().unwrap();
    let start = Instant::now();
    drop(open_at(dir.path()));
    let created = start.elapsed();
    let opened = open_at(dir.path());
    let start = Instant::now();
    for n in 0..500 {
        opened.store.put(&format!("k/{}", n % 20), vec![7; 300]).await.unwrap();
    }
    let puts = start.elapsed();
    drop(opened);
    let start = Instant::now();
    drop(open_at(dir.path()));
    println!("create+close {created:?}, 500 puts {puts:?}, open+close {:?}", start.elapsed());
    assert!(puts.as_secs() < 60);
}

#[tokio::test]
async fn a_killed_process_leaves_a_state_that_opens_without_loss() {
    let dir = tempdir().unwrap();
    let opened = open_at(dir.path());
    for n in 0..10u8 {
        opened.store.put("k", vec![n; 3000]).await.unwrap();
        let copy = tempdir().unwrap();
        fs::copy(dir.path().join(FILE), copy.path().join(FILE)).unwrap();
        let found = open_at(copy.path());
        assert_eq!(found.warning, None);
        assert_eq!(found.store.get("k").await.unwrap(), Some(vec![n; 3000]));
    }
}

/// A file system of 2 MiB that is unmounted on drop.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Self {
        let dir = tempdir().unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2m", "none"])
            .arg(dir.path())
            .status()
            .unwrap();
        assert!(mounted.success(), "run this test as root in its own mount namespace");
        Self(dir)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test]
#[ignore = "needs root to mount a small file system"]
async fn a_full_disk_is_an_error_and_writes_recover_with_free_space() {
    let disk = SmallDisk::mount();
    let opened = open_at(disk.0.path());
    assert_eq!(opened.warning, None);
    opened.store.put("before", vec![1]).await.unwrap();
    let ballast = disk.0.path().join("ballast");
    let filled = fs::write(&ballast, vec![0; 2 * 1024 * 1024]);
    assert!(filled.is_err(), "the disk is full now");
    let mut refused = 0;
    for n in 0..20 {
        refused += u32::from(opened.store.put(&format!("during/{n}"), vec![n; 200_000]).await.is_err());
    }
    assert!(refused > 0);
    assert_eq!(opened.store.get("before").await.unwrap(), Some(vec![1]), "reads still work");
    fs::remove_file(ballast).unwrap();
    opened.store.put("after", vec![2]).await.unwrap();
    drop(opened);
    let opened = open_at(disk.0.path());
    assert_eq!(opened.warning, None);
    assert_eq!(opened.store.get("before").await.unwrap(), Some(vec![1]));
    assert_eq!(opened.store.get("after").await.unwrap(), Some(vec![2]));
}

#[tokio::test]
#[ignore = "needs root to mount a small file system"]
async fn what_a_full_disk_leaves_of_a_new_state_is_not_taken_for_a_damaged_one() {
    let disk = SmallDisk::mount();
    let ballast = disk.0.path().join("ballast");
    assert!(fs::write(&ballast, vec![0; 8 * 1024 * 1024]).is_err(), "the disk is full now");
    for _ in 0..2 {
        let warning = open_at(disk.0.path()).warning.expect("it can't be stored");
        assert!(!warning.contains("LOST"), "{warning}");
    }
    fs::remove_file(ballast).unwrap();
    assert_eq!(open_at(disk.0.path()).warning, None);
}

#[tokio::test]
async fn a_symlink_in_place_of_the_state_is_not_followed() {
    let dir = tempdir().unwrap();
    let target = dir.path().join("target");
    for content in [Some("another file"), None] {
        let _ = fs::remove_file(&target);
        if let Some(text) = content {
            fs::write(&target, text).unwrap();
        }
        let state = tempdir().unwrap();
        std::os::unix::fs::symlink(&target, state.path().join(FILE)).unwrap();
        let opened = open_at(state.path());
        assert!(opened.warning.unwrap().contains("in memory only"), "{content:?}");
        assert_eq!(fs::read_to_string(&target).ok().as_deref(), content);
    }
}
