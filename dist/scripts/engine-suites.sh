# shellcheck shell=bash
# Runs the deployment tests on all available engines, and prints a table of the results. Sourced after lib.sh.

# shellcheck source-path=SCRIPTDIR source=engines.sh
. "$REPO/dist/scripts/engines.sh"

# The tests on each engine in a default run: those that must pass everywhere, and one of each other kind.
ENGINE_PART='(binary(docker) & test(/^matrix::/))
    | test(=update::a_pushed_image_goes_live_and_is_proven)
    | test(=update::an_image_built_and_pushed_on_this_machine_goes_live)
    | test(=update::a_new_digest_for_the_same_image_is_a_success)
    | test(=rollback::an_unhealthy_image_is_rolled_back)
    | test(=rollback::an_image_that_crashes_without_a_health_check_is_rolled_back)
    | test(=rollback::blocks_and_totals_survive_a_restart_and_only_a_new_digest_lifts_the_block)
    | test(=engine::a_rollback_works_after_a_prune_of_all_images_during_probation)
    | test(/^handover::/)
    | test(=swarm::a_global_service_is_updated_and_rolled_back)
    | test(=swarm_spec::an_update_and_a_rollback_keep_all_of_the_specification_but_the_image)'

# The same with a kill at each step, for engines whose image store differs from that of the machine's engine, on which all
# tests run anyway.
ENGINE_PART_AND_KILLS="$ENGINE_PART | (binary(docker) & test(/^kill::.*::at_once\$/))"

# With --engines: all tests that deploy, heal, start and follow. Not the tests of the harness, not those of the agent alone,
# which do not depend on the engine, and not those for podman only.
ENGINE_WHOLE='binary(docker) - test(/^harness::/) - test(/^podman::/)'

# Podman has its own tests, and some of the others. Its machine has one registry at a time.
PODMAN_SUITE='(binary(docker) & test(/^podman::/))
    | test(=update::a_pushed_image_goes_live_and_is_proven)
    | test(=rollback::an_unhealthy_image_is_rolled_back)
    | test(=rollback::an_image_that_crashes_without_a_health_check_is_rolled_back)
    | test(=rollback::blocks_and_totals_survive_a_restart_and_only_a_new_digest_lifts_the_block)
    | test(/^handover::/)
    | test(/^snapshot::/)'

ENGINE_ROWS=()

# run_engine_suites part|whole: fails if a test failed, but not if an engine is unavailable, which the table shows.
run_engine_suites() {
    local name filter status all=0 began log versions
    log="$(mktemp)"
    versions="$(mktemp)"
    for name in $ENGINES; do
        case "$name/$1" in
        podman-5/*) filter="$PODMAN_SUITE" ;;
        docker-26-containerd/part | docker-28-containerd/part) filter="$ENGINE_PART_AND_KILLS" ;;
        */part) filter="$ENGINE_PART" ;;
        *) filter="$ENGINE_WHOLE" ;;
        esac
        say "== engine $name"
        began="$SECONDS"
        status=0
        : >"$versions"
        with_engine "$name" run_engine_tests "$name" "$filter" "$log" "$versions" || status=$?
        note_engine_suite "$name" "$status" "$((SECONDS - began))" "$log" "$versions"
        [ "$status" -eq 0 ] || [ "$status" -eq 75 ] || all=1
    done
    rm -f "$log" "$versions"
    return "$all"
}

# run_engine_tests NAME FILTER LOG VERSIONS: within with_engine.
run_engine_tests() {
    local threads=()
    [ "$1" != podman-5 ] || threads=(--test-threads 1)
    DOCKER_HOST="$EVENKEEL_TEST_ENGINE" docker version --format '{{.Server.Version}}' >"$4" 2>/dev/null
    docker compose version --short >>"$4" 2>/dev/null
    set -o pipefail
    # The whole workspace, to avoid a rebuild with other features.
    cargo nextest run --workspace --locked --ignore-default-filter "${threads[@]}" -E "package(contract-tests) & ($2)" 2>&1 |
        tee "$3"
}

# note_engine_suite NAME STATUS SECONDS LOG VERSIONS: one row of the table.
note_engine_suite() {
    local summary passed failed engine compose
    if [ "$2" -eq 75 ]; then
        say "NOT RUN: engine $1 ($ENGINE_WHY)"
        ENGINE_ROWS+=("$(printf '%-22s' "$1") NOT RUN: $ENGINE_WHY")
        return
    fi
    { read -r engine && read -r compose; } <"$5" || true
    # "Summary [ 62.3s] 10 tests run: 9 passed (1 flaky), 1 failed, 1 timed out, 182 skipped"
    summary="$(sed -n 's/^ *Summary \[[^]]*\] *//p' "$4" | tail -n 1)"
    passed="$(sed -nE 's/.*[ :]([0-9]+) passed.*/\1/p' <<<"$summary")"
    failed="$(grep -oE '[0-9]+ (failed|timed out|exec failed)' <<<"$summary" | awk '{ n += $1 } END { print n + 0 }')"
    [ -n "$summary" ] || failed="no end"
    ENGINE_ROWS+=("$(printf '%-22s %-16s %-10s %7s %7s %6s' \
        "$1" "${engine:--}" "${compose:--}" "${passed:-0}" "$failed" "$3")")
}

print_engine_table() {
    printf '%-22s %-16s %-10s %7s %7s %6s\n' engine version compose passed failed 's' >&2
    say "$(printf '%s\n' "${ENGINE_ROWS[@]}")"
}
