# shellcheck shell=bash
# Containers that boot systemd (systemd-nspawn) on a copy-on-write layer over a cached root file system.
# Sourced after lib.sh, never run. `machine_stop` stops a machine and removes its traces.

# machine_boot FOLDER ROOT [NSPAWN_OPTION...]: boots ROOT without modifying it, and returns while it is booting. Changes are in
# FOLDER/upper; the merged files are in FOLDER/root. MACHINE_PREPARE names a function that is called with FOLDER before the
# boot. On failure, the last line is the reason.
machine_boot() {
    local folder="$1" root="$2" group
    shift 2
    apt_install systemd-container
    mkdir -p "$folder"/{upper,work,root}
    mount -t overlay overlay -o "lowerdir=$root,upperdir=$folder/upper,workdir=$folder/work" "$folder/root" || {
        echo "cannot mount an overlay over the root file system"
        return 1
    }
    [ -z "${MACHINE_PREPARE:-}" ] || "$MACHINE_PREPARE" "$folder"
    # A separate cgroup: without systemd on the host, nspawn would create its groups at the top level, where they could collide
    # with those of another machine.
    group="$(machine_group "$folder")"
    mkdir -p "$group"
    # systemd 257 requires cgroup 2.
    (
        echo "$BASHPID" >"$group/cgroup.procs"
        export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
        exec setsid setpriv --pdeathsig TERM systemd-nspawn --quiet --directory "$folder/root" --boot --register=no \
            --keep-unit --machine "${folder##*/}" --console=pipe --kill-signal=SIGRTMIN+3 "$@"
    ) >"$folder/log" 2>&1 </dev/null 8>&- 9>&- &
    echo "$!" >"$folder/nspawn.pid"
}

# machine_group FOLDER: path of the cgroup of a machine.
machine_group() {
    local top=/sys/fs/cgroup
    [ -e "$top/cgroup.procs" ] || top=/sys/fs/cgroup/unified
    printf '%s/%s' "$top" "${1##*/}"
}

# machine_init FOLDER: process ID of the machine's systemd; nothing if it has exited.
machine_init() {
    local pid
    pid="$(cat "$1/nspawn.pid" 2>/dev/null)" || return 1
    cut -d' ' -f1 "/proc/$pid/task/$pid/children" 2>/dev/null
}

# machine_run FOLDER COMMAND...: runs a command in the machine, as root, with a clean environment.
machine_run() {
    local folder="$1"
    shift
    nsenter --target "$(machine_init "$folder")" --all -- \
        env -i HOME=/root LANG=C.UTF-8 TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# machine_wait FOLDER: waits until its systemd has finished booting. On failure, the last line is the reason.
machine_wait() {
    local folder="$1" pid i state=""
    pid="$(cat "$folder/nspawn.pid")"
    for i in $(seq 1 240); do
        [ -d "/proc/$pid" ] || break
        state="$(machine_run "$folder" systemctl is-system-running 2>/dev/null || true)"
        case "$state" in running | degraded) return 0 ;; esac
        sleep 0.25
    done
    echo "the machine is ${state:-not there} after $i tries: $(tail -n 1 "$folder/log")"
    return 1
}

# machine_stop FOLDER: stops the machine with all of its processes. Its folder stays.
machine_stop() {
    local folder="$1" pid init group
    pid="$(cat "$folder/nspawn.pid" 2>/dev/null || true)"
    if [ -n "$pid" ] && tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q -- "$folder/"; then
        init="$(machine_init "$folder" || true)"
        kill "$pid" 2>/dev/null || true
        timeout 30 tail --pid="$pid" -f /dev/null || {
            # shellcheck disable=SC2086  # no word if there is none
            kill -KILL $init "$pid" 2>/dev/null || true
            timeout 10 tail --pid="$pid" -f /dev/null || true
        }
    fi
    group="$(machine_group "$folder")"
    [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    # nspawn also leaves these in the other hierarchies.
    for group in /sys/fs/cgroup/systemd/payload /sys/fs/cgroup/systemd/supervisor; do
        [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    done
    ! grep -q " $folder/root overlay " /proc/mounts || umount -l "$folder/root" || true
}
