"""A stand-in for `sky` and `ssh`: rented machines are folders, and a task's `run` is run for real in each.

The setup, which installs torch from the network, is left out: this interpreter takes its place.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import yaml

import laptime

SUCCEEDED, FAILED, NOT_FINISHED = 0, 100, 101  # SkyPilot's numbers
RENTED, LOST, NO_SSH = "SKY_STAND_IN", "SKY_LOST", "SKY_NO_SSH"


def install(folder, monkeypatch):
    """Put `sky` and `ssh` before all others on the path; gives the folder of the machines."""
    rented, commands = folder / "rented", folder / "commands"
    rented.mkdir(), commands.mkdir()
    for name in ("sky", "ssh"):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(RENTED, str(rented))
    # A relative one would not find this source tree from elsewhere.
    monkeypatch.setenv("PYTHONPATH", str(Path(laptime.__file__).parents[1]))
    return rented


def sky(*words):
    match words:
        case ("launch", "--yes", "--cluster", cluster, task):
            return launch(cluster, yaml.safe_load(Path(task).read_text()))
        case ("logs", "--status", cluster):
            return int((machine(cluster) / "status").read_text()) if machine(cluster).exists() else 1
        case ("logs", cluster):
            (machine(cluster) / "status").write_text(str(SUCCEEDED))  # waits until it has ended
            return 0
        case ("down", "--yes", cluster):
            for place in machine(cluster).parent.glob(f"{cluster}*"):
                shutil.rmtree(place)
            return 0
    raise SystemExit(f"no such command: {words}")


def ssh(host, *words):
    if NO_SSH in os.environ or not machine(host).exists():
        return 255
    return subprocess.call(["sh", "-c", " ".join(words)], cwd=machine(host))


def machine(name):
    return Path(os.environ[RENTED]) / name


def launch(cluster, task):
    nodes = task["num_nodes"]
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    script = task["run"].replace(":29400", f":{port}")  # others on this machine may use torchrun's
    running = []
    for rank in range(nodes):
        place = machine(cluster if rank == 0 else f"{cluster}-worker{rank}")
        work = place / "sky_workdir"
        shutil.copytree(task["workdir"], work)
        if (work / "data.tar").exists():
            shutil.unpack_archive(work / "data.tar", work, filter="data")
        python = work / "venv/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        told = {
            "HOME": str(place),
            "SKYPILOT_NODE_RANK": str(rank),
            "SKYPILOT_NUM_NODES": str(nodes),
            "SKYPILOT_NODE_IPS": "\n".join(["127.0.0.1"] * nodes),
            "SKYPILOT_NUM_GPUS_PER_NODE": "0",
        }
        running.append(subprocess.Popen(["bash", "-c", script], cwd=work, env=os.environ | told))
    failed = any(list(map(subprocess.Popen.wait, running)))
    status = NOT_FINISHED if LOST in os.environ else FAILED if failed else SUCCEEDED
    (machine(cluster) / "status").write_text(str(status))
    return 1 if LOST in os.environ else status


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit({"sky": sky, "ssh": ssh}[sys.argv[1]](*sys.argv[2:]))
