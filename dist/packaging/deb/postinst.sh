#!/bin/sh
set -e
case "$1" in
configure | abort-upgrade | abort-deconfigure | abort-remove) ;;
*) exit 0 ;;
esac
for part in @PARTS@; do
    [ ! -e "/usr/lib/sysusers.d/$part.conf" ] || systemd-sysusers "$part.conf"
    systemd-tmpfiles --create "$part.conf" || true
done
if [ "$1" = configure ] && [ -z "$2" ]; then
    # No package owns the configuration: moving from one package to another asks nothing and loses nothing, and a file that was
    # deleted stays deleted.
    for file in @FILES@; do
        [ -e "/etc/evenkeel/$file" ] || install -m 640 "/usr/share/evenkeel/default/$file" "/etc/evenkeel/$file"
    done
fi
# The agent is enabled and started; the warden waits for its token. What the administrator has chosen is kept.
for part in @PARTS@; do
    if [ "$part" = evenkeel-agent ] || deb-systemd-helper debian-installed "$part.service"; then
        deb-systemd-helper unmask "$part.service" >/dev/null || true
        if deb-systemd-helper --quiet was-enabled "$part.service"; then
            deb-systemd-helper enable "$part.service" >/dev/null || true
        fi
    fi
    deb-systemd-helper update-state "$part.service" >/dev/null || true
done
[ -d /run/systemd/system ] || exit 0
systemctl --system daemon-reload >/dev/null || true
for part in @PARTS@; do
    if [ -n "$2" ]; then
        deb-systemd-invoke try-restart "$part.service" >/dev/null || true
    elif [ "$part" = evenkeel-agent ]; then
        deb-systemd-invoke start "$part.service" >/dev/null || true
    fi
done
