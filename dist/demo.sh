#!/usr/bin/env bash
# Demonstrates Evenkeel on this machine: a pushed image is deployed and proven, a bad one is rolled back.
# Usage: bash dist/demo.sh [--fleet] [--once]
#   --fleet  three agents, and two wardens that share a PostgreSQL database: a bad image affects one machine only
#   --once   exits after the demo, with status 0 only if it succeeded; otherwise it keeps running until Ctrl-C
# $EVENKEEL_BIN can name a program that has already been built.
# The demo says first what it will install, download and build. It removes everything that it creates on the engine. A container
# engine that it had to start is stopped at the end. What it installs stays installed.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/scripts/lib.sh"
cd "$REPO"

ONCE=""
STORY=one
for flag in "$@"; do
    case "$flag" in
    --once) ONCE=1 ;;
    --fleet) STORY=fleet ;;
    *)
        say "usage: bash dist/demo.sh [--fleet] [--once]"
        exit 2
        ;;
    esac
done

NAME="evenkeel-demo-$$"
WORK=""
REGISTRY=""
MACHINES=()              # names of the agents
declare -A API=()        # address of each agent's API
declare -A PROCESS=()    # processes by name: agents and wardens
declare -A PROJECTS=()   # compose file of each project
declare -A SEEN=()       # number of audit entries printed per agent
declare -A LAST=()       # last phase printed per agent
BEGAN="$(date +%s)"

TOLD=0 # when the last line was printed

tell() {
    TOLD="$SECONDS"
    printf '%3ds  %s\n' "$(($(date +%s) - BEGAN))" "$*"
}

# stop NAME [SIGNAL]: stops one of our processes and waits for it.
stop() {
    [ -n "${PROCESS[$1]:-}" ] || return 0
    kill "-${2:-TERM}" "${PROCESS[$1]}" 2>/dev/null || true
    wait "${PROCESS[$1]}" 2>/dev/null || true
    unset "PROCESS[$1]"
}

# shellcheck disable=SC2317  # the trap calls it
finish() {
    local code=$? name
    trap - EXIT INT TERM
    stop_ticker
    for name in "${!PROCESS[@]}"; do
        stop "$name"
        if [ "$code" -ne 0 ] && [ "$code" -ne 130 ] && [ "$code" -ne 143 ]; then
            say "the last lines of $name:"
            tail -n 20 "$WORK/$name.log" >&2
        fi
    done
    # It is known only once the story has begun.
    if declare -F database_stop >/dev/null; then database_stop; fi
    if [ -n "$WORK" ]; then
        for name in "${!PROJECTS[@]}"; do
            docker compose -p "$name" -f "${PROJECTS[$name]}" --progress quiet down -v -t 1 >/dev/null 2>&1 || true
            # An agent that is stopped during a deployment leaves its hold on the old image for its next start.
            docker ps -aq --filter "label=evenkeel.hold=$name" | xargs -r docker rm -f >/dev/null 2>&1 || true
        done
        [ -z "$REGISTRY" ] || docker rm -fv "$REGISTRY" >/dev/null 2>&1 || true
        docker images -q --no-trunc --filter "label=$NAME" | sort -u | xargs -r docker rmi -f >/dev/null 2>&1 || true
        rm -rf "$WORK"
        remove_registry_image_if_ours
        say "removed: the demo's containers, images and files"
    fi
    stop_engine_if_ours
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- requirements ----------------------------------------------------------------------------------------

# Never silent for long, in a log as well.
TIMED_EVERY=8

# Says what is missing here, with sizes of Debian's packages, and how long that takes.
announce() {
    local plan=() time="less than a minute"
    [ "$STORY" = one ] || time="one to two minutes"
    have curl || plan+=("install curl")
    if [ -z "${EVENKEEL_BIN:-}" ]; then
        have cc || plan+=("install a C compiler: 60 MB")
        rust_is_new_enough || plan+=("install Rust: 150 MB")
    fi
    have busybox || plan+=("install busybox: 1 MB")
    have dockerd || have docker || plan+=("install a container engine: 70 MB")
    compose_answers || plan+=("install compose v2: 20 MB")
    docker image inspect registry:2 >/dev/null 2>&1 || plan+=("pull the image registry:2, or build one: 10 MB")
    [ "$STORY" = one ] || bash dist/scripts/postgres.sh --check 2>/dev/null || plan+=("install PostgreSQL: 50 MB")
    if [ -z "${EVENKEEL_BIN:-}" ]; then
        if [ -x "${CARGO_TARGET_DIR:-target}/debug/evenkeel" ]; then
            plan+=("build what has changed since the last build")
        else
            plan+=("build Evenkeel: 25 MB of crates, then 3 to 6 minutes on two processors")
        fi
    fi
    if [ "${#plan[@]}" -gt 0 ]; then
        say "before the demo, this script will:"
        say "$(printf '  - %s\n' "${plan[@]}")"
    fi
    say "the demo itself takes $time"
}

announce
have curl || apt_install ca-certificates curl
[ -n "${EVENKEEL_BIN:-}" ] || bring_rust
bring_busybox
bring_engine
bring_compose
bring_registry_image
if [ "$STORY" = fleet ]; then
    bring_postgres || die "PostgreSQL is missing and can't be installed from here"
fi
PROGRAM="${EVENKEEL_BIN:-}"
if [ -z "$PROGRAM" ]; then
    timed "building Evenkeel (the first time takes a few minutes)" cargo build --locked -p evenkeel ||
        die "the build failed: see above"
    PROGRAM="${CARGO_TARGET_DIR:-target}/debug/evenkeel"
fi

WORK="$(mktemp -d "${TMPDIR:-/tmp}/evenkeel-demo-XXXXXX")"

# free_port FIRST: prints an unused TCP port from FIRST upwards.
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

# --- registry, image maker, projects, agents -------------------------------------------------------------

REGISTRY="$(docker run -d --name "$NAME-registry" -p 127.0.0.1::5000 registry:2)"
HOST="$(docker port "$REGISTRY" 5000/tcp | head -n 1)"
for _ in $(seq 1 50); do
    curl -fs --max-time 2 "http://$HOST/v2/" >/dev/null && break
    sleep 0.1
done
curl -fs --max-time 2 "http://$HOST/v2/" >/dev/null || die "the registry at $HOST does not answer"

# image VERSION HEALTH_PATH: builds an image with a web server whose health check requests HEALTH_PATH.
image() {
    local root="$WORK/image-$1"
    mkdir -p "$root/bin" "$root/www" "$root/tmp"
    cp "$(command -v busybox)" "$root/bin/busybox"
    for applet in sh httpd wget; do ln -sf busybox "$root/bin/$applet"; done
    printf '<h1>Demo, version %s</h1>\n' "$1" >"$root/www/index.html"
    tar -C "$root" --owner=0 --group=0 --numeric-owner -c . | docker import \
        -c 'CMD ["/bin/httpd","-f","-p","80","-h","/www"]' \
        -c "HEALTHCHECK --interval=1s --timeout=1s --retries=2 CMD wget -q -O /dev/null http://127.0.0.1/$2" \
        -c "LABEL $NAME=$1" - "$HOST/demo/web:latest" >/dev/null
}

push() { docker push -q "$HOST/demo/web:latest" >/dev/null; }

# project FOLDER NAME PAGE: runs the image as a web service at the address PAGE.
project() {
    cat >"$1/compose.yml" <<COMPOSE
services:
  web:
    image: $HOST/demo/web:latest
    restart: unless-stopped
    stop_grace_period: 1s
    ports: ["$3:80"]
COMPOSE
    PROJECTS[$2]="$1/compose.yml"
    docker compose -p "$2" -f "$1/compose.yml" --progress quiet up -d
}

# agent MACHINE FOLDER PROJECT POLL_INTERVAL [MORE]: starts an agent for a project; MORE is the rest of its configuration.
agent() {
    API[$1]="127.0.0.1:$(free_port 9090)"
    cat >"$2/config.json" <<CONFIG
{
  "registry": {"url": "http://$HOST", "poll_interval": $4},
  "api": {"address": ["${API[$1]}"]},
  "audit": {"path": "$2/audit.jsonl"},
  "state": {"path": "$2/state"},
  ${5:-}
  "services": [{
    "name": "demo",
    "images": ["demo/web:latest"],
    "compose_files": ["$2/compose.yml"],
    "compose_project": "$3",
    "auto_update": true,
    "health_grace": 3
  }]
}
CONFIG
    "$PROGRAM" --mode agent --config "$2/config.json" >"$WORK/$1.log" 2>&1 &
    PROCESS[$1]=$!
    MACHINES+=("$1")
    until_true 20 "the agent responds at ${API[$1]}" answers "$1"
}

# get MACHINE PATH
get() { curl -fs --max-time 5 "http://${API[$1]}$2" 2>/dev/null || true; }

# --- progress --------------------------------------------------------------------------------------------

field() { sed -n "s/.*\"$1\":\"\([^\"\\\\]*\).*/\1/p"; }

# Prints the news since the last call: the phase of each deployment, and audit entries.
follow() {
    local machine
    for machine in "${MACHINES[@]}"; do follow_one "$machine"; done
}

follow_one() {
    local status phase entry total now="$WORK/$1.now" who=""
    [ "$STORY" = one ] || who="$1: "
    kill -0 "${PROCESS[$1]}" 2>/dev/null || die "the agent has exited"
    status="$(get "$1" /status/demo)"
    phase="$(field phase <<<"$status")"
    [ -n "$phase" ] || phase="$(field gate <<<"$status")"
    if [ "$phase" != "${LAST[$1]:-}" ]; then
        case "$phase" in
        pulling) tell "  ${who}a new image is in the registry: pulling it" ;;
        starting) tell "  ${who}pulled; starting the service with it" ;;
        probation) tell "  ${who}on probation: it must become healthy and stay healthy" ;;
        rolling_back) tell "  ${who}it failed: rolling back to the old image" ;;
        '') ;;
        *) tell "  ${who}waiting: $(field why <<<"$status")" ;;
        esac
        LAST[$1]="$phase"
    fi
    get "$1" '/audit?limit=500' | sed 's/},{"timestamp"/}\n{"timestamp"/g' >"$now"
    total="$(grep -c '"event"' "$now" || true)"
    if [ "$total" -gt "${SEEN[$1]:-0}" ]; then
        head -n "$((total - ${SEEN[$1]:-0}))" "$now" | tac >"$now.new"
        SEEN[$1]="$total"
        while read -r entry; do
            # For a fleet only print outcomes; the phases already show the beginnings.
            [[ "$STORY" = one || "$(field event <<<"$entry")" =~ ^(updated|rolled_back|rollback_failed|errored)$ ]] || continue
            tell "  ${who}[$(field level <<<"$entry")] $(field event <<<"$entry"): $(field message <<<"$entry")"
            entry="$(field reason <<<"$entry")"
            [ -z "$entry" ] || tell "      why: $entry"
        done <"$now.new"
    fi
}

# until_true SECONDS WHAT COMMAND...: prints progress until the command succeeds.
until_true() {
    local end=$((SECONDS + $1)) what="$2"
    shift 2
    while :; do
        follow
        "$@" && return 0
        [ "$SECONDS" -lt "$end" ] || die "did not happen in time: $what"
        [ $((SECONDS - TOLD)) -lt 8 ] || tell "  waiting until $what"
        sleep 0.3
    done
}

answers() { [ -n "$(get "$1" /status)" ]; }
# quiet MACHINE: its next check is not due in the next seconds. The registry answers a check with an error while an image is being
# pushed.
quiet() {
    local last
    last="$(get "$1" /status | sed -n 's/.*"last_poll":"\([^"]*\)".*/\1/p')"
    [ -n "$last" ] && [ $(($(date +%s) - $(date -d "$last" +%s))) -lt 7 ]
}
polled() { get "$1" /status | grep -q '"last_poll"'; }
wrote() { grep -q "\"event\":\"$2\"" "$WORK/$1.now"; }
blocked() { get "$1" /blocked | grep -q '"demo/demo/web:latest":"sha256:'; }
# shows PAGE VERSION
shows() { curl -fs --max-time 2 "http://$1/" 2>/dev/null | grep -q "version $2"; }

summary() {
    tell "in this demo:"
    printf '        - %s\n' "$@"
}

stay() {
    [ -z "$ONCE" ] || exit 0
    tell "running until you press Ctrl-C; try: $*"
    while :; do
        follow
        sleep 1
    done
}

if [ "$STORY" = fleet ]; then
    # shellcheck source-path=SCRIPTDIR source=scripts/demo-fleet.sh
    . dist/scripts/demo-fleet.sh
    fleet_story
    exit
fi

PAGE="127.0.0.1:$(free_port 8080)"
image v1 index.html
push
project "$WORK" "$NAME" "$PAGE"
tell "a web service is running: version 1, http://$PAGE/"

agent demo "$WORK" "$NAME" 10
tell "the agent watches it: http://${API[demo]}/status"
until_true 30 "the first check" polled demo

image v2 index.html
until_true 20 "the agent has checked" quiet demo
push
tell "version 2 is pushed (a good one); the agent checks every 10 seconds"
until_true 60 "version 2 is proven" wrote demo updated
until_true 10 "the page shows version 2" shows "$PAGE" v2
tell "version 2 is live and proven: http://$PAGE/"

image v3 no-such-page
until_true 20 "the agent has checked" quiet demo
push
tell "version 3 is pushed (a broken one: its health check fails), and the agent is asked to check at once"
curl -fs --max-time 5 -o /dev/null -X POST "http://${API[demo]}/trigger/demo"
until_true 90 "version 3 is rolled back" wrote demo rolled_back
until_true 10 "version 3 is blocked" blocked demo
until_true 10 "the page shows version 2 again" shows "$PAGE" v2
tell "version 2 is back, and the digest of version 3 is blocked: http://${API[demo]}/blocked"

summary "a good image was found, deployed, and proven by a probation" \
    "a broken image was found and deployed, failed its probation, and was rolled back by image ID" \
    "its digest is blocked until the registry has another one"
stay "curl -X POST http://${API[demo]}/trigger/demo"
