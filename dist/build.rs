//! Hands the linker the order of functions, for release builds (dist/scripts/function-order.py says why). The agent and the
//! warden use it, too.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=../dist/function-order.ld");
    println!("cargo:rerun-if-env-changed=CARGO_ENCODED_RUSTFLAGS");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let linker = env::var("RUSTC_LINKER").unwrap_or_default();
    // GNU ld and lld take the file; mold takes no section commands. Without it the program is the same, only less lean.
    let takes_it = is("CARGO_CFG_TARGET_OS", "linux") && !flags.contains("mold") && !linker.contains("mold");
    if is("PROFILE", "release") && takes_it {
        let folder = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
        println!(
            "cargo:rustc-link-arg-bins=-Wl,-T,{}",
            Path::new(&folder).join("../dist/function-order.ld").display()
        );
    }
}
