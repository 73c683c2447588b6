for part in @PARTS@; do
    [ ! -e "/usr/lib/sysusers.d/$part.conf" ] || systemd-sysusers "$part.conf" || :
    systemd-tmpfiles --create "$part.conf" || :
done
if [ "$1" -eq 1 ]; then
    for file in @FILES@; do
        [ -e "/etc/evenkeel/$file" ] || install -m 640 "/usr/share/evenkeel/default/$file" "/etc/evenkeel/$file"
    done
fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi
if [ "$1" -eq 1 ]; then
    for part in @PARTS@; do systemctl --no-reload preset "$part.service" || :; done
fi
