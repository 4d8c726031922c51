# What the checks of this folder share. They source it, and set WORK (a folder of their own), CHECK (their name),
# failed="" and step="".
# shellcheck shell=bash disable=SC2034 # who sources this reads `failed` and `step`

say() { printf '%s  %s\n' "$(date +%T)" "$*"; }
fail() {
    printf '%s: %s\n' "$CHECK" "$*" >&2
    failed=1
    exit 1
}

wait_for() { # WHAT SECONDS COMMAND...: until the command succeeds
    local what=$1 end=$((SECONDS + $2))
    shift 2
    until quietly "$@"; do
        [ "$SECONDS" -lt "$end" ] || fail "$what did not come about in time"
        sleep 0.2
    done
}

quietly() { "$@" >/dev/null 2>&1; }

logged() { # WHAT COMMAND...: the output is shown only if it fails
    local what=$1 started=$SECONDS
    shift
    "$@" >"$WORK/step.log" 2>&1 &
    step=$! # in the background, because bash hears of a signal only while it waits
    if ! wait "$step"; then
        tail --lines 40 "$WORK/step.log" >&2
        fail "$what failed; its last words are above"
    fi
    step=""
    say "$what: $((SECONDS - started)) s"
}

mirror_of() { # SUITE: one line, or none
    if [ -n "${MIRROR:-}" ]; then
        echo "$MIRROR"
    elif command -v apt-get >/dev/null; then
        # shellcheck disable=SC2016 # apt-get expands it
        apt-get indextargets --format '$(REPO_URI)' "Created-By: Packages" "Codename: $1" | sed --quiet 1p
    fi
}

unmount_below() { # FOLDER
    awk -v below="$1/" 'index($2, below) == 1 { print $2 }' /proc/mounts | sort --reverse |
        xargs --no-run-if-empty umount || true
}
