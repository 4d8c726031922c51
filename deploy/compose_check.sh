#!/usr/bin/env bash
# Checks the compose testbed in real containers and leaves nothing behind: builds both images, starts the fleet, asks
# every device over its API, compares each answer with the target alone, kills servers and a device during an answer.
#
#   deploy/compose_check.sh        needs docker and docker-compose (or Compose v2), and .venv (make install)
#
# A running engine is used, and only what this script made is removed from it. Without one, root starts dockerd
# with its own folder. If no image registry answers, debootstrap makes the base image.
#
#   OPENSLED_TAG=dev  check images that exist          KEEP=1       leave the images it built
#   BASE_IMAGE=...    another base image               PYTHON=...   with OpenSLED and torch; .venv/bin/python
#   JOBS=2            compilers at a time              COMPOSE=...  "docker compose" or "docker-compose"
#   SUITE=, MIRROR=   of Debian, for debootstrap; default: where apt gets that suite here, else debootstrap's own
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly LIMIT_MB=400 DEVICES=(pi-4 pi-5 orin-nano laptop-cpu) HOME_DEVICES=(home-pi-4 home-pi-5) SCALE=3
readonly PYTHON=${PYTHON:-.venv/bin/python} SUITE=${SUITE:-bookworm}
readonly CHECK="compose check" PROJECT=opensled-check-$$ CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt
WORK=$(mktemp --directory --tmpdir opensled-check-XXXXXX)
readonly WORK
BASE_IMAGE=${BASE_IMAGE:-python:3.12-slim}
readonly GIVEN_TAG=${OPENSLED_TAG:-}
export BASE_IMAGE OPENSLED_TAG=${GIVEN_TAG:-check-$$}
# The reference is a small model: more threads make it slower.
export OMP_NUM_THREADS=1
unset COMPOSE_FILE COMPOSE_PROFILES COMPOSE_PROJECT_NAME
# The engine chooses free ports.
export PI_4_PORT=0 PI_5_PORT=0 ORIN_NANO_PORT=0 LAPTOP_PORT=0 OUTAGES_PORT=0 RESETS_PORT=0 HOME_PI_4_PORT=0 HOME_PI_5_PORT=0 VLLM_PI_5_PORT=0
failed="" step="" engine="" wheel_server="" own_base="" firewall="" forwarding="" compose=()

. deploy/steps.sh

# --- engine -----------------------------------------------------------------------------------------------------------

find_engine() {
    command -v docker >/dev/null || fail "docker is missing (Debian: apt-get install docker.io docker-compose)"
    if quietly docker info; then
        say "engine: the one that runs, $(docker version --format '{{.Server.Version}}')"
    elif [ "$(id --user)" = 0 ] && command -v dockerd >/dev/null; then
        start_engine
    else
        fail "no engine answers, and to start one takes root and dockerd"
    fi
    find_compose
}

start_engine() {
    export DOCKER_HOST=unix://$WORK/engine.sock
    firewall=$(iptables --list-rules FORWARD | head --lines 1)
    forwarding=$(cat /proc/sys/net/ipv4/ip_forward)
    dockerd --host "$DOCKER_HOST" --data-root "$WORK/engine" --exec-root "$WORK/engine-run" \
        --pidfile "$WORK/engine.pid" --bridge none >"$WORK/engine.log" 2>&1 &
    engine=$!
    wait_for "an engine of our own ($WORK/engine.log)" 60 docker info
    say "engine: started, $(docker info --format '{{.ServerVersion}}, {{.Driver}}, cgroup v{{.CgroupVersion}}')"
}

stop_engine() {
    local policy
    kill "$engine" || true
    wait "$engine" || true
    engine=""
    # dockerd leaves its chains and its policy in the firewall.
    iptables-save | grep --invert-match DOCKER | iptables-restore
    read -r -a policy <<<"$firewall"
    iptables "${policy[@]}"
    echo "$forwarding" >/proc/sys/net/ipv4/ip_forward
}

find_compose() {
    if [ -n "${COMPOSE:-}" ]; then
        read -r -a compose <<<"$COMPOSE"
    elif quietly docker compose version; then
        compose=(docker compose)
    elif command -v docker-compose >/dev/null; then
        compose=(docker-compose)
    else
        fail "neither 'docker compose' nor docker-compose is there (Debian: apt-get install docker-compose)"
    fi
    compose+=(--project-name "$PROJECT" --profile demo --profile fleet --profile chaos --profile hub)
    say "compose: $("${compose[@]}" version | head --lines 1)"
}

# --- images -----------------------------------------------------------------------------------------------------------

find_base() {
    if quietly docker image inspect "$BASE_IMAGE" || quietly timeout 120 docker pull "$BASE_IMAGE"; then
        say "base image: $BASE_IMAGE"
        return
    fi
    if [ "$(id --user)" != 0 ] || ! command -v debootstrap >/dev/null; then
        fail "no registry has $BASE_IMAGE for us, and to make a base image takes root and debootstrap"
    fi
    BASE_IMAGE=opensled-check-base:$OPENSLED_TAG
    own_base=$BASE_IMAGE
    logged "base image of Debian $SUITE, as no registry answers" make_base
}

make_base() {
    local root=$WORK/base mirror=()
    mapfile -t mirror < <(mirror_of "$SUITE")
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$SUITE" "$root" "${mirror[@]}" || return
    # The authorities this host trusts: where a proxy signs for everybody, pip must know it in the build too.
    cp "$CA_BUNDLE" "$root$CA_BUNDLE"
    # As slim as the public slim images.
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,locale,man}/*
    tar --directory "$root" --create . | docker import - "$BASE_IMAGE" || return
    rm -rf "$root"
}

build_images() {
    local arguments=(--network host --build-arg "BASE_IMAGE=$BASE_IMAGE") torch=()
    [ -z "$own_base" ] || arguments+=(--build-arg "PIP_CERT=$CA_BUNDLE")
    [ -z "${PIP_INDEX_URL:-}" ] || arguments+=(--build-arg "PIP_INDEX_URL=$PIP_INDEX_URL")
    serve_wheels
    [ -z "$wheel_server" ] || arguments+=(--build-arg "PIP_FIND_LINKS=$(wheel_page)")
    if ! answers https://download.pytorch.org/whl/cpu/; then
        compgen -G "$WORK/wheels/torch-*.whl" >/dev/null ||
            fail "download.pytorch.org does not answer, and no folder of PIP_FIND_LINKS has a torch wheel"
        torch=(--build-arg TORCH_INDEX=)
    fi
    logged "image edge" docker build "${arguments[@]}" --build-arg "BUILD_JOBS=${JOBS:-2}" \
        --file deploy/docker/edge.Dockerfile --tag "opensled-edge:$OPENSLED_TAG" .
    logged "image verify" docker build "${arguments[@]}" "${torch[@]}" \
        --file deploy/docker/verify.Dockerfile --tag "opensled-verify:$OPENSLED_TAG" .
    say "base image: $(megabytes "$BASE_IMAGE") MB"
}

answers() {
    "$PYTHON" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=10)' "$1" 2>/dev/null
}

# Builds see no folder of the host, so the host's wheels are served on loopback.
serve_wheels() {
    local folder
    mkdir "$WORK/wheels"
    for folder in ${PIP_FIND_LINKS:-} $("$PYTHON" -m pip config get global.find-links 2>/dev/null || true); do
        [ ! -d "${folder#file://}" ] ||
            find "${folder#file://}" -maxdepth 1 -name '*.whl' -exec ln --symbolic --force {} "$WORK/wheels/" \;
    done
    compgen -G "$WORK/wheels/*.whl" >/dev/null || return 0
    "$PYTHON" -u -m http.server --bind 127.0.0.1 --directory "$WORK/wheels" 0 >"$WORK/wheels.log" 2>&1 &
    wheel_server=$!
    wait_for "the page of wheels" 20 grep --quiet "http://" "$WORK/wheels.log"
    say "wheels of this host: $(cd "$WORK/wheels" && echo *.whl)"
}

wheel_page() { sed --quiet 's/.*(\(http:[^)]*\)).*/\1/p' "$WORK/wheels.log" | head --lines 1; }

weigh_images() {
    local edge verify
    edge=$(megabytes "opensled-edge:$OPENSLED_TAG") verify=$(megabytes "opensled-verify:$OPENSLED_TAG")
    say "sizes: edge $edge MB (limit $LIMIT_MB), verify $verify MB"
    [ "$edge" -le "$LIMIT_MB" ] || fail "image edge has $edge MB; at most $LIMIT_MB are allowed"
}

megabytes() { echo $(($(docker image inspect --format '{{.Size}}' "$1") / 1000000)); }

# --- the fleet --------------------------------------------------------------------------------------------------------

container() { # SERVICE: the ids of its containers
    local label=label=com.docker.compose
    docker ps --all --quiet --filter "$label.project=$PROJECT" --filter "$label.service=$1"
}

health() { docker inspect --format '{{.State.Health.Status}}' "$1"; }

is_healthy() { [ "$(health "$1")" = healthy ]; }

up() { # FLAG... SERVICE...: with what they depend on, until all are healthy
    local service id
    logged "up: $*" "${compose[@]}" up --detach --no-build "$@"
    for service in "$@"; do
        service=${service%%=*}
        [ "$service" != --scale ] || continue
        for id in $(container "$service"); do
            wait_for "a healthy $service" 240 is_healthy "$id"
        done
    done
}

edge_flags() { # DEVICE...: what fleet_check is to ask; a restart may change the port
    local device
    for device in "$@"; do
        printf -- '--edge %s=http://%s ' "$device" "$("${compose[@]}" port "$device" 8411)"
    done
}

check() { # FLAG...: ask the fleet; the exit code is 0 only if every answer is the target's own
    "$PYTHON" -m lab.testbed.fleet_check "$@"
}

ask() { # WHAT FLAG...
    local what=$1
    shift
    check "$@" | sed 's/^/          /' || fail "$what: not identical"
    say "$what: identical"
}

value_of() { # SERVICE PORT METRIC: its sum over all labels, read inside the container
    docker exec "$(container "$1")" python3 -c "
import urllib.request
rows = urllib.request.urlopen('http://127.0.0.1:$2/metrics').read().decode().splitlines()
print(int(sum(float(row.split()[-1]) for row in rows if row.startswith('$3'))))"
}

at_least() { [ "$(value_of "$2" "$3" "$4")" -ge "$1" ]; }

kill_and_start() { # SERVICE
    local id
    id=$(container "$1")
    docker kill --signal KILL "$id" >/dev/null
    say "$1: killed, exit code $(docker inspect --format '{{.State.ExitCode}}' "$id")"
    docker start "$id" >/dev/null
    wait_for "a healthy $1" 240 is_healthy "$id"
    say "$1: healthy again"
}

show_limits() {
    local device limits='{{.HostConfig.NanoCpus}} nano CPUs, {{.HostConfig.Memory}} bytes of memory'
    local more='user {{.Config.User}}, read-only {{.HostConfig.ReadonlyRootfs}}'
    for device in "${DEVICES[@]}"; do
        docker inspect --format "          $device: $limits, $more" "$(container "$device")"
    done
}

# From a device: its relay answers; the verifier's name and address are unreachable.
check_isolation() {
    local address
    address=$(docker inspect --format "{{(index .NetworkSettings.Networks \"${PROJECT}_core\").IPAddress}}" \
        "$(container verify)")
    docker exec "$(container pi-5)" python3 -c "
import socket
socket.create_connection(('hub', 7411), 10).close()
for host in ('verify', '$address'):
    try:
        socket.create_connection((host, 7411), 3)
    except OSError:
        continue
    raise SystemExit(f'{host}:7411 is reached without the link')" || fail "the verifier can be reached past the links"
    say "a device reaches its relay, and the verifier ($address) neither by name nor by address"
}

# --- the checks -------------------------------------------------------------------------------------------------------

check_demo() {
    up "${DEVICES[@]}"
    show_limits
    check_isolation
    # shellcheck disable=SC2046 # words are wanted
    ask "demo" $(edge_flags "${DEVICES[@]}")
}

check_killed() { # SERVER SEED DEVICE...: all answers go on, and are the target's
    local server=$1 seed=$2 pid before
    shift 2
    before=$(reopened "$@")
    # shellcheck disable=SC2046
    check --prompts 6 --seed "$seed" $(edge_flags "$@") >"$WORK/$server.log" 2>&1 &
    pid=$!
    wait_for "an answer under way" 60 at_least 1 "$server" 9410 'opensled:sessions{reader="live"}'
    kill_and_start "$server"
    wait "$pid" || fail "$server killed in mid-answer: not identical: $(cat "$WORK/$server.log")"
    sed 's/^/          /' "$WORK/$server.log"
    say "$server killed in mid-answer: identical; devices reopened $(($(reopened "$@") - before)) streams"
}

reopened() { # DEVICE...: since their start
    local device sum=0
    for device in "$@"; do
        sum=$((sum + $(value_of "$device" 9411 opensled:streams_reopened_total)))
    done
    echo "$sum"
}

check_killed_verifier() {
    local before
    before=$(reopened "${DEVICES[@]}")
    check_killed verify 1 "${DEVICES[@]}"
    [ "$(reopened "${DEVICES[@]}")" -gt "$before" ] || fail "no answer was under way when the verifier was killed"
}

check_killed_device() {
    local victim others
    # shellcheck disable=SC2046
    check --prompts 40 --seed 2 $(edge_flags pi-5) >"$WORK/victim.log" 2>&1 &
    victim=$!
    # shellcheck disable=SC2046
    check --prompts 6 --seed 3 $(edge_flags pi-4 orin-nano laptop-cpu) >"$WORK/others.log" 2>&1 &
    others=$!
    wait_for "an answer of pi-5 under way" 60 at_least 1 pi-5 9411 opensled:drafters_busy
    kill_and_start pi-5
    ! wait "$victim" || fail "pi-5 was killed, and its reader noticed nothing"
    wait "$others" || fail "pi-5 killed: the others are not identical: $(cat "$WORK/others.log")"
    sed 's/^/          /' "$WORK/victim.log" "$WORK/others.log"
    say "pi-5 killed in mid-answer: its own answer broke off, the others' are identical"
    # shellcheck disable=SC2046
    ask "pi-5 after its restart" --seed 2 $(edge_flags pi-5)
}

check_fleet() {
    local flags=() index
    up --scale "device=$SCALE" device
    for index in $(seq "$SCALE"); do
        flags+=(--edge "device-$index=http://$("${compose[@]}" port --index "$index" device 8411)")
    done
    ask "fleet of $SCALE behind one access point" --prompts 2 --seed 4 "${flags[@]}"
}

check_hub() {
    local before confirmed
    # Containers at rest cost as well: each is asked for its health all the time.
    logged "rm: all others" "${compose[@]}" rm --stop --force
    up "${HOME_DEVICES[@]}"
    # shellcheck disable=SC2046
    ask "hub" $(edge_flags "${HOME_DEVICES[@]}")
    check_killed cloud 6 "${HOME_DEVICES[@]}" # the hub looks for it; devices keep their streams
    confirmed=$(value_of home-hub 9410 opensled:relay_confirmed_tokens_total)
    [ "$confirmed" -gt 0 ] || fail "the cloud has confirmed no token that the hub vetted"
    say "the cloud has confirmed $confirmed tokens that the hub vetted"
    before=$(reopened "${HOME_DEVICES[@]}")
    check_killed home-hub 7 "${HOME_DEVICES[@]}"
    [ "$(reopened "${HOME_DEVICES[@]}")" -gt "$before" ] || fail "no answer was under way when the hub was killed"
}

check_chaos() {
    up pi-5-outages pi-5-resets
    # shellcheck disable=SC2046
    ask "chaos" --prompts 6 --seed 5 $(edge_flags pi-5-outages pi-5-resets)
}

# --- the end ----------------------------------------------------------------------------------------------------------

take_down() {
    local image left
    [ -z "$step" ] || quietly pkill --parent "$step" || true
    [ -z "$step" ] || quietly kill "$step" || true
    if [ -n "$failed" ] && [ "${#compose[@]}" -gt 0 ]; then
        "${compose[@]}" logs --no-color --tail 8 >&2 || true
    fi
    if [ "${#compose[@]}" -gt 0 ]; then
        "${compose[@]}" down --volumes --remove-orphans --timeout 10 >"$WORK/down.log" 2>&1 || true
    fi
    left=$(docker ps --all --quiet --filter "label=com.docker.compose.project=$PROJECT" 2>/dev/null &&
        docker network ls --quiet --filter "label=com.docker.compose.project=$PROJECT" 2>/dev/null) || true
    [ -z "$left" ] || printf 'left behind: %s\n' "$left" >&2
    if [ -z "${KEEP:-}$GIVEN_TAG" ]; then
        for image in "opensled-edge:$OPENSLED_TAG" "opensled-verify:$OPENSLED_TAG" $own_base; do
            quietly docker image rm "$image" || true
        done
        quietly docker image prune --force --filter label=opensled.stage=builder || true
    fi
    [ -z "$wheel_server" ] || kill "$wheel_server" 2>/dev/null || true
    [ -z "$engine" ] || stop_engine
    # dockerd leaves a namespace mounted, debootstrap when it is interrupted /proc.
    unmount_below "$WORK"
    rm -rf --one-file-system "$WORK"
    [ -z "$left" ]
}

main() {
    trap take_down EXIT
    trap 'exit 130' INT TERM
    [ -x "$PYTHON" ] || fail "$PYTHON is missing: make install"
    find_engine
    if [ -z "$GIVEN_TAG" ]; then
        find_base
        build_images
    fi
    weigh_images
    check_demo
    check_killed_verifier
    check_killed_device
    check_fleet
    check_chaos
    check_hub
    trap - EXIT
    take_down || fail "something was left behind"
    say "taken down, nothing left"
    echo "compose check: ok"
}

main
