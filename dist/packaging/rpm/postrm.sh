if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
    if [ "$1" -ge 1 ]; then
        for part in @PARTS@; do systemctl try-restart "$part.service" || :; done
    fi
fi
