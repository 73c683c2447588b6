#!/bin/sh
# Runs a program inside another root file system: in-root.sh ROOT PROGRAM [ARGUMENT...]
#
# A chroot is not enough for an engine: runc wants / to be a mount point. So this makes a mount namespace, and
# pivots. It ends in exec: the program has the process ID of this script, and its mounts end with the last process of the
# namespace. /proc, /sys, /dev and the folders of temporary files are those of the machine; /run is empty.
set -eu
[ "$#" -ge 2 ] || {
    echo "usage: in-root.sh ROOT PROGRAM [ARGUMENT...]" >&2
    exit 2
}
# shellcheck disable=SC2016  # the inner shell expands it
exec unshare --mount --propagation private -- sh -euc '
    root="$1"
    shift
    if [ "$root" = / ]; then exec "$@"; fi
    mount --bind "$root" "$root"
    for folder in /proc /sys /dev /tmp ${TMPDIR:-}; do
        mkdir -p "$root$folder"
        mount --rbind "$folder" "$root$folder"
    done
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    mkdir -p "$root/.old"
    cd "$root"
    pivot_root . .old
    cd /
    umount -l /.old
    exec "$@"' in-root "$@"
