#!/bin/sh
for part in @PARTS@; do
    rc-service --quiet --ifstarted "$part" restart
done
exit 0
