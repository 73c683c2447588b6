//! What the tests of both pages share.

pub(crate) mod agent;
pub(crate) mod warden;

use std::path::{Path, PathBuf};

use contract_tests::Browser;
use evenkeel_common::clock::{Clock, SystemClock};
use jiff::SignedDuration;

/// A time so many seconds ago, as on the wire.
pub(crate) fn ago(seconds: u32) -> String {
    (SystemClock.now() - SignedDuration::from_secs(seconds.into())).to_string()
}

/// A time in so many seconds.
pub(crate) fn ahead(seconds: u32) -> String {
    (SystemClock.now() + SignedDuration::from_secs(seconds.into())).to_string()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository").to_owned()
}

/// axe-core's script. Required where `EVENKEEL_AXE` says so (dist/test.sh fetches it), else used where it is.
pub(crate) fn axe() -> Option<String> {
    let path = std::env::var_os("EVENKEEL_AXE").map(PathBuf::from);
    let required = path.is_some();
    let path = path.unwrap_or_else(|| repository().join("target/axe/node_modules/axe-core/axe.min.js"));
    match std::fs::read_to_string(&path) {
        Ok(script) => Some(script),
        Err(error) if required => panic!("{}: {error}", path.display()),
        Err(_) => {
            eprintln!(
                "NOT CHECKED: accessibility (no axe-core at {}; dist/test.sh fetches it)",
                path.display()
            );
            None
        }
    }
}

/// Keeps a picture of the window for the documentation, where `EVENKEEL_PICTURES` says that this run makes them.
pub(crate) fn keep_picture(browser: &Browser, name: &str) {
    let picture = browser.picture();
    assert!(picture.len() > 10_000, "{name} is empty");
    assert!(picture.len() < 250_000, "{name} has {} bytes", picture.len());
    if std::env::var_os("EVENKEEL_PICTURES").is_some() {
        let folder = repository().join("dist/docs/img");
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        std::fs::write(folder.join(format!("{name}.png")), picture).expect("the picture can be written");
    }
}
