if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    for part in @PARTS@; do
        # With a time limit: a service may wait, for example for its disk.
        # The new version may be the remedy for a service that has failed.
        if systemctl --quiet is-failed "$part.service" && systemctl --quiet is-enabled "$part.service"; then
            timeout 60 systemctl start "$part.service"
        else
            timeout 60 systemctl try-restart "$part.service"
        fi
    done
fi
