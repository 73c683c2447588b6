#!/usr/bin/env bash
# RUSTC_WORKSPACE_WRAPPER of dist/test.sh: lint.sh RUSTC ARGUMENT...
#
# Compiles and lints in one pass: clippy's driver is a compiler that also lints, while `cargo clippy` would compile everything a
# second time, only to check it. The code of a library is compiled twice, alone and with its tests, and linted once: with its
# tests. The compiler's own lints run both times, since some of them leave out tests.
#
# EVENKEEL_LINTS is the level of warnings: -Dwarnings, or nothing to only show them.
set -euo pipefail
case " $* " in
*" --test "* | *" --crate-type bin "*)
    driver="${1%/*}/clippy-driver"
    [ -x "$driver" ] || driver="$("$1" --print sysroot)/bin/clippy-driver"
    exec "$driver" "$@"
    ;;
*) exec "$@" ${EVENKEEL_LINTS:+"$EVENKEEL_LINTS"} ;;
esac
