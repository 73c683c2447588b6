//! Files on a file system that hangs, such as that of an NFS server that is down. A call that is made there returns when the
//! server answers, maybe never, and can't be interrupted, so it is made on a thread that nobody has to wait for.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

/// What is said of a path that hangs.
pub const UNRESPONSIVE: &str = "can't be accessed now, because its file system does not answer";

/// Paths that had not answered in time, and still have not.
static HANGING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Time in which a path must answer: longer than a slow disk takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(10);
/// Stack size of a thread that makes one call.
const STACK: usize = 128 * 1024;

/// How paths are looked at.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// The call that may hang.
    pub call: fn(&Path),
    /// How long the remaining paths may be silent. Then they hang.
    pub limit: Duration,
}

impl Default for Look {
    fn default() -> Self {
        let call = |path: &Path| {
            // Only that there is an answer counts.
            let _ = path.metadata();
        };
        Self { call, limit: LIMIT }
    }
}

/// Finds out which of these paths hang, see [`hangs`]. All are asked at the same time, so that many of them on one server cost
/// no more than one. A path that has not answered since an earlier call is not asked again.
pub fn ask(paths: impl IntoIterator<Item = PathBuf>, look: Look) {
    let (answered, answers) = mpsc::channel();
    let mut asked: BTreeSet<PathBuf> = paths.into_iter().filter(|path| !hangs(path)).collect();
    asked.retain(|path| {
        let (path, answered) = (path.clone(), answered.clone());
        let work = move || {
            (look.call)(&path);
            let mut hanging = HANGING.lock();
            hanging.remove(&path);
            // Nobody waits for a late answer.
            let _ = answered.send(path);
        };
        // Without a thread, nothing is known of the path.
        thread::Builder::new().stack_size(STACK).spawn(work).is_ok()
    });
    drop(answered);
    while !asked.is_empty() {
        let Ok(path) = answers.recv_timeout(look.limit) else { break };
        asked.remove(&path);
    }
    // A thread answers while it holds the lock: whatever has not answered by now, removes itself later.
    let mut hanging = HANGING.lock();
    for path in answers.try_iter() {
        asked.remove(&path);
    }
    hanging.extend(asked);
}

/// Reports whether a path has not answered since it was asked.
pub fn hangs(path: &Path) -> bool {
    HANGING.lock().contains(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_does_not_answer_hangs_until_it_does() {
        static SERVER: Mutex<()> = Mutex::new(());
        let paths = || ["/nas/a", "/nas/b"].map(PathBuf::from);
        let answering = Look { call: |_| {}, limit: Duration::from_mins(10) };
        ask(paths(), answering);
        assert!(!hangs(&paths()[0]) && !hangs(&paths()[1]));

        let down = SERVER.lock();
        ask(paths(), Look { call: |_| drop(SERVER.lock()), limit: Duration::from_millis(1) });
        assert!(hangs(&paths()[0]) && hangs(&paths()[1]));
        // They are not waited for again: this returns.
        ask(paths(), Look { call: |_| drop(SERVER.lock()), limit: Duration::from_mins(10) });
        drop(down);
        while hangs(&paths()[0]) || hangs(&paths()[1]) {
            thread::yield_now();
        }
        ask(paths(), answering);
        assert!(!hangs(&paths()[0]) && !hangs(&paths()[1]));
    }
}
