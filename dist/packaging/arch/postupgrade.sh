if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    for part in @PARTS@; do systemctl try-restart "$part.service"; done
fi
