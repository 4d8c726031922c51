#!/usr/bin/env bash
# All that is to be measured on a GPU, in at most nine minutes: see lab/benchmarks/gpu/README.md.
# A bare checkout is enough: no .venv, no installation, no network. Nothing is written but OUT_FOLDER.
set -u
if [ $# -lt 1 ]; then
	echo "usage: bash $0 OUT_FOLDER [SECONDS [STAGE ...]]    (540 seconds, all stages if left out)" >&2
	exit 2
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PYTHONPATH="$scratch/wheels:$root" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1 OPENSLED_NO_CONFIG=1 OPENSLED_CACHE_DIR="$scratch/cache" TRITON_CACHE_DIR="$scratch/triton"
export TMPDIR="$scratch"
"$python" -m lab.benchmarks.gpu.wheels "$root/build/gpu-wheels" "$scratch/wheels" || exit 2
"$python" -m lab.benchmarks.gpu "$@"
