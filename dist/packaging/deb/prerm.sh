#!/bin/sh
set -e
# On an upgrade, the service runs until its new version is there.
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    for part in @PARTS@; do
        @WARN_OF_DEPLOYMENT@
        deb-systemd-invoke stop "$part.service" >/dev/null || true
    done
fi
