if [ "$1" -eq 0 ]; then
    for part in @PARTS@; do systemctl --no-reload disable --now "$part.service" || :; done
fi
