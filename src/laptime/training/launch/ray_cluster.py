"""Ray: a cluster on this machine, or a connection to one that is there; `laptime[ray]` brings it."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laptime.errors import MissingExtra, TrainingError
from laptime.files.text import first_line, one_line
from laptime.training.launch.ray_head import own_cluster
from laptime.training.launch.ssh_hosts import last_line, version_mismatch

ADDRESS = "LAPTIME_RAY"  # in a worker's environment: where its cluster is, or the file that will tell
IN_FILE = "file:"
NODE_ADDRESS = "LAPTIME_RAY_NODE"  # the same for its node, which Ray guesses wrong without a default route
AUTH_MODE = "RAY_AUTH_MODE"  # Ray's own: who may join a cluster
LOOK_S = 0.05
START_S = 120.0  # in which a cluster must be there
REACH_S, JOIN_S = 5.0, 60.0  # for a connection to a cluster, and for joining it
NAMESPACE = "laptime"


def ray_module() -> Any:
    """The package; an error says how to get it."""
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray") from None
    return ray


@contextmanager
def connected(address: str | None = None) -> Iterator[str]:
    """Join a cluster while this lasts, or make one on this machine; gives its address.

    A cluster that was made here ends with this process, even if that is killed.
    """
    ray = ray_module()
    if ray.is_initialized():
        yield str(ray.get_runtime_context().gcs_address)
        return
    address = address or _told(os.environ.get(ADDRESS))
    if address is None:
        _use_tokens()
        with own_cluster() as address, connected(address):
            yield address
        return
    options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}
    if NODE_ADDRESS in os.environ:
        options["_node_ip_address"] = os.environ[NODE_ADDRESS]
    try:
        # "local": without an address, Ray joins whatever cluster was last started on this machine.
        context = ray.init(address=address or "local", **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise TrainingError(
            f"the Ray cluster at {address} cannot be reached ({first_line(error)}); check --ray"
        ) from error
    try:
        yield str(context.address_info["gcs_address"])
    finally:
        ray.shutdown()


def _use_tokens() -> None:
    """Join with a token, as a cluster that Ray makes asks for."""
    if AUTH_MODE not in os.environ:
        os.environ[AUTH_MODE] = "token"
        ray_module()._raylet.Config.initialize("")  # it has read its settings when it was imported


def _told(address: str | None) -> str | None:
    """The address of the launcher's cluster, which may be starting still."""
    if address is None or not address.startswith(IN_FILE):
        return address
    file, until = Path(address.removeprefix(IN_FILE)), time.monotonic() + START_S
    while not file.exists():
        if time.monotonic() > until:
            raise TrainingError(f"the launcher's Ray cluster was not there within {START_S:g} s; start again")
        time.sleep(LOOK_S)
    return file.read_text()


def check_reach(address: str) -> None:
    """Raise in one line if a cluster cannot be joined from here.

    Ray itself tries for minutes, or ends the process: it is tried in another one.
    """
    wrong = f"the Ray cluster at {one_line(address)} cannot be joined"
    ray_module()
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), REACH_S).close()
        except OSError as error:
            raise TrainingError(f"{wrong} ({first_line(error)}); check --ray, or run `ray start`") from error
    join = f"import ray; ray.init(address={address!r}, log_to_driver=False, logging_level='ERROR')"
    try:
        tried = subprocess.run(
            [sys.executable, "-c", join], capture_output=True, text=True, timeout=JOIN_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise TrainingError(f"{wrong} (no answer within {JOIN_S:g} s); check --ray") from None
    if "AuthToken" in tried.stderr:
        raise TrainingError(f"{wrong} (it asks for a token); set {AUTH_MODE} as on its nodes")
    if "StackTrace" in tried.stderr:  # of an abort where there is no raylet to connect to
        raise TrainingError(f"{wrong} (this machine is not one of its nodes); start laptime on one of them")
    if tried.returncode:
        raise TrainingError(f"{wrong} ({last_line(tried.stderr.splitlines())}); check --ray")


# -- its nodes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a process asks of the node that it is placed on."""

    cpus: int
    gpus: int = 0
    if_any: bool = False  # without GPUs where the cluster has too few

    def __str__(self) -> str:
        gpus = f" and {self.gpus} GPU{'s' * (self.gpus > 1)}" if self.gpus else ""
        return f"{self.cpus} CPU{'s' * (self.cpus > 1)}{gpus}"

    def times_in(self, resources: Mapping[str, float]) -> int:
        """How often this fits into what a node has."""
        fits = [int(resources.get("CPU", 0)) // self.cpus]
        fits += [int(resources.get("GPU", 0)) // self.gpus] if self.gpus else []
        return min(fits)


def check_nodes(laptime: str) -> None:
    """Ask all nodes of the cluster at once; raises in one line if their versions differ from ours."""
    ray = ray_module()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def ask() -> dict[str, str]:  # nested, so that it travels as code: a node may have no laptime
        from importlib import import_module
        from importlib.metadata import PackageNotFoundError, version

        try:
            return {"laptime": import_module("laptime").__version__, "torch": version("torch")}
        except (ImportError, PackageNotFoundError):
            return {"laptime": ""}

    asking = {}
    for node in _alive():
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ray.remote(num_cpus=0, scheduling_strategy=there, max_retries=0)(ask)
        asking[f"the Ray node {node['NodeManagerAddress']}"] = task.remote()
    for name, asked in asking.items():
        try:
            line = version_mismatch(name, ray.get(asked, timeout=START_S), laptime)
        except ray.exceptions.RayError as error:
            raise TrainingError(
                f"{name} does not answer ({first_line(error)}); check it, or end it"
            ) from error
        if line:
            raise TrainingError(line)


def check_room(need: Need, count: int = 1) -> Need:
    """What each of so many processes is to ask for; raises if an idle cluster had no room for them."""
    nodes = [node["Resources"] for node in _alive()]
    if need.if_any and sum(map(need.times_in, nodes)) < count:
        need = Need(cpus=need.cpus)
    if sum(map(need.times_in, nodes)) < count:
        has = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        asked = f"{count} × {need}" if count > 1 else str(need)
        raise TrainingError(
            f"the Ray cluster has no room for {asked}: its nodes have {has}; "
            "lower --workers or train.threads, or add a node"
        )
    return need


def node_is_alive(address: str) -> bool:
    """Whether the cluster still has a node with this address."""
    return any(node["NodeManagerAddress"] == address for node in _alive())


def _alive() -> list[dict[str, Any]]:
    return [node for node in ray_module().nodes() if node["Alive"]]
