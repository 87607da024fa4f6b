"""The scripts of a SkyPilot task: what sets a machine up, what trains there, and what brings the run back."""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from laptime.runs.directory import RANK_FILES
from laptime.training.launch import node
from laptime.training.launch.cloud_files import DATA_ARCHIVE, REQUIREMENTS
from laptime.training.launch.host_folders import RUN

if TYPE_CHECKING:
    from laptime.training.launch.cloud import CloudTraining, Machines
    from laptime.training.launch.cloud_files import NeededFiles

PORT = 29_400  # torchrun's own, where machines meet; SkyPilot lets those of a cluster reach each other


def setup_script(wheel: str, needs: NeededFiles) -> str:
    """Python and torch in the versions of this machine; `uv` takes the build of torch for its driver."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    torch = f"torch=={version('torch').partition('+')[0]}"
    extras = f"[{','.join(needs.extras)}]" if needs.extras else ""
    more = f" -r {REQUIREMENTS}" if REQUIREMENTS in needs.files else ""
    data = f"tar -xf {DATA_ARCHIVE}\n" if needs.data else ""
    return f"""\
set -e
{data}export PATH="$HOME/.local/bin:$PATH"
command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh
uv venv --quiet --clear --python {python} venv
uv pip install --quiet --python venv/bin/python --torch-backend auto {torch} \\
  "laptime{extras} @ file://$PWD/{wheel}"{more}
"""


def run_script(needs: NeededFiles, machines: Machines, training: CloudTraining) -> str:
    """Train. Of several machines, each is told which one it is and where all meet."""
    settings = [word for setting in needs.settings for word in ("--set", setting)]
    words = ["train", training.resolved.path.name, *training.arguments, *settings]
    words += ["--workers", str(training.workers), "--out", RUN]
    several = f"""\
address() {{ printf '%s\\n' "$SKYPILOT_NODE_IPS" | sed -n "$(($1 + 1))p"; }}
export {node.NODE}="$SKYPILOT_NODE_RANK" {node.NODES}="$SKYPILOT_NUM_NODES"
export {node.ADDRESS}="$(address "$SKYPILOT_NODE_RANK")" {node.MEETING}="$(address 0):{PORT}"
"""
    return f"{several if machines.nodes > 1 else ''}exec venv/bin/python -m laptime {shlex.join(words)}\n"


def launch_script(task: Path, machines: Machines, training: CloudTraining) -> str:
    """The script that a user runs; all that differs between tasks is in its head."""
    ends = "are stopped, and keep their disks" if machines.stops else "are ended, and the run is lost"
    values = {
        "cluster": training.cluster,
        "nodes": str(machines.nodes),
        "out": str(training.out.absolute()),
        "task": str(task.absolute()),
        "python": sys.executable,
        "install": machines.installing_sky,
        "of_ranks": " -o -type f ".join(f"-name '{name}-r*'" for name in RANK_FILES),
    }
    return f"""\
#!/bin/sh
# Written by laptime {training.laptime}. Rents what {task.name} asks for, trains, brings the run back, and
# ends the machines, also when the training failed. `launch.sh fetch`: the same for a training left alone.
# Machines that are idle for {machines.idle_minutes} minutes {ends}.
{"".join(f"{name}={shlex.quote(value)}" + chr(10) for name, value in values.items())}{_BODY}"""


# Rows of other machines' ranks have names of their own, so that one folder takes them all. Machines are ended
# only when SkyPilot says that the training has, and the run is here: no lost connection ends a training.
_BODY = r"""
set -u
say() { echo "laptime: $1" >&2; }
left="if sky status shows it, 'sh $0 fetch' brings the run back, 'sky down $cluster' ends the machines"
trap 'say "the training goes on at $cluster; $left"; exit 130' INT TERM
command -v sky >/dev/null || { say "SkyPilot is not installed; $install"; exit 1; }

if [ "${1:-}" = fetch ]; then
  sky logs "$cluster"
elif [ -e "$out" ]; then
  say "$out is there already; move it away"
  exit 1
else
  sky launch --yes --cluster "$cluster" "$task"
fi
sky logs --status "$cluster" >/dev/null
status=$?
case "$status" in
  0 | 100 | 102 | 103) ;; # succeeded, failed, never began, cancelled
  101) say "the training goes on at $cluster; $left"; exit 1 ;;
  *) say "SkyPilot does not tell how the training at $cluster ended; $left"; exit 1 ;;
esac

bring() { # the run of a machine; what of it, as find takes it
  host=$1 && shift
  ssh "$host" "mkdir -p sky_workdir/run && cd sky_workdir/run && find . -type f $* | tar -cf - -T -" \
    >"$out/.fetched" && tar -xf "$out/.fetched" -C "$out" && rm "$out/.fetched" && return
  say "the run of $host could not be fetched; $left"
  exit 1
}
mkdir -p "$out"
bring "$cluster"
worker=1
while [ "$worker" -lt "$nodes" ]; do
  bring "$cluster-worker$worker" "$of_ranks"
  worker=$((worker + 1))
done
sky down --yes "$cluster" || say "'sky down $cluster' failed; try it again, the machines cost money"
if rmdir "$out" 2>/dev/null; then
  say "the training left no run"
else # with several machines, the tables of all ranks
  [ "$nodes" = 1 ] || [ ! -e "$out/run.json" ] || "$python" -m laptime export --csv "$out" >/dev/null
  say "the run is in $out"
fi
exit "$status"
"""
