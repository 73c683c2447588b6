# shellcheck shell=bash disable=SC2154  # dist/demo.sh has the rest
# The demo of dist/demo.sh --fleet: two wardens on one PostgreSQL database, three agents with one project each on this
# machine's engine, and a bad image that all of them find at the same time.

FLEET=(harbour lighthouse pier)
declare -A PAGES=()      # address of each machine's web service
declare -A WARDENS=()    # addresses by name
PEOPLE=""                # api.token of the wardens
DATABASE_URL=""
DATABASE_CHILD=""

# Starts a dedicated PostgreSQL server. It stops and removes its files when its standard input is closed.
database_start() {
    local port
    coproc DATABASE { exec bash dist/scripts/postgres.sh 2>"$WORK/database.log"; }
    # shellcheck disable=SC2153  # set by coproc
    DATABASE_CHILD="$DATABASE_PID"
    read -r port _ <&"${DATABASE[0]}" || die "PostgreSQL does not start: $(tail -n 3 "$WORK/database.log")"
    DATABASE_URL="postgres://evenkeel:secret@127.0.0.1:$port/postgres"
}

# Simulates a crash: the server stops without a checkpoint.
database_restart() {
    local answer=""
    echo restart >&"${DATABASE[1]}"
    read -r answer <&"${DATABASE[0]}" || true
    [ "$answer" = ok ] || die "PostgreSQL does not start again: $(tail -n 3 "$WORK/database.log")"
}

database_stop() {
    [ -n "$DATABASE_CHILD" ] || return 0
    [ -z "${DATABASE[1]:-}" ] || exec {DATABASE[1]}>&-
    wait "$DATABASE_CHILD" 2>/dev/null || true
}

secret() { head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n'; }

# warden NAME: starts a warden, at its previous address if it had one. The agents have no `url`, so the warden does not poll
# them.
warden() {
    local machine agents=""
    if [ -z "${WARDENS[$1]:-}" ]; then
        WARDENS[$1]="127.0.0.1:$(free_port 8180)"
        for machine in "${FLEET[@]}"; do
            agents="$agents${agents:+, }{\"id\": \"$machine\", \"token\": \"$PEOPLE-$machine\"}"
        done
        cat >"$WORK/$1.json" <<CONFIG
{
  "api": {"address": ["${WARDENS[$1]}"], "token": "\$PEOPLE"},
  "store": {"url": "\$DATABASE_URL"},
  "agents": [$agents]
}
CONFIG
    fi
    PEOPLE="$PEOPLE" DATABASE_URL="$DATABASE_URL" \
        "$PROGRAM" --mode warden --config "$WORK/$1.json" >>"$WORK/$1.log" 2>&1 &
    PROCESS[$1]=$!
    until_true 20 "$1 responds and has its store" stands "$1"
}

stands() { curl -fs --max-time 2 "http://${WARDENS[$1]}/health" 2>/dev/null | grep -qx '{"status":"ok"}'; }

# machine NAME: starts a project, and an agent that has checked it and reports to both wardens.
machine() {
    local urls="\"http://${WARDENS[warden-1]}\", \"http://${WARDENS[warden-2]}\""
    mkdir "$WORK/$1"
    PAGES[$1]="127.0.0.1:$(free_port 8080)"
    project "$WORK/$1" "$NAME-$1" "${PAGES[$1]}"
    agent "$1" "$WORK/$1" "$NAME-$1" 300 \
        "\"push\": {\"warden_url\": [$urls], \"token\": \"$PEOPLE-$1\", \"machine_id\": \"$1\"},"
    until_true 30 "the first check of $1" polled "$1"
}

# Triggers a check on all agents at the same time.
check_all() {
    local machine processes=()
    for machine in "${FLEET[@]}"; do
        curl -fs --max-time 5 -o /dev/null -X POST "http://${API[$machine]}/trigger" &
        processes+=($!)
    done
    wait "${processes[@]}" || die "an agent does not accept the trigger"
}

# with EVENT N: exactly N machines have recorded an entry of this kind.
with() {
    local machine count=0
    for machine in "${FLEET[@]}"; do
        if wrote "$machine" "$1"; then count=$((count + 1)); fi
    done
    [ "$count" -eq "$2" ]
}

# held GATE N: exactly N machines are waiting for this gate.
held() {
    local machine count=0
    for machine in "${FLEET[@]}"; do
        if get "$machine" /status/demo | grep -q "\"gate\":\"$1\""; then count=$((count + 1)); fi
    done
    [ "$count" -eq "$2" ]
}

all_show() {
    local machine
    for machine in "${FLEET[@]}"; do shows "${PAGES[$machine]}" "$1" || return 1; done
}

# Records which containers are created from now on. The engine only remembers a few hundred events, and health checks are
# events as well.
watch_engine() {
    docker events --filter event=create --filter "label=$NAME" \
        --format "{{index .Actor.Attributes \"com.docker.compose.project\"}} {{index .Actor.Attributes \"$NAME\"}}" \
        >"$WORK/made" 2>"$WORK/engine.log" &
    PROCESS[engine]=$!
}

# made VERSION: number of containers of this version created in the projects, not counting the agents' image holds.
made() { grep -c "^$NAME-.* $1$" "$WORK/made" || true; }

made_all() { [ "$(made "$1")" -eq "${#FLEET[@]}" ]; }

one_was_hurt() {
    [ "$(made v3)" -eq 1 ] || die "expected one container of version 3, but $(made v3) were created"
    with rolled_back 1 || die "more than one machine has deployed version 3"
    all_show v2 || die "a machine does not show version 2"
}

fleet_story() {
    local machine
    PEOPLE="$(secret)"
    database_start
    for machine in warden-1 warden-2; do warden "$machine"; done
    tell "two wardens share a PostgreSQL database: http://${WARDENS[warden-1]}/ and http://${WARDENS[warden-2]}/"
    image v1 index.html
    push
    watch_engine
    for machine in "${FLEET[@]}"; do machine "$machine"; done
    until_true 10 "the engine has reported three containers" made_all v1
    tell "three machines run version 1, each with an agent: ${FLEET[*]}"

    image v2 index.html
    push
    tell "version 2 is pushed (a good one); all three agents check the registry at the same time"
    check_all
    until_true 90 "version 2 is proven everywhere" with updated 3
    until_true 10 "all show version 2" all_show v2
    tell "one machine proved version 2 first, then the others deployed it"

    image v3 no-such-page
    push
    tell "version 3 is pushed (a broken one: its health check fails); again all three check at the same time"
    check_all
    until_true 90 "one machine rolls back version 3" with rolled_back 1
    until_true 20 "the others do not deploy it" held immunity 2
    until_true 10 "all show version 2" all_show v2
    one_was_hurt
    tell "one machine was affected and is back on version 2; the others never created a container of version 3"

    tell "the first warden is killed, and the database crashes and restarts"
    stop warden-1 KILL
    database_restart
    until_true 30 "the second warden has its store again" stands warden-2
    check_all
    until_true 20 "version 3 is still withheld" held immunity 2
    one_was_hurt
    warden warden-1
    tell "nothing was forgotten. The fleet, as shown by the first warden after its restart:"
    EVENKEEL_TOKEN="$PEOPLE" "$PROGRAM" fleet --warden "http://${WARDENS[warden-1]}" | sed 's/^/        /' ||
        [ "${PIPESTATUS[0]}" -eq 1 ] || die "cannot show the fleet"
    summary "a good image was proven on one machine before the others deployed it" \
        "a broken image, found by all machines at once, affected only one of them, which rolled it back" \
        "a killed warden and a crashed database forgot nothing"
    stay "http://${WARDENS[warden-2]}/?token=$PEOPLE"
}
