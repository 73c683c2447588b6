#!/usr/bin/env bash
# Prints the base image that the agent's image is tested with: that of Debian, or where it can't be pulled, one that is made
# of the same packages. Usage: bash dist/scripts/base-image.sh
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=engines.sh
. "$(dirname "${BASH_SOURCE[0]}")/engines.sh"

OFFICIAL=debian:trixie-slim
OURS=evenkeel-base:trixie

trap 'stop_ticker; stop_engine_if_ours' EXIT
bring_engine >&2
if docker image inspect "$OFFICIAL" >/dev/null 2>&1 || docker pull -q "$OFFICIAL" >/dev/null 2>&1; then
    echo "$OFFICIAL"
    exit 0
fi
say "$OFFICIAL can't be pulled from here; $OURS is made from Debian's packages"
bring_root trixie trixie-base ca-certificates >&2 || die "no root file system of trixie"
as_root tar -C "$ENGINES_CACHE/trixie-base" --one-file-system -c . | docker import - "$OURS" >/dev/null
echo "$OURS"
