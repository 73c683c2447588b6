#!/bin/sh
for part in @PARTS@; do
    @WARN_OF_DEPLOYMENT@
    rc-service --quiet --ifstarted "$part" stop
    rc-update --quiet --all delete "$part" 2>/dev/null
done
exit 0
