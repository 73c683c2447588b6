//! Whose turn it is on a folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use parking_lot::{Condvar, Mutex};

use super::Place;

/// The folders that threads work on.
static TAKEN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
static RETURNED: Condvar = Condvar::new();

/// Folders that no other thread works on. A thread goes on after a reload of the configuration has dropped its caller, and the
/// step that is begun anew must not meet it.
pub(super) struct Turn(Vec<PathBuf>);

impl Turn {
    /// Waits for the folders of a place.
    pub(super) fn at(place: &Place) -> Self {
        Self::on(&[&place.live, &place.copy, &place.aside])
    }

    /// Waits for folders. All are taken at once, so that nobody waits for each other.
    pub(super) fn on(folders: &[&Path]) -> Self {
        let mut taken = TAKEN.lock();
        while folders.iter().any(|folder| taken.contains(*folder)) {
            RETURNED.wait(&mut taken);
        }
        let folders: Vec<PathBuf> = folders.iter().map(|folder| (*folder).to_owned()).collect();
        taken.extend(folders.iter().cloned());
        Self(folders)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut taken = TAKEN.lock();
        for folder in &self.0 {
            taken.remove(folder);
        }
        RETURNED.notify_all();
    }
}
