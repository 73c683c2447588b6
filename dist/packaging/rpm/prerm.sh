if [ "$1" -eq 0 ]; then
    for part in @PARTS@; do
        @WARN_OF_DEPLOYMENT@
        systemctl --no-reload disable --now "$part.service" || :
    done
fi
