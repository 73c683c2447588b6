# shellcheck shell=bash
# Release builds, reproducible: for glibc 2.17, so that they run on old and new distributions, and static with musl, for Alpine
# Linux and the images.
# Includes lib.sh. Sourced, never run.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ZIG_VERSION="0.15.2"
ZIGBUILD_VERSION="0.24.0"
GLIBC="2.17" # the oldest version supported by Rust's standard library

# The timestamp of all build artifacts: that of the last commit.
SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$REPO" log -1 --format=%ct 2>/dev/null || echo 0)}"
export SOURCE_DATE_EPOCH

version() { sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$REPO/Cargo.toml"; }

# rust_target ARCH [LIBC]: the Rust target for x86_64 or aarch64, and for gnu (the default) or musl.
rust_target() {
    case "$1" in
    x86_64 | aarch64) printf '%s-unknown-linux-%s' "$1" "${2:-gnu}" ;;
    *) die "unknown architecture $1; available: x86_64 aarch64" ;;
    esac
}

# Provides zig as C compiler and linker, which supports all glibc versions, in its own Python environment.
bring_zig() {
    local folder="$REPO/target/tools/zig"
    if ! "$folder/bin/cargo-zigbuild" --version 2>/dev/null | grep -qF "$ZIGBUILD_VERSION" ||
        ! "$folder/bin/python-zig" version 2>/dev/null | grep -qF "$ZIG_VERSION"; then
        python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || apt_install python3 python3-venv
        say "installing zig $ZIG_VERSION and cargo-zigbuild $ZIGBUILD_VERSION"
        python3 -m venv --clear "$folder" || die "python3 could not create an environment in $folder"
        "$folder/bin/pip" install -q --disable-pip-version-check "ziglang==$ZIG_VERSION" \
            "cargo-zigbuild==$ZIGBUILD_VERSION" || die "pip could not install zig $ZIG_VERSION"
    fi
    PATH="$folder/bin:$PATH"
}

# bring_std TARGET: provides Rust's standard library for a target.
bring_std() {
    local lib
    lib="$(cd "$REPO" && rustc --print target-libdir --target "$1")"
    [ ! -d "$lib" ] || return 0
    have rustup && (cd "$REPO" && rustup target add "$1" >/dev/null 2>&1) && [ -d "$lib" ] && return 0
    die "Rust's standard library for $1 is missing, and 'rustup target add $1' could not install it"
}

# Sets flags that keep the folders of the sources, of cargo and of the build out of the programs.
reproducible_flags() {
    local separator=$'\x1f' target="${CARGO_TARGET_DIR:-$REPO/target}" cargo="${CARGO_HOME:-$HOME/.cargo}"
    # The last matching prefix wins.
    CARGO_ENCODED_RUSTFLAGS="--remap-path-prefix=$cargo=/cargo$separator--remap-path-prefix=$REPO=/evenkeel"
    CARGO_ENCODED_RUSTFLAGS+="$separator--remap-path-prefix=$target=/target"
    # This variable replaces the flags in .cargo/config.toml.
    CARGO_ENCODED_RUSTFLAGS+="$separator-Csymbol-mangling-version=v0"
    export CARGO_ENCODED_RUSTFLAGS
    export CARGO_INCREMENTAL=0 LC_ALL=C.UTF-8 TZ=UTC
}

# programs_of ARCH [LIBC]: the output folder of build_programs.
programs_of() { printf '%s/%s/release' "${CARGO_TARGET_DIR:-$REPO/target}" "$(rust_target "$@")"; }

# build_programs ARCH [LIBC]: builds evenkeel, evenkeel-agent and evenkeel-warden. With musl they are static.
build_programs() {
    local target version=""
    target="$(rust_target "$@")"
    case "$target" in *-gnu) version=".$GLIBC" ;; esac
    bring_std "$target"
    (
        reproducible_flags
        cd "$REPO"
        # shellcheck disable=SC2086  # a command with arguments, or nothing
        ${EVENKEEL_BUILD_WITH:-} cargo zigbuild --release --locked --target "$target$version" \
            -p evenkeel -p evenkeel-agent -p evenkeel-warden --bins
    ) || die "the programs could not be built for $target"
}
