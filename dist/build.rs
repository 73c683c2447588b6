//! For release builds: hands the linker the order of functions (dist/scripts/function-order.py says why), and strips symbols
//! unless `EVENKEEL_KEEP_SYMBOLS` is set. The agent and the warden use it, too.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=../dist/function-order.ld");
    println!("cargo:rerun-if-env-changed=CARGO_ENCODED_RUSTFLAGS");
    println!("cargo:rerun-if-env-changed=EVENKEEL_KEEP_SYMBOLS");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let linker = env::var("RUSTC_LINKER").unwrap_or_default();
    let is_release = is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux");
    // Not by the profile: with other settings the compiler makes other functions, which the recorded order does not fit.
    if is_release && env::var_os("EVENKEEL_KEEP_SYMBOLS").is_none() {
        println!("cargo:rustc-link-arg-bins=-Wl,--strip-all");
    }
    // GNU ld and lld take the file; mold takes no section commands. Without it the program is the same, only less lean.
    let takes_it = !flags.contains("mold") && !linker.contains("mold");
    if is_release && takes_it {
        let folder = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
        println!(
            "cargo:rustc-link-arg-bins=-Wl,-T,{}",
            Path::new(&folder).join("../dist/function-order.ld").display()
        );
    }
}
