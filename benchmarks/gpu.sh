#!/bin/bash
# The tables on one H200, in about eight minutes: Python 3.12, torch 2.11, nothing to install from.
#
#   benchmarks/gpu.sh [options of python -m benchmarks]     JSON and Markdown go to $OUT
#   benchmarks/gpu.sh -- COMMAND …                          any other command in the same environment
#
# What that machine lacks travels as wheels (28 MB; unpacked they would be over the 64 MiB that may travel):
#   pip download --dest .gpu-deps --python-version 3.12 --only-binary=:all: --no-deps \
#     duckdb==2.0.0 pydantic pydantic_core annotated-types typing-inspection typing-extensions defusedxml simplejpeg
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

unpacked=/tmp/laptime-gpu-deps
for wheel in .gpu-deps/*.whl; do
  done_with="$unpacked/.$(basename "$wheel")"
  [ -e "$wheel" ] && [ ! -e "$done_with" ] && python3 -m zipfile -e "$wheel" "$unpacked" && touch "$done_with"
done
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$unpacked"
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

if [ "${1:-}" = "--" ]; then
  shift
  exec "$@"
fi
out="${OUT:-runs/bench}"
mkdir -p "$out"
exec python3 -m benchmarks --device cuda --sections slowdown trace --minutes 8.5 \
  --markdown "$out/bench-cuda.md" --json "$out/bench-cuda.json" "$@"
