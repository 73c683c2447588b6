//! Helpers for the tests of both pages.

pub(crate) mod agent;
pub(crate) mod warden;

use std::path::{Path, PathBuf};

use contract_tests::Browser;
use evenkeel_common::clock::{Clock, SystemClock};
use jiff::SignedDuration;

/// A time this many seconds ago, as on the wire.
pub(crate) fn ago(seconds: u32) -> String {
    (SystemClock.now() - SignedDuration::from_secs(seconds.into())).to_string()
}

/// A time this many seconds ahead.
pub(crate) fn ahead(seconds: u32) -> String {
    (SystemClock.now() + SignedDuration::from_secs(seconds.into())).to_string()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository").to_owned()
}

/// The script of axe-core. Required if `EVENKEEL_AXE` is set (dist/test.sh fetches it), otherwise used if it exists.
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

/// Saves a picture of the window for the documentation if `EVENKEEL_PICTURES` is set.
pub(crate) fn save_screenshot(browser: &Browser, name: &str) {
    let picture = browser.screenshot();
    assert!(picture.len() > 10_000, "{name} is empty");
    assert!(picture.len() < 250_000, "{name} has {} bytes", picture.len());
    if std::env::var_os("EVENKEEL_PICTURES").is_some() {
        let folder = repository().join("dist/docs/img");
        std::fs::create_dir_all(&folder).expect("the folder can be created");
        std::fs::write(folder.join(format!("{name}.png")), picture).expect("the picture can be written");
    }
}
