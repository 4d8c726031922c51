#!/usr/bin/env bash
# Checks a device without a compiler, as a Raspberry Pi 4 and 5 are: Debian for aarch64 under qemu-user, into which the
# device's package is installed from ready-made wheels alone. On each processor it imports what is native, pairs with a
# server of this host, compares answers with what the target alone writes, and runs doctor. It leaves nothing behind.
#
#   sudo deploy/aarch64_check.sh        needs debootstrap, qemu-user-static, and .venv (make install)
#
# Megabytes are real. Seconds are those of the emulation, and many times a Pi's.
#
#   CPUS=cortex-a72       default: cortex-a72 cortex-a76
#   DRAFTERS=lookup       default: lookup llamacpp onnx
#   QEMU=...              another qemu-aarch64-static         PYTHON=...     with OpenSLED and torch; .venv/bin/python
#   SUITE=, MIRROR=       of Debian, for debootstrap; default: bookworm, from where apt gets it here
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# In a namespace of mounts, so that what is mounted here is gone with this script.
[ -n "${OPENSLED_OWN_MOUNTS:-}" ] || OPENSLED_OWN_MOUNTS=1 exec unshare --mount deploy/aarch64_check.sh

# shellcheck disable=SC2034 # steps.sh reads CHECK and writes `failed`
readonly CHECK="aarch64 check" PYTHON=${PYTHON:-.venv/bin/python} SUITE=${SUITE:-bookworm}
readonly QEMU=${QEMU:-/usr/bin/qemu-aarch64-static} CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt
readonly HANDLER=opensled-aarch64-$$ DEADLY=1.21.0
readonly NATIVE=(numpy grpc google.protobuf tokenizers cryptography.fernet zeroconf xllamacpp onnxruntime)
read -r -a CPUS <<<"${CPUS:-cortex-a72 cortex-a76}"
read -r -a DRAFTERS <<<"${DRAFTERS:-lookup llamacpp onnx}"
# As the kernels of a Pi 4 and a Pi 5 say it of each core, after "CPU part"; qemu-user shows the host's.
declare -rA PARTS=([cortex-a72]=0xd08 [cortex-a76]=0xd0b)
declare -rA FEATURES=(
    [cortex-a72]="fp asimd evtstrm crc32 cpuid"
    [cortex-a76]="fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
)
WORK=$(mktemp --directory --tmpdir opensled-aarch64-XXXXXX)
readonly WORK ROOT=$WORK/root BINFMT=$WORK/binfmt
# shellcheck disable=SC2034
failed="" step="" server="" desk="" device="" inside=()

. deploy/steps.sh

# --- the machine ------------------------------------------------------------------------------------------------------

find_tools() {
    local cpu known
    [ "$(id --user)" = 0 ] || fail "takes root"
    [ -x "$PYTHON" ] || fail "$PYTHON is missing: make install"
    command -v debootstrap >/dev/null || fail "debootstrap is missing (Debian: apt-get install debootstrap)"
    [ -x "$QEMU" ] || fail "$QEMU is missing (Debian: apt-get install qemu-user-static)"
    known=$("$QEMU" -cpu help || true) # which ends with 1
    for cpu in "${CPUS[@]}"; do
        [ -n "${PARTS[$cpu]:-}" ] || fail "no such processor here: $cpu; there are ${!PARTS[*]}"
        [[ $known =~ [[:space:]]${cpu}[[:space:]] ]] || fail "this qemu has no $cpu"
    done
    say "emulator: $("$QEMU" --version | head --lines 1)"
}

# The kernel starts programs for aarch64 with the emulator, also those that such programs start.
register() {
    local head='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    local mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    mkdir "$BINFMT" # not in /proc: there it is out of sight once another /proc is mounted
    mount -t binfmt_misc binfmt_misc "$BINFMT" ||
        fail "this kernel has no binfmt_misc (modprobe binfmt_misc)"
    printf '%s' ":$HANDLER:M::$head:$mask:$QEMU:F" >"$BINFMT/register"
}

as_processor() { # CPU: what runs inside from now on, runs on it
    local core
    inside=(env --ignore-environment HOME="/root/$1" LANG=C.UTF-8 PIP_CERT="$CA_BUNDLE" QEMU_CPU="$1"
        PATH=/opt/opensled/bin:/usr/sbin:/usr/bin:/sbin:/bin ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"}
        chroot "$ROOT")
    mkdir --parents "$ROOT/root/$1"
    for core in $(seq 0 $(($(nproc --all) - 1))); do
        printf '%s\t: %s\n' processor "$core" Features "${FEATURES[$1]}" "CPU implementer" 0x41 \
            "CPU architecture" 8 "CPU variant" 0x0 "CPU part" "${PARTS[$1]}" "CPU revision" 3
        echo
    done >"$WORK/cpuinfo"
}

# Packages are unpacked, not configured: that would take minutes of emulation, and Python needs none of it.
make_root() {
    local mirror=() package
    mapfile -t mirror < <(mirror_of "$SUITE")
    logged "Debian $SUITE for arm64, its first stage" debootstrap --arch=arm64 --foreign --variant=minbase \
        --include=python3,python3-venv,libgomp1 "$SUITE" "$ROOT" "${mirror[@]}"
    for package in "$ROOT"/var/cache/apt/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar --extract --keep-directory-symlink --directory "$ROOT"
    done
    rm -rf "$ROOT"/var/cache/apt/archives/*.deb "$ROOT/debootstrap"
    echo "root:x:0:0:root:/root:/bin/sh" >"$ROOT/etc/passwd"
    # The authorities this host trusts: where a proxy signs for everybody, pip must know it inside too.
    mkdir --parents "$ROOT${CA_BUNDLE%/*}"
    cp "$CA_BUNDLE" "$ROOT$CA_BUNDLE"
    as_processor "${CPUS[0]}"
    mount -t proc proc "$ROOT/proc"
    mount --rbind /sys "$ROOT/sys"
    mount --bind "$WORK/cpuinfo" "$ROOT/proc/cpuinfo"
    say "Debian: $(megabytes "$ROOT") MB, $("${inside[@]}" python3 --version), $("${inside[@]}" uname --machine)"
    ! "${inside[@]}" sh -c 'command -v cc || command -v c++ || command -v cmake' || fail "this machine has a compiler"
}

megabytes() { du --summarize --one-file-system --block-size=1MB "$1" | cut --fields 1; }

# --- the device -------------------------------------------------------------------------------------------------------

install_device() {
    local pip=(/opt/opensled/bin/pip --disable-pip-version-check) wheel
    logged "the device's wheel, built here" "$PYTHON" -m build --wheel --outdir "$ROOT/opt/wheel" deploy/edge
    wheel=$(cd "$ROOT" && echo opt/wheel/*.whl)
    cp constraints.txt "$ROOT/opt/wheel/"
    logged "venv" "${inside[@]}" python3 -m venv /opt/opensled
    say "venv: $(megabytes "$ROOT/opt/opensled") MB"
    logged "installed: package, extras prebuilt, onnx and home" "${inside[@]}" "${pip[@]}" install --only-binary :all: \
        --constraint /opt/wheel/constraints.txt "/${wheel}[prebuilt,onnx,home]"
    "${inside[@]}" "${pip[@]}" check || fail "packages do not fit together"
    say "installed: $(megabytes "$ROOT/opt/opensled") MB, of which are xllamacpp $(installed_mb xllamacpp)," \
        "onnxruntime $(installed_mb onnxruntime), numpy $(installed_mb numpy), OpenSLED's models $(installed_mb opensled/_models)"
}

installed_mb() { # NAME: of all in site-packages that begins so
    du --summarize --total --block-size=1MB "$ROOT"/opt/opensled/lib/python3*/site-packages/"$1"* | tail --lines 1 | cut --fields 1
}

import_native() { # CPU
    local module code said
    for module in "${NATIVE[@]}"; do
        code=0
        said=$("${inside[@]}" python -c "
import time; started = time.monotonic()
import importlib, importlib.metadata as metadata; importlib.import_module('$module')
name = metadata.packages_distributions()['$module'.partition('.')[0]][0]
print(f'{name} {metadata.version(name)}, {time.monotonic() - started:.1f} s')" 2>"$WORK/import.log") || code=$?
        [ "$code" != 132 ] || fail "$1: import $module: illegal instruction"
        [ "$code" = 0 ] || fail "$1: import $module ended with $code: $(cat "$WORK/import.log")"
        say "$1: import $module: $said"
    done
}

# The one release of ONNX Runtime whose wheel a Cortex-A72 cannot run: what doctor says where somebody has it.
check_old_runtime() {
    logged "onnxruntime $DEADLY, in a folder of its own" "${inside[@]}" /opt/opensled/bin/pip install --no-deps \
        --only-binary :all: --target /opt/deadly "onnxruntime==$DEADLY"
    show_doctor onnx env PYTHONPATH=/opt/deadly
    grep --quiet "onnxruntime==$DEADLY: .*illegal instruction" "$WORK/doctor.log" || fail "doctor does not say so"
    grep --quiet "take another onnxruntime .*\[.*onnx" "$WORK/doctor.log" || fail "doctor names no release that works"
}

show_doctor() { # DRAFTER WORD...: the words come before `opensled`
    local drafter=$1 code=0
    shift
    "${inside[@]}" "$@" opensled doctor --drafter "$drafter" --color never >"$WORK/doctor.log" || code=$?
    say "doctor --drafter $drafter: exit code $code, and of the drafts:"
    sed --quiet '/^draft model/,/^$/s/^/          /p' "$WORK/doctor.log"
}

# --- the home ---------------------------------------------------------------------------------------------------------

address_in() { sed --quiet 's/^listening on //p' "$1"; }

await_line() { # WHAT PATTERN PID LOG: until the process prints such a line
    local end=$((SECONDS + 600))
    until grep --quiet "$2" "$4"; do
        kill -0 "$3" 2>/dev/null || fail "$1 ended: $(tail --lines 20 "$4")"
        [ "$SECONDS" -lt "$end" ] || fail "$1 did not get ready in time: $(tail --lines 20 "$4")"
        sleep 0.2
    done
}

# Without hints, which an emulated device would not get: it is slower than the server.
start_server() {
    : >"$WORK/server.log"
    "$PYTHON" -m opensled serve --paired --folder "$WORK/home" --model tiny --dtype float64 --policy fcfs --draft-wait 10 \
        --listen 127.0.0.1:0 >"$WORK/server.log" 2>&1 &
    server=$!
    await_line "the server" '^listening on ' "$server" "$WORK/server.log"
}

pairing_words() { # sets `words` to CODE HOST:PORT
    : >"$WORK/desk.log"
    "$PYTHON" -m opensled pair --folder "$WORK/home" --json --listen 127.0.0.1:0 \
        --server-port "$(address_in "$WORK/server.log" | sed 's/.*://')" >"$WORK/desk.log" 2>&1 &
    desk=$!
    await_line "opensled pair" '"code"' "$desk" "$WORK/desk.log"
    read -r -a words < <("$PYTHON" -c 'import json, sys
shown = json.loads(sys.stdin.readline())
print(shown["code"], shown["listening"])' <"$WORK/desk.log")
}

answers() { # CPU WHAT PROMPTS FLAG...: start the device with these flags, ask it, stop it
    local cpu=$1 what=$2 prompts=$3 started=$SECONDS
    shift 3
    : >"$WORK/device.log" # here: the child may come to it after a look at the last one's
    "${inside[@]}" opensled edge --http 127.0.0.1:0 "$@" >"$WORK/device.log" 2>&1 &
    device=$!
    await_line "$cpu: $what" '^listening on ' "$device" "$WORK/device.log"
    say "$cpu: $what: listens after $((SECONDS - started)) s"
    "$PYTHON" -m lab.testbed.fleet_check --prompts "$prompts" --max-tokens 24 \
        --edge "$cpu=http://$(address_in "$WORK/device.log")" | sed 's/^/          /' | tee "$WORK/answers.log" ||
        fail "$cpu: $what: not identical: $(tail --lines 20 "$WORK/device.log")"
    stop "$device"
    device=""
}

stop() { # PID
    kill "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

check_processor() { # CPU
    local words=() drafter
    as_processor "$1"
    import_native "$1"
    pairing_words
    answers "$1" "edge --pair" 1 --pair "${words[@]}" --device-name "$1"
    wait "$desk" || fail "$1 was not paired: $(cat "$WORK/desk.log")"
    desk=""
    for drafter in "${DRAFTERS[@]}"; do
        answers "$1" "--drafter $drafter" 2 --drafter "$drafter"
        [ "$drafter" != lookup ] || continue
        grep --quiet ' [1-9][0-9]* of [0-9]* draft' "$WORK/answers.log" || fail "$1: no draft of $drafter was accepted"
        show_doctor "$drafter"
    done
    [ "$1" != cortex-a72 ] || check_old_runtime
}

# --- the end ----------------------------------------------------------------------------------------------------------

take_down() {
    local pid left=""
    for pid in $step $device $desk $server; do
        stop "$pid"
    done
    [ ! -e "$BINFMT/$HANDLER" ] || echo -1 >"$BINFMT/$HANDLER"
    [ ! -e "$BINFMT/$HANDLER" ] || left=1
    unmount_below "$WORK"
    rm -rf --one-file-system "$WORK"
    [ -z "$left" ] && [ ! -e "$WORK" ]
}

main() {
    local cpu
    trap take_down EXIT
    trap 'exit 130' INT TERM
    find_tools
    register
    make_root
    install_device
    start_server
    for cpu in "${CPUS[@]}"; do
        check_processor "$cpu"
    done
    trap - EXIT
    take_down || fail "something was left behind"
    say "taken down, nothing left"
    echo "aarch64 check: ok"
}

main
