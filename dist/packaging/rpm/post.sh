for part in @PARTS@; do
    [ ! -e "/usr/lib/sysusers.d/$part.conf" ] || systemd-sysusers "$part.conf" || :
    systemd-tmpfiles --create "$part.conf" || :
done
if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi
if [ "$1" -eq 1 ]; then
    for part in @PARTS@; do systemctl --no-reload preset "$part.service" || :; done
fi
