# shellcheck shell=bash
# Additional container engines for tests, isolated from the machine's engine. Sourced after lib.sh, never run.
#
# Each has its own socket, data folder, bridge and addresses. The programs come from Debian packages, in root file systems that
# are created once and cached (ENGINES_CACHE). `engine_stop` stops an engine and removes all its traces.

# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "${BASH_SOURCE[0]}")/machine.sh"

ENGINES_CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/evenkeel/engines"

# All engines for tests, oldest first. `like-29` is docker-28-containerd behind a proxy of the tests that rejects and omits what
# Docker 29 does.
# shellcheck disable=SC2034  # used by the sourcing scripts
ENGINES="docker-20 docker-26 docker-26-containerd docker-28-containerd like-29 podman-5"

# engine_release NAME: the Debian release that contains the engine.
engine_release() {
    case "$1" in
    docker-20) echo bookworm ;;
    docker-26 | docker-26-containerd | podman-5) echo trixie ;;
    docker-28-containerd | like-29) echo forky ;;
    *) return 1 ;;
    esac
}

# --- root file systems -----------------------------------------------------------------------------------

# Prints why no engine can be started here; prints nothing if one can.
engines_obstacle() {
    if [ "$(id -u)" -ne 0 ]; then
        echo "it needs root"
    elif ! unshare --mount true 2>/dev/null; then
        echo "mount namespaces are not available here"
    elif ! have apt-get; then
        echo "there is no apt-get"
    fi
}

# Sets DEBIAN_URI and DEBIAN_KEYRING to the Debian mirror and keyring that apt is configured for, or on another distribution
# to Debian's defaults.
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
        # debootstrap only supports binary keyrings.
        case "$key" in *.gpg) DEBIAN_KEYRING="$key" ;; esac
    fi
}

# bring_root RELEASE NAME PACKAGE...: creates a root file system with these packages in ENGINES_CACHE/NAME. On failure, the
# last line is the reason.
bring_root() {
    local release="$1" name="$2" root="$ENGINES_CACHE/$2" script="" include="" proxy began="$SECONDS"
    shift 2
    [ "$(cat "$root/.packages" 2>/dev/null)" = "$*" ] && return 0
    apt_install debootstrap debian-archive-keyring
    find_debian_mirror
    # Recreate one that a killed run left incomplete.
    rm -rf --one-file-system -- "$root"
    mkdir -p "$root"
    # Use the script of sid for releases that are too new for this machine's debootstrap.
    [ -e "/usr/share/debootstrap/scripts/$release" ] || script=sid
    case "$DEBIAN_URI" in https:*) include="--include=ca-certificates" ;; esac
    proxy="$(apt-config shell proxy Acquire::http::Proxy)"
    [ -z "$proxy" ] || eval "local http_$proxy; export http_proxy"
    say "creating a root file system of Debian $release ($DEBIAN_URI) in $root"
    # shellcheck disable=SC2086  # no word if empty
    debootstrap --variant=minbase --keyring="$DEBIAN_KEYRING" $include "$release" "$root" "$DEBIAN_URI" $script \
        >"$root.log" 2>&1 </dev/null || {
        echo "debootstrap of Debian $release failed: $(tail -n 1 "$root.log")"
        return 1
    }
    # Prevent installed packages from starting services.
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 755 "$root/usr/sbin/policy-rc.d"
    # The lists of an outdated mirror may have expired: signatures are checked, dates are not.
    echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/90evenkeel"
    sh "$REPO/dist/scripts/in-root.sh" "$root" env DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" && apt-get clean' install "$@" \
        >>"$root.log" 2>&1 </dev/null || {
        echo "apt-get could not install $* of Debian $release: $(grep -a '^E:' "$root.log" | tail -n 1)"
        return 1
    }
    rm -f "$root.log"
    printf '%s\n' "$*" >"$root/.packages"
    say "created in $((SECONDS - began)) s"
}

# bring_engine_root NAME: sets ENGINE_ROOT to the root file system for an engine; `/` if this machine's package is that engine.
bring_engine_root() {
    local release root_packages="docker.io iptables ca-certificates"
    release="$(engine_release "$1")" || {
        echo "unknown engine $1; available: $ENGINES"
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
    # Newer Debian has compose v2, but only that of forky is used here.
    forky) root_packages="$root_packages docker-compose" ;;
    esac
    # shellcheck disable=SC2086  # one word per package
    bring_root "$release" "$release" $root_packages
}

# --- start and stop --------------------------------------------------------------------------------------

# engine_start NAME FOLDER: starts an engine with all of its files in FOLDER, and waits until it responds. Its socket is
# FOLDER/docker.sock, the client's configuration FOLDER/config. On failure, the last line is the reason.
engine_start() {
    local name="$1" folder="$2" number bridge compose config='{}' i pid
    local -a flags
    bring_engine_root "$name" || return 1
    mkdir -p "$folder/config"
    # Compose: the one of its release, otherwise this machine's.
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
    # The number of the first free bridge determines the address range. Not --bridge=none, which would remove the docker0 of the
    # machine's engine.
    for number in $(seq 0 15); do
        ip link add "ektest$number" type bridge 2>/dev/null && break
    done
    bridge="ektest$number"
    [ "$(cat "/sys/class/net/$bridge/operstate" 2>/dev/null)" ] && ! [ -e "$folder/bridge" ] || {
        echo "cannot create a bridge"
        return 1
    }
    echo "$bridge" >"$folder/bridge"
    ip addr add "10.213.$((number * 16)).1/24" dev "$bridge"
    ip link set "$bridge" up
    # The namespaces separate the engines if they share the system's containerd.
    flags=(
        --config-file "$folder/daemon.json" --host "unix://$folder/docker.sock" --pidfile "$folder/docker.pid"
        --data-root "$folder/data" --exec-root "$folder/exec" --shutdown-timeout 3
        --containerd-namespace "$bridge" --containerd-plugins-namespace "$bridge-p"
        --bridge "$bridge" --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false
        --default-address-pool "base=10.213.$((number * 16 + 8)).0/21,size=26"
    )
    # Its own session: Ctrl-C only reaches the script, which then stops the engine gracefully. If the script is killed, the
    # engine gets SIGTERM.
    setsid setpriv --pdeathsig TERM sh "$REPO/dist/scripts/in-root.sh" "$ENGINE_ROOT" dockerd "${flags[@]}" \
        >"$folder/log" 2>&1 </dev/null 8>&- 9>&- &
    pid=$!
    for i in $(seq 1 240); do
        DOCKER_HOST="unix://$folder/docker.sock" timeout 5 docker version >/dev/null 2>&1 && return 0
        [ -d "/proc/$pid" ] || break
        sleep 0.25
    done
    echo "the engine $name does not respond after $i tries: $(grep -a -iE 'fatal|failed|error' "$folder/log" | tail -n 1)"
    return 1
}

# podman_start FOLDER: boots a machine with podman (systemd-nspawn), since podman runs health checks with systemd timers. Its
# socket is FOLDER/docker.sock. It only supports containers without a network: the machine shares the host network to reach
# the test registry. On failure, the last line is the reason.
podman_start() {
    local folder="$1" root="$ENGINES_CACHE/podman" pid i
    bring_root trixie podman podman systemd systemd-sysv dbus docker-compose crun netavark aardvark-dns nftables ca-certificates ||
        return 1
    mkdir -p "$folder"/{containers,config/cli-plugins}
    ln -sf "$root/usr/libexec/docker/cli-plugins/docker-compose" "$folder/config/cli-plugins/docker-compose"
    # Containers need to write to /proc/sys/net.
    SYSTEMD_NSPAWN_API_VFS_WRITABLE=network MACHINE_PREPARE=podman_configure machine_boot "$folder" "$root" \
        --bind="${TMPDIR:-/tmp}" --bind-ro="$REPO" --capability=all \
        --system-call-filter="@keyring bpf" || return 1
    pid="$(cat "$folder/nspawn.pid")"
    for i in $(seq 1 240); do
        curl -fsS --max-time 5 --unix-socket "$folder/docker.sock" http://podman/_ping >/dev/null 2>&1 && return 0
        [ -d "/proc/$pid" ] || break
        sleep 0.25
    done
    echo "the machine with podman does not respond after $i tries: $(tail -n 1 "$folder/log")"
    return 1
}

# podman_configure FOLDER: configures podman and its machine.
podman_configure() {
    local folder="$1" etc="$1/root/etc" unit
    PODMAN_REGISTRY_PORT="$(free_port)"
    mkdir -p "$etc/containers/registries.conf.d" "$etc/containers/containers.conf.d" \
        "$etc/systemd/system/podman.socket.d" "$etc/systemd/system/sockets.target.wants"
    # Its volumes have the same paths in the machine and outside, where the tests look at them.
    printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "/run/containers/storage"\n' "$folder/containers" \
        >"$etc/containers/storage.conf"
    printf '[[registry]]\nlocation = "127.0.0.1:%s"\ninsecure = true\n' "$PODMAN_REGISTRY_PORT" \
        >"$etc/containers/registries.conf.d/evenkeel.conf"
    # Without cgroup 2 controllers, limits cannot be applied.
    grep -qw pids /sys/fs/cgroup/cgroup.controllers 2>/dev/null ||
        printf '[containers]\npids_limit = 0\n' >"$etc/containers/containers.conf.d/evenkeel.conf"
    # Podman supports only one socket.
    printf '[Socket]\nListenStream=\nListenStream=%s\nSymlinks=/run/podman/podman.sock\n' "$folder/docker.sock" \
        >"$etc/systemd/system/podman.socket.d/evenkeel.conf"
    ln -sf /usr/lib/systemd/system/podman.socket "$etc/systemd/system/sockets.target.wants/podman.socket"
    # The network belongs to the host; this machine must not change its settings.
    for unit in systemd-sysctl systemd-modules-load systemd-networkd systemd-resolved; do
        ln -sf /dev/null "$etc/systemd/system/$unit.service"
    done
}

# An unused port on this machine.
free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 10000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

# podman_environment FOLDER: sets the variables for the tests. The agent runs inside the machine.
podman_environment() {
    local folder="$1" enter program
    enter="nsenter --target $(machine_init "$folder") --all --"
    program="${EVENKEEL_AGENT_BIN:-${CARGO_TARGET_DIR:-$REPO/target}/debug/evenkeel-agent}"
    # nsenter stays as the parent process and does not forward signals.
    printf '#!/bin/sh\nexec %s setpriv --pdeathsig TERM %s "$@"\n' "$enter" "$program" >"$folder/agent"
    chmod 755 "$folder/agent"
    export EVENKEEL_AGENT_BIN="$folder/agent" EVENKEEL_TEST_ENTER="$enter" EVENKEEL_TEST_RUNTIME=podman
    export EVENKEEL_TEST_REGISTRY_PORT="$PODMAN_REGISTRY_PORT"
}

# engine_stop FOLDER: stops the engine in this folder, in any state, and removes everything that it created.
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
    # Leftovers of a killed engine: its containerd, and containers with their shims.
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

# Engine processes whose command line contains a path in this folder.
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

# engines_sweep: removes leftovers of killed runs.
engines_sweep() {
    local folder
    for folder in "${TMPDIR:-/tmp}"/ektest-engines-*; do
        [ -d "$folder" ] || continue
        # Skip folders whose owner is still running.
        pid="$(cat "$folder/owner" 2>/dev/null || true)"
        [ -z "$pid" ] || ! [ -d "/proc/$pid" ] || continue
        engine_stop "$folder"
    done
}

# with_engine NAME COMMAND...: runs a command with a fresh engine and returns its status; 75 if the engine is not available,
# with the reason in ENGINE_WHY.
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

# engines_stop_all: for the traps of scripts that use with_engine.
engines_stop_all() {
    local folder
    for folder in ${ENGINES_RUNNING:-}; do
        engine_stop "$folder"
    done
    ENGINES_RUNNING=""
}

# --- proxies ---------------------------------------------------------------------------------------------

# Provides the image evenkeel-test/proxies:1 with HAProxy, nginx and Caddy from Debian's packages. HAProxy 3.2 is the first that
# sends nothing to a new server before its first health check (`init-state down`).
bring_proxies_image() {
    docker image inspect evenkeel-test/proxies:1 >/dev/null 2>&1 && return 0
    bring_root forky proxies haproxy nginx-light caddy || return 1
    tar -C "$ENGINES_CACHE/proxies" --exclude=./var/cache --exclude=./usr/share/doc --exclude=./usr/share/locale \
        --one-file-system -c . | docker import - evenkeel-test/proxies:1 >/dev/null
}

# Removes the image. Only the tests use this name.
remove_proxies_image() {
    docker image rm evenkeel-test/proxies:1 >/dev/null 2>&1 || true
}

# The image with Debian's PostgreSQL server.
bring_postgres_image() {
    docker image inspect evenkeel-test/postgres:15 >/dev/null 2>&1 && return 0
    bring_root bookworm postgres postgresql-15 || return 1
    tar -C "$ENGINES_CACHE/postgres" --exclude=./var/cache --exclude=./usr/share/doc --exclude=./usr/share/locale \
        --one-file-system -c . | docker import - evenkeel-test/postgres:15 >/dev/null
}

# Removes the image. Only the tests use this name.
remove_postgres_image() {
    docker image rm evenkeel-test/postgres:15 >/dev/null 2>&1 || true
}
