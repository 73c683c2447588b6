#!/bin/sh
# Runs a program inside another root file system: in-root.sh ROOT PROGRAM [ARGUMENT...]
#
# A chroot is not enough for an engine: runc requires / to be a mount point. So this script creates a mount namespace and
# pivots the root. The program replaces this script by exec, and the mounts disappear with the last process of the namespace.
# /proc, /sys, /dev and the temporary folders are those of the machine; /run is empty.
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
