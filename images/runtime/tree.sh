#!/usr/bin/env bash
# The tree that is put in beside the stock engine: Plait with its metadata, pure Python, and nothing else. All that
# Plait requires is there in the stock image already, since sglang requires it too (a test holds that).
# usage: images/runtime/tree.sh OUT [PYTHON]     OUT is made; PYTHON (python3) has setuptools, and pip unless uv is there
set -euo pipefail
[ $# -ge 1 ] || { echo 'usage: images/runtime/tree.sh OUT [PYTHON]' >&2; exit 2; }
python=$(command -v "${2:-python3}") || { echo "tree.sh: no $2" >&2; exit 1; }
python=$(realpath -s "$python")
out=$(realpath -m "$1")
[ ! -e "$out" ] || { echo "tree.sh: $out is there already: remove it first" >&2; exit 1; }
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A copy: a build in the checkout leaves folders behind, and would take modules in that an earlier one compiled.
mkdir "$work/src" "$work/src/runtime"
cp pyproject.toml setup.py README.md "$work/src"
cp -r runtime/plait "$work/src/runtime"
find "$work/src" \( -name '*.so' -o -name __pycache__ \) -prune -exec rm -rf {} +
(cd "$work/src" && "$python" setup.py --quiet bdist_wheel --dist-dir "$work/wheel") > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
if "$python" -m pip --version > /dev/null 2>&1; then
  install=("$python" -m pip --disable-pip-version-check --no-input install --quiet --no-compile --root-user-action ignore)
else
  install=(uv pip install --quiet --python "$python")
fi
"${install[@]}" --no-deps --no-index --target "$work/site" "$work"/wheel/plait-*.whl
"$python" -I images/runtime/seal.py "$work/site" "$out"
