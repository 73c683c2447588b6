#!/usr/bin/env bash
# Builds the container images evenkeel-agent and evenkeel-warden.
# Usage: bash dist/images.sh [--base IMAGE] [--program FILE] [--tag TAG]
#   --base      base image of the agent's image (default: debian:trixie-slim)
#   --program   a static program to use instead of building one
#   --tag       default: the version, and latest
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=scripts/release.sh
. "$(dirname "${BASH_SOURCE[0]}")/scripts/release.sh"
cd "$REPO"

BASE="debian:trixie-slim"
PROGRAM=""
TAG="$(version)"
LATEST=1
while [ "$#" -gt 0 ]; do
    case "$1" in
    --base) BASE="${2:?--base requires an image}" && shift 2 ;;
    --program) PROGRAM="$(realpath "${2:?--program requires a file}")" && shift 2 ;;
    --tag) TAG="${2:?--tag requires a tag}" && LATEST="" && shift 2 ;;
    *)
        say "usage: bash dist/images.sh [--base IMAGE] [--program FILE] [--tag TAG]"
        exit 2
        ;;
    esac
done

trap 'stop_ticker; stop_engine_if_ours' EXIT
bring_engine
if [ -z "$PROGRAM" ]; then
    bring_rust
    bring_zig
    ARCH="$(uname -m)"
    timed "building the static program" build_programs "$ARCH" musl || die "the static program could not be built: see above"
    PROGRAM="$(programs_of "$ARCH" musl)/evenkeel"
fi
[ -z "$(shared_libraries_of "$PROGRAM")" ] || die "$PROGRAM is not static: the warden's image has no dynamic loader"

FOLDER="$REPO/target/package/image"
rm -rf "$FOLDER"
mkdir -p "$FOLDER/state"
install -m 755 "$PROGRAM" "$FOLDER/evenkeel"
install -m 644 dist/packaging/image/agent.json dist/packaging/etc/warden.json "$FOLDER/"
certificates="${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}"
[ -e "$certificates" ] || apt_install ca-certificates
install -m 644 "$certificates" "$FOLDER/ca-certificates.crt"
# Host networking: the packages can be fetched without a network of the engine.
for part in agent warden; do
    timed "image evenkeel-$part:$TAG" docker build --network host --build-arg "BASE=$BASE" \
        ${EVENKEEL_APT_SOURCES:+--build-arg "APT_SOURCES=$EVENKEEL_APT_SOURCES"} \
        --label "org.opencontainers.image.title=evenkeel-$part" --label "org.opencontainers.image.version=$TAG" \
        --label "org.opencontainers.image.licenses=MIT OR Apache-2.0" \
        --label "org.opencontainers.image.revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
        -t "evenkeel-$part:$TAG" ${LATEST:+-t "evenkeel-$part:latest"} -f "dist/packaging/image/$part.Dockerfile" "$FOLDER" || die "see above"
done
docker image ls --format '{{.Repository}}:{{.Tag}} {{.Size}}' | grep -E "^evenkeel-(agent|warden):$TAG " >&2
