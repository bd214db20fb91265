#!/usr/bin/env bash
# Makes .venv with exactly what constraints.txt lists, and Plait itself installed from this tree.
# Run through `make setup`, which skips it when nothing has changed since.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

# Two makes at once (a test run beside a demo) must not install over each other.
mkdir -p .plait
exec 9> .plait/setup.lock
if ! flock --nonblock 9; then
  say "waiting for another setup in this tree"
  flock 9
fi

if command -v uv > /dev/null && uv --version > /dev/null 2>&1; then
  uv=uv
else
  # Into a folder of its own: works without rights on the system's Python, and leaves that as it is.
  uv=.plait/tools/bin/uv
  if [ ! -x "$uv" ]; then
    say "installing uv into .plait/tools"
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --target .plait/tools uv
  fi
fi

if ! .venv/bin/python -c '' 2> /dev/null; then
  rm -rf .venv
  "$uv" venv --quiet --python 3.11 .venv
fi
say "installing what constraints.txt lists"
export VIRTUAL_ENV="$PWD/.venv"
# Bytecode now, once: every engine start imports some thousand modules in several processes at the same time.
"$uv" pip install --quiet --compile-bytecode --no-deps -r constraints.txt
"$uv" pip install --quiet --no-deps --no-build-isolation -e .

# mooncake, the transfer engine, is linked against libibverbs even where it only speaks TCP.
if ! why=$(.venv/bin/python -c 'import mooncake.engine' 2>&1); then
  if [[ $why == *libibverbs* && $EUID -eq 0 ]] && command -v apt-get > /dev/null; then
    say "installing libibverbs1 (mooncake needs it)"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends libibverbs1; } > /dev/null
    .venv/bin/python -c 'import mooncake.engine'
  else
    say "mooncake, the transfer engine, cannot be loaded: ${why##*$'\n'}"
    say "fix: install libibverbs1 (Debian, Ubuntu: sudo apt-get install libibverbs1), then run make again"
    exit 1
  fi
fi
touch .venv/.plait-setup
