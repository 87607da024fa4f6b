#!/bin/bash
# The tables on one H200, in about eight minutes: Python 3.12, torch 2.11, nothing to install from.
#
#   benchmarks/gpu.sh [options of python -m benchmarks]     JSON and Markdown go to $OUT
#   benchmarks/gpu.sh -- COMMAND …                          any other command in the same environment
#
# What that machine lacks travels as wheels (28 MB; unpacked they would be over the 64 MiB that may travel):
#   pip download --dest .gpu-deps --python-version 3.12 --only-binary=:all: --no-deps \
#     duckdb==2.0.0 pydantic pydantic_core annotated-types typing-inspection typing-extensions defusedxml simplejpeg
# Ray's wheel is too large: unpacked, without jars, rllib and the dashboard's pages, stripped, it fits as .gpu-deps/*.tar.xz.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

unpacked=/var/tmp/laptime-gpu-deps # not /tmp, of which every Ray node of the test bed has its own
mkdir -p "$unpacked"
for packed in .gpu-deps/*; do
  done_with="$unpacked/.$(basename "$packed")"
  [ -e "$packed" ] && [ ! -e "$done_with" ] || continue
  case $packed in
    *.whl) python3 -m zipfile -e "$packed" "$unpacked" ;;
    *.tar.xz) tar -xf "$packed" -C "$unpacked" || python3 -m tarfile -e "$packed" "$unpacked" ;;
  esac
  touch "$done_with"
done
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}:$unpacked" PYTHONUNBUFFERED=1

if [ "${1:-}" = "--" ]; then
  shift
  exec "$@"
fi
out="${OUT:-runs/bench}"
mkdir -p "$out"
exec python3 -m benchmarks --device cuda --sections slowdown trace --minutes 8.5 \
  --markdown "$out/bench-cuda.md" --json "$out/bench-cuda.json" "$@"
