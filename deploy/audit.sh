#!/usr/bin/env bash
# deploy/audit.sh PYTHON: known vulnerabilities (by PyPI's advisories) of all packages of requirements.lock and of torch.
# Exit status 0: none; 1: some, in a table; 75: no service answers here, nothing was checked.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly PYTHON=${1:-python3} SERVICE=${AUDIT_SERVICE:-https://pypi.org/pypi/pip/24.0/json} PIP_AUDIT=pip-audit==2.10.1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

unchecked() {
    echo "audit: $1; nothing was checked: run it where there is a network" >&2
    exit 75
}

# A mirror of packages may answer there without the advisories.
"$PYTHON" -c 'import json, sys, urllib.request
print(len(json.load(urllib.request.urlopen(sys.argv[1], timeout=15))["vulnerabilities"]))' "$SERVICE" >/dev/null 2>"$work/why" ||
    unchecked "$SERVICE tells no advisories ($(tail --lines 1 "$work/why"))"
"$PYTHON" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "$PIP_AUDIT" 2>"$work/why" ||
    unchecked "$PIP_AUDIT cannot be installed ($(tail --lines 1 "$work/why"))"
grep --only-matching '^[a-z0-9][^ ]*==[^ ]*' requirements.lock >"$work/versions"
grep '^torch==' constraints.txt >>"$work/versions"
echo "audit: $(wc --lines <"$work/versions") packages"
"$work/venv/bin/pip-audit" --requirement "$work/versions" --strict --no-deps --disable-pip --progress-spinner off
