# shellcheck shell=bash
# Engines for tests, beside the machine's own and apart from it. Sourced after lib.sh, never run.
#
# Each has its own socket, data folder, bridge and addresses. The programs come out of Debian's own packages, in root
# file systems that are made once and kept (ENGINES_CACHE). An engine ends with `engine_stop`, and leaves nothing.

# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "${BASH_SOURCE[0]}")/machine.sh"

ENGINES_CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/evenkeel/engines"

# All engines that tests know, the oldest first. `like-29` is docker-28-containerd behind a proxy of the tests' own
# that refuses and leaves out what Docker 29 does.
# shellcheck disable=SC2034  # for those who source this
ENGINES="docker-20 docker-26 docker-26-containerd docker-28-containerd like-29 podman-5"

# engine_release NAME: the Debian release that has it.
engine_release() {
    case "$1" in
    docker-20) echo bookworm ;;
    docker-26 | docker-26-containerd | podman-5) echo trixie ;;
    docker-28-containerd | like-29) echo forky ;;
    *) return 1 ;;
    esac
}

# --- root file systems -----------------------------------------------------------------------------------

# Says why no engine can be started here; nothing where one can.
engines_obstacle() {
    if [ "$(id -u)" -ne 0 ]; then
        echo "it needs root"
    elif ! unshare --mount true 2>/dev/null; then
        echo "no mount namespace can be made here"
    elif ! have apt-get; then
        echo "there is no apt-get"
    fi
}

# Finds the mirror of Debian (DEBIAN_URI) and the keyring that its releases are checked with (DEBIAN_KEYRING): those
# that apt is configured for; on another distribution Debian's own.
find_debian_mirror() {
    local entry="" key=""
    [ -z "${DEBIAN_URI:-}" ] || return 0
    if [ "$(os_field ID)" = debian ]; then
        # shellcheck disable=SC2016  # apt expands it
        entry="$(apt-get indextargets --format '$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SOURCESENTRY)' 'Created-By: Packages' |
            grep "|$(os_field VERSION_CODENAME)|main|" | head -n 1)" || true
    fi
    DEBIAN_URI="http://deb.debian.org/debian"
    DEBIAN_KEYRING="/usr/share/keyrings/debian-archive-keyring.gpg"
    if [ -n "$entry" ]; then
        DEBIAN_URI="${entry%%|*}"
        key="${entry##*|}"
        key="$(signing_key_of "${key%:*}")"
        # debootstrap reads binary keyrings only.
        case "$key" in *.gpg) DEBIAN_KEYRING="$key" ;; esac
    fi
}

# bring_root RELEASE NAME PACKAGE...: a root file system with packages, in ENGINES_CACHE/NAME. Fails with the reason as
# its last line where it can't be had.
bring_root() {
    local release="$1" name="$2" root="$ENGINES_CACHE/$2" script="" include="" proxy began="$SECONDS"
    shift 2
    [ "$(cat "$root/.packages" 2>/dev/null)" = "$*" ] && return 0
    apt_install debootstrap debian-archive-keyring
    find_debian_mirror
    # One that a killed run left half made is made anew.
    rm -rf --one-file-system -- "$root"
    mkdir -p "$root"
    # Releases that this machine's debootstrap is too old to know are made as sid is.
    [ -e "/usr/share/debootstrap/scripts/$release" ] || script=sid
    case "$DEBIAN_URI" in https:*) include="--include=ca-certificates" ;; esac
    proxy="$(apt-config shell proxy Acquire::http::Proxy)"
    [ -z "$proxy" ] || eval "local http_$proxy; export http_proxy"
    say "making a root file system of Debian $release ($DEBIAN_URI) in $root"
    # shellcheck disable=SC2086  # nothing where they are empty
    debootstrap --variant=minbase --keyring="$DEBIAN_KEYRING" $include "$release" "$root" "$DEBIAN_URI" $script \
        >"$root.log" 2>&1 </dev/null || {
        echo "debootstrap of Debian $release failed: $(tail -n 1 "$root.log")"
        return 1
    }
    # Nothing is started by being installed.
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 755 "$root/usr/sbin/policy-rc.d"
    # A mirror may stand still, and its lists be past their date: signatures are checked, dates are not.
    echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/90evenkeel"
    sh "$REPO/dist/scripts/in-root.sh" "$root" env DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" && apt-get clean' install "$@" \
        >>"$root.log" 2>&1 </dev/null || {
        echo "apt-get could not install $* of Debian $release: $(grep -a '^E:' "$root.log" | tail -n 1)"
        return 1
    }
    rm -f "$root.log"
    printf '%s\n' "$*" >"$root/.packages"
    say "made it in $((SECONDS - began)) s"
}

# bring_engine_root NAME: sets ENGINE_ROOT, the root file system that an engine runs in; `/` where this machine's own
# package is that very engine.
bring_engine_root() {
    local release root_packages="docker.io iptables ca-certificates"
    release="$(engine_release "$1")" || {
        echo "unknown engine $1; there are: $ENGINES"
        return 1
    }
    ENGINE_ROOT="$ENGINES_CACHE/$release"
    case "$release" in
    bookworm)
        if dockerd --version 2>/dev/null | grep -q 'version 20\.10\.'; then
            ENGINE_ROOT=/
            return 0
        fi
        ;;
    # Newer Debian has compose v2. Only that of forky is used; the file is looked for there.
    forky) root_packages="$root_packages docker-compose" ;;
    esac
    # shellcheck disable=SC2086  # one word per package
    bring_root "$release" "$release" $root_packages
}

# --- life ------------------------------------------------------------------------------------------------

# engine_start NAME FOLDER: starts it with all that is its own in FOLDER, and waits until it answers. Its socket is
# FOLDER/docker.sock, the client's configuration FOLDER/config. Fails with the reason as its last line.
engine_start() {
    local name="$1" folder="$2" number bridge compose config='{}' i pid
    local -a flags
    bring_engine_root "$name" || return 1
    mkdir -p "$folder/config"
    # Compose: the one that belongs to it, else this machine's.
    compose="$(plugin_folder)/docker-compose"
    case "$name" in
    docker-28-containerd | like-29)
        compose="$(find "$ENGINE_ROOT/usr/libexec/docker" "$ENGINE_ROOT/usr/lib/docker" -name docker-compose 2>/dev/null | head -n 1)"
        [ -n "$compose" ] || {
            echo "the docker-compose package of Debian $(engine_release "$name") has no plugin"
            return 1
        }
        ;;
    esac
    if [ -e "$compose" ]; then
        mkdir -p "$folder/config/cli-plugins"
        ln -sf "$compose" "$folder/config/cli-plugins/docker-compose"
    fi
    case "$name" in *-containerd | like-29) config='{"features":{"containerd-snapshotter":true}}' ;; esac
    printf '%s\n' "$config" >"$folder/daemon.json"
    # The bridge that can be made decides which addresses are its own. Not --bridge=none: that takes away the docker0 of
    # the machine's engine.
    for number in $(seq 0 15); do
        ip link add "ektest$number" type bridge 2>/dev/null && break
    done
    bridge="ektest$number"
    [ "$(cat "/sys/class/net/$bridge/operstate" 2>/dev/null)" ] && ! [ -e "$folder/bridge" ] || {
        echo "no bridge can be made"
        return 1
    }
    echo "$bridge" >"$folder/bridge"
    ip addr add "10.213.$((number * 16)).1/24" dev "$bridge"
    ip link set "$bridge" up
    # The namespaces keep them apart where a containerd of the system serves several engines.
    flags=(
        --config-file "$folder/daemon.json" --host "unix://$folder/docker.sock" --pidfile "$folder/docker.pid"
        --data-root "$folder/data" --exec-root "$folder/exec" --shutdown-timeout 3
        --containerd-namespace "$bridge" --containerd-plugins-namespace "$bridge-p"
        --bridge "$bridge" --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false
        --default-address-pool "base=10.213.$((number * 16 + 8)).0/21,size=26"
    )
    # A session of its own: Ctrl-C is for the script, which then stops it in order. Where the script is killed, the engine
    # is asked to end.
    setsid setpriv --pdeathsig TERM sh "$REPO/dist/scripts/in-root.sh" "$ENGINE_ROOT" dockerd "${flags[@]}" \
        >"$folder/log" 2>&1 </dev/null 8>&- 9>&- &
    pid=$!
    for i in $(seq 1 240); do
        DOCKER_HOST="unix://$folder/docker.sock" timeout 5 docker version >/dev/null 2>&1 && return 0
        [ -d "/proc/$pid" ] || break
        sleep 0.25
    done
    echo "the engine $name does not answer after $i tries: $(grep -a -iE 'fatal|failed|error' "$folder/log" | tail -n 1)"
    return 1
}

# podman_start FOLDER: boots a machine of its own with podman in it (systemd-nspawn), as podman's health checks are run by
# systemd's timers. Its socket is FOLDER/docker.sock. Containers without a network only: the machine has no network of its
# own, so that it finds the tests' registry. Fails with the reason as its last line.
podman_start() {
    local folder="$1" root="$ENGINES_CACHE/podman" pid i
    bring_root trixie podman podman systemd systemd-sysv dbus docker-compose crun netavark aardvark-dns ca-certificates ||
        return 1
    mkdir -p "$folder"/{containers,config/cli-plugins}
    ln -sf "$root/usr/libexec/docker/cli-plugins/docker-compose" "$folder/config/cli-plugins/docker-compose"
    # Containers want to set some of /proc/sys/net.
    SYSTEMD_NSPAWN_API_VFS_WRITABLE=network MACHINE_PREPARE=podman_configure machine_boot "$folder" "$root" \
        --bind="$folder/containers:/var/lib/containers" --bind="${TMPDIR:-/tmp}" --bind-ro="$REPO" --capability=all \
        --system-call-filter="@keyring bpf" || return 1
    pid="$(cat "$folder/nspawn.pid")"
    for i in $(seq 1 240); do
        curl -fsS --max-time 5 --unix-socket "$folder/docker.sock" http://podman/_ping >/dev/null 2>&1 && return 0
        [ -d "/proc/$pid" ] || break
        sleep 0.25
    done
    echo "the machine with podman does not answer after $i tries: $(tail -n 1 "$folder/log")"
    return 1
}

# podman_configure FOLDER: what podman and the machine around it must know.
podman_configure() {
    local folder="$1" etc="$1/root/etc" unit
    PODMAN_REGISTRY_PORT="$(free_port)"
    mkdir -p "$etc/containers/registries.conf.d" "$etc/containers/containers.conf.d" \
        "$etc/systemd/system/podman.socket.d" "$etc/systemd/system/sockets.target.wants"
    printf '[[registry]]\nlocation = "127.0.0.1:%s"\ninsecure = true\n' "$PODMAN_REGISTRY_PORT" \
        >"$etc/containers/registries.conf.d/evenkeel.conf"
    # Machines whose cgroup 2 has no controllers can't limit anything.
    grep -qw pids /sys/fs/cgroup/cgroup.controllers 2>/dev/null ||
        printf '[containers]\npids_limit = 0\n' >"$etc/containers/containers.conf.d/evenkeel.conf"
    # Podman takes one socket only.
    printf '[Socket]\nListenStream=\nListenStream=%s\nSymlinks=/run/podman/podman.sock\n' "$folder/docker.sock" \
        >"$etc/systemd/system/podman.socket.d/evenkeel.conf"
    ln -sf /usr/lib/systemd/system/podman.socket "$etc/systemd/system/sockets.target.wants/podman.socket"
    # The network and its settings are those of the real machine; they are not for this one to change.
    for unit in systemd-sysctl systemd-modules-load systemd-networkd systemd-resolved; do
        ln -sf /dev/null "$etc/systemd/system/$unit.service"
    done
}

# A port of this machine that nobody listens on.
free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 10000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

# podman_environment FOLDER: what tests must know to use it. The agent runs inside the machine.
podman_environment() {
    local folder="$1" enter program
    enter="nsenter --target $(machine_init "$folder") --all --"
    program="${EVENKEEL_AGENT_BIN:-${CARGO_TARGET_DIR:-$REPO/target}/debug/evenkeel-agent}"
    # nsenter stays in front of it, and passes no signal on.
    printf '#!/bin/sh\nexec %s setpriv --pdeathsig TERM %s "$@"\n' "$enter" "$program" >"$folder/agent"
    chmod 755 "$folder/agent"
    export EVENKEEL_AGENT_BIN="$folder/agent" EVENKEEL_TEST_ENTER="$enter" EVENKEEL_TEST_RUNTIME=podman
    export EVENKEEL_TEST_REGISTRY_PORT="$PODMAN_REGISTRY_PORT"
}

# engine_stop FOLDER: ends the engine of this folder, in whatever state it is, and removes all that it made.
engine_stop() {
    local folder="$1" pid bridge number id link
    local -x DOCKER_HOST="unix://$folder/docker.sock"
    [ -d "$folder" ] || return 0
    [ ! -e "$folder/nspawn.pid" ] || machine_stop "$folder"
    pid="$(cat "$folder/docker.pid" 2>/dev/null || true)"
    if [ -n "$pid" ] && tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q -- "$folder/"; then
        id="$(timeout 20 docker ps -aq 2>/dev/null || true)"
        # shellcheck disable=SC2086  # one word per ID
        [ -z "$id" ] || timeout 60 docker rm -fv $id >/dev/null 2>&1 || true
        kill "$pid" 2>/dev/null || true
        kill -CONT "$pid" 2>/dev/null || true
        timeout 30 tail --pid="$pid" -f /dev/null || kill -KILL "$pid" 2>/dev/null || true
    fi
    # What a killed one leaves: its containerd, and containers with their shims.
    engine_processes "$folder" | while read -r pid; do
        # shellcheck disable=SC2046  # one word per process
        kill -KILL $(cat "/proc/$pid"/task/*/children 2>/dev/null) "$pid" 2>/dev/null || true
    done
    for id in "$folder"/data/containers/*; do
        [ -d "$id" ] || continue
        find /sys/fs/cgroup -depth -type d -path "*/${id##*/}*" -exec rmdir {} \; 2>/dev/null || true
    done
    bridge="$(cat "$folder/bridge" 2>/dev/null || true)"
    number="${bridge#ektest}"
    if [ -n "$number" ]; then
        for link in $(ip -o -4 addr show to "10.213.$((number * 16)).0/20" | sed -nE 's/^[0-9]+: ([^ ]+) .*/\1/p'); do
            ip link del "$link" 2>/dev/null || true
        done
    fi
    sed -nE "s|^[^ ]+ ($folder/[^ ]*) .*|\1|p" /proc/mounts | sort -r | while read -r link; do
        umount -l "$link" 2>/dev/null || true
    done
    rm -rf --one-file-system -- "$folder" || say "could not remove $folder"
}

# Processes whose command line names a path in this folder, and that can only be an engine's own.
engine_processes() {
    local cmdline line pid
    for cmdline in /proc/[0-9]*/cmdline; do
        line="$({ tr '\0' ' ' <"$cmdline"; } 2>/dev/null || true)"
        pid="${cmdline#/proc/}"
        case "$line" in
        *containerd*"$1/"* | *dockerd*"$1/"*) echo "${pid%/cmdline}" ;;
        esac
    done
}

# engines_sweep: removes what runs that were killed have left.
engines_sweep() {
    local folder
    for folder in "${TMPDIR:-/tmp}"/ektest-engines-*; do
        [ -d "$folder" ] || continue
        # One that is still somebody's is left alone.
        pid="$(cat "$folder/owner" 2>/dev/null || true)"
        [ -z "$pid" ] || ! [ -d "/proc/$pid" ] || continue
        engine_stop "$folder"
    done
}

# with_engine NAME COMMAND...: runs a command with a fresh engine, and gives its status; 75 where the engine can't be had,
# with ENGINE_WHY as the reason.
with_engine() {
    local name="$1" folder status=0
    shift
    ENGINE_WHY="$(engines_obstacle)"
    [ -z "$ENGINE_WHY" ] || return 75
    folder="$(mktemp -d "${TMPDIR:-/tmp}/ektest-engines-XXXXXX")"
    echo "$BASHPID" >"$folder/owner"
    ENGINES_RUNNING="${ENGINES_RUNNING:-} $folder"
    if [ "$name" = podman-5 ]; then
        podman_start "$folder" >"$folder/why" || status=75
    else
        engine_start "$name" "$folder" >"$folder/why" || status=75
    fi
    if [ "$status" -eq 0 ]; then
        (
            export EVENKEEL_TEST_ENGINE="unix://$folder/docker.sock" DOCKER_CONFIG="$folder/config"
            case "$name" in
            podman-5) podman_environment "$folder" ;;
            *) export EVENKEEL_TEST_DOCKERD="sh $REPO/dist/scripts/in-root.sh $ENGINE_ROOT dockerd --config-file $folder/daemon.json" ;;
            esac
            [ "$name" != like-29 ] || export EVENKEEL_TEST_ENGINE_LIKE=29
            "$@"
        ) || status=$?
        [ "$status" -ne 75 ] || status=1
    else
        ENGINE_WHY="$(tail -n 1 "$folder/why")"
    fi
    engine_stop "$folder"
    ENGINES_RUNNING="${ENGINES_RUNNING% "$folder"}"
    return "$status"
}

# engines_stop_all: for the traps of those who use with_engine.
engines_stop_all() {
    local folder
    for folder in ${ENGINES_RUNNING:-}; do
        engine_stop "$folder"
    done
    ENGINES_RUNNING=""
}
