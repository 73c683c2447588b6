if [ -d /run/systemd/system ]; then
    for part in @PARTS@; do systemctl --no-reload disable --now "$part.service"; done
fi
