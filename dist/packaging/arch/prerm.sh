if [ -d /run/systemd/system ]; then
    for part in @PARTS@; do
        @WARN_OF_DEPLOYMENT@
        systemctl --no-reload disable --now "$part.service"
    done
fi
