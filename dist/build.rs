//! For release builds: passes the function order to the linker (dist/scripts/function-order.py explains why), and strips
//! symbols unless `EVENKEEL_KEEP_SYMBOLS` is set. Also used by the agent and the warden.

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
    // Not in the profile: with other settings the compiler generates other functions, which do not match the recorded order.
    if is_release && env::var_os("EVENKEEL_KEEP_SYMBOLS").is_none() {
        println!("cargo:rustc-link-arg-bins=-Wl,--strip-all");
    }
    // GNU ld and lld support the file; mold does not support SECTIONS commands. Without it the program only uses more memory.
    let is_supported = !flags.contains("mold") && !linker.contains("mold");
    if is_release && is_supported {
        let folder = env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
        println!(
            "cargo:rustc-link-arg-bins=-Wl,-T,{}",
            Path::new(&folder).join("../dist/function-order.ld").display()
        );
    }
}
