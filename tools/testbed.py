"""Hosts made of network namespaces, joined by links of a chosen bandwidth: `python -m tools.testbed up`.

Each host has an address, an sshd and, on request, a Ray node; all share this machine's processors, disk and
file system. Bandwidth is set by a token bucket on both ends of every host's link. Linux and root only.
Every checkout has a test bed of its own, or the one whose number is in `LAPTIME_TESTBED`: they do not
disturb each other.

    python -m tools.testbed up --hosts 3 --rate 100mbit [--ray]
    python -m tools.testbed rate 10mbit                     # of all links, while it stands
    python -m tools.testbed run 2 -- COMMAND …              # inside host 2
    python -m tools.testbed down
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_CHECKOUT = Path(__file__).resolve().parents[1]
BED = int(os.environ.get("LAPTIME_TESTBED") or zlib.crc32(bytes(_CHECKOUT)) % 250)
BRIDGE = f"laptime{BED}"
NETWORK = f"10.213.{BED}"  # of a range that nobody routes
MOST_HOSTS = 16
RAY_PORT = 6399
FOLDER = Path(f"/run/laptime-testbed-{BED}")  # keys, sshd's configuration and process ids
BURST = "256kbit"  # smaller ones cannot reach 1 Gbit/s, larger ones let small gradients pass unshaped


class TestbedError(Exception):
    """The test bed cannot be built here; the text says why."""

    __test__ = False


@dataclass(frozen=True, slots=True)
class Host:
    """One host of the test bed."""

    number: int

    @property
    def name(self) -> str:
        """Of the namespace, and for ssh."""
        return f"laptime{BED}-{self.number}"

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.number}"

    @property
    def link(self) -> str:
        """This machine's end of the host's link."""
        return f"lap{BED}-{self.number}"

    def command(self, *words: str) -> list[str]:
        """A command line that runs inside the host."""
        return ["ip", "netns", "exec", self.name, *words]


def missing(*, ssh: bool = True) -> str:
    """Why no test bed can be built here, in a line; empty where one can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "the test bed needs Linux and root"
    needed = ("ip", "tc", *(("ssh", "ssh-keygen", "/usr/sbin/sshd") if ssh else ()))
    tools = [tool for tool in needed if shutil.which(tool) is None]
    if tools:
        packages = "iproute2 openssh-server openssh-client"
        return f"the test bed needs {', '.join(tools)}; on Debian: apt-get install {packages}"
    tried = subprocess.run(
        ["ip", "netns", "add", f"{BRIDGE}-try"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        return f"this machine lets nobody make network namespaces ({tried.stderr.strip()})"
    subprocess.run(["ip", "netns", "del", f"{BRIDGE}-try"], check=False)
    return ""


@contextmanager
def a_testbed(hosts: int, rate: str = "1gbit") -> Iterator[list[Host]]:
    """A test bed that stands while this lasts."""
    try:
        yield up(hosts, rate)
    finally:
        down()


def up(count: int, rate: str, *, ssh: bool = True) -> list[Host]:
    """Build it: a bridge, and a namespace with an sshd for each host."""
    if reason := missing(ssh=ssh):
        raise TestbedError(reason)
    if not 1 <= count <= MOST_HOSTS:
        raise TestbedError(f"{count} hosts were asked for; 1 to {MOST_HOSTS} can be made")
    down()
    FOLDER.mkdir(parents=True)
    hosts = [Host(number) for number in range(1, count + 1)]
    _ip("link", "add", BRIDGE, "type", "bridge")
    _ip("addr", "add", f"{NETWORK}.254/24", "dev", BRIDGE)
    _ip("link", "set", BRIDGE, "up")
    for host in hosts:
        _ip("netns", "add", host.name)
        _ip("link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.name)
        _ip("link", "set", host.link, "master", BRIDGE, "up")
        for words in (("addr", "add", f"{host.address}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
            _ip("-n", host.name, *words)
        _ip("-n", host.name, "link", "set", "lo", "up")
    set_rate(rate)
    if ssh:
        _start_ssh(hosts)
    return hosts


def down() -> None:
    """Remove it, with every process inside."""
    for host in standing():
        kill(host)
        subprocess.run(["ip", "netns", "del", host.name], check=False)
        subprocess.run(["ip", "link", "del", host.link], capture_output=True, check=False)
    subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True, check=False)
    shutil.rmtree(FOLDER, ignore_errors=True)


def kill(host: Host) -> None:
    """Kill every process of a host, as if its power had failed."""
    found = subprocess.run(["ip", "netns", "pids", host.name], capture_output=True, text=True, check=False)
    for pid in found.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def standing() -> list[Host]:
    """The hosts that are there now."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    names = {line.split()[0] for line in listed.splitlines() if line}
    return [host for host in map(Host, range(1, MOST_HOSTS + 1)) if host.name in names]


def set_rate(rate: str) -> None:
    """Shape both ends of every link, as `tc` writes rates: 1gbit, 100mbit, 10mbit."""
    for host in standing():
        shape = ("root", "tbf", "rate", rate, "burst", BURST, "latency", "400ms")
        _run("tc", "qdisc", "replace", "dev", host.link, *shape)
        _run(*host.command("tc", "qdisc", "replace", "dev", "eth0", *shape))


def cut(host: Host) -> None:
    """Unplug a host's link."""
    _ip("link", "set", host.link, "down")


def join(host: Host) -> None:
    """Plug it in again."""
    _ip("link", "set", host.link, "up")


def ssh_config() -> Path:
    """A configuration for `ssh -F`: the hosts by name, with their keys."""
    return FOLDER / "ssh_config"


def _start_ssh(hosts: Sequence[Host]) -> None:
    """An sshd in each host, and a configuration that knows their addresses and keys."""
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host_key", "user_key"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(FOLDER / name))
    (FOLDER / "authorized_keys").write_text((FOLDER / "user_key.pub").read_text())
    public = " ".join((FOLDER / "host_key.pub").read_text().split()[:2])
    (FOLDER / "known_hosts").write_text("".join(f"{host.address} {public}\n" for host in hosts))
    settings = [
        f"HostKey {FOLDER}/host_key",
        f"AuthorizedKeysFile {FOLDER}/authorized_keys",
        "PasswordAuthentication no",
        "StrictModes no",
        "UsePAM no",
        "PermitRootLogin prohibit-password",
    ]
    (FOLDER / "sshd_config").write_text("\n".join(settings) + "\n")
    options = [f"IdentityFile {FOLDER}/user_key", f"UserKnownHostsFile {FOLDER}/known_hosts", "User root"]
    sections = [[f"Host {host.name}", f"HostName {host.address}", *options] for host in hosts]
    ssh_config().write_text("\n".join("\n  ".join(section) for section in sections) + "\n")
    for host in hosts:
        _run(
            *host.command(
                "/usr/sbin/sshd", "-f", str(FOLDER / "sshd_config"), "-o", f"PidFile={FOLDER}/{host.name}.pid"
            )
        )
    for host in hosts:
        _wait_for_ssh(host)


# -- Ray -----------------------------------------------------------------------------------------------------


def start_ray(
    hosts: Sequence[Host], cpus: int = 2, variables: Mapping[str, str] = MappingProxyType({})
) -> str:
    """A Ray node in each host, with a /tmp of its own; the cluster's address. `variables` are set for all."""
    address = f"{hosts[0].address}:{RAY_PORT}"
    for host in hosts:
        start_ray_node(host, address, cpus, variables)
    return address


def start_ray_node(
    host: Host, address: str, cpus: int = 2, variables: Mapping[str, str] = MappingProxyType({})
) -> None:
    """A Ray node; the one that the address names is the head."""
    tmp_of(host).mkdir(exist_ok=True)
    port = address.rpartition(":")[2]
    where = [f"--port={port}"] if address.startswith(f"{host.address}:") else [f"--address={address}"]
    options = ["--head", "--include-dashboard=false"] if where[0].startswith("--port") else []
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, *where]
    ray += [f"--node-ip-address={host.address}", f"--num-cpus={cpus}", "--num-gpus=0"]
    ray += ["--object-store-memory=128000000", "--disable-usage-stats"]
    words = [f"{name}={value}" for name, value in {"RAY_AUTH_MODE": "disabled", **variables}.items()]
    _run(*ray_command(host, "env", *words, *ray))


def tmp_of(host: Host) -> Path:
    """What is /tmp for the Ray node of a host."""
    return FOLDER / f"{host.name}.tmp"


def ray_command(host: Host, *words: str) -> list[str]:
    """A command line that runs inside the host and sees the /tmp of its Ray node.

    A checkout below /tmp stays where it is. Mounts are the command's own: `ip netns exec` makes it so.
    """
    tmp, script = tmp_of(host), ""
    if _CHECKOUT.is_relative_to("/tmp"):
        kept = tmp / _CHECKOUT.relative_to("/tmp")
        script = f"mkdir -p {kept} && mount --bind {_CHECKOUT} {kept} && "
    script += f'mount --rbind {tmp} /tmp && exec "$@"'
    return host.command("sh", "-c", script, "sh", *words)


def _wait_for_ssh(host: Host) -> None:
    tried = None
    for _ in range(50):
        tried = subprocess.run(
            ["ssh", "-F", str(ssh_config()), host.name, "true"], capture_output=True, text=True, check=False
        )
        if tried.returncode == 0:
            return
        time.sleep(0.1)
    raise TestbedError(f"no ssh to {host.name} ({tried.stderr.strip() if tried else ''})")


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TestbedError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.testbed", description=(__doc__ or "").partition("\n")[0]
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("up")
    build.add_argument("--hosts", type=int, default=3)
    build.add_argument("--rate", default="1gbit")
    build.add_argument("--ray", action="store_true")
    verbs.add_parser("rate").add_argument("rate")
    inside = verbs.add_parser("run")
    inside.add_argument("host", type=int)
    inside.add_argument("command", nargs=argparse.REMAINDER)
    verbs.add_parser("down")
    asked = parser.parse_args()
    try:
        if asked.verb == "up":
            hosts = up(asked.hosts, asked.rate)
            print(f"{', '.join(host.name for host in hosts)} at {asked.rate}")
            print(f"ssh -F {ssh_config()} {hosts[0].name}")
            if asked.ray:
                print(f"Ray at {start_ray(hosts)}")
        elif asked.verb == "rate":
            set_rate(asked.rate)
        elif asked.verb == "down":
            down()
        else:
            words = [word for word in asked.command if word != "--"]
            sys.exit(subprocess.run(Host(asked.host).command(*words), check=False).returncode)
    except TestbedError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
