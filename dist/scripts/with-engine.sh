#!/usr/bin/env bash
# Runs a command with an engine of its own beside the machine's: with-engine.sh NAME COMMAND [ARGUMENT...]
#
#   bash dist/scripts/with-engine.sh docker-28-containerd cargo nextest run -p contract-tests --test docker update::
#
# The contract tests read EVENKEEL_TEST_ENGINE and DOCKER_CONFIG; `docker -H "$EVENKEEL_TEST_ENGINE"` is a way to look
# at it by hand (COMMAND may be bash). Needs root. NAME is one of those in engines.sh (ENGINES).
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
