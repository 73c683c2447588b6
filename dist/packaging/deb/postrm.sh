#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl --system daemon-reload >/dev/null || true; fi
[ "$1" = purge ] || exit 0
# Unless another Evenkeel package uses them.
for part in @PARTS@; do
    [ ! -e "/usr/lib/systemd/system/$part.service" ] || continue
    ! command -v deb-systemd-helper >/dev/null || deb-systemd-helper purge "$part.service" >/dev/null || true
    case "$part" in
    evenkeel-agent) rm -rf /var/lib/evenkeel /var/log/evenkeel /etc/evenkeel/config.json /etc/evenkeel/agent.env ;;
    evenkeel-warden) rm -rf /var/lib/evenkeel-warden /etc/evenkeel/warden.json /etc/evenkeel/warden.env ;;
    esac
done
# It may contain files of the administrator.
rmdir /etc/evenkeel 2>/dev/null || true
