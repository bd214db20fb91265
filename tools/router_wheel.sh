#!/usr/bin/env bash
# A wheel of Plait with the router's hot path compiled, for images and for the benchmark. The checkout stays as
# it is: compiled modules beside the sources would go on running after the sources have changed.
# usage: tools/router_wheel.sh PYTHON OUT     PYTHON has setuptools and mypy; a C compiler and Python's headers are there
set -euo pipefail
python=$(realpath -s "$1")
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/runtime"
cp -r pyproject.toml setup.py README.md "$work"
cp -r runtime/plait "$work/runtime"
find "$work" -name '*.so' -o -name __pycache__ -prune -exec rm -rf {} +
cd "$work"
# Not through pip, which would compile twice: once to ask for the metadata.
ROUTER_MYPYC=1 "$python" setup.py --quiet bdist_wheel --dist-dir "$out" > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
