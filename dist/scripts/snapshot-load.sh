#!/usr/bin/env bash
# Snapshots of much data, and of a PostgreSQL database. Needs an engine and a registry (dist/scripts/bring-up.sh), and root.
#
#   bash dist/scripts/snapshot-load.sh                                       a small run of each
#   ROUNDS=100 MIB=1024 bash dist/scripts/snapshot-load.sh much_data         20,000 files, spoiled and put back 100 times
#   ROUNDS=3 SIZES=0,256,1024,4096 bash dist/scripts/snapshot-load.sh size   the outage against the size
#   XFS=1 …                                                                  the same on an xfs loop mount, which has reflinks
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source-path=SCRIPTDIR source=lib.sh
. dist/scripts/lib.sh
# shellcheck source-path=SCRIPTDIR source=engines.sh
. dist/scripts/engines.sh

disk=""
finish() {
    remove_postgres_image
    [ -z "$disk" ] || { umount "$disk/mnt" 2>/dev/null || true; rm -rf --one-file-system -- "$disk"; }
}
trap finish EXIT
bring_postgres_image
if [ -n "${XFS:-}" ]; then
    apt_install xfsprogs
    disk="$(mktemp -d "${TMPDIR:-/tmp}/ektest-xfs.XXXXXX")"
    truncate -s 40G "$disk/image"
    mkfs.xfs -q -m reflink=1 "$disk/image"
    mkdir "$disk/mnt"
    mount -o loop "$disk/image" "$disk/mnt"
    export EVENKEEL_DATA="$disk/mnt"
fi
EVENKEEL_ROUNDS="${ROUNDS:-2}" EVENKEEL_MIB="${MIB:-64}" EVENKEEL_SIZES="${SIZES:-0,64}" \
    cargo nextest run -p contract-tests --no-capture --ignore-default-filter \
    -E "binary(docker) & test(/^snapshot_load::/) & test(/${1:-}/)"
