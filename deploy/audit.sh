#!/usr/bin/env bash
# deploy/audit.sh PYTHON: known vulnerabilities (by PyPI's advisories) of all packages of requirements.lock, of
# requirements-vllm.lock and of torch.
# Exit status 0: none; 1: some, in a table; 75: no service answers here, nothing was checked. pip-audit comes from the
# package index that pip uses.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The release of pip has known vulnerabilities.
readonly PYTHON=${1:-python3} PIP_AUDIT=pip-audit==2.10.1 VULNERABLE=pip==24.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

unchecked() {
    echo "audit: $1; nothing was checked: run it where there is a network" >&2
    exit 75
}

audit() { # FILE
    "$work/venv/bin/pip-audit" --requirement "$1" --strict --no-deps --disable-pip --progress-spinner off
}

"$PYTHON" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "$PIP_AUDIT" 2>"$work/why" ||
    unchecked "$PIP_AUDIT cannot be installed ($(tail --lines 1 "$work/why"))"
# Without advisories, as from a mirror of packages, all would look well.
echo "$VULNERABLE" >"$work/known"
audit "$work/known" 2>"$work/why" | grep --quiet '^pip ' ||
    unchecked "no advisories of $VULNERABLE are told ($(tail --lines 1 "$work/why"))"
status=0
for environment in '' -vllm; do
    grep --only-matching '^[a-z0-9][^ ]*==[^ ]*' "requirements$environment.lock" >"$work/versions"
    grep '^torch==' "constraints$environment.txt" >>"$work/versions"
    echo "audit: requirements$environment.lock and torch, $(wc --lines <"$work/versions") packages"
    audit "$work/versions" || status=1
done
exit "$status"
