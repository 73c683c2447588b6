# shellcheck shell=bash
# Phases of dist/test.sh with their durations, and test runs with the durations of their tests. Sourced after lib.sh.

PHASE_ROWS=()
PHASE=""
PHASE_BEGAN=0

# phase NAME: ends the phase before it, and begins this one.
phase() {
    phase_end
    PHASE="$1"
    PHASE_BEGAN="$SECONDS"
    say "== $1"
}

phase_end() {
    [ -n "$PHASE" ] || return 0
    PHASE_ROWS+=("$(printf '%6d  %s' "$((SECONDS - PHASE_BEGAN))" "$PHASE")")
    PHASE=""
}

print_phases() {
    phase_end
    [ "${#PHASE_ROWS[@]}" -gt 0 ] || return 0
    say "== seconds per phase"
    say "$(printf '%s\n' "${PHASE_ROWS[@]}")"
    say "$(printf '%6d  total' "$SECONDS")"
}

# --- tests -----------------------------------------------------------------------------------------------

# Reports of the test runs, in the format of JUnit.
REPORTS="$REPO/target/test-reports"
rm -rf -- "$REPORTS"

# run_tests PROFILE LOG [ARGUMENT...]: runs nextest, and keeps its output in LOG and its report in $REPORTS. Fails if nextest
# has left out a test.
run_tests() {
    local profile="$1" log="$2" status=0
    shift 2
    rm -f "target/nextest/$profile/junit.xml"
    cargo nextest run --workspace --locked --profile "$profile" "$@" 2>&1 | tee "$log" || status=$?
    mkdir -p "$REPORTS"
    [ ! -f "target/nextest/$profile/junit.xml" ] ||
        cp "target/nextest/$profile/junit.xml" "$REPORTS/${log##*/}.xml"
    if grep -q '^warning: .* tests were not run' "$log"; then
        say "error: nextest has left out tests"
        [ "$status" -ne 0 ] || status=1
    fi
    return "$status"
}

# Prints the twenty slowest tests of all runs.
print_slowest_tests() {
    have python3 && [ -d "$REPORTS" ] || return 0
    say "== slowest tests, in seconds"
    python3 - "$REPORTS"/*.xml <<'READ' >&2
import sys
import xml.etree.ElementTree

cases = [
    (float(case.get("time", "0")), f"{case.get('classname')} {case.get('name')}")
    for path in sys.argv[1:]
    for case in xml.etree.ElementTree.parse(path).iter("testcase")
]
for seconds, name in sorted(cases, reverse=True)[:20]:
    print(f"{seconds:6.1f}  {name}")
print(f"{sum(seconds for seconds, _ in cases):6.0f}  all {len(cases)}, one after the other")
READ
}
