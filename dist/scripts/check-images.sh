#!/usr/bin/env bash
# Tests the container images: both start with the shipped compose file and sample .env, become healthy and do not run as
# root; the agent updates a service.
# Usage: bash dist/scripts/check-images.sh [TAG] (default: the version, and latest; built by dist/images.sh)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=release.sh
. "$(dirname "${BASH_SOURCE[0]}")/release.sh"

TAG="${1:-$(version)}"
NAME="evenkeel-images-$$"
WORK=""

finish() {
    local code=$?
    trap - EXIT
    stop_ticker
    if [ -n "$WORK" ]; then
        [ "$code" -eq 0 ] || docker logs "$NAME-agent" 2>&1 | tail -n 20 >&2 || true
        docker rm -fv "$NAME-agent" "$NAME-registry" >/dev/null 2>&1 || true
        compose down -v -t 5 >/dev/null 2>&1 || true
        docker compose -p "$NAME-web" -f "$WORK/web/compose.yml" down -v -t 1 >/dev/null 2>&1 || true
        docker images -q --no-trunc --filter "label=$NAME" | sort -u | xargs -r docker rmi -f >/dev/null 2>&1 || true
        rm -rf "$WORK"
    fi
    stop_engine_if_ours
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Runs compose as a user would, in the folder with .env, but with its own project name.
compose() { (cd "$WORK" && docker compose -p "$NAME" "$@"); }

# until_true SECONDS WHAT COMMAND...
until_true() {
    local end=$((SECONDS + $1)) what="$2"
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || die "did not happen in time: $what"
        sleep 0.5
    done
    say "  ok    $what"
}

healthy() { [ "$(docker inspect -f '{{.State.Health.Status}}' "$1")" = healthy ]; }
is() { [ "$1" = "$2" ] || die "$3: expected $1, got $2"; say "  ok    $3"; }

bring_busybox
bring_engine
bring_compose
bring_registry_image
have curl || apt_install ca-certificates curl
WORK="$(mktemp -d "${TMPDIR:-/tmp}/evenkeel-images-XXXXXX")"
chmod 755 "$WORK"

# --- both images with the compose file -------------------------------------------------------------------

cp "$REPO"/dist/packaging/image/compose*.yml "$WORK/"
# The sample with its blanks filled in, and with its images unless a tag is given.
sed -e "s|^DOCKER_GID=.*|DOCKER_GID=$(stat -L -c %g /var/run/docker.sock)|" -e "s|^PROJECTS=.*|PROJECTS=$WORK/web|" \
    -e "s|^WARDEN_TOKEN=$|&people-0123456789abcdef|" -e "s|^AGENT_TOKEN=$|&agent-0123456789abcdef|" \
    "$REPO/dist/packaging/image/sample/env" >"$WORK/.env"
if [ "$#" -gt 0 ]; then
    sed -i -e "s|^AGENT_IMAGE=.*|AGENT_IMAGE=evenkeel-agent:$TAG|" -e "s|^WARDEN_IMAGE=.*|WARDEN_IMAGE=evenkeel-warden:$TAG|" "$WORK/.env"
fi
mkdir "$WORK/web"
cp "$REPO"/dist/packaging/image/sample/*.json "$WORK/"
chmod 644 "$WORK"/*.json

# all_start PART...: starts the services and waits until they are healthy.
all_start() {
    local part
    compose up -d "$@" >/dev/null 2>&1 || die "compose could not start them: $(compose up -d "$@" 2>&1 | tail -n 1)"
    for part in "$@"; do
        until_true 90 "the $part is healthy, by its own health check" healthy "$NAME-$part-1"
    done
}

store_works() {
    docker exec "$NAME-warden-1" /evenkeel health --config /etc/evenkeel/warden.json &&
        curl -fs http://127.0.0.1:8080/health | grep -qx '{"status":"ok"}'
}

all_start agent warden
for part in agent warden; do
    is "$(docker image inspect -f '{{.Id}}' "evenkeel-$part:$TAG")" "$(docker inspect -f '{{.Image}}' "$NAME-$part-1")" \
        "the $part runs the image evenkeel-$part:$TAG"
done
is 10001 "$(docker exec "$NAME-agent-1" id -u)" "the agent is not root"
is 10002:10002 "$(docker inspect -f '{{.Config.User}}' "$NAME-warden-1")" "the warden is not root"
until_true 30 "the agent's entries are at the warden" \
    sh -c "curl -fs -H 'Authorization: Bearer people-0123456789abcdef' http://127.0.0.1:8080/machines | grep -q '\"here\"'"
until_true 60 "the warden has sent a heartbeat to the agent" \
    sh -c "curl -fs -H 'Authorization: Bearer people-0123456789abcdef' http://127.0.0.1:8080/metrics | grep -q '^evenkeel_warden_agent_online{.*here.*} 1'"
compose stop -t 30 warden >/dev/null 2>&1
is 0 "$(docker inspect -f '{{.State.ExitCode}}' "$NAME-warden-1")" "the warden shuts down gracefully"
compose down -v -t 30 >/dev/null 2>&1
if docker image inspect postgres:17-alpine >/dev/null 2>&1 || timeout 120 docker pull -q postgres:17-alpine >/dev/null 2>&1; then
    sed -i -e "s/^#\([A-Z_]*=\)/\1/" -e "s/^POSTGRES_PASSWORD=$/&x/" "$WORK/.env"
    all_start agent postgres warden
    until_true 30 "the warden has its store in PostgreSQL" store_works
    compose down -v -t 30 >/dev/null 2>&1
else
    say "NOT RUN: the warden with a database (postgres:17-alpine cannot be pulled)"
fi

# --- an update by the agent ------------------------------------------------------------------------------

docker run -d --name "$NAME-registry" -p 127.0.0.1::5000 registry:2 >/dev/null
HOST="$(docker port "$NAME-registry" 5000/tcp | head -n 1)"
until_true 20 "the registry responds" curl -fs --max-time 2 "http://$HOST/v2/"
image() {
    mkdir -p "$WORK/image/bin"
    cp "$(command -v busybox)" "$WORK/image/bin/busybox"
    echo "$1" >"$WORK/image/version"
    tar -C "$WORK/image" -c . | docker import -c 'CMD ["/bin/busybox","sleep","86400"]' -c "LABEL $NAME=1" - "$HOST/web:latest" >/dev/null
    docker push -q "$HOST/web:latest" >/dev/null
}
printf 'services:\n  web:\n    image: %s/web:latest\n    stop_grace_period: 1s\n' "$HOST" >"$WORK/web/compose.yml"
image 1
docker compose -p "$NAME-web" -f "$WORK/web/compose.yml" up -d >/dev/null 2>&1
port=9190
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
cat >"$WORK/agent.json" <<CONFIG
{
  "registry": {"url": "http://$HOST", "poll_interval": 10},
  "api": {"address": ["127.0.0.1:$port"]},
  "audit": {"path": "/var/log/evenkeel/audit.jsonl"},
  "services": [{"name": "web", "images": ["web:latest"], "compose_files": ["$WORK/web/compose.yml"],
    "compose_project": "$NAME-web", "auto_update": true, "health_grace": 5,
    "update": {"gate": ["/bin/sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & exit 0"]}}]
}
CONFIG
# The registry of this test listens on this machine's loopback address.
docker run -d --name "$NAME-agent" --network host --read-only --tmpfs /tmp --cap-drop ALL \
    --security-opt no-new-privileges --group-add "$(stat -L -c %g /var/run/docker.sock)" \
    -v /var/run/docker.sock:/var/run/docker.sock -v "$WORK/agent.json:/etc/evenkeel/config.json:ro" \
    -v "$WORK/web:$WORK/web:ro" "evenkeel-agent:$TAG" >/dev/null
until_true 30 "the agent in a container has checked the service" sh -c "curl -fs http://127.0.0.1:$port/status | grep -q last_poll"
image 2
until_true 90 "the agent has updated it" sh -c "curl -fs 'http://127.0.0.1:$port/audit' | grep -q '\"event\":\"updated\"'"
no_zombies() {
    local states
    states="$(docker exec "$NAME-agent" sh -c 'cat /proc/[0-9]*/status 2>/dev/null; true')" &&
        [[ "$states" == *State:* && "$states" != *State:$'\t'Z* ]]
}
until_true 30 "what the gate command has left behind is reaped" no_zombies
is 2 "$(docker exec "$NAME-web-web-1" /bin/busybox cat /version)" "the new image is running"
say "images: fine"
