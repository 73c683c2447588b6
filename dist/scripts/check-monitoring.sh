#!/usr/bin/env bash
# Checks the alert rules and the dashboard: the rules with promtool and their unit tests, the dashboard against Grafana's
# published types, every query with promtool, and every metric name against the exposed metrics.
# Usage: bash dist/scripts/check-monitoring.sh [PROGRAM] (default: target/debug/evenkeel, which must be built)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

program="${1:-$REPO/target/debug/evenkeel}"
[ -x "$program" ] || die "$program is missing: run 'cargo build -p evenkeel' first"
bring_promtool
promtool="$(command -v promtool || echo "$REPO/target/tools/promtool")"
have python3 || apt_install python3
python3 -c "import yaml" 2>/dev/null || apt_install python3-yaml
have curl || apt_install curl

rules="$REPO/dist/prometheus"
dashboard="$REPO/dist/grafana/evenkeel.json"
work="$(mktemp -d)"
pids=()
# shellcheck disable=SC2317  # the trap calls it
finish() {
    local code=$?
    trap - EXIT
    if [ "${#pids[@]}" -gt 0 ]; then
        kill "${pids[@]}" 2>/dev/null || true
        wait "${pids[@]}" 2>/dev/null || true
    fi
    [ "$code" -eq 0 ] || tail -n 20 "$work"/*.log >&2 2>/dev/null || true
    rm -rf -- "$work"
    exit "$code"
}
trap finish EXIT

"$promtool" check rules "$rules/evenkeel.rules.yml" >"$work/rules.out" 2>&1 || die "$(cat "$work/rules.out")"
"$promtool" test rules "$rules"/*.test.yml >"$work/test.out" 2>&1 || die "$(cat "$work/test.out")"

# --- exposed metrics -------------------------------------------------------------------------------------------

agent="127.0.0.1:$(free_port)"
warden="127.0.0.1:$(free_port)"
echo 'services: {}' >"$work/compose.yml"
cat >"$work/agent.json" <<CONFIG
{
    "api": { "address": ["$agent"] },
    "registry": { "url": "http://127.0.0.1:9", "poll_interval": 3600 },
    "audit": { "path": "$work/audit.jsonl" },
    "state": { "path": "$work/state" },
    "push": { "warden_url": "http://$warden", "token": "agent-token", "machine_id": "here" },
    "services": [
        {
            "name": "web", "images": ["web:latest"], "auto_update": true,
            "compose_project": "evenkeel-none", "compose_files": ["$work/compose.yml"]
        }
    ]
}
CONFIG
cat >"$work/warden.json" <<CONFIG
{
    "api": { "address": ["$warden"], "token": "people-token" },
    "agents": [{ "id": "here", "url": "http://$agent", "token": "agent-token" }]
}
CONFIG
"$program" --mode warden --config "$work/warden.json" >"$work/warden.log" 2>&1 &
pids+=($!)
env DOCKER_HOST="unix://$work/none.sock" "$program" --config "$work/agent.json" >"$work/agent.log" 2>&1 &
pids+=($!)

# scrape FILE METRIC CURL_ARGUMENT...: scrapes into FILE until METRIC is present, one that appears late after the start.
scrape() {
    local file="$1" metric="$2"
    shift 2
    for _ in $(seq 1 100); do
        curl -fs -o "$file" "$@" && grep -q "^$metric" "$file" && return 0
        sleep 0.1
    done
    die "no $metric: ${*: -1}"
}
scrape "$work/agent.metrics" evenkeel_service_status "http://$agent/metrics"
# Either of them may be the last one: whether the agent answers is known only after some attempts.
for metric in evenkeel_warden_store_oldest_entry_seconds evenkeel_warden_agent_online; do
    scrape "$work/warden.metrics" "$metric" -H 'Authorization: Bearer people-token' "http://$warden/metrics"
done
"$promtool" check metrics <"$work/agent.metrics" || die "promtool reports errors in the agent's metrics"
"$promtool" check metrics <"$work/warden.metrics" || die "promtool reports errors in the warden's metrics"

# --- metric names in rules, dashboard and manual ---------------------------------------------------------------

python3 "$REPO/dist/scripts/check_monitoring.py" "$REPO" "$work"
# Parse every query of the dashboard with promtool.
"$promtool" check rules "$work/queries.yml" >"$work/queries.out" 2>&1 || die "$(cat "$work/queries.out")"

# --- dashboard schema ------------------------------------------------------------------------------------------

bring_dashboard_types
if [ -d "$DASHBOARD_TYPES/ajv" ] && have node; then
    node "$REPO/dist/scripts/check-dashboard.cjs" "$DASHBOARD_TYPES" "$dashboard" || die "the dashboard does not match Grafana's types"
else
    say "NOT CHECKED: the dashboard against Grafana's types (npm is missing or too old, or they cannot be downloaded from here)"
fi
say "alert rules and dashboard: fine"
