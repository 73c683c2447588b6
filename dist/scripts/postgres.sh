#!/usr/bin/env bash
# Runs a dedicated PostgreSQL server on a port of 127.0.0.1 as long as standard input is open.
#
# usage: dist/scripts/postgres.sh [--check | --disk MIB]
#   --check      only checks whether PostgreSQL is installed (exit 0), or prints how to install it (exit 1)
#   --disk MIB   stores the data on a separate in-memory disk of this size; needs root
#
# The first line on standard output is "<port> <data folder>". Each line of standard input is a command, answered with "ok":
# `stop` (like a crash: without a checkpoint), `start`, `restart` (both), `fill` and `free` (fills and frees the disk),
# `standby` (starts a hot standby; its port follows `ok`). At the end of input the servers are stopped and their folder is
# removed, however the caller has exited. The superuser is `evenkeel` with the password `secret`.
set -euo pipefail

find_bin() {
    local folder
    for folder in $(printf '%s\n' /usr/lib/postgresql/*/bin /usr/pgsql-*/bin | sort -rV) "$(dirname "$(readlink -f "$(command -v initdb || true)")")"; do
        if [ -x "$folder/initdb" ] && [ -x "$folder/postgres" ]; then
            echo "$folder"
            return
        fi
    done
    echo "no PostgreSQL server here; on Debian: apt-get install postgresql-15" >&2
    return 1
}

bin=$(find_bin) || exit 1
[ "${1:-}" != --check ] || exit 0

if [ "${1:-}" = --disk ]; then
    # The mount is private and disappears with the last process.
    exec unshare --mount --propagation private "$0" --mounted "$2"
fi

# PostgreSQL refuses to run as root.
as=()
if [ "$(id -u)" = 0 ]; then
    as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
fi

folder=$(mktemp -d "${TMPDIR:-/tmp}/evenkeel-postgres.XXXXXX")
data=$folder/data

[ "${1:-}" != --mounted ] || mount -t tmpfs -o "size=$2m" tmpfs "$folder"

own() {
    [ "$(id -u)" != 0 ] || chown -R 65534:65534 "$folder"
}

stop() {
    if [ -f "$data/postmaster.pid" ]; then
        "${as[@]}" "$bin/pg_ctl" -D "$data" -m immediate -w stop >>"$folder/control.log" 2>&1 || true
    fi
}

start() {
    own
    "${as[@]}" "$bin/pg_ctl" -D "$data" -w -t 60 -l "$folder/server.log" -o "-p $port" start >>"$folder/control.log" 2>&1
}

standby_port=

# Starts a standby of this server and sets standby_port.
standby() {
    PGPASSWORD=secret "${as[@]}" "$bin/pg_basebackup" -h 127.0.0.1 -p "$port" -U evenkeel -D "$folder/standby" -R -N \
        >>"$folder/control.log" 2>&1
    local try
    for try in 1 2 3 4 5 6; do
        standby_port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
        if "${as[@]}" "$bin/pg_ctl" -D "$folder/standby" -w -t 60 -l "$folder/standby.log" -o "-p $standby_port" start \
            >>"$folder/control.log" 2>&1; then
            return
        fi
        [ "$try" != 6 ] || return 1
    done
}

cleanup() {
    [ -z "$standby_port" ] || "${as[@]}" "$bin/pg_ctl" -D "$folder/standby" -m immediate -w stop >/dev/null 2>&1 || true
    stop
    if mountpoint -q "$folder"; then umount -l "$folder"; fi
    rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP

echo secret >"$folder/password"
own
cd "$folder"
"${as[@]}" "$bin/initdb" -D "$data" -U evenkeel --pwfile="$folder/password" -A scram-sha-256 -E UTF8 --locale=C \
    --wal-segsize=4 -N >"$folder/control.log" 2>&1 || { cat "$folder/control.log" >&2; exit 1; }
cat >>"$data/postgresql.conf" <<CONF
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 60
shared_buffers = 64MB
min_wal_size = 16MB
CONF

# Another process may take the port in the meantime, so retry.
for try in 1 2 3 4 5 6; do
    port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
    if start; then break; fi
    [ "$try" != 6 ] || { cat "$folder/server.log" >&2; exit 1; }
done
echo "$port $data"

while read -r command; do
    case $command in
    stop) stop ;;
    start) start ;;
    restart) stop && start ;;
    fill) dd if=/dev/zero of="$folder/filler" bs=4096 2>/dev/null || true ;;
    free) rm -f "$folder/filler" ;;
    standby) standby ;;
    *) echo "unknown command: $command" >&2; exit 2 ;;
    esac
    if [ "$command" = standby ]; then echo "ok $standby_port"; else echo ok; fi
done
