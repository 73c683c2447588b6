if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    for part in @PARTS@; do
        # The new version may be the remedy for a service that has failed.
        if systemctl --quiet is-failed "$part.service" && systemctl --quiet is-enabled "$part.service"; then
            systemctl start "$part.service"
        else
            systemctl try-restart "$part.service"
        fi
    done
fi
