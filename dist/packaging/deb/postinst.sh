#!/bin/sh
set -e
case "$1" in
configure | abort-upgrade | abort-deconfigure | abort-remove) ;;
*) exit 0 ;;
esac
mark="/run/$DPKG_MAINTSCRIPT_PACKAGE.installed"
# Whether this is an installation: the first one, one after a removal, or one in the place of another package.
is_new=no
if [ -z "$2" ] || [ -e "$mark" ]; then is_new=yes; fi
for part in @PARTS@; do
    [ ! -e "/usr/lib/sysusers.d/$part.conf" ] || systemd-sysusers "$part.conf"
    systemd-tmpfiles --create "$part.conf" || true
done
if [ "$1" = configure ] && [ "$is_new" = yes ]; then
    # No package owns the configuration: moving from one package to another asks nothing and loses nothing, and an upgrade
    # does not bring back a file that was deleted.
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
rm -f "$mark"
[ -d /run/systemd/system ] || exit 0
systemctl --system daemon-reload >/dev/null || true
for part in @PARTS@; do
    # prerm has stopped the services if this is an installation or a removal was aborted. A new version may be the remedy for a
    # service that has failed. A service that is not enabled is not started.
    if [ "$is_new" = yes ] || [ "$1" = abort-remove ] || systemctl --quiet is-failed "$part.service"; then
        deb-systemd-invoke start "$part.service" >/dev/null || true
    else
        deb-systemd-invoke try-restart "$part.service" >/dev/null || true
    fi
done
