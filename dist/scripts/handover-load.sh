#!/usr/bin/env bash
# Handovers under load, behind HAProxy, nginx and Caddy. Needs an engine and a registry (dist/scripts/bring-up.sh), and root for
# the root file system that the proxies' programs are taken from.
#
#   bash dist/scripts/handover-load.sh            two good and two bad images behind each
#   ROUNDS=50 bash dist/scripts/handover-load.sh behind_haproxy
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source-path=SCRIPTDIR source=lib.sh
. dist/scripts/lib.sh
# shellcheck source-path=SCRIPTDIR source=engines.sh
. dist/scripts/engines.sh

trap remove_proxies_image EXIT
bring_proxies_image
EVENKEEL_ROUNDS="${ROUNDS:-2}" cargo nextest run -p contract-tests --no-capture \
    --run-ignored all -E "binary(docker) & test(/^handover_load::/) & test(/${1:-}/)"
