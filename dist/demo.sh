#!/usr/bin/env bash
# Shows Evenkeel's main job on this machine: a pushed image goes live and is proven, a bad one is undone.
# Usage: bash dist/demo.sh [--once]
#   --once   ends after the story, with status 0 only if it came true; else it stays until Ctrl-C
# It cleans up after itself. A container engine that it had to start is stopped at the end.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/scripts/lib.sh"
cd "$REPO"

ONCE=""
case "${1:-}" in
'') ;;
--once) ONCE=1 ;;
*)
    say "usage: bash dist/demo.sh [--once]"
    exit 2
    ;;
esac

NAME="evenkeel-demo-$$"
WORK=""
REGISTRY=""
AGENT=""
SEEN=0     # audit entries told so far
LAST=""    # last phase told
BEGAN="$(date +%s)"

tell() { printf '%3ds  %s\n' "$(($(date +%s) - BEGAN))" "$*"; }

# shellcheck disable=SC2317  # the trap calls it
finish() {
    local code=$?
    trap - EXIT INT TERM
    stop_ticker
    if [ -n "$AGENT" ]; then
        kill "$AGENT" 2>/dev/null || true
        wait "$AGENT" 2>/dev/null || true
    fi
    if [ -n "$WORK" ]; then
        if [ "$code" -ne 0 ] && [ "$code" -ne 130 ] && [ "$code" -ne 143 ] && [ -f "$WORK/agent.log" ]; then
            say "the agent's last lines:"
            tail -n 20 "$WORK/agent.log" >&2
        fi
        [ ! -f "$WORK/compose.yml" ] ||
            docker compose -p "$NAME" -f "$WORK/compose.yml" --progress quiet down -v -t 1 >/dev/null 2>&1 || true
        # Stopped in the middle of a deployment, the agent leaves its hold on the old image to its next start.
        docker ps -aq --filter "label=evenkeel.hold=$NAME" | xargs -r docker rm -f >/dev/null 2>&1 || true
        [ -z "$REGISTRY" ] || docker rm -fv "$REGISTRY" >/dev/null 2>&1 || true
        docker images -q --no-trunc --filter "label=$NAME" | sort -u | xargs -r docker rmi -f >/dev/null 2>&1 || true
        rm -rf "$WORK"
    fi
    stop_engine_if_ours
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- what it needs ---------------------------------------------------------------------------------------

have curl || apt_install ca-certificates curl
bring_rust
bring_busybox
bring_engine
bring_compose
bring_registry_image
timed "building Evenkeel (the first time takes a few minutes)" cargo build --locked -p evenkeel ||
    die "it could not be built: see above"
PROGRAM="${CARGO_TARGET_DIR:-target}/debug/evenkeel"

WORK="$(mktemp -d "${TMPDIR:-/tmp}/evenkeel-demo-XXXXXX")"

# A TCP port that nobody listens on, from 9090 upwards.
free_port() {
    local port
    for port in $(seq "$1" $(($1 + 200))); do
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            echo "$port"
            return 0
        fi
    done
    die "no free port from $1 upwards"
}

# --- registry, image maker, project ----------------------------------------------------------------------

REGISTRY="$(docker run -d --name "$NAME-registry" -p 127.0.0.1::5000 registry:2)"
HOST="$(docker port "$REGISTRY" 5000/tcp | head -n 1)"
for _ in $(seq 1 50); do
    curl -fs --max-time 2 "http://$HOST/v2/" >/dev/null && break
    sleep 0.1
done
curl -fs --max-time 2 "http://$HOST/v2/" >/dev/null || die "the registry at $HOST does not answer"

# image VERSION HEALTH_PATH: a web server in an image; its health check asks for HEALTH_PATH.
image() {
    local root="$WORK/image-$1"
    mkdir -p "$root/bin" "$root/www" "$root/tmp"
    cp "$(command -v busybox)" "$root/bin/busybox"
    for applet in sh httpd wget; do ln -sf busybox "$root/bin/$applet"; done
    printf '<h1>Demo, version %s</h1>\n' "$1" >"$root/www/index.html"
    tar -C "$root" --owner=0 --group=0 --numeric-owner -c . | docker import \
        -c 'CMD ["/bin/httpd","-f","-p","80","-h","/www"]' \
        -c "HEALTHCHECK --interval=1s --timeout=2s --retries=3 CMD wget -q -O /dev/null http://127.0.0.1/$2" \
        -c "LABEL $NAME=1" - "$HOST/demo/web:latest" >/dev/null
}

push() { docker push -q "$HOST/demo/web:latest" >/dev/null; }

PAGE="127.0.0.1:$(free_port 8080)"
cat >"$WORK/compose.yml" <<COMPOSE
services:
  web:
    image: $HOST/demo/web:latest
    restart: unless-stopped
    stop_grace_period: 1s
    ports: ["$PAGE:80"]
COMPOSE

image v1 index.html
push
docker compose -p "$NAME" -f "$WORK/compose.yml" --progress quiet up -d
tell "a web service runs: version 1, http://$PAGE/"

API="127.0.0.1:$(free_port 9090)"
cat >"$WORK/config.json" <<CONFIG
{
  "registry": {"url": "http://$HOST", "poll_interval": 10},
  "api": {"address": ["$API"]},
  "audit": {"path": "$WORK/audit.jsonl"},
  "state": {"path": "$WORK/state"},
  "services": [{
    "name": "demo",
    "images": ["demo/web:latest"],
    "compose_files": ["$WORK/compose.yml"],
    "compose_project": "$NAME",
    "auto_update": true,
    "health_grace": 5
  }]
}
CONFIG
"$PROGRAM" --mode agent --config "$WORK/config.json" >"$WORK/agent.log" 2>&1 &
AGENT=$!

get() { curl -fs --max-time 5 "http://$API$1" 2>/dev/null || true; }

# --- telling what happens --------------------------------------------------------------------------------

field() { sed -n "s/.*\"$1\":\"\([^\"\\\\]*\).*/\1/p"; }

# Tells what is new since the last call: the phase of a deployment, and audit entries.
follow() {
    local phase entry total
    kill -0 "$AGENT" 2>/dev/null || die "the agent has ended"
    phase="$(get /status/demo | field phase)"
    if [ "$phase" != "$LAST" ]; then
        case "$phase" in
        pulling) tell "  a new image is in the registry: pulling it" ;;
        starting) tell "  pulled; starting the service with it" ;;
        probation) tell "  on probation: it must be healthy, and stay so" ;;
        rolling_back) tell "  it failed: putting the old image back" ;;
        esac
        LAST="$phase"
    fi
    get '/audit?limit=500' | sed 's/},{"timestamp"/}\n{"timestamp"/g' >"$WORK/audit.now"
    total="$(grep -c '"event"' "$WORK/audit.now" || true)"
    if [ "$total" -gt "$SEEN" ]; then
        head -n "$((total - SEEN))" "$WORK/audit.now" | tac >"$WORK/audit.new"
        SEEN="$total"
        while read -r entry; do
            tell "  [$(printf '%s' "$entry" | field level)] $(printf '%s' "$entry" | field event): $(printf '%s' "$entry" | field message)"
            entry="$(printf '%s' "$entry" | field reason)"
            [ -z "$entry" ] || tell "      why: $entry"
        done <"$WORK/audit.new"
    fi
}

# until_true SECONDS WHAT COMMAND...: follows until the command succeeds.
until_true() {
    local end=$((SECONDS + $1)) what="$2"
    shift 2
    while :; do
        follow
        "$@" && return 0
        [ "$SECONDS" -lt "$end" ] || die "did not happen in time: $what"
        sleep 0.3
    done
}

answers() { [ -n "$(get /status)" ]; }
polled() { get /status | grep -q '"last_poll"'; }
wrote() { grep -q "\"event\":\"$1\"" "$WORK/audit.now"; }
blocked() { get /blocked | grep -q '"demo/demo/web:latest":"sha256:'; }
shows() { curl -fs --max-time 2 "http://$PAGE/" 2>/dev/null | grep -q "version $1"; }

until_true 20 "the agent answers at $API" answers
tell "the agent watches it: http://$API/status"
until_true 30 "the first check" polled

image v2 index.html
push
tell "version 2 is pushed (a good one); the agent checks every 10 seconds"
until_true 60 "version 2 is proven" wrote updated
until_true 10 "the page shows version 2" shows v2
tell "version 2 is live and proven: http://$PAGE/"

image v3 no-such-page
push
tell "version 3 is pushed (a broken one: its health check fails)"
until_true 90 "version 3 is undone" wrote rolled_back
until_true 10 "version 3 is blocked" blocked
until_true 10 "the page shows version 2 again" shows v2
tell "version 2 is back, and the digest of version 3 is blocked: http://$API/blocked"

[ -z "$ONCE" ] || exit 0
tell "it stays like this until you press Ctrl-C; try: curl -X POST http://$API/trigger/demo"
while :; do
    follow
    sleep 1
done
