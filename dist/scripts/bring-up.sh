#!/usr/bin/env bash
# Installs missing tools to build, run and test Evenkeel: Rust, engine, compose v2, registry image, busybox.
# An engine started by this script keeps running.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bring_rust
bring_busybox
bring_engine
bring_compose
bring_registry_image
say "ready: $(rustc --version), engine $(docker version --format '{{.Server.Version}}'), compose $(docker compose version --short)"
