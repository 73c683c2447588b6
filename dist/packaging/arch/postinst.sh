# pacman's hooks of systemd create users and folders and read the units, but only after this script.
for part in @PARTS@; do
    [ ! -e "/usr/lib/sysusers.d/$part.conf" ] || systemd-sysusers "$part.conf"
    systemd-tmpfiles --create "$part.conf"
done
for file in @FILES@; do
    [ -e "/etc/evenkeel/$file" ] || install -m 640 "/usr/share/evenkeel/default/$file" "/etc/evenkeel/$file"
done
