#!/usr/bin/env bash
# Installs, upgrades, removes and purges the packages in target/package/out on clean machines booted with systemd (Debian 12
# and 13), and runs the units there. Needs root. Usage: bash dist/scripts/check-packages.sh [RELEASE...]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=release.sh
. "$(dirname "${BASH_SOURCE[0]}")/release.sh"
# shellcheck source-path=SCRIPTDIR source=engines.sh
. "$(dirname "${BASH_SOURCE[0]}")/engines.sh"

OUT="$REPO/target/package/out"
VERSION="$(version)"
WORK="$(mktemp -d "${TMPDIR:-/tmp}/evenkeel-packages-XXXXXX")"
MACHINE=""
FAULTS=0
RELEASE=""

finish() {
    local code=$?
    trap - EXIT
    stop_ticker
    leave
    rm -rf --one-file-system -- "$WORK"
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# enter [PACKAGE]: boots a fresh machine of RELEASE, with this package.
enter() {
    boot "$RELEASE-systemd${1:+-$1}" systemd systemd-sysv dbus "$@"
}

# boot NAME PACKAGE...: boots a fresh machine of RELEASE with these packages, without a network.
boot() {
    local name="$1"
    shift
    bring_root "$RELEASE" "$name" "$@" || die "no root file system of $RELEASE"
    MACHINE="$WORK/$RELEASE-$RANDOM"
    mkdir "$MACHINE"
    if ! { machine_boot "$MACHINE" "$ENGINES_CACHE/$name" --private-network --bind-ro="$OUT:/packages" \
        --bind-ro="$WORK/next:/next" && machine_wait "$MACHINE"; }; then
        die "the machine did not boot"
    fi
    # It prevented services from starting while the root file system was created.
    machine_run "$MACHINE" rm -f /usr/sbin/policy-rc.d
}

leave() {
    [ -n "$MACHINE" ] || return 0
    machine_stop "$MACHINE"
    rm -rf --one-file-system -- "$MACHINE"
    MACHINE=""
}

in_machine() { machine_run "$MACHINE" "$@"; }

# expect WHAT COMMAND...: asserts that the command succeeds in the machine.
expect() {
    local what="$1" said
    shift
    if said="$(in_machine "$@" 2>&1)"; then
        say "  ok    $RELEASE: $what"
    else
        say "  FAIL  $RELEASE: $what"
        printf '%s\n' "$said" | tail -n 15 >&2
        FAULTS=$((FAULTS + 1))
    fi
}

# expect_is WHAT WANT COMMAND...: asserts that the command prints WANT in the machine.
expect_is() {
    local what="$1" want="$2" got
    shift 2
    got="$(in_machine "$@" 2>&1 || true)"
    if [ "$got" = "$want" ]; then
        say "  ok    $RELEASE: $what"
    else
        say "  FAIL  $RELEASE: $what: expected '$want', got '$got'"
        FAULTS=$((FAULTS + 1))
    fi
}

# within SECONDS COMMAND...: waits until the command succeeds in the machine.
within() {
    local i
    for i in $(seq 1 $(($1 * 5))); do
        in_machine "${@:2}" >/dev/null 2>&1 && return 0
        sleep 0.2
    done
    return 1
}

expect_within() {
    local what="$1" seconds="$2"
    shift 2
    if within "$seconds" "$@"; then
        say "  ok    $RELEASE: $what"
    else
        say "  FAIL  $RELEASE: $what (not within $seconds s)"
        in_machine "$@" 2>&1 | tail -n 15 >&2 || true
        in_machine journalctl --no-pager -n 15 >&2 || true
        FAULTS=$((FAULTS + 1))
    fi
}

show() { in_machine systemctl show -P "$2" "$1"; }
deb() { printf '/packages/%s_%s-1_amd64.deb' "$1" "$VERSION"; }
next() { printf '/next/%s_next.deb' "$1"; }
rpm_of() { printf '/packages/%s' "$(basename "$(echo "$OUT/$1-$VERSION"-*.rpm)")"; }
install_deb() {
    expect "install ${1##*/}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$1"
}

# Repacks the packages as a later version with another default configuration, for testing upgrades.
make_next() {
    local package folder part file
    mkdir -p "$WORK/next"
    for package in evenkeel-agent evenkeel-warden evenkeel; do
        folder="$WORK/next/$package"
        dpkg-deb -R "$OUT/${package}_$VERSION-1_amd64.deb" "$folder"
        sed -i "s/^Version: .*/Version: $VERSION-2/" "$folder/DEBIAN/control"
        for part in agent:config warden:warden; do
            file="$folder/usr/share/evenkeel/default/${part#*:}.json"
            [ ! -e "$file" ] || sed -i "1s|^{|{\n  \"\$schema\": \"/usr/share/evenkeel/${part%:*}-config.schema.json\",|" "$file"
        done
        dpkg-deb --root-owner-group -Znone -b "$folder" "$WORK/next/${package}_next.deb" >/dev/null
        rm -rf "$folder"
    done
}

# --- agent -----------------------------------------------------------------------------------------------

check_agent() {
    local unit=evenkeel-agent before
    enter
    install_deb "$(deb evenkeel-agent)"
    expect_within "the agent runs after the installation" 15 systemctl is-active -q "$unit"
    expect "it is enabled at boot" systemctl is-enabled -q "$unit"
    expect_is "its configuration belongs to root only" "640 root root" stat -c "%a %U %G" /etc/evenkeel/config.json
    expect "and to no package" sh -c "! dpkg -S /etc/evenkeel/config.json"
    expect "its files are as packaged" dpkg --verify evenkeel-agent
    expect_is "its folders are not world-readable" "750 750 750" sh -c 'echo $(stat -c %a /etc/evenkeel /var/lib/evenkeel /var/log/evenkeel)'
    expect "the configuration is valid" evenkeel-agent --check
    expect_within "it has reported its status to systemd" 5 sh -c "systemctl show -P StatusText $unit | grep -q ."
    # SIGHUP
    before="$(show "$unit" MainPID)"
    in_machine sed -i 's/"services": \[\]/"services": [{"name": "web", "container_name": "web", "auto_heal": true}]/' /etc/evenkeel/config.json
    expect "reload" systemctl reload "$unit"
    expect_within "the reload is recorded" 10 grep -q config_reloaded /var/log/evenkeel/audit.jsonl
    expect_is "by the same process" "$before" systemctl show -P MainPID "$unit"
    # Upgrade: user changes are kept, and the service is restarted once with the same state.
    install_deb "$(next evenkeel-agent)"
    expect_within "it runs after the upgrade" 15 systemctl is-active -q "$unit"
    expect "as another process" test "$before" != "$(show "$unit" MainPID)"
    expect "with the unchanged configuration" sh -c "grep -q '\"name\": \"web\"' /etc/evenkeel/config.json && ! grep -q schema /etc/evenkeel/config.json"
    expect "and the new default in its folder" grep -q schema /usr/share/evenkeel/default/config.json
    expect_is "that did not count as a failure" "success 0" sh -c "echo \$(systemctl show -P Result -P NRestarts $unit)"
    # The watchdog: a hanging process is killed and restarted.
    in_machine mkdir -p "/run/systemd/system/$unit.service.d"
    in_machine sh -c "printf '[Service]\nWatchdogSec=4\nRestartSec=1\n' >/run/systemd/system/$unit.service.d/watchdog.conf"
    in_machine systemctl daemon-reload
    in_machine systemctl restart "$unit"
    sleep 6
    expect_is "it sends keep-alives" "0" systemctl show -P NRestarts "$unit"
    before="$(show "$unit" MainPID)"
    in_machine sh -c "kill -STOP $before"
    expect_within "the watchdog kills a hanging process, and it is restarted" 40 \
        sh -c "systemctl is-active -q $unit && [ \$(systemctl show -P NRestarts $unit) -ge 1 ]"
    expect "by the watchdog" sh -c "journalctl --no-pager -u $unit | grep -qi 'watchdog timeout'"
    expect "stop" systemctl stop "$unit"
    expect_is "gracefully" "success 0" sh -c "echo \$(systemctl show -P Result -P ExecMainStatus $unit)"
    expect "start" systemctl start "$unit"
    check_rights "$unit"
    # With an invalid configuration the service does not start and is not restarted.
    in_machine sh -c 'echo "{" >/etc/evenkeel/config.json'
    expect "a broken configuration does not start" sh -c "! systemctl restart $unit"
    expect_is "and is not retried" "78 0" sh -c "echo \$(systemctl show -P ExecMainStatus $unit; systemctl show -P NRestarts $unit)"
    in_machine cp /usr/share/evenkeel/default/config.json /etc/evenkeel/config.json
    expect "an upgrade" dpkg -i "$(next evenkeel-agent)"
    expect_within "starts a service that has failed" 15 systemctl is-active -q "$unit"
    expect "stop" systemctl stop "$unit"
    expect "another upgrade" dpkg -i "$(next evenkeel-agent)"
    expect "leaves a service stopped that was stopped" sh -c "! systemctl is-active -q $unit"
    expect "remove" env DEBIAN_FRONTEND=noninteractive apt-get remove -y -q evenkeel-agent
    in_machine rm /etc/evenkeel/agent.env
    install_deb "$(next evenkeel-agent)"
    expect_within "the agent runs when it is installed again" 15 systemctl is-active -q "$unit"
    expect "with all of its files" test -e /etc/evenkeel/agent.env
    expect "no mark is left" sh -c '! ls -d /run/evenkeel*.installed 2>/dev/null'
    expect "disable" systemctl disable --now "$unit"
    expect "remove" env DEBIAN_FRONTEND=noninteractive apt-get remove -y -q evenkeel-agent
    install_deb "$(next evenkeel-agent)"
    expect "a service that was disabled stays so" sh -c "! systemctl is-enabled -q $unit && ! systemctl is-active -q $unit"
    expect "enable" systemctl enable --now "$unit"
    expect "remove" env DEBIAN_FRONTEND=noninteractive apt-get remove -y -q evenkeel-agent
    expect "the configuration stays" test -e /etc/evenkeel/config.json
    expect "the state stays" test -e /var/lib/evenkeel
    expect "the unit is gone" test ! -e "/usr/lib/systemd/system/$unit.service"
    expect "purge" env DEBIAN_FRONTEND=noninteractive apt-get purge -y -q evenkeel-agent
    expect "nothing is left" sh -c '! ls -d /etc/evenkeel /var/lib/evenkeel* /var/log/evenkeel /etc/systemd/system/*/evenkeel* /etc/systemd/system/evenkeel* 2>/dev/null'
    leave
}

# Checks what the agent may read under its unit: files of root, but not files in private folders of other users, unless a
# drop-in allows that.
check_rights() {
    local unit="$1" drop_in=/etc/systemd/system/evenkeel-agent.service.d
    in_machine sh -c 'useradd -m -d /home/ada ada && chmod 700 /home/ada && mkdir -p /opt/web && cd /opt/web &&
        printf "services: {}\n" >compose.yml && chmod 600 compose.yml && cp compose.yml /home/ada/ && chown -R ada: /home/ada'
    in_machine sh -c 'printf "%s" "{\"audit\":{\"path\":\"/var/log/evenkeel/audit.jsonl\"},\"services\":[
        {\"name\":\"roots\",\"images\":[\"a:1\"],\"compose_files\":[\"/opt/web/compose.yml\"],\"compose_project\":\"web\",\"auto_update\":true},
        {\"name\":\"adas\",\"images\":[\"b:1\"],\"compose_files\":[\"/home/ada/compose.yml\"],\"compose_project\":\"ada\",\"auto_update\":true}
        ]}" >/etc/evenkeel/config.json; rm -f /var/log/evenkeel/audit.jsonl'
    expect "restart" systemctl restart "$unit"
    expect_is "the agent has no capability" "0000000000000000" \
        sh -c "sed -n 's/^CapEff:\t//p' /proc/\$(systemctl show -P MainPID $unit)/status"
    expect "it warns about a compose file in a home that it may not read" \
        sh -c "journalctl --no-pager -u $unit _PID=\$(systemctl show -P MainPID $unit) | grep '/home/ada/compose.yml'"
    expect "but not about one of root" \
        sh -c "! journalctl --no-pager -u $unit _PID=\$(systemctl show -P MainPID $unit) | grep '/opt/web/compose.yml'"
    in_machine mkdir -p "$drop_in"
    in_machine cp /usr/share/doc/evenkeel-agent/examples/read-homes.conf "$drop_in/"
    in_machine systemctl daemon-reload
    expect "restart with the drop-in" systemctl restart "$unit"
    expect "then it does not warn" \
        sh -c "! journalctl --no-pager -u $unit _PID=\$(systemctl show -P MainPID $unit) | grep '/home/ada/compose.yml'"
    in_machine rm -r "$drop_in"
    in_machine systemctl daemon-reload
}

# --- warden ----------------------------------------------------------------------------------------------

check_warden() {
    local unit=evenkeel-warden before
    enter
    install_deb "$(deb evenkeel-warden)"
    expect "the warden waits for its token" sh -c "! systemctl is-enabled -q $unit && ! systemctl is-active -q $unit"
    expect "it does not start without a token" sh -c "! systemctl start $unit"
    expect_is "and exits with 78" "exit-code 78" sh -c "echo \$(systemctl show -P Result -P ExecMainStatus $unit)"
    in_machine sh -c 'echo WARDEN_TOKEN=0123456789abcdef0123456789abcdef >>/etc/evenkeel/warden.env'
    expect "it starts with a token" systemctl enable --now "$unit"
    expect_is "as its own user" "evenkeel-warden" sh -c "stat -c %U /proc/\$(systemctl show -P MainPID $unit)"
    expect_is "without any capability" "0000000000000000" \
        sh -c "sed -n 's/^CapEff:\t//p' /proc/\$(systemctl show -P MainPID $unit)/status"
    expect_is "its configuration belongs to root only" "640 root root" stat -c "%a %U %G" /etc/evenkeel/warden.json
    expect_is "its state belongs to its user" "750 evenkeel-warden" stat -c "%a %U" /var/lib/evenkeel-warden
    expect "it listens" bash -c 'exec 3<>/dev/tcp/127.0.0.1/8080 && printf "GET /health HTTP/1.0\r\n\r\n" >&3 && head -n 1 <&3 | grep -q " 200 "'
    before="$(show "$unit" MainPID)"
    in_machine sed -i 's|"agents": \[\]|"agents": [{"id": "a", "token": "agent-0123456789abcdef", "url": "http://127.0.0.1:9090"}]|' /etc/evenkeel/warden.json
    expect "reload" systemctl reload "$unit"
    expect_within "it has reloaded the file" 10 sh -c "systemctl show -P StatusText $unit | grep -q '1 agent'"
    expect_is "as the same process" "$before" systemctl show -P MainPID "$unit"
    install_deb "$(next evenkeel-warden)"
    expect "the configuration is unchanged" sh -c "grep -q agent-0123456789abcdef /etc/evenkeel/warden.json && ! grep -q schema /etc/evenkeel/warden.json"
    expect_within "it runs after the upgrade" 15 systemctl is-active -q "$unit"
    expect "as another process" test "$before" != "$(show "$unit" MainPID)"
    before="$(show "$unit" MainPID)"
    in_machine sh -c "kill -KILL $before"
    expect_within "it is restarted after a kill" 15 sh -c "systemctl is-active -q $unit && [ \$(systemctl show -P MainPID $unit) != $before ]"
    install_deb "$(deb evenkeel)"
    expect_within "a warden that is enabled runs after the move to evenkeel" 15 systemctl is-active -q "$unit"
    expect "as evenkeel" sh -c "readlink /proc/\$(systemctl show -P MainPID $unit)/exe | grep -qx /usr/bin/evenkeel"
    expect "stop" systemctl stop "$unit"
    expect_is "gracefully" "success 0" sh -c "echo \$(systemctl show -P Result -P ExecMainStatus $unit)"
    expect "purge" env DEBIAN_FRONTEND=noninteractive apt-get purge -y -q evenkeel evenkeel-warden
    expect "nothing is left" sh -c '! ls -d /etc/evenkeel /var/lib/evenkeel* /etc/systemd/system/*/evenkeel* 2>/dev/null'
    leave
}

# --- the combined program --------------------------------------------------------------------------------

check_single() {
    enter
    install_deb "$(deb evenkeel-agent)"
    in_machine sed -i 's/"services": \[\]/"services": [{"name": "web", "container_name": "web"}]/' /etc/evenkeel/config.json
    expect "from evenkeel-agent to evenkeel" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends "$(deb evenkeel)"
    expect_within "the agent runs" 15 systemctl is-active -q evenkeel-agent
    expect "as evenkeel" sh -c 'readlink /proc/$(systemctl show -P MainPID evenkeel-agent)/exe | grep -qx /usr/bin/evenkeel'
    expect "with the unchanged configuration" grep -q '"name": "web"' /etc/evenkeel/config.json
    install_deb "$(deb evenkeel-agent)"
    expect_within "the agent runs after going back to evenkeel-agent" 15 systemctl is-active -q evenkeel-agent
    expect "as evenkeel-agent" sh -c 'readlink /proc/$(systemctl show -P MainPID evenkeel-agent)/exe | grep -qx /usr/bin/evenkeel-agent'
    install_deb "$(deb evenkeel)"
    expect_within "and after moving to evenkeel again" 15 systemctl is-active -q evenkeel-agent
    expect "with the unchanged configuration" grep -q '"name": "web"' /etc/evenkeel/config.json
    expect "the agent's package is purged" env DEBIAN_FRONTEND=noninteractive apt-get purge -y -q evenkeel-agent
    expect "which removes nothing of evenkeel" test -e /etc/evenkeel/config.json -a -e /var/lib/evenkeel
    expect "the agent still runs" systemctl is-active -q evenkeel-agent
    expect "a health check by the program itself" sh -c 'evenkeel health | grep -q unavailable; evenkeel health; [ $? -eq 1 ]'
    expect "purge" env DEBIAN_FRONTEND=noninteractive apt-get purge -y -q evenkeel
    expect "nothing is left" sh -c '! ls -d /etc/evenkeel /var/lib/evenkeel* /var/log/evenkeel 2>/dev/null'
    leave
}

# --- rpm, on Debian: no other distribution is available here ---------------------------------------------

check_rpm() {
    local unit=evenkeel-agent before
    enter rpm
    expect "install evenkeel-agent by rpm" rpm -i --nodeps "$(rpm_of evenkeel-agent)"
    expect_is "its configuration belongs to root only" "640 root root" stat -c "%a %U %G" /etc/evenkeel/config.json
    expect "start" systemctl enable --now "$unit"
    expect_within "it runs" 10 systemctl is-active -q "$unit"
    in_machine sed -i 's/"services": \[\]/"services": [{"name": "web", "container_name": "web"}]/' /etc/evenkeel/config.json
    expect "upgrade" rpm -U --force --nodeps "$(rpm_of evenkeel-agent)"
    expect "the configuration stays" grep -q '"name": "web"' /etc/evenkeel/config.json
    expect_within "it runs" 10 systemctl is-active -q "$unit"
    expect "remove" rpm -e --nodeps evenkeel-agent
    expect "it no longer runs" sh -c "! systemctl is-active -q $unit"
    expect "the configuration stays" grep -q '"name": "web"' /etc/evenkeel/config.json

    unit=evenkeel-warden
    expect "install evenkeel-warden by rpm" rpm -i --nodeps "$(rpm_of evenkeel-warden)"
    expect "its user exists" getent passwd evenkeel-warden
    expect_is "its configuration belongs to root only" "640 root root" stat -c "%a %U %G" /etc/evenkeel/warden.json
    expect_is "its state belongs to its user" "750 evenkeel-warden" stat -c "%a %U" /var/lib/evenkeel-warden
    in_machine sh -c 'echo WARDEN_TOKEN=0123456789abcdef0123456789abcdef >>/etc/evenkeel/warden.env'
    expect "start" systemctl enable --now "$unit"
    expect_within "it runs" 10 systemctl is-active -q "$unit"
    expect_is "as its own user" "evenkeel-warden" sh -c "stat -c %U /proc/\$(systemctl show -P MainPID $unit)"
    before="$(show "$unit" MainPID)"
    expect "upgrade" rpm -U --force --nodeps "$(rpm_of evenkeel-warden)"
    expect "its token stays" grep -q ^WARDEN_TOKEN= /etc/evenkeel/warden.env
    expect_within "it runs" 10 systemctl is-active -q "$unit"
    expect "as another process" test "$before" != "$(show "$unit" MainPID)"
    expect "remove" rpm -e --nodeps evenkeel-warden
    expect "it no longer runs" sh -c "! systemctl is-active -q $unit"

    expect "install evenkeel by rpm" rpm -i --nodeps "$(rpm_of evenkeel)"
    expect "with the configuration of the agent's package" grep -q '"name": "web"' /etc/evenkeel/config.json
    expect "and the token of the warden's" grep -q ^WARDEN_TOKEN= /etc/evenkeel/warden.env
    expect "start" systemctl enable --now evenkeel-agent evenkeel-warden
    for unit in evenkeel-agent evenkeel-warden; do
        expect_within "$unit runs" 10 systemctl is-active -q "$unit"
        expect "as evenkeel" sh -c "readlink /proc/\$(systemctl show -P MainPID $unit)/exe | grep -qx /usr/bin/evenkeel"
    done
    expect "remove" rpm -e --nodeps evenkeel
    expect "both have stopped" sh -c "! systemctl is-active -q evenkeel-agent && ! systemctl is-active -q evenkeel-warden"
    leave
}

# --- pacman, on Debian -----------------------------------------------------------------------------------

check_arch() {
    local unit=evenkeel-agent before file
    enter pacman-package-manager
    # The shell of Arch Linux, for which nFPM writes the scripts.
    in_machine ln -sf bash /bin/sh
    # Without repositories, pacman knows no glibc and no systemd.
    local install=(pacman -U --noconfirm -dd)
    file="/packages/evenkeel-agent-$VERSION-1-x86_64.pkg.tar.zst"
    expect "install evenkeel-agent by pacman" "${install[@]}" "$file"
    expect_is "its configuration belongs to root only" "640 root root" stat -c "%a %U %G" /etc/evenkeel/config.json
    expect "it is not started before somebody says so" sh -c "! systemctl is-active -q $unit"
    expect "start" systemctl enable --now "$unit"
    expect_within "it runs" 10 systemctl is-active -q "$unit"
    in_machine sed -i 's/"services": \[\]/"services": [{"name": "web", "container_name": "web"}]/' /etc/evenkeel/config.json
    before="$(show "$unit" MainPID)"
    expect "install it again" "${install[@]}" "$file"
    expect_within "it runs as another process" 10 sh -c "systemctl is-active -q $unit && [ \$(systemctl show -P MainPID $unit) != $before ]"
    expect "remove" pacman -R --noconfirm -dd evenkeel-agent
    expect "it no longer runs" sh -c "! systemctl is-active -q $unit"
    expect "install evenkeel by pacman" "${install[@]}" "/packages/evenkeel-$VERSION-1-x86_64.pkg.tar.zst"
    expect "with the configuration of the agent's package" grep -q '"name": "web"' /etc/evenkeel/config.json
    leave
}

# --- apk, unpacked on Debian, with OpenRC beside systemd: no apk and no Alpine Linux is available here ---

# apk_step SCRIPT PACKAGE: runs a script of the package, as apk does, with the shell of BusyBox.
apk_step() { expect "$2: $1" sh -c "cd /apk/$2 && busybox sh ./.$1"; }

# apk_install PACKAGE: unpacks the package, and runs its script.
apk_install() {
    expect "unpack $1" sh -c "mkdir -p /apk/$1 && tar -xzf /packages/$1_${VERSION}-r1_x86_64.apk -C /apk/$1 && cp -a /apk/$1/etc /apk/$1/usr /"
    apk_step post-install "$1"
}

check_apk() {
    local service=evenkeel-agent before file
    for file in "$OUT"/*.apk; do
        if python3 "$REPO/dist/scripts/check_apk.py" "$file"; then
            say "  ok    ${file##*/}: checksum, scripts, no shared libraries"
        else
            say "  FAIL  ${file##*/}: see above"
            FAULTS=$((FAULTS + 1))
        fi
    done
    # Without systemd-sysv, which conflicts with OpenRC.
    boot "$RELEASE-openrc" systemd dbus openrc busybox-static logrotate procps
    # As if booted by OpenRC; and what BusyBox of Alpine Linux has, but not that of Debian.
    in_machine sh -c 'mkdir -p /run/openrc && touch /run/openrc/softlevel && rc-update -u && cd /usr/local/bin &&
        printf "#!/bin/sh\nexec groupadd --system \"\$2\"\n" >addgroup &&
        printf "#!/bin/sh\nfor user; do :; done\nexec useradd --system -g \"\$user\" -d \"/var/lib/\$user\" \"\$user\"\n" >adduser &&
        chmod 755 addgroup adduser'
    apk_install evenkeel-agent
    expect_is "its configuration belongs to root only" "640 root root" stat -c "%a %U %G" /etc/evenkeel/config.json
    in_machine sh -c 'printf "%s\n" "ESCAPED=\"a\\\"b\\\\c\\d\" " >>/etc/evenkeel/agent.env'
    expect "start" rc-service "$service" start
    expect_within "the agent runs" 10 grep -q " ready " /var/log/evenkeel/agent.log
    expect "its variables are read like systemd does" sh -c \
        'tr "\0" "\n" <"/proc/$(pgrep -x evenkeel-agent)/environ" | grep -Fx "ESCAPED=a\"b\\c\\d"'
    expect "as a static program" sh -c "! ldd /usr/bin/evenkeel-agent"
    in_machine sed -i 's/"services": \[\]/"services": [{"name": "web", "container_name": "web"}]/' /etc/evenkeel/config.json
    expect "reload" rc-service "$service" reload
    expect_within "the reload is recorded" 10 grep -q config_reloaded /var/log/evenkeel/audit.jsonl
    before="$(in_machine pgrep -x evenkeel-agent)"
    in_machine kill -KILL "$before"
    expect_within "the supervisor starts it again" 20 sh -c "pgrep -x evenkeel-agent | grep -vx $before"
    before="$(in_machine pgrep -x evenkeel-agent)"
    apk_step post-upgrade evenkeel-agent
    expect_within "an upgrade starts it again" 10 sh -c "pgrep -x evenkeel-agent | grep -vx $before"
    in_machine cp /etc/evenkeel/config.json /etc/evenkeel/config.json.good
    in_machine sh -c 'echo "{" >/etc/evenkeel/config.json'
    expect "a broken configuration does not start" sh -c "! rc-service $service restart && ! pgrep -x evenkeel-agent"
    in_machine mv /etc/evenkeel/config.json.good /etc/evenkeel/config.json
    expect "start" rc-service "$service" start
    apk_step pre-deinstall evenkeel-agent
    expect "it no longer runs" sh -c "! pgrep -x evenkeel-agent"
    expect "the configuration stays" grep -q '"name": "web"' /etc/evenkeel/config.json
    in_machine rm /usr/bin/evenkeel-agent /etc/init.d/evenkeel-agent

    service=evenkeel-warden
    apk_install evenkeel-warden
    expect "without a token it does not start" sh -c "! rc-service $service start"
    in_machine sh -c 'echo "WARDEN_TOKEN=\"0123456789abcdef0123456789abcdef\"" >>/etc/evenkeel/warden.env'
    expect "start" rc-service "$service" start
    expect_within "the warden runs" 10 grep -q " ready " /var/log/evenkeel-warden.log
    expect_is "as its own user" evenkeel-warden sh -c 'stat -c %U /proc/$(pgrep -x evenkeel-warden)'
    expect_is "its state belongs to its user" "750 evenkeel-warden" stat -c "%a %U" /var/lib/evenkeel-warden
    expect_is "it can't write where root copies its configuration" "750 root" stat -c "%a %U" /run/evenkeel-warden
    in_machine sed -i 's/"agents": \[\]/"agents": [{"id": "a", "token": "fedcba9876543210fedcba9876543210"}]/' /etc/evenkeel/warden.json
    expect "reload" rc-service "$service" reload
    expect_within "it reads the configuration again" 10 grep -q 'added="a"' /var/log/evenkeel-warden.log
    expect "rotate its log" logrotate -f /etc/logrotate.d/evenkeel-warden
    expect "reload" rc-service "$service" reload
    expect_within "it writes to the new log" 10 grep -q "configuration was reloaded" /var/log/evenkeel-warden.log
    apk_step pre-deinstall evenkeel-warden
    expect "it no longer runs" sh -c "! pgrep -x evenkeel-warden"
    in_machine rm /usr/bin/evenkeel-warden /etc/init.d/evenkeel-warden

    apk_install evenkeel
    expect "with the configuration of the agent's package" grep -q '"name": "web"' /etc/evenkeel/config.json
    for service in evenkeel-agent evenkeel-warden; do
        expect "start $service" rc-service "$service" start
        expect "it runs" rc-service "$service" status
    done
    apk_step pre-deinstall evenkeel
    expect "both have stopped" sh -c "! pgrep -x evenkeel"
    leave
}

# --- an upgrade during a deployment, with podman as the engine -------------------------------------------

# Prepares the machine for the test. Registry and images come from the host.
prepare_podman() {
    local etc="$1/root/etc" unit
    mkdir -p "$etc/containers/registries.conf.d" "$etc/containers/containers.conf.d" "$etc/systemd/system/sockets.target.wants"
    printf '[[registry]]\nlocation = "127.0.0.1:5000"\ninsecure = true\n' >"$etc/containers/registries.conf.d/evenkeel.conf"
    # Without cgroup 2 controllers, limits cannot be applied.
    grep -qw pids /sys/fs/cgroup/cgroup.controllers 2>/dev/null ||
        printf '[containers]\npids_limit = 0\n' >"$etc/containers/containers.conf.d/evenkeel.conf"
    ln -sf /usr/lib/systemd/system/podman.socket "$etc/systemd/system/sockets.target.wants/podman.socket"
    for unit in systemd-sysctl systemd-modules-load systemd-networkd systemd-resolved; do
        ln -sf /dev/null "$etc/systemd/system/$unit.service"
    done
    mkdir -p "$1/root/opt/web" "$1/root/opt/image/bin" "$1/containers"
    cp "$(command -v busybox)" "$1/root/opt/image/bin/busybox"
    ln -sf busybox "$1/root/opt/image/bin/sh"
    ln -sf busybox "$1/root/opt/image/bin/sleep"
    cat >"$1/root/opt/registry.yml" <<'CONFIG'
version: 0.1
storage: {filesystem: {rootdirectory: /var/lib/registry}, delete: {enabled: true}}
http: {addr: "127.0.0.1:5000"}
CONFIG
    cat >"$1/root/opt/web/compose.yml" <<'COMPOSE'
services:
  web:
    image: 127.0.0.1:5000/web:latest
    network_mode: none
    stop_grace_period: 1s
    healthcheck: {test: ["CMD", "/bin/sh", "-c", "true"], interval: 1s, retries: 3}
COMPOSE
    cat >"$1/root/opt/push" <<'PUSH'
set -e
echo "$1" >/opt/image/version
tar -C /opt/image -c . | podman import -q -c 'CMD ["/bin/sleep","86400"]' - 127.0.0.1:5000/web:latest
podman push -q 127.0.0.1:5000/web:latest
PUSH
    cat >"$1/root/opt/config.json" <<'CONFIG'
{
  "runtime": "podman",
  "registry": {"url": "http://127.0.0.1:5000", "poll_interval": 10},
  "audit": {"path": "/var/log/evenkeel/audit.jsonl"},
  "services": [{"name": "web", "images": ["web:latest"], "compose_files": ["/opt/web/compose.yml"],
    "compose_project": "web", "auto_update": true, "health_grace": 30}]
}
CONFIG
}

check_resume() {
    local container
    bring_busybox
    bring_registry_program
    bring_root trixie podman podman systemd systemd-sysv dbus docker-compose crun netavark aardvark-dns nftables ca-certificates ||
        die "no root file system with podman"
    MACHINE="$WORK/podman"
    mkdir -p "$MACHINE/containers"
    if ! { SYSTEMD_NSPAWN_API_VFS_WRITABLE=network MACHINE_PREPARE=prepare_podman machine_boot "$MACHINE" \
        "$ENGINES_CACHE/podman" --private-network --bind-ro="$OUT:/packages" --bind-ro="$WORK/next:/next" \
        --bind="$MACHINE/containers:/var/lib/containers" --bind-ro="$(command -v docker-registry):/usr/local/bin/docker-registry" \
        --capability=all --system-call-filter="@keyring bpf" && machine_wait "$MACHINE"; }; then
        die "the machine with podman did not boot"
    fi
    machine_run "$MACHINE" rm -f /usr/sbin/policy-rc.d
    in_machine systemd-run -q --unit=registry /usr/local/bin/docker-registry serve /opt/registry.yml
    within 20 bash -c 'exec 3<>/dev/tcp/127.0.0.1/5000' || die "the registry does not respond"
    expect "a service runs" sh -c 'sh /opt/push 1 && podman compose -f /opt/web/compose.yml -p web up -d'
    install_deb "$(deb evenkeel-agent)"
    in_machine sh -c 'cat /opt/config.json >/etc/evenkeel/config.json && mkdir -p /etc/systemd/system/evenkeel-agent.service.d &&
        printf "[Service]\nCapabilityBoundingSet=CAP_SYS_ADMIN\n" >/etc/systemd/system/evenkeel-agent.service.d/podman.conf &&
        systemctl daemon-reload && systemctl restart evenkeel-agent'
    expect "a new image is pushed" sh /opt/push 2
    expect_within "it is on probation" 60 bash -c 'exec 3<>/dev/tcp/127.0.0.1/9090; printf "GET /status/web HTTP/1.0\r\n\r\n" >&3
        grep -q "\"phase\":\"probation\"" <&3'
    container="$(in_machine podman ps -q --no-trunc)"
    install_deb "$(next evenkeel-agent)"
    expect_within "the new version resumes the deployment" 20 grep -q '"event":"resumed"' /var/log/evenkeel/audit.jsonl
    expect_within "and finishes it" 60 grep -q '"event":"updated"' /var/log/evenkeel/audit.jsonl
    expect_is "with the container that it found" "$container" podman ps -q --no-trunc
    expect_is "which runs the new image" 2 podman exec "$container" /bin/busybox cat /version
    expect "nothing was rolled back" sh -c '! grep -E "rolled_back|rollback_failed" /var/log/evenkeel/audit.jsonl'
    in_machine podman rm -fa >/dev/null 2>&1 || true
    leave
}

# --- main ------------------------------------------------------------------------------------------------

WHY="$(engines_obstacle)"
[ -z "$WHY" ] || {
    # A user without root may still want the rest of 'dist/test.sh --packages'. In CI the message would go unnoticed.
    [ -z "${CI:-}" ] || die "packages cannot be tested on clean machines: $WHY"
    say "NOT RUN: packages on clean machines ($WHY)"
    exit 0
}
[ -e "$OUT/SHA256SUMS" ] || die "there are no packages: run 'bash dist/package.sh' first"
make_next
apt_install lintian
if lintian --fail-on error --tag-display-limit 0 "$OUT"/*.deb >"$WORK/lintian" 2>&1; then
    say "  ok    lintian: no error, $(grep -c '^W:' "$WORK/lintian" || true) warnings"
else
    grep '^E:' "$WORK/lintian" >&2 || cat "$WORK/lintian" >&2
    FAULTS=$((FAULTS + 1))
fi
cp "$WORK/lintian" "$REPO/target/package/lintian.log"
[ "$#" -gt 0 ] || set -- bookworm trixie
for RELEASE in "$@"; do
    say "== packages on Debian $RELEASE"
    check_agent
    check_warden
    check_single
done
RELEASE=trixie
check_rpm
check_arch
check_apk
check_resume
[ "$FAULTS" -eq 0 ] || die "$FAULTS package checks failed"
say "packages: fine"
