#!/usr/bin/env bash
# Brings what this machine lacks to build, try and test: Rust, engine, compose v2, registry image, busybox.
# An engine that is started here stays (on a machine with systemd it would anyway).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bring_rust
bring_busybox
bring_engine
bring_compose
bring_registry_image
say "ready: $(rustc --version), engine $(docker version --format '{{.Server.Version}}'), compose $(docker compose version --short)"
