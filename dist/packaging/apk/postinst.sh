#!/bin/sh
# Whatever the result, apk keeps the package, so the script always succeeds.
for part in @PARTS@; do
    case "$part" in
    evenkeel-warden)
        addgroup -S evenkeel-warden 2>/dev/null
        adduser -S -D -H -h /var/lib/evenkeel-warden -s /sbin/nologin -G evenkeel-warden -g "Evenkeel warden" \
            evenkeel-warden 2>/dev/null
        install -d -m 750 -o evenkeel-warden -g evenkeel-warden /var/lib/evenkeel-warden
        ;;
    *) install -d -m 750 /var/lib/evenkeel /var/log/evenkeel ;;
    esac
done
install -d -m 750 /etc/evenkeel
for file in @FILES@; do
    [ -e "/etc/evenkeel/$file" ] || install -m 640 "/usr/share/evenkeel/default/$file" "/etc/evenkeel/$file"
done
exit 0
