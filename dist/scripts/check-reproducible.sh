#!/usr/bin/env bash
# Builds the packages a second time, from other source and build folders, and compares the checksums with those in
# target/package/out. Usage: bash dist/package.sh && bash dist/scripts/check-reproducible.sh
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=release.sh
. "$(dirname "${BASH_SOURCE[0]}")/release.sh"

OUT="$REPO/target/package/out"
WORK=""

finish() {
    local code=$?
    trap - EXIT
    stop_ticker
    if [ -n "$WORK" ]; then
        git -C "$REPO" worktree remove --force "$WORK/sources" >/dev/null 2>&1 || true
        rm -rf "$WORK"
        git -C "$REPO" worktree prune >/dev/null 2>&1 || true
    fi
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

[ -e "$OUT/SHA256SUMS" ] || die "there are no packages: run 'bash dist/package.sh' first"
# The second build uses the last commit.
WHY=""
if ! git -C "$REPO" rev-parse HEAD >/dev/null 2>&1; then
    WHY="this is no git repository"
elif ! git -C "$REPO" diff --quiet HEAD; then
    WHY="there are changes that are not committed"
fi
if [ -n "$WHY" ]; then
    [ -z "${CI:-}" ] || die "the second build is not possible: $WHY"
    say "NOT RUN: the second build of the packages ($WHY)"
    exit 0
fi
ARGUMENTS=()
if compgen -G "$OUT/evenkeel-*-aarch64-linux.tar.gz" >/dev/null; then ARGUMENTS+=(--arch aarch64); fi
WORK="$(mktemp -d "${TMPDIR:-/tmp}/evenkeel-again-XXXXXX")"
git -C "$REPO" worktree add --quiet --detach "$WORK/sources" HEAD || die "git could not create a second copy of the sources"
# Both builds use the same tools.
if [ -d "$REPO/target/tools" ]; then
    mkdir "$WORK/sources/target"
    ln -s "$REPO/target/tools" "$WORK/sources/target/tools"
fi
say "== the same packages from another folder"
CARGO_TARGET_DIR="$WORK/build" bash "$WORK/sources/dist/package.sh" "${ARGUMENTS[@]}"
if ! diff "$OUT/SHA256SUMS" "$WORK/sources/target/package/out/SHA256SUMS" >&2; then
    die "the two builds differ: see the checksums above (<: the first, >: the second)"
fi
say "reproducible: $(wc -l <"$OUT/SHA256SUMS") files, identical in both builds"
