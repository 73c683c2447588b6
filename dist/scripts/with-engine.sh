#!/usr/bin/env bash
# Runs a command with an additional container engine: with-engine.sh NAME COMMAND [ARGUMENT...]
#
#   bash dist/scripts/with-engine.sh docker-28-containerd cargo nextest run -p contract-tests --test docker update::
#
# The contract tests read EVENKEEL_TEST_ENGINE and DOCKER_CONFIG. To inspect the engine manually, use bash as COMMAND and
# `docker -H "$EVENKEEL_TEST_ENGINE"`. Needs root. NAME is one of ENGINES in engines.sh.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=engines.sh
. "$(dirname "${BASH_SOURCE[0]}")/engines.sh"

[ "$#" -ge 2 ] || die "usage: with-engine.sh NAME COMMAND [ARGUMENT...]; NAME is one of: $ENGINES"
trap engines_stop_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
engines_sweep
status=0
with_engine "$@" || status=$?
[ "$status" -ne 75 ] || say "NOT RUN: $1 ($ENGINE_WHY)"
exit "$status"
