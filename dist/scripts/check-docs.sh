#!/usr/bin/env bash
# Checks the manual and the README: configurations with --check, webhook bodies as actually sent, commands, YAML samples,
# endpoints, keys, links, test names, the table of contents; if mdbook is installed, also the generated pages.
# Usage: bash dist/scripts/check-docs.sh [PROGRAM] (default: target/debug/evenkeel, which must be built)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

program="${1:-$REPO/target/debug/evenkeel}"
[ -x "$program" ] || die "$program is missing: run 'cargo build -p evenkeel' first"
have python3 || apt_install python3
python3 -c "import yaml" 2>/dev/null || apt_install python3-yaml
python3 "$REPO/dist/scripts/check_docs.py" "$REPO" "$program"
if have mdbook; then
    bash "$REPO/dist/scripts/build-manual.sh"
else
    say "NOT CHECKED: that mdbook builds the manual (mdbook is missing)"
fi
say "manual: fine"
